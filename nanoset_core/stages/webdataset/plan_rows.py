"""Prepare the tables that show a shuffle plan; the terminal and the UI render them.

There are two: the sources of the plan with their tokens and contexts, and the measures of how
evenly it is shuffled. A row of a table is a mapping, `{"source": "web", "tokens": 1000, …}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nanoset_core.stages.webdataset.contexts import SourceContexts
    from nanoset_core.stages.webdataset.plan import ShufflePlan

Row = dict[str, Any]
"""A row of a table: heading → number or text."""
_ALWAYS_SHOWN = ("source", "tokens", "contexts", "share")
"""Headings of the columns that every table of sources has."""


@dataclass(frozen=True, slots=True)
class QualityMeasure:
    """One measure of how evenly an order is shuffled."""

    label: str
    field: str
    """Key of the measure in the result of `shuffle_quality`."""
    by_chance: str
    """Value that an even shuffle gives: a format string for the result of `shuffle_quality`."""


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
    """Return a table for the terminal: what a shuffled dataset takes from each source of text.

        source    tokens    contexts    share      frequency
        web       10000     10          50.00%     1
        code      5000      10          50.00%     2

    A context is a training sample. Columns in which all sources have the usual value are left out,
    such as "padded" if there is no padding. If all tars must have the same number of samples, a few
    samples are in no tar; they are counted here, too.

    Args:
        plan: Has the counts of each source.
        most: Greatest number of rows; the first sources are shown.

    Returns:
        A row for each source: heading of a column → text or number.
    """
    all_contexts = max(plan.table.contexts, 1)
    rows = [_source_row(source, all_contexts) for source in plan.table.sources[:most]]
    shown_headings = _shown_headings(rows)
    shown_rows: list[Row] = []
    for row in rows:
        shown_rows.append({heading: row[heading] for heading in shown_headings})
    return shown_rows


def _source_row(source: SourceContexts, all_contexts: int) -> Row:
    """Return what a shuffled dataset takes from one source of text, as the row of a table.

    For example {"source": "web", "tokens": 10000, "contexts": 10, "share": "50.00%", ...}, where
    contexts are training samples.

    Args:
        source: Counts of the source.
        all_contexts: Number of samples of all sources.
    """
    # The text is cut into rows, and a sample is one occurrence of a row. If only a part of the text
    # is read (a frequency below 1), some rows do not occur.
    n_rows_not_read = max(source.rows - source.contexts, 0)
    return {
        "source": source.name,
        "tokens": source.tokens,
        "contexts": source.contexts,
        "share": f"{source.contexts / all_contexts:.2%}",
        "frequency": f"{source.frequency:.6g}",
        "dropped": source.tokens_dropped,  # tokens at the end that fill no sample
        "carried": source.tokens_carried,  # tokens in samples that begin in an earlier source
        "padded": source.pad_tokens,
        "not_chosen": n_rows_not_read,
    }


def _shown_headings(rows: Sequence[Row]) -> list[str]:
    """Return which columns of a table are shown: all that tell something, in order.

    The table has a row for each source of text. Some columns are always shown. Others are shown
    only if some source has an unusual value:

        column          usual value      values in the rows      shown?
        frequency       "1"              "1", "2"                yes
        padded          0                0, 0                    no

    Args:
        rows: Rows with all columns, at least one: heading → value.
    """
    headings = list(_ALWAYS_SHOWN)
    for heading in rows[0]:
        usual_value = "1" if heading == "frequency" else 0
        is_unusual = any(row[heading] != usual_value for row in rows)
        if heading not in _ALWAYS_SHOWN and is_unusual:
            headings.append(heading)
    return headings


def quality_rows(quality: Mapping[str, Any]) -> list[Row]:
    """Return a table for the terminal that shows how evenly a dataset is shuffled.

    Each row has a measure, its value, and the value that an even shuffle would give by chance:

        measure                                                        found    by chance
        mix of sources in a tar: mean deviation, in standard errors    0.82     0.8

    Args:
        quality: Name of each measure → value, such as {"mix_mean": 0.8197, ...}.

    Returns:
        The rows: heading of a column → text.
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
