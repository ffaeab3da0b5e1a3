"""The datasets of a corpus, a view and packs answer the same questions."""

from __future__ import annotations

import gc
import weakref
from collections import Counter

import numpy as np
import pytest

from helpers.building import make_corpora, make_packs, make_view
from helpers.inspecting import current_dataset
from helpers.sample_project import write_project
from nanoset_core.errors import MissingError
from nanoset_core.project.project import Project
from nanoset_core.stages.datasets import Datasets, dataset_of

CHANGES = {
    "nanosets:\n": """\
views:
  short: {of: web, split: {keep: [0, 0.5]}}
  often: {of: short, repeat: 2.5, order: {seed: 3}}
packs:
  packed-web: {of: web, length: 32}
  packed-often: {of: often, length: 32, long: truncate}
nanosets:
"""
}
NAMES = ("web", "short", "often", "packed-web", "packed-often")


@pytest.fixture(scope="module")
def project(tmp_path_factory, tokenizer_file) -> Project:
    """A project with views and packs of them; not to be written to."""
    project = Project.open(
        write_project(tmp_path_factory.mktemp("faces") / "project", tokenizer_file, CHANGES)
    )
    make_corpora(project, "web")
    for name in project.config.views:
        make_view(project, name)
    for name in project.config.packs:
        make_packs(project, name)
    return project


@pytest.fixture(params=NAMES)
def dataset(request, project):
    return dataset_of(project.outputs, current_dataset(project, request.param))


def n_documents(dataset) -> int:
    """Documents of a dataset; of packs, those of what was packed."""
    return len(dataset.unpacked.index.document_indices) - 1


def document_tokens(corpus, document: int) -> np.ndarray:
    """The tokens of a document of a corpus."""
    first, stop = corpus.sequences.document_indices[document : document + 2].tolist()
    return np.concatenate([np.empty(0, corpus.sequences.dtype), *corpus.sequences[first:stop]])


def test_the_pieces_of_a_document_have_the_tokens_that_the_corpus_has(dataset):
    numbers = dataset.corpus_documents(np.arange(n_documents(dataset)))
    for document, number in enumerate(numbers.tolist()):
        expected = document_tokens(dataset.corpus, number)
        for piece in dataset.pieces_of(document):
            tokens = dataset.sequences[piece.sequence][piece.start : piece.stop]
            stop = piece.first + piece.stop - piece.start
            assert np.array_equal(tokens, expected[piece.first : stop])


def test_the_pieces_in_whole_sequences_are_the_pieces_of_all_documents(dataset):
    lengths = np.asarray(dataset.sequences.sequence_lengths, np.int64)
    sequences = np.arange(len(lengths))
    spans = np.column_stack([sequences, np.zeros_like(sequences), lengths])

    found = [piece for pieces in dataset.pieces_in(spans[lengths > 0]) for piece in pieces]

    expected = [
        piece for document in range(n_documents(dataset)) for piece in dataset.pieces_of(document)
    ]
    assert sorted(found) == sorted(piece for piece in expected if piece.stop > piece.start)


def test_only_pieces_with_tokens_in_a_span_are_in_it(dataset):
    spans = np.array([[0, 3, 5], [2, 0, 1]])
    for (sequence, start, stop), pieces in zip(
        spans.tolist(), dataset.pieces_in(spans), strict=True
    ):
        assert pieces
        for piece in pieces:
            assert piece.sequence == sequence
            assert piece.start < stop
            assert start < piece.stop


def test_copies_are_the_documents_with_a_number_in_the_corpus(dataset):
    numbers = dataset.corpus_documents(np.arange(n_documents(dataset)))
    for number in np.unique(numbers).tolist():
        if len(document_tokens(dataset.corpus, number)):
            assert dataset.copies_of(number).tolist() == np.flatnonzero(numbers == number).tolist()


def test_the_tokens_of_corpus_documents_are_those_of_their_pieces(dataset):
    rows = (1, len(dataset.sequences) - 1)
    numbers_counted = range(10, 50)
    expected = Counter()
    numbers = dataset.corpus_documents(np.arange(n_documents(dataset)))
    for document, number in enumerate(numbers.tolist()):
        for piece in dataset.pieces_of(document):
            if rows[0] <= piece.sequence < rows[1] and number in numbers_counted:
                expected[number] += piece.stop - piece.start

    counts = Counter()
    for listed in dataset.corpus_tokens(rows, numbers_counted):
        for number, count in zip(listed.documents.tolist(), listed.tokens.tolist(), strict=True):
            counts[number] += count

    assert +counts == +expected


def test_the_documents_in_sequences_are_those_with_a_piece_there(dataset):
    start, stop = 3, 9
    numbers = dataset.corpus_documents(np.arange(n_documents(dataset)))
    expected = set()
    for document, number in enumerate(numbers.tolist()):
        if any(start <= piece.sequence < stop for piece in dataset.pieces_of(document)):
            expected.add(number)

    found = np.concatenate(list(dataset.documents_in(start, stop)))

    assert set(found.tolist()) == expected


def test_the_chain_of_sources_ends_at_the_corpus(project):
    names = {}
    for name in NAMES:
        dataset = dataset_of(project.outputs, current_dataset(project, name))
        source = None if dataset.source is None else dataset.source.name
        names[name] = (dataset.kind, source, dataset.unpacked.name, dataset.corpus.name)

    assert names == {
        "web": ("corpus", None, "web", "web"),
        "short": ("view", "web", "short", "web"),
        "often": ("view", "web", "often", "web"),
        "packed-web": ("packs", "web", "web", "web"),
        "packed-often": ("packs", "often", "often", "web"),
    }


def test_padding_is_what_no_piece_of_a_pack_holds(dataset):
    padding = dataset.padding()
    if dataset.kind != "packs":
        assert padding is None
        return
    tokens = Counter()
    for document in range(n_documents(dataset)):
        for piece in dataset.pieces_of(document):
            tokens[piece.sequence] += piece.stop - piece.start
    assert padding.tolist() == [32 - tokens[pack] for pack in range(len(dataset.sequences))]


def test_each_version_is_opened_once(project):
    datasets = Datasets(project.outputs)
    packs = datasets.open(current_dataset(project, "packed-often"))
    corpus = datasets.open(current_dataset(project, "web"))

    assert packs.corpus is corpus
    assert datasets.at(corpus.sequences.prefix) is corpus


@pytest.mark.parametrize("name", NAMES)
def test_a_dataset_and_its_sources_are_closed_as_soon_as_nobody_uses_them(project, name):
    gc.disable()  # The garbage collector would also close them, but at an unpredictable time.
    try:
        dataset = dataset_of(project.outputs, current_dataset(project, name))
        assert len(dataset.corpus.sequences) > 0  # opens the files
        corpus = weakref.ref(dataset.corpus)

        del dataset

        assert corpus() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("name", NAMES)
def test_a_version_is_found_by_name_and_digest(project, name):
    manifest = current_dataset(project, name)

    assert (
        Datasets(project.outputs).version(name, manifest.digest, "it is gone").manifest.folder
        == manifest.folder
    )


def test_a_version_that_was_deleted_is_named(project):
    with pytest.raises(MissingError, match="it is gone"):
        Datasets(project.outputs).version("web", "0" * 20, "it is gone")
