"""The facts that a view's manifest records about the choice of documents, and how to show them.

- `steps`: what is left after each step, as [view, step, documents, tokens]; the first row is the
  corpus.
- `missing_ids`: key of nanoset.yaml → how many ids in its files match no document.
- `budget_gaps`: budgets that are far from full because the next document does not fit; absent if
  there are none, and in manifests of earlier versions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import pairwise
from typing import Any, NamedTuple

from nanoset_core.stages.views.budgets import FULL_SHARE, BudgetGap
from nanoset_core.stages.views.selection import Selection

STEPS = "steps"
MISSING_IDS = "missing_ids"
GAPS = "budget_gaps"
_BUDGET = re.compile(r"(?P<limit>[0-9,]+) (?P<unit>tokens|documents)")
"""The text of a budget in the fact `steps`, such as `1,000,000 tokens`; see `Budget.text`."""
_BAR_CHARACTERS = 20


def choice_facts(
    selection: Selection, missing_ids: Mapping[str, int], places: Mapping[int, str]
) -> dict[str, Any]:
    """Return what a view's manifest records about the choice of its documents.

    A view is a selection of a corpus's documents, made in steps such as filters and budgets. The
    facts are listed at the top of this module.

    Args:
        selection: The documents of the view.
        missing_ids: Key of nanoset.yaml that names files of ids → how many of the ids match no
            document.
        places: Number of a document → its file, line and id, for each document that does not fit
            into a budget.

    Returns:
        Name of the fact → plain value.
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
    return facts


def _gap_record(gap: BudgetGap, places: Mapping[int, str]) -> dict[str, Any]:
    """Return the record of a budget that stays far from full, because a document does not fit.

    Args:
        gap: The budget and the document.
        places: Number of the document → its file, line and id.
    """
    return {**asdict(gap), "place": places[gap.document]}


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
        """Return the number of `documents` or `tokens`."""
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


def gap_warnings(facts: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield a warning for each budget of a view that is not full although more documents exist.

    A budget is a limit on the documents or tokens of a view. It is not filled if the next document
    is too long for the rest of it.

    Args:
        facts: The facts of the view's manifest.
        name: Name of the view. If it is chosen from another view, the budgets of that one are not
            reported here.
    """
    if GAPS in facts:
        for gap in facts[GAPS]:
            if gap["view"] == name:
                yield _gap_warning(gap)
    else:
        # There is no such budget, or an earlier version of this program made the view, which did
        # not record these documents. The counts show which it is.
        yield from _unfilled_budget_warnings(facts, name)


def _unfilled_budget_warnings(facts: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield a warning for each budget of a view that is far from full.

    This is for manifests of earlier versions, which do not record the document that does not fit.
    If the documents before the budget exceed it, and those after it do not fill it, there is one.

    Args:
        facts: The facts of the view's manifest, with the counts before and after each step.
        name: Name of the view. Budgets of views from which it is chosen are not reported.
    """
    for row_before, row_after in pairwise(step_rows(facts)):
        budget = _BUDGET.fullmatch(row_after.step)  # None for other steps, such as `where …`
        if budget is None or row_after.view != name:
            continue
        limit = int(budget["limit"].replace(",", ""))
        unit = budget["unit"]
        used = row_after.amount(unit)
        could_be_filled = row_before.amount(unit) > limit
        is_filled = used >= FULL_SHARE * limit
        if could_be_filled and not is_filled:
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
