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
from nanoset_core.project.project import Project
from nanoset_core.sampling.hashing import hash_texts
from nanoset_core.sampling.splits import SPLITS
from nanoset_core.stages.dataset.dataset import Dataset
from nanoset_core.stages.datasets import current_dataset
from nanoset_core.stages.inventory.corpora import corpus_names
from nanoset_core.stages.views.ids import COMMENT, Ids
from nanoset_core.stages.views.rules import GroupReader
from nanoset_core.stages.views.tables import document_groups
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.text.endings import is_table

MAX_PLACED = 200
"""Documents of a dataset whose samples are looked for."""


@dataclass(frozen=True, slots=True)
class Holding:
    """An output that holds documents which are taken down."""

    output: str
    """A corpus, view, nanoset and split, or webdataset."""
    documents: int
    """How many it holds, each as often as it is given."""
    samples: tuple[int, int] | None = None
    """First and last of its samples that hold a token of them; None if no sample does, or it has no
    samples.
    """
    steps: tuple[int, int] | None = None
    """First and last step of training that reads these samples, if `schedule` tells."""


def add_ids(file: Path, ids: Sequence[str], reason: str, day: str) -> list[str]:
    """Append ids to a list, below a line that says when and why.

    Args:
        file: The list; it is created if it does not exist.
        ids: The ids.
        reason: Why they are taken down.
        day: When they are.

    Returns:
        The ids that were not in the list.

    Raises:
        ConfigError: A line cannot hold one of the ids, or the list is a table.
    """
    for identity in ids:
        is_one_line = "\n" not in identity and "\r" not in identity
        if not identity.strip() or not is_one_line or identity.startswith(COMMENT):
            raise ConfigError(
                "a line of a list cannot hold this id",
                found=repr(identity),
                expected=f"one line, that does not begin with {COMMENT!r}",
                remedy="leave it out by a condition on `id`",
            )
    if is_table(file.name):
        raise ConfigError(
            "ids are added to lists of text, and not to tables",
            where=file,
            expected="a file with one id a line",
            remedy="let the views exclude a file of text, too, and name it with --list",
        )

    text = file.read_text(encoding="utf-8") if file.exists() else ""
    listed_ids = set(text.replace("\r\n", "\n").split("\n"))
    new_ids = [identity for identity in dict.fromkeys(ids) if identity not in listed_ids]
    if new_ids:
        if text and not text.endswith("\n"):
            text += "\n"
        comment = f"{COMMENT}{day}: {' '.join(reason.split())}"
        lines = "\n".join([comment, *new_ids])
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, f"{text}{lines}\n".encode())
    return new_ids


def holdings(project: Project, ids: Sequence[str]) -> Iterator[Holding]:
    """Yield the current outputs that hold documents with some ids: datasets, splits and webdatasets.

    Outputs that are not built hold nothing, and damaged ones are errors. Samples are looked for of
    up to MAX_PLACED documents of a dataset.
    """
    import pyarrow as pa

    config = project.config
    context = InspectionContext.of(project)
    search = _DocumentSearch(project, Ids(pa.array(ids, pa.large_string())))
    for name in [*corpus_names(project), *config.derived]:
        with suppress(MissingError):
            dataset = context.datasets.open(current_dataset(project, name))
            documents = search.documents_of(dataset)
            if len(documents):
                yield Holding(f"{dataset.kind} {name}", len(documents))

    for name in config.nanosets:
        for split in SPLITS:
            # A split without a share is not built.
            with suppress(MissingError):
                yield from _sample_holdings(
                    context, f"nanoset {name} {split}", Split.of(context, name, split), search
                )
    for name in config.webdatasets:
        with suppress(MissingError):
            yield from _sample_holdings(
                context, f"webdataset {name}", Tars.of(context, name), search
            )


class _DocumentSearch:
    """Finds the documents with some ids in datasets; each corpus is searched once."""

    def __init__(self, project: Project, ids: Ids) -> None:
        self._project = project
        self._ids = ids
        self._documents_by_folder: dict[Path, NDArray[np.int64]] = {}

    @property
    def found(self) -> Mapping[Path, NDArray[np.int64]]:
        """Folder of a dataset that was searched → numbers of its documents with these ids."""
        return self._documents_by_folder

    def documents_of(self, dataset: Dataset) -> NDArray[np.int64]:
        """Return the numbers of the documents in a dataset, or in what was packed, int64, shape
        (n_documents,).
        """
        folder = dataset.manifest.folder
        if folder not in self._documents_by_folder:
            parts = [np.empty(0, np.int64)]
            if dataset.is_whole_corpus:
                for group in document_groups(self._project, dataset.name, dataset.manifest):
                    column = GroupReader(group).strings("id")
                    rows = np.flatnonzero(self._ids.mask(column, hash_texts(column)))
                    parts.append(group.first + rows)
            else:
                for number in self.documents_of(dataset.corpus).tolist():
                    parts.append(dataset.copies_of(number))
            self._documents_by_folder[folder] = np.concatenate(parts)
        return self._documents_by_folder[folder]


def _sample_holdings(
    context: InspectionContext, output: str, samples: Split | Tars, search: _DocumentSearch
) -> Iterator[Holding]:
    """Yield what a split or webdataset holds, if a sample of it has a token of the documents."""
    n_documents = 0
    numbers: list[int] = []
    for member, dataset in enumerate(samples.datasets):
        documents = search.found.get(dataset.manifest.folder, np.empty(0, np.int64))
        n_documents += len(documents)
        for origin in Lineage(dataset).origins(documents[:MAX_PLACED].tolist()):
            numbers += [
                appearance.sample for appearance in samples.places(member, origin).appearances
            ]

    # Without samples, the documents are in another split.
    if numbers:
        first_and_last = (min(numbers), max(numbers))
        yield Holding(output, n_documents, first_and_last, _steps(context, output, first_and_last))


def _steps(
    context: InspectionContext, output: str, samples: tuple[int, int]
) -> tuple[int, int] | None:
    """Return the first and last step that read samples of a train split, or None if no schedule
    tells.
    """
    kind, name, *split = output.split(" ")
    if context.config is None or kind != "nanoset" or split != ["train"]:
        return None
    spec = context.config.nanosets.get(name)
    if spec is None or spec.schedule is None:
        return None
    first_step = spec.span[0] if spec.span else 0
    batch_size = spec.schedule.global_batch_size
    first_sample, last_sample = samples
    return first_step + first_sample // batch_size, first_step + last_sample // batch_size
