"""Open, download, copy and write the .bin of an output.

Every dataset has a .bin, and some exports do. A .bin in a bucket may be far larger than the disk of
this machine. So it is read in ranges, copied within the bucket, and uploaded while it is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from nanoset_core.errors import MissingError
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import Hashed
from nanoset_core.outputs.manifest import FileFact, Manifest, Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.storage.store import PieceDigest, Stored, read_pieces

PIECES_ENDING = ".pieces"
"""Ending of the list of pieces of a .bin that a bucket joined: the size and sha256 of each."""


def bin_name(dataset: Manifest) -> str:
    """Return the name of a dataset's .bin."""
    return f"{dataset.facts['prefix']}.bin"


def idx_bytes(dataset: Manifest) -> int:
    """Return the size of a dataset's .idx, which has the lengths of its documents."""
    return dataset.files[f"{dataset.facts['prefix']}.idx"].size


def open_dataset(dataset: Manifest, *, is_sampled: bool = False) -> MMapIndexedDataset:
    """Open a dataset, whose tokens are downloaded as they are read.

    Args:
        dataset: Manifest of the dataset: its files, and facts such as the number of tokens.
        is_sampled: Whether little of it will be read, so that small blocks are downloaded.
    """
    access = replace(dataset.access, is_sampled=is_sampled)
    return MMapIndexedDataset.below(access, readable_prefix(dataset))


def readable_prefix(dataset: Manifest) -> str:
    """Prepare the files of a dataset for reading, and return their local path.

    If the dataset is in a bucket, its small index (.idx) is downloaded. The tokens (.bin) are
    downloaded later, as they are read, unless there is a complete copy of them on this machine.

    Args:
        dataset: Manifest of the dataset: its files, and facts such as the number of tokens.

    Returns:
        Path of the .bin and .idx without their endings, such as
        /data/datasets/web/3f9c…/web_text_document.
    """
    prefix = dataset.facts["prefix"]
    dataset.path(f"{prefix}.idx")  # downloads it, unless there is a copy of the right size
    _replace_incomplete_copy(dataset)
    return str(dataset.folder / prefix)


def _replace_incomplete_copy(dataset: Manifest) -> None:
    """Download the tokens of a dataset again if the copy on this machine has another size.

    A download that a crash has interrupted may leave such a copy, which would be read as it is. If
    there is no copy, nothing is done: then tokens are read from the bucket.

    Args:
        dataset: Manifest of the dataset.
    """
    bin_copy = dataset.folder / bin_name(dataset)
    expected_size = dataset.files[bin_copy.name].size
    if bin_copy.is_file() and bin_copy.stat().st_size != expected_size:
        dataset.path(bin_copy.name)  # downloads it


def has_room_for_tokens(*datasets: Manifest) -> bool:
    """Return whether datasets are so small that copies of their tokens may stay on this machine.

    They may take a quarter of the setting `storage.scratch_mib`, all together.

    Args:
        *datasets: Manifest of each dataset.
    """
    size = sum(dataset.files[bin_name(dataset)].size for dataset in datasets)
    return all(dataset.access.has_room_to_keep(size) for dataset in datasets)


def fetch_tokens(dataset: Manifest) -> None:
    """Download the tokens of a dataset in a bucket that are about to be read, if they are few.

    Otherwise they are later read in blocks from the bucket. A download is better: it is compared
    with the checksum in the manifest, so that no other output is made from damaged tokens. It also
    saves requests if the tokens are read again.

    Args:
        dataset: Manifest of the dataset. If it is on this machine, nothing is done.
    """
    # A view, which is a selection of a corpus's documents, uses the .bin of the corpus. Do not
    # download all of the corpus for a few documents.
    name = bin_name(dataset)
    token_bytes = dataset.facts["tokens"] * np.dtype(dataset.facts["dtype"]).itemsize
    uses_all_of_file = token_bytes >= dataset.files[name].size
    if uses_all_of_file and has_room_for_tokens(dataset):
        dataset.path(name)  # downloads the file, and compares it with the checksum


def open_source(outputs: OutputRoot, dataset: Manifest) -> MMapIndexedDataset:
    """Open a dataset from which another output is made, such as packed samples of its documents.

    All of its tokens will be read. If they are in a bucket, and are few, they are downloaded at
    once, and compared with their checksum. Otherwise they are read from the bucket in blocks.

    Args:
        outputs: The outputs, whose folder may have another path on this machine than on the one
            that has read the manifest.
        dataset: Manifest of the dataset.

    Raises:
        StorageError: A file has other bytes than when it was written.
    """
    # Copies of files go to the folder of the outputs on this machine.
    dataset = outputs.rebase(dataset)
    fetch_tokens(dataset)
    return open_dataset(dataset)


def pieces_of_bin(dataset: Manifest) -> Sequence[PieceDigest]:
    """Return the digests of the pieces that the token file (.bin) of a dataset consists of.

    In a bucket, a large .bin may have been joined by the bucket itself, from smaller objects, the
    pieces. Then nobody has computed a digest of the whole file. Instead, the digests of the pieces
    are kept in a file next to it, to check the tokens later.

    Args:
        dataset: Manifest of the dataset, which lists its files.

    Returns:
        Size and digest of each piece, in order; none if the .bin was written as a whole.

    Raises:
        MissingError: The list of pieces was deleted.
        FormatError: The list of pieces is damaged.
    """
    list_name = dataset.files[bin_name(dataset)].pieces
    if list_name is None:
        return ()
    try:
        return read_pieces(dataset.path(list_name))
    except FileNotFoundError as error:
        raise MissingError(
            "a file of an output was deleted",
            where=dataset.url(list_name),
            remedy="run `nanoset build`",
        ) from error


def copy_tokens(
    outputs: OutputRoot, dataset: Manifest, recipe: Recipe, folder: Path, target_name: str
) -> dict[str, FileFact]:
    """Copy the token file of a dataset to the folder of another output, within a bucket.

    The bucket copies the bytes itself, so that nothing is downloaded:

        datasets/web/77cd…/web_text_document.bin  →  exports/web-files/b113…/web.bin

    Args:
        outputs: The output root, which is in the bucket.
        dataset: Manifest of the dataset, which lists its files.
        recipe: Recipe of the other output, which decides its folder.
        folder: Local folder for small files of that output, which are uploaded later.
        target_name: Name of the copy.

    Returns:
        Name of the copy → its size, and its sha256 or the name of a list of its pieces.

    Raises:
        MissingError: The token file was deleted.
    """
    outputs.invalidate(recipe)  # an earlier version of the output is no longer complete
    token_file = dataset.files[bin_name(dataset)]
    target = f"{outputs.access.name(outputs.place(recipe))}/{target_name}"
    source = _stored_bin(outputs, dataset)
    outputs.access.store.compose(target, [source], sha256=[token_file.sha256])
    if token_file.pieces is None:
        return {target_name: token_file}

    list_name = _copy_list_of_pieces(dataset, token_file.pieces, folder, target_name)
    return {target_name: replace(token_file, pieces=list_name)}


def _copy_list_of_pieces(dataset: Manifest, source_name: str, folder: Path, bin_copy: str) -> str:
    """Copy the list of the pieces that a token file was joined from, for a copy of this file.

    The sha256 of a file that a bucket has joined is not known. The list has that of each piece.

    Args:
        dataset: Manifest of the dataset with the token file.
        source_name: Name of the list in the dataset.
        folder: Local folder for the copy.
        bin_copy: Name of the copy of the token file, such as web.bin.

    Returns:
        The name of the copied list: web.bin.pieces.
    """
    list_name = f"{bin_copy}{PIECES_ENDING}"
    (folder / list_name).write_bytes(dataset.path(source_name).read_bytes())
    return list_name


def _stored_bin(outputs: OutputRoot, dataset: Manifest) -> Stored:
    """Return what a bucket says about the token file of a dataset, such as its size and version.

    Args:
        outputs: The output root, which is in the bucket.
        dataset: Manifest of the dataset.

    Raises:
        MissingError: It was deleted.
    """
    name = bin_name(dataset)
    stored = outputs.access.store.stat(outputs.access.name(dataset.folder / name))
    if stored is None:
        raise MissingError(
            "the object was deleted",
            where=dataset.url(name),
            remedy="run `nanoset build`",
        )
    return stored


def write_tokens(
    outputs: OutputRoot, recipe: Recipe, folder: Path, name: str, blocks: Hashed
) -> dict[str, FileFact]:
    """Write the token file of an output, to a folder or directly into a bucket.

    Args:
        outputs: The output root, which is on this machine or in a bucket.
        recipe: Recipe of the output, which decides its folder.
        folder: Local folder for the file if outputs are on this machine.
        name: Name of the file, such as web.bin.
        blocks: Its bytes, in order.

    Returns:
        Name → size and sha256 of the file.
    """
    # The folder, or the bucket: the file may be larger than the disk of this machine, so it is
    # uploaded while it is computed.
    store, name_in_store = outputs.place_of_large_file(recipe, folder, name)
    store.put_parts(name_in_store, blocks)
    # While the blocks were read, `Hashed` has counted and hashed their bytes.
    return {name: FileFact(blocks.size, blocks.sha256)}
