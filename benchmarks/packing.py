"""Measure best-fit packing, from an .idx to the place of each document in the packs.

    python -m benchmarks.packing [--millions 1] [--lengths 2048 8192]
        [--folder FOLDER] [--olmo PYTHON]

The lengths of documents are made up, like those of web text: lognormal with a median of 600 tokens
and a sigma of 1.2. `--olmo` names a Python with OLMo-core, whose `InstancePacker` packs the same
pieces in memory; the number of packs must be the same. Nothing but the .idx is written: packing
writes as fast as tokens are copied.
"""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.harness import options, run_in_new_process
from nanoset_core.formats.indexed.layout import HEADER, MAGIC, VERSION, dtype_code, read_idx
from nanoset_core.sampling.packing.assignment import assign, document_lengths
from nanoset_core.sampling.packing.plan import LengthHistogram, PieceRule, plan_packs

CHUNK = 1 << 22
"""Documents whose lengths are written at once."""
COLUMNS = (
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
)
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
"""Packs the pieces of a file in memory, and prints the packs, what it took in seconds and of CPU, and
the peak memory in GB.
"""


def main() -> None:
    arguments = options(
        __doc__, millions=1.0, lengths=[2048, 8192, 32768, 131072], folder="", olmo=""
    )
    n_documents = int(arguments.millions * 1_000_000)
    with tempfile.TemporaryDirectory(dir=arguments.folder or None) as temporary:
        folder = Path(temporary)
        idx = folder / "web.idx"
        write_idx(idx, n_documents)
        print(f"{n_documents:,} documents; the columns of steps are in seconds")
        print(f"| {' | '.join(COLUMNS)} |\n{'| ---: ' * len(COLUMNS)}|")
        for length in arguments.lengths:
            # In a process of its own, whose peak is that of this length only.
            run_in_new_process(pack, idx, length)
            if arguments.olmo:
                pack_by_olmo(idx, length, arguments.olmo, folder)


def write_idx(path: Path, n_documents: int) -> None:
    """Write an .idx whose pointers are a hole in the file, since packing does not read them."""
    generator = np.random.default_rng(0)
    with path.open("xb") as file:
        file.write(HEADER.pack(MAGIC, VERSION, dtype_code(np.int32), n_documents, n_documents + 1))

        for begin in range(0, n_documents, CHUNK):
            n_lengths = min(CHUNK, n_documents - begin)
            lengths = generator.lognormal(np.log(600), 1.2, n_lengths)
            file.write(np.maximum(lengths, 1).astype("<i4").data)

        pointer_bytes = 8 * n_documents
        file.seek(pointer_bytes, os.SEEK_CUR)

        n_indices = n_documents + 1
        for begin in range(0, n_indices, CHUNK):
            end = min(begin + CHUNK, n_indices)
            file.write(np.arange(begin, end, dtype="<i8").data)


def pack(path: Path, length: int) -> None:
    """Plan the packs of an .idx, fill them with documents, and print a row of what each step took.

    Args:
        path: The .idx.
        length: Tokens of a pack.
    """
    cpu_before = time.process_time()
    times = [time.perf_counter()]
    rule = PieceRule(length)

    index = read_idx(path, validate=False)
    lengths = document_lengths(index.sequence_lengths, index.document_indices)
    times.append(time.perf_counter())

    histogram = LengthHistogram.of(lengths)
    times.append(time.perf_counter())

    plan = plan_packs(histogram.pieces(rule), length)
    times.append(time.perf_counter())

    n_packs = 0
    n_tokens = 0
    for filled in assign(lengths, rule, plan, 1234):
        n_packs += len(filled.bounds) - 1
        n_tokens += int(filled.pieces.lengths.sum())
    times.append(time.perf_counter())
    cpu = time.process_time() - cpu_before

    if (n_packs, n_tokens) != (plan.packs, histogram.tokens):
        raise RuntimeError("the packs do not have all tokens")
    cells = [
        f"{length:,}",
        f"{n_packs:,}",
        f"{1 - n_tokens / (n_packs * length):.5%}",
        *(f"{end - begin:.2f}" for begin, end in pairwise(times)),
        f"{times[-1] - times[0]:.1f}",
        f"{cpu:.1f}",
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.1f} GB",
    ]
    print(f"| {' | '.join(cells)} |", flush=True)


def pack_by_olmo(path: Path, length: int, python: str, folder: Path) -> None:
    """Let OLMo-core pack the same pieces, and print its row.

    Args:
        path: The .idx; each of its sequences is a document.
        length: Tokens of a pack.
        python: A Python with OLMo-core.
        folder: Folder for the file of pieces.

    Raises:
        RuntimeError: OLMo-core makes another number of packs.
    """
    rule = PieceRule(length)
    lengths = read_idx(path, validate=False).sequence_lengths
    remainders = rule.remainders(lengths)
    full_pieces = np.full(int(rule.full_pieces(lengths).sum()), length)
    pieces = folder / "pieces.npy"
    np.save(pieces, np.concatenate([full_pieces, remainders[remainders > 0]]))

    words = [python, "-c", OLMO, str(pieces), str(length)]
    output = subprocess.run(
        words, check=True, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    ).stdout
    packs, wall, cpu, peak = output.split()

    n_packs = plan_packs(LengthHistogram.of(lengths).pieces(rule), length).packs
    if int(packs) != n_packs:
        raise RuntimeError(f"OLMo-core makes {packs} packs, and this project {n_packs}")
    costs = f"{float(wall):.1f} | {float(cpu):.1f} | {float(peak):.1f} GB"
    print(f"| {length:,} | {n_packs:,} | OLMo-core: | | | | | {costs} |", flush=True)


if __name__ == "__main__":
    main()
