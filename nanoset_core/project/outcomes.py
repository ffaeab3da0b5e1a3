"""Say what a new version of a corpus's dataset means for each output, for `nanoset diff`.

Outputs are reported as in `nanoset status`: a line, or *row*, for those that are made in sequence.
For example, the row of the split `train` of a nanoset is "to be rebuilt", because it is made from
the old version of the dataset; the row of another nanoset "survives", because it does not use the
corpus.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
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
    """Say what a new version of a corpus's dataset means for everything that is made from datasets.

    Args:
        project: Its nanoset.yaml requests the outputs.
        old: The old version of the dataset.
        new: The new version of it.

    Yields:
        An outcome for each line of `nanoset status`, such as that of the split `train` of a
        nanoset. Outputs that are not made from any dataset have none.
    """
    # Only the names of outputs and inputs matter here, so nothing else needs to be known of them.
    graph = Graph(project, known={}, corpora=[old.name])
    dataset = Node(DATASET, Key(old.name))
    for nodes in graph.rows():
        inputs = _inputs_of_row(graph, nodes)
        uses_any_dataset = any(node.stage is DATASET for node in inputs)
        if dataset in inputs:
            yield _outcome_of_row(graph, nodes, old, new)
        elif uses_any_dataset:
            label = nodes[0].row.label  # such as "nanoset pretrain/train"
            yield Outcome(label, "survives", f"it does not use {old.name}")


def _inputs_of_row(graph: Graph, nodes: Sequence[Node]) -> set[Node]:
    """Return what the outputs of a row are made from, directly or through views and packs.

    For example, a nanoset reads a view of the corpus `web`: the result is the view and the dataset
    of `web`.

    Args:
        graph: The project's outputs, with what each is made from.
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


def _outcome_of_row(graph: Graph, nodes: Sequence[Node], old: Manifest, new: Manifest) -> Outcome:
    """Return what a new version of a dataset means for a row of `nanoset status`.

    Args:
        graph: The project's outputs, with what each is made from.
        nodes: The outputs of the row, in the order in which they are made. For a split, these are
            its index mappings, and the blend that is made from them.
        old: The old version of the dataset.
        new: The new version of the dataset.
    """
    project = graph.project
    label = nodes[0].row.label
    last_node = nodes[-1]  # it is made from all others, so it shows whether the row was built
    manifest = current_version(project, last_node.stage, last_node.key).manifest
    if manifest is None:
        return Outcome(label, "not built", "it was never built")
    if old.digest == new.digest:
        return Outcome(label, "survives", "both versions are the same")

    source_digests = _source_digests(graph, nodes, last_node, manifest)
    if new.digest in source_digests:
        outcome = Outcome(label, "rebuilt", "it is made from the new version")
        return _with_written_files(project, nodes, outcome, old, new)

    version = "the old" if old.digest in source_digests else "another"
    outcome = Outcome(label, "to be rebuilt", f"it is made from {version} version")
    # The next build makes the row from the current version of the dataset. If the new version is
    # current, say which index files that build writes. Only the first output of a row has any.
    if _is_current(project, new):
        return _with_planned_files(project, nodes[0], outcome)
    return outcome


def _is_current(project: Project, dataset: Manifest) -> bool:
    """Return whether a version of a dataset is its current one, which the next build reads.

    Args:
        project: Its output root has the dataset.
        dataset: Manifest of the version.
    """
    current = current_version(project, DATASET, Key(dataset.name)).manifest
    return current is not None and current.digest == dataset.digest


def _with_written_files(
    project: Project, nodes: Sequence[Node], outcome: Outcome, old: Manifest, new: Manifest
) -> Outcome:
    """Add to an outcome how many index files a row has now, and how many of these it had before.

    A trainer finds its samples by index files. A rebuilt row may need some that it had already:
    files a, b before and b, c now give 2 index files, of which 1 was kept.

    Args:
        project: Its output root has the versions of the outputs.
        nodes: The outputs of the row, in the order in which they are made.
        outcome: The outcome, so far without these numbers.
        old: The version of a dataset that the row was made from before.
        new: The version that it is made from now.

    Returns:
        The outcome; unchanged if the row was never built from one of these versions, or has no
        index files.
    """
    files_before = _index_files(project, nodes, old.digest)
    files_now = _index_files(project, nodes, new.digest)
    if files_before is None or files_now is None:
        return outcome
    kept_files = files_now & files_before
    return replace(outcome, index_files=len(files_now), kept_files=len(kept_files))


def _with_planned_files(project: Project, node: Node, outcome: Outcome) -> Outcome:
    """Add to an outcome how many index files a build needs, and how many of them exist already.

    A trainer finds its samples by index files. Versions of a nanoset share them.

    Args:
        project: The project, whose settings decide which files are needed.
        node: The output that is to be built.
        outcome: The outcome, so far without these numbers.

    Returns:
        The outcome; with the reason if the output cannot be built, and unchanged if it has no index
        files.
    """
    if not isinstance(node.stage, SharesFiles):
        return outcome
    try:
        planned = node.stage.planned_files(project, node.key)
    except NanosetError as error:
        return replace(outcome, why=f"{outcome.why}; it cannot be built: {one_line(error)}")
    if planned is None:
        return outcome  # this output has no index files, or they cannot be predicted

    # A build keeps the files that it needs and that exist, and writes the others.
    kept_files = planned.needed & planned.existing
    return replace(outcome, index_files=len(planned.needed), kept_files=len(kept_files))


def _source_digests(
    graph: Graph, row_nodes: Sequence[Node], node: Node, manifest: Manifest
) -> set[str]:
    """Return the digests of what a version was made from, down to the versions of datasets.

    For example, the blend of a split was made from index mappings, these from a view, and this from
    the dataset of a corpus: the result has the digests of the mappings, the view and the dataset.

    Args:
        graph: The project's outputs, with what each is made from.
        row_nodes: The outputs of a row of `nanoset status`, such as blend and index mappings.
        node: The output that the version belongs to.
        manifest: Manifest of the version.
    """
    digests: set[str] = set()
    to_visit = [(node, manifest)]
    while to_visit:
        output, version = to_visit.pop()
        inputs = graph.inputs(output)
        for input_name, digest in version.recipe["parents"].items():
            digests.add(str(digest))
            source = inputs.get(input_name)
            if source is None:
                continue  # no output has this name any more

            # Datasets are made from these outputs' inputs, so continue with them. End at datasets.
            is_view_or_pack = isinstance(source.stage, DerivedStage)
            if source in row_nodes or is_view_or_pack:
                source_version = _readable_manifest(graph.project, source, str(digest))
                if source_version is not None:
                    to_visit.append((source, source_version))
    return digests


def _readable_manifest(project: Project, node: Node, digest: str) -> Manifest | None:
    """Return the manifest of a version; None if the version was deleted, or is damaged.

    Args:
        project: Its output root is searched.
        node: The output that the version belongs to.
        digest: Digest of the version.
    """
    outputs = project.outputs
    output_folder = outputs.folder / node.stage.layout.folder / node.name
    try:
        return outputs.manifest_at(output_folder / digest)
    except FormatError:
        return None  # `nanoset status` and `nanoset gc` report it


def _index_files(project: Project, nodes: Sequence[Node], dataset_digest: str) -> set[str] | None:
    """Return the trainer's index files that were written for one version of a dataset.

    Args:
        project: Its output root is searched.
        nodes: The outputs of a row of `nanoset status`, in the order in which they are made.
        dataset_digest: Digest of the version of the dataset.

    Returns:
        Names of the files; None if none of the outputs was built for this version, or lists any.
    """
    listed_files: set[str] | None = None
    for node, version in _versions_made_from(project, nodes, dataset_digest).items():
        # Only index mappings list such files in their manifest.
        if isinstance(node.stage, SharesFiles) and CACHE_FILES in version.facts:
            listed_files = (listed_files or set()) | set(cache_files(version))
    return listed_files


def _versions_made_from(
    project: Project, nodes: Sequence[Node], dataset_digest: str
) -> dict[Node, Manifest]:
    """Return the newest version of each output of a row that was made from a version of a dataset.

    It may be made from that version directly, or from one of an earlier output: the blend of a
    nanoset is made from index mappings, which are made from the dataset.

    Args:
        project: Its output root is searched.
        nodes: The outputs, in the order in which they are made.
        dataset_digest: Digest of the version of the dataset.
    """
    source_digests = {dataset_digest}
    version_by_node: dict[Node, Manifest] = {}
    for node in nodes:
        version = _newest_made_from(project, node, source_digests)
        if version is not None:
            version_by_node[node] = version
            source_digests.add(version.digest)
    return version_by_node


def _newest_made_from(project: Project, node: Node, digests: Collection[str]) -> Manifest | None:
    """Return the newest version of an output that was made from one of some versions, or None.

    Args:
        project: Its output root is searched.
        node: The output.
        digests: Digests of versions of its inputs.
    """
    # Versions come with the newest first.
    for version in project.outputs.versions(node.stage.layout.folder, node.name):
        if not set(digests).isdisjoint(version.recipe["parents"].values()):
            return version
    return None
