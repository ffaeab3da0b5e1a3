"""The values of a corpus's columns: quantiles, histograms, and the most frequent values."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.building import make_attributes, make_columns, make_corpora, open_project
from helpers.command import invoke_nanoset, json_of, output_of
from helpers.inspecting import current_output, read_dataset
from helpers.sample_project import jsonl, write_corpus
from nanoset_assets.ui import columns as columns_page
from nanoset_core.errors import ConfigError
from nanoset_core.project.columns.rows import column_rows, value_rows
from nanoset_core.project.columns.statistics import QUANTILES, corpus_columns
from nanoset_core.project.project import Project

N_ROWS = 400
SETTINGS = {
    "tokenization": {"workers": 1},
    "documents": {"columns": ["score", "stars", "lang", "url", "seen", "empty"]},
    "attributes": {"web": "grades.parquet"},
    "views": {"all": {"of": "web"}},
}


def random_rows() -> list[dict[str, Any]]:
    """Return documents with columns of every type, of which some have no value."""
    generator = random.Random(7)
    rows: list[dict[str, Any]] = []
    for number in range(N_ROWS):
        rows.append(
            {
                "id": f"doc-{number}",
                "text": "word " * generator.randrange(1, 30),
                "score": generator.choice([None, generator.gauss(0, 9)]),
                "stars": generator.randrange(6),
                "lang": generator.choice(["en", " en", "de", "", "null", None]),
                "url": f"https://{number}",
                "seen": generator.choice([True, False]),
                "empty": None,
            }
        )
    return rows


ROWS = random_rows()


def write_web(folder: Path, tokenizer_file: Path, settings: Mapping[str, Any]) -> Project:
    """Write a project of one corpus of four files, with a table of grades."""
    file = write_corpus(folder, tokenizer_file, settings)
    raw = folder / "raw" / "web"
    for path in raw.iterdir():
        path.unlink()
    for number in range(4):
        rows = ROWS[100 * number : 100 * number + 100]
        (raw / f"{number}.jsonl").write_bytes(jsonl(rows))
    grades = {"id": [row["id"] for row in ROWS], "grade": [row["stars"] / 2 for row in ROWS]}
    pq.write_table(pa.table(grades), folder / "grades.parquet")
    return open_project(file)


def build_columns(project: Project) -> None:
    """Build the corpus, its columns and its attributes."""
    make_corpora(project, "web")
    make_columns(project, "web")
    make_attributes(project, "web")


@pytest.fixture(scope="module")
def project(tmp_path_factory, tokenizer_file) -> Project:
    """A corpus of several shards whose columns and attributes are built; not to be written to."""
    folder = tmp_path_factory.mktemp("statistics") / "project"
    project = write_web(folder, tokenizer_file, SETTINGS)
    build_columns(project)
    return project


@pytest.fixture(scope="module")
def token_counts(project) -> list[int]:
    """Tokens of each document."""
    dataset = read_dataset(project, "web")
    return [len(tokens) for tokens in dataset[0 : len(dataset)]]


@pytest.fixture(scope="module")
def statistics(project) -> Mapping[str, Any]:
    """The statistics of each column, by its name."""
    return {column.name: column for column in corpus_columns(project, "web").columns}


def values_of(column: str) -> list[Any]:
    """Return the values of a column of all documents that have one."""
    return [row[column] for row in ROWS if row[column] is not None]


# What is computed


def test_the_columns_are_those_of_all_documents_and_those_that_were_built(statistics):
    columns = SETTINGS["documents"]["columns"]

    assert list(statistics) == ["file", "id", "tokens", *columns, "grade"]


def test_each_column_has_the_type_in_which_it_is_stored(statistics):
    types = {name: column.type for name, column in statistics.items()}

    assert types["score"] == "double"
    assert types["stars"] == "int64"
    assert types["lang"] == "string"
    assert types["seen"] == "bool"
    assert types["empty"] == "null"


@pytest.mark.parametrize("column", SETTINGS["documents"]["columns"])
def test_nulls_and_distinct_values_are_counted(statistics, token_counts, column):
    values = values_of(column)
    null_tokens = 0
    for row, n_tokens in zip(ROWS, token_counts, strict=True):
        if row[column] is None:
            null_tokens += n_tokens

    assert statistics[column].nulls == N_ROWS - len(values)
    assert statistics[column].null_tokens == null_tokens
    assert statistics[column].distinct == len(set(values))
    assert statistics[column].is_distinct_exact


@pytest.mark.parametrize("column", ["score", "stars"])
def test_quantiles_are_values_of_the_sorted_column(statistics, column):
    values = sorted(values_of(column))

    numbers = statistics[column].numbers

    assert (numbers.minimum, numbers.maximum) == (values[0], values[-1])
    for quantile in QUANTILES:
        rank = math.floor(float(quantile) * (len(values) - 1))
        assert numbers.quantiles[quantile] == values[rank]


def test_the_histogram_of_numbers_counts_documents_and_tokens(statistics, token_counts):
    tokens_by_value: Counter[int] = Counter()
    for row, n_tokens in zip(ROWS, token_counts, strict=True):
        tokens_by_value[row["stars"]] += n_tokens
    documents_by_value = Counter(values_of("stars"))

    bins = statistics["stars"].numbers.bins

    assert [histogram_bin.label for histogram_bin in bins] == ["0", "1", "2", "3", "4", "5"]
    for value, histogram_bin in enumerate(bins):
        assert histogram_bin.amounts == (documents_by_value[value], tokens_by_value[value])


@pytest.mark.parametrize("column", ["lang", "seen"])
def test_the_most_frequent_values_have_documents_and_tokens(statistics, token_counts, column):
    counts: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for row, n_tokens in zip(ROWS, token_counts, strict=True):
        if row[column] is not None:
            text = row[column] if column == "lang" else str(row[column]).lower()
            counts[text] += 1
            tokens[text] += n_tokens

    values = statistics[column].values

    shown = {value.value: (value.documents, value.tokens) for value in values}
    assert shown == {text: (counts[text], tokens[text]) for text in counts}
    documents = [value.documents for value in values]
    assert documents == sorted(documents, reverse=True)


def test_attributes_are_columns_too(statistics):
    assert statistics["grade"].numbers.maximum == max(values_of("stars")) / 2


def test_statistics_of_a_corpus_in_a_bucket_are_those_of_a_local_one(
    project, tmp_path, tokenizer_file, bucket
):
    settings = SETTINGS | {"root": bucket.url(), "storage": {"endpoint_url": bucket.endpoint_url}}
    stored_project = write_web(tmp_path / "project", tokenizer_file, settings)

    build_columns(stored_project)

    assert corpus_columns(stored_project, "web") == corpus_columns(project, "web")


# Rows


def test_unique_values_are_one_row(project):
    corpus = corpus_columns(project, "web", ["url"])
    [url] = corpus.columns

    [row] = value_rows(corpus, url)

    assert row.value == f"{N_ROWS} values"
    assert row.documents == str(N_ROWS)


@pytest.mark.parametrize("column", ["score", "stars", "lang", "url", "seen", "empty"])
def test_the_rows_of_a_column_count_every_document_once(project, token_counts, column):
    corpus = corpus_columns(project, "web", [column], n_values=1)
    [statistics_of_column] = corpus.columns

    rows = value_rows(corpus, statistics_of_column)

    assert sum(int(row.documents) for row in rows) == N_ROWS
    assert sum(row.tokens for row in rows) == sum(token_counts)


def test_the_text_null_differs_from_documents_without_a_value(project):
    corpus = corpus_columns(project, "web", ["lang"])
    [lang] = corpus.columns

    labels = [row.value for row in value_rows(corpus, lang)]

    assert "'null'" in labels
    assert labels.count("null") == 1


def test_a_text_with_spaces_at_an_end_is_quoted(project):
    corpus = corpus_columns(project, "web", ["lang"])
    [lang] = corpus.columns

    labels = [row.value for row in value_rows(corpus, lang)]

    assert "' en'" in labels
    assert "en" in labels


# The command and the page


def test_the_command_says_that_nulls_of_numbers_may_be_nan_or_infinite(project):
    outcome = invoke_nanoset(["columns", "web", "-c", project.config.file])

    assert "null in score: there is no value, or it is NaN or infinite" in outcome.output


def test_the_command_prints_all_columns_and_their_values(project):
    corpus = corpus_columns(project, "web")

    output = output_of("columns", "web", "-c", project.config.file)

    for row in column_rows(corpus.columns):
        assert row.column in output
        assert row.median in output
    for column in corpus.columns:
        for value_row in value_rows(corpus, column):
            assert value_row.value in output


def test_the_command_prints_one_column_if_it_is_named(project):
    output = output_of("columns", "web", "--column", "lang", "-c", project.config.file)

    assert "lang" in output
    assert "stars" not in output


def test_the_command_prints_json(project, statistics):
    values = json_of("columns", "web", "-c", project.config.file, "--json")

    assert values["documents"] == N_ROWS
    by_name = {column["name"]: column for column in values["columns"]}
    assert by_name["stars"]["quantiles"] == statistics["stars"].numbers.quantiles
    assert by_name["lang"]["values"] == [value._asdict() for value in statistics["lang"].values]


def test_a_misspelt_column_is_corrected(project):
    with pytest.raises(ConfigError, match=r"did you mean 'stars'\?"):
        corpus_columns(project, "web", ["star"])


def test_a_column_that_was_not_built_is_refused_with_the_command_that_builds_it(
    tmp_path, tokenizer_file
):
    settings = {"tokenization": {"workers": 1}, "documents": {"columns": ["lang"]}}
    project = write_web(tmp_path / "project", tokenizer_file, settings)
    make_corpora(project, "web")

    with pytest.raises(ConfigError, match="has not been built"):
        corpus_columns(project, "web", ["lang"])


def test_a_misspelt_corpus_is_corrected(project):
    with pytest.raises(ConfigError, match=r"did you mean 'web'\?"):
        corpus_columns(project, "wep")


def test_a_view_is_refused_with_the_name_of_its_corpus(project):
    with pytest.raises(ConfigError, match="run `nanoset columns web`"):
        corpus_columns(project, "all")


def test_columns_that_were_not_built_are_named(tmp_path, tokenizer_file):
    settings = SETTINGS | {"documents": {"columns": ["lang"]}}
    project = write_web(tmp_path / "project", tokenizer_file, settings)
    make_corpora(project, "web")

    statistics = corpus_columns(project, "web")

    assert [column.name for column in statistics.columns] == ["file", "id", "tokens"]
    assert statistics.unbuilt == ["lang", "attributes of web"]


def test_the_page_shows_statistics_and_the_values_of_each_column(project):
    manifest = current_output(project, "columns/web")

    metadata = columns_page.columns_metadata(
        manifest, columns_page.page_statistics(project, manifest)
    )

    names = [record.data["column"] for record in metadata["statistics"].records]
    assert names == SETTINGS["documents"]["columns"]
    values = [record.data["value"] for record in metadata["values of stars"].records]
    assert values == ["0", "1", "2", "3", "4", "5"]


def test_the_page_of_a_large_corpus_names_the_command(project, monkeypatch):
    monkeypatch.setattr(columns_page, "MAX_VALUES", N_ROWS)
    manifest = current_output(project, "columns/web")

    metadata = columns_page.columns_metadata(
        manifest, columns_page.page_statistics(project, manifest)
    )

    assert "nanoset columns web" in metadata["values"]
    assert "statistics" not in metadata
