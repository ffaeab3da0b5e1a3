"""Find out whether a list of ids has an effect: who excludes it, and who reads its documents.

`nanoset takedown` adds the ids of documents to a list. This takes them out of the training data
only where a view with the list in its key `exclude` is read. For example, with these settings, the
nanoset `b` still reads the documents:

    views:
      clean: {of: web, exclude: takedown.txt}
    nanosets:
      a: {blend: clean}
      b: {blend: web}
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nanoset_core.errors import ConfigError, MissingError, NanosetError, one_of
from nanoset_core.lineage.documents import InspectionContext
from nanoset_core.lineage.takedown import DocumentSearch
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.sampling.splits import SPLITS, parse_split
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.datasets import current_dataset
from nanoset_core.stages.given_files import is_given_file
from nanoset_core.stages.inventory.corpora import corpus_names
from nanoset_core.stages.mappings.resolved import ResolvedNanoset
from nanoset_core.stages.mappings.settings import corpora_of
from nanoset_core.stages.views.settings import base_of, chain_of
from nanoset_core.stages.views.tables import document_values


@dataclass(frozen=True, slots=True)
class DatasetUse:
    """An output that reads a dataset, by the settings."""

    output: str
    """Kind and name of the output, with its split if it is a nanoset: `nanoset pretrain train`."""
    dataset: str
    """Name of the corpus, view or packs."""


def views_excluding(project: Project, list_file: Path) -> dict[str, str]:
    """Return the views that exclude a list of ids by their own key `exclude`.

    Args:
        project: The project with the views.
        list_file: Absolute path of the list, which need not exist.

    Returns:
        Name of the view → the path or pattern in its key `exclude` that stands for the list.
    """
    pattern_by_view: dict[str, str] = {}
    for name, view in project.config.views.items():
        for pattern in view.files("exclude") or ():
            if is_given_file(project, pattern, f"views.{name}.exclude", list_file):
                pattern_by_view[name] = pattern
    return pattern_by_view


def check_is_excluded(project: Project, list_file: Path) -> None:
    """Check that at least one view excludes a list of ids, so that ids in it have an effect.

    Args:
        project: The project with the views.
        list_file: Absolute path of the list, which need not exist.

    Raises:
        ConfigError: No view does. Perhaps the user has misspelt the path.
    """
    if views_excluding(project, list_file):
        return
    patterns: set[str] = set()
    for view in project.config.views.values():
        patterns.update(view.files("exclude") or ())
    raise ConfigError(
        "no view excludes this list, so nothing was added to it",
        where=f"{project.config.file}: views",
        found=list_file,
        expected=one_of(sorted(patterns), "a list that views exclude, but they exclude none"),
        remedy="correct --list (a relative path starts in the current folder), or name the list in "
        "the `exclude` of a view",
    )


def uses_without_exclusion(
    project: Project, ids: Sequence[str], list_file: Path
) -> Iterator[DatasetUse]:
    """Yield the outputs for trainers that still read documents whose ids are on a list.

    A view is a selection of the documents of a text collection (corpus). It may leave out those on
    a list, as the view `clean: {of: web, exclude: removed.txt}` does. For this list:

        output             reads           yielded
        nanoset old        web             yes, if web has one of the documents
        nanoset new        clean           no
        nanoset packed     packs of clean  no: they are made from clean

    Args:
        project: The project. Its current datasets are searched. As long as a dataset has not been
            built, its corpus is searched in its place. Of a corpus that has not been built, nobody
            knows what it contains, so its readers are included.
        ids: Ids of the documents.
        list_file: Absolute path of the list.
    """
    excluding_views = views_excluding(project, list_file).keys()  # such as {"clean"}
    context = InspectionContext.of(project)
    search = DocumentSearch(project, ids)
    for use in _uses(project.config):
        is_excluded = _is_made_by(project.config, use.dataset, excluding_views)
        if not is_excluded and _may_contain(project, context, use.dataset, search):
            yield use


def _is_made_by(config: ProjectConfig, dataset: str, views: Set[str]) -> bool:
    """Return whether a dataset is one of some views, or is made from one of them.

    For example, `packed` is made from the view `clean`, and `clean` from the corpus `web`. For the
    views {"clean"}, the result is True for `packed` and `clean`, and False for `web`.

    Args:
        config: The settings of the project.
        dataset: Name of the dataset: a corpus, a view, or packs.
        views: Names of the views.
    """
    is_corpus = dataset not in config.derived
    if is_corpus:
        return False
    steps_from_corpus = chain_of(config.derived, dataset)  # such as ["clean", "packed"]
    return not views.isdisjoint(steps_from_corpus)


def _may_contain(
    project: Project, context: InspectionContext, name: str, search: DocumentSearch
) -> bool:
    """Return whether a dataset contains some documents, or may contain them once it is built.

    A view that has not been built may contain every document of its corpus. If the corpus has not
    been built either, nobody knows which documents it has.

    Args:
        project: The project.
        context: Opens datasets.
        name: Name of the dataset.
        search: Finds the documents in a dataset.
    """

    def contains_documents(built_name: str) -> bool:
        """Return whether a dataset contains them; raise MissingError if it has not been built."""
        dataset = context.datasets.open(current_dataset(project, built_name))
        return len(search.documents_of(dataset)) > 0

    with suppress(MissingError):
        return contains_documents(name)
    with suppress(MissingError):
        return contains_documents(base_of(project.config.derived, name))  # the corpus
    return True


def _uses(config: ProjectConfig) -> Iterator[DatasetUse]:
    """Yield each output for trainers with each of the datasets that it reads, by the settings.

    Args:
        config: The settings.
    """
    for name, nanoset in config.nanosets.items():
        yield from _uses_by_nanoset(name, nanoset)
    for name, webdataset in config.webdatasets.items():
        for dataset in webdataset.corpora:
            yield DatasetUse(f"webdataset {name}", dataset)
    for name, export in config.exports.items():
        yield DatasetUse(f"export {name}", export.of)
    for dataset in config.pbin:
        yield DatasetUse(f"pbin {dataset}", dataset)


def _uses_by_nanoset(name: str, nanoset: ResolvedNanoset) -> Iterator[DatasetUse]:
    """Yield each split of a nanoset with each of the datasets that it reads.

    For example, the nanoset `pretrain` blends `web` and `code`, and divides them into train, valid
    and test by `split: 90,10,0`:

        nanoset pretrain train    web
        nanoset pretrain train    code
        nanoset pretrain valid    web
        nanoset pretrain valid    code      nothing for test, since its share is 0

    Args:
        name: Name of the nanoset.
        nanoset: Its settings.
    """
    shares = nanoset.shares
    for number, split in enumerate(SPLITS):  # train, valid and test
        is_empty = shares is not None and parse_split(shares)[number] == 0
        if is_empty:
            continue
        for dataset in corpora_of(nanoset.blend_of(split)):
            yield DatasetUse(f"nanoset {name} {split}", dataset)


def remedies(project: Project, uses: Iterable[DatasetUse], list_file: Path) -> Iterator[str]:
    """Yield what a user has to change so that outputs no longer read documents on a list of ids.

    For each text collection (corpus) that they are made from, one sentence says what to read in its
    place: a view, a selection of its documents, that leaves out the list. For example, the view
    `clean: {of: web, exclude: removed.txt}` does so for web, and books has no such view:

        name clean instead of web, wherever they or their views read web
        add a view {of: books, exclude: removed.txt}, and name it instead of books, wherever …

    Args:
        project: The project.
        uses: The outputs, each with a dataset that contains the documents.
        list_file: Absolute path of the list, which at least one view excludes.
    """
    derived = project.config.derived
    spelling_by_view = views_excluding(project, list_file)  # {"clean": "removed.txt"}
    corpora = dict.fromkeys(base_of(derived, use.dataset) for use in uses)  # each once
    for corpus in corpora:
        views_of_corpus = [view for view in spelling_by_view if base_of(derived, view) == corpus]
        if views_of_corpus:
            instruction = f"name {' or '.join(views_of_corpus)}"
        else:
            spelling = next(iter(spelling_by_view.values()))  # as the first view writes the path
            new_view = f"{{of: {corpus}, exclude: {spelling}}}"
            instruction = f"add a view {new_view}, and name it"
        yield f"{instruction} instead of {corpus}, wherever they or their views read {corpus}"


def _counts_in(project: Project, corpus: str, ids: Sequence[str]) -> Counter[str]:
    """Count the documents of a corpus that have some ids.

    Args:
        project: The project.
        corpus: Name of the corpus, a collection of texts that has been built.
        ids: Ids of documents.

    Returns:
        Id → number of documents; without ids that no document has.
    """
    import pyarrow as pa

    dataset = current_dataset(project, corpus)
    only_ids = pa.array(ids, pa.large_string())  # rows with other ids are left out
    counts: Counter[str] = Counter()
    for values in document_values(project, corpus, dataset, ["id"], only_ids=only_ids):
        counts.update(values.columns["id"].to_pylist())
    return counts


class SharedId(NamedTuple):
    """An id that several documents of a corpus have."""

    id: str
    corpus: str
    documents: int


@dataclass(frozen=True, slots=True)
class IdUses:
    """How many documents of each corpus have some ids."""

    ids: Sequence[str]
    """The ids, each once."""
    counts_by_corpus: Mapping[str, Counter[str]]
    """Corpus → id → number of documents."""
    error_by_corpus: Mapping[str, NanosetError]
    """Corpus that could not be searched → why not: for example, one of its files was deleted."""

    @classmethod
    def of(cls, project: Project, ids: Sequence[str]) -> IdUses:
        """Count the documents that have some ids.

        Args:
            project: The current datasets of its corpora are searched. A corpus that has not been
                built is skipped.
            ids: Ids of documents.
        """
        counts_by_corpus: dict[str, Counter[str]] = {}
        error_by_corpus: dict[str, NanosetError] = {}
        for corpus in corpus_names(project):
            try:
                version = project.outputs.current_version(DATASET.layout.folder, corpus)
                if version.is_built:
                    counts_by_corpus[corpus] = _counts_in(project, corpus, ids)
            except NanosetError as error:
                error_by_corpus[corpus] = error
        return cls(list(dict.fromkeys(ids)), counts_by_corpus, error_by_corpus)

    def unknown(self) -> list[str]:
        """Return the ids that no document has, which may be misspelt."""
        known_ids: set[str] = set()
        for counts in self.counts_by_corpus.values():
            known_ids.update(counts)
        return [identity for identity in self.ids if identity not in known_ids]

    def shared(self) -> list[SharedId]:
        """Return the ids that several documents of one corpus have."""
        shared_ids: list[SharedId] = []
        for corpus, counts in self.counts_by_corpus.items():
            for identity, n_documents in counts.items():
                if n_documents > 1:
                    shared_ids.append(SharedId(identity, corpus, n_documents))
        return shared_ids
