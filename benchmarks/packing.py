"""Measure best-fit packing, from an .idx to the place of each document in the packs.

    python -m benchmarks.packing [--millions 1] [--lengths 2048 8192]
        [--folder FOLDER] [--olmo PYTHON]

The lengths of documents are made up, like those of web text: lognormal with a median of 600 tokens
and a sigma of 1.2. `--olmo` names a Python with OLMo-core, whose `InstancePacker` packs the same
pieces in memory; the number of packs must be the same. Nothing but the .idx is written: packing
writes as fast as tokens are copied.
"""

from __future__ import annotations

import multiprocessing
import resource
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.harness import options
from nanoset_core.formats.indexed.layout import HEADER, MAGIC, VERSION, dtype_code, read_idx
from nanoset_core.sampling.packing.assignment import assign, document_lengths
from nanoset_core.sampling.packing.plan import LengthHistogram, PieceRule, plan_packs

CHUNK = 1 << 22
OLMO = """
import sys, time, resource
import numpy as np
from olmo_core.data.utils import InstancePacker
lengths, length = np.load(sys.argv[1]), int(sys.argv[2])
ends = np.cumsum(lengths)
before, started = time.process_time(), time.perf_counter()
instances, _, _ = InstancePacker(length).pack_documents(np.stack([ends - lengths, ends], axis=1).astype(np.uint64))
wall, cpu = time.perf_counter() - started, time.process_time() - before
print(len(instances), wall, cpu, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)
"""


def write_idx(path: Path, documents: int) -> None:
    """Write an .idx whose pointers are a hole in the file: packing does not read them."""
    generator = np.random.default_rng(0)
    with path.open("xb") as file:
        file.write(HEADER.pack(MAGIC, VERSION, dtype_code(np.int32), documents, documents + 1))
        for begin in range(0, documents, CHUNK):
            some = generator.lognormal(np.log(600), 1.2, min(CHUNK, documents - begin))
            file.write(np.maximum(some, 1).astype("<i4").data)
        file.seek(8 * documents, 1)
        for begin in range(0, documents + 1, CHUNK):
            file.write(np.arange(begin, min(begin + CHUNK, documents + 1), dtype="<i8").data)


def pack(path: Path, length: int) -> None:
    """Plan and assign, and print what it took."""
    started, before = time.perf_counter(), time.process_time()
    index = read_idx(path, validate=False)
    lengths, cut = (
        document_lengths(index.sequence_lengths, index.document_indices),
        PieceRule(length),
    )
    opened = time.perf_counter()
    histogram = LengthHistogram.of(lengths)
    counted = time.perf_counter()
    plan = plan_packs(histogram.pieces(cut), length)
    planned = time.perf_counter()
    packs = pieces = tokens = 0
    for window in assign(lengths, cut, plan, 1234):
        packs += len(window.bounds) - 1
        pieces += len(window.pieces.documents)
        tokens += int(window.pieces.lengths.sum())
    assert (packs, tokens) == (plan.packs, histogram.tokens)
    done, cpu = time.perf_counter(), time.process_time() - before
    padding, peak = (
        1 - tokens / (packs * length),
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    )
    steps = (
        f"{opened - started:.1f} | {counted - opened:.2f} | {planned - counted:.2f} | "
        f"{done - planned:.1f}"
    )
    print(
        f"| {length:,} | {packs:,} | {padding:.5%} | {steps} | {done - started:.1f} | {cpu:.1f} | "
        f"{peak:.1f} GB |",
        flush=True,
    )


def compare(path: Path, length: int, python: str, folder: Path) -> None:
    """Give OLMo-core the same pieces."""
    cut, lengths = PieceRule(length), read_idx(path, validate=False).sequence_lengths
    rest = cut.rest(lengths)
    pieces = np.concatenate([np.full(int(cut.whole(lengths).sum()), length), rest[rest > 0]])
    np.save(folder / "pieces.npy", pieces)
    words = [python, "-c", OLMO, str(folder / "pieces.npy"), str(length)]
    packs, wall, cpu, peak = (
        subprocess.run(words, check=True, capture_output=True).stdout.decode().split()
    )
    assert int(packs) == plan_packs(LengthHistogram.of(lengths).pieces(cut), length).packs
    took = f"{float(wall):.1f} | {float(cpu):.1f} | {float(peak):.1f} GB"
    print(f"| {length:,} | {int(packs):,} | OLMo-core: | | | | | {took} |", flush=True)


def main() -> None:
    arguments = options(
        __doc__, millions=1.0, lengths=[2048, 8192, 32768, 131072], folder="", olmo=""
    )
    documents = int(arguments.millions * 1_000_000)
    with tempfile.TemporaryDirectory(dir=arguments.folder or None) as temporary:
        folder, path = Path(temporary), Path(temporary, "web.idx")
        write_idx(path, documents)
        print(
            f"{documents:,} documents; seconds until the .idx is opened, lengths are counted, and "
            "so on"
        )
        columns = [
            "length",
            "packs",
            "padding",
            "opened",
            "counted",
            "planned",
            "assigned",
            "all",
            "CPU",
            "peak",
        ]
        print(f"| {' | '.join(columns)} |\n{'| ---: ' * len(columns)}|")
        for length in arguments.lengths:
            process = multiprocessing.get_context("spawn").Process(target=pack, args=(path, length))
            process.start()
            process.join()
            if arguments.olmo:
                compare(path, length, arguments.olmo, folder)


if __name__ == "__main__":
    main()
