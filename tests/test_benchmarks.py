"""The benchmarks run with little data, and do not time a command that does no work."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import tokenize
from benchmarks.harness import Command, interleaved, interleaved_calls, run
from helpers.locations import REPOSITORY

ONE_ROUND = "--rounds 1"
SMALL_OPTIONS = {
    "views": "--millions 0.1",
    "merge": f"--parts 2 --megabytes 1 {ONE_ROUND}",
    "growth": "--shards 3 --documents 3000 --milliseconds 0 --tokenizer {tokenizer}",
    "exports": f"--megabytes 1 --linked 1 --length 65 {ONE_ROUND}",
    "read": f"--megabytes 1 {ONE_ROUND}",
    "pack": f"--megabytes 16 --documents 1000 {ONE_ROUND}",
    "mapping": f"--documents 2000 --samples 2000 --only sample permutations {ONE_ROUND}",
    "read_samples": (
        f"--megatokens 1 --lengths 100 --samples 64 --sequence-length 128 {ONE_ROUND}"
    ),
}
"""Benchmark → options with which it takes little time; {tokenizer} is a tokenizer.json."""


@pytest.fixture
def run_benchmark(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """A function that runs a benchmark, and returns what it and its child processes print."""

    def run_main(name: str, *arguments: object) -> str:
        monkeypatch.chdir(REPOSITORY)
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        importlib.import_module(f"benchmarks.{name}").main()
        return capfd.readouterr().out

    return run_main


def write_lines(file: Path, key: str, texts: list[str]) -> None:
    """Write JSON lines with a text at a key."""
    lines = [json.dumps({key: text}) for text in texts]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL_OPTIONS)
def test_a_benchmark_prints_a_table(
    name: str, run_benchmark: Callable[..., str], tokenizer_file: Path
) -> None:
    words = SMALL_OPTIONS[name].format(tokenizer=tokenizer_file).split()

    assert "| --- |" in run_benchmark(name, *words)


def test_a_benchmark_is_a_program() -> None:
    command = [sys.executable, "-m", "benchmarks.mapping", "--help"]

    help_text = subprocess.check_output(command, cwd=REPOSITORY, encoding="utf-8")

    assert "--samples" in help_text


@pytest.mark.slow
def test_the_benchmark_of_tokenizing_compares_bytes_and_times_each_engine(
    tmp_path: Path, tokenizer_file: Path, run_benchmark: Callable[..., str]
) -> None:
    text = tmp_path / "a.jsonl"
    write_lines(text, "text", [f"document {number}" for number in range(50)])
    options = ["--engines", "numpy", *ONE_ROUND.split()]

    printed = run_benchmark("tokenize", "--tokenizer", tokenizer_file, "--input", text, *options)

    assert printed.count("the same bytes") == 2
    assert "| nanoset, numpy engine |" in printed


def test_the_benchmark_of_contamination_finds_only_the_texts_that_it_plants(
    tmp_path: Path, tokenizer_file: Path, run_benchmark: Callable[..., str]
) -> None:
    questions = []
    for number in range(1, 9):
        animals = "sheep" * number
        questions.append(
            f"question {number}: how many {animals} and oxen graze between the {number} old mills?"
        )
    web = tmp_path / "web.jsonl"
    evaluations = tmp_path / "evals.jsonl"
    write_lines(web, "text", [f"{number} mills" for number in range(8)])
    write_lines(evaluations, "question", questions)

    printed = run_benchmark(
        "contamination",
        "--tokenizer",
        tokenizer_file,
        "--input",
        web,
        "--evaluations",
        evaluations,
    )

    # All texts are found that it plants unchanged, and none before.
    assert "| as they are | 100.0% |" in printed
    assert "  0 of them hold a text" in printed


def writing_tokens(folder: Path, tokens: str) -> Command:
    """Return a command that writes a file of tokens to a new folder."""
    write = "import sys; open(sys.argv[1], 'w').write(sys.argv[2])"
    file = f"{folder}/tokens.bin"
    return Command([sys.executable, "-c", write, file, tokens], [folder], prepare=folder.mkdir)


def test_an_engine_with_other_tokens_is_not_timed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = {
        "first": writing_tokens(tmp_path / "first", "1 2"),
        "same": writing_tokens(tmp_path / "same", "1 2"),
        "other": writing_tokens(tmp_path / "other", "1 3"),
    }

    timed_rows = []
    for row, command in commands.items():
        if tokenize.gives_the_same(row, command, commands):
            timed_rows.append(row)

    assert timed_rows == ["first", "same"]
    assert "other: not timed, its bytes are OTHER than those of first" in capsys.readouterr().out


APPEND = "import sys; open(sys.argv[1], 'a').write('x')"


def test_the_files_of_a_run_are_removed_before_the_next_one(tmp_path: Path) -> None:
    file = tmp_path / "output"
    append = Command([sys.executable, "-c", APPEND, str(file)], [file])

    interleaved({"append": append}, rounds=3)

    assert file.read_text(encoding="utf-8") == "x"


def test_a_command_that_does_not_make_its_file_is_not_timed(tmp_path: Path) -> None:
    command = Command([sys.executable, "-c", "print('done')"], [tmp_path / "output"])

    with pytest.raises(RuntimeError, match="did not make"):
        run(command)


def test_a_file_of_an_earlier_run_does_not_count_as_made(tmp_path: Path) -> None:
    (tmp_path / "output").write_bytes(b"from an earlier run")
    command = Command([sys.executable, "-c", "print('already there')"], [tmp_path / "output"])

    with pytest.raises(RuntimeError, match="did not make"):
        run(command)


def test_a_command_may_print_its_result() -> None:
    run(Command([sys.executable, "-c", "print(3)"], prints="^3$"))


def test_a_command_that_prints_something_else_is_not_timed() -> None:
    command = Command([sys.executable, "-c", "print(30)"], prints="^3$")

    with pytest.raises(RuntimeError, match="did not print"):
        run(command)


def test_a_command_needs_a_sign_of_its_work() -> None:
    with pytest.raises(ValueError, match="say what the command makes or prints"):
        Command([sys.executable, "-c", ""])


def test_a_call_with_another_result_is_not_timed() -> None:
    # Both functions are called in turn, and the fourth result is another one.
    results = iter([1, 1, 1, 2])
    calls = {"a": lambda: next(results), "b": lambda: next(results)}

    with pytest.raises(RuntimeError, match="b gives another result than a"):
        interleaved_calls(calls, 1, lambda result, expected: result == expected)


def test_a_first_call_without_a_result_is_noticed() -> None:
    calls = {"a": lambda: None, "b": lambda: 1}

    with pytest.raises(RuntimeError, match="b gives another result than a"):
        interleaved_calls(calls, 1, lambda result, expected: result == expected)
