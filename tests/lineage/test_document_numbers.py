"""The document numbers that `nanoset explain` prints are rows of the corpus's tables.

This holds whether a nanoset reads the corpus itself, a view of it, packs, or packs of a view.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from helpers.building import (
    make_corpora,
    make_handoff,
    make_nanoset,
    make_packs,
    make_view,
    make_webdataset,
)
from helpers.command import json_of, output_of
from helpers.inspecting import current_dataset, current_shards, lineage_of, read_dataset
from helpers.sample_project import write_project
from nanoset_core import load_nanoset
from nanoset_core.errors import MissingError
from nanoset_core.lineage.explain import explain_sample
from nanoset_core.lineage.find import find_document
from nanoset_core.lineage.run import explain_step
from nanoset_core.lineage.webdataset import explain_context
from nanoset_core.project.project import Project

MIN_TOKENS = 30
"""The view `long` leaves out shorter documents."""
REPLACEMENTS = {
    "nanosets:\n": f"""\
views:
  long: {{of: web, where: "tokens >= {MIN_TOKENS}"}}
  some: {{of: long, tokens: 3e3, repeat: 2, order: {{seed: 3}}}}
packs:
  packed-web: {{of: web, length: 32}}
  packed-some: {{of: some, length: 32}}
  packed-tars: {{of: some, length: 33}}
nanosets:
""",
    "blend: {web: 0.7, code: 0.3}": "blend: {long: 0.3, some: 0.3, packed-web: 0.2, packed-some: 0.2}",
    "blend: books": "blend: long",
    "corpora: [web, code, books]": "corpora: [code, some, packed-tars]",
    "groups: 3": "groups: 1",
}
"""Changes of the sample project, so that it reads views, a view of a view, packs and packs of views.
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory, tokenizer_file) -> Project:
    """A project with nanosets and a webdataset over views and packs."""
    folder = tmp_path_factory.mktemp("numbers") / "project"
    project = Project.open(write_project(folder, tokenizer_file, REPLACEMENTS))
    make_corpora(project)
    for name in project.config.views:
        make_view(project, name)
    for name in project.config.packs:
        make_packs(project, name)
    for name in ("pretrain", "plain"):
        make_nanoset(project, name)
        make_handoff(project, name)
    make_webdataset(project, "shuffled")
    return project


@pytest.fixture(scope="module")
def tables(project) -> dict[str, pa.Table]:
    """Corpus → its table of documents: those of its shards, concatenated."""
    tables = {}
    for corpus in ("web", "code"):
        shards = current_shards(project, corpus)
        paths = [shard.path("documents.parquet") for shard in shards]
        tables[corpus] = pa.concat_tables([pq.read_table(path) for path in paths])
    return tables


def check_origin(project, tables, origin):
    """Check that a document is the row of the corpus's table, and has the corpus's tokens."""
    row = tables[origin.corpus].slice(origin.document, 1).to_pylist()[0]
    assert row["id"] == origin.id
    assert row["tokens"] == origin.tokens

    if origin.view is not None:
        tokens_in_corpus = read_dataset(project, origin.corpus)[origin.document]
        tokens_in_view = read_dataset(project, origin.view)[origin.view_document]
        assert np.array_equal(tokens_in_view, tokens_in_corpus)


# Samples, contexts and steps


def test_the_documents_of_a_sample_are_rows_of_the_corpus(project, tables):
    n_samples = len(load_nanoset(project.outputs, "pretrain", "train"))
    datasets_and_views = set()

    for sample in range(0, n_samples, 11):
        explained = explain_sample(project, "pretrain", "train", sample)
        for piece in explained.pieces:
            check_origin(project, tables, piece.origin)
            datasets_and_views.add((explained.corpus, piece.origin.view))

    # The samples that were looked at are from every dataset of the blend.
    assert datasets_and_views == {
        ("long", "long"),
        ("some", "some"),
        ("packed-web", None),
        ("packed-some", "some"),
    }


def test_the_documents_of_a_context_are_rows_of_the_corpus(project, tables):
    datasets_and_views = set()

    for position in range(60):
        explained = explain_context(project, "shuffled", position)
        for piece in explained.pieces:
            check_origin(project, tables, piece.origin)
            datasets_and_views.add((explained.corpus, piece.origin.view))

    # The contexts that were looked at are from every dataset of the webdataset.
    assert {("code", None), ("some", "some"), ("packed-tars", "some")} <= datasets_and_views


def test_the_documents_of_a_step_are_rows_of_the_corpus(project, tables, tmp_path):
    run_file = tmp_path / "run.yaml"
    run_file.write_text(f"""\
handoff: {project.outputs.folder}/nanosets/pretrain/handoff/current
data_parallel_size: 2
micro_batch_size: 4
global_batch_size: 40
""")

    for sample in explain_step(project, run_file, 2).samples:
        for piece in sample.pieces:
            check_origin(project, tables, piece.origin)


# Search by number


@pytest.mark.parametrize(
    ("name", "split"), [("pretrain", "train"), ("plain", "train"), ("shuffled", None)]
)
def test_a_document_is_found_by_its_number_in_the_corpus(project, tables, name, split):
    for number in range(0, tables["web"].num_rows, 41):
        identity = tables["web"].column("id")[number].as_py()
        try:
            places_by_id = find_document(project, name, split, identity=identity)
        except MissingError:
            # Neither search finds a document that the views leave out.
            with pytest.raises(MissingError, match=f"has it as document {number}, but view"):
                find_document(project, name, split, number=number, corpus="web")
            continue

        places_by_number = find_document(project, name, split, number=number, corpus="web")
        assert places_by_number == places_by_id
        assert {place.origin.document for place in places_by_id} == {number}


def test_a_view_that_repeats_a_document_numbers_each_copy(project):
    view = current_dataset(project, "some")  # it has each document twice
    document = lineage_of(project, view).origins([0])[0]

    places = find_document(project, "shuffled", identity=document.id, corpus="some")

    assert {place.origin.document for place in places} == {document.document}
    assert len({place.origin.view_document for place in places}) == 2


def test_the_error_names_the_view_that_leaves_a_document_out(project, tables):
    is_short = pc.less(tables["web"].column("tokens"), MIN_TOKENS)
    number = pc.index(is_short, True).as_py()
    identity = tables["web"].column("id")[number].as_py()
    message = f"corpus web has it as document {number}, but view long does not choose it"

    with pytest.raises(MissingError, match=message):
        find_document(project, "plain", "train", number=number)
    with pytest.raises(MissingError, match=message):
        find_document(project, "plain", "train", identity=identity)


# The command


def explain(project, *arguments) -> str:
    """Return what `nanoset explain` prints."""
    return output_of("explain", *arguments, "--config", project.config.file)


def explain_json(project, *arguments):
    """Return the JSON that `nanoset explain` prints."""
    return json_of("explain", *arguments, "--json", "--config", project.config.file)


def test_the_command_names_the_corpus_and_the_view_of_a_number(project):
    origin = explain_json(project, "plain", "train", "5")["pieces"][0]["origin"]
    number = origin["document"]
    number_in_view = origin["view_document"]
    assert number != number_in_view, "the numbers must differ for this test to show anything"

    text = explain(project, "plain", "train", "5")

    assert f"document {number} of corpus web (document {number_in_view} of view long)" in text


def test_the_number_that_the_command_prints_finds_the_document(project):
    origin = explain_json(project, "plain", "train", "5")["pieces"][0]["origin"]

    places = explain_json(project, "plain", "train", "--number", origin["document"])

    assert [place["origin"] for place in places] == [origin]


def test_the_command_names_no_view_for_a_document_that_is_read_from_its_corpus(project):
    (place,) = explain_json(project, "shuffled", "--document", "code-7")
    text = explain(project, "shuffled", "--document", "code-7")

    assert place["origin"]["document"] == 7
    assert place["origin"]["view"] is None
    assert "document 7 of corpus code, " in text
