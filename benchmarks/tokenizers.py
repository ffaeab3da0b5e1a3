"""Every engine with every tokenizer: `nanoset tokenize` as a whole, and compiled peers; tokens are compared first.

python -m benchmarks.tokenizers --tokenizer llama3=llama3/tokenizer.json gemma3=gemma3/tokenizer.json ...
    --input corpus/*.jsonl [--eod llama3=<|end_of_text|>] [--quicktok llama3=llama3] [--workers 1] [--rounds 3]

Each row is a whole process; the rows run in turn, each from an empty folder. The first one is the reference: a row that
gives other tokens is named and not timed. `gigatoken, the library alone` is what Megatron-LM's preprocess_data_fast.py
does without its imports, where gigatoken is installed; --quicktok adds quicktok-v1, by its name of the tokenizer.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Command, interleaved, run, show
from benchmarks.tokenize import stem
from nanoset_core.tokenization.shards import engine_choice
from nanoset_core.tokenization.tokenizer import special_tokens, token_id

ENDS = ("<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "</s>", "<eos>", "<EOS_TOKEN>")
"""Names that tokenizers give the end of a document."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", nargs="+", required=True, help="NAME=tokenizer.json")
    parser.add_argument("--eod", nargs="+", default=[], help="NAME=TOKEN, where it is not one of the usual ones")
    parser.add_argument("--quicktok", nargs="+", default=[], help="NAME=the encoding's name in quicktok-v1")
    parser.add_argument("--input", nargs="+", required=True, help="JSONL files without bad lines")
    parser.add_argument("--engines", nargs="+", default=["tokenizers", "numpy", "gigatoken"])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    eods, encodings = named(arguments.eod), named(arguments.quicktok)
    if not importlib.util.find_spec("gigatoken"):
        arguments.engines = [engine for engine in arguments.engines if engine != "gigatoken"]
    megabytes = sum(Path(file).stat().st_size for file in arguments.input) / 1e6
    for name, file in named(arguments.tokenizer).items():
        print(f"\n## {name}: {megabytes:,.0f} MB of JSONL, {arguments.workers} worker(s), {arguments.rounds} rounds\n")
        print(f"auto takes {engine_choice(Path(file), 'auto')}\n")
        eod = eods.get(name) or next(token for token in ENDS if token in special_tokens(Path(file)))
        with tempfile.TemporaryDirectory() as folder:
            commands = dict(rows(Path(folder), Path(file), eod, encodings.get(name), arguments))
            same = {row: command for row, command in commands.items() if gives_the_same(row, command, commands)}
            show(interleaved(same, arguments.rounds), megabytes)


def named(words: list[str]) -> dict[str, str]:
    """NAME=VALUE as a dict."""
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def rows(
    folder: Path, file: Path, eod: str, encoding: str | None, arguments: argparse.Namespace
) -> Iterator[tuple[str, Command]]:
    """(name, command) of each row; each makes the pair `tokens` in a folder of its own."""

    def command(number: int, words: list[str]) -> Command:
        out = folder / str(number)
        places = {"{prefix}": str(out / "tokens")}
        return Command([places.get(word, word) for word in words], [out], prepare=out.mkdir)

    tool = [
        sys.executable,
        "-m",
        "nanoset_core.cli",
        "tokenize",
        "--tokenizer",
        str(file),
        "--append-eod",
        "--eod",
        eod,
    ]
    tool += ["--workers", str(arguments.workers), "--output-prefix", "{prefix}"]
    for number, engine in enumerate(arguments.engines):
        yield f"nanoset, {engine}", command(number, [*tool, "--engine", engine, "--input", *arguments.input])
    alone = [sys.executable, "-m", "benchmarks.compiled_tokenize"]
    end = [str(token_id(file, eod, "--eod")), "{prefix}", *arguments.input]
    if "gigatoken" in arguments.engines:
        yield "gigatoken, the library alone", command(101, [*alone, "gigatoken", str(file), *end])
    if encoding:
        yield "quicktok, the library alone", command(102, [*alone, "quicktok", encoding, *end])


def gives_the_same(row: str, command: Command, commands: dict[str, Command]) -> bool:
    """Run a row once and compare its tokens with those of the first row, which stay on disk until rows are timed."""
    first = next(iter(commands.values()))
    try:
        run(command)
    except RuntimeError as error:
        print(f"{row}: not timed, it failed: {str(error).splitlines()[-1]}")
        return False
    (ours,), (theirs,) = command.makes, first.makes
    same = Path(f"{stem(ours / 'tokens')}.bin").read_bytes() == Path(f"{stem(theirs / 'tokens')}.bin").read_bytes()
    if not same:
        print(f"{row}: not timed, its tokens are OTHER than those of {next(iter(commands))}")
    return same


if __name__ == "__main__":
    main()
