"""Find the samples of a nanoset or webdataset that hold a document, or why none does."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from nanoset_core.errors import ConfigError, MissingError, remedy_for_name
from nanoset_core.lineage.documents import DocumentOrigin, InspectionContext, Lineage
from nanoset_core.lineage.positions import DocumentPlaces, Split
from nanoset_core.lineage.webdataset import Tars
from nanoset_core.outputs.erasures import Erasure, erasure_of_id, erasure_of_line
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.dataset.dataset import Dataset
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.shards.make import REJECTS
from nanoset_core.stages.shards.purged import id_digest
from nanoset_core.stages.shards.reject_list import read_rejects
from nanoset_core.text.pieces import cut_ranges
from nanoset_core.text.rejects import Reject


class DocumentName(NamedTuple):
    """Names a document by its id, by file and line, or by its number; perhaps of one corpus."""

    identity: str | None = None
    """The document's id. Several documents may have it."""
    file: str | None = None
    """Relative to the corpus's folder. In a project also as `explain` prints it, with the corpus or
    its folder in front, or as a path or URL below the raw folder; and with `:line` if `line` is
    None."""
    line: int | None = None
    """1-based; of a table the row."""
    number: int | None = None
    """In its corpus, from 0, even if the nanoset reads a dataset derived from the corpus."""
    corpus: str | None = None
    """Look in this one only."""

    def __str__(self) -> str:
        if self.identity is not None:
            return f"id {self.identity!r}"
        return f"{self.file}:{self.line}" if self.file else f"document {self.number}"


class _MemberDocument(NamedTuple):
    """A document of one of the datasets that are searched."""

    member: int
    """Number of the dataset."""
    origin: DocumentOrigin


def find_document(
    project_or_root: Project | str | os.PathLike[str],
    name: str,
    split: str | None = None,
    **document: Any,
) -> list[DocumentPlaces]:
    """Return which samples hold a document, named by its own id, by file and line, or by number.

    By number and by line only the table that holds it is read; by id the ids of every shard that
    may hold it.

    Args:
        project_or_root: A project, or its output root alone.
        name: Name of a nanoset or webdataset.
        split: `train`, `valid` or `test` of a nanoset; None for a webdataset, whose appearances are
            `TarAppearance`s.
        document: Fields of `DocumentName`.

    Raises:
        MissingError: There is no such nanoset, webdataset, corpus or document.
        ConfigError: A document is not named in just one of these ways.
    """
    context = InspectionContext.of(project_or_root)
    searched = Tars.of(context, name) if split is None else Split.of(context, name, split)
    return find_in(context, searched, name, DocumentName(**document))


def find_in(
    context: InspectionContext, searched: Tars | Split, name: str, document: DocumentName
) -> list[DocumentPlaces]:
    """Return which samples of a split or webdataset that is open hold a document; see
    `find_document`.
    """
    document = _checked(_with_line(document))
    datasets = searched.datasets
    names = [dataset_name for dataset in datasets for dataset_name in dataset.names]
    corpora = list(dict.fromkeys(names))
    if document.corpus is not None and document.corpus not in corpora:
        raise MissingError(
            "the corpus is not in this nanoset or webdataset",
            where=name,
            found=repr(document.corpus),
            expected=", ".join(corpora),
            remedy=remedy_for_name(document.corpus, corpora, "name one of these"),
        )

    # A file that begins with a corpus or folder may mean a file of that corpus. If there is no such
    # document, take the file as it was given: a corpus's folder may contain a folder of the
    # corpus's name.
    readings: list[DocumentName] = []
    if context.config is not None and document.file is not None:
        readings = list(_within_corpora(context.config, corpora, document))
    for candidates in (readings, [document]):
        found = [
            member for candidate in candidates for member in _origins(datasets, candidate, context)
        ]
        if found:
            return [searched.places(member.member, member.origin) for member in found]

    candidates = [*readings, document]
    remedy = _hint(context, datasets, candidates)
    raise MissingError(
        "no such document",
        where=", ".join(corpora),
        found=str(document),
        expected="an id, a line of the raw files or a number in the corpus, of a document that is read here",
        remedy=remedy,
    )


def _with_line(document: DocumentName) -> DocumentName:
    """Return a document whose line was given as `file:line` with file and line apart.

    Raises:
        ConfigError: A file is named without a line.
    """
    if document.file is None or document.line is not None:
        return document
    parts = re.fullmatch(r"(.+):([0-9]+)", document.file, re.DOTALL)
    if parts is None:
        raise ConfigError(
            "a file alone names no document",
            where="--file",
            found=document.file,
            expected="a file and a line, as in web/part-0.jsonl:5, or --line",
            remedy="name the line too",
        )
    return document._replace(file=parts[1], line=int(parts[2]))


def _checked(document: DocumentName) -> DocumentName:
    """Return a document that is named in just one way.

    Raises:
        ConfigError: It is named in no way, or in several.
    """
    identity, file, line, number, _ = document
    n_ways = (identity is not None) + (file is not None) + (number is not None)
    if n_ways != 1 or (file is None) != (line is None):
        raise ConfigError(
            "a document is named in one of three ways",
            found=f"id {identity!r}, file {file!r}, line {line!r}, number {number!r}",
            expected="an id, or a file with a line, or a number",
            remedy="give one of them",
        )
    return document


def _within_corpora(
    config: ProjectConfig, corpora: Sequence[str], document: DocumentName
) -> Iterator[DocumentName]:
    """Yield the documents that a file may name if it begins with a corpus, its folder, or a path to
    these.
    """
    file = str(document.file)
    raw_folder = config.raw_folder
    parents = [str(raw_folder)]
    parents.append(
        str(raw_folder.resolve()) if isinstance(raw_folder, Path) else config.raw.rstrip("/")
    )
    is_below_raw = False
    for parent in parents:
        if file.startswith(f"{parent}/"):
            file = file[len(parent) + 1 :]
            is_below_raw = True
            break

    first, _, rest = file.partition("/")
    if not rest:
        return
    candidates = [corpus for corpus in corpora if document.corpus in (None, corpus)]
    # Below the raw folder there are folders. Elsewhere, the name of a corpus takes precedence over
    # its folder.
    matching = [corpus for corpus in candidates if corpus == first and not is_below_raw]
    if not matching:
        matching = [corpus for corpus in candidates if config.folder_name(corpus) == first]
    for corpus in matching:
        yield document._replace(corpus=corpus, file=rest)


def _origins(
    datasets: Sequence[Dataset], document: DocumentName, context: InspectionContext
) -> Iterator[_MemberDocument]:
    """Yield the documents with a name in some datasets, each as often as a dataset has it."""
    for member, dataset in enumerate(datasets):
        if document.corpus not in (None, *dataset.names):
            continue
        lineage = Lineage(dataset)
        origins: Iterator[DocumentOrigin] = iter(())
        if document.identity is not None:
            origins = lineage.find_id(document.identity)
        elif document.file is not None and document.line is not None:
            shards = _shards_with(context, lineage, document.file, document.line)
            origins = lineage.find_line(document.file, document.line, shards)
        elif document.number is not None:
            origins = lineage.find_number(document.number)
        for origin in origins:
            yield _MemberDocument(member, origin)


def _shards_with(
    context: InspectionContext, lineage: Lineage, file: str, line: int
) -> list[int] | None:
    """Return the shards that may hold a line, by the inventory; None if that was removed, or is of
    other shards.
    """
    inventory = context.inventory_of(lineage.dataset)
    if inventory is None:
        return None
    ranges = cut_ranges(inventory, lineage.tokenized.recipe["options"]["range_bytes"])
    if len(ranges) != len(lineage.shards):
        return None

    # The last piece of the file that begins at or before the line has it. Lines of pieces that were
    # cut without being read are not known: they are compared by their byte.
    place = lineage.numbers.in_piece(file, line)
    shards: list[int] = []
    for shard, source_range in enumerate(ranges):
        for piece in source_range.pieces:
            begins_before = piece.first_line <= line if place is None else piece.begin <= place[0]
            if piece.path == file and begins_before:
                shards.append(shard)
    return shards[-1:]


def _hint(
    context: InspectionContext, datasets: Sequence[Dataset], documents: Sequence[DocumentName]
) -> str:
    """Return a remedy for a document that was not found: why it is missing, if that is known."""
    erasure = _erasure(context, datasets, documents)
    if erasure is not None:
        return f"nothing: the document was {erasure}"
    for dataset in datasets:
        lineage = Lineage(dataset)
        for document in documents:
            if document.corpus not in (None, dataset.name, lineage.corpus):
                continue
            for reject in _rejects(context, lineage, document):
                place = f"{dataset.name}/{reject.file}"
                return (
                    f"the line was rejected ({reject.reason}: {reject.detail}); mend it in {place}"
                )
    for dataset in datasets:
        reason = _left_out_by_view(context, dataset.unpacked, documents)
        if reason is not None:
            return reason
    return f"look into the corpora's {INVENTORY.layout.folder}, and into the shards' rejects.jsonl"


def _left_out_by_view(
    context: InspectionContext, view: Dataset, documents: Sequence[DocumentName]
) -> str | None:
    """Return that the corpus of a view has a document which the view does not have; None if it has
    none of them.
    """
    if view.is_whole_corpus:
        return None
    for document in documents:
        in_any_corpus = document._replace(corpus=None)
        for member in _origins([view.corpus], in_any_corpus, context):
            origin = member.origin
            number = f"corpus {origin.corpus} has it as document {origin.document:,}"
            if not origin.tokens:
                return f"{number}, but it has no tokens, so that no sample holds it"
            return f"{number}, but view {view.name} does not choose it"
    return None


def _erasure(
    context: InspectionContext, datasets: Sequence[Dataset], documents: Sequence[DocumentName]
) -> Erasure | None:
    """Return the purge that erased the document that one of some names means, or None."""
    access = context.outputs.access
    names = {name for dataset in datasets for name in dataset.names}
    for document in documents:
        erasure = None
        if document.identity is not None:
            erasure = erasure_of_id(access, id_digest(document.identity))
        elif document.file is not None and document.line is not None:
            corpora = tuple(sorted(names)) if document.corpus is None else (document.corpus,)
            erasure = erasure_of_line(access, corpora, document.file, document.line)
        if erasure is not None:
            return erasure
    return None


def _rejects(
    context: InspectionContext, lineage: Lineage, document: DocumentName
) -> Iterator[Reject]:
    """Yield why the line of a document was rejected, if it was."""
    if document.file is None or document.line is None:
        return
    shards = _shards_with(context, lineage, document.file, document.line)
    if shards is None:
        shards = list(range(len(lineage.shards)))
    for shard in shards:
        path = context.outputs.access.fetch(lineage.folder(shard) / REJECTS)
        if not path.is_file():
            continue
        for reject in read_rejects(path, lineage.numbers):
            if (reject.file, reject.line) == (document.file, document.line):
                yield reject
