"""Take documents out of the training data: add their ids to a list, and find what contains them.

Views, which are selections of a corpus's documents, can exclude those whose ids are in a list.
`add_ids` adds ids to such a list, and `holdings` reports which current outputs, samples and steps
of training contain the documents. For example, the documents `a1` and `a2` are in the corpus `web`,
and in the samples 17 to 350 of a nanoset's train split, which are read in the steps 3 to 44.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.lineage.documents import InspectionContext, Lineage
from nanoset_core.lineage.positions import Split
from nanoset_core.lineage.webdataset import Tars
from nanoset_core.project.project import Project
from nanoset_core.sampling.splits import SPLITS
from nanoset_core.stages.dataset.dataset import Dataset
from nanoset_core.stages.datasets import current_dataset
from nanoset_core.stages.inventory.corpora import corpus_names
from nanoset_core.stages.views.ids import COMMENT
from nanoset_core.stages.views.tables import document_values
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.text.endings import is_table

MAX_PLACED = 200
"""Samples are searched for at most this many documents of a dataset, because it is slow."""


@dataclass(frozen=True, slots=True)
class Holding:
    """An output that contains some of the documents that are taken down."""

    output: str
    """Its kind and name: a corpus, view, nanoset and split, or webdataset."""
    documents: int
    """How many it contains. A document that a view repeats counts once for each copy."""
    samples: tuple[int, int] | None = None
    """The first and last of its samples with a token of them; None for a corpus or view, which has
    no samples.
    """
    steps: tuple[int, int] | None = None
    """The first and last step of training that reads these samples, counted from 1, as in the logs
    of trainers; None if the nanoset has no `schedule`, from which the steps are computed.
    """


def add_ids(file: Path, ids: Sequence[str], reason: str, day: str) -> list[str]:
    """Add ids of documents to a list of documents that must not be used, with the reason.

        # 2026-11-29: demanded by the author
        doc-17
        doc-18

    The list is a text file, which views (selections of documents) exclude.

    Args:
        file: The list; it is created if it does not exist.
        ids: The ids to add. Those that the list already has are not added again.
        reason: Why the documents are taken down.
        day: The day on which they are.

    Returns:
        The ids that were added.

    Raises:
        ConfigError: One of the ids cannot be a line of the list, or the list is a table.
    """
    _check_can_be_listed(file, ids)
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    listed_ids = set(text.replace("\r\n", "\n").split("\n"))
    new_ids = [identity for identity in dict.fromkeys(ids) if identity not in listed_ids]
    if not new_ids:
        return []

    comment = f"{COMMENT}{day}: {' '.join(reason.split())}"  # the reason in one line
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, _with_lines(text, [comment, *new_ids]).encode())
    return new_ids


def _with_lines(text: str, lines: Sequence[str]) -> str:
    """Return a text with lines appended.

    Args:
        text: The text. Its last line may have no line end, if somebody has edited it.
        lines: The lines, without line ends.
    """
    if text and not text.endswith("\n"):
        text += "\n"
    new_lines = "\n".join(lines)
    return f"{text}{new_lines}\n"


def _check_can_be_listed(file: Path, ids: Sequence[str]) -> None:
    r"""Check that each id can be written as one line of a list, which may also have comments.

        "doc-17"        fine
        ""              would be an empty line
        "a\nb"          would be two lines
        "# doc"         would be a comment

    Args:
        file: The list, to which lines are appended.
        ids: Ids of documents, a field of the raw text.

    Raises:
        ConfigError: One of the ids cannot be a line of the list, or the list is a table.
    """
    for identity in ids:
        is_empty = not identity.strip()
        has_line_end = "\n" in identity or "\r" in identity
        is_comment = identity.startswith(COMMENT)
        if is_empty or has_line_end or is_comment:
            raise ConfigError(
                "this id cannot be a line of a list",
                found=repr(identity),
                expected=f"one line that does not begin with {COMMENT!r}",
                remedy="leave it out by a condition on `id`",
            )

    # A list may also be a Parquet file, but then nothing can be appended to it.
    if is_table(file.name):
        raise ConfigError(
            "ids are added to lists of text, and not to tables",
            where=file,
            expected="a file with one id a line",
            remedy="let the views exclude a file of text, too, and name it with --list",
        )


def holdings(project: Project, ids: Sequence[str]) -> Iterator[Holding]:
    """Yield the outputs of a project that contain documents which must be deleted.

        corpus web                   3 documents
        nanoset pretrain train       3 documents, in the samples 17 to 30

    Args:
        project: Its current outputs are searched. Those that have not been built are skipped.
        ids: Ids of the documents.

    Yields:
        Datasets first, then the splits of nanosets (train, valid and test), then webdatasets.

    Raises:
        NanosetError: An output is damaged.
    """
    import pyarrow as pa

    context = InspectionContext.of(project)
    search = _DocumentSearch(project, pa.array(ids, pa.large_string()))
    # Datasets come first: `search` remembers the documents of each, for the samples.
    yield from _dataset_holdings(project, context, search)
    for name in project.config.nanosets:
        yield from _split_holdings(context, name, search)
    for name in project.config.webdatasets:
        with suppress(MissingError):  # it has not been built
            tars = Tars.of(context, name)
            yield from _sample_holdings(context, f"webdataset {name}", tars, search)


def _split_holdings(
    context: InspectionContext, name: str, search: _DocumentSearch
) -> Iterator[Holding]:
    """Yield the splits of a nanoset that contain documents which must be deleted.

    A nanoset is a mixture of datasets, whose samples are divided into train, valid and test, the
    splits. The documents have been found in the datasets before. Here the samples with their tokens
    are looked up:

        nanoset pretrain train       3 documents, in the samples 17 to 30

    Args:
        context: The opened outputs, and the settings of the project.
        name: Name of the nanoset.
        search: What was found in the datasets, all of which must have been searched before.
    """
    for split in SPLITS:
        with suppress(MissingError):  # not built, or empty because its share of the data is 0
            opened_split = Split.of(context, name, split)
            output = f"nanoset {name} {split}"
            yield from _sample_holdings(context, output, opened_split, search)


def _dataset_holdings(
    project: Project, context: InspectionContext, search: _DocumentSearch
) -> Iterator[Holding]:
    """Yield the datasets that contain documents which must be deleted.

        corpus web     3 documents
        view clean     2 documents     a selection of the documents of web
        packs …        2 documents     sequences of one length that are filled with documents

    Args:
        project: Its current outputs are searched.
        context: Opens datasets.
        search: Finds the documents in a dataset by their ids.
    """
    for name in [*corpus_names(project), *project.config.derived]:
        with suppress(MissingError):  # it has not been built
            dataset = context.datasets.open(current_dataset(project, name))
            documents = search.documents_of(dataset)
            if len(documents):
                yield Holding(f"{dataset.kind} {name}", len(documents))


class _DocumentSearch:
    """Finds the documents that are taken down in datasets, by their ids, and remembers them."""

    def __init__(self, project: Project, ids: Any) -> None:
        """Prepare a search.

        Args:
            project: Its current outputs are searched.
            ids: Ids of the documents, an Arrow array of texts.
        """
        self._project = project
        self._ids = ids
        self._documents_by_folder: dict[Path, NDArray[np.int64]] = {}

    def found_in(self, dataset: Dataset) -> NDArray[np.int64]:
        """Return what an earlier call of `documents_of` found in a dataset; otherwise nothing.

        Args:
            dataset: The dataset.

        Returns:
            Numbers of documents, shape (n_documents,).
        """
        return self._documents_by_folder.get(dataset.manifest.folder, np.empty(0, np.int64))

    def documents_of(self, dataset: Dataset) -> NDArray[np.int64]:
        """Return which documents of a dataset must be deleted, by their numbers.

        The user has named documents by ids, which are stored with a corpus, a collection of texts.
        Other datasets are made from a corpus, and number the documents in their own way:

            corpus    all texts, one document after another             document 40
            view      a selection of these, which may repeat some       documents 3 and 9
            packs     sequences filled with documents of the view       documents 3 and 9

        The result is remembered, as the same dataset is needed several times.

        Args:
            dataset: The dataset of a corpus; or a view or packs, which are made from one.

        Returns:
            Shape (n_documents,).
        """
        folder = dataset.manifest.folder
        if folder not in self._documents_by_folder:
            if dataset.is_whole_corpus:
                documents = self._in_corpus(dataset)
            else:
                documents = self._in_derived(dataset)
            self._documents_by_folder[folder] = documents
        return self._documents_by_folder[folder]

    def _in_corpus(self, dataset: Dataset) -> NDArray[np.int64]:
        """Return the documents of a whole corpus that are taken down, from the tables of its ids.

        Args:
            dataset: The dataset of the corpus.

        Returns:
            Numbers in the corpus, shape (n_documents,).
        """
        parts = [np.empty(0, np.int64)]  # the dtype of the result if no other part is added
        for document_table in document_values(
            self._project, dataset.name, dataset.manifest, only_ids=self._ids
        ):
            parts.append(document_table.numbers)
        return np.concatenate(parts)

    def _in_derived(self, dataset: Dataset) -> NDArray[np.int64]:
        """Return the documents of a view or packs that are searched for.

        A view is a selection of a corpus's documents, and packs are filled with them. Neither
        stores the ids of the documents. So they are found in the corpus first:

            id          in the corpus    in the view
            "doc-17"    document 40      documents 3 and 9, if the view repeats it

        Args:
            dataset: The view or packs.

        Returns:
            Numbers in the view, shape (n_documents,).
        """
        corpus_numbers = self.documents_of(dataset.corpus)
        parts = [np.empty(0, np.int64)]  # the dtype of the result if no other part is added
        for corpus_number in corpus_numbers.tolist():
            parts.append(dataset.copies_of(corpus_number))
        return np.concatenate(parts)


def _sample_holdings(
    context: InspectionContext, output: str, samples: Split | Tars, search: _DocumentSearch
) -> Iterator[Holding]:
    """Yield how many documents that must be deleted are in training data, and in which samples.

    For example, 3 documents in the samples 17 to 30, which are read in the steps 3 and 4 of
    training. Nothing is yielded if no sample has tokens of them.

    Args:
        context: The opened outputs, and the settings of the project.
        output: Kind and name of the training data, such as `nanoset pretrain train`.
        samples: The training data itself, opened: it looks up where a document is.
        search: What was found in the datasets, all of which must have been searched before.
    """
    documents_by_dataset = [search.found_in(dataset) for dataset in samples.datasets]
    sample_numbers = _samples_with(samples, documents_by_dataset)
    if not sample_numbers:  # the documents are in another split
        return

    # All documents of these datasets count, since samples are only searched for some of them.
    n_documents = sum(len(documents) for documents in documents_by_dataset)
    first_and_last = (min(sample_numbers), max(sample_numbers))
    steps = _steps(context, output, first_and_last)
    yield Holding(output, n_documents, first_and_last, steps)


def _samples_with(
    samples: Split | Tars, documents_by_dataset: Sequence[NDArray[np.int64]]
) -> list[int]:
    """Return the numbers of the training samples that contain tokens of some documents.

    For each document, first look up where it came from, and then where it went:

        number 40 of dataset 0    its origin: line 12 of a.jsonl, with 90 tokens
                                  its places: tokens 0 to 50 in sample 7, the others in sample 8

    To find the samples takes long. So of each dataset only the first `MAX_PLACED` documents are
    looked up. They show well enough which samples are concerned.

    Args:
        samples: The training data, opened: it looks up where a document is.
        documents_by_dataset: Numbers of the documents in each of its datasets, shape (n_documents,)
            for each.

    Returns:
        Such as [7, 8]; in no particular order. A sample is repeated if it has several documents.
    """
    sample_numbers: list[int] = []
    for dataset_number, documents in enumerate(documents_by_dataset):
        lineage = Lineage(samples.datasets[dataset_number])
        for origin in lineage.origins(documents[:MAX_PLACED].tolist()):
            places = samples.places(dataset_number, origin)
            sample_numbers += [appearance.sample for appearance in places.appearances]
    return sample_numbers


def _steps(
    context: InspectionContext, output: str, samples: tuple[int, int]
) -> tuple[int, int] | None:
    """Return the first and last training step that read a range of samples.

    Steps are counted from 1, as in the logs of trainers. With 8 samples a step:

        step       1         2          3           4
        samples    0 to 7    8 to 15    16 to 23    24 to 31

    So the samples 17 to 30 are read in the steps 3 and 4.

    Args:
        context: The project, whose settings have the number of samples a step.
        output: Kind and name of the output that has the samples, such as `nanoset pretrain train`.
        samples: The first and the last sample.

    Returns:
        The two steps; None if the output is not the train split of a nanoset with a `schedule`.
    """
    kind, name, *split = output.split(" ")
    if context.config is None or kind != "nanoset" or split != ["train"]:
        return None
    spec = context.config.nanosets.get(name)
    if spec is None or spec.schedule is None:
        return None

    # A nanoset may be for the part of a run after some steps, its `span`. Its samples are numbered
    # from 0, so that sample 0 is read in the step after these.
    steps_before = spec.span[0] if spec.span else 0
    first_step = steps_before + 1
    batch_size = spec.schedule.global_batch_size
    first_sample, last_sample = samples
    return first_step + first_sample // batch_size, first_step + last_sample // batch_size
