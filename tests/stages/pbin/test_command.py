"""`nanoset pbin`, as it is typed."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from helpers.command import invoke_nanoset
from helpers.locations import GOLDEN_FILES
from helpers.sample_project import EOD, jsonl, sentences
from nanoset_core import MMapIndexedDatasetBuilder, PackedDataset
from nanoset_core.cli import main
from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.formats.pbin.writing import PbinCounts
from nanoset_core.stages.pbin import standalone
from nanoset_core.stages.pbin.conversion import model_vocab_size
from nanoset_core.stages.pbin.selection import merge_pbin
from nanoset_core.stages.pbin.standalone import PbinOptions, PbinResult, make_pbin_once

GOLDEN = GOLDEN_FILES / "modalities"


@pytest.fixture
def pack(tmp_path, monkeypatch, capsys):
    """Runs `nanoset pbin` in a folder of its own; → (what it printed, what it wrote to x.pbin), or
    its error.
    """
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main(["pbin", *map(str, arguments)])
        shown = capsys.readouterr()
        if ended.value.code:
            return shown.err
        return shown.out, Path("x.pbin").read_bytes() if Path("x.pbin").exists() else None

    return run


def golden(name):
    return (GOLDEN / name).read_bytes()


@pytest.mark.parametrize("first", [(), ("write",)])
def test_write(pack, first):
    arguments = (
        GOLDEN / "edge.jsonl",
        "--output",
        "x.pbin",
        "--tokenizer",
        GOLDEN / "tokenizer",
        "--workers",
        1,
    )
    shown, written = pack(*first, *arguments)
    assert written == golden("edge.pbin")
    assert "x.pbin: 26 documents, 8,813 tokens of 2 bytes" in shown


def test_merge(pack, tmp_path):
    files = [GOLDEN / "docs.pbin", GOLDEN / "edge.pbin"]
    shown, written = pack("merge", *files, "-o", "x.pbin")
    merge_pbin(files, tmp_path / "y.pbin")
    assert written == (tmp_path / "y.pbin").read_bytes()
    assert "86 documents" in shown


def test_shuffle(pack):
    assert pack("shuffle", GOLDEN / "docs.pbin", "--seed", 11, "-o", "x.pbin")[1] == golden(
        "docs.shuffle-s11.pbin"
    )
    files = (GOLDEN / "docs.pbin", GOLDEN / "edge.pbin", "--seed", 11, "-o", "x.pbin")
    for chunk in range(3):
        _, written = pack("shuffle", *files, "--chunk", chunk, "--chunks", 3, "--overwrite")
        assert written == golden(f"chunk-s11-{chunk}-of-3.pbin")
    assert "shuffle one file" in pack("shuffle", *files)
    assert "--chunk needs --chunks" in pack("shuffle", *files, "--chunks", 3)
    assert "no such chunk" in pack("shuffle", *files, "--chunk", 3, "--chunks", 3, "--overwrite")


def test_filter(pack):
    shown, written = pack("filter", GOLDEN / "docs.pbin", "--every", 3, "-o", "x.pbin")
    assert written == golden("docs.filter-3.pbin")
    assert "20 documents" in shown
    assert "of 60" in shown
    assert "nothing says which documents to keep" in pack(
        "filter", GOLDEN / "docs.pbin", "-o", "y.pbin"
    )


def test_repair(pack):
    Path("x.pbin").write_bytes(golden("merge-buggy-index.pbin"))
    assert "the fault of Modalities' merge in 1 place" in pack("describe", "x.pbin")[0]
    shown, written = pack("repair", "x.pbin")
    assert "1 fault in its index" in shown
    Path("x.pbin").unlink()
    assert written == pack("merge", GOLDEN / "docs.pbin", GOLDEN / "edge.pbin", "-o", "x.pbin")[1]
    assert "fault" not in pack("describe", "x.pbin")[0]


def test_raw_index(pack):
    pack("raw-index", GOLDEN / "edge.jsonl", "-o", "x.idx")
    assert Path("x.idx").read_bytes() == golden("edge.idx")
    shown, _ = pack(
        "raw-index", GOLDEN / "bad-json.jsonl", "--drop-faulty", "-o", "x.idx", "--overwrite"
    )
    assert Path("x.idx").read_bytes() == golden("bad-json.drop-faulty.idx")
    assert "2 of 3 lines, 1 dropped, the first in line 2" in shown
    assert "line 2, byte 15: this line is not JSON" in pack(
        "raw-index", GOLDEN / "bad-json.jsonl", "-o", "y.idx"
    )


@pytest.mark.parametrize(
    ("name", "layout", "size"),
    [
        ("legacy-a-header8-be", "A", 4),
        ("legacy-c-header12-le-absolute", "C", 2),
        ("u1", "D", 1),
        ("u2", "D", 2),
        ("u4", "D", 4),
    ],
)
def test_describe(pack, name, layout, size):
    shown, _ = pack("describe", GOLDEN / f"{name}.pbin")
    dataset = PackedDataset(GOLDEN / f"{name}.pbin")
    unit = "byte" if size == 1 else "bytes"
    counts = f"{len(dataset):,} documents, {len(dataset.tokens):,} tokens of {size} {unit}"
    assert shown.startswith(f"{GOLDEN / name}.pbin: {counts}\nlayout {layout}, ")
    assert ("nanoset pbin repair" in shown) == (layout != "D")


def test_errors_name_the_file(pack):
    assert "no such file" in pack("describe", "none.pbin")
    Path("bad.pbin").write_bytes(b"no header")
    assert "bad.pbin, byte" in pack("describe", "bad.pbin")
    assert "Missing option '--output'" in pack("merge", GOLDEN / "u1.pbin")


def test_the_list_of_rejects_is_never_written_onto_an_input_nor_taken_for_one(pack):
    Path("raw").mkdir()
    Path("raw/a.jsonl").write_bytes(golden("bad-json.jsonl"))
    arguments = ("raw", "-o", "raw/x.pbin", "--tokenizer", GOLDEN / "tokenizer", "--workers", 1)
    more = (*arguments, "--max-rejected-fraction", 0.5)
    Path("raw/x_rejects.jsonl").write_bytes(golden("edge.jsonl"))
    assert "an input would be overwritten" in pack("write", *more)
    Path("raw/x_rejects.jsonl").rename("kept.jsonl")
    first, _ = pack("write", *more)
    again, _ = pack("write", *more)
    assert again == first.replace("\n", " (already exists)\n")
    Path("raw/y_rejects.jsonl").write_bytes(b"mine")
    assert "nothing says" in pack("write", "raw/a.jsonl", "-o", "raw/y.pbin", *more[3:])
    Path("raw/y_rejects.jsonl").unlink()
    assert "line was rejected" in pack("write", *arguments, "--on-reject", "fail"), (
        "what was rejected is judged anew"
    )
    assert (
        "1 line rejected (raw/x_rejects.jsonl)"
        in pack("write", *more, "--max-rejected-fraction", 0.6)[0]
    )


def test_a_file_that_cannot_be_read_is_no_rejected_line(pack):
    Path("raw").mkdir(exist_ok=True)
    Path("raw/bad.jsonl").write_bytes(golden("bad-json.jsonl"))
    Path("raw/cut.jsonl.gz").write_bytes(gzip.compress(golden("edge.jsonl"))[:20])
    arguments = (
        "write",
        "raw",
        "-o",
        "x.pbin",
        "--tokenizer",
        GOLDEN / "tokenizer",
        "--workers",
        1,
    )
    limits = ("--max-rejected-fraction", 0.5, "--max-unreadable-fraction", 1)
    first, _ = pack(*arguments, *limits)
    assert "1 line and 1 file rejected (x_rejects.jsonl); 1 file not readable to the end" in first
    assert pack(*arguments, *limits)[0] == first.replace("\n", " (already exists)\n")


def test_what_is_not_read_is_said_each_time(tmp_path, tokenizer_file):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(jsonl(sentences("web", 5)))
    (folder / "b.jsonl.bz2").write_bytes(b"BZh9")
    (folder / "c.jsonl").write_bytes(b"")
    arguments = [
        "pbin",
        folder,
        "-o",
        tmp_path / "x.pbin",
        "--tokenizer",
        tokenizer_file,
        "--eod",
        EOD,
        "--workers",
        1,
    ]
    for _ in range(2):
        outcome = invoke_nanoset(arguments)
        assert outcome.exit_code == 0, outcome.output
        assert f"notice: {folder}: 1 file is not read: 1 .jsonl.bz2 (b.jsonl.bz2)" in outcome.output
        assert f"notice: {folder}: 1 file is empty: c.jsonl" in outcome.output
    assert outcome.output.endswith("(already exists)\n")


TOKENIZER = GOLDEN / "tokenizer"
END = "<|endoftext|>"


def options(**given):
    return PbinOptions(**{"tokenizer": TOKENIZER, "workers": 1, **given})


def make_packed(inputs, output, options):
    return make_pbin_once(inputs, output, options, overwrite=True)[0]


def lists(path):
    return [document.tolist() for document in PackedDataset(path)]


def encode(file, text):
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(file)).encode(text).ids


def byte_tokenizer(folder, added=(END,), template=None):
    """256 bytes as tokens, and what is added to them."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE({letter: number for number, letter in enumerate(alphabet)}, [])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(list(added))
    if template:
        ids = [(token, tokenizer.token_to_id(token)) for token in added]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=ids
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


@pytest.mark.parametrize("name", ["docs", "edge"])
def test_text_gives_the_bytes_of_modalities(tmp_path, name):
    made = make_packed([GOLDEN / f"{name}.jsonl"], tmp_path / "x.pbin", options())
    assert (tmp_path / "x.pbin").read_bytes() == (GOLDEN / f"{name}.pbin").read_bytes()
    tokens = len(PackedDataset(GOLDEN / f"{name}.pbin").tokens)
    assert made == PbinResult(PbinCounts(len(PackedDataset(GOLDEN / f"{name}.pbin")), tokens, 2))
    assert not (tmp_path / "x_rejects.jsonl").exists()


def test_a_line_that_is_no_json_costs_only_itself(tmp_path):
    target = tmp_path / "x.pbin"
    made = make_packed([GOLDEN / "bad-json.jsonl"], target, options(max_rejected_fraction=0.5))
    assert target.read_bytes() == (GOLDEN / "bad-json.drop-faulty.pbin").read_bytes()
    assert (made.rejected, made.rejects) == (1, tmp_path / "x_rejects.jsonl")
    (reject,) = map(json.loads, made.rejects.read_text().splitlines())
    assert reject["line"] == 2
    make_packed([GOLDEN / "edge.jsonl"], target, options())
    assert not (tmp_path / "x_rejects.jsonl").exists(), "the rejects of the call before are gone"


@pytest.mark.parametrize(
    ("name", "left_out", "rejected"), [("drops-empty", 1, 0), ("drops-missing", 0, 1)]
)
def test_a_document_that_modalities_cannot_pack_costs_only_itself(
    tmp_path, name, left_out, rejected
):
    made = make_packed(
        [GOLDEN / f"{name}.jsonl"], tmp_path / "x.pbin", options(max_rejected_fraction=0.5)
    )
    rows = [json.loads(line) for line in (GOLDEN / f"{name}.jsonl").read_text().splitlines()]
    texts = [row["text"] for row in rows if row.get("text")]
    assert len(texts) == 6
    assert lists(tmp_path / "x.pbin") == [
        [*encode(TOKENIZER / "tokenizer.json", text), 0] for text in texts
    ]
    assert (made.counts.left_out, made.rejected) == (left_out, rejected)


def test_special_tokens_of_the_tokenizer_and_added_tokens_that_need_more_bytes(tmp_path):
    file = byte_tokenizer(tmp_path, added=("<s>", END), template="<s> $A")
    assert model_vocab_size(file) == 256, (
        "Modalities would take one byte a token, and lose every document"
    )
    (tmp_path / "a.jsonl").write_text('{"body": "ab"}\n{"body": ""}\n{"body": "c<|endoftext|>"}\n')
    made = make_packed(
        [tmp_path / "a.jsonl"], tmp_path / "x.pbin", options(tokenizer=file, eod=END, key="body")
    )
    a, b, c = (encode(file, letter)[1] for letter in "abc")
    assert lists(tmp_path / "x.pbin") == [[256, a, b, 257], [256, 257], [256, c, 257]]
    assert made.counts == PbinCounts(3, 9, 2)


def test_a_killed_call_goes_on_where_it_was(tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"

    def killed(*_args, **_options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(standalone, "write_dataset_as_pbin", killed)
        make_packed([GOLDEN / "docs.jsonl"], tmp_path / "x.pbin", options(scratch=scratch))
    (left,) = scratch.glob(".x.pbin-*.packing/*.bin")
    before = os.stat(left).st_mtime_ns
    seen = []
    real = standalone.write_dataset_as_pbin

    def noted(prefix, *args, **rest):
        seen.append(os.stat(f"{prefix}.bin").st_mtime_ns)
        return real(prefix, *args, **rest)

    monkeypatch.setattr(standalone, "write_dataset_as_pbin", noted)
    make_packed([GOLDEN / "docs.jsonl"], tmp_path / "x.pbin", options(scratch=scratch))
    assert seen == [before], "tokens that were there are not made again"
    assert (tmp_path / "x.pbin").read_bytes() == (GOLDEN / "docs.pbin").read_bytes()
    assert list(scratch.iterdir()) == []


@pytest.fixture
def pair(tmp_path):
    with MMapIndexedDatasetBuilder(tmp_path / "pair", np.int32) as builder:
        for document in ([5, 6], [7, 0], [8]):
            builder.add_document(document, [len(document)])
    return tmp_path / "pair"


@pytest.mark.parametrize("ending", ["", ".bin", ".idx"])
def test_a_pair(tmp_path, pair, ending):
    make_packed([f"{pair}{ending}"], tmp_path / "x.pbin", PbinOptions())
    assert (lists(tmp_path / "x.pbin"), PackedDataset(tmp_path / "x.pbin").token_bytes) == (
        [[5, 6], [7, 0], [8]],
        4,
    )
    make_packed([f"{pair}{ending}"], tmp_path / "x.pbin", options(append_eod=True))
    found = PackedDataset(tmp_path / "x.pbin")
    assert (lists(tmp_path / "x.pbin"), found.token_bytes) == ([[5, 6, 0], [7, 0], [8, 0]], 2)
    make_packed([f"{pair}{ending}"], tmp_path / "x.pbin", PbinOptions(vocab_size=256))
    assert PackedDataset(tmp_path / "x.pbin").token_bytes == 1


def test_what_is_missing_is_named(tmp_path, pair):
    target = tmp_path / "x.pbin"
    for inputs, given, error, message in (
        ([GOLDEN / "docs.jsonl"], PbinOptions(), ConfigError, "--tokenizer: no tokenizer is named"),
        ([pair], PbinOptions(append_eod=True), ConfigError, "--tokenizer: no tokenizer is named"),
        (
            [pair, GOLDEN / "docs.jsonl"],
            options(),
            ConfigError,
            "one dataset is converted at a time",
        ),
        ([GOLDEN / "u1.pbin"], options(), ConfigError, r"u1\.pbin: this is a .pbin already"),
        ([tmp_path / "none"], options(), MissingError, "no such file"),
        ([GOLDEN / "docs.jsonl"], options(eod="<|none|>"), ConfigError, "--eod"),
    ):
        with pytest.raises(error, match=message):
            make_packed(inputs, target, given)


def test_the_folder_that_one_is_in_is_a_folder_of_text(tmp_path, monkeypatch, tokenizer_file):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    monkeypatch.chdir(tmp_path)
    made = make_packed(
        ["."], Path("x.pbin"), PbinOptions(tokenizer=tokenizer_file, eod=EOD, workers=1)
    )
    assert made.counts.documents == 1
