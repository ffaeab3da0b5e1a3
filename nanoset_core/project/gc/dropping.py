"""Remove the tokens of shards that the dataset contains as well, for `storage.shards: drop`.

A dataset is made by concatenating its shards, so all tokens are stored twice. With this setting,
`nanoset gc` compares the tokens of each shard with their range of the dataset, removes the file of
the shard, and lets the shard's manifest refer to the range instead. For example, the tokens of the
second of two shards of 10 MB each become "the bytes from 10 MB to 20 MB of web.bin".
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from nanoset_core.errors import FormatError, MissingError
from nanoset_core.outputs.manifest import FileFact, Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.origin import has_same_origin
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.dataset.tokens import bin_name
from nanoset_core.stages.per_shard import SHARDS
from nanoset_core.stages.shards.names import SHARDS_FOLDER
from nanoset_core.stages.shards.one_shard import BIN
from nanoset_core.stages.shards.shard_sets import each_shard
from nanoset_core.stages.shards.shard_tokens import delete_own_tokens
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import Key, find_current
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.in_use.leases import collecting
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
        return f"{SHARDS_FOLDER}/{self.corpus}"

    @property
    def tokens_path(self) -> Path:
        """Path of its .bin."""
        return self.folder / BIN


@dataclass(frozen=True, slots=True)
class _ShardFile:
    """Where the tokens of a shard (a tokenized piece of text) are stored."""

    folder: Path
    """Folder of the shard."""
    recorded: FileFact
    """The bytes with its tokens, according to its manifest: those of its own file, or, if that was
    deleted, a range of a dataset's file.
    """
    size: int
    """Size of its own file in bytes; 0 if it has none, since that was deleted."""

    @property
    def has_own_file(self) -> bool:
        """Whether it has a file of tokens."""
        return self.size > 0

    @staticmethod
    def of(shard: Manifest) -> _ShardFile:
        """Look up where the tokens of a shard (a tokenized piece of text) are stored.

        For example, shards of 300 bytes of tokens:

            the manifest says            recorded                        size
            in the file tokens.bin       tokens.bin                      300
            in the file of a dataset     bytes 300 to 600 of web.bin     0: no tokens.bin any more
            in the file of a dataset     bytes 600 to 900 of web.bin     300: it was not deleted yet

        Args:
            shard: The manifest, a JSON file that describes the shard.
        """
        size = shard.access.size(shard.folder / BIN)  # None if there is no such file
        return _ShardFile(
            folder=shard.folder,
            recorded=shard.files[BIN],
            size=0 if size is None else size,
        )


def find_duplicate_tokens(project: Project) -> Iterator[DuplicateTokens]:
    """Find tokens that are stored twice, so that one copy can be deleted.

    A text collection is tokenized in pieces, the shards, each with a file of tokens. Then all
    shards are joined to a dataset, which has the same tokens.

    Args:
        project: The project, whose output folder is searched.

    Yields:
        The shards whose files can be deleted. There is none unless the settings have
        `storage.shards: drop`.
    """
    if project.config.storage.shards != "drop":
        return
    outputs = project.outputs
    for corpus in outputs.names(DATASET.layout.folder):
        # Skip a corpus with damaged files: a build will repair it.
        with contextlib.suppress(FormatError, MissingError):
            yield from _duplicates_of(project, corpus)


def _duplicates_of(project: Project, corpus: str) -> list[DuplicateTokens]:
    """Find the tokens of a text collection (corpus) that are stored twice.

    A corpus is tokenized in pieces, the shards, which are then joined to a dataset.

    Args:
        project: The project, whose output folder has both.
        corpus: Name of the corpus.

    Returns:
        The shards whose own file can be deleted, each with the range of bytes of the dataset that
        has the same tokens.

    Raises:
        FormatError: A manifest, a file that describes an output, cannot be read.
        MissingError: A shard was deleted.
    """
    outputs = project.outputs
    dataset = find_current(project, DATASET, Key(corpus))
    shard_list = find_current(project, TOKENIZED, Key(corpus))
    if dataset is None or shard_list is None or not has_same_origin(shard_list, dataset):
        return []  # for example, the dataset is older than the shards

    # The sizes of the shards give their ranges in the dataset. If these do not add up to the whole
    # dataset, something is wrong, so let all files stay.
    shard_files = list(each_shard(project, corpus, shard_list.facts[SHARDS], _ShardFile.of))
    ranges = _ranges_of_shards(outputs.access, dataset, shard_files)
    size_of_shards = sum(dataset_range.size for dataset_range in ranges)
    size_of_dataset = dataset.files[bin_name(dataset)].size
    if size_of_dataset != size_of_shards:
        return []

    duplicates = []
    for shard_file, dataset_range in zip(shard_files, ranges, strict=True):
        if _can_drop_tokens(shard_file, dataset_range):
            duplicate = DuplicateTokens(
                corpus=corpus,
                folder=shard_file.folder,
                recorded=shard_file.recorded,
                in_dataset=dataset_range,
                size=shard_file.size,
            )
            duplicates.append(duplicate)
    return duplicates


def _ranges_of_shards(
    access: FileAccess, dataset: Manifest, shard_files: Iterable[_ShardFile]
) -> list[FileFact]:
    """Return which bytes of a dataset's file are the tokens of each shard.

    The file has the tokens of all shards, one after another. So if the first shards have 300 and
    200 bytes, these are the bytes 0 to 300 and 300 to 500 of the dataset.

    Args:
        access: Access to the output folder.
        dataset: Manifest of the dataset, which describes its files.
        shard_files: The tokens of each shard, in the order of the dataset.

    Returns:
        For each shard, the range of bytes, with the size and sha256 that its tokens have.
    """
    dataset_file = access.name(dataset.folder / bin_name(dataset))  # its path
    ranges = []
    begin = 0
    for file in shard_files:
        ranges.append(replace(file.recorded, within=dataset_file, begin=begin))
        begin += file.recorded.size
    return ranges


def _can_drop_tokens(file: _ShardFile, dataset_range: FileFact) -> bool:
    """Return whether there is something to do to let a shard read its tokens from a dataset.

    A shard is a tokenized piece of a text collection, and the dataset is all shards joined:

        own file    the shard reads from    result
        exists      this file               True
        exists      this dataset            True: somebody was interrupted before deleting the file
        deleted     an older dataset        True: it should read from this one
        deleted     this dataset            False: nothing remains to be done

    Args:
        file: Where the shard has its tokens now.
        dataset_range: The bytes of the dataset that should be the same tokens.
    """
    # Without a checksum, nobody can find out whether they are the same.
    can_be_compared = dataset_range.size > 0 and bool(dataset_range.sha256)
    if not can_be_compared:
        return False
    if file.has_own_file:
        return True
    reads_from_this_dataset = file.recorded == dataset_range
    return not reads_from_this_dataset


def drop_duplicate_tokens(project: Project) -> Iterator[DuplicateTokens]:
    """Delete tokens that are stored twice, to save half of the disk space.

    Tokens are stored in shards, the pieces in which text is tokenized, and in the dataset that
    these were joined to. The file of a shard is deleted if the bytes of the dataset are the same.

    Args:
        project: The project, whose output folder has both. Nothing is deleted unless its settings
            have `storage.shards: drop`.

    Yields:
        Each shard whose tokens are also in a dataset. If its file stays, `why_not` says why.
    """
    for batch in _batches(find_duplicate_tokens(project)):
        yield from _drop_batch(project, batch)


def _batches(duplicates: Iterable[DuplicateTokens]) -> Iterator[list[DuplicateTokens]]:
    """Divide shards (tokenized pieces of text) into batches of about 16 GiB of tokens.

    Comparing their tokens with a dataset takes long. The files of a batch are deleted when all of
    it was compared. So if this is interrupted, only the comparison of one batch is lost.

    Args:
        duplicates: The shards.

    Yields:
        The batches. Each is full as soon as it has `_BATCH_BYTES` or more.
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
    """Delete the files of some shards (tokenized pieces of text), if a dataset has the same tokens.

    For example:

        shard    bytes of the dataset    a build of its text collection    result
        3f9c…    equal                   none                              its file is deleted
        81aa…    equal                   is running                        stays, with `why_not`
        c04d…    different               (either)                          stays, with `why_not`

    Args:
        project: The project, whose output folder has both.
        batch: The shards, each with the bytes of the dataset that should be the same.

    Yields:
        Each shard. If its file stays, `why_not` says why. A shard that a build replaced in the
        meantime is left out.
    """
    # First compare the tokens. This takes long, so builds may begin meanwhile.
    equal_shards: list[_ComparedShard] = []
    for duplicate in batch:
        compared = _compare_tokens(project.outputs.access, duplicate)
        if compared.is_equal:
            equal_shards.append(compared)
        else:  # the dataset is damaged
            dataset_file = duplicate.in_dataset.within  # such as datasets/web/3f9c…/web.bin
            why_not = f"{dataset_file} has other bytes for it: run `nanoset verify --deep`"
            yield replace(duplicate, why_not=why_not)

    # Then delete the files, which is quick, while no build can begin.
    yield from _drop_tokens_of_idle(project.outputs, equal_shards)


def _drop_tokens_of_idle(
    outputs: OutputRoot, equal_shards: Sequence[_ComparedShard]
) -> Iterator[DuplicateTokens]:
    """Delete the files of shards, except of text collections that a build is working on.

    Args:
        outputs: The outputs of the project.
        equal_shards: The shards, which are tokenized pieces of text. A dataset has the same tokens.

    Yields:
        The shards. If the file of a shard stays, `why_not` says why, such as "a build works on it
        (process 123)". A shard that a build replaced since it was compared is left out.
    """
    # No new build can begin within this block. It gets the running ones: {"web": "process 123"}.
    with collecting(outputs.access) as build_by_corpus:
        idle_shards = [
            shard for shard in equal_shards if shard.duplicate.corpus not in build_by_corpus
        ]
        # The files are deleted in parallel. The result of a shard that was replaced is None.
        results = outputs.access.each(lambda shard: _drop_tokens(outputs, shard), idle_shards)

    yield from [result for result in results if result is not None]
    for shard in equal_shards:
        build = build_by_corpus.get(shard.duplicate.corpus)
        if build is not None:
            yield replace(shard.duplicate, why_not=f"a build works on it ({build})")


def _compare_tokens(access: FileAccess, duplicate: DuplicateTokens) -> _ComparedShard:
    """Compare the tokens of a shard with the bytes of a dataset that should be the same.

    Only the bytes of the dataset are read: the sha256 of the shard's tokens was stored when they
    were made.

    Args:
        access: Access to the output folder.
        duplicate: The shard, a tokenized piece of text, with the range of bytes in the dataset.
    """
    dataset_range = duplicate.in_dataset  # such as the bytes 300 to 500 of a file
    dataset_path = access.folder / str(dataset_range.within)
    bytes_of_dataset = access.stored(dataset_path, dataset_range.begin, dataset_range.size)
    sha256 = access.store.sha256_of(bytes_of_dataset)  # reads them
    is_equal = sha256 == dataset_range.sha256
    return _ComparedShard(duplicate, bytes_of_dataset, is_equal)


class _ComparedShard(NamedTuple):
    """A shard whose tokens were compared with a range of its corpus's dataset."""

    duplicate: DuplicateTokens
    """The shard, and the range."""
    dataset_file: Stored
    """The file of the dataset, as it was when the range was read. A build may replace it later."""
    is_equal: bool
    """Whether the range has the tokens of the shard."""


def _drop_tokens(outputs: OutputRoot, compared: _ComparedShard) -> DuplicateTokens | None:
    """Delete the tokens of a shard (a tokenized piece of text), which a dataset has, too.

    From then on, readers of the shard read the bytes of the dataset instead.

    Args:
        outputs: The outputs of the project.
        compared: The shard and the bytes of the dataset, which were compared and are equal.

    Returns:
        The shard. If its file could not be deleted, `why_not` has the reason. None if a build has
        replaced the shard or the dataset since they were compared: then nothing is changed.
    """
    manifest = _manifest_if_unchanged(outputs, compared)
    if manifest is None:
        return None
    duplicate = compared.duplicate
    try:
        delete_own_tokens(manifest, duplicate.in_dataset)
    except OSError as error:
        # The disk may be full. Next time, there is room, since `nanoset gc` deletes other files.
        why_not = f"its manifest cannot be written: {error.strerror}; run `nanoset gc` again"
        return replace(duplicate, why_not=why_not)
    return duplicate


def _manifest_if_unchanged(outputs: OutputRoot, compared: _ComparedShard) -> Manifest | None:
    """Return the manifest of a shard if neither it nor the dataset has changed.

    A comparison of their tokens takes long, and a build may replace them meanwhile.

    Args:
        outputs: The outputs of the project.
        compared: The shard and the file of the dataset, as they were when they were compared.

    Returns:
        The manifest, a JSON file that describes the shard. None if the shard was deleted or
        replaced, or if the dataset was.
    """
    manifest = outputs.manifest_at(compared.duplicate.folder)
    if manifest is None:
        return None
    has_same_tokens = manifest.files[BIN] == compared.duplicate.recorded
    if not has_same_tokens or _was_replaced(outputs.access, compared.dataset_file):
        return None
    return manifest


def _was_replaced(access: FileAccess, file: Stored) -> bool:
    """Return whether a stored file was replaced or deleted, by its mark: another file has another.

    Args:
        access: Access to the file.
        file: The file as it was before.
    """
    file_now = access.store.stat(file.name)
    return file_now is None or file_now.mark != file.mark
