"""Commands refuse a pair whose .bin has tokens that its .idx does not list, unless it is a view."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from helpers.command import invoke_nanoset
from helpers.sample_pairs import write_pair
from helpers.views import write_view, write_view_manifest
from nanoset_core.errors import FormatError
from nanoset_core.formats.indexed.layout import write_idx

N_DOCUMENTS = 20
LENGTH = 10
"""Tokens of each document."""
EVERY_SECOND = range(0, N_DOCUMENTS, 2)
COMMANDS = {
    "export": ["export", "{pair}", "--format", "mds", "--sequence-length", 5, "-o", "exported"],
    "inspect": ["inspect", "{pair}"],
    "map": ["map", "--data-path", "{pair}", "--seq-length", 5, "--split", "1,0,0", "--plan"],
    "pbin": ["pbin", "{pair}", "-o", "written.pbin"],
    "shuffle": ["shuffle", "--input", "{pair}", "--output", "tars", "--seqlen", 5],
    "shuffle --plan": ["shuffle", "--plan", "--input", "{pair}", "--output", "t", "--seqlen", 5],
    "verify": ["verify", "{pair}"],
}
"""Commands that read a pair."""
EXCEPT_VERIFY = [name for name in COMMANDS if name != "verify"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """The current folder, with a pair named web."""
    monkeypatch.chdir(tmp_path)
    write_pair("web", [LENGTH] * N_DOCUMENTS)
    return tmp_path


def invoke(command: str, pair: str):
    """Run a command on a pair."""
    arguments = [str(argument).format(pair=pair) for argument in COMMANDS[command]]
    return invoke_nanoset(arguments)


def write_first_documents(prefix: str, n_documents: int) -> None:
    """Write a pair with the tokens of web, whose .idx lists only the first documents."""
    shutil.copyfile("web.bin", f"{prefix}.bin")
    lengths = np.full(n_documents, LENGTH, np.int32)
    with open(f"{prefix}.idx", "xb") as file:
        write_idx(file, np.uint16, lengths, np.arange(n_documents + 1))


@pytest.mark.parametrize("command", EXCEPT_VERIFY)
def test_a_bin_with_more_tokens_than_its_idx_is_refused(command):
    write_first_documents("part", 15)

    result = invoke(command, "part")

    assert result.exit_code == 1
    assert isinstance(result.exception, FormatError)
    assert "the token file is longer than its index says" in str(result.exception)


def test_the_idx_of_a_smaller_type_is_refused():
    lengths = np.full(N_DOCUMENTS, LENGTH, np.int32)
    Path("web.idx").unlink()
    with open("web.idx", "xb") as file:
        write_idx(file, np.uint8, lengths, np.arange(N_DOCUMENTS + 1))

    result = invoke("pbin", "web")

    assert isinstance(result.exception, FormatError)
    assert "expected: 200 bytes, by web.idx" in str(result.exception)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_view_of_the_first_documents_is_read(command):
    write_first_documents("part", 15)
    write_view_manifest("part", documents=15, tokens=15 * LENGTH)

    result = invoke(command, "part")

    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("command", EXCEPT_VERIFY)
def test_documents_that_are_not_back_to_back_are_read_without_a_manifest(command):
    write_view("some", "web", EVERY_SECOND)

    result = invoke(command, "some")

    assert result.exit_code == 0, result.output


def test_verify_accepts_a_view_in_its_folder():
    write_view("some", "web", EVERY_SECOND)
    write_view_manifest("some", documents=10, tokens=10 * LENGTH)

    result = invoke_nanoset(["verify", "some", "--deep"])

    assert result.exit_code == 0, result.output


def test_verify_compares_a_view_with_its_manifest():
    write_view("some", "web", EVERY_SECOND)
    write_view_manifest("some", documents=11, tokens=10 * LENGTH)

    result = invoke_nanoset(["verify", "some"])

    assert result.exit_code == 1
    assert "the .idx has another number of documents than its manifest" in result.output


def test_merge_says_that_a_pair_may_be_a_view(folder):
    (folder / "parts").mkdir()
    write_view("parts/some", "web", EVERY_SECOND)

    result = invoke_nanoset(["merge", "--input", "parts", "--output-prefix", "all"])

    assert isinstance(result.exception, FormatError)
    assert "found: the .idx of a view, or a damaged one" in str(result.exception)
