"""Budgets that one long document ends early: what is reported of them."""

from __future__ import annotations

import json

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
from nanoset_assets.ui.views import view_metadata
from nanoset_core.sampling.hashing import hash_texts, salted
from nanoset_core.stages.views import make as views
from nanoset_core.stages.views.facts import GAPS, gap_warnings
from nanoset_core.stages.views.rules import Budget, Repeat, Rule
from nanoset_core.stages.views.selection import select
from nanoset_core.stages.views.stage import VIEW


def shard_of(ids, tokens):
    """Return documents of a corpus as its only shard."""
    numbers = list(range(len(ids)))
    values = {"id": pa.array(ids, pa.string()), "tokens": pa.array(tokens, pa.int32())}
    values |= {"file": ["a"] * len(ids), "line": numbers, "byte_offset": numbers}
    return TableShard(pa.table(values), 0)


def slow_gap(ids, tokens, budget, unit, times):
    """Take documents in the order of their hashes, one id after the other, until one would exceed
    the budget.
    """
    import pyarrow as pa

    hashes = salted(hash_texts(pa.array(ids, pa.string())), "budget")
    reached = 0
    for value in np.unique(hashes):
        same = np.flatnonzero(hashes == value).tolist()
        amount = sum(times * (tokens[number] if unit == "tokens" else 1) for number in same)
        if reached + amount > budget:
            return (
                None if reached >= 0.99 * budget else (reached, same[0], times * len(same), amount)
            )
        reached += amount
    return None


@settings(max_examples=60, deadline=None)
@given(
    documents=st.lists(
        st.tuples(st.integers(0, 12), st.one_of(st.integers(1, 30), st.just(900))), min_size=1
    ),
    budget=st.integers(1, 2000),
    unit=st.sampled_from(["tokens", "documents"]),
    times=st.sampled_from([1, 2]),
)
def test_the_first_document_that_does_not_fit_is_that_of_a_slow_look(
    tmp_path_factory, documents, budget, unit, times
):
    ids = [f"id-{number}" for number, _ in documents]
    tokens = [count for _, count in documents]
    steps = [Repeat("v", 2.0)] if times == 2 else []
    rule = Rule((*steps, Budget("v", unit, budget)), None)
    (found,) = select([shard_of(ids, tokens)], [rule], tmp_path_factory.mktemp("scratch"))
    expected = slow_gap(ids, tokens, budget, unit, times)
    gaps = [(gap.reached, gap.document, gap.documents, gap.amount) for gap in found.gaps]
    assert gaps == ([] if expected is None else [expected])
    assert all(gap.reached == getattr(found, unit) for gap in found.gaps)


LONG = 4000
"""Words of the long documents."""


@pytest.fixture(scope="module")
def project(tmp_path_factory, tokenizer_file):
    """A project with some books among short documents, and budgets that end at the first book."""
    budgets = (
        "views:\n  small: {of: web, tokens: 3e4}\n  large: {of: web, tokens: 6e4}\n  inner: {of: "
        "small, tokens: 500}\n"
    )
    folder = tmp_path_factory.mktemp("budgets") / "project"
    file = write_project(folder, tokenizer_file, {"nanosets:\n": f"{budgets}nanosets:\n"})
    books = [{"id": f"book-{number}", "text": "word " * LONG * 20} for number in range(8)]
    (folder / "raw/web/books.jsonl").write_bytes(jsonl(books))
    project = open_project(file)
    make_corpora(project, "web")
    for name in project.config.views:
        views.make_view(project, name)
    return project


def test_a_budget_that_one_document_ends_is_warned_of_with_the_document(project):
    for name in ("small", "large"):
        manifest = current_dataset(project, name)
        (gap,) = manifest.facts[GAPS]
        (warning,) = VIEW.show(project, manifest).warnings
        assert gap["reached"] == manifest.facts["tokens"] < 0.99 * gap["budget"]
        assert f"{gap['budget']:,} tokens holds {gap['reached']:,}" in warning
        assert "books.jsonl" in warning
        assert "'book-" in warning
        assert f"where: tokens < {gap['amount']}" in warning


def test_the_remedy_fills_the_budget(project):
    (gap,) = current_dataset(project, "small").facts[GAPS]
    text = project.config.file.read_text()
    remedy = text.replace(
        "small: {of: web,",
        f'filled: {{of: web, where: "tokens < {gap["amount"]}", tokens: 5e3}}\n  small: {{of: web,',
    )
    other = project.config.file.parent / "remedy.yaml"
    other.write_text(remedy)
    view = views.make_view(open_project(other), "filled")
    assert view.facts["tokens"] > 0.99 * 5e3
    assert GAPS not in view.facts


def test_a_larger_budget_holds_what_a_smaller_one_holds(project):
    small = current_dataset(project, "small").facts
    large = current_dataset(project, "large").facts
    assert small["documents"] <= large["documents"]


def test_a_view_of_a_view_is_not_warned_of_the_others_budget(project):
    facts = current_dataset(project, "inner").facts
    assert [text for text in gap_warnings(facts, "inner") if "30,000" in text] == []


def test_a_view_of_an_earlier_version_is_warned_of_without_the_document(project):
    facts = {
        name: value
        for name, value in current_dataset(project, "small").facts.items()
        if name != GAPS
    }
    (warning,) = gap_warnings(facts, "small")
    assert "its budget of 30,000 tokens holds" in warning
    assert "`nanoset view small` names it" in warning


def test_the_command_and_the_page_warn_too(project):
    arguments = ["view", "small", "-c", str(project.config.file)]
    outcome = invoke_nanoset(arguments, env={"COLUMNS": "300"})
    assert "its budget of 30,000 tokens holds" in outcome.output
    found = json.loads(invoke_nanoset([*arguments, "--json"]).stdout)
    assert found[GAPS] == current_dataset(project, "small").facts[GAPS]
    summary = view_metadata(project, current_dataset(project, "small"))["summary"].md_str
    assert "its budget of 30,000 tokens holds" in summary
