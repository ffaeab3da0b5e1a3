"""Building blocks of Dagster metadata: results, paths, tables and Markdown.

Texts for people come first, with thousands separators. Numbers that Dagster plots over time stay
numbers.
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
        project: The project.
        manifest: The manifest of the output, whose digest becomes the data version.
        seconds: How long it took to make it.
        metadata: The metadata of the page, which may override `size_bytes` and `seconds`.
    """
    shown = dict(metadata)
    shown.setdefault("size_bytes", size_bytes(manifest))
    shown.setdefault("seconds", round(seconds, 3))
    shown["path"] = place(project, manifest.url())
    shown["digest"] = manifest.digest
    return dg.MaterializeResult(
        metadata=visible_metadata(shown), data_version=dg.DataVersion(manifest.digest)
    )


def visible_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata with secrets and invisible characters removed from texts and paths.

    Tables and Markdown are left unchanged: `table` and `markdown` have cleaned them already.
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
        error: The error.
        allow_retries: Whether Dagster may retry the step; default: not after a ConfigError, which a
            retry cannot change.
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
        project: The project.
        location: A path or URL. If it is outside of the folder, it is returned unchanged.
    """
    folder = project.config.file.parent
    path = Path(location)
    if path.is_relative_to(folder):
        location = path.relative_to(folder).as_posix()
    return dg.MetadataValue.path(location)


def size_bytes(manifest: Manifest) -> int:
    """Return the bytes of all files of an output."""
    return sum(fact.size for fact in manifest.files.values())


def table(rows: Iterable[Mapping[str, Any]], total: int | None = None) -> dg.TableMetadataValue:
    """Return a table of the first ROWS_SHOWN rows; if there are more, a last row says how many.

    Args:
        rows: The rows, or the first of them: column → plain value. All have the same columns.
        total: The number of all rows; default: the length of `rows`.
    """
    # There may be millions of rows: format only those that are shown.
    iterator = iter(rows)
    shown_rows = list(islice(iterator, ROWS_SHOWN))
    if total is None:
        total = len(shown_rows) + sum(1 for _ in iterator)

    records: list[dg.TableRecord] = []
    for row in shown_rows:
        cells = {visible(heading): _cell(value) for heading, value in row.items()}
        records.append(dg.TableRecord(cells))

    n_left_out = total - len(records)
    if records and n_left_out > 0:
        headings = list(records[0].data)
        last_row = dict.fromkeys(headings, "")
        last_row[headings[0]] = f"… and {n_left_out:,} more"
        records.append(dg.TableRecord(last_row))
    # Dagster infers the columns from the records; an empty table needs an explicit schema.
    schema = None if records else dg.TableSchema([])
    return dg.MetadataValue.table(records, schema)


def _cell(value: Any) -> Any:
    """Return a value as a cell of a table; numbers become text with separators."""
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

    Dagster decides this by the length of the text, so a short text is padded with spaces.
    """
    return dg.MetadataValue.md(visible(Multiline(text.ljust(INLINE_CHARACTERS))))


def code(text: str) -> str:
    """Return text as a Markdown code span; runs of white space become one space.

    The fence must have more backticks than occur in a row in the text: "a`b" becomes "``a`b``".
    """
    line = visible(" ".join(text.split())) or " "
    longest_run = max((len(run) for run in re.findall("`+", line)), default=0)
    fence = "`" * (longest_run + 1)
    # Spaces separate a backtick at an end from the fence; Markdown does not show them.
    if "`" in (line[0], line[-1]):
        line = f" {line} "
    return f"{fence}{line}{fence}"


def bold_code(text: str) -> str:
    """Return text as a bold Markdown code span."""
    return f"**{code(text)}**"


def bold_text(text: str) -> str:
    """Return text in bold; Markdown characters in it are escaped."""
    return f"**{markdown_text(text)}**"


def counts_text(facts: Mapping[str, Any]) -> str:
    """Return the documents and tokens of an output, in bold."""
    documents = format_count(facts["documents"], "document")
    tokens = format_count(facts["tokens"], "token")
    return f"**{documents}, {tokens}**"


def facts_of(manifest: Manifest, *names: str) -> dict[str, Any]:
    """Return some facts of an output as metadata with the same names."""
    return {name: manifest.facts[name] for name in names}


def rows_without_none(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with an empty text in place of each None."""
    shown: list[dict[str, Any]] = []
    for row in rows:
        shown.append({name: "" if value is None else value for name, value in row.items()})
    return shown


def per_second(count: int, seconds: float) -> float:
    """Return a rate per second, rounded to one decimal; less than a millisecond counts as one."""
    return round(count / max(seconds, 1e-3), 1)


def kept_names(project: Project, folder: Path) -> Collection[str]:
    """Return the names of the files and folders in a folder that a run will not make again.

    Call it before the run: whatever else is in the folder afterwards was made by the run.

    Args:
        project: The project. If it is opened to rebuild outputs, nothing is kept.
        folder: The folder, which may not exist yet.
    """
    if project.rebuild:
        return frozenset()
    return project.outputs.access.names(folder)
