"""The facts that a view's manifest records about the choice of documents, and how to show them.

- `steps`: what is left after each step, as [view, step, documents, tokens]; the first row is the
  corpus.
- `missing_ids`: key of nanoset.yaml → how many ids in its files match no document.
- `budget_gaps`: budgets that are far from full because the next document does not fit; absent if
  there are none, and in manifests of earlier versions.
- `columns_without_values`: rule of the view → columns that it uses although no document has a value
  of them; absent if there are none, and in manifests of earlier versions.
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

from nanoset_core.records.json_records import finite_or_text
from nanoset_core.stages.views.budgets import FULL_SHARE, BudgetGap
from nanoset_core.stages.views.selection import Selection
from nanoset_core.stages.views.settings import ID_LIST_KEYS
from nanoset_core.stages.views.top import TopResult
from nanoset_core.statistics.histogram import Bin
from nanoset_core.wording import format_count, format_number

STEPS = "steps"
MISSING_IDS = "missing_ids"
GAPS = "budget_gaps"
TOPS = "tops"
EMPTY_COLUMNS = "columns_without_values"
_BUDGET = re.compile(r"(?P<limit>[0-9,]+) (?P<unit>tokens|documents)")
"""The text of a budget in the fact `steps`, such as `1,000,000 tokens`; see `Budget.text`."""
_NO_MORE_DOCUMENTS = "there are no more documents to choose from"
"""End of the warning that a budget is larger than all documents together."""
_BAR_CHARACTERS = 20


def choice_facts(
    selection: Selection,
    missing_ids: Mapping[str, int],
    places: Mapping[int, str],
    empty_columns_by_rule: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    """Return what users can read about how the documents of a view were chosen.

    A view is a selection of documents, made in steps. The facts are stored with it:

        steps           what is left after each step: [["", "all", 10000, …], ["best", …], …]
        missing_ids     {"views.best.exclude": 3}: 3 of the ids listed there match no document
        budget_gaps     limits such as "1000 tokens" that are far from full, since the next
                        document is too long; absent if there are none
        tops            a histogram for each step such as `top 10 by quality`; absent if there are
                        none
        columns_without_values
                        {"where": ["qualty"]}: no document has a value of this column; absent if
                        there are no such columns

    Args:
        selection: The documents of the view, and how they were chosen.
        missing_ids: Setting that names files of ids → how many of the ids match no document.
        places: Number of a document that is too long → its file, line and id.
        empty_columns_by_rule: Rule of the view → columns that it uses, without any value.

    Returns:
        Name of the fact → plain value, for JSON.
    """
    step_counts = []
    for count in selection.step_counts:
        step_counts.append([count.view, count.step, count.documents, count.tokens])
    facts: dict[str, Any] = {
        STEPS: step_counts,
        MISSING_IDS: {key: count for key, count in missing_ids.items() if count > 0},
    }
    if selection.gaps:
        facts[GAPS] = [_gap_record(gap, places) for gap in selection.gaps]
    if selection.tops:
        facts[TOPS] = [_top_record(top) for top in selection.tops]
    if empty_columns_by_rule:
        facts[EMPTY_COLUMNS] = empty_columns_by_rule
    return facts


def _gap_record(gap: BudgetGap, places: Mapping[int, str]) -> dict[str, Any]:
    """Return what is recorded about a limit of tokens that is far from full.

    A view takes documents until the next one does not fit. If that one is very long, much of the
    limit stays unused. Then the record names it, so that the user can leave it out.

    Args:
        gap: The limit and the document.
        places: Number of the document → its file, line and id.
    """
    return {**asdict(gap), "place": places[gap.document]}


def _top_record(result: TopResult) -> dict[str, Any]:
    """Return what is recorded about a step such as `top 1,000 documents by quality`.

    The step takes the documents with the best values of a column, until a budget is used up.

    Args:
        result: What the step has done.

    Returns:
        Plain values, for JSON.
    """
    return {
        "view": result.step.view,
        "step": result.step.text,
        "column": result.step.by,  # quality
        "ascending": result.step.ascending,  # whether low values are the best
        "unit": result.step.unit,  # documents or tokens
        "budget": result.budget,  # 1,000
        "cut": finite_or_text(result.cut),  # the value at which the budget is used up
        "tied": asdict(result.tied),  # how many documents have this value, and how many are taken
        "nulls": result.counts.nulls,  # documents without a value
        "nans": result.counts.nans,  # documents with the value NaN
        "histogram": [_bin_record(histogram_bin) for histogram_bin in result.bins],
    }


def _bin_record(histogram_bin: Bin) -> dict[str, Any]:
    """Return what is recorded about the documents with values in one range, for a histogram.

    For example, of 40 documents with values from 3 to 4, 10 are chosen: `{"values": "3 to 4",
    "documents": 40, "chosen_documents": 10, …}`.

    Args:
        histogram_bin: The range, with four amounts.
    """
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
    """Return a table of what remains after each step of a view, which selects documents.

    For example:

        view    step                              documents    tokens       share
                all                               10,000       7,500,000    100 %
        best    where lang = 'en'                 6,000        4,100,000    60 %
        best    top 1,000 documents by quality    1,000        690,000      10 %

    Args:
        facts: The facts of the view's manifest. Their entry `steps` has these numbers; its first
            row counts the whole corpus.
    """
    rows: list[StepRow] = []
    n_corpus_documents = 0
    for view, step, documents, tokens in facts[STEPS]:
        is_corpus = len(rows) == 0
        if is_corpus:
            n_corpus_documents = documents
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
    """Return a histogram of a column, which shows how many documents a view takes of each value.

    The view takes the documents with the best values, as in `top 30 documents by quality`:

        values     documents    chosen    bar
        4 to 5     20           20        ██████████
        3 to 4     40           10        █████░░░░░░░░░░░░░░░
        null       8            0         ░░░░                     documents without a quality

    Args:
        top: What is recorded about this step: its `histogram`, lowest values first; whether the
            lowest values are the best (`ascending`); and the numbers of documents without a value,
            `nulls` and `nans`.
    """
    bins: Sequence[Mapping[str, Any]] = top["histogram"]
    if not top["ascending"]:
        bins = bins[::-1]  # the best values come first
    n_without_value = {"null": top["nulls"], "NaN": top["nans"]}
    n_with_value = [histogram_bin["documents"] for histogram_bin in bins]
    longest_bar = max([*n_with_value, *n_without_value.values()])

    rows = [_top_row(histogram_bin, longest_bar) for histogram_bin in bins]
    for name, n_documents in n_without_value.items():
        if n_documents > 0:
            rows.append(_row_without_value(name, n_documents, longest_bar))
    return rows


def _top_row(histogram_bin: Mapping[str, Any], longest_bar: int) -> TopRow:
    """Return one row of a histogram, for the documents whose values are in one range.

    Args:
        histogram_bin: What is recorded about the range, such as `{"values": "3 to 4", "documents":
            40, "chosen_documents": 10, "tokens": 3000, …}`.
        longest_bar: Number of documents to which the longest bar of the histogram belongs.
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


def _row_without_value(name: str, n_documents: int, longest_bar: int) -> TopRow:
    """Return the row of a histogram for documents without a value, which are never chosen.

    Args:
        name: `null` or `NaN`.
        n_documents: Number of these documents. Their tokens are not recorded.
        longest_bar: Number of documents to which the longest bar of the histogram belongs.
    """
    bar = _split_bar(n_documents, n_chosen=0, most=longest_bar)
    return TopRow(name, n_documents, tokens=None, chosen=0, bar=bar)


def top_table(top: Mapping[str, Any]) -> list[dict[str, str | int]]:
    """Return the histogram of a step such as `top 30 documents by quality` as a table to print.

    For example, its first row is

        {"value": "4 to 5", "documents": 20, "tokens": 1500, "chosen": 20, " ": "██████████"}

    Args:
        top: What the manifest of the view records about the step.

    Returns:
        The rows: heading of a column → value. The column of bars has no heading.
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
    """Return a bar for a number of documents, with a dark part for those that are chosen.

    The longest bar has 20 characters. For example, if it stands for 50 documents, then 10
    documents, of which 4 are chosen, are "██░░".

    Args:
        count: The documents.
        n_chosen: How many of them are chosen.
        most: The documents of the longest bar; at least 1.
    """
    if count == 0:
        return ""
    n_characters = round(count / most * _BAR_CHARACTERS)  # the longest bar has 20
    n_characters = max(n_characters, 1)  # even a single document is visible
    n_dark = round(n_chosen / most * _BAR_CHARACTERS)
    if n_chosen > 0:
        n_dark = max(n_dark, 1)
    return "█" * n_dark + "░" * (n_characters - n_dark)


def cut_text(top: Mapping[str, Any]) -> str:
    """Say in a sentence which documents a step such as `top 10 documents by quality` has taken.

    It takes the best documents, until there are 10. The quality of the last one is the *cut*. Often
    several documents have this quality, and only some of them are taken:

        top 10 documents by quality: the cut is at quality = 4. Documents with higher values are
        chosen, and 3 of the 7 documents with this value, by hash

    Args:
        top: What the manifest of the view records about the step. For this example, `step` is "top
            10 documents by quality", `column` is "quality", `cut` is 4, and `tied` is {"documents":
            7, "chosen": 3}. If all documents with a quality are taken, `cut` is None.
    """
    column = top["column"]
    cut = top["cut"]
    if cut is None:
        return f"{top['step']}: all documents with a value of {column} fit"

    cut_number = cut if isinstance(cut, str) else format_number(cut)  # JSON has "inf" as a text
    side = "lower" if top["ascending"] else "higher"
    return (
        f"{top['step']}: the cut is at {column} = {cut_number}. "
        f"Documents with {side} values are chosen, and {_tied_text(top['tied'])}"
    )


def _tied_text(tied: Mapping[str, int]) -> str:
    """Say how many of the documents with the value of a cut are chosen.

    They are chosen by hash, as far as there is room: "3 of the 7 documents with this value, by
    hash".

    Args:
        tied: Their number, and how many of them are chosen: `{"documents": 7, "chosen": 3}`.
    """
    documents = format_count(tied["documents"], "document")
    if tied["chosen"] == 0:
        return f"none of the {documents} with this value"
    return f"{tied['chosen']:,} of the {documents} with this value, by hash"


def cut_texts(facts: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield a sentence for each step `top` of a view, and of the views that it is chosen from.

    The numbers in the sentence are those of the view that has the step. For example, of `best`, and
    of `best-scale-0_1`, which has a tenth of its documents:

        best              top 10 documents by quality: the cut is at quality = 4. …
        best-scale-0_1    in the view best: top 10 documents by quality: the cut is at …

    Args:
        facts: What is recorded about the view.
        name: Name of the view.
    """
    for top in facts.get(TOPS, []):
        text = cut_text(top)
        if top["view"] != name:
            text = f"in the view {top['view']}: {text}"
        yield text


def missing_id_warnings(
    facts: Mapping[str, Any], name: str, first_missing_ids: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Yield a warning for each list of ids of a view that has ids of no document.

    For example, the setting `exclude: lists/*.txt` names files with three such ids:

        3 ids of views.best.exclude: lists/*.txt match no document, such as 'x9'
        3 ids of views.best.exclude: lists/*.txt match no document: `nanoset view best` names one

    The second warning refers to the command that gives the first one.

    Args:
        facts: What is recorded about the view: the number of such ids, by setting.
        name: Name of the view. Lists of other views, from which it was chosen, are not reported.
        first_missing_ids: One of these ids for each setting, such as {"views.best.exclude:
            lists/*.txt": "x9"}; None if they are not known, since they are not recorded.
    """
    # Settings of this view begin with "views.best.include:" or "views.best.exclude:".
    keys_of_view = tuple(f"views.{name}.{key}:" for key in ID_LIST_KEYS)
    for setting, n_missing in facts[MISSING_IDS].items():
        if setting.startswith(keys_of_view):
            verb = "matches" if n_missing == 1 else "match"
            example = f": `nanoset view {name}` names one"
            if first_missing_ids is not None:
                example = f", such as {first_missing_ids[setting]!r}"
            yield f"{format_count(n_missing, 'id')} of {setting} {verb} no document{example}"


def gap_warnings(facts: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield a warning for each budget of a view that is far from full.

    A view takes documents up to a budget, such as 1,000 tokens. If it has 600 tokens, and the next
    document has 5,000, it ends there: 400 tokens are unused. The user may want to leave that
    document out.

    Args:
        facts: What is recorded about the view. Such budgets are in `budget_gaps`, if there are any.
            Old versions of the program did not record them, so that they must be found out.
        name: Name of the view. Budgets of other views, from which it was chosen, are not reported.
    """
    yield from _large_budget_warnings(facts, name)
    if GAPS not in facts:  # an old version
        yield from _unfilled_budget_warnings(facts, name)
        return
    for gap in facts[GAPS]:
        if gap["view"] == name:
            yield _gap_warning(gap)


def top_warnings(facts: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield a warning for each step `top` that takes less than requested.

    For example, `top 1,000 documents by quality` was requested, but only 700 documents have a
    quality. The others cannot be ranked, or there are no others:

        `top` of 1,000 documents holds 700: 300 documents without a value of quality cannot be
        chosen
        `top` of 1,000 documents holds 700: there are no more documents to choose from

    Args:
        facts: What is recorded about a view, a selection of documents.
        name: Name of the view. Steps of other views, from which it was chosen, are not reported.
    """
    for top in facts.get(TOPS, []):
        warning = _top_warning(top)
        if warning is not None and top["view"] == name:
            yield warning


def _top_warning(top: Mapping[str, Any]) -> str | None:
    """Return a warning if a step such as `top 1,000 documents by quality` takes less than that.

    Args:
        top: What is recorded about the step:

                budget        1000           how much may be taken
                unit          "documents"    of what
                column        "quality"
                cut           None           the step ends at this quality, since the budget is used
                                             up; None if it takes all documents with a quality
                nulls, nans   300, 0         documents without a quality, and with NaN
                histogram     [{"chosen_documents": 700, …}]      what is taken
    """
    unit = top["unit"]
    n_chosen = sum(histogram_bin[f"chosen_{unit}"] for histogram_bin in top["histogram"])
    is_used_up = top["cut"] is not None or n_chosen >= top["budget"]
    if is_used_up:
        return None
    reason = _why_not_used_up(top, n_chosen)
    if reason is None:
        return None
    return f"`top` of {top['budget']:,} {unit} holds {n_chosen:,}: {reason}"


def _why_not_used_up(top: Mapping[str, Any], n_chosen: int) -> str | None:
    """Return why a step such as `top 1,000 documents by quality` takes less than that, in words.

    If there are just no more documents, that is worth a warning only if more than 1 % is missing.

    Args:
        top: What is recorded about the step; see `_top_warning`.
        n_chosen: How many documents or tokens it takes.

    Returns:
        The reason; None if it is not worth a warning.
    """
    n_without_value = top["nulls"] + top["nans"]
    if n_without_value > 0:
        documents = format_count(n_without_value, "document")
        return f"{documents} without a value of {top['column']} cannot be chosen"
    is_far_from_full = n_chosen < FULL_SHARE * top["budget"]
    if n_chosen > 0 and is_far_from_full:
        return _NO_MORE_DOCUMENTS
    return None


class _BudgetUse(NamedTuple):
    """How much of a budget of a view, such as 1,000 tokens, is used."""

    limit: int
    """The budget: 1,000."""
    unit: str
    """`documents` or `tokens`."""
    available: int
    """How much there was to choose from, such as 5,000 tokens."""
    used: int
    """How much the view has after this step, such as 600 tokens."""


def _budget_uses(facts: Mapping[str, Any], name: str) -> Iterator[_BudgetUse]:
    """Yield each budget of a view, and how much of it is used, from what is left after its steps.

        where lang = 'en'     5,000 tokens are left
        1,000 tokens          600 tokens are left        a budget

    Args:
        facts: What is recorded about the view.
        name: Name of the view. Budgets of other views, from which it was chosen, are left out.
    """
    for before, after in pairwise(step_rows(facts)):
        budget = _BUDGET.fullmatch(after.step)  # None for steps of other kinds
        if budget is not None and after.view == name:
            unit = budget["unit"]
            yield _BudgetUse(
                limit=int(budget["limit"].replace(",", "")),
                unit=unit,
                available=before.amount(unit),
                used=after.amount(unit),
            )


def _large_budget_warnings(facts: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield a warning for each budget of a view that is larger than all documents together.

    For example, a budget of 1,000,000 tokens takes all documents, which have 600,000: perhaps its
    number has a digit too many. If the documents have 99 % of it, that is no reason for a warning.

    Args:
        facts: What is recorded about the view.
        name: Name of the view. Budgets of other views, from which it was chosen, are not reported.
    """
    for budget in _budget_uses(facts, name):
        if 0 < budget.available < FULL_SHARE * budget.limit:
            usage = _usage_text(budget.limit, budget.unit, budget.available)
            yield f"{usage}: {_NO_MORE_DOCUMENTS}"


def empty_column_warnings(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield a warning for each column that a rule of a view uses, but of which there is no value.

    For example, a misspelt name in `documents.columns` gives a column without values:

        `where` uses the column 'qualty', but no document has a value of it
        `split` uses the column 'qualty', but no document has a value of it: so documents are
        divided by file and line

    Args:
        facts: What is recorded about the view.
    """
    for rule, columns in facts.get(EMPTY_COLUMNS, {}).items():
        for column in columns:
            warning = f"`{rule}` uses the column {column!r}, but no document has a value of it"
            if rule == "split":
                warning += ": so documents are divided by file and line"
            yield warning


def _unfilled_budget_warnings(facts: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield a warning for each budget of a view that is far from full, though there is more text.

    A budget takes documents until the next one does not fit. For example, a budget of 1,000 tokens
    could choose from 5,000 tokens, and has taken 600. So the next document has more than 400.

    Args:
        facts: What is recorded about the view by an old version of the program. (Present versions
            record which document did not fit.)
        name: Name of the view. Budgets of other views, from which it was chosen, are not reported.
    """
    for budget in _budget_uses(facts, name):
        is_far_from_full = budget.used < FULL_SHARE * budget.limit  # 600 is below 99 % of 1,000
        has_left_out_documents = budget.available > budget.limit  # 5,000 do not fit into 1,000
        if is_far_from_full and has_left_out_documents:
            usage = _usage_text(budget.limit, budget.unit, budget.used)
            yield f"{usage}: the next document does not fit; `nanoset view {name}` names it"


def _gap_warning(gap: Mapping[str, Any]) -> str:
    """Return a warning that a selection of documents has far fewer tokens than the user allowed.

    For example, the user allows 1,000 tokens. Documents are taken one after another. When they have
    600 tokens, the next one has 5,000, so the selection ends: "its budget of 1,000 tokens holds 600
    (60.0%), and ends where document 8 (web/a.jsonl:12), of 5,000 tokens, does not fit: …".

    Args:
        gap: What is recorded:

                budget       1000                 what the user allows
                unit         "tokens"             of `budget`, `reached` and `amount`
                reached      600                  what the selection has
                document     8                    number of the next document in the corpus
                place        "web/a.jsonl:12"     where the next document comes from
                amount       5000                 what the next document has
                documents    1

            Documents with the same id are taken together or not at all. If the next document shares
            its id with others, `documents` is their number, and `amount` what they have together.
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
