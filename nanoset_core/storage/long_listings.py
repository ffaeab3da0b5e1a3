"""Warn of listings of buckets and web servers that take long, and stop endless ones."""

from __future__ import annotations

import time

from nanoset_core.errors import StorageError
from nanoset_core.storage.unanswered import safe_warning

MOST_ENTRIES = 50_000_000
"""Objects and folders that one listing may have."""
MOST_EMPTY_PAGES = 1_000
"""Pages in sequence that may list nothing: some stores send a few of them after many deletions."""
MOST_DEPTH = 100
"""Folders within folders: a web page that links to a folder of itself has no deepest one."""
FIRST_WORD_SECONDS = 10.0
"""How long a listing may take before a warning says how far it is."""
AGAIN_SECONDS = 30.0
"""Between two such warnings."""
_REMEDY = (
    "see what answers there; if the listing is right, split what it holds into several folders"
)


class LongListing:
    """The pages of one listing: counts what it has, and warns while it goes on.

    A server may repeat a page, send empty ones, or invent new keys without end. Without this a
    command would neither end nor say what it waits for.
    """

    def __init__(self, place: str, server: str = "") -> None:
        """Args:
        place: the folder that is listed, for messages.
        server: who lists it, for messages.
        """
        self._place = place
        self._server = server
        self._seen: set[int] = set()
        self._n_entries = 0
        self._n_empty = 0
        self._began_at = time.monotonic()
        self._warn_at = self._began_at + FIRST_WORD_SECONDS

    def turn_page(self, n_entries: int, turn: str, first: str) -> None:
        """Note a page after which another one follows.

        Args:
            n_entries: what the page lists.
            turn: how the next page is asked for.
            first: the page's first entry.

        Raises:
            StorageError: the listing repeats itself, or is longer than any listing should be.
        """
        self._n_entries += n_entries
        self._n_empty = 0 if n_entries else self._n_empty + 1
        marks = (
            {hash(("turn", turn)), hash(("first", first))} if n_entries else {hash(("turn", turn))}
        )
        if self._seen & marks:
            raise self._endless(
                f"a page again that it had already, after {self._n_entries:,} entries"
            )
        self._seen |= marks
        if self._n_empty > MOST_EMPTY_PAGES:
            raise self._endless(f"{self._n_empty:,} empty pages in sequence")
        self.count(0)

    def count(self, n_entries: int) -> None:
        """Note entries of a listing without pages; StorageError as of `turn_page`."""
        self._n_entries += n_entries
        if self._n_entries > MOST_ENTRIES:
            raise self._endless(f"more than {MOST_ENTRIES:,} entries")
        now = time.monotonic()
        if now >= self._warn_at:
            self._warn_at = now + AGAIN_SECONDS
            server = f" at {self._server}" if self._server else ""
            seconds = now - self._began_at
            text = "%s%s: listed %s entries in %.0f s, and the listing goes on"
            safe_warning(text, self._place, server, f"{self._n_entries:,}", seconds)

    def check_depth(self, folder: str) -> None:
        """Raise StorageError for a folder that is deeper than any should be."""
        depth = folder.count("/") + 1
        if depth > MOST_DEPTH:
            raise self._endless(f"{depth:,} folders within each other")

    def _endless(self, found: str) -> StorageError:
        return StorageError(
            "this listing does not seem to end",
            where=self._place,
            found=found,
            expected=(
                f"at most {MOST_ENTRIES:,} entries, {MOST_DEPTH} folders within each other, and "
                "no page twice"
            ),
            remedy=_REMEDY,
        )
