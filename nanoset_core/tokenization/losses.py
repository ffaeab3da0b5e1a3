"""What was lost between files and shards: files that could not be read to their end, and lines that look damaged."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import overload

from nanoset_core.errors import FormatError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.raw.pieces import Piece
from nanoset_core.raw.rejects import FAULTS, Reject, is_fault
from nanoset_core.serialization.text import format_bytes, format_count
from nanoset_core.storage.regular_files import open_regular
from nanoset_core.tokenization.line_numbers import LineNumbers, joined_facts
from nanoset_core.tokenization.shards import REJECTS, ShardFacts

SOUND_REASONS = frozenset({"blank_line", "not_an_object", "text_not_a_string"})
"""Reasons of lines that are whole and hold no text, as they stand in ordinary corpora. The others may be damage: a line
that was cut or overwritten is no JSON or no UTF-8, and one whose key was hit lacks it."""
LISTINGS_READ = 100
REJECTS_READ = 20_000
"""Rejects, and files of them, that are read at most to say in which files damaged lines are."""
_FILES_NAMED = 5
_FAULTS = tuple(f'"reason": "{beginning}'.encode() for beginning in FAULTS)


@dataclass(frozen=True, slots=True)
class Listing:
    """The rejects of one shard, or of one call."""

    facts: ShardFacts
    path: Callable[[], Path]
    """Gives the file that lists them, fetched where it lives elsewhere."""


class Listings(Sequence[Listing]):
    """Those of the shards that rejected something. Nothing more is kept of them: there may be a hundred thousand."""

    def __init__(self, shards: Sequence[Manifest]) -> None:
        self._shards = shards
        self._numbers = [number for number, shard in enumerate(shards) if shard.facts["reasons"]]

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Listing: ...
    @overload
    def __getitem__(self, index: slice) -> list[Listing]: ...
    def __getitem__(self, index: int | slice) -> Listing | list[Listing]:
        if isinstance(index, slice):
            return [self._listing(number) for number in self._numbers[index]]
        return self._listing(self._numbers[index])

    def _listing(self, number: int) -> Listing:
        shard = self._shards[number]
        return Listing(ShardFacts.of(shard.facts), lambda: shard.path(REJECTS))


@dataclass(frozen=True, slots=True)
class UnreadableFile:
    """A file that could not be read to its end."""

    path: str
    """Relative to the corpus's folder."""
    size: int
    """Stored bytes of all of it: nobody knows how much of it is lost."""
    line: int
    """1-based number of the line or row from which on nothing was read."""
    reason: str
    detail: str
    """What the decoder said."""

    def __str__(self) -> str:
        return f"{self.path} from line {self.line:,} on ({self.reason})"


@dataclass(frozen=True)
class Losses:
    """What several shards lost."""

    facts: ShardFacts
    """Of all of them, added up."""
    listings: Sequence[Listing] = ()
    """Of those that rejected something."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Relative path of each file → its stored bytes."""
    numbers: LineNumbers = field(default_factory=LineNumbers)
    """Of the lines that lists of rejects name."""

    @cached_property
    def unreadable(self) -> tuple[UnreadableFile, ...]:
        """Files that could not be read to their end, in document order."""
        found: dict[str, UnreadableFile] = {}
        for listing in self.listings:
            for fault in self._faults(listing) if listing.facts.faults else ():
                size = self.sizes.get(fault.file, listing.facts.stored_bytes)
                found[fault.file] = UnreadableFile(fault.file, size, fault.line, fault.reason, fault.detail)
        return tuple(found.values())

    @property
    def unreadable_bytes(self) -> int:
        """Stored bytes of these files; of all files, where it is not known any more which they are."""
        if len(self.unreadable) < self.facts.faults:
            return self.facts.stored_bytes
        return sum(file.size for file in self.unreadable)

    @property
    def unreadable_share(self) -> float:
        """Share of the stored bytes that lie in these files, 0 to 1."""
        return min(1.0, self.unreadable_bytes / max(self.facts.stored_bytes, 1))

    @property
    def damaged_reasons(self) -> dict[str, int]:
        """Reason → lines that look damaged."""
        return {reason: count for reason, count in self.facts.reasons.items() if may_be_damage(reason)}

    @cached_property
    def damaged_files(self) -> dict[str, int]:
        """File → lines of it that look damaged, as far as they were looked for."""
        found: Counter[str] = Counter()
        left = REJECTS_READ
        damaged = (one for one in self.listings if any(map(may_be_damage, one.facts.reasons)))
        for listing in islice(damaged, LISTINGS_READ):
            for reject in islice(self._rejects(listing), left):
                left -= 1
                if may_be_damage(reject.reason):
                    found[reject.file] += 1
        return dict(found)

    def first(self, reason: str) -> Reject | None:
        """The first line that was rejected for a reason."""
        for listing in self.listings:
            if reason in listing.facts.reasons:
                return next((reject for reject in self._rejects(listing) if reject.reason == reason), None)
        return None

    def _rejects(self, listing: Listing, marks: Sequence[bytes] = (b"",)) -> Iterator[Reject]:
        return read_rejects(listing.path(), self.numbers, marks)

    def _faults(self, listing: Listing) -> Iterator[Reject]:
        """The faults alone; quotes within a value are escaped, so that only reasons match."""
        return (reject for reject in self._rejects(listing, _FAULTS) if reject.is_fault)

    def unreadable_text(self) -> str:
        """Which files, and how much of the corpus that is, as one clause; empty where there is none."""
        if not self.facts.faults:
            return ""
        share = f"{format_bytes(self.unreadable_bytes)} of {format_bytes(self.facts.stored_bytes)} stored"
        files = _named([str(file) for file in self.unreadable]) or "which ones is not known any more"
        count = format_count(self.facts.faults, "file")
        return f"{count} not readable to the end ({share}, {self.unreadable_share:.2%}): {files}"

    def damaged_text(self) -> str:
        """How many lines look damaged, why, and in which files, as one clause; empty where none does."""
        reasons = self.damaged_reasons
        if not reasons:
            return ""
        lines = sum(reasons.values())
        files = [f"{path} {count:,}" for path, count in self.damaged_files.items()]
        rest = lines - sum(self.damaged_files.values())
        more = f"; {rest:,} not looked at" if rest > 0 else ""
        why = ", ".join(f"{reason} {count:,}" for reason, count in reasons.items())
        return f"{format_count(lines, 'rejected line')} that may be damaged ({why}): {_named(files)}{more}"

    def zeroed_text(self) -> str:
        """How many documents of tables hold runs of zero bytes, and which tables, as one clause; empty for none."""
        zeroed = self.facts.zeroed
        if not zeroed:
            return ""
        files = _named([f"{path} {count:,}" for path, count in zeroed.items()])
        return f"{format_count(sum(zeroed.values()), 'document')} with runs of zero bytes: {files}"

    def beyond_rejects(self) -> str:
        """What no list of rejected lines holds, as one clause; empty where there is nothing."""
        return "; ".join(text for text in (self.unreadable_text(), self.zeroed_text()) if text)

    def texts(self) -> list[str]:
        """All clauses, as far as there is something to say."""
        return [text for text in (self.unreadable_text(), self.damaged_text(), self.zeroed_text()) if text]


def losses_of(shards: Sequence[Manifest], pieces: Sequence[Piece]) -> Losses:
    """What shards lost that were made of these pieces of files."""
    facts = sum((ShardFacts.of(shard.facts) for shard in shards), ShardFacts())
    return Losses(facts, Listings(shards), stored_sizes(pieces), LineNumbers.of(joined_facts(shards, pieces)))


def stored_sizes(pieces: Iterable[Piece]) -> dict[str, int]:
    """Relative path → stored bytes of all pieces of a file."""
    sizes: Counter[str] = Counter()
    for piece in pieces:
        sizes[piece.path] += piece.size
    return dict(sizes)


def may_be_damage(reason: str) -> bool:
    """Whether a line that was rejected for a reason may have been a document once."""
    return not is_fault(reason) and reason not in SOUND_REASONS


def read_rejects(path: Path, numbers: LineNumbers, marks: Sequence[bytes] = (b"",)) -> Iterator[Reject]:
    """The rejects that a file lists, in order; those alone whose line of the file holds one of the marks.

    Args:
        path: of a shard's rejects.jsonl.
        numbers: of the lines of the shard's corpus.
        marks: what to look for.

    Raises:
        FormatError: it is not there, or no such list.
    """
    try:
        with open_regular(path) as lines:
            for line in lines:
                if any(mark in line for mark in marks):
                    yield numbers.of_reject(Reject(**json.loads(line)))
    except (FileNotFoundError, ValueError, TypeError) as error:
        raise FormatError(
            "this is not the list of a shard's rejected lines",
            where=path,
            found=repr(error)[:500],
            expected="one JSON object a line, as nanoset writes them",
            remedy=f"delete {path.parent}; the next build makes it again",
        ) from error


def _named(items: Sequence[str]) -> str:
    more = len(items) - _FILES_NAMED
    return ", ".join(items[:_FILES_NAMED]) + (f" and {more:,} more" if more > 0 else "")
