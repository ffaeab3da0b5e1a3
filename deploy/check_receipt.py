"""Check the receipt of `nanoset purge`, without nanoset: python check_receipt.py ROOT RECEIPT.json

ROOT is the output root: a folder, or s3://bucket/prefix. The script needs fsspec and pyarrow, and
s3fs for a bucket. It checks that

- ROOT is the output root that the receipt is about;
- no version that was erased still exists;
- the versions that replace them have the sizes and sha256 that the receipt names, unless they were
  deleted later;
- no table of documents below the root contains a document with one of the erased ids.

It prints a line for each fault, and at the end how many versions and tables it has checked. The
exit code is 0 if there is no fault, and 1 otherwise, also if ROOT or the receipt is a wrong one.
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
RECEIPT_KEYS = {"corpora", "documents", "erased", "ids", "made", "nanoset_purge"}


def read_receipt(location: str) -> Receipt:
    """Read a receipt, which may be in a bucket, or end the script if the file is none."""
    try:
        with fsspec.open(location, "rb") as file:
            receipt = parse_receipt(file.read())
    except FileNotFoundError:
        sys.exit(f"{location}: there is no such receipt")
    if receipt is None:
        sys.exit(f"{location}: this is no receipt of `nanoset purge`")
    return receipt


def parse_receipt(content: bytes) -> Receipt | None:
    """Return the receipt in a file with this content; None if it is not a complete receipt."""
    try:
        receipt = json.loads(content)
    except ValueError:  # it is no JSON
        return None
    if not isinstance(receipt, dict) or not receipt.keys() >= RECEIPT_KEYS:
        return None
    return receipt


def is_output_root(files: fsspec.AbstractFileSystem, root: str, receipt: Receipt) -> bool:
    """Return whether a folder is the output root that a receipt is about.

    In a wrong folder, no erased document is found either, which must not look like a proof.

    Args:
        files: The file system.
        root: Path of the folder.
        receipt: The receipt.
    """
    # A backup from before the purge has no receipt, but the erased versions. A copy may be without
    # the receipt, too.
    for version in [*receipt["erased"], *receipt["made"]]:
        if files.exists(f"{root}/{version}"):
            return True

    # All of these versions may have been deleted. The receipt stays. The file to check may be a
    # copy with another name, so look for the content.
    for path in files.glob(f"{root}/purge_receipts/*.json"):
        stored_receipt = parse_receipt(files.cat_file(path))
        if stored_receipt is not None and is_same_purge(stored_receipt, receipt):
            return True
    return False


def is_same_purge(stored_receipt: Receipt, receipt: Receipt) -> bool:
    """Return whether a receipt that is stored in an output root is another one, or a later state.

    A purge of the same ids in another project has erased other versions.

    Args:
        stored_receipt: The receipt in the output root.
        receipt: The other one.
    """
    if stored_receipt["ids"] != receipt["ids"] or stored_receipt["corpora"] != receipt["corpora"]:
        return False
    # If a purge is repeated, it adds what it erases to the receipt.
    return bool(stored_receipt["erased"].keys() >= receipt["erased"].keys())


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


def existing_versions(files: fsspec.AbstractFileSystem, root: str, receipt: Receipt) -> list[str]:
    """Return the versions that the purge made, and that still exist."""
    # `nanoset gc` or a later purge may have deleted a version, with its manifest first.
    return [
        version for version in receipt["made"] if files.exists(f"{root}/{version}/manifest.json")
    ]


def made_faults(
    files: fsspec.AbstractFileSystem, root: str, receipt: Receipt, versions: list[str]
) -> Iterator[str]:
    """Yield a message for each file of some new versions that differs from the receipt."""
    for version in versions:
        for name, facts in receipt["made"][version].items():
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


def tables_of_documents(files: fsspec.AbstractFileSystem, root: str, receipt: Receipt) -> list[str]:
    """Return the paths of all tables of documents in the corpora that the purge searched."""
    paths: list[str] = files.glob(f"{root}/shards/*/*/documents.parquet")
    # A purge may be limited to some corpora; without a limit, the list is empty.
    if not receipt["corpora"]:
        return paths
    return [path for path in paths if path.split("/")[-3] in receipt["corpora"]]


def document_faults(
    files: fsspec.AbstractFileSystem, tables: list[str], receipt: Receipt
) -> Iterator[str]:
    """Yield a message for each table that contains documents with erased ids."""
    erased_digests = set(receipt["ids"])
    for path in tables:
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


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, such as "1 table" or "2,000 tables"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def main(location: str, receipt_file: str) -> int:
    """Check a receipt, print all faults and a summary, and return the exit code.

    Args:
        location: The output root.
        receipt_file: The receipt.

    Raises:
        SystemExit: Nothing could be checked, since one of the two is wrong.
    """
    receipt = read_receipt(receipt_file)
    files, path = fsspec.core.url_to_fs(location)
    root = path.rstrip("/")
    if not is_output_root(files, root, receipt):
        sys.exit(
            f"{location}: this is not the output root of this purge, so nothing was checked\n"
            "  found: neither the receipt in purge_receipts, nor a version that it lists\n"
            "  expected: the folder or bucket that `root` names in nanoset.yaml"
        )

    versions = existing_versions(files, root, receipt)
    tables = tables_of_documents(files, root, receipt)
    faults = [
        *erased_faults(files, root, receipt),
        *made_faults(files, root, receipt, versions),
        *document_faults(files, tables, receipt),
    ]
    for fault in faults:
        print(fault)

    print(
        f"{counted(len(receipt['documents']), 'document')}, "
        f"{counted(len(receipt['erased']), 'version')} erased, {len(receipt['made']):,} made"
    )
    result = counted(len(faults), "fault") if faults else "as the receipt says"
    print(
        f"checked {len(versions):,} of the {counted(len(receipt['made']), 'new version')} and "
        f"{counted(len(tables), 'table')} of documents: {result}"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2]))
