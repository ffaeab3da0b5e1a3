"""What was lost between files and shards: files that could not be read to their end, and lines that look damaged."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from pathlib import Path

from nanoset_core.errors import FormatError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.raw.pieces import Piece
from nanoset_core.raw.rejects import Reject, is_fault
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


@dataclass(frozen=True, slots=True)
class Listing:
    """The rejects of one shard, or of one call."""

    facts: ShardFacts
    path: Callable[[], Path]
    """Returns the file that lists them, fetched where it lives elsewhere."""

    @staticmethod
    def of(shard: Manifest) -> Listing:
        """Return the rejects of a shard."""
        return Listing(ShardFacts.of(shard.facts), lambda: shard.path(REJECTS))


class Listings:
    """The rejects of the shards that rejected something, made when they are iterated over: there may be many."""

    def __init__(self, shards: Sequence[Manifest]) -> None:
        self._shards = shards
        self._numbers = [number for number, shard in enumerate(shards) if shard.facts["reasons"]]

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[Listing]:
        return (Listing.of(self._shards[number]) for number in self._numbers)


@dataclass(frozen=True, slots=True)
class UnreadableFile:
    """A file that could not be read to its end."""

    path: str
    """Relative to the corpus's folder."""
    size: int
    """Stored bytes of the whole file: how much of it is lost is not known."""
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
    listings: Listings | Sequence[Listing] = ()
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
            for reject in self._rejects(listing) if listing.facts.faults else ():
                if reject.is_fault:
                    size = self.sizes.get(reject.file, listing.facts.stored_bytes)
                    found[reject.file] = UnreadableFile(reject.file, size, reject.line, reject.reason, reject.detail)
        return tuple(found.values())

    @property
    def unreadable_bytes(self) -> int:
        """Stored bytes of these files; of all files, where it is no longer known which they are."""
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
        damaged = (one for one in self.listings if any(map(may_be_damage, one.facts.reasons)))
        rejects = chain.from_iterable(map(self._rejects, islice(damaged, LISTINGS_READ)))
        return dict(Counter(one.file for one in islice(rejects, REJECTS_READ) if may_be_damage(one.reason)))

    def first(self, reason: str) -> Reject | None:
        """Return the first line that was rejected for a reason."""
        with_it = (self._rejects(listing) for listing in self.listings if reason in listing.facts.reasons)
        return next((reject for reject in next(with_it, iter(())) if reject.reason == reason), None)

    def _rejects(self, listing: Listing) -> Iterator[Reject]:
        return read_rejects(listing.path(), self.numbers)

    def unreadable_text(self) -> str:
        """Describe these files, and how much of the corpus that is, as one clause; empty where there is none."""
        if not self.facts.faults:
            return ""
        share = f"{format_bytes(self.unreadable_bytes)} of {format_bytes(self.facts.stored_bytes)} stored"
        files = _named([str(file) for file in self.unreadable]) or "which ones is no longer known"
        count = format_count(self.facts.faults, "file")
        return f"{count} not readable to the end ({share}, {self.unreadable_share:.2%}): {files}"

    def damaged_text(self) -> str:
        """Describe how many lines look damaged, why, and in which files, as one clause; empty where none does."""
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
        """Describe how many documents of which tables hold runs of zero bytes, as one clause; empty for none."""
        zeroed = self.facts.zeroed
        if not zeroed:
            return ""
        files = _named([f"{path} {count:,}" for path, count in zeroed.items()])
        return f"{format_count(sum(zeroed.values()), 'document')} with runs of zero bytes: {files}"

    def beyond_rejects(self) -> str:
        """Describe what no list of rejected lines holds, as one clause; empty where there is nothing."""
        return "; ".join(text for text in (self.unreadable_text(), self.zeroed_text()) if text)

    def texts(self) -> list[str]:
        """Return all clauses that are not empty."""
        return [text for text in (self.unreadable_text(), self.damaged_text(), self.zeroed_text()) if text]


def losses_of(shards: Sequence[Manifest], pieces: Sequence[Piece]) -> Losses:
    """Return what shards lost that were made of these pieces of files."""
    facts = sum((ShardFacts.of(shard.facts) for shard in shards), ShardFacts())
    return Losses(facts, Listings(shards), stored_sizes(pieces), LineNumbers.of(joined_facts(shards, pieces)))


def stored_sizes(pieces: Iterable[Piece]) -> dict[str, int]:
    """Return relative path → stored bytes of all pieces of a file."""
    sizes: Counter[str] = Counter()
    for piece in pieces:
        sizes[piece.path] += piece.size
    return dict(sizes)


def may_be_damage(reason: str) -> bool:
    """Tell whether a line that was rejected for a reason may have been a document once."""
    return not is_fault(reason) and reason not in SOUND_REASONS


def read_rejects(path: Path, numbers: LineNumbers) -> Iterator[Reject]:
    """Yield the rejects of a shard's rejects.jsonl, in order, with the line numbers of its corpus.

    Raises:
        FormatError: It is not there, or no such list.
    """
    try:
        with open_regular(path) as lines:
            for line in lines:
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
