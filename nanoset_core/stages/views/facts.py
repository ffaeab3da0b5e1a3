"""The facts that a view's manifest records about the choice of documents, and how to show them.

- `steps`: what is left after each step, as [view, step, documents, tokens]; the first row is the
  corpus.
- `missing_ids`: key of nanoset.yaml → how many ids in its files match no document.
- `budget_gaps`: budgets that are far from full because the next document does not fit; absent if
  there are none, and in manifests of earlier versions.
- `tops`: the rules `top`, each with its *cut*, which is the value at which it ends, and a histogram
  of its column; absent if there are none.

For example, these are the steps of a view that chooses the best English documents:

    ["", "all", 10000, 7500000]
    ["best", "where lang = 'en'", 6000, 4100000]
    ["best", "top 1,000 documents by quality", 1000, 690000]
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any, NamedTuple

from nanoset_core.records.text import finite_or_text, format_count, format_number
from nanoset_core.sampling.histogram import Bin
from nanoset_core.stages.views.budgets import FULL_SHARE, BudgetGap
from nanoset_core.stages.views.selection import Selection
from nanoset_core.stages.views.top import TopResult

STEPS = "steps"
MISSING_IDS = "missing_ids"
GAPS = "budget_gaps"
TOPS = "tops"
_BUDGET = re.compile(r"(?P<limit>[0-9,]+) (?P<unit>tokens|documents)")
"""The text of a budget in the fact `steps`, such as `1,000,000 tokens`; see `Budget.text`."""
_BAR_CHARACTERS = 20


def choice_facts(
    selection: Selection, missing_ids: Mapping[str, int], places: Mapping[int, str]
) -> dict[str, Any]:
    """Return what the manifest of a view records about the choice of its documents.

    A view is a selection of a corpus's documents, made in steps. The manifest has the counts after
    each step. It also has the budgets that are far from full since the next document is too long
    (`gaps`), and a histogram for each step that took the best values of a column (`tops`).

    Args:
        selection: The documents of the view, and how they were chosen.
        missing_ids: Key of nanoset.yaml that names files of ids → how many of the ids match no
            document.
        places: Number of a document → its file, line and id, for each document that does not fit
            into a budget.

    Returns:
        Name of the fact → plain value, for JSON.
    """
    step_rows = []
    for count in selection.step_counts:
        step_rows.append([count.view, count.step, count.documents, count.tokens])
    facts: dict[str, Any] = {
        STEPS: step_rows,
        MISSING_IDS: {key: count for key, count in missing_ids.items() if count > 0},
    }
    if selection.gaps:
        facts[GAPS] = [_gap_record(gap, places) for gap in selection.gaps]
    if selection.tops:
        facts[TOPS] = [_top_record(top) for top in selection.tops]
    return facts


def _gap_record(gap: BudgetGap, places: Mapping[int, str]) -> dict[str, Any]:
    """Return the record of a budget that stays far from full, because a document does not fit.

    Args:
        gap: The budget and the document.
        places: Number of the document → its file, line and id.
    """
    return {**asdict(gap), "place": places[gap.document]}


def _top_record(result: TopResult) -> dict[str, Any]:
    """Return what the manifest records about a rule `top`, as plain values.

    The rule takes the documents with the best values of a column. The record has its settings, the
    value at which its budget is used up (`cut`), and a histogram of the column.
    """
    return {
        "view": result.step.view,
        "step": result.step.text,
        "column": result.step.by,
        "ascending": result.step.ascending,
        "unit": result.step.unit,
        "budget": result.budget,
        "cut": finite_or_text(result.cut),
        "tied": asdict(result.tied),
        "nulls": result.counts.nulls,
        "nans": result.counts.nans,
        "histogram": [_bin_record(histogram_bin) for histogram_bin in result.bins],
    }


def _bin_record(histogram_bin: Bin) -> dict[str, Any]:
    """Return a bin of the histogram of a rule `top` as plain values."""
    documents, tokens, chosen_documents, chosen_tokens = histogram_bin.amounts
    return {
        "values": histogram_bin.label,
        "start": finite_or_text(histogram_bin.start),
        "stop": finite_or_text(histogram_bin.stop),
        "documents": documents,
        "tokens": tokens,
        "chosen_documents": chosen_documents,
        "chosen_tokens": chosen_tokens,
    }


class StepRow(NamedTuple):
    """A row of the table that shows what is left after each step of a view."""

    view: str
    """The view that the step belongs to; empty for the corpus."""
    step: str
    """The step in words."""
    documents: int
    tokens: int
    share: float
    """Share of the corpus's documents. Repeats can make it greater than 1."""

    @property
    def bar(self) -> str:
        """The share as a bar and in percent."""
        n_characters = round(min(self.share, 1) * _BAR_CHARACTERS)
        return f"{'█' * n_characters} {self.share:.1%}"

    def amount(self, unit: str) -> int:
        """Return how many documents or tokens are left after the step.

        Args:
            unit: `documents` or `tokens`.
        """
        return self.tokens if unit == "tokens" else self.documents


def step_rows(facts: Mapping[str, Any]) -> list[StepRow]:
    """Return a table of how many documents and tokens remain after each step of a view.

    A view is a selection of a corpus's documents, made in steps such as filters and budgets.

    Args:
        facts: The facts of the view's manifest. The first entry of `steps` counts the corpus.

    Returns:
        A row for the corpus, then a row for each step.
    """
    rows: list[StepRow] = []
    for view, step, documents, tokens in facts[STEPS]:
        n_corpus_documents = rows[0].documents if rows else documents
        share = documents / max(n_corpus_documents, 1)  # the corpus may be empty
        rows.append(StepRow(view, step, documents, tokens, share))
    return rows


class TopRow(NamedTuple):
    """A row of the histogram of a rule `top`."""

    values: str
    """The values in words, such as `0.5 to 1`; or `null` or `NaN`."""
    documents: int
    tokens: int | None
    """None for documents without a value, whose tokens are not counted."""
    chosen: int
    """Documents that the rule chooses."""
    bar: str
    """The documents as a bar: the chosen ones are dark, the others light."""


def top_rows(top: Mapping[str, Any]) -> list[TopRow]:
    """Return the rows of a histogram: how many documents a rule `top` chooses of each value.

    The rule chooses the documents with the best values of a column. These are in the first rows.

    Args:
        top: What the manifest records about the rule: its histogram, lowest values first, and the
            numbers of documents without a value, `nulls` and `nans`.
    """
    bins: Sequence[Mapping[str, Any]] = top["histogram"]
    if not top["ascending"]:  # the greatest values are the best ones
        bins = bins[::-1]
    n_without_value = {"null": top["nulls"], "NaN": top["nans"]}
    longest_bar = max([*n_without_value.values(), *(row["documents"] for row in bins)])

    rows = [_top_row(row, longest_bar) for row in bins]
    # Documents without a value are never chosen. The manifest does not record their tokens.
    for name, n_documents in n_without_value.items():
        if n_documents > 0:
            bar = _split_bar(n_documents, 0, longest_bar)
            rows.append(TopRow(name, n_documents, tokens=None, chosen=0, bar=bar))
    return rows


def _top_row(histogram_bin: Mapping[str, Any], longest_bar: int) -> TopRow:
    """Return the row of the documents whose values are in one bin of a histogram.

    Args:
        histogram_bin: What the manifest records about the bin.
        longest_bar: Documents of the longest bar.
    """
    n_documents = histogram_bin["documents"]
    n_chosen = histogram_bin["chosen_documents"]
    return TopRow(
        values=histogram_bin["values"],
        documents=n_documents,
        tokens=histogram_bin["tokens"],
        chosen=n_chosen,
        bar=_split_bar(n_documents, n_chosen, longest_bar),
    )


def top_table(top: Mapping[str, Any]) -> list[dict[str, str | int]]:
    """Return the histogram of a rule `top` as a table for the terminal and the UI.

    Args:
        top: What the manifest records about the rule.

    Returns:
        The rows: heading of a column → value. The bars have no heading.
    """
    table: list[dict[str, str | int]] = []
    for row in top_rows(top):
        table.append(
            {
                "value": row.values,
                "documents": row.documents,
                "tokens": "" if row.tokens is None else row.tokens,
                "chosen": row.chosen,
                " ": row.bar,
            }
        )
    return table


def _split_bar(count: int, n_chosen: int, most: int) -> str:
    """Return a bar for a number of documents: dark for those that are chosen, and light.

    For example, 10 documents, of which 4 are chosen, and 50 for the longest bar: "██░░".

    Args:
        count: The documents.
        n_chosen: How many of them are chosen.
        most: The documents of the longest bar; at least 1.
    """
    if count == 0:
        return ""
    n_characters = round(count / most * _BAR_CHARACTERS)
    n_dark = round(n_chosen / most * _BAR_CHARACTERS)
    if n_chosen and not n_dark:  # a few documents are visible, too
        n_dark = 1
    return "█" * n_dark + "░" * (max(n_characters, 1) - n_dark)


def cut_text(top: Mapping[str, Any]) -> str:
    """Return in a sentence which documents a rule `top` chooses, by their values of a column.

    For example, "top 10 documents by quality: the cut is at quality = 4. Documents with higher
    values are chosen, and 3 of the 7 documents with this value, by hash".

    Args:
        top: What the manifest records about the rule. For this example, `step` is "top 10 documents
            by quality", `column` is "quality", `cut` is 4, and `tied` is {"documents": 7, "chosen":
            3}. If the budget is never used up, `cut` is None.
    """
    column = top["column"]
    cut = top["cut"]
    if cut is None:
        return f"{top['step']}: all documents with a value of {column} fit"

    cut_number = cut if isinstance(cut, str) else format_number(cut)  # JSON has "inf" as a text
    side = "lower" if top["ascending"] else "higher"
    text = (
        f"{top['step']}: the cut is at {column} = {cut_number}. "
        f"Documents with {side} values are chosen"
    )

    # Documents with the value of the cut are chosen by hash, as far as there is room.
    n_chosen = top["tied"]["chosen"]
    documents = format_count(top["tied"]["documents"], "document")
    if n_chosen == 0:
        return f"{text}, and none of the {documents} with this value"
    return f"{text}, and {n_chosen:,} of the {documents} with this value, by hash"


def gap_warnings(facts: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield a warning for each budget (number of documents or tokens) that is far from full.

    A budget limits the documents or tokens of a view. It has a gap if the next document is too long
    for the rest of it.

    Args:
        facts: The facts of the view's manifest.
        name: Name of the view. If it is chosen from another view, the budgets of that one are not
            reported here.
    """
    if GAPS not in facts:
        # Usually all budgets are full. But earlier versions of this program did not record gaps, so
        # look for them in the counts of documents and tokens before and after each budget.
        yield from _unfilled_budget_warnings(facts, name)
        return
    for gap in facts[GAPS]:
        if gap["view"] == name:
            yield _gap_warning(gap)


def top_warnings(facts: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield a warning for each rule `top` that could not choose as many documents as requested.

    The rule takes the documents with the best values of a column, up to a number of documents or
    tokens. Documents without a value are not taken. So if many have none, too few may be left.

    Args:
        facts: The facts of the view's manifest.
        name: Name of the view. Rules of views from which it is chosen are not reported.
    """
    for top in facts.get(TOPS, []):
        if top["view"] != name:
            continue
        unit = top["unit"]  # documents or tokens
        n_chosen = sum(histogram_bin[f"chosen_{unit}"] for histogram_bin in top["histogram"])
        n_without_value = top["nulls"] + top["nans"]
        takes_all_values = top["cut"] is None
        if takes_all_values and n_chosen < top["budget"] and n_without_value > 0:
            documents = format_count(n_without_value, "document")
            yield (
                f"`top` of {top['budget']:,} {unit} holds {n_chosen:,}: "
                f"{documents} without a value of {top['column']} cannot be chosen"
            )


def _unfilled_budget_warnings(facts: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield a warning for each budget of a view that is far from full, by counts of its steps.

    This is for manifests of earlier versions, which do not record the document that does not fit.
    For example, these steps have 5,000 tokens before a budget, and only 600 after it:

        where lang = 'en'     9 documents     5,000 tokens
        1,000 tokens          2 documents       600 tokens

    So there was a third document, which did not fit into the budget of 1,000 tokens.

    Args:
        facts: The facts of the view's manifest, with the counts after each step.
        name: Name of the view. Budgets of views from which it is chosen are not reported.
    """
    for before, after in pairwise(step_rows(facts)):
        budget = _BUDGET.fullmatch(after.step)  # such as "1,000 tokens"
        if budget is None or after.view != name:
            continue  # another kind of step, such as `where …`
        limit = int(budget["limit"].replace(",", ""))
        unit = budget["unit"]
        used = after.amount(unit)
        leaves_documents_out = before.amount(unit) > limit
        is_far_from_full = used < FULL_SHARE * limit
        if leaves_documents_out and is_far_from_full:
            usage = _usage_text(limit, unit, used)
            yield f"{usage}: the next document does not fit; `nanoset view {name}` names it"


def _gap_warning(gap: Mapping[str, Any]) -> str:
    """Return a warning that names the documents which do not fit into a budget.

    Args:
        gap: An entry of the fact `budget_gaps`: the fields of a `BudgetGap`, and the `place` of the
            document: its file, line and id.
    """
    usage = _usage_text(gap["budget"], gap["unit"], gap["reached"])
    if gap["documents"] == 1:
        return f"{usage}, and ends where {_single_document_text(gap)}"
    return f"{usage}, and ends where {_several_documents_text(gap)}"


def _single_document_text(gap: Mapping[str, Any]) -> str:
    """Return which document does not fit into a budget, as the end of a warning.

    The unit is tokens: a single document always fits into a budget of documents with room.
    """
    document = f"document {gap['document']:,} ({gap['place']})"
    return (
        f"{document}, of {gap['amount']:,} tokens, does not fit: "
        f"leave it out (`where: tokens < {gap['amount']}`, or `exclude`), or raise `{gap['unit']}`"
    )


def _several_documents_text(gap: Mapping[str, Any]) -> str:
    """Return which documents do not fit into a budget together, as the end of a warning.

    Documents with the same id, and the copies of a repeated document, are taken together.
    """
    documents = f"{gap['documents']:,} documents or copies with the id of {gap['place']}"
    return (
        f"{documents}, of {gap['amount']:,} {gap['unit']} in all, do not fit: "
        f"leave them out (`exclude`), or raise `{gap['unit']}`"
    )


def _usage_text(limit: int, unit: str, reached: int) -> str:
    """Return how much of a budget is used, as the beginning of a warning."""
    share = reached / limit
    return f"its budget of {limit:,} {unit} holds {reached:,} ({share:.1%})"
