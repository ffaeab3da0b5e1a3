"""Manifests → what the UI shows of a materialisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from nanoset_core.manifest import Manifest


def result(manifest: Manifest, seconds: float, metadata: Mapping[str, Any]) -> dg.MaterializeResult:
    """A materialisation whose data version is the output's digest; `metadata` wins over what the manifest gives."""
    common = {
        "size_bytes": size_bytes(manifest),
        "path": dg.MetadataValue.path(str(manifest.folder)),
        "digest": manifest.digest,
        "seconds": round(seconds, 3),
    }
    return dg.MaterializeResult(metadata={**common, **metadata}, data_version=dg.DataVersion(manifest.digest))


def size_bytes(manifest: Manifest) -> int:
    """Bytes of all files of an output."""
    return sum(fact.size for fact in manifest.files.values())


def table(rows: Sequence[Mapping[str, Any]]) -> dg.TableMetadataValue:
    """A table of plain values; every row has the same keys."""
    records = [dg.TableRecord({key: _cell(value) for key, value in row.items()}) for row in rows]
    kinds = {str: "string", int: "int", float: "float", bool: "bool"}
    first = records[0].data if records else {}
    columns = [dg.TableColumn(name, kinds.get(type(value), "string")) for name, value in first.items()]
    return dg.MetadataValue.table(records, schema=dg.TableSchema(columns))


def _cell(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool) else str(value)


def histogram(counts: Sequence[int]) -> dg.MarkdownMetadataValue:
    """Documents by token length, in powers of two, as bars of text."""
    filled = [index for index, count in enumerate(counts) if count]
    if not filled:
        return dg.MetadataValue.md("no documents")
    top = max(counts)
    rows = ["| tokens | documents | |", "| ---: | ---: | :--- |"]
    for index in range(filled[0], filled[-1] + 1):
        span = "0" if index == 0 else f"{1 << (index - 1):,} – {(1 << index) - 1:,}"
        bar = "█" * -(-24 * counts[index] // top)
        rows.append(f"| {span} | {counts[index]:,} | {bar} |")
    return dg.MetadataValue.md("\n".join(rows))


def per_second(count: int, seconds: float) -> float:
    """A rate, rounded for reading."""
    return round(count / max(seconds, 1e-3), 1)
