"""Every engine with every tokenizer: `nanoset tokenize` as a whole, and compiled peers; tokens are compared first.

python -m benchmarks.tokenizers --tokenizer llama3=llama3/tokenizer.json gemma3=gemma3/tokenizer.json ...
    --input corpus/*.jsonl [--eod llama3=<|end_of_text|>] [--quicktok llama3=llama3] [--workers 1] [--rounds 3]

Each row is a whole process; the rows run in turn, each from an empty folder. The first one is the reference: a row that
gives other tokens is named and not timed. `gigatoken, the library alone` is what Megatron-LM's preprocess_data_fast.py
does without its imports, where gigatoken is installed; --quicktok adds quicktok-v1, by its name of the tokenizer.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Command, interleaved, options, run, show
from benchmarks.tokenize import ALONE, ENGINES, commands_in, nanoset, stem

ENDS = ("<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "</s>", "<eos>", "<EOS_TOKEN>")
"""Names that tokenizers give the end of a document."""


def main() -> None:
    arguments = options(__doc__, tokenizer=[], eod=[""], quicktok=[""], input=[], engines=ENGINES, workers=1, rounds=3)
    eods, encodings = named(arguments.eod), named(arguments.quicktok)
    megabytes = sum(Path(file).stat().st_size for file in arguments.input) / 1e6
    for name, file in named(arguments.tokenizer).items():
        print(f"\n## {name}: {megabytes:,.0f} MB of JSONL, {arguments.workers} worker(s), {arguments.rounds} rounds\n")
        choice, eod, ident = look_at(file, eods.get(name))
        print(f"auto takes {choice}\n")
        with tempfile.TemporaryDirectory() as folder:
            rows = dict(rows_of(file, eod, ident, encodings.get(name), arguments.engines))
            commands = commands_in(Path(folder), rows, arguments.input, arguments.workers)
            same = {row: command for row, command in commands.items() if gives_the_same(row, command, commands)}
            show(interleaved(same, arguments.rounds), megabytes)


def named(words: list[str]) -> dict[str, str]:
    """NAME=VALUE as a dict."""
    return dict(word.split("=", 1) for word in words if word)


LOOK = """
import sys
from pathlib import Path
from nanoset_core.tokenization.shards import engine_choice
from nanoset_core.tokenization.tokenizer import special_tokens, token_id
file = Path(sys.argv[1])
eod = sys.argv[2] or next(token for token in sys.argv[3:] if token in special_tokens(file))
print(engine_choice(file, "auto"), eod, token_id(file, eod, "--eod"), sep="\\n")
"""


def look_at(file: str, eod: str | None) -> list[str]:
    """Engine that `auto` takes, EOD, its id; told by another process, since what this one holds counts as its rows'."""
    done = subprocess.run([sys.executable, "-c", LOOK, file, eod or "", *ENDS], capture_output=True, check=True)
    return done.stdout.decode().splitlines()


def rows_of(
    file: str, eod: str, ident: str, encoding: str | None, engines: list[str]
) -> Iterator[tuple[str, list[str]]]:
    """(name, words) of each row."""
    for engine in engines:
        yield f"nanoset, {engine}", nanoset(engine, file, eod)
    if "gigatoken" in engines:
        yield "gigatoken, the library alone", [*ALONE, "gigatoken", file, ident, "{prefix}", "{input}"]
    if encoding:
        yield "quicktok, the library alone", [*ALONE, "quicktok", encoding, ident, "{prefix}", "{input}"]


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
