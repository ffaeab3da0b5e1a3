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
    """Say what a new version of a dataset means for everything that is made from datasets.

    `nanoset diff` compares two builds (versions) of the dataset of a text collection, such as
    before and after files were added to `web`. It also says what has to be rebuilt:

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
    # The graph says what is made from what. It needs to know nothing of the raw files for that.
    graph = Graph(project, known={}, corpora=[old.name])
    dataset = Node(DATASET, Key(old.name))
    for nodes in graph.rows():
        inputs = _inputs_of_row(graph, nodes)
        uses_any_dataset = any(node.stage is DATASET for node in inputs)
        if dataset in inputs:
            yield _outcome_of_row(graph, nodes, old, new)
        elif uses_any_dataset:
            label = nodes[0].row.label  # such as "nanoset pretrain train"
            yield Outcome(label, "survives", f"it does not use {old.name}")


def _inputs_of_row(graph: Graph, nodes: Sequence[Node]) -> set[Node]:
    """Return what some outputs are made from, down to the datasets. For example, of an index:

        dataset of web  →  view of web  →  index of a nanoset

    A nanoset is a mixture of texts for training, and a view is a selection of documents. The result
    for the index is the view and the dataset.

    Args:
        graph: The project's outputs, with what each is made from.
        nodes: The outputs.
    """
    all_inputs: set[Node] = set()
    nodes_to_visit = list(nodes)
    while nodes_to_visit:
        node = nodes_to_visit.pop()
        for input_node in graph.inputs(node).values():
            if input_node in all_inputs:
                continue
            all_inputs.add(input_node)
            # Continue with what a view is made from, but not with what a dataset is made from.
            # Packs, which are documents joined to longer samples, count as views.
            is_view_or_pack = isinstance(input_node.stage, DerivedStage)
            if is_view_or_pack:
                nodes_to_visit.append(input_node)
    return all_inputs


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
    of them may stay the same, and are used again:

        index files before     a, b
        index files now        b, c       2 files, of which 1 was kept

    Args:
        project: The project, whose output folder has all versions (builds) of its outputs.
        nodes: The outputs that were rebuilt, in the order in which they are made.
        outcome: What was found so far, without these numbers.
        old: The version of a dataset that the outputs were made from before.
        new: The version that they are made from now.

    Returns:
        The outcome. It has no numbers if there are no index files, or if the outputs were never
        built from the old version.
    """
    files_before = _index_files(project, nodes, old.digest)
    files_now = _index_files(project, nodes, new.digest)
    if files_before is None or files_now is None:
        return outcome
    kept_files = files_now & files_before  # in both sets
    return replace(outcome, index_files=len(files_now), kept_files=len(kept_files))


def _with_planned_files(project: Project, node: Node, outcome: Outcome) -> Outcome:
    """Add how much work the next build of training data is: how many index files it has to write.

    A trainer finds its samples by index files, which take long to write. Some may exist already,
    from earlier builds with the same settings. For example:

        index files that the build needs     b, c    2 files
        those of them that exist             b       1 file, so one has to be written

    Args:
        project: The project, whose settings decide which files are needed.
        node: The output that will be built, such as an index.
        outcome: What was found so far, without these numbers.

    Returns:
        The outcome with both numbers. If the output cannot be built, it has the reason instead. It
        is unchanged if the output has no index files, or if they cannot be predicted.
    """
    if not isinstance(node.stage, SharesFiles):
        return outcome  # it has no index files
    try:
        files = node.stage.planned_files(project, node.key)
    except NanosetError as error:
        return replace(outcome, why=f"{outcome.why}; it cannot be built: {one_line(error)}")
    if files is None:
        return outcome
    kept_files = files.needed & files.existing  # in both sets
    return replace(outcome, index_files=len(files.needed), kept_files=len(kept_files))


def _source_digests(
    graph: Graph, row_nodes: Sequence[Node], node: Node, manifest: Manifest
) -> set[str]:
    """Return what an existing output was made from, down to the datasets, as digests.

    Each version (build) of an output has a manifest, a file that says what it was made from, by
    digests. So the search goes from manifest to manifest. For example, from a blend:

        blend       was made from     index 55d0…
        index       was made from     view 81aa… (a selection of documents)
        view        was made from     dataset 3f9c…

    The result is {55d0…, 81aa…, 3f9c…}.

    Args:
        graph: The project's outputs, with what each is made from now.
        row_nodes: The blend and the index, which `nanoset status` shows in one row.
        node: The output to start from, such as the blend.
        manifest: The manifest of its version.
    """
    digests: set[str] = set()
    to_visit = [(node, manifest)]  # outputs, each with the manifest of a version
    while to_visit:
        output, version = to_visit.pop()
        inputs = graph.inputs(output)  # name → output, such as "index" → the index
        # What this version was made from: name → digest, such as {"index": "55d0…"}.
        for input_name, digest in version.recipe["parents"].items():
            digests.add(str(digest))
            if input_name not in inputs:
                continue  # by the settings of today, it is made from something else

            # Go on from an index or a view, but not from a dataset, where the search ends.
            source = inputs[input_name]
            is_view_or_pack = isinstance(source.stage, DerivedStage)
            if source in row_nodes or is_view_or_pack:
                # The version that was used, and not the current one. It may have been deleted.
                source_version = _readable_manifest(graph.project, source, str(digest))
                if source_version is not None:
                    to_visit.append((source, source_version))
    return digests


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
    output_folder = outputs.folder / node.stage.layout.folder / node.name
    try:
        return outputs.manifest_at(output_folder / digest)
    except FormatError:
        return None


def _index_files(project: Project, nodes: Sequence[Node], dataset_digest: str) -> set[str] | None:
    """Return the index files of training data that were made from a certain build of a dataset.

    A trainer finds its samples by index files, such as one with their shuffled order. For example:

        dataset 3f9c…    training data 55d0… were made from it, with the index files a and b
        dataset 81aa…    training data 02bd… were made from it, with the index files b and c

    So for 81aa…, the result is {"b", "c"}.

    Args:
        project: The project, whose output folder has all builds (versions) of its outputs.
        nodes: The outputs of the training data, in the order in which they are made.
        dataset_digest: Digest of the build of the dataset.

    Returns:
        Names of the files. None if they are not known: the training data were never made from this
        build, or have no index files.
    """
    file_names: set[str] = set()
    has_list = False
    for node, version in _versions_made_from(project, nodes, dataset_digest).items():
        if isinstance(node.stage, SharesFiles) and CACHE_FILES in version.facts:
            has_list = True
            file_names.update(cache_files(version))
    return file_names if has_list else None


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
