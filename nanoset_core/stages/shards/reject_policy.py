"""Decide whether more text was lost between files and shards than the settings allow.

There is one limit for lines that are not documents, and one for text in files that cannot be read
to their end. If one of them is exceeded, the error says how much was lost, shows an example, and
names the setting and what usually helps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from glob import escape
from itertools import islice
from typing import NamedTuple

from nanoset_core.errors import InputError
from nanoset_core.stages.shards.losses import Losses, counts_by_reason_text
from nanoset_core.storage.location import Location
from nanoset_core.text.files.endings import Format, format_of
from nanoset_core.text.lines import describe_file
from nanoset_core.text.rejects import (
    AMBIGUOUS_COLUMN,
    WRONG_FORMAT,
    Reject,
    RejectOptions,
    is_fault,
)

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
"""Reasons of lines in files that are not JSON lines, such as one JSON array or binary data."""
_MAX_LISTS_NAMED = 3


@dataclass(frozen=True, slots=True)
class SettingNames:
    """What settings are called where the user sets them, for messages.

    The defaults are the options of the command line.
    """

    on_reject: str = "--on-reject fail"
    rejected: str = "--max-rejected-fraction"
    unreadable: str = "--max-unreadable-fraction"
    text_key: str = "--json-key"
    leave_out: str = "name the other files with --input"
    """How files are left out; {files} stands for a list of patterns in JSON."""


@dataclass(frozen=True, slots=True)
class RejectPolicy:
    """How many lines may be rejected, and how much of the text may be in unreadable files.

    The two are judged separately: a fault that ends a file is not one of the rejected lines.
    """

    options: RejectOptions
    text_key: str = "text"
    """Key of the text."""
    names: SettingNames = SettingNames()

    def check(self, losses: Losses, folder: Location) -> None:
        """Check that not more of a text was lost than the settings allow.

        Text is lost if lines are no documents, or if files cannot be read to their end.

        Args:
            losses: What was lost.
            folder: The folder of the files.

        Raises:
            InputError: More was lost.
        """
        refusal = self.refusal(losses, folder)
        if refusal is not None:
            raise refusal

    def refusal(self, losses: Losses, folder: Location) -> InputError | None:
        """Return an error if more of a text was lost than the settings allow, or None.

        There are three errors:

            too much text in damaged files             files cannot be read to their end
            all of these are of another format,        files are not what their endings say
            such as a PDF named web.jsonl
            too many lines without a document          too many lines are no documents

        Args:
            losses: What was lost.
            folder: The folder of the files.
        """
        if self._has_too_many_unreadable(losses):
            n_unreadable_files = losses.facts.faults
            n_foreign_files = len(_foreign_files(losses))  # of another format
            if n_foreign_files == n_unreadable_files:
                return self._foreign_files_error(losses, folder)
            return self._unreadable_files_error(losses, folder)
        if self._has_too_many_rejects(losses):
            return self._rejected_lines_error(losses, folder)
        return None

    def _has_too_many_unreadable(self, losses: Losses) -> bool:
        """Return whether more of the text is in damaged files than the settings allow.

        With a limit of 0.01, files that cannot be read to their end may have 1 % of all bytes.

        Args:
            losses: What was lost.
        """
        n_damaged_files = losses.facts.faults
        if n_damaged_files == 0:
            return False
        max_share = self.options.max_unreadable_fraction
        is_no_loss_allowed = self.options.on_reject == "fail" or max_share <= 0
        if is_no_loss_allowed:
            return True  # even if the files are empty, and so have a share of 0
        return losses.unreadable_share > max_share

    def _has_too_many_rejects(self, losses: Losses) -> bool:
        """Return whether more of the lines are no documents than the settings allow.

        With a limit of 0.01, up to 10 of 1,000 lines may be rejected.

        Args:
            losses: What was lost.
        """
        max_share = 0.0 if self._fails_on_reject else self.options.max_rejected_fraction
        return losses.facts.rejected > max_share * max(losses.facts.lines, 1)

    @property
    def _fails_on_reject(self) -> bool:
        """Whether nothing may be lost at all."""
        return self.options.on_reject == "fail"

    def _foreign_files_error(self, losses: Losses, folder: Location) -> InputError:
        """Return the error for files whose content is of another format than their names say.

            2 files are not what their endings say
            remedy: leave out files that are not text of the corpus: …; convert the others

        Args:
            losses: What was lost. All of its unreadable files are such files.
            folder: The folder of the files.
        """
        files = [fault.file for fault in losses.file_faults]
        message = "a file is not what its ending says"
        if len(files) > 1:
            message = f"{len(files):,} files are not what their endings say"
        first_fault = losses.file_faults[0]
        exclusion = self._how_to_leave_out(files)  # a setting, such as `exclude: [a.gz]`
        return InputError(
            message,
            where=folder / first_fault.file,
            found=f"{first_fault.detail}; {losses.unreadable_text()}",
            expected=f"text in every file that is not left out ({exclusion})",
            remedy=(
                f"leave out files that are not text of the corpus: {exclusion}; convert the others"
            ),
        )

    def _unreadable_files_error(self, losses: Losses, folder: Location) -> InputError:
        """Return the error for files that cannot be read to their end, such as half a download.

            a file cannot be read to its end
            where: raw/web/a.jsonl.gz
            found: 1 file not readable to the end (3.0 MB of 80.0 MB stored, 3.75%): …
            expected: whole files (documents.max_unreadable_fraction: 0.01)

        Args:
            losses: What was lost.
            folder: The folder of the files.
        """
        message = "a file cannot be read to its end"
        if losses.facts.faults > 1:
            message = "files cannot be read to their end"

        where = folder
        found = losses.unreadable_text()
        if losses.file_faults:  # empty if the lists that name files were deleted
            first_fault = losses.file_faults[0]
            where = folder / first_fault.file
            found += f"; {first_fault.detail}"
        return InputError(
            message,
            where=where,
            found=found,
            expected=f"whole files ({self._unreadable_limit_text()})",
            remedy=self._remedy_for_unreadable(losses),
        )

    def _unreadable_limit_text(self) -> str:
        """Return the limit for unreadable text, with the name of its setting."""
        if self._fails_on_reject:
            return self.names.on_reject  # such as "documents.on_reject: fail"
        return f"{self.names.unreadable}: {self.options.max_unreadable_fraction:g}"

    def _remedy_for_unreadable(self, losses: Losses) -> str:
        """Return what the user can do about files that cannot be read to their end, for an error.

        If all of the files are tables in which several columns have the same name, it does not help
        to fetch them again. So the advice is to rename the columns.

        Args:
            losses: What was lost, with a fault for each file.
        """
        reasons = {fault.reason for fault in losses.file_faults}
        if reasons == {AMBIGUOUS_COLUMN}:
            exclusion = self._how_to_leave_out([fault.file for fault in losses.file_faults])
            return f"rename or remove all but one of these columns, or leave it out: {exclusion}"
        return self._remedy_for_damaged(losses)

    def _remedy_for_damaged(self, losses: Losses) -> str:
        """Return what the user can do about damaged files, for an error.

        The advice has up to three parts:

            fetch or write it again
            , or accept what could be read of it: documents.max_unreadable_fraction 0.038
            ; leave out files that are not text: …

        The second part is left out if the settings allow no loss at all, and the third one if no
        file is of another format than its name says. Fetching such a file again does not help.

        Args:
            losses: What was lost.
        """
        advice = "fetch or write it again"
        if losses.facts.faults > 1:
            advice = "fetch or write them again"
        if not self._fails_on_reject:
            sufficient_limit = self._sufficient_limit(losses)
            advice += f", or accept what could be read of it: {sufficient_limit}"

        foreign_files = _foreign_files(losses)
        if foreign_files:
            exclusion = self._how_to_leave_out(foreign_files)
            advice += f"; leave out files that are not text: {exclusion}"
        return advice

    def _sufficient_limit(self, losses: Losses) -> str:
        """Return the smallest limit for unreadable text that allows a loss, in steps of 0.001.

        A loss of 3.75 % gives "documents.max_unreadable_fraction 0.038".

        Args:
            losses: What was lost.
        """
        thousandths = max(1, math.ceil(losses.unreadable_share * 1000))
        return f"{self.names.unreadable} {thousandths / 1000:g}"

    def _rejected_lines_error(self, losses: Losses, folder: Location) -> InputError:
        """Return the error for too many rejected lines, with an example and what usually helps.

        Usually a single mistake leads to most of them, such as the wrong key of the text. So the
        example is the first line that was rejected for the most common reason:

            too many lines are no documents
            where: raw/web/a.jsonl
            found: 900 of 1,000 lines rejected, 90.00% (missing_key 900); line 1 has the keys …
            remedy: name the key that holds the text (documents.text_key), or raise …

        Args:
            losses: What was lost.
            folder: The folder of the files.
        """
        reason = _most_common_reason(losses)  # "missing_key"
        found = _rejected_share_text(losses)  # "900 of 1,000 lines rejected, …"
        example = losses.first(reason)
        if example is None:  # the list of rejected lines was deleted
            advice = self._advice(reason, file_format="lines")
            return self._too_many_rejects(losses, folder, found, advice)

        found += f"; {_line_text(example)}"
        advice = self._advice(reason, format_of(example.file))
        file_kind = _kind_of_other_file(folder, example)  # None for text
        if file_kind is not None:
            found = f"the file is {file_kind}; {found}"
            advice = self._advice_for_other_file(example.file, advice.expected)
        return self._too_many_rejects(losses, folder / example.file, found, advice)

    def _advice_for_other_file(self, path: str, expected: str) -> _Advice:
        """Return what a user can do about a file that is no text at all, such as an image.

        Args:
            path: Relative path of the file.
            expected: What its lines should be if it were text.
        """
        exclusion = self._how_to_leave_out([path])
        return _Advice(expected, remedy=f"convert the file, or leave it out: {exclusion}")

    def _too_many_rejects(
        self, losses: Losses, where: Location, found: str, advice: _Advice
    ) -> InputError:
        """Put together the error for texts in which too many lines cannot be used.

            too many lines are no documents
            where: raw/web/a.jsonl
            found: 120 of 1,000 lines rejected, 12.00% (invalid_json 120); line 7 …
            expected: one JSON object in each line, … (at most 1.00% rejected, …)
            remedy: repair the lines, or raise …; each is listed in /data/…/rejects.jsonl

        Args:
            losses: What was lost.
            where: Path of the file with the line that `found` describes, or of the folder.
            found: How many lines were rejected, and what one of them contains.
            advice: What the lines should be (`expected`), and what usually helps (`remedy`).
        """
        remedy = advice.remedy
        if not self._fails_on_reject:  # there is a limit, which can be raised
            remedy += f", or raise {self.names.rejected}"
        return InputError(
            "too many lines are no documents",
            where=where,
            found=found,
            expected=f"{advice.expected} ({self._rejects_limit_text()})",
            remedy=f"{remedy}; each is listed in {_lists_text(losses)}",
        )

    def _rejects_limit_text(self) -> str:
        """Return the limit for rejected lines, with the name of its setting."""
        if self._fails_on_reject:
            return self.names.on_reject
        max_share = self.options.max_rejected_fraction
        return f"at most {max_share:.2%} rejected, {self.names.rejected}"

    def _advice(self, reason: str, file_format: Format) -> _Advice:
        """Return what a user can do if many lines of raw text had to be rejected.

        Usually all of them have the same cause, which suggests the remedy:

            wrong_field_count             put texts with separators in quotes (CSV)
            invalid_utf8, in .txt, .csv   convert the files to UTF-8
            missing_key                   name the key that contains the text
            any other                     repair the lines

        Args:
            reason: The most frequent reason, such as `missing_key`.
            file_format: Format of the file with the first of these lines.
        """
        if reason == "wrong_field_count":
            return _Advice(
                expected="as many fields in each row as in the header of its file",
                remedy="put texts with separators, quotes or line ends in quotes",
            )
        # In JSON lines, a single damaged line is more likely than another encoding.
        if reason == "invalid_utf8" and file_format in ("txt", "csv"):
            return _Advice(
                expected="text in UTF-8",
                remedy="convert the files to UTF-8, as `iconv -t UTF-8` does",
            )
        if reason == "missing_key":
            setting = self.names.text_key  # such as --json-key
            return _Advice(
                expected=f"the key {self.text_key!r} ({setting}) in every line or row",
                remedy=f"name the key that holds the text ({setting})",
            )
        example = f'{{"{self.text_key}": "Some text."}}'
        return _Advice(
            expected=f"one JSON object in each line, as {example}, "
            "or a table with a text in each row",
            remedy="repair the lines",
        )

    def _how_to_leave_out(self, paths: Sequence[str]) -> str:
        """Return how the user leaves out some files, such as `corpora: {web: {exclude:
        ["a.jsonl"]}}`.

        Args:
            paths: Relative paths of the files. Characters that patterns give a meaning are escaped.
        """
        patterns = [escape(path) for path in paths]
        return self.names.leave_out.replace("{files}", json.dumps(patterns))


class _Advice(NamedTuple):
    """What an error says about rejected lines."""

    expected: str
    """What the lines should be."""
    remedy: str
    """What usually helps."""


def _most_common_reason(losses: Losses) -> str:
    """Return why most of the rejected lines were rejected, such as `missing_key`."""
    reasons = losses.facts.reasons
    line_reasons = [reason for reason in reasons if not is_fault(reason)]
    return max(line_reasons, key=lambda reason: reasons[reason])


def _rejected_share_text(losses: Losses) -> str:
    """Return how many lines were rejected, and why, as text for an error.

        3 of 1,000 lines rejected, 0.30% (invalid_json 2, missing_key 1)

    Args:
        losses: What was lost.
    """
    facts = losses.facts
    share = facts.rejected / max(facts.lines, 1)
    return (
        f"{facts.rejected:,} of {facts.lines:,} lines rejected, {share:.2%} "
        f"({counts_by_reason_text(facts.reasons)})"
    )


def _foreign_files(losses: Losses) -> list[str]:
    """Return the unreadable files that are of another format, such as a PDF named web.jsonl.

    Args:
        losses: What was lost, with the fault of each file that could not be read to its end.
    """
    return [fault.file for fault in losses.file_faults if fault.reason == WRONG_FORMAT]


def _kind_of_other_file(folder: Location, reject: Reject) -> str | None:
    """Return what the file of a rejected line is if it is not one of JSON lines, or None.

    Files of other kinds have lines, too, but the first of these says little about them.
    """
    is_of_lines = format_of(reject.file) == "lines"
    if reject.reason not in _REASONS_OF_OTHER_FILES or not is_of_lines:
        return None
    return describe_file(folder, reject.file)


def _lists_text(losses: Losses) -> str:
    """Name the first lists of rejected lines: "/data/…/rejects.jsonl and 7 more".

    Args:
        losses: What was lost. The text was tokenized in parts (shards), each of which has a list.
    """
    names = ", ".join(str(path) for path in islice(losses.lists(), _MAX_LISTS_NAMED))
    n_lists = sum(1 for shard in losses.shards if shard.facts["reasons"])
    n_more = n_lists - _MAX_LISTS_NAMED
    return f"{names} and {n_more:,} more" if n_more > 0 else names


def _line_text(reject: Reject) -> str:
    """Describe what a rejected line contains, for an error.

        line 7 is '{"text": "the c' (invalid_json: …)
        line 1 has the keys 'content', 'url'          if the key of the text is missing

    Args:
        reject: The line, with the reason and details of why it was rejected.
    """
    if reject.reason != "missing_key":
        return f"line {reject.line:,} is {reject.excerpt!r} ({reject.reason}: {reject.detail})"

    # Take the keys from the detail, which is such as "no 'text' among ['content', 'url']". It may
    # go on with where in the line these keys are.
    _before, _among, keys_and_place = reject.detail.partition(" among [")
    keys, _bracket, place = keys_and_place.partition("]")  # "'content', 'url'" and ""
    keys_text = f"the keys {keys}" if keys else "no keys"
    return f"line {reject.line:,} has {keys_text}{place}"
