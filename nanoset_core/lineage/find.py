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
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.datasets import packed_from
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.shards.losses import read_rejects
from nanoset_core.stages.shards.purged import id_digest
from nanoset_core.stages.shards.shards import REJECTS
from nanoset_core.stages.views.stage import chosen_from, corpus_of, is_view
from nanoset_core.text.pieces import cut_ranges
from nanoset_core.text.rejects import Reject


class Wanted(NamedTuple):
    """A document, named by its own id, by file and line, or by its number in its corpus; perhaps of one corpus."""

    identity: str | None = None
    """The document's id. Several documents may have it."""
    file: str | None = None
    """Relative to the corpus's folder. In a project also as `explain` prints it, with the corpus or its folder in
    front, or as a path or URL below the raw folder; and with `:line` where `line` is None."""
    line: int | None = None
    """1-based; of a table the row."""
    number: int | None = None
    """In its corpus, from 0, whatever views or packs the nanoset reads."""
    corpus: str | None = None
    """Look in this one only."""

    def __str__(self) -> str:
        if self.identity is not None:
            return f"id {self.identity!r}"
        return f"{self.file}:{self.line}" if self.file else f"document {self.number}"


def find_document(
    project_or_root: Project | str | os.PathLike[str], name: str, split: str | None = None, **document: Any
) -> list[DocumentPlaces]:
    """Return which samples hold a document, named by its own id, by file and line, or by number.

    By number and by line only the table that holds it is read; by id the ids of every shard that may hold it.

    Args:
        project_or_root: a project, or its output root alone.
        name: of a nanoset or webdataset.
        split: train, valid or test of a nanoset; None for a webdataset, whose appearances are `TarAppearance`s.
        document: fields of `Wanted`.

    Raises:
        MissingError: there is no such nanoset, webdataset, corpus or document.
        ConfigError: a document is not named in just one of these ways.
    """
    context = InspectionContext.of(project_or_root)
    held = Tars.of(context.outputs, name) if split is None else Split.of(context, name, split)
    return find_in(context, held, name, Wanted(**document))


def find_in(context: InspectionContext, held: Tars | Split, name: str, wanted: Wanted) -> list[DocumentPlaces]:
    """Return the same for what is opened."""
    if wanted.file is not None and wanted.line is None:
        if (named := re.fullmatch(r"(.+):([0-9]+)", wanted.file, re.DOTALL)) is None:
            expected = "a file and a line, as in web/part-0.jsonl:5, or --line"
            what, remedy = "a file alone names no document", "name the line too"
            raise ConfigError(what, where="--file", found=wanted.file, expected=expected, remedy=remedy)
        wanted = wanted._replace(file=named[1], line=int(named[2]))
    identity, file, line, number, corpus = wanted
    if sum((identity is not None, file is not None, number is not None)) != 1 or (file is None) != (line is None):
        found = f"id {identity!r}, file {file!r}, line {line!r}, number {number!r}"
        expected, remedy = "an id, or a file with a line, or a number", "give one of them"
        raise ConfigError("a document is named in one of three ways", found=found, expected=expected, remedy=remedy)
    corpora = list(dict.fromkeys(name for dataset in held.datasets for name in _names(dataset)))
    if corpus is not None and corpus not in corpora:
        what = "the corpus is not in this nanoset or webdataset"
        remedy = remedy_for_name(corpus, corpora, "name one of these")
        raise MissingError(what, where=name, found=repr(corpus), expected=", ".join(corpora), remedy=remedy)
    placed = [] if context.config is None or file is None else [*_placed(context.config, corpora, wanted)]
    for among in (placed, [wanted]):  # last a folder of the corpus's name within its own
        if origins := [origin for one in among for origin in _origins(context, held.datasets, one)]:
            return [held.places(number, origin) for number, origin in origins]
    erasure = _erasure(context, held.datasets, [*placed, wanted])
    if erasure is None:
        remedy = _hint(context, held.datasets, [*placed, wanted])
    else:
        remedy = f"nothing: the document was {erasure}"
    raise MissingError(
        "no such document",
        where=", ".join(corpora),
        found=str(wanted),
        expected="an id, a line of the raw files or a number in the corpus, of a document that is read here",
        remedy=remedy,
    )


def _placed(config: ProjectConfig, corpora: Sequence[str], wanted: Wanted) -> Iterator[Wanted]:
    """Yield what a file may name that begins with a corpus, its folder, or a path to these."""
    folder, file = config.raw_folder, str(wanted.file)
    begins = (str(folder), str(folder.resolve()) if isinstance(folder, Path) else config.raw.rstrip("/"))
    below = next((file[len(begin) + 1 :] for begin in begins if file.startswith(f"{begin}/")), None)
    first, _, rest = (below or file).partition("/")
    among = [one for one in corpora if rest and wanted.corpus in (None, one)]
    named = [one for one in among if below is None and one == first]
    for one in named or [one for one in among if config.folder_name(one) == first]:
        yield wanted._replace(corpus=one, file=rest)


def _names(dataset: Manifest) -> tuple[str, ...]:
    """Return what a dataset may be called: its name, the view that it packs, its corpus."""
    return dataset.name, str(dataset.facts.get("of", dataset.name)), corpus_of(dataset)


def _origins(
    context: InspectionContext, datasets: Sequence[Manifest], wanted: Wanted
) -> Iterator[tuple[int, DocumentOrigin]]:
    for number, dataset in enumerate(datasets):
        if wanted.corpus not in (None, *_names(dataset)):
            continue
        lineage = Lineage(context.outputs, dataset)
        found: Iterator[DocumentOrigin] = iter(())
        if wanted.identity is not None:
            found = lineage.find_id(wanted.identity)
        elif wanted.file is not None and wanted.line is not None:
            shards = _shards_of(context, lineage, wanted.file, wanted.line)
            found = lineage.find_line(wanted.file, wanted.line, shards)
        elif wanted.number is not None:
            found = lineage.find_number(wanted.number)
        yield from ((number, origin) for origin in found)


def _shards_of(context: InspectionContext, lineage: Lineage, file: str, line: int) -> list[int] | None:
    # by the inventory, where it was not removed
    inventory = context.inventory_of(lineage.dataset)
    ranges = () if inventory is None else cut_ranges(inventory, lineage.tokenized.recipe["options"]["range_bytes"])
    if len(ranges) != len(lineage.shards):
        return None
    place = lineage.numbers.in_piece(file, line)
    begins = [
        number
        for number, source in enumerate(ranges)
        for piece in source.pieces
        if piece.path == file and (piece.first_line <= line if place is None else piece.begin <= place[0])
    ]
    return begins[-1:]  # the last that begins at or before it


def _hint(context: InspectionContext, datasets: Sequence[Manifest], wanted: Sequence[Wanted]) -> str:
    """Return a remedy for a document that was not found: why its line, or a view, left it out, if that is known."""
    for dataset in datasets:
        lineage = Lineage(context.outputs, dataset)
        for one in wanted:
            if one.corpus not in (None, dataset.name, lineage.corpus):
                continue
            for reject in _rejects(context, lineage, one):
                place = f"{dataset.name}/{reject.file}"
                return f"the line was rejected ({reject.reason}: {reject.detail}); mend it in {place}"

    # The corpus may have the document although no view that is read here has it.
    for dataset in datasets:
        view = packed_from(context.outputs, dataset)
        if not is_view(view):
            continue
        for one in wanted:
            corpus_wide = one._replace(corpus=None)
            for _, origin in _origins(context, [chosen_from(context.outputs, view)], corpus_wide):
                number = f"corpus {origin.corpus} has it as document {origin.document:,}"
                if not origin.tokens:
                    return f"{number}, but it has no tokens, so that no sample holds it"
                return f"{number}, but view {view.name} does not choose it"
    return f"look into the corpora's {INVENTORY.layout.folder}, and into the shards' rejects.jsonl"


def _erasure(context: InspectionContext, datasets: Sequence[Manifest], wanted: Sequence[Wanted]) -> Erasure | None:
    """Return the purge that erased the document that one of some descriptions means, or None."""
    access = context.outputs.access
    names = {name for dataset in datasets for name in _names(dataset)}
    for one in wanted:
        erasure = None
        if one.identity is not None:
            erasure = erasure_of_id(access, id_digest(one.identity))
        elif one.file is not None and one.line is not None:
            corpora = tuple(sorted(names)) if one.corpus is None else (one.corpus,)
            erasure = erasure_of_line(access, corpora, str(one.file), one.line)
        if erasure is not None:
            return erasure
    return None


def _rejects(context: InspectionContext, lineage: Lineage, wanted: Wanted) -> Iterator[Reject]:
    if wanted.file is None or wanted.line is None:
        return
    shards = _shards_of(context, lineage, wanted.file, wanted.line)
    for shard in range(len(lineage.shards)) if shards is None else shards:
        path = context.outputs.access.fetch(lineage.folder(shard) / REJECTS)
        for reject in read_rejects(path, lineage.numbers) if path.is_file() else ():
            if (reject.file, reject.line) == (wanted.file, wanted.line):
                yield reject
