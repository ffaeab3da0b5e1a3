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

from nanoset_core.stages.views.budgets import FULL_SHARE
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
        places: Document number → its file, line and id, for each document that is too long for the
            rest of a budget.

    Returns:
        Name of the fact → plain value.
    """
    # What each step has left.
    step_rows = []
    for count in selection.step_counts:
        step_rows.append([count.view, count.step, count.documents, count.tokens])
    facts: dict[str, Any] = {STEPS: step_rows}

    # Ids that are probably wrong.
    facts[MISSING_IDS] = {key: count for key, count in missing_ids.items() if count > 0}

    # Budgets that are far from full, and the document that did not fit.
    gap_records = []
    for gap in selection.gaps:
        gap_records.append({**asdict(gap), "place": places[gap.document]})
    if gap_records:
        facts[GAPS] = gap_records
    return facts


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


def step_rows(facts: Mapping[str, Any]) -> list[StepRow]:
    """Return what is left of a corpus after each step that chose documents of a view.

    Args:
        facts: The facts of the view's manifest.

    Returns:
        A row for the whole corpus, then a row for each step.
    """
    rows: list[StepRow] = []
    for view, step, documents, tokens in facts[STEPS]:
        # The first row is that of the whole corpus, which may be empty.
        n_corpus_documents = rows[0].documents if rows else documents
        share = documents / max(n_corpus_documents, 1)
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
    if GAPS not in facts:
        # An earlier version of the program made the view, or its budgets are full.
        yield from _unfilled_budget_warnings(facts, name)
        return
    for gap in facts[GAPS]:
        if gap["view"] == name:
            yield _gap_warning(gap)


def _unfilled_budget_warnings(facts: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield a warning for each budget of a view that is far from full.

    A budget stays unfilled if the next document is too long for the rest of it. Manifests of
    earlier versions do not record that, but the fact `steps` shows it: each of its rows has what is
    left after a step, and the row before it what was available.

    Args:
        facts: The facts of the view's manifest.
        name: Name of the view. Budgets of views from which it is chosen are not reported.
    """
    for before, after in pairwise(step_rows(facts)):
        budget = _BUDGET.fullmatch(after.step)  # None for other steps, such as `where …`
        if budget is None or after.view != name:
            continue
        limit = int(budget["limit"].replace(",", ""))
        unit = budget["unit"]
        if unit == "tokens":
            available = before.tokens
            reached = after.tokens
        else:
            available = before.documents
            reached = after.documents

        could_be_filled = available > limit
        is_filled = reached >= FULL_SHARE * limit
        if could_be_filled and not is_filled:
            usage = _usage_text(limit, unit, reached)
            yield f"{usage}: the next document does not fit; `nanoset view {name}` names it"


def _gap_warning(gap: Mapping[str, Any]) -> str:
    """Return a warning that names the document which does not fit into a budget.

    Args:
        gap: An entry of the fact `budget_gaps`: the fields of a `BudgetGap`, and the `place` of the
            document: its file, line and id.
    """
    unit = gap["unit"]
    amount = f"{gap['amount']:,}"
    if gap["documents"] == 1:
        document = f"document {gap['document']:,} ({gap['place']})"
        misfit = f"{document}, of {amount} tokens, does not fit"
        remedy = f"leave it out (`where: tokens < {gap['amount']}`, or `exclude`)"
    else:
        copies = f"{gap['documents']:,} documents or copies with the id of {gap['place']}"
        misfit = f"{copies}, of {amount} {unit} in all, do not fit"
        remedy = "leave them out (`exclude`)"
    usage = _usage_text(gap["budget"], unit, gap["reached"])
    return f"{usage}, and ends where {misfit}: {remedy}, or raise `{unit}`"


def _usage_text(limit: int, unit: str, reached: int) -> str:
    """Return how much of a budget is used, as the beginning of a warning."""
    share = reached / limit
    return f"its budget of {limit:,} {unit} holds {reached:,} ({share:.1%})"
