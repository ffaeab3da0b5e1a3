"""`nanoset demo` writes text of every format, settings and a tokenizer, all of which can be used."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanoset_core import load_config
from nanoset_core.demo import writing
from nanoset_core.demo.writing import BROKEN_LINE, EOD, MARKER, write_demo
from nanoset_core.errors import ConfigError
from nanoset_core.text.documents import DocumentBatch, read_documents
from nanoset_core.text.files.survey import list_corpora
from nanoset_core.text.inventory.pieces import SourceRange
from nanoset_core.text.inventory.take import take_inventory
from nanoset_core.tokenizers.tokenizer import token_id, tokenizer_facts


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Path:
    """The folder of a demo, which is not to be written to."""
    folder = tmp_path_factory.mktemp("demo")
    messages: list[str] = []

    is_new = write_demo(folder, megabytes=1.0, say=messages.append)

    assert is_new is True
    assert len(messages) == 2
    return folder


def test_the_settings_name_all_corpora_and_the_tokenizer(demo):
    config = load_config(demo / "nanoset.yaml")

    corpora = list(list_corpora(config.raw_folder).corpora)
    assert corpora == ["descriptions", "documentation", "libraries", "stdlib"]
    assert sorted(config.nanosets["pretrain"].corpora) == corpora
    assert sorted(config.webdatasets["shuffled"].corpora) == corpora
    assert config.tokenizer_file == demo / "tokenizer.json"
    assert config.tokenizer.eod == EOD


def test_the_text_has_files_of_every_compression(demo):
    endings = {path.name.partition(".")[2] for path in demo.glob("raw/**/*.jsonl*")}

    assert endings == {"jsonl", "jsonl.gz", "jsonl.zst"}
    assert list(demo.glob("raw/stdlib/*/*.gz"))


def test_a_gzip_file_has_several_members(demo):
    file = next(iter(demo.glob("raw/stdlib/**/*.gz")))
    decoder = zlib.decompressobj(31)

    decoder.decompress(file.read_bytes())

    # After the first member, the next one begins with the magic bytes of gzip.
    assert decoder.unused_data.startswith(b"\x1f\x8b")


def batches_of(demo: Path, corpus: str) -> Iterator[DocumentBatch]:
    """Yield the documents of a corpus."""
    folder = demo / "raw" / corpus
    inventory = take_inventory(folder, corpus)
    yield from read_documents(folder, SourceRange(inventory.pieces))


def test_every_document_has_text_and_an_id_that_is_unique_in_its_corpus(demo):
    n_documents = 0
    for corpus in list_corpora(demo / "raw").corpora:
        ids: list[str | None] = []
        for batch in batches_of(demo, corpus):
            assert all(batch.texts)
            ids += batch.ids
        assert None not in ids
        assert len(set(ids)) == len(ids)
        assert len(ids) > 10
        n_documents += len(ids)

    assert n_documents > 100


def test_one_line_is_broken_so_that_a_rejected_line_can_be_seen(demo):
    rejects = []
    for corpus in list_corpora(demo / "raw").corpora:
        for batch in batches_of(demo, corpus):
            rejects += batch.rejects

    [reject] = rejects
    assert reject.reason == "invalid_json"
    assert reject.excerpt == BROKEN_LINE.decode().rstrip()


def test_the_vocabulary_has_no_gaps_and_an_end_token(demo):
    facts = tokenizer_facts(demo / "tokenizer.json")

    assert facts.max_id == facts.vocab_size - 1
    assert token_id(demo / "tokenizer.json", EOD, "eod") == 0


def test_the_tokenizer_can_encode_every_text(demo):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(demo / "tokenizer.json"))
    text = "def naïve(日本): return '\U0001f600\t\0'\r\n"

    ids = tokenizer.encode(text).ids

    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def times_of(folder: Path) -> dict[Path, int]:
    """Return when each file in a folder was written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_demo_that_exists_is_not_written_again(demo):
    times_before = times_of(demo)

    is_new = write_demo(demo, megabytes=1.0)

    assert is_new is False
    assert times_of(demo) == times_before


@pytest.fixture(scope="module")
def demo_after_an_unfinished_one(tmp_path_factory) -> Path:
    """The folder of a demo that was written after an interruption; it is not to be written to."""
    folder = tmp_path_factory.mktemp("unfinished")
    corpus = folder / "raw" / "stdlib"
    corpus.mkdir(parents=True)
    (corpus / "half.jsonl").write_bytes(b'{"text": "cut o')
    (folder / "raw" / MARKER).touch()
    (folder / "tokenizer.json").write_text("old")

    is_new = write_demo(folder, megabytes=0.2)

    assert is_new is True
    return folder


def test_an_unfinished_demo_is_replaced(demo_after_an_unfinished_one):
    folder = demo_after_an_unfinished_one

    assert not (folder / "raw" / "stdlib" / "half.jsonl").exists()
    tokenizer = json.loads((folder / "tokenizer.json").read_bytes())
    assert tokenizer["model"]["type"] == "BPE"


def test_a_small_demo_accepts_many_rejected_lines(demo_after_an_unfinished_one):
    # The broken line is a large fraction of a few lines.
    config = load_config(demo_after_an_unfinished_one / "nanoset.yaml")
    assert config.documents.max_rejected_fraction == 0.5


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("raw/web/a.jsonl", "raw"),
        ("tokenizer.json", "tokenizer.json"),
        ("nanoset.schema.json", "nanoset.schema.json"),
        ("data/datasets/documentation/current.json", "data"),
    ],
)
def test_files_of_the_user_are_never_replaced(tmp_path, name, refused):
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"years of work")

    with pytest.raises(ConfigError, match="`nanoset demo` did not write this") as caught:
        write_demo(tmp_path)

    assert caught.value.where == str(tmp_path / refused)
    assert file.read_bytes() == b"years of work"
    assert not (tmp_path / "nanoset.yaml").exists()


def test_the_amount_of_text_is_about_the_requested_one():
    documents = list(writing.standard_library(600_000))

    n_bytes = sum(len(document["text"].encode()) for document in documents)
    assert 600_000 <= n_bytes < 1_000_000


def test_the_text_is_the_same_each_time():
    documents = list(writing.standard_library(50_000))

    assert list(writing.standard_library(50_000)) == documents


@pytest.mark.parametrize("source", [writing.standard_library, writing.libraries])
def test_every_split_gets_a_document_even_of_the_shortest_text(source):
    n_documents = len(list(source(1)))

    # The first documents of valid and of test, and the end of test.
    boundaries = [round(share * n_documents) for share in (0.9, 0.95, 1)]
    assert boundaries == sorted(set(boundaries))


WRITE_WITH_SIZE_LIMIT = """
import resource, signal, sys
from pathlib import Path
from nanoset_core.demo.writing import write_demo
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
write_demo(Path(sys.argv[1]), megabytes=1.0)
"""
"""A program that writes a demo, but cannot write a file of more than 10 kB."""


def test_a_file_that_could_not_be_written_to_its_end_does_not_exist(demo, tmp_path):
    command = [sys.executable, "-c", WRITE_WITH_SIZE_LIMIT, str(tmp_path)]

    result = subprocess.run(command, capture_output=True, text=True)

    assert "File too large" in result.stderr
    written_files = list(tmp_path.glob("raw/**/*.jsonl*"))
    assert len(written_files) < len(list(demo.glob("raw/**/*.jsonl*")))
    for path in written_files:
        assert path.read_bytes() == (demo / path.relative_to(tmp_path)).read_bytes()
