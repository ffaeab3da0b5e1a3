"""Take documents out of the training data: add their ids to a list, and find what contains them.

Views, which are selections of a corpus's documents, can exclude those whose ids are in a list.
`add_ids` adds ids to such a list, and `holdings` reports which current outputs, samples and steps
of training contain the documents. For example, the documents `a1` and `a2` are in the corpus `web`,
and in the samples 17 to 350 of a nanoset's train split, which are read in the steps 3 to 44.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, NanosetError, NoSamplesError
from nanoset_core.lineage.documents import InspectionContext, Lineage
from nanoset_core.lineage.positions import Split
from nanoset_core.lineage.webdataset import Tars
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.sampling.splits import SPLITS
from nanoset_core.stages.dataset.dataset import Dataset
from nanoset_core.stages.datasets import dataset_node
from nanoset_core.stages.exports.stage import EXPORT
from nanoset_core.stages.inventory.corpora import corpus_names
from nanoset_core.stages.mappings.stage import INDEX_MAPPINGS
from nanoset_core.stages.pbin.stage import PBIN, PBIN_DERIVED
from nanoset_core.stages.stage import Key, Node, require
from nanoset_core.stages.views.ids import COMMENT, listed_ids
from nanoset_core.stages.views.tables import document_values
from nanoset_core.stages.webdataset.stage import WEBDATASET
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.text.files.endings import is_table

MAX_PLACED = 200
"""Samples are searched for at most this many documents of a dataset, because it is slow."""


@dataclass(frozen=True, slots=True)
class Holding:
    """An output that contains some of the documents that are taken down."""

    output: str
    """Its kind and name: a corpus, view, nanoset and split, webdataset, export or pbin."""
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
        InputError: The list is not UTF-8.
    """
    _check_can_be_listed(file, ids)
    present_ids: set[str] = set()
    if file.exists():
        present_ids.update(listed_ids(file.parent, [file.name]).to_pylist())
    new_ids = [identity for identity in dict.fromkeys(ids) if identity not in present_ids]
    if new_ids:
        comment = f"{COMMENT}{day}: {' '.join(reason.split())}"  # the reason in one line
        _append_lines(file, [comment, *new_ids])
    return new_ids


def _append_lines(file: Path, lines: Sequence[str]) -> None:
    r"""Append lines to a text file, which is created if it does not exist.

    Args:
        file: The file. It is read as bytes: to read it as text would replace a `\r` within a line
            by a line end.
        lines: The lines, without line ends.
    """
    text = file.read_bytes().decode("utf-8") if file.exists() else ""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(file, _with_lines(text, lines).encode())


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


@dataclass(frozen=True, slots=True)
class UnsearchedOutput:
    """An output that could not be searched for the documents that are taken down."""

    output: str
    """Its kind and name, as in `Holding`."""
    error: NanosetError
    """Why not: for example, one of its files was deleted."""


def holdings(project: Project, ids: Sequence[str]) -> Iterator[Holding | UnsearchedOutput]:
    """Yield the outputs of a project that contain documents which must be deleted.

        corpus web                   3 documents
        nanoset pretrain train       3 documents, in the samples 17 to 30

    Args:
        project: Its current outputs are searched, also if they are out of date: trainers read them
            until they are rebuilt. Those that have not been built are skipped.
        ids: Ids of the documents.

    Yields:
        Datasets first, then the splits of nanosets (train, valid and test), then webdatasets, and
        at the end exports and `.pbin` files. An output that is damaged, or was made from a dataset
        that is damaged, is yielded as an `UnsearchedOutput`, since it may contain the documents.
    """
    search = _OutputSearch.of(project, ids)
    for node in _searched_outputs(project):
        try:
            holding = search.holding(node)
        except NanosetError as error:
            yield UnsearchedOutput(_label(project.config, node), error)
            continue
        if holding is not None:
            yield holding


def _searched_outputs(project: Project) -> Iterator[Node]:
    """Yield the outputs that may contain text, in the order in which they are shown.

    Args:
        project: Its text and settings say which outputs it has. They need not have been built.
    """
    config = project.config
    for name in [*corpus_names(project), *config.derived]:
        yield dataset_node(config, name)
    for name in config.nanosets:
        for split in SPLITS:
            yield Node(INDEX_MAPPINGS, Key(name, split))
    for name in config.webdatasets:
        yield Node(WEBDATASET, Key(name))
    for name in config.exports:
        yield Node(EXPORT, Key(name))
    for name in config.pbin:
        # Those of corpora, and those of what is made from corpora, belong to different stages.
        stage = PBIN_DERIVED if name in config.derived else PBIN
        yield Node(stage, Key(name))


def _label(config: ProjectConfig, node: Node) -> str:
    """Return the kind and the name of an output, such as `view clean` or `nanoset pretrain train`.

    Args:
        config: The settings of the project.
        node: One of the `_searched_outputs`.
    """
    key = node.key
    if node.stage is INDEX_MAPPINGS:
        return f"nanoset {key.subject} {key.part}"
    if node.stage is WEBDATASET:
        return f"webdataset {key.subject}"
    if node.stage is EXPORT:
        return f"export {key.subject}"
    if node.stage in (PBIN, PBIN_DERIVED):
        return f"pbin {key.subject}"

    name = key.part or key.subject  # the key of a view or of packs is (corpus, name)
    if name in config.packs:
        return f"packs {name}"
    if name in config.derived:
        return f"view {name}"
    return f"corpus {name}"


@dataclass(frozen=True, slots=True)
class _OutputSearch:
    """Finds the outputs of a project that contain documents which are taken down."""

    project: Project
    """Its current outputs are searched."""
    context: InspectionContext
    """Opens the datasets and training samples of the project."""
    documents: DocumentSearch
    """Finds the documents in a dataset, and remembers them."""

    @staticmethod
    def of(project: Project, ids: Sequence[str]) -> _OutputSearch:
        """Prepare a search.

        Args:
            project: Its current outputs are searched.
            ids: Ids of the documents.
        """
        context = InspectionContext.of(project)
        return _OutputSearch(project, context, DocumentSearch(project, ids))

    def holding(self, node: Node) -> Holding | None:
        """Return how many of the documents an output contains.

        Args:
            node: Which output, one of the `_searched_outputs`.

        Returns:
            The result; None if the output contains none of the documents, or has not been built.

        Raises:
            NanosetError: The output is damaged; or a dataset that it was made from is damaged, or
                was deleted.
        """
        version = self.project.outputs.current_version(node.stage.layout.folder, node.name)
        if not version.is_built:
            return None

        if node.stage is INDEX_MAPPINGS:
            return self._holding_of_split(node)
        if node.stage is WEBDATASET:
            return self._holding_of_samples(node, Tars.of(self.context, node.key.subject))
        return self._holding_of_dataset(node)

    def _holding_of_dataset(self, node: Node) -> Holding | None:
        """Return how many of the documents are in a dataset, or in a copy of one.

        Args:
            node: A corpus, a view or packs; or an export or a `.pbin`, which are copies of these.
        """
        manifest = require(self.project, node.stage, node.key)
        if node.stage in (EXPORT, PBIN, PBIN_DERIVED):
            # Search the dataset as it was when the copy was made. It may have been rebuilt since,
            # or nanoset.yaml may name another one, but the copy still has the earlier documents.
            dataset = self.context.datasets.copied_by(manifest, self.project.config)
        else:
            dataset = self.context.datasets.open(manifest)
        n_documents = len(self.documents.documents_of(dataset))
        if n_documents == 0:
            return None
        return Holding(_label(self.project.config, node), n_documents)

    def _holding_of_split(self, node: Node) -> Holding | None:
        """Return how many of the documents the training samples of a split contain.

        For train, the result also says in which steps of training these samples are read.

        Args:
            node: The split (train, valid or test) of a nanoset, which is a mixture of datasets.
        """
        nanoset = node.key.subject
        split = node.key.required_part
        try:
            samples = Split.of(self.context, nanoset, split)
        except NoSamplesError:
            return None
        holding = self._holding_of_samples(node, samples)
        if holding is None or holding.samples is None or split != "train":
            return holding
        return replace(holding, steps=_steps(self.context, nanoset, holding.samples))

    def _holding_of_samples(self, node: Node, samples: Split | Tars) -> Holding | None:
        """Return how many of the documents are in training data, and in which samples.

        For example, 3 documents in the samples 17 to 30. All documents of a dataset count that the
        data are made from: whether a sample has a token of each is not looked up.

        Args:
            node: The split of a nanoset, or the webdataset.
            samples: Its training samples.

        Returns:
            The result; None if no sample has tokens of these documents.
        """
        documents_by_dataset = _documents_by_dataset(samples, self.documents)
        sample_numbers = _samples_with(samples, documents_by_dataset)
        if not sample_numbers:
            return None
        n_documents = sum(len(documents) for documents in documents_by_dataset)
        return Holding(
            _label(self.project.config, node),
            n_documents,
            samples=(min(sample_numbers), max(sample_numbers)),
        )


class DocumentSearch:
    """Finds the documents that are taken down in datasets, by their ids, and remembers them."""

    def __init__(self, project: Project, ids: Sequence[str]) -> None:
        """Prepare a search.

        Args:
            project: Its current outputs are searched.
            ids: Ids of the documents.
        """
        import pyarrow as pa

        self._project = project
        self._ids = pa.array(ids, pa.large_string())
        self._documents_by_folder: dict[Path, NDArray[np.int64]] = {}

    def documents_of(self, dataset: Dataset) -> NDArray[np.int64]:
        """Return the numbers of the documents of a dataset that have one of the ids to take down.

        For example, if the ids are doc-17 and doc-40: [17, 40]. The result is remembered, as the
        same dataset is needed several times.

        Args:
            dataset: The dataset of a whole corpus (a collection of texts), or one that has some of
                the documents of a corpus.

        Returns:
            Shape (n_documents,).
        """
        folder = dataset.manifest.folder
        if folder not in self._documents_by_folder:
            if dataset.is_whole_corpus:
                documents = self._in_corpus(dataset)  # its tables have the ids
            else:
                documents = self._in_selection(dataset)  # it has no ids, only numbers
            self._documents_by_folder[folder] = documents
        return self._documents_by_folder[folder]

    def _in_corpus(self, dataset: Dataset) -> NDArray[np.int64]:
        """Return which documents of a text collection (corpus) must be deleted, by their ids.

        Args:
            dataset: The dataset of the corpus.

        Returns:
            Numbers in the corpus, shape (n_documents,).
        """
        # The corpus has tables with the id of each document. Rows with other ids are left out.
        tables = document_values(self._project, dataset.name, dataset.manifest, only_ids=self._ids)
        parts = [np.empty(0, np.int64)]  # the dtype of the result if no other part is added
        for table in tables:
            parts.append(table.numbers)
        return np.concatenate(parts)

    def _in_selection(self, dataset: Dataset) -> NDArray[np.int64]:
        """Return which documents of a selection of a corpus must be deleted.

        The selection does not store the ids of its documents. So find them in the corpus, and then
        look up which numbers they have in the selection. For example, document 40 of the corpus may
        be document 3 of the selection; or 3 and 9, if it was selected twice.

        Args:
            dataset: The selection (a view, or packs, which are sequences filled with documents).

        Returns:
            Numbers in the selection, shape (n_documents,).
        """
        corpus_numbers = self.documents_of(dataset.corpus)
        parts = [np.empty(0, np.int64)]  # the dtype of the result if no other part is added
        for corpus_number in corpus_numbers.tolist():
            parts.append(dataset.copies_of(corpus_number))
        return np.concatenate(parts)


def _documents_by_dataset(samples: Split | Tars, search: DocumentSearch) -> list[NDArray[np.int64]]:
    """Return which documents of each dataset of training data must be deleted.

    Args:
        samples: The training data. A dataset of theirs may be an earlier version, which `search`
            has not looked into yet. Train, valid and test may have different documents of it.
        search: Finds the documents in a dataset.

    Returns:
        Numbers of the documents in each dataset, shape (n_documents,) for each.
    """
    documents_by_dataset: list[NDArray[np.int64]] = []
    for number, dataset in enumerate(samples.datasets):
        documents = search.documents_of(dataset)
        if isinstance(samples, Split):
            documents = samples.documents_within(number, documents)
        documents_by_dataset.append(documents)
    return documents_by_dataset


def _samples_with(
    samples: Split | Tars, documents_by_dataset: Sequence[NDArray[np.int64]]
) -> list[int]:
    """Return the numbers of the training samples that contain tokens of some documents.

    This takes long. So of each dataset, only the first `MAX_PLACED` documents are looked for, which
    is enough to see which samples are concerned.

    Args:
        samples: The training data: the samples of a nanoset's split, or of a webdataset's tars.
        documents_by_dataset: Numbers of the documents in each of its datasets, shape (n_documents,)
            for each.

    Returns:
        Such as [7, 8]; in no particular order. A sample is repeated if it has several documents.
    """
    sample_numbers: list[int] = []
    for dataset_number, documents in enumerate(documents_by_dataset):
        lineage = Lineage(samples.datasets[dataset_number])  # describes documents by their numbers
        for document in lineage.origins(documents[:MAX_PLACED].tolist()):
            places = samples.places(dataset_number, document)  # the samples with this document
            sample_numbers += [appearance.sample for appearance in places.appearances]
    return sample_numbers


def _steps(
    context: InspectionContext, name: str, samples: tuple[int, int]
) -> tuple[int, int] | None:
    """Return the first and last training step that read a range of samples of a nanoset's train.

    For example, with 8 samples a step, step 1 reads the samples 0 to 7, and so on. So the samples
    17 to 30 are read in the steps 3 and 4. If the nanoset is for a later part of a training, such
    as the steps after 100, they are read in the steps 103 and 104.

    Args:
        context: The project, whose settings have the number of samples a step.
        name: Name of the nanoset.
        samples: The first and the last sample.

    Returns:
        The two steps; None if the nanoset has no `schedule`.
    """
    if context.config is None:
        return None
    spec = context.config.nanosets.get(name)
    if spec is None or spec.schedule is None:
        return None

    steps_before = spec.span[0] if spec.span else 0
    batch_size = spec.schedule.global_batch_size
    first_sample, last_sample = samples
    first_step = steps_before + first_sample // batch_size + 1  # steps are counted from 1
    last_step = steps_before + last_sample // batch_size + 1
    return first_step, last_step
