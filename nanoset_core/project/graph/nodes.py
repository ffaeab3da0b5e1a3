"""The outputs that a project should have, and the outputs that each is made from."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator

from nanoset_core.outputs.manifest import Recipe
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.registry import stages
from nanoset_core.stages.stage import InParts, Key, Node


def inventory_node(corpus: str) -> Node:
    """Return the first output of a text collection (corpus): its inventory, a list of its files.

    All other outputs of a corpus are made from it. It is the only output that is made from raw
    files, and not from other outputs.

    Args:
        corpus: Name of the corpus, such as web.
    """
    return Node(INVENTORY, Key(corpus))


def requested_nodes(config: ProjectConfig, corpora: Collection[str] = ()) -> list[Node]:
    """Return every output that a project should have, built or not.

    Some outputs exist for each corpus (collection of texts) in the raw folder, such as its dataset.
    Others are requested by the settings, such as a nanoset, which is a mixture of corpora.

    Args:
        config: The settings of nanoset.yaml.
        corpora: Names of the corpora in the raw folder.

    Returns:
        The outputs, in the order in which the pipeline makes them: first the lists of raw files of
        all corpora, then their tokenized shards, and so on.
    """
    nodes = []
    for stage in stages():  # a stage makes outputs of one kind, such as datasets
        nodes += [Node(stage, key) for key in stage.keys(config, corpora)]
    return nodes


def is_requested(config: ProjectConfig, node: Node) -> bool:
    """Return whether a project should have an output, built or not.

    Outputs that exist for each corpus are requested, whether or not the raw folder has the corpus.

    Args:
        config: The settings of nanoset.yaml.
        node: The output.
    """
    corpora = [node.key.subject]
    return node.key in node.stage.keys(config, corpora)


def walk_inputs(
    outputs: Collection[Node], inputs_of: Callable[[Node], Iterable[Node]]
) -> Iterator[Node]:
    """Yield what some outputs are made from, directly or through other outputs, each once.

    For example, an index is made from a view and a dataset, and the view from the same dataset:

        outputs to start from     index
        yielded                   view, dataset

    Args:
        outputs: The outputs to start from, which are not yielded.
        inputs_of: Returns the inputs of an output that are to be visited. To end the walk at some
            outputs, it returns no inputs for these.
    """
    visited_nodes = set(outputs)
    nodes_to_visit = deque(outputs)
    while nodes_to_visit:
        node = nodes_to_visit.popleft()
        for input_node in inputs_of(node):
            if input_node not in visited_nodes:
                visited_nodes.add(input_node)
                nodes_to_visit.append(input_node)
                yield input_node


def add_stale_inputs(
    outputs: Collection[Node],
    *,
    inputs_of: Callable[[Node], Iterable[Node]],
    is_stale: Callable[[Node], bool],
) -> set[Node]:
    """Add to some outputs what has to be made for them: those of their inputs that are out of date.

    For example, a dataset is to be made. It is made from shards (tokenized pieces of text), and
    these from a list of files:

        list of files      up to date       not added
        shards             out of date      added
        dataset            to be made

    So the result is the shards and the dataset.

    Args:
        outputs: The outputs that are to be made, here the dataset.
        inputs_of: Returns the outputs that an output is made directly from.
        is_stale: Returns whether an output is out of date.
    """

    def stale_inputs(node: Node) -> list[Node]:
        """Return the inputs that are out of date. The inputs of others need not be looked at."""
        return [input_node for input_node in inputs_of(node) if is_stale(input_node)]

    return {*outputs, *walk_inputs(outputs, stale_inputs)}


def have_same_subject(node: Node, other: Node) -> bool:
    """Return whether two outputs are of the same corpus, nanoset, webdataset or export."""
    is_same_kind = node.stage.kind == other.stage.kind
    return is_same_kind and node.key.subject == other.key.subject


def digest_of_node(node: Node, recipe: Recipe) -> str:
    """Return the digest that an output gets: a hash of everything that decides its content.

    The same inputs and settings always give the same digest. For example:

        dataset of web        3f9c…    the hash of its recipe, and the name of its folder
        100 of 1,000 tars     81aa…    a hash by the stage, since they have no folder of their own

    Args:
        node: The output.
        recipe: What it is made from: the settings, and the digests of its inputs.
    """
    stage = node.stage  # the code that makes the output
    if isinstance(stage, InParts):  # it makes parts of a larger output, such as some tars
        return stage.part_digest(recipe)
    return recipe.digest
