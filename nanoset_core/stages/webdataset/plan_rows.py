"""Rows of the tables that show a shuffle plan: plain values, which terminal and UI render."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanoset_core.stages.webdataset.plan import ShufflePlan

Row = dict[str, Any]
"""Heading → number or text."""
_ALWAYS_SHOWN = ("source", "tokens", "contexts", "share")


@dataclass(frozen=True, slots=True)
class QualityMeasure:
    """One measure of how evenly an order is shuffled."""

    label: str
    field: str
    """Of `ShuffleQuality`."""
    by_chance: str
    """What an even shuffle gives; fields of `ShuffleQuality` are filled in."""


QUALITY_MEASURES = (
    QualityMeasure("neighbours from the same source", "same_source", "{same_source_expected:.3g}"),
    QualityMeasure(
        "neighbours that were neighbours before", "neighbours", "{neighbours_expected:.3g}"
    ),
    QualityMeasure(
        "rank correlation of the order before and after",
        "rank_correlation",
        "0 ± {rank_correlation_error:.3g}",
    ),
    QualityMeasure(
        "mix of sources in a tar: mean deviation, in standard errors", "mix_mean", "0.8"
    ),
    QualityMeasure(
        "mix of sources in a tar: largest deviation", "mix_max", "about {mix_max_expected:.3g}"
    ),
)


def source_rows(plan: ShufflePlan, most: int) -> list[Row]:
    """Return what a plan does with each of its first `most` sources.

    Contexts that are left out so that all shards are equally large are still counted. Columns that
    say nothing about any of these sources are left out.
    """
    rows: list[Row] = []
    all_contexts = max(plan.table.contexts, 1)
    for source in plan.table.sources[:most]:
        row = {
            "source": source.name,
            "tokens": source.tokens,
            "contexts": source.contexts,
            "share": f"{source.contexts / all_contexts:.2%}",
            "frequency": f"{source.frequency:.6g}",
            "dropped": source.tokens_dropped,
            "carried": source.tokens_carried,
            "padded": source.pad_tokens,
            "not_chosen": max(source.rows - source.contexts, 0),
        }
        rows.append(row)

    # A frequency of 1 and counts of 0 are what a reader expects.
    shown_headings = list(_ALWAYS_SHOWN)
    for heading in rows[0]:
        is_informative = any(row[heading] not in (0, "1") for row in rows)
        if is_informative and heading not in shown_headings:
            shown_headings.append(heading)
    shown_rows: list[Row] = []
    for row in rows:
        shown_rows.append({heading: row[heading] for heading in shown_headings})
    return shown_rows


def quality_rows(quality: Mapping[str, Any]) -> list[Row]:
    """Return the measures of an order next to what chance gives.

    Args:
        quality: The JSON values of `ShuffleQuality`.
    """
    rows: list[Row] = []
    for measure in QUALITY_MEASURES:
        row = {
            "measure": measure.label,
            "found": f"{quality[measure.field]:.3g}",
            "by chance": measure.by_chance.format(**quality),
        }
        rows.append(row)
    return rows
