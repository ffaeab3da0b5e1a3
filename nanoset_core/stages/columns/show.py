"""What people are shown of the columns of a corpus: names, counts, and values that were changed."""

from __future__ import annotations

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.records.text import format_count
from nanoset_core.stages.columns.tables import ESCAPED
from nanoset_core.stages.stage import Summary
from nanoset_core.text.values import MOST_BYTES


def columns_summary(manifest: Manifest) -> Summary:
    """Return the names and counts of columns, and warnings on values that were changed.

    Args:
        manifest: Manifest of columns or attributes: values of each document of a corpus.
    """
    columns = manifest.facts["columns"]
    warnings = []
    for column in columns:
        if column["left_out"]:
            warnings.append(
                f"{column['left_out']:,} values of {column['name']!r} are longer than "
                f"{MOST_BYTES:,} bytes, and left out"
            )
    n_escaped = manifest.facts.get(ESCAPED)
    if n_escaped:
        values = format_count(n_escaped, "value")
        warnings.append(f"{values} of bytes that are not UTF-8, which are kept as \\xNN")

    names = ", ".join(column["name"] for column in columns)
    figures = {name: int(manifest.facts[name]) for name in ("documents", "bytes")}
    return Summary(figures, {"names": names}, warnings)
