"""Raw text in a bucket through s3fs: the answers, errors and number of requests of boto3."""

from __future__ import annotations

import dataclasses
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from helpers.answering import answering, say
from helpers.s3_server import requests_answered
from helpers.sample_project import EOD
from nanoset_core.errors import MissingError, SourceChangedError, StorageError
from nanoset_core.project.settings import load_config
from nanoset_core.storage import s3_reading, s3_requests
from nanoset_core.storage.reading import open_object
from nanoset_core.storage.s3 import S3Store
from nanoset_core.storage.s3_reading import S3Reader

MIB = 1 << 20


@pytest.fixture(params=["s3fs", "boto3"])
def reader(
    request: pytest.FixtureRequest, new_clients: None, place: S3Store, monkeypatch: Any
) -> S3Reader:
    """What reads the place of a test."""
    if request.param == "s3fs":
        pytest.importorskip("s3fs")
    else:
        monkeypatch.setattr(s3_reading, "_client", lambda *_: None)
    return reading(place)


def reading(place: S3Store) -> S3Reader:
    return S3Reader(
        *(getattr(place, field.name) for field in dataclasses.fields(place) if not field.kw_only)
    )


def test_the_same_is_read_with_as_many_requests(place, reader):
    data = os.urandom(20 * MIB)
    for name in ("a", "b/c", "b/d e/f", "g"):
        place.put(name, name.encode())
    place.put("data", data)

    def asked(store: S3Store) -> tuple[Any, int]:
        before = requests_answered[place.endpoint_url]
        found = [
            list(store.list()),
            store.level(),
            store.level("b"),
            store.stat("g"),
            store.stat("none"),
        ]
        found += [
            store.read("a"),
            store.read("none"),
            store.open_range("data", 7, 99),
            store.open_range("none", 0, 1),
        ]
        found += [store.read_range("data", MIB, 3 * MIB, store.stat("data").mark)]
        with open_object(store, "data", begin=0, end=len(data)) as file:
            found.append(file.read() == data)
        return found, requests_answered[place.endpoint_url] - before

    assert asked(reader) == asked(place)


def test_a_replaced_object_is_refused_and_one_that_is_gone_is_named(place, reader):
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


def test_ceph_says_the_same(new_clients, ceph_place):
    pytest.importorskip("s3fs")
    test_a_replaced_object_is_refused_and_one_that_is_gone_is_named(ceph_place, reading(ceph_place))


def test_answers_that_break_off_are_asked_for_again(reader, monkeypatch):
    monkeypatch.setattr(s3_requests, "FIRST_WAIT_SECONDS", 0.0)
    faults, seen = iter(["cut", "reset", 503, "short"]), []

    def answer(to: Any) -> None:
        seen.append(fault := next(faults, None))
        about = {
            "ETag": '"e"',
            "Last_Modified": "Tue, 24 Nov 2026 10:00:00 GMT",
            "Content_Range": "bytes 0-9/10",
        }
        if fault == "reset":
            to.connection.shutdown(socket.SHUT_RDWR)
        elif fault == "cut":
            say(to, 206, b"01234", Content_Length="10", **about)
        elif fault == "short":
            say(to, 206, b"01234", **about)
        else:
            say(to, fault or 206, b"" if fault else b"0123456789", **about)

    with answering(answer) as address:
        assert (
            dataclasses.replace(reader, endpoint_url=address).read_range("data", 0, 10)
            == b"0123456789"
        )
    assert seen == ["cut", "reset", 503, "short", None]


def test_what_is_wrong_with_a_bucket_is_said(place, reader, monkeypatch):
    monkeypatch.setattr(s3_requests, "ATTEMPTS", 1)
    for store, what in (
        (dataclasses.replace(reader, bucket="no-such-bucket"), "make the bucket"),
        (dataclasses.replace(reader, endpoint_url="http://127.0.0.1:9"), "store is up"),
    ):
        with pytest.raises(StorageError) as caught:
            next(store.list())
        assert what in caught.value.remedy
    with answering(lambda to: say(to, 403, b"")) as address, pytest.raises(StorageError) as caught:
        dataclasses.replace(reader, endpoint_url=address, anonymous=True).stat("data")
    assert "credentials" in caught.value.remedy


def test_clients_are_set_up_as_storage_and_the_aws_configuration_say(
    new_clients, monkeypatch, tmp_path
):
    pytest.importorskip("s3fs")
    (tmp_path / "aws").write_text("[profile team]\nregion = eu-north-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws"))
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)

    def system(**about: Any) -> Any:
        return S3Reader("b", "", **about).client()._system

    assert system(profile="team").client_kwargs["region_name"] == "eu-north-1"
    assert system(profile="team", region="us-west-2").client_kwargs["region_name"] == "us-west-2"
    assert system().client_kwargs["region_name"] == "us-east-1"
    assert system(anonymous=True).anon
    for wrong in ({"profile": "nobody"}, {"endpoint_url": "no address"}):
        with pytest.raises(StorageError, match="cannot be set up"):
            system(**wrong)


def test_raw_text_of_a_project_is_read_so(tmp_path: Path):
    text = f"raw: s3://b/raw\nroot: s3://b/out\ntokenizer: {{path: t.json, eod: '{EOD}'}}\n"
    (tmp_path / "nanoset.yaml").write_text(text)
    config = load_config(tmp_path / "nanoset.yaml")
    assert (type(config.raw_folder.store), type(config.root_place)) == (S3Reader, S3Store)
