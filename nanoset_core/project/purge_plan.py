"""Find what a purge has to erase: the documents with some ids, and all versions made from them.

All shards below the root are searched for the documents, not only the current ones. A version is
*tainted* if it is a shard with such a document, or was made from a tainted version.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from nanoset_core.errors import ConfigError, remedy_for_name
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.existing import StoredOutput, all_outputs
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.inventory.corpora import corpus_names
from nanoset_core.stages.registry import stage_of
from nanoset_core.stages.shards.document_rows import DocumentRows
from nanoset_core.stages.shards.line_numbers import LineNumbers
from nanoset_core.stages.shards.make import DOCUMENTS, SHARDS
from nanoset_core.stages.shards.stage import TOKENIZED


class ShardKey(NamedTuple):
    """Names a shard by its corpus and its digest."""

    corpus: str
    digest: str


@dataclass(frozen=True, slots=True)
class DocumentInShard:
    """A document in a shard."""

    row: int
    """Its number in the shard, from 0."""
    file: str
    """Its file of the raw text, relative to the corpus's folder."""
    line: int
    """Number of its line or row, from 1. `PurgePlan` says whether lines are counted within the
    file, or within its piece of the file.
    """
    offset: int
    """Byte offset of the line; -1 for a row of a table."""
    id: str
    """The document's own id."""
    tokens: int
    """How many tokens it has."""


@dataclass(frozen=True, slots=True)
class TaintedVersion:
    """A version of an output that was made from documents to be erased."""

    path: str
    """Its folder below the root."""
    digest: str
    """Its digest."""
    is_current: bool
    """Whether it is the current version of its output."""
    files: Mapping[str, Any]
    """Name → bytes and, if known, sha256 of each of its own files. Ranges of other versions' files
    are left out.
    """

    @property
    def subject(self) -> str:
        """Name of the corpus or nanoset that it belongs to: "web" for "datasets/web/<digest>"."""
        _, subject, *_ = self.path.split("/")
        return subject

    @property
    def size(self) -> int:
        """Size of its own files in bytes."""
        return sum(int(fact["bytes"]) for fact in self.files.values())


@dataclass(frozen=True, slots=True)
class PurgePlan:
    """What a purge erases."""

    ids: tuple[str, ...]
    """Ids of the documents."""
    corpora: tuple[str, ...]
    """The corpora that are searched; empty for all."""
    documents: Mapping[ShardKey, Sequence[DocumentInShard]]
    """Shard → the documents in it that are erased. Lines are counted within pieces of files."""
    current: Mapping[str, Sequence[DocumentInShard]]
    """Corpus → the documents in its current shards that are erased. Lines are counted within files.
    """
    versions: tuple[TaintedVersion, ...]
    """The versions to erase, each before those that it was made from."""


def plan_purge(project: Project, ids: Sequence[str], corpora: Collection[str] = ()) -> PurgePlan:
    """Find the documents with some ids, and every version that was made from them.

    Nothing is written.

    Args:
        project: Its output root is searched.
        ids: Ids of the documents, such as URLs.
        corpora: The corpora that are searched; empty for all.

    Returns:
        The documents by shard, and the versions to erase: shards with such documents, and all that
        was made from these.

    Raises:
        ConfigError: A corpus with such documents is not in the raw folder any more, so that its
            other documents would be lost; or a corpus has no shards.
        FormatError: A manifest, or a table of documents, cannot be read.
        StorageError: An output is damaged, so that it is not known what it was made from.
    """
    searched_corpora = _searched_corpora(project, corpora)
    documents_by_shard = _find_documents(project, ids, searched_corpora)

    # Some of these shards are old. List the documents of the current ones by corpus, with the
    # numbers of their lines in the raw files.
    current: dict[str, list[DocumentInShard]] = {}
    affected_corpora = dict.fromkeys(shard.corpus for shard in documents_by_shard)
    for corpus in affected_corpora:
        current[corpus] = _current_documents(project, corpus, documents_by_shard)
    _check_in_raw_folder(project, current)

    # Everything that was made from a shard with such a document may contain it, too.
    tainted_versions = _tainted_versions(project, documents_by_shard.keys())
    return PurgePlan(
        ids=tuple(ids),
        corpora=tuple(corpora),
        documents=documents_by_shard,
        current=current,
        versions=tuple(tainted_versions),
    )


def _searched_corpora(project: Project, corpora: Collection[str]) -> list[str]:
    """Return the corpora to search for documents, sorted.

    Args:
        project: Its output root has a folder of shards for each corpus.
        corpora: The corpora that the user named; empty for all that have shards.

    Raises:
        ConfigError: A corpus that the user named has no shards.
    """
    outputs = project.outputs
    # Each corpus with shards has a folder. Folders with a dot in front are for internal use.
    names = outputs.access.names(outputs.folder / SHARDS)
    with_shards = sorted(name for name in names if not name.startswith("."))
    unknown = sorted(set(corpora) - set(with_shards))
    if unknown:
        raise ConfigError(
            "there are no shards of such a corpus below the root",
            found=", ".join(unknown),
            expected=", ".join(with_shards),
            remedy=remedy_for_name(unknown[0], with_shards, "correct --corpus"),
        )
    return sorted(corpora) if corpora else with_shards


def _find_documents(
    project: Project, ids: Sequence[str], corpora: Sequence[str]
) -> dict[ShardKey, Sequence[DocumentInShard]]:
    """Search all shards of some corpora, current and old ones, for documents with some ids.

    Args:
        project: Its output root is searched.
        ids: Ids of the documents.
        corpora: Names of the corpora.

    Returns:
        Shard → its documents with these ids; shards without any are left out.
    """
    documents: dict[ShardKey, Sequence[DocumentInShard]] = {}
    for corpus in corpora:
        for digest, in_shard in _documents_by_shard(project, ids, corpus):
            if in_shard:
                documents[ShardKey(corpus, digest)] = in_shard
    return documents


def _documents_by_shard(
    project: Project, ids: Sequence[str], corpus: str
) -> Iterator[tuple[str, list[DocumentInShard]]]:
    """Yield each shard of a corpus with its documents that have one of some ids.

    The shards are searched in parallel.

    Args:
        project: Its output root is searched.
        ids: Ids of the documents.
        corpus: Name of the corpus.

    Yields:
        Digest of the shard, and the documents; without any, an empty list.
    """
    import pyarrow as pa

    listed_ids = pa.array(ids, pa.large_string())

    def search(root: OutputRoot, shard_folder: Path) -> list[DocumentInShard]:
        """Return the documents with these ids in one shard."""
        return _documents_with_ids(root.manifest_at(shard_folder), listed_ids)

    outputs = project.outputs
    digests = sorted(outputs.digests_in(outputs.folder / SHARDS / corpus))
    # `each_version` calls `search` with the folder of each shard.
    results = outputs.each_version(search, SHARDS, corpus, digests)
    yield from zip(digests, results, strict=True)


def _documents_with_ids(shard: Manifest | None, ids: Any) -> list[DocumentInShard]:
    """Return the documents of a shard that have one of some ids.

    Args:
        shard: Its manifest; None if it is unfinished, so that it has no documents yet.
        ids: The ids, an Arrow array of texts.

    Returns:
        The documents, in the order of the shard. If a large file was cut into pieces, their lines
        are counted from the start of the piece.
    """
    if shard is None:
        return []
    # Each shard has a table with a row for each document.
    table = DocumentRows(shard.path(DOCUMENTS), shard.facts["documents"])
    documents = []
    for row_number, row in table.with_ids(ids):
        document = DocumentInShard(
            row=row_number,
            file=row["file"],
            line=row["line"],
            offset=row["byte_offset"],
            id=row["id"],
            tokens=row["tokens"],
        )
        documents.append(document)
    return documents


def _current_documents(
    project: Project, corpus: str, documents: Mapping[ShardKey, Sequence[DocumentInShard]]
) -> list[DocumentInShard]:
    """Return the documents to be erased that are in the current shards of a corpus.

    Args:
        project: Its output root has the shards.
        corpus: Name of the corpus.
        documents: Shard → its documents to be erased.

    Returns:
        The documents, with the numbers of their lines in the raw files.
    """
    shard_set = project.outputs.current(TOKENIZED.layout.folder, corpus)
    if shard_set is None:
        return []

    # A shard counts lines from the start of a piece, since a large file is tokenized in pieces.
    # Line 5 of a piece that begins after 1,000 lines is line 1,005 of the file.
    line_numbers = LineNumbers.of(shard_set.facts)
    current_documents = []
    for digest in shard_set.facts[SHARDS]:
        for document in documents.get(ShardKey(corpus, digest), ()):
            line = line_numbers.in_file(document.file, document.offset, document.line)
            current_documents.append(replace(document, line=line))
    return current_documents


def _check_in_raw_folder(
    project: Project, current: Mapping[str, Sequence[DocumentInShard]]
) -> None:
    """Check that a purge does not lose more documents than it has to erase.

    The build after a purge drops every corpus without a folder of raw text, and so all documents
    of that corpus.

    Args:
        project: The project, whose raw folder is listed.
        current: Corpus → the documents in its current shards that are erased.

    Raises:
        ConfigError: A corpus has other documents, and is not in the raw folder any more.
    """
    in_raw_folder = corpus_names(project)
    endangered_corpora = []
    for corpus, erased_documents in current.items():
        if corpus in in_raw_folder:
            continue
        n_other_documents = _document_count(project, corpus) - len(erased_documents)
        if n_other_documents != 0:
            endangered_corpora.append(corpus)
    if endangered_corpora:
        raise ConfigError(
            "a corpus with such documents, and others, is not in the raw folder any more",
            where=project.outputs.folder,
            found=", ".join(endangered_corpora),
            remedy="restore it, or name all of its documents; then run the purge again",
        )


def _document_count(project: Project, corpus: str) -> int:
    """Return the number of documents in the current shards of a corpus; 0 if it has none.

    Args:
        project: Its output root is searched.
        corpus: Name of the corpus.
    """
    tokenized = project.outputs.current(TOKENIZED.layout.folder, corpus)
    if tokenized is None:
        return 0
    n_documents: int = tokenized.facts["documents"]
    return n_documents


def _tainted_versions(project: Project, shards: Collection[ShardKey]) -> Iterator[TaintedVersion]:
    """Yield the versions to erase: some shards, and all versions that were made from them.

    A version is one build of an output, such as a dataset. Its manifest names what it was made
    from.

    Args:
        project: Its output root has the versions.
        shards: The shards that contain documents to be erased.

    Yields:
        Each version before those that it was made from, and the shards last: a purge that resumes
        an interrupted one searches the shards for the documents, and finds the other versions by
        them.
    """
    root = project.outputs
    outputs = all_outputs(root.access.listing())
    current_digests = {output.current for output in outputs}
    versions = list(_versions_to_examine(root, outputs, shards))
    folder_by_digest = {version.digest: version.folder for version in versions}
    for digest in _erasure_order(versions, shards):
        manifest = root.manifest_at(folder_by_digest[digest])
        if manifest is None:
            continue  # it was removed in the meantime
        yield TaintedVersion(
            path=version_path(manifest),
            digest=digest,
            is_current=digest in current_digests,
            files=own_files(manifest),
        )


def _erasure_order(versions: Sequence[_ExaminedVersion], shards: Iterable[ShardKey]) -> list[str]:
    """Return which versions to erase, each before those that it was made from.

    For example, a view is made from a dataset, and this from shards: the result is the view, the
    dataset, the shards.

    Args:
        versions: All versions that may have been made from the shards, and the shards.
        shards: The shards that contain documents to be erased.

    Returns:
        Digests of the versions.
    """
    # A dataset whose list of shards was deleted may contain any document, so it is erased like one
    # that was made from the shards.
    unclear_datasets = [version.digest for version in versions if version.has_unknown_shards]
    sources = {*(shard.digest for shard in shards), *unclear_datasets}
    version_by_digest = {version.digest: version for version in versions}
    descendants = _made_from(sources, version_by_digest)  # from shards to views

    existing_shards = [version.digest for version in versions if version.is_shard]
    return [*reversed(descendants), *reversed(unclear_datasets), *existing_shards]


class _ExaminedVersion(NamedTuple):
    """A version that may be made from tainted shards, or is one."""

    digest: str
    """Its digest."""
    folder: Path
    """Its folder."""
    parents: set[str]
    """Digests of the versions that it was made from or refers to."""
    is_shard: bool
    """Whether it is a tainted shard."""
    has_unknown_shards: bool
    """Whether it is a dataset of which it is no longer known which shards it was made from."""


def _versions_to_examine(
    root: OutputRoot, outputs: Iterable[StoredOutput], shards: Collection[ShardKey]
) -> Iterator[_ExaminedVersion]:
    """Yield shards with documents to be erased, and all versions of outputs other than shards.

    Args:
        root: The output root.
        outputs: All outputs below it.
        shards: The shards with such documents. All other shards are left out: there may be many,
            and they were made from other documents.

    Yields:
        The versions, each with what it was made from, which is read from its manifest.
    """
    corpora = {shard.corpus for shard in shards}
    shard_digests = {shard.digest for shard in shards}
    for output in outputs:
        is_shard = output.stage_folder == SHARDS
        digests = sorted(output.versions)
        if is_shard:
            digests = sorted(output.versions & shard_digests)

        # What each version was made from, read in parallel.
        parents_of_versions = root.each_version(_parents, output.stage_folder, output.name, digests)

        # Only datasets of the shards' corpora may have been made from these shards.
        is_dataset = output.stage_folder == DATASET.layout.folder and output.name in corpora
        for digest, parents in zip(digests, parents_of_versions, strict=True):
            folder = output.folder / digest
            has_unknown_shards = is_dataset and not _knows_shards(root, folder, parents)
            yield _ExaminedVersion(digest, folder, parents, is_shard, has_unknown_shards)


def _made_from(
    sources: Collection[str], version_by_digest: Mapping[str, _ExaminedVersion]
) -> list[str]:
    """Return the versions that were made from some versions, directly or not.

    For example, a dataset was made from a shard, and a view from the dataset: given the shard, the
    result is the dataset and the view.

    Args:
        sources: Digests of versions, which are not returned themselves.
        version_by_digest: All versions, with the versions that they were made from.

    Returns:
        Their digests, each after those that it was made from.
    """
    descendants: list[str] = []
    reached = set(sources)
    # In each round, add the versions that were made directly from versions of earlier rounds.
    while True:
        next_versions: list[str] = []
        for digest, version in version_by_digest.items():
            is_new = digest not in reached
            is_made_from_reached = not reached.isdisjoint(version.parents)
            if is_new and is_made_from_reached:
                next_versions.append(digest)
        if not next_versions:
            return descendants
        descendants += next_versions
        reached.update(next_versions)


def _knows_shards(root: OutputRoot, dataset_folder: Path, parents: set[str]) -> bool:
    """Return whether it is still known which shards a dataset was made from.

    A set of shards, which is an output of its own, lists them, and may have been deleted. The
    manifest of the dataset does not name it.

    Args:
        root: The output root.
        dataset_folder: Folder of a version of a dataset.
        parents: What `_parents` returned for it: the digests in its manifest, and that of the set
            of shards if this still exists.
    """
    digests_in_manifest: set[str] = set()
    manifest = root.manifest_at(dataset_folder)
    if manifest is not None:
        digests_in_manifest.update(manifest.recipe["parents"].values())
    set_of_shards = parents - digests_in_manifest  # its digest, or nothing
    return len(set_of_shards) > 0


def _parents(root: OutputRoot, folder: Path) -> set[str]:
    """Return the digests of the versions that a version was made from or refers to.

    Args:
        root: The output root.
        folder: Folder of the version.

    Returns:
        The digests; empty for a shard, which is made from raw text alone, and for an unfinished
        version, which has no manifest.
    """
    manifest = root.manifest_at(folder)
    if manifest is None or manifest.stage == SHARDS:
        return set()
    parents = set(manifest.recipe["parents"].values())

    # A recipe does not name everything: a dataset refers to the set of shards that it was joined
    # from, and the set refers to its shards.
    stage = stage_of(manifest.stage, manifest.name)
    if stage is not None:  # None: a stage that this version of nanoset does not have
        parents.update(stage.references(root, manifest))
    return parents


def version_path(manifest: Manifest) -> str:
    """Return the folder of a version as a path below the output root, such as datasets/web/3f9c….

    Args:
        manifest: Manifest of the version.
    """
    return f"{manifest.stage}/{manifest.name}/{manifest.digest}"


def own_files(manifest: Manifest) -> dict[str, Any]:
    """Return the size and checksum of each file that is stored in a version's own folder.

    Files that are ranges of other versions' files are left out.

    Args:
        manifest: Manifest of the version.

    Returns:
        Name → {"bytes": …, "sha256": …}.
    """
    files: dict[str, Any] = {}
    for name, fact in manifest.files.items():
        if fact.within is None:
            files[name] = {"bytes": fact.size, "sha256": fact.sha256}
    return files
