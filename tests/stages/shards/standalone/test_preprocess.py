"""`preprocess` makes the pairs of the peers' tools, with any number of workers, and resumes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.progress import RecordingDisplay, ShownWork
from helpers.sample_pairs import pair_bytes
from helpers.sample_project import jsonl, sentences, tree
from helpers.tokenizing import (
    FILES,
    N_DOCUMENTS,
    N_DOCUMENTS_OF_FIRST_FILE,
    encode_with_end,
    make_options,
    peer_pair_bytes,
    texts_of_files,
)
from nanoset_core import MMapIndexedDatasetBuilder
from nanoset_core.errors import ConfigError, InputError
from nanoset_core.stages.shards.standalone import ranges as standalone_ranges
from nanoset_core.stages.shards.standalone.inputs import InputFiles, resolve_inputs
from nanoset_core.stages.shards.standalone.preprocess import preprocess


@pytest.fixture
def inputs(raw: Path) -> InputFiles:
    """The two files of raw text."""
    return resolve_inputs([raw])


@pytest.fixture
def expected_pair(raw: Path, tmp_path: Path, tokenizer_file: Path) -> tuple[bytes, bytes]:
    """The bytes of the pair that Megatron-LM's tool makes of both files."""
    return peer_pair_bytes(tmp_path / "expected", tokenizer_file, texts_of_files(raw))


def read_rejects(path: Path) -> list[dict[str, Any]]:
    """Return the rejects of a list."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]


# The bytes of pairs


@pytest.mark.parametrize(
    ("preset", "name", "n_skipped"),
    [
        ("megatron", "out_text_document", 0),
        ("nemo", "out_text_document", 1),  # leaves out the document without text
        ("nanotron", "out_text", 0),
    ],
)
def test_a_pair_has_the_name_and_the_bytes_of_the_tool_of_its_preset(
    inputs, raw, tmp_path, tokenizer_file, preset, name, n_skipped
):
    options = make_options(tokenizer_file, preset=preset)

    (result,) = preprocess(inputs, tmp_path / "out", options)

    assert result.prefix == tmp_path / name
    assert pair_bytes(result.prefix) == peer_pair_bytes(
        tmp_path / "expected", tokenizer_file, texts_of_files(raw), preset
    )
    assert result.facts.lines == N_DOCUMENTS
    assert result.facts.documents == N_DOCUMENTS - n_skipped
    assert result.facts.skipped == n_skipped


@pytest.mark.parametrize("partitions", [1, 2, 7, 60])
def test_partitions_are_dealt_documents_in_turn(inputs, raw, tmp_path, tokenizer_file, partitions):
    options = make_options(tokenizer_file, partitions=partitions)

    (result,) = preprocess(inputs, tmp_path / "out", options)

    texts = texts_of_files(raw)
    texts_in_order = []
    for partition in range(partitions):
        texts_in_order += texts[partition::partitions]
    assert pair_bytes(result.prefix) == peer_pair_bytes(
        tmp_path / "expected", tokenizer_file, texts_in_order
    )


def test_partitions_keep_the_order_of_documents_if_the_options_say_so(
    inputs, tmp_path, tokenizer_file, expected_pair
):
    options = make_options(tokenizer_file, partitions=3, keep_sequential_samples=True)

    (result,) = preprocess(inputs, tmp_path / "out", options)

    assert pair_bytes(result.prefix) == expected_pair


def test_several_keys_give_pairs_that_stay_aligned(tmp_path, tokenizer_file):
    rows = [{"title": f"t {number}", "text": f"body {number}"} for number in range(8)]
    rows_without_a_key = [{"text": "no title"}, {"title": "no text"}]
    (tmp_path / "in.jsonl").write_bytes(jsonl([*rows[:3], *rows_without_a_key, *rows[3:]]))
    keys = ("title", "text")
    options = make_options(tokenizer_file, keys=keys, max_rejected_fraction=0.5)

    results = preprocess(resolve_inputs([tmp_path / "in.jsonl"]), tmp_path / "out", options)

    # A line that lacks one of the keys is a document of neither pair, and is listed once.
    assert [result.prefix.name for result in results] == ["out_title_document", "out_text_document"]
    for result, key in zip(results, keys, strict=True):
        texts = [row[key] for row in rows]
        assert pair_bytes(result.prefix) == peer_pair_bytes(
            tmp_path / f"expected-{key}", tokenizer_file, texts
        )
        assert result.facts.rejected == 2
    rejects = read_rejects(tmp_path / "out_rejects.jsonl")
    assert [reject["line"] for reject in rejects] == [4, 5]
    assert [reject["reason"] for reject in rejects] == ["missing_key", "missing_key"]


def test_a_call_leaves_only_the_pair_and_its_record(inputs, tmp_path, tokenizer_file):
    preprocess(inputs, tmp_path / "new" / "out", make_options(tokenizer_file))

    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "out_text_document.bin",
        "out_text_document.idx",
        "out_text_document.manifest.json",
    ]


def test_the_record_of_a_pair_has_its_facts_and_sources(inputs, tmp_path, tokenizer_file):
    preprocess(inputs, tmp_path / "out", make_options(tokenizer_file))

    record = json.loads((tmp_path / "out_text_document.manifest.json").read_bytes())
    assert record["facts"]["documents"] == N_DOCUMENTS
    assert [source["path"] for source in record["sources"]] == list(FILES)


# tokshuf


def test_tokshuf_ends_every_document(inputs, raw, tmp_path, tokenizer_file):
    options = make_options(tokenizer_file, preset="tokshuf")

    (result,) = preprocess(inputs, tmp_path / "out", options)

    with MMapIndexedDatasetBuilder(tmp_path / "expected", np.uint16) as builder:
        for ids in encode_with_end(tokenizer_file, texts_of_files(raw)):
            builder.add_document(ids)
    assert pair_bytes(result.prefix) == pair_bytes(tmp_path / "expected")


@pytest.fixture
def tokens_by_file(raw: Path, tokenizer_file: Path) -> dict[str, int]:
    """The tokens of each file, in the order in which they are read; one is added, and empty."""
    (raw / "nothing.jsonl").write_bytes(b"")
    encoded = encode_with_end(tokenizer_file, texts_of_files(raw))
    lengths = [len(ids) for ids in encoded]
    return {
        "nothing.jsonl": 0,
        FILES[0]: sum(lengths[:N_DOCUMENTS_OF_FIRST_FILE]),
        FILES[1]: sum(lengths[N_DOCUMENTS_OF_FIRST_FILE:]),
    }


def test_the_tokens_of_each_file_are_counted_in_the_order_of_the_files(
    raw, tmp_path, tokenizer_file, tokens_by_file
):
    options = make_options(tokenizer_file, preset="tokshuf", count_by_file=True)

    (result,) = preprocess(resolve_inputs([raw]), tmp_path / "out", options)
    (repeated_result,) = preprocess(resolve_inputs([raw]), tmp_path / "out", options)

    assert result.tokens_by_file == tokens_by_file
    assert list(result.tokens_by_file) == list(tokens_by_file)
    assert repeated_result == result


def test_the_tokens_of_each_file_are_counted_for_a_pair_that_exists(
    raw, tmp_path, tokenizer_file, tokens_by_file
):
    inputs = resolve_inputs([raw])
    options = make_options(tokenizer_file, preset="tokshuf")
    (uncounted_result,) = preprocess(inputs, tmp_path / "out", options)
    counting_options = make_options(tokenizer_file, preset="tokshuf", count_by_file=True)

    (counted_result,) = preprocess(inputs, tmp_path / "out", counting_options)

    assert uncounted_result.tokens_by_file is None
    assert counted_result.tokens_by_file == tokens_by_file


# Workers

MAIN_THAT_REPORTS_POOLS = """
import sys
from nanoset_core.cli import main
from nanoset_core.execution import processes
from nanoset_core.stages.shards.standalone import ranges as standalone_ranges

standalone_ranges.MIN_RANGE_BYTES = 1500
run_in_pool = processes._Pool.run

def report_and_run_in_pool(pool, *arguments):
    print("in a pool")
    return run_in_pool(pool, *arguments)

processes._Pool.run = report_and_run_in_pool
main(sys.argv[1:])
"""
"""`nanoset` with small ranges of text, which says whether it forks workers."""


def tokenize_in_subprocess(raw: Path, prefix: Path, tokenizer_file: Path, workers: int) -> str:
    """Tokenize a folder in a process of its own, since pytest's may have threads.

    Returns:
        What it printed.
    """
    arguments = ["tokenize", "--input", raw, "--output-prefix", prefix]
    arguments += ["--workers", str(workers), "--tokenizer", tokenizer_file]
    process = subprocess.run(
        [sys.executable, "-c", MAIN_THAT_REPORTS_POOLS, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return process.stdout


def test_forked_workers_give_the_same_files(raw, tmp_path, tokenizer_file):
    output = tokenize_in_subprocess(raw, tmp_path / "1" / "out", tokenizer_file, workers=1)
    forked_output = tokenize_in_subprocess(raw, tmp_path / "3" / "out", tokenizer_file, workers=3)

    can_fork = sys.platform == "linux"
    assert "in a pool" not in output
    assert ("in a pool" in forked_output) == can_fork
    assert tree(tmp_path / "1") == tree(tmp_path / "3")


def test_a_plain_file_of_any_name_is_cut_for_the_workers(
    raw, tmp_path, tokenizer_file, monkeypatch, expected_pair
):
    monkeypatch.setattr("nanoset_core.text.inventory.fingerprints.PIECE_BYTES", 1500)
    monkeypatch.setattr(standalone_ranges, "MIN_RANGE_BYTES", 1500)
    bad_line = b"nonsense\n"
    lines = (raw / FILES[0]).read_bytes() + (raw / FILES[1]).read_bytes()
    corpus = tmp_path / "corpus.json"
    corpus.write_bytes(lines + bad_line)
    options = make_options(tokenizer_file, workers=2, max_rejected_fraction=0.1)

    (result,) = preprocess(resolve_inputs([corpus]), tmp_path / "out", options)

    assert pair_bytes(result.prefix) == expected_pair
    record = json.loads((tmp_path / "out_text_document.manifest.json").read_bytes())
    assert len(record["sources"]) > 3
    # The line is counted in the file, although it was read as one of its last piece.
    (reject,) = read_rejects(result.rejects)
    assert reject["file"] == "corpus.json"
    assert reject["line"] == N_DOCUMENTS + 1
    assert reject["offset"] == len(lines)


# Calls that are repeated or resumed


def test_a_stopped_call_resumes_with_the_shards_that_it_finished(
    inputs, tmp_path, tokenizer_file, monkeypatch, expected_pair
):
    monkeypatch.setattr(standalone_ranges, "MIN_RANGE_BYTES", 2000)
    options = make_options(tokenizer_file)
    scratch = tmp_path / "work"

    def stop_after_first_shard(work: ShownWork) -> None:
        if work.stage == "tokenize" and work.done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        preprocess(
            inputs,
            tmp_path / "out",
            options,
            scratch=scratch,
            progress=RecordingDisplay(stop_after_first_shard).progress,
        )

    # The stopped call has published nothing, and has kept one shard.
    assert not list(tmp_path.glob("out*"))
    (shard,) = scratch.glob(".out-*.scratch/shards/input/*/tokens.bin")
    time_of_writing = shard.stat().st_mtime_ns
    (scratch / "mine.txt").write_text("a file of the user, which must not be removed")
    times_of_writing = set()

    def record_time_of_writing(work: ShownWork) -> None:
        if work.stage == "tokenize" and shard.exists():
            times_of_writing.add(shard.stat().st_mtime_ns)

    (result,) = preprocess(
        inputs,
        tmp_path / "out",
        options,
        scratch=scratch,
        progress=RecordingDisplay(record_time_of_writing).progress,
    )

    # The second call has not made the shard again, and has removed its own files.
    assert times_of_writing == {time_of_writing}
    assert pair_bytes(result.prefix) == expected_pair
    assert [path.name for path in scratch.iterdir()] == ["mine.txt"]


def inode_by_name(folder: Path) -> dict[str, int]:
    """Return the inode of each output in a folder, which changes if a file is replaced."""
    return {path.name: path.stat().st_ino for path in folder.glob("out*")}


def test_a_repeated_call_writes_nothing_even_with_other_workers(inputs, tmp_path, tokenizer_file):
    (result,) = preprocess(inputs, tmp_path / "out", make_options(tokenizer_file))
    inodes = inode_by_name(tmp_path)

    (repeated_result,) = preprocess(
        inputs, tmp_path / "out", make_options(tokenizer_file, workers=2)
    )

    assert repeated_result == result
    assert inode_by_name(tmp_path) == inodes


def test_a_pair_that_was_damaged_is_rebuilt_by_the_same_call(
    inputs, tmp_path, tokenizer_file, expected_pair
):
    options = make_options(tokenizer_file)
    (result,) = preprocess(inputs, tmp_path / "out", options)
    (tmp_path / "out_text_document.bin").write_bytes(b"cut")

    preprocess(inputs, tmp_path / "out", options)

    assert pair_bytes(result.prefix) == expected_pair


def test_another_end_token_gives_another_pair(inputs, tmp_path, tokenizer_file):
    (result,) = preprocess(inputs, tmp_path / "out", make_options(tokenizer_file))

    (other_result,) = preprocess(inputs, tmp_path / "out", make_options(tokenizer_file, eod=None))

    # Each document with tokens has lost its end token.
    assert other_result.facts.tokens == result.facts.tokens - (N_DOCUMENTS - 1)


def test_a_changed_input_gives_another_pair(raw, tmp_path, tokenizer_file):
    options = make_options(tokenizer_file)
    preprocess(resolve_inputs([raw]), tmp_path / "out", options)
    (raw / FILES[1]).write_bytes(jsonl(sentences("new", 3)))

    (result,) = preprocess(resolve_inputs([raw]), tmp_path / "out", options)

    assert result.facts.documents == N_DOCUMENTS_OF_FIRST_FILE + 3


@pytest.fixture
def raw_with_rejects(raw: Path) -> Path:
    """The folder of raw text, with a further file of five lines that are not JSON."""
    (raw / "bad.jsonl").write_bytes(b"nonsense\n" * 5)
    return raw


def test_too_many_rejects_publish_no_pair(raw_with_rejects, tmp_path, tokenizer_file):
    inputs = resolve_inputs([raw_with_rejects])

    with pytest.raises(InputError, match="max-rejected-fraction"):
        preprocess(inputs, tmp_path / "out", make_options(tokenizer_file))

    assert not list(tmp_path.glob("out*"))


def test_the_shards_that_a_refused_call_keeps_are_judged_again(
    raw_with_rejects, tmp_path, tokenizer_file
):
    inputs = resolve_inputs([raw_with_rejects])
    with pytest.raises(InputError, match="max-rejected-fraction"):
        preprocess(inputs, tmp_path / "out", make_options(tokenizer_file))

    with pytest.raises(InputError, match="--on-reject fail"):
        preprocess(inputs, tmp_path / "out", make_options(tokenizer_file, on_reject="fail"))


def test_a_pair_that_exists_is_refused_if_its_rejects_are_not_allowed(
    raw_with_rejects, tmp_path, tokenizer_file
):
    inputs = resolve_inputs([raw_with_rejects])
    lenient_options = make_options(tokenizer_file, max_rejected_fraction=0.5)
    strict_options = make_options(tokenizer_file, on_reject="fail")
    default_options = make_options(tokenizer_file, max_rejected_fraction=0.0)
    preprocess(inputs, tmp_path / "out", lenient_options)

    with pytest.raises(InputError, match="invalid_json"):
        preprocess(inputs, tmp_path / "out", strict_options)
    with pytest.raises(InputError, match="max-rejected-fraction"):
        preprocess(inputs, tmp_path / "out", default_options)
    with pytest.raises(InputError, match="--on-reject fail"):
        preprocess(inputs, tmp_path / "out", strict_options)


# Names of pairs


@pytest.mark.parametrize(
    "key",
    ["a/b", "/a", "", "a\0b", "a\nb", "\x1b[2J", "\udcff", "x" * 250, "é" * 120],
    ids=ascii,
)
def test_a_key_that_cannot_be_part_of_the_name_of_a_file_is_refused(tmp_path, tokenizer_file, key):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    inputs = resolve_inputs([tmp_path / "a.jsonl"])
    options = make_options(tokenizer_file, keys=("text", key))

    with pytest.raises(ConfigError, match="cannot be part of a file's name") as refused:
        preprocess(inputs, tmp_path / "out" / "x", options)

    assert refused.value.where == "--json-keys"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("key", ["..", ".", " ", "a\\b", "x" * 150])
def test_an_unusual_key_is_part_of_the_names_of_its_files(tmp_path, tokenizer_file, key):
    (tmp_path / "a.jsonl").write_text(json.dumps({key: "some text"}) + "\n")
    inputs = resolve_inputs([tmp_path / "a.jsonl"])

    (result,) = preprocess(inputs, tmp_path / "x", make_options(tokenizer_file, keys=(key,)))

    assert (tmp_path / f"x_{key}_document.bin").exists()
    assert result.facts.documents == 1


def test_a_prefix_that_leaves_no_room_for_the_key_is_refused(tmp_path, tokenizer_file):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    inputs = resolve_inputs([tmp_path / "a.jsonl"])

    with pytest.raises(ConfigError, match="names of the files would be too long"):
        preprocess(inputs, tmp_path / ("x" * 240), make_options(tokenizer_file))
