"""Exports against `cp`, and against the formats' own writers where they are installed, in one
process, in turn.

python -m benchmarks.exports [--megabytes N] [--linked N] [--length N] [--rounds N]

Exports that share tokens: of `--linked` MB, beside `cp` of the .bin to the disk, and datatrove's
own writer of tokens. Exports in samples: each writes the same tokens from a .bin to a new folder;
the format's own reader then reads all of them back. Ours also hashes what it writes, and syncs it
to the disk.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import interleaved_calls, options, print_head, print_rows
from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder
from nanoset_core.stages.exports.standalone import ExportOptions, export_pair

FILE_BYTES = 1 << 26


def main() -> None:
    arguments = options(__doc__, megabytes=200, linked=1000, length=2049, rounds=5)
    with tempfile.TemporaryDirectory() as name:
        linked(Path(name), arguments.linked, arguments.rounds)
    with tempfile.TemporaryDirectory() as name:
        folder, length = Path(name), arguments.length
        prefix = prepare(folder, arguments.megabytes)
        for kind, (needs, theirs, read) in PEERS.items():
            calls: dict[str, Callable[[], Path]] = {
                "nanoset": lambda kind=kind: ours(prefix, folder, kind, length)
            }
            has_peer = importlib.util.find_spec(needs) is not None
            if has_peer:
                calls[f"{needs}'s own writer"] = lambda theirs=theirs: theirs(
                    prefix, folder / "theirs", length
                )
            is_same = same(
                np.fromfile(f"{prefix}.bin", np.uint16), length, read if has_peer else None
            )
            print_head(f"{kind}, {arguments.megabytes:,} MB in samples of {length:,} tokens")
            print_rows(interleaved_calls(calls, arguments.rounds, is_same))


def linked(folder: Path, megabytes: int, rounds: int) -> None:
    """Time exports that share the tokens of a pair."""
    prefix, copy = prepare(folder, megabytes), folder / "copy.bin"
    binary = Path(f"{prefix}.bin")

    def copied() -> Path:
        copy.unlink(missing_ok=True)
        subprocess.run(["sh", "-c", f"cp {binary} {copy} && sync {copy}"], check=True)
        return copy

    def exported(kind: str, ending: str) -> Path:
        export_pair(prefix, emptied(folder / kind), ExportOptions(format=kind))
        return folder / kind / f"pair{ending}"

    def datatroves_own() -> Path:
        from datatrove.pipeline.tokens.tokenizer import TokenizedFile

        file = TokenizedFile(str(emptied(folder / "theirs")), "pair.ds", save_final_metadata=True)
        tokens = np.memmap(binary, np.uint16, "r")
        for first in range(0, len(tokens), 1000):
            file.write(tokens[first : first + 1000].tolist(), None)
        file.close()
        return folder / "theirs" / "pair.ds"

    calls: dict[str, Callable[[], Path]] = {
        "cp + sync": copied,
        "datatrove": lambda: exported("datatrove", ".ds"),
        "olmo-core": lambda: exported("olmo-core", ".npy"),
    }
    if importlib.util.find_spec("datatrove") is not None:
        calls["datatrove's own writer, tokens given"] = datatroves_own
    print_head(f"shared tokens, {megabytes:,} MB")
    print_rows(
        interleaved_calls(
            calls, rounds, lambda one, other: one.stat().st_size == other.stat().st_size
        )
    )


def prepare(folder: Path, megabytes: int) -> Path:
    """Write a pair of documents of 1,000 tokens, the last of them an end token."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 50_000, megabytes * 500_000, dtype=np.uint16)
    tokens[999::1000] = 50_000
    with MMapIndexedDatasetBuilder(folder / "pair", np.uint16) as builder:
        for first in range(0, len(tokens), 1000):
            builder.add_document(tokens[first : first + 1000])
    return folder / "pair"


def emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def ours(prefix: Path, folder: Path, kind: str, length: int) -> Path:
    place = emptied(folder / "ours")
    export_pair(prefix, place, ExportOptions(format=kind, sequence_length=length))
    return place


def mds_writer(prefix: Path, folder: Path, length: int) -> Path:
    from streaming import MDSWriter

    tokens = np.memmap(f"{prefix}.bin", np.uint16, "r")
    with MDSWriter(
        columns={"tokens": "ndarray:uint16"}, out=str(emptied(folder)), size_limit=FILE_BYTES
    ) as writer:
        for first in range(0, len(tokens), length):
            writer.write({"tokens": tokens[first : first + length]})
    return folder


def litdata_writer(prefix: Path, folder: Path, length: int) -> Path:
    from litdata import TokensLoader
    from litdata.streaming.writer import BinaryWriter

    tokens = np.memmap(f"{prefix}.bin", np.uint16, "r")
    writer = BinaryWriter(str(emptied(folder)), chunk_bytes=FILE_BYTES, item_loader=TokensLoader())
    for number, first in enumerate(range(0, len(tokens), length)):
        writer[number] = np.asarray(tokens[first : first + length])
    writer.done()
    writer.merge()
    return folder


def read_mds(folder: Path, length: int) -> Any:
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    dataset = StreamingDataset(local=str(folder), batch_size=1, shuffle=False)
    return (dataset[number]["tokens"] for number in range(len(dataset)))


def read_litdata(folder: Path, length: int) -> Any:
    from litdata import StreamingDataset, TokensLoader

    return iter(
        StreamingDataset(str(folder), item_loader=TokensLoader(block_size=length), shuffle=False)
    )


PEERS = {
    "mds": ("streaming", mds_writer, read_mds),
    "litdata": ("litdata", litdata_writer, read_litdata),
}


def same(
    tokens: np.ndarray, length: int, read: Callable[[Path, int], Any] | None
) -> Callable[[Path, Path], bool]:
    """Whether the reader reads all tokens, or all whole samples; without it, whether there are as
    many bytes.
    """

    def is_same(_: Path, folder: Path) -> bool:
        if read is None:
            return sum(path.stat().st_size for path in folder.iterdir()) > tokens.nbytes
        found, count = hashlib.sha256(), 0
        for sample in read(folder, length):
            found.update(np.ascontiguousarray(sample).data)
            count += len(sample)
        is_whole = count > len(tokens) - length
        return is_whole and found.digest() == hashlib.sha256(tokens[:count].data).digest()

    return is_same


if __name__ == "__main__":
    main()
