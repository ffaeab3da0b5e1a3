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
from nanoset_core.records.text import format_cell, format_count
from nanoset_core.untrusted import Multiline, markdown_text, visible

ROWS_SHOWN = 100
"""How many rows of a table are shown."""
INLINE_CHARACTERS = 1000
"""Dagster shows Markdown of this length or more only after a click, in a separate window."""


def result(
    project: Project, manifest: Manifest, seconds: float, metadata: Mapping[str, Any]
) -> dg.MaterializeResult[Any]:
    """Return the materialisation of an output: what Dagster records and shows of a run.

    Args:
        project: Its folder: the path of the output is shown relative to it.
        manifest: The manifest of the output, whose digest becomes the data version.
        seconds: How long it took to make it.
        metadata: The metadata of the page, which may override `size_bytes` and `seconds`.

    Returns:
        The materialisation, with the metadata of the page and the path and digest of the output.
    """
    shown = dict(metadata)
    shown.setdefault("size_bytes", size_bytes(manifest))
    shown.setdefault("seconds", round(seconds, 3))
    shown["path"] = place(project, manifest.url())
    shown["digest"] = manifest.digest
    data_version = dg.DataVersion(manifest.digest)
    return dg.MaterializeResult(metadata=visible_metadata(shown), data_version=data_version)


def visible_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata without secrets, and with invisible characters of texts and paths escaped.

    Args:
        metadata: Name → value. Tables and Markdown are left unchanged: `table` and `markdown` have
            cleaned them already.

    Returns:
        The same names with cleaned values. A password in an address, for example, is hidden.
    """
    return {name: _visible_value(value) for name, value in metadata.items()}


def _visible_value(value: Any) -> Any:
    """Return a value of metadata without secrets and invisible characters."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dg.PathMetadataValue):
        return dg.MetadataValue.path(visible(value.path))
    return value


def failure(error: NanosetError, *, allow_retries: bool | None = None) -> dg.Failure:
    """Return the exception that fails a step and shows on its page what is wrong.

    Args:
        error: The error. Its message becomes the description, and its details become metadata.
        allow_retries: Whether Dagster may retry the step; default: not after a ConfigError, which a
            retry cannot change.

    Returns:
        The exception, to be raised by the caller.
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
    """Return a path relative to the project's folder, which stays true if the folder is moved.

    Args:
        project: Its folder is that of nanoset.yaml.
        location: A path or URL. If it is outside of the folder, it is returned unchanged.

    Returns:
        The path as metadata. In a project in /data, `/data/outputs/a` becomes `outputs/a`.
    """
    folder = project.config.file.parent
    path = Path(location)
    if path.is_relative_to(folder):
        location = path.relative_to(folder).as_posix()
    return dg.MetadataValue.path(location)


def size_bytes(manifest: Manifest) -> int:
    """Return the bytes of all files of an output.

    Args:
        manifest: The manifest of the output. Its files are not opened: it records their sizes.
    """
    return sum(fact.size for fact in manifest.files.values())


def table(rows: Iterable[Mapping[str, Any]], total: int | None = None) -> dg.TableMetadataValue:
    """Return a table of the first ROWS_SHOWN rows; if there are more, a last row says how many.

    Args:
        rows: The rows, or the first of them: column → plain value. All have the same columns.
        total: The number of all rows; default: the length of `rows`.

    Returns:
        The table as Dagster shows it. Of 130 rows, it has 100, and a row "… and 30 more".
    """
    # There may be millions of rows: format only those that are shown.
    iterator = iter(rows)
    records = [_record(row) for row in islice(iterator, ROWS_SHOWN)]
    if not records:
        # Dagster infers the columns from the records; an empty table needs an explicit schema.
        return dg.MetadataValue.table(records, dg.TableSchema([]))

    if total is None:
        total = len(records) + sum(1 for _ in iterator)
    n_left_out = total - len(records)
    if n_left_out > 0:
        headings = list(records[0].data)
        last_row = dict.fromkeys(headings, "")
        last_row[headings[0]] = f"… and {n_left_out:,} more"
        records.append(dg.TableRecord(last_row))
    return dg.MetadataValue.table(records)


def _record(row: Mapping[str, Any]) -> dg.TableRecord:
    """Return a row of a table as Dagster shows it, its numbers with thousands separators."""
    cells = {visible(heading): _cell(value) for heading, value in row.items()}
    return dg.TableRecord(cells)


def _cell(value: Any) -> Any:
    """Return a value as a cell of a table: the number 1234 becomes the text `1,234`."""
    number = format_cell(value)
    if number is not None:
        return number
    if isinstance(value, str):
        return visible(value)
    return value


def markdown(*blocks: str) -> dg.MarkdownMetadataValue:
    """Return Markdown of as many paragraphs as Dagster shows without a click.

    Args:
        blocks: The paragraphs, the most important first. The first is always included.

    Returns:
        The paragraphs with an empty line between them. Those that would make the text too long, and
        all after them, are left out.
    """
    # If the text were longer, Dagster would show a button in place of all of it.
    text = blocks[0] if blocks else ""
    for block in blocks[1:]:
        longer_text = f"{text}\n\n{block}"
        if len(longer_text) >= INLINE_CHARACTERS:
            break
        text = longer_text
    return dg.MetadataValue.md(visible(Multiline(text)))


def folded(text: str) -> dg.MarkdownMetadataValue:
    """Return Markdown that Dagster shows in a separate window, where long lines have room.

    Args:
        text: The Markdown. A short text is padded with spaces, because Dagster decides by the
            length of a text whether it opens a window.
    """
    return dg.MetadataValue.md(visible(Multiline(text.ljust(INLINE_CHARACTERS))))


def code(text: str) -> str:
    """Return text as a Markdown code span, which shows it literally: `a*b*` becomes "`a*b*`".

    The fence must have more backticks than occur in a row in the text: "a`b" becomes "``a`b``".

    Args:
        text: Any text. Runs of white space become one space, and invisible characters are escaped.
    """
    line = visible(" ".join(text.split())) or " "
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
    """Return the documents and tokens of an output, in bold: "**1 document, 20 tokens**".

    Args:
        facts: Counts of the output, with the keys `documents` and `tokens`.
    """
    documents = format_count(facts["documents"], "document")
    tokens = format_count(facts["tokens"], "token")
    return f"**{documents}, {tokens}**"


def facts_of(manifest: Manifest, *names: str) -> dict[str, Any]:
    """Return some of the counts that were recorded when an output was made, as metadata.

    Args:
        manifest: The manifest of the output, which stores the counts.
        names: Names of the counts, such as "documents", "tokens".

    Returns:
        Such as `{"documents": 12, "tokens": 3456}`.

    Raises:
        KeyError: The output has no such count.
    """
    return {name: manifest.facts[name] for name in names}


def rows_without_none(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with an empty text in place of each None, as which a table shows an empty cell.

    Args:
        rows: Rows of a table, each column → value.

    Returns:
        New rows: `[{"id": None, "line": 3}]` becomes `[{"id": "", "line": 3}]`.
    """
    shown: list[dict[str, Any]] = []
    for row in rows:
        shown.append({name: "" if value is None else value for name, value in row.items()})
    return shown


def per_second(count: int, seconds: float) -> float:
    """Return a rate per second, rounded to one decimal.

    Args:
        count: What was made, such as a number of tokens.
        seconds: How long it took. Less than a millisecond counts as one, to avoid a division by 0.
    """
    return round(count / max(seconds, 1e-3), 1)


def kept_names(project: Project, folder: Path) -> Collection[str]:
    """Return the names of the files and folders that are in a folder before a run.

    The run keeps them, and only makes others. So whatever else is in the folder afterwards was made
    by the run. But a run that rebuilds outputs makes all of them again, and keeps none.

    Args:
        project: The project, which knows whether outputs are rebuilt.
        folder: A folder of outputs, which may not exist yet.

    Returns:
        The names; empty if the folder does not exist, or if its content is rebuilt.
    """
    if project.rebuild:
        return frozenset()
    return project.outputs.access.names(folder)
