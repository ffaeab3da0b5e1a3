"""The benchmarks run, on little, and time nothing that did no work."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
sys.path.insert(0, str(REPOSITORY))

from benchmarks import tokenize  # noqa: E402
from benchmarks.harness import Command, interleaved, interleaved_calls, run  # noqa: E402

APPEND = "import sys; open(sys.argv[1], 'a').write('x')"
ONCE = ["--rounds", "1"]
SMALL = {
    "views": ("--millions", "0.1"),
    "merge": ["--parts", "2", "--megabytes", "1", *ONCE],
    "growth": ["--shards", "3", "--documents", "3000", "--milliseconds", "0"],
    "exports": ["--megabytes", "1", "--linked", "1", "--length", "65", *ONCE],
    "read": ["--megabytes", "1", *ONCE],
    "pack": ["--megabytes", "16", "--documents", "1000", *ONCE],
    "mapping": [
        "--documents",
        "2000",
        "--samples",
        "2000",
        "--only",
        "sample",
        "permutations",
        *ONCE,
    ],
    "read_samples": [
        "--megatokens",
        "1",
        "--lengths",
        "100",
        "--samples",
        "64",
        "--sequence-length",
        "128",
        *ONCE,
    ],
}


def test_the_benchmark_of_tokenizing_runs(tmp_path: Path, tokenizer_file: Path) -> None:
    text = tmp_path / "a.jsonl"
    text.write_text(
        "".join(json.dumps({"text": f"document {n}"}) + "\n" for n in range(50)), encoding="utf-8"
    )
    printed = benchmark(
        "tokenize",
        "--tokenizer",
        str(tokenizer_file),
        "--input",
        str(text),
        "--engines",
        "numpy",
        *ONCE,
    )
    assert printed.count("the same bytes") == 2
    assert "| nanoset, numpy engine |" in printed


def test_the_benchmark_of_contamination_runs(tmp_path: Path, tokenizer_file: Path) -> None:
    texts = [
        f"question {n}: how many {'sheep' * n} and oxen graze between the {n} old mills?"
        for n in range(1, 9)
    ]
    for name, key in (("web", "text"), ("evals", "question")):
        lines = (
            json.dumps({key: text if key == "question" else f"{n} mills"})
            for n, text in enumerate(texts)
        )
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    words = ["--input", str(tmp_path / "web.jsonl"), "--evaluations", str(tmp_path / "evals.jsonl")]
    printed = benchmark("contamination", "--tokenizer", str(tokenizer_file), *words)
    assert "| as they are | 100.0% |" in printed
    assert "  0 of them hold a text" in printed


def test_an_engine_with_other_tokens_is_not_timed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(name: str, tokens: str) -> Command:
        out = tmp_path / name
        write = "import sys; open(sys.argv[1], 'w').write(sys.argv[2])"
        return Command(
            [sys.executable, "-c", write, f"{out}/tokens.bin", tokens], [out], prepare=out.mkdir
        )

    commands = {
        "first": command("first", "1 2"),
        "same": command("same", "1 2"),
        "other": command("other", "1 3"),
    }
    taken = [row for row, made in commands.items() if tokenize.gives_the_same(row, made, commands)]
    assert taken == ["first", "same"]
    assert "other: not timed, its bytes are OTHER than those of first" in capsys.readouterr().out


@pytest.mark.parametrize("name", SMALL)
def test_a_benchmark_runs(name: str) -> None:
    assert "| --- |" in benchmark(name, *SMALL[name])


def benchmark(name: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *words],
        cwd=REPOSITORY,
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_run_starts_from_nothing(tmp_path: Path) -> None:
    file = tmp_path / "made"
    interleaved({"append": Command([sys.executable, "-c", APPEND, str(file)], [file])}, rounds=3)
    assert file.read_text(encoding="utf-8") == "x"


def test_a_command_that_makes_nothing_is_not_timed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="did not make"):
        run(Command([sys.executable, "-c", "print('done')"], [tmp_path / "made"]))
    (tmp_path / "made").write_bytes(b"from an earlier run")
    with pytest.raises(RuntimeError, match="did not make"):
        run(Command([sys.executable, "-c", "print('already there')"], [tmp_path / "made"]))


def test_a_command_that_says_something_else_is_not_timed() -> None:
    run(Command([sys.executable, "-c", "print(3)"], prints="^3$"))
    with pytest.raises(RuntimeError, match="did not print"):
        run(Command([sys.executable, "-c", "print(30)"], prints="^3$"))


def test_a_command_needs_a_sign_of_its_work() -> None:
    with pytest.raises(ValueError, match="say what the command makes or prints"):
        Command([sys.executable, "-c", ""])


def test_a_call_with_another_result_is_not_timed() -> None:
    results = iter([1, 1, 1, 2])
    with pytest.raises(RuntimeError, match="b gives another result than a"):
        interleaved_calls(
            {"a": lambda: next(results), "b": lambda: next(results)},
            1,
            lambda one, other: one == other,
        )
