"""Check that the settings allow an output, before it is made or when it is verified.

Some outputs are searches that decide about others. For example, with `policy: block` in a section
of `contamination`, the index files of train may only be made if no document that they read contains
a text of the evaluation. The present settings decide, also about outputs that were built already.
"""

from __future__ import annotations

from nanoset_core.errors import StaleError
from nanoset_core.project.graph import stale_reasons
from nanoset_core.project.project import Project
from nanoset_core.stages.report import BUILD
from nanoset_core.stages.stage import Node, current_version, require


def check_allowed(project: Project, node: Node) -> None:
    """Check that the settings allow to make an output, and everything that it is made from.

    A build calls this immediately before it makes an output, when the searches that decide about it
    have been made.

    Args:
        project: The project.
        node: The output, such as the files with which a trainer is started.

    Raises:
        ForbiddenError: The output would contain documents that the settings forbid.
        MissingError: A search that decides has not been made.
        StaleError: It was made from other inputs than the present ones.
    """
    for search, stage in node.deciding_inputs(project.config):
        manifest = require(project, search.stage, search.key, remedy=f"{BUILD} first")
        reasons = stale_reasons(project, search.stage, search.key)
        if reasons:
            raise StaleError(
                "this search decides whether the output may be made, and is out of date",
                where=manifest.url(),
                found="; ".join(reasons),
                remedy=f"{BUILD} first",
            )
        stage.check_allowed(project, search.key, manifest)

    for input_node in node.read_inputs(project.config):
        check_allowed(project, input_node)


def check_built_is_allowed(project: Project, node: Node) -> None:
    """Check that the settings allow an output that was built, as far as searches have found.

    Args:
        project: The project.
        node: The output. What it is made from is not checked: it has a check of its own.

    Raises:
        ForbiddenError: The output contains documents that the settings forbid.
    """
    for search, stage in node.deciding_inputs(project.config):
        # If the search was not made, or is out of date, its own check reports that.
        manifest = current_version(project, search.stage, search.key).manifest
        if manifest is not None:
            stage.check_allowed(project, search.key, manifest)
