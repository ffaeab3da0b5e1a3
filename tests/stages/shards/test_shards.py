"""A shard has the tokens that Megatron-LM's own tool writes, and accounts for every line it read."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.locations import GOLDEN_FILES
from helpers.sample_pairs import pair_bytes
from helpers.shards import FILES_OF_SHARD, bytes_by_path, json_lines, task_for
from nanoset_core import MMapIndexedDataset, MMapIndexedDatasetBuilder
from nanoset_core.errors import ConfigError, InputError, SourceChangedError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.shards.facts import LENGTH_BINS, ShardFacts
from nanoset_core.stages.shards.framing import Framing
from nanoset_core.stages.shards.one_shard import ShardTask
from nanoset_core.text.importing import import_parquet
from nanoset_core.text.inventory import stored_piece as stored_module

GOLDEN = GOLDEN_FILES / "tokenization"
"""Documents, a tokenizer, and the pair that Megatron-LM's preprocess_data.py wrote of them."""


def shard_folders(out: Path) -> list[Path]:
    """Return everything in the folder of a corpus's shards, hidden entries included."""
    return list((out / "shards" / "web").iterdir())


# The tokens


@pytest.mark.parametrize("engine", ["auto", "tokenizers"])
def test_the_bytes_are_those_of_megatrons_preprocess_data(corpus, tmp_path, engine):
    shutil.copyfile(GOLDEN / "documents.jsonl", corpus / "documents.jsonl")

    shard = task_for(corpus, tmp_path, engine=engine).make()

    assert pair_bytes(shard.path("tokens")) == pair_bytes(GOLDEN / "text_document")
    assert shard.facts["documents"] == 13
    assert shard.facts["sequences"] == 11
    assert shard.facts["tokens"] == 441


def write_pair_one_at_a_time(prefix: Path, texts: Sequence[str], eod: int | None) -> None:
    """Write the pair of some texts by Megatron-LM's rule, one document at a time.

    A document without tokens has no end token and no sequence.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(GOLDEN / "tokenizer.json"))
    builder = MMapIndexedDatasetBuilder(prefix, np.uint16)
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if not ids:
            builder.add_document([], [])
            continue
        if eod is not None:
            ids = [*ids, eod]
        builder.add_document(ids, [len(ids)])
    builder.finalize()


SOME_TEXTS = st.lists(
    st.one_of(
        st.just(""), st.text(max_size=30), st.sampled_from(["<|endoftext|>", " ", "a" * 200])
    ),
    max_size=8,
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    texts=SOME_TEXTS, eod=st.sampled_from([None, 0, 5]), read_bytes=st.sampled_from([20, 1 << 20])
)
def test_the_bytes_are_those_of_one_document_at_a_time(
    tmp_path_factory, monkeypatch, texts, eod, read_bytes
):
    monkeypatch.setattr(stored_module, "READ_BYTES", read_bytes)
    folder = tmp_path_factory.mktemp("random")
    raw = folder / "raw"
    raw.mkdir()
    (raw / "a.jsonl").write_bytes(json_lines(*texts))
    framing = Framing() if eod is None else Framing(after=(eod,))

    shard = task_for(raw, folder / "out", framing=framing).make()

    write_pair_one_at_a_time(folder / "expected", texts, eod)
    assert pair_bytes(shard.path("tokens")) == pair_bytes(folder / "expected")


def test_an_id_outside_the_vocabulary_is_refused(corpus, tmp_path):
    (corpus / "a.jsonl").write_bytes(json_lines("one fox"))

    with pytest.raises(ConfigError, match="outside its vocabulary") as caught:
        task_for(corpus, tmp_path, max_id=3).make()

    assert caught.value.expected == "0 to 3"


def test_a_corpus_without_documents_becomes_an_empty_shard(corpus, tmp_path):
    (corpus / "a.jsonl").write_bytes(b"")

    shard = task_for(corpus, tmp_path).make()

    assert ShardFacts.of(shard.facts) == ShardFacts()
    assert len(MMapIndexedDataset(shard.path("tokens"))) == 0
    assert shard.path("tokens.bin").stat().st_size == 0


# A corpus with every kind of line

MIXED_LINES = (
    b'{"text": "one fox", "id": "A"}\n'
    b"\n"
    b'{"text": "", "id": 2}\n'
    b"{broken\n"
    b'{"text": "two", "score": NaN}\n'
    b'{"text": 3}\n'
    b'{"txt": "x"}\n'
    b'{"text": "\xff"}\n'
    b'{"text": "\\ud800"}\n'
)
"""Three documents, and six lines that are rejected for different reasons."""
LINE_OF_GZIP_FILE = b'{"text": "three"}\n'
PLACE_BY_REASON = {
    "blank_line": ("a.jsonl", 2),
    "invalid_json": ("a.jsonl", 4),
    "text_not_a_string": ("a.jsonl", 6),
    "missing_key": ("a.jsonl", 7),
    "invalid_utf8": ("a.jsonl", 8),
    "lone_surrogate": ("a.jsonl", 9),
    "truncated_gzip": ("b.jsonl.gz", 7),
}
"""Reason → file and line of the reject."""


def write_mixed_corpus(corpus: Path) -> None:
    """Write a file with every kind of line, and a gzip file whose second member is cut off.

    The cut removes only a part of the checksum, so that all six lines can be read.
    """
    (corpus / "a.jsonl").write_bytes(MIXED_LINES)
    member = gzip.compress(LINE_OF_GZIP_FILE * 3, mtime=0)
    (corpus / "b.jsonl.gz").write_bytes(member + member[:-5])


@pytest.fixture(scope="module")
def mixed_task(tmp_path_factory: pytest.TempPathFactory) -> ShardTask:
    """The task of making a shard of the mixed corpus."""
    folder = tmp_path_factory.mktemp("mixed")
    corpus = folder / "raw" / "web"
    corpus.mkdir(parents=True)
    write_mixed_corpus(corpus)
    return task_for(corpus, folder / "out")


@pytest.fixture(scope="module")
def mixed_shard(mixed_task: ShardTask) -> Manifest:
    """The shard of the mixed corpus."""
    return mixed_task.make()


@pytest.fixture(scope="module")
def rows(mixed_shard: Manifest) -> list[dict[str, Any]]:
    """The rows of the table of documents of that shard."""
    return pq.read_table(mixed_shard.path("documents.parquet")).to_pylist()


@pytest.fixture(scope="module")
def rejects(mixed_shard: Manifest) -> list[dict[str, Any]]:
    """The rejects that are listed for that shard."""
    lines = mixed_shard.path("rejects.jsonl").read_bytes().splitlines()
    return [json.loads(line) for line in lines]


def test_a_shard_has_its_files_and_no_other(mixed_shard):
    names = sorted(path.name for path in mixed_shard.folder.iterdir())

    assert names == FILES_OF_SHARD
    assert sorted([*mixed_shard.files, "manifest.json"]) == FILES_OF_SHARD


def test_the_manifest_has_size_and_digest_of_each_file(mixed_shard):
    for name, file in mixed_shard.files.items():
        data = mixed_shard.path(name).read_bytes()
        assert file.size == len(data)
        assert file.sha256 == hashlib.sha256(data).hexdigest()


def test_every_line_is_counted_as_a_document_or_as_rejected(mixed_shard):
    facts = ShardFacts.of(mixed_shard.facts)

    assert facts.lines == 15
    assert facts.documents == 9
    assert facts.rejected == 6
    # A file that cannot be read to its end is no rejected line.
    assert facts.faults == 1
    assert facts.reasons == dict.fromkeys(sorted(PLACE_BY_REASON), 1)


def test_stored_and_decompressed_bytes_are_counted(mixed_shard, mixed_task):
    facts = ShardFacts.of(mixed_shard.facts)

    assert facts.stored_bytes == mixed_task.source.size
    assert facts.read_bytes == len(MIXED_LINES) + 6 * len(LINE_OF_GZIP_FILE)


def test_a_document_without_tokens_has_no_sequence(mixed_shard):
    facts = ShardFacts.of(mixed_shard.facts)
    dataset = MMapIndexedDataset(mixed_shard.path("tokens"))

    assert facts.sequences == 8
    assert len(dataset) == 8
    assert len(dataset.document_indices) == 9 + 1
    assert int(dataset.sequence_lengths.sum()) == facts.tokens


def test_each_document_is_in_the_histogram_of_lengths(mixed_shard):
    facts = ShardFacts.of(mixed_shard.facts)

    assert sum(facts.length_histogram) == 9
    assert facts.length_histogram[0] == 1  # the document without tokens


def test_the_table_of_documents_has_their_token_counts(mixed_shard, rows):
    dataset = MMapIndexedDataset(mixed_shard.path("tokens"))
    # (n_sequences + 1,) the position in the tokens at which each sequence starts, and the end
    edges_of_sequences = np.concatenate([[0], np.cumsum(dataset.sequence_lengths)])
    # (n_documents + 1,)
    edges_of_documents = edges_of_sequences[dataset.document_indices]
    has_sequence = np.diff(dataset.document_indices) == 1

    assert [row["tokens"] for row in rows] == np.diff(edges_of_documents).tolist()
    assert [row["tokens"] > 0 for row in rows] == has_sequence.tolist()


def test_the_table_of_documents_has_their_places_and_ids(rows):
    places = [(row["file"], row["line"], row["byte_offset"], row["id"]) for row in rows]

    places_in_gzip_file = [
        ("b.jsonl.gz", line, len(LINE_OF_GZIP_FILE) * (line - 1), None) for line in range(1, 7)
    ]
    assert places == [
        ("a.jsonl", 1, 0, "A"),
        ("a.jsonl", 3, 32, "2"),
        ("a.jsonl", 5, 62, None),
        *places_in_gzip_file,
    ]


def test_lines_and_offsets_of_the_table_point_at_the_documents(rows):
    for row in rows[:3]:
        text_before = MIXED_LINES[: row["byte_offset"]]
        line = MIXED_LINES[row["byte_offset"] :].split(b"\n")[0]
        assert text_before.count(b"\n") == row["line"] - 1
        assert "text" in json.loads(line)


def test_every_reject_is_listed_with_its_file_and_line(rejects):
    place_by_reason = {reject["reason"]: (reject["file"], reject["line"]) for reject in rejects}

    assert place_by_reason == PLACE_BY_REASON


def test_the_list_of_rejects_ends_with_a_line_break(mixed_shard):
    assert mixed_shard.path("rejects.jsonl").read_bytes().endswith(b"\n")


def test_a_reject_has_its_place_reason_and_an_excerpt(rejects):
    assert list(rejects[1]) == ["file", "line", "offset", "reason", "detail", "excerpt"]
    assert rejects[1] == {
        "file": "a.jsonl",
        "line": 4,
        "offset": 54,
        "reason": "invalid_json",
        "detail": "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        "excerpt": "{broken",
    }


def test_bytes_that_are_not_utf_8_are_escaped_in_the_excerpt(rejects):
    assert rejects[4]["excerpt"] == '{"text": "\\xff"}'


def test_a_file_that_is_cut_off_is_listed_with_the_end_of_its_text(rejects):
    assert rejects[6]["offset"] == 6 * len(LINE_OF_GZIP_FILE)


# The same documents give the same bytes


def content_without_engine(folder: Path) -> dict[str, Any]:
    """Return the content of each file below a folder, without the facts about the engine.

    These are in manifests, which are returned as dictionaries.
    """
    content_by_path: dict[str, Any] = {}
    for path, data in bytes_by_path(folder).items():
        content_by_path[path] = data
        if path.endswith("manifest.json"):
            manifest = json.loads(data)
            del manifest["facts"]["encoder"]
            del manifest["sha256"]  # the digest of the manifest itself
            content_by_path[path] = manifest
    return content_by_path


@pytest.mark.parametrize(
    ("engine", "n_audited"),
    [
        pytest.param("numpy", 4, id="numpy"),
        # This engine is the reference, and is not compared with itself.
        pytest.param("tokenizers", 0, id="tokenizers"),
    ],
)
def test_the_bytes_of_a_shard_do_not_depend_on_folder_engine_or_read_size(
    mixed_task, mixed_shard, tmp_path, monkeypatch, engine, n_audited
):
    other_raw_folder = tmp_path / "other" / "place"
    shutil.copytree(mixed_task.folder, other_raw_folder)
    monkeypatch.setattr(stored_module, "READ_BYTES", 33)  # less than most lines

    shard = task_for(other_raw_folder, tmp_path / "out", engine=engine).make()

    assert shard.facts["encoder"]["engine"] == engine
    assert shard.facts["encoder"]["audited"] == n_audited
    root_of_mixed_shard = mixed_task.root.folder
    assert content_without_engine(tmp_path / "out") == content_without_engine(root_of_mixed_shard)


# Errors


@pytest.mark.parametrize(
    ("name", "content", "message", "remedy"),
    [
        pytest.param(
            "a.jsonl",
            json_lines("a") + b"\n",
            "a line was rejected: blank_line",
            "on_reject",
            id="rejected line",
        ),
        pytest.param(
            "a.jsonl.gz",
            gzip.compress(json_lines("a"), mtime=0)[:-3],
            "cannot be read to its end: truncated_gzip",
            "repair the file",
            id="unreadable file",
        ),
    ],
)
def test_with_fail_on_reject_the_first_reject_ends_the_task(
    corpus, tmp_path, name, content, message, remedy
):
    (corpus / name).write_bytes(content)

    with pytest.raises(InputError, match=message) as caught:
        task_for(corpus, tmp_path, fail_on_reject=True).make()

    assert caught.value.where == f"{corpus / name}:2 (byte 14)"
    assert remedy in caught.value.remedy
    assert shard_folders(tmp_path) == []


def test_no_shard_is_published_if_its_source_changed(corpus, tmp_path):
    write_mixed_corpus(corpus)
    task = task_for(corpus, tmp_path)
    (corpus / "a.jsonl").write_bytes(b"{}" + MIXED_LINES[2:])

    with pytest.raises(SourceChangedError):
        task.make()

    assert shard_folders(tmp_path) == []


def test_a_tokenizer_that_changed_is_noticed_although_its_engine_is_loaded(corpus, tmp_path):
    (corpus / "a.jsonl").write_bytes(json_lines("one fox"))
    file = Path(shutil.copyfile(GOLDEN / "tokenizer.json", tmp_path / "tokenizer.json"))
    task = task_for(corpus, tmp_path / "out", tokenizer_file=file)
    task.make()
    file.write_text(file.read_text().replace('"ignore_merges":false', '"ignore_merges":true'))
    # Another version of the recipe, since the shard of the first one exists.
    other_recipe = dataclasses.replace(task.recipe, version=2)
    other_task = dataclasses.replace(task, recipe=other_recipe)

    with pytest.raises(
        SourceChangedError, match="the tokenizer has changed since this build started"
    ) as caught:
        other_task.make()

    assert caught.value.where == str(file)


def test_a_document_that_needs_too_much_memory_is_named(corpus, tmp_path, monkeypatch):
    long_text = "some words and " * 100_000
    (corpus / "a.jsonl").write_bytes(json_lines("short", long_text, "short"))
    monkeypatch.setattr("nanoset_core.tokenizers.engines.reference.free_memory", lambda: 1 << 20)

    with pytest.raises(InputError, match="needs more memory than is available") as caught:
        task_for(corpus, tmp_path / "out", max_line_bytes=1 << 30).make()

    assert caught.value.where == f"{corpus / 'a.jsonl'}:2 (byte 18)"
    assert caught.value.found.startswith("1,500,000 bytes of text")
    assert "documents.max_line_mib" in caught.value.remedy


# Facts


@pytest.fixture
def two_facts() -> tuple[ShardFacts, ShardFacts]:
    """The counts of two shards."""
    first = ShardFacts(
        lines=4,
        documents=2,
        skipped=1,
        sequences=1,
        tokens=10,
        rejected=1,
        faults=0,
        read_bytes=30,
        stored_bytes=20,
        reasons={"b": 1, "a": 2},
        length_histogram=[1] * LENGTH_BINS,
    )
    second = ShardFacts(
        lines=5,
        documents=5,
        skipped=0,
        sequences=5,
        tokens=50,
        rejected=0,
        faults=1,
        read_bytes=60,
        stored_bytes=50,
        reasons={"c": 1, "a": 1},
        length_histogram=[2] * LENGTH_BINS,
    )
    return first, second


def test_the_facts_of_shards_are_added_up(two_facts):
    first, second = two_facts

    assert first + second == ShardFacts(
        lines=9,
        documents=7,
        skipped=1,
        sequences=6,
        tokens=60,
        rejected=1,
        faults=1,
        read_bytes=90,
        stored_bytes=70,
        reasons={"a": 3, "b": 1, "c": 1},
        length_histogram=[3] * LENGTH_BINS,
    )


def test_the_reasons_of_a_sum_are_sorted(two_facts):
    first, second = two_facts

    assert list((first + second).reasons) == ["a", "b", "c"]


def test_a_sum_of_facts_may_start_with_empty_ones(two_facts):
    first, second = two_facts

    assert sum(two_facts, ShardFacts()) == first + second


def test_the_histogram_counts_documents_by_the_binary_digits_of_their_length(corpus, tmp_path):
    # Without an end token, "<|padding|>" n times is n tokens.
    lengths = [0, 1, 2, 3, 4, 7, 8, 15, 16]
    texts = ["<|padding|>" * length for length in lengths]
    (corpus / "a.jsonl").write_bytes(json_lines(*texts))

    shard = task_for(corpus, tmp_path, framing=Framing()).make()

    # Documents of 0, 1, 2 to 3, 4 to 7, 8 to 15, and 16 to 31 tokens.
    first_bins = [1, 1, 2, 2, 2, 1]
    assert shard.facts["length_histogram"] == first_bins + [0] * 26


# Tables

TABLE = pa.table(
    {
        "text": ["one two", None, "", "three é"],
        "id": range(4),
        "more": ["a", "b", "c", None],
    }
)


def write_table_as(path: Path) -> None:
    """Write the table in the format that the ending of a path says: Parquet, Arrow or JSON lines."""
    path.parent.mkdir(parents=True)
    if path.suffix == ".parquet":
        pq.write_table(TABLE, path, row_group_size=3)
    elif path.suffix == ".arrow":
        with pa.ipc.new_stream(path, TABLE.schema) as writer:
            writer.write_table(TABLE)
    else:
        parquet = path.parent.parent / "table.parquet"
        pq.write_table(TABLE, parquet, row_group_size=3)
        import_parquet(parquet, path)


@pytest.fixture(scope="module")
def shard_of_lines(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """The shard of the table's rows as JSON lines."""
    folder = tmp_path_factory.mktemp("lines")
    write_table_as(folder / "raw" / "a.jsonl")
    return task_for(folder / "raw", folder / "out").make()


@pytest.fixture(scope="module", params=["a.parquet", "a.arrow"])
def table_name(request: pytest.FixtureRequest) -> str:
    """The name of the file of the table: Parquet, or an Arrow stream."""
    return request.param


@pytest.fixture(scope="module")
def shard_of_table(table_name: str, tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """The shard of that file."""
    folder = tmp_path_factory.mktemp("table")
    write_table_as(folder / "raw" / table_name)
    return task_for(folder / "raw", folder / "out").make()


def test_a_table_has_the_tokens_of_its_rows_as_json_lines(shard_of_table, shard_of_lines):
    assert pair_bytes(shard_of_table.path("tokens")) == pair_bytes(shard_of_lines.path("tokens"))


def test_the_rows_of_a_table_are_counted_as_lines(shard_of_table):
    assert shard_of_table.facts["lines"] == 4
    assert shard_of_table.facts["rejected"] == 1


def test_the_documents_of_a_table_have_row_numbers_but_no_offsets(shard_of_table):
    rows = pq.read_table(shard_of_table.path("documents.parquet")).to_pylist()

    assert [row["line"] for row in rows] == [1, 3, 4]
    assert [row["id"] for row in rows] == ["0", "2", "3"]
    assert {row["byte_offset"] for row in rows} == {-1}


def test_the_documents_of_a_table_name_its_file(shard_of_table, table_name):
    rows = pq.read_table(shard_of_table.path("documents.parquet")).to_pylist()

    assert {row["file"] for row in rows} == {table_name}


def test_a_row_of_a_table_without_text_is_rejected(shard_of_table):
    reject = json.loads(shard_of_table.path("rejects.jsonl").read_text())

    assert reject["line"] == 2
    assert reject["reason"] == "text_not_a_string"


def test_required_keys_keep_the_pairs_of_two_keys_aligned(tmp_path):
    write_table_as(tmp_path / "web" / "a.parquet")

    shard_of_text = task_for(
        tmp_path / "web", tmp_path / "out", text_key="text", required_keys=("more",)
    ).make()
    shard_of_more = task_for(
        tmp_path / "web", tmp_path / "out2", text_key="more", required_keys=("text",)
    ).make()

    # Rows 1 and 3 lack one of the keys, and are documents of neither pair.
    for shard in (shard_of_text, shard_of_more):
        table = pq.read_table(shard.path("documents.parquet"))
        assert shard.facts["documents"] == 2
        assert table["id"].to_pylist() == ["0", "2"]
    assert len(MMapIndexedDataset(shard_of_more.path("tokens")).sequence_lengths) == 2
