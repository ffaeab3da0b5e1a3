"""Building blocks of Dagster metadata: results, paths, tables and Markdown.

Dagster's UI shows *metadata*, pairs of a name and a value, with each materialisation of an asset.
Texts for people come first, with thousands separators. Numbers that Dagster plots over time stay
numbers. For example, `table([{"file": "a.jsonl", "lines": 1234}])` is a table with one row, whose
second cell is `1,234`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import dagster as dg

from nanoset_core.errors import ConfigError, NanosetError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.stage import Summary, size_bytes
from nanoset_core.untrusted import Multiline, escaped, markdown_text, visible
from nanoset_core.wording import format_cell, format_count

ROWS_SHOWN = 100
"""How many rows of a table are shown."""
INLINE_CHARACTERS = 1000
"""Dagster shows Markdown of this length or more only after a click, in a separate window."""


def result(
    project: Project,
    manifest: Manifest,
    summary: Summary,
    seconds: float,
    metadata: Mapping[str, Any],
) -> dg.MaterializeResult[Any]:
    """Return what Dagster records of an output that is finished: its version, and what to show.

    The digest of the output is its *data version*. By it, Dagster knows whether an output has
    changed, so that others have to be made again.

    Args:
        project: Its folder: the path of the output is shown relative to it.
        manifest: The record of the output: its digest, its files and their sizes.
        summary: What `nanoset status` shows of the output.
        seconds: How long it took to make it.
        metadata: What the page of this kind of output shows: heading → value.

    Returns:
        An object that a Dagster asset returns (or yields) to say that it has been made.
    """
    shown = {**metadata, "seconds": round(seconds, 3)}
    shown = output_metadata(project, manifest, summary, shown)
    data_version = dg.DataVersion(manifest.digest)
    return dg.MaterializeResult(metadata=visible_metadata(shown), data_version=data_version)


def output_metadata(
    project: Project, manifest: Manifest, summary: Summary, metadata: Mapping[str, Any]
) -> dict[str, Any]:
    """Add to the metadata of an output what Dagster's UI shows of every output.

    Each kind of output has a page in the UI, with values such as the number of documents. To these,
    the following are added:

        warnings      "**2 files are empty**"           (the same as in `nanoset status`)
        size_bytes    2470000                           (the same as in `nanoset status`)
        path          outputs/web/5f0c…
        digest        5f0c…     (a checksum of everything that the output is made from)

    Args:
        project: Its folder: the path of the output is shown relative to it.
        manifest: The record of the output: its digest, its files and their sizes.
        summary: What `nanoset status` shows of the output. Its size may be less than that of all
            files, since some can be links to files of other outputs.
        metadata: What the page shows: heading → value. If it has a size already, that one is shown:
            the tokens of a corpus, for example, are in many outputs, the shards.

    Returns:
        Heading → value. The page's `summary` comes first, if it has one, and then the warnings.
    """
    shown: dict[str, Any] = {}
    if "summary" in metadata:
        shown["summary"] = metadata["summary"]
    if summary.warnings:
        shown["warnings"] = _warnings_value(summary.warnings)
    shown.update(metadata)  # does not move the summary

    size = summary.figures.get("bytes", size_bytes(manifest))
    shown.setdefault("size_bytes", size)
    shown["path"] = place(project, manifest.url())
    shown["digest"] = manifest.digest
    return shown


def _warnings_value(warnings: Iterable[str]) -> dg.MarkdownMetadataValue:
    """Return all warnings about an output as Markdown. Dagster shows a long text after a click.

    Args:
        warnings: The warnings, each of which becomes a paragraph.
    """
    text = "\n\n".join(map(bold_text, warnings))
    return dg.MetadataValue.md(escaped(Multiline(text)))


def visible_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Escape invisible characters in what is shown in Dagster's UI.

    Names of files, for example, come from other people. Some characters are invisible, or change
    the order of the others, so that a name looks like another one.

    Args:
        metadata: Heading → value. Only texts and paths are escaped: `table` and `markdown` have
            escaped tables and Markdown already, and numbers need it not.

    Returns:
        The same headings with escaped values.
    """
    return {name: _escaped_value(value) for name, value in metadata.items()}


def _escaped_value(value: Any) -> Any:
    """Return a value for Dagster's UI without invisible characters.

    Args:
        value: A text, a path, or any other value, which is returned unchanged.
    """
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, dg.PathMetadataValue):
        return dg.MetadataValue.path(escaped(value.path))
    return value


def failure(error: NanosetError, *, allow_retries: bool | None = None) -> dg.Failure:
    """Turn an error into the exception by which Dagster fails a step, and shows what is wrong.

    An error of this project has a message and up to four details, each of which gets a heading on
    the page of the step. For example:

        where       nanoset.yaml: nanosets.pretrain
        found       sequence_lenght
        expected    sequence_length, …
        remedy      did you mean 'sequence_length'?

    Args:
        error: The error.
        allow_retries: Whether Dagster may try the step again, if it is configured to do so. The
            default is that it may, except after an error in the settings, which would only occur
            again.

    Returns:
        The exception, for the caller to raise.
    """
    if allow_retries is None:
        allow_retries = not isinstance(error, ConfigError)
    metadata: dict[str, Any] = {}
    for name in ("where", "found", "expected", "remedy"):
        value = getattr(error, name)
        if value is not None:
            metadata[name] = visible(value)
    return dg.Failure(str(error), metadata, allow_retries=allow_retries)


def place(project: Project, location: str) -> dg.PathMetadataValue:
    """Return a path for Dagster's UI, relative to the folder of the project if it is inside.

    A relative path remains right if the whole folder is moved. For a project in /data:

        /data/outputs/a       outputs/a
        /scratch/b            /scratch/b
        s3://bucket/a         s3://bucket/a

    Args:
        project: Its folder is that of the settings file, nanoset.yaml.
        location: A path or URL.
    """
    folder = project.config.file.parent
    path = Path(location)
    if path.is_relative_to(folder):
        location = path.relative_to(folder).as_posix()
    return dg.MetadataValue.path(location)


def table(rows: Iterable[Mapping[str, Any]], total: int | None = None) -> dg.TableMetadataValue:
    """Return a table for Dagster's UI, which shows at most ROWS_SHOWN (100) rows.

    If there are more, a last row says how many. For 130 rows:

        file             lines
        0.jsonl          1,234
        …                …            (98 more rows)
        99.jsonl         1,100
        … and 30 more

    Args:
        rows: The rows: heading of a column → text or number. All have the same columns. A caller
            that knows how many rows there are may leave out those after the first 100.
        total: How many rows there are; if it is None, `rows` are counted.
    """
    # There may be millions of rows: format only those that are shown.
    iterator = iter(rows)
    records = [_record(row) for row in islice(iterator, ROWS_SHOWN)]
    if not records:
        return _empty_table()
    if total is None:
        total = len(records) + sum(1 for _ in iterator)
    n_left_out = total - len(records)
    if n_left_out > 0:
        records.append(_more_rows_record(records[0], n_left_out))
    return dg.MetadataValue.table(records)


def _empty_table() -> dg.TableMetadataValue:
    """Return a table without rows. It needs a schema: Dagster cannot infer one from the rows."""
    return dg.MetadataValue.table([], dg.TableSchema([]))


def _more_rows_record(any_record: dg.TableRecord, n_rows: int) -> dg.TableRecord:
    """Return the last row of a table that is not shown completely: "… and 30 more".

    Args:
        any_record: A row of the table, which has its columns.
        n_rows: How many rows are not shown.
    """
    headings = list(any_record.data)
    cells = dict.fromkeys(headings, "")
    cells[headings[0]] = f"… and {n_rows:,} more"
    return dg.TableRecord(cells)


def _record(row: Mapping[str, Any]) -> dg.TableRecord:
    """Return a row of a table for Dagster's UI: `{"lines": 1234}` becomes a cell `1,234`.

    Args:
        row: Heading of a column → value.
    """
    cells = {escaped(heading): _cell(value) for heading, value in row.items()}
    return dg.TableRecord(cells)


def _cell(value: Any) -> Any:
    """Return a value as a table in Dagster's UI shows it: the number 1234 as the text `1,234`.

    Args:
        value: A number, text or any other value. In texts, invisible characters are escaped.
    """
    number = format_cell(value)
    if number is not None:
        return number
    if isinstance(value, str):
        return escaped(value)
    return value


def markdown(*blocks: str) -> dg.MarkdownMetadataValue:
    """Join paragraphs of Markdown, as many as Dagster shows at once.

    If a text has 1,000 characters or more (INLINE_CHARACTERS), Dagster only shows a button that
    opens it. So the last paragraphs are left out if the text would become that long.

    Args:
        blocks: The paragraphs, the most important ones first. The first is never left out.

    Returns:
        The paragraphs with an empty line between them. Invisible characters are escaped.
    """
    text = blocks[0] if blocks else ""
    for block in blocks[1:]:
        longer_text = f"{text}\n\n{block}"
        if len(longer_text) >= INLINE_CHARACTERS:
            break
        text = longer_text
    return dg.MetadataValue.md(escaped(Multiline(text)))  # Multiline: line breaks are wanted


def folded(text: str) -> dg.MarkdownMetadataValue:
    """Return Markdown that Dagster's UI shows in a separate window, after a click on a button.

    This is for texts with long lines, for which the page is too narrow. Dagster opens a window for
    each text of at least 1,000 characters (INLINE_CHARACTERS). So a shorter text is padded with
    spaces, which are not visible.

    Args:
        text: The Markdown.
    """
    return dg.MetadataValue.md(escaped(Multiline(text.ljust(INLINE_CHARACTERS))))


def code(text: str) -> str:
    """Return a text as a Markdown code span, which shows it as it is.

    Otherwise the `*` in a file's name, for example, would make the rest of a page italic. A code
    span starts and ends with more backticks than follow each other in the text:

        a*b*         `a*b*`
        a`b          ``a`b``
        `a           `` `a ``      (a space separates the backticks)

    Args:
        text: Any text. White space, also line breaks, becomes a single space. Invisible characters
            are escaped.
    """
    line = escaped(" ".join(text.split())) or " "
    longest_run = max((len(run) for run in re.findall("`+", line)), default=0)
    fence = "`" * (longest_run + 1)
    # Spaces separate a backtick at an end from the fence; Markdown does not show them.
    if "`" in (line[0], line[-1]):
        line = f" {line} "
    return f"{fence}{line}{fence}"


def bold_code(text: str) -> str:
    """Return text as a bold Markdown code span: `lost` becomes "**`lost`**".

    Args:
        text: Any text; see `code`.
    """
    return f"**{code(text)}**"


def bold_text(text: str) -> str:
    """Return text in bold: `lost` becomes "**lost**".

    Args:
        text: Any text. Markdown characters in it are escaped.
    """
    return f"**{markdown_text(text)}**"


def counts_text(facts: Mapping[str, Any]) -> str:
    """Say how many documents and tokens an output has, in bold: "**1 document, 20 tokens**".

    Args:
        facts: What was counted when the output was made, with the keys `documents` and `tokens`.
    """
    documents = format_count(facts["documents"], "document")
    tokens = format_count(facts["tokens"], "token")
    return f"**{documents}, {tokens}**"


def facts_of(manifest: Manifest, *names: str) -> dict[str, Any]:
    """Return some of the counts that were recorded when an output was made.

    Args:
        manifest: The record of the output: its files, and what was counted, such as `{"documents":
            12, "tokens": 3456, "bytes": 7000}`.
        names: Which of them to return, such as "documents" and "tokens".

    Returns:
        Such as `{"documents": 12, "tokens": 3456}`, which Dagster plots over time.

    Raises:
        KeyError: The output has no such count.
    """
    return {name: manifest.facts[name] for name in names}


def rows_without_none(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Prepare rows for a table in Dagster's UI: a missing value becomes an empty text.

    Dagster would not show None as an empty cell.

    Args:
        rows: The rows, each heading of a column → value, such as `{"id": None, "line": 3}`.

    Returns:
        New rows, such as `{"id": "", "line": 3}`.
    """
    shown: list[dict[str, Any]] = []
    for row in rows:
        shown.append({name: "" if value is None else value for name, value in row.items()})
    return shown


def per_second(count: int, seconds: float) -> float:
    """Return how much was made in a second, such as tokens, rounded to one decimal.

    For example, 1,000 tokens in 0.3 seconds are 3333.3 tokens a second.

    Args:
        count: How much was made.
        seconds: How long it took. Less than a thousandth of a second counts as one, so that nothing
            is divided by zero.
    """
    return round(count / max(seconds, 1e-3), 1)


def kept_names(project: Project, folder: Path) -> Collection[str]:
    """Return which files a run will not make, because they are in its folder already.

    After the run, the user can be told how many files it has made. For example, a.tar and b.tar are
    in the folder before the run, and a.tar, b.tar and c.tar after it: it has made c.tar.

    Args:
        project: Knows whether the user asked to make all files again.
        folder: A folder of outputs, which may not exist yet.

    Returns:
        The names of the files and folders; empty if the folder does not exist, or if all are made
        again.
    """
    if project.rebuild:
        return frozenset()
    return project.outputs.access.names(folder)
