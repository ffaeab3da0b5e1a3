"""Find the samples of a nanoset or webdataset that contain a document, or the reason why none does.

A user names the document by its id, by file and line, or by its number (`DocumentName`): with
`file="web/a.jsonl", line=5`, it is the document of line 5. It is looked up in the datasets that are
searched, and then in their index arrays or in the plan of the tars. If there is no such document,
the error says what became of it, if that can be found out: its line was rejected, a view does not
include it, or it was erased.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from nanoset_core.errors import ConfigError, FormatError, MissingError, remedy_for_name
from nanoset_core.lineage.documents import DocumentOrigin, InspectionContext, Lineage
from nanoset_core.lineage.positions import DocumentPlaces, Split
from nanoset_core.lineage.webdataset import Tars
from nanoset_core.outputs.erasures import Erasure, erasure_of_id, erasure_of_line
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.dataset.dataset import Dataset
from nanoset_core.stages.inventory.make import inventory_of
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.shards.line_numbers import LineInPiece
from nanoset_core.stages.shards.one_shard import REJECTS
from nanoset_core.stages.shards.purged import id_digest
from nanoset_core.stages.shards.reject_list import read_rejects
from nanoset_core.stages.shards.shard_sets import ranges_of_shards
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.location import is_remote
from nanoset_core.storage.places import real_path
from nanoset_core.text.inventory.pieces import Piece, SourceRange
from nanoset_core.text.rejects import Reject


class DocumentName(NamedTuple):
    """How a user names a document: by its id, by file and line, or by its number."""

    identity: str | None = None
    """The document's id. Several documents may have it."""
    file: str | None = None
    """Path of its file, relative to the corpus's folder. In a project, it may also be the path that
    `explain` prints, which begins with the corpus or its folder, or a path or URL below the raw
    folder. If `line` is None, it ends with `:` and the line.
    """
    line: int | None = None
    """Number of its line, or of its row in a table, from 1."""
    number: int | None = None
    """Number in its corpus, from 0, even if the nanoset reads a dataset derived from it."""
    corpus: str | None = None
    """Search this corpus or dataset only; None to search all."""

    def __str__(self) -> str:
        if self.identity is not None:
            return f"id {self.identity!r}"
        if self.file:
            return f"{self.file}:{self.line}"
        return f"document {self.number}"


class _FoundDocument(NamedTuple):
    """A document that was found in one of the datasets that are searched."""

    dataset_number: int
    """Position of the dataset among those that are searched, from 0."""
    origin: DocumentOrigin
    """The document."""


def find_document(
    project_or_root: Project | str | os.PathLike[str],
    name: str,
    split: str | None = None,
    **document: Any,
) -> list[DocumentPlaces]:
    """Find the training samples that contain a document, which is named by id, line or number.

    For example, the document in line 5 of web/a.jsonl is in the samples 7 and 8 of train. A search
    for an id is slower than for a line or number, since the ids of all documents are read.

    Args:
        project_or_root: A project, or its output root alone.
        name: Name of a nanoset or webdataset.
        split: `train`, `valid` or `test` of a nanoset; None for a webdataset.
        document: The fields of a `DocumentName`: `identity="a1"`, or `file="web/a.jsonl", line=5`,
            or `number=7, corpus="web"`.

    Returns:
        For each document with this name, the samples that contain it. Those of a webdataset are
        described by `TarAppearance`, which also has the name of the tar.

    Raises:
        MissingError: There is no such nanoset, webdataset, corpus or document.
        ConfigError: The document is not named in exactly one of these ways.
    """
    context = InspectionContext.of(project_or_root)
    searched: Tars | Split
    if split is None:
        searched = Tars.of(context, name)
    else:
        searched = Split.of(context, name, split)
    return find_in(context, searched, name, DocumentName(**document))


def find_in(
    context: InspectionContext, searched: Tars | Split, name: str, document: DocumentName
) -> list[DocumentPlaces]:
    """Return which training samples contain a document that a user has named.

    A user may name a document by its id, by a file and a line, or by its number. A path may be
    meant in two ways. For example, "web/a.jsonl" is

        the file a.jsonl of the corpus "web" (a collection of texts), if it has one
        otherwise a file web/a.jsonl in the folder of any corpus

    Args:
        context: The opened outputs, and the settings of the project if they are known.
        searched: The samples to search: a split of a nanoset (train, valid or test), or a
            webdataset.
        name: Its name, for errors.
        document: The document, as the user named it.

    Returns:
        The places of each document with this name.

    Raises:
        MissingError: There is no such document, or the corpus is not searched.
        ConfigError: The document is not named in exactly one way.
    """
    document = _with_line(document)
    _check_named_once(document)
    datasets = searched.datasets
    corpora = _names_of(datasets)
    if document.corpus is not None:
        _check_corpus(document.corpus, corpora, name)

    # A path such as web/a.jsonl may mean the file a.jsonl of the corpus web. If that does not
    # exist, it means a file web/a.jsonl within a corpus.
    names_in_corpora = _within_corpora(context.config, corpora, document)
    for possible_names in (names_in_corpora, [document]):
        matches: list[_FoundDocument] = []
        for possible_name in possible_names:
            matches += _look_up(datasets, possible_name, context)
        if matches:
            return [searched.places(match.dataset_number, match.origin) for match in matches]

    remedy = _explain_absence(context, datasets, [*names_in_corpora, document])
    raise _no_document_error(corpora, document, remedy)


def _no_document_error(corpora: Sequence[str], document: DocumentName, remedy: str) -> MissingError:
    """Return the error for a name that no document has.

    Args:
        corpora: Names of the corpora and datasets that were searched.
        document: The name that the user gave.
        remedy: What the user should do.
    """
    return MissingError(
        "no such document",
        where=", ".join(corpora),
        found=str(document),
        expected=(
            "an id, a line of the raw files or a number in the corpus, "
            "of a document that is read here"
        ),
        remedy=remedy,
    )


def _names_of(datasets: Sequence[Dataset]) -> list[str]:
    """Return all names by which a user may mean one of some datasets.

    A dataset may be a selection of a corpus's documents, such as "clean" of the corpus "web". A
    user may give both names. For the datasets clean of web, and books: clean, web, books.

    Args:
        datasets: The datasets. Those of one corpus share the name of the corpus.

    Returns:
        Each name once, in the order of the datasets.
    """
    names: dict[str, None] = {}  # a dictionary without values, as a set that keeps its order
    for dataset in datasets:
        names.update(dict.fromkeys(dataset.names))
    return list(names)


def _check_corpus(corpus: str, corpora: Sequence[str], searched: str) -> None:
    """Check that a corpus, a collection of texts, is among those that are searched.

    A user has named it. If it is not among them, the error suggests the most similar name: "web"
    for "wbe".

    Args:
        corpus: The name that the user gave.
        corpora: Names of the corpora and datasets that are searched.
        searched: Name of the nanoset or webdataset, for the error.

    Raises:
        MissingError: It is not among them.
    """
    if corpus not in corpora:
        raise MissingError(
            "the corpus is not in this nanoset or webdataset",
            where=searched,
            found=repr(corpus),
            expected=", ".join(corpora),
            remedy=remedy_for_name(corpus, corpora, "name one of these"),
        )


def _with_line(document: DocumentName) -> DocumentName:
    """Divide the name of a document such as `web/a.jsonl:5` into its file and its line.

    Args:
        document: The name that the user gave.

    Returns:
        The name with a line: `file="web/a.jsonl", line=5`. A document that is named in another way
        is returned unchanged.

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
            remedy="name the line, too",
        )
    return document._replace(file=parts[1], line=int(parts[2]))


def _check_named_once(document: DocumentName) -> None:
    """Check that a user has named a document in exactly one way.

        identity="a1"                       fine
        file="web/a.jsonl", line=5          fine
        identity="a1", number=7             named twice
        file="web/a.jsonl"                  a file alone has many documents

    Args:
        document: The name that the user gave.

    Raises:
        ConfigError: It is named in several ways, or in none.
    """
    ways = [document.identity, document.file, document.number]
    n_ways = sum(way is not None for way in ways)
    has_file = document.file is not None
    has_line = document.line is not None
    if n_ways != 1 or has_file != has_line:
        raise ConfigError(
            "a document has to be named in exactly one of three ways",
            found=(
                f"id {document.identity!r}, file {document.file!r}, line {document.line!r}, "
                f"number {document.number!r}"
            ),
            expected="an id, or a file with a line, or a number",
            remedy="name it in one of these ways",
        )


def _within_corpora(
    config: ProjectConfig | None, corpora: Sequence[str], document: DocumentName
) -> list[DocumentName]:
    """Find out which files of corpora a path may mean.

    A corpus is a collection of texts, whose files are in a folder of its own below the raw folder.
    For example, the raw folder is /data/raw, and the corpus "web" has the folder /data/raw/crawl:

        path                         means
        web/a.jsonl                  a.jsonl of the corpus with this name
        crawl/a.jsonl                a.jsonl of the corpora with this folder
        /data/raw/crawl/a.jsonl      the same
        a.jsonl                      nothing here: it names no corpus

    Args:
        config: The project's settings, which name the raw folder; None if they are not known.
        corpora: Names of the corpora and datasets that are searched.
        document: The name that the user gave.

    Returns:
        The document in each corpus that its path may mean, with its path in the corpus's folder;
        nothing if the document is not named by a file.
    """
    if config is None or document.file is None:
        return []

    # Divide the path into its first folder and the rest: `web` and `a.jsonl`.
    path_below_raw = _path_below_raw(config, document.file)
    path = str(document.file) if path_below_raw is None else path_below_raw
    first_folder, _, path_in_folder = path.partition("/")
    if not path_in_folder:  # a file without a folder names no corpus
        return []

    candidates = [corpus for corpus in corpora if document.corpus in (None, corpus)]
    if path_below_raw is None and first_folder in candidates:
        # A path that is not below the raw folder may begin with the name of a corpus. The name
        # takes precedence over the folder of another corpus.
        matching = [first_folder]
    else:
        # Several corpora may have the same folder.
        matching = [corpus for corpus in candidates if config.folder_name(corpus) == first_folder]
    return [document._replace(corpus=corpus, file=path_in_folder) for corpus in matching]


def _path_below_raw(config: ProjectConfig, file: str) -> str | None:
    """Return the path of a file relative to the folder of the raw texts.

    If this folder is /data/raw, the file /data/raw/web/a.jsonl gives web/a.jsonl. The folder may
    have a second name, if it is a link or an address: a file may begin with either of them.

    Args:
        config: The project's settings, which name the raw folder.
        file: A path or address.

    Returns:
        None if the file is not below the raw folder.
    """
    raw_folder = config.raw_folder
    other_name = real_path(raw_folder)  # without symbolic links
    if is_remote(config.raw):
        other_name = config.raw.rstrip("/")  # as the user has written it
    for parent in (str(raw_folder), other_name):
        if file.startswith(f"{parent}/"):
            return file[len(parent) + 1 :]
    return None


def _look_up(
    datasets: Sequence[Dataset], document: DocumentName, context: InspectionContext
) -> Iterator[_FoundDocument]:
    """Yield the documents of some datasets that have the name that a user gave.

    For example, the id "doc-17" may belong to one document of web and to another one of books. A
    document that a dataset repeats is yielded once for each copy.

    Args:
        datasets: The datasets to search.
        document: The name: an id, a file and line, or a number. It may also name the only corpus to
            search.
        context: The opened outputs, and the settings of the project if they are known.
    """
    for dataset_number, dataset in enumerate(datasets):
        if document.corpus in (None, *dataset.names):
            for origin in _origins_with(Lineage(dataset), document, context):
                yield _FoundDocument(dataset_number, origin)


def _origins_with(
    lineage: Lineage, document: DocumentName, context: InspectionContext
) -> Iterator[DocumentOrigin]:
    """Yield the documents of one dataset that have the name that a user gave.

    An id is searched in all tables of the dataset. For a file and line, it is known which table may
    have it. A number needs no search.

    Args:
        lineage: The documents of the dataset.
        document: The name: an id, a file and line, or a number.
        context: The opened outputs, and the settings of the project if they are known.
    """
    if document.identity is not None:
        yield from lineage.find_id(document.identity)  # in all shards
    elif document.file is not None and document.line is not None:
        shards = _shards_with(context, lineage, document.file, document.line)
        yield from lineage.find_line(document.file, document.line, shards)
    elif document.number is not None:
        yield from lineage.find_number(document.number)


def _shards_with(
    context: InspectionContext, lineage: Lineage, file: str, line: int
) -> Sequence[int]:
    """Return the shards of a tokenized text collection that may have a line of a raw file.

    A file is cut into pieces of consecutive lines, and each shard is made from some pieces. The
    line is in the last piece that does not begin after it. For example, line 7:

        shard 0    piece of a.jsonl from line 1 on
        shard 1    piece of a.jsonl from line 6 on    has line 7
        shard 2    piece of a.jsonl from line 10 on   begins after it

    Args:
        context: The opened outputs, and the settings of the project if they are known.
        lineage: The documents of the collection.
        file: Path of the file, relative to the collection's folder.
        line: Number of the line or row, from 1.

    Returns:
        Numbers of shards: one, or none if there is no such file. If it is not known any more how
        the files were cut, all shards.
    """
    source_ranges = _sources_of_shards(context, lineage)
    if source_ranges is None:
        return range(len(lineage.shards))

    # Some files were cut at certain bytes without counting their lines. Of such a file, this looks
    # up the piece that contains the line. For other files, it is None.
    line_in_piece = lineage.numbers.in_piece(file, line)

    shard_with_line: int | None = None
    for shard, source_range in enumerate(source_ranges):
        for piece in source_range.pieces:
            if piece.path == file and not _begins_after(piece, line, line_in_piece):
                shard_with_line = shard  # until a later piece replaces it
    return [] if shard_with_line is None else [shard_with_line]


def _begins_after(piece: Piece, line: int, line_in_piece: LineInPiece | None) -> bool:
    """Return whether a piece of a file begins after a certain line of this file.

    Args:
        piece: The piece: consecutive lines of the file.
        line: Number of the line in the file, from 1.
        line_in_piece: Has the byte at which the piece with the line begins. None if each piece
            knows the number of its first line.
    """
    if line_in_piece is None:
        return piece.first_line > line
    return piece.begin > line_in_piece.piece_start


def _sources_of_shards(context: InspectionContext, lineage: Lineage) -> list[SourceRange] | None:
    """Return from which pieces of raw files each shard of a tokenized text collection was made.

    The pieces are listed in an inventory, and each shard was made from consecutive pieces.

    Args:
        context: The opened outputs, and the settings of the project if they are known.
        lineage: The documents of the collection.

    Returns:
        The pieces of each shard; None if they are not known.
    """
    inventory = inventory_of(context.outputs, lineage.dataset)
    if inventory is None:
        return None  # it was deleted
    try:
        return ranges_of_shards(inventory, lineage.tokenized)
    except FormatError:
        return None  # the shards were made from other files


def _explain_absence(
    context: InspectionContext, datasets: Sequence[Dataset], documents: Sequence[DocumentName]
) -> str:
    """Find out why a document does not exist, and say what the user can do about it.

    A document that was in the raw text may be missing for these reasons. The first that applies is
    returned:

        it was erased         "nothing: the document was erased …"
        its line was bad      "the line was rejected (no_text: …); correct it in web/a.jsonl"
        a view skips it       "corpus web has it as document 7, but view clean does not choose it"

    A view is a selection of a corpus's documents.

    Args:
        context: The opened outputs, and the settings of the project if they are known.
        datasets: The datasets that were searched.
        documents: What the name that the user gave may mean.

    Returns:
        The remedy for the error.
    """
    erasure = _erasure(context, datasets, documents)
    if erasure is not None:
        return f"nothing: the document was {erasure}"
    rejection = _rejection(context, datasets, documents)
    if rejection is not None:
        return rejection
    for dataset in datasets:
        reason = _left_out_by_view(context, dataset.unpacked, documents)
        if reason is not None:
            return reason

    # Nothing is known about it. The user can look for it in the lists of raw files and of rejected
    # lines.
    return f"look into the corpora's {INVENTORY.layout.folder}, and into the shards' rejects.jsonl"


def _rejection(
    context: InspectionContext, datasets: Sequence[Dataset], documents: Sequence[DocumentName]
) -> str | None:
    """Return why a line of raw text did not become a document, or None if it was not rejected.

    For example, "the line was rejected (no_text: …); correct it in web/a.jsonl". A build lists the
    lines that it rejects. The first line on these lists that the user may mean is returned.

    Args:
        context: The opened outputs, and the settings of the project if they are known.
        datasets: The datasets that the user has searched. Each has such a list.
        documents: What the user may mean by a file and line. For example, line 3 of `web/a.jsonl`
            may be in that file of any dataset, or in the file `a.jsonl` of the dataset `web`. In
            the second case, `web` is the `corpus` of the name.
    """
    for dataset in datasets:
        lineage = Lineage(dataset)  # leads from the dataset to its raw text
        # A view, which selects documents of a corpus, may be named by itself or by its corpus.
        possible_names = (None, dataset.name, lineage.corpus)
        for document in documents:
            if document.corpus not in possible_names:
                continue
            reject = next(_rejects(context, lineage, document), None)  # the line on the list
            if reject is not None:
                return (
                    f"the line was rejected ({reject.reason}: {reject.detail}); "
                    f"correct it in {dataset.name}/{reject.file}"
                )
    return None


def _left_out_by_view(
    context: InspectionContext, view: Dataset, documents: Sequence[DocumentName]
) -> str | None:
    """Return why a view, which is a selection of a corpus's documents, lacks a document.

    For example, "corpus web has it as document 7, but view clean does not choose it".

    Args:
        context: The opened outputs, and the settings of the project if they are known.
        view: The view, or a whole corpus, which leaves out nothing.
        documents: What the name that the user gave may mean.

    Returns:
        The reason; None if the corpus has none of these documents either.
    """
    if view.is_whole_corpus:
        return None
    for document in documents:
        # Look for the document in the corpus. The name may say that it is in the view, such as
        # document 7 of clean. Leave that out, since nothing in the corpus would match.
        without_dataset = document._replace(corpus=None)
        for found in _look_up([view.corpus], without_dataset, context):
            origin = found.origin
            in_corpus = f"corpus {origin.corpus} has it as document {origin.document:,}"
            if not origin.tokens:
                return f"{in_corpus}, but it has no tokens, so that no sample holds it"
            return f"{in_corpus}, but view {view.name} does not choose it"
    return None


def _erasure(
    context: InspectionContext, datasets: Sequence[Dataset], documents: Sequence[DocumentName]
) -> Erasure | None:
    """Return the record of the purge that has deleted a document; None if none has.

    A purge deletes documents for good, for example because their author has demanded it.

    Args:
        context: The opened outputs, and the settings of the project if they are known.
        datasets: The datasets that were searched.
        documents: What the user may mean. Numbers of documents are skipped, since a purge does not
            record them.
    """
    all_corpora = tuple(sorted(_names_of(datasets)))
    for document in documents:
        corpora = all_corpora  # the text collections that may have had the document
        if document.corpus is not None:
            corpora = (document.corpus,)
        erasure = _erasure_of(context.outputs.access, corpora, document)
        if erasure is not None:
            return erasure
    return None


def _erasure_of(
    access: FileAccess, corpora: tuple[str, ...], document: DocumentName
) -> Erasure | None:
    """Return the purge that erased a document, or None if none did.

    A purge deletes documents, for example because their author has demanded it. It records which
    lines of which files it has deleted, and for ids only their digests. So it can be told later
    that a document was erased, without storing its id.

    Args:
        access: Reads the records of purges.
        corpora: Names of the corpora that may have had the document.
        document: The document.
    """
    if document.identity is not None:
        # A purge records digests of ids, so that the ids themselves are forgotten.
        return erasure_of_id(access, id_digest(document.identity))
    if document.file is not None and document.line is not None:
        return erasure_of_line(access, corpora, document.file, document.line)
    return None


def _rejects(
    context: InspectionContext, lineage: Lineage, document: DocumentName
) -> Iterator[Reject]:
    """Yield why a line of a raw file was rejected, when the text was tokenized.

    A line is rejected if it has no text, for example. Each shard, a part of the tokenized corpus,
    has a list of the rejected lines.

    Args:
        context: The opened outputs, and the settings of the project if they are known.
        lineage: The documents of the dataset.
        document: The line; nothing is yielded if the document is not named by file and line.
    """
    file = document.file
    line = document.line
    if file is None or line is None:
        return
    for shard in _shards_with(context, lineage, file, line):
        for reject in _rejects_of_shard(context, lineage, shard):
            if reject.file == file and reject.line == line:
                yield reject


def _rejects_of_shard(context: InspectionContext, lineage: Lineage, shard: int) -> Iterator[Reject]:
    """Yield the lines of raw text that did not become documents of a shard, a part of a corpus.

    Their numbers are those in the raw files.

    Args:
        context: The opened outputs, and the settings of the project if they are known.
        lineage: The documents of the dataset.
        shard: Number of the shard.
    """
    path = context.outputs.access.fetch(lineage.folder(shard) / REJECTS)
    if path.is_file():  # it is missing if no line was rejected
        yield from read_rejects(path, lineage.numbers)
