"""`nanoset tokenize`: the peers' pairs from files, folders and patterns, whatever the workers,
resumable.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from helpers.command import invoke_nanoset
from helpers.progress import RecordingDisplay
from helpers.sample_project import EOD, jsonl, sentences, tree
from nanoset_core import MMapIndexedDataset, MMapIndexedDatasetBuilder
from nanoset_core.errors import ConfigError, InputError, MissingError
from nanoset_core.stages.shards import preprocess_ranges
from nanoset_core.stages.shards.inputs import by_file, resolve_inputs
from nanoset_core.stages.shards.preprocess import preprocess
from nanoset_core.stages.shards.preprocess_options import PreprocessOptions
from nanoset_core.tokenizers.end_token import end_token
from nanoset_core.tokenizers.files import tokenizer_path

EMPTY = {"id": "empty", "text": ""}


@pytest.fixture
def folder(tmp_path):
    rows = [*sentences("web", 40), EMPTY, *sentences("late", 9)]
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "part-2.jsonl").write_bytes(jsonl(rows[:20]))
    (raw / "part-10.jsonl").write_bytes(jsonl(rows[20:]))
    return raw


def texts(folder):
    names = ("part-2.jsonl", "part-10.jsonl")
    return [
        json.loads(line)["text"]
        for name in names
        for line in (folder / name).read_bytes().splitlines()
    ]


def slowly(prefix, tokenizer_file, documents, preset):
    """The peers' rules, a document at a time."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    end = tokenizer.token_to_id(EOD)
    with MMapIndexedDatasetBuilder(prefix, np.uint16) as builder:
        for text in documents:
            ids = tokenizer.encode(text, add_special_tokens=preset == "nanotron").ids
            if preset == "nanotron" or ids:
                builder.add_document([*ids, end])
            elif preset == "megatron":
                builder.add_document([], [])
    return pair(prefix)


def pair(prefix):
    return [prefix.with_name(prefix.name + ending).read_bytes() for ending in (".bin", ".idx")]


def options(tokenizer_file, **changes):
    return PreprocessOptions(**{"tokenizer": tokenizer_file, "eod": EOD, "workers": 1, **changes})


@pytest.mark.parametrize(
    ("preset", "name"),
    [("megatron", "out_text_document"), ("nemo", "out_text_document"), ("nanotron", "out_text")],
)
def test_the_pair_of_each_preset(folder, tmp_path, tokenizer_file, preset, name):
    (result,) = preprocess(
        resolve_inputs([folder]), tmp_path / "out", options(tokenizer_file, preset=preset)
    )
    assert result.prefix == tmp_path / name
    assert pair(result.prefix) == slowly(tmp_path / "slow", tokenizer_file, texts(folder), preset)
    facts = result.facts
    assert (facts.lines, facts.documents, facts.skipped) == (
        50,
        50 - (preset == "nemo"),
        int(preset == "nemo"),
    )


@pytest.mark.parametrize(
    ("partitions", "keeps_order"), [(1, False), (2, False), (7, False), (60, False), (3, True)]
)
def test_partitions_deal_documents_in_turn(
    folder, tmp_path, tokenizer_file, partitions, keeps_order
):
    dealt = [text for start in range(partitions) for text in texts(folder)[start::partitions]]
    settings = options(tokenizer_file, partitions=partitions, keep_sequential_samples=keeps_order)
    (result,) = preprocess(resolve_inputs([folder]), tmp_path / "out", settings)
    wanted = texts(folder) if keeps_order else dealt
    assert pair(result.prefix) == slowly(tmp_path / "slow", tokenizer_file, wanted, "megatron")


def test_forked_workers_leave_no_trace(folder, tmp_path, tokenizer_file):
    """In a process of its own, since pytest's may have threads."""
    script = (
        "import sys\n"
        "from nanoset_core.cli import main\n"
        "from nanoset_core.execution import processes\n"
        "from nanoset_core.stages.shards import preprocess_ranges\n"
        "preprocess_ranges.MIN_RANGE_BYTES = 1500\n"
        "processes._Pool.run = lambda pool, *given, run=processes._Pool.run: print('in a pool') "
        "or run(pool, *given)\n"
        "main(sys.argv[1:])"
    )
    for workers in ("1", "3"):
        words = [
            "tokenize",
            "--input",
            folder,
            "--output-prefix",
            tmp_path / workers / "out",
            "--workers",
            workers,
        ]
        command = [sys.executable, "-c", script, *words, "--tokenizer", tokenizer_file]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        assert ("in a pool" in done.stdout) == (workers == "3" and sys.platform == "linux"), (
            done.stderr
        )
    assert tree(tmp_path / "1") == tree(tmp_path / "3")


def test_a_plain_file_of_any_name_is_cut_for_the_workers(
    folder, tmp_path, tokenizer_file, monkeypatch
):
    monkeypatch.setattr("nanoset_core.text.fingerprints.PIECE_BYTES", 1500)
    monkeypatch.setattr(preprocess_ranges, "MIN_RANGE_BYTES", 1500)
    data = (
        (folder / "part-2.jsonl").read_bytes()
        + (folder / "part-10.jsonl").read_bytes()
        + b"nonsense\n"
    )
    (tmp_path / "corpus.json").write_bytes(data)
    settings = options(tokenizer_file, workers=2, max_rejected_fraction=0.1)
    (result,) = preprocess(resolve_inputs([tmp_path / "corpus.json"]), tmp_path / "out", settings)
    assert pair(result.prefix) == slowly(
        tmp_path / "slow", tokenizer_file, texts(folder), "megatron"
    )
    assert (
        len(json.loads((tmp_path / "out_text_document.manifest.json").read_bytes())["sources"]) > 3
    )
    (reject,) = (json.loads(line) for line in result.rejects.read_bytes().splitlines())
    assert (reject["file"], reject["line"], reject["offset"]) == ("corpus.json", 51, len(data) - 9)


def test_several_keys_give_pairs_that_stay_aligned(tmp_path, tokenizer_file):
    rows = [{"title": f"t {n}", "text": f"body {n}"} for n in range(8)]
    (tmp_path / "in.jsonl").write_bytes(
        jsonl([*rows[:3], {"text": "no title"}, {"title": "no text"}, *rows[3:]])
    )
    settings = options(tokenizer_file, keys=("title", "text"), max_rejected_fraction=0.5)
    results = preprocess(resolve_inputs([tmp_path / "in.jsonl"]), tmp_path / "out", settings)
    assert [result.prefix.name for result in results] == ["out_title_document", "out_text_document"]
    for result, key in zip(results, ("title", "text"), strict=True):
        wanted = [row[key] for row in rows]
        assert pair(result.prefix) == slowly(
            tmp_path / f"slow-{key}", tokenizer_file, wanted, "megatron"
        )
        assert result.facts.rejected == 2
    rejects = [
        json.loads(line) for line in (tmp_path / "out_rejects.jsonl").read_bytes().splitlines()
    ]
    assert [(reject["line"], reject["reason"]) for reject in rejects] == [
        (4, "missing_key"),
        (5, "missing_key"),
    ]


def test_what_is_left_behind(folder, tmp_path, tokenizer_file):
    preprocess(resolve_inputs([folder]), tmp_path / "deep" / "out", options(tokenizer_file))
    names = sorted(path.name for path in (tmp_path / "deep").iterdir())
    assert names == [f"out_text_document.{end}" for end in ("bin", "idx", "manifest.json")]
    value = json.loads((tmp_path / "deep/out_text_document.manifest.json").read_bytes())
    assert value["facts"]["documents"] == 50
    assert [source["path"] for source in value["sources"]] == ["part-2.jsonl", "part-10.jsonl"]


def test_a_stopped_call_goes_on_where_it_was(folder, tmp_path, tokenizer_file, monkeypatch):
    monkeypatch.setattr(preprocess_ranges, "MIN_RANGE_BYTES", 2000)
    inputs, settings = resolve_inputs([folder]), options(tokenizer_file)
    made = []

    def stop_after_one(work):
        if work.stage == "tokenize" and work.done:
            made.append(work.done)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        preprocess(
            inputs,
            tmp_path / "out",
            settings,
            scratch=tmp_path / "work",
            progress=RecordingDisplay(stop_after_one).progress,
        )
    assert not list(tmp_path.glob("out*"))
    (tmp_path / "work" / "mine.txt").write_text("not ours to remove")
    (shard,) = (tmp_path / "work").glob(".out-*.scratch/shards/input/*/tokens.bin")
    written = shard.stat().st_mtime_ns
    seen = []

    def remember(work):
        if work.stage == "tokenize" and shard.exists():
            seen.append(shard.stat().st_mtime_ns)

    (result,) = preprocess(
        inputs,
        tmp_path / "out",
        settings,
        scratch=tmp_path / "work",
        progress=RecordingDisplay(remember).progress,
    )
    assert set(seen) == {written}, "the finished shard was not made again"
    assert pair(result.prefix) == slowly(
        tmp_path / "slow", tokenizer_file, texts(folder), "megatron"
    )
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["mine.txt"]


def test_the_same_call_does_nothing_and_another_one_does(folder, tmp_path, tokenizer_file):
    inputs = resolve_inputs([folder])
    (first,) = preprocess(inputs, tmp_path / "out", options(tokenizer_file))
    written = {path.name: path.stat().st_ino for path in tmp_path.glob("out*")}
    (again,) = preprocess(inputs, tmp_path / "out", options(tokenizer_file, workers=2))
    assert again == first
    assert {path.name: path.stat().st_ino for path in tmp_path.glob("out*")} == written
    (tmp_path / "out_text_document.bin").write_bytes(b"cut")
    preprocess(inputs, tmp_path / "out", options(tokenizer_file))
    assert pair(first.prefix) == slowly(
        tmp_path / "slow", tokenizer_file, texts(folder), "megatron"
    )
    (other,) = preprocess(inputs, tmp_path / "out", options(tokenizer_file, eod=None))
    assert other.facts.tokens == first.facts.tokens - 49
    (folder / "part-10.jsonl").write_bytes(jsonl(sentences("new", 3)))
    (grown,) = preprocess(resolve_inputs([folder]), tmp_path / "out", options(tokenizer_file))
    assert grown.facts.documents == 23


def test_a_finished_pair_is_no_excuse_for_its_rejects(folder, tmp_path, tokenizer_file):
    (folder / "bad.jsonl").write_bytes(b"nonsense\n" * 5)
    inputs = resolve_inputs([folder])
    with pytest.raises(InputError, match="max-rejected-fraction"):
        preprocess(inputs, tmp_path / "out", options(tokenizer_file))
    assert not list(tmp_path.glob("out*"))
    preprocess(inputs, tmp_path / "out", options(tokenizer_file, max_rejected_fraction=0.5))
    with pytest.raises(InputError, match="invalid_json"):
        preprocess(inputs, tmp_path / "out", options(tokenizer_file, on_reject="fail"))
    with pytest.raises(InputError, match="max-rejected-fraction"):
        preprocess(inputs, tmp_path / "out", options(tokenizer_file, max_rejected_fraction=0.0))
    # Shards of a call that was stopped are kept, and so are their rejects.
    with pytest.raises(InputError, match="--on-reject fail"):
        preprocess(inputs, tmp_path / "out", options(tokenizer_file, on_reject="fail"))


def test_inputs(folder, tmp_path):
    (folder / "sub").mkdir()
    (folder / "sub" / "a.jsonl").write_bytes(b"")
    assert [file.path for file in resolve_inputs([folder]).files] == [
        "part-2.jsonl",
        "part-10.jsonl",
        "sub/a.jsonl",
    ]
    pattern = resolve_inputs([f"{folder}/part-*.jsonl"])
    assert [file.path for file in pattern.files] == ["part-2.jsonl", "part-10.jsonl"]
    assert [prefix.name for _, prefix in by_file(pattern, tmp_path / "o")] == [
        "o_part-2",
        "o_part-10",
    ]
    assert resolve_inputs([folder]).notices == (f"{folder}: 1 file is empty: sub/a.jsonl",)
    for given in ("sub/a.jsonl", "sub/*.jsonl"):
        assert resolve_inputs([folder / given]).notices == (
            f"{folder}/sub: 1 file is empty: a.jsonl",
        )
    (folder / "notes.txt").touch()
    assert f"{folder}: 1 file is not read: 1 .txt (notes.txt)" in resolve_inputs([folder]).notices
    (notice,) = resolve_inputs([f"{folder}/[ps]*"]).notices
    assert f"{folder}/sub is not read" in notice
    with pytest.raises(MissingError, match="nowhere"):
        resolve_inputs([folder / "nowhere.jsonl"])
    with pytest.raises(InputError, match="named twice"):
        resolve_inputs([folder, folder / "part-2.jsonl"])
    with pytest.raises(InputError, match="no file to read"):
        (tmp_path / "empty").mkdir()
        resolve_inputs([tmp_path / "empty"])


def test_end_token(tmp_path, tokenizer_file):
    file = tmp_path / "tokenizer.json"
    file.write_bytes(tokenizer_file.read_bytes())
    assert tokenizer_path(tmp_path) == file
    with pytest.raises(ConfigError, match="--eod"):
        end_token(file, None)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": EOD}}))
    assert end_token(file, None) == EOD
    with pytest.raises(MissingError, match="no tokenizer"):
        tokenizer_path(tmp_path / "nowhere")


def test_the_command_takes_the_peers_flags(folder, tmp_path, tokenizer_file):
    flags = [
        "--json-keys",
        "text",
        "id",
        "--tokenizer-model",
        tokenizer_file.parent,
        "--append-eod",
        "--eod",
        EOD,
    ]
    outcome = tokenize(
        [folder / "part-2.jsonl", folder / "part-10.jsonl"],
        tmp_path / "out",
        tokenizer_file,
        *flags,
    )
    assert outcome.exit_code == 0, outcome.output
    assert "50 documents" in outcome.output
    assert len(MMapIndexedDataset(tmp_path / "out_id_document").document_indices) == 51


def test_the_command_makes_a_pair_for_each_file_and_merges_them(folder, tmp_path, tokenizer_file):
    more = ["--per-file", "--append-eod", "--eod", EOD]
    assert tokenize([folder], tmp_path / "parts" / "o", tokenizer_file, *more).exit_code == 0
    names = sorted(path.name for path in (tmp_path / "parts").glob("*.idx"))
    assert names == ["o_part-10_text_document.idx", "o_part-2_text_document.idx"]
    arguments = [
        "merge",
        "--input",
        str(tmp_path / "parts"),
        "--output-prefix",
        str(tmp_path / "merged"),
    ]
    outcome = invoke_nanoset(arguments, catch_exceptions=False)
    assert "2 datasets, 50 documents" in outcome.output
    wanted = texts(folder)[20:] + texts(folder)[:20]
    assert pair(tmp_path / "merged") == slowly(
        tmp_path / "slow", tokenizer_file, wanted, "megatron"
    )


def test_tokshuf_ends_every_document_and_counts_by_file(folder, tmp_path, tokenizer_file):
    (folder / "nothing.jsonl").write_bytes(b"")
    settings = options(tokenizer_file, preset="tokshuf", count_by_file=True)
    (result,) = preprocess(resolve_inputs([folder]), tmp_path / "out", settings)
    with MMapIndexedDatasetBuilder(tmp_path / "slow", np.uint16) as builder:
        encoded = encode_all(tokenizer_file, texts(folder))
        for ids in encoded:
            builder.add_document(ids)
    assert pair(result.prefix) == pair(tmp_path / "slow")
    counts = {"nothing.jsonl": 0}
    counts |= {
        "part-2.jsonl": sum(map(len, encoded[:20])),
        "part-10.jsonl": sum(map(len, encoded[20:])),
    }
    assert list(result.tokens_by_file) == ["nothing.jsonl", "part-2.jsonl", "part-10.jsonl"]
    assert result.tokens_by_file == counts
    (again,) = preprocess(resolve_inputs([folder]), tmp_path / "out", settings)
    assert again == result
    (plain,) = preprocess(
        resolve_inputs([folder]), tmp_path / "p", options(tokenizer_file, preset="tokshuf")
    )
    assert plain.tokens_by_file is None
    (counted,) = preprocess(resolve_inputs([folder]), tmp_path / "p", settings)
    assert counted.tokens_by_file == counts


def encode_all(tokenizer_file, documents):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    end = tokenizer.token_to_id(EOD)
    return [[*tokenizer.encode(text, add_special_tokens=False).ids, end] for text in documents]


def tokenize(inputs, prefix, tokenizer_file, *more):
    arguments = [
        "tokenize",
        "--output-prefix",
        prefix,
        "--tokenizer",
        tokenizer_file,
        "--workers",
        1,
        *more,
    ]
    return invoke_nanoset([*arguments, "--input", *inputs])


def test_the_command_replaces_nothing_unasked(folder, tmp_path, tokenizer_file):
    first, second = folder / "part-2.jsonl", folder / "part-10.jsonl"
    prefix = tmp_path / "out" / "x"
    made = tokenize([first], prefix, tokenizer_file)
    assert "20 documents" in made.output
    before = pair(prefix.with_name("x_text_document"))
    assert tokenize([first], prefix, tokenizer_file).output.endswith(
        "0 rejected (already exists)\n"
    )
    for inputs, more, found in (
        ([second], (), "part-10.jsonl was not among the files; part-2.jsonl was one of the files"),
        ([first, second], (), "part-10.jsonl was not among the files"),
        ([first], ("--append-eod", "--eod", EOD), "--append-eod, --eod: [] → [0]"),
        ([first], ("--preset", "nemo"), "--preset: megatron → nemo"),
    ):
        refused = tokenize(inputs, prefix, tokenizer_file, *more)
        assert isinstance(refused.exception, ConfigError)
        assert found in refused.exception.found
        assert "--overwrite" in refused.exception.remedy
    assert pair(prefix.with_name("x_text_document")) == before
    names = ["x_text_document.bin", "x_text_document.idx", "x_text_document.manifest.json"]
    assert sorted(path.name for path in prefix.parent.iterdir()) == names
    assert "29 documents" not in tokenize([second], prefix, tokenizer_file).output
    assert tokenize([second], prefix, tokenizer_file, "--overwrite").exit_code == 0
    assert pair(prefix.with_name("x_text_document")) != before


def test_the_command_sees_and_mends_bytes_that_were_overwritten(folder, tmp_path, tokenizer_file):
    tokenize([folder], tmp_path / "x", tokenizer_file)
    prefix = tmp_path / "x_text_document"
    whole, tokens = pair(prefix), prefix.with_name(f"{prefix.name}.bin")
    tokens.write_bytes(bytes(tokens.stat().st_size))
    refused = tokenize([folder], tmp_path / "x", tokenizer_file)
    assert (
        refused.exception.found
        == "x_text_document.bin has other bytes than those that were written"
    )
    assert (
        "already exists"
        not in tokenize([folder], tmp_path / "x", tokenizer_file, "--overwrite").output
    )
    assert pair(prefix) == whole


def test_the_command_never_writes_onto_its_input(folder, tmp_path, tokenizer_file):
    (folder / "x_rejects.jsonl").write_bytes(jsonl(sentences("mine", 9)))
    before = (folder / "x_rejects.jsonl").read_bytes()
    for prefix in (folder / "x", folder / ".." / "raw" / "x"):
        refused = tokenize([folder], prefix, tokenizer_file, "--overwrite")
        assert "an input would be overwritten" in str(refused.exception)
    (tmp_path / "y_text_document.bin").symlink_to(folder / "part-2.jsonl")
    refused = tokenize([folder], tmp_path / "y", tokenizer_file, "--overwrite")
    assert "an input would be overwritten" in str(refused.exception)
    assert (folder / "x_rejects.jsonl").read_bytes() == before


@pytest.mark.parametrize("more", [(), ("--per-file",)])
def test_the_command_run_again_does_not_take_its_rejects_for_text(folder, tokenizer_file, more):
    with (folder / "part-2.jsonl").open("ab") as file:
        file.write(b"broken" + b"\n")
    more = (*more, "--max-rejected-fraction", 0.5)
    made = tokenize([folder], folder / "x", tokenizer_file, *more)
    assert "rejects.jsonl" in made.output
    again = tokenize([folder], folder / "x", tokenizer_file, *more)
    assert again.exit_code == 0
    audited = re.search(
        r"tokenized by [^;]+; [48] documents compared with the tokenizers library\n", made.output
    )
    output = made.output.replace(audited.group(), "")
    assert again.output == output.replace("\n", " (already exists)\n").replace(
        "on test texts (already exists)", "on test texts"
    )
    named = next(folder.glob("*_rejects.jsonl"))
    refused = tokenize([named], folder / named.name.removesuffix("_rejects.jsonl"), tokenizer_file)
    assert "an input would be overwritten" in str(refused.exception)


def test_a_pair_whose_publication_was_cut_off_is_made_by_the_same_call_alone(
    folder, tmp_path, tokenizer_file
):
    assert tokenize([folder], tmp_path / "x", tokenizer_file).exit_code == 0
    prefix = tmp_path / "x_text_document"
    whole = pair(prefix)
    manifest = prefix.with_name(f"{prefix.name}.manifest.json")
    kept = {
        key: value
        for key, value in json.loads(manifest.read_text()).items()
        if key not in ("facts", "files")
    }
    manifest.write_text(json.dumps(kept))
    prefix.with_name(f"{prefix.name}.idx").unlink()
    refused = tokenize([folder], tmp_path / "x", tokenizer_file, "--preset", "nemo")
    assert isinstance(refused.exception, ConfigError)
    assert tokenize([folder], tmp_path / "x", tokenizer_file).exit_code == 0
    assert pair(prefix) == whole


def test_little_is_imported(folder, tmp_path, tokenizer_file):
    """What takes long to import, and is not needed for pairs, is left alone; pandas is what pyarrow
    looks for.
    """
    words = [
        "tokenize",
        "--input",
        str(folder),
        "--output-prefix",
        str(tmp_path / "out"),
        "--workers",
        "1",
    ]
    script = (
        "import sys\nfrom nanoset_core.cli import main\ntry: main(sys.argv[1:])\nfinally: "
        "print(*sys.modules)"
    )
    command = [
        sys.executable,
        "-c",
        script,
        *words,
        "--tokenizer",
        str(tokenizer_file),
        "--engine",
        "numpy",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    modules = set(done.stdout.splitlines()[-1].split())
    heavy = {
        "rich",
        "pyarrow",
        "pandas",
        "boto3",
        "yaml",
        "nanoset_core.sampling.indices",
        "nanoset_core.stages.mappings",
    }
    assert not modules & heavy


@pytest.mark.parametrize("key", [
    "a/b", "/a", "", "a\0b", "a\nb", "\x1b[2J", "\udcff", "x" * 250, "é" * 120,
], ids=ascii)  # fmt: skip
def test_a_key_that_no_file_can_be_named_after_is_refused(tmp_path, tokenizer_file, key):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    options = PreprocessOptions(tokenizer=tokenizer_file, workers=1, eod=EOD, keys=("text", key))
    with pytest.raises(ConfigError, match="cannot be part of a file's name") as refused:
        preprocess(resolve_inputs([tmp_path / "a.jsonl"]), tmp_path / "out" / "x", options)
    assert refused.value.where == "--json-keys"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("key", ["..", ".", " ", "a\\b", "x" * 150])
def test_a_key_that_is_unusual_names_its_files(tmp_path, tokenizer_file, key):
    (tmp_path / "a.jsonl").write_text(json.dumps({key: "some text"}) + "\n")
    options = PreprocessOptions(tokenizer=tokenizer_file, workers=1, eod=EOD, keys=(key,))
    (made,) = preprocess(resolve_inputs([tmp_path / "a.jsonl"]), tmp_path / "x", options)
    assert (tmp_path / f"x_{key}_document.bin").exists()
    assert made.facts.documents == 1


def test_a_prefix_that_leaves_no_room_for_the_key_is_refused(tmp_path, tokenizer_file):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    options = PreprocessOptions(tokenizer=tokenizer_file, workers=1, eod=EOD)
    with pytest.raises(ConfigError, match="names of the files would be too long"):
        preprocess(resolve_inputs([tmp_path / "a.jsonl"]), tmp_path / ("x" * 240), options)
