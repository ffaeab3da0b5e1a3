"""`nanoset tokenize` against the plain way and, where they are at hand, the peers' tools; all outputs must be equal.

python -m benchmarks.tokenize --tokenizer T/tokenizer.json --input corpus/*.jsonl [--rounds 3]
    [--peer 'NAME=command with {input} {prefix} {workers}']

Every row is a whole process, the rows run in turn, each run in an empty folder. A peer's command must leave
{prefix}_text_document.bin/.idx, or {prefix}.bin/.idx.
"""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import Command, interleaved, show


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--eod", default="<|endoftext|>")
    parser.add_argument("--input", nargs="+", required=True, help="JSONL files without bad lines")
    engines = ["numpy", "tokenizers", *(["gigatoken"] if importlib.util.find_spec("gigatoken") else [])]
    parser.add_argument("--engines", nargs="+", default=engines)
    parser.add_argument("--plain", action=argparse.BooleanOptionalAction, default=True, help="run the plain loop too")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", action="append", default=[], help="NAME=command")
    arguments = parser.parse_args()
    megabytes = sum(Path(file).stat().st_size for file in arguments.input) / 1e6
    with tempfile.TemporaryDirectory() as folder:
        prefixes: dict[str, Path] = {}
        commands: dict[str, Command] = {}

        def add(name: str, command: list[str]) -> None:
            prefixes[name] = Path(folder, f"out-{len(prefixes)}", "tokens")
            places = {
                "{prefix}": [str(prefixes[name])],
                "{input}": arguments.input,
                "{workers}": [str(arguments.workers)],
            }
            words = [word for part in command for word in places.get(part, [part])]
            out = prefixes[name].parent
            commands[name] = Command(words, [out], prepare=out.mkdir)  # a finished pair would be left as it is

        tool = [sys.executable, "-m", "nanoset_core.cli", "tokenize", "--tokenizer", arguments.tokenizer]
        tool += ["--append-eod", "--eod", arguments.eod, "--workers", "{workers}", "--output-prefix", "{prefix}"]
        for engine in arguments.engines:
            add(f"nanoset, {engine} engine", [*tool, "--engine", engine, "--input", "{input}"])
        plain_loop = [sys.executable, "-m", "benchmarks.reference_tokenize", arguments.tokenizer, arguments.eod]
        if arguments.plain:
            add("plain loop over tokenizers", [*plain_loop, "{prefix}", "{input}"])
        for peer in arguments.peer:
            name, _, command = peer.partition("=")
            add(name, shlex.split(command))

        costs = interleaved(commands, arguments.rounds)
        compare(prefixes)
        print(f"\n{megabytes:,.0f} MB of JSONL, {arguments.workers} worker(s), {arguments.rounds} rounds\n")
        show(costs, megabytes)


def stem(prefix: Path) -> Path:
    """The prefix of the pair that a command has made. Raises FileNotFoundError where it made none."""
    for found in (prefix.with_name(prefix.name + "_text_document"), prefix):
        if Path(f"{found}.bin").exists():
            return found
    raise FileNotFoundError(f"{prefix}*.bin was not made")


def compare(prefixes: dict[str, Path]) -> None:
    """Say whose bytes are equal."""
    first = None
    for name, prefix in prefixes.items():
        content = Path(f"{stem(prefix)}.bin").read_bytes(), Path(f"{stem(prefix)}.idx").read_bytes()
        first = first or content
        print(f"{name}: {'same bytes' if content == first else 'OTHER BYTES'}")


if __name__ == "__main__":
    main()
