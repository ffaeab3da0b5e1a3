"""Numbers of documents that `explain` gives: rows of the corpus's tables, whatever views and packs
are read.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
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
from helpers.command import invoke_nanoset
from helpers.inspecting import current_dataset, current_shards, lineage_of, read_dataset
from helpers.sample_project import write_project
from nanoset_core import load_nanoset
from nanoset_core.errors import MissingError
from nanoset_core.lineage.explain import explain_sample
from nanoset_core.lineage.find import find_document
from nanoset_core.lineage.run import explain_step
from nanoset_core.lineage.webdataset import explain_context
from nanoset_core.project.project import Project

CHANGES = {
    "nanosets:\n": """\
views:
  long: {of: web, where: "tokens >= 30"}
  some: {of: long, tokens: 3e3, repeat: 2, order: {seed: 3}}
packs:
  packed-web: {of: web, length: 32}
  packed-some: {of: some, length: 32}
  packed-tars: {of: some, length: 33}
nanosets:
""",
    "blend: {web: 0.7, code: 0.3}": "blend: {long: 0.3, some: 0.3, packed-web: 0.2, packed-some: 0.2}",
    "blend: books": "blend: long",
    "corpora: [web, code, books]": "corpora: [code, some, packed-tars]",
    "groups: 3": "groups: 1",
}
"""Names of nanosets and webdatasets of the sample project over views, a view of a view, packs and
packs of views.
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory, tokenizer_file) -> Project:
    file = write_project(tmp_path_factory.mktemp("numbers") / "project", tokenizer_file, CHANGES)
    project = Project.open(file)
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
    """Corpus → its table of documents: those of its shards in sequence."""
    tables = {}
    for corpus in ("web", "code"):
        shards = current_shards(project, corpus)
        paths = [shard.path("documents.parquet") for shard in shards]
        tables[corpus] = pa.concat_tables([pq.read_table(path) for path in paths])
    return tables


def check_origin(project, tables, origin):
    """The row of the tables is that of the document, and the view's document has the corpus's
    tokens.
    """
    row = tables[origin.corpus].slice(origin.document, 1).to_pylist()[0]
    assert (row["id"], row["tokens"]) == (origin.id, origin.tokens)
    whole = read_dataset(project, origin.corpus)
    if origin.view is not None:
        view = read_dataset(project, origin.view)
        assert np.array_equal(view[origin.view_document], whole[origin.document])


def test_a_samples_documents_are_rows_of_the_corpus(project, tables):
    seen = set()
    for sample in range(0, len(load_nanoset(project.outputs, "pretrain", "train")), 3):
        found = explain_sample(project, "pretrain", "train", sample)
        for piece in found.pieces:
            check_origin(project, tables, piece.origin)
            seen.add((found.corpus, piece.origin.view))
    assert seen == {
        ("long", "long"),
        ("some", "some"),
        ("packed-web", None),
        ("packed-some", "some"),
    }


def test_a_tars_documents_are_rows_of_the_corpus(project, tables):
    seen = set()
    for position in range(0, 60):
        found = explain_context(project, "shuffled", position)
        for piece in found.pieces:
            check_origin(project, tables, piece.origin)
            seen.add((found.corpus, piece.origin.view))
    assert {("code", None), ("some", "some"), ("packed-tars", "some")} <= seen


def test_a_steps_documents_are_rows_of_the_corpus(project, tables, tmp_path):
    file = tmp_path / "run.yaml"
    folder = project.outputs.folder
    sizes = "data_parallel_size: 2\nmicro_batch_size: 4\nglobal_batch_size: 40\n"
    file.write_text(f"handoff: {folder}/nanosets/pretrain/handoff/current\n{sizes}")
    for sample in explain_step(project, file, 2).samples:
        for piece in sample.pieces:
            check_origin(project, tables, piece.origin)


@pytest.mark.parametrize(
    ("name", "split"), [("pretrain", "train"), ("plain", "train"), ("shuffled", None)]
)
def test_a_document_is_found_by_its_number_in_the_corpus(project, tables, name, split):
    for number in range(0, tables["web"].num_rows, 17):
        identity = tables["web"].column("id")[number].as_py()
        try:
            by_id = find_document(project, name, split, identity=identity)
        except MissingError:
            with pytest.raises(MissingError, match=f"has it as document {number}, but view"):
                find_document(project, name, split, number=number, corpus="web")
            continue
        assert find_document(project, name, split, number=number, corpus="web") == by_id
        assert {place.origin.document for place in by_id} == {number}


def test_a_view_that_repeats_a_document_numbers_each_copy(project):
    repeated = current_dataset(project, "some")
    first = lineage_of(project, repeated).origins([0])[0]
    copies = [
        place.origin
        for place in find_document(project, "shuffled", identity=first.id, corpus="some")
    ]
    assert {origin.document for origin in copies} == {first.document}
    assert len({origin.view_document for origin in copies}) == 2


def test_what_a_view_leaves_out_is_explained(project, tables):
    short = next(
        row
        for row in range(tables["web"].num_rows)
        if tables["web"].column("tokens")[row].as_py() < 30
    )
    expected = f"corpus web has it as document {short}, but view long does not choose it"
    with pytest.raises(MissingError, match=expected):
        find_document(project, "plain", "train", number=short)
    with pytest.raises(MissingError, match=expected):
        find_document(project, "plain", "train", identity=tables["web"].column("id")[short].as_py())


def run(project, *arguments: str) -> str:
    result = invoke_nanoset([*arguments, "-c", str(project.config.file)])
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_says_whose_numbers_it_prints(project):
    text = run(project, "explain", "plain", "train", "5")
    origin = json.loads(run(project, "explain", "plain", "train", "5", "--json"))["pieces"][0][
        "origin"
    ]
    assert origin["document"] != origin["view_document"], "or this test shows nothing"
    numbers = (
        f"document {origin['document']} of corpus web (document {origin['view_document']} of view "
        "long)"
    )
    assert numbers in text
    found = json.loads(
        run(project, "explain", "plain", "train", "--number", str(origin["document"]), "--json")
    )
    assert [place["origin"] for place in found] == [origin]


def test_the_numbers_of_a_corpus_have_no_view(project):
    found = json.loads(run(project, "explain", "shuffled", "--document", "code-7", "--json"))
    assert [(place["origin"]["document"], place["origin"]["view"]) for place in found] == [
        (7, None)
    ]
    assert "document 7 of corpus code, " in run(
        project, "explain", "shuffled", "--document", "code-7"
    )
