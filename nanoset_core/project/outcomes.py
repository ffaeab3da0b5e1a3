"""Say what a new version of a corpus's dataset means for each output, for `nanoset diff`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from nanoset_core.errors import FormatError, NanosetError, one_line
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.graph import Graph
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.mappings.facts import CACHE_FILES, cache_files
from nanoset_core.stages.stage import Key, Node, SharesFiles, current_version
from nanoset_core.stages.views.stage import DerivedStage

Fate = Literal["survives", "rebuilt", "to be rebuilt", "not built"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a new version of a dataset means for the outputs of one row of `nanoset status`."""

    output: str
    """Kind, name and part of the row."""
    fate: Fate
    """What becomes of the outputs. `survives`: the new version does not concern them; `rebuilt`:
    they are made from it already; `to be rebuilt`: they are made from another version.
    """
    why: str
    """The reason, as a clause."""
    index_files: int | None = None
    """For a split, how many index files of the trainer the new version needs; None if that is not
    known.
    """
    kept_files: int | None = None
    """How many of these need not be written. Of rebuilt outputs, those that the old version had,
    too; of outputs that are to be rebuilt, those that exist already.
    """


def find_outcomes(project: Project, old: Manifest, new: Manifest) -> Iterator[Outcome]:
    """Yield an outcome for each row of outputs that are made from datasets.

    Args:
        project: The project.
        old: The old version of the dataset of a corpus.
        new: The new version of it.
    """
    graph = Graph(project, {}, [old.name])
    dataset = Node(DATASET, Key(old.name))
    for nodes in graph.rows():
        inputs = _inputs_of_row(graph, nodes)
        label = nodes[0].row.label
        if dataset in inputs:
            yield _outcome_of_row(graph, nodes, label, old, new)
        elif any(node.stage is DATASET for node in inputs):
            yield Outcome(label, "survives", f"it does not use {old.name}")


def _inputs_of_row(graph: Graph, nodes: Sequence[Node]) -> set[Node]:
    """Return what the outputs of a row are made from, directly or through views and packs.

    Views and packs are datasets that are made from the dataset of a corpus: selected documents, and
    documents joined to sequences of one length. So if an output is made from a view, the dataset
    that the view is made from is returned, too.

    Args:
        graph: The graph of the project's outputs.
        nodes: The outputs that `nanoset status` shows in one row.
    """
    all_inputs: set[Node] = set()
    nodes_to_visit = list(nodes)
    while nodes_to_visit:
        node = nodes_to_visit.pop()
        for input_node in graph.inputs(node).values():
            if input_node in all_inputs:
                continue
            all_inputs.add(input_node)
            is_view_or_pack = isinstance(input_node.stage, DerivedStage)
            if is_view_or_pack:
                nodes_to_visit.append(input_node)
    return all_inputs


def _outcome_of_row(
    graph: Graph, nodes: Sequence[Node], label: str, old: Manifest, new: Manifest
) -> Outcome:
    """Return what a new version of a dataset means for the outputs of a row.

    Args:
        graph: The graph of the project's outputs.
        nodes: The outputs, in the order in which they are made. The last one is made from the
            others, such as the blend of a split from its index mappings.
        label: Kind, name and part of the row.
        old: The old version of the dataset.
        new: The new version of the dataset.
    """
    # The last output of the row shows whether the row was built at all.
    project = graph.project
    manifest = current_version(project, nodes[-1].stage, nodes[-1].key).manifest
    if manifest is None:
        return Outcome(label, "not built", "it was never built")
    if old.digest == new.digest:
        return Outcome(label, "survives", "both versions are the same")

    # If the row is made from the new version already, count the index files of both versions. They
    # are the arrays by which a trainer finds its samples.
    origins = _origins(graph, nodes, manifest)
    if new.digest in origins:
        outcome = Outcome(label, "rebuilt", "it is made from the new version")
        files_before = _index_files(project, nodes, old.digest)
        files_after = _index_files(project, nodes, new.digest)
        if files_before is None or files_after is None:
            return outcome
        kept_files = files_after & files_before
        return replace(outcome, index_files=len(files_after), kept_files=len(kept_files))

    # Otherwise it has to be rebuilt: plan which index files that takes.
    version = "the old" if old.digest in origins else "another"
    outcome = Outcome(label, "to be rebuilt", f"it is made from {version} version")
    current = current_version(project, DATASET, Key(old.name)).manifest
    if current is None or current.digest != new.digest:
        # A build would use another version, so that its index files for this one are not known.
        return outcome
    return _with_planned_files(project, nodes[0], outcome)


def _with_planned_files(project: Project, node: Node, outcome: Outcome) -> Outcome:
    """Add to an outcome how many index files a build needs now, and how many of them exist.

    Index files are the arrays by which a trainer finds its samples. Versions share them.

    Args:
        project: The project.
        node: An output. If it has no index files, the outcome is returned unchanged.
        outcome: The outcome.
    """
    if not isinstance(node.stage, SharesFiles):
        return outcome
    try:
        files = node.stage.planned_files(project, node.key)
    except NanosetError as error:
        return replace(outcome, why=f"{outcome.why}; it cannot be built: {one_line(error)}")
    if files is None:
        return outcome
    remaining_files = files.needed & files.existing
    return replace(outcome, index_files=len(files.needed), kept_files=len(remaining_files))


def _origins(graph: Graph, nodes: Sequence[Node], manifest: Manifest) -> set[str]:
    """Return the digests of the versions that the last output of a row was made from.

    A row is the outputs that `nanoset status` shows together, such as the index mappings and the
    blend of a split. Versions that it was made from indirectly are included if the path leads
    through outputs of the row, or through derived datasets (views and packs).

    Args:
        graph: The graph of the project's outputs.
        nodes: The outputs of the row.
        manifest: Manifest of a version of the last output.
    """
    origins: set[str] = set()
    inputs = graph.inputs(nodes[-1])
    for name, digest in manifest.recipe["parents"].items():
        origins.add(str(digest))
        parent = inputs.get(name)
        if parent is not None and (parent in nodes or isinstance(parent.stage, DerivedStage)):
            origins |= _origins_of_version(graph, parent, digest)
    return origins


def _origins_of_version(graph: Graph, node: Node, digest: str) -> set[str]:
    """Return the digests of what a version was made from, directly or through derived datasets.

    Derived datasets are views and packs.

    Args:
        graph: The graph of the project's outputs.
        node: The output that the version belongs to.
        digest: Digest of the version. If it was deleted, or cannot be read, there are none.
    """
    outputs = graph.project.outputs
    folder = outputs.folder / node.stage.layout.folder / node.name
    manifest: Manifest | None = None
    # `nanoset status` and `nanoset gc` report a manifest that cannot be read.
    with suppress(FormatError):
        manifest = outputs.manifest_at(folder / digest)
    origins: set[str] = set()
    if manifest is None:
        return origins
    inputs = graph.inputs(node)
    for name, parent_digest in manifest.recipe["parents"].items():
        origins.add(str(parent_digest))
        parent = inputs.get(name)
        if parent is not None and isinstance(parent.stage, DerivedStage):
            origins |= _origins_of_version(graph, parent, parent_digest)
    return origins


def _index_files(project: Project, nodes: Sequence[Node], dataset_digest: str) -> set[str] | None:
    """Return the trainer's index files that belong to one version of a dataset.

    They are listed by the newest version of each output of a row that was made from that version of
    the dataset, or from such a version of the output before it in the row.

    Args:
        project: The project.
        nodes: The outputs of the row, in the order in which they are made.
        dataset_digest: Digest of the version of the dataset.

    Returns:
        Names of the files; None if no such version lists index files.
    """
    digests = {dataset_digest}  # of versions that the next output may be made from
    files: set[str] = set()
    has_index_files = False
    for node in nodes:
        version = _newest_made_from(project, node, digests)
        if version is None:
            continue
        # The next output of the row was made from this version.
        digests.add(version.digest)
        if isinstance(node.stage, SharesFiles) and CACHE_FILES in version.facts:
            has_index_files = True
            files.update(cache_files(version))
    return files if has_index_files else None


def _newest_made_from(project: Project, node: Node, digests: Collection[str]) -> Manifest | None:
    """Return the newest version of an output that was made from one of some versions, or None.

    Args:
        project: The project.
        node: The output.
        digests: Digests of versions of its inputs.
    """
    # Versions come with the newest first.
    for version in project.outputs.versions(node.stage.layout.folder, node.name):
        if not set(digests).isdisjoint(version.recipe["parents"].values()):
            return version
    return None
