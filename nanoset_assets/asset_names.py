"""Names of outputs in Dagster: the asset and partition, the job, and the label in messages.

A *node* is one output of a project, such as the view `web_clean`. In Dagster, it is the partition
`web_clean` of the asset `web/views`, the job `web_views` makes it, and messages call it
`web/views [web_clean]`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nanoset_core.errors import ConfigError
from nanoset_core.stages.registry import stages
from nanoset_core.stages.stage import InternalStage, Node, Stage, is_of_corpora

if TYPE_CHECKING:
    from nanoset_assets.asset_table import AssetShape

_NO_JOB_CHARACTER = re.compile("[^A-Za-z0-9_]")
"""A character that Dagster does not allow in the name of a job."""


def is_asset(stage: Stage) -> bool:
    """Return whether the outputs of a stage are assets in Dagster.

    Args:
        stage: A step of the pipeline. The outputs of an internal one are only used by other stages.
    """
    return not isinstance(stage, InternalStage)


def asset_path(node: Node) -> tuple[str, ...]:
    """Return the asset key of an output, without the project's prefix.

    Args:
        node: The output.

    Returns:
        The name of the asset alone for an output of a corpus, such as ("indexed_dataset",); with
        its subject before it for others, such as ("pretrain", "blend").
    """
    asset = _shape_of(node.stage).asset
    if is_of_corpora(node.stage):
        return (asset,)
    return (node.key.subject, asset)


def partition_of(node: Node) -> str | None:
    """Return the partition of an output: a corpus, a split, a view or a group of tars.

    Args:
        node: The output.

    Returns:
        Such as "train"; None for an asset without partitions.
    """
    if is_of_corpora(node.stage):
        return node.key.subject
    return node.key.part


def label_of(node: Node) -> str:
    """Return the asset and partition of an output for messages, such as `web/views [web_clean]`.

    Args:
        node: The output.
    """
    asset = "/".join(asset_path(node))
    partition = partition_of(node)
    if partition is None:
        return asset
    return f"{asset} [{partition}]"


def input_label(node: Node) -> str:
    """Return the asset and partition of an output in words, for the remedy of an error.

    Args:
        node: The output, which is an input of another one.

    Returns:
        Such as "indexed_dataset for the corpus 'web'".
    """
    asset = "/".join(asset_path(node))
    if is_of_corpora(node.stage):
        return f"{asset} for the corpus {node.key.subject!r}"
    if node.key.part is not None:
        return f"{asset} for the split {node.key.part!r}"
    return asset


def job_of(node: Node) -> str:
    """Return the name of the job to which the asset of an output belongs, without prefix.

    Each nanoset and each webdataset has a job. For corpora there is one job for each kind of
    output, such as `corpus`, which makes all outputs of a corpus up to its dataset.

    Args:
        node: The output.

    Returns:
        Such as "corpus" or "pretrain". A character that Dagster does not allow becomes `_`.
    """
    name = node.stage.kind
    if not is_of_corpora(node.stage):
        name = _shape_of(node.stage).job.format(subject=node.key.subject)
    return _NO_JOB_CHARACTER.sub("_", name)


def check_asset_names() -> None:
    """Check that no stage of corpora has a job with the same name as an asset.

    Dagster would refuse all definitions then, without saying which name is the cause.

    Raises:
        ConfigError: A job and an asset have the same name.
    """
    job_names: set[str] = set()
    asset_names: set[str] = set()
    for stage in stages():
        # Only the assets of corpora have one-part keys, such as `raw_jsonl`. The keys of others,
        # such as `pretrain/blend`, cannot be names of jobs.
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
    """Return how the assets of a stage appear in Dagster.

    Args:
        stage: A step of the pipeline.
    """
    # The table imports Dagster, which takes a second. A build that makes nothing needs no names.
    from nanoset_assets.asset_table import shape_of

    return shape_of(stage)
