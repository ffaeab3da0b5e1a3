"""`nanoset pbin`, as it is typed: what it prints, and the files that it writes."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from helpers.command import output_of
from helpers.pbin_files import GOLDEN
from helpers.sample_project import EOD, jsonl, sentences
from nanoset_core import PackedDataset
from nanoset_core.cli import main
from nanoset_core.stages.pbin.selection import merge_pbin

DOCS = GOLDEN / "docs.pbin"
EDGE = GOLDEN / "edge.pbin"
WRITE_OPTIONS = ("--tokenizer", GOLDEN / "tokenizer", "--workers", 1)


def golden_bytes(name: str) -> bytes:
    """Return the content of a file that Modalities wrote."""
    return (GOLDEN / name).read_bytes()


class Outcome(NamedTuple):
    """How a command ended."""

    code: object
    """Its exit code."""
    output: str
    """What it printed to standard output."""
    error: str
    """What it printed to standard error."""


Run = Callable[..., Outcome]
"""Runs `nanoset pbin` with some arguments."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A function that runs `nanoset pbin` in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run_pbin(*arguments: object) -> Outcome:
        words = [str(argument) for argument in arguments]
        with pytest.raises(SystemExit) as ended:
            main(["pbin", *words])
        printed = capsys.readouterr()
        return Outcome(ended.value.code, printed.out, printed.err)

    return run_pbin


@pytest.fixture
def pbin_output(run: Run) -> Callable[..., str]:
    """A function that runs `nanoset pbin`, and returns what it prints."""

    def output(*arguments: object) -> str:
        outcome = run(*arguments)
        assert not outcome.code, outcome.error
        return outcome.output

    return output


@pytest.fixture
def pbin_error(run: Run) -> Callable[..., str]:
    """A function that runs `nanoset pbin`, which has to fail, and returns its message."""

    def error(*arguments: object) -> str:
        outcome = run(*arguments)
        assert outcome.code
        return outcome.error

    return error


# Text


@pytest.mark.parametrize(
    "subcommand", [pytest.param((), id="default"), pytest.param(("write",), id="write")]
)
def test_text_is_written_as_by_modalities(pbin_output, subcommand):
    output = pbin_output(*subcommand, GOLDEN / "edge.jsonl", "--output", "x.pbin", *WRITE_OPTIONS)

    assert Path("x.pbin").read_bytes() == golden_bytes("edge.pbin")
    assert "x.pbin: 26 documents, 8,813 tokens of 2 bytes" in output


@pytest.fixture
def _raw_folder(run: Run) -> None:
    """A folder `raw` of text, in which one line of three is not JSON."""
    Path("raw").mkdir()
    Path("raw/a.jsonl").write_bytes(golden_bytes("bad-json.jsonl"))


WRITE_RAW = ("write", "raw", "-o", "raw/x.pbin", *WRITE_OPTIONS)
"""Writes a .pbin, and a list of rejected lines next to it, into the folder of the text."""
HALF_MAY_BE_REJECTED = ("--max-rejected-fraction", 0.5)


@pytest.mark.usefixtures("_raw_folder")
def test_the_list_of_rejected_lines_is_not_written_onto_an_input(pbin_error):
    Path("raw/x_rejects.jsonl").write_bytes(golden_bytes("edge.jsonl"))

    error = pbin_error(*WRITE_RAW, *HALF_MAY_BE_REJECTED)

    assert "an input would be overwritten" in error


@pytest.mark.usefixtures("_raw_folder")
def test_the_list_of_rejected_lines_does_not_replace_a_file_of_the_user(pbin_error):
    Path("raw/y_rejects.jsonl").write_bytes(b"mine")
    words = ("write", "raw/a.jsonl", "-o", "raw/y.pbin", *WRITE_OPTIONS, *HALF_MAY_BE_REJECTED)

    assert "nothing says" in pbin_error(*words)
    assert Path("raw/y_rejects.jsonl").read_bytes() == b"mine"


@pytest.mark.usefixtures("_raw_folder")
def test_the_list_of_rejected_lines_is_not_an_input_of_the_next_call(pbin_output):
    first_output = pbin_output(*WRITE_RAW, *HALF_MAY_BE_REJECTED)

    output = pbin_output(*WRITE_RAW, *HALF_MAY_BE_REJECTED)

    assert output == first_output.replace("\n", " (already exists)\n")


@pytest.mark.usefixtures("_raw_folder")
def test_the_limit_of_rejected_lines_is_checked_again_if_the_file_exists(pbin_output, pbin_error):
    pbin_output(*WRITE_RAW, *HALF_MAY_BE_REJECTED)

    error = pbin_error(*WRITE_RAW, "--on-reject", "fail")
    output = pbin_output(*WRITE_RAW, "--max-rejected-fraction", 0.6)

    assert "line was rejected" in error
    assert "1 line rejected (raw/x_rejects.jsonl)" in output


def test_the_input_may_follow_the_key_of_the_text(pbin_output):
    Path("text.jsonl").write_text('{"text": "one"}\n')
    Path("body.jsonl").write_text('{"body": "one"}\n')

    pbin_output("write", "text.jsonl", "-o", "text.pbin", *WRITE_OPTIONS)
    pbin_output("write", "-o", "body.pbin", *WRITE_OPTIONS, "--json-key", "body", "body.jsonl")

    assert Path("body.pbin").read_bytes() == Path("text.pbin").read_bytes()


@pytest.mark.usefixtures("_raw_folder")
def test_a_file_that_cannot_be_read_to_its_end_is_not_counted_as_a_rejected_line(pbin_output):
    Path("raw/cut.jsonl.gz").write_bytes(gzip.compress(golden_bytes("edge.jsonl"))[:20])
    limits = (*HALF_MAY_BE_REJECTED, "--max-unreadable-fraction", 1)
    words = ("write", "raw", "-o", "x.pbin", *WRITE_OPTIONS, *limits)

    first_output = pbin_output(*words)
    output = pbin_output(*words)

    assert (
        "1 line and 1 file rejected (x_rejects.jsonl); 1 file not readable to the end"
        in first_output
    )
    assert output == first_output.replace("\n", " (already exists)\n")


def test_files_that_are_not_read_are_reported_by_each_call(tmp_path, tokenizer_file):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(jsonl(sentences("web", 5)))
    (folder / "b.jsonl.xz").write_bytes(b"BZh9")
    (folder / "c.jsonl").write_bytes(b"")
    options = ("--tokenizer", tokenizer_file, "--eod", EOD, "--workers", 1)
    words = ("pbin", folder, "-o", tmp_path / "x.pbin", *options)

    first_output = output_of(*words)
    output = output_of(*words)

    for text in (first_output, output):
        assert f"notice: {folder}: 1 file is not read: 1 .jsonl.xz (b.jsonl.xz)" in text
        assert f"notice: {folder}: 1 file is empty: c.jsonl" in text
    assert output.endswith("(already exists)\n")


# Documents of other files


def test_files_are_merged(pbin_output, tmp_path):
    output = pbin_output("merge", DOCS, EDGE, "-o", "x.pbin")

    merge_pbin([DOCS, EDGE], tmp_path / "expected.pbin")
    assert Path("x.pbin").read_bytes() == (tmp_path / "expected.pbin").read_bytes()
    assert "86 documents" in output


SHUFFLE_TWO_FILES = ("shuffle", DOCS, EDGE, "--seed", 11, "-o", "x.pbin")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        pytest.param((), "shuffle one file", id="several files without a chunk"),
        pytest.param(("--chunks", 3), "--chunk needs --chunks", id="no number of the chunk"),
        pytest.param(("--chunk", 3, "--chunks", 3), "no such chunk", id="too large a number"),
    ],
)
def test_several_files_are_only_shuffled_chunk_by_chunk(pbin_error, options, message):
    assert message in pbin_error(*SHUFFLE_TWO_FILES, *options)


def test_documents_are_filtered(pbin_output):
    output = pbin_output("filter", DOCS, "--every", 3, "-o", "x.pbin")

    assert Path("x.pbin").read_bytes() == golden_bytes("docs.filter-3.pbin")
    assert "20 documents" in output
    assert "of 60" in output


def test_a_filter_without_a_condition_is_refused(pbin_error):
    error = pbin_error("filter", DOCS, "-o", "x.pbin")

    assert "nothing says which documents to keep" in error


def test_the_fault_of_modalities_merge_is_described_and_repaired(pbin_output):
    Path("x.pbin").write_bytes(golden_bytes("merge-buggy-index.pbin"))
    assert "the fault of Modalities' merge in 1 place" in pbin_output("describe", "x.pbin")

    output = pbin_output("repair", "x.pbin")

    assert "1 fault in its index" in output
    assert "fault" not in pbin_output("describe", "x.pbin")
    pbin_output("merge", DOCS, EDGE, "-o", "expected.pbin")
    assert Path("x.pbin").read_bytes() == Path("expected.pbin").read_bytes()


# The index of raw text


def test_the_index_of_raw_text_is_that_of_modalities(pbin_output):
    pbin_output("raw-index", GOLDEN / "edge.jsonl", "-o", "x.idx")

    assert Path("x.idx").read_bytes() == golden_bytes("edge.idx")


def test_lines_that_are_not_json_can_be_left_out_of_the_index(pbin_output):
    output = pbin_output("raw-index", GOLDEN / "bad-json.jsonl", "--drop-faulty", "-o", "x.idx")

    assert Path("x.idx").read_bytes() == golden_bytes("bad-json.drop-faulty.idx")
    assert "2 of 3 lines, 1 dropped, the first in line 2" in output


# Descriptions


class DescribedFile(NamedTuple):
    """A file that Modalities wrote, and its description."""

    name: str
    layout: str
    token_size: str


DESCRIBED_FILES = [
    DescribedFile("legacy-a-header8-be", layout="A", token_size="4 bytes"),
    DescribedFile("legacy-c-header12-le-absolute", layout="C", token_size="2 bytes"),
    DescribedFile("u1", layout="D", token_size="1 byte"),
    DescribedFile("u2", layout="D", token_size="2 bytes"),
    DescribedFile("u4", layout="D", token_size="4 bytes"),
]


@pytest.mark.parametrize("file", DESCRIBED_FILES, ids=[file.name for file in DESCRIBED_FILES])
def test_a_file_is_described_by_its_counts_and_its_layout(pbin_output, file):
    path = GOLDEN / f"{file.name}.pbin"

    output = pbin_output("describe", path)

    dataset = PackedDataset(path)
    counts = f"{len(dataset):,} documents, {len(dataset.tokens):,} tokens of {file.token_size}"
    assert output.startswith(f"{path}: {counts}\nlayout {file.layout}, ")


@pytest.mark.parametrize("file", DESCRIBED_FILES, ids=[file.name for file in DESCRIBED_FILES])
def test_a_repair_is_suggested_for_old_layouts(pbin_output, file):
    output = pbin_output("describe", GOLDEN / f"{file.name}.pbin")

    is_old = file.layout != "D"
    assert ("nanoset pbin repair" in output) == is_old


# Errors


def test_a_missing_file_is_an_error(pbin_error):
    assert "no such file" in pbin_error("describe", "none.pbin")


def test_an_error_names_the_damaged_file(pbin_error):
    Path("bad.pbin").write_bytes(b"no header")

    assert "bad.pbin, byte" in pbin_error("describe", "bad.pbin")


def test_files_after_unreadable_ones_are_described(run):
    Path("bad.pbin").write_bytes(b"no header")
    file = GOLDEN / "u1.pbin"

    outcome = run("describe", "bad.pbin", "none.pbin", file)

    assert outcome.code == 1
    assert "bad.pbin, byte" in outcome.error
    assert "no such file" in outcome.error
    assert f"{file}: " in outcome.output


def test_a_single_document_is_not_called_documents(pbin_output):
    Path("one.jsonl").write_text('{"text": "hello"}')

    output = pbin_output("one.jsonl", "--output", "one.pbin", *WRITE_OPTIONS)

    assert "one.pbin: 1 document, " in output


def test_a_merge_needs_an_output(pbin_error):
    assert "Missing option '--output'" in pbin_error("merge", GOLDEN / "u1.pbin")
