"""What has changed since an output was built, compared with its inputs as they were built last.

`nanoset verify` and the searches that may forbid an output ask this. They do not list the raw
files, so that they cannot know what the inputs should be made from now.
"""

from __future__ import annotations

from collections.abc import Iterable

from nanoset_core.outputs.manifest import Recipe
from nanoset_core.project.graph.graph import Graph
from nanoset_core.project.graph.nodes import have_same_subject, walk_inputs
from nanoset_core.records.json_records import from_plain
from nanoset_core.stages.stage import Node


def changes_against_built_inputs(graph: Graph, node: Node) -> list[str]:
    """Return why an output is out of date, compared with its inputs as they were built last.

    For example, a nanoset is made from the dataset of `web`:

        since the nanoset was built           result
        the dataset was rebuilt               "dataset changed"
        only raw files of web were changed    nothing: raw files are not looked at

    Args:
        graph: The project's outputs, without recipes of inventories (lists of raw files). The
            recipes by which the inputs were built are added to it.
        node: The output, such as the nanoset.

    Returns:
        The reasons, each once, such as "dataset changed"; none if the output is up to date. Damaged
        files are not reported.
    """
    for input_node in inputs_of_other_subjects(graph, node):
        manifest = graph.versions.of(input_node).manifest  # says what the input was made from
        if manifest is not None:
            graph.set_recipe(input_node, from_plain(Recipe, manifest.recipe))
    reasons = _root_causes(graph, node)
    return list(dict.fromkeys(reasons))  # each once, in their order


def inputs_of_other_subjects(graph: Graph, node: Node) -> list[Node]:
    """Return what an output and its siblings are made from, where siblings have the same subject.

    The subject is what an output belongs to, such as the nanoset `pretrain` or the corpus `web`:

        dataset (web)  →  index (pretrain)  →  blend (pretrain)

    For the blend, the index is a sibling, and the result is the dataset.

    Args:
        graph: The project's outputs, with what each is made from.
        node: The output, such as the blend.

    Returns:
        Inputs of other subjects, each once; and those of the same subject that have no inputs
        themselves, such as the list of the raw files of a corpus.
    """

    def is_sibling(other: Node) -> bool:
        """Return whether an output is looked through, as the index is."""
        has_inputs = len(graph.inputs(other)) > 0
        return has_inputs and have_same_subject(other, node)

    def inputs_of_sibling(other: Node) -> Iterable[Node]:
        """Return the inputs of the output itself or of a sibling. The walk ends at all others."""
        if other == node or is_sibling(other):
            return graph.inputs(other).values()
        return ()

    all_inputs = walk_inputs([node], inputs_of_sibling)
    return [input_node for input_node in all_inputs if not is_sibling(input_node)]


def _root_causes(graph: Graph, node: Node) -> list[str]:
    """Return why an output is out of date, with causes instead of what merely follows from them.

    For example, a training has an index, whose settings were changed ("seed: 7 → 8"), and a blend,
    which is made from the index. Of the blend, the cause is "seed: 7 → 8", and not "index changed".

    Args:
        graph: The project's outputs, with what each is made from.
        node: The output, such as the blend.
    """
    causes: list[str] = []
    inputs = graph.inputs(node)  # name → output, such as "index" → the index
    for reason in graph.changes_since_made(node):
        causes_of_input: list[str] = []
        changed_input = reason.changed_input(inputs)
        # An input that belongs to something else, such as another training, is only named.
        if changed_input is not None and have_same_subject(changed_input, node):
            causes_of_input = _root_causes(graph, changed_input)

        if causes_of_input:
            causes += causes_of_input
        else:
            causes.append(reason.text)
    return causes
