"""Compare reading documents from files of each kind with a loop of json.loads.

python -m benchmarks.read [--megabytes M]
"""

from __future__ import annotations

import csv
import gzip
import json
import random
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks.harness import Command, compare, options, run_in_new_process

KINDS = ("plain", "gzip", "zstd", "parquet", "csv", "txt")
"""Kinds of files; each has a folder of this name."""
WORDS_PER_DOCUMENT = 800
"""About 4 KB of text."""

READ = """
import sys
from pathlib import Path
from nanoset_core.text.inventory.pieces import SourceRange
from nanoset_core.text.inventory.take import take_inventory
from nanoset_core.text.documents import read_documents
folder = Path(sys.argv[1])
source = SourceRange(take_inventory(folder, "corpus").pieces)
print(sum(len(batch.texts) for batch in read_documents(folder, source)))
"""

LOOP = """
import json, sys
from pathlib import Path
count = 0
for path in sorted(Path(sys.argv[1]).glob("*.jsonl")):
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            count += isinstance(json.loads(line)["text"], str)
print(count)
"""


def main() -> None:
    """Write the same documents in files of each kind, and time reading them."""
    arguments = options(__doc__, megabytes=400, rounds=3)
    with tempfile.TemporaryDirectory() as temporary:
        folders = {kind: Path(temporary, kind) for kind in KINDS}
        run_in_new_process(write_files, folders, arguments.megabytes * 1_000_000)
        with (folders["plain"] / "a.jsonl").open("rb") as lines:
            n_documents = sum(1 for _ in lines)
        print(f"{n_documents:,} documents")

        # Each command prints how many documents it has read.
        loop = [sys.executable, "-c", LOOP, str(folders["plain"])]
        commands = {"json.loads in a loop, plain": Command(loop, prints=f"^{n_documents}$")}
        for kind, folder in folders.items():
            read = [sys.executable, "-c", READ, str(folder)]
            name = f"nanoset, {kind} (hashed twice, parsed)"
            commands[name] = Command(read, prints=f"^{n_documents}$")
        compare(commands, arguments.rounds, arguments.megabytes)


def write_files(folder_by_kind: Mapping[str, Path], size: int) -> None:
    """Write the same documents of about 4 KB in a file of each kind; in a .txt file for each.

    Args:
        folder_by_kind: Kind → folder, which is created.
        size: Bytes of all documents as JSON lines, about.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq
    import zstandard

    # Make up documents of random words.
    words = [f"w{number:x}" for number in range(5000)]
    rng = random.Random(0)
    rows: list[dict[str, str]] = []
    n_bytes = 0
    while n_bytes < size:
        text = " ".join(rng.choices(words, k=WORDS_PER_DOCUMENT))
        rows.append({"id": str(len(rows)), "text": text})
        n_bytes += len(text) + len('{"id": "00000", "text": ""}\n')

    for folder in folder_by_kind.values():
        folder.mkdir()
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    (folder_by_kind["plain"] / "a.jsonl").write_bytes(lines)
    (folder_by_kind["gzip"] / "a.jsonl.gz").write_bytes(gzip.compress(lines, 6, mtime=0))
    (folder_by_kind["zstd"] / "a.jsonl.zst").write_bytes(zstandard.compress(lines))
    parquet_file = folder_by_kind["parquet"] / "a.parquet"
    pq.write_table(pa.Table.from_pylist(rows), parquet_file, compression="zstd")
    with (folder_by_kind["csv"] / "a.csv").open("w", encoding="utf-8", newline="") as csv_file:
        writer = csv.DictWriter(csv_file, ["id", "text"])
        writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        (folder_by_kind["txt"] / f"{row['id']}.txt").write_text(row["text"], encoding="utf-8")


if __name__ == "__main__":
    main()
