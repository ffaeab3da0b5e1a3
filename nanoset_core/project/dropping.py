"""Shards whose tokens a dataset holds as well: with `storage.shards: drop`, `nanoset gc` removes their own copy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from nanoset_core.errors import FormatError, MissingError
from nanoset_core.outputs.manifest import FileFact
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.stage import STAGE, has_same_origin
from nanoset_core.stages.shards import stage as tokenization
from nanoset_core.stages.shards.shard_tokens import point_into
from nanoset_core.stages.shards.shards import BIN
from nanoset_core.storage.leases import collecting
from nanoset_core.storage.store import Stored

_BATCH_BYTES = 16 << 30
"""Tokens that are compared, while builds may begin, before their shards drop them."""


@dataclass(frozen=True, slots=True)
class Surplus:
    """A shard whose tokens are a range of the current dataset, too."""

    corpus: str
    shard: Path
    """Its folder."""
    was: FileFact
    """Of its tokens, as its manifest says."""
    fact: FileFact
    """Of the same tokens as a range of the dataset."""
    size: int
    """Bytes of its own .bin; 0 where it lies within another dataset."""
    why_not: str | None = None
    """Why it stays."""


def surplus(project: Project) -> Iterator[Surplus]:
    """Yield every shard that could drop tokens, corpus by corpus; nothing where `storage.shards` is not `drop`."""
    outputs = project.outputs
    if project.config.storage.shards == "drop":
        for corpus in sorted(name for name in outputs.access.names(outputs.folder / STAGE) if name[0] != "."):
            with contextlib.suppress(FormatError, MissingError):  # it is damaged, and a build makes it again
                yield from _surplus_of(project, corpus)


def _surplus_of(project: Project, corpus: str) -> list[Surplus]:
    outputs, begin, found = project.outputs, 0, list[Surplus]()
    dataset, tokenized = (outputs.current(stage, corpus) for stage in (STAGE, tokenization.STAGE))
    if dataset is None or tokenized is None or not has_same_origin(tokenized, dataset):
        return []
    binary = f"{dataset.facts['prefix']}.bin"
    within = outputs.access.name(dataset.folder / binary)
    for shard, was, size in tokenization.each_shard(
        project,
        corpus,
        tokenized.facts[tokenization.SHARDS],
        lambda one: (one.folder, one.files[BIN], one.access.size(one.folder / BIN) or 0),
    ):
        fact = replace(was, within=within, begin=begin)
        begin += fact.size
        if fact.size and fact.sha256 and (size or fact != was):
            found.append(Surplus(corpus, shard, was, fact, size))
    return found if begin == dataset.files[binary].size else []


def drop(project: Project) -> Iterator[Surplus]:
    """Compare ranges of datasets with the shards that they stand for, and let these drop their own .bin.

    Each range is read once, for its sha256, before anything goes; builds wait only while shards of up to 16 GiB are
    noted. What a build works on stays.
    """
    access = project.outputs.access
    for batch in _batches(surplus(project)):
        compared = list[tuple[Surplus, Stored]]()
        for one in batch:
            stored = access.stored(access.folder / str(one.fact.within), one.fact.begin, one.fact.size)
            if access.store.sha256_of(stored) == one.fact.sha256:
                compared.append((one, stored))
            else:
                yield replace(one, why_not=f"{one.fact.within} has other bytes for it: run `nanoset verify --deep`")
        with collecting(access) as leases:
            idle = [pair for pair in compared if pair[0].corpus not in leases]
            done = access.each(lambda pair: _drop(project.outputs, *pair), idle)
        yield from filter(None, done)
        for one, _ in compared:
            if one.corpus in leases:
                yield replace(one, why_not=f"a build works on it ({leases[one.corpus]})")


def _drop(outputs: OutputRoot, one: Surplus, stored: Stored) -> Surplus | None:
    """Let a shard drop its tokens; None where it or the dataset is another one by now."""
    now, there = outputs.manifest_at(one.shard), outputs.access.store.stat(stored.name)
    if now is None or now.files[BIN] != one.was or there is None or there.mark != stored.mark:
        return None
    try:
        point_into(now, one.fact)
    except OSError as error:  # a full disk: other garbage makes room
        return replace(one, why_not=f"its manifest cannot be written: {error.strerror}; run `nanoset gc` again")
    return one


def _batches(found: Iterator[Surplus]) -> Iterator[list[Surplus]]:
    done = 0

    def number(one: Surplus) -> int:
        nonlocal done
        done += one.fact.size
        return done // _BATCH_BYTES

    yield from (list(batch) for _, batch in groupby(found, number))


def held_by(outputs: OutputRoot, shard: Path) -> list[str]:
    """Return the digest of the dataset that holds the tokens of the shard in a folder; none where they are its own."""
    try:
        manifest = outputs.manifest_at(shard)
    except FormatError:  # what cannot be read is made again from its source
        return []
    return (
        [] if manifest is None else [Path(fact.within).parent.name for fact in manifest.files.values() if fact.within]
    )
