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

import posixpath
import shutil
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nanoset_core.errors import StaleError, StorageError
from nanoset_core.outputs.manifest import MANIFEST, Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.gc.collect import collect
from nanoset_core.project.gc.dropping import drop_duplicate_tokens
from nanoset_core.project.gc.garbage import Policy
from nanoset_core.project.graph.nodes import requested_nodes
from nanoset_core.project.project import Project
from nanoset_core.project.purge.interrupted import announced
from nanoset_core.project.purge.plan import (
    DocumentInShard,
    PurgePlan,
    ShardKey,
    TaintedVersion,
    plan_purge,
)
from nanoset_core.project.purge.receipt import PurgeReceipt
from nanoset_core.project.stored_outputs import all_outputs
from nanoset_core.stages.inventory.corpora import corpus_names
from nanoset_core.stages.inventory.make import inventory_of
from nanoset_core.stages.per_shard import SHARDS, make_per_shard
from nanoset_core.stages.shards import purged
from nanoset_core.stages.shards.names import SHARDS_FOLDER
from nanoset_core.stages.shards.one_shard import BIN, shard_recipe
from nanoset_core.stages.shards.shard_sets import each_shard, ranges_of_shards, some_shards
from nanoset_core.stages.shards.shortening import ShortenedShards, ShortenTask
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import Key, find_current
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.in_use.leases import check_no_build, collecting
from nanoset_core.storage.removing.removals import withdraw_output
from nanoset_core.text.inventory.pieces import SourceRange

_ALL_VERSIONS = 1_000_000_000
"""More old versions than there are, so that a collection keeps all of them."""
_CANNOT_ERASE = "documents cannot be erased"
_RESUME = "run the same purge again: it resumes where it was cut short"


def purge(project: Project, plan: PurgePlan, build: Callable[[], None], day: str) -> Path:
    """Erase documents from all outputs, and write a receipt that lists what was erased.

    For example, somebody demands that a web page is removed from the training data. Its tokens are
    in a shard (a tokenized piece of a text collection), and in all that was made from it:

        1. Make a shard without the page in place of each shard with it.
        2. Build: everything is made from the new shards.
        3. Delete the old shards, and everything old that was made from them.

    If this is interrupted, call it again: it resumes.

    Args:
        project: The project, whose output folder has the documents.
        plan: The documents, and the versions of outputs that contain them; as `plan_purge` just
            returned it.
        build: Builds the project.
        day: Date for the receipt.

    Returns:
        Path of the receipt.

    Raises:
        StaleError: After the build, an output that nanoset.yaml requests was still made from the
            old shards.
        ConfigError: The raw text of a collection with such documents was deleted.
        StorageError: A build works on what is to be erased, or an output is damaged.
    """
    outputs = project.outputs
    check_no_build(outputs.access, _CANNOT_ERASE, "then purge again: nothing was changed")
    receipt = PurgeReceipt(outputs, plan.ids, plan.corpora)
    with announced(outputs, receipt.unfinished_path):
        unfinished_record = receipt.write_unfinished(plan, day)
        _replace_current_versions(project, plan, build)
        erased = _erase_old_versions(project, plan)
        receipt.complete(unfinished_record, erased)
    return receipt.path


def _replace_current_versions(project: Project, plan: PurgePlan, build: Callable[[], None]) -> None:
    """Replace the current version of everything that contains documents to be erased.

    Args:
        project: The project, whose output folder has the documents.
        plan: The documents.
        build: Builds the project.
    """
    for corpus in plan.current:
        _shorten_shards(project, corpus, plan)
    build()


def _erase_old_versions(project: Project, plan: PurgePlan) -> PurgePlan:
    """Delete all versions that contain documents to be erased, after they were replaced.

    Args:
        project: The project, whose output folder has the documents.
        plan: The documents, as they were found before the replacement.

    Returns:
        What was erased. This may be more than `plan` lists.

    Raises:
        StaleError: An output that nanoset.yaml requests was not replaced.
        StorageError: A build works on what is to be erased.
    """
    # Search again: another build may have made more versions from the old shards in the meantime.
    shards_before_search = _stored_shards(project.outputs)
    remaining = plan_purge(project, plan.ids, plan.corpora)
    _check_requested_were_rebuilt(project, remaining)
    _let_shards_read_current_datasets(project)
    _check_tokens_are_elsewhere(project, remaining)
    _erase(project, remaining, shards_before_search)
    _delete_unfinished_files(project)
    return remaining


def _delete_unfinished_files(project: Project) -> None:
    """Delete unfinished files of killed builds, which may contain documents to be erased.

    All complete versions of outputs are kept: which of them to delete is the user's choice.

    Args:
        project: The project, whose output folder has the files.
    """
    collect(project, Policy(keep=_ALL_VERSIONS, unfinished=True))


def _let_shards_read_current_datasets(project: Project) -> None:
    """Let shards without tokens of their own read the current datasets instead of old ones.

    A shard is a tokenized piece of text, and a dataset is all shards of a text collection joined.
    To save space, shards may have no tokens of their own, and read them from a dataset. It must not
    be an old one, which is about to be erased.

    Args:
        project: The project. Nothing is done unless its settings have `storage.shards: drop`.
    """
    for _shard in drop_duplicate_tokens(project):
        pass  # each step of the loop updates a shard


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
    """Replace the shards of a corpus that contain documents to be erased by shards without them.

    A corpus (a collection of texts) is tokenized in pieces, the shards. For example, two documents
    of shard 1 are to be erased:

        shard 0    300 documents    stays
        shard 1    300 documents    is replaced by a shard of 298 documents
        shard 2    250 documents    stays

    Tokens are copied from the old shards, so no text has to be read.

    Args:
        project: The project, whose output folder has the shards.
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

    # Record first which documents are erased. All builds leave out recorded documents, so even if
    # the purge is interrupted, no build makes shards with them again.
    shards_to_shorten = _shards_to_shorten(plan, corpus, current.digests)
    places = _places_in_text(current.text_ranges, shards_to_shorten)
    purged.add_record(outputs, corpus, places=places, ids=id_digests)

    # Make the new shards in parallel. If an interrupted purge has made some of them already, their
    # tasks do nothing.
    tasks = _shorten_tasks(current, shards_to_shorten)
    make_per_shard(
        ShortenedShards(tasks),
        outputs,
        project.progress.work("purge", corpus, len(tasks), "shards"),
        workers=project.config.workers,
        executor=project.executor,
        look_first=False,  # each task looks itself whether its shard exists
    )


@dataclass(frozen=True, slots=True)
class _CurrentShards:
    """The current shards of a corpus, and the text that they were made from."""

    project: Project
    corpus: str
    digests: Sequence[str]
    """Digests of the shards, in order."""
    text_ranges: Sequence[SourceRange]
    """The range of the raw text that each shard was made from, with all documents."""

    def ranges_without_erased(self) -> list[SourceRange]:
        """Return the range of each shard, without documents that are recorded as erased."""
        erased = purged.read_erased(self.project.outputs, self.corpus)
        return purged.leave_out(self.text_ranges, erased)


def _current_shards(project: Project, corpus: str) -> _CurrentShards | None:
    """Return the shards in use of a text collection, if documents can be removed from them.

    Args:
        project: The project, whose output folder has the shards (tokenized pieces of the text).
        corpus: Name of the collection.

    Returns:
        The shards; None if the text has to be tokenized again without the documents.

    Raises:
        FormatError: The shards were not made from the recorded list of files.
    """
    shard_list = find_current(project, TOKENIZED, Key(corpus))
    if shard_list is None:
        return None  # there are no shards
    if shard_list.recipe["version"] != TOKENIZED.version:
        return None  # an earlier version of this program made them, perhaps in another format
    inventory = inventory_of(project.outputs, shard_list)
    if inventory is None:
        return None  # the list of the text files that they were made from was deleted
    return _CurrentShards(
        project=project,
        corpus=corpus,
        digests=shard_list.facts[SHARDS],
        text_ranges=ranges_of_shards(inventory, shard_list),
    )


def _places_in_text(
    ranges: Sequence[SourceRange], shards: Iterable[_ShardToShorten]
) -> list[purged.ErasedPlace]:
    """Return where documents are in the raw text, so that later builds leave them out.

    A shard (a piece of tokenized text) is made from pieces of files. For example, shard 1 has a
    document that begins at byte 4,096 of c.jsonl:

        pieces of shard 1    bytes 600 to 900 of b.jsonl, and bytes 0 to 9,000 of c.jsonl
        place                bytes 0 to 9,000 of c.jsonl, position 4,096

    Args:
        ranges: The text of each shard, by the number of the shard.
        shards: The shards, with the documents in them to look for.

    Returns:
        The place of each document: the piece of a file, and the position in the file.
    """
    places = []
    for shard in shards:
        pieces = ranges[shard.number].pieces
        for document in shard.documents:
            place = purged.place_of(pieces, document.file, document.line_in_piece, document.offset)
            places.append(place)
    return places


def _shorten_tasks(
    current: _CurrentShards, shards_to_shorten: Sequence[_ShardToShorten]
) -> list[ShortenTask]:
    """Return the tasks that copy shards of tokenized text without the documents to be erased.

    A shard is named by a hash of what it is made from. Later builds make it from the same text
    without these documents, so the copy gets the name of that. Then builds find it, and need not
    tokenize the text:

        shard    made from                                  named
        old      bytes 0 to 9,000 of c.jsonl                81aa…
        copy     the same, without the document at 4,096    c04d…

    Args:
        current: All shards of a text collection. The documents have been recorded as erased.
        shards_to_shorten: The shards that contain them.

    Returns:
        One task for each of these shards. They can run in parallel.
    """
    ranges_of_shards = current.ranges_without_erased()  # the text of shard 0, of shard 1 and so on
    digests = [shard.digest for shard in shards_to_shorten]
    old_shards = some_shards(current.project, current.corpus, digests)  # their manifests
    tasks = []
    for shard, old_shard in zip(shards_to_shorten, old_shards, strict=True):
        text_range = ranges_of_shards[shard.number]
        recipe = shard_recipe(current.corpus, text_range, old_shard.recipe["options"])
        rows_to_erase = [document.row for document in shard.documents]  # such as [4, 17]
        task = ShortenTask(
            root=current.project.outputs,
            recipe=recipe,
            shard=old_shard,
            files=text_range.files,
            rows=np.array(rows_to_erase, np.int64),
        )
        tasks.append(task)
    return tasks


def _id_digests(plan: PurgePlan, corpus: str) -> set[str]:
    """Return a hash of the id of each document of a text collection that is to be erased.

    Later builds must leave out these documents, so their ids are recorded. But an id, such as the
    address of a private page, may be what has to be erased. So only its hash is recorded.

    Args:
        plan: The documents to erase, of all text collections.
        corpus: Name of the collection (corpus).
    """
    digests: set[str] = set()
    for shard, documents in plan.documents.items():
        if shard.corpus == corpus:
            digests.update(purged.id_digest(document.id) for document in documents)
    return digests


def _shards_to_shorten(
    plan: PurgePlan, corpus: str, digests: Sequence[str]
) -> list[_ShardToShorten]:
    """Return which pieces of a text collection contain documents to be erased.

    A text collection (corpus) is tokenized in pieces, the shards. For example:

        number   digest    documents to be erased
        0        3f9c…     none
        1        81aa…     rows 4 and 17
        2        c04d…     none

    Only shard 1 is returned.

    Args:
        plan: The documents to erase.
        corpus: Name of the corpus.
        digests: Digests of the shards that are in use, in order. Old shards are left out.
    """
    shards = []
    for number, digest in enumerate(digests):
        documents = plan.documents.get(ShardKey(corpus, digest))
        if documents:
            shards.append(_ShardToShorten(number, digest, tuple(documents)))
    return shards


def _check_requested_were_rebuilt(project: Project, plan: PurgePlan) -> None:
    """Check that the build has replaced every output in use that contained documents to be erased.

    Otherwise, because of a mistake in the settings for example, deleting the old outputs would
    leave the user without any.

    Args:
        project: The project, whose nanoset.yaml and folder of raw text request outputs.
        plan: What still contains the documents after the build, and is to be erased.

    Raises:
        StaleError: A requested output was not replaced.
        StorageError: A requested output was not replaced, and another build is running.
    """
    not_replaced = _current_requested_versions(plan, _requested_folders(project))
    if not not_replaced:
        return

    # If another build is running, it may be making these outputs. This raises an error that says to
    # wait for it.
    check_no_build(project.outputs.access, _CANNOT_ERASE, remedy=f"then {_RESUME}")
    raise StaleError(
        "no version was erased, since outputs that contain the documents were not rebuilt",
        where=project.outputs.folder,
        found=", ".join(not_replaced),
        remedy=(
            "correct what `nanoset status` shows, or remove them from nanoset.yaml: for example, a "
            "nanoset with `continue_from` whose run has read the documents can never be "
            "rebuilt. Then run the same purge again, which finishes it"
        ),
    )


def _current_requested_versions(plan: PurgePlan, requested_folders: Collection[str]) -> list[str]:
    """Return which versions to be erased are in use, and belong to an output that is requested.

    Args:
        plan: The versions (builds of outputs) to be erased.
        requested_folders: Folders of the requested outputs, such as {"datasets/web"}.

    Returns:
        Paths of the versions, such as ["datasets/web/3f9c…"].
    """
    paths: list[str] = []
    for version in plan.versions:
        output_folder, _, _ = version.path.rpartition("/")
        if version.is_current and output_folder in requested_folders:
            paths.append(version.path)
    return paths


def _requested_folders(project: Project) -> set[str]:
    """Return the folders of all outputs that a project should have.

    They are requested by nanoset.yaml, or by a folder of raw text: each text collection has a
    dataset.

    Args:
        project: The project.

    Returns:
        Paths below the output folder, such as {"datasets/web", "nanosets/pretrain/train/blend"}.
    """
    nodes = requested_nodes(project.config, corpus_names(project))
    return {node.path for node in nodes}


def _check_tokens_are_elsewhere(project: Project, plan: PurgePlan) -> None:
    """Check that no text in use loses its tokens when old datasets are erased.

    A shard, which is a tokenized piece of text, usually has its own file of tokens. To save space,
    it may instead read its tokens from a dataset. This must not be one that is erased.

    Args:
        project: The project, whose output folder has the shards.
        plan: What is to be erased.

    Raises:
        StorageError: A shard reads its tokens from a dataset that is to be erased.
    """
    erased_folders = {version.path for version in plan.versions}  # such as datasets/web/3f9c…
    for corpus in plan.current:  # text collections with documents to be erased
        files = _files_with_tokens(project, corpus)  # such as datasets/web/3f9c…/web.bin
        endangered_files = [file for file in files if posixpath.dirname(file) in erased_folders]
        if endangered_files:
            raise _endangered_tokens_error(project, endangered_files)


def _endangered_tokens_error(project: Project, files: Collection[str]) -> StorageError:
    """Return the error that old files cannot be erased, because tokens in use are only in them.

    Args:
        project: The project, whose output folder has the files.
        files: Files of old datasets, such as datasets/web/3f9c…/web.bin. To save space, shards
            (tokenized pieces of text) have no files of their own, and read their tokens from these.
    """
    return StorageError(
        "tokens of current shards are in files that are to be erased",
        where=project.outputs.folder,
        found=", ".join(sorted(files)),
        # With this setting, the next purge lets the shards read from the current dataset.
        remedy="set storage.shards: drop, and run the purge again",
    )


def _files_with_tokens(project: Project, corpus: str) -> set[str]:
    """Return the files of datasets that shards read their tokens from.

    A shard is a tokenized piece of text. If it has a file of its own, it reads from no dataset.

    Args:
        project: The project, whose output folder has the shards.
        corpus: Name of the text collection, such as web. Its shards in use are looked at.

    Returns:
        Paths such as datasets/web/3f9c…/web.bin.
    """
    shard_list = find_current(project, TOKENIZED, Key(corpus))
    if shard_list is None:
        return set()
    # Calls `_file_with_tokens` for each shard. It returns None for a shard with its own file.
    files = each_shard(project, corpus, shard_list.facts[SHARDS], _file_with_tokens)
    return {file for file in files if file is not None}


def _file_with_tokens(shard: Manifest) -> str | None:
    """Return the file of another version that has a shard's tokens; None if the shard has them."""
    return shard.files[BIN].within


def _stored_shards(outputs: OutputRoot) -> set[ShardKey]:
    """Return all tokenized pieces of text (shards) that exist, whether they are in use or old.

    Args:
        outputs: The outputs of the project, whose files are listed.

    Returns:
        Pairs of text collection and digest, such as ("web", "3f9c…").
    """
    shards: set[ShardKey] = set()
    for output in all_outputs(outputs.access.with_store_listing()):
        if output.stage_folder == SHARDS_FOLDER:
            shards.update(ShardKey(output.name, digest) for digest in output.versions)
    return shards


def _erase(project: Project, plan: PurgePlan, shards_before_search: Collection[ShardKey]) -> None:
    """Delete everything old that contains documents to be erased, unless a build has come between.

    The documents were searched some time ago. A build may have started since, which reads versions
    that are to be deleted, or has tokenized the documents once more. Then nothing is deleted.

    Args:
        project: The project, whose output folder has these files.
        plan: The versions (builds of outputs) to delete, each before those that it was made from.
        shards_before_search: The shards (tokenized pieces of text) that existed before the
            documents were searched in them.

    Raises:
        StorageError: A build uses what is to be deleted, or has made new shards since the search.
    """
    # Within this block, no build can begin. Builds that run already protect all outputs of the
    # corpora and nanosets that they make: `names_in_use` has the names of these.
    with collecting(project.outputs.access) as names_in_use:
        new_shards = _stored_shards(project.outputs).difference(shards_before_search)
        _check_no_conflicts(project.outputs.access, plan, names_in_use, new_shards)
        for version in plan.versions:
            _erase_version(project.outputs, version)


def _check_no_conflicts(
    access: FileAccess,
    plan: PurgePlan,
    names_in_use: Collection[str],
    new_shards: Collection[ShardKey],
) -> None:
    """Check that no build uses what is to be erased, or has tokenized the documents once more.

    Args:
        access: Access to the output folder.
        plan: The versions (builds of outputs) to erase.
        names_in_use: Names of the text collections and mixtures that running builds work on.
        new_shards: The shards (tokenized pieces of text) that were made since the documents were
            searched.

    Raises:
        StorageError: There is such a build. The error names it if it is still running.
    """
    used_paths = {version.path for version in plan.versions if version.leased_name in names_in_use}
    conflicts = used_paths | _paths_of_shards(new_shards, corpora=plan.current)
    if conflicts:
        check_no_build(access, _CANNOT_ERASE, remedy=f"then {_RESUME}")
        raise _conflicts_error(access, conflicts)


def _paths_of_shards(shards: Iterable[ShardKey], corpora: Collection[str]) -> set[str]:
    """Return where shards of some corpora are stored, such as shards/web/3f9c….

    Args:
        shards: Shards of any corpora.
        corpora: Names of the corpora. Shards of others are left out.
    """
    return {
        f"{SHARDS_FOLDER}/{shard.corpus}/{shard.digest}"
        for shard in shards
        if shard.corpus in corpora
    }


def _conflicts_error(access: FileAccess, conflicts: Collection[str]) -> StorageError:
    """Return the error that a build has come in between while documents were being erased.

    The build used old outputs with these documents, or tokenized them again. It has ended by now,
    so the purge (the command that erases documents) can be repeated.

    Args:
        access: Access to the output folder.
        conflicts: Paths of these outputs, such as shards/web/3f9c….
    """
    return StorageError(
        "a build made outputs from the documents that are to be erased, "
        "while the purge was under way",
        where=access.folder,
        found=", ".join(sorted(conflicts)),
        expected="no build since the purge began",
        remedy=_RESUME,
    )


def _erase_version(outputs: OutputRoot, version: TaintedVersion) -> None:
    """Delete one version (build) of an output, since it contains documents that are to be erased.

    Args:
        outputs: The outputs of the project.
        version: The version, such as datasets/web/3f9c….
    """
    version_folder = outputs.folder / version.path
    if version.is_current:
        # Nobody requests this output any more; otherwise a build would have replaced the version.
        outputs.unset_current(version_folder.parent)

    # First hide the version, so that no program finds half of it. On a disk, its folder is renamed,
    # and has to be deleted here. In a bucket, its files are deleted at once.
    hidden_folders = withdraw_output(outputs.access, version_folder, MANIFEST, _is_in_use)
    for folder in hidden_folders or ():
        shutil.rmtree(folder)


def _is_in_use() -> bool:
    """Return whether a version has to stay after all: never, since a purge was requested."""
    return False
