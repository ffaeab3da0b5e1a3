"""What commands print: tables of rows, some of which the UI shows too, JSON, and notices."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from nanoset_core.cli.echo import echo
from nanoset_core.records.text import format_cell, format_count
from nanoset_core.untrusted import visible, visible_json, visible_value

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.console import Console

    from nanoset_core.lineage.documents import DocumentOrigin
    from nanoset_core.stages.webdataset.plan import ShufflePlan

Row = dict[str, Any]
"""Heading → integer, text, or text and its style."""
FILE_COLUMNS = 120
"""Width of tables that go to a file or a pipe, in characters."""
_BAR = 30  # characters of all of train
_LEAST_TEXT = 12
"""Width below which a column of text is hard to read."""
_CHUNK, _HALF = 1 << 20, 16
"""Lengths that are looked at together, and bits of the lower half of one."""
WEBDATASET_WORDS = {"shards": "tars", "sequences": "contexts"}
"""Names of facts that mean something else of corpora → what to call them of webdatasets."""
_MEASURES = (
    ("neighbours from the same source", "same_source", "{same_source_expected:.3g}"),
    ("neighbours that were neighbours before", "neighbours", "{neighbours_expected:.3g}"),
    ("rank correlation of the order before and after", "rank_correlation", "0 ± {rank_correlation_error:.3g}"),
    ("mix of sources in a tar: mean deviation, in standard errors", "mix_mean", "0.8"),
    ("mix of sources in a tar: largest deviation", "mix_max", "about {mix_max_expected:.3g}"),
)


def wide_console() -> Console:
    """Return a console for tables: as wide as the terminal, and wide where there is none."""
    from rich.console import Console

    console = Console(markup=False, highlight=False)  # names of others may hold what looks like markup
    if not console.is_terminal:
        console.width = max(console.width, FILE_COLUMNS)
    return console


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    *,
    text: Collection[str] = (),
    title: str | None = None,
    total: Mapping[str, Any] | None = None,
    console: Console | None = None,
) -> None:
    """Print rows as a table, with every column and no number cut in two: on a narrow terminal without its frame.

    Args:
        rows: heading → integer, text, or (text, style of rich's); all with the keys of the first. None print nothing.
        text: headings of columns of text that may be folded, besides the first; others stay on one line.
        title: above the table.
        total: a last row, under a line.
        console: where to; default: a wide one.
    """
    from rich.cells import cell_len
    from rich.table import Table

    if not rows:
        return
    console, table = console or wide_console(), Table(title=title, title_justify="left")
    lines = [[_cell(row.get(heading, "")) for heading in rows[0]] for row in (*rows, *([total] if total else []))]
    for heading, *column in zip(map(visible, rows[0]), *lines, strict=True):
        is_text = heading in text or not table.columns
        widest = max(map(cell_len, [heading, *map(str, column)]))
        least = min(widest, _LEAST_TEXT) if is_text else widest
        justify: Any = "left" if is_text else "right"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=not is_text, min_width=least)
    for line in lines:
        if line is lines[-1] and total:
            table.add_section()
        table.add_row(*line)
    least, width = sum(column.min_width or 0 for column in table.columns), console.width
    if least + 3 * len(table.columns) + 1 > width:
        table.box, table.pad_edge = None, False
    console.width = max(width, least + 2 * len(table.columns))
    console.print(table, crop=False)
    console.width = width


def _cell(value: Any) -> Any:
    from rich.text import Text

    if isinstance(value, tuple):
        text, style = value
        return Text(visible(text), style)
    number = format_cell(value)
    return visible(value) if number is None else number


def print_json(value: object, *, ensure_ascii: bool = True) -> None:
    """Print plain values as JSON; all of it in ASCII where the output is not in UTF-8."""
    other = (sys.stdout.encoding or "").lower() not in ("utf-8", "utf8")
    text = json.dumps(visible_value(value), indent=1, ensure_ascii=ensure_ascii or other)
    click.echo(visible_json(text))


def print_notices(notices: Iterable[str]) -> None:
    """Print notices on stderr, such as of input files that are not read."""
    for notice in notices:
        echo(f"notice: {notice}", fg="yellow", err=True)


def print_made(text: str, *, is_new: bool, lost: str = "", err: bool = False) -> None:
    """Print what was made, and in bold what was lost on the way; or that it was there already."""
    echo(text, err=err, nl=False)
    if lost:
        echo("; ", err=err, nl=False)
        echo(lost, err=err, nl=False, fg="yellow", bold=True)
    echo("" if is_new else " (there already)", err=err)


def rejected_text(rejected: int, faults: int) -> str:
    """Return counts of rejected lines and of files that could not be read to their end."""
    lines = format_count(rejected - faults, "line")
    return f"{lines} and {format_count(faults, 'file')} rejected" if faults else f"{lines} rejected"


def spread(lengths: NDArray[Any]) -> str:
    """Return the least, largest and median of lengths in tokens, none negative, shape (sequences,).

    Memory: a chunk, whatever their number.
    """
    import numpy as np

    parts = [lengths[begin : begin + _CHUNK] for begin in range(0, len(lengths), _CHUNK)]
    low, halves = (1 << _HALF) - 1, (int(lengths.max()) >> _HALF) + 1
    upper = sum((np.bincount(part >> _HALF, minlength=halves) for part in parts), np.zeros(halves, np.int64))
    ends = np.cumsum(upper)

    def ranked(rank: int) -> int:  # np.median would copy all of them
        half = int(np.searchsorted(ends, rank, side="right"))
        inside = (part[part >> _HALF == half] & low for part in parts)
        lower = sum((np.bincount(values, minlength=low + 1) for values in inside), np.zeros(low + 1, np.int64))
        within = rank - int(ends[half] - upper[half])
        return (half << _HALF) + int(np.searchsorted(np.cumsum(lower), within, side="right"))

    middle = {rank: ranked(rank) for rank in {(len(lengths) - 1) // 2, len(lengths) // 2}}
    median = sum(middle.values()) / len(middle)
    return f"{lengths.min():,} to {lengths.max():,} tokens, median {median:,.0f}"


def member_rows(members: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return what a split takes of each dataset, and the tokens of an epoch, without columns that say nothing.

    Args:
        members: `corpus` and the JSON values of `MemberCoverage`; those of earlier versions have no `tokens_taken`.
    """
    rows = []
    for member in members:
        unused_tokens = member["tokens_unseen"]
        rows.append(
            {
                "corpus": member["corpus"],
                "weight": _percent(member["weight"]),
                "share": _percent(member["share"]),
                "samples": f"{member['samples_given']:,}",
                "read before": f"{member.get('before', 0):,}",
                "unused samples": f"{member['surplus']:,}",
                "tokens": f"{member['tokens_taken']:,}" if "tokens_taken" in member else "",
                "epochs": f"{member['epochs']:.2f}",
                "limit": "none" if member["max_epochs"] is None else f"{member['max_epochs']:g}",
                "tokens per epoch": f"{member['tokens']:,}",
                "unused tokens": "by chance" if unused_tokens is None else f"{unused_tokens:,}",
            }
        )
    is_shown = {
        "share": any(row["weight"] != row["share"] for row in rows),
        "read before": any(row["read before"] != "0" for row in rows),
        "unused samples": any(row["unused samples"] != "0" for row in rows),
        "tokens": any(row["tokens"] for row in rows),
        "limit": any(row["limit"] != "none" for row in rows),
    }
    return [{name: value for name, value in row.items() if is_shown.get(name, True)} for row in rows]


def corpus_rows(corpora: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return what a split reads of each corpus, through all views and packs of it, without columns that say nothing.

    Args:
        corpora: the JSON values of `CorpusCoverage`.
    """
    rows = []
    for corpus in corpora:
        rows.append(
            {
                "corpus": corpus["corpus"],
                "read through": ", ".join(corpus["members"]),
                "tokens": f"{corpus['tokens']:,}",
                "unique tokens": f"{corpus['unique_tokens']:,}",
                "repeated tokens": f"{corpus['repeated_tokens']:,}",
                "padding": f"{corpus['padding']:,}",
                "epochs": f"{corpus['epochs']:.2f}",
                "most epochs": f"{corpus['most_epochs']:.2f}",
            }
        )
    is_shown = {
        "read through": any(row["read through"] != row["corpus"] for row in rows),
        "padding": any(row["padding"] != "0" for row in rows),
        "most epochs": any(row["most epochs"] != row["epochs"] for row in rows),
    }
    return [{name: value for name, value in row.items() if is_shown.get(name, True)} for row in rows]


def corpus_totals(corpora: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the tokens of all corpora of a split together, by the JSON values of `CorpusCoverage`."""
    names = ("tokens", "unique_tokens", "repeated_tokens", "padding")
    return {name: sum(corpus[name] for corpus in corpora) for name in names}


def corpus_total_row(corpora: Sequence[Mapping[str, Any]]) -> Row:
    """Return a last row for `corpus_rows`: all corpora together."""
    totals = corpus_totals(corpora)
    available = sum(corpus["tokens_available"] for corpus in corpora)
    read = sum(corpus["epochs"] * corpus["tokens_available"] for corpus in corpora)
    row: Row = {"corpus": "all", "epochs": f"{read / available:.2f}" if available else "0.00"}
    return row | {name.replace("_", " "): count for name, count in totals.items()}


def mixture_rows(parts: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return what each part of a mixture gets, with a bar as long as its share of train.

    Args:
        parts: the JSON values of `MixRow`.
    """
    return [
        {
            "part": f"{'· ' * part['depth']}{part['name']}",
            "requested": "" if part["asked"] is None else _percent(part["asked"]),
            "share": _percent(part["given"]),
            "tokens": "" if part["tokens"] is None else f"{part['tokens']:,}",
            "epochs": "" if part["epochs"] is None else f"{part['epochs']:.2f}",
            "decided by": part["decided_by"],
            "of train": "█" * round(_BAR * part["given"]) or "▏",
        }
        for part in parts
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.4g}%"


def source_rows(plan: ShufflePlan, most: int) -> list[Row]:
    """Return what a plan does with each source (before contexts are left out for `even` shards), without columns that
    say nothing of any of the first `most` sources."""
    rows: list[Row] = [
        {
            "source": source.name,
            "tokens": source.tokens,
            "contexts": source.contexts,
            "share": f"{source.contexts / max(plan.table.contexts, 1):.2%}",
            "frequency": f"{source.frequency:.6g}",
            "dropped": source.tokens_dropped,
            "carried": source.tokens_carried,
            "padded": source.pad_tokens,
            "not_chosen": max(source.rows - source.contexts, 0),
        }
        for source in plan.table.sources[:most]
    ]
    always = ("source", "tokens", "contexts", "share")
    said = [key for key in rows[0] if key in always or any(row[key] not in (0, "1") for row in rows)]
    return [{key: row[key] for key in said} for row in rows]


def quality_rows(quality: Mapping[str, Any]) -> list[Row]:
    """Return the measures of an order beside what chance gives, from the JSON values of `ShuffleQuality`."""
    return [
        {"measure": label, "found": f"{quality[key]:.3g}", "by chance": expected.format(**quality)}
        for label, key, expected in _MEASURES
    ]


def place_of(origin: DocumentOrigin) -> str:
    """Return where a document came from, as `corpus/file:line`."""
    return f"{origin.corpus}/{origin.file}:{origin.line}"
