"""What was lost between files and shards, and how much of that is refused."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from glob import escape
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from nanoset_core.errors import FormatError, InputError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.records.text import format_bytes, format_count
from nanoset_core.stages.shards.facts import ShardFacts
from nanoset_core.stages.shards.line_numbers import LineNumbers, piece_lines_of_corpus
from nanoset_core.stages.shards.make import REJECTS
from nanoset_core.storage.location import RawFolder
from nanoset_core.storage.regular_files import open_regular
from nanoset_core.text.endings import is_table
from nanoset_core.text.lines import describe_file
from nanoset_core.text.notices import abbreviated
from nanoset_core.text.pieces import Piece
from nanoset_core.text.rejects import WRONG_FORMAT, Reject, RejectOptions, is_fault

_SOUND_REASONS = frozenset({"blank_line", "not_an_object", "text_not_a_string"})
"""Reasons of lines that are whole and have no text, as they occur in ordinary corpora. The others
may be damage: a line that was cut or overwritten is not JSON or not UTF-8, and one whose key was
hit lacks it."""
_REASONS_OF_OTHER_FILES = frozenset(
    {
        "invalid_json",
        "invalid_utf8",
        "not_an_object",
        "array_of_objects",
        "blank_line",
        "line_too_long",
    }
)
"""Reasons of lines in files that are not JSON lines at all, such as one JSON array or binary data."""
_MAX_LISTINGS_READ = 100
"""Files of rejects that are read to say in which files damaged lines are."""
_MAX_REJECTS_READ = 20_000
_MAX_FILES_NAMED = 5
_MAX_LISTINGS_NAMED = 3


class Listing(NamedTuple):
    """The rejects of one call of a command, in the form of a shard's manifest."""

    facts: Mapping[str, Any]
    path: Callable[[str], Path]
    """Returns the path of the file that lists them, after downloading it if it is stored elsewhere."""


@dataclass(frozen=True)
class Losses:
    """What several shards lost."""

    facts: ShardFacts
    """Of all of them, added up."""
    shards: Sequence[Manifest | Listing] = ()
    """Those that rejected something, and perhaps others."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Relative path of each file → its stored bytes."""
    numbers: LineNumbers = field(default_factory=LineNumbers)
    """Numbers of the lines that lists of rejects name."""

    @cached_property
    def unreadable(self) -> tuple[Reject, ...]:
        """The faults of files that could not be read to their end, in document order: the last of
        each file.
        """
        fault_by_file: dict[str, Reject] = {}
        for reject in self._rejects(is_fault):
            if reject.is_fault:
                fault_by_file[reject.file] = reject
        return tuple(fault_by_file.values())

    @property
    def unreadable_bytes(self) -> int:
        """Stored bytes of these files: it is not known how much of each is lost. If some are
        unknown, of all files.
        """
        if len(self.unreadable) < self.facts.faults:
            return self.facts.stored_bytes
        return sum(self.sizes.get(fault.file, self.facts.stored_bytes) for fault in self.unreadable)

    @property
    def unreadable_share(self) -> float:
        """Share of the stored bytes that is in these files, 0 to 1."""
        return min(1.0, self.unreadable_bytes / max(self.facts.stored_bytes, 1))

    def listings(self, is_wanted: Callable[[str], bool] = bool) -> Iterator[Path]:
        """Yield the lists of shards with rejects for certain reasons.

        Args:
            is_wanted: Decides by the reason; any reason by default.
        """
        if not self.facts.reasons:
            return
        for shard in self.shards:
            if any(is_wanted(reason) for reason in shard.facts["reasons"]):
                yield shard.path(REJECTS)

    def _rejects(
        self, is_wanted: Callable[[str], bool], max_listings: int | None = None
    ) -> Iterator[Reject]:
        """Yield the rejects for certain reasons, from at most so many lists."""
        for path in islice(self.listings(is_wanted), max_listings):
            for reject in read_rejects(path, self.numbers):
                if is_wanted(reject.reason):
                    yield reject

    def first(self, reason: str) -> Reject | None:
        """Return the first line that was rejected for a reason."""
        return next(self._rejects(lambda other: other == reason), None)

    def unreadable_text(self) -> str:
        """Describe the unreadable files, and how much of the corpus they are, as one clause; "" if
        there are none.
        """
        if not self.facts.faults:
            return ""
        count = format_count(self.facts.faults, "file")
        share = f"{format_bytes(self.unreadable_bytes)} of {format_bytes(self.facts.stored_bytes)} stored"
        files = [
            f"{fault.file} from line {fault.line:,} on ({fault.reason})"
            for fault in self.unreadable
        ]
        names = abbreviated(files, _MAX_FILES_NAMED) or "which ones is no longer known"
        return f"{count} not readable to the end ({share}, {self.unreadable_share:.2%}): {names}"

    def damaged_text(self) -> str:
        """Describe how many lines look damaged, why, and in which files, as one clause; "" if there
        are none.
        """
        reasons = {
            reason: count for reason, count in self.facts.reasons.items() if _may_be_damage(reason)
        }
        if not reasons:
            return ""
        rejects = islice(self._rejects(_may_be_damage, _MAX_LISTINGS_READ), _MAX_REJECTS_READ)
        lines_by_file = Counter(reject.file for reject in rejects)
        n_lines = sum(reasons.values())
        n_not_read = n_lines - lines_by_file.total()
        count = format_count(n_lines, "rejected line")
        text = (
            f"{count} that may be damaged ({_counts(reasons)}): {_files_with_counts(lines_by_file)}"
        )
        if n_not_read > 0:
            text += f"; {n_not_read:,} not looked at"
        return text

    def zeroed_text(self) -> str:
        """Describe how many documents of which tables have runs of zero bytes, as one clause; "" if
        there are none.
        """
        documents_by_file = self.facts.zeroed
        if not documents_by_file:
            return ""
        count = format_count(sum(documents_by_file.values()), "document")
        return f"{count} with runs of zero bytes: {_files_with_counts(documents_by_file)}"

    def padded_text(self) -> str:
        """Describe which gzip files have zero bytes after their members, as one clause; "" if there
        are none.
        """
        bytes_by_file = self.facts.padding
        if not bytes_by_file:
            return ""
        files = [f"{path} {size:,} bytes" for path, size in bytes_by_file.items()]
        count = format_count(len(bytes_by_file), "gzip file")
        names = abbreviated(files, _MAX_FILES_NAMED)
        return f"{count} with zero bytes at the end, as of a download that was cut short: {names}"

    def ids_text(self) -> str:
        """Describe how many documents of which files have an id that is not text, as one clause; ""
        if none has.
        """
        clauses = []
        for documents_by_file, what in (
            (self.facts.unkept_ids, "that cannot be kept, so that no list names them"),
            (self.facts.escaped_ids, r"of bytes that are not UTF-8, which are kept as \xNN"),
        ):
            if documents_by_file:
                count = format_count(sum(documents_by_file.values()), "document")
                clauses.append(f"{count} with ids {what}: {_files_with_counts(documents_by_file)}")
        return "; ".join(clauses)

    def vanished_text(self) -> str:
        """Describe how much text the tokenizer dropped; "" if nothing."""
        if not self.facts.vanished:
            return ""
        count = format_count(self.facts.vanished, "character")
        return f"{count} are missing from the tokens: the tokenizer has no token for them, and no unk_token"

    def beyond_rejects(self) -> str:
        """Describe the losses that no list of rejected lines contains, as one clause; "" if there
        are none.
        """
        texts = [
            self.unreadable_text(),
            self.zeroed_text(),
            self.padded_text(),
            self.vanished_text(),
        ]
        return "; ".join(text for text in texts if text)

    def texts(self) -> list[str]:
        """Return all clauses that are not empty."""
        texts = [
            self.unreadable_text(),
            self.damaged_text(),
            self.zeroed_text(),
            self.padded_text(),
            self.ids_text(),
            self.vanished_text(),
        ]
        return [text for text in texts if text]


def losses_of(shards: Sequence[Manifest], pieces: Sequence[Piece]) -> Losses:
    """Return what was lost between pieces of files and the shards that were made of them."""
    facts = sum((ShardFacts.of(shard.facts) for shard in shards), ShardFacts())
    return Losses(
        facts, shards, stored_sizes(pieces), LineNumbers.of(piece_lines_of_corpus(shards, pieces))
    )


def stored_sizes(pieces: Iterable[Piece]) -> dict[str, int]:
    """Return relative path → stored bytes of all pieces of a file."""
    sizes: Counter[str] = Counter()
    for piece in pieces:
        sizes[piece.path] += piece.size
    return dict(sizes)


def _may_be_damage(reason: str) -> bool:
    """Return whether a line that was rejected for a reason may be damaged."""
    return not is_fault(reason) and reason not in _SOUND_REASONS


def _files_with_counts(count_by_file: Mapping[str, int]) -> str:
    """Name some files, each with its count."""
    return abbreviated(
        [f"{path} {count:,}" for path, count in count_by_file.items()], _MAX_FILES_NAMED
    )


def read_rejects(path: Path, numbers: LineNumbers) -> Iterator[Reject]:
    """Yield the rejects of a shard's rejects.jsonl, in order, with the line numbers of its corpus.

    Raises:
        FormatError: The file is missing, or is not such a list.
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


@dataclass(frozen=True, slots=True)
class SettingNames:
    """What settings are called where the user sets them, for messages; by default the options of
    the command line.
    """

    on_reject: str = "--on-reject fail"
    rejected: str = "--max-rejected-fraction"
    unreadable: str = "--max-unreadable-fraction"
    text_key: str = "--json-key"
    leave_out: str = "name the other files with --input"
    """How files are left out; {files} stands for a list of patterns in JSON."""


@dataclass(frozen=True, slots=True)
class RejectPolicy:
    """How many lines may be rejected, and how much of the text may be in files that cannot be read
    to their end.

    The two are judged separately: a fault that ends a file is not one of the rejected lines.
    """

    options: RejectOptions
    text_key: str = "text"
    """Key of the text."""
    names: SettingNames = SettingNames()

    def check(self, losses: Losses, folder: RawFolder) -> None:
        """Refuse too large losses.

        Args:
            losses: What was lost.
            folder: The folder of the files.

        Raises:
            InputError: More is lost than is allowed.
        """
        refusal = self.refusal(losses, folder)
        if refusal is not None:
            raise refusal

    def refusal(self, losses: Losses, folder: RawFolder) -> InputError | None:
        """Return the error for larger losses than are allowed, or None; arguments as for `check`."""
        facts = losses.facts
        max_unreadable = self.options.max_unreadable_fraction
        max_rejected = self.options.max_rejected_fraction
        if self._fails_on_reject:
            max_unreadable = 0.0
            max_rejected = 0.0
        if facts.faults and (max_unreadable == 0 or losses.unreadable_share > max_unreadable):
            return self._unreadable(losses, folder)
        if facts.rejected > max_rejected * max(facts.lines, 1):
            return self._rejected(losses, folder)
        return None

    @property
    def _fails_on_reject(self) -> bool:
        return self.options.on_reject == "fail"

    def _unreadable(self, losses: Losses, folder: RawFolder) -> InputError:
        """Return the error for files that cannot be read to their end, or are not what their
        endings say.
        """
        faults = losses.unreadable
        is_several = losses.facts.faults > 1
        foreign_files = [fault.file for fault in faults if fault.reason == WRONG_FORMAT]
        leave_out = self._leave_out(foreign_files)
        if foreign_files and len(foreign_files) == losses.facts.faults:
            what = "a file is not what its ending says"
            if is_several:
                what = f"{len(foreign_files):,} files are not what their endings say"
            return InputError(
                what,
                where=folder / faults[0].file,
                found=f"{faults[0].detail}; {losses.unreadable_text()}",
                expected=f"text in every file that is not left out ({leave_out})",
                remedy=f"leave out what is no text of the corpus: {leave_out}; convert what is",
            )

        what = "a file cannot be read to its end"
        remedy = "fetch or write it again"
        if is_several:
            what = "files cannot be read to their end"
            remedy = "fetch or write them again"
        limit = self.names.on_reject
        if not self._fails_on_reject:
            limit = f"{self.names.unreadable}: {self.options.max_unreadable_fraction:g}"
            sufficient_share = max(1, math.ceil(losses.unreadable_share * 1000)) / 1000
            remedy += (
                f", or take what could be read of it: {self.names.unreadable} {sufficient_share:g}"
            )
        if foreign_files:
            remedy += f"; leave out what is no text: {leave_out}"
        where = folder
        found = losses.unreadable_text()
        if faults:
            where = folder / faults[0].file
            found += f"; {faults[0].detail}"
        return InputError(
            what, where=where, found=found, expected=f"whole files ({limit})", remedy=remedy
        )

    def _rejected(self, losses: Losses, folder: RawFolder) -> InputError:
        """Return the error for too many rejected lines: what the most common of them are, and what
        their file is.
        """
        facts = losses.facts
        names = self.names
        line_reasons = [reason for reason in facts.reasons if not is_fault(reason)]
        most_common = max(line_reasons, key=lambda reason: facts.reasons[reason])
        first = losses.first(most_common)

        found = f"{facts.rejected:,} of {facts.lines:,} lines rejected, {facts.rejected / max(facts.lines, 1):.2%}"
        found += f" ({_counts(facts.reasons)})"
        expected = f'one JSON object in each line, as {{"{self.text_key}": "Some text."}}, or a table with a text in each row'
        remedy = "mend them"
        if most_common == "missing_key":
            expected = f"the key {self.text_key!r} ({names.text_key}) in every line or row"
            remedy = f"name the key that holds the text ({names.text_key})"

        where = folder
        if first is not None:
            where = folder / first.file
            found += f"; {_first_line_text(first)}"
            # A file of another kind has lines, too, of which the first says little.
            if most_common in _REASONS_OF_OTHER_FILES and not is_table(first.file):
                kind = describe_file(folder, first.file)
                if kind is not None:
                    found = f"the file is {kind}; {found}"
                    remedy = f"convert the file, or leave it out: {self._leave_out([first.file])}"

        limit = names.on_reject
        if not self._fails_on_reject:
            limit = f"at most {self.options.max_rejected_fraction:.2%} rejected, {names.rejected}"
            remedy += f", or raise {names.rejected}"
        return InputError(
            "too many lines are no documents",
            where=where,
            found=found,
            expected=f"{expected} ({limit})",
            remedy=f"{remedy}; each is listed in {_listings_text(losses)}",
        )

    def _leave_out(self, paths: Sequence[str]) -> str:
        """Return how the user leaves out some files."""
        patterns = [escape(path) for path in paths]
        return self.names.leave_out.replace("{files}", json.dumps(patterns))


def _listings_text(losses: Losses) -> str:
    """Name some lists of rejected lines."""
    names = ", ".join(str(path) for path in islice(losses.listings(), _MAX_LISTINGS_NAMED))
    n_listings = sum(1 for shard in losses.shards if shard.facts["reasons"])
    n_more = n_listings - _MAX_LISTINGS_NAMED
    return f"{names} and {n_more:,} more" if n_more > 0 else names


def _first_line_text(reject: Reject) -> str:
    """Describe what a rejected line contains."""
    if reject.reason != "missing_key":
        return f"line {reject.line:,} is {reject.excerpt!r} ({reject.reason}: {reject.detail})"
    # The detail is "… among [keys] in …".
    keys, _, level = reject.detail.partition(" among [")[2].partition("]")
    keys_text = f"the keys {keys}" if keys else "no keys"
    return f"line {reject.line:,} has {keys_text}{level}"


def _counts(reasons: Mapping[str, int]) -> str:
    """Name reasons, each with its count."""
    return ", ".join(f"{reason} {count:,}" for reason, count in reasons.items())
