"""Compare `nanoset tokenize` with the plain way, a compiled library alone, and other programs.

    python -m benchmarks.tokenize --tokenizer T/tokenizer.json … --input corpus/*.jsonl
        [--rounds 3] [--engines numpy …] [--workers 1] [--eod TOKEN]
        [--peer 'NAME=command with {input} {prefix} {workers}' …]

Every row is a whole process. The rows of a tokenizer run in turn, each from an empty folder. The
first row is the reference: a row that gives other bytes is named and not timed. A peer's command
must write {prefix}_text_document.bin/.idx, or {prefix}.bin/.idx. `gigatoken, the library alone` is
what Megatron-LM's preprocess_data_fast.py does without its imports, if gigatoken is installed.
"""

from __future__ import annotations

import importlib.util
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.harness import Command, compare, options, run

ENGINES = ["tokenizers", "numpy"]
if importlib.util.find_spec("gigatoken"):
    ENGINES.append("gigatoken")
END_TOKENS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "<｜end▁of▁sentence｜>",
    "</s>",
    "<eos>",
    "<EOS_TOKEN>",
)
"""Names that tokenizers give to the end of a document."""
DESCRIBE_TOKENIZER = """
import sys
from pathlib import Path
from nanoset_core.stages.shards.one_shard import engine_choice
from nanoset_core.tokenizers.tokenizer import special_tokens, token_id
file = Path(sys.argv[1])
eod = sys.argv[2] or next(token for token in sys.argv[3:] if token in special_tokens(file))
print(engine_choice(file, "auto"), eod, token_id(file, eod, "--eod"), sep="\\n")
"""


def main() -> None:
    """Print a table of the rows of each tokenizer."""
    arguments = options(
        __doc__, tokenizer=[], eod="", input=[], engines=ENGINES, workers=1, rounds=3, peer=[""]
    )
    megabytes = sum(Path(file).stat().st_size for file in arguments.input) / 1e6
    for file in arguments.tokenizer:
        tokenizer = describe_tokenizer(file, arguments.eod)
        print(f"\n## {file}: auto takes {tokenizer.engine}\n")
        words_by_row = words_of_rows(tokenizer, arguments.engines)
        for peer in arguments.peer:
            if peer:
                name, _, command = peer.partition("=")
                words_by_row[name] = shlex.split(command)

        with tempfile.TemporaryDirectory() as folder:
            commands = commands_in(Path(folder), words_by_row, arguments.input, arguments.workers)
            commands_to_time: dict[str, Command] = {}
            for row, command in commands.items():
                if gives_the_same(row, command, commands):
                    commands_to_time[row] = command
            title = f"{megabytes:,.0f} MB of JSONL, {arguments.workers} worker(s)"
            compare(commands_to_time, arguments.rounds, megabytes, title)


class TokenizerDescription(NamedTuple):
    """What the commands need to know of a tokenizer."""

    file: str
    engine: str
    """The engine that `--engine auto` chooses."""
    eod: str
    """The end-of-document token."""
    eod_id: str
    """Its id."""


def describe_tokenizer(file: str, eod: str) -> TokenizerDescription:
    """Load a tokenizer, in another process: its memory would count as that of each row.

    Args:
        file: The tokenizer.
        eod: Its end-of-document token; empty: the first one of `END_TOKENS` that it has.
    """
    words = [sys.executable, "-c", DESCRIBE_TOKENIZER, file, eod, *END_TOKENS]
    output = subprocess.run(words, capture_output=True, check=True).stdout.decode()
    engine, eod, eod_id = output.splitlines()
    return TokenizerDescription(file, engine, eod, eod_id)


def words_of_rows(tokenizer: TokenizerDescription, engines: Sequence[str]) -> dict[str, list[str]]:
    """Return the commands to compare.

    Args:
        tokenizer: The tokenizer.
        engines: The engines of `nanoset tokenize` to use.

    Returns:
        Name of each row → the words of its command, with places such as {input} for files.
    """
    words_by_row: dict[str, list[str]] = {}
    for engine in engines:
        words_by_row[f"nanoset, {engine} engine"] = [
            sys.executable,
            "-m",
            "nanoset_core.cli",
            "tokenize",
            "--tokenizer",
            tokenizer.file,
            "--append-eod",
            "--eod",
            tokenizer.eod,
            "--workers",
            "{workers}",
            "--output-prefix",
            "{prefix}",
            "--input",
            "{input}",
            "--engine",
            engine,
        ]

    library_by_row = {"plain loop over tokenizers": "tokenizers"}
    if "gigatoken" in engines:
        library_by_row["gigatoken, the library alone"] = "gigatoken"
    for name, library in library_by_row.items():
        words_by_row[name] = [
            sys.executable,
            "-m",
            "benchmarks.alone",
            library,
            tokenizer.file,
            tokenizer.eod_id,
            "{prefix}",
            "{input}",
        ]
    return words_by_row


def commands_in(
    folder: Path,
    words_by_row: Mapping[str, Sequence[str]],
    files: Sequence[str],
    workers: int,
) -> dict[str, Command]:
    """Return the command of each row, which writes the pair `tokens` into a separate folder.

    Args:
        folder: Contains the folders of all rows.
        words_by_row: Name of each row → the words of its command, with places.
        files: Replace the place {input}.
        workers: Replaces the place {workers}.
    """
    commands: dict[str, Command] = {}
    for number, (name, words) in enumerate(words_by_row.items()):
        output_folder = folder / str(number)
        words_by_place = {
            "{prefix}": [str(output_folder / "tokens")],
            "{input}": files,
            "{workers}": [str(workers)],
        }
        full_words: list[str] = []
        for word in words:
            full_words.extend(words_by_place.get(word, [word]))
        # The folder is emptied before each run: a complete pair would not be written again.
        commands[name] = Command(full_words, [output_folder], prepare=output_folder.mkdir)
    return commands


def gives_the_same(row: str, command: Command, commands: Mapping[str, Command]) -> bool:
    """Run the command of a row, print whether it gives the bytes of the first row, and return it.

    Args:
        row: Name of the row.
        command: Its command.
        commands: Name → command of all rows. The files of the first one exist.
    """
    first_row = next(iter(commands))
    try:
        run(command)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1]
        print(f"{row}: not timed, it failed: {reason}")
        return False
    is_same = pair_of(command) == pair_of(commands[first_row])
    if is_same:
        print(f"{row}: the same bytes")
    else:
        print(f"{row}: not timed, its bytes are OTHER than those of {first_row}")
    return is_same


def pair_of(command: Command) -> list[bytes]:
    """Return the content of the .bin and .idx that a command has written."""
    [folder] = command.makes
    contents: list[bytes] = []
    for ending in ("bin", "idx"):
        for path in folder.glob(f"tokens*.{ending}"):
            contents.append(path.read_bytes())
    return contents


if __name__ == "__main__":
    main()
