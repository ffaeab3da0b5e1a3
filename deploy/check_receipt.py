"""Check the receipt of `nanoset purge` without nanoset: python check_receipt.py ROOT RECEIPT.json

ROOT is the folder of outputs, or s3://bucket/prefix (with s3fs). Needs fsspec and pyarrow. It looks
that

- nothing is left of what was erased;
- what was made instead has the sizes and sha256 that the receipt names, unless it was removed;
- no table of documents below the root has a document with one of the erased ids.

Exit code 1, and a line for each fault, where that is not so.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator

import fsspec
import pyarrow.parquet as pq


def sha256(files: fsspec.AbstractFileSystem, path: str) -> str:
    found = hashlib.sha256()
    with files.open(path, "rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def erased_faults(files: fsspec.AbstractFileSystem, root: str, receipt: dict) -> Iterator[str]:
    for version in receipt["erased"]:
        if version not in receipt["made"] and files.exists(f"{root}/{version}"):
            yield f"{version} is still there"


def made_faults(files: fsspec.AbstractFileSystem, root: str, receipt: dict) -> Iterator[str]:
    for version, facts in receipt["made"].items():
        if not files.exists(f"{root}/{version}/manifest.json"):
            continue  # by `nanoset gc` or a later purge
        for name, fact in facts.items():
            path = f"{root}/{version}/{name}"
            if not files.exists(path):
                yield f"{version}/{name} is gone"
            elif (size := files.size(path)) != fact["bytes"]:
                yield f"{version}/{name} has {size:,} bytes, not {fact['bytes']:,}"
            elif fact["sha256"] is not None and sha256(files, path) != fact["sha256"]:
                yield f"{version}/{name} has another sha256"


def document_faults(files: fsspec.AbstractFileSystem, root: str, receipt: dict) -> Iterator[str]:
    erased = {*receipt["ids"]}
    for path in files.glob(f"{root}/shards/*/*/documents.parquet"):
        corpus = path.split("/")[-3]
        if receipt["corpora"] and corpus not in receipt["corpora"]:
            continue
        with files.open(path, "rb") as file:
            for group in pq.ParquetFile(file).iter_batches(columns=["id"]):
                ids = (one for one in group.column("id").to_pylist() if one is not None)
                if hits := [
                    one for one in ids if hashlib.sha256(one.encode()).hexdigest()[:32] in erased
                ]:
                    yield f"{path} has {len(hits):,} of the documents"


def main(location: str, receipt_file: str) -> int:
    with fsspec.open(receipt_file, "rb") as file:
        receipt = json.load(file)
    files, root = fsspec.core.url_to_fs(location)
    checks = (erased_faults, made_faults, document_faults)
    faults = [fault for check in checks for fault in check(files, root.rstrip("/"), receipt)]
    print(*faults, sep="\n", end="\n" if faults else "")
    counts = f"{len(receipt['documents']):,} documents, {len(receipt['erased']):,} versions erased"
    said = f"{len(faults):,} faults" if faults else "as the receipt says"
    print(f"{counts}, {len(receipt['made']):,} made: {said}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
