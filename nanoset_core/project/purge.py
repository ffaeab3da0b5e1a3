"""`nanoset purge`: erase documents from everything below the root, and say so in a receipt.

Records of the documents come first (`tokenization.purged`): from then on no shard is made of them. Shards that hold
them are made again out of themselves; a build makes what stands on these; then every version that was made of the old
shards goes, those first that nothing is made of: a purge that is cut short finds the rest by the shards that are left.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nanoset_core.errors import ConfigError, StaleError, StorageError, remedy_for_name
from nanoset_core.execution.processes import run_tasks
from nanoset_core.execution.progress import Progress
from nanoset_core.outputs.erasures import RECEIPTS
from nanoset_core.outputs.manifest import MANIFEST, Manifest, digest_of
from nanoset_core.outputs.root import CURRENT, OutputRoot
from nanoset_core.project.dropping import drop_duplicate_tokens
from nanoset_core.project.existing import all_outputs
from nanoset_core.project.gc import collect
from nanoset_core.project.graph import requested_nodes
from nanoset_core.project.project import Project
from nanoset_core.sampling.hashing import hash_texts
from nanoset_core.stages.dataset.stage import STAGE as DATASETS
from nanoset_core.stages.inventory import stage as raw
from nanoset_core.stages.registry import stage_of
from nanoset_core.stages.shards import purged
from nanoset_core.stages.shards import stage as tokenization
from nanoset_core.stages.shards.document_table import DocumentRows, LineNumbers
from nanoset_core.stages.shards.shards import BIN, DOCUMENTS, shard_recipe
from nanoset_core.stages.shards.shards import STAGE as SHARDS
from nanoset_core.stages.shards.shortening import ShortenTask, shorten
from nanoset_core.stages.views.ids import Ids
from nanoset_core.storage.leases import check_no_build, collecting

_ALL_VERSIONS = 1_000_000_000
_CANNOT_ERASE = "documents cannot be erased"
_RESUME = "run the same purge again: it resumes where it was cut short"


class Row(NamedTuple):
    """A document in a shard."""

    row: int
    """Its number there."""
    file: str
    line: int
    offset: int
    id: str
    tokens: int


@dataclass(frozen=True, slots=True)
class Version:
    """A version of an output that was made of the documents."""

    path: str
    """Below the root."""
    digest: str
    is_current: bool
    files: Mapping[str, Any]
    """Name → bytes and, where it is known, sha256 of each of its own files."""

    @property
    def size(self) -> int:
        """Bytes of its own files."""
        return sum(int(fact["bytes"]) for fact in self.files.values())


@dataclass(frozen=True, slots=True)
class Plan:
    """What a purge erases."""

    ids: tuple[str, ...]
    corpora: tuple[str, ...]
    """That are meant; none: all."""
    rows: Mapping[tuple[str, str], Sequence[Row]]
    """Corpus, and digest of each shard that holds some of the documents → these."""
    current: Mapping[str, Sequence[Row]]
    """Corpus → those of its current shards, each with the number of its line in its file."""
    versions: tuple[Version, ...]
    """Those to erase, each before what it was made of."""


def plan_purge(project: Project, ids: Sequence[str], corpora: Collection[str] = ()) -> Plan:
    """Look for documents by their own ids in all shards below the root; nothing is written.

    Args:
        project: the project.
        ids: of the documents.
        corpora: those that are meant; none: all.

    Raises:
        ConfigError: a corpus with such documents is not in the raw folder any more, so its others would be lost.
        FormatError, StorageError: what a version was made of cannot be told.
    """
    import pyarrow as pa

    wanted, outputs = Ids(pa.array(ids, pa.large_string())), project.outputs
    names = [name for name in sorted(outputs.access.names(outputs.folder / SHARDS)) if name[0] != "."]
    unknown = sorted({*corpora} - {*names})
    if unknown:
        what = "no shards of such a corpus are below the root"
        remedy = remedy_for_name(unknown[0], names, "correct --corpus")
        raise ConfigError(what, found=", ".join(unknown), expected=", ".join(names), remedy=remedy)
    rows: dict[tuple[str, str], Sequence[Row]] = {}
    for name in names if not corpora else sorted(corpora):
        digests = sorted(outputs.digests_in(outputs.folder / SHARDS / name))

        def look(outputs: OutputRoot, place: Path) -> list[Row]:
            return _rows(outputs.manifest_at(place), wanted)

        found = zip(digests, outputs.each_version(look, SHARDS, name, digests), strict=True)
        rows |= {(name, digest): hits for digest, hits in found if hits}
    current, others, there = dict[str, Sequence[Row]](), dict[str, int](), {*raw.corpora(project)}
    for name in dict.fromkeys(name for name, _ in rows):
        tokenized = outputs.current(tokenization.STAGE, name)
        facts: Mapping[str, Any] = {tokenization.SHARDS: (), "documents": 0} if tokenized is None else tokenized.facts
        numbers = LineNumbers.of(facts)
        current[name] = [
            row._replace(line=numbers.in_file(row.file, row.offset, row.line))
            for digest in facts[tokenization.SHARDS]
            for row in rows.get((name, digest), ())
        ]
        if name not in there:
            others[name] = facts["documents"] - len(current[name])
    if gone := [name for name, count in others.items() if count]:
        what = "a corpus with such documents, and others, is not in the raw folder any more"
        remedy = "restore it, or name all of its documents; then run it again"
        raise ConfigError(what, where=outputs.folder, found=", ".join(gone), remedy=remedy)
    return Plan(tuple(ids), tuple(corpora), rows, current, tuple(_made_of(project, rows)))


def _rows(shard: Manifest | None, wanted: Ids) -> list[Row]:
    """Return the documents of a shard that are wanted; none of a shard that is no output."""
    if shard is None:
        return []
    found, table = list[Row](), DocumentRows(shard.path(DOCUMENTS), shard.facts["documents"])
    for group, (begin, _) in enumerate(table.groups):
        column = table.columns(group, ["id"]).column("id").combine_chunks()
        hits = (begin + np.flatnonzero(wanted.mask(column, hash_texts(column)))).tolist()
        found += [
            Row(row, one["file"], one["line"], one["byte_offset"], one["id"], one["tokens"])
            for row, one in zip(hits, table.read(hits), strict=True)
        ]
    return found


def _made_of(project: Project, shards: Collection[tuple[str, str]]) -> Iterator[Version]:
    """Yield all versions that were made of shards, directly or not, and these, each before what it was made of.

    A dataset of whose shards no set is left may be of them, too.
    """
    root = project.outputs
    corpora, tainted = {corpus for corpus, _ in shards}, {digest for _, digest in shards}
    order, places, needs = list[str](), dict[str, Path](), dict[str, set[str]]()
    outputs = all_outputs(root.access.listing())
    for output in outputs:
        digests = sorted(output.versions if output.stage_folder != SHARDS else tainted & output.versions)
        is_dataset = output.stage_folder == DATASETS and output.name in corpora
        for digest, found in zip(
            digests, root.each_version(_needs, output.stage_folder, output.name, digests), strict=True
        ):
            places[digest], needs[digest] = output.folder / digest, found
            if output.stage_folder == SHARDS:
                order.insert(0, digest)
            elif is_dataset and found <= _parents(root, output.folder / digest):
                order.append(digest)
    tainted.update(order)
    while more := [digest for digest, made_of in needs.items() if digest not in tainted and tainted & made_of]:
        order += more
        tainted.update(more)
    current = {output.current for output in outputs}
    for digest in reversed(order):
        if (manifest := root.manifest_at(places[digest])) is not None:
            yield Version(_path(manifest), digest, digest in current, _own_files(manifest))


def _parents(root: OutputRoot, place: Path) -> set[str]:
    manifest = root.manifest_at(place)
    return set() if manifest is None else {*manifest.recipe["parents"].values()}


def _needs(root: OutputRoot, place: Path) -> set[str]:
    """Return the digests of what a version was made from and points at; of a shard none."""
    manifest = root.manifest_at(place)
    stage = None if manifest is None else stage_of(manifest.stage, manifest.name)
    if manifest is None or manifest.stage == SHARDS:
        return set()
    return {*manifest.recipe["parents"].values(), *(() if stage is None else stage.references(root, manifest))}


def _path(manifest: Manifest) -> str:
    return f"{manifest.stage}/{manifest.name}/{manifest.digest}"


def _own_files(manifest: Manifest) -> dict[str, Any]:
    facts = ((name, fact) for name, fact in manifest.files.items() if fact.within is None)
    return {name: {"bytes": fact.size, "sha256": fact.sha256} for name, fact in facts}


def purge(project: Project, plan: Plan, build: Callable[[], None], day: str) -> Path:
    """Erase what a plan names, and return where the receipt lies; run again, it goes on where it was cut short.

    Args:
        project: the project.
        plan: of `plan_purge`, just now.
        build: builds the project.
        day: for the receipt.

    Raises:
        StaleError: after the build something that nanoset.yaml asks for is still of the old shards.
        StorageError: a build works on what is to be erased. As `build` and `plan_purge`.
    """
    outputs = project.outputs
    check_no_build(outputs.access, _CANNOT_ERASE, "then purge again: nothing was changed")
    path = _receipt(outputs, plan.ids, plan.corpora)
    receipt = _begun(outputs, path, plan, day)
    for corpus in plan.current:
        _shorten(project, corpus, plan)
    build()
    seen = _shards(outputs)
    _check_fresh(project, again := plan_purge(project, plan.ids, plan.corpora))
    list(drop_duplicate_tokens(project))
    _check_apart(project, again)
    _erase(project, again, seen)
    collect(project, keep=_ALL_VERSIONS, unfinished=True)
    receipt["erased"] |= {one.path: one.files for one in again.versions}
    now = (output.folder / one for output in all_outputs(outputs.access.listing()) for one in sorted(output.versions))
    there = {*receipt["there"]}
    made = filter(None, map(outputs.manifest_at, (folder for folder in now if folder.name not in there)))
    receipt["made"] = {_path(one): _own_files(one) for one in made}
    del receipt["there"]
    outputs.access.write(path, _bytes(receipt))
    outputs.access.remove(_unfinished(path))
    return path


def _begun(outputs: OutputRoot, path: Path, plan: Plan, day: str) -> dict[str, Any]:
    """Note what is about to be erased, and what a purge of the same ids that was cut short noted; return it."""
    ids, corpora = sorted(map(purged.id_digest, plan.ids)), sorted(plan.corpora)
    receipt: dict[str, Any] = {"nanoset_purge": 1, "day": day, "ids": ids, "corpora": corpora}
    receipt |= _read(outputs, path) or {"documents": [], "erased": {}}
    there = [digest for output in all_outputs(outputs.access.listing()) for digest in output.versions]
    receipt |= {"there": sorted(there)} | (_read(outputs, _unfinished(path)) or {})
    documents = receipt["documents"] + [
        {"corpus": corpus, "file": row.file, "line": row.line, "tokens": row.tokens}
        for corpus, rows in plan.current.items()
        for row in rows
    ]
    receipt["documents"] = [*{(one["corpus"], one["file"], one["line"]): one for one in documents}.values()]
    receipt["erased"] |= {one.path: one.files for one in plan.versions}
    outputs.access.write(_unfinished(path), _bytes(receipt))
    return receipt


def _bytes(receipt: Mapping[str, Any]) -> bytes:
    return json.dumps(receipt, indent=1, sort_keys=True).encode() + b"\n"


def _read(outputs: OutputRoot, path: Path) -> dict[str, Any] | None:
    try:
        return dict(json.loads(outputs.access.read_current(path)))
    except FileNotFoundError:
        return None


def _unfinished(path: Path) -> Path:
    """Return where a receipt lies until all that it names is erased."""
    return path.with_name(f".{path.name}")


def is_unfinished(project: Project, ids: Iterable[str], corpora: Iterable[str]) -> bool:
    """Return whether a purge of these ids was begun, and cut short."""
    return _read(project.outputs, _unfinished(_receipt(project.outputs, ids, corpora))) is not None


def _receipt(outputs: OutputRoot, ids: Iterable[str], corpora: Iterable[str]) -> Path:
    return outputs.folder / RECEIPTS / f"{digest_of([sorted(map(purged.id_digest, ids)), sorted(corpora)])}.json"


def _shorten(project: Project, corpus: str, plan: Plan) -> None:
    """Note the documents of a corpus, and make its current shards that hold some again, out of themselves."""
    outputs = project.outputs
    ids = {purged.id_digest(row.id) for (name, _), rows in plan.rows.items() if name == corpus for row in rows}
    tokenized = outputs.current(tokenization.STAGE, corpus)
    parent = None if tokenized is None else tokenized.recipe["parents"]["inventory"]
    inventory = None if parent is None else tokenization.inventory_at(outputs, corpus, parent)
    if tokenized is None or inventory is None or tokenized.recipe["version"] != tokenization.VERSION:
        purged.note(outputs, corpus, (), ids)  # these are left out by their ids when the corpus is tokenized
        return
    size, digests = tokenized.recipe["options"]["range_bytes"], tokenized.facts[tokenization.SHARDS]
    held = [(number, rows) for number, one in enumerate(digests) if (rows := plan.rows.get((corpus, one)))]
    ranges = tokenization.ranges_of(project, inventory, size)
    places = [
        purged.place_of(ranges[number].pieces, row.file, row.line, row.offset) for number, rows in held for row in rows
    ]
    purged.note(outputs, corpus, places, ids)
    ranges = tokenization.ranges_of(project, inventory, size)
    shards = tokenization.some_shards(project, corpus, [digests[number] for number, _ in held])
    tasks = []
    for shard, (number, rows) in zip(shards, held, strict=True):
        recipe = shard_recipe(corpus, ranges[number], shard.recipe["options"])
        left_out = np.array([row.row for row in rows], np.int64)
        tasks.append(ShortenTask(outputs, recipe, shard, ranges[number].files, left_out))
    for done, _ in enumerate(run_tasks(shorten, tasks, project.config.workers, project.executor), 1):
        project.listener(Progress("purge", corpus, done, len(tasks), "shards"))


def _check_fresh(project: Project, plan: Plan) -> None:
    """Raise StaleError where an output that nanoset.yaml asks for still is of the old shards."""
    nodes = requested_nodes(project.config, raw.corpora(project))
    asked = {f"{node.stage.layout.folder}/{node.name}" for node in nodes}
    stale = [one.path for one in plan.versions if one.is_current and one.path.rpartition("/")[0] in asked]
    if stale:
        check_no_build(project.outputs.access, _CANNOT_ERASE, f"then {_RESUME}")
        what = "outputs that hold the documents were not made again"
        remedy = "mend what `nanoset status` shows, and run it again"
        raise StaleError(what, where=project.outputs.folder, found=", ".join(stale), remedy=remedy)


def _check_apart(project: Project, plan: Plan) -> None:
    """Raise StorageError where tokens of a current shard lie in a dataset that is to be erased."""
    outputs, erased = project.outputs, {one.path for one in plan.versions}
    for corpus in plan.current:
        tokenized = outputs.current(tokenization.STAGE, corpus)
        digests = () if tokenized is None else tokenized.facts[tokenization.SHARDS]
        places = tokenization.each_shard(project, corpus, digests, lambda shard: shard.files[BIN].within)
        if inside := {place for place in places if place is not None and place.rpartition("/")[0] in erased}:
            what, remedy = "tokens of shards lie in what is to be erased", "set storage.shards: drop, and run it again"
            raise StorageError(what, where=outputs.folder, found=", ".join(sorted(inside)), remedy=remedy)


def _shards(outputs: OutputRoot) -> set[tuple[str, str]]:
    """Return corpus and digest of all shards."""
    found = (output for output in all_outputs(outputs.access.listing()) if output.stage_folder == SHARDS)
    return {(output.name, digest) for output in found for digest in output.versions}


def _erase(project: Project, plan: Plan, seen: Collection[tuple[str, str]]) -> None:
    """Remove versions from every reader and from the disk or bucket, while no build can begin.

    seen: shards that were there before the documents were looked for.
    """
    access = project.outputs.access
    with collecting(access) as leases:
        busy = {one.path for one in plan.versions if one.path.split("/")[1] in leases}
        busy |= {
            f"{SHARDS}/{name}/{digest}" for name, digest in _shards(project.outputs) - {*seen} if name in plan.current
        }
        if busy:
            check_no_build(access, _CANNOT_ERASE, f"then {_RESUME}")
            # A build made shards since the purge began, and has ended.
            raise StorageError(
                "a build made outputs from the documents that are to be erased, while the purge was under way",
                where=access.folder,
                found=", ".join(sorted(busy)),
                expected="no build since the purge began",
                remedy=_RESUME,
            )
        for one in plan.versions:
            folder = access.folder / one.path
            if one.is_current:  # nothing asks for this output any more
                access.remove(folder.parent / CURRENT)
                (folder.parent / "current").unlink(missing_ok=True)
            for rest in access.withdraw(folder, MANIFEST, lambda: False) or ():
                shutil.rmtree(rest)
