"""What people are shown of the columns of a corpus: names, counts, and what may be a mistake.

For example: "3 values of 'summary' are longer than 4,096 bytes, and left out".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.columns.tables import ESCAPED
from nanoset_core.stages.stage import Summary
from nanoset_core.text.tables.values import MOST_BYTES
from nanoset_core.wording import format_count


def text_columns_summary(manifest: Manifest) -> Summary:
    """Return what `nanoset status` shows of columns whose values are from the raw text.

    If the raw text has no value for a column, its name in the settings is probably misspelt. This
    is a warning.

    Args:
        manifest: The record of the columns.
    """
    summary = columns_summary(manifest)
    empty_columns: list[str] = []
    for column in manifest.facts["columns"]:
        # Values that were left out as too long are reported in another warning.
        if column["kind"] == "null" and not column["left_out"]:
            empty_columns.append(repr(column["name"]))
    if not empty_columns:
        return summary

    warning = (
        f"no document has a value of {', '.join(empty_columns)}: correct `documents.columns`, "
        f"or list the columns of this corpus in `corpora.{manifest.name}.columns`"
    )
    return replace(summary, warnings=[*summary.warnings, warning])


def columns_summary(manifest: Manifest) -> Summary:
    """Return what `nanoset status` shows of columns: values of documents, such as their language.

        figures     {"documents": 1200, "bytes": 34000}
        details     {"names": "language, summary"}
        warnings    ["3 values of 'summary' are longer than 4,096 bytes, and left out"]

    Args:
        manifest: The record of the columns.
    """
    facts = manifest.facts
    names = [column["name"] for column in facts["columns"]]
    return Summary(
        figures={"documents": int(facts["documents"]), "bytes": int(facts["bytes"])},
        details={"names": ", ".join(names)},
        warnings=_warnings(facts),
    )


def _warnings(facts: Mapping[str, Any]) -> list[str]:
    r"""Return warnings on values of documents that could not be stored as they are.

    Values such as the language of a document are stored in columns. For example:

        3 values of 'summary' are longer than 4,096 bytes, and left out
        1 value of bytes that are not UTF-8, which are kept as \xNN

    Args:
        facts: What was counted when the columns were stored.
    """
    warnings = []
    for column in facts["columns"]:
        if column["left_out"]:
            warnings.append(
                f"{column['left_out']:,} values of {column['name']!r} are longer than "
                f"{MOST_BYTES:,} bytes, and left out"
            )
    n_escaped = facts.get(ESCAPED)
    if n_escaped:
        values = format_count(n_escaped, "value")
        warnings.append(f"{values} of bytes that are not UTF-8, which are kept as \\xNN")
    return warnings
