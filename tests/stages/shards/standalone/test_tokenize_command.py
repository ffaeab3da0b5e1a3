"""`nanoset tokenize` takes the flags of the peers' tools, and never replaces files unasked."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import Result

from helpers.command import invoke_nanoset
from helpers.sample_pairs import pair_bytes
from helpers.sample_project import EOD, encoded, jsonl, sentences
from helpers.tokenizing import (
    FILES,
    N_DOCUMENTS,
    N_DOCUMENTS_OF_FIRST_FILE,
    peer_pair_bytes,
    texts_of_files,
    write_two_files,
)
from nanoset_core import MMapIndexedDataset
from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.tokenizers.end_token import end_token
from nanoset_core.tokenizers.files import tokenizer_path


def tokenize(
    inputs: Sequence[Path], prefix: Path, tokenizer_file: Path, *arguments: object
) -> Result:
    """Run `nanoset tokenize` in one process, with further arguments."""
    command = ["tokenize", "--output-prefix", prefix, "--tokenizer", tokenizer_file]
    return invoke_nanoset([*command, "--workers", 1, *arguments, "--input", *inputs])


# Flags


def test_the_flags_of_megatron_are_accepted(raw, tmp_path, tokenizer_file):
    flags = ["--json-keys", "text", "id", "--tokenizer-model", tokenizer_file.parent]
    flags += ["--append-eod", "--eod", EOD]
    inputs = [raw / name for name in FILES]

    outcome = tokenize(inputs, tmp_path / "out", tokenizer_file, *flags)

    assert outcome.exit_code == 0, outcome.output
    assert f"{N_DOCUMENTS} documents" in outcome.output
    pair_of_ids = MMapIndexedDataset(tmp_path / "out_id_document")
    assert len(pair_of_ids.document_indices) == N_DOCUMENTS + 1


def test_a_notice_says_that_an_end_token_has_no_effect_without_append_eod(
    raw, tmp_path, tokenizer_file
):
    outcome = tokenize([raw], tmp_path / "out", tokenizer_file, "--eod", EOD)

    assert f"notice: --eod {EOD!r} has no effect without --append-eod" in outcome.output


def test_the_token_that_begins_documents_is_printed_with_its_id(raw, tmp_path, tokenizer_file):
    outcome = tokenize([raw], tmp_path / "out", tokenizer_file, "--bos", "<|pad|>")

    assert "documents begin with <|pad|> (id 1, by --bos)" in outcome.output


def test_an_end_token_that_is_appended_needs_no_notice(raw, tmp_path, tokenizer_file):
    outcome = tokenize([raw], tmp_path / "out", tokenizer_file, "--eod", EOD, "--append-eod")

    assert "no effect" not in outcome.output


@pytest.mark.parametrize(
    ("preset", "count"),
    [
        ("megatron", "2 documents (1 of them without tokens), "),
        ("nemo", "1 document (1 more without tokens is left out), "),
    ],
)
def test_documents_without_tokens_are_counted(tmp_path, tokenizer_file, preset, count):
    texts = tmp_path / "texts.jsonl"
    texts.write_bytes(jsonl([{"text": "the river"}, {"text": ""}]))

    outcome = tokenize([texts], tmp_path / "out", tokenizer_file, "--preset", preset)

    assert f"out_text_document: {count}" in outcome.output


def test_files_of_all_formats_give_the_pair_of_json_lines(tmp_path, tokenizer_file):
    rows = sentences("web", 20)
    lines = tmp_path / "lines"
    texts = tmp_path / "texts"
    lines.mkdir()
    texts.mkdir()
    (lines / "a.jsonl").write_bytes(jsonl(rows))
    for number, row in enumerate(rows[:10]):
        (texts / f"{number}.txt").write_text(row["text"])
    (texts / "10.csv").write_bytes(encoded("10.csv", rows[10:15], part=2))
    (texts / "11.txt").write_bytes(jsonl(rows[15:]))  # read as JSON lines, as ever

    for folder in (lines, texts):
        outcome = tokenize([folder], tmp_path / f"out_{folder.name}", tokenizer_file)
        assert outcome.exit_code == 0, outcome.output

    pairs = [pair_bytes(tmp_path / f"out_{name}_text_document") for name in ("lines", "texts")]
    assert pairs[0] == pairs[1]


def test_the_pairs_of_single_files_can_be_merged(raw, tmp_path, tokenizer_file):
    parts = tmp_path / "parts"
    flags = ["--per-file", "--append-eod", "--eod", EOD]

    tokenize_outcome = tokenize([raw], parts / "o", tokenizer_file, *flags)

    names = sorted(path.name for path in parts.glob("*.idx"))
    assert tokenize_outcome.exit_code == 0
    assert names == ["o_part-10_text_document.idx", "o_part-2_text_document.idx"]

    merge_outcome = invoke_nanoset(
        ["merge", "--input", parts, "--output-prefix", tmp_path / "merged"],
        catch_exceptions=False,
    )

    # Megatron-LM's merge takes the pairs in alphabetic order: part-10 is before part-2.
    texts = texts_of_files(raw)
    texts_in_order = texts[N_DOCUMENTS_OF_FIRST_FILE:] + texts[:N_DOCUMENTS_OF_FIRST_FILE]
    assert f"2 datasets, {N_DOCUMENTS} documents" in merge_outcome.output
    assert pair_bytes(tmp_path / "merged") == peer_pair_bytes(
        tmp_path / "expected", tokenizer_file, texts_in_order
    )


# Files without documents


@pytest.fixture
def raw_with_empty_file(raw: Path) -> Path:
    """A folder of two files with documents, and of one between them that has none."""
    (raw / "part-5.jsonl").touch()
    return raw


def test_with_a_pair_for_each_file_an_empty_file_gets_none(
    raw_with_empty_file, tmp_path, tokenizer_file
):
    parts = tmp_path / "parts"

    outcome = tokenize([raw_with_empty_file], parts / "o", tokenizer_file, "--per-file")

    assert outcome.exit_code == 0, outcome.output
    notice = f"notice: {raw_with_empty_file}: no pair for files without documents: part-5.jsonl"
    assert notice in outcome.output.splitlines()
    assert {path.name.partition("_text")[0] for path in parts.iterdir()} == {
        "o_part-2",
        "o_part-10",
    }


def test_an_empty_file_whose_pair_exists_is_an_error(raw, tmp_path, tokenizer_file):
    tokenize([raw], tmp_path / "o", tokenizer_file, "--per-file")
    first_file = raw / FILES[0]
    first_file.write_bytes(b"")

    outcome = tokenize([raw], tmp_path / "o", tokenizer_file, "--per-file", "--overwrite")

    assert f"{first_file}: the input holds no documents any more" in str(outcome.exception)


def test_files_that_are_all_empty_are_an_error(raw, tmp_path, tokenizer_file):
    for name in FILES:
        (raw / name).write_bytes(b"")

    outcome = tokenize([raw], tmp_path / "o", tokenizer_file, "--per-file")

    assert f"{raw}: none of the files holds documents" in str(outcome.exception)


def test_the_error_for_a_single_file_without_documents_names_it(raw, tmp_path, tokenizer_file):
    empty_file = raw / "empty.jsonl"
    empty_file.touch()

    outcome = tokenize([empty_file], tmp_path / "o", tokenizer_file)

    assert f"{empty_file}: the input holds no documents" in str(outcome.exception)


# A pair that exists


class FinishedPair(NamedTuple):
    """A pair that an earlier call made of the first of two files."""

    raw: Path
    """Folder of the files."""
    output_prefix: Path
    """Prefix that the call was given."""
    outcome: Result
    """What the call printed."""

    @property
    def prefix(self) -> Path:
        """Prefix of the pair's own files."""
        return self.output_prefix.with_name("x_text_document")


def make_finished_pair(folder: Path, tokenizer_file: Path) -> FinishedPair:
    """Tokenize the first of two files into a folder, and return the pair."""
    raw = write_two_files(folder / "raw")
    output_prefix = folder / "out" / "x"
    outcome = tokenize([raw / FILES[0]], output_prefix, tokenizer_file)
    assert f"{N_DOCUMENTS_OF_FIRST_FILE} documents" in outcome.output
    return FinishedPair(raw, output_prefix, outcome)


@pytest.fixture(scope="module")
def finished_pair(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> FinishedPair:
    """A pair that no test may change."""
    return make_finished_pair(tmp_path_factory.mktemp("finished"), tokenizer_file)


def test_a_repeated_call_says_that_the_pair_exists(finished_pair, tokenizer_file):
    inputs = [finished_pair.raw / FILES[0]]

    outcome = tokenize(inputs, finished_pair.output_prefix, tokenizer_file)

    assert outcome.output.endswith("0 rejected (already exists)\n")


@pytest.mark.parametrize(
    ("names", "flags", "difference"),
    [
        pytest.param(
            ["part-10.jsonl"],
            [],
            "part-10.jsonl was not among the files; part-2.jsonl was one of the files",
            id="another file",
        ),
        pytest.param(
            ["part-2.jsonl", "part-10.jsonl"],
            [],
            "part-10.jsonl was not among the files",
            id="a further file",
        ),
        pytest.param(
            ["part-2.jsonl"],
            ["--append-eod", "--eod", EOD],
            "--append-eod, --eod: [] → [0]",
            id="an end token",
        ),
        pytest.param(
            ["part-2.jsonl"],
            ["--preset", "nemo"],
            "--preset: megatron → nemo",
            id="another preset",
        ),
    ],
)
def test_a_pair_of_other_inputs_or_settings_is_not_replaced(
    finished_pair, tokenizer_file, names, flags, difference
):
    bytes_before = pair_bytes(finished_pair.prefix)
    inputs = [finished_pair.raw / name for name in names]

    outcome = tokenize(inputs, finished_pair.output_prefix, tokenizer_file, *flags)

    assert isinstance(outcome.exception, ConfigError)
    assert difference in outcome.exception.found
    assert "--overwrite" in outcome.exception.remedy
    assert pair_bytes(finished_pair.prefix) == bytes_before
    assert sorted(path.name for path in finished_pair.prefix.parent.iterdir()) == [
        "x_text_document.bin",
        "x_text_document.idx",
        "x_text_document.manifest.json",
    ]


def test_with_overwrite_a_pair_of_other_inputs_is_replaced(tmp_path, tokenizer_file):
    pair = make_finished_pair(tmp_path, tokenizer_file)
    bytes_before = pair_bytes(pair.prefix)
    inputs = [pair.raw / FILES[1]]

    outcome = tokenize(inputs, pair.output_prefix, tokenizer_file, "--overwrite")

    assert outcome.exit_code == 0
    assert pair_bytes(pair.prefix) != bytes_before


def zero_tokens(pair: FinishedPair) -> None:
    """Overwrite the tokens of a pair with zero bytes."""
    tokens = pair.prefix.with_name(f"{pair.prefix.name}.bin")
    tokens.write_bytes(bytes(tokens.stat().st_size))


def test_a_pair_whose_bytes_were_overwritten_is_reported(tmp_path, tokenizer_file):
    pair = make_finished_pair(tmp_path, tokenizer_file)
    zero_tokens(pair)

    outcome = tokenize([pair.raw / FILES[0]], pair.output_prefix, tokenizer_file)

    assert outcome.exception.found == (
        "x_text_document.bin has other bytes than those that were written"
    )


def test_with_overwrite_a_pair_whose_bytes_were_overwritten_is_rebuilt(tmp_path, tokenizer_file):
    pair = make_finished_pair(tmp_path, tokenizer_file)
    original_bytes = pair_bytes(pair.prefix)
    zero_tokens(pair)

    outcome = tokenize([pair.raw / FILES[0]], pair.output_prefix, tokenizer_file, "--overwrite")

    assert "already exists" not in outcome.output
    assert pair_bytes(pair.prefix) == original_bytes


def interrupt_publication(pair: FinishedPair) -> None:
    """Leave of a pair what a call leaves that is stopped while it publishes it."""
    record_path = pair.prefix.with_name(f"{pair.prefix.name}.manifest.json")
    record = json.loads(record_path.read_text())
    del record["facts"]
    del record["files"]
    record_path.write_text(json.dumps(record))
    pair.prefix.with_name(f"{pair.prefix.name}.idx").unlink()


def test_an_interrupted_publication_is_completed_by_the_same_call(tmp_path, tokenizer_file):
    pair = make_finished_pair(tmp_path, tokenizer_file)
    original_bytes = pair_bytes(pair.prefix)
    interrupt_publication(pair)

    outcome = tokenize([pair.raw / FILES[0]], pair.output_prefix, tokenizer_file)

    assert outcome.exit_code == 0
    assert pair_bytes(pair.prefix) == original_bytes


def test_an_interrupted_publication_is_not_completed_by_another_call(tmp_path, tokenizer_file):
    pair = make_finished_pair(tmp_path, tokenizer_file)
    interrupt_publication(pair)

    outcome = tokenize(
        [pair.raw / FILES[0]], pair.output_prefix, tokenizer_file, "--preset", "nemo"
    )

    assert isinstance(outcome.exception, ConfigError)


# Outputs that would be inputs


@pytest.mark.parametrize("prefix", ["x", "../raw/x"])
def test_the_list_of_rejects_never_replaces_an_input(raw, tokenizer_file, prefix):
    input_file = raw / "x_rejects.jsonl"
    input_file.write_bytes(jsonl(sentences("mine", 9)))
    bytes_before = input_file.read_bytes()

    outcome = tokenize([raw], raw / prefix, tokenizer_file, "--overwrite")

    assert "an input would be overwritten" in str(outcome.exception)
    assert input_file.read_bytes() == bytes_before


def test_an_output_that_is_a_link_to_an_input_never_replaces_it(raw, tmp_path, tokenizer_file):
    input_file = raw / FILES[0]
    bytes_before = input_file.read_bytes()
    (tmp_path / "y_text_document.bin").symlink_to(input_file)

    outcome = tokenize([raw], tmp_path / "y", tokenizer_file, "--overwrite")

    assert "an input would be overwritten" in str(outcome.exception)
    assert input_file.read_bytes() == bytes_before


class RejectingCall(NamedTuple):
    """A call that writes its list of rejects into the folder of its inputs."""

    raw: Path
    flags: Sequence[object]
    outcome: Result


@pytest.fixture(params=["one pair", "--per-file"])
def rejecting_call(
    request: pytest.FixtureRequest, raw: Path, tokenizer_file: Path
) -> RejectingCall:
    """A call that has rejected a line, and has written all of its outputs next to its inputs."""
    with (raw / FILES[0]).open("ab") as file:
        file.write(b"broken\n")
    flags: list[object] = ["--max-rejected-fraction", 0.5]
    if request.param == "--per-file":
        flags.append("--per-file")
    outcome = tokenize([raw], raw / "x", tokenizer_file, *flags)
    assert "rejects.jsonl" in outcome.output
    return RejectingCall(raw, flags, outcome)


def test_a_repeated_call_does_not_read_its_list_of_rejects(rejecting_call, tokenizer_file):
    raw = rejecting_call.raw

    outcome = tokenize([raw], raw / "x", tokenizer_file, *rejecting_call.flags)

    # Each line about a pair is as before, and says that the pair exists.
    expected_lines = []
    for line in rejecting_call.outcome.output.splitlines():
        if line.startswith("engine "):
            expected_lines.append(line)
        elif line.startswith(str(raw)):
            expected_lines.append(f"{line} (already exists)")
    assert outcome.exit_code == 0
    assert outcome.output.splitlines() == expected_lines


def test_a_call_reports_how_many_documents_it_compared_with_the_reference(rejecting_call):
    # The first four documents of one pair, or of each of two pairs.
    assert re.search(
        r"tokenized by [^;]+; [48] documents compared with the tokenizers library\n",
        rejecting_call.outcome.output,
    )


def test_a_list_of_rejects_that_is_named_as_an_input_is_not_replaced(
    rejecting_call, tokenizer_file
):
    rejects = next(rejecting_call.raw.glob("*_rejects.jsonl"))
    prefix = rejects.with_name(rejects.name.removesuffix("_rejects.jsonl"))

    outcome = tokenize([rejects], prefix, tokenizer_file)

    assert "an input would be overwritten" in str(outcome.exception)


# The tokenizer


def test_the_folder_of_a_tokenizer_stands_for_its_file(tokenizer_file):
    assert tokenizer_path(tokenizer_file.parent) == tokenizer_file


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    with pytest.raises(MissingError, match="no tokenizer"):
        tokenizer_path(tmp_path / "nowhere")


@pytest.fixture
def copied_tokenizer(tmp_path: Path, tokenizer_file: Path) -> Path:
    """A tokenizer in a folder without any other file."""
    path = tmp_path / "tokenizer.json"
    path.write_bytes(tokenizer_file.read_bytes())
    return path


def test_without_a_configuration_the_end_token_must_be_named(copied_tokenizer):
    with pytest.raises(ConfigError, match="--eod"):
        end_token(copied_tokenizer, None)


def test_the_end_token_is_that_of_the_configuration(copied_tokenizer):
    configuration = {"eos_token": {"content": EOD}}
    copied_tokenizer.with_name("tokenizer_config.json").write_text(json.dumps(configuration))

    assert end_token(copied_tokenizer, None) == EOD


# Imports

MAIN_THAT_NAMES_MODULES = """
import sys
from nanoset_core.cli import main

try:
    main(sys.argv[1:])
finally:
    print(*sys.modules)
"""
"""`nanoset`, which prints the modules that it imported in its last line."""
SLOW_MODULES = {
    "rich",
    "pyarrow",
    "pandas",  # which pyarrow imports if it is installed
    "botocore",
    "yaml",
    "nanoset_core.sampling.indices",
    "nanoset_core.stages.mappings",
}
"""Modules that take long to import, and that no pair needs."""


def test_tokenizing_imports_no_slow_modules(raw, tmp_path, tokenizer_file):
    arguments = ["tokenize", "--input", raw, "--output-prefix", tmp_path / "out"]
    arguments += ["--workers", "1", "--tokenizer", tokenizer_file, "--engine", "numpy"]

    process = subprocess.run(
        [sys.executable, "-c", MAIN_THAT_NAMES_MODULES, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    modules = set(process.stdout.splitlines()[-1].split())
    assert not modules & SLOW_MODULES
