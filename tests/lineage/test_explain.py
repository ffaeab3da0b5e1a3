"""Samples → documents, against the raw files read by other means."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

from nanoset_core.errors import FormatError, MissingError, SampleIndexError
from nanoset_core.lineage.explain import explain_sample
from nanoset_core.loading.opening import load_nanoset
from nanoset_core.project.project import Project

SPLITS_OF = [
    ("pretrain", "train"),
    ("pretrain", "valid"),
    ("plain", "train"),
    ("several_epochs", "train"),
    ("repeated", "train"),
    ("nemo", "train"),
]


def raw_texts(project):
    """(corpus, file, line) → (byte offset, id, text) of every document, read plainly."""
    import pyarrow.parquet as pq
    import zstandard

    found = {}
    for path in sorted(project.config.raw_folder.rglob("*.*")):
        corpus, _, file = path.relative_to(project.config.raw_folder).as_posix().partition("/")
        if path.suffix == ".parquet":
            for number, row in enumerate(pq.read_table(path).to_pylist(), start=1):
                found[corpus, file, number] = -1, row["id"], row["text"]
            continue
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        if path.suffix == ".zst":
            data = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
        offset = 0
        for number, line in enumerate(data.split(b"\n"), start=1):
            if line.startswith(b"{"):
                row = json.loads(line)
                found[corpus, file, number] = offset, row["id"], row["text"]
            offset += len(line) + 1
    return found


@pytest.fixture(scope="module")
def texts(built):
    return raw_texts(Project.open(built / "nanoset.yaml"))


@pytest.fixture(scope="module")
def tokenizer(built):
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(built / "tokenizer.json"))


@pytest.mark.parametrize(("name", "split"), SPLITS_OF)
def test_the_documents_of_a_sample_give_its_tokens(project, texts, tokenizer, name, split):
    loaded = load_nanoset(project.outputs.folder, name, split)
    for k in {0, 1, len(loaded) // 3, len(loaded) // 2, len(loaded) - 2, len(loaded) - 1}:
        found = explain_sample(project, name, split, k)
        tokens = np.full(loaded.config.sample_tokens, loaded.config.pad_token or -1, np.int64)
        for piece in found.pieces:
            origin = piece.origin
            offset, identity, text = texts[origin.corpus, origin.file, origin.line]
            assert (origin.byte_offset, origin.id) == (offset, identity)
            ids = [*tokenizer.encode(text).ids, project.special("eod")]
            assert origin.tokens == len(ids)
            begin, end = piece.document_tokens
            tokens[slice(*piece.sample_tokens)] = ids[begin:end]
            shown = tokenizer.decode(ids[begin:end], skip_special_tokens=False)
            assert shown.startswith(piece.text.removesuffix("…"))
            assert piece.source.state == "unchanged"
            assert piece.source.text.removesuffix("…") in text
        assert tokens.tolist() == loaded.tokens(k).tolist()
        assert found.sample == k
        assert found.tokens + found.pad_tokens == len(tokens)
        assert {piece.origin.corpus for piece in found.pieces} == {found.corpus}


def test_negative_samples_count_from_the_end(project):
    count = len(load_nanoset(project.outputs.folder, "pretrain", "train"))
    assert explain_sample(project, "pretrain", "train", -1) == explain_sample(
        project, "pretrain", "train", count - 1
    )


def test_from_the_outputs_alone_there_is_no_text(project):
    found = explain_sample(project.outputs.folder, "pretrain", "train", 5)
    full = explain_sample(project, "pretrain", "train", 5)
    assert [piece.origin for piece in found.pieces] == [piece.origin for piece in full.pieces]
    assert {(piece.text, piece.source) for piece in found.pieces} == {(None, None)}


def pieces_of_web(project):
    samples = (explain_sample(project, "pretrain", "train", k) for k in range(80))
    return (
        piece
        for sample in samples
        for piece in sample.pieces
        if piece.origin.file.endswith("web-1.jsonl")
    )


def test_what_became_of_a_file(copy):
    project = copy()
    before, path = (
        next(pieces_of_web(project)),
        project.config.raw_folder / "web/part-0/web-1.jsonl",
    )
    lines = path.read_bytes().splitlines(keepends=True)
    for now, state in (
        ([*lines, b'{"text": "more"}\n'], "unchanged"),
        ([*lines[: before.origin.line], b'{"text": "another"}\n'], "unchanged"),
        ([b'{"text": "first"}\n', *lines], "changed"),
    ):
        path.write_bytes(b"".join(now))
        source = next(pieces_of_web(project)).source
        assert (source.state, source.text) == (
            state,
            before.source.text if state == "unchanged" else None,
        )
    path.write_bytes(b"".join(lines).replace(b"model", b"modem"))
    changed = [piece.source for piece in pieces_of_web(project)]
    assert any(source.state == "changed" and "other tokens" in source.note for source in changed)
    path.unlink()
    assert next(pieces_of_web(project)).source.state == "gone"
    # it is another one
    project.config.tokenizer_file.write_text(project.config.tokenizer_file.read_text() + "\n")
    piece = explain_sample(Project.open(project.config.file), "plain", "train", 0).pieces[0]
    assert (piece.text, piece.source.state) == (None, "unknown")


def test_only_the_shards_and_row_groups_of_the_sample_are_read(project, monkeypatch):
    from nanoset_core.lineage import documents as lineage

    opened = []
    real = lineage.DocumentRows.__init__

    def noting(self, path, documents):
        opened.append(path)
        real(self, path, documents)

    monkeypatch.setattr(lineage.DocumentRows, "__init__", noting)
    found = explain_sample(project, "pretrain", "train", 5)
    assert len(opened) == len({piece.origin.shard for piece in found.pieces})


def test_what_is_not_there(copy):
    project = copy()
    with pytest.raises(SampleIndexError):
        explain_sample(project, "pretrain", "train", 10**6)
    with pytest.raises(MissingError, match="no such nanoset"):
        explain_sample(project, "nothing", "train", 0)
    for table in project.outputs.folder.glob("shards/books/*/documents.parquet"):
        table.write_bytes(table.read_bytes()[:-40])
    with pytest.raises(FormatError, match="not the table of the shard's documents"):
        explain_sample(project, "plain", "train", 0)
    for table in project.outputs.folder.glob("shards/books/*/documents.parquet"):
        table.unlink()
    with pytest.raises(MissingError, match="table of documents is missing"):
        explain_sample(project, "plain", "train", 0)
    for manifest in project.outputs.folder.glob("tokenized/books/*/manifest.json"):
        manifest.unlink()
    with pytest.raises(MissingError, match="merged from were deleted"):
        explain_sample(project, "plain", "train", 0)
