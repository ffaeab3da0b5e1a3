"""`nanoset tokenize` with every engine, against the plain way, a compiled library alone, and peers'
tools.

python -m benchmarks.tokenize --tokenizer T/tokenizer.json … --input corpus/*.jsonl [--rounds 3]
[--engines numpy …]
    [--workers 1] [--eod TOKEN] [--peer 'NAME=command with {input} {prefix} {workers}' …]

Every row is a whole process; the rows of a tokenizer run in turn, each from an empty folder. The
first one is the
reference: a row that gives other bytes is named and not timed. A peer's command must leave
{prefix}_text_document.bin/.idx, or {prefix}.bin/.idx. `gigatoken, the library alone` is what
Megatron-LM's preprocess_data_fast.py does without its imports, where gigatoken is installed.
"""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.harness import Command, compare, options, run

ENGINES = ["tokenizers", "numpy", *(["gigatoken"] if importlib.util.find_spec("gigatoken") else [])]
ENDS = ("<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "</s>", "<eos>", "<EOS_TOKEN>")
"""Names that tokenizers give the end of a document."""
LOOK = """
import sys
from pathlib import Path
from nanoset_core.stages.shards.make import engine_choice
from nanoset_core.tokenizers.tokenizer import special_tokens, token_id
file = Path(sys.argv[1])
eod = sys.argv[2] or next(token for token in sys.argv[3:] if token in special_tokens(file))
print(engine_choice(file, "auto"), eod, token_id(file, eod, "--eod"), sep="\\n")
"""


def main() -> None:
    arguments = options(
        __doc__, tokenizer=[], eod="", input=[], engines=ENGINES, workers=1, rounds=3, peer=[""]
    )
    megabytes = sum(Path(file).stat().st_size for file in arguments.input) / 1e6
    for file in arguments.tokenizer:
        # In another process: what this one holds would count as the memory of each row.
        look = [sys.executable, "-c", LOOK, file, arguments.eod, *ENDS]
        choice, eod, ident = (
            subprocess.run(look, capture_output=True, check=True).stdout.decode().splitlines()
        )
        print(f"\n## {file}: auto takes {choice}\n")
        rows = dict(rows_of(file, eod, ident, arguments.engines))
        for peer in filter(None, arguments.peer):
            name, _, command = peer.partition("=")
            rows[name] = shlex.split(command)
        with tempfile.TemporaryDirectory() as folder:
            commands = commands_in(Path(folder), rows, arguments.input, arguments.workers)
            same = {
                row: command
                for row, command in commands.items()
                if gives_the_same(row, command, commands)
            }
            compare(
                same,
                arguments.rounds,
                megabytes,
                f"{megabytes:,.0f} MB of JSONL, {arguments.workers} worker(s)",
            )


def rows_of(file: str, eod: str, ident: str, engines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield (name, words with places between braces) of each row."""
    tool = [
        sys.executable,
        "-m",
        "nanoset_core.cli",
        "tokenize",
        "--tokenizer",
        file,
        "--append-eod",
        "--eod",
        eod,
    ]
    tool += [
        "--workers",
        "{workers}",
        "--output-prefix",
        "{prefix}",
        "--input",
        "{input}",
        "--engine",
    ]
    for engine in engines:
        yield f"nanoset, {engine} engine", [*tool, engine]
    alone = {"plain loop over tokenizers": "tokenizers"}
    alone |= {"gigatoken, the library alone": "gigatoken"} if "gigatoken" in engines else {}
    for name, library in alone.items():
        yield (
            name,
            [sys.executable, "-m", "benchmarks.alone", library, file, ident, "{prefix}", "{input}"],
        )


def commands_in(
    folder: Path, rows: Mapping[str, Sequence[str]], files: Sequence[str], workers: int
) -> dict[str, Command]:
    """Return name → command of each row, which makes the pair `tokens` in a folder of its own."""
    commands = {}
    for number, (name, words) in enumerate(rows.items()):
        out = folder / str(number)
        places = {"{prefix}": [str(out / "tokens")], "{input}": files, "{workers}": [str(workers)]}
        full = [part for word in words for part in places.get(word, [word])]
        # a finished pair would be left as it is
        commands[name] = Command(full, [out], prepare=out.mkdir)
    return commands


def gives_the_same(row: str, command: Command, commands: Mapping[str, Command]) -> bool:
    """Run a row once and compare its files with those of the first row, which stay on disk until
    rows are timed.
    """
    first = next(iter(commands))
    try:
        run(command)
    except RuntimeError as error:
        print(f"{row}: not timed, it failed: {str(error).splitlines()[-1]}")
        return False
    same = pair(command) == pair(commands[first])
    print(
        f"{row}: the same bytes"
        if same
        else f"{row}: not timed, its bytes are OTHER than those of {first}"
    )
    return same


def pair(command: Command) -> list[bytes]:
    """Read the .bin and .idx that a command has made."""
    return [
        path.read_bytes()
        for ending in ("bin", "idx")
        for path in command.makes[0].glob(f"tokens*.{ending}")
    ]


if __name__ == "__main__":
    main()
