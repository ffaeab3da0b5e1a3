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
from collections.abc import Callable, Collection, Iterable, Sequence
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
from nanoset_core.text.pieces import Inventory, SourceRange

_ALL_VERSIONS = 1_000_000_000
"""More old versions than there are, so that a collection keeps all of them."""
_CANNOT_ERASE = "documents cannot be erased"
_RESUME = "run the same purge again: it resumes where it was cut short"


def purge(project: Project, plan: PurgePlan, build: Callable[[], None], day: str) -> Path:
    """Erase documents from all outputs, and return the path of the receipt that lists them.

    If a purge is interrupted, calling this function again resumes it.

    Args:
        project: Its output root contains the documents.
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

    A shard is the tokens of one range of the corpus's text. Only shards with such documents are
    replaced.

    Args:
        project: Its output root receives the record and the new shards.
        corpus: Name of the corpus.
        plan: The documents to erase.
    """
    outputs = project.outputs
    id_digests = _id_digests(plan, corpus)
    current = _current_shards(project, corpus)
    if current is None:
        # The build will tokenize all text again, and leave out the documents by their ids.
        purged.add_record(outputs, corpus, places=(), ids=id_digests)
        return

    # The record must be written first: if the purge is interrupted, a build must not make shards
    # with these documents again.
    to_shorten = _shards_to_shorten(plan, corpus, current.digests)
    places = _places_in_text(current.ranges(), to_shorten)
    purged.add_record(outputs, corpus, places=places, ids=id_digests)

    # Make a new shard in place of each that has such documents, in parallel.
    tasks = _shorten_tasks(current, to_shorten)
    make_per_shard(
        ShortenedShards(tasks),
        outputs,
        project.progress.work("purge", corpus, len(tasks), "shards"),
        workers=project.config.workers,
        executor=project.executor,
        look_first=False,  # a task does nothing if an interrupted purge made its shard already
    )


@dataclass(frozen=True, slots=True)
class _CurrentShards:
    """The current shards of a corpus, and the text that they were made from."""

    project: Project
    corpus: str
    digests: Sequence[str]
    """Digests of the shards, in order."""
    inventory: Inventory
    """The files of raw text, which are cut into ranges. Range k became shard k."""
    range_bytes: int
    """Size of the ranges."""

    def ranges(self) -> list[SourceRange]:
        """Return the ranges of the text, without documents that are recorded as erased."""
        return ranges_of(self.project, self.inventory, self.range_bytes)


def _current_shards(project: Project, corpus: str) -> _CurrentShards | None:
    """Return the current shards of a corpus, if documents can be removed from them.

    Args:
        project: Its output root is searched.
        corpus: Name of the corpus.

    Returns:
        The shards; None if the next build has to tokenize the text again anyway, or if it is not
        known which files the shards were made from.
    """
    outputs = project.outputs
    shard_set = outputs.current(TOKENIZED.layout.folder, corpus)
    if shard_set is None:
        return None

    # A shard made by another version of nanoset may have another format than new shards.
    is_present_format = shard_set.recipe["version"] == TOKENIZED.version
    inventory = inventory_at(outputs, corpus, shard_set.recipe["parents"]["inventory"])
    if inventory is None or not is_present_format:
        return None
    return _CurrentShards(
        project=project,
        corpus=corpus,
        digests=shard_set.facts[SHARDS],
        inventory=inventory,
        range_bytes=shard_set.recipe["options"]["range_bytes"],
    )


def _places_in_text(
    ranges: Sequence[SourceRange], shards: Iterable[_ShardToShorten]
) -> list[purged.ErasedPlace]:
    """Return where the documents to be erased are in the raw text of a corpus.

    Args:
        ranges: The ranges of the text: shard k was made from range k.
        shards: The shards with such documents.

    Returns:
        For each document, the piece of a file that contains it, and its line and byte offset.
    """
    places = []
    for shard in shards:
        # A range consists of pieces: stretches of files. A document knows its file and its byte
        # offset there, by which `place_of` finds the piece.
        pieces = ranges[shard.number].pieces
        for document in shard.documents:
            place = purged.place_of(pieces, document.file, document.line, document.offset)
            places.append(place)
    return places


def _shorten_tasks(
    current: _CurrentShards, to_shorten: Sequence[_ShardToShorten]
) -> list[ShortenTask]:
    """Return the tasks that make shards of a corpus without the documents to be erased.

    The documents must have been recorded as erased: the digest of a new shard depends on this
    record, by which later builds find the shard instead of making one with the documents.

    Args:
        current: The current shards of the corpus.
        to_shorten: Those of them that contain such documents.

    Returns:
        A task for each of these shards; tasks can run in parallel.
    """
    ranges = current.ranges()
    digests = [shard.digest for shard in to_shorten]
    manifests = some_shards(current.project, current.corpus, digests)
    tasks = []
    for shard, manifest in zip(to_shorten, manifests, strict=True):
        text_range = ranges[shard.number]  # shard k was made from range k of the text
        tasks.append(_shorten_task(current, shard, manifest, text_range))
    return tasks


def _shorten_task(
    current: _CurrentShards, shard: _ShardToShorten, manifest: Manifest, text_range: SourceRange
) -> ShortenTask:
    """Return the task that makes one shard without the documents to be erased.

    Args:
        current: The current shards of the corpus.
        shard: The shard, and these documents.
        manifest: Its manifest.
        text_range: The range of the text that it was made from. It says which documents in it are
            erased.
    """
    row_numbers = [document.row for document in shard.documents]
    return ShortenTask(
        root=current.project.outputs,
        recipe=shard_recipe(current.corpus, text_range, manifest.recipe["options"]),
        shard=manifest,
        files=text_range.files,
        rows=np.array(row_numbers, np.int64),  # (n_erased,) numbers of the documents in the shard
    )


def _id_digests(plan: PurgePlan, corpus: str) -> set[str]:
    """Return a digest of the id of each document of a corpus that is to be erased.

    The record of a purge must not contain the ids themselves, which may be personal.

    Args:
        plan: The documents to erase, in all corpora.
        corpus: Name of the corpus.
    """
    digests: set[str] = set()
    for shard, documents in plan.documents.items():
        if shard.corpus == corpus:
            digests.update(purged.id_digest(document.id) for document in documents)
    return digests


def _shards_to_shorten(
    plan: PurgePlan, corpus: str, digests: Sequence[str]
) -> list[_ShardToShorten]:
    """Return the current shards of a corpus that contain documents to be erased.

    A shard is the tokens of one range of the corpus's text.

    Args:
        plan: The documents to erase, in current and in old shards.
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
        project: Its nanoset.yaml and raw folder request outputs.
        plan: The versions that still contain the documents after the build, and that are to be
            erased. None of them may be the current version of a requested output.

    Raises:
        StaleError: A requested output was not replaced.
        StorageError: A requested output was not replaced, and another build is running.
    """
    requested_folders = _requested_folders(project)
    not_replaced: list[str] = []
    for version in plan.versions:
        output_folder, _, _ = version.path.rpartition("/")
        if version.is_current and output_folder in requested_folders:
            not_replaced.append(version.path)
    if not not_replaced:
        return

    # Another build may be making these outputs. If one is running, this raises an error that says
    # to wait for it, and then to resume the purge.
    check_no_build(project.outputs.access, _CANNOT_ERASE, remedy=f"then {_RESUME}")
    raise StaleError(
        "outputs that contain the documents were not rebuilt",
        where=project.outputs.folder,
        found=", ".join(not_replaced),
        remedy="correct what `nanoset status` shows, and run the purge again",
    )


def _requested_folders(project: Project) -> set[str]:
    """Return the folder of each output that nanoset.yaml or the raw folder requests.

    Args:
        project: Its nanoset.yaml and raw folder request outputs.

    Returns:
        Paths below the root, such as datasets/web.
    """
    nodes = requested_nodes(project.config, corpus_names(project))
    return {f"{node.stage.layout.folder}/{node.name}" for node in nodes}


def _check_tokens_are_elsewhere(project: Project, plan: PurgePlan) -> None:
    """Check that no current shard loses its tokens when a purge erases old datasets.

    With `storage.shards: drop`, the tokens of a shard are only stored in a dataset. This may be an
    old one, if the user removed the setting later.

    Args:
        project: Its output root has the shards.
        plan: The versions that are to be erased, and the corpora with documents to be erased.

    Raises:
        StorageError: A version that is to be erased contains the tokens of a current shard.
    """
    erased_folders = {version.path for version in plan.versions}  # such as datasets/web/3f9c…
    for corpus in plan.current:
        endangered_files: set[str] = set()
        for file in _files_with_tokens(project, corpus):
            folder, _, _ = file.rpartition("/")
            if folder in erased_folders:
                endangered_files.add(file)
        if endangered_files:
            raise _endangered_tokens_error(project, endangered_files)


def _endangered_tokens_error(project: Project, files: Collection[str]) -> StorageError:
    """Return the error that a purge would erase tokens which current shards need.

    Args:
        project: Its output root has the files.
        files: The files with these tokens, as paths below the root.
    """
    return StorageError(
        "tokens of current shards are in files that are to be erased",
        where=project.outputs.folder,
        found=", ".join(sorted(files)),
        # With this setting, the next purge lets the shards refer to the current dataset.
        remedy="set storage.shards: drop, and run the purge again",
    )


def _files_with_tokens(project: Project, corpus: str) -> list[str]:
    """Return the files of datasets that contain the tokens of current shards.

    A shard usually has a file of its own with its tokens. If that was deleted to save space, its
    manifest says which range of a dataset's file has them.

    Args:
        project: Its output root is searched.
        corpus: Name of the corpus.

    Returns:
        Paths below the root, such as datasets/web/<digest>/web.bin; a path for each shard without a
        file of its own.
    """
    shard_set = project.outputs.current(TOKENIZED.layout.folder, corpus)
    if shard_set is None:
        return []
    files = each_shard(project, corpus, shard_set.facts[SHARDS], _file_with_tokens)
    return [file for file in files if file is not None]


def _file_with_tokens(shard: Manifest) -> str | None:
    """Return the file of another version that has a shard's tokens; None if the shard has them."""
    return shard.files[BIN].within


def _stored_shards(outputs: OutputRoot) -> set[ShardKey]:
    """Return all shards that are stored in an output root, current or not.

    Args:
        outputs: The output root, whose files are listed.
    """
    shards: set[ShardKey] = set()
    for output in all_outputs(outputs.access.listing()):
        if output.stage_folder == SHARDS:
            shards.update(ShardKey(output.name, digest) for digest in output.versions)
    return shards


def _erase(project: Project, plan: PurgePlan, shards_before_search: Collection[ShardKey]) -> None:
    """Erase the versions of a plan while no build can begin.

    Args:
        project: Its output root has the versions.
        plan: The versions to erase, each before the versions that it was made from.
        shards_before_search: The shards that existed before the documents were searched.

    Raises:
        StorageError: A build uses a version that is to be erased, or made shards since the search.
    """
    access = project.outputs.access
    # No build can begin during this block. Running ones work on the corpora and nanosets
    # `busy_names`, so that versions of these may be in use.
    with collecting(access) as busy_names:
        used = {version.path for version in plan.versions if version.subject in busy_names}
        # Shards that a build made since the search may contain the documents, too, and would stay.
        new_shards = _stored_shards(project.outputs).difference(shards_before_search)
        new_paths = _paths_of_shards(new_shards, corpora=set(plan.current))
        conflicts = used | new_paths
        if conflicts:
            check_no_build(access, _CANNOT_ERASE, remedy=f"then {_RESUME}")
            # That names a running build in an error. Here, the build has ended since.
            raise _conflicts_error(access, conflicts)

        # The shards come last in the plan. If this is interrupted, the next purge finds by them
        # which remaining versions were made from them.
        for version in plan.versions:
            _erase_version(access, version)


def _paths_of_shards(shards: Iterable[ShardKey], corpora: Collection[str]) -> set[str]:
    """Return where shards of some corpora are stored, such as shards/web/3f9c….

    Args:
        shards: Shards of any corpora.
        corpora: Names of the corpora. Shards of others are left out.
    """
    return {
        f"{SHARDS}/{shard.corpus}/{shard.digest}" for shard in shards if shard.corpus in corpora
    }


def _conflicts_error(access: FileAccess, conflicts: Collection[str]) -> StorageError:
    """Return the error that a build used or made versions with the documents during a purge.

    Args:
        access: Access to the output root.
        conflicts: Paths of the versions. The build has ended, so the purge can be repeated.
    """
    return StorageError(
        "a build made outputs from the documents that are to be erased, "
        "while the purge was under way",
        where=access.folder,
        found=", ".join(sorted(conflicts)),
        expected="no build since the purge began",
        remedy=_RESUME,
    )


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

    def has_to_stay() -> bool:
        """Return False: unlike in other removals, no use of the version is a reason to keep it."""
        return False

    # This hides the version by another name, and returns the renamed folder. In a bucket, it
    # deletes the files itself.
    hidden_folders = withdraw_output(access, version_folder, MANIFEST, has_to_stay)
    for folder in hidden_folders or ():
        shutil.rmtree(folder)
