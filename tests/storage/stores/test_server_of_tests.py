"""The S3 server of the tests answers frequent requests by a short cut as moto does."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

from helpers import s3_server
from helpers.chosen_server import SERVER
from nanoset_core.storage.stores.s3.store import S3Store

pytestmark = pytest.mark.skipif(SERVER != "moto", reason="another server writes its answers itself")

TEXT = b"some text"
ETAG = f'"{hashlib.md5(TEXT).hexdigest()}"'
REQUESTS = {
    "a listing": ("list_objects_v2", {}),
    "a listing with readable names": ("list_objects_v2", {"EncodingType": "url"}),
    "a level": ("list_objects_v2", {"Delimiter": "/"}),
    "a page": ("list_objects_v2", {"MaxKeys": 2}),
    "a page after a name": ("list_objects_v2", {"StartAfter": "a/1", "Prefix": "a"}),
    "a listing of nothing": ("list_objects_v2", {"Prefix": "nothing"}),
    "a description": ("head_object", {"Key": "a/ä <&>"}),
    "a description with checksum": (
        "head_object",
        {"Key": "with a checksum", "ChecksumMode": "ENABLED"},
    ),
    "a description of nothing": ("head_object", {"Key": "nothing"}),
    "a description of another version": ("head_object", {"Key": "b", "IfMatch": '"other"'}),
    "an object": ("get_object", {"Key": "with a checksum", "ChecksumMode": "ENABLED"}),
    "a range": ("get_object", {"Key": "a/1", "Range": "bytes=5-6"}),
    "a range that ends after the object": ("get_object", {"Key": "a/1", "Range": "bytes=5-99"}),
    "the last bytes": ("get_object", {"Key": "a/1", "Range": "bytes=-3"}),
    "a range after the object": ("get_object", {"Key": "a/1", "Range": "bytes=50-99"}),
    "an object that does not exist": ("get_object", {"Key": "nothing"}),
    "another version of an object": ("get_object", {"Key": "b", "IfMatch": '"other"'}),
    "the same version of an object": ("get_object", {"Key": "b", "IfNoneMatch": ETAG}),
    "a new object": (
        "put_object",
        {"Key": "c/new", "Body": TEXT, "Metadata": {"k": "v"}, "ChecksumAlgorithm": "SHA256"},
    ),
    "an object that must not exist": ("put_object", {"Key": "c", "Body": TEXT, "IfNoneMatch": "*"}),
    "an object that exists": ("put_object", {"Key": "b", "Body": b"2", "IfNoneMatch": "*"}),
    "an object of another version": ("put_object", {"Key": "b", "Body": b"2", "IfMatch": "other"}),
    "an object of this version": ("put_object", {"Key": "b", "Body": b"2", "IfMatch": ETAG}),
    "a deletion": ("delete_object", {"Key": "a/1"}),
    "a deletion of nothing": ("delete_object", {"Key": "nothing"}),
    "a deletion of another version": ("delete_object", {"Key": "b", "IfMatch": '"other"'}),
    "no bucket": ("get_object", {"Key": "b", "Bucket": "no-such-bucket"}),
}
"""What is requested → operation of botocore, and its arguments."""


def fill(place: S3Store) -> None:
    """Put some objects into a bucket, one of them with a checksum."""
    for name in ("a/1", "a/ä <&>", "b"):
        place.put(name, TEXT)
    place.client().put_object(
        Bucket=place.bucket, Key="with a checksum", Body=TEXT, ChecksumAlgorithm="SHA256"
    )


def answer_of(place: S3Store, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Send a request, and return what botocore understands of the answer, except times and ids."""
    call: Callable[..., dict[str, Any]] = getattr(place.client(), operation)
    try:
        answer = call(**({"Bucket": place.bucket} | arguments))
    except ClientError as error:
        answer = error.response
    if "Body" in answer:
        answer["Body"] = answer["Body"].read()
    status = answer.pop("ResponseMetadata")["HTTPStatusCode"]
    for name in ("LastModified", "RequestId", "HostId"):
        answer.pop(name, None)
    for stored in answer.get("Contents", ()):
        del stored["LastModified"]
    return answer | {"status": status}


@pytest.mark.parametrize("request_name", REQUESTS)
def test_a_request_has_the_answer_and_the_effect_that_it_has_with_moto(
    endpoint, request_name, monkeypatch
):
    operation, arguments = REQUESTS[request_name]
    quick_place = s3_server.new_bucket(endpoint)
    fill(quick_place)
    quick_answer = answer_of(quick_place, operation, arguments)

    monkeypatch.setattr(s3_server, "quick_answer", lambda request: None)
    place = s3_server.new_bucket(endpoint)
    fill(place)
    answer = answer_of(place, operation, arguments)

    for names_of_bucket in ("Name", "BucketName"):
        quick_answer.pop(names_of_bucket, None)
        answer.pop(names_of_bucket, None)
    assert quick_answer == answer
    assert s3_server.snapshot(quick_place) == s3_server.snapshot(place)
