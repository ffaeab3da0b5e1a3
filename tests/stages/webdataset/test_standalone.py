"""`nanoset shuffle`: text, pairs and tars into tars, the same bytes whatever happens on the way."""

from __future__ import annotations

import errno
import fcntl
import gzip
import hashlib
import json
import os
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.command import invoke_nanoset
from helpers.sample_project import EOD, jsonl, sentences
from nanoset_core import MMapIndexedDataset, iterate_shards
from nanoset_core.errors import ConfigError, InputError, MissingError, StorageError
from nanoset_core.records.text import format_bytes, format_count
from nanoset_core.stages.shards.inputs import resolve_inputs
from nanoset_core.stages.shards.preprocess import preprocess
from nanoset_core.stages.shards.preprocess_options import PreprocessOptions
from nanoset_core.stages.webdataset import lists as webdataset
from nanoset_core.stages.webdataset.order import Choice, choice_seed
from nanoset_core.stages.webdataset.standalone import shuffle as shuffle_module
from nanoset_core.stages.webdataset.standalone.inputs import find_inputs
from nanoset_core.stages.webdataset.standalone.options import ShuffleOptions
from nanoset_core.stages.webdataset.standalone.shuffle import shuffle

LENGTH = 33


@pytest.fixture
def raw(tmp_path):
    folder = tmp_path / "raw"
    for corpus, count in (("web", 60), ("code", 25)):
        (folder / corpus).mkdir(parents=True)
        rows = sentences(corpus, count)
        (folder / corpus / "part-2.jsonl").write_bytes(jsonl(rows[: count // 2]))
        (folder / corpus / "part-10.jsonl").write_bytes(jsonl(rows[count // 2 :]))
    return folder


@pytest.fixture
def pairs(raw, tmp_path, tokenizer_file):
    options = PreprocessOptions(tokenizer=tokenizer_file, eod=EOD, workers=1)
    found = []
    for corpus in ("web", "code"):
        (done,) = preprocess(resolve_inputs([raw / corpus]), tmp_path / "pairs" / corpus, options)
        found.append(done.prefix)
    return found


def call(*arguments):
    return invoke_nanoset(["shuffle", *arguments], catch_exceptions=False)


def made(output, *arguments):
    outcome = call(
        "--output", output, "--seqlen", LENGTH, "--wds-chunk-size", 16, "--workers", 1, *arguments
    )
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def digests(folder):
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
    }


def tars(folder):
    return {name: digest for name, digest in digests(folder).items() if name.endswith(".tar")}


def plan_of(folder):
    return json.loads((folder / "manifest.json").read_bytes())["facts"]["plan"]


def rows_of(folder):
    return [tuple(row.tolist()) for row in iterate_shards(folder)]


def stream(prefix):
    return MMapIndexedDataset(prefix).tokens.tolist()


def cut(tokens):
    return [tuple(tokens[at : at + LENGTH]) for at in range(0, len(tokens) - LENGTH + 1, LENGTH)]


def test_text_is_tokenized_cut_and_shuffled(raw, pairs, tmp_path, tokenizer_file):
    out = tmp_path / "out"
    said = made(out, "--input", raw / "web", "--tokenizer", tokenizer_file, "--eod", EOD)
    wanted = cut(stream(pairs[0]))
    assert sorted(rows_of(out)) == sorted(wanted)
    assert rows_of(out) != wanted
    plan = plan_of(out)
    assert f"{format_count(plan['shards'], 'tar')}, {len(wanted)} contexts" in said
    assert plan["tokens_dropped"] == len(stream(pairs[0])) % LENGTH
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "pairs", "raw"]


def test_engines_workers_and_detours_leave_no_trace(raw, pairs, tmp_path, tokenizer_file):
    text = ("--input", raw / "web", "--tokenizer", tokenizer_file, "--eod", EOD, "--member", "npy")
    made(tmp_path / "a", *text)
    expected = tars(tmp_path / "a")
    assert len(expected) > 3
    detours = [
        ("--engine", "tiled"),
        ("--engine", "buckets", "--scratch", tmp_path / "s"),
        ("--workers", 2),
    ]
    for number, more in enumerate([*detours, ("--memory", 64)]):
        made(tmp_path / f"b{number}", *text, *more)
        assert tars(tmp_path / f"b{number}") == expected
    assert not list((tmp_path / "s").iterdir())
    pair = ("--input", pairs[0], "--tokenizer", tokenizer_file, "--member", "npy")
    made(tmp_path / "c", *pair)
    assert tars(tmp_path / "c") == expected


def test_outputs_of_one_name_can_share_a_scratch_folder(raw, tmp_path, tokenizer_file, monkeypatch):
    text = (
        "--tokenizer",
        tokenizer_file,
        "--eod",
        EOD,
        "--workers",
        2,
        "--scratch",
        tmp_path / "s",
    )
    for corpus in ("web", "code"):
        made(tmp_path / "alone" / corpus / "tars", "--input", raw / corpus, *text[:-2])
    plainly, other = shuffle_module.plan_shuffle, []

    def plan_while_another_call_runs(*arguments):
        if not other:
            other.append(True)
            made(tmp_path / "code" / "tars", "--input", raw / "code", *text)
        return plainly(*arguments)

    monkeypatch.setattr(shuffle_module, "plan_shuffle", plan_while_another_call_runs)
    made(tmp_path / "web" / "tars", "--input", raw / "web", *text)
    for corpus in ("web", "code"):
        assert tars(tmp_path / corpus / "tars") == tars(tmp_path / "alone" / corpus / "tars")
    assert not list((tmp_path / "s").iterdir())


def test_several_pairs_with_each_tail(pairs, tmp_path, tokenizer_file):
    both = ("--input", *pairs, "--tokenizer", tokenizer_file, "--member", "npy")
    web, code = (stream(prefix) for prefix in pairs)
    made(tmp_path / "drop", *both)
    assert sorted(rows_of(tmp_path / "drop")) == sorted(cut(web) + cut(code))
    made(tmp_path / "carry", *both, "--tail", "carry")
    assert sorted(rows_of(tmp_path / "carry")) == sorted(cut(web + code))
    made(tmp_path / "pad", *both, "--tail", "pad", "--pad", "<|pad|>")
    padded = [tokens + [1] * (-len(tokens) % LENGTH) for tokens in (web, code)]
    assert sorted(rows_of(tmp_path / "pad")) == sorted(cut(padded[0]) + cut(padded[1]))
    made(tmp_path / "bos", *both, "--context-bos", "<|pad|>", "--seqlen", LENGTH + 1)
    assert sorted(rows_of(tmp_path / "bos")) == sorted((1, *row) for row in cut(web) + cut(code))
    plan = plan_of(tmp_path / "bos")
    assert plan["tokens"] == plan["contexts"] * LENGTH
    made(tmp_path / "even", *both, "--even")
    count = plan_of(tmp_path / "even")["contexts"]
    assert rows_of(tmp_path / "even") == rows_of(tmp_path / "drop")[:count]
    assert (
        0 < plan_of(tmp_path / "even")["contexts_left_out"] < plan_of(tmp_path / "even")["shards"]
    )


def test_dclm_sampling_of_text(raw, pairs, tmp_path, tokenizer_file):
    sampling = tmp_path / "sources.yaml"
    sampling.write_text(
        "sources:\n- {source: CODE, markers: [/code/]}\n- {source: WEB, markers: [/nowhere/, "
        "/web/]}\n"
        "sampling_frequencies: {WEB: 0.5, CODE: 2.25}\n"
    )
    (raw / "other").mkdir()
    (raw / "other" / "a.jsonl").write_bytes(jsonl(sentences("other", 9)))
    text = ("--input", raw, "--tokenizer", tokenizer_file, "--eod", EOD, "--sampling", sampling)
    made(tmp_path / "out", *text)
    web, code = (cut(stream(prefix)) for prefix in pairs)
    counts = {"CODE": round(len(code) * 0.25 + 1e-9), "WEB": round(len(web) * 0.5 + 1e-9)}
    chosen = {
        name: [
            own[row]
            for row in Choice(len(own), counts[name], choice_seed(1234, name)).rows_of(
                np.arange(counts[name])
            )
        ]
        for name, own in (("CODE", code), ("WEB", web))
    }
    assert sorted(rows_of(tmp_path / "out")) == sorted(code * 2 + chosen["CODE"] + chosen["WEB"])
    assert [source["contexts"] for source in plan_of(tmp_path / "out")["sources"]] == [
        2 * len(code) + counts["CODE"],
        counts["WEB"],
    ]
    said = call("--output", tmp_path / "x", *text, "--seqlen", LENGTH, "--plan").output
    assert "2.25" in said
    assert "inputs left out" in said


def test_tars_are_shuffled_again(pairs, tmp_path):
    made(tmp_path / "one", "--input", *pairs)
    made(tmp_path / "two", "--input", tmp_path / "one", "--seed", 9, "--member", "npy")
    assert sorted(rows_of(tmp_path / "two")) == sorted(rows_of(tmp_path / "one"))
    assert rows_of(tmp_path / "two") != rows_of(tmp_path / "one")
    files = sorted((tmp_path / "two").glob("*.tar"))
    made(tmp_path / "three", "--input", *files, "--seed", 9, "--shuffle-only", "--member", "npy")
    with pytest.raises(ConfigError, match="cannot be changed"):
        made(tmp_path / "four", "--input", *files, "--seqlen", 20)


def test_members_of_tars_without_tokens_are_counted(pairs, tmp_path):
    made(tmp_path / "one", "--input", pairs[0])
    (tar,) = list((tmp_path / "one").glob("*.tar"))[:1]
    with tarfile.open(tar, "a") as archive:
        archive.addfile(tarfile.TarInfo(".DS_Store"))
        archive.addfile(tarfile.TarInfo("README.md"))
    settings = ("--input", tmp_path / "one", "--output", tmp_path / "two")
    notice = f"notice: 2 members without tokens passed over, such as '.DS_Store' in {tar.name}"
    assert notice in call(*settings, "--plan").stderr
    result = call(*settings)
    assert result.exit_code == 0
    assert notice in result.stderr
    assert sorted(rows_of(tmp_path / "two")) == sorted(rows_of(tmp_path / "one"))


def test_a_plan_writes_nothing(raw, pairs, tmp_path, tokenizer_file):
    before = sorted(path.name for path in tmp_path.iterdir())
    out = tmp_path / "out"
    settings = (
        "--output",
        out,
        "--seqlen",
        LENGTH,
        "--wds-chunk-size",
        16,
        "--member",
        "npy",
        "--plan",
    )
    exact = call("--input", *pairs, *settings, "--engine", "buckets", "--memory", 100).output
    made_plan = ("--input", *pairs, "--member", "npy")
    estimated = call("--input", raw, "--tokenizer", tokenizer_file, "--eod", EOD, *settings).output
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    made(out, *made_plan)
    plan, size = plan_of(out), sum(path.stat().st_size for path in out.glob("*.tar"))
    assert f"{plan['contexts']:,} of {LENGTH} tokens" in exact
    assert f"{plan['shards']} of 16 contexts" in exact
    assert format_bytes(size) in exact
    assert "buckets: as requested" in exact
    assert f"about {plan['shards']}" in estimated
    survey = call("--input", out, *settings).output
    assert f"{plan['contexts']:,} of {LENGTH} tokens" in survey


def test_the_same_call_does_nothing_and_another_replaces(pairs, tmp_path):
    out = tmp_path / "out"
    made(out, "--input", *pairs)
    first = digests(out)
    inodes = {path.name: path.stat().st_ino for path in out.iterdir()}
    # as a call leaves it that is killed at its very end
    (tmp_path / ".out.scratch" / "tokens").mkdir(parents=True)
    assert "already exists" in made(out, "--input", *pairs, "--workers", 2, "--engine", "tiled")
    assert not (tmp_path / ".out.scratch").exists()
    assert {path.name: path.stat().st_ino for path in out.iterdir()} == inodes
    (out / "shard-00000001.tar").write_bytes(b"cut")
    assert "already exists" not in made(out, "--input", *pairs)
    assert digests(out) == first
    for arguments, found in (
        ((*pairs, "--seed", 5), "--seed: 1234 → 5"),
        ((pairs[0],), "it was made from other files, or they were moved or rewritten since"),
        ((*pairs, "--seqlen", 17), f"--seqlen: {LENGTH} → 17"),
        ((*pairs, "--wds-chunk-size", 9), "--wds-chunk-size: 16 → 9"),
    ):
        with pytest.raises(ConfigError, match="other input or settings") as caught:
            made(out, "--input", *arguments)
        assert caught.value.found == found
        assert "--overwrite" in caught.value.remedy
    assert digests(out) == first
    made(out, "--input", *pairs, "--seed", 5, "--overwrite")
    assert tars(out).keys() == {name for name in first if name.endswith(".tar")}
    assert tars(out) != {name: first[name] for name in tars(out)}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "pairs", "raw"]
    out.rename(tmp_path / "moved")
    with pytest.raises(ConfigError, match="made under another name"):
        made(tmp_path / "moved", "--input", *pairs, "--seed", 5)


def test_an_output_within_its_input_is_no_input(raw, tmp_path, tokenizer_file):
    text = ("--input", raw, "--tokenizer", tokenizer_file, "--eod", EOD)
    first = made(raw / "tars", *text)
    assert made(raw / ".." / "raw" / "tars", *text).startswith(str(raw / ".." / "raw" / "tars"))
    assert "already exists" in made(raw / "tars", *text)
    assert "already exists" not in first
    for inputs in ([raw / "tars"], [next((raw / "tars").glob("*.tar"))]):
        with pytest.raises(ConfigError, match="an input would be overwritten"):
            call("--input", *inputs, "--output", raw / "tars", "--overwrite")
    assert tars(raw / "tars")


def test_what_others_put_into_an_output_is_not_removed_unasked(pairs, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="something else"):
        made(out, "--input", *pairs)
    assert [path.name for path in out.iterdir()] == ["mine.txt"]
    (out / "mine.txt").unlink()
    made(out, "--input", *pairs)  # an empty folder is none
    names = sorted(digests(out))
    (out / "mine.txt").write_text("mine")
    assert "already exists" in made(out, "--input", *pairs)
    (out / "index.json").unlink()
    with pytest.raises(ConfigError, match="would remove other files") as caught:
        made(out, "--input", *pairs)
    assert caught.value.found == "mine.txt"
    assert (out / "mine.txt").read_text() == "mine"
    made(out, "--input", *pairs, "--overwrite")
    assert sorted(digests(out)) == names


def test_what_others_put_there_meanwhile_is_not_removed(pairs, tmp_path, monkeypatch):
    out = tmp_path / "out"
    real = shuffle_module.write_shards

    def write(*arguments, **options):
        tars_written = real(*arguments, **options)
        out.mkdir(exist_ok=True)
        (out / "mine.tar").write_text("mine")
        return tars_written

    with monkeypatch.context() as patch, pytest.raises(ConfigError, match="something else"):
        patch.setattr(shuffle_module, "write_shards", write)
        made(out, "--input", *pairs)
    assert {path.name: path.read_text() for path in out.iterdir()} == {"mine.tar": "mine"}
    (out / "mine.tar").unlink()
    made(out, "--input", *pairs)
    assert tars(out)


def test_what_is_not_read_and_runs_of_zero_bytes_are_said_each_time(tmp_path, tokenizer_file):
    folder = tmp_path / "in"
    folder.mkdir()
    rows = [{"text": f"{row['text']}{chr(0) * 20}"} for row in sentences("web", 40)]
    pq.write_table(pa.Table.from_pylist(rows), folder / "a.parquet")
    (folder / "b.jsonl.bz2").write_bytes(b"BZh9")
    (folder / "c.jsonl").write_bytes(b"")
    text = ("--input", folder, "--tokenizer", tokenizer_file, "--eod", EOD)
    first, again = made(folder / "out", *text), made(folder / "out", *text)
    assert "already exists" in again
    for said in (first, again):
        assert "40 documents with runs of zero bytes: a.parquet 40" in said
        assert f"notice: {folder}: 1 file is not read: 1 .jsonl.bz2 (b.jsonl.bz2)" in said
        assert f"notice: {folder}: 1 file is empty: c.jsonl" in said
        assert said.count("notice") == 2
    assert "b.jsonl.bz2" in made(folder / "out", *text, "--plan")


def test_rejected_lines_and_files_are_kept_beside_the_tars(raw, tmp_path, tokenizer_file):
    (raw / "web" / "bad.jsonl").write_bytes(b"nonsense\n")
    (raw / "web" / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"text": "one"}\n' * 9)[:5])
    text = ("--input", raw / "web", "--tokenizer", tokenizer_file, "--eod", EOD)
    limits = ("--max-rejected-fraction", 0.5, "--max-unreadable-fraction", 1)
    for _ in range(2):
        assert "1 line and 1 file rejected (rejects.jsonl)" in made(
            tmp_path / "out", *text, *limits
        )
    rejects = (
        json.loads(line) for line in (tmp_path / "out" / "rejects.jsonl").read_bytes().splitlines()
    )
    assert [(reject["file"], reject["line"]) for reject in rejects] == [
        ("bad.jsonl", 1),
        ("cut.jsonl.gz", 1),
    ]
    for strict in (("--on-reject", "fail"), ("--max-rejected-fraction", 0)):
        with pytest.raises(InputError):
            made(tmp_path / "out", *text, *limits, *strict)


def test_a_record_of_the_data_is_completed_and_not_replaced_unasked(pairs, tmp_path):
    (tmp_path / "in.json").write_text('{"name": "mine", "num_tokens": 5}')
    arguments = (
        "--input",
        *pairs,
        "--input-json",
        tmp_path / "in.json",
        "--output-json",
        tmp_path / "o.json",
    )
    made(tmp_path / "out", *arguments)
    record = json.loads((tmp_path / "o.json").read_bytes())
    assert (record["name"], record["num_tokens"], record["tokenized"]) == ("mine", 5, True)
    assert record["dataset_url"] == f"{tmp_path / 'out'}/"
    assert record["manifest_url"] == f"{tmp_path / 'out'}/manifest.jsonl"
    assert "already exists" in made(tmp_path / "out", *arguments)
    (tmp_path / "o.json").write_text("{}")
    with pytest.raises(ConfigError, match="another record exists"):
        made(tmp_path / "out", *arguments)
    assert (tmp_path / "o.json").read_text() == "{}"
    made(tmp_path / "out", *arguments, "--overwrite")
    assert json.loads((tmp_path / "o.json").read_text())["name"] == "mine"
    with pytest.raises(ConfigError, match="an input would be overwritten"):
        made(tmp_path / "out", *arguments[:-1], tmp_path / "in.json")
    with pytest.raises(ConfigError, match="another record exists") as caught:
        made(tmp_path / "new", *arguments)
    assert "tars" not in caught.value.remedy
    (tmp_path / "out" / webdataset.EXP_DATA_NAME).unlink()
    with pytest.raises(MissingError, match=webdataset.EXP_DATA_NAME):
        webdataset.complete_exp_data(tmp_path / "out", tmp_path / "in.json", tmp_path / "new.json")
    assert not (tmp_path / "new.json").exists()
    with pytest.raises(MissingError, match="no such record"):
        made(
            tmp_path / "new",
            "--input",
            *pairs,
            "--input-json",
            tmp_path / "none",
            "--output-json",
            tmp_path / "p.json",
        )
    assert not (tmp_path / "new").exists(), "nothing is made before that"


def test_a_full_disk_publishes_nothing(pairs, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", "shard.tar")

    inputs, options = (
        find_inputs(pairs),
        ShuffleOptions(sequence_length=LENGTH, samples_per_shard=16, workers=1),
    )
    with monkeypatch.context() as patch:
        patch.setattr(shuffle_module, "write_lists", full)
        with pytest.raises(StorageError, match="disk is full"):
            shuffle(inputs, tmp_path / "out", options)
    assert not (tmp_path / "out").exists()
    kept = {
        path.name: path.stat().st_ino for path in (tmp_path / ".out.scratch" / "tars").glob("*.tar")
    }
    result = shuffle(inputs, tmp_path / "out", options)
    assert {path.name: path.stat().st_ino for path in result.folder.glob("*.tar")} == kept
    assert not (tmp_path / ".out.scratch").exists()


def test_two_calls_do_not_write_one_output(pairs, tmp_path):
    (tmp_path / ".out.scratch").mkdir()
    lock = os.open(tmp_path / ".out.scratch", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(ConfigError, match="another call"):
        made(tmp_path / "out", "--input", *pairs)
    os.close(lock)
    made(tmp_path / "out", "--input", *pairs)


def test_settings_that_cannot_be(raw, pairs, tmp_path):
    for inputs, arguments, message in (
        (pairs, ["--tail", "pad"], "pad token"),
        (pairs, ["--context-bos", "<s>"], "needs its tokenizer"),
        (pairs, ["--preset", "tokshuf"], "each text file"),
        ([raw / "web"], [], "text needs a tokenizer"),
    ):
        with pytest.raises(ConfigError, match=message):
            made(tmp_path / "out", "--input", *inputs, *arguments)
    assert not list(tmp_path.glob(".out*"))


def test_inputs(raw, pairs, tmp_path):
    assert find_inputs([raw]).kind == "text"
    assert [path.name for path in find_inputs([raw / "web"]).sources[0].files] == [
        "part-2.jsonl",
        "part-10.jsonl",
    ]
    assert find_inputs([raw], extension="10.jsonl").sources[0].files == (
        raw / "code/part-10.jsonl",
        raw / "web/part-10.jsonl",
    )
    assert [source.name for source in find_inputs(pairs).sources] == [
        "web_text_document",
        "code_text_document",
    ]
    (tmp_path / "a.tar").write_bytes(b"")
    for given, error, message in (
        ([pairs[0], raw], ConfigError, "pairs and files"),
        ([tmp_path / "nowhere"], MissingError, "nowhere"),
        ([raw, raw / "web"], InputError, "named twice"),
        ([raw, tmp_path / "a.tar"], ConfigError, "tars and text"),
    ):
        with pytest.raises(error, match=message):
            find_inputs(given)
    with pytest.raises(InputError, match="no file to read"):
        find_inputs([raw], extension=".parquet")


def test_text_among_tars_is_not_passed_over(raw, tmp_path):
    folder = raw / "web"
    (folder / "tars").mkdir()
    (folder / "tars" / "a.tar").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"1 tars and 2 texts, such as part-2\.jsonl"):
        find_inputs([folder])
    assert find_inputs([folder], shuffle_only=True).sources[0].files == (folder / "tars/a.tar",)
    assert [path.name for path in find_inputs([folder], extension=".jsonl").sources[0].files] == [
        "part-2.jsonl",
        "part-10.jsonl",
    ]
    (folder / "tars" / "manifest.jsonl").write_bytes(b"")
    assert find_inputs([folder / "tars"]).kind == "tars"
