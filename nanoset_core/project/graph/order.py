"""The order in which `nanoset status` lists the outputs of a project."""

from __future__ import annotations

from collections.abc import Iterable

from nanoset_core.project.graph.nodes import have_same_subject
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.registry import stages
from nanoset_core.stages.stage import Node


def in_order(config: ProjectConfig, nodes: Iterable[Node]) -> list[Node]:
    """Return outputs in the order in which `nanoset status` lists them.

    They are grouped by what they belong to. Within a group, inputs come before what is made from
    them:

        corpus web         files, shards (tokenized pieces), dataset
        corpus code        files, shards, dataset
        nanoset pretrain   index, blend

    Args:
        config: The settings of the project, which say what each output is made from.
        nodes: The outputs, in the order of the pipeline: the files of all corpora come first.
    """
    ordered: dict[Node, None] = {}  # used as a set that remembers the order
    for node in _by_kind_and_subject(nodes):
        _add_after_inputs(config, node, ordered)  # does nothing if it was added as an input
    return list(ordered)


def _by_kind_and_subject(nodes: Iterable[Node]) -> list[Node]:
    """Group outputs by kind, then by name, and then by part, such as the data for training.

        before                        after
        nanoset pretrain, train       corpus  web
        nanoset finetune, train       nanoset pretrain, train
        nanoset pretrain, valid       nanoset pretrain, train
        nanoset pretrain, train       nanoset pretrain, valid
        corpus  web                   nanoset finetune, train

    Kinds have a fixed order. Names, and the parts of one name, are in the order in which they first
    occur.

    Args:
        nodes: The outputs.
    """
    # Kind → name → part → outputs, such as groups["nanoset"]["pretrain"]["train"]. A dict keeps its
    # keys in the order in which they were added, so begin with the kinds in their fixed order.
    groups: dict[str, dict[str, dict[str | None, list[Node]]]]
    groups = {stage.kind: {} for stage in stages()}
    for node in nodes:
        parts_of_name = groups[node.stage.kind].setdefault(node.key.subject, {})
        parts_of_name.setdefault(node.key.part, []).append(node)

    grouped_nodes: list[Node] = []
    for names_of_kind in groups.values():
        for parts_of_name in names_of_kind.values():
            for nodes_of_part in parts_of_name.values():
                grouped_nodes += nodes_of_part
    return grouped_nodes


def _add_after_inputs(config: ProjectConfig, node: Node, ordered: dict[Node, None]) -> None:
    """Add an output to a list, after those of its inputs that belong to the same thing as itself.

    For example, a nanoset (a mixture of texts for training) has a blend, which is made from an
    index. If the blend is to be added, the index is added before it.

    Args:
        config: The settings of the project, which say what each output is made from.
        node: The output. If it is in the list already, nothing is done.
        ordered: The list, to which outputs are added: a dict is used as a set in order.
    """
    if node in ordered:
        return
    for input_node in node.inputs(config).values():
        if have_same_subject(input_node, node):
            _add_after_inputs(config, input_node, ordered)
    ordered[node] = None
