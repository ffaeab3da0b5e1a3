"""`nanoset purge`: erase documents from everything below the root, and write a receipt.

1. Record the documents (`stages/shards/purged.py`): from then on no shard is made of them.
2. Make current shards that hold them again, out of themselves: no text is read.
3. Build, so that everything that nanoset.yaml requests is made of the new shards.
4. Erase every version that was made of the old shards, beginning with those that nothing is made of. A purge that is
   cut short finds the others by the shards that remain.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nanoset_core.errors import StaleError, StorageError
from nanoset_core.execution.processes import run_tasks
from nanoset_core.execution.progress import Progress
from nanoset_core.outputs.manifest import MANIFEST
from nanoset_core.outputs.root import CURRENT, OutputRoot
from nanoset_core.project.dropping import drop_duplicate_tokens
from nanoset_core.project.existing import all_outputs
from nanoset_core.project.gc import collect
from nanoset_core.project.graph import requested_nodes
from nanoset_core.project.project import Project
from nanoset_core.project.purge_plan import (
    DocumentInShard,
    PurgePlan,
    ShardKey,
    TaintedVersion,
    plan_purge,
)
from nanoset_core.project.purge_receipt import PurgeReceipt
from nanoset_core.stages.inventory.corpora import corpus_names
from nanoset_core.stages.inventory.make import inventory_at
from nanoset_core.stages.shards import purged
from nanoset_core.stages.shards.make import BIN, SHARDS, shard_recipe
from nanoset_core.stages.shards.shard_sets import each_shard, ranges_of, some_shards
from nanoset_core.stages.shards.shortening import ShortenTask, shorten
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.leases import check_no_build, collecting

_ALL_VERSIONS = 1_000_000_000
_CANNOT_ERASE = "documents cannot be erased"
_RESUME = "run the same purge again: it resumes where it was cut short"


def purge(project: Project, plan: PurgePlan, build: Callable[[], None], day: str) -> Path:
    """Erase what a plan names, and return the path of the receipt.

    Called again after an interruption, it resumes.

    Args:
        project: The project.
        plan: What `plan_purge` just returned.
        build: Builds the project.
        day: Date for the receipt.

    Raises:
        StaleError: After the build, an output that nanoset.yaml requests is still made of the old
            shards.
        StorageError: A build works on what is to be erased; or as `plan_purge` raises.
    """
    outputs = project.outputs
    check_no_build(outputs.access, _CANNOT_ERASE, "then purge again: nothing was changed")
    receipt = PurgeReceipt(outputs, plan.ids, plan.corpora)
    values = receipt.begin(plan, day)

    # Replace everything that is current.
    for corpus in plan.current:
        _shorten_shards(project, corpus, plan)
    build()

    # Look again: the build may have made more versions of the old shards.
    shards_before_search = _stored_shards(outputs)
    remaining = plan_purge(project, plan.ids, plan.corpora)
    _check_nothing_requested(project, remaining)
    list(drop_duplicate_tokens(project))
    _check_tokens_are_elsewhere(project, remaining)

    _erase(project, remaining, shards_before_search)
    # What killed builds left unfinished may hold the documents, too.
    collect(project, keep=_ALL_VERSIONS, unfinished=True)
    receipt.complete(values, remaining)
    return receipt.path


@dataclass(frozen=True, slots=True)
class _ShardToShorten:
    """A current shard that holds documents to be erased."""

    number: int
    """Its number among the corpus's shards."""
    digest: str
    documents: tuple[DocumentInShard, ...]


def _shorten_shards(project: Project, corpus: str, plan: PurgePlan) -> None:
    """Record the erased documents of a corpus, and rewrite the shards that contain some."""
    outputs = project.outputs
    id_digests = _id_digests(plan, corpus)
    tokenized = outputs.current(TOKENIZED.layout.folder, corpus)
    inventory = None
    if tokenized is not None:
        inventory = inventory_at(outputs, corpus, tokenized.recipe["parents"]["inventory"])
    if tokenized is None or inventory is None or tokenized.recipe["version"] != TOKENIZED.version:
        # Its shards will be made of text: their documents are left out by their ids.
        purged.add_record(outputs, corpus, (), id_digests)
        return

    # Record where the documents are in the text. Ranges depend on that: their recipes are those
    # without them.
    to_shorten = _shards_to_shorten(plan, corpus, tokenized.facts[SHARDS])
    range_bytes = tokenized.recipe["options"]["range_bytes"]
    ranges = ranges_of(project, inventory, range_bytes)
    places = []
    for shard in to_shorten:
        pieces = ranges[shard.number].pieces
        for document in shard.documents:
            places.append(purged.place_of(pieces, document.file, document.line, document.offset))
    purged.add_record(outputs, corpus, places, id_digests)
    ranges = ranges_of(project, inventory, range_bytes)

    tasks = []
    manifests = some_shards(project, corpus, [shard.digest for shard in to_shorten])
    for shard, manifest in zip(to_shorten, manifests, strict=True):
        source = ranges[shard.number]
        recipe = shard_recipe(corpus, source, manifest.recipe["options"])
        rows = np.array([document.row for document in shard.documents], np.int64)  # (n_erased,)
        tasks.append(ShortenTask(outputs, recipe, manifest, source.files, rows))
    results = run_tasks(shorten, tasks, project.config.workers, project.executor)
    for n_done, _ in enumerate(results, start=1):
        project.listener(Progress("purge", corpus, n_done, len(tasks), "shards"))


def _id_digests(plan: PurgePlan, corpus: str) -> set[str]:
    """Return the digests of the ids of a corpus's documents."""
    digests: set[str] = set()
    for shard, documents in plan.documents.items():
        if shard.corpus == corpus:
            digests.update(purged.id_digest(document.id) for document in documents)
    return digests


def _shards_to_shorten(
    plan: PurgePlan, corpus: str, digests: Sequence[str]
) -> list[_ShardToShorten]:
    """Return the current shards of a corpus that hold documents to be erased."""
    shards = []
    for number, digest in enumerate(digests):
        documents = plan.documents.get(ShardKey(corpus, digest))
        if documents:
            shards.append(_ShardToShorten(number, digest, tuple(documents)))
    return shards


def _check_nothing_requested(project: Project, plan: PurgePlan) -> None:
    """Check that no current output that nanoset.yaml requests is made of the old shards.

    Raises:
        StaleError: One is: the build failed.
        StorageError: One is: another build is making it.
    """
    nodes = requested_nodes(project.config, corpus_names(project))
    requested = {f"{node.stage.layout.folder}/{node.name}" for node in nodes}
    stale = []
    for version in plan.versions:
        output, _, _ = version.path.rpartition("/")
        if version.is_current and output in requested:
            stale.append(version.path)
    if stale:
        check_no_build(project.outputs.access, _CANNOT_ERASE, f"then {_RESUME}")
        raise StaleError(
            "outputs that hold the documents were not made again",
            where=project.outputs.folder,
            found=", ".join(stale),
            remedy="mend what `nanoset status` shows, and run it again",
        )


def _check_tokens_are_elsewhere(project: Project, plan: PurgePlan) -> None:
    """Check that no current shard has its tokens in a dataset that is to be erased.

    Raises:
        StorageError: One has.
    """
    outputs = project.outputs
    erased_folders = {version.path for version in plan.versions}
    for corpus in plan.current:
        tokenized = outputs.current(TOKENIZED.layout.folder, corpus)
        if tokenized is None:
            continue
        digests = tokenized.facts[SHARDS]
        holders = each_shard(project, corpus, digests, lambda shard: shard.files[BIN].within)
        inside = {
            file
            for file in holders
            if file is not None and file.rpartition("/")[0] in erased_folders
        }
        if inside:
            raise StorageError(
                "tokens of shards lie in what is to be erased",
                where=outputs.folder,
                found=", ".join(sorted(inside)),
                remedy="set storage.shards: drop, and run it again",
            )


def _stored_shards(outputs: OutputRoot) -> set[ShardKey]:
    """Return all shards below a root."""
    shards: set[ShardKey] = set()
    for output in all_outputs(outputs.access.listing()):
        if output.stage_folder == SHARDS:
            shards.update(ShardKey(output.name, digest) for digest in output.versions)
    return shards


def _erase(project: Project, plan: PurgePlan, shards_before_search: Collection[ShardKey]) -> None:
    """Remove versions from every reader and from the disk or bucket, while no build can begin.

    Args:
        project: The project.
        plan: What is erased.
        shards_before_search: Shards that existed before the documents were looked for.

    Raises:
        StorageError: A build works on what is to be erased, or made shards since then.
    """
    access = project.outputs.access
    with collecting(access) as leases:
        busy = {version.path for version in plan.versions if version.path.split("/")[1] in leases}
        for shard in _stored_shards(project.outputs).difference(shards_before_search):
            if shard.corpus in plan.current:
                busy.add(f"{SHARDS}/{shard.corpus}/{shard.digest}")
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
        for version in plan.versions:
            _erase_version(access, version)


def _erase_version(access: FileAccess, version: TaintedVersion) -> None:
    """Remove one version from every reader, and then its files."""
    folder = access.folder / version.path
    if version.is_current:  # nothing requests this output any more
        access.remove(folder.parent / CURRENT)
        (folder.parent / "current").unlink(missing_ok=True)
    leftovers = access.withdraw(folder, MANIFEST, lambda: False) or ()
    for leftover in leftovers:
        shutil.rmtree(leftover)
