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
        StorageError: An output is damaged, so that it is not known what it was made from.
    """
    searched_corpora = _searched_corpora(project, corpora)
    documents_by_shard = _find_documents(project, ids, searched_corpora)

    # Some of these shards are old. List the documents of the current ones by corpus, with the
    # numbers of their lines in the raw files.
    current: dict[str, list[DocumentInShard]] = {}
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
    """Yield each shard of a corpus with the documents in it that have to be erased.

    A corpus is a collection of texts, which is tokenized in pieces, the shards. Each shard has a
    folder, such as shards/web/3f9c…, with a table of its documents and their ids. The tables are
    searched in parallel.

    Args:
        project: The project, whose output folder has the shards.
        ids: Ids of the documents to be erased.
        corpus: Name of the corpus, such as web.

    Yields:
        Digest of the shard, such as 3f9c…, and the documents. Most shards have none.
    """
    import pyarrow as pa

    ids_as_array = pa.array(ids, pa.large_string())

    def search_shard(root: OutputRoot, shard_folder: Path) -> list[DocumentInShard]:
        """Return the documents with these ids in one shard."""
        manifest = root.manifest_at(shard_folder)
        return _documents_with_ids(manifest, ids_as_array)

    # Call `search_shard` for the folder of each shard.
    outputs = project.outputs
    digests = sorted(outputs.digests_in(outputs.folder / SHARDS / corpus))
    documents_of_shards = outputs.each_version(search_shard, SHARDS, corpus, digests)
    yield from zip(digests, documents_of_shards, strict=True)


def _documents_with_ids(shard: Manifest | None, ids: Any) -> list[DocumentInShard]:
    """Return which documents of a shard have to be erased, by their ids.

    A shard is a tokenized piece of a text collection. It has a table with a row for each document:

        row   file       line   id                  tokens
        0     a.jsonl    1      http://a.org/1      31
        1     a.jsonl    2      http://b.org/2      12

    Args:
        shard: The manifest of the shard, which describes its files. None if the shard is being
            written, and has no table yet.
        ids: The ids, an Arrow array of texts, such as ["http://a.org/1"].

    Returns:
        The documents, in the order of the table. If the shard begins in the middle of a large file,
        their lines are counted from there.
    """
    if shard is None:
        return []
    table = DocumentRows(shard.path(DOCUMENTS), shard.facts["documents"])
    documents = []
    for row_number, row in table.with_ids(ids):  # a row is a dict: name of each column → value
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
    """Return which documents to be erased are in use now, and where they are in the raw text.

    A corpus (collection of texts) is tokenized in pieces, the shards. Old shards that are not in
    use any more may contain such documents, too. These are left out here.

    Users want to see where the documents are, so their line numbers are converted. A shard may
    begin in the middle of a large file, and counts lines from there. If it begins after 1,000 lines
    of a.jsonl, its line 5 is line 1,005 of the file.

    Args:
        project: The project, whose output folder has the shards.
        corpus: Name of the corpus.
        documents: Shard → its documents to be erased.

    Returns:
        The documents, with the numbers of their lines in the files.
    """
    shard_list = project.outputs.current(TOKENIZED.layout.folder, corpus)
    if shard_list is None:
        return []  # the corpus has no shards in use

    line_numbers = LineNumbers.of(shard_list.facts)  # knows how many lines precede each piece
    current_documents = []
    for digest in shard_list.facts[SHARDS]:
        shard = ShardKey(corpus, digest)
        for document in documents.get(shard, []):
            line_in_file = line_numbers.in_file(document.file, document.offset, document.line)
            current_documents.append(replace(document, line=line_in_file))
    return current_documents


def _check_in_raw_folder(
    project: Project, current: Mapping[str, Sequence[DocumentInShard]]
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
    tokenized = project.outputs.current(TOKENIZED.layout.folder, corpus)
    if tokenized is None:
        return 0
    n_documents: int = tokenized.facts["documents"]
    return n_documents


def _tainted_versions(project: Project, shards: Collection[ShardKey]) -> Iterator[TaintedVersion]:
    """Yield everything that contains documents to be erased, in the order in which to erase it.

    Text is tokenized in pieces, the shards. These are joined to a dataset, of which other outputs
    are made. Every build of an output is a version, whose name is a digest. For example:

        shard 3f9c…   →   dataset 81aa…   →   view c04d… (a selection of the dataset's documents)

    If the shard contains such a document, this yields c04d…, 81aa… and 3f9c…. Suppose that erasing
    is interrupted after the view: then the shard still exists, and the next attempt finds by it
    that the dataset has to be erased.

    Args:
        project: The project, whose output folder has the versions.
        shards: The shards that contain documents to be erased.
    """
    root = project.outputs
    outputs = all_outputs(root.access.listing())
    current_digests = {output.current for output in outputs}
    versions = list(_versions_to_examine(root, outputs, shards))
    folder_by_digest = {version.digest: version.folder for version in versions}
    for digest in _erasure_order(versions, shards):
        # The manifest of a version is a file that describes it, and lists its files.
        manifest = root.manifest_at(folder_by_digest[digest])
        if manifest is None:
            continue  # the version was deleted in the meantime
        yield TaintedVersion(
            path=version_path(manifest),
            digest=digest,
            is_current=digest in current_digests,
            files=own_files(manifest),
        )


def _erasure_order(versions: Sequence[_ExaminedVersion], shards: Iterable[ShardKey]) -> list[str]:
    """Return which builds of outputs contain documents to be erased, in the order of erasure.

    What was made from others is erased before them. So, if the erasure is interrupted, the next
    attempt still finds all that is left, by following what was made from the shards. For example:

        shard 3f9c…      a piece of tokenized text, with such a document     erased last
        dataset 81aa…    this shard and others, joined                       erased before the shard
        view c04d…       a selection of the documents of dataset 81aa…       erased first
        dataset 77b0…    an old one; nobody knows of which shards            erased before the shard

    The result is [c04d…, 81aa…, 77b0…, 3f9c…].

    Args:
        versions: All builds (versions) that may contain such documents.
        shards: The shards that certainly do.

    Returns:
        Digests of the versions.
    """
    # If the list of shards of an old dataset was deleted, nobody knows whether it contains such a
    # document. Erase it, and all that was made from it, as if it did.
    unclear_datasets = [version.digest for version in versions if version.has_unknown_shards]
    shard_digests = [shard.digest for shard in shards]
    sources = {*shard_digests, *unclear_datasets}  # {3f9c…, 77b0…}

    # Find what was made from these, directly or not, but without these themselves. Each version
    # follows those that it was made from, so erase them in the reversed order.
    version_by_digest = {version.digest: version for version in versions}
    made_from_sources = _made_from(sources, version_by_digest)  # [81aa…, c04d…]

    # Then erase the sources themselves: first datasets, then shards. (Of the shards, an interrupted
    # erasure may have deleted some already.)
    existing_shards = [version.digest for version in versions if version.is_shard]  # [3f9c…]
    return [*reversed(made_from_sources), *reversed(unclear_datasets), *existing_shards]


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
    """Yield the builds of outputs that may contain documents to be erased.

    Text is tokenized in pieces, the shards, and everything else is made from these. The documents
    were searched in all shards before, so it is known which shards have them. Each build (version)
    is named by a digest:

        shards with such documents    are yielded
        other shards                  are not yielded: there may be thousands
        all other outputs             every build is yielded, with the digests of what it was made
                                      from: by these, the caller finds the affected ones

    For datasets, which are all shards of a text joined, it may not be known any more of which
    shards an old build was made. Such a build is marked (`has_unknown_shards`).

    Args:
        root: The output folder of the project.
        outputs: All outputs in it.
        shards: The shards with such documents.
    """
    corpora = {shard.corpus for shard in shards}  # the text collections, such as {"web"}
    shard_digests = {shard.digest for shard in shards}
    for output in outputs:
        is_shard = output.stage_folder == SHARDS
        digests = sorted(output.versions)
        if is_shard:
            digests = sorted(output.versions & shard_digests)  # only shards with such documents

        # Read what each version was made from, in parallel.
        parents_of_versions = root.each_version(_parents, output.stage_folder, output.name, digests)

        # Look for builds of datasets of which the shards are not known any more: their names are in
        # a separate list, which may have been deleted. Only those of text collections that have
        # such documents matter.
        is_dataset = output.stage_folder == DATASET.layout.folder and output.name in corpora
        for digest, parents in zip(digests, parents_of_versions, strict=True):
            folder = output.folder / digest
            has_unknown_shards = is_dataset and not _knows_shards(root, folder, parents)
            yield _ExaminedVersion(digest, folder, parents, is_shard, has_unknown_shards)


def _made_from(
    sources: Collection[str], version_by_digest: Mapping[str, _ExaminedVersion]
) -> list[str]:
    """Return what was made from some versions of outputs, directly or through other versions.

    A version is one build of an output, and is named by a digest. For example:

        shard 3f9c…   →   dataset 81aa…   →   view c04d…

    A shard is a tokenized piece of text, a dataset is all shards joined, and a view is a selection
    of documents. From the shard, the first round finds the dataset, which was made directly from
    it. The second round finds the view. The result is [81aa…, c04d…].

    Args:
        sources: Digests of the versions to start from. They are not part of the result.
        version_by_digest: All versions, each with the versions that it was made from.

    Returns:
        Digests, each after those that it was made from.
    """
    descendants: list[str] = []
    reached = set(sources)
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
    """Return whether it is still known from which shards (pieces of text) an old dataset was made.

    If so, it is known whether the dataset has documents to be erased. A dataset does not name its
    shards itself: its manifest, a file that describes it, only names the list of raw files. A list
    of shards exists as well, but an old one may have been deleted:

        81aa…    list of raw files    is in the manifest of the dataset
        55d0…    list of shards       is not in the manifest; was made from the same raw files

    Args:
        root: The output folder of the project.
        dataset_folder: Folder of the dataset.
        parents: What `_parents` found for the dataset: these two, or only {"81aa…"} if the list of
            shards was deleted.
    """
    digests_in_manifest: set[str] = set()
    manifest = root.manifest_at(dataset_folder)
    if manifest is not None:
        digests_in_manifest.update(manifest.recipe["parents"].values())  # {"81aa…"}

    # The list of shards is the only one of the parents that is not in the manifest.
    list_of_shards = parents - digests_in_manifest  # {"55d0…"}, or empty
    return len(list_of_shards) > 0


def _parents(root: OutputRoot, folder: Path) -> set[str]:
    """Read from what a build of an output was made, to find out if it has documents to be erased.

    Every build is a version, and is named by a digest. What it was made from is named in two
    places:

        in its manifest, a JSON file     a view (selection of documents) was made from dataset 3f9c…
        in other files                   dataset 3f9c… was joined from shards (pieces of tokenized
                                         text), which are named in the list 55d0…

    Args:
        root: The output folder of the project.
        folder: Folder of the version.

    Returns:
        Digests of these other versions. There is none for a shard, which is made from raw text
        alone, and for a version that is still being written, which has no manifest yet.
    """
    manifest = root.manifest_at(folder)
    if manifest is None or manifest.stage == SHARDS:
        return set()
    parents = set(manifest.recipe["parents"].values())

    stage = stage_of(manifest.stage, manifest.name)  # the code that makes outputs of its kind
    if stage is not None:  # None: a kind that this version of nanoset does not have
        parents.update(stage.references(root, manifest))
    return parents


def version_path(manifest: Manifest) -> str:
    """Return the folder of a version as a path below the output root, such as datasets/web/3f9c….

    Args:
        manifest: Manifest of the version.
    """
    return f"{manifest.stage}/{manifest.name}/{manifest.digest}"


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
        if fact.within is None:
            files[name] = {"bytes": fact.size, "sha256": fact.sha256}
    return files
