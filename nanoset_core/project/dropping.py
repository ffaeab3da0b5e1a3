"""Remove tokens of shards that the dataset contains as well, for `storage.shards: drop`.

`nanoset gc` does so.

This is the only thing that `nanoset gc` does inside versions, and it names two stages: the shards
of a corpus, and the dataset that is made by concatenating them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

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
from nanoset_core.storage.leases import collecting
from nanoset_core.storage.store import Stored

_BATCH_BYTES = 16 << 30
"""Tokens that are compared, while builds may begin, before their shards drop them."""


@dataclass(frozen=True, slots=True)
class DuplicateTokens:
    """A shard whose tokens are a range of the current dataset as well."""

    corpus: str
    folder: Path
    """Folder of the shard."""
    recorded: FileFact
    """Its tokens, as its manifest records them."""
    in_dataset: FileFact
    """The same tokens, as a range of the dataset."""
    size: int
    """Bytes of its own .bin; 0 if its tokens are already a range of another dataset."""
    why_not: str | None = None
    """Why it keeps its tokens, or None."""

    @property
    def output(self) -> str:
        """Folder of the stage, and name of the output."""
        return f"{SHARDS}/{self.corpus}"

    @property
    def tokens_path(self) -> Path:
        """The file of its own tokens."""
        return self.folder / BIN


@dataclass(frozen=True, slots=True)
class _ShardFile:
    """The file of a shard's tokens."""

    folder: Path
    recorded: FileFact
    size: int
    """Its size as it is stored; 0 if the shard has no file of its own."""

    @staticmethod
    def of(shard: Manifest) -> _ShardFile:
        """Look up the file of a shard."""
        return _ShardFile(
            shard.folder, shard.files[BIN], shard.access.size(shard.folder / BIN) or 0
        )


def find_duplicate_tokens(project: Project) -> Iterator[DuplicateTokens]:
    """Yield every shard whose tokens could be dropped, corpus by corpus.

    Nothing is yielded unless `storage.shards` is `drop`.
    """
    if project.config.storage.shards != "drop":
        return
    outputs = project.outputs
    corpora = [
        name
        for name in outputs.access.names(outputs.folder / DATASET.layout.folder)
        if not name.startswith(".")
    ]
    for corpus in sorted(corpora):
        # it is damaged, and a build makes it again
        with contextlib.suppress(FormatError, MissingError):
            yield from _duplicates_of(project, corpus)


def _duplicates_of(project: Project, corpus: str) -> list[DuplicateTokens]:
    """Return the shards of a corpus whose tokens are in its current dataset."""
    outputs = project.outputs
    dataset = outputs.current(DATASET.layout.folder, corpus)
    tokenized = outputs.current(TOKENIZED.layout.folder, corpus)
    if dataset is None or tokenized is None or not has_same_origin(tokenized, dataset):
        return []

    digests = tokenized.facts[SHARDS]
    shard_files = each_shard(project, corpus, digests, _ShardFile.of)

    # A dataset is its shards, concatenated: each begins where the one before ends.
    bin_name = f"{dataset.facts['prefix']}.bin"
    within = outputs.access.name(dataset.folder / bin_name)
    start = 0
    duplicates = []
    for file in shard_files:
        in_dataset = replace(file.recorded, within=within, begin=start)
        start += in_dataset.size
        has_tokens = in_dataset.size and in_dataset.sha256
        is_elsewhere = file.size or in_dataset != file.recorded
        if has_tokens and is_elsewhere:
            duplicates.append(
                DuplicateTokens(corpus, file.folder, file.recorded, in_dataset, file.size)
            )
    if start != dataset.files[bin_name].size:
        return []
    return duplicates


def drop_duplicate_tokens(project: Project) -> Iterator[DuplicateTokens]:
    """Remove the .bin of shards after comparing it with its range of the dataset.

    Yields the shards, including those that keep their tokens.

    Each range is read once, for its sha256, before anything is removed. Builds wait only while
    shards of up to 16 GiB are updated. What a build works on stays.
    """
    for batch in _batches(find_duplicate_tokens(project)):
        yield from _drop_batch(project, batch)


def _batches(duplicates: Iterable[DuplicateTokens]) -> Iterator[list[DuplicateTokens]]:
    """Yield shards in batches of up to `_BATCH_BYTES` of tokens, or slightly more."""
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
    """Let the shards of a batch drop their tokens; yield them, and those that stay with the reason."""
    access = project.outputs.access

    # Compare while builds may begin: this reads the tokens, and takes long.
    compared: list[tuple[DuplicateTokens, Stored]] = []
    for duplicate in batch:
        fact = duplicate.in_dataset
        stored = access.stored(access.folder / str(fact.within), fact.begin, fact.size)
        if access.store.sha256_of(stored) == fact.sha256:
            compared.append((duplicate, stored))
        else:
            yield replace(
                duplicate,
                why_not=f"{fact.within} has other bytes for it: run `nanoset verify --deep`",
            )

    # Update the shards while no build can begin.
    with collecting(access) as leases:
        idle = [pair for pair in compared if pair[0].corpus not in leases]
        outcomes = access.each(lambda pair: _drop(project.outputs, *pair), idle)
    yield from [outcome for outcome in outcomes if outcome is not None]
    for duplicate, _ in compared:
        if duplicate.corpus in leases:
            yield replace(duplicate, why_not=f"a build works on it ({leases[duplicate.corpus]})")


def _drop(
    outputs: OutputRoot, duplicate: DuplicateTokens, stored: Stored
) -> DuplicateTokens | None:
    """Remove a shard's tokens, unless the shard or the dataset was replaced in the meantime.

    In that case the result is None.
    """
    shard = outputs.manifest_at(duplicate.folder)
    dataset_file = outputs.access.store.stat(stored.name)
    if shard is None or shard.files[BIN] != duplicate.recorded:
        return None
    if dataset_file is None or dataset_file.mark != stored.mark:
        return None
    try:
        point_into(shard, duplicate.in_dataset)
    except OSError as error:  # a full disk: other garbage makes room
        why_not = f"its manifest cannot be written: {error.strerror}; run `nanoset gc` again"
        return replace(duplicate, why_not=why_not)
    return duplicate
