"""Merge the shards of a corpus into one .bin/.idx pair, as preprocess_data.py writes it.

The result has the same bytes as if Megatron-LM's `preprocess_data.py` had tokenized all files in
one run. On a disk the tokens are copied. A bucket joins those of a large corpus itself, without a
download.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TypeVar

import numpy as np

from nanoset_core.errors import MissingError
from nanoset_core.execution.progress import RunningWork
from nanoset_core.formats.indexed.builder import MergeInput, merge_inputs
from nanoset_core.formats.indexed.composing import StoredPair, write_merged_idx
from nanoset_core.outputs.manifest import FileFact, Manifest, Recipe
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.tokens import PIECES_ENDING
from nanoset_core.stages.per_shard import SHARDS
from nanoset_core.stages.shards.one_shard import BIN, TOKENS
from nanoset_core.stages.shards.shard_sets import current_shards, each_shard
from nanoset_core.stages.shards.shard_tokens import altered, copy_tokens_back
from nanoset_core.storage.atomic import sha256_file
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.storage.store import (
    RANGE_BYTES,
    PieceCheck,
    PieceDigest,
    Store,
    Stored,
    pieces_text,
)
from nanoset_core.storage.stores.local import LocalStore

T = TypeVar("T")
_PROGRESS = "indexed_dataset"
"""What progress bars call this work."""
_IDX = f"{TOKENS}.idx"
"""Name of a shard's file with the lengths of its sequences."""
_SMALL_BYTES = RANGE_BYTES
"""Up to this size, the .bin of a dataset in a bucket is made on this machine, and then uploaded.

The build reads all of it soon after, to check it and to show the first documents.
"""


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Everything that the merge of a corpus's shards needs."""

    project: Project
    tokenized: Manifest
    """Manifest of the set of shards."""
    recipe: Recipe
    """Recipe of the dataset."""
    prefix: str
    """File name of the dataset, without an ending."""

    @property
    def target(self) -> Path:
        """Folder of the dataset once it is complete."""
        return self.project.outputs.place(self.recipe)

    @property
    def dtype(self) -> np.dtype:
        """Type of the tokens."""
        dtype: np.dtype = np.dtype(self.recipe.options["dtype"])
        return dtype

    @property
    def bin_bytes(self) -> int:
        """Size of the .bin of the dataset."""
        n_tokens: int = self.tokenized.facts["tokens"]
        return n_tokens * self.dtype.itemsize

    def work(self) -> RunningWork:
        """Return the work of writing the dataset, which counts the bytes of the .bin."""
        return self.project.progress.work(_PROGRESS, self.tokenized.name, self.bin_bytes)


def merge_on_disk(task: MergeTask, folder: Path) -> dict[str, str | FileFact]:
    """Merge the token files of a corpus into a single one, with an index of its sequences.

    A corpus is tokenized in parts, the shards, by several processes. Trainers want one pair of
    files:

        shard 0: tokens.bin, tokens.idx
        shard 1: tokens.bin, tokens.idx    →    web_text_document.bin, web_text_document.idx
        shard 2: tokens.bin, tokens.idx

    The .bin has the tokens of all shards, and the .idx says where each sequence begins.

    Args:
        task: The shards, and the dataset that they become.
        folder: Folder that the two files are written to.

    Returns:
        Name of each file → sha256.

    Raises:
        MissingError: A shard was deleted.
        StorageError: The tokens of a shard have changed since they were written.
    """
    # To save space, tokens of a shard may be stored only in an earlier version of the dataset. If
    # the new one replaces it, they are first copied to the folder of the shard.
    shards = _move_tokens_out_of_target(task)
    return _merge_files(task, shards, folder)


def _merge_files(
    task: MergeTask, shards: Sequence[Manifest], folder: Path
) -> dict[str, str | FileFact]:
    """Merge the files of shards, which are on this machine's disk.

    Args:
        task: The dataset that the shards become.
        shards: Their manifests, in document order.
        folder: Folder that the .bin and the .idx are written to.

    Returns:
        Name of each file → sha256.

    Raises:
        StorageError: The tokens of a shard have changed since they were written.
    """
    inputs = []
    for shard in shards:
        tokens_place = shard.place(BIN)  # the file with the tokens, and the first byte in it
        inputs.append(MergeInput(str(shard.path(TOKENS)), tokens_place))
    merge_inputs(inputs, folder / task.prefix, task.work().advance)

    bin_path = folder / f"{task.prefix}.bin"
    idx_path = folder / f"{task.prefix}.idx"
    return {bin_path.name: _merged_sha256(bin_path, shards), idx_path.name: sha256_file(idx_path)}


def _merged_sha256(bin_path: Path, shards: Sequence[Manifest]) -> str:
    """Return the sha256 of a token file that was merged from shards, the parts of a corpus.

    To save space, the tokens of a shard may only be stored as a range of an earlier dataset's file:

        shard 0    shards/web/3f9c…/tokens.bin
        shard 1    bytes 4096 to 6000 of datasets/web/77cd…/web.bin

    That file may have been damaged since. Then these bytes of the merged file are wrong, too. To
    notice that, each part of the merged file is compared with the digest of its shard, which was
    recorded when the shard was tokenized.

    Args:
        bin_path: The merged file.
        shards: Manifests of the shards, with the digests of their tokens.

    Raises:
        StorageError: The tokens of a shard have changed since they were written.
    """
    is_any_in_dataset = any(shard.files[BIN].is_in_other_output for shard in shards)
    if not is_any_in_dataset:
        return sha256_file(bin_path)
    pieces = [PieceDigest(_bin_sha256(shard), shard.files[BIN].size) for shard in shards]
    return _sha256_of_unchanged_pieces(bin_path, pieces)


def _move_tokens_out_of_target(task: MergeTask) -> Sequence[Manifest]:
    """Save tokens that shards still need from a folder that is about to be replaced.

    To save space, the tokens of a shard (a part of a tokenized corpus) may only be stored as a
    range of an earlier dataset's file. If the new dataset replaces that very folder, these tokens
    are copied to the folder of the shard first:

        datasets/web/3f9c…/web.bin    bytes 0 to 4096 are the tokens of shard 0
        shards/web/a07e…/tokens.bin   a copy of these bytes, from now on

    Args:
        task: The shards, and the dataset that is written.

    Returns:
        Manifests of all shards of the corpus, whose tokens are outside of that folder now.
    """
    shards = current_shards(task.project, task.tokenized)
    has_copied = False
    for shard in shards:
        bin_path, _first_byte = shard.place(BIN)  # the file that has the tokens
        if bin_path.parent == task.target:
            copy_tokens_back(shard)
            has_copied = True
    if not has_copied:
        return shards
    # The manifests of these shards name their new files. Read them again.
    return current_shards(task.project, task.tokenized)


def _sha256_of_unchanged_pieces(path: Path, pieces: Sequence[PieceDigest]) -> str:
    """Check that a file, which was joined from pieces, still has the bytes of these pieces.

    The file is read once. On the way, its own sha256 is computed, and those of its pieces:

        file             |── 4096 bytes ──|── 1024 bytes ──|
        written as       sha256 3f9c…     sha256 a07e…
        read now         sha256 3f9c…     sha256 b113…        an error: the second piece has changed

    Args:
        path: The file.
        pieces: Size and sha256 of each piece, in order.

    Returns:
        The sha256 of the file.

    Raises:
        StorageError: The bytes of a piece have changed since it was written.
    """
    store = LocalStore(path.parent)
    check = PieceCheck(pieces)
    sha256 = hashlib.sha256()
    stored = store.stat(path.name)
    if stored is not None:
        for block in store.blocks(stored):
            check.add(block)
            sha256.update(block)
    fault = check.fault()
    if fault is not None:
        raise altered(path, fault)
    return sha256.hexdigest()


def _bin_sha256(shard: Manifest) -> str:
    """Return the sha256 of a shard's tokens, from its manifest if possible, or by reading them.

    Args:
        shard: Manifest of the shard, which has the tokens of a part of a corpus.
    """
    return shard.files[BIN].sha256 or shard.access.sha256(shard.folder / BIN)


def merge_in_bucket(task: MergeTask, folder: Path) -> dict[str, str | FileFact]:
    """Merge the token files of a corpus in a bucket into a single one, in one of two ways.

        up to 8 MiB    on this machine, which mostly has copies of the shards: it has made them
        more           within the bucket, so that nothing is downloaded

    Args:
        task: The shards and the dataset.
        folder: Local folder for files of the dataset, which are uploaded later.

    Returns:
        Name of each file → sha256, or all that is known about it.

    Raises:
        MissingError: A shard was deleted.
        SourceChangedError, StorageError: A shard has changed since it was written.
    """
    # If the disk space for copies is limited, this machine keeps none of the shards.
    is_space_limited = task.project.outputs.access.is_space_limited
    if task.bin_bytes <= _SMALL_BYTES and not is_space_limited:
        shards = _fetch_shards(task)
        if shards is not None:
            return _merge_files(task, shards, folder)
    return _merge_within_bucket(task, folder)


def _fetch_shards(task: MergeTask) -> list[Manifest] | None:
    """Make sure that this machine has copies of the shards of a corpus, to merge them here.

    That is not possible if a shard has no token file of its own. To save space, its tokens may only
    be stored in the file of an earlier dataset, which may be too large to download:

        shard 0    shards/web/3f9c…/tokens.bin
        shard 1    bytes 4096 to 6000 of datasets/web/77cd…/web.bin      the result is None

    Args:
        task: The shards, which are in a bucket.

    Returns:
        Their manifests, in document order; None if a shard has no token file of its own.

    Raises:
        MissingError: A file of a shard was deleted.
        StorageError: A file of a shard has changed since it was written.
    """
    shards: list[Manifest] = []
    for shard in _each_listed_shard(task, _fetch_shard):
        if shard is None:  # it has no token file
            return None
        shards.append(shard)
    return shards


def _each_listed_shard(task: MergeTask, work: Callable[[Manifest], T]) -> list[T]:
    """List the shards in a bucket, check that they are whole, and call a function for each.

    Args:
        task: The shards.
        work: Called with the manifest of each shard, which has a listing of the shard's folder.

    Returns:
        What the function returned for each shard, in document order.

    Raises:
        MissingError: A shard is missing or damaged.
    """
    # `each_shard` lists only those shards in the bucket whose manifests are not in `project.seen`,
    # such as those that this process made a moment ago. Here all are listed: only the listing shows
    # whether a file was replaced or deleted since.
    project = replace(task.project, seen=None)
    return each_shard(project, task.tokenized.name, task.tokenized.facts[SHARDS], work)


def _fetch_shard(shard: Manifest) -> Manifest | None:
    """Download the tokens and the index of a shard, unless this machine has the same bytes.

    Args:
        shard: Manifest of the shard, with a listing of its folder in the bucket.

    Returns:
        The same manifest; None if the tokens are only stored as a range of a dataset.

    Raises:
        MissingError: A file was deleted.
        StorageError: A file has changed since it was written.
    """
    if shard.files[BIN].is_in_other_output:
        return None

    store = shard.access.store
    for name in (BIN, _IDX):
        if _is_copy_of_listed(shard, name):
            continue
        path = shard.folder / name
        name_in_store = shard.access.name(path)
        if not store.fetch(name_in_store, path, sha256=shard.files[name].sha256):
            raise _deleted(store, name_in_store)
    return shard


def _is_copy_of_listed(shard: Manifest, name: str) -> bool:
    """Return whether this machine has a copy of a file that is the same as the file in the bucket.

    The copy alone would be enough to make a dataset. But if the file in the bucket was damaged, it
    is better to find that now. So the copy must have both:

        the sha256 in the manifest of the shard     its bytes are those that were written
        the MD5 in the listing of the bucket        so are the bytes in the bucket

    Args:
        shard: Manifest of the shard, with a listing of its folder in the bucket.
        name: The file.
    """
    path = shard.folder / name
    listed = shard.access.listed_object(path)
    if listed is None or not path.is_file():
        return False
    data = read_regular(path)
    sha256 = hashlib.sha256(data).hexdigest()
    md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
    return sha256 == shard.files[name].sha256 and md5 == listed.md5


def _merge_within_bucket(task: MergeTask, folder: Path) -> dict[str, str | FileFact]:
    """Merge the token files of a corpus within a bucket, without downloading them.

    The corpus was tokenized in parts, the shards. Buckets can copy objects, or ranges of them, into
    a new object:

        shards/web/3f9c…/tokens.bin
        shards/web/a07e…/tokens.bin    →    datasets/web/77cd…/web_text_document.bin

    Only the small .idx files, which say where sequences begin, are read and merged here.

    Args:
        task: The shards and the dataset.
        folder: Local folder for the .idx, and for a list of the digests of the joined objects.

    Returns:
        Name of each file → its sha256. For the .bin, its size, and its sha256 if that is known or
        otherwise the name of the list.

    Raises:
        MissingError: A shard was deleted.
        SourceChangedError, StorageError: A shard has changed since it was written.
    """
    shards = _stored_shards(task)
    idx_path = _merge_indexes(task, shards, folder)
    task.project.outputs.invalidate(task.recipe)  # an earlier version is no longer complete
    bin_sha256 = _join_bins(task, shards)

    bin_path = folder / f"{task.prefix}.bin"  # in the bucket, not in this local folder
    if bin_sha256 is None:
        bin_fact = _write_piece_list(bin_path, shards)
    else:
        bin_fact = FileFact(sum(shard.bin.size for shard in shards), bin_sha256)
    return {idx_path.name: sha256_file(idx_path), bin_path.name: bin_fact}


def _write_piece_list(bin_path: Path, shards: Sequence[StoredPair]) -> FileFact:
    """Write a list of the pieces that a bucket joined to a .bin, with the sha256 of each.

    The sha256 of the whole file is not known, since the bucket has copied the bytes itself. So a
    later check compares each piece with this list.

    Args:
        bin_path: Path of the .bin. The list is written next to it.
        shards: The shards, whose tokens are the pieces.

    Returns:
        What the manifest records of the .bin: its size, and the name of the list.
    """
    pieces = [PieceDigest(shard.sha256, shard.bin.size) for shard in shards]
    list_path = bin_path.with_name(f"{bin_path.name}{PIECES_ENDING}")
    list_path.write_bytes(pieces_text(pieces))
    bin_bytes = sum(piece.size for piece in pieces)
    return FileFact(bin_bytes, sha256=None, pieces=list_path.name)


def _merge_indexes(task: MergeTask, pairs: Sequence[StoredPair], folder: Path) -> Path:
    """Write the .idx of a dataset from those of its shards, and return its path.

    An .idx has the length of each sequence of tokens. Lengths of [5, 3] and [4] become [5, 3, 4].

    Args:
        task: The shards and the dataset.
        pairs: The shards, as a bucket stores them.
        folder: Local folder that the .idx is written to; it is uploaded later.
    """
    access = task.project.outputs.access
    idx_bytes = sum(pair.idx.size for pair in pairs)
    access.make_room(idx_bytes, f"the .idx of {task.tokenized.name}")
    idx_path = folder / f"{task.prefix}.idx"
    write_merged_idx(idx_path, access.store, pairs, task.dtype)
    return idx_path


def _join_bins(task: MergeTask, pairs: Sequence[StoredPair]) -> str | None:
    """Let a bucket join the .bin of a dataset from the tokens of its shards, the parts of a corpus.

        shards/web/3f9c…/tokens.bin
        shards/web/a07e…/tokens.bin    →    datasets/web/77cd…/web_text_document.bin

    The bucket copies ranges of objects into a new object, so that nothing is downloaded.

    Args:
        task: The shards and the dataset.
        pairs: The shards, as the bucket stores them.

    Returns:
        The sha256 of the .bin; None if the bucket has copied bytes itself, so that it is unknown.

    Raises:
        SourceChangedError, StorageError: A shard has changed since it was written.
    """
    access = task.project.outputs.access
    target_name = f"{access.name(task.target)}/{task.prefix}.bin"
    ranges = _joined_ranges(pairs)
    show_progress = task.work().advance  # called with numbers of bytes
    return access.store.compose(
        target_name,
        [range_.stored for range_ in ranges],
        sha256=[range_.sha256 for range_ in ranges],
        joined=show_progress,
    )


@dataclass(frozen=True, slots=True)
class _StoredRange:
    """A range of an object that becomes a part of the merged .bin."""

    stored: Stored
    """The range of the object."""
    sha256: str | None
    """The sha256 of its bytes; None if it contains several shards."""


def _joined_ranges(pairs: Sequence[StoredPair]) -> list[_StoredRange]:
    """Return the ranges of objects from which a bucket joins a merged token file.

    The tokens of a shard are an object of their own, or a range of a larger object. Neighbours in
    one object become one range, since each range takes a request:

        shard    its tokens                  ranges
        0        web.bin, 0 to 4096          web.bin, 0 to 6000
        1        web.bin, 4096 to 6000
        2        a07e…/tokens.bin            a07e…/tokens.bin

    Args:
        pairs: The tokens and the index of each shard, in document order.
    """
    ranges: list[_StoredRange] = []
    for pair in pairs:
        tokens = pair.bin
        if ranges and _is_followed_by(ranges[-1].stored, tokens):
            # Extend the last range. No digest of the two shards together is known.
            last = ranges[-1].stored
            longer = replace(last, size=last.size + tokens.size)
            ranges[-1] = _StoredRange(longer, sha256=None)
        else:
            ranges.append(_StoredRange(tokens, sha256=pair.sha256))
    return ranges


def _is_followed_by(stored: Stored, other: Stored) -> bool:
    """Return whether one range of an object is followed directly by another range of it.

    The ranges 0 to 4096 and 4096 to 6000 of the same version of an object are neighbours.

    Args:
        stored: The first range.
        other: The second one, perhaps of another object.
    """
    # The mark tells versions of an object apart.
    is_same_object = (stored.name, stored.mark) == (other.name, other.mark)
    stop_byte = stored.begin + stored.size
    return is_same_object and other.begin == stop_byte


@dataclass(frozen=True, slots=True)
class _ShardObjects:
    """Where a shard is stored.

    A corpus may have 100,000 shards. So only these values are kept in memory, not all manifests.
    """

    bin_name: str
    """Name of the object that contains the tokens."""
    idx_name: str
    """Name of the object that is the .idx."""
    bin_start: int
    """First byte of the shard's tokens in the object."""
    bin_size: int
    """Bytes of the tokens."""
    sequences: int
    """Number of sequences."""
    sha256: str
    """The sha256 of the tokens."""
    listed: tuple[Stored, ...]
    """Those of the two objects that are in the listing of the shard's folder."""


def _stored_shards(task: MergeTask) -> list[StoredPair]:
    """Find the objects of a bucket that contain the tokens of a corpus, which is stored in shards.

    A shard has two objects: a .bin with its tokens, and an .idx with the lengths of its sequences.
    To save space, its tokens may only be stored as a range of an earlier dataset's .bin:

        shard    its tokens                                         its index
        3f9c…    all of shards/web/3f9c…/tokens.bin                 shards/web/3f9c…/tokens.idx
        a07e…    bytes 4096 to 6000 of datasets/web/77cd…/web.bin   shards/web/a07e…/tokens.idx

    Args:
        task: The shards, which are to be merged.

    Returns:
        The .bin and .idx of each shard, in document order.

    Raises:
        MissingError: An object was deleted.
    """
    shards = _each_listed_shard(task, _objects_of_shard)
    object_by_name = _look_up_objects(task.project.outputs.access.store, shards)

    pairs: list[StoredPair] = []
    for shard in shards:
        whole_bin = object_by_name[shard.bin_name]
        tokens = replace(whole_bin, begin=shard.bin_start, size=shard.bin_size)
        idx_object = object_by_name[shard.idx_name]
        pairs.append(StoredPair(tokens, idx_object, shard.sequences, shard.sha256))
    return pairs


def _look_up_objects(store: Store, shards: Sequence[_ShardObjects]) -> dict[str, Stored]:
    """Return the objects that contain some shards, with their sizes and versions.

    Most of them are in the listings of the shards' folders. But some shards may have their tokens
    in the .bin of a dataset, which is in another folder. There are few of these, and each is looked
    up by a request.

    Args:
        store: The bucket.
        shards: The names of the objects. Their folders were listed when they were read.

    Returns:
        Name → object, such as that of "shards/web/3f9c…/tokens.bin".

    Raises:
        MissingError: An object was deleted.
    """
    listed_objects = chain.from_iterable(shard.listed for shard in shards)
    object_by_name = {listed_object.name: listed_object for listed_object in listed_objects}
    bin_names = {shard.bin_name for shard in shards}
    idx_names = {shard.idx_name for shard in shards}
    unlisted_names = (bin_names | idx_names) - object_by_name.keys()
    for name in sorted(unlisted_names):
        object_by_name[name] = _stat_object(store, name)
    return object_by_name


def _objects_of_shard(shard: Manifest) -> _ShardObjects:
    """Return where the two files of a shard are in a bucket, so that the bucket can join shards.

    A shard has the tokens of a part of a corpus, in a .bin, and the lengths of their sequences, in
    an .idx. To save space, the tokens may only be stored as a range of a dataset's .bin:

        bin_name               bin_start    bin_size
        shards/…/tokens.bin    0            1000        the shard has its own .bin
        datasets/…/….bin       5000         1000        its tokens are the bytes 5000 to 6000

    Args:
        shard: Manifest of the shard, the file that describes it.
    """
    access = shard.access
    bin_path, start_byte = shard.place(BIN)  # the file with the tokens, and where they start in it
    idx_path = shard.folder / _IDX
    listed = [access.listed_object(path) for path in (bin_path, idx_path)]
    return _ShardObjects(
        bin_name=access.name(bin_path),
        idx_name=access.name(idx_path),
        bin_start=start_byte,
        bin_size=shard.files[BIN].size,
        sequences=int(shard.facts["sequences"]),
        sha256=_bin_sha256(shard),  # to see that the bucket has copied the right bytes
        listed=tuple(stored for stored in listed if stored is not None),
    )


def _stat_object(store: Store, name: str) -> Stored:
    """Return an object of a store, with its size and version.

    Raises:
        MissingError: It was deleted.
    """
    stored = store.stat(name)
    if stored is None:
        raise _deleted(store, name)
    return stored


def _deleted(store: Store, name: str) -> MissingError:
    """Return the error for an object that was deleted, though a manifest lists it."""
    return MissingError(
        "the object was deleted",
        where=store.url(name),
        remedy="run `nanoset build`",
    )
