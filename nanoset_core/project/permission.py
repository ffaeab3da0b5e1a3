"""Check that the settings allow an output, before it is made or when it is verified.

Some outputs are searches that decide about others. For example, with `policy: block` in a section
of `contamination`, the index files of train may only be made if no document that they read contains
a text of the evaluation. The present settings decide, also about outputs that were built already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nanoset_core.errors import StaleError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import read_current
from nanoset_core.project.graph.built_inputs import (
    changes_against_built_inputs,
    inputs_of_other_subjects,
)
from nanoset_core.project.graph.graph import Graph
from nanoset_core.project.graph.nodes import walk_inputs
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.report import BUILD
from nanoset_core.stages.stage import DecidingInput, Node, current_version, require


@dataclass(frozen=True, slots=True)
class _PassedCheck:
    """What a check that has passed was about. As long as that is the same, the check passes."""

    digests: tuple[str | None, ...]
    """Digests of the versions of the search, and of what it is made from."""
    options: Mapping[str, Any]
    """The options of the search's recipe: settings, and digests of files such as evaluations."""


class PassedChecks:
    """The searches whose check has passed in this process, so that most of it is not repeated.

    For example, a webdataset of 300 corpora is written in 100 groups of tars, and before each group
    the searches of all corpora have to allow it. To check a search takes 8 ms and 20 small files.

    If a check has passed, later checks only read which versions of the search and of its inputs are
    current. So a search that is made in the meantime, perhaps by another process, is checked again.
    """

    def __init__(self) -> None:
        self._by_search: dict[Node, _PassedCheck] = {}

    def add(self, graph: Graph, search: Node, manifest: Manifest) -> None:
        """Remember that the check of a search has passed.

        Args:
            graph: The outputs as the check has read them.
            search: The search.
            manifest: Its manifest.
        """
        digests: list[str | None] = [manifest.digest]
        for input_node in inputs_of_other_subjects(graph, search):
            input_manifest = graph.versions.of(input_node).manifest
            digests.append(input_manifest.digest if input_manifest else None)
        options = manifest.recipe["options"]
        self._by_search[search] = _PassedCheck(tuple(digests), options)

    def includes(self, graph: Graph, search: Node, options: Mapping[str, Any]) -> bool:
        """Return whether the check of a search has passed, and would pass again.

        Args:
            graph: The project's outputs.
            search: The search.
            options: The options that its recipe has now, such as the threshold.

        Raises:
            FormatError: A file that names a current version is damaged.
        """
        passed_check = self._by_search.get(search)
        if passed_check is None or passed_check.options != options:
            return False
        return passed_check.digests == _current_digests(graph, search)


def _current_digests(graph: Graph, search: Node) -> tuple[str | None, ...]:
    """Return the digests of the current versions of a search, and of what it is made from.

    They are in small files, such as contamination/evals/web/current.json, which are read now.

    Args:
        graph: The project's outputs.
        search: The search, whose digest is the first.

    Returns:
        The digests; None for an output that was not built.

    Raises:
        FormatError: A file that names a current version is damaged.
    """
    digests = []
    for node in (search, *inputs_of_other_subjects(graph, search)):
        outputs = graph.versions.project_of(node).outputs
        folder = outputs.folder / node.path
        digests.append(read_current(folder, outputs.access))
    return tuple(digests)


def check_allowed(project: Project, node: Node, passed_checks: PassedChecks | None = None) -> None:
    """Check that the settings allow to make an output, and everything that it is made from.

    A build calls this immediately before it makes an output, when the searches that decide about it
    have been made.

    Args:
        project: The project.
        node: The output, such as the files with which a trainer is started.
        passed_checks: Checks that have passed before in this process; new ones are added.

    Raises:
        ForbiddenError: The output would contain documents that the settings forbid.
        MissingError: A search that decides has not been made.
        StaleError: It was made from other inputs than the present ones.
    """
    if passed_checks is None:
        passed_checks = PassedChecks()
    for searches in _deciding_searches(project.config, node):
        _check_searches(project, searches, passed_checks)


def _deciding_searches(config: ProjectConfig, node: Node) -> list[list[DecidingInput]]:
    """Return the searches that decide about an output, or about what it is made from.

    Args:
        config: The settings of nanoset.yaml.
        node: The output.

    Returns:
        Each search once. Those of one subject, such as a section of `contamination`, are together.
    """
    inputs = walk_inputs([node], lambda output: output.read_inputs(config))
    searches: list[DecidingInput] = []
    for output in (node, *inputs):
        searches += output.deciding_inputs(config)
    unique_searches = dict.fromkeys(searches)  # many inputs may have the same ones

    groups: dict[tuple[str, str], list[DecidingInput]] = {}
    for search in unique_searches:
        subject = (search.stage.layout.folder, search.node.key.subject)
        groups.setdefault(subject, []).append(search)
    return list(groups.values())


def _check_searches(
    project: Project, searches: Sequence[DecidingInput], passed_checks: PassedChecks
) -> None:
    """Check the searches of one subject, such as those of all corpora for one evaluation.

    The options of their recipes are the same, such as the digest of the evaluation's files. So the
    first search is always checked as a whole, and shows whether these options have changed since
    the others were checked.

    Args:
        project: The project.
        searches: The searches.
        passed_checks: Checks that have passed before; new ones are added.

    Raises:
        ForbiddenError: A search has found documents that the settings forbid.
        MissingError: A search has not been made.
        StaleError: A search was made from other inputs than the present ones.
    """
    graph = Graph(project, known={})  # lists each folder of a bucket once
    options: Mapping[str, Any] | None = None  # unknown until the first search was checked
    for search in searches:
        if options is not None and passed_checks.includes(graph, search.node, options):
            continue
        manifest = _check_search(graph, search)
        passed_checks.add(graph, search.node, manifest)
        options = manifest.recipe["options"]


def _check_search(graph: Graph, search: DecidingInput) -> Manifest:
    """Check that a search is up to date, and that what it has found allows the output.

    Args:
        graph: The project's outputs.
        search: The search.

    Returns:
        The manifest of the search.

    Raises:
        ForbiddenError: The search has found documents that the settings forbid.
        MissingError: The search has not been made.
        StaleError: It was made from other inputs than the present ones.
    """
    node = search.node
    project = graph.versions.project_of(node)
    manifest = require(project, node.stage, node.key, remedy=f"{BUILD} first")
    reasons = changes_against_built_inputs(graph, node)
    if reasons:
        raise StaleError(
            "this search decides whether the output may be made, and is out of date",
            where=manifest.url(),
            found="; ".join(reasons),
            remedy=f"{BUILD} first",
        )
    search.stage.check_allowed(project, node.key, manifest)
    return manifest


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
