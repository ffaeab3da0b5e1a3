"""Find what a purge has to erase: the documents with some ids, and all versions made from them.

All shards below the root are searched for the documents, not only the current ones. A version is
*tainted* if it is a shard with such a document, or was made from a tainted version.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

from nanoset_core.errors import ConfigError, StorageError, remedy_for_name
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import CURRENT_LINK, OutputRoot, delete_copies_command
from nanoset_core.project.made_from import VersionSources, sources_of
from nanoset_core.project.project import Project
from nanoset_core.project.stored_outputs import StoredOutput, all_outputs
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.inventory.corpora import corpus_names
from nanoset_core.stages.per_shard import SHARDS
from nanoset_core.stages.shards.document_rows import DocumentRows
from nanoset_core.stages.shards.line_numbers import LineNumbers
from nanoset_core.stages.shards.names import SHARDS_FOLDER
from nanoset_core.stages.shards.one_shard import DOCUMENTS
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import Key, find_current
from nanoset_core.wording import abbreviated


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
    line_in_piece: int
    """Number of its line or row, from 1, within the piece of the file that the shard was made from.
    """
    offset: int
    """Byte offset of the line; -1 for a row of a table."""
    id: str
    """The document's own id."""
    tokens: int
    """How many tokens it has."""


@dataclass(frozen=True, slots=True)
class CurrentDocument:
    """A document of a current shard, with its place in the raw text."""

    file: str
    """Its file of the raw text, relative to the corpus's folder."""
    line: int
    """Number of its line or row in the file, from 1."""
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
    def leased_name(self) -> str:
        """The corpus, nanoset or view on which builds have a lease: web for datasets/web/3f9c…."""
        _, name, *_ = self.path.split("/")
        return name

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
    """Shard → the documents in it that are erased."""
    current: Mapping[str, Sequence[CurrentDocument]]
    """Corpus → the documents in its current shards that are erased."""
    versions: tuple[TaintedVersion, ...]
    """The versions to erase, each before those that it was made from."""


def plan_purge(project: Project, ids: Sequence[str], corpora: Collection[str] = ()) -> PurgePlan:
    """Find some documents, and everything that was made from them, before they are erased.

    For example, somebody demands that the page "http://a.org/1" is removed from the training data.
    Its tokens are in a shard (a tokenized piece of a text collection), and so in the dataset that
    the shards were joined to, and in old versions of both. Nothing is written here.

    Args:
        project: The project, whose output folder is searched.
        ids: Ids of the documents, such as URLs.
        corpora: Names of the text collections that are searched; empty for all.

    Returns:
        The documents by shard, and the versions to erase: shards with such documents, and all that
        was made from these.

    Raises:
        ConfigError: A corpus (text collection) with such documents is not in the raw folder any
            more, so that its other documents would be lost; or a corpus has no shards.
        FormatError: The file that describes a version, or a table of documents, cannot be read.
        StorageError: An output is damaged, so that it is not known what it was made from. Or there
            are copies of versions that a purge does not reach.
    """
    searched_corpora = _searched_corpora(project, corpora)
    documents_by_shard = _find_documents(project, ids, searched_corpora)

    # Some of these shards are old. List the documents of the current ones by corpus, with the
    # numbers of their lines in the raw files.
    current: dict[str, list[CurrentDocument]] = {}
    for shard in documents_by_shard:
        corpus = shard.corpus
        if corpus not in current:
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
    """Return the text collections (corpora) in which documents to be erased are searched.

    Args:
        project: The project. A corpus that was tokenized has a folder of tokenized pieces, the
            shards, in the folder `shards` of its outputs.
        corpora: The corpora that the user named; empty for all that were tokenized.

    Returns:
        Names of the corpora, sorted, such as ["code", "web"].

    Raises:
        ConfigError: A corpus that the user named has no shards. If the name is similar to another,
            the error says so: "did you mean web?"
    """
    outputs = project.outputs
    with_shards = outputs.names(SHARDS_FOLDER)
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
    """Find the documents that have to be erased, such as web pages, by their ids.

    A corpus (collection of texts) is tokenized in pieces, the shards. When text or settings change,
    new shards are made, and the old ones stay for a while. All of them are searched:

        shard 3f9c… of web (in use)     row 17 has the id "http://a.org/1"
        shard 81aa… of web (old)        row 12 has the id "http://a.org/1"
        shard c04d… of web (in use)     no row has it

    Args:
        project: The project, whose output folder is searched.
        ids: Ids of the documents, such as ["http://a.org/1"].
        corpora: Names of the corpora to search.

    Returns:
        Shard → its documents with these ids. Shards without any are left out.
    """
    documents: dict[ShardKey, Sequence[DocumentInShard]] = {}
    for corpus in corpora:
        for digest, documents_in_shard in _documents_by_shard(project, ids, corpus):
            if documents_in_shard:
                documents[ShardKey(corpus, digest)] = documents_in_shard
    return documents


def _documents_by_shard(
    project: Project, ids: Sequence[str], corpus: str
) -> Iterator[tuple[str, list[DocumentInShard]]]:
    """Yield each shard of a text collection with the documents in it that have to be erased.

    A shard is a tokenized piece of the collection. It has a folder, such as shards/web/3f9c…, with
    a table of its documents and their ids.

    Args:
        project: The project, whose output folder has the shards.
        ids: Ids of the documents to be erased.
        corpus: Name of the collection, such as web.

    Yields:
        Digest of the shard, such as 3f9c…, and the documents. Most shards have none.
    """
    import pyarrow as pa

    ids_as_array = pa.array(ids, pa.large_string())

    def search_shard(root: OutputRoot, shard_folder: Path) -> list[DocumentInShard]:
        """Return the documents with these ids in one shard."""
        manifest = root.manifest_at(shard_folder)
        return _documents_with_ids(manifest, ids_as_array)

    # Search all shards in parallel.
    outputs = project.outputs
    digests = sorted(outputs.digests_in(outputs.folder / SHARDS_FOLDER / corpus))
    documents_of_shards = outputs.each_version(search_shard, SHARDS_FOLDER, corpus, digests)
    yield from zip(digests, documents_of_shards, strict=True)


def _documents_with_ids(shard: Manifest | None, ids: Any) -> list[DocumentInShard]:
    """Return which documents of a shard have to be erased, by their ids.

    A shard is a tokenized piece of a text collection. It has a table with a row for each document,
    with its file, line, id and number of tokens.

    Args:
        shard: Describes the files of the shard; None if it is being written, and has no table yet.
        ids: The ids, an Arrow array of texts, such as ["http://a.org/1"].

    Returns:
        The documents, in the order of the table.
    """
    if shard is None:
        return []
    table = DocumentRows(shard.path(DOCUMENTS), shard.facts["documents"])
    documents = []
    for row_number, row in table.with_ids(ids):  # a row is a dict: name of each column → value
        document = DocumentInShard(
            row=row_number,
            file=row["file"],
            line_in_piece=row["line"],
            offset=row["byte_offset"],
            id=row["id"],
            tokens=row["tokens"],
        )
        documents.append(document)
    return documents


def _current_documents(
    project: Project, corpus: str, documents: Mapping[ShardKey, Sequence[DocumentInShard]]
) -> list[CurrentDocument]:
    """Return which documents to be erased are in use now, with their lines in the raw text.

    Args:
        project: The project, whose output folder has the shards (tokenized pieces of text).
        corpus: Name of the text collection.
        documents: Shard → its documents to be erased. Old shards are left out of the result.
    """
    shard_list = find_current(project, TOKENIZED, Key(corpus))
    if shard_list is None:
        return []  # the collection has no shards in use

    # A shard may begin in the middle of a large file, and counts lines from there. If it begins
    # after 1,000 lines, its line 5 is line 1,005 of the file.
    line_numbers = LineNumbers.of(shard_list.facts)
    current_documents = []
    for digest in shard_list.facts[SHARDS]:
        shard = ShardKey(corpus, digest)
        for document in documents.get(shard, []):
            line = line_numbers.in_file(document.file, document.offset, document.line_in_piece)
            current_documents.append(
                CurrentDocument(document.file, line, document.id, document.tokens)
            )
    return current_documents


def _check_in_raw_folder(
    project: Project, current: Mapping[str, Sequence[CurrentDocument]]
) -> None:
    """Check that erasing some documents does not lose others.

    Documents are erased by building the outputs again without them. But a build drops every corpus
    (collection of texts) whose folder of raw text was deleted:

        corpus   documents   to be erased   folder of raw text
        web      1,000       2              exists                 fine
        news     500         500            was deleted            fine: all have to go anyway
        code     800         1              was deleted            error: 799 others would be lost

    Args:
        project: The project, whose folder of raw text is listed.
        current: Name of a corpus → its documents that are to be erased.

    Raises:
        ConfigError: A corpus would lose other documents.
    """
    corpora_with_text = corpus_names(project)
    endangered_corpora = []
    for corpus, documents_to_erase in current.items():
        if corpus in corpora_with_text:
            continue
        n_other_documents = _document_count(project, corpus) - len(documents_to_erase)
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
    """Return how many documents of a text collection (corpus) have been tokenized and are in use.

    Args:
        project: The project, whose output folder has the tokens.
        corpus: Name of the corpus. If it was not tokenized, the number is 0.
    """
    tokenized = find_current(project, TOKENIZED, Key(corpus))
    if tokenized is None:
        return 0
    n_documents: int = tokenized.facts["documents"]
    return n_documents


def _tainted_versions(project: Project, shards: Collection[ShardKey]) -> Iterator[TaintedVersion]:
    """Yield every version that contains documents to be erased, in the order in which to erase it.

    A version is one build of an output. Text is tokenized in pieces, the shards, and everything
    that was made from a shard contains its documents, too. For example, if a shard has such
    documents, the result may be:

        views/best/c04d…       made from the dataset
        datasets/web/81aa…     made from the shard
        shards/web/3f9c…       the shard

    Args:
        project: The project, whose output folder has the versions.
        shards: The shards that contain these documents.

    Raises:
        StorageError: An output has a folder `current` in place of a link of this name. It is a copy
            of a version, which may contain the documents, too.
    """
    root = project.outputs
    outputs = all_outputs(root.access.with_store_listing())
    _check_no_copies(root, outputs)

    versions = list(_versions_to_examine(root, outputs, shards))
    for version in _erasure_order(versions, shards):  # such as the view, the dataset, the shard
        manifest = root.manifest_at(version.folder)
        if manifest is None:
            continue  # the version was deleted in the meantime
        yield TaintedVersion(
            path=manifest.location,
            digest=version.digest,
            is_current=version.digest == version.output.current,  # others are old
            files=own_files(manifest),
        )


def _check_no_copies(root: OutputRoot, outputs: Iterable[StoredOutput]) -> None:
    """Check that no version was copied through the link `current` of its output.

    For example, `aws s3 sync` follows links by default. So after the outputs were copied to a
    bucket, it has these objects:

        datasets/web/3f9c…/web.bin      of the version that was current
        datasets/web/current/web.bin    a copy, which no later build changes

    A purge erases versions. The text of an erased document would stay in the copy.

    Args:
        root: The output folder of the project.
        outputs: All outputs in it.

    Raises:
        StorageError: There are such copies.
    """
    copies = [output.folder / CURRENT_LINK for output in outputs if output.has_copy]
    if not copies:
        return

    remedy = "delete all objects there whose names match */*/current/*, and purge again"
    if not root.access.takes_requests:
        remedy = f"delete these folders (`{delete_copies_command(root.folder)}`), and purge again"
    names = [root.access.name(copy) for copy in copies]  # such as datasets/web/current
    raise StorageError(
        "a purge does not reach folders `current`, which may contain the documents",
        where=root.access.url(root.folder),
        found=abbreviated(names),
        expected="symbolic links, which programs that copy outputs may turn into folders",
        remedy=remedy,
    )


def _erasure_order(
    versions: Sequence[_ExaminedVersion], shards: Iterable[ShardKey]
) -> list[_ExaminedVersion]:
    """Return the versions of outputs to erase, each before those that it was made from.

    Text is tokenized in pieces, the shards, and everything else is made from these:

        shard  →  list of shards  →  dataset  →  view

    So the result is the view, the dataset, the list and the shard. The shard comes last: if the
    erasure is interrupted, the next attempt starts from the shard, and so finds the rest.

    Args:
        versions: All versions (builds) that may contain documents to be erased.
        shards: The shards that certainly do. Some may have been erased by an earlier attempt.
    """
    suspect_datasets = _datasets_of_unknown_shards(versions, {shard.corpus for shard in shards})
    shard_digests = [shard.digest for shard in shards]
    version_by_digest = {version.digest: version for version in versions}
    descendants = _made_from({*shard_digests, *suspect_datasets}, version_by_digest)

    # `descendants` starts with what was made first, such as a list of shards. Erase it last.
    digests = [*reversed(descendants), *reversed(suspect_datasets)]
    made_from_shards = [version_by_digest[digest] for digest in digests]
    remaining_shards = [version for version in versions if version.is_shard]
    return made_from_shards + remaining_shards


def _datasets_of_unknown_shards(
    versions: Iterable[_ExaminedVersion], corpora: Collection[str]
) -> list[str]:
    """Return the old datasets of which it is no longer known from which shards they were made.

    A dataset is all shards (tokenized pieces) of a text collection, joined. Another output lists
    the shards. If this list was deleted, they are not known. So the dataset may contain documents
    to be erased, and is erased, too.

    Args:
        versions: All versions of all outputs.
        corpora: Names of the text collections whose datasets are looked at.

    Returns:
        Digests, which name the versions of the datasets.
    """
    digests = []
    for version in versions:
        is_dataset = version.output.stage_folder == DATASET.layout.folder
        # A dataset refers to one other output: the list of its shards.
        has_list = len(version.sources.references) > 0
        if is_dataset and version.output.name in corpora and not has_list:
            digests.append(version.digest)
    return digests


class _ExaminedVersion(NamedTuple):
    """A version that may be made from tainted shards, or is one."""

    digest: str
    """Its digest."""
    output: StoredOutput
    """The output that it is a version of."""
    sources: VersionSources
    """What it was made from."""

    @property
    def folder(self) -> Path:
        """Folder with its files."""
        return self.output.folder / self.digest

    @property
    def is_shard(self) -> bool:
        """Whether it is a tainted shard."""
        return self.output.stage_folder == SHARDS_FOLDER


def _versions_to_examine(
    root: OutputRoot, outputs: Iterable[StoredOutput], shards: Collection[ShardKey]
) -> Iterator[_ExaminedVersion]:
    """Yield the versions of outputs that may contain documents to be erased.

    These are all versions (builds) of all outputs, except most shards, the tokenized pieces of
    text. There may be thousands of shards, but they have been searched already.

    Args:
        root: The output folder of the project.
        outputs: All outputs in it.
        shards: The shards with such documents.
    """
    shard_digests = {shard.digest for shard in shards}
    for output in outputs:
        digests = output.versions
        if output.stage_folder == SHARDS_FOLDER:
            digests = digests & shard_digests

        # Read what each version was made from, all at once.
        ordered_digests = sorted(digests)
        sources_of_versions = root.each_version(
            _read_sources, output.stage_folder, output.name, ordered_digests
        )
        for digest, sources in zip(ordered_digests, sources_of_versions, strict=True):
            yield _ExaminedVersion(digest, output, sources)


def _made_from(
    sources: Collection[str], version_by_digest: Mapping[str, _ExaminedVersion]
) -> list[str]:
    """Return what was made from some versions of outputs, directly or through other versions.

    A version is one build of an output, and is named by a digest. For example:

        shard 3f9c…   →   dataset 81aa…   →   view c04d…

    A shard is a tokenized piece of text, a dataset is all shards joined, and a view is a selection
    of documents. From the shard, the result is [81aa…, c04d…], since the view was made from the
    dataset.

    Args:
        sources: Digests of the versions to start from. They are not part of the result.
        version_by_digest: All versions, each with the versions that it was made from.

    Returns:
        Digests, each after those that it was made from.
    """
    descendants = _find_descendants(sources, version_by_digest)
    order: TopologicalSorter[str] = TopologicalSorter()
    for digest in sorted(descendants):
        order.add(digest, *descendants.intersection(version_by_digest[digest].sources.digests))
    return list(order.static_order())


def _find_descendants(
    sources: Collection[str], version_by_digest: Mapping[str, _ExaminedVersion]
) -> set[str]:
    """Return what was made from some versions of outputs, directly or through others, in any order.

    The first round finds what was made directly from the versions, the second round what was made
    from that, and so on.

    Args:
        sources: Digests of the versions to start from. They are not part of the result.
        version_by_digest: All versions, each with the versions that it was made from.

    Returns:
        Digests of versions.
    """
    reached = set(sources)
    while True:
        next_versions: list[str] = []
        for digest, version in version_by_digest.items():
            is_new = digest not in reached
            is_made_from_reached = not reached.isdisjoint(version.sources.digests)
            if is_new and is_made_from_reached:
                next_versions.append(digest)
        if not next_versions:
            return reached.difference(sources)
        reached.update(next_versions)


def _read_sources(root: OutputRoot, folder: Path) -> VersionSources:
    """Read what a version of an output was made from.

    Args:
        root: The output folder of the project.
        folder: Folder of the version.

    Returns:
        Digests of other versions. There is none for a shard (a tokenized piece of text), which is
        made from raw text alone, and for a version that is still being written.
    """
    manifest = root.manifest_at(folder)
    if manifest is None or manifest.stage == SHARDS_FOLDER:
        return VersionSources()
    return sources_of(root, manifest)


def own_files(manifest: Manifest) -> dict[str, Any]:
    """Return the size and checksum of each file that is stored in the folder of a build.

    To save space, tokens that are stored twice may be deleted once. Then the manifest of the build,
    which describes its files, says where else the bytes are. Such files are left out:

        tokens.idx    62 bytes                                            in the result
        tokens.bin    bytes 300 to 500 of datasets/web/3f9c…/web.bin      not in the result

    Args:
        manifest: The manifest.

    Returns:
        Name → size and checksum, such as {"tokens.idx": {"bytes": 62, "sha256": "5e8f…"}}.
    """
    files: dict[str, Any] = {}
    for name, fact in manifest.files.items():
        if not fact.is_in_other_output:
            files[name] = {"bytes": fact.size, "sha256": fact.sha256}
    return files
