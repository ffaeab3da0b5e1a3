"""indexed: a corpus's shards → one .bin/.idx, as Megatron-LM's preprocess_data.py would have written it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nanoset_core.errors import MissingError
from nanoset_core.execution.progress import Meter
from nanoset_core.formats.indexed.builder import merge_heard
from nanoset_core.formats.indexed.composing import StoredPair, write_merged_idx
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import Hashed
from nanoset_core.outputs.manifest import FileFact, Manifest, Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project, holding
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.report import Report, Run, run_here
from nanoset_core.stages.shards import stage as tokenization
from nanoset_core.stages.shards.framing import pair_name
from nanoset_core.stages.shards.purged import OPTION as PURGED
from nanoset_core.stages.shards.shard_tokens import altered, keep_tokens
from nanoset_core.stages.shards.shards import BIN, TOKENS
from nanoset_core.stages.shards.shards import STAGE as SHARDS
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import (
    CorpusStage,
    Estimated,
    Key,
    Layout,
    Node,
    Summary,
    check_recipe,
    counted,
    require,
)
from nanoset_core.stages.text_estimate import TextEstimate
from nanoset_core.storage.atomic import sha256_file
from nanoset_core.storage.local import LocalStore
from nanoset_core.storage.store import PieceCheck, PieceDigest, Stored, pieces_text, read_pieces

VERSION = 1
STAGE = "datasets"
PIECES = ".pieces"
"""Ending of the file that lists the sha256 of what a .bin was joined of."""
_DATASET_OPTIONS = ("tokenization", "preset")


@holding
def index(project: Project, corpus: str) -> Manifest:
    """Merge a corpus's current shards, and make the dataset the current one."""
    key = Key(corpus)
    tokenized = require(project, TOKENIZED, key)
    parents = {"inventory": tokenized.recipe["parents"]["inventory"]}
    check_recipe(tokenized, TOKENIZED.recipe(project, key, parents))
    recipe = DATASET.recipe(project, key, parents)
    config = project.config
    prefix = pair_name(config.tokenization.preset, corpus, config.documents_of(corpus).text_key)

    def write(folder: Path) -> tuple[dict[str, Any], dict[str, str | FileFact]]:
        if project.outputs.access.has_copies:
            files = _compose(project, tokenized, recipe, folder, prefix)
        else:
            files = _merge(project, tokenized, recipe, folder, prefix)
        counts = {name: tokenized.facts[name] for name in ("documents", "sequences", "tokens", "rejected", "faults")}
        return {"prefix": prefix, **counts, "dtype": recipe.options["dtype"]}, files

    return project.outputs.make_current(project.outputs.commit(recipe, write))


def _merge(
    project: Project, tokenized: Manifest, recipe: Recipe, folder: Path, prefix: str
) -> dict[str, str | FileFact]:
    """Merge the shards in a folder; return the sha256 of the files there."""
    shards, pieces = _apart_from(project, tokenized, project.outputs.place(recipe)), list[PieceDigest]()
    if any(shard.files[BIN].within for shard in shards):
        pieces = [PieceDigest(_sha256(shard), shard.files[BIN].size) for shard in shards]
    parts = [(str(shard.path(TOKENS)), shard.place(BIN)) for shard in shards]
    size = tokenized.facts["tokens"] * np.dtype(tokenized.recipe["options"]["dtype"]).itemsize
    meter = Meter(project.listener, "indexed_dataset", tokenized.name, size)
    merge_heard(parts, folder / prefix, meter.advance)
    return {
        f"{prefix}.bin": _checked_sha256(folder / f"{prefix}.bin", pieces),
        f"{prefix}.idx": sha256_file(folder / f"{prefix}.idx"),
    }


def _apart_from(project: Project, tokenized: Manifest, place: Path) -> Sequence[Manifest]:
    """Return the shards of a corpus; those with tokens in a folder that is about to be replaced get theirs back."""
    shards = tokenization.current_shards(project, tokenized)
    inside = [shard for shard in shards if shard.place(BIN)[0].parent == place]
    for shard in inside:
        keep_tokens(shard)
    return tokenization.current_shards(project, tokenized) if inside else shards


def _checked_sha256(path: Path, pieces: Sequence[PieceDigest]) -> str:
    """Return the sha256 of a file; StorageError where its pieces, if any are given, are not those that were written."""
    if not pieces:
        return sha256_file(path)
    check, whole = PieceCheck(pieces), hashlib.sha256()
    store, name = LocalStore(path.parent), path.name
    for block in store.blocks(stored) if (stored := store.stat(name)) is not None else ():
        check.add(block)
        whole.update(block)
    if (fault := check.fault()) is not None:
        raise altered(path, fault)
    return whole.hexdigest()


def _sha256(shard: Manifest) -> str:
    return shard.files[BIN].sha256 or shard.access.sha256(shard.folder / BIN)


def _compose(
    project: Project, tokenized: Manifest, recipe: Recipe, folder: Path, prefix: str
) -> dict[str, str | FileFact]:
    """Merge the shards within their store, where the .bin stays; return what is known of the files.

    The index, and the digests of the pieces of a .bin that was not read from end to end, are written to the folder.
    """
    outputs, store = project.outputs, project.outputs.access.store
    pairs = _stored_shards(project, tokenized)
    outputs.access.make_room(sum(pair.idx.size for pair in pairs), f"the .idx of {tokenized.name}")
    write_merged_idx(folder / f"{prefix}.idx", store, pairs, np.dtype(recipe.options["dtype"]))
    files: dict[str, str | FileFact] = {f"{prefix}.idx": sha256_file(folder / f"{prefix}.idx")}
    place, name, pieces = outputs.access.name(outputs.place(recipe)), f"{prefix}.bin", None
    outputs.invalidate(recipe)
    size = sum(pair.bin.size for pair in pairs)
    sources, digests = _joined(pairs)
    meter = Meter(project.listener, "indexed_dataset", tokenized.name, size)
    sha256 = store.compose(f"{place}/{name}", sources, sha256=digests, joined=meter.advance)
    if sha256 is None:
        pieces = f"{name}{PIECES}"
        (folder / pieces).write_bytes(pieces_text(PieceDigest(pair.sha256, pair.bin.size) for pair in pairs))
    return files | {name: FileFact(size, sha256, pieces)}


def _joined(pairs: Sequence[StoredPair]) -> tuple[list[Stored], list[str | None]]:
    """Return the tokens of datasets with their sha256; ranges that lie back to back in one object as one, without."""
    sources, digests = list[Stored](), list[str | None]()
    for pair in pairs:
        last, one = sources[-1] if sources else None, pair.bin
        if last is not None and (last.name, last.mark, last.begin + last.size) == (one.name, one.mark, one.begin):
            sources[-1], digests[-1] = replace(last, size=last.size + one.size), None
        else:
            sources.append(one)
            digests.append(pair.sha256)
    return sources, digests


def _stored_shards(project: Project, tokenized: Manifest) -> list[StoredPair]:
    """Return the shards of a corpus as its store has them; of each little is kept, since there may be 100,000."""
    access = project.outputs.access
    place = f"{SHARDS}/{tokenized.name}"

    def tokens(shard: Manifest) -> tuple[str, str, int, int, int, str]:
        path, begin = shard.place(BIN)
        names = access.name(path), access.name(shard.folder / f"{TOKENS}.idx")
        return *names, begin, shard.files[BIN].size, int(shard.facts["sequences"]), _sha256(shard)

    known = tokenization.each_shard(project, tokenized.name, tokenized.facts[SHARDS], tokens)
    names = {name for found in known for name in found[:2]}
    stored = {found.name: found for found in access.store.list(place) if found.name in names}
    for name in sorted(names - stored.keys()):
        if (found := access.store.stat(name)) is None:
            raise MissingError("the object is gone", where=access.store.url(name), remedy="run `nanoset build`")
        stored[name] = found
    return [
        StoredPair(replace(stored[binary], begin=begin, size=size), stored[idx], sequences, sha256)
        for binary, idx, begin, size, sequences, sha256 in known
    ]


def copy_tokens(outputs: OutputRoot, dataset: Manifest, recipe: Recipe, folder: Path, own: str) -> dict[str, FileFact]:
    """Let a bucket copy the .bin of a dataset to a file of another output; return what is known of that.

    `folder`: where the output's small files are written, the list of its pieces among them.
    """
    name, store, at = f"{dataset.facts['prefix']}.bin", outputs.access.store, outputs.access.name
    fact = dataset.files[name]
    outputs.invalidate(recipe)
    if (found := store.stat(at(dataset.folder / name))) is None:
        raise MissingError("the object is gone", where=dataset.url(name), remedy="run `nanoset build`")
    store.compose(f"{at(outputs.place(recipe))}/{own}", [found], sha256=[fact.sha256])
    if fact.pieces is None:
        return {own: fact}
    (folder / f"{own}{PIECES}").write_bytes(dataset.path(fact.pieces).read_bytes())
    return {own: replace(fact, pieces=f"{own}{PIECES}")}


def write_tokens(
    outputs: OutputRoot, recipe: Recipe, folder: Path, own: str, blocks: Hashed
) -> dict[str, str | FileFact]:
    """Write a .bin of another output: in a bucket while it is made, as it need not fit this machine."""
    if outputs.access.has_copies:
        outputs.invalidate(recipe)
        outputs.access.store.put_parts(f"{outputs.access.name(outputs.place(recipe))}/{own}", blocks)
        return {own: FileFact(blocks.size, blocks.sha256)}
    with (folder / own).open("xb") as file:
        file.writelines(blocks)
    return {own: blocks.sha256}


def has_room_for_tokens(*datasets: Manifest) -> bool:
    """Return whether copies of the tokens of datasets take no more than a quarter of `storage.scratch_mib`, if any."""
    size = sum(dataset.files[f"{dataset.facts['prefix']}.bin"].size for dataset in datasets)
    return all(one.access.capacity is None or size <= one.access.capacity // 4 for one in datasets)


def bring_tokens(dataset: Manifest) -> None:
    """Copy the tokens of a dataset in a bucket that are all read now, and by others later, where they have room."""
    if has_room_for_tokens(dataset):
        dataset.path(f"{dataset.facts['prefix']}.bin")


def opened(dataset: Manifest, *, is_sampled: bool = False) -> MMapIndexedDataset:
    """Open a dataset for random access, or to read little of it; see `readable`."""
    return MMapIndexedDataset.below(replace(dataset.access, is_sampled=is_sampled), readable(dataset))


def readable(dataset: Manifest) -> str:
    """Return a dataset's prefix, to be opened by its access: its index is local, tokens are fetched when read."""
    prefix, name = dataset.facts["prefix"], f"{dataset.facts['prefix']}.bin"
    dataset.path(f"{prefix}.idx")
    copy = dataset.folder / name
    if copy.is_file() and copy.stat().st_size != dataset.files[name].size:
        dataset.path(name)
    return str(dataset.folder / prefix)


def pieces_of(dataset: Manifest) -> Sequence[PieceDigest]:
    """Return digests of the pieces that its .bin was joined from within a store; none where it was written whole."""
    listed = dataset.files[f"{dataset.facts['prefix']}.bin"].pieces
    if listed is None:
        return ()
    try:
        return read_pieces(dataset.path(listed))
    except FileNotFoundError as error:
        raise MissingError(
            "a file of an output is gone", where=dataset.url(listed), remedy="run `nanoset build`"
        ) from error


def shards_of(outputs: OutputRoot, dataset: Manifest, *, strict: bool = False) -> Manifest:
    """Return the set of shards that a dataset was merged from, which says where its documents came from.

    Any set of the same files and settings will do, however the shards were cut.

    Args:
        outputs: where both are.
        dataset: the dataset's manifest.
        strict: raise where a manifest that may be that of the set cannot be read; otherwise it is skipped.

    Raises:
        MissingError: there is none any more.
        FormatError: the current set cannot be read, or, with `strict`, one that was looked at.
    """
    current = outputs.current(tokenization.STAGE, dataset.name)
    if current is not None and has_same_origin(current, dataset):
        return current
    for found in outputs.versions(tokenization.STAGE, dataset.name, strict=strict):
        if has_same_origin(found, dataset):
            return found
    raise MissingError(
        "the shards that the dataset was merged from are gone",
        where=outputs.access.url(outputs.folder / tokenization.STAGE / dataset.name),
        expected=f"those of the inventory {dataset.recipe['parents']['inventory']}",
        remedy="run `nanoset build`: it makes them again",
    )


def has_same_origin(tokenized: Manifest, dataset: Manifest) -> bool:
    """Return whether a set of shards is of the same files and settings as a dataset, so that it holds its tokens."""
    options = {key: value for key, value in dataset.recipe["options"].items() if key not in _DATASET_OPTIONS}
    options.setdefault(PURGED, None)
    return (
        tokenized.recipe["parents"] == dataset.recipe["parents"]
        and tokenized.recipe["version"] == dataset.recipe["options"]["tokenization"]
        and {key: tokenized.recipe["options"].get(key) for key in options} == options
    )


class DatasetStage(CorpusStage, Estimated):
    """A corpus as one .bin and .idx."""

    layout = Layout(STAGE, uploaded_first=(".bin", ".idx", f".bin{PIECES}"))
    version = VERSION
    estimated_as = "datasets"

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        return {"inventory": Node(INVENTORY, key), "tokenized": Node(TOKENIZED, key)}

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        """Return the recipe by files and settings alone, since the cut into shards leaves no trace in a dataset."""
        versions = {"tokenization": TOKENIZED.version, "preset": project.config.tokenization.preset}
        options = tokenization.token_options(project, key.subject) | versions
        return Recipe(STAGE, key.subject, VERSION, {"inventory": parents["inventory"]}, options)

    def make(self, project: Project, key: Key) -> Manifest:
        return index(project, key.subject)

    def disk_bytes(self, project: Project, key: Key, text_of: Callable[[str], TextEstimate]) -> int:
        return int(text_of(key.subject).tokens * project.tokenizer.dtype.itemsize)

    def verify(self, project: Project, key: Key, *, deep: bool = False, run: Run = run_here) -> Report:
        from nanoset_core.stages.shards.verify import verify_indexed

        return verify_indexed(project, key.subject, deep, run)

    def show(self, project: Project, manifest: Manifest) -> Summary:
        figures = counted(manifest, "documents", "tokens")
        figures["rejected"] = manifest.facts["rejected"] + manifest.facts["faults"]
        return Summary(figures)

    def references(self, outputs: OutputRoot, manifest: Manifest) -> Iterable[str]:
        try:
            # Strictly: shards of a set that cannot be read must not pass for shards that nothing needs.
            return [shards_of(outputs, manifest, strict=True).digest]
        except MissingError:
            return []


DATASET = DatasetStage()
