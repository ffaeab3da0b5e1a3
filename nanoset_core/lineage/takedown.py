"""Take documents out: a list of ids that views exclude, and what holds these documents now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.lineage.documents import InspectionContext, Lineage
from nanoset_core.lineage.positions import Split
from nanoset_core.lineage.webdataset import Tars
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.sampling.hashing import hash_texts
from nanoset_core.sampling.splits import SPLITS
from nanoset_core.stages.dataset.tokens import open_dataset
from nanoset_core.stages.datasets import current_dataset, is_packs, packed_from
from nanoset_core.stages.inventory.corpora import corpus_names
from nanoset_core.stages.views.choosing import document_groups
from nanoset_core.stages.views.ids import COMMENT, Ids
from nanoset_core.stages.views.rules import Rows
from nanoset_core.stages.views.stage import chosen_from, is_view
from nanoset_core.stages.views.writing import documents_that_are
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.text.endings import is_table

MOST_PLACED = 200
"""Documents of a dataset whose samples are looked for."""


@dataclass(frozen=True, slots=True)
class Holding:
    """An output that holds documents which are taken down."""

    output: str
    """A corpus, view, nanoset and split, or webdataset."""
    documents: int
    """How many it holds, each as often as it is given."""
    samples: tuple[int, int] | None = None
    """First and last of its samples that hold a token of them; None where it has none, or no samples."""
    steps: tuple[int, int] | None = None
    """First and last step of training that reads these, where `schedule` tells."""


def add_ids(file: Path, ids: Sequence[str], reason: str, day: str) -> list[str]:
    """Append ids to a list, with a line that says when and why; return those that were not in it.

    ConfigError for an id that a line cannot hold, and for a list that is a table.
    """
    for one in ids:
        if not one.strip() or "\n" in one or "\r" in one or one.startswith(COMMENT):
            what, expected = "a line of a list cannot hold this id", f"one line, that does not begin with {COMMENT!r}"
            raise ConfigError(what, found=repr(one), expected=expected, remedy="leave it out by a condition on `id`")
    if is_table(file.name):
        raise ConfigError(
            "ids are added to lists of text, and not to tables",
            where=file,
            expected="a file with one id a line",
            remedy="let the views exclude a file of text, too, and name it with --list",
        )
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    known = {*text.replace("\r\n", "\n").split("\n")}
    new = [one for one in dict.fromkeys(ids) if one not in known]
    if new:
        file.parent.mkdir(parents=True, exist_ok=True)
        head = "" if text.endswith("\n") or not text else "\n"
        said = " ".join(reason.split())
        write_atomic(file, (text + head + "\n".join([f"{COMMENT}{day}: {said}", *new]) + "\n").encode())
    return new


def holdings(project: Project, ids: Sequence[str]) -> Iterator[Holding]:
    """Yield what holds the documents of some ids: corpora, views, splits and webdatasets, as they are current.

    What is not built holds nothing; what is damaged is an error. Samples are looked for of up to MOST_PLACED documents
    of a dataset.
    """
    import pyarrow as pa

    known, config = Ids(pa.array(ids, pa.large_string())), project.config
    numbers: dict[Path, NDArray[np.int64]] = {}
    for name in [*corpus_names(project), *config.derived]:
        with suppress(MissingError):
            dataset = current_dataset(project, name)
            found = _in_dataset(project, dataset, known, numbers)
            if len(found):
                kind = "view" if is_view(dataset) else "packs" if is_packs(dataset) else "corpus"
                yield Holding(f"{kind} {name}", len(found))
    context = InspectionContext.of(project)
    for name in config.nanosets:
        for split in SPLITS:
            with suppress(MissingError):  # not built, or without a share
                yield from _held(context, f"nanoset {name} {split}", Split.of(context, name, split), numbers)
    for name in config.webdatasets:
        with suppress(MissingError):
            yield from _held(context, f"webdataset {name}", Tars.of(context.outputs, name), numbers)


def _in_dataset(
    project: Project, dataset: Manifest, ids: Ids, numbers: dict[Path, NDArray[np.int64]]
) -> NDArray[np.int64]:
    """Return the numbers of these documents in a dataset, or in what was packed; `numbers` has those looked for."""
    if dataset.folder not in numbers:
        found = [np.empty(0, np.int64)]
        if is_packs(dataset):
            found.append(_in_dataset(project, packed_from(project.outputs, dataset), ids, numbers))
        elif is_view(dataset):
            base = chosen_from(project.outputs, dataset)
            whole, own = (open_dataset(one, is_sampled=True) for one in (base, dataset))
            for number in _in_dataset(project, base, ids, numbers).tolist():
                found.append(documents_that_are(whole, own, number))
        else:
            for group in document_groups(project, dataset.name, dataset):
                column = Rows(group).column("id")
                found.append(group.first + np.flatnonzero(ids.mask(column, hash_texts(column))))
        numbers[dataset.folder] = np.concatenate(found)
    return numbers[dataset.folder]


def _held(
    context: InspectionContext, output: str, held: Split | Tars, numbers: Mapping[Path, NDArray[np.int64]]
) -> Iterator[Holding]:
    count, samples = 0, list[int]()
    for number, dataset in enumerate(held.datasets):
        own = numbers.get(dataset.folder, np.empty(0, np.int64))
        count += len(own)
        for origin in Lineage(context.outputs, dataset).origins(own[:MOST_PLACED].tolist()):
            samples += [one.sample for one in held.places(number, origin).appearances]
    if samples:  # else its documents are of another split
        ends = min(samples), max(samples)
        yield Holding(output, count, ends, _steps(context, output, ends))


def _steps(context: InspectionContext, output: str, samples: tuple[int, int]) -> tuple[int, int] | None:
    kind, name, *split = output.split(" ")
    spec = context.config.nanosets.get(name) if context.config is not None and kind == "nanoset" else None
    if spec is None or spec.schedule is None or split != ["train"]:
        return None
    first, size = spec.span[0] if spec.span else 0, spec.schedule.global_batch_size
    return first + samples[0] // size, first + samples[1] // size
