"""Reading documents: our reader on plain, gzip, zstd (and parquet) files, against a loop of
json.loads.

python -m benchmarks.read [--megabytes M]
"""

from __future__ import annotations

import gzip
import json
import random
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import Command, apart, compare, options

KINDS = ("plain", "gzip", "zstd", "parquet")

READ = """
import sys
from pathlib import Path
from nanoset_core.text.pieces import SourceRange
from nanoset_core.text.inventories import take_inventory
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
    arguments = options(__doc__, megabytes=400, rounds=3)
    with tempfile.TemporaryDirectory() as folder:
        folders = {kind: Path(folder, kind) for kind in KINDS}
        apart(write, folders, arguments.megabytes * 1_000_000)
        with (folders["plain"] / "a.jsonl").open("rb") as lines:
            count = sum(1 for _ in lines)
        print(f"{count:,} documents")
        loop = [sys.executable, "-c", LOOP, str(folders["plain"])]
        commands = {"json.loads in a loop, plain": Command(loop, prints=f"^{count}$")}
        for kind, place in folders.items():
            read = Command([sys.executable, "-c", READ, str(place)], prints=f"^{count}$")
            commands[f"nanoset, {kind} (hashed twice, parsed)"] = read
        compare(commands, arguments.rounds, arguments.megabytes)


def write(folders: dict[str, Path], size: int) -> None:
    """The same documents of about 4 KB in each form."""
    import zstandard

    words = [f"w{number:x}" for number in range(5000)]
    rng = random.Random(0)
    rows: list[dict[str, str]] = []
    written = 0
    while written < size:
        rows.append({"id": str(len(rows)), "text": " ".join(rng.choices(words, k=800))})
        written += len(rows[-1]["text"]) + 30
    data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    for place in folders.values():
        place.mkdir()
    (folders["plain"] / "a.jsonl").write_bytes(data)
    (folders["gzip"] / "a.jsonl.gz").write_bytes(gzip.compress(data, 6, mtime=0))
    (folders["zstd"] / "a.jsonl.zst").write_bytes(zstandard.compress(data))
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows), folders["parquet"] / "a.parquet", compression="zstd")


if __name__ == "__main__":
    main()
