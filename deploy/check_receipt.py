"""Check the receipt of `nanoset purge`, without nanoset: python check_receipt.py ROOT RECEIPT.json

ROOT is the output root: a folder, or s3://bucket/prefix. The script needs fsspec and pyarrow, and
s3fs for a bucket. It checks that

- no version that was erased still exists;
- the versions that replace them have the sizes and sha256 that the receipt names, unless they were
  deleted later;
- no table of documents below the root contains a document with one of the erased ids.

It prints a line for each fault; the exit code is 1 if there is one.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import fsspec
import pyarrow.parquet as pq

BLOCK_BYTES = 1 << 20
ID_DIGEST_LENGTH = 32
"""Hexadecimal digits of the sha256 of an id that a receipt contains, instead of the id itself."""

Receipt = dict[str, Any]


def file_sha256(files: fsspec.AbstractFileSystem, path: str) -> str:
    """Return the sha256 of a file, in hexadecimal digits."""
    digest = hashlib.sha256()
    with files.open(path, "rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def erased_faults(files: fsspec.AbstractFileSystem, root: str, receipt: Receipt) -> Iterator[str]:
    """Yield a message for each erased version that still exists."""
    for version in receipt["erased"]:
        # The purge may have rebuilt a version under the digest of one that it erased.
        if version not in receipt["made"] and files.exists(f"{root}/{version}"):
            yield f"{version} still exists"


def made_faults(files: fsspec.AbstractFileSystem, root: str, receipt: Receipt) -> Iterator[str]:
    """Yield a message for each file of the new versions that differs from the receipt."""
    for version, facts_by_name in receipt["made"].items():
        # `nanoset gc` or a later purge may have deleted the version, with its manifest first.
        if not files.exists(f"{root}/{version}/manifest.json"):
            continue
        for name, facts in facts_by_name.items():
            fault = file_fault(files, f"{root}/{version}/{name}", facts)
            if fault is not None:
                yield f"{version}/{name} {fault}"


def file_fault(files: fsspec.AbstractFileSystem, path: str, facts: dict[str, Any]) -> str | None:
    """Return how a file differs from the receipt, or None.

    Args:
        files: The file system.
        path: Path of the file.
        facts: Its size in bytes, and its sha256, which is None if only the size is known.
    """
    if not files.exists(path):
        return "is missing"
    size = files.size(path)
    if size != facts["bytes"]:
        return f"has {size:,} bytes, not {facts['bytes']:,}"
    if facts["sha256"] is not None and file_sha256(files, path) != facts["sha256"]:
        return "has another sha256"
    return None


def document_faults(files: fsspec.AbstractFileSystem, root: str, receipt: Receipt) -> Iterator[str]:
    """Yield a message for each table that contains documents with erased ids."""
    erased_digests = set(receipt["ids"])
    for path in files.glob(f"{root}/shards/*/*/documents.parquet"):
        corpus = path.split("/")[-3]
        # A purge may be limited to some corpora; without a limit, the list is empty.
        if receipt["corpora"] and corpus not in receipt["corpora"]:
            continue
        n_documents = count_documents(files, path, erased_digests)
        if n_documents:
            yield f"{path} contains {n_documents:,} of the documents"


def count_documents(files: fsspec.AbstractFileSystem, path: str, erased_digests: set[str]) -> int:
    """Count the documents of a table whose ids have one of these digests."""
    n_documents = 0
    with files.open(path, "rb") as file:
        for batch in pq.ParquetFile(file).iter_batches(columns=["id"]):
            for document_id in batch.column("id").to_pylist():
                if document_id is None:
                    continue
                digest = hashlib.sha256(document_id.encode()).hexdigest()
                n_documents += digest[:ID_DIGEST_LENGTH] in erased_digests
    return n_documents


def main(location: str, receipt_file: str) -> int:
    """Check a receipt, print all faults and a summary, and return the exit code."""
    with fsspec.open(receipt_file, "rb") as file:
        receipt = json.load(file)
    files, path = fsspec.core.url_to_fs(location)
    root = path.rstrip("/")

    faults = [
        *erased_faults(files, root, receipt),
        *made_faults(files, root, receipt),
        *document_faults(files, root, receipt),
    ]
    for fault in faults:
        print(fault)

    result = f"{len(faults):,} faults" if faults else "as the receipt says"
    print(
        f"{len(receipt['documents']):,} documents, {len(receipt['erased']):,} versions erased, "
        f"{len(receipt['made']):,} made: {result}"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2]))
