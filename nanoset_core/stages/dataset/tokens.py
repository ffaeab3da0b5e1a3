"""The .bin of an output: open it, fetch it, copy it within a bucket, and write another one.

Every dataset has one, and so have some exports. In a bucket a .bin may be
far larger than this machine's disk, so it is read in ranges, copied within the bucket, and uploaded
while it is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nanoset_core.errors import MissingError
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import Hashed
from nanoset_core.outputs.manifest import FileFact, Manifest, Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.storage.store import PieceDigest, read_pieces

PIECES_ENDING = ".pieces"
"""Ending of the file that lists the sha256 of each piece of a .bin that was joined within a store."""


def bin_name(dataset: Manifest) -> str:
    """Return the name of a dataset's .bin."""
    return f"{dataset.facts['prefix']}.bin"


def open_dataset(dataset: Manifest, *, is_sampled: bool = False) -> MMapIndexedDataset:
    """Open a dataset; its tokens are downloaded as they are read.

    Args:
        dataset: Its manifest.
        is_sampled: Whether little of it will be read, so that downloads are small.
    """
    access = replace(dataset.access, is_sampled=is_sampled)
    return MMapIndexedDataset.below(access, readable_prefix(dataset))


def readable_prefix(dataset: Manifest) -> str:
    """Return the prefix of a dataset after downloading its .idx; a damaged copy of its .bin is
    replaced, too.
    """
    prefix = dataset.facts["prefix"]
    dataset.path(f"{prefix}.idx")
    copy = dataset.folder / bin_name(dataset)
    if copy.is_file() and copy.stat().st_size != dataset.files[copy.name].size:
        dataset.path(copy.name)
    return str(dataset.folder / prefix)


def has_room_for_tokens(*datasets: Manifest) -> bool:
    """Return whether copies of the tokens of datasets take no more than a quarter of
    `storage.scratch_mib`.
    """
    size = sum(dataset.files[bin_name(dataset)].size for dataset in datasets)
    capacities = [dataset.access.capacity for dataset in datasets]
    return all(capacity is None or size <= capacity // 4 for capacity in capacities)


def fetch_tokens(dataset: Manifest) -> None:
    """Download the tokens of a dataset in a bucket, if there is room: all are read now, and again
    later.
    """
    if has_room_for_tokens(dataset):
        dataset.path(bin_name(dataset))


def pieces_of_bin(dataset: Manifest) -> Sequence[PieceDigest]:
    """Return the digests of the pieces of a .bin that was joined within a store; none if it was
    written whole.

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
            "a file of an output is gone",
            where=dataset.url(list_name),
            remedy="run `nanoset build`",
        ) from error


def copy_tokens(
    outputs: OutputRoot, dataset: Manifest, recipe: Recipe, folder: Path, target_name: str
) -> dict[str, FileFact]:
    """Let a bucket copy the .bin of a dataset to a file of another output.

    Args:
        outputs: The root of both.
        dataset: The dataset.
        recipe: Recipe of the other output.
        folder: Where small files of that output are written; the list of pieces is one.
        target_name: Name of the copy.

    Returns:
        Name → what is known of the copy.

    Raises:
        MissingError: The .bin was deleted.
    """
    store = outputs.access.store
    source_name = bin_name(dataset)
    fact = dataset.files[source_name]
    outputs.invalidate(recipe)
    source = store.stat(outputs.access.name(dataset.folder / source_name))
    if source is None:
        raise MissingError(
            "the object is gone", where=dataset.url(source_name), remedy="run `nanoset build`"
        )
    target = f"{outputs.access.name(outputs.place(recipe))}/{target_name}"
    store.compose(target, [source], sha256=[fact.sha256])
    if fact.pieces is None:
        return {target_name: fact}
    list_name = f"{target_name}{PIECES_ENDING}"
    (folder / list_name).write_bytes(dataset.path(fact.pieces).read_bytes())
    return {target_name: replace(fact, pieces=list_name)}


def write_tokens(
    outputs: OutputRoot, recipe: Recipe, folder: Path, name: str, blocks: Hashed
) -> dict[str, str | FileFact]:
    """Write a .bin of an output; to a bucket it is uploaded as it is made, since it may not fit on
    this machine.

    Args:
        outputs: The root.
        recipe: Recipe of the output.
        folder: Where the output's files are written.
        name: Name of the .bin.
        blocks: Its bytes.

    Returns:
        Name → sha256 of the file, or what is known of the object.
    """
    if outputs.access.has_copies:
        outputs.invalidate(recipe)
        outputs.access.store.put_parts(
            f"{outputs.access.name(outputs.place(recipe))}/{name}", blocks
        )
        return {name: FileFact(blocks.size, blocks.sha256)}
    with (folder / name).open("xb") as file:
        file.writelines(blocks)
    return {name: blocks.sha256}
