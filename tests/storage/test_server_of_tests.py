"""The S3 server of the tests lists objects as moto does."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.chosen_server import SERVER


@pytest.mark.skipif(SERVER != "moto", reason="another server writes its answers itself")
@pytest.mark.parametrize(
    "options",
    [{}, {"EncodingType": "url"}, {"Delimiter": "/"}, {"MaxKeys": 2}, {"Prefix": "nothing"}],
    ids=str,
)
def test_listings_are_those_of_moto(place, monkeypatch, options):
    from moto.core.responses import BaseResponse
    from moto.s3.responses import S3Response

    for name in ("a/1", "a/ä <&>", "b"):
        place.put(name, b"text")
    place.client().put_object(
        Bucket=place.bucket, Key="with a checksum", Body=b"text", ChecksumAlgorithm="SHA256"
    )

    def listing() -> dict[str, Any]:
        answer = place.client().list_objects_v2(Bucket=place.bucket, **options)
        del answer["ResponseMetadata"]
        return answer

    quick_listing = listing()
    monkeypatch.setattr(S3Response, "serialized", BaseResponse.serialized)
    assert quick_listing == listing()
