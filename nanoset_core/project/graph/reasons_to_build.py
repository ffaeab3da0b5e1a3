"""Why an output has to be built, as its recipe and its stored version show.

This module compares one output with its recipe. It does not know whether a build can make the
inputs, or whether the settings forbid the output; `Graph.stale_reasons` adds that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from nanoset_core.errors import StorageError
from nanoset_core.outputs.current import CurrentVersion
from nanoset_core.outputs.differences import Reason
from nanoset_core.outputs.failed_checks import FailedChecks
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.project.graph.nodes import digest_of_node
from nanoset_core.project.project import Project
from nanoset_core.stages.stage import InParts, Key, Node, OutsideFiles

ANOTHER_IS_CURRENT = (
    "the requested version exists, but another one was made current: "
    "by another nanoset.yaml with this root, by this one with other settings, "
    "or by another version of nanoset"
)
_INVENTORY_INPUT = "inventory"
"""Name of the input that lists the files of a corpus."""


def reasons_to_build(
    project: Project,
    node: Node,
    recipe: Recipe,
    current: CurrentVersion,
    failed_checks: FailedChecks,
) -> Sequence[Reason]:
    """Return why an output has to be built, such as "not built yet" or "seed: 7 → 8".

    It has to be built if its current version was made by another recipe or is damaged. Even if not,
    a file that it needs in another folder may be missing.

    Args:
        project: The project, whose root folder has the outputs.
        node: The output.
        recipe: What it should be made from now: settings, and digests (hashes) of its inputs.
        current: Its current version, which names what it was made from.
        failed_checks: The outputs whose last check has found an error.

    Returns:
        The reasons; none if the current version was made from the same, and no file is damaged.
    """
    reasons: Sequence[Reason]
    if isinstance(node.stage, InParts):
        reasons = _reasons_to_build_part(project, node.stage, node.key, recipe)
    else:
        reasons = _reasons_to_build_version(project, node, recipe, current)

    # Damaged files with the right sizes are only noticed by a check.
    digest = digest_of_node(node, recipe)
    if not reasons and failed_checks.includes(node.stage.layout.folder, node.name, digest):
        return [Reason(check_failed_reason(node))]
    return reasons


def _reasons_to_build_part(
    project: Project, stage: InParts, key: Key, recipe: Recipe
) -> list[Reason]:
    """Return why one of the parts in which a large output is written has to be built.

    Parts, such as 100 of the 1,000 tars of a webdataset, have no version of their own. So the stage
    looks at their files.

    Args:
        project: The project, whose root folder has the outputs.
        stage: What makes the parts.
        key: Which part it is.
        recipe: What it should be made from now.

    Returns:
        One reason, or none.
    """
    reason = stage.part_problem(project, key, recipe)
    return [] if reason is None else [reason]


def _reasons_to_build_version(
    project: Project, node: Node, recipe: Recipe, current: CurrentVersion
) -> list[Reason]:
    """Return why an output has to be built, as far as recipes, sizes and links show.

    Args:
        project: The project, whose root folder has the outputs.
        node: The output.
        recipe: What it should be made from now.
        current: Its current version.
    """
    # Compare the current version with the recipe.
    reasons = with_clear_texts(current.reasons_to_replace(recipe))
    if reasons:
        return reasons + _hint_at_stored_version(project, recipe, current)

    # The version and its own files are fine. It may also need files in other folders, and the link
    # that leads to it may be wrong.
    return _faults_in_other_folders(project, node, current) + _faults_of_link(project, current)


def _hint_at_stored_version(
    project: Project, recipe: Recipe, current: CurrentVersion
) -> list[Reason]:
    """Return a hint if the output that should be built is stored already, but is not in use.

    For example, the user has changed a setting, has built, and has changed it back. Then the output
    by the present settings is still stored next to the current one.

    Args:
        project: The project, whose root folder has the outputs.
        recipe: What the output should be made from now.
        current: Its current version, which was not made by this recipe, or is damaged.

    Returns:
        The hint, as a further reason to build; otherwise nothing.
    """
    is_by_other_settings = current.other_settings(recipe)
    if is_by_other_settings and project.outputs.find(recipe) is not None:
        return [Reason(ANOTHER_IS_CURRENT)]
    return []


def _faults_in_other_folders(project: Project, node: Node, current: CurrentVersion) -> list[Reason]:
    """Check the files that an output needs, but that are stored in folders of other outputs.

    For example, a text collection is tokenized in pieces, the shards, each of which has a folder.
    The output `tokenized` is only a list of them:

        tokenized/web/3f9c…/          the list of shards: itself intact
        shards/web/81aa…/tokens.bin   tokens of one shard: this file may be missing

    Args:
        project: The project, whose root folder has all these files.
        node: The output, such as the list.
        current: Its current version.

    Returns:
        One reason to rebuild the output, if a file is missing or damaged; otherwise none.
    """
    stage = node.stage
    if not isinstance(stage, OutsideFiles):
        return []  # it needs no such files
    if current.manifest is None:
        return []  # it does not exist
    fault = stage.fault(project, node.key, current.manifest)
    if fault is None:
        return []
    return [Reason(fault)]


def _faults_of_link(project: Project, current: CurrentVersion) -> list[Reason]:
    """Check the link `current` of an output, which other programs follow to its current version.

    A build of the output sets the link again, and makes nothing else.

    Args:
        project: The project, whose root folder has the output.
        current: The current version of the output.

    Returns:
        One reason to build the output, such as "the link `current` is missing"; otherwise none.
    """
    if current.manifest is None:
        return []  # it does not exist
    try:
        project.outputs.check_link(current.manifest)
    except StorageError as error:
        return [Reason(error.what, is_of_link=True)]
    return []


def check_failed_reason(node: Node) -> str:
    """Return why an output is made or checked again although its recipe and its sizes are right.

    Args:
        node: The output.
    """
    output = node.stage.report_name(node.key)  # such as datasets/web: a row has several outputs
    return f"the last check of {output} found an error, which `nanoset verify` shows"


def with_clear_texts(reasons: Iterable[Reason]) -> list[Reason]:
    """Replace messages about an internal input by messages that users understand.

    The first output of each corpus (collection of texts) is its inventory, a list of its files.
    Users never see inventories:

        before   "inventory changed"
        after    "files changed since it was built"

    Args:
        reasons: Why an output has to be rebuilt.

    Returns:
        The same reasons, in the same order. Only the texts of some are replaced.
    """
    clear_reasons: list[Reason] = []
    for reason in reasons:
        if reason.input == _INVENTORY_INPUT:  # None if the reason is not a changed input
            clear_reasons.append(replace(reason, text="files changed since it was built"))
        else:
            clear_reasons.append(reason)
    return clear_reasons
