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
from nanoset_core.outputs.receipts import read_command_receipt
from nanoset_core.records.json_records import load
from nanoset_core.stages.views.settings import STAGE as VIEWS
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
    """Check that the .bin of a pair ends where its last sequence ends, unless it is a view.

    Sequences that are not stored back to back are those of a view. A view of the first documents of
    a corpus is recognised by its manifest, which is only read if the .bin is too long.

    Args:
        dataset: The opened pair, or a copy of it on this machine.
        prefix: Path or address of the pair without .bin and .idx, as the user named it.

    Raises:
        FormatError: The .bin is longer than the .idx says.
    """
    listed_bytes = _end_of_last_sequence(dataset)
    if listed_bytes == dataset.bin_bytes:
        return
    itemsize = dataset.dtype.itemsize
    if not is_back_to_back(dataset.sequence_lengths, dataset.sequence_pointers, itemsize):
        return
    if view_manifest(prefix) is not None:
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


def view_manifest(prefix: Location) -> StoredManifest | None:
    """Return what a project has recorded about a pair if it is a view, or None if it is not.

    Args:
        prefix: Path or address of the pair without .bin and .idx.

    Raises:
        FormatError: The manifest is damaged.
    """
    path = prefix.parent / MANIFEST
    # Any program may have written a file of this name, so look first whether it is a manifest.
    content = read_command_receipt(path) or {}
    recipe = content.get("recipe")
    if not isinstance(recipe, dict) or recipe.get("stage") != VIEWS:
        return None
    data = store_of(path.parent).read(path.name)
    manifest = load(StoredManifest, data or b"", path)
    is_of_this_pair = manifest.facts.get("prefix") == prefix.name
    return manifest if is_of_this_pair else None
