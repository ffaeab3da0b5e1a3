"""Which failures pass by themselves, and what is said of those that do not."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import http.server
import math
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from time import sleep

import pytest
from botocore.exceptions import (
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
)
from botocore.utils import parse_timestamp

from helpers.answering import answering, say
from nanoset_core.errors import ConfigError, MissingError, StorageError
from nanoset_core.loading.opening import load_nanoset
from nanoset_core.storage import s3, s3_joining, unanswered
from nanoset_core.storage import s3_requests as requests
from nanoset_core.storage.location import RemoteFolder, StorageSpec, copies_folder, remote_location
from nanoset_core.storage.s3 import S3Store
from nanoset_core.storage.s3_client import parse_time
from nanoset_core.storage.s3_requests import with_retries


def answered(status: int, code: str) -> ClientError:
    response = {
        "Error": {"Code": code, "Message": "told so"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(response, "GetObject")


PASSING = [
    answered(500, "InternalError"),
    answered(503, "SlowDown"),
    answered(429, "TooManyRequests"),
    answered(400, "RequestTimeout"),
    answered(400, "BadDigest"),
    answered(409, "ConditionalRequestConflict"),
    EndpointConnectionError(endpoint_url="http://here"),
    ReadTimeoutError(endpoint_url="http://here"),
    ConnectionResetError("reset"),
    requests.DamagedTransferError("too few bytes"),
    ValueError("Invalid timestamp: of an answer that was cut off within its head"),
    KeyError("ETag"),
]
FINAL = [
    (answered(403, "AccessDenied"), "may read and write there"),
    (answered(404, "NoSuchBucket"), "make the bucket"),
    (NoCredentialsError(), "AWS chain"),
    (answered(404, "404"), "storage.endpoint_url"),
    (answered(400, "InvalidRequest"), "see whether the store is up"),
]


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(requests.time, "sleep", lambda seconds: None)


class Failing:
    """Fails some times, then answers."""

    def __init__(self, error: Exception, times: int) -> None:
        self.error, self.times, self.sent = error, times, 0

    def __call__(self) -> str:
        self.sent += 1
        if self.sent <= self.times:
            raise self.error
        return "answer"


@pytest.mark.parametrize("error", PASSING, ids=repr)
def test_what_passes_is_tried_again(error):
    assert with_retries(Failing(error, 9), "s3://b/k") == "answer"
    with pytest.raises(StorageError, match="after 10 attempt") as caught:
        with_retries(Failing(error, 10), "s3://b/k")
    assert caught.value.where == "s3://b/k"


@pytest.mark.parametrize(("error", "remedy"), FINAL, ids=repr)
def test_what_does_not_pass_is_said_at_once(error, remedy):
    failing = Failing(error, 1)
    with pytest.raises(StorageError) as caught:
        with_retries(failing, "s3://b/k", reads=False)
    assert failing.sent == 1
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    "error", [answered(404, "NoSuchKey"), answered(412, "PreconditionFailed")], ids=repr
)
def test_answers_are_no_failures(error):
    with pytest.raises(ClientError):
        with_retries(Failing(error, 1), "s3://b/k")


def test_waits_double_with_jitter_and_end(monkeypatch):
    waits = []
    monkeypatch.setattr(requests.time, "sleep", waits.append)
    monkeypatch.setattr(requests._jitter, "uniform", lambda low, high: high)
    with_retries(Failing(PASSING[0], 9), "s3://b/k")
    assert waits == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 20.0, 20.0]


def test_what_is_waited_for_long_is_told_now_and_then(monkeypatch, caplog):
    clock = [1000.0]
    monkeypatch.setattr(requests.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(requests.time, "sleep", lambda seconds: clock.append(clock.pop() + 4))
    monkeypatch.setattr(unanswered, "_last_warning_at", -math.inf)
    with_retries(Failing(PASSING[0], 1), "s3://b/first")
    assert not caplog.records
    with_retries(
        Failing(ReadTimeoutError(endpoint_url="http://me:secret@host/b/second"), 3), "s3://b/second"
    )
    (told,) = caplog.messages
    assert told.startswith(
        "s3://b/second: no good answer for 8 s, attempt 3 of 10: ReadTimeoutError: "
    )
    assert "secret" not in told
    with_retries(Failing(PASSING[0], 9), "s3://b/third")
    assert len(caplog.messages) == 2


def test_a_server_that_never_answers_is_told_before_the_second_attempt(monkeypatch, caplog):
    monkeypatch.setattr(unanswered, "_last_warning_at", -math.inf)
    monkeypatch.setattr(requests, "ATTEMPTS", 2)
    for name in ("READ_SECONDS", "TOLD_AFTER_SECONDS"):
        monkeypatch.setattr(requests, name, getattr(requests, name) / 100)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(StorageError, match="after 2 attempts"):
            S3Store("b", "p", url, anonymous=True).read("k")
    (told,) = caplog.messages
    assert told.startswith("s3://b/p/k: no good answer for ")
    assert f'attempt 1 of 2: ReadTimeoutError: Read timeout on endpoint URL: "{url}/b/p/k"' in told


def test_a_store_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setattr(requests, "ATTEMPTS", 2)
    with pytest.raises(StorageError, match=r"127\.0\.0\.1:9"):
        S3Store("b", "", "http://127.0.0.1:9", anonymous=True).stat("k")


@pytest.fixture
def deaf_store() -> Iterator[S3Store]:
    """A server that says 404 to everything, as other services than S3 do; and some stores when an
    object is gone.
    """

    with answering(lambda to: say(to, 404, b"")) as address:
        yield S3Store("b", "p", address, region="us-east-1")


def test_a_server_that_does_not_speak_s3_is_told_apart_from_a_missing_object(deaf_store, endpoint):
    for request in (
        lambda: list(deaf_store.list()),
        deaf_store.level,
        lambda: deaf_store.put("k", b"data"),
    ):
        with pytest.raises(StorageError, match=r"storage\.endpoint_url"):
            request()
    deaf_store.delete("k")


@pytest.fixture
def fail_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Failing], None]:
    """Lets requests of one kind fail."""

    def these(kind: str, failing: Failing) -> None:
        ask = S3Store.ask

        def asked(store: S3Store, operation: str, *arguments: object, **more: object) -> object:
            if operation == kind:
                failing()
            return ask(store, operation, *arguments, **more)

        monkeypatch.setattr(S3Store, "ask", asked)

    return these


def test_an_upload_that_somebody_aborted_is_an_error_and_made_again_by_the_next_call(
    place, tmp_path, fail_at
):
    data = os.urandom(11 << 20)
    (tmp_path / "file").write_bytes(data)
    fail_at("upload_part", Failing(answered(404, "NoSuchUpload"), 1))
    store = replace(place, part_bytes=5 << 20)
    with pytest.raises(StorageError, match="does not hold what was sent") as caught:
        store.put_file("k", tmp_path / "file")
    assert (caught.value.where, caught.value.found) == (
        store.url("k"),
        "another process aborted the upload",
    )
    assert store.stat("k") is None
    store.put_file("k", tmp_path / "file")
    assert place.sha256("k") == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("same_size", [True, False])
def test_an_upload_that_is_lost_takes_no_other_object_for_its_own(
    place, monkeypatch, fail_at, same_size
):
    store = replace(place, part_bytes=5 << 20)
    for name in ("a", "b"):
        store.put(name, name.encode() * (6 << 20))
    older = b"o" * (12 << 20 if same_size else 77)
    store.put("k", older)
    lost = Failing(answered(404, "NoSuchUpload"), 99)
    fail_at("complete_multipart_upload", lost)
    monkeypatch.setattr(requests, "ATTEMPTS", 2)
    with pytest.raises(StorageError):
        store.compose("k", [store.stat("a"), store.stat("b")])
    assert store.read("k") == older
    with pytest.raises(StorageError, match="does not hold what was sent"):
        store.put_parts("k", [b"x" * (12 << 20)])
    assert store.read("k") == older
    lost.times = 0
    store.compose("k", [store.stat("a"), store.stat("b")])
    assert store.stat("k").size == 12 << 20
    assert store.read_range("k", 0, 1) == b"a"


@pytest.fixture
def completions(place: S3Store, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let uploads in parts be completed as functions say, one a request; each is given the bucket's
    own.
    """

    def these(*answers: Callable[[Callable[[], object]], object]) -> None:
        left, client = list(answers), place.client()
        own = client.complete_multipart_upload
        monkeypatch.setattr(
            client, "complete_multipart_upload", lambda **about: left.pop(0)(lambda: own(**about))
        )

    return these


def cut_off(own: Callable[[], object]) -> object:
    return {"ResponseMetadata": {"HTTPStatusCode": 200}}


def made_and_lost(own: Callable[[], object]) -> object:
    own()
    raise ReadTimeoutError(endpoint_url="http://here")


def aborted(own: Callable[[], object]) -> object:
    raise answered(404, "NoSuchUpload")


def test_an_upload_whose_answer_was_cut_off_is_completed_again(place, completions):
    store = replace(place, part_bytes=5 << 20)
    completions(cut_off, lambda own: own())
    store.put_parts("k", [b"x" * (12 << 20)])
    assert store.stat("k").size == 12 << 20
    completions(cut_off, aborted)
    with pytest.raises(StorageError, match="does not hold what was sent"):
        store.put_parts("another", [b"x" * (12 << 20)])


def test_what_was_noted_is_known_from_servers_that_answer_in_capitals(
    place, tmp_path, completions, monkeypatch
):
    (tmp_path / "file").write_bytes(b"x" * (12 << 20))
    head = place.client().head_object

    def in_capitals(**about: object) -> object:
        found = head(**about)
        return found | {
            "Metadata": {name.title(): value for name, value in found["Metadata"].items()}
        }

    monkeypatch.setattr(place.client(), "head_object", in_capitals)
    completions(made_and_lost, aborted)
    replace(place, part_bytes=5 << 20).put_file("k", tmp_path / "file")
    replace(place, part_bytes=5 << 20).put_file("k", tmp_path / "file")  # is there already


@pytest.mark.parametrize("first", [made_and_lost, cut_off])
def test_where_etags_are_no_digests_an_older_object_is_not_taken_for_the_new_one(
    place, completions, monkeypatch, first
):
    store = replace(place, part_bytes=5 << 20)
    older, newer = b"o" * (12 << 20), b"x" * (12 << 20)
    store.put("k", older)
    monkeypatch.setattr(s3, "etags_are_md5", lambda answer: False)
    completions(first, aborted)
    is_made = first is made_and_lost
    with (
        nullcontext()
        if is_made
        else pytest.raises(StorageError, match="does not hold what was sent")
    ):
        store.put_parts("k", [newer])
    assert store.read("k") == (newer if is_made else older)


@pytest.fixture
def slow_copies(place: S3Store) -> Iterator[tuple[S3Store, list[str]]]:
    """The bucket by way of a server that takes a second to copy; and what was copied."""
    asked: list[str] = []
    host = place.endpoint_url.rpartition("/")[2]

    def pass_on(to: http.server.BaseHTTPRequestHandler) -> None:
        if "x-amz-copy-source" in to.headers:
            asked.append(to.path)
            sleep(1.0)
        body = to.rfile.read(int(to.headers.get("Content-Length", 0)))
        with contextlib.closing(http.client.HTTPConnection(host)) as behind:
            behind.request(to.command, to.path, body, dict(to.headers))
            answer = behind.getresponse()
            data = answer.read()
        # it was waited for in vain
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            to.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection", "server", "date"):
                    to.send_header(name, value)
            to.end_headers()
            to.wfile.write(data)

    with answering(pass_on) as address:
        yield replace(place, endpoint_url=address), asked


@pytest.mark.parametrize("patient", [True, False])
def test_a_large_part_may_take_its_time_to_be_copied(slow_copies, place, monkeypatch, patient):
    """Asked again while it still copies, a slow server never comes to an end."""
    slow, asked = slow_copies
    for name in ("a", "b"):
        place.put(name, name.encode() * (6 << 20))
    monkeypatch.setattr(requests, "READ_SECONDS", 0.4)
    monkeypatch.setattr(requests, "ATTEMPTS", 2)
    monkeypatch.setattr(s3, "_SOON_COPIED_BYTES", (5 if patient else 7) << 20)
    sources = list(slow.list())
    if not patient:
        with pytest.raises(StorageError, match="ReadTimeoutError"):
            slow.compose("k", sources)
        return
    slow.compose("k", sources)
    assert len(asked) == 2
    assert place.read("k") == b"a" * (6 << 20) + b"b" * (6 << 20)


def test_a_source_that_vanishes_while_it_is_copied_is_missing(place, monkeypatch):
    for name in ("a", "b"):
        place.put(name, name.encode() * (6 << 20))
    sources = list(place.list())
    place.delete("b")
    monkeypatch.setattr(s3_joining.Joining, "check_sources", lambda joining: None)
    with pytest.raises(MissingError, match="gone"):
        place.compose("k", sources)


def test_a_password_in_an_endpoint_is_told_to_nobody(monkeypatch):
    monkeypatch.setattr(requests, "ATTEMPTS", 1)
    url = "http://someone:hunter2@127.0.0.1:9"
    place = S3Store("b", "", url, anonymous=True)
    for request in (lambda: place.stat("k"), lambda: RemoteFolder(place, "k").open()):
        with pytest.raises(StorageError, match=r"127\.0\.0\.1:9") as told:
            request()
        assert "hunter2" not in str(told.value)
    with pytest.raises(ConfigError, match="endpoint_url") as refused:
        remote_location("s3://b/p", where="root", storage=StorageSpec(endpoint_url=url))
    assert "hunter2" not in str(refused.value)


def test_a_profile_that_is_not_there_is_named():
    with pytest.raises(StorageError, match="nobody-has-this"):
        S3Store("b", "", profile="nobody-has-this").stat("k")


def test_clients_are_set_up_as_storage_and_the_aws_configuration_say(
    new_clients, monkeypatch, tmp_path
):
    from botocore import UNSIGNED

    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)  # it would go before the profile's
    (tmp_path / "config").write_text("[profile team]\nregion = eu-central-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    team = S3Store("b", "p", profile="team").client()
    assert team.meta.region_name == "eu-central-1"
    assert S3Store("b", "q", profile="team").client() is team
    assert S3Store("another", "p", profile="team").client() is team
    named = S3Store("b", "p", region="us-west-2", profile="team").client()
    assert named.meta.region_name == "us-west-2"
    public = S3Store("b", "p", "http://127.0.0.1:9", anonymous=True).client()
    assert public.meta.config.signature_version is UNSIGNED
    assert public.meta.endpoint_url == "http://127.0.0.1:9"


def test_a_client_is_not_reused_for_another_address_in_the_environment(new_clients, monkeypatch):
    store = S3Store("b", "p")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:8")
    assert store.client().meta.endpoint_url == "http://127.0.0.1:8"

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")

    assert store.client().meta.endpoint_url == "http://127.0.0.1:9"


def test_stores_have_copies_apart(tmp_path):
    folders = {
        copies_folder(S3Store("b", "p", url), tmp_path)
        for url in (None, "http://one", "http://two")
    }
    assert len(folders) == 3


TIMES = (
    "2026-11-22T23:53:14Z", "2026-11-22T23:53:14.1Z", "2026-11-22T23:53:14.123+00:00", "20261122T235314Z",
    "Sun, 22 Nov 2026 23:53:14 GMT", "1700000000", 1700000000.5, "", "Sun, 22 Nov 20x6", None,
)  # fmt: skip


@pytest.mark.parametrize("told", TIMES)
def test_times_are_read_and_refused_as_by_botocore(told):
    try:
        wanted = parse_timestamp(told)
    except (ValueError, TypeError):
        with pytest.raises((ValueError, TypeError)):
            parse_time(told)
        assert told in TIMES[-3:]
    else:
        assert parse_time(told) == wanted


def test_a_bucket_that_is_not_there_is_no_damaged_output(place, tmp_path, monkeypatch):
    storage = StorageSpec(endpoint_url=place.endpoint_url, mirror=str(tmp_path / "mirror"))
    with pytest.raises(StorageError, match="make the bucket") as caught:
        load_nanoset("s3://nowhere-at-all/root", "pretrain", "train", storage)
    assert caught.value.where.startswith("s3://nowhere-at-all/root/nanosets/pretrain/train/")
