"""Find nanosets that a build would fail to make, since views that it would make are too small.

`nanoset status` plans each nanoset whose datasets exist, and shows why it would fail. If a nanoset
reads views that do not exist yet, a dry run chooses the documents of these views. With the lengths
of these documents, the nanoset can be planned, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from nanoset_core.errors import ConfigError, InputError, NanosetError, one_line_with_remedy
from nanoset_core.formats.indexed.layout import idx_path
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.graph import Graph
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.sampling.split_data import LengthReader
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
    """Yield a line for each nanoset that would fail, and reads views that would be made.

    For example, the second phase of a run reads a view with a single document, of which none is
    for validation:

        nanoset run-phase-2 train would fail: train has other sequences of a dataset than in …

    Args:
        graph: The project's outputs, with what each is made from.
        due: The outputs that the build would make.
        planned_datasets: Views that would be made → what would be recorded about them.
        reader: Knows the lengths of the documents of these views.
        budget: How many bytes may still be read to find out.
    """
    project = graph.project
    nodes_by_nanoset: dict[str, list[Node]] = {}
    for node in graph.nodes():
        if node in due and node.stage is INDEX_MAPPINGS:
            nodes_by_nanoset.setdefault(node.key.subject, []).append(node)

    for name, nodes in nodes_by_nanoset.items():
        datasets = datasets_of_nanoset(project.config, name)
        if datasets.isdisjoint(planned_datasets):
            continue  # `refusal` of the stage has planned it
        existing_datasets = datasets - planned_datasets.keys()
        index_bytes = _index_bytes(graph, existing_datasets, due)
        if index_bytes is None or not budget.spend(index_bytes):
            continue
        nanoset = NanosetContext(project, name, reader, dict(planned_datasets), exact=False)
        failure = _first_failure(nanoset, nodes)
        if failure is not None:
            yield failure


def _index_bytes(graph: Graph, datasets: Collection[str], due: Collection[Node]) -> int | None:
    """Return the size of the index files of some datasets, which have to be read to plan them.

    Args:
        graph: The project's outputs.
        datasets: Names of the datasets.
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
            dataset = current_dataset(project, name)
        except NanosetError:
            return None  # the build will report that
        index_name = idx_path(dataset.facts["prefix"]).name
        total += dataset.files[index_name].size
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
