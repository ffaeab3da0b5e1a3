"""What a purge erases: documents with given ids, and all versions made from them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nanoset_core.errors import ConfigError, remedy_for_name
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.existing import StoredOutput, all_outputs
from nanoset_core.project.project import Project
from nanoset_core.sampling.hashing import hash_texts
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.inventory.corpora import corpus_names
from nanoset_core.stages.registry import stage_of
from nanoset_core.stages.shards.document_rows import DocumentRows
from nanoset_core.stages.shards.line_numbers import LineNumbers
from nanoset_core.stages.shards.make import DOCUMENTS, SHARDS
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.views.ids import Ids


class ShardKey(NamedTuple):
    """Names a shard."""

    corpus: str
    digest: str


@dataclass(frozen=True, slots=True)
class DocumentInShard:
    """A document that a shard holds."""

    row: int
    """Its number in the shard."""
    file: str
    """File of the raw text, relative to the corpus's folder."""
    line: int
    """Number of its line or row, from 1: in its piece of the file, or in the file, as the holder
    says.
    """
    offset: int
    """Byte offset of the line; -1 for a row of a table."""
    id: str
    """The document's own id."""
    tokens: int


@dataclass(frozen=True, slots=True)
class TaintedVersion:
    """A version of an output that was made of documents to be erased."""

    path: str
    """Its folder below the root."""
    digest: str
    is_current: bool
    files: Mapping[str, Any]
    """Name → bytes and, if known, sha256 of each of its own files."""

    @property
    def size(self) -> int:
        """Bytes of its own files."""
        return sum(int(fact["bytes"]) for fact in self.files.values())


@dataclass(frozen=True, slots=True)
class PurgePlan:
    """What a purge erases."""

    ids: tuple[str, ...]
    """Ids of the documents."""
    corpora: tuple[str, ...]
    """Corpora that are searched; empty for all."""
    documents: Mapping[ShardKey, Sequence[DocumentInShard]]
    """Shard that holds some of the documents → these, with line numbers in their pieces."""
    current: Mapping[str, Sequence[DocumentInShard]]
    """Corpus → the documents of its current shards, with line numbers in their files."""
    versions: tuple[TaintedVersion, ...]
    """Versions to erase, each before what it was made of."""


def plan_purge(project: Project, ids: Sequence[str], corpora: Collection[str] = ()) -> PurgePlan:
    """Look for documents by their own ids in all shards below the root; nothing is written.

    Args:
        project: The project.
        ids: Ids of the documents.
        corpora: Corpora that are searched; empty for all.

    Raises:
        ConfigError: A corpus with such documents is not in the raw folder any more, so its other
            documents would be lost; or a corpus has no shards.
        FormatError: A manifest, or a table of documents, cannot be read.
        StorageError: An output is damaged, so that it is not known what it was made of.
    """
    names = _searched_corpora(project, corpora)
    documents = _find_documents(project, ids, names)
    corpora_with_documents = dict.fromkeys(shard.corpus for shard in documents)
    current = {
        corpus: _current_documents(project, corpus, documents) for corpus in corpora_with_documents
    }
    _check_in_raw_folder(project, current)
    return PurgePlan(
        ids=tuple(ids),
        corpora=tuple(corpora),
        documents=documents,
        current=current,
        versions=tuple(_tainted_versions(project, documents.keys())),
    )


def _searched_corpora(project: Project, corpora: Collection[str]) -> list[str]:
    """Return the corpora to search, sorted, after checking that each has shards."""
    outputs = project.outputs
    with_shards = sorted(
        name for name in outputs.access.names(outputs.folder / SHARDS) if not name.startswith(".")
    )
    unknown = sorted(set(corpora) - set(with_shards))
    if unknown:
        raise ConfigError(
            "no shards of such a corpus are below the root",
            found=", ".join(unknown),
            expected=", ".join(with_shards),
            remedy=remedy_for_name(unknown[0], with_shards, "correct --corpus"),
        )
    return sorted(corpora) if corpora else with_shards


def _find_documents(
    project: Project, ids: Sequence[str], corpora: Sequence[str]
) -> dict[ShardKey, Sequence[DocumentInShard]]:
    """Return every shard of some corpora that holds documents with these ids, with those documents."""
    import pyarrow as pa

    outputs = project.outputs
    id_set = Ids(pa.array(ids, pa.large_string()))

    def search(outputs: OutputRoot, folder: Path) -> list[DocumentInShard]:
        return _documents_with_ids(outputs.manifest_at(folder), id_set)

    documents: dict[ShardKey, Sequence[DocumentInShard]] = {}
    for corpus in corpora:
        digests = sorted(outputs.digests_in(outputs.folder / SHARDS / corpus))
        results = outputs.each_version(search, SHARDS, corpus, digests)
        for digest, in_shard in zip(digests, results, strict=True):
            if in_shard:
                documents[ShardKey(corpus, digest)] = in_shard
    return documents


def _documents_with_ids(shard: Manifest | None, id_set: Ids) -> list[DocumentInShard]:
    """Return the documents of a shard with some ids; none if the shard is no output."""
    if shard is None:
        return []
    documents = []
    table = DocumentRows(shard.path(DOCUMENTS), shard.facts["documents"])
    for group, (first_row, _) in enumerate(table.groups):
        column = table.columns(group, ["id"]).column("id").combine_chunks()
        rows = (first_row + np.flatnonzero(id_set.mask(column, hash_texts(column)))).tolist()
        for row, values in zip(rows, table.read(rows), strict=True):
            document = DocumentInShard(
                row=row,
                file=values["file"],
                line=values["line"],
                offset=values["byte_offset"],
                id=values["id"],
                tokens=values["tokens"],
            )
            documents.append(document)
    return documents


def _current_documents(
    project: Project, corpus: str, documents: Mapping[ShardKey, Sequence[DocumentInShard]]
) -> list[DocumentInShard]:
    """Return the documents of a corpus's current shards, with their line in their file."""
    tokenized = project.outputs.current(TOKENIZED.layout.folder, corpus)
    if tokenized is None:
        return []
    line_numbers = LineNumbers.of(tokenized.facts)
    current = []
    for digest in tokenized.facts[SHARDS]:
        for document in documents.get(ShardKey(corpus, digest), ()):
            line = line_numbers.in_file(document.file, document.offset, document.line)
            current.append(replace(document, line=line))
    return current


def _check_in_raw_folder(
    project: Project, current: Mapping[str, Sequence[DocumentInShard]]
) -> None:
    """Check that the raw folder has every corpus that keeps documents: a build rereads it.

    Raises:
        ConfigError: It has not.
    """
    outputs = project.outputs
    in_raw_folder = corpus_names(project)
    missing = []
    for corpus, documents in current.items():
        tokenized = outputs.current(TOKENIZED.layout.folder, corpus)
        n_documents = 0 if tokenized is None else tokenized.facts["documents"]
        if corpus not in in_raw_folder and n_documents != len(documents):
            missing.append(corpus)
    if missing:
        raise ConfigError(
            "a corpus with such documents, and others, is not in the raw folder any more",
            where=outputs.folder,
            found=", ".join(missing),
            remedy="restore it, or name all of its documents; then run it again",
        )


def _tainted_versions(project: Project, shards: Collection[ShardKey]) -> Iterator[TaintedVersion]:
    """Yield all versions that were made of shards, directly or not, and these shards.

    Versions come before what they were made of: a purge that is cut short finds the others by the
    shards that remain.
    """
    root = project.outputs
    outputs = all_outputs(root.access.listing())
    corpora = {shard.corpus for shard in shards}
    tainted = {shard.digest for shard in shards}

    # What each version was made of. Of shards, only the tainted ones are looked at: there are many.
    folder_by_digest: dict[str, Path] = {}
    needs_by_digest: dict[str, set[str]] = {}
    stored_shards: list[str] = []
    orphans: list[str] = []
    for output in outputs:
        is_shards = output.stage_folder == SHARDS
        digests = sorted(output.versions & tainted if is_shards else output.versions)
        results = root.each_version(_needs, output.stage_folder, output.name, digests)
        for digest, needs in zip(digests, results, strict=True):
            folder_by_digest[digest] = output.folder / digest
            needs_by_digest[digest] = needs
            if is_shards:
                stored_shards.append(digest)
            elif _is_orphan(root, output, digest, needs, corpora):
                orphans.append(digest)

    # Add what was made of these, and what was made of that, until nothing is added.
    order = [*reversed(stored_shards), *orphans]
    tainted.update(order)
    while True:
        added = [
            digest
            for digest, needs in needs_by_digest.items()
            if digest not in tainted and tainted & needs
        ]
        if not added:
            break
        order += added
        tainted.update(added)

    current = {output.current for output in outputs}
    for digest in reversed(order):
        manifest = root.manifest_at(folder_by_digest[digest])
        if manifest is not None:
            yield TaintedVersion(
                version_path(manifest), digest, digest in current, own_files(manifest)
            )


def _is_orphan(
    root: OutputRoot, output: StoredOutput, digest: str, needs: set[str], corpora: Collection[str]
) -> bool:
    """Return whether a version is a dataset of these corpora whose shards were deleted.

    It may hold the documents, too: nothing tells which shards it was made of.
    """
    if output.stage_folder != DATASET.layout.folder or output.name not in corpora:
        return False
    manifest = root.manifest_at(output.folder / digest)
    parents = set() if manifest is None else set(manifest.recipe["parents"].values())
    return needs <= parents


def _needs(root: OutputRoot, folder: Path) -> set[str]:
    """Return the digests of what a version was made from and points at; none for a shard."""
    manifest = root.manifest_at(folder)
    if manifest is None or manifest.stage == SHARDS:
        return set()
    needs = set(manifest.recipe["parents"].values())
    stage = stage_of(manifest.stage, manifest.name)
    if stage is not None:
        needs.update(stage.references(root, manifest))
    return needs


def version_path(manifest: Manifest) -> str:
    """Return the folder of a version below the root."""
    return f"{manifest.stage}/{manifest.name}/{manifest.digest}"


def own_files(manifest: Manifest) -> dict[str, Any]:
    """Return name → bytes and sha256 of a version's files, without ranges of other versions' files."""
    files: dict[str, Any] = {}
    for name, fact in manifest.files.items():
        if fact.within is None:
            files[name] = {"bytes": fact.size, "sha256": fact.sha256}
    return files
