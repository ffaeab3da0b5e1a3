"""`nanoset purge`: erase documents from everything below the root, and write a receipt.

1. Record which documents are erased (`stages/shards/purged.py`). From then on, builds leave them
   out of new shards.
2. Replace the current shards that contain them by shards without them. These are copied from the
   old shards, so that no text is read.
3. Build, so that everything that nanoset.yaml requests is made from the new shards.
4. Erase the old shards, and every version that was made from them. Versions are erased before what
   they were made from: if a purge is interrupted, the next one finds the remaining versions by the
   old shards, which are erased last.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nanoset_core.errors import StaleError, StorageError
from nanoset_core.outputs.manifest import MANIFEST, Manifest
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
from nanoset_core.stages.per_shard import make_per_shard
from nanoset_core.stages.shards import purged
from nanoset_core.stages.shards.make import BIN, SHARDS, shard_recipe
from nanoset_core.stages.shards.shard_sets import each_shard, ranges_of, some_shards
from nanoset_core.stages.shards.shortening import ShortenedShards, ShortenTask
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.leases import check_no_build, collecting
from nanoset_core.storage.removals import remove_file, withdraw_output

_ALL_VERSIONS = 1_000_000_000
"""More old versions than there are, so that a collection keeps all of them."""
_CANNOT_ERASE = "documents cannot be erased"
_RESUME = "run the same purge again: it resumes where it was cut short"


def purge(project: Project, plan: PurgePlan, build: Callable[[], None], day: str) -> Path:
    """Erase documents from all outputs, and return the path of the receipt that lists them.

    If a purge is interrupted, calling this function again resumes it.

    Args:
        project: The project.
        plan: The documents, and the versions of outputs that contain them; as `plan_purge` just
            returned it.
        build: Builds the project.
        day: Date for the receipt.

    Raises:
        StaleError: After the build, the current version of an output that nanoset.yaml requests was
            still made from the old shards.
        ConfigError: A corpus with such documents is not in the raw folder any more.
        StorageError: A build works on what is to be erased, or an output is damaged.
    """
    outputs = project.outputs
    check_no_build(outputs.access, _CANNOT_ERASE, "then purge again: nothing was changed")
    receipt = PurgeReceipt(outputs, plan.ids, plan.corpora)
    unfinished_record = receipt.write_unfinished(plan, day)

    # Replace the current version of everything that contains the documents.
    for corpus in plan.current:
        _shorten_shards(project, corpus, plan)
    build()

    # Search again: another build may have made more versions from the old shards in the meantime.
    shards_before_search = _stored_shards(outputs)
    remaining = plan_purge(project, plan.ids, plan.corpora)
    _check_requested_were_rebuilt(project, remaining)

    # Shards may refer to tokens in an old dataset, which is about to be erased: let them refer to
    # the current dataset instead.
    list(drop_duplicate_tokens(project))
    _check_tokens_are_elsewhere(project, remaining)

    # Erase the old versions. Unfinished files of killed builds may contain the documents, too.
    _erase(project, remaining, shards_before_search)
    collect(project, keep=_ALL_VERSIONS, unfinished=True)
    receipt.complete(unfinished_record, remaining)
    return receipt.path


@dataclass(frozen=True, slots=True)
class _ShardToShorten:
    """A current shard that contains documents to be erased."""

    number: int
    """Its number among the corpus's shards."""
    digest: str
    """Its digest."""
    documents: tuple[DocumentInShard, ...]
    """The documents to be erased."""


def _shorten_shards(project: Project, corpus: str, plan: PurgePlan) -> None:
    """Record the erased documents of a corpus, and make its current shards without them.

    Args:
        project: The project.
        corpus: Name of the corpus.
        plan: The documents to erase.
    """
    outputs = project.outputs
    id_digests = _id_digests(plan, corpus)

    # Shards can only be shortened if they are current, were made by this version of the stage, and
    # the inventory of the text that they were made from still exists.
    tokenized = outputs.current(TOKENIZED.layout.folder, corpus)
    inventory = None
    if tokenized is not None:
        inventory = inventory_at(outputs, corpus, tokenized.recipe["parents"]["inventory"])
    if tokenized is None or inventory is None or tokenized.recipe["version"] != TOKENIZED.version:
        # The build will tokenize all text again, and leave out the documents by their ids.
        purged.add_record(outputs, corpus, (), id_digests)
        return

    # Record where the documents are in the raw text. This must be done first: if the purge is
    # interrupted, a build must not make shards with these documents again.
    to_shorten = _shards_to_shorten(plan, corpus, tokenized.facts[SHARDS])
    range_bytes = tokenized.recipe["options"]["range_bytes"]
    ranges = ranges_of(project, inventory, range_bytes)
    places = []
    for shard in to_shorten:
        pieces = ranges[shard.number].pieces
        for document in shard.documents:
            places.append(purged.place_of(pieces, document.file, document.line, document.offset))
    purged.add_record(outputs, corpus, places, id_digests)

    # Make the shortened shards in parallel. Ranges now leave out the recorded places, so that they
    # give the recipes of the new shards.
    ranges = ranges_of(project, inventory, range_bytes)
    tasks = []
    manifests = some_shards(project, corpus, [shard.digest for shard in to_shorten])
    for shard, manifest in zip(to_shorten, manifests, strict=True):
        source = ranges[shard.number]
        recipe = shard_recipe(corpus, source, manifest.recipe["options"])
        rows = np.array([document.row for document in shard.documents], np.int64)  # (n_erased,)
        tasks.append(
            ShortenTask(
                root=outputs,
                recipe=recipe,
                shard=manifest,
                files=source.files,
                rows=rows,
            )
        )
    make_per_shard(
        ShortenedShards(tasks),
        outputs,
        project.progress.work("purge", corpus, len(tasks), "shards"),
        workers=project.config.workers,
        executor=project.executor,
        look_first=False,
    )


def _id_digests(plan: PurgePlan, corpus: str) -> set[str]:
    """Return a digest of the id of each document of a corpus that is to be erased."""
    digests: set[str] = set()
    for shard, documents in plan.documents.items():
        if shard.corpus == corpus:
            digests.update(purged.id_digest(document.id) for document in documents)
    return digests


def _shards_to_shorten(
    plan: PurgePlan, corpus: str, digests: Sequence[str]
) -> list[_ShardToShorten]:
    """Return the current shards of a corpus that contain documents to be erased.

    Args:
        plan: The purge.
        corpus: Name of the corpus.
        digests: Digests of its current shards, in order.
    """
    shards = []
    for number, digest in enumerate(digests):
        documents = plan.documents.get(ShardKey(corpus, digest))
        if documents:
            shards.append(_ShardToShorten(number, digest, tuple(documents)))
    return shards


def _check_requested_were_rebuilt(project: Project, plan: PurgePlan) -> None:
    """Check that the build of a purge replaced all outputs that nanoset.yaml requests.

    Args:
        project: The project.
        plan: The versions that still contain the documents after the build, and that are to be
            erased. None of them may be the current version of a requested output.

    Raises:
        StaleError: A requested output was not replaced.
        StorageError: A requested output was not replaced, and another build is running.
    """
    nodes = requested_nodes(project.config, corpus_names(project))
    requested_folders = {f"{node.stage.layout.folder}/{node.name}" for node in nodes}
    not_replaced = []
    for version in plan.versions:
        output_folder, _, _ = version.path.rpartition("/")
        if version.is_current and output_folder in requested_folders:
            not_replaced.append(version.path)
    if not not_replaced:
        return

    # If another build is running, raise an error that says to wait for its end: it may be making
    # these outputs.
    check_no_build(project.outputs.access, _CANNOT_ERASE, f"then {_RESUME}")
    raise StaleError(
        "outputs that contain the documents were not rebuilt",
        where=project.outputs.folder,
        found=", ".join(not_replaced),
        remedy="correct what `nanoset status` shows, and run the purge again",
    )


def _check_tokens_are_elsewhere(project: Project, plan: PurgePlan) -> None:
    """Check that no current shard has its tokens in a dataset that is to be erased.

    A shard is the tokens of a part of a corpus, in a file of its own. To save space,
    `storage.shards: drop` deletes this file, and lets the shard refer to the file of the current
    dataset, which has the same tokens. If the setting was removed later, a shard may still refer to
    an old dataset. The tokens of the shard would be lost with it.

    Args:
        project: The project.
        plan: The versions that are to be erased, and the corpora that they belong to.

    Raises:
        StorageError: A version that is to be erased contains the tokens of a current shard. With
            `storage.shards: drop`, the shard refers to the current dataset before this check.
    """
    outputs = project.outputs
    erased_folders = {version.path for version in plan.versions}
    corpora = list(plan.current)
    for corpus in corpora:
        tokenized = outputs.current(TOKENIZED.layout.folder, corpus)
        if tokenized is None:
            continue
        shard_digests = tokenized.facts[SHARDS]
        token_files = each_shard(project, corpus, shard_digests, _file_with_tokens)

        endangered_files: set[str] = set()
        for file in token_files:
            if file is not None and file.rpartition("/")[0] in erased_folders:
                endangered_files.add(file)
        if endangered_files:
            raise StorageError(
                "tokens of current shards are in files that are to be erased",
                where=outputs.folder,
                found=", ".join(sorted(endangered_files)),
                remedy="set storage.shards: drop, and run the purge again",
            )


def _file_with_tokens(shard: Manifest) -> str | None:
    """Return the file of another version that has a shard's tokens; None if the shard has them."""
    return shard.files[BIN].within


def _stored_shards(outputs: OutputRoot) -> set[ShardKey]:
    """Return all shards that are stored in an output root, current or not."""
    shards: set[ShardKey] = set()
    for output in all_outputs(outputs.access.listing()):
        if output.stage_folder == SHARDS:
            shards.update(ShardKey(output.name, digest) for digest in output.versions)
    return shards


def _erase(project: Project, plan: PurgePlan, shards_before_search: Collection[ShardKey]) -> None:
    """Erase the versions of a plan while no build can begin.

    Args:
        project: The project.
        plan: The versions to erase, each before the versions that it was made from.
        shards_before_search: The shards that existed before the documents were searched.

    Raises:
        StorageError: A build uses a version that is to be erased, or made shards since the search.
    """
    access = project.outputs.access
    corpora = set(plan.current)
    # In this block, new builds wait. Builds that began earlier may still be running: `used_names`
    # has the names of the corpora and nanosets that they work on.
    with collecting(access) as used_names:
        conflicts = set()
        for version in plan.versions:
            if version.subject in used_names:
                conflicts.add(version.path)
        # Shards that were made since the search may contain the documents, but are not in the plan.
        for shard in _stored_shards(project.outputs).difference(shards_before_search):
            if shard.corpus in corpora:
                conflicts.add(f"{SHARDS}/{shard.corpus}/{shard.digest}")

        if conflicts:
            # If the build is still running, this raises an error that names the build. Otherwise,
            # the build has ended, and can no longer be named.
            check_no_build(access, _CANNOT_ERASE, f"then {_RESUME}")
            raise StorageError(
                "a build made outputs from the documents that are to be erased, "
                "while the purge was under way",
                where=access.folder,
                found=", ".join(sorted(conflicts)),
                expected="no build since the purge began",
                remedy=_RESUME,
            )

        # Keep the order of the plan, which ends with the shards: after an interruption, the next
        # purge needs them to find the versions that are left.
        for version in plan.versions:
            _erase_version(access, version)


def _erase_version(access: FileAccess, version: TaintedVersion) -> None:
    """Erase one version of an output: hide it from readers, and then delete its files.

    Args:
        access: Access to the output root.
        version: The version, which contains documents that are to be erased.
    """
    version_folder = access.folder / version.path
    output_folder = version_folder.parent
    if version.is_current:
        # nanoset.yaml does not request this output any more, or the version would have been
        # replaced. Remove both pointers to it: the file `current.json`, which programs read, and
        # the symbolic link `current`.
        remove_file(access, output_folder / CURRENT)
        (output_folder / "current").unlink(missing_ok=True)

    def is_wanted() -> bool:
        """Return that no process may keep this version."""
        return False

    # Withdrawing hides the version at once, but may leave folders with its files on the disk.
    leftover_folders = withdraw_output(access, version_folder, MANIFEST, is_wanted)
    for leftover_folder in leftover_folders or ():
        shutil.rmtree(leftover_folder)
