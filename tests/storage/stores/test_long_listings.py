"""Listings that take long are reported meanwhile, and listings that do not end are stopped."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator

import pytest
from botocore.exceptions import HTTPClientError

from nanoset_core.errors import StorageError
from nanoset_core.storage.stores import long_listings
from nanoset_core.storage.stores.filesystems import FilesystemStore
from nanoset_core.storage.stores.long_listings import LongListing
from nanoset_core.storage.stores.s3.requests import with_retries
from nanoset_core.storage.stores.s3.store import S3Store

Page = dict[str, object]
"""The answer to a request for a page of a listing."""


def page(token: int, folder: str | None) -> Page:
    """Return a page that is followed by another one.

    Args:
        token: Of the next page.
        folder: The only entry of the page. None: it is empty.
    """
    entries = []
    if folder is not None:
        entries.append({"Prefix": f"p/{folder}/"})
    return {
        "IsTruncated": True,
        "NextContinuationToken": f"token {token}",
        "CommonPrefixes": entries,
    }


def endless(page_of_number: Callable[[int], Page]) -> Iterator[Page]:
    """Yield the pages with the numbers 0, 1, 2 and so on."""
    for number in itertools.count():
        yield page_of_number(number)


@pytest.fixture
def store_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[Iterable[Page]], S3Store]:
    """A function that returns a store whose server sends some pages, one for each request."""

    def create(pages: Iterable[Page]) -> S3Store:
        next_pages = iter(pages)

        def ask(store, operation, name, read_answer, **options):
            return read_answer(next(next_pages))

        monkeypatch.setattr(S3Store, "ask", ask)
        return S3Store("b", "p", "http://server")

    return create


# Listings of buckets


def test_a_listing_of_several_pages_is_read_to_its_end(store_of):
    last_page = page(9, "z") | {"IsTruncated": False}
    store = store_of([page(1, "a"), page(2, None), page(3, None), page(4, "b"), last_page])

    folders, _files = store.level()

    assert folders == ["a", "b", "z"]


def test_a_listing_that_repeats_a_page_is_stopped(store_of):
    store = store_of(endless(lambda number: page(number, f"folder {number % 7}")))

    with pytest.raises(StorageError, match="does not seem to end") as caught:
        store.level()

    assert "8 entries" in str(caught.value), "the seven folders, and the first one again"
    assert caught.value.where == "s3://b/p"


def test_a_listing_that_repeats_a_token_is_stopped(store_of):
    store = store_of(endless(lambda number: page(0, f"folder {number}")))

    with pytest.raises(StorageError, match="does not seem to end"):
        store.level()


def test_a_listing_with_too_many_empty_pages_is_stopped(store_of):
    store = store_of(endless(lambda number: page(number, None)))

    with pytest.raises(StorageError, match="empty pages"):
        store.level()


def test_a_listing_with_too_many_entries_is_reported_and_then_stopped(
    store_of, monkeypatch, caplog
):
    monkeypatch.setattr(long_listings, "MAX_ENTRIES", 1000)
    monkeypatch.setattr(long_listings, "SECONDS_TO_FIRST_WARNING", 0.0)
    store = store_of(endless(lambda number: page(number, f"folder {number}")))

    with pytest.raises(StorageError, match="more than 1,000 entries"):
        store.level()

    assert caplog.messages[0].startswith("s3://b/p at http://server: listed 1 entries in 0 s")


# Listings of web servers


def test_folders_that_contain_each_other_without_end_are_refused(monkeypatch):
    """A web page may link to itself as if it were a folder."""

    def entries_of(store, folder):
        subfolder = f"{folder}/a"
        return {subfolder.lstrip("/"): {"type": "directory", "name": subfolder}}

    monkeypatch.setattr(FilesystemStore, "_entries", entries_of)

    with pytest.raises(StorageError, match="folders within each other"):
        list(FilesystemStore("http://h/x").list())


# Reports


def test_a_long_listing_is_reported_after_ten_seconds_and_then_every_half_minute(
    monkeypatch, caplog
):
    # Each look at the clock takes five seconds.
    times = itertools.count(0, 5)
    monkeypatch.setattr(long_listings.time, "monotonic", lambda: float(next(times)))
    listing = LongListing("s3://b", "server")

    for number in range(20):
        listing.turn_page(1, next_token=str(number), first_entry=str(number))

    seconds = re.findall(r"entries in (\d+) s", "\n".join(caplog.messages))
    assert seconds == ["10", "40", "70", "100"]


# Redirects without end


class TooManyRedirects(Exception):
    """What the HTTP client of the AWS library raises, by this name."""


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(
            RecursionError("maximum recursion depth exceeded"), id="botocore follows redirects"
        ),
        pytest.param(
            HTTPClientError(error=TooManyRedirects("0, message=''")), id="aiohttp gives up"
        ),
    ],
)
def test_a_server_that_redirects_again_and_again_is_reported_with_the_setting_to_check(error):
    def request() -> None:
        raise error

    with pytest.raises(StorageError, match="elsewhere") as caught:
        with_retries(request, "s3://b/k")

    assert "endpoint_url" in str(caught.value.remedy)
