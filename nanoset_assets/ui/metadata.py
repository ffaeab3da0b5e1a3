"""Building blocks of metadata: results, paths, tables and Markdown.

What a person reads comes first, as text with separators; numbers that Dagster plots over time stay numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import dagster as dg

from nanoset_core.errors import ConfigError, NanosetError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.records.text import format_cell
from nanoset_core.untrusted import Multiline, visible

ROWS_SHOWN = 100
INLINE_CHARACTERS = 1000
"""Dagster shows Markdown of this length, and longer, only when asked to."""


def result(
    project: Project, manifest: Manifest, seconds: float, metadata: Mapping[str, Any]
) -> dg.MaterializeResult[Any]:
    """Return a materialisation whose data version is the output's digest; `metadata` may
    replace its size and seconds.
    """
    common = {"size_bytes": size_bytes(manifest), "seconds": round(seconds, 3)}
    last = {"path": place(project, manifest.url()), "digest": manifest.digest}
    shown = visible_metadata({**metadata, **common, **metadata, **last})
    return dg.MaterializeResult(metadata=shown, data_version=dg.DataVersion(manifest.digest))


def visible_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata whose texts and paths hold neither secrets nor characters that cannot be seen.

    Tables and Markdown are made so by `table` and `markdown`.
    """
    return {name: _visible_value(value) for name, value in metadata.items()}


def _visible_value(value: Any) -> Any:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dg.PathMetadataValue):
        return dg.MetadataValue.path(visible(value.path))
    return value


def failure(error: NanosetError, *, allow_retries: bool | None = None) -> dg.Failure:
    """Return the failure of a step, whose page says at the top what is wrong and what to do.

    Args:
        error: what is wrong.
        allow_retries: whether a retry policy may try the step again; default: unless the settings are wrong.
    """
    if allow_retries is None:
        allow_retries = not isinstance(error, ConfigError)
    details = {name: getattr(error, name) for name in ("where", "found", "expected", "remedy")}
    metadata = {name: visible(value) for name, value in details.items() if value is not None}
    return dg.Failure(str(error), metadata, allow_retries=allow_retries)


def place(project: Project, location: str) -> dg.PathMetadataValue:
    """Return a location relative to the project's folder, so that it holds when the project is moved.

    Locations elsewhere, or in a bucket, stay absolute.
    """
    folder, path = project.config.file.parent, Path(location)
    return dg.MetadataValue.path(path.relative_to(folder).as_posix() if path.is_relative_to(folder) else location)


def size_bytes(manifest: Manifest) -> int:
    """Return the bytes of all files of an output."""
    return sum(fact.size for fact in manifest.files.values())


def table(rows: Iterable[Mapping[str, Any]], total: int | None = None) -> dg.TableMetadataValue:
    """Return a table of the first ROWS_SHOWN rows, of plain values and the same keys; numbers as text.

    If rows are left out, a last row says how many.

    Args:
        rows: The rows, or the first of them.
        total: How many there are in all; default: as many as `rows` holds.
    """
    iterator = iter(rows)
    first = list(islice(iterator, ROWS_SHOWN))
    if total is None:
        total = len(first) + sum(1 for _ in iterator)
    shown = [{visible(key): _cell(value) for key, value in row.items()} for row in first]
    n_left_out = total - len(shown)
    if shown and n_left_out > 0:
        first_column = next(iter(shown[0]))
        shown.append(dict.fromkeys(shown[0], "") | {first_column: f"… and {n_left_out:,} more"})
    return dg.MetadataValue.table(list(map(dg.TableRecord, shown)), None if shown else dg.TableSchema([]))


def _cell(value: Any) -> Any:
    number = format_cell(value)
    if number is not None:
        return number
    return visible(value) if isinstance(value, str) else value


def markdown(*blocks: str) -> dg.MarkdownMetadataValue:
    """Return paragraphs, as many as are shown inline; a single one whatever its length."""
    text = blocks[0] if blocks else ""
    for block in blocks[1:]:
        if len(text) + 2 + len(block) >= INLINE_CHARACTERS:
            break
        text += f"\n\n{block}"
    return dg.MetadataValue.md(visible(Multiline(text)))


def folded(text: str) -> dg.MarkdownMetadataValue:
    """Return Markdown that Dagster shows in a separate window, since its long lines would widen the page."""
    return dg.MetadataValue.md(visible(Multiline(text.ljust(INLINE_CHARACTERS))))


def code(text: str) -> str:
    """Return text as a Markdown code span, without markup; runs of white space become one space."""
    line = visible(" ".join(text.split())) or " "
    longest = max((len(run) for run in re.findall("`+", line)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {line} {fence}" if "`" in (line[0], line[-1]) else f"{fence}{line}{fence}"


def per_second(count: int, seconds: float) -> float:
    """Return a rate, rounded for reading."""
    return round(count / max(seconds, 1e-3), 1)


def snapshot_before(project: Project, folder: Path) -> Callable[[str], bool]:
    """List a folder, which need not exist, before work begins; return a test whether a name was made since."""
    names = project.outputs.access.names(folder)
    return lambda name: project.rebuild or name not in names
