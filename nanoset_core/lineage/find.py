"""Find the samples of a nanoset that hold a document, or why none does."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.config.project import ProjectConfig
from nanoset_core.errors import ConfigError, MissingError, NanosetError
from nanoset_core.lineage.context import InspectionContext
from nanoset_core.lineage.documents import DocumentOrigin, Lineage
from nanoset_core.lineage.positions import blended, shuffled, spans_of
from nanoset_core.loading.blended import BlendedNanoset
from nanoset_core.loading.nanoset import Nanoset
from nanoset_core.loading.opening import load_nanoset
from nanoset_core.mapping.splits import SPLITS
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.pipeline import raw
from nanoset_core.pipeline.project import Project
from nanoset_core.raw.pieces import Piece, cut_ranges
from nanoset_core.tokenization.losses import read_rejects
from nanoset_core.tokenization.shards import REJECTS


@dataclass(frozen=True, slots=True)
class Appearance:
    """Tokens of a document in one sample."""

    sample: int
    """Position in the split."""
    sample_tokens: tuple[int, int]
    """(begin, end excl) within the sample."""
    document_tokens: tuple[int, int]
    """(begin, end excl) within the document."""


@dataclass(frozen=True, slots=True)
class DocumentPlaces:
    """Where a document is in a split or a webdataset."""

    origin: DocumentOrigin
    appearances: tuple[Appearance, ...]
    """By sample; none where it is never seen."""
    tokens_seen: int
    """Different tokens of the document that are in a sample."""
    reason: str | None
    """Why it, or a part of it, is never seen; None where all of it is."""

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class WantedDocument:
    """A document, named by its own id, by file and line, or by its number in the dataset."""

    identity: str | None
    file: str | None
    line: int | None
    number: int | None

    def __post_init__(self) -> None:
        ways = [self.identity is not None, self.file is not None or self.line is not None, self.number is not None]
        if sum(ways) != 1 or (self.file is None) != (self.line is None):
            found = f"id {self.identity!r}, file {self.file!r}, line {self.line!r}, number {self.number!r}"
            expected, remedy = "an id, or a file with a line, or a number", "give one of them"
            raise ConfigError("a document is named in one of three ways", found=found, expected=expected, remedy=remedy)

    def __str__(self) -> str:
        if self.identity is not None:
            return f"id {self.identity!r}"
        return f"{self.file}:{self.line}" if self.file else f"document {self.number}"


def find_document(
    project_or_root: Project | str | os.PathLike[str],
    name: str,
    split: str,
    *,
    identity: str | None = None,
    file: str | None = None,
    line: int | None = None,
    number: int | None = None,
    corpus: str | None = None,
) -> list[DocumentPlaces]:
    """Return which samples of a split hold a document, named by its own id, by file and line, or by number.

    By number and by line only the table that holds it is read; by id the ids of every shard that may hold it.

    Args:
        project_or_root: a project, or its output root alone.
        name: of a nanoset.
        split: train, valid or test.
        identity: the document's id. Several documents may have it.
        file: relative to the corpus's folder; with `line`.
        line: 1-based; of a table the row.
        number: in the merged dataset, from 0.
        corpus: look in this one only.

    Raises:
        MissingError: there is no such nanoset or document.
        ConfigError: a document is not named in just one of these ways.
    """
    wanted = WantedDocument(identity, file, line, number)
    context = InspectionContext.of(project_or_root)
    loaded = load_nanoset(context.outputs, name, split)
    members = list({member.member.prefix: member for member in _members(loaded)}.values())
    datasets = [context.dataset_at(member.member.prefix) for member in members]
    return [
        _places(context, name, loaded, members[number], origin)
        for number, origin in find_origins(context, datasets, wanted, corpus, name)
    ]


def find_place(
    project: Project, name: str, split: str, place: str, line: int | None = None, corpus: str | None = None
) -> list[DocumentPlaces]:
    """Return what `find_document` finds by file and line, for a place as `explain` prints it.

    Args:
        project: that the nanoset belongs to.
        name: of a nanoset.
        split: train, valid or test.
        place: a file, relative to its corpus's folder, with the corpus or its folder in front, or as a path or URL
            below the raw folder, and `:line` where `line` is None.
        line: 1-based; of a table the row.
        corpus: look in this one only.

    Raises:
        ConfigError: there is no line.
        MissingError: there is no such nanoset or document.
    """
    find = partial(find_document, project, name, split)
    return find_at(project.config, project.nanoset(name).corpora, find, place, line, corpus)


def find_at(
    config: ProjectConfig,
    corpora: Collection[str],
    find: Callable[..., list[DocumentPlaces]],
    place: str,
    line: int | None,
    corpus: str | None,
) -> list[DocumentPlaces]:
    """Return what `find` finds by its arguments `file`, `line` and `corpus`; the others and errors as `find_place`."""
    file = place
    if line is None:
        file, _, digits = place.rpartition(":")
        if not (file and digits.isascii() and digits.isdigit()):
            expected = "a file and a line, as in web/part-0.jsonl:5, or --line"
            what, remedy = "a file alone names no document", "name the line too"
            raise ConfigError(what, where="--file", found=place, expected=expected, remedy=remedy)
        line = int(digits)
    below = _below_raw(config, file)
    first, _, rest = (below or file).partition("/")
    among = [one for one in corpora if rest and corpus in (None, one)]
    named = [one for one in among if below is None and one == first]
    places: list[DocumentPlaces] = []
    nowhere: MissingError | None = None
    for one in named or [one for one in among if config.folder_name(one) == first]:
        try:
            places += find(file=rest, line=line, corpus=one)
        except MissingError as error:  # corpora that read one folder may reject different lines
            nowhere = nowhere or error
    try:
        return places or find(file=file, line=line, corpus=corpus)  # a folder of the corpus's name within its own
    except MissingError as error:
        raise nowhere or error from None


def _below_raw(config: ProjectConfig, file: str) -> str | None:
    """Return what follows the raw folder in a path or URL; None where it does not begin with it."""
    folder = config.raw_folder
    begins = (str(folder), str(folder.resolve()) if isinstance(folder, Path) else config.raw.rstrip("/"))
    return next((file[len(begin) + 1 :] for begin in begins if file.startswith(f"{begin}/")), None)


def find_origins(
    context: InspectionContext, datasets: Sequence[Manifest], wanted: WantedDocument, corpus: str | None, name: str
) -> list[tuple[int, DocumentOrigin]]:
    """Return the documents that are wanted, each with the number of its dataset.

    Args:
        context: where to look.
        datasets: manifests of the merged datasets.
        wanted: the document.
        corpus: look in this one only.
        name: of the nanoset or webdataset that the datasets are members of.

    Raises:
        MissingError: there is no such corpus among them, or no such document.
    """
    corpora = [dataset.name for dataset in datasets]
    if corpus is not None and corpus not in corpora:
        what, remedy = "the corpus is not in this nanoset or webdataset", "name one of these"
        raise MissingError(what, where=name, found=repr(corpus), expected=", ".join(corpora), remedy=remedy)
    found = [
        (number, origin)
        for number, dataset in enumerate(datasets)
        if corpus in (None, dataset.name)
        for origin in _origins(context, Lineage(context.outputs, dataset), wanted)
    ]
    if not found:
        expected = "an id, or a line of the raw files, that became a document"
        remedy = _hint(context, datasets, wanted.file, wanted.line)
        where = ", ".join(corpora)
        raise MissingError("no such document", where=where, found=str(wanted), expected=expected, remedy=remedy)
    return found


def _members(loaded: Nanoset | BlendedNanoset) -> tuple[Nanoset, ...]:
    return (loaded,) if isinstance(loaded, Nanoset) else loaded.datasets


def _origins(context: InspectionContext, lineage: Lineage, wanted: WantedDocument) -> Iterator[DocumentOrigin]:
    if wanted.identity is not None:
        yield from lineage.find_id(wanted.identity)
    elif wanted.file is not None and wanted.line is not None:
        shards = _shards_of(context, lineage, wanted.file, wanted.line)
        yield from lineage.find_line(wanted.file, wanted.line, shards)
    elif wanted.number is not None and wanted.number < lineage.dataset.facts["documents"]:
        yield from lineage.origins([wanted.number])


def _shards_of(context: InspectionContext, lineage: Lineage, file: str, line: int) -> list[int] | None:
    """Return the shard that holds a line, by the inventory; None where that was removed."""
    inventory = context.inventory_of(lineage.dataset)
    if inventory is None:
        return None
    ranges = cut_ranges(inventory, lineage.tokenized.recipe["options"]["range_bytes"])
    if len(ranges) != len(lineage.shards):
        return None
    place = lineage.numbers.in_piece(file, line)

    def begins_before(piece: Piece) -> bool:
        return piece.begin <= place[0] if place is not None else piece.first_line <= line

    shard = None
    for number, source in enumerate(ranges):
        if any(piece.path == file and begins_before(piece) for piece in source.pieces):
            shard = number  # the last that begins at or before it
    return [] if shard is None else [shard]


def _places(
    context: InspectionContext, name: str, loaded: Nanoset | BlendedNanoset, member: Nanoset, origin: DocumentOrigin
) -> DocumentPlaces:
    dataset = member.dataset
    begin, end = dataset.document_indices[origin.document : origin.document + 2].tolist()
    appearances: list[Appearance] = []
    reasons: dict[str, None] = {}
    shift = 0
    for sequence in range(begin, end):
        spans = spans_of(member, sequence)
        drawn = shuffled(member, spans)
        seen = drawn if isinstance(loaded, Nanoset) else blended(loaded, loaded.datasets.index(member), drawn)
        for sample, into, first, last in seen.tolist():
            appearances.append(Appearance(sample, (into, into + last - first), (first + shift, last + shift)))
        tokens = int(dataset.sequence_lengths[sequence])
        if (reason := _reason(context, name, member, sequence, tokens, (spans, drawn, seen))) is not None:
            reasons[reason] = None
        shift += tokens
    if begin == end:
        reasons["never seen: it has no tokens, and so no sequence in the dataset"] = None
    appearances.sort(key=lambda appearance: (appearance.sample, appearance.sample_tokens))
    covered = covered_tokens([appearance.document_tokens for appearance in appearances])
    return DocumentPlaces(origin, tuple(appearances), covered, "; ".join(reasons) or None)


def covered_tokens(spans: Sequence[tuple[int, int]]) -> int:
    """Return how many different tokens some spans (begin, end excl) hold."""
    total = reached = 0
    for begin, end in sorted(spans):
        total += max(end - max(begin, reached), 0)
        reached = max(reached, end)
    return total


def unseen(seen: int, tokens: int) -> str:
    """Return what to say of a document of which so many tokens are seen."""
    return "never seen" if seen == 0 else f"{tokens - seen:,} of its {tokens:,} tokens are never seen"


def _reason(
    context: InspectionContext,
    name: str,
    member: Nanoset,
    sequence: int,
    tokens: int,
    found: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]],
) -> str | None:
    """Return why tokens of a sequence are in no sample, by the first step that loses them; None where all are seen."""
    in_rows, drawn, seen = (covered_tokens(list(map(tuple, spans[:, 2:].tolist()))) for spans in found)
    split = member.member.split
    if seen == tokens:
        return None if tokens else f"never seen in {split}: it has no tokens"
    part = unseen(seen, tokens)
    begin, end = member.member.rows
    if not begin <= sequence < end:
        return f"{part} in {split}, because it belongs to {_other_split(context, name, member, sequence)}"
    if in_rows < tokens and in_rows == seen:
        return f"{part} in {split}, because they lie in the tail, which does not fill a sample"
    if drawn < in_rows and drawn == seen:
        return f"{part} in {split}, because the samples that hold them are not drawn"
    return f"{part} in {split}, because the blend takes fewer samples of this corpus than were built" + (
        ", and some lie in the tail, which does not fill a sample" if in_rows < tokens else ""
    )


def _other_split(context: InspectionContext, name: str, member: Nanoset, sequence: int) -> str:
    for split in SPLITS:
        if split == member.member.split:
            continue
        try:
            loaded = load_nanoset(context.outputs, name, split)
        except NanosetError:
            continue  # not built, or without a share
        for other in _members(loaded):
            begin, end = other.member.rows
            if other.member.prefix == member.member.prefix and begin <= sequence < end:
                return f"the {split} split"
    return "no split that was built"


def _hint(context: InspectionContext, datasets: Sequence[Manifest], file: str | None, line: int | None) -> str:
    """Return a remedy, which says so if the line was rejected."""
    for dataset in datasets if file is not None else ():
        lineage = Lineage(context.outputs, dataset)
        for shard in range(len(lineage.shards)):
            path = context.outputs.access.fetch(lineage.folder(shard) / REJECTS)
            for reject in read_rejects(path, lineage.numbers) if path.is_file() else ():
                if (reject.file, reject.line) == (file, line):
                    return f"the line was rejected ({reject.reason}: {reject.detail}); mend it in {dataset.name}/{file}"
    return f"look into the corpora's {raw.STAGE}, and into the shards' rejects.jsonl"
