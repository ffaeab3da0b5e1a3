"""Open a .bin/.idx pair that a user names by its path, and check that its files belong together.

If the .idx of another dataset is next to a .bin, its sequences may still be within the file of
tokens. They would be read without an error, but would be nonsense or only some of the tokens:

    .bin     10 tokens of 4 bytes     40 bytes
    .idx     10 tokens of 2 bytes     lists the bytes 0 to 20

Only views have a .bin with more tokens than their sequences: it is that of their corpus.
"""

from __future__ import annotations

from nanoset_core.errors import FormatError
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.layout import is_back_to_back, pair_files
from nanoset_core.outputs.manifest import MANIFEST, StoredManifest
from nanoset_core.outputs.receipts import parse_receipt
from nanoset_core.records.json_records import load
from nanoset_core.stages.views.names import FOLDER as VIEWS
from nanoset_core.storage.location import Location, store_of


def open_pair(prefix: Location, *, validate: bool = True) -> MMapIndexedDataset:
    """Open a pair that a user names, and check that its two files belong together.

    Args:
        prefix: Path or address of the two files without .bin and .idx.
        validate: Also check every entry of the .idx, in one pass.

    Raises:
        MissingError: A file is missing.
        FormatError: A file is damaged, or the .bin has tokens that the .idx does not list.
        StorageError: The bucket cannot be reached.
    """
    dataset = MMapIndexedDataset(str(prefix), validate=validate)
    check_all_listed(dataset, prefix)
    return dataset


def check_all_listed(dataset: MMapIndexedDataset, prefix: Location) -> None:
    """Check that the .bin of a pair ends where its last sequence ends.

    If a .bin has more tokens, the .idx next to it is probably that of another dataset. Only a view,
    which is a selection of a corpus's documents, may have more: it uses the .bin of the corpus.

    Args:
        dataset: The opened pair, or a copy of it on this machine.
        prefix: Path or address of the pair without .bin and .idx, as the user named it.

    Raises:
        FormatError: The .bin is longer than the .idx says.
    """
    listed_bytes = _end_of_last_sequence(dataset)
    if listed_bytes == dataset.bin_bytes or _is_view(dataset, prefix):
        return

    bin_file, idx_file = pair_files(prefix)
    raise FormatError(
        "the token file is longer than its index says",
        where=bin_file,
        found=f"{dataset.bin_bytes:,} bytes",
        expected=f"{listed_bytes:,} bytes, by {idx_file.name} (only a view's .bin may be longer)",
        remedy="copy or write both files again",
    )


def _end_of_last_sequence(dataset: MMapIndexedDataset) -> int:
    """Return the byte of the .bin at which the last sequence ends; 0 if there are none."""
    if not len(dataset):
        return 0
    last_bytes = int(dataset.sequence_lengths[-1]) * dataset.dtype.itemsize
    return int(dataset.sequence_pointers[-1]) + last_bytes


def _is_view(dataset: MMapIndexedDataset, prefix: Location) -> bool:
    """Return whether a pair is a view, which selects documents from the .bin of a corpus.

    For example, if the .bin has the documents 0, 1, 2 and 3:

        .idx of a view     recognised by
        0, 2               the gap between them in the .bin
        2, 0               their order
        0, 1               its manifest.json: this might be the .idx of a dataset of two documents

    Args:
        dataset: The opened pair, or a copy of it on this machine.
        prefix: Path or address of the pair without .bin and .idx.

    Raises:
        FormatError: The manifest of a view is damaged.
    """
    itemsize = dataset.dtype.itemsize
    if not is_back_to_back(dataset.sequence_lengths, dataset.sequence_pointers, itemsize):
        return True
    # Read the manifest only if necessary: the pair may be in a bucket.
    return view_manifest(prefix) is not None


def view_manifest(prefix: Location) -> StoredManifest | None:
    """Return the manifest of a view, or None if a pair is not a view.

    A view is a selection of a corpus's documents. When a project makes one, it stores a file
    manifest.json next to the pair:

        {"recipe": {"stage": "views", …}, "facts": {"prefix": "best-web", …}, …}

    Args:
        prefix: Path or address of the pair without .bin and .idx, such as …/best-web.

    Raises:
        FormatError: The manifest is damaged.
    """
    path = prefix.parent / MANIFEST
    data = store_of(path.parent).read(path.name)
    if data is None or not _is_manifest_of_view(data):
        return None
    manifest = load(StoredManifest, data, path)
    is_of_this_pair = manifest.facts.get("prefix") == prefix.name
    return manifest if is_of_this_pair else None


def _is_manifest_of_view(data: bytes) -> bool:
    """Return whether a file named manifest.json is that of a view: {"recipe": {"stage": "views"}}.

    Any program may have written a file of this name, with any content.

    Args:
        data: The content of the file.
    """
    receipt = parse_receipt(data)
    if receipt is None or "nanoset" not in receipt.content:
        return False
    recipe = receipt.content.get("recipe")
    return isinstance(recipe, dict) and recipe.get("stage") == VIEWS
