"""Requests to buckets: which failures are retried, what is reported, and how clients are set up."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import http.server
import math
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from time import sleep

import botocore.session
import pytest
from botocore import UNSIGNED
from botocore.exceptions import (
    ClientError,
    DataNotFoundError,
    EndpointConnectionError,
    NoCredentialsError,
    ReadTimeoutError,
)
from botocore.utils import parse_timestamp

from helpers.answering import answering, send_answer
from nanoset_core.errors import ConfigError, MissingError, StorageError
from nanoset_core.loading.opening import load_nanoset
from nanoset_core.storage import requests
from nanoset_core.storage.location import copies_folder, remote_location
from nanoset_core.storage.remote_path import RemotePath
from nanoset_core.storage.settings import StorageSpec
from nanoset_core.storage.stores import unanswered
from nanoset_core.storage.stores.s3 import joining as s3_joining
from nanoset_core.storage.stores.s3 import requests as s3_requests
from nanoset_core.storage.stores.s3 import store as s3
from nanoset_core.storage.stores.s3.client import load_quickly, parse_time
from nanoset_core.storage.stores.s3.parts import file_parts
from nanoset_core.storage.stores.s3.requests import with_retries
from nanoset_core.storage.stores.s3.store import S3Store

MIB = 1 << 20
PART_BYTES = 5 * MIB
"""Files above this size are uploaded in parts; smaller ones than 5 MiB S3 does not allow."""
UNUSED_ADDRESS = "127.0.0.1:9"
"""No server listens on this port."""


def error_answer(status: int, code: str) -> ClientError:
    """Return the error that boto3 raises if a bucket answers with this status and code."""
    response = {
        "Error": {"Code": code, "Message": "told so"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(response, "GetObject")


TEMPORARY_ERRORS = [
    error_answer(500, "InternalError"),
    error_answer(503, "SlowDown"),
    error_answer(429, "TooManyRequests"),
    error_answer(400, "RequestTimeout"),
    error_answer(400, "BadDigest"),
    error_answer(409, "ConditionalRequestConflict"),
    EndpointConnectionError(endpoint_url="http://here"),
    ReadTimeoutError(endpoint_url="http://here"),
    ConnectionResetError("reset"),
    requests.DamagedTransferError("too few bytes"),
    # boto3 raises these two if an answer was cut off within its headers.
    ValueError("Invalid timestamp: of an answer that was cut off within its head"),
    KeyError("ETag"),
]
OVERLOADED = TEMPORARY_ERRORS[0]


class FailingRequest:
    """A request that fails with an error a number of times, and then returns "answer"."""

    def __init__(self, error: Exception, n_failures: int) -> None:
        """Begin with a request that was not sent yet."""
        self.error = error
        self.n_failures = n_failures
        self.n_sent = 0

    def __call__(self) -> str:
        """Send the request once."""
        self.n_sent += 1
        if self.n_sent <= self.n_failures:
            raise self.error
        return "answer"


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let attempts follow each other at once."""
    monkeypatch.setattr(requests.time, "sleep", lambda seconds: None)


# Retries


@pytest.mark.parametrize("error", TEMPORARY_ERRORS, ids=repr)
def test_a_request_that_fails_temporarily_is_retried(error):
    request = FailingRequest(error, n_failures=9)

    assert with_retries(request, "s3://b/k") == "answer"


@pytest.mark.parametrize("error", TEMPORARY_ERRORS, ids=repr)
def test_a_request_is_given_up_after_ten_attempts(error):
    request = FailingRequest(error, n_failures=10)

    with pytest.raises(StorageError, match="after 10 attempt") as caught:
        with_retries(request, "s3://b/k")

    assert caught.value.where == "s3://b/k"


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        pytest.param(error_answer(403, "AccessDenied"), "may read and write there", id="forbidden"),
        pytest.param(error_answer(404, "NoSuchBucket"), "make the bucket", id="no bucket"),
        pytest.param(NoCredentialsError(), "AWS chain", id="no credentials"),
        pytest.param(error_answer(404, "404"), "storage.endpoint_url", id="no S3 server"),
        pytest.param(
            error_answer(400, "InvalidRequest"), "see whether the store is up", id="invalid"
        ),
    ],
)
def test_a_request_that_cannot_succeed_fails_at_once_with_a_remedy(error, remedy):
    request = FailingRequest(error, n_failures=1)

    with pytest.raises(StorageError) as caught:
        with_retries(request, "s3://b/k", reads=False)

    assert request.n_sent == 1
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(error_answer(404, "NoSuchKey"), id="no such object"),
        pytest.param(error_answer(412, "PreconditionFailed"), id="condition does not hold"),
    ],
)
def test_an_answer_that_the_caller_has_to_handle_is_raised_unchanged(error):
    request = FailingRequest(error, n_failures=1)

    with pytest.raises(ClientError) as caught:
        with_retries(request, "s3://b/k")

    assert caught.value is error


def test_pauses_between_attempts_double_up_to_20_seconds(monkeypatch):
    pauses = []
    monkeypatch.setattr(requests.time, "sleep", pauses.append)
    monkeypatch.setattr(requests._jitter, "uniform", lambda low, high: high)

    with_retries(FailingRequest(OVERLOADED, n_failures=9), "s3://b/k")

    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 20.0, 20.0]


# Warnings about requests that take long


@pytest.fixture
def four_second_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that is set forward by 4 seconds during each pause, and no warning before."""
    clock = [1000.0]

    def pause(_seconds: float) -> None:
        clock[0] += 4

    monkeypatch.setattr(requests.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(requests.time, "sleep", pause)
    monkeypatch.setattr(unanswered, "_last_warning_at", -math.inf)


@pytest.mark.usefixtures("four_second_pauses")
def test_a_short_delay_is_not_reported(caplog):
    with_retries(FailingRequest(OVERLOADED, n_failures=1), "s3://b/first")

    assert not caplog.records


@pytest.mark.usefixtures("four_second_pauses")
def test_a_long_delay_is_reported_with_its_reason_but_without_secrets(caplog):
    with_retries(FailingRequest(OVERLOADED, n_failures=1), "s3://b/first")
    timeout = ReadTimeoutError(endpoint_url="http://me:secret@host/b/second")

    with_retries(FailingRequest(timeout, n_failures=3), "s3://b/second")

    [warning] = caplog.messages
    assert warning.startswith(
        "s3://b/second: no good answer for 8 s, attempt 3 of 10: ReadTimeoutError: "
    )
    assert "secret" not in warning


@pytest.mark.usefixtures("four_second_pauses")
def test_delays_are_reported_once_in_30_seconds(caplog):
    # The first request is reported after 8 s, and ends after 12 s.
    with_retries(FailingRequest(OVERLOADED, n_failures=3), "s3://b/second")
    assert len(caplog.messages) == 1

    # The second one is delayed by 36 s, but no more than one warning is due in this time.
    with_retries(FailingRequest(OVERLOADED, n_failures=9), "s3://b/third")
    assert len(caplog.messages) == 2


def test_a_server_that_never_answers_is_reported_before_the_second_attempt(monkeypatch, caplog):
    monkeypatch.setattr(unanswered, "_last_warning_at", -math.inf)
    monkeypatch.setattr(requests, "ATTEMPTS", 2)
    monkeypatch.setattr(s3_requests, "READ_SECONDS", s3_requests.READ_SECONDS / 100)
    monkeypatch.setattr(requests, "TOLD_AFTER_SECONDS", requests.TOLD_AFTER_SECONDS / 100)

    with socket.create_server(("127.0.0.1", 0)) as mute_server:
        port = mute_server.getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        with pytest.raises(StorageError, match="after 2 attempts"):
            S3Store("b", "p", url, anonymous=True).read("k")

    [warning] = caplog.messages
    assert warning.startswith("s3://b/p/k: no good answer for ")
    expected_reason = f'ReadTimeoutError: Read timeout on endpoint URL: "{url}/b/p/k"'
    assert f"attempt 1 of 2: {expected_reason}" in warning


# Servers that do not exist, or do not speak S3


def test_the_error_names_the_address_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(requests, "ATTEMPTS", 2)
    store = S3Store("b", "", f"http://{UNUSED_ADDRESS}", anonymous=True)

    with pytest.raises(StorageError, match=r"127\.0\.0\.1:9"):
        store.stat("k")


@pytest.fixture
def store_without_s3() -> Iterator[S3Store]:
    """A server that answers 404 to every request, as services other than S3 do."""
    with answering(lambda request: send_answer(request, 404, b"")) as address:
        yield S3Store("b", "p", address, region="us-east-1")


@pytest.mark.usefixtures("endpoint")  # sets credentials, so that requests are signed
@pytest.mark.parametrize(
    "request_of",
    [
        pytest.param(lambda store: list(store.list()), id="list"),
        pytest.param(lambda store: store.level(), id="level"),
        pytest.param(lambda store: store.put("k", b"data"), id="put"),
    ],
)
def test_a_server_that_does_not_speak_s3_is_recognised(store_without_s3, request_of):
    with pytest.raises(StorageError, match=r"storage\.endpoint_url"):
        request_of(store_without_s3)


@pytest.mark.usefixtures("endpoint")  # sets credentials, so that requests are signed
def test_an_object_that_was_deleted_already_may_be_deleted(store_without_s3):
    """Some stores answer 404 if the object does not exist, instead of 204 as S3 does."""
    store_without_s3.delete("k")


# Uploads in parts


@pytest.fixture
def fail_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, FailingRequest], None]:
    """Return a function that lets the requests of one operation fail."""

    def fail_requests(failing_operation: str, failing: FailingRequest) -> None:
        real_ask = S3Store.ask

        def ask(store: S3Store, operation: str, *args: object, **options: object) -> object:
            if operation == failing_operation:
                failing()
            return real_ask(store, operation, *args, **options)

        monkeypatch.setattr(S3Store, "ask", ask)

    return fail_requests


def put_two_sources(store: S3Store) -> None:
    """Write the objects a and b, which are large enough to be joined in the bucket."""
    store.put("a", b"a" * 6 * MIB)
    store.put("b", b"b" * 6 * MIB)


def test_an_upload_that_another_process_aborted_is_an_error(place, tmp_path, fail_at):
    file = tmp_path / "file"
    file.write_bytes(bytes(11 * MIB))
    store = replace(place, part_bytes=PART_BYTES)
    fail_at("upload_part", FailingRequest(error_answer(404, "NoSuchUpload"), n_failures=1))

    with pytest.raises(StorageError, match="does not hold what was sent") as caught:
        store.put_file("k", file)

    assert caught.value.where == store.url("k")
    assert caught.value.found == "another process aborted the upload"
    assert store.stat("k") is None


def test_an_upload_that_was_aborted_can_be_repeated(place, tmp_path, fail_at):
    data = os.urandom(11 * MIB)
    file = tmp_path / "file"
    file.write_bytes(data)
    store = replace(place, part_bytes=PART_BYTES)
    fail_at("upload_part", FailingRequest(error_answer(404, "NoSuchUpload"), n_failures=1))
    with pytest.raises(StorageError):
        store.put_file("k", file)

    store.put_file("k", file)

    assert place.sha256("k") == hashlib.sha256(data).hexdigest()


@pytest.fixture(
    params=[
        pytest.param(12 * MIB, id="same size"),
        pytest.param(77, id="another size"),
    ]
)
def older_data(request: pytest.FixtureRequest) -> bytes:
    """The content of an object that an upload of 12 MiB should replace."""
    n_bytes: int = request.param
    return b"o" * n_bytes


def test_a_lost_upload_does_not_take_an_older_object_for_its_own(
    place, monkeypatch, fail_at, older_data
):
    store = replace(place, part_bytes=PART_BYTES)
    store.put("k", older_data)
    lost_upload = FailingRequest(error_answer(404, "NoSuchUpload"), n_failures=99)
    fail_at("complete_multipart_upload", lost_upload)
    monkeypatch.setattr(requests, "ATTEMPTS", 2)

    with pytest.raises(StorageError, match="does not hold what was sent"):
        store.put_parts("k", [b"x" * 12 * MIB])

    assert store.read("k") == older_data


def test_objects_whose_joining_was_lost_can_be_joined_again(
    place, monkeypatch, fail_at, older_data
):
    store = replace(place, part_bytes=PART_BYTES)
    put_two_sources(store)
    store.put("k", older_data)
    sources = [store.stat("a"), store.stat("b")]
    lost_upload = FailingRequest(error_answer(404, "NoSuchUpload"), n_failures=99)
    fail_at("complete_multipart_upload", lost_upload)
    monkeypatch.setattr(requests, "ATTEMPTS", 2)

    # While uploads are lost, the older object stays.
    with pytest.raises(StorageError):
        store.compose("k", sources)
    assert store.read("k") == older_data

    # Once they are not lost any more, it is replaced.
    lost_upload.n_failures = 0
    store.compose("k", sources)
    assert store.stat("k").size == 12 * MIB
    assert store.read_range("k", 0, 1) == b"a"


SendRequest = Callable[[], object]
"""Sends the real request, and returns its answer."""


@pytest.fixture
def answer_completions(place: S3Store, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that sets how the requests to complete an upload in parts are answered.

    It takes one function for each request, which is called with the real request.
    """

    def set_answers(*answers: Callable[[SendRequest], object]) -> None:
        remaining_answers = list(answers)
        client = place.client()
        real_complete = client.complete_multipart_upload

        def complete(**parameters: object) -> object:
            answer = remaining_answers.pop(0)
            return answer(lambda: real_complete(**parameters))

        monkeypatch.setattr(client, "complete_multipart_upload", complete)

    return set_answers


def completes(send: SendRequest) -> object:
    """Complete the upload."""
    return send()


def cut_off(send: SendRequest) -> object:
    """Answer without a body, as if the connection broke; the upload is not completed."""
    return {"ResponseMetadata": {"HTTPStatusCode": 200}}


def completes_but_times_out(send: SendRequest) -> object:
    """Complete the upload, but lose the answer."""
    send()
    raise ReadTimeoutError(endpoint_url="http://here")


def no_such_upload(send: SendRequest) -> object:
    """Answer as if the upload had been completed or aborted before."""
    raise error_answer(404, "NoSuchUpload")


def test_an_upload_is_completed_again_if_the_answer_was_cut_off(place, answer_completions):
    store = replace(place, part_bytes=PART_BYTES)
    answer_completions(cut_off, completes)

    store.put_parts("k", [b"x" * 12 * MIB])

    assert store.stat("k").size == 12 * MIB


def test_an_upload_that_was_lost_after_an_answer_was_cut_off_is_an_error(place, answer_completions):
    store = replace(place, part_bytes=PART_BYTES)
    answer_completions(cut_off, no_such_upload)

    with pytest.raises(StorageError, match="does not hold what was sent"):
        store.put_parts("another", [b"x" * 12 * MIB])


def test_metadata_is_found_on_servers_that_capitalise_its_keys(
    place, tmp_path, answer_completions, monkeypatch
):
    file = tmp_path / "file"
    file.write_bytes(b"x" * 12 * MIB)
    store = replace(place, part_bytes=PART_BYTES)
    real_head = place.client().head_object

    def head_with_capitals(**parameters: object) -> object:
        answer = real_head(**parameters)
        metadata = {key.title(): value for key, value in answer["Metadata"].items()}
        return answer | {"Metadata": metadata}

    monkeypatch.setattr(place.client(), "head_object", head_with_capitals)

    # The store recognises by its mark of the upload that this upload made the object.
    answer_completions(completes_but_times_out, no_such_upload)
    store.put_file("k", file)

    # It recognises by the noted digest that the bucket has the file. A further upload would fail,
    # since no answer to its completion is left.
    store.put_file("k", file)


@pytest.fixture
def without_md5_etags(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose ETags are not digests, such as one that encrypts objects."""
    monkeypatch.setattr(s3, "etags_are_md5", lambda answer: False)


@pytest.mark.usefixtures("without_md5_etags")
def test_an_upload_whose_answer_was_lost_is_recognised_without_digests_in_etags(
    place, answer_completions
):
    store = replace(place, part_bytes=PART_BYTES)
    older = b"o" * 12 * MIB
    newer = b"x" * 12 * MIB
    store.put("k", older)
    answer_completions(completes_but_times_out, no_such_upload)

    store.put_parts("k", [newer])

    assert store.read("k") == newer


@pytest.mark.usefixtures("without_md5_etags")
def test_an_older_object_of_the_same_size_is_not_taken_for_the_new_one_without_digests_in_etags(
    place, answer_completions
):
    store = replace(place, part_bytes=PART_BYTES)
    older = b"o" * 12 * MIB
    newer = b"x" * 12 * MIB
    store.put("k", older)
    answer_completions(cut_off, no_such_upload)

    with pytest.raises(StorageError, match="does not hold what was sent"):
        store.put_parts("k", [newer])

    assert store.read("k") == older


# Copies within the bucket


@dataclass
class SlowServer:
    """A server that takes a second to copy a part of an object."""

    store: S3Store
    """The bucket `place` on this server, with the objects a and b of 6 MiB."""
    copies: list[str]
    """The path of each request to copy a part."""


@pytest.fixture
def slow_server(place: S3Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowServer]:
    """A server in front of the real one that copies slowly; requests time out after 0.4 s.

    On a busy machine, other requests time out as well. They are sent again.
    """
    put_two_sources(place)
    copies: list[str] = []
    host = place.endpoint_url.rpartition("/")[2]

    def pass_on(request: http.server.BaseHTTPRequestHandler) -> None:
        if "x-amz-copy-source" in request.headers:
            copies.append(request.path)
            sleep(1.0)
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        with contextlib.closing(http.client.HTTPConnection(host)) as connection:
            connection.request(request.command, request.path, body, dict(request.headers))
            answer = connection.getresponse()
            data = answer.read()
        # The client may have given up waiting, and closed the connection.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            request.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "connection", "server", "date"):
                    request.send_header(name, value)
            request.end_headers()
            request.wfile.write(data)

    monkeypatch.setattr(s3_requests, "READ_SECONDS", 0.4)
    with answering(pass_on) as address:
        yield SlowServer(replace(place, endpoint_url=address), copies)


def test_the_copy_of_a_large_part_is_waited_for(slow_server, place, monkeypatch):
    """If the request were sent again while the server still copies, it would never finish."""
    monkeypatch.setattr(s3, "_SOON_COPIED_BYTES", 5 * MIB)  # parts of 6 MiB are large
    sources = list(place.list())

    slow_server.store.compose("k", sources)

    assert len(slow_server.copies) == 2
    assert place.read("k") == b"a" * 6 * MIB + b"b" * 6 * MIB


def test_the_copy_of_a_small_part_times_out(slow_server, place, monkeypatch):
    monkeypatch.setattr(s3, "_SOON_COPIED_BYTES", 7 * MIB)  # parts of 6 MiB are small
    monkeypatch.setattr(requests, "ATTEMPTS", 2)
    sources = list(place.list())

    with pytest.raises(StorageError, match="ReadTimeoutError"):
        slow_server.store.compose("k", sources)


def test_a_source_that_is_deleted_while_it_is_copied_is_missing(place, monkeypatch):
    put_two_sources(place)
    sources = list(place.list())
    place.delete("b")
    # Without the check before copying, as if b were deleted right after it.
    monkeypatch.setattr(s3_joining.Joining, "check_sources", lambda joining: None)

    with pytest.raises(MissingError, match="gone"):
        place.compose("k", sources)


# Passwords


URL_WITH_PASSWORD = f"http://someone:hunter2@{UNUSED_ADDRESS}"


@pytest.mark.parametrize(
    "request_of",
    [
        pytest.param(lambda store: store.stat("k"), id="one request"),
        pytest.param(lambda store: RemotePath(store, "k").open(), id="open a folder"),
    ],
)
def test_a_password_in_an_endpoint_is_not_in_the_error(monkeypatch, request_of):
    monkeypatch.setattr(requests, "ATTEMPTS", 1)
    store = S3Store("b", "", URL_WITH_PASSWORD, anonymous=True)

    with pytest.raises(StorageError, match=r"127\.0\.0\.1:9") as caught:
        request_of(store)

    assert "hunter2" not in str(caught.value)


def test_a_password_in_the_endpoint_setting_is_refused_without_showing_it():
    storage = StorageSpec(endpoint_url=URL_WITH_PASSWORD)

    with pytest.raises(ConfigError, match="endpoint_url") as caught:
        remote_location("s3://b/p", where="root", storage=storage)

    assert "hunter2" not in str(caught.value)


# How clients are set up


@pytest.fixture
def team_profile(new_clients: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The name of a profile in the AWS configuration with the region eu-central-1."""
    # This variable would take precedence over the profile's region.
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    configuration = tmp_path / "config"
    configuration.write_text("[profile team]\nregion = eu-central-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(configuration))
    return "team"


def test_a_profile_that_does_not_exist_is_named():
    store = S3Store("b", "", profile="nobody-has-this")

    with pytest.raises(StorageError, match="nobody-has-this"):
        store.stat("k")


def test_the_region_of_a_profile_is_used(team_profile):
    client = S3Store("b", "p", profile=team_profile).client()

    assert client.meta.region_name == "eu-central-1"


def test_a_region_in_the_settings_takes_precedence_over_the_profile(team_profile):
    client = S3Store("b", "p", region="us-west-2", profile=team_profile).client()

    assert client.meta.region_name == "us-west-2"


def test_a_client_is_shared_by_prefixes_and_buckets(team_profile):
    client = S3Store("b", "p", profile=team_profile).client()

    assert S3Store("b", "q", profile=team_profile).client() is client
    assert S3Store("another", "p", profile=team_profile).client() is client


@pytest.mark.parametrize("service", ["s3", "sts"])
def test_the_description_of_a_service_is_loaded_as_botocore_does_it(service):
    quick_session = botocore.session.Session()
    load_quickly(quick_session)

    loader = quick_session.get_component("data_loader")
    usual_loader = botocore.session.Session().get_component("data_loader")

    for kind in ["service-2", "endpoint-rule-set-1"]:
        description = loader.load_service_model(service, kind)
        assert description == usual_loader.load_service_model(service, kind)
    assert loader.load_data("endpoints") == usual_loader.load_data("endpoints")


def test_a_service_that_does_not_exist_is_an_error():
    session = botocore.session.Session()
    load_quickly(session)

    with pytest.raises(DataNotFoundError):
        session.create_client("no-such-service", region_name="us-east-1")


def test_folders_of_further_descriptions_are_searched(monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_DATA_PATH", str(tmp_path))
    session = botocore.session.Session()
    load_quickly(session)

    assert str(tmp_path) in session.get_component("data_loader").search_paths


@pytest.mark.usefixtures("new_clients")
def test_anonymous_requests_are_not_signed():
    client = S3Store("b", "p", f"http://{UNUSED_ADDRESS}", anonymous=True).client()

    assert client.meta.config.signature_version is UNSIGNED
    assert client.meta.endpoint_url == f"http://{UNUSED_ADDRESS}"


@pytest.mark.parametrize(
    ("n_bytes", "expectation"), [(1000, None), (2 * MIB, b"100-continue")], ids=["small", "large"]
)
def test_only_a_large_object_waits_until_the_server_agrees_to_receive_it(
    place, n_bytes, expectation
):
    expectations = []
    events = place.client().meta.events

    def record(request, **arguments):
        """Remember the header of a request by which its body waits for an answer."""
        expectations.append(request.headers.get("Expect"))

    events.register("before-send.s3.PutObject", record)
    try:
        place.put("object", bytes(n_bytes))
    finally:
        events.unregister("before-send.s3.PutObject", record)

    assert expectations == [expectation]
    assert place.read("object") == bytes(n_bytes)


def test_a_part_of_a_file_is_read_like_a_file_of_its_own(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"0123456789ab")
    parts = file_parts(file, min_part_bytes=5).parts
    file.write_bytes(b"0123456789ab, which has grown")

    contents = []
    for part in parts:
        with part.open() as opened:
            assert opened.seek(0, os.SEEK_END) == opened.tell()
            assert opened.read(1) == b""
            assert opened.seek(0) == 0
            contents.append(opened.read(2) + opened.read(100))
            assert opened.seek(-1, os.SEEK_CUR) == opened.tell()
            assert opened.read(100) == contents[-1][-1:]
            opened.seek(0)
            assert opened.read() == contents[-1]

    assert contents == [b"01234", b"56789", b"ab"]


def test_a_client_is_not_reused_for_another_address_in_the_environment(new_clients, monkeypatch):
    store = S3Store("b", "p")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:8")
    assert store.client().meta.endpoint_url == "http://127.0.0.1:8"

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")

    assert store.client().meta.endpoint_url == "http://127.0.0.1:9"


def test_each_endpoint_has_its_own_folder_of_working_copies(tmp_path):
    endpoints = (None, "http://one", "http://two")

    folders = {copies_folder(S3Store("b", "p", endpoint), tmp_path) for endpoint in endpoints}

    assert len(folders) == 3


# Answers


@pytest.mark.parametrize(
    "time",
    [
        "2026-11-22T23:53:14Z",
        "2026-11-22T23:53:14.1Z",
        "2026-11-22T23:53:14.123+00:00",
        "20261122T235314Z",
        "Sun, 22 Nov 2026 23:53:14 GMT",
        "1700000000",
        1700000000.5,
    ],
)
def test_times_are_parsed_as_by_botocore(time):
    assert parse_time(time) == parse_timestamp(time)


@pytest.mark.parametrize("time", ["", "Sun, 22 Nov 20x6", None])
def test_times_that_botocore_refuses_are_refused(time):
    with pytest.raises((ValueError, TypeError)):
        parse_timestamp(time)

    with pytest.raises((ValueError, TypeError)):
        parse_time(time)


def test_a_missing_bucket_is_not_reported_as_a_damaged_output(place, tmp_path):
    storage = StorageSpec(endpoint_url=place.endpoint_url, mirror=str(tmp_path / "mirror"))

    with pytest.raises(StorageError, match="make the bucket") as caught:
        load_nanoset("s3://nowhere-at-all/root", "pretrain", "train", storage)

    assert caught.value.where.startswith("s3://nowhere-at-all/root/nanosets/pretrain/train/")
