"""Say what a new version of a corpus's dataset means for each output, for `nanoset diff`.

Outputs are reported as in `nanoset status`: a line, or *row*, for those that are made in sequence.
For example, the row of the split `train` of a nanoset is "to be rebuilt", because it is made from
the old version of the dataset; the row of another nanoset "survives", because it does not use the
corpus.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from nanoset_core.errors import FormatError, NanosetError, one_line
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.graph.graph import Graph
from nanoset_core.project.graph.nodes import walk_inputs
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.derived import DerivedStage
from nanoset_core.stages.mappings.facts import CACHE_FILES, cache_files
from nanoset_core.stages.stage import Key, Node, SharesFiles, current_version

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
    """Say which outputs have to be rebuilt because a dataset has a new version.

    For example, files were added to the text collection `web`, and its dataset was rebuilt:

        nanoset pretrain train    to be rebuilt    it is made from the old version
        nanoset code train        survives         it does not use web

    (A nanoset is a mixture of texts, and `train` is its part for training.)

    Args:
        project: The project, whose nanoset.yaml requests the outputs.
        old: Describes the old version of the dataset.
        new: Describes the new one.

    Yields:
        An outcome for each line of `nanoset status`. Outputs that are not made from any dataset
        have none.
    """
    graph = Graph(project, known={}, corpora=[old.name])  # says what is made from what
    dataset = Node(DATASET, Key(old.name))
    for nodes in graph.rows():  # the outputs of one line of `nanoset status`
        inputs = _inputs_of_row(graph, nodes)
        uses_any_dataset = any(node.stage is DATASET for node in inputs)
        if dataset in inputs:
            yield _outcome_of_row(graph, nodes, old, new)
        elif uses_any_dataset:
            label = nodes[0].row.label  # such as "nanoset pretrain train"
            yield Outcome(label, "survives", f"it does not use {old.name}")


def _inputs_of_row(graph: Graph, nodes: Sequence[Node]) -> set[Node]:
    """Return everything that some outputs are made from, directly or not, down to the datasets.

    For example, an index is made from a view (a selection of documents), and this from a dataset.
    So the result for the index is the view and the dataset.

    Args:
        graph: The project's outputs, with what each is made from.
        nodes: The outputs.
    """

    def inputs_of(node: Node) -> Iterable[Node]:
        """Return the inputs of an output. What a dataset is made from, such as raw text, does not
        matter.
        """
        if _is_between_dataset_and_row(node, nodes):
            return graph.inputs(node).values()
        return ()

    return set(walk_inputs(nodes, inputs_of))


def _is_made_from_dataset(node: Node) -> bool:
    """Return whether an output is a view, a selection of documents, or packs of documents."""
    return isinstance(node.stage, DerivedStage)


def _outcome_of_row(graph: Graph, nodes: Sequence[Node], old: Manifest, new: Manifest) -> Outcome:
    """Say what a new version of a dataset means for some outputs that are made from it.

    A version is one build of the dataset, and is named by a digest. For example, the old version is
    3f9c…, and the new one is 81aa…:

        the outputs ...                         result
        do not exist                            not built
        are there; 3f9c… is the new one, too    survives: nothing has changed
        were made from 81aa…                    rebuilt: "it is made from the new version"
        were made from 3f9c…                    to be rebuilt: "it is made from the old version"
        were made from a third one              to be rebuilt: "it is made from another version"

    Args:
        graph: The project's outputs, with what each is made from.
        nodes: The outputs, which `nanoset status` shows in one row, in the order in which they are
            made. For training data, these are an index, and a blend that is made from it.
        old: Describes the old version.
        new: Describes the new one.
    """
    project = graph.project
    label = nodes[0].row.label  # such as "nanoset pretrain train"
    last_node = nodes[-1]  # it is made from all others, so it exists only if they do
    manifest = current_version(project, last_node.stage, last_node.key).manifest
    if manifest is None:
        return Outcome(label, "not built", "it was never built")
    if old.digest == new.digest:
        return Outcome(label, "survives", "both versions are the same")

    # What were the existing outputs made from, directly or not? Such as {"3f9c…", "c04d…"}.
    source_digests = _source_digests(graph, nodes, last_node, manifest)
    if new.digest in source_digests:
        outcome = Outcome(label, "rebuilt", "it is made from the new version")
        # Add how many index files this took, and how many were used again.
        return _with_written_files(project, nodes, outcome, old, new)

    version = "the old" if old.digest in source_digests else "another"
    outcome = Outcome(label, "to be rebuilt", f"it is made from {version} version")
    if not _is_current(project, new):
        return outcome
    # The next build makes the outputs from the new version. Add how many index files it writes.
    return _with_planned_files(project, nodes[0], outcome)


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
    """Add how many index files a rebuild had to write, for `nanoset diff`.

    A trainer finds its samples by index files, which take long to write. If a dataset changes, some
    may stay the same. For example, with the files a and b before, and b and c now, `index_files` is
    2, and `kept_files` is 1.

    Args:
        project: The project, whose output folder has all versions (builds) of its outputs.
        nodes: The outputs that were rebuilt, in the order in which they are made.
        outcome: The outcome without these numbers.
        old: The version of a dataset that the outputs were made from before.
        new: The version that they are made from now.

    Returns:
        The outcome with both numbers; unchanged if the files before or now are not known.
    """
    files_before = _index_files(project, nodes, old.digest)
    files_now = _index_files(project, nodes, new.digest)
    if files_before is None or files_now is None:
        return outcome
    kept_files = files_now & files_before  # in both sets
    return replace(outcome, index_files=len(files_now), kept_files=len(kept_files))


def _with_planned_files(project: Project, node: Node, outcome: Outcome) -> Outcome:
    """Add how many index files the next build of training data has to write, for `nanoset diff`.

    A trainer finds its samples by index files. For example, a build needs the files b and c, and b
    exists already: `index_files` is 2, and `kept_files` is 1.

    Args:
        project: The project, whose settings decide which files are needed.
        node: The output that will be built, such as an index.
        outcome: The outcome without these numbers.

    Returns:
        The outcome with both numbers. If it is clear that the build will fail, it has the reason of
        that instead. It is unchanged if the files are not known.
    """
    if not isinstance(node.stage, SharesFiles):
        return outcome  # it has no index files
    try:
        files = node.stage.planned_files(project, node.key)
    except NanosetError as error:  # for example, there are not enough documents
        return replace(outcome, why=f"{outcome.why}; it cannot be built: {one_line(error)}")
    if files is None:
        return outcome
    kept_files = files.needed & files.existing  # in both sets
    return replace(outcome, index_files=len(files.needed), kept_files=len(kept_files))


def _source_digests(
    graph: Graph, row_nodes: Sequence[Node], node: Node, manifest: Manifest
) -> set[str]:
    """Return the digests of everything that an output was made from, down to the datasets.

    Each manifest only names what its own version was made from, so they are followed to the end:

        blend c7f0…      made from the index 55d0…
        index 55d0…      made from the dataset 3f9c…
        dataset 3f9c…    the end
        result           55d0…, 3f9c…

    Args:
        graph: Says which outputs are the inputs of another one, by the present settings.
        row_nodes: The outputs that are made one from another, here the blend and the index.
        node: The output to start from, such as the blend.
        manifest: Manifest of its version c7f0….
    """
    digests: set[str] = set()
    versions_to_visit = [(node, manifest)]
    while versions_to_visit:
        made_node, made_version = versions_to_visit.pop()
        inputs = graph.inputs(made_node)  # name → output, such as "index" → the index
        for input_name, digest in made_version.recipe["parents"].items():  # "index", "55d0…"
            digests.add(str(digest))

            input_node = inputs.get(input_name)
            if input_node is None:
                continue  # by the present settings, this output has no such input
            if not _is_between_dataset_and_row(input_node, row_nodes):
                continue  # a dataset is the end: do not continue to its text
            input_manifest = _readable_manifest(graph.project, input_node, str(digest))
            if input_manifest is not None:
                versions_to_visit.append((input_node, input_manifest))
    return digests


def _is_between_dataset_and_row(node: Node, row_nodes: Sequence[Node]) -> bool:
    """Return whether an output was made from a dataset, so that its own sources are looked at.

        an index, which is in the row      True: it was made from a dataset or a view
        a view, a selection of documents   True: it was made from a dataset
        a dataset                          False: it was made from tokenized text

    Args:
        node: An output that outputs of the row were made from, directly or not.
        row_nodes: The outputs of the row.
    """
    return node in row_nodes or _is_made_from_dataset(node)


def _readable_manifest(project: Project, node: Node, digest: str) -> Manifest | None:
    """Return the manifest of an old version of an output, if it can be read.

    A version is one build, in a folder such as datasets/web/3f9c…, and its manifest describes it.

    Args:
        project: The project, whose output folder has all versions.
        node: The output.
        digest: The digest of the version, such as 3f9c….

    Returns:
        The manifest; None if the version was deleted or is damaged. Other commands report that.
    """
    outputs = project.outputs
    output_folder = outputs.folder / node.path
    try:
        return outputs.manifest_at(output_folder / digest)
    except FormatError:
        return None


def _index_files(project: Project, nodes: Sequence[Node], dataset_digest: str) -> set[str] | None:
    """Return the index files of training data that were made from one version of a dataset.

    A trainer finds its samples by index files, such as one with their shuffled order.

    Args:
        project: The project, whose output folder has all versions (builds) of its outputs.
        nodes: The outputs of the training data, in the order in which they are made.
        dataset_digest: Digest of the version of the dataset.

    Returns:
        Names of the files; None if no output lists any, for example because the training data were
        never made from this version.
    """
    file_lists: list[set[str]] = []
    for node, version in _versions_made_from(project, nodes, dataset_digest).items():
        if isinstance(node.stage, SharesFiles) and CACHE_FILES in version.facts:
            file_lists.append(set(cache_files(version)))
    if not file_lists:
        return None
    return set().union(*file_lists)


def _versions_made_from(
    project: Project, nodes: Sequence[Node], dataset_digest: str
) -> dict[Node, Manifest]:
    """Return the builds of some outputs that were made from a certain version of a dataset.

    An output may be made from the dataset directly, or from another output. For example, if the
    version is 3f9c…:

        index     builds: 55d0… from 3f9c…, 02bd… from 81aa…      the result has 55d0…
        blend     builds: c7f0… from 55d0…, 9e41… from 02bd…      the result has c7f0…

    Args:
        project: The project, whose output folder has all builds.
        nodes: The outputs, in the order in which they are made.
        dataset_digest: Digest of the version of the dataset.

    Returns:
        Output → its newest such build, as the manifest that describes it.
    """
    source_digests = {dataset_digest}
    version_by_node: dict[Node, Manifest] = {}
    for node in nodes:
        version = _newest_made_from(project, node, source_digests)
        if version is not None:
            version_by_node[node] = version
            source_digests.add(version.digest)  # later outputs may be made from this one
    return version_by_node


def _newest_made_from(project: Project, node: Node, digests: Collection[str]) -> Manifest | None:
    """Return the newest build of an output that was made from certain builds of other outputs.

    Each build has a manifest, a file that says what it was made from, by digests. For example, an
    index was made from a dataset:

        index c7f0…    newest     made from 81aa…
        index 9e41…               made from 3f9c…
        index 02bd…    oldest     made from 3f9c…

    For the digests {3f9c…}, the result is 9e41….

    Args:
        project: The project, whose output folder has all builds.
        node: The output.
        digests: Digests of the builds from which it should be made.

    Returns:
        The manifest of the build, or None.
    """
    # Versions come with the newest first.
    for version in project.outputs.versions(node.stage.layout.folder, node.name):
        if not set(digests).isdisjoint(version.recipe["parents"].values()):
            return version
    return None
