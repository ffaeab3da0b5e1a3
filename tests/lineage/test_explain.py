"""Samples → documents: `nanoset explain` names the lines of raw text that a sample was cut from.

What it says is compared with the raw files, which are read here by other means.
"""

from __future__ import annotations

import gzip
import json
import shutil
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
import zstandard
from tokenizers import Tokenizer

from helpers.command import invoke_nanoset
from nanoset_core.errors import FormatError, MissingError, SampleIndexError
from nanoset_core.lineage import documents as documents_module
from nanoset_core.lineage.explain import SampleOrigin, explain_sample
from nanoset_core.loading.opening import load_nanoset
from nanoset_core.project.project import Project

SPLITS = [
    ("pretrain", "train"),
    ("pretrain", "valid"),
    ("plain", "train"),
    ("several_epochs", "train"),
    ("repeated", "train"),
    ("nemo", "train"),
]
"""(nanoset, split) of the project, with every preset."""


class RawDocument(NamedTuple):
    """A document in a raw file."""

    byte_offset: int
    id: str
    text: str


class ExplainedSample(NamedTuple):
    """A sample, as a trainer reads it and as `explain_sample` describes it."""

    number: int
    tokens: np.ndarray
    padding: int
    """The token that it is padded with."""
    origin: SampleOrigin


def read_raw_documents(raw_folder) -> dict[tuple[str, str, int], RawDocument]:
    """Return (corpus, file, line) → document, for all documents of a raw folder."""
    documents = {}
    for path in sorted(raw_folder.rglob("*.*")):
        corpus, _, file = path.relative_to(raw_folder).as_posix().partition("/")
        if path.suffix == ".parquet":
            for number, row in enumerate(pq.read_table(path).to_pylist(), start=1):
                documents[corpus, file, number] = RawDocument(-1, row["id"], row["text"])
            continue

        offset = 0
        for number, line in enumerate(read_decompressed(path).split(b"\n"), start=1):
            if line.startswith(b"{"):
                row = json.loads(line)
                documents[corpus, file, number] = RawDocument(offset, row["id"], row["text"])
            offset += len(line) + 1
    return documents


def read_decompressed(path) -> bytes:
    """Return the content of a raw file of lines."""
    data = path.read_bytes()
    if path.suffix == ".gz":
        return gzip.decompress(data)
    if path.suffix == ".zst":
        reader = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True)
        return reader.read()
    return data


@pytest.fixture(scope="module")
def raw_documents(built):
    """(corpus, file, line) → document."""
    return read_raw_documents(Project.open(built / "nanoset.yaml").config.raw_folder)


@pytest.fixture(scope="module")
def tokenizer(built):
    """The tokenizer of the project, in the `tokenizers` library."""
    return Tokenizer.from_file(str(built / "tokenizer.json"))


@pytest.fixture(scope="module", params=SPLITS, ids="-".join)
def explained_samples(request, built) -> list[ExplainedSample]:
    """Samples from the start, the middle and the end of each split, explained."""
    name, split = request.param
    project = Project.open(built / "nanoset.yaml")
    loaded = load_nanoset(project.outputs.folder, name, split)
    n_samples = len(loaded)
    numbers = {0, 1, n_samples // 3, n_samples // 2, n_samples - 2, n_samples - 1}
    return [
        ExplainedSample(
            number=number,
            tokens=loaded.tokens(number),
            padding=loaded.config.pad_token or -1,
            origin=explain_sample(project, name, split, number),
        )
        for number in numbers
    ]


# Samples of every preset


def test_a_sample_has_the_tokens_of_the_documents_that_are_named(
    project, explained_samples, raw_documents, tokenizer
):
    for sample in explained_samples:
        expected = np.full(len(sample.tokens), sample.padding, np.int64)
        for piece in sample.origin.pieces:
            origin = piece.origin
            text = raw_documents[origin.corpus, origin.file, origin.line].text
            document = [*tokenizer.encode(text).ids, project.special("eod")]
            assert origin.tokens == len(document)
            expected[slice(*piece.sample_tokens)] = document[slice(*piece.document_tokens)]
        assert sample.tokens.tolist() == expected.tolist()


def test_documents_are_named_with_their_id_and_offset(explained_samples, raw_documents):
    for sample in explained_samples:
        for piece in sample.origin.pieces:
            origin = piece.origin
            document = raw_documents[origin.corpus, origin.file, origin.line]
            assert origin.byte_offset == document.byte_offset
            assert origin.id == document.id


def test_the_tokens_of_a_piece_are_shown_as_text(
    project, explained_samples, raw_documents, tokenizer
):
    for sample in explained_samples:
        for piece in sample.origin.pieces:
            origin = piece.origin
            text = raw_documents[origin.corpus, origin.file, origin.line].text
            document = [*tokenizer.encode(text).ids, project.special("eod")]
            decoded = tokenizer.decode(
                document[slice(*piece.document_tokens)], skip_special_tokens=False
            )
            assert decoded.startswith(piece.text.removesuffix("…"))


def test_the_raw_text_of_a_piece_is_shown(explained_samples, raw_documents):
    for sample in explained_samples:
        for piece in sample.origin.pieces:
            origin = piece.origin
            text = raw_documents[origin.corpus, origin.file, origin.line].text
            assert piece.source.state == "unchanged"
            assert piece.source.text.removesuffix("…") in text


def test_the_token_counts_of_a_sample_add_up_to_its_length(explained_samples):
    for sample in explained_samples:
        assert sample.origin.sample == sample.number
        assert sample.origin.tokens + sample.origin.pad_tokens == len(sample.tokens)


def test_a_sample_has_documents_of_one_corpus(explained_samples):
    for sample in explained_samples:
        corpora = {piece.origin.corpus for piece in sample.origin.pieces}
        assert corpora == {sample.origin.corpus}


def test_a_negative_number_counts_samples_from_the_end(project):
    n_samples = len(load_nanoset(project.outputs.folder, "pretrain", "train"))

    last_sample = explain_sample(project, "pretrain", "train", -1)

    assert last_sample == explain_sample(project, "pretrain", "train", n_samples - 1)


@pytest.mark.parametrize("arguments", [["-1", "--json"], ["--json", "-1"], ["--json", "--", "-1"]])
def test_the_command_takes_a_negative_number(project, arguments):
    n_samples = len(load_nanoset(project.outputs.folder, "pretrain", "train"))

    outcome = invoke_nanoset(
        ["explain", "--config", project.config.file, "pretrain", "train", *arguments]
    )

    assert json.loads(outcome.stdout)["sample"] == n_samples - 1


def test_without_the_project_documents_are_named_but_no_text_is_shown(project):
    with_text = explain_sample(project, "pretrain", "train", 5)

    without_text = explain_sample(project.outputs.folder, "pretrain", "train", 5)

    origins = [piece.origin for piece in without_text.pieces]
    assert origins == [piece.origin for piece in with_text.pieces]
    for piece in without_text.pieces:
        assert piece.text is None
        assert piece.source is None


def test_only_the_tables_of_the_shards_of_a_sample_are_opened(project, monkeypatch):
    opened = []
    open_table = documents_module.DocumentRows.__init__

    def open_and_note(self, path, documents):
        opened.append(path)
        open_table(self, path, documents)

    monkeypatch.setattr(documents_module.DocumentRows, "__init__", open_and_note)

    sample = explain_sample(project, "pretrain", "train", 5)

    assert len(opened) == len({piece.origin.shard for piece in sample.pieces})


# Raw files that were changed since the build


@pytest.fixture
def edited_project(built, tmp_path):
    """The project with a copy of its raw files and tokenizer, which a test may change."""
    shutil.copytree(built / "raw", tmp_path / "raw")
    shutil.copy(built / "tokenizer.json", tmp_path)
    settings = yaml.safe_load((built / "nanoset.yaml").read_text())
    settings["root"] = str(built / "data")
    (tmp_path / "nanoset.yaml").write_text(yaml.safe_dump(settings))
    return Project.open(tmp_path / "nanoset.yaml")


@pytest.fixture
def raw_file(edited_project):
    """A file of the corpus `web`."""
    return edited_project.config.raw_folder / "web/part-0/web-1.jsonl"


def pieces_of_raw_file(project):
    """Yield the pieces of samples that come from `raw_file`."""
    for number in range(80):
        for piece in explain_sample(project, "pretrain", "train", number).pieces:
            if piece.origin.file.endswith("web-1.jsonl"):
                yield piece


def test_a_line_is_unchanged_if_lines_after_it_were_changed(edited_project, raw_file):
    before = next(pieces_of_raw_file(edited_project))
    lines = raw_file.read_bytes().splitlines(keepends=True)

    # Append a line.
    raw_file.write_bytes(b"".join([*lines, b'{"text": "more"}\n']))
    assert next(pieces_of_raw_file(edited_project)).source == before.source

    # Replace all lines after it.
    lines_up_to_it = lines[: before.origin.line]
    raw_file.write_bytes(b"".join([*lines_up_to_it, b'{"text": "another"}\n']))
    assert next(pieces_of_raw_file(edited_project)).source == before.source


def test_a_line_that_was_moved_is_reported_without_its_text(edited_project, raw_file):
    raw_file.write_bytes(b'{"text": "first"}\n' + raw_file.read_bytes())

    source = next(pieces_of_raw_file(edited_project)).source

    assert source.state == "changed"
    assert source.text is None


def test_a_line_whose_text_gives_other_tokens_is_reported(edited_project, raw_file):
    raw_file.write_bytes(raw_file.read_bytes().replace(b"model", b"modem"))  # of the same length

    sources = [piece.source for piece in pieces_of_raw_file(edited_project)]

    notes_of_changes = [source.note for source in sources if source.state == "changed"]
    assert "other tokens" in "\n".join(notes_of_changes)


def test_a_file_that_was_deleted_is_reported(edited_project, raw_file):
    raw_file.unlink()

    assert next(pieces_of_raw_file(edited_project)).source.state == "gone"


def test_with_another_tokenizer_no_text_is_shown(edited_project):
    tokenizer_file = edited_project.config.tokenizer_file
    tokenizer_file.write_text(tokenizer_file.read_text() + "\n")
    reopened = Project.open(edited_project.config.file)

    piece = explain_sample(reopened, "plain", "train", 0).pieces[0]

    assert piece.text is None
    assert piece.source.state == "unknown"


# What is missing or damaged


def test_a_sample_after_the_last_one_is_refused(project):
    with pytest.raises(SampleIndexError):
        explain_sample(project, "pretrain", "train", 10**6)


def test_an_unknown_nanoset_is_refused(project):
    with pytest.raises(MissingError, match="no such nanoset"):
        explain_sample(project, "nothing", "train", 0)


def test_a_damaged_table_of_documents_is_an_error(copy):
    project = copy()
    for table in project.outputs.folder.glob("shards/books/*/documents.parquet"):
        table.write_bytes(table.read_bytes()[:-40])

    with pytest.raises(FormatError, match="not the table of the shard's documents"):
        explain_sample(project, "plain", "train", 0)


def test_a_missing_table_of_documents_is_an_error(copy):
    project = copy()
    for table in project.outputs.folder.glob("shards/books/*/documents.parquet"):
        table.unlink()

    with pytest.raises(MissingError, match="table of documents is missing"):
        explain_sample(project, "plain", "train", 0)


def test_a_missing_set_of_shards_is_an_error(copy):
    project = copy()
    # It says where the tables are.
    for manifest in project.outputs.folder.glob("tokenized/books/*/manifest.json"):
        manifest.unlink()

    with pytest.raises(MissingError, match="merged from were deleted"):
        explain_sample(project, "plain", "train", 0)
