"""Listings that never end: they are reported, and refused."""

from __future__ import annotations

import itertools

import pytest

from nanoset_core.errors import StorageError
from nanoset_core.storage import long_listings
from nanoset_core.storage.filesystems import FilesystemStore
from nanoset_core.storage.long_listings import LongListing
from nanoset_core.storage.s3 import S3Store
from nanoset_core.storage.s3_requests import with_retries

OBJECT = {"Size": 1, "ETag": '"e"'}


def bucket_that_lists(monkeypatch: pytest.MonkeyPatch, pages) -> S3Store:
    """A store whose server answers each request for a page with the next one."""
    waiting = iter(pages)
    monkeypatch.setattr(
        S3Store, "ask", lambda self, operation, name, take, **about: take(next(waiting))
    )
    return S3Store("b", "p", "http://server")


def page(number: int, key: str | None) -> dict[str, object]:
    entries = [] if key is None else [{"Prefix": f"p/{key}/"}]
    return {
        "IsTruncated": True,
        "NextContinuationToken": f"turn {number}",
        "CommonPrefixes": entries,
    }


def test_a_page_that_comes_again_ends_a_listing(monkeypatch):
    store = bucket_that_lists(
        monkeypatch, (page(number, f"k{number % 7}") for number in itertools.count())
    )
    with pytest.raises(StorageError, match="does not seem to end") as caught:
        store.level()
    assert "7 entries" in str(caught.value) or "8 entries" in str(caught.value)
    assert caught.value.where == "s3://b/p"


def test_a_turn_that_comes_again_ends_a_listing(monkeypatch):
    store = bucket_that_lists(monkeypatch, (page(0, f"k{number}") for number in itertools.count()))
    with pytest.raises(StorageError, match="does not seem to end"):
        store.level()


def test_empty_pages_without_end_are_refused(monkeypatch):
    store = bucket_that_lists(monkeypatch, (page(number, None) for number in itertools.count()))
    with pytest.raises(StorageError, match="empty pages"):
        store.level()


def test_new_keys_without_end_are_refused_and_reported_before(monkeypatch, caplog):
    monkeypatch.setattr(long_listings, "MAX_ENTRIES", 1000)
    monkeypatch.setattr(long_listings, "SECONDS_TO_FIRST_WARNING", 0.0)
    store = bucket_that_lists(
        monkeypatch, (page(number, f"k{number}") for number in itertools.count())
    )
    with pytest.raises(StorageError, match="more than 1,000 entries"):
        store.level()
    assert caplog.messages[0].startswith("s3://b/p at http://server: listed 1 entries in 0 s")


def test_a_listing_of_several_pages_is_read_to_its_end(monkeypatch):
    last = page(9, "z") | {"IsTruncated": False}
    pages = [page(1, "a"), page(2, None), page(3, None), page(4, "b"), last]
    assert bucket_that_lists(monkeypatch, pages).level()[0] == ["a", "b", "z"]


def test_folders_within_folders_without_end_are_refused(monkeypatch):
    monkeypatch.setattr(
        FilesystemStore,
        "_entries",
        lambda self, folder: {
            f"{folder}/a".lstrip("/"): {"type": "directory", "name": f"{folder}/a"}
        },
    )
    with pytest.raises(StorageError, match="folders within each other"):
        list(FilesystemStore("http://h/x").list())


def test_a_long_listing_is_reported_every_half_minute(monkeypatch, caplog):
    now = itertools.count(0, 5)
    monkeypatch.setattr(long_listings.time, "monotonic", lambda: float(next(now)))
    listing = LongListing("s3://b", "server")
    for number in range(20):
        listing.turn_page(1, str(number), str(number))
    assert [
        message.partition("entries in ")[2].partition(" s")[0] for message in caplog.messages
    ] == [
        "10",
        "40",
        "70",
        "100",
    ]


@pytest.mark.parametrize("kind", ["recursion", "too many redirects"])
def test_a_server_that_redirects_is_named(kind):
    def request() -> None:
        if kind == "recursion":
            raise RecursionError("maximum recursion depth exceeded")
        from botocore.exceptions import HTTPClientError

        raise HTTPClientError(error=type("TooManyRedirects", (Exception,), {})("0, message=''"))

    with pytest.raises(StorageError, match="elsewhere") as caught:
        with_retries(request, "s3://b/k")
    assert "endpoint_url" in str(caught.value.remedy)
