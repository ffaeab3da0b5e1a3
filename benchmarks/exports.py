"""Time exports against `cp` and against the formats' own writers.

    python -m benchmarks.exports [--megabytes N] [--linked N] [--length N] [--rounds N]

All run in turn in this process. There are two kinds of exports:

- Exports that share the tokens of a pair with it (datatrove's `.ds`, OLMo-core's `.npy`), of
  `--linked` megabytes. They are compared with `cp` of the .bin, and with datatrove's writer.
- Exports in samples of `--length` tokens (MDS, litdata), of `--megabytes`. They are compared with
  the writer of the format. The reader of the format then reads all tokens back.

Writers that are not installed are left out. Unlike them, our exports also hash what they write,
and wait until it is on the disk.
"""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import interleaved_calls, options, print_head, print_rows
from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder
from nanoset_core.stages.exports.standalone import ExportOptions, export_pair

CHUNK_BYTES = 1 << 26
"""Size of the files that the formats' own writers make."""
DOCUMENT_TOKENS = 1000
"""Tokens of each document, including the end token."""
TOKENS_PER_MEGABYTE = 500_000


def main() -> None:
    """Compare both kinds of exports."""
    arguments = options(__doc__, megabytes=200, linked=1000, length=2049, rounds=5)
    with tempfile.TemporaryDirectory() as name:
        compare_shared(Path(name), arguments.linked, arguments.rounds)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prefix = write_pair(folder, arguments.megabytes)
        for peer in PEERS:
            print_head(
                f"{peer.format}, {arguments.megabytes:,} MB in samples of {arguments.length:,} tokens"
            )
            compare_in_samples(peer, prefix, folder, arguments.length, arguments.rounds)


def write_pair(folder: Path, megabytes: int) -> Path:
    """Write a pair of random tokens; return its prefix.

    Args:
        folder: Receives the pair.
        megabytes: Size of the tokens.
    """
    rng = np.random.default_rng(0)
    n_tokens = megabytes * TOKENS_PER_MEGABYTE
    tokens = rng.integers(0, 50_000, n_tokens, dtype=np.uint16)
    tokens[DOCUMENT_TOKENS - 1 :: DOCUMENT_TOKENS] = 50_000  # the end token of each document
    prefix = folder / "pair"
    with MMapIndexedDatasetBuilder(prefix, np.uint16) as builder:
        for start in range(0, n_tokens, DOCUMENT_TOKENS):
            builder.add_document(tokens[start : start + DOCUMENT_TOKENS])
    return prefix


def emptied(folder: Path) -> Path:
    """Remove what a folder contains, or make it; return the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def compare_shared(folder: Path, megabytes: int, rounds: int) -> None:
    """Time exports that share the tokens of a pair with it.

    Args:
        folder: Receives the pair and the exports.
        megabytes: Size of the tokens.
        rounds: Number of rounds.
    """
    prefix = write_pair(folder, megabytes)
    calls: dict[str, Callable[[], Path]] = {
        "cp + sync": partial(copy_tokens, prefix, folder / "copy.bin"),
        "datatrove": partial(export_shared, prefix, folder / "datatrove", "datatrove", ".ds"),
        "olmo-core": partial(export_shared, prefix, folder / "olmo-core", "olmo-core", ".npy"),
    }
    if importlib.util.find_spec("datatrove") is not None:
        calls["datatrove's own writer, tokens given"] = partial(
            write_with_datatrove, prefix, folder / "theirs"
        )
    print_head(f"shared tokens, {megabytes:,} MB")
    print_rows(interleaved_calls(calls, rounds, have_equal_size))


def have_equal_size(first: Path, second: Path) -> bool:
    """Return whether two files have the same size."""
    return first.stat().st_size == second.stat().st_size


def copy_tokens(prefix: Path, copy: Path) -> Path:
    """Copy the .bin of a pair to the disk; return the copy."""
    copy.unlink(missing_ok=True)
    subprocess.run(["sh", "-c", f"cp {prefix}.bin {copy} && sync {copy}"], check=True)
    return copy


def export_shared(prefix: Path, folder: Path, format_name: str, ending: str) -> Path:
    """Export a pair; return the file that has its tokens.

    Args:
        prefix: Prefix of the pair.
        folder: Receives the export.
        format_name: Name of the format for `nanoset export`.
        ending: Ending of the file with the tokens.
    """
    export_pair(prefix, emptied(folder), ExportOptions(format=format_name))
    return folder / f"{prefix.name}{ending}"


def write_with_datatrove(prefix: Path, folder: Path) -> Path:
    """Write the tokens of a pair with datatrove's own writer; return the file."""
    from datatrove.pipeline.tokens.tokenizer import TokenizedFile

    name = f"{prefix.name}.ds"
    file = TokenizedFile(str(emptied(folder)), name, save_final_metadata=True)
    tokens = np.memmap(f"{prefix}.bin", np.uint16, "r")
    for start in range(0, len(tokens), DOCUMENT_TOKENS):
        file.write(tokens[start : start + DOCUMENT_TOKENS].tolist(), None)
    file.close()
    return folder / name


@dataclass(frozen=True)
class Peer:
    """A format in samples, with its own writer and reader."""

    format: str
    """Name of the format for `nanoset export`."""
    package: str
    """Python package that has the writer and the reader."""
    write: Callable[[Path, Path, int], Path]
    """Writes the tokens of a pair: (prefix, folder, tokens of a sample) → folder."""
    read: Callable[[Path, int], Iterable[Any]]
    """Returns the tokens of each sample: (folder, tokens of a sample) → arrays."""


def compare_in_samples(
    peer: Peer, prefix: Path, folder: Path, sequence_length: int, rounds: int
) -> None:
    """Time our export in samples against the writer of the format.

    Args:
        peer: The format.
        prefix: Prefix of the pair that is exported.
        folder: Receives the exports.
        sequence_length: Tokens of a sample.
        rounds: Number of rounds.
    """
    tokens = np.fromfile(f"{prefix}.bin", np.uint16)
    export = partial(export_in_samples, prefix, folder / "ours", peer.format, sequence_length)
    calls: dict[str, Callable[[], Path]] = {"nanoset": export}
    if importlib.util.find_spec(peer.package) is None:
        costs = interleaved_calls(calls, rounds, partial(has_all_bytes, tokens))
    else:
        calls[f"{peer.package}'s own writer"] = partial(
            peer.write, prefix, folder / "theirs", sequence_length
        )
        costs = interleaved_calls(
            calls, rounds, partial(reads_all_tokens, peer, tokens, sequence_length)
        )
    print_rows(costs)


def export_in_samples(prefix: Path, folder: Path, format_name: str, sequence_length: int) -> Path:
    """Export a pair in samples; return the folder."""
    settings = ExportOptions(format=format_name, sequence_length=sequence_length)
    export_pair(prefix, emptied(folder), settings)
    return folder


def has_all_bytes(tokens: np.ndarray, _first_folder: Path, folder: Path) -> bool:
    """Return whether the files of an export are larger than the tokens that it must contain."""
    return sum(path.stat().st_size for path in folder.iterdir()) > tokens.nbytes


def reads_all_tokens(
    peer: Peer, tokens: np.ndarray, sequence_length: int, _first_folder: Path, folder: Path
) -> bool:
    """Return whether the format's own reader reads all tokens, or all whole samples.

    Args:
        peer: The format.
        tokens: The tokens that were exported, shape (n_tokens,).
        sequence_length: Tokens of a sample.
        folder: The export.
    """
    digest = hashlib.sha256()
    n_read = 0
    for sample in peer.read(folder, sequence_length):
        digest.update(np.ascontiguousarray(sample).data)
        n_read += len(sample)
    has_all_samples = n_read > len(tokens) - sequence_length
    return has_all_samples and digest.digest() == hashlib.sha256(tokens[:n_read].data).digest()


def write_mds(prefix: Path, folder: Path, sequence_length: int) -> Path:
    """Write the tokens of a pair with MosaicML's writer; return the folder."""
    from streaming import MDSWriter

    tokens = np.memmap(f"{prefix}.bin", np.uint16, "r")
    columns = {"tokens": "ndarray:uint16"}
    with MDSWriter(columns=columns, out=str(emptied(folder)), size_limit=CHUNK_BYTES) as writer:
        for start in range(0, len(tokens), sequence_length):
            writer.write({"tokens": tokens[start : start + sequence_length]})
    return folder


def read_mds(folder: Path, sequence_length: int) -> Iterable[Any]:
    """Yield the tokens of each sample as MosaicML's reader returns them."""
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    dataset = StreamingDataset(local=str(folder), batch_size=1, shuffle=False)
    for number in range(len(dataset)):
        yield dataset[number]["tokens"]


def write_litdata(prefix: Path, folder: Path, sequence_length: int) -> Path:
    """Write the tokens of a pair with litdata's writer; return the folder."""
    from litdata import TokensLoader
    from litdata.streaming.writer import BinaryWriter

    tokens = np.memmap(f"{prefix}.bin", np.uint16, "r")
    writer = BinaryWriter(str(emptied(folder)), chunk_bytes=CHUNK_BYTES, item_loader=TokensLoader())
    for number, start in enumerate(range(0, len(tokens), sequence_length)):
        writer[number] = np.asarray(tokens[start : start + sequence_length])
    writer.done()
    writer.merge()
    return folder


def read_litdata(folder: Path, sequence_length: int) -> Iterable[Any]:
    """Yield the tokens of each sample as litdata's reader returns them."""
    from litdata import StreamingDataset, TokensLoader

    loader = TokensLoader(block_size=sequence_length)
    yield from StreamingDataset(str(folder), item_loader=loader, shuffle=False)


PEERS = (
    Peer("mds", "streaming", write_mds, read_mds),
    Peer("litdata", "litdata", write_litdata, read_litdata),
)


if __name__ == "__main__":
    main()
