"""A budget that one long document ends early is reported, with the document and a remedy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.building import make_corpora, open_project
from helpers.command import invoke_nanoset
from helpers.inspecting import current_dataset
from helpers.sample_project import jsonl, write_project
from helpers.view_rules import TableShard
from nanoset_core.stages.views import make as views
from nanoset_core.stages.views.facts import GAPS, gap_warnings
from nanoset_core.stages.views.rules import Budget, Repeat, Rule
from nanoset_core.stages.views.selection import select
from nanoset_core.stages.views.stage import VIEW
from nanoset_core.statistics.hashing import hash_texts, salted

# Which document ends a budget


class Gap(NamedTuple):
    """A document that does not fit into the rest of a budget, which is more than 1 %."""

    reached: int
    """What the documents before it take of the budget."""
    document: int
    """Its number."""
    documents: int
    """How many documents there are with its id, with repetitions."""
    amount: int
    """What they would take of the budget."""


def shard_of(ids: Sequence[str], token_counts: Sequence[int]) -> TableShard:
    """Return documents of a corpus as its only shard."""
    numbers = list(range(len(ids)))
    columns = {
        "id": pa.array(ids, pa.string()),
        "tokens": pa.array(token_counts, pa.int32()),
        "file": ["a"] * len(ids),
        "line": numbers,
        "byte_offset": numbers,
    }
    return TableShard(pa.table(columns), 0)


def find_gap_slowly(
    ids: Sequence[str], token_counts: Sequence[int], budget: int, unit: str, times: int
) -> Gap | None:
    """Take documents by the hashes of their ids, one id after the other, until one does not fit."""
    hashes = salted(hash_texts(pa.array(ids, pa.string())), "budget")
    reached = 0
    for value in np.unique(hashes):
        documents = np.flatnonzero(hashes == value).tolist()
        amount = times * len(documents)
        if unit == "tokens":
            amount = times * sum(token_counts[document] for document in documents)
        if reached + amount > budget:
            if reached >= 0.99 * budget:
                return None
            return Gap(reached, documents[0], times * len(documents), amount)
        reached += amount
    return None


@settings(max_examples=60, deadline=None)
@given(
    # Few ids, so that some repeat, and few long documents.
    documents=st.lists(
        st.tuples(st.integers(0, 12), st.one_of(st.integers(1, 30), st.just(900))), min_size=1
    ),
    budget=st.integers(1, 2000),
    unit=st.sampled_from(["tokens", "documents"]),
    times=st.sampled_from([1, 2]),
)
def test_the_reported_document_is_the_first_one_that_does_not_fit(
    tmp_path_factory, documents, budget, unit, times
):
    ids = [f"id-{number}" for number, _ in documents]
    token_counts = [n_tokens for _, n_tokens in documents]
    expected = find_gap_slowly(ids, token_counts, budget, unit, times)
    steps = [Budget("v", unit, budget)]
    if times == 2:
        steps.insert(0, Repeat("v", 2.0))

    scratch = tmp_path_factory.mktemp("scratch")
    [selection] = select([shard_of(ids, token_counts)], [Rule(tuple(steps), None)], scratch)

    gaps = [Gap(gap.reached, gap.document, gap.documents, gap.amount) for gap in selection.gaps]
    assert gaps == ([] if expected is None else [expected])
    for gap in gaps:
        assert gap.reached == getattr(selection, unit)


# What is reported

BOOK_WORDS = 80_000
BUDGETS = """\
views:
  small: {of: web, tokens: 3e4}
  large: {of: web, tokens: 6e4}
  inner: {of: small, tokens: 500}
nanosets:
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory, tokenizer_file) -> Any:
    """A project with some books among short documents, and budgets that end at the first book."""
    folder = tmp_path_factory.mktemp("budgets") / "project"
    file = write_project(folder, tokenizer_file, {"nanosets:\n": BUDGETS})
    books = [{"id": f"book-{number}", "text": "word " * BOOK_WORDS} for number in range(8)]
    (folder / "raw/web/books.jsonl").write_bytes(jsonl(books))
    project = open_project(file)
    make_corpora(project, "web")
    for name in project.config.views:
        views.make_view(project, name)
    return project


@pytest.mark.parametrize("name", ["small", "large"])
def test_a_warning_names_the_document_that_ends_a_budget_and_a_remedy(project, name):
    manifest = current_dataset(project, name)
    [gap] = manifest.facts[GAPS]

    [warning] = VIEW.show(project, manifest).warnings

    assert gap["reached"] == manifest.facts["tokens"]
    assert gap["reached"] < 0.99 * gap["budget"]
    assert f"{gap['budget']:,} tokens holds {gap['reached']:,}" in warning
    assert "books.jsonl" in warning
    assert "'book-" in warning
    assert f"where: tokens < {gap['amount']}" in warning


def test_with_the_remedy_the_budget_is_filled(project):
    [gap] = current_dataset(project, "small").facts[GAPS]
    filled = f'filled: {{of: web, where: "tokens < {gap["amount"]}", tokens: 5e3}}'
    text = project.config.file.read_text()
    file = project.config.file.parent / "remedy.yaml"
    file.write_text(text.replace("small: {of: web,", f"{filled}\n  small: {{of: web,"))

    view = views.make_view(open_project(file), "filled")

    assert view.facts["tokens"] > 0.99 * 5e3
    assert GAPS not in view.facts


def test_a_larger_budget_holds_at_least_as_many_documents(project):
    small = current_dataset(project, "small").facts
    large = current_dataset(project, "large").facts

    assert small["documents"] <= large["documents"]


def test_a_view_of_a_view_has_no_warning_of_the_budget_of_the_other(project):
    warnings = gap_warnings(current_dataset(project, "inner").facts, "inner")

    assert [warning for warning in warnings if "30,000" in warning] == []


def test_a_view_of_an_earlier_version_has_a_warning_without_the_document(project):
    """Earlier versions did not store which document ended a budget."""
    facts = dict(current_dataset(project, "small").facts)
    del facts[GAPS]

    [warning] = gap_warnings(facts, "small")

    assert "its budget of 30,000 tokens holds" in warning
    assert "`nanoset view small` names it" in warning


def test_nanoset_view_prints_the_warning(project):
    words = ["view", "small", "-c", str(project.config.file)]

    outcome = invoke_nanoset(words, env={"COLUMNS": "300"})

    assert "its budget of 30,000 tokens holds" in outcome.output


def test_nanoset_view_prints_the_document_as_json(project):
    words = ["view", "small", "-c", str(project.config.file), "--json"]

    values = json.loads(invoke_nanoset(words).stdout)

    assert values[GAPS] == current_dataset(project, "small").facts[GAPS]


def test_a_budget_that_is_larger_than_all_documents_has_a_warning():
    facts = {"steps": [["", "all", 10, 600], ["all", "1,000 tokens", 10, 600]]}

    [warning] = gap_warnings(facts, "all")

    assert warning.startswith("its budget of 1,000 tokens holds 600 (60.0%): there are no more")


def test_a_budget_that_is_nearly_all_documents_has_no_warning():
    facts = {"steps": [["", "all", 10, 995], ["all", "1,000 tokens", 10, 995]]}

    assert list(gap_warnings(facts, "all")) == []
