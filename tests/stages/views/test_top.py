"""The rule `top`: the documents with the best values of a column, up to a budget."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.building import make_columns, make_corpora, open_project
from helpers.command import json_of, output_of
from helpers.inspecting import current_dataset, graph_of, node_at
from helpers.sample_project import jsonl, write_corpus
from helpers.view_rules import choose_slowly, documents_table, shards_of, where_step
from helpers.views import origins
from nanoset_assets.ui.views import view_metadata
from nanoset_core.errors import ConfigError
from nanoset_core.project.project import Project
from nanoset_core.stages.views.facts import GAPS, TOPS, cut_text, top_rows
from nanoset_core.stages.views.make import make_view
from nanoset_core.stages.views.rules import Budget, HashSplit, Repeat, Rule, Step, Top
from nanoset_core.stages.views.selection import Selection, select
from nanoset_core.stages.views.stage import VIEW
from nanoset_core.stages.views.verify import verify_view


def select_one(table: pa.Table, steps: Sequence[Step], scratch: Path) -> Selection:
    """Return what the rule of some steps chooses from a table."""
    [selection] = select(shards_of(table, 7), [Rule(tuple(steps))], scratch)
    return selection


def numbers_of(selection: Selection) -> list[int]:
    """Return the numbers of the documents that were chosen, in the order of the view."""
    numbers: list[int] = []
    for chunk in selection.chunks():
        numbers += chunk.tolist()
    return numbers


# What is chosen

FLOATS = st.one_of(
    st.sampled_from([0.0, -0.0, 1.5, 1.5, math.inf, -math.inf, math.nan, 5e-324]), st.floats()
)
INTEGERS = st.one_of(st.integers(-2, 2), st.integers(-(2**63), 2**63 - 1))


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Draw documents, of which some have equal ids, equal values or no value."""
    n_rows = draw(st.integers(0, 30))
    is_float = draw(st.booleans())
    numbers = FLOATS if is_float else INTEGERS
    values = draw(st.lists(st.none() | numbers, min_size=n_rows, max_size=n_rows))
    ids = draw(st.lists(st.none() | st.integers(0, 20), min_size=n_rows, max_size=n_rows))
    tokens = draw(st.lists(st.integers(0, 40), min_size=n_rows, max_size=n_rows))
    table = documents_table(n_rows)
    changes = {
        "id": pa.array([None if number is None else f"id-{number}" for number in ids], pa.string()),
        "tokens": pa.array(tokens, pa.int32()),
        "score": pa.array(values, pa.float64() if is_float else pa.int64(), from_pandas=False),
    }
    for name, column in changes.items():
        table = table.set_column(table.schema.get_field_index(name), name, column)
    return table


@st.composite
def tops(draw: st.DrawFn) -> Top:
    """Draw a rule by the column `score`."""
    ascending = draw(st.booleans())
    if draw(st.booleans()):
        share = draw(st.sampled_from([0.0, 0.29, 0.5, 1.0]))
        return Top("v", "score", "documents", share=share, ascending=ascending)
    unit = draw(st.sampled_from(["documents", "tokens"]))
    return Top("v", "score", unit, limit=draw(st.integers(0, 200)), ascending=ascending)


@given(table=tables(), top=tops())
def test_top_takes_the_documents_that_a_loop_over_sorted_documents_takes(
    tmp_path_factory, table, top
):
    selection = select_one(table, [top], tmp_path_factory.mktemp("scratch"))

    assert sorted(numbers_of(selection)) == sorted(choose_slowly(table, Rule((top,))))


ENGLISH = where_step("lang = 'en'")
TOP = Top("v", "score", "tokens", limit=700)
OTHER_STEPS = [
    pytest.param([ENGLISH, TOP], id="after where"),
    pytest.param([HashSplit("v", "id", 0.1, 1.0), TOP], id="after split"),
    pytest.param([TOP, Budget("v", "documents", 20)], id="before a budget"),
    pytest.param([Repeat("v", 2.5), TOP], id="after repeat"),
    pytest.param([TOP, Repeat("v", 2.5)], id="before repeat"),
    pytest.param([TOP, ENGLISH], id="before where"),
    pytest.param([TOP, Top("w", "tokens", "documents", share=0.5)], id="before another top"),
]


@pytest.mark.parametrize("steps", OTHER_STEPS)
def test_top_combines_with_other_rules(steps, tmp_path):
    table = documents_table(300)

    selection = select_one(table, steps, tmp_path)

    chosen = sorted(numbers_of(selection))
    assert chosen == sorted(choose_slowly(table, Rule(tuple(steps))))
    assert 0 < len(set(chosen)) < 300


@pytest.mark.parametrize("unit", ["documents", "tokens"])
def test_the_documents_of_a_smaller_top_are_among_those_of_a_larger_one(unit, tmp_path):
    table = documents_table(500)
    rules = [Rule((Top("v", "quality", unit, limit=limit),)) for limit in (50, 100, 200)]

    selections = select(shards_of(table, 64), rules, tmp_path)

    small, medium, large = (set(numbers_of(selection)) for selection in selections)
    assert small < medium < large


def test_appended_documents_bring_no_earlier_one_into_a_top(tmp_path):
    """Better documents that are appended push out the worst ones that were chosen before."""
    (tmp_path / "before").mkdir()
    (tmp_path / "after").mkdir()
    table = documents_table(320)

    before = set(numbers_of(select_one(table.slice(0, 200), [TOP], tmp_path / "before")))
    after = set(numbers_of(select_one(table, [TOP], tmp_path / "after")))

    remaining = {number for number in after if number < 200}
    assert remaining < before


# What is reported


def result_of(scores: Sequence[float | None], top: Top, scratch: Path) -> Any:
    """Return what a rule reports of documents with some scores and a token each."""
    table = documents_table(len(scores))
    columns = {"score": pa.array(scores, pa.float64()), "tokens": [1] * len(scores)}
    for name, values in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(values))
    return select_one(table, [top], scratch).tops[0]


def test_documents_without_a_value_are_counted(tmp_path):
    scores = [None, 1.0, math.nan, None, 2.0]

    result = result_of(scores, Top("v", "score", "documents", limit=9), tmp_path)

    assert (result.counts.nulls, result.counts.nans) == (2, 1)


def test_the_cut_is_the_value_at_which_the_documents_no_longer_fit(tmp_path):
    scores = [1.0, 2.0, 2.0, 2.0, 3.0]

    result = result_of(scores, Top("v", "score", "documents", limit=3), tmp_path)

    assert result.cut == 2.0
    assert (result.tied.documents, result.tied.chosen) == (3, 2)


def test_there_is_no_cut_if_all_documents_fit(tmp_path):
    result = result_of([1.0, None], Top("v", "score", "documents", limit=1), tmp_path)

    assert result.cut is None


def test_the_histogram_counts_all_documents_and_those_that_are_chosen(tmp_path):
    generator = np.random.default_rng(0)
    scores = generator.normal(0, 9, 400).tolist()

    result = result_of(scores, Top("v", "score", "documents", limit=100), tmp_path)

    assert sum(row.amounts[0] for row in result.bins) == 400
    assert sum(row.amounts[2] for row in result.bins) == 100
    for row in result.bins:
        start = -math.inf if row.start is None else row.start
        stop = math.inf if row.stop is None else row.stop
        n_inside = sum(start <= score < stop for score in scores)
        n_chosen = sum(start <= score < stop for score in sorted(scores)[300:])
        assert (row.amounts[0], row.amounts[2]) == (n_inside, n_chosen)


# Views of a project

SETTINGS = {
    "documents": {"columns": ["quality", "lang"]},
    "views": {
        "best": {"of": "web", "top": {"by": "quality", "documents": 30}},
        "plain": {"of": "web"},
    },
}
ROWS = []
for number in range(100):
    quality = None if number % 10 == 9 else number % 7 + 0.5
    ROWS.append({"text": f"text {number}", "id": str(number), "quality": quality, "lang": "en"})


def build_web(folder: Path, tokenizer_file: Path, rows: Any, settings: Any) -> Project:
    """Build the dataset and the columns of a corpus of some documents."""
    file = write_corpus(folder / "project", tokenizer_file, settings)
    raw = file.parent / "raw" / "web"
    for path in raw.iterdir():
        path.unlink()
    (raw / "a.jsonl").write_bytes(jsonl(rows))
    project = open_project(file)
    make_corpora(project, "web")
    make_columns(project, "web")
    return project


def view_with(project: Project, top: dict[str, Any]) -> Project:
    """Return a project whose view `best` has another rule `top`."""
    values = json.loads(project.config.file.read_text())
    values["views"]["best"]["top"] = top
    file = project.config.file.parent / "changed.yaml"
    file.write_text(json.dumps(values))
    return open_project(file)


@pytest.fixture(scope="module")
def built_project(tmp_path_factory, tokenizer_file) -> Project:
    """A project with a view of the best documents; tests must not write to it."""
    project = build_web(tmp_path_factory.mktemp("top"), tokenizer_file, ROWS, SETTINGS)
    make_view(project, "best")
    return project


def test_a_view_holds_the_best_documents(built_project):
    qualities = {row["id"]: row["quality"] for row in ROWS}
    chosen = [qualities[origin.id] for origin in origins(built_project, "best")]

    scored = [quality for quality in qualities.values() if quality is not None]
    assert sorted(chosen) == sorted(scored)[-30:]


def test_a_view_of_the_best_documents_passes_verification(built_project):
    assert verify_view(built_project, "web", "best", deep=True).passed


def test_the_rule_is_in_the_recipe_only_of_the_view_that_has_it(built_project):
    make_view(built_project, "plain")

    options_of_best = current_dataset(built_project, "best").recipe["options"]
    options_of_plain = current_dataset(built_project, "plain").recipe["options"]
    assert options_of_best == {
        "of": [],
        "views.best.top.by": "quality",
        "views.best.top.documents": 30,
    }
    assert options_of_plain == {"of": []}


def test_another_budget_makes_the_view_stale(built_project):
    project = view_with(built_project, {"by": "quality", "documents": 31})

    graph = graph_of(project)

    assert graph.stale_reasons(node_at("views/best", of="web"))


def test_the_command_prints_the_histogram_and_the_cut(built_project):
    output = output_of("view", "best", "-c", built_project.config.file)

    [top] = current_dataset(built_project, "best").facts[TOPS]
    assert "top 30 documents by quality" in output
    assert cut_text(top) in " ".join(output.split())
    for row in top_rows(top):
        assert row.values in output
        assert row.bar in output


def test_the_command_prints_the_facts_of_the_view_as_json(built_project):
    values = json_of("view", "best", "-c", built_project.config.file, "--json")

    assert values[TOPS] == current_dataset(built_project, "best").facts[TOPS]


def test_the_page_of_the_view_shows_the_histogram_and_the_cut(built_project):
    view = current_dataset(built_project, "best")
    [top] = view.facts[TOPS]

    metadata = view_metadata(built_project, view)

    assert "the cut is at" in metadata["summary"].md_str
    shown = [record.data["value"] for record in metadata["top"].records]
    assert shown == [row.values for row in top_rows(top)]


def test_documents_without_a_value_are_a_row_of_the_histogram(built_project):
    [top] = current_dataset(built_project, "best").facts[TOPS]

    last_row = top_rows(top)[-1]

    assert (last_row.values, last_row.documents, last_row.chosen) == ("null", 10, 0)


def test_a_top_that_lacks_documents_with_a_value_is_warned_of(built_project):
    project = view_with(built_project, {"by": "quality", "documents": 95})

    warnings = VIEW.show(project, make_view(project, "best")).warnings

    assert list(warnings) == [
        "`top` of 95 documents holds 90: 10 documents without a value of quality cannot be chosen"
    ]


@pytest.mark.parametrize(
    ("top", "message"),
    [
        pytest.param({"by": "lang", "documents": 3}, "ranks documents by numbers", id="texts"),
        pytest.param({"by": "file", "documents": 3}, "ranks documents by numbers", id="files"),
        pytest.param({"by": "qualty", "documents": 3}, "no such column", id="unknown column"),
        pytest.param({"by": "quality"}, "has one budget", id="no budget"),
        pytest.param(
            {"by": "quality", "documents": 3, "share": 0.1}, "has one budget", id="two budgets"
        ),
    ],
)
def test_an_impossible_top_is_refused(built_project, top, message):
    with pytest.raises(ConfigError, match=message):
        make_view(view_with(built_project, top), "best")


def test_a_misspelt_column_is_corrected(built_project):
    project = view_with(built_project, {"by": "qualty", "documents": 3})

    with pytest.raises(ConfigError, match=r"did you mean 'quality'\?"):
        make_view(project, "best")


def test_a_long_document_that_ends_a_top_is_reported(tmp_path, tokenizer_file):
    rows = [{"text": "word " * 500, "id": "long", "quality": 2}]
    rows += [{"text": "word", "id": str(number), "quality": 3} for number in range(9)]
    settings = {
        "documents": {"columns": ["quality"]},
        "views": {"best": {"of": "web", "top": {"by": "quality", "tokens": 400}}},
    }
    project = build_web(tmp_path, tokenizer_file, rows, settings)

    view = make_view(project, "best")

    [gap] = view.facts[GAPS]
    assert gap["place"].endswith("id 'long'")
    assert gap["reached"] == view.facts["tokens"]


def test_a_column_without_values_chooses_nothing(tmp_path, tokenizer_file):
    rows = [{"text": "word", "quality": None}]
    settings = {
        "documents": {"columns": ["quality"]},
        "views": {"best": {"of": "web", "top": {"by": "quality", "share": 0.5}}},
    }
    project = build_web(tmp_path, tokenizer_file, rows, settings)

    view = make_view(project, "best")

    assert view.facts["documents"] == 0
    assert view.facts[TOPS][0]["nulls"] == 1
