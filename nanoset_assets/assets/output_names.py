"""Names of outputs in Dagster: the asset and partition, the job, and the label in messages.

A *node* is one output of a project, such as the view `web_clean`. In Dagster, it is the partition
`web_clean` of the asset `web/views`, the job `web_views` makes it, and messages call it
`web/views [web_clean]`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from nanoset_core.errors import ConfigError
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.registry import stages
from nanoset_core.stages.stage import InternalStage, Node, Stage, is_of_corpora

if TYPE_CHECKING:
    from nanoset_assets.assets.table import AssetShape

CORPUS_JOB = INVENTORY.kind
"""Name of the job that makes all outputs of a corpus up to its dataset, without the prefix."""
_NO_JOB_CHARACTER = re.compile("[^A-Za-z0-9_]")
"""A character that Dagster does not allow in the name of a job."""


def is_asset(stage: Stage) -> bool:
    """Return whether Dagster shows the outputs of a stage (a step of the pipeline) as assets.

    Args:
        stage: The stage. The outputs of an internal one are only used by other stages: not shown.
    """
    return not isinstance(stage, InternalStage)


def leads_to_dataset(stage: Stage) -> bool:
    """Return whether a step of the pipeline is one of those that make the dataset of a corpus.

    A corpus is a text collection. One job of Dagster executes all of these steps:

        step                                               result
        listing the files, tokenizing, writing datasets    True
        selecting documents, mixing datasets               False

    Args:
        stage: The step.
    """
    return stage.kind == INVENTORY.kind  # the first step, listing the files, is of this kind


def asset_path(node: Node) -> tuple[str, ...]:
    """Return the name of the Dagster asset that an output belongs to, as the parts of a path.

        the index files of the data mixture `pretrain`      ("pretrain", "index_mappings")
        the dataset of `web`, a text collection (corpus)    ("indexed_dataset",)

    The datasets of all corpora belong to the same asset, so its name does not contain `web`.

    Args:
        node: The output. Its key has the name of the mixture or the corpus.
    """
    asset_name = _shape_of(node.stage).asset
    if is_of_corpora(node.stage):
        return (asset_name,)
    return (node.key.subject, asset_name)


def partition_of(node: Node) -> str | None:
    """Return the partition of an asset that an output is, or None if the asset has no partitions.

    Dagster can make each partition of an asset in a run of its own:

        dataset of the corpus `web`                           web
        index of the split `train` of the nanoset `pretrain`  train
        files for the trainer of the nanoset `pretrain`       None: there is only one output

    Args:
        node: The output.
    """
    if is_of_corpora(node.stage):
        return node.key.subject
    return node.key.part


def nodes_by_asset(nodes: Iterable[Node]) -> dict[tuple[str, ...], list[Node]]:
    """Group outputs by the Dagster asset that they belong to.

    For example, the datasets of `web` and `books` are partitions of the asset `indexed_dataset`:

        {("indexed_dataset",): [dataset of web, dataset of books], ("pretrain", "blend"): […]}

    Args:
        nodes: The outputs.

    Returns:
        Parts of the asset's name → its outputs, see `asset_path`.
    """
    groups: dict[tuple[str, ...], list[Node]] = defaultdict(list)
    for node in nodes:
        groups[asset_path(node)].append(node)
    return dict(groups)


def label_of(node: Node) -> str:
    """Return how messages call an output: by its asset in Dagster and its partition, if any.

        dataset of the corpus `web`                       indexed_dataset [web]
        files for the trainer of the nanoset `pretrain`   pretrain/handoff

    Args:
        node: The output.
    """
    asset = "/".join(asset_path(node))
    partition = partition_of(node)
    if partition is None:
        return asset
    return f"{asset} [{partition}]"


def job_of(node: Node) -> str:
    """Return the name of the Dagster job that makes an output, possibly with others in one run.

        all outputs of the data mixture `pretrain`          pretrain
        all outputs of the data mixture `pretrain-v1.5`     pretrain_v1_5
        the dataset of `web`, a text collection (corpus)    corpus
        the .pbin file of `web`                             packed

    Args:
        node: The output.
    """
    if is_of_corpora(node.stage):
        # One job for all corpora. Each step has a kind, which is "corpus" for most of these.
        name = node.stage.kind
    else:
        name = _shape_of(node.stage).job.format(subject=node.key.subject)
    return _NO_JOB_CHARACTER.sub("_", name)  # Dagster allows only letters, digits and "_"


def check_asset_names() -> None:
    """Check that no job has the same name as an asset, which Dagster does not allow.

    It would refuse all definitions of the project then, without saying which name is the cause.
    Only names without a "/" can be the same, since no job has a "/" in its name:

        made from                        assets                            job
        text collections (corpora)       raw_jsonl, indexed_dataset, …     corpus     is checked
        the data mixture `pretrain`      pretrain/blend, …                 pretrain   cannot clash

    Raises:
        ConfigError: A job and an asset have the same name.
    """
    job_names: set[str] = set()
    asset_names: set[str] = set()
    for stage in stages():
        if is_of_corpora(stage):
            # A job is named after the kind of the stage, without characters that Dagster refuses.
            job_names.add(_NO_JOB_CHARACTER.sub("_", stage.kind))
            asset_names.add(_shape_of(stage).asset)

    shared_names = job_names & asset_names
    if shared_names:
        raise ConfigError(
            "a kind of outputs and an asset share a name, which Dagster refuses",
            where="the stages",
            found=", ".join(sorted(shared_names)),
            remedy="give one of them another name",
        )


def _shape_of(stage: Stage) -> AssetShape:
    """Return how the assets of a stage (a step of the pipeline) appear in Dagster.

    Args:
        stage: The stage.
    """
    # The table imports Dagster, which takes a second. A build that makes nothing needs no names.
    from nanoset_assets.assets.table import shape_of

    return shape_of(stage)
