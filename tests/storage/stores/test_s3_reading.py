"""Raw text in a bucket is read by s3fs with the answers, errors and requests of boto3."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.answering import answering, send_answer
from helpers.s3_server import requests_answered
from helpers.sample_project import EOD
from nanoset_core.errors import MissingError, SourceChangedError, StorageError
from nanoset_core.project.settings import load_config
from nanoset_core.storage import requests
from nanoset_core.storage.reading.objects import open_object
from nanoset_core.storage.stores.s3 import reading as s3_reading
from nanoset_core.storage.stores.s3.reading import S3Reader
from nanoset_core.storage.stores.s3.store import S3Store

MIB = 1 << 20
SIZE = 20 * MIB


def reader_of(place: S3Store) -> S3Reader:
    """Return what reads the raw text below a place in a bucket."""
    fields = [field for field in dataclasses.fields(place) if not field.kw_only]
    return S3Reader(*(getattr(place, field.name) for field in fields))


@pytest.fixture(params=["s3fs", "boto3"])
def reader(
    request: pytest.FixtureRequest,
    new_clients: None,
    place: S3Store,
    monkeypatch: pytest.MonkeyPatch,
) -> S3Reader:
    """What reads the bucket of a test: by s3fs, and by boto3 if s3fs is not installed."""
    if request.param == "s3fs":
        pytest.importorskip("s3fs")
    else:
        monkeypatch.setattr(s3_reading, "_client", lambda *_: None)
    return reader_of(place)


# The same answers and requests


def sha256_of_data(store: S3Store) -> str:
    """Return the sha256 of the object `data`, read like a file."""
    with open_object(store, "data", begin=0, end=SIZE) as file:
        return hashlib.sha256(file.read()).hexdigest()


REQUESTS: dict[str, Callable[[S3Store], Any]] = {
    "list": lambda store: list(store.list()),
    "level": lambda store: store.level(),
    "level of a folder": lambda store: store.level("b"),
    "stat": lambda store: store.stat("g"),
    "stat of a missing object": lambda store: store.stat("none"),
    "read": lambda store: store.read("a"),
    "read a missing object": lambda store: store.read("none"),
    "open a range": lambda store: store.open_range("data", 7, 99),
    "open a missing object": lambda store: store.open_range("none", 0, 1),
    "read a range of a version": lambda store: store.read_range(
        "data", MIB, 3 * MIB, store.stat("data").mark
    ),
    "read like a file": sha256_of_data,
}
"""What is requested → function that requests it."""


def test_the_answers_and_the_numbers_of_requests_are_those_of_boto3(place, reader):
    """They are compared in one test, since each test writes a large object and sets up a client."""
    for name in ("a", "b/c", "b/d e/f", "g"):
        place.put(name, name.encode())
    data = os.urandom(SIZE)
    place.put("data", data)

    def answer_and_request_count(store: S3Store, kind: str) -> tuple[Any, int]:
        n_requests_before = requests_answered[place.endpoint_url]
        answer = REQUESTS[kind](store)
        return answer, requests_answered[place.endpoint_url] - n_requests_before

    for kind in REQUESTS:
        actual = answer_and_request_count(reader, kind)
        expected = answer_and_request_count(place, kind)
        assert actual == expected, kind
    assert sha256_of_data(reader) == hashlib.sha256(data).hexdigest()


# Versions


def check_versions_are_told_apart(place: S3Store, reader: S3Reader) -> None:
    """Check that replaced, shorter and deleted objects are errors when their ranges are read."""
    place.put("data", b"x" * 100)
    mark = place.stat("data").mark
    place.put("data", b"y" * 100)
    with pytest.raises(SourceChangedError):
        reader.read_range("data", 0, 10, mark)
    with pytest.raises(SourceChangedError):
        reader.read_range("data", 90, 110)

    place.delete("data")
    with pytest.raises(MissingError):
        reader.read_range("data", 0, 10, mark)


def test_an_object_that_was_replaced_or_deleted_is_an_error(place, reader):
    check_versions_are_told_apart(place, reader)


def test_an_object_that_was_replaced_or_deleted_is_an_error_on_ceph(new_clients, ceph_place):
    pytest.importorskip("s3fs")

    check_versions_are_told_apart(ceph_place, reader_of(ceph_place))


# Failures


def test_a_request_is_repeated_until_its_answer_is_complete(reader, monkeypatch):
    monkeypatch.setattr(requests, "FIRST_WAIT_SECONDS", 0.0)
    answers = iter(["cut off", "connection closed", "overloaded", "too short", "complete"])
    given_answers = []

    def answer_request(request: Any) -> None:
        answer = next(answers)
        given_answers.append(answer)
        headers = {
            "ETag": '"e"',
            "Last_Modified": "Tue, 24 Nov 2026 10:00:00 GMT",
            "Content_Range": "bytes 0-9/10",
        }
        if answer == "cut off":
            send_answer(request, 206, b"01234", Content_Length="10", **headers)
        elif answer == "connection closed":
            request.connection.shutdown(socket.SHUT_RDWR)
        elif answer == "overloaded":
            send_answer(request, 503, b"", **headers)
        elif answer == "too short":
            send_answer(request, 206, b"01234", **headers)
        else:
            send_answer(request, 206, b"0123456789", **headers)

    with answering(answer_request) as address:
        store = dataclasses.replace(reader, endpoint_url=address)
        assert store.read_range("data", 0, 10) == b"0123456789"

    expected_answers = ["cut off", "connection closed", "overloaded", "too short", "complete"]
    assert given_answers == expected_answers


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        pytest.param({"bucket": "no-such-bucket"}, "make the bucket", id="missing bucket"),
        pytest.param({"endpoint_url": "http://127.0.0.1:9"}, "store is up", id="missing server"),
    ],
)
def test_a_bucket_that_cannot_be_listed_is_an_error_with_a_remedy(
    reader, monkeypatch, changes, remedy
):
    monkeypatch.setattr(requests, "ATTEMPTS", 1)
    store = dataclasses.replace(reader, **changes)

    with pytest.raises(StorageError) as caught:
        next(store.list())

    assert remedy in caught.value.remedy


def test_a_bucket_that_refuses_access_is_an_error_with_a_remedy(reader, monkeypatch):
    monkeypatch.setattr(requests, "ATTEMPTS", 1)

    with (
        answering(lambda request: send_answer(request, 403, b"")) as address,
        pytest.raises(StorageError) as caught,
    ):
        dataclasses.replace(reader, endpoint_url=address, anonymous=True).stat("data")

    assert "credentials" in caught.value.remedy


# How clients are set up


def s3fs_of(**settings: Any) -> Any:
    """Return the file system of s3fs that reads a bucket with some settings."""
    return S3Reader("b", "", **settings).client()._system


@pytest.fixture
def team_profile(new_clients: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The name of a profile in the AWS configuration with the region eu-north-1."""
    pytest.importorskip("s3fs")
    (tmp_path / "aws").write_text("[profile team]\nregion = eu-north-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws"))
    # This variable would take precedence over the profile's region.
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    return "team"


def test_the_region_of_a_profile_is_used(team_profile):
    assert s3fs_of(profile=team_profile).client_kwargs["region_name"] == "eu-north-1"


def test_a_region_in_the_settings_takes_precedence_over_the_profile(team_profile):
    system = s3fs_of(profile=team_profile, region="us-west-2")

    assert system.client_kwargs["region_name"] == "us-west-2"


@pytest.mark.usefixtures("team_profile")
def test_the_default_region_is_us_east_1():
    assert s3fs_of().client_kwargs["region_name"] == "us-east-1"


@pytest.mark.usefixtures("team_profile")
def test_requests_can_be_anonymous():
    assert s3fs_of(anonymous=True).anon


@pytest.mark.usefixtures("team_profile")
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"profile": "nobody"}, id="missing profile"),
        pytest.param({"endpoint_url": "no address"}, id="invalid address"),
    ],
)
def test_a_client_that_cannot_be_set_up_is_an_error(settings):
    with pytest.raises(StorageError, match="cannot be set up"):
        s3fs_of(**settings)


def test_only_the_raw_text_of_a_project_is_read_by_s3fs(tmp_path):
    config_file = tmp_path / "nanoset.yaml"
    config_file.write_text(
        f"raw: s3://b/raw\nroot: s3://b/out\ntokenizer: {{path: t.json, eod: '{EOD}'}}\n"
    )

    config = load_config(config_file)

    assert type(config.raw_folder.store) is S3Reader
    assert type(config.root_place) is S3Store
