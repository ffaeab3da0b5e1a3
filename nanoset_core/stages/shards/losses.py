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
from nanoset_core.stages.shards.document_table import LineNumbers, joined_facts
from nanoset_core.stages.shards.facts import ShardFacts
from nanoset_core.stages.shards.shards import REJECTS
from nanoset_core.storage.location import RawFolder
from nanoset_core.storage.regular_files import open_regular
from nanoset_core.text.contents import some
from nanoset_core.text.endings import is_table
from nanoset_core.text.lines import describe_file
from nanoset_core.text.pieces import Piece
from nanoset_core.text.rejects import WRONG_FORMAT, Reject, RejectOptions, is_fault

_SOUND_REASONS = frozenset({"blank_line", "not_an_object", "text_not_a_string"})
"""Reasons of lines that are whole and hold no text, as they stand in ordinary corpora. The others may be damage: a line
that was cut or overwritten is no JSON or no UTF-8, and one whose key was hit lacks it."""
_REASONS_OF_OTHER_FILES = frozenset(
    {"invalid_json", "invalid_utf8", "not_an_object", "array_of_objects", "blank_line", "line_too_long"}
)
"""Reasons of lines in files that are no JSON lines at all, such as one JSON array or binary data."""
_LISTINGS_READ, _REJECTS_READ = 100, 20_000
"""Files of rejects, and rejects, that are read at most to say in which files damaged lines are."""
_FILES_NAMED, _LISTINGS_NAMED = 5, 3


class Listing(NamedTuple):
    """The rejects of one call, as manifests of shards have them."""

    facts: Mapping[str, Any]
    path: Callable[[str], Path]
    """Returns the file that lists them, fetched where it lives elsewhere."""


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
    """Of the lines that lists of rejects name."""

    @cached_property
    def unreadable(self) -> tuple[Reject, ...]:
        """The faults of files that could not be read to their end, in document order: the last of each file."""
        return tuple({one.file: one for one in self._rejects(is_fault) if one.is_fault}.values())

    @property
    def unreadable_bytes(self) -> int:
        """Stored bytes of these files (how much of one is lost is not known); of all where some are not known."""
        if len(self.unreadable) < self.facts.faults:
            return self.facts.stored_bytes
        return sum(self.sizes.get(fault.file, self.facts.stored_bytes) for fault in self.unreadable)

    @property
    def unreadable_share(self) -> float:
        """Share of the stored bytes that lie in these files, 0 to 1."""
        return min(1.0, self.unreadable_bytes / max(self.facts.stored_bytes, 1))

    def listings(self, wanted: Callable[[str], bool] = bool) -> Iterator[Path]:
        """Yield the lists that hold rejects for such reasons."""
        if self.facts.reasons:
            yield from (shard.path(REJECTS) for shard in self.shards if any(map(wanted, shard.facts["reasons"])))

    def _rejects(self, wanted: Callable[[str], bool], lists: int | None = None) -> Iterator[Reject]:
        """Yield the rejects for such reasons, from so many lists."""
        for path in islice(self.listings(wanted), lists):
            yield from (one for one in read_rejects(path, self.numbers) if wanted(one.reason))

    def first(self, reason: str) -> Reject | None:
        """Return the first line that was rejected for a reason."""
        return next(self._rejects(reason.__eq__), None)

    def unreadable_text(self) -> str:
        """Describe these files, and how much of the corpus that is, as one clause; empty where there is none."""
        if not self.facts.faults:
            return ""
        share = f"{format_bytes(self.unreadable_bytes)} of {format_bytes(self.facts.stored_bytes)} stored"
        files = [f"{one.file} from line {one.line:,} on ({one.reason})" for one in self.unreadable]
        count = format_count(self.facts.faults, "file")
        named = some(files, _FILES_NAMED) or "which ones is no longer known"
        return f"{count} not readable to the end ({share}, {self.unreadable_share:.2%}): {named}"

    def damaged_text(self) -> str:
        """Describe how many lines look damaged, why, and in which files, as one clause; empty where none does."""
        reasons = {reason: count for reason, count in self.facts.reasons.items() if _may_be_damage(reason)}
        if not reasons:
            return ""
        rejects = islice(self._rejects(_may_be_damage, _LISTINGS_READ), _REJECTS_READ)
        files = Counter(one.file for one in rejects)
        lines = sum(reasons.values())
        rest = lines - files.total()
        return (
            f"{format_count(lines, 'rejected line')} that may be damaged ({_counts(reasons)}): "
            f"{some([f'{path} {count:,}' for path, count in files.items()], _FILES_NAMED)}"
        ) + (f"; {rest:,} not looked at" if rest > 0 else "")

    def zeroed_text(self) -> str:
        """Describe how many documents of which tables hold runs of zero bytes, as one clause; empty for none."""
        if not (zeroed := self.facts.zeroed):
            return ""
        files = some([f"{path} {count:,}" for path, count in zeroed.items()], _FILES_NAMED)
        return f"{format_count(sum(zeroed.values()), 'document')} with runs of zero bytes: {files}"

    def padded_text(self) -> str:
        """Describe which gzip files hold zero bytes behind their members, as one clause; empty for none."""
        if not (padding := self.facts.padding):
            return ""
        files = some([f"{path} {count:,} bytes" for path, count in padding.items()], _FILES_NAMED)
        count = format_count(len(padding), "gzip file")
        return f"{count} with zero bytes at the end, as of a download that was cut short: {files}"

    def ids_text(self) -> str:
        """Describe how many documents of which files have an id that is no text, as one clause; empty for none."""
        clauses = []
        for counts, what in (
            (self.facts.unkept_ids, "that cannot be kept, so that no list names them"),
            (self.facts.escaped_ids, r"of bytes that are not UTF-8, which are kept as \xNN"),
        ):
            if counts:
                files = some([f"{path} {count:,}" for path, count in counts.items()], _FILES_NAMED)
                clauses.append(f"{format_count(sum(counts.values()), 'document')} with ids {what}: {files}")
        return "; ".join(clauses)

    def vanished_text(self) -> str:
        """Describe how much text the tokenizer dropped; empty if nothing."""
        if not self.facts.vanished:
            return ""
        count = format_count(self.facts.vanished, "character")
        return f"{count} are missing from the tokens: the tokenizer has no token for them, and no unk_token"

    def beyond_rejects(self) -> str:
        """Describe what no list of rejected lines holds, as one clause; empty where there is nothing."""
        return "; ".join(
            filter(None, (self.unreadable_text(), self.zeroed_text(), self.padded_text(), self.vanished_text()))
        )

    def texts(self) -> list[str]:
        """Return all clauses that are not empty."""
        texts = (
            self.unreadable_text(),
            self.damaged_text(),
            self.zeroed_text(),
            self.padded_text(),
            self.ids_text(),
            self.vanished_text(),
        )
        return [text for text in texts if text]


def losses_of(shards: Sequence[Manifest], pieces: Sequence[Piece]) -> Losses:
    """Return what shards lost that were made of these pieces of files."""
    facts = sum((ShardFacts.of(shard.facts) for shard in shards), ShardFacts())
    return Losses(facts, shards, stored_sizes(pieces), LineNumbers.of(joined_facts(shards, pieces)))


def stored_sizes(pieces: Iterable[Piece]) -> dict[str, int]:
    """Return relative path → stored bytes of all pieces of a file."""
    sizes: Counter[str] = Counter()
    for piece in pieces:
        sizes[piece.path] += piece.size
    return dict(sizes)


def _may_be_damage(reason: str) -> bool:
    return not is_fault(reason) and reason not in _SOUND_REASONS


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


@dataclass(frozen=True, slots=True)
class SettingNames:
    """The settings by the names that the user knows, for messages."""

    on_reject: str = "--on-reject fail"
    rejected: str = "--max-rejected-fraction"
    unreadable: str = "--max-unreadable-fraction"
    text_key: str = "--json-key"
    leave_out: str = "name the other files with --input"
    """How files are left out, of which {files} is a list in JSON."""


@dataclass(frozen=True, slots=True)
class RejectPolicy:
    """How many lines may be no documents, and how much of the text may lie in files that cannot be read to their end.

    The two are judged apart: a fault that ends a file is not one of the rejected lines.
    """

    options: RejectOptions
    text_key: str = "text"
    """Key of the text."""
    names: SettingNames = SettingNames()

    def check(self, losses: Losses, folder: RawFolder) -> None:
        """Refuse too large losses.

        Raises:
            InputError: More is lost than is allowed.
        """
        if (refusal := self.refusal(losses, folder)) is not None:
            raise refusal

    def refusal(self, losses: Losses, folder: RawFolder) -> InputError | None:
        """Return the error for more losses than are allowed; None where they are not. `folder` holds the files."""
        facts, options, fails = losses.facts, self.options, self.options.on_reject == "fail"
        limit = 0.0 if fails else options.max_unreadable_fraction
        if facts.faults and (limit == 0 or losses.unreadable_share > limit):
            return self._unreadable(losses, folder)
        limit = 0.0 if fails else options.max_rejected_fraction
        return self._rejected(losses, folder) if facts.rejected > limit * max(facts.lines, 1) else None

    def _unreadable(self, losses: Losses, folder: RawFolder) -> InputError:
        files, names, several = losses.unreadable, self.names, losses.facts.faults > 1
        foreign = [fault.file for fault in files if fault.reason == WRONG_FORMAT]
        leave_out = self._leave_out(foreign)
        if foreign and len(foreign) == losses.facts.faults:
            return InputError(
                f"{len(foreign):,} files are not what their endings say"
                if several
                else "a file is not what its ending says",
                where=folder / files[0].file,
                found=f"{files[0].detail}; {losses.unreadable_text()}",
                expected=f"text in every file that is not left out ({leave_out})",
                remedy=f"leave out what is no text of the corpus: {leave_out}; convert what is",
            )
        limit, remedy = names.on_reject, f"fetch or write {'them' if several else 'it'} again"
        if self.options.on_reject != "fail":
            enough = max(1, math.ceil(losses.unreadable_share * 1000)) / 1000
            limit = f"{names.unreadable}: {self.options.max_unreadable_fraction:g}"
            remedy += f", or take what could be read of it: {names.unreadable} {enough:g}"
        if foreign:
            remedy += f"; leave out what is no text: {leave_out}"
        return InputError(
            f"{'files' if several else 'a file'} cannot be read to {'their' if several else 'its'} end",
            where=folder / files[0].file if files else folder,
            found=losses.unreadable_text() + (f"; {files[0].detail}" if files else ""),
            expected=f"whole files ({limit})",
            remedy=remedy,
        )

    def _rejected(self, losses: Losses, folder: RawFolder) -> InputError:
        """Return the error for too many rejected lines: what the commonest of them are, and what their file is."""
        facts = losses.facts
        names = self.names
        key = self.text_key
        reason = max((name for name in facts.reasons if not is_fault(name)), key=lambda name: facts.reasons[name])
        first = losses.first(reason)

        found = f"{facts.rejected:,} of {facts.lines:,} lines rejected, {facts.rejected / max(facts.lines, 1):.2%}"
        found += f" ({_counts(facts.reasons)})"
        expected = f'one JSON object in each line, as {{"{key}": "Some text."}}, or a table with a text in each row'
        remedy = "mend them"
        if reason == "missing_key":
            expected = f"the key {key!r} ({names.text_key}) in every line or row"
            remedy = f"name the key that holds the text ({names.text_key})"

        # A file of another kind has lines, too, of which the first says little.
        kind = None
        if first is not None:
            found += f"; {_seen(first)}"
            if reason in _REASONS_OF_OTHER_FILES and not is_table(first.file):
                kind = describe_file(folder, first.file)
        if kind is not None:
            found = f"the file is {kind}; {found}"
            remedy = f"convert the file, or leave it out: {self._leave_out([first.file] if first else [])}"

        limit = names.on_reject
        if self.options.on_reject != "fail":
            limit = f"at most {self.options.max_rejected_fraction:.2%} rejected, {names.rejected}"
            remedy += f", or raise {names.rejected}"
        return InputError(
            "too many lines are no documents",
            where=folder / first.file if first is not None else folder,
            found=found,
            expected=f"{expected} ({limit})",
            remedy=f"{remedy}; each is listed in {_listed(losses)}",
        )

    def _leave_out(self, paths: Sequence[str]) -> str:
        """Return how the user leaves out some files."""
        return self.names.leave_out.replace("{files}", json.dumps([escape(path) for path in paths]))


def _listed(losses: Losses) -> str:
    paths = ", ".join(map(str, islice(losses.listings(), _LISTINGS_NAMED)))
    more = sum(1 for shard in losses.shards if shard.facts["reasons"]) - _LISTINGS_NAMED
    return paths + (f" and {more:,} more" if more > 0 else "")


def _seen(reject: Reject) -> str:
    """Describe what is there in place of a document."""
    if reject.reason == "missing_key":
        keys, _, level = reject.detail.partition(" among [")[2].partition("]")
        return f"line {reject.line:,} has {f'the keys {keys}' if keys else 'no keys'}{level}"
    return f"line {reject.line:,} is {reject.excerpt!r} ({reject.reason}: {reject.detail})"


def _counts(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in reasons.items())
