"""The datasets of a corpus, a view and packs have one interface: documents, pieces and sources.

A piece of a document is where some of its tokens are: in a sequence of the dataset.
"""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pytest

from helpers.building import make_corpora, make_packs, make_view
from helpers.inspecting import current_dataset
from helpers.sample_project import jsonl, write_project
from nanoset_core.errors import MissingError
from nanoset_core.project.project import Project
from nanoset_core.stages.datasets import Datasets, dataset_of

PACK_LENGTH = 32
CHANGES = {
    "nanosets:\n": f"""\
views:
  short: {{of: web, split: {{keep: [0, 0.5]}}}}
  often: {{of: short, repeat: 2.5, order: {{seed: 3}}}}
packs:
  packed-web: {{of: web, length: {PACK_LENGTH}}}
  packed-often: {{of: often, length: {PACK_LENGTH}, long: truncate}}
nanosets:
"""
}
PACKS_NAMES = ["packed-web", "packed-often"]
NAMES = ["web", "short", "often", *PACKS_NAMES]


@pytest.fixture(scope="module")
def project(tmp_path_factory, tokenizer_file) -> Project:
    """A project with views and packs of them; not to be written to."""
    file = write_project(tmp_path_factory.mktemp("datasets") / "project", tokenizer_file, CHANGES)
    project = Project.open(file)
    make_corpora(project, "web")
    for name in project.config.views:
        make_view(project, name)
    for name in project.config.packs:
        make_packs(project, name)
    return project


@pytest.mark.parametrize(
    ("name", "selection"),
    [("web", "web"), ("short", "web/views"), ("packed-often", "web/packed-often")],
)
def test_the_error_for_a_missing_dataset_names_the_command_that_builds_it(
    name, selection, tmp_path, tokenizer_file
):
    project = Project.open(write_project(tmp_path / "project", tokenizer_file, CHANGES))

    with pytest.raises(MissingError, match=f"`nanoset build --select {selection}`"):
        current_dataset(project, name)


def open_current(project: Project, name: str) -> Any:
    """Open the current version of a dataset."""
    return dataset_of(project.outputs, current_dataset(project, name))


@pytest.fixture(params=NAMES)
def dataset(request, project) -> Any:
    """The dataset of a corpus, a view or packs."""
    return open_current(project, request.param)


def corpus_numbers(dataset: Any) -> list[int]:
    """Return the number in the corpus of each document; for packs, of those that were packed."""
    n_documents = len(dataset.unpacked.index.document_indices) - 1
    numbers: list[int] = dataset.corpus_documents(np.arange(n_documents)).tolist()
    return numbers


def document_tokens(corpus: Any, number: int) -> np.ndarray:
    """Return the tokens of a document of a corpus."""
    start, stop = corpus.sequences.document_indices[number : number + 2].tolist()
    # A document without sequences has no tokens.
    return np.concatenate([np.empty(0, corpus.sequences.dtype), *corpus.sequences[start:stop]])


class NumberedPiece(NamedTuple):
    """A piece of a document."""

    corpus_number: int
    """Number of the document in the corpus."""
    piece: Any

    @property
    def n_tokens(self) -> int:
        """How many tokens the piece has."""
        n_tokens: int = self.piece.stop - self.piece.start
        return n_tokens


def all_pieces(dataset: Any) -> list[NumberedPiece]:
    """Return the pieces of all documents of a dataset, one document after the other."""
    pieces = []
    for document, number in enumerate(corpus_numbers(dataset)):
        for piece in dataset.pieces_of(document):
            pieces.append(NumberedPiece(number, piece))
    return pieces


# Pieces


def test_a_piece_of_a_document_has_the_tokens_that_the_corpus_has(dataset):
    for number, piece in all_pieces(dataset):
        expected = document_tokens(dataset.corpus, number)
        stop = piece.first + piece.stop - piece.start

        tokens = dataset.sequences[piece.sequence][piece.start : piece.stop]

        assert np.array_equal(tokens, expected[piece.first : stop])


def test_the_tokens_of_a_document_are_those_that_the_corpus_has(dataset):
    for document, number in enumerate(corpus_numbers(dataset)):
        expected = document_tokens(dataset.corpus, number)
        n_tokens = sum(piece.stop - piece.start for piece in dataset.pieces_of(document))

        tokens = dataset.tokens_of(document)

        assert tokens.dtype == expected.dtype
        # Packs with `long: truncate` contain only the start of a long document.
        assert np.array_equal(tokens, expected[:n_tokens])


def test_an_empty_document_has_no_tokens(tmp_path, tokenizer_file):
    project = Project.open(write_project(tmp_path / "project", tokenizer_file))
    (tmp_path / "project/raw/new").mkdir()
    (tmp_path / "project/raw/new/a.jsonl").write_bytes(jsonl([{"text": ""}, {"text": "full"}]))
    make_corpora(project, "new")
    dataset = open_current(project, "new")

    empty = dataset.tokens_of(0)
    full = dataset.tokens_of(1)

    assert empty.shape == (0,)
    assert np.array_equal(full, dataset.sequences[0])


def test_the_pieces_in_all_sequences_are_the_pieces_of_all_documents(dataset):
    expected = [piece for _, piece in all_pieces(dataset) if piece.stop > piece.start]
    # (n_sequences, 3) each sequence as a whole: its number, start and stop
    lengths = np.asarray(dataset.sequences.sequence_lengths, np.int64)
    sequences = np.arange(len(lengths))
    spans = np.column_stack([sequences, np.zeros_like(sequences), lengths])

    pieces = []
    for pieces_in_span in dataset.pieces_in(spans[lengths > 0]):
        pieces += pieces_in_span

    assert sorted(pieces) == sorted(expected)


@pytest.mark.parametrize(
    ("sequence", "start", "stop"),
    [
        pytest.param(0, 3, 5, id="middle of a sequence"),
        pytest.param(2, 0, 1, id="start of a sequence"),
    ],
)
def test_the_pieces_in_a_span_have_tokens_there(dataset, sequence, start, stop):
    [pieces] = dataset.pieces_in(np.array([[sequence, start, stop]]))

    assert pieces
    for piece in pieces:
        assert piece.sequence == sequence
        assert piece.start < stop
        assert piece.stop > start


def test_the_pieces_in_several_spans_are_those_of_each_span(dataset):
    spans = np.array([[0, 3, 5], [2, 0, 1]])

    [first_pieces, second_pieces] = dataset.pieces_in(spans)

    assert [first_pieces] == list(dataset.pieces_in(spans[:1]))
    assert [second_pieces] == list(dataset.pieces_in(spans[1:]))


# Documents


@pytest.mark.parametrize("bounds", [(0.0, 0.4), (0.4, 0.5), (0.5, 0.5)], ids=str)
def test_the_documents_within_some_sequences_have_a_piece_there(dataset, bounds):
    n_sequences = len(dataset.sequences.sequence_lengths)
    start, stop = [int(bound * n_sequences) for bound in bounds]
    documents = np.arange(len(corpus_numbers(dataset)))[::-3]
    expected = []
    for document in documents.tolist():
        pieces = dataset.pieces_of(document)
        if any(start <= piece.sequence < stop and piece.stop > piece.start for piece in pieces):
            expected.append(document)

    within = dataset.documents_within(documents, start, stop)

    assert within.tolist() == expected


def test_the_pieces_of_packs_are_not_read_to_find_no_documents(project, monkeypatch):
    packs = open_current(project, next(iter(project.config.packs)))
    monkeypatch.setattr("nanoset_core.stages.packs.dataset.open_pieces", None)

    assert packs.documents_within(np.empty(0, np.int64), 0, 1).tolist() == []


def test_the_copies_of_a_document_are_the_documents_with_its_number_in_the_corpus(dataset):
    numbers = np.array(corpus_numbers(dataset))

    for number in np.unique(numbers).tolist():
        if len(document_tokens(dataset.corpus, number)) > 0:
            copies = dataset.copies_of(number)
            assert copies.tolist() == np.flatnonzero(numbers == number).tolist()


def test_the_tokens_of_corpus_documents_in_some_sequences_are_counted(dataset):
    sequences = (1, len(dataset.sequences) - 1)
    documents = range(10, 50)
    expected: Counter[int] = Counter()
    for numbered in all_pieces(dataset):
        is_in_sequences = sequences[0] <= numbered.piece.sequence < sequences[1]
        if is_in_sequences and numbered.corpus_number in documents:
            expected[numbered.corpus_number] += numbered.n_tokens

    counts: Counter[int] = Counter()
    for batch in dataset.corpus_tokens(sequences, documents):
        for number, n_tokens in zip(batch.documents.tolist(), batch.tokens.tolist(), strict=True):
            counts[number] += n_tokens

    # Counters are compared without documents that have no token there.
    assert +counts == +expected


def test_the_documents_in_some_sequences_are_those_with_a_piece_there(dataset):
    start = 3
    stop = 9
    expected = set()
    for number, piece in all_pieces(dataset):
        if start <= piece.sequence < stop:
            expected.add(number)

    numbers = np.concatenate(list(dataset.documents_in(start, stop)))

    assert set(numbers.tolist()) == expected


@pytest.mark.parametrize("name", PACKS_NAMES)
def test_the_padding_of_a_pack_is_what_no_piece_fills(project, name):
    dataset = open_current(project, name)
    n_tokens_by_pack: Counter[int] = Counter()
    for numbered in all_pieces(dataset):
        n_tokens_by_pack[numbered.piece.sequence] += numbered.n_tokens

    padding = dataset.padding()

    packs = range(len(dataset.sequences))
    assert padding.tolist() == [PACK_LENGTH - n_tokens_by_pack[pack] for pack in packs]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in PACKS_NAMES])
def test_corpora_and_views_have_no_padding(project, name):
    assert open_current(project, name).padding() is None


# Sources


@pytest.mark.parametrize(
    ("name", "kind", "source"),
    [
        ("web", "corpus", None),
        ("short", "view", "web"),
        # A view of a view has the tokens of the corpus.
        ("often", "view", "web"),
        ("packed-web", "packs", "web"),
        ("packed-often", "packs", "often"),
    ],
)
def test_a_dataset_knows_its_kind_and_what_it_is_of(project, name, kind, source):
    dataset = open_current(project, name)

    source_name = None if dataset.source is None else dataset.source.name

    assert dataset.kind == kind
    assert source_name == source


@pytest.mark.parametrize(
    ("name", "unpacked"),
    [
        ("web", "web"),
        ("short", "short"),
        ("often", "often"),
        ("packed-web", "web"),
        ("packed-often", "often"),
    ],
)
def test_packs_know_the_dataset_that_was_packed(project, name, unpacked):
    assert open_current(project, name).unpacked.name == unpacked


def test_every_dataset_leads_to_its_corpus(dataset):
    assert dataset.corpus.name == "web"


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
        dataset = open_current(project, name)
        assert len(dataset.corpus.sequences) > 0  # opens the files
        corpus = weakref.ref(dataset.corpus)

        del dataset

        assert corpus() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("name", NAMES)
def test_a_version_is_found_by_name_and_digest(project, name):
    manifest = current_dataset(project, name)

    dataset = Datasets(project.outputs).version(name, manifest.digest, "it was deleted")

    assert dataset.manifest.folder == manifest.folder


def test_a_version_that_was_deleted_is_reported_with_the_given_message(project):
    with pytest.raises(MissingError, match="it was deleted"):
        Datasets(project.outputs).version("web", "0" * 20, "it was deleted")
