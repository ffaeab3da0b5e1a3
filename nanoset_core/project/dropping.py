"""Remove the tokens of shards that the dataset contains as well, for `storage.shards: drop`.

A dataset is made by concatenating its shards, so all tokens are stored twice. With this setting,
`nanoset gc` compares the tokens of each shard with their range of the dataset, removes the file of
the shard, and lets the shard's manifest refer to the range instead. For example, the tokens of the
second of two shards of 10 MB each become "the bytes from 10 MB to 20 MB of web.bin".
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from nanoset_core.errors import FormatError, MissingError
from nanoset_core.outputs.manifest import FileFact, Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.origin import has_same_origin
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.shards.make import BIN, SHARDS
from nanoset_core.stages.shards.shard_sets import each_shard
from nanoset_core.stages.shards.shard_tokens import point_into
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.leases import collecting
from nanoset_core.storage.store import Stored

_BATCH_BYTES = 16 << 30
"""How many bytes of tokens are compared before their shards drop them. Builds may begin while
tokens are compared, but have to wait while shards are updated.
"""


@dataclass(frozen=True, slots=True)
class DuplicateTokens:
    """A shard whose tokens are also a range of the current dataset."""

    corpus: str
    """Name of the corpus."""
    folder: Path
    """Folder of the shard."""
    recorded: FileFact
    """Where its tokens are, according to its manifest."""
    in_dataset: FileFact
    """The range of the dataset with the same tokens."""
    size: int
    """Size of its .bin in bytes; 0 if it dropped it already, and refers to an older dataset."""
    why_not: str | None = None
    """Why it keeps its tokens; None if it drops them."""

    @property
    def output(self) -> str:
        """The output that the shard belongs to: folder of the stage, and name."""
        return f"{SHARDS}/{self.corpus}"

    @property
    def tokens_path(self) -> Path:
        """Path of its .bin."""
        return self.folder / BIN


@dataclass(frozen=True, slots=True)
class _ShardFile:
    """The file with a shard's tokens."""

    folder: Path
    """Folder of the shard."""
    recorded: FileFact
    """Where its tokens are, according to its manifest."""
    size: int
    """Size of its .bin in bytes; 0 if it has none."""

    @staticmethod
    def of(shard: Manifest) -> _ShardFile:
        """Return the file with the tokens of a shard.

        Args:
            shard: Manifest of the shard.
        """
        size = shard.access.size(shard.folder / BIN)
        return _ShardFile(
            folder=shard.folder,
            recorded=shard.files[BIN],
            size=0 if size is None else size,
        )

    def as_duplicate(self, corpus: str, dataset_range: FileFact) -> DuplicateTokens:
        """Return the shard, with the range of the dataset that should have the same tokens.

        Args:
            corpus: Name of the corpus.
            dataset_range: The range.
        """
        return DuplicateTokens(
            corpus=corpus,
            folder=self.folder,
            recorded=self.recorded,
            in_dataset=dataset_range,
            size=self.size,
        )


def find_duplicate_tokens(project: Project) -> Iterator[DuplicateTokens]:
    """Yield every shard that may drop its tokens, because a dataset contains them as well.

    The dataset of a corpus is all of its shards, concatenated. So all tokens are stored twice, and
    the setting `storage.shards: drop` allows to keep only those of the dataset.

    Args:
        project: Its output root is searched. Without this setting, nothing is yielded.
    """
    if project.config.storage.shards != "drop":
        return
    # Each corpus with a dataset has a folder. Folders with a dot in front are for internal use.
    outputs = project.outputs
    names = outputs.access.names(outputs.folder / DATASET.layout.folder)
    corpora = sorted(name for name in names if not name.startswith("."))
    for corpus in corpora:
        # Skip a damaged corpus: a build will repair it.
        with contextlib.suppress(FormatError, MissingError):
            yield from _duplicates_of(project, corpus)


def _duplicates_of(project: Project, corpus: str) -> list[DuplicateTokens]:
    """Return the shards of a corpus that store tokens which its current dataset has, too.

    Args:
        project: Its output root is searched.
        corpus: Name of the corpus.

    Returns:
        The shards, each with its range of the dataset; none if the dataset was not made from the
        current shards, or has not their size.

    Raises:
        FormatError: A manifest cannot be read.
        MissingError: A shard was deleted.
    """
    outputs = project.outputs
    dataset = outputs.current(DATASET.layout.folder, corpus)
    shard_set = outputs.current(TOKENIZED.layout.folder, corpus)
    if dataset is None or shard_set is None or not has_same_origin(shard_set, dataset):
        return []

    # The dataset's file is the tokens of all shards, concatenated: shards of 300 and 200 bytes
    # are the ranges 0 to 300 and 300 to 500.
    shard_files = list(each_shard(project, corpus, shard_set.facts[SHARDS], _ShardFile.of))
    ranges = list(_ranges_of_shards(outputs.access, dataset, shard_files))
    size_by_shards = sum(dataset_range.size for dataset_range in ranges)
    size = dataset.files[_bin_name(dataset)].size
    if size != size_by_shards:
        return []

    # Leave out shards that have dropped their tokens in favour of this dataset already.
    duplicates = []
    for shard_file, dataset_range in zip(shard_files, ranges, strict=True):
        if _can_drop_tokens(shard_file, dataset_range):
            duplicates.append(shard_file.as_duplicate(corpus, dataset_range))
    return duplicates


def _bin_name(dataset: Manifest) -> str:
    """Return the name of a dataset's .bin."""
    return f"{dataset.facts['prefix']}.bin"


def _ranges_of_shards(
    access: FileAccess, dataset: Manifest, shard_files: Iterable[_ShardFile]
) -> Iterator[FileFact]:
    """Yield the range of a dataset's .bin that should be equal to the tokens of each shard.

    The .bin consists of the tokens of all shards, concatenated: shards of 300 and 200 bytes give
    the ranges 0 to 300 and 300 to 500.

    Args:
        access: Access to the output root.
        dataset: Manifest of the dataset.
        shard_files: The files with the tokens of its shards, in order.

    Yields:
        Size and sha256 of the shard's tokens, with the file and the position at which the dataset
        should have them.
    """
    dataset_bin = access.name(dataset.folder / _bin_name(dataset))
    position = 0
    for file in shard_files:
        yield replace(file.recorded, within=dataset_bin, begin=position)
        position += file.recorded.size


def _can_drop_tokens(file: _ShardFile, dataset_range: FileFact) -> bool:
    """Return whether a shard has tokens to drop, or refers to an older dataset than the current.

    Args:
        file: The file with the tokens of the shard.
        dataset_range: The range of the current dataset that should be equal to them. It can only be
            compared if the sha256 of the shard's tokens is known.
    """
    can_be_compared = dataset_range.size > 0 and bool(dataset_range.sha256)
    has_own_tokens = file.size > 0
    refers_elsewhere = file.recorded != dataset_range
    return can_be_compared and (has_own_tokens or refers_elsewhere)


def drop_duplicate_tokens(project: Project) -> Iterator[DuplicateTokens]:
    """Delete the tokens of shards that the dataset of their corpus contains, too.

    A build stores the tokens of a corpus twice: first in shards (small files), and then in the
    dataset that it joins from them. The tokens of a shard are deleted only if the sha256 of the
    same range of the dataset is equal. To compare them, each range is read once; builds may start
    meanwhile. Shards of a corpus that is being built keep their tokens.

    Args:
        project: Its output root is searched. Nothing is removed unless its nanoset.yaml sets
            `storage.shards: drop`.

    Yields:
        Each shard whose tokens are in a dataset, too. If it keeps its own, its `why_not` says why.
    """
    for batch in _batches(find_duplicate_tokens(project)):
        yield from _drop_batch(project, batch)


def _batches(duplicates: Iterable[DuplicateTokens]) -> Iterator[list[DuplicateTokens]]:
    """Yield shards in batches, each of which is full once it has `_BATCH_BYTES` of tokens.

    Args:
        duplicates: The shards, in any order.
    """
    batch: list[DuplicateTokens] = []
    batch_bytes = 0
    for duplicate in duplicates:
        batch.append(duplicate)
        batch_bytes += duplicate.in_dataset.size
        if batch_bytes >= _BATCH_BYTES:
            yield batch
            batch = []
            batch_bytes = 0
    if batch:
        yield batch


def _drop_batch(project: Project, batch: Iterable[DuplicateTokens]) -> Iterator[DuplicateTokens]:
    """Remove the tokens of some shards, each if the dataset really contains the same tokens.

    Args:
        project: Its output root has the shards.
        batch: The shards, each with the range of the dataset that should be equal to its tokens.

    Yields:
        Each shard. Those that keep their tokens have the reason in `why_not`. A shard that was
        replaced in the meantime is left out.
    """
    # Compare the tokens first. It takes long, so builds may begin meanwhile.
    equal_shards: list[_ComparedShard] = []
    for duplicate in batch:
        compared = _compare_tokens(project.outputs.access, duplicate)
        if compared.is_equal:
            equal_shards.append(compared)
        else:
            dataset_file = duplicate.in_dataset.within  # such as datasets/web/3f9c…/web.bin
            why_not = f"{dataset_file} has other bytes for it: run `nanoset verify --deep`"
            yield replace(duplicate, why_not=why_not)
    yield from _drop_if_idle(project.outputs, equal_shards)


def _drop_if_idle(
    outputs: OutputRoot, equal_shards: Iterable[_ComparedShard]
) -> Iterator[DuplicateTokens]:
    """Remove the tokens of shards, except of those in corpora that a running build works on.

    Args:
        outputs: The output root.
        equal_shards: The shards, whose tokens are equal to their ranges of the dataset.

    Yields:
        First the shards that were removed or could not be, and then those that are in use.
    """
    idle_shards: list[_ComparedShard] = []
    busy_shards: list[DuplicateTokens] = []
    # `collecting` locks the output root against new builds, and returns the running ones.
    with collecting(outputs.access) as build_by_corpus:
        for shard in equal_shards:
            corpus = shard.duplicate.corpus
            if corpus not in build_by_corpus:
                idle_shards.append(shard)
            else:
                why_not = f"a build works on it ({build_by_corpus[corpus]})"
                busy_shards.append(replace(shard.duplicate, why_not=why_not))
        results = outputs.access.each(lambda shard: _drop_tokens(outputs, shard), idle_shards)

    for result in results:
        if result is not None:  # None: the shard was replaced since it was compared
            yield result
    yield from busy_shards


def _compare_tokens(access: FileAccess, duplicate: DuplicateTokens) -> _ComparedShard:
    """Compare the tokens of a shard with their range of the dataset, by the sha256 of both.

    Only the range is read: the manifest of the shard says which sha256 the shard's tokens have.

    Args:
        access: Access to the output root.
        duplicate: The shard, with the range.
    """
    dataset_range = duplicate.in_dataset
    expected_sha256 = dataset_range.sha256  # that of the shard's tokens
    dataset_path = access.folder / str(dataset_range.within)
    dataset_file = access.stored(dataset_path, dataset_range.begin, dataset_range.size)
    is_equal = access.store.sha256_of(dataset_file) == expected_sha256
    return _ComparedShard(duplicate, dataset_file, is_equal)


class _ComparedShard(NamedTuple):
    """A shard whose tokens were compared with a range of its corpus's dataset."""

    duplicate: DuplicateTokens
    """The shard, and the range."""
    dataset_file: Stored
    """The file of the dataset, as it was when the range was read. A build may replace it later."""
    is_equal: bool
    """Whether the range has the tokens of the shard."""


def _drop_tokens(outputs: OutputRoot, compared: _ComparedShard) -> DuplicateTokens | None:
    """Remove a shard's file of tokens, and let its manifest refer to the dataset instead.

    Args:
        outputs: The output root.
        compared: The shard, whose tokens are equal to a range of the dataset.

    Returns:
        The shard; with `why_not` if it keeps its tokens. None, without any change, if the shard or
        the dataset was replaced since their tokens were compared.
    """
    duplicate = compared.duplicate
    shard = outputs.manifest_at(duplicate.folder)
    if shard is None:
        return None
    # Its manifest says where the shard's tokens are, and which size and sha256 they have.
    has_same_tokens = shard.files[BIN] == duplicate.recorded
    if not has_same_tokens or _was_replaced(outputs.access, compared.dataset_file):
        return None

    # `point_into` first writes the range of the dataset to the manifest, and then deletes the file.
    try:
        point_into(shard, duplicate.in_dataset)
    except OSError as error:
        # The disk may be full. Removing other garbage makes room for the manifest.
        why_not = f"its manifest cannot be written: {error.strerror}; run `nanoset gc` again"
        return replace(duplicate, why_not=why_not)
    return duplicate


def _was_replaced(access: FileAccess, file: Stored) -> bool:
    """Return whether a stored file was replaced or deleted, by its mark: another file has another.

    Args:
        access: Access to the file.
        file: The file as it was before.
    """
    file_now = access.store.stat(file.name)
    return file_now is None or file_now.mark != file.mark
