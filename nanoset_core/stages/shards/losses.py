"""What was lost between files and shards: rejected lines, unreadable files, damaged text.

Each shard counts its losses, and lists rejected lines in a file. `Losses` adds up the counts of
several shards, and describes them in clauses for messages, such as "3 documents with runs of zero
bytes: a.parquet 3".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.shards.facts import ShardFacts
from nanoset_core.stages.shards.line_numbers import LineNumbers, piece_lines_of_corpus
from nanoset_core.stages.shards.one_shard import REJECTS
from nanoset_core.stages.shards.reject_list import read_rejects
from nanoset_core.storage.copies.temporary import copies_in
from nanoset_core.storage.location import Location
from nanoset_core.text.inventory.pieces import Piece
from nanoset_core.text.rejects import Reject, is_fault
from nanoset_core.wording import abbreviated, format_bytes, format_count

_SOUND_REASONS = frozenset({"blank_line", "not_an_object", "text_not_a_string"})
"""Reasons of lines that are whole and have no text, as they occur in ordinary corpora. The others
may be damage: a line that was cut or overwritten is not JSON or not UTF-8, and one whose key was
hit lacks it."""
_MAX_LISTS_READ = 100
"""Lists of rejects that are read to find the files of damaged lines."""
_MAX_REJECTS_READ = 20_000
_MAX_FILES_NAMED = 5


class RejectsOfCall(NamedTuple):
    """The rejected lines of a whole call of a command, in place of the shards that it removed."""

    facts: Mapping[str, Any]
    """Counts of the call, as in the manifest of a shard."""
    list_path: Location
    """The list of the rejected lines, which may be in a bucket."""
    scratch: Path
    """A local folder for a copy of the list."""

    def local_list(self) -> Path:
        """Return the local path of the list, after downloading it if it is in a bucket.

        Returns:
            The list itself if it is on this machine.

        Raises:
            MissingError: The list does not exist any more.
            StorageError: There is no room for the copy.
        """
        [path] = copies_in(self.scratch, [self.list_path])
        return path


@dataclass(frozen=True)
class Losses:
    """What several shards lost.

    The texts that describe it are single clauses, and empty if nothing was lost.
    """

    facts: ShardFacts
    """Sums over all shards."""
    shards: Sequence[Manifest | RejectsOfCall] = ()
    """The shards that rejected something, and perhaps others."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Relative path of each file → its stored bytes."""
    line_numbers: LineNumbers = field(default_factory=LineNumbers)
    """Line numbers of the corpus, for lists of rejects."""

    @cached_property
    def file_faults(self) -> tuple[Reject, ...]:
        """The fault of each file that could not be read to its end, in document order.

        `facts.faults` is their number. If lists of rejects were deleted, fewer faults are known.
        """
        fault_by_file: dict[str, Reject] = {}
        for reject in self._rejects(is_fault):
            if reject.is_fault:
                fault_by_file[reject.file] = reject
        return tuple(fault_by_file.values())

    @property
    def unreadable_bytes(self) -> int:
        """Stored bytes of the files that could not be read to their end.

        These are all bytes of the files, since it is not known how much of each is lost. If it is
        not known which files they are, these are the bytes of all files.
        """
        if len(self.file_faults) < self.facts.faults:
            return self.facts.stored_bytes
        all_bytes = self.facts.stored_bytes
        return sum(self.sizes.get(fault.file, all_bytes) for fault in self.file_faults)

    @property
    def unreadable_share(self) -> float:
        """Share of the stored bytes in files that could not be read to their end, 0 to 1."""
        return min(1.0, self.unreadable_bytes / max(self.facts.stored_bytes, 1))

    def lists(self, is_included: Callable[[str], bool] = lambda _reason: True) -> Iterator[Path]:
        """Yield the files that list rejected lines, for example shards/web/3f9c…/rejects.jsonl.

        A corpus is tokenized in parts, the shards, and each has such a file. Files that have no
        line that was rejected for one of the requested reasons are left out.

        Args:
            is_included: Returns whether a reason, such as "invalid_json", is requested; by default,
                all are.
        """
        if not self.facts.reasons:
            return  # no line was rejected
        for shard in self.shards:
            line_count_by_reason = shard.facts["reasons"]  # {"invalid_json": 2}
            if not any(is_included(reason) for reason in line_count_by_reason):
                continue
            if isinstance(shard, RejectsOfCall):  # a single file stands for all shards
                yield shard.local_list()
            else:
                yield shard.path(REJECTS)

    def _rejects(
        self, is_included: Callable[[str], bool], max_lists: int | None = None
    ) -> Iterator[Reject]:
        """Yield the lines that were rejected for certain reasons.

            a.jsonl    line 17    invalid_json
            b.jsonl    line 3     missing_key

        A corpus is tokenized in parts. Each part has a file that lists its rejected lines, so
        these files are read one after another.

        Args:
            is_included: Returns whether a reason, such as "invalid_json", is one of the requested
                ones.
            max_lists: Read only this many files, to save time; None for all.
        """
        for list_path in islice(self.lists(is_included), max_lists):
            for reject in read_rejects(list_path, self.line_numbers):
                # The file also has lines that were rejected for other reasons.
                if is_included(reject.reason):
                    yield reject

    def first(self, reason: str) -> Reject | None:
        """Return the first line that was rejected for a reason.

        Args:
            reason: The reason, such as `invalid_json`.

        Returns:
            The line, in document order; None if there is no such line, or if the lists of rejected
            lines were deleted.
        """
        return next(self._rejects(lambda other: other == reason), None)

    def unreadable_text(self) -> str:
        """Describe the files that could not be read to their end, and their share of the corpus.

            1 file not readable to the end (3.0 MB of 80.0 MB stored, 3.75%): a.jsonl.gz from line 7
            on (…)

        Returns:
            A clause for a message; empty if all files were read to their end.
        """
        n_unreadable_files = self.facts.faults
        if n_unreadable_files == 0:
            return ""

        count = format_count(n_unreadable_files, "file")
        unreadable_bytes = format_bytes(self.unreadable_bytes)
        stored_bytes = format_bytes(self.facts.stored_bytes)
        return (
            f"{count} not readable to the end ({unreadable_bytes} of {stored_bytes} stored, "
            f"{self.unreadable_share:.2%}): {self._unreadable_files_text()}"
        )

    def _unreadable_files_text(self) -> str:
        """Name the files that could not be read to their end: "a.jsonl.gz from line 7 on (…)".

        Their names are in the lists of rejected lines, which may have been deleted.
        """
        files = []
        for fault in self.file_faults:
            files.append(f"{fault.file} from line {fault.line:,} on ({fault.reason})")
        if not files:
            return "which ones is no longer known"
        return abbreviated(files, _MAX_FILES_NAMED)

    def damaged_text(self) -> str:
        """Describe how many rejected lines look damaged, why, and in which files.

            3 rejected lines that may be damaged (invalid_json 3): 2 in a.jsonl, 1 in b.jsonl

        Returns:
            A clause for a message; empty if no line looks damaged.
        """
        line_count_by_reason = self._damaged_lines_by_reason()  # {"invalid_json": 3}
        if not line_count_by_reason:
            return ""
        n_lines = sum(line_count_by_reason.values())
        count = format_count(n_lines, "rejected line")
        reasons = counts_by_reason_text(line_count_by_reason)

        # To name the files, only some of the lists of rejected lines are read.
        line_count_by_file = self._damaged_lines_by_file()  # {"a.jsonl": 2, "b.jsonl": 1}
        files = _files_with_counts(line_count_by_file)
        text = f"{count} that may be damaged ({reasons}): {files}"
        n_not_looked_at = n_lines - sum(line_count_by_file.values())
        if n_not_looked_at > 0:
            text += f"; {n_not_looked_at:,} not looked at"
        return text

    def _damaged_lines_by_reason(self) -> dict[str, int]:
        """Count the lines that were rejected for reasons that suggest damage, by reason.

        For example, a line that was cut or overwritten is not JSON.
        """
        counts = self.facts.reasons
        return {reason: counts[reason] for reason in counts if _may_be_damage(reason)}

    def _damaged_lines_by_file(self) -> Counter[str]:
        """Count the lines that look damaged by file, in a part of the corpus.

        The files are in the lists of rejects, of which a large corpus has thousands. Only the first
        lists are read, and only the first lines in them.
        """
        rejects = self._rejects(_may_be_damage, max_lists=_MAX_LISTS_READ)
        return Counter(reject.file for reject in islice(rejects, _MAX_REJECTS_READ))

    def zeroed_text(self) -> str:
        """Return a clause that says how many documents of which tables have runs of zero bytes.

        Returns:
            Such as "3 documents with runs of zero bytes: 3 in a.parquet"; "" if there are none.
        """
        documents_by_file = self.facts.zeroed
        if not documents_by_file:
            return ""
        count = format_count(sum(documents_by_file.values()), "document")
        return f"{count} with runs of zero bytes: {_files_with_counts(documents_by_file)}"

    def padded_text(self) -> str:
        """Say which gzip files have zero bytes after their compressed text.

        Some programs reserve the space of a file before they download it. If the download is cut
        short, the rest of the file is zero bytes, so part of the text may be missing.

        Returns:
            Such as "1 gzip file with zero bytes at the end, …: 512 bytes in a.jsonl.gz"; ""
            if there are none.
        """
        bytes_by_file = self.facts.padding
        if not bytes_by_file:
            return ""
        files = [f"{size:,} bytes in {path}" for path, size in bytes_by_file.items()]
        count = format_count(len(bytes_by_file), "gzip file")
        names = abbreviated(files, _MAX_FILES_NAMED)
        return f"{count} with zero bytes at the end, as of a download that was cut short: {names}"

    def empty_text(self) -> str:
        """Say which files have bytes, but no text in them.

        They are often left behind by a program that failed: `zcat missing.gz | gzip > a.jsonl.gz`
        writes a file of 20 bytes. Files without any bytes are reported by notices on the raw files.

        Returns:
            Such as "2 files without text (empty, but compressed; or without rows): a.jsonl.gz,
            b.parquet"; "" if there are none.
        """
        paths = list(self.facts.empty_files)
        if not paths:
            return ""
        count = format_count(len(paths), "file")
        names = abbreviated(paths, _MAX_FILES_NAMED)
        return f"{count} without text (empty, but compressed; or without rows): {names}"

    def ids_text(self) -> str:
        r"""Describe how many documents have an id that could not be kept, or only in another form.

            "3 documents with ids that cannot be kept, so that no list names them: 3 in a.jsonl"

        An id should be text, such as "doc-1". One that is a list or a very long text is not kept.
        In one that is not UTF-8, each wrong byte is kept as four characters, such as \xff.

        Returns:
            One or two clauses for a message; empty if all ids were kept as they are.
        """
        clauses = []
        if self.facts.unkept_ids:  # {"a.jsonl": 3}
            count = format_count(sum(self.facts.unkept_ids.values()), "document")
            clauses.append(
                f"{count} with ids that cannot be kept, so that no list names them: "
                f"{_files_with_counts(self.facts.unkept_ids)}"
            )
        if self.facts.escaped_ids:  # {"b.jsonl": 1}
            count = format_count(sum(self.facts.escaped_ids.values()), "document")
            clauses.append(
                rf"{count} with ids of bytes that are not UTF-8, which are kept as \xNN: "
                f"{_files_with_counts(self.facts.escaped_ids)}"
            )
        return "; ".join(clauses)

    def vanished_text(self) -> str:
        """Say how many characters of the text are not in the tokens.

        A tokenizer may have no token for a character such as "☃", and no token for unknown
        characters (`unk_token`) either. Then it drops the character silently.

        Returns:
            Such as "12 characters are missing from the tokens: …"; "" if there are none.
        """
        if not self.facts.vanished:
            return ""
        count = format_count(self.facts.vanished, "character")
        return (
            f"{count} are missing from the tokens: the tokenizer has no token for them, "
            "and no unk_token"
        )

    def beyond_rejects(self) -> str:
        """Say how much text was lost while it was tokenized, apart from rejected lines.

        Rejected lines, such as invalid JSON, are in a list that the user can look at. Other losses
        are only described: files that could not be read to their end, texts with zero bytes, files
        without text, and characters for which the tokenizer has no token.

        Returns:
            Clauses with semicolons between them, such as "1 gzip file with zero bytes at the end,
            …; 12 characters are missing from the tokens: …"; "" if nothing else was lost.
        """
        texts = [
            self.unreadable_text(),
            self.zeroed_text(),
            self.padded_text(),
            self.empty_text(),
            self.vanished_text(),
        ]
        return "; ".join(text for text in texts if text)

    def texts(self) -> list[str]:
        """Return what was lost, other than complete lines, with one clause for each kind of loss.

            ["1 file not readable to the end …", "12 characters are missing from the tokens: …"]

        Returns:
            The clauses; those that do not apply are left out.
        """
        texts = [
            self.unreadable_text(),  # files that cannot be read to their end
            self.damaged_text(),  # rejected lines that look damaged
            self.zeroed_text(),  # documents with runs of zero bytes
            self.padded_text(),  # gzip files with zero bytes at their end
            self.empty_text(),  # files that have bytes, but no text in them
            self.ids_text(),  # documents whose ids are not text
            self.vanished_text(),  # characters for which the tokenizer has no token
        ]
        return [text for text in texts if text]


def sum_losses(shards: Sequence[Manifest], pieces: Sequence[Piece]) -> Losses:
    """Return how much text of a corpus was lost, from the counts of its shards.

    A shard is a part of the corpus that was tokenized at once:

        shard 3f9c…      3 lines were no documents
        shard a07e…      1 line was no document, and b.jsonl.gz could not be read to its end
        in all           4 lines, and a file

    Args:
        shards: Manifests of the shards, in document order.
        pieces: The pieces of files that these shards were made from, in the same order.
    """
    total = ShardFacts()
    for shard in shards:
        total += ShardFacts.of(shard.facts)

    # The lists of rejected lines may count lines from the start of a piece of a large file. To name
    # a line by its number in the file, the number of lines in each piece is needed.
    lines_of_pieces = piece_lines_of_corpus(shards, pieces)
    return Losses(
        facts=total,
        shards=shards,  # they have the lists of rejected lines
        sizes=stored_sizes(pieces),  # {"a.jsonl": 1500000}, the bytes of each file
        line_numbers=LineNumbers.of(lines_of_pieces),
    )


def stored_sizes(pieces: Iterable[Piece]) -> dict[str, int]:
    """Return how many bytes each file has, as the sum of the pieces that it was cut into.

        {"a.jsonl": 1500000, "b.jsonl": 500000}

    Args:
        pieces: Pieces of files, in any order.
    """
    sizes: Counter[str] = Counter()
    for piece in pieces:
        sizes[piece.path] += piece.size
    return dict(sizes)


def counts_by_reason_text(count_by_reason: Mapping[str, int]) -> str:
    """Return reasons with their counts, as one clause.

    Args:
        count_by_reason: Reason → how many lines were rejected for it.

    Returns:
        Text such as "invalid_json 3, missing_key 1".
    """
    return ", ".join(f"{reason} {count:,}" for reason, count in count_by_reason.items())


def _may_be_damage(reason: str) -> bool:
    """Return whether a line that was rejected for a reason may be damaged.

    `invalid_json` may be a line that was cut; `blank_line` is no damage. Nor is a fault, which is
    no line: it is a file that cannot be read to its end.

    Args:
        reason: The reason.
    """
    return not is_fault(reason) and reason not in _SOUND_REASONS


def _files_with_counts(count_by_file: Mapping[str, int]) -> str:
    """Name some files, each with its count: "2 in a.jsonl, 1 in b.jsonl"."""
    files = [f"{count:,} in {path}" for path, count in count_by_file.items()]
    return abbreviated(files, _MAX_FILES_NAMED)
