"""`nanoset status`: print which outputs are missing, stale or failing.

`nanoset build` prints the same tables at its end.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from nanoset_core.cli.echo import echo
from nanoset_core.cli.known_warnings import count_warnings, print_warnings
from nanoset_core.cli.options import CONFIG_OPTION, JSON_OPTION, flag
from nanoset_core.cli.progress import shown_spinner
from nanoset_core.cli.purge_warnings import print_interrupted_purges
from nanoset_core.cli.terminal import (
    WEBDATASET_WORDS,
    Row,
    StyledText,
    print_json,
    print_notices,
    print_rows,
)
from nanoset_core.errors import NanosetError, one_line_with_remedy
from nanoset_core.wording import format_age, format_bytes, format_count

if TYPE_CHECKING:
    from nanoset_core.project.project import Project
    from nanoset_core.project.status import StatusRow
    from nanoset_core.stages.stage import RowName

_STYLES = {
    "up to date": "green",
    "being built": "cyan",
    "stale": "yellow",
    "missing": "yellow",
    "failing": "bold red",
    "not read": "yellow",
}
"""State of an output → how it is printed; counts of states are printed in this order."""
_COLUMNS: dict[str, tuple[str, ...]] = {
    "corpus": ("files", "documents", "tokens", "rejected"),
    "nanoset": ("samples", "tokens"),
    "webdataset": ("shards", "sequences", "tokens"),
    "packed": ("documents", "tokens"),
    "export": ("documents", "tokens"),
}
"""Kind of output → its columns, in this order; other kinds have a column for each figure."""
_MAX_REJECT_FILES = 3
"""Files of rejected lines that are named for each corpus."""
_MAX_UNBUILT = 50
"""Largest number of outputs in a table that are not built yet. If there are more, all of them are
left out of the table, since their rows would be dashes; the reasons below the table count them.
"""
_MAX_REASONS = 50
"""Largest number of lines that say why outputs are not up to date."""
_CONSEQUENCE = "what they are made from is not up to date"
"""Stands for all reasons that follow from other outputs if there are too many reasons to print."""
Seconds = Mapping["RowName", float]
"""Row of an output → how long a build worked on it."""


@click.command("status", short_help="Show what is up to date, stale, missing or failing.")
@CONFIG_OPTION
@flag(
    "--warnings only_warnings",
    "Print only the warnings, also those that you have seen before. No effect with --json, which "
    "lists all warnings.",
)
@JSON_OPTION
def command(config: Path, only_warnings: bool, as_json: bool) -> None:
    """Show which outputs are up to date, stale (and why), missing or failing.

    `nanoset status` compares the size and time of each file with those of the last build. It reads
    no large file, and builds nothing. The exit code is 0 if everything is up to date, and 1
    otherwise.

    A warning is printed in full until you have seen it in a terminal, or by --warnings. After that,
    it is only counted.
    """
    from nanoset_core.outputs.root import Seen
    from nanoset_core.project.project import Project
    from nanoset_core.project.status import project_status
    from nanoset_core.stages.shards.options import tokenizer_notices

    # `Seen` remembers the current versions of outputs, so that each is looked up only once.
    project = replace(Project.open(config), seen=Seen())
    with shown_spinner("looking"):
        rows = list(project_status(project))
    notices = tokenizer_notices(project)
    if as_json:
        print_json([row.to_json() for row in rows])
        print_notices(notices)
    elif only_warnings:
        _print_all_warnings(project, rows, notices)
    else:
        print_tables(rows, project=project, notices=notices)
        print_old_versions(project)
    print_interrupted_purges(project, err=as_json)
    if not all(row.is_done for row in rows):
        sys.exit(1)


def _print_all_warnings(
    project: Project, rows: Sequence[StatusRow], notices: Iterable[str]
) -> None:
    """Print all warnings about a project in full, and remember that the user has seen them.

    From then on, other commands only say how many there are.

    Args:
        project: The project, which remembers the warnings.
        rows: All outputs of the project, some of which have warnings.
        notices: Notices on the whole project.
    """
    lines = dict.fromkeys(warning_lines(rows, notices))  # each once
    are_recorded = print_warnings(project, lines, show_known=True)
    if not lines:
        echo("no warning")
    elif are_recorded:
        echo(f"{count_warnings(lines)}; other commands count them from now on")
    else:
        folder = project.outputs.folder
        echo(f"{count_warnings(lines)}; this cannot be recorded, as {folder} is not writable")


def print_old_versions(project: Project, *, more_than: int = 0) -> None:
    """Print how many old versions of outputs nobody needs, and how large they are.

    For example: "14 old versions and index files, 1.2 GB, that nothing needs: `nanoset gc` lists
    them".

    While a purge is running, nothing is printed. It rebuilds all that contains the documents before
    it erases the old versions. Who has to erase a document would believe that these are left over.

    Args:
        project: The project whose outputs are searched.
        more_than: Print nothing unless they take more bytes than this.
    """
    from nanoset_core.project.gc.collect import old_versions
    from nanoset_core.project.purge.interrupted import is_a_purge_running

    try:
        count, size = old_versions(project)
    except NanosetError as error:  # an output is damaged, or `storage.keep_runs` is wrong
        echo(f"warning: old versions cannot be counted: {one_line_with_remedy(error)}")
        return
    if size <= more_than or is_a_purge_running(project.outputs):
        return
    files = "old version or index file" if count == 1 else "old versions and index files"
    echo(f"{count:,} {files}, {format_bytes(size)}, that nothing needs: `nanoset gc` lists them")


def print_tables(
    rows: Iterable[StatusRow],
    seconds: Seconds | None = None,
    *,
    project: Project | None = None,
    notices: Iterable[str] = (),
) -> None:
    """Print which outputs of a project are up to date and which are not, and why.

        corpus   state        files   documents   tokens   rejected     size     age
        web      up to date       4       1,000   50,000          0   100 kB  2 days
        code     stale            2         300   15,000          0    30 kB  2 days

        stale: corpus code: the file b.jsonl was added
        1 up to date, 1 stale

    Args:
        rows: The outputs. There is a table for each kind of output, such as corpora (texts).
        seconds: How long a build worked on each, shown in place of its age; None for the age.
        project: The project, whose known warnings are only counted; None to print all in full.
        notices: Notices on the whole project.
    """
    all_rows = list(rows)
    read_rows = [row for row in all_rows if row.state != "not read"]  # without unused folders
    rows_by_kind: dict[str, list[StatusRow]] = {kind: [] for kind in _COLUMNS}
    for row in read_rows:
        rows_by_kind.setdefault(row.kind, []).append(row)

    for kind, rows_of_kind in rows_by_kind.items():
        _print_kind(kind, rows_of_kind, seconds)
    _print_reasons(read_rows)
    _print_warnings(warning_lines(all_rows, notices), project)
    echo(state_counts(all_rows))


class _Reason(NamedTuple):
    """Why some outputs are not up to date."""

    state: str
    """The state of the outputs, such as `stale`."""
    text: str
    """The reason, such as "text_key: text → body"."""
    is_consequence: bool
    """Whether it only follows from another output that is not up to date."""

    @property
    def priority(self) -> tuple[bool, bool]:
        """A key for sorting: what fails comes first, and what follows from other outputs last."""
        return self.is_consequence, self.state != "failing"


def _print_reasons(rows: Sequence[StatusRow]) -> None:
    """Print why outputs are not up to date, with a line for each output and reason:

        stale: corpus web: 1 file added (c.jsonl)
        stale: nanoset pretrain train: web changed

    If this takes more than 50 lines, print each reason once, and only count what follows from them:

        stale: corpus c000, corpus c001, corpus c002 and 147 more: text_key: text → body
        stale: view c000 v000, view c001 v001, view c002 v002 and 97 more: what they are made from
        is not up to date
        `nanoset status --json` lists the reasons of each output

    Args:
        rows: The outputs.
    """
    from nanoset_core.wording import abbreviated

    n_lines = sum(len(row.why) for row in rows)
    if n_lines <= _MAX_REASONS:
        for row in rows:
            for text in row.why:
                echo(f"{row.state}: {row.label}: {text}")
        return

    labels_by_reason = _labels_by_reason(rows)
    reasons = sorted(labels_by_reason, key=lambda reason: reason.priority)
    for reason in reasons[:_MAX_REASONS]:
        labels = abbreviated(labels_by_reason[reason])
        echo(f"{reason.state}: {labels}: {reason.text}")
    n_more = len(reasons) - _MAX_REASONS
    if n_more > 0:
        echo(f"… and {format_count(n_more, 'more reason')}")
    echo("`nanoset status --json` lists the reasons of each output")


def _labels_by_reason(rows: Iterable[StatusRow]) -> dict[_Reason, list[str]]:
    """Return each reason why outputs are not up to date, with the outputs to which it applies.

    If a mixture is out of date because its corpora are, this only follows from the rows of the
    corpora. All such reasons are replaced by the same text:

        row                  reasons of the row             reasons in the result
        corpus web           text_key: text → body          the same
        corpus books         text_key: text → body          the same
        nanoset pretrain     web changed, books changed     what they are made from is not up to
                                                            date

    Args:
        rows: The outputs. `why` has the reasons of a row, and `consequences` those that only follow
            from other rows.

    Returns:
        Reason → labels of the rows, such as ["corpus web", "corpus books"].
    """
    labels_by_reason: dict[_Reason, list[str]] = {}
    for row in rows:
        for reason in _reasons_of(row):
            labels_by_reason.setdefault(reason, []).append(row.label)
    return labels_by_reason


def _reasons_of(row: StatusRow) -> list[_Reason]:
    """Return why an output is not up to date, each reason once.

    Args:
        row: The output. Its reasons "web changed" and "books changed", which only follow from other
            rows, become one: "what they are made from is not up to date".
    """
    reasons: list[_Reason] = []
    for text in row.why:
        if text in row.consequences:
            reasons.append(_Reason(row.state, _CONSEQUENCE, is_consequence=True))
        else:
            reasons.append(_Reason(row.state, text, is_consequence=False))
    return list(dict.fromkeys(reasons))


def _print_warnings(lines: Sequence[str], project: Project | None) -> None:
    """Print warnings. Those that the user has seen before are only counted.

    Args:
        lines: The warnings, one line each.
        project: The project, which remembers what the user has seen; None to print all in full.
    """
    if project is not None:
        print_warnings(project, lines)
        return
    for line in lines:
        echo(line, fg="yellow")


def state_counts(rows: Sequence[StatusRow]) -> str:
    """Return how many outputs are in each state, in words: "3 up to date, 1 stale".

    Args:
        rows: The outputs, each with its state. If there are none, the result is "nothing to build".
    """
    counts: Counter[str] = Counter(row.state for row in rows)
    texts = [f"{counts[state]:,} {state}" for state in _STYLES if counts[state]]
    return ", ".join(texts) or "nothing to build"


def _print_kind(kind: str, rows: list[StatusRow], seconds: Seconds | None) -> None:
    """Print the table of the outputs of one kind, such as corpora (collections of texts).

        corpus   state        files   documents   tokens   rejected     size     age
        web      up to date       4       1,000   50,000          0   100 kB  2 days

    Args:
        kind: The kind, which is also the heading of the first column.
        rows: The outputs of this kind.
        seconds: How long a build worked on each output; None to print the age of each.
    """
    # If more than 50 outputs are not built yet, leave them out: their rows would be empty.
    built = [row for row in rows if row.figures or row.made_at is not None]
    n_unbuilt = len(rows) - len(built)
    listed = built if n_unbuilt > _MAX_UNBUILT else rows

    columns = _figure_columns(kind, listed)  # the counts that have a column
    print_rows([_cells(kind, row, columns, seconds) for row in listed], text=["state"])
    if len(listed) < len(rows):
        echo(f"{kind}: {n_unbuilt:,} of {len(rows):,} not built yet, counted below")


def _figure_columns(kind: str, rows: Iterable[StatusRow]) -> list[str]:
    """Return the headings of a table of outputs: the counts and details that it shows.

        corpus           always "files", "documents", "tokens", "rejected"
        another kind     each count that one of the outputs in the table has

    Details, such as the name of a tokenizer, follow after these for all kinds.

    Args:
        kind: The kind of the outputs in the table.
        rows: These outputs, each with its counts and details by name.
    """
    # These dictionaries serve as sets that keep the order.
    figures: dict[str, None] = {}
    details: dict[str, None] = {}
    for row in rows:
        figures.update(dict.fromkeys(row.figures))
        details.update(dict.fromkeys(row.details))
    figures.pop("bytes", None)  # every table has a column for the size anyway

    figure_columns = _COLUMNS.get(kind, tuple(figures))
    return [*figure_columns, *details]


def _cells(kind: str, row: StatusRow, columns: Iterable[str], seconds: Seconds | None) -> Row:
    """Return the row of a table for one output, as column → cell.

    For example, for the corpus (collection of texts) `web`:

        corpus   state        files   documents   tokens   rejected     size     age
        web      up to date       4       1,200   50,000          -   100 kB  2 days

    Args:
        kind: The kind of the output: "corpus". It is also the heading of the first column.
        row: The output. `figures` are its counts, such as {"files": 4, "bytes": 100000}, and
            `details` other values, such as {"tokenizer": "gpt2"}.
        columns: Names of the figures and details to show. One that this output does not have is
            "-".
        seconds: How long a build worked on each output, which is then shown instead of the age.
    """
    cells: Row = {kind: _name_cell(row), "state": _state_cell(row)}
    headings = WEBDATASET_WORDS if kind == "webdataset" else {}  # "tars" instead of "shards"
    for column in columns:
        heading = headings.get(column, column)
        cells[heading] = row.figures.get(column, row.details.get(column, "-"))

    cells["size"] = _size_text(row)
    if seconds is None:
        cells["age"] = _age_text(row)
    else:
        cells["seconds"] = _seconds_text(row, seconds)
    return cells


def _name_cell(row: StatusRow) -> str:
    """Return the name of an output, with its part if it has one, such as "pretrain train".

    Args:
        row: The output. Its part may be the split `train`, for example.
    """
    return f"{row.name} {row.part}" if row.part else row.name


def _size_text(row: StatusRow) -> str:
    """Return the size of an output's files, such as "100 kB", or "-" if it is not known.

    Args:
        row: The output.
    """
    return format_bytes(row.figures["bytes"]) if "bytes" in row.figures else "-"


def _age_text(row: StatusRow) -> str:
    """Return how long ago an output was made, such as "2 days", or "-" if it is not built.

    Args:
        row: The output.
    """
    return "-" if row.made_at is None else format_age(time.time() - row.made_at)


def _seconds_text(row: StatusRow, seconds: Seconds) -> str:
    """Return how long a build worked on an output, such as "12.3", or "-" if it did not work on it.

    Args:
        row: The output.
        seconds: Row of an output → seconds, such as {("corpus", "web", None): 12.3}.
    """
    row_seconds = seconds.get(row.row_name, 0)
    return f"{row_seconds:.1f}" if row_seconds else "-"


def _state_cell(row: StatusRow) -> StyledText:
    """Return the state of an output in its colour, such as "stale, being built" in yellow.

    Args:
        row: The output. It may be stale while a build is making it anew.
    """
    text: str = row.state
    if row.busy and row.state != "being built":
        text += ", being built"
    return StyledText(text, _STYLES[row.state])


def warning_lines(rows: Iterable[StatusRow], notices: Iterable[str] = ()) -> list[str]:
    """Return all warnings and notices about a project, one line each.

        notice: corpus web: 3 files are empty                       on files of text
        warning: nanoset pretrain: …                                on outputs
        rejected lines of web: rejects.jsonl                        on lines that could not be read
        notice: …                                                   on the whole project

    Args:
        rows: The outputs. Each has its own warnings.
        notices: Notices on the whole project.
    """
    about_files: list[str] = []
    about_outputs: list[str] = []
    about_rejects: list[str] = []
    for row in rows:
        about_files += _file_warnings(row)
        about_outputs += [f"warning: {row.label}: {warning}" for warning in row.warnings]
        about_rejects += _reject_warnings(row)
    about_project = [f"notice: {notice}" for notice in notices]
    return about_files + about_outputs + about_rejects + about_project


def _file_warnings(row: StatusRow) -> list[str]:
    """Return the warnings on the files of a corpus (a collection of texts).

        not read: folder old: its name begins with a dot
        notice: corpus web: 3 files are empty

    Args:
        row: The corpus, or a folder that is not read.
    """
    lines = [f"notice: {row.label}: {notice.text}" for notice in row.notices]
    if row.state == "not read":
        lines = [f"{row.state}: {row.label}: {reason}" for reason in row.why] + lines
    return lines


def _reject_warnings(row: StatusRow) -> list[str]:
    """Return a warning that names the lists of a corpus's rejected lines, if there are any.

    For example: "rejected lines of web: rejects-1.jsonl, rejects-2.jsonl". It is in a list, which
    is empty if no line was rejected.

    Args:
        row: The corpus.
    """
    from nanoset_core.wording import abbreviated

    if not row.rejects:
        return []
    return [f"rejected lines of {row.name}: {abbreviated(row.rejects, _MAX_REJECT_FILES)}"]
