"""Find nanosets that a build would fail to make, since views that it would make are too small.

`nanoset status` plans each nanoset whose datasets exist, and shows why it would fail. If a nanoset
reads views that do not exist yet, a dry run chooses the documents of these views. With the lengths
of these documents, the nanoset can be planned, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from nanoset_core.errors import ConfigError, InputError, NanosetError, one_line_with_remedy
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.graph.graph import Graph
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.sampling.split_data import LengthReader
from nanoset_core.stages.dataset.tokens import idx_bytes
from nanoset_core.stages.datasets import current_dataset, dataset_node
from nanoset_core.stages.mappings.planning import NanosetContext
from nanoset_core.stages.mappings.stage import INDEX_MAPPINGS, split_of
from nanoset_core.stages.stage import Node, ReadingBudget


def datasets_of_nanoset(config: ProjectConfig, name: str) -> set[str]:
    """Return the datasets that decide what a nanoset reads.

    These are its own, and if it is a phase of a run that continues, those of the phases before.

    Args:
        config: The settings of nanoset.yaml.
        name: Name of the nanoset.
    """
    datasets: set[str] = set()
    phase: str | None = name
    while phase is not None:
        spec = config.nanosets[phase]
        datasets.update(spec.corpora)
        phase = spec.previous_phase
    return datasets


def failing_nanosets(
    graph: Graph,
    due: Collection[Node],
    planned_datasets: Mapping[str, Manifest],
    reader: LengthReader,
    budget: ReadingBudget,
) -> Iterator[str]:
    """Yield a line for each nanoset that a build would fail to make, since a new view is too small.

    For example, the nanoset `pretrain` reads the view `best`, which does not exist yet and would
    have a single document. So there is none for validation:

        nanoset pretrain valid would fail: valid has no sample …

    Nanosets that read no new view are left out. Those whose data cannot be known before the build,
    or only by reading more than the budget allows, are left out, too.

    Args:
        graph: The project's outputs, with what each is made from.
        due: The outputs that the build would make.
        planned_datasets: Views that would be made → what would be recorded about them.
        reader: Knows the lengths of the documents of these views.
        budget: How many bytes of index files may still be read.
    """
    project = graph.project
    for name, nodes in _due_nanosets(graph, due).items():
        datasets = datasets_of_nanoset(project.config, name)
        reads_new_views = not datasets.isdisjoint(planned_datasets)
        if not reads_new_views:
            continue

        # The lengths of documents of the other datasets are in their index files.
        existing_datasets = datasets - planned_datasets.keys()
        index_bytes = _index_bytes(graph, existing_datasets, due)
        if index_bytes is None or not budget.spend(index_bytes):
            continue

        # An estimate of the samples is enough. Exact numbers would need the files of the views.
        nanoset = NanosetContext(project, name, reader, dict(planned_datasets), exact=False)
        failure = _first_failure(nanoset, nodes)
        if failure is not None:
            yield failure


def _due_nanosets(graph: Graph, due: Collection[Node]) -> dict[str, list[Node]]:
    """Return the nanosets that a build would make: name → its splits (train, valid and test).

    Args:
        graph: The project's outputs.
        due: All outputs that the build would make.
    """
    nodes_by_nanoset: dict[str, list[Node]] = {}
    for node in graph.nodes():
        if node in due and node.stage is INDEX_MAPPINGS:
            nodes_by_nanoset.setdefault(node.key.subject, []).append(node)
    return nodes_by_nanoset


def _index_bytes(graph: Graph, datasets: Collection[str], due: Collection[Node]) -> int | None:
    """Return how many bytes have to be read to know the lengths of all documents of some datasets.

    The lengths are in a file of each dataset, such as web_text_document.idx.

    Args:
        graph: The project's outputs.
        datasets: Names of the datasets, such as web.
        due: The outputs that the build would make.

    Returns:
        Bytes; None if the build makes one of the datasets, or if one cannot be read.
    """
    project = graph.project
    total = 0
    for name in datasets:
        if dataset_node(project.config, name) in due:
            return None
        try:
            total += idx_bytes(current_dataset(project, name))
        except (NanosetError, OSError):
            return None  # the build will report that
    return total


def _first_failure(nanoset: NanosetContext, nodes: Collection[Node]) -> str | None:
    """Return why the first split of a nanoset that would fail does so, or None if none would.

    Args:
        nanoset: The nanoset, which knows the views that would be made.
        nodes: Its splits.
    """
    for node in nodes:
        try:
            nanoset.plan(split_of(node.key))
        except (ConfigError, InputError) as error:
            return f"{node.row.label} would fail: {one_line_with_remedy(error)}"
        except NanosetError:
            return None  # a plan needs files of the views, which do not exist yet
    return None
