"""Building blocks of metadata: results, paths, tables and Markdown.

What a person reads comes first, as text with separators; numbers that Dagster plots over time stay numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import dagster as dg

from nanoset_core.errors import NanosetError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.pipeline.project import Project

ROWS_SHOWN = 100
INLINE_CHARACTERS = 1000
"""Dagster shows Markdown of this length, and longer, only when asked to."""


def result(
    project: Project, manifest: Manifest, seconds: float, metadata: Mapping[str, Any]
) -> dg.MaterializeResult[Any]:
    """Return a materialisation whose data version is the output's digest; `metadata` wins, and its paths come last."""
    paths = {name: value for name, value in metadata.items() if isinstance(value, dg.PathMetadataValue)}
    common = {"size_bytes": size_bytes(manifest), "seconds": round(seconds, 3)}
    shown = {name: value for name, value in metadata.items() if name not in paths}
    shown |= {name: value for name, value in common.items() if name not in metadata}
    shown |= {**paths, "path": place(project, manifest.url()), "digest": manifest.digest}
    return dg.MaterializeResult(metadata=shown, data_version=dg.DataVersion(manifest.digest))


def failure(error: NanosetError) -> dg.Failure:
    """Return the failure of a run whose page says, at the top, what is wrong and what to do."""
    details = {name: getattr(error, name) for name in ("where", "found", "expected", "remedy")}
    return dg.Failure(str(error), {name: str(value) for name, value in details.items() if value is not None})


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
    """Return a table of plain values.

    Args:
        rows: as many as are to be shown, all with the same keys.
        total: how many there are; where it is more, a last row says how many are left out, and all columns are text.
    """
    shown = [dict(row) for row in rows]
    left_out = (total or 0) - len(shown)
    if shown and left_out > 0:
        shown = [{key: _text(value) for key, value in row.items()} for row in shown]
        first, *others = shown[0]
        shown.append({first: f"… and {left_out:,} more", **dict.fromkeys(others, "")})
    records = [dg.TableRecord({key: _cell(value) for key, value in row.items()}) for row in shown]
    kinds = {str: "string", int: "int", float: "float", bool: "bool"}
    first_row = records[0].data if records else {}
    columns = [dg.TableColumn(name, kinds.get(type(value), "string")) for name, value in first_row.items()]
    return dg.MetadataValue.table(records, schema=dg.TableSchema(columns))


def _cell(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) else str(value)


def _text(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def markdown(*blocks: str) -> dg.MarkdownMetadataValue:
    """Return paragraphs, as many as are shown inline; a single one whatever its length."""
    text = blocks[0] if blocks else ""
    for block in blocks[1:]:
        if len(text) + 2 + len(block) >= INLINE_CHARACTERS:
            break
        text += f"\n\n{block}"
    return dg.MetadataValue.md(text)


def folded(text: str) -> dg.MarkdownMetadataValue:
    """Return Markdown that Dagster shows in a separate window, since its long lines would widen the page."""
    return dg.MetadataValue.md(text.ljust(INLINE_CHARACTERS))


def code(text: str) -> str:
    """Return text as a Markdown code span, without markup; runs of white space become one space."""
    line = " ".join(text.split()) or " "
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
