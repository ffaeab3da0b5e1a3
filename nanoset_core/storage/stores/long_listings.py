"""Warn about listings of buckets and web servers that take long, and stop endless ones.

A faulty server may repeat a page, send empty pages, or invent new names without end. Without these
checks, a command would neither end nor say what it is waiting for.
"""

from __future__ import annotations

import time

from nanoset_core.errors import StorageError
from nanoset_core.storage.stores.unanswered import safe_warning

MAX_ENTRIES = 50_000_000
"""Objects and folders that one listing may have."""
MAX_EMPTY_PAGES = 1_000
"""Empty pages that may follow each other. Some stores send a few after many deletions."""
MAX_DEPTH = 100
"""Folders within each other. If a web page links to itself as a folder, there is no deepest one."""
SECONDS_TO_FIRST_WARNING = 10.0
"""Duration after which a listing is reported for the first time."""
SECONDS_BETWEEN_WARNINGS = 30.0
"""Duration between the first report and the second one, and so on."""
_REMEDY = (
    "check which server answers at this address; if the listing is right, divide the objects "
    "among several folders"
)


class LongListing:
    """Counts the entries of one listing, warns while it takes long, and stops it if it is endless.

    The code that lists passes each page to `turn_page`, or, if the server has no pages, the number
    of new entries to `count`.
    """

    def __init__(self, place: str, server: str = "") -> None:
        """Begin to count and to measure the time.

        Args:
            place: Address of the folder that is listed, for messages.
            server: Address of the server, for messages; empty if `place` contains it.
        """
        self._place = place
        self._server = server
        self._seen_hashes: set[int] = set()
        """Hashes of the tokens and first entries of all earlier pages.

        The texts would need more memory.
        """
        self._n_entries = 0
        self._n_empty_pages = 0
        """Empty pages since the last page with entries."""
        self._started_at = time.monotonic()
        self._warn_at = self._started_at + SECONDS_TO_FIRST_WARNING

    def turn_page(self, n_entries: int, next_token: str, first_entry: str) -> None:
        """Count a page that is followed by another one, and check that the listing will end.

        A server lists objects in pages, such as 1,000 at a time. With each page it sends a token,
        by which the next page is requested. A faulty server may send pages without end. It is
        recognised by:

            the token of an earlier page        the pages go round in a circle
            the first entry of an earlier page  the same page again, under a new token
            1,000 empty pages in sequence       (MAX_EMPTY_PAGES)
            50 million entries                  (MAX_ENTRIES)

        Args:
            n_entries: Number of entries of the page.
            next_token: Token with which the server is asked for the next page.
            first_entry: First entry of the page, as a text; ignored if the page is empty.

        Raises:
            StorageError: The listing seems to be endless.
        """
        self._n_entries += n_entries

        page_hashes = {hash(("token", next_token))}
        if n_entries:
            page_hashes.add(hash(("first entry", first_entry)))
            self._n_empty_pages = 0
        else:
            self._n_empty_pages += 1

        is_repeated = not self._seen_hashes.isdisjoint(page_hashes)
        if is_repeated:
            raise self._endless_error(
                f"a page that was listed before, after {self._n_entries:,} entries"
            )
        self._seen_hashes |= page_hashes
        if self._n_empty_pages > MAX_EMPTY_PAGES:
            raise self._endless_error(f"{self._n_empty_pages:,} empty pages in sequence")
        self._check_entries()

    def count(self, n_entries: int) -> None:
        """Count new entries of a listing that has no pages.

        Args:
            n_entries: Entries since the last call.

        Raises:
            StorageError: The listing has more than `MAX_ENTRIES` entries.
        """
        self._n_entries += n_entries
        self._check_entries()

    def _check_entries(self) -> None:
        """Stop a listing with too many entries, and warn if a warning is due.

        The first warning comes after 10 seconds, and the next ones every 30 seconds:
        "s3://bucket/web: listed 70,000 entries in 10 s, and the listing continues".

        Raises:
            StorageError: The listing has more than 50 million entries (MAX_ENTRIES).
        """
        if self._n_entries > MAX_ENTRIES:
            raise self._endless_error(f"more than {MAX_ENTRIES:,} entries")

        now = time.monotonic()
        if now >= self._warn_at:
            self._warn_at = now + SECONDS_BETWEEN_WARNINGS
            at_server = f" at {self._server}" if self._server else ""
            safe_warning(
                "%s%s: listed %s entries in %.0f s, and the listing continues",
                self._place,
                at_server,
                f"{self._n_entries:,}",
                now - self._started_at,
            )

    def check_depth(self, folder: str) -> None:
        """Check that a path does not have too many folders, as if a link led back to one of them.

        A web page that links to itself as the folder `a` would give `a`, `a/a`, `a/a/a` and so on.

        Args:
            folder: Name of the folder within the store, such as `a/b/c`.

        Raises:
            StorageError: The folder is more than 100 folders deep (MAX_DEPTH).
        """
        depth = folder.count("/") + 1
        if depth > MAX_DEPTH:
            raise self._endless_error(f"{depth:,} folders within each other")

    def _endless_error(self, found: str) -> StorageError:
        """Return the error for a listing that does not seem to end.

        Args:
            found: The sign that it is endless, such as "1,001 empty pages in sequence".
        """
        return StorageError(
            "this listing does not seem to end",
            where=self._place,
            found=found,
            expected=(
                f"at most {MAX_ENTRIES:,} entries, at most {MAX_DEPTH} folders within each other, "
                "and each page only once"
            ),
            remedy=_REMEDY,
        )
