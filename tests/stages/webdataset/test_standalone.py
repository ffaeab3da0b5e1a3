"""`nanoset shuffle` turns text, datasets and tars into tars, and completes or refuses old outputs."""

from __future__ import annotations

import errno
import fcntl
import gzip
import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.command import invoke_nanoset
from helpers.sample_project import EOD, jsonl, sentences
from nanoset_core import MMapIndexedDataset, iterate_shards
from nanoset_core.errors import ConfigError, InputError, MissingError, StorageError
from nanoset_core.stages.shards.standalone.inputs import resolve_inputs
from nanoset_core.stages.shards.standalone.options import PreprocessOptions
from nanoset_core.stages.shards.standalone.preprocess import preprocess
from nanoset_core.stages.webdataset import lists as webdataset
from nanoset_core.stages.webdataset.order import Choice, choice_seed
from nanoset_core.stages.webdataset.standalone import shuffle as shuffle_module
from nanoset_core.stages.webdataset.standalone.inputs import find_inputs
from nanoset_core.stages.webdataset.standalone.options import ShuffleOptions
from nanoset_core.stages.webdataset.standalone.shuffle import shuffle
from nanoset_core.wording import format_bytes, format_count

LENGTH = 33
SAMPLES_PER_TAR = 16
PAD = 1
"""Id of `<|pad|>`."""
Context = tuple[int, ...]


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory, tokenizer_file) -> Path:
    """A folder with text in `raw` and its datasets in `pairs`; not to be written to."""
    folder = tmp_path_factory.mktemp("shared")
    options = PreprocessOptions(tokenizer=tokenizer_file, eod=EOD, workers=1)
    for corpus, n_documents in {"web": 60, "code": 25}.items():
        raw_folder = folder / "raw" / corpus
        raw_folder.mkdir(parents=True)
        rows = sentences(corpus, n_documents)
        half = n_documents // 2
        (raw_folder / "part-2.jsonl").write_bytes(jsonl(rows[:half]))
        (raw_folder / "part-10.jsonl").write_bytes(jsonl(rows[half:]))
        preprocess(resolve_inputs([raw_folder]), folder / "pairs" / corpus, options)
    return folder


@pytest.fixture
def raw(shared_folder, tmp_path) -> Path:
    """A folder with the text of two corpora, in two files each."""
    return Path(shutil.copytree(shared_folder / "raw", tmp_path / "raw"))


@pytest.fixture
def pairs(shared_folder, raw, tmp_path) -> list[Path]:
    """The prefixes of the datasets of web and code."""
    folder = tmp_path / "pairs"
    shutil.copytree(shared_folder / "pairs", folder)
    return [folder / f"{corpus}_text_document" for corpus in ["web", "code"]]


@pytest.fixture
def text_options(tokenizer_file) -> list[Any]:
    """Options with which text is tokenized like the datasets."""
    return ["--tokenizer", tokenizer_file, "--eod", EOD]


def invoke_shuffle(*words: Any) -> Any:
    """Run `nanoset shuffle`, and return its outcome."""
    return invoke_nanoset(["shuffle", *words], catch_exceptions=False)


def shuffle_into(output: Path, *words: Any) -> str:
    """Run `nanoset shuffle` with the usual lengths, and return what it printed."""
    usual = ["--output", output, "--seqlen", LENGTH, "--wds-chunk-size", SAMPLES_PER_TAR]
    outcome = invoke_shuffle(*usual, "--workers", 1, *words)
    assert outcome.exit_code == 0, outcome.output
    return str(outcome.output)


def sha256_by_file(folder: Path) -> dict[str, str]:
    """Return the sha256 of each file in a folder, by its name."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
    }


def sha256_by_tar(folder: Path) -> dict[str, str]:
    """Return the sha256 of each tar in a folder, by its name."""
    all_files = sha256_by_file(folder)
    return {name: digest for name, digest in all_files.items() if name.endswith(".tar")}


def inode_by_file(folder: Path, pattern: str = "*") -> dict[str, int]:
    """Return the inode of each file in a folder, which changes if the file is rewritten."""
    return {path.name: path.stat().st_ino for path in folder.glob(pattern)}


def names_in(folder: Path) -> list[str]:
    """Return the names of the files and folders in a folder."""
    return sorted(path.name for path in folder.iterdir())


def plan_of(folder: Path) -> dict[str, Any]:
    """Return the facts of the plan in the manifest of an output."""
    plan: dict[str, Any] = json.loads((folder / "manifest.json").read_bytes())["facts"]["plan"]
    return plan


def contexts_of(folder: Path) -> list[Context]:
    """Return the contexts of tars, in order."""
    return [tuple(context.tolist()) for context in iterate_shards(folder)]


def tokens_of(prefix: Path) -> list[int]:
    """Return all tokens of a dataset."""
    tokens: list[int] = MMapIndexedDataset(prefix).tokens.tolist()
    return tokens


def cut(tokens: Sequence[int]) -> list[Context]:
    """Return the contexts that tokens fill."""
    n_tokens_in_contexts = len(tokens) // LENGTH * LENGTH
    starts = range(0, n_tokens_in_contexts, LENGTH)
    return [tuple(tokens[start : start + LENGTH]) for start in starts]


# Text


def test_text_is_tokenized_cut_and_shuffled(raw, pairs, tmp_path, text_options):
    out = tmp_path / "out"
    expected = cut(tokens_of(pairs[0]))

    printed = shuffle_into(out, "--input", raw / "web", *text_options)

    assert sorted(contexts_of(out)) == sorted(expected)
    assert contexts_of(out) != expected
    plan = plan_of(out)
    assert f"{format_count(plan['shards'], 'tar')}, {len(expected)} contexts" in printed
    assert plan["tokens_dropped"] == len(tokens_of(pairs[0])) % LENGTH
    assert names_in(tmp_path) == ["out", "pairs", "raw"]


@pytest.fixture(scope="module")
def npy_tars(shared_folder, tmp_path_factory, tokenizer_file) -> dict[str, str]:
    """The sha256 of tars of web with npy members, by their names."""
    folder = tmp_path_factory.mktemp("npy")
    words = ["--input", shared_folder / "raw" / "web", "--tokenizer", tokenizer_file]
    shuffle_into(folder, *words, "--eod", EOD, "--member", "npy")
    tars = sha256_by_tar(folder)
    assert len(tars) > 3
    return tars


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--engine", "tiled"], id="deprecated engine"),
        pytest.param(["--workers", 2], id="two workers"),
        pytest.param(["--memory", 64], id="little memory"),
    ],
)
def test_tars_do_not_depend_on_the_engine_workers_and_memory(
    raw, tmp_path, text_options, npy_tars, options
):
    words = ["--input", raw / "web", *text_options, "--member", "npy", *options]

    shuffle_into(tmp_path / "out", *words)

    assert sha256_by_tar(tmp_path / "out") == npy_tars


def test_tars_do_not_depend_on_buckets_in_a_scratch_folder(raw, tmp_path, text_options, npy_tars):
    scratch = tmp_path / "scratch"
    words = ["--input", raw / "web", *text_options, "--member", "npy"]

    shuffle_into(tmp_path / "out", *words, "--engine", "buckets", "--scratch", scratch)

    assert sha256_by_tar(tmp_path / "out") == npy_tars
    assert names_in(scratch) == []


def test_tars_of_text_are_those_of_its_dataset(pairs, tmp_path, tokenizer_file, npy_tars):
    words = ["--input", pairs[0], "--tokenizer", tokenizer_file, "--member", "npy"]

    shuffle_into(tmp_path / "out", *words)

    assert sha256_by_tar(tmp_path / "out") == npy_tars


def test_outputs_of_one_name_can_share_a_scratch_folder(raw, tmp_path, text_options, monkeypatch):
    scratch = tmp_path / "scratch"
    text_options = [*text_options, "--workers", 2]
    for corpus in ["web", "code"]:
        output = tmp_path / "alone" / corpus / "tars"
        shuffle_into(output, "--input", raw / corpus, *text_options)

    # While web is shuffled, code is shuffled into a folder of the same name.
    plan_shuffle = shuffle_module.plan_shuffle
    calls = []

    def plan_while_another_call_runs(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            words = ["--input", raw / "code", *text_options, "--scratch", scratch]
            shuffle_into(tmp_path / "code" / "tars", *words)
        return plan_shuffle(*arguments)

    monkeypatch.setattr(shuffle_module, "plan_shuffle", plan_while_another_call_runs)
    words = ["--input", raw / "web", *text_options, "--scratch", scratch]
    shuffle_into(tmp_path / "web" / "tars", *words)

    for corpus in ["web", "code"]:
        expected = sha256_by_tar(tmp_path / "alone" / corpus / "tars")
        assert sha256_by_tar(tmp_path / corpus / "tars") == expected
    assert names_in(scratch) == []


@pytest.fixture
def sampling_words(raw, tmp_path, text_options) -> list[Any]:
    """Arguments that sample web and code, and leave out another corpus without frequency."""
    (raw / "other").mkdir()
    (raw / "other" / "a.jsonl").write_bytes(jsonl(sentences("other", 9)))
    sampling = tmp_path / "sources.yaml"
    sampling.write_text(
        "sources:\n"
        "- {source: CODE, markers: [/code/]}\n"
        "- {source: WEB, markers: [/nowhere/, /web/]}\n"
        "sampling_frequencies: {WEB: 0.5, CODE: 2.25}\n"
    )
    return ["--input", raw, *text_options, "--sampling", sampling]


def test_sampling_says_how_often_each_source_of_text_occurs(pairs, tmp_path, sampling_words):
    [web, code] = [cut(tokens_of(prefix)) for prefix in pairs]
    # Half of web, and code twice and a quarter, rounded.
    n_web = round(len(web) * 0.5 + 1e-9)
    n_code = round(len(code) * 0.25 + 1e-9)
    chosen_web = Choice(len(web), n_web, choice_seed(1234, "WEB")).rows_of(np.arange(n_web))
    chosen_code = Choice(len(code), n_code, choice_seed(1234, "CODE")).rows_of(np.arange(n_code))
    expected = code * 2
    expected += [web[row] for row in chosen_web]
    expected += [code[row] for row in chosen_code]

    shuffle_into(tmp_path / "out", *sampling_words)

    assert sorted(contexts_of(tmp_path / "out")) == sorted(expected)
    sources = plan_of(tmp_path / "out")["sources"]
    assert [source["contexts"] for source in sources] == [2 * len(code) + n_code, n_web]


def test_a_plan_shows_the_sampling_and_what_is_left_out(tmp_path, sampling_words):
    words = ["--output", tmp_path / "x", *sampling_words, "--seqlen", LENGTH, "--plan"]

    printed = invoke_shuffle(*words).output

    assert "2.25" in printed
    assert "inputs left out" in printed


def test_inputs_that_are_not_read_and_zero_bytes_are_reported_each_time(tmp_path, text_options):
    folder = tmp_path / "in"
    folder.mkdir()
    zero_bytes = "\0" * 20
    rows = [{"text": row["text"] + zero_bytes} for row in sentences("web", 40)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "a.parquet")
    (folder / "b.jsonl.xz").write_bytes(b"BZh9")
    (folder / "c.jsonl").write_bytes(b"")
    words = ["--input", folder, *text_options]

    first = shuffle_into(folder / "out", *words)
    second = shuffle_into(folder / "out", *words)
    plan = shuffle_into(folder / "out", *words, "--plan")

    assert "already exists" in second
    for printed in [first, second]:
        assert "40 documents with runs of zero bytes: 40 in a.parquet" in printed
        assert f"notice: {folder}: 1 file is not read: 1 .jsonl.xz (b.jsonl.xz)" in printed
        assert f"notice: {folder}: 1 file is empty: c.jsonl" in printed
        assert printed.count("notice") == 2
    assert "b.jsonl.xz" in plan


@pytest.fixture
def words_with_rejects(raw, text_options) -> list[Any]:
    """Arguments for text of which a line and a file cannot be read, and are rejected."""
    (raw / "web" / "bad.jsonl").write_bytes(b"nonsense\n")
    compressed = gzip.compress(b'{"text": "one"}\n' * 9)
    (raw / "web" / "cut.jsonl.gz").write_bytes(compressed[:5])
    limits = ["--max-rejected-fraction", 0.5, "--max-unreadable-fraction", 1]
    return ["--input", raw / "web", *text_options, *limits]


def test_rejected_lines_and_files_are_listed_next_to_the_tars(tmp_path, words_with_rejects):
    first = shuffle_into(tmp_path / "out", *words_with_rejects)
    second = shuffle_into(tmp_path / "out", *words_with_rejects)

    assert "1 line and 1 file rejected (rejects.jsonl)" in first
    assert "1 line and 1 file rejected (rejects.jsonl)" in second
    lines = (tmp_path / "out" / "rejects.jsonl").read_bytes().splitlines()
    rejects = [json.loads(line) for line in lines]
    assert [reject["file"] for reject in rejects] == ["bad.jsonl", "cut.jsonl.gz"]
    assert [reject["line"] for reject in rejects] == [1, 1]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--on-reject", "fail"], id="fail"),
        pytest.param(["--max-rejected-fraction", 0], id="limit"),
    ],
)
def test_an_output_with_rejects_is_refused_if_they_are_not_allowed(
    tmp_path, words_with_rejects, options
):
    shuffle_into(tmp_path / "out", *words_with_rejects)

    with pytest.raises(InputError):
        shuffle_into(tmp_path / "out", *words_with_rejects, *options)


# Datasets


@pytest.fixture
def pair_words(pairs, tokenizer_file) -> list[Any]:
    """Arguments for both datasets."""
    return ["--input", *pairs, "--tokenizer", tokenizer_file, "--member", "npy"]


def test_each_dataset_is_cut_separately(pairs, tmp_path, pair_words):
    [web, code] = [tokens_of(prefix) for prefix in pairs]

    shuffle_into(tmp_path / "out", *pair_words)

    assert sorted(contexts_of(tmp_path / "out")) == sorted(cut(web) + cut(code))


def test_with_carry_datasets_are_cut_in_sequence(pairs, tmp_path, pair_words):
    [web, code] = [tokens_of(prefix) for prefix in pairs]

    shuffle_into(tmp_path / "out", *pair_words, "--tail", "carry")

    assert sorted(contexts_of(tmp_path / "out")) == sorted(cut(web + code))


def test_with_pad_the_last_context_of_each_dataset_is_padded(pairs, tmp_path, pair_words):
    expected = []
    for prefix in pairs:
        tokens = tokens_of(prefix)
        n_missing = -len(tokens) % LENGTH
        expected += cut(tokens + [PAD] * n_missing)

    shuffle_into(tmp_path / "out", *pair_words, "--tail", "pad", "--pad", "<|pad|>")

    assert sorted(contexts_of(tmp_path / "out")) == sorted(expected)


def test_with_bos_each_context_starts_with_it(pairs, tmp_path, pair_words):
    [web, code] = [tokens_of(prefix) for prefix in pairs]
    bos_options = ["--context-bos", "<|pad|>", "--seqlen", LENGTH + 1]

    shuffle_into(tmp_path / "out", *pair_words, *bos_options)

    expected = [(PAD, *context) for context in cut(web) + cut(code)]
    assert sorted(contexts_of(tmp_path / "out")) == sorted(expected)
    plan = plan_of(tmp_path / "out")
    assert plan["tokens"] == plan["contexts"] * LENGTH


def test_even_tars_leave_out_the_last_contexts_of_the_order(tmp_path, pair_words):
    shuffle_into(tmp_path / "uneven", *pair_words)
    shuffle_into(tmp_path / "even", *pair_words, "--even")

    plan = plan_of(tmp_path / "even")
    contexts = contexts_of(tmp_path / "uneven")
    assert contexts_of(tmp_path / "even") == contexts[: plan["contexts"]]
    assert 0 < plan["contexts_left_out"] < plan["shards"]


# Tars


def test_tars_are_shuffled_in_another_order(pairs, tmp_path):
    shuffle_into(tmp_path / "one", "--input", *pairs)

    shuffle_into(tmp_path / "two", "--input", tmp_path / "one", "--seed", 9, "--member", "npy")

    assert sorted(contexts_of(tmp_path / "two")) == sorted(contexts_of(tmp_path / "one"))
    assert contexts_of(tmp_path / "two") != contexts_of(tmp_path / "one")


def test_tars_can_be_named_one_by_one(pairs, tmp_path):
    shuffle_into(tmp_path / "one", "--input", *pairs, "--member", "npy")
    files = sorted((tmp_path / "one").glob("*.tar"))
    options = ["--seed", 9, "--shuffle-only", "--member", "npy"]

    shuffle_into(tmp_path / "two", "--input", *files, *options)

    assert sorted(contexts_of(tmp_path / "two")) == sorted(contexts_of(tmp_path / "one"))


def test_the_length_of_contexts_in_tars_cannot_be_changed(pairs, tmp_path):
    shuffle_into(tmp_path / "one", "--input", *pairs)
    files = sorted((tmp_path / "one").glob("*.tar"))

    with pytest.raises(ConfigError, match="cannot be changed"):
        shuffle_into(tmp_path / "two", "--input", *files, "--seqlen", 20)


def test_members_of_tars_without_tokens_are_counted_and_left_out(pairs, tmp_path):
    shuffle_into(tmp_path / "one", "--input", pairs[0])
    tar = next((tmp_path / "one").glob("*.tar"))
    with tarfile.open(tar, "a") as archive:
        archive.addfile(tarfile.TarInfo(".DS_Store"))
        archive.addfile(tarfile.TarInfo("README.md"))
    words = ["--input", tmp_path / "one", "--output", tmp_path / "two"]

    plan = invoke_shuffle(*words, "--plan")
    outcome = invoke_shuffle(*words)

    notice = f"notice: 2 members without tokens passed over, such as '.DS_Store' in {tar.name}"
    assert notice in plan.stderr
    assert outcome.exit_code == 0
    assert notice in outcome.stderr
    assert sorted(contexts_of(tmp_path / "two")) == sorted(contexts_of(tmp_path / "one"))


# Plans


@pytest.fixture
def plan_words(tmp_path) -> list[Any]:
    """Arguments that print a plan, but no input."""
    usual = ["--output", tmp_path / "out", "--seqlen", LENGTH, "--wds-chunk-size", SAMPLES_PER_TAR]
    return [*usual, "--member", "npy", "--plan"]


def test_a_plan_writes_nothing(raw, pairs, tmp_path, text_options, plan_words):
    names_before = names_in(tmp_path)

    invoke_shuffle("--input", *pairs, *plan_words, "--engine", "buckets", "--memory", 100)
    invoke_shuffle("--input", raw, *text_options, *plan_words)

    assert names_in(tmp_path) == names_before


def test_the_plan_of_datasets_is_exact(pairs, tmp_path, plan_words):
    words = [*plan_words, "--engine", "buckets", "--memory", 100]

    printed = invoke_shuffle("--input", *pairs, *words).output

    shuffle_into(tmp_path / "out", "--input", *pairs, "--member", "npy")
    plan = plan_of(tmp_path / "out")
    n_bytes = sum(path.stat().st_size for path in (tmp_path / "out").glob("*.tar"))
    assert f"{plan['contexts']:,} of {LENGTH} tokens" in printed
    assert f"{plan['shards']} of {SAMPLES_PER_TAR} contexts" in printed
    assert format_bytes(n_bytes) in printed
    assert "buckets: as requested" in printed


def test_the_plan_of_text_is_an_estimate(raw, pairs, tmp_path, text_options, plan_words):
    printed = invoke_shuffle("--input", raw, *text_options, *plan_words).output

    shuffle_into(tmp_path / "out", "--input", *pairs, "--member", "npy")
    assert f"about {plan_of(tmp_path / 'out')['shards']}" in printed


def test_the_plan_of_tars_is_exact(pairs, tmp_path, plan_words):
    shuffle_into(tmp_path / "out", "--input", *pairs, "--member", "npy")

    printed = invoke_shuffle("--input", tmp_path / "out", *plan_words).output

    assert f"{plan_of(tmp_path / 'out')['contexts']:,} of {LENGTH} tokens" in printed


# Outputs that exist


@pytest.fixture
def out(pairs, tmp_path) -> Path:
    """An output of both datasets."""
    shuffle_into(tmp_path / "out", "--input", *pairs)
    return tmp_path / "out"


def test_the_same_call_writes_nothing_again(pairs, tmp_path, out):
    inodes_before = inode_by_file(out)
    # A call that is killed at its very end leaves its scratch folder.
    (tmp_path / ".out.scratch" / "tokens").mkdir(parents=True)

    printed = shuffle_into(out, "--input", *pairs, "--workers", 2, "--engine", "tiled")

    assert "already exists" in printed
    assert not (tmp_path / ".out.scratch").exists()
    assert inode_by_file(out) == inodes_before


def test_a_damaged_output_is_rewritten(pairs, out):
    files_before = sha256_by_file(out)
    (out / "shard-00000001.tar").write_bytes(b"cut")

    printed = shuffle_into(out, "--input", *pairs)

    assert "already exists" not in printed
    assert sha256_by_file(out) == files_before


@pytest.mark.parametrize(
    ("n_pairs", "options", "found"),
    [
        pytest.param(2, ["--seed", 5], "--seed: 1234 → 5", id="seed"),
        pytest.param(
            1,
            [],
            "it was made from other files, or they were moved or rewritten since",
            id="input",
        ),
        pytest.param(2, ["--seqlen", 17], f"--seqlen: {LENGTH} → 17", id="length"),
        pytest.param(2, ["--wds-chunk-size", 9], "--wds-chunk-size: 16 → 9", id="size of tars"),
    ],
)
def test_an_output_of_other_input_or_settings_is_not_replaced_by_default(
    pairs, out, n_pairs, options, found
):
    files_before = sha256_by_file(out)

    with pytest.raises(ConfigError, match="other input or settings") as caught:
        shuffle_into(out, "--input", *pairs[:n_pairs], *options)

    assert caught.value.found == found
    assert "--overwrite" in caught.value.remedy
    assert sha256_by_file(out) == files_before


def test_with_overwrite_an_output_of_other_settings_is_replaced(pairs, tmp_path, out):
    tars_before = sha256_by_tar(out)

    shuffle_into(out, "--input", *pairs, "--seed", 5, "--overwrite")

    assert sha256_by_tar(out).keys() == tars_before.keys()
    assert sha256_by_tar(out) != tars_before
    assert names_in(tmp_path) == ["out", "pairs", "raw"]


def test_an_output_that_was_renamed_is_refused(pairs, tmp_path, out):
    out.rename(tmp_path / "moved")

    with pytest.raises(ConfigError, match="made under another name"):
        shuffle_into(tmp_path / "moved", "--input", *pairs)


def test_an_output_of_another_version_is_not_said_to_have_another_name(pairs, out, monkeypatch):
    monkeypatch.setattr(shuffle_module, "VERSION", shuffle_module.VERSION + 1)

    with pytest.raises(ConfigError, match="other input or settings") as caught:
        shuffle_into(out, "--input", *pairs)

    assert caught.value.found == "it was made by another version of nanoset"


@pytest.fixture
def nested_out(raw, text_options) -> Path:
    """An output within the folder that is its input."""
    printed = shuffle_into(raw / "tars", "--input", raw, *text_options)
    assert "already exists" not in printed
    return raw / "tars"


def test_an_output_within_its_input_is_not_read(raw, text_options, nested_out):
    printed = shuffle_into(nested_out, "--input", raw, *text_options)

    assert "already exists" in printed


def test_an_output_within_its_input_is_recognized_by_another_path(raw, text_options, nested_out):
    other_path = raw / ".." / "raw" / "tars"

    printed = shuffle_into(other_path, "--input", raw, *text_options)

    assert printed.startswith(str(other_path))


@pytest.mark.parametrize("is_folder", [True, False], ids=["folder", "tar"])
def test_an_output_that_is_its_own_input_is_refused(nested_out, is_folder):
    tars_before = sha256_by_tar(nested_out)
    source = nested_out if is_folder else next(nested_out.glob("*.tar"))

    with pytest.raises(ConfigError, match="an input would be overwritten"):
        invoke_shuffle("--input", source, "--output", nested_out, "--overwrite")

    assert sha256_by_tar(nested_out) == tars_before


# Files of other programs in an output


def test_a_folder_with_other_files_is_refused(pairs, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")

    with pytest.raises(ConfigError, match="something else"):
        shuffle_into(out, "--input", *pairs)

    assert names_in(out) == ["mine.txt"]


def test_an_empty_folder_becomes_the_output(pairs, tmp_path):
    (tmp_path / "out").mkdir()

    shuffle_into(tmp_path / "out", "--input", *pairs)

    assert sha256_by_tar(tmp_path / "out")


def test_another_file_in_a_complete_output_is_ignored(pairs, out):
    (out / "mine.txt").write_text("mine")

    assert "already exists" in shuffle_into(out, "--input", *pairs)


def test_an_incomplete_output_with_another_file_is_not_replaced_by_default(pairs, out):
    (out / "mine.txt").write_text("mine")
    (out / "index.json").unlink()

    with pytest.raises(ConfigError, match="would remove other files") as caught:
        shuffle_into(out, "--input", *pairs)

    assert caught.value.found == "mine.txt"
    assert (out / "mine.txt").read_text() == "mine"


def test_with_overwrite_an_incomplete_output_with_another_file_is_replaced(pairs, out):
    names_before = names_in(out)
    (out / "mine.txt").write_text("mine")
    (out / "index.json").unlink()

    shuffle_into(out, "--input", *pairs, "--overwrite")

    assert names_in(out) == names_before


def test_a_file_that_appears_in_the_output_during_a_call_is_not_removed(
    pairs, tmp_path, monkeypatch
):
    out = tmp_path / "out"
    write_shards = shuffle_module.write_shards

    def write_shards_and_another_file(*arguments, **options):
        tar_facts = write_shards(*arguments, **options)
        out.mkdir(exist_ok=True)
        (out / "mine.tar").write_text("mine")
        return tar_facts

    with monkeypatch.context() as patch, pytest.raises(ConfigError, match="something else"):
        patch.setattr(shuffle_module, "write_shards", write_shards_and_another_file)
        shuffle_into(out, "--input", *pairs)
    assert {path.name: path.read_text() for path in out.iterdir()} == {"mine.tar": "mine"}

    # Once it is moved away, the next call completes the output.
    (out / "mine.tar").unlink()
    shuffle_into(out, "--input", *pairs)
    assert sha256_by_tar(out)


# The record of the data


@pytest.fixture
def record(tmp_path) -> Path:
    """Where the record of the data is written."""
    return tmp_path / "o.json"


@pytest.fixture
def record_words(pairs, tmp_path, record) -> list[Any]:
    """Arguments that complete a record of the data."""
    (tmp_path / "in.json").write_text('{"name": "mine", "num_tokens": 5}')
    records = ["--input-json", tmp_path / "in.json", "--output-json", record]
    return ["--input", *pairs, *records]


def test_a_record_keeps_its_values_and_gets_the_missing_ones(tmp_path, record, record_words):
    shuffle_into(tmp_path / "out", *record_words)

    values = json.loads(record.read_bytes())
    assert values["name"] == "mine"
    assert values["num_tokens"] == 5
    assert values["tokenized"] is True
    assert values["dataset_url"] == f"{tmp_path / 'out'}/"
    assert values["manifest_url"] == f"{tmp_path / 'out'}/manifest.jsonl"
    assert "already exists" in shuffle_into(tmp_path / "out", *record_words)


def test_another_record_is_not_replaced_by_default(tmp_path, record, record_words):
    shuffle_into(tmp_path / "out", *record_words)
    record.write_text("{}")

    with pytest.raises(ConfigError, match="another record exists"):
        shuffle_into(tmp_path / "out", *record_words)

    assert record.read_text() == "{}"


def test_with_overwrite_another_record_is_replaced(tmp_path, record, record_words):
    shuffle_into(tmp_path / "out", *record_words)
    record.write_text("{}")

    shuffle_into(tmp_path / "out", *record_words, "--overwrite")

    assert json.loads(record.read_text())["name"] == "mine"


def test_a_record_does_not_overwrite_its_input(tmp_path, record_words):
    with pytest.raises(ConfigError, match="an input would be overwritten"):
        shuffle_into(tmp_path / "out", *record_words[:-1], tmp_path / "in.json")


def test_another_record_is_reported_before_tars_are_written(tmp_path, record, record_words):
    record.write_text("{}")

    with pytest.raises(ConfigError, match="another record exists") as caught:
        shuffle_into(tmp_path / "new", *record_words)

    assert "tars" not in caught.value.remedy
    assert not (tmp_path / "new").exists()


def test_a_missing_record_is_reported_before_tars_are_written(pairs, tmp_path, record):
    records = ["--input-json", tmp_path / "none", "--output-json", record]

    with pytest.raises(MissingError, match="no such record"):
        shuffle_into(tmp_path / "new", "--input", *pairs, *records)

    assert not (tmp_path / "new").exists()


def test_a_record_of_an_output_without_exp_data_cannot_be_completed(tmp_path, record, record_words):
    shuffle_into(tmp_path / "out", *record_words)
    (tmp_path / "out" / webdataset.EXP_DATA_NAME).unlink()
    new_record = tmp_path / "new.json"

    with pytest.raises(MissingError, match=webdataset.EXP_DATA_NAME):
        webdataset.complete_exp_data(tmp_path / "out", tmp_path / "in.json", new_record)

    assert not new_record.exists()


# Interruptions


def disk_is_full(*_: object, **__: object) -> NoReturn:
    """Fail as writing does if the disk is full."""
    raise OSError(errno.ENOSPC, "No space left on device", "shard.tar")


def test_a_full_disk_publishes_nothing_and_the_next_call_resumes(pairs, tmp_path, monkeypatch):
    inputs = find_inputs(pairs)
    options = ShuffleOptions(sequence_length=LENGTH, samples_per_shard=SAMPLES_PER_TAR, workers=1)

    # The disk is full when all tars are written.
    with monkeypatch.context() as patch:
        patch.setattr(shuffle_module, "write_lists", disk_is_full)
        with pytest.raises(StorageError, match="disk is full"):
            shuffle(inputs, tmp_path / "out", options)
    assert not (tmp_path / "out").exists()
    inodes_of_tars = inode_by_file(tmp_path / ".out.scratch" / "tars", "*.tar")

    # The next call uses them.
    result = shuffle(inputs, tmp_path / "out", options)
    assert inode_by_file(result.folder, "*.tar") == inodes_of_tars
    assert not (tmp_path / ".out.scratch").exists()


def test_two_calls_cannot_write_one_output_at_once(pairs, tmp_path):
    scratch = tmp_path / ".out.scratch"
    scratch.mkdir()
    lock = os.open(scratch, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)

    with pytest.raises(ConfigError, match="another call"):
        shuffle_into(tmp_path / "out", "--input", *pairs)

    os.close(lock)
    shuffle_into(tmp_path / "out", "--input", *pairs)


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param(["--tail", "pad"], "pad token", id="pad without a token"),
        pytest.param(["--context-bos", "<s>"], "needs its tokenizer", id="BOS without a tokenizer"),
        pytest.param(["--preset", "tokshuf"], "each text file", id="tokshuf without text"),
    ],
)
def test_settings_that_datasets_do_not_allow_are_refused(pairs, tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        shuffle_into(tmp_path / "out", "--input", *pairs, *options)

    assert list(tmp_path.glob(".out*")) == []


def test_text_without_a_tokenizer_is_refused(raw, tmp_path):
    with pytest.raises(ConfigError, match="text needs a tokenizer"):
        shuffle_into(tmp_path / "out", "--input", raw / "web")

    assert list(tmp_path.glob(".out*")) == []


# Inputs


def test_a_folder_of_text_is_one_source_whose_files_are_sorted_by_number(raw):
    inputs = find_inputs([raw / "web"])

    assert inputs.kind == "text"
    files = inputs.sources[0].files
    assert [path.name for path in files] == ["part-2.jsonl", "part-10.jsonl"]


def test_text_is_found_in_subfolders(raw):
    assert find_inputs([raw]).kind == "text"


def test_only_files_with_an_ending_can_be_read(raw):
    inputs = find_inputs([raw], extension="10.jsonl")

    assert inputs.sources[0].files == (raw / "code/part-10.jsonl", raw / "web/part-10.jsonl")


def test_each_dataset_is_a_source(pairs):
    names = [source.name for source in find_inputs(pairs).sources]

    assert names == ["web_text_document", "code_text_document"]


@pytest.fixture
def inputs_by_description(raw, pairs, tmp_path) -> dict[str, list[Path]]:
    """Inputs that cannot be read together."""
    (tmp_path / "a.tar").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe")
    return {
        "a dataset and text": [pairs[0], raw],
        "a missing file": [tmp_path / "nowhere"],
        "a pipe": [tmp_path / "pipe"],
        "a folder in another": [raw, raw / "web"],
        "text and a tar": [raw, tmp_path / "a.tar"],
    }


@pytest.mark.parametrize(
    ("description", "error", "message"),
    [
        ("a dataset and text", ConfigError, "pairs and files"),
        ("a missing file", MissingError, "nowhere"),
        ("a pipe", InputError, "no file on a disk"),
        ("a folder in another", InputError, "named twice"),
        ("text and a tar", ConfigError, "tars and text"),
    ],
)
def test_inputs_that_cannot_be_read_together_are_refused(
    inputs_by_description, description, error, message
):
    with pytest.raises(error, match=message):
        find_inputs(inputs_by_description[description])


def test_an_ending_that_no_file_has_is_refused(raw):
    with pytest.raises(InputError, match="no file to read"):
        find_inputs([raw], extension=".parquet")


@pytest.fixture
def mixed_folder(raw) -> Path:
    """A folder with two files of text, and with a tar in another folder."""
    (raw / "web" / "tars").mkdir()
    (raw / "web" / "tars" / "a.tar").write_bytes(b"")
    return raw / "web"


def test_a_folder_with_tars_and_text_is_refused(mixed_folder):
    with pytest.raises(ConfigError, match=r"1 tars and 2 texts, such as part-2\.jsonl"):
        find_inputs([mixed_folder])


def test_of_tars_and_text_only_tars_are_read_if_nothing_is_tokenized(mixed_folder):
    inputs = find_inputs([mixed_folder], shuffle_only=True)

    assert inputs.sources[0].files == (mixed_folder / "tars/a.tar",)


def test_of_tars_and_text_only_text_is_read_if_its_ending_is_given(mixed_folder):
    inputs = find_inputs([mixed_folder], extension=".jsonl")

    names = [path.name for path in inputs.sources[0].files]
    assert names == ["part-2.jsonl", "part-10.jsonl"]


def test_the_manifest_of_tars_is_not_text(mixed_folder):
    (mixed_folder / "tars" / "manifest.jsonl").write_bytes(b"")

    assert find_inputs([mixed_folder / "tars"]).kind == "tars"
