"""Warnings of a project: printed in full until a person has seen them, and counted from then on.

The record of what was seen is a file for each user below the root. It holds hashes of the printed
lines, and no text, so that no id of a purged document is kept in it. Losing it is harmless:
warnings are printed in full once more.
"""

from __future__ import annotations

import getpass
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from nanoset_core.cli.echo import echo
from nanoset_core.errors import FormatError
from nanoset_core.records.json_records import JsonForm, Record, dump, load
from nanoset_core.storage.writing.uploads import write_small_file
from nanoset_core.wording import abbreviated, format_count

if TYPE_CHECKING:
    from nanoset_core.outputs.root import OutputRoot
    from nanoset_core.project.project import Project

FOLDER = "known_warnings"
"""Folder of the records, below the root."""
SHOW = "nanoset status --warnings"
"""The command that prints all warnings in full."""
_MAX_EQUAL = 3
"""Equal warnings about more outputs than this are printed as one line."""
_MAX_LINES = 50
"""Largest number of lines with warnings, if the caller sets no other limit."""
MAX_KNOWN = 10_000
"""Largest number of hashes in a record; the oldest ones are dropped first."""


def print_warnings(
    project: Project,
    lines: Iterable[str],
    *,
    show_known: bool = False,
    at_most: int | None = None,
    err: bool = False,
) -> bool:
    """Print the warnings that this user has not seen yet in full, and only count the others.

    Without this, the same twenty warnings would follow each command, and hide a new one. For
    example:

        new warning: corpus web: 3 files are empty
        19 known warnings: `nanoset status --warnings` prints them in full

    If several outputs have the same warning, it is printed once, with the first of them:

        warning: nanoset a, nanoset b, nanoset c and 97 more: it has no sample

    A warning counts as seen once it was printed in a terminal, not in a file or pipe, or once
    `nanoset status --warnings` has printed it. If its text changes, it is a new one.

    Args:
        project: The project that the warnings are about.
        lines: The warnings, one line each.
        show_known: Whether to print all warnings, also known ones, with a line for each output.
        at_most: How many lines to print, warnings before notices; default: 50 new ones.
        err: Whether to print to standard error.

    Returns:
        Whether all lines that were printed are known from now on.
    """
    # Each line once. (The sort keeps the order of lines of the same kind.)
    warnings = list(dict.fromkeys(lines))
    if at_most is not None:
        warnings.sort(key=_is_warning, reverse=True)
    if not warnings:
        return True
    known_hashes = read_known(project.outputs)
    new_warnings = _without_known(warnings, known_hashes)
    has_known = len(new_warnings) < len(warnings)

    if show_known:
        printed = warnings
        for line in warnings:
            is_new = line in new_warnings
            _print_line(line, stands_out=is_new and has_known, err=err)
    else:
        # Print the new warnings up to a limit, equal ones as one line, and count all others.
        max_lines = _MAX_LINES if at_most is None else at_most
        groups = _equal_warnings(new_warnings)[:max_lines]
        for group in groups:
            _print_line(_joined(group), stands_out=has_known, err=err)
        printed = list(chain.from_iterable(groups))
        known_warnings = set(warnings) - set(new_warnings)
        _print_counts(set(new_warnings) - set(printed), known_warnings, err=err)

    # Remember what the user has seen. In a pipe or log file, warnings may stay unread, and are
    # printed by each command: say how to end that. A caller with a limit leaves this line out.
    stream = sys.stderr if err else sys.stdout
    was_seen_by_user = show_known or stream.isatty()
    if was_seen_by_user:
        return _remember(project.outputs, known_hashes, printed)
    if printed and at_most is None:
        echo(f"after `{SHOW}`, commands only count these warnings", err=err)
    return False


def _is_warning(line: str) -> bool:
    """Return whether a line is a warning, and not a notice or the path of a list of lines."""
    return line.startswith("warning: ")


def count_warnings(lines: Iterable[str], adjective: str = "") -> str:
    """Return how many warnings and notices some lines are, such as "2 warnings and 1 notice".

    Lines that are no warnings count as notices, such as the paths of lists of rejected lines.

    Args:
        lines: The lines, at least one.
        adjective: A word in front of both nouns, such as "known".
    """
    counts = Counter("warning" if _is_warning(line) else "notice" for line in lines)
    words = []
    for noun in ("warning", "notice"):
        if counts[noun]:
            words.append(format_count(counts[noun], f"{adjective} {noun}".strip()))
    return " and ".join(words)


def _without_known(warnings: Iterable[str], known_hashes: Iterable[str]) -> list[str]:
    """Return the warnings that the user has not seen yet, in order.

    Args:
        warnings: The warnings, one line each.
        known_hashes: The warnings that the user has seen are recorded by hashes of their text.
    """
    hashes = frozenset(known_hashes)  # for fast look-ups
    return [line for line in warnings if _hash(line) not in hashes]


class _WarningParts(NamedTuple):
    """The parts of a warning: "warning: nanoset pretrain valid: it has no sample"."""

    kind: str
    """The first part, such as "warning" or "notice"."""
    output: str
    """The output that it is about, such as "nanoset pretrain valid"."""
    text: str
    """What it says; empty if the line does not name an output."""


def _parts(line: str) -> _WarningParts:
    """Return the parts of a warning."""
    kind, _, rest = line.partition(": ")
    output, _, text = rest.partition(": ")
    return _WarningParts(kind, output, text)


def _equal_warnings(warnings: Sequence[str]) -> list[list[str]]:
    """Divide warnings into groups, each of which will be printed as one line.

    If more than three warnings (_MAX_EQUAL) say the same of different outputs, they are a group.
    Every other warning is a group by itself. For example:

        warnings                                     groups
        "warning: corpus a: it is empty"             this, and the same for b, c and d
        "warning: corpus a: 3 files are damaged"     this line
        "warning: corpus b: it is empty"
        "warning: corpus c: it is empty"
        "warning: corpus d: it is empty"

    Args:
        warnings: The warnings, one line each, no line twice.

    Returns:
        The groups, in the order of their first warnings.
    """
    # Warnings of one kind and text differ only in the output that they are about.
    counts = Counter(_kind_and_text(line) for line in warnings)
    lines_by_group: dict[object, list[str]] = {}
    for line in warnings:
        kind_and_text = _kind_and_text(line)
        names_an_output = bool(_parts(line).text)  # otherwise, lines have only their kind in common
        is_repeated = names_an_output and counts[kind_and_text] > _MAX_EQUAL
        group = kind_and_text if is_repeated else line
        lines_by_group.setdefault(group, []).append(line)
    return list(lines_by_group.values())


def _kind_and_text(line: str) -> tuple[str, str]:
    """Return a warning without its output: ("warning", "it is empty")."""
    parts = _parts(line)
    return parts.kind, parts.text


def _joined(warnings: Sequence[str]) -> str:
    """Return equal warnings about different outputs as one line.

    For example, "warning: a: it is empty", "warning: b: it is empty" and two more become "warning:
    a, b, c and 1 more: it is empty".

    Args:
        warnings: At least one warning. If there is only one, it is returned unchanged.
    """
    if len(warnings) == 1:
        return warnings[0]
    first = _parts(warnings[0])
    outputs = [_parts(line).output for line in warnings]
    return f"{first.kind}: {abbreviated(outputs)}: {first.text}"


def _print_line(warning: str, *, stands_out: bool, err: bool) -> None:
    """Print a warning in full. A new one among known ones stands out: it is bold, and called new.

        warning: corpus web: 3 files are empty
        new warning: corpus code: 1 file is empty

    Args:
        warning: The warning.
        stands_out: Whether it is new, and there are known ones, too.
        err: Whether to print to standard error.
    """
    if stands_out:
        echo(f"new {warning}", fg="yellow", bold=True, err=err)
    else:
        echo(warning, fg="yellow", bold=False, err=err)


def _print_counts(
    new_warnings: Collection[str], known_warnings: Collection[str], *, err: bool
) -> None:
    """Print how many warnings were not printed in full, and which command prints them.

        2 more new warnings: `nanoset status --warnings` prints them
        19 known warnings and 1 known notice: `nanoset status --warnings` prints them in full

    Args:
        new_warnings: Lines that this user has not seen yet.
        known_warnings: Lines that this user has seen.
        err: Whether to print to standard error.
    """
    if new_warnings:
        count = count_warnings(new_warnings, "more new")
        echo(f"{count}: `{SHOW}` prints them", fg="yellow", err=err)
    if known_warnings:
        count = count_warnings(known_warnings, "known")
        echo(f"{count}: `{SHOW}` prints them in full", err=err)


@dataclass(frozen=True, slots=True)
class KnownWarnings(Record):
    """The warnings that a user has seen."""

    json_form: ClassVar[JsonForm] = JsonForm(
        "this is not a record of known warnings", ends_with_newline=True
    )
    ignores_unknown_keys: ClassVar[bool] = True

    warnings: tuple[str, ...]
    """Hashes of the warnings, the oldest first."""


def read_known(outputs: OutputRoot) -> list[str]:
    """Return which warnings this user has seen, as hashes of their text, oldest first.

    Args:
        outputs: The project's folder of outputs, which has a record for each user.

    Returns:
        Hashes as hexadecimal digits; none if the record is missing or damaged. All warnings are
        printed once more in that case.
    """
    path = _record_path(outputs)
    try:
        record = load(KnownWarnings, outputs.access.read_current(path), path)
    except (OSError, FormatError):
        return []
    return list(record.warnings)


def _remember(outputs: OutputRoot, known_hashes: Sequence[str], printed: Iterable[str]) -> bool:
    """Record that this user has seen some warnings, so that they are not printed in full again.

    Args:
        outputs: The project's folder of outputs, which has a record for each user.
        known_hashes: Hashes of the warnings that are recorded already, oldest first.
        printed: The warnings to add.

    Returns:
        Whether all of them are recorded now. The root of another team may be read-only: its
        warnings are printed in full every time.
    """
    # A dictionary serves as a set that keeps the order.
    hashes = dict.fromkeys([*known_hashes, *map(_hash, printed)])
    if len(hashes) == len(known_hashes):
        return True  # all of them are recorded
    record = KnownWarnings(tuple(hashes)[-MAX_KNOWN:])
    try:
        path = _record_path(outputs)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_small_file(outputs.access, path, dump(record))
    except OSError:
        return False
    return True


def _record_path(outputs: OutputRoot) -> Path:
    """Return the path of the file that says which warnings this user has seen.

    Each user of a shared project has such a file, since each has to see the warnings: for example,
    known_warnings/ada.json in the folder of outputs.

    Args:
        outputs: The project's folder of outputs.

    Returns:
        The path. The file may not exist yet.
    """
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in some containers
        user = "unknown"
    name = re.sub(r"[^\w.-]", "_", user, flags=re.ASCII).lstrip(".")
    return outputs.folder / FOLDER / f"{name or 'unknown'}.json"


def _hash(line: str) -> str:
    """Return the hash by which a warning is recorded: 32 hexadecimal digits.

    The record has no text, since a warning may name a document that is erased later.

    Args:
        line: The warning.
    """
    return sha256(line.encode("utf-8", "surrogatepass")).hexdigest()[:32]
