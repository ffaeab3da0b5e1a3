"""`nanoset tokenize` against the plain way and, where they are at hand, the peers' tools; all outputs must be equal.

python -m benchmarks.tokenize --tokenizer T/tokenizer.json --input corpus/*.jsonl [--rounds 3] [--engines numpy …]
    [--peer 'NAME=command with {input} {prefix} {workers}' …]

Every row is a whole process, the rows run in turn, each run in an empty folder. A peer's command must leave
{prefix}_text_document.bin/.idx, or {prefix}.bin/.idx.
"""

from __future__ import annotations

import importlib.util
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.harness import Command, interleaved, options, show

ENGINES = ["tokenizers", "numpy", *(["gigatoken"] if importlib.util.find_spec("gigatoken") else [])]
ALONE = [sys.executable, "-m", "benchmarks.alone"]


def main() -> None:
    arguments = options(
        __doc__, tokenizer=(str,), eod="<|endoftext|>", input=[], engines=ENGINES, workers=1, rounds=3, peer=[""]
    )
    rows = {
        f"nanoset, {engine} engine": nanoset(engine, arguments.tokenizer, arguments.eod) for engine in arguments.engines
    }
    rows["plain loop over tokenizers"] = [
        *ALONE,
        "tokenizers",
        arguments.tokenizer,
        arguments.eod,
        "{prefix}",
        "{input}",
    ]
    for peer in filter(None, arguments.peer):
        name, _, command = peer.partition("=")
        rows[name] = shlex.split(command)
    with tempfile.TemporaryDirectory() as folder:
        commands = commands_in(Path(folder), rows, arguments.input, arguments.workers)
        costs = interleaved(commands, arguments.rounds)
        first = None
        for name, command in commands.items():
            made = stem(command.makes[0] / "tokens")
            content = Path(f"{made}.bin").read_bytes(), Path(f"{made}.idx").read_bytes()
            first = first or content
            print(f"{name}: {'same bytes' if content == first else 'OTHER BYTES'}")
    megabytes = sum(Path(file).stat().st_size for file in arguments.input) / 1e6
    print(f"\n{megabytes:,.0f} MB of JSONL, {arguments.workers} worker(s), {arguments.rounds} rounds\n")
    show(costs, megabytes)


def nanoset(engine: str, tokenizer: str, eod: str) -> list[str]:
    """The command's words, with places between braces."""
    tool = [
        sys.executable,
        "-m",
        "nanoset_core.cli",
        "tokenize",
        "--tokenizer",
        tokenizer,
        "--append-eod",
        "--eod",
        eod,
    ]
    return [*tool, "--engine", engine, "--workers", "{workers}", "--output-prefix", "{prefix}", "--input", "{input}"]


def commands_in(
    folder: Path, rows: Mapping[str, Sequence[str]], files: Sequence[str], workers: int
) -> dict[str, Command]:
    """Name → command of each row, which makes the pair `tokens` in a folder of its own."""
    commands = {}
    for number, (name, words) in enumerate(rows.items()):
        out = folder / str(number)
        places = {"{prefix}": [str(out / "tokens")], "{input}": files, "{workers}": [str(workers)]}
        full = [part for word in words for part in places.get(word, [word])]
        commands[name] = Command(full, [out], prepare=out.mkdir)  # a finished pair would be left as it is
    return commands


def stem(prefix: Path) -> Path:
    """The prefix of the pair that a command has made. Raises FileNotFoundError where it made none."""
    for found in (prefix.with_name(prefix.name + "_text_document"), prefix):
        if Path(f"{found}.bin").exists():
            return found
    raise FileNotFoundError(f"{prefix}*.bin was not made")


if __name__ == "__main__":
    main()
