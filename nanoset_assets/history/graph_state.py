"""Combine output files and Dagster's history into the state of a project's outputs.

The files of an output show whether it is up to date, and Dagster's history shows whether its check
has passed. An output that another machine has made is missing from the history of this one, so it
is added to it: for example, the dataset of `web` as a materialisation of `indexed_dataset`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg

from nanoset_assets.assets.output_names import asset_path, nodes_by_asset, partition_of
from nanoset_assets.automation.active_runs import ActiveRuns
from nanoset_assets.dagster_compat import (
    DATA_VERSION_TAG,
    assets_with_failed_check,
    latest_data_versions,
    latest_evaluation,
    report_check,
)
from nanoset_assets.names import Names
from nanoset_assets.tags import CHECK, RECORDED
from nanoset_assets.ui.mappings import reader_metadata
from nanoset_assets.ui.metadata import output_metadata
from nanoset_core.outputs.failed_checks import FailedChecks
from nanoset_core.project.graph.graph import Graph
from nanoset_core.project.graph.step import Step
from nanoset_core.project.project import Project
from nanoset_core.stages.handoff.stage import TRAINER_FILES
from nanoset_core.stages.stage import InParts, Node, current_version


@dataclass(frozen=True, slots=True)
class GraphState:
    """Every step of a project at one moment, with what Dagster's history says about its output."""

    steps: Mapping[Node, Step]
    """Output → its step; each step comes after those that it needs."""
    failed_check: frozenset[Node] = frozenset()
    """Outputs whose last check found errors, or did not end."""
    forced: frozenset[Node] = frozenset()
    """Outputs to rebuild even if they are up to date."""

    def is_fresh(self, node: Node) -> bool:
        """Return whether an output is up to date, undamaged, and passed its last check.

        Args:
            node: The output. One without a step, because it is not known what it should be made
                from, is not fresh.
        """
        return (
            node in self.steps and self.steps[node].is_up_to_date and node not in self.failed_check
        )

    def is_stale(self, node: Node) -> bool:
        """Return whether an output is missing, stale or faulty, and has a step that makes it.

        Args:
            node: The output.
        """
        return node in self.steps and not self.is_fresh(node)

    def needs_run(self, node: Node) -> bool:
        """Return whether an output has to be made, because it is stale or its rebuild is forced.

        Args:
            node: The output. One without a step cannot be made.
        """
        return self.is_stale(node) or (node in self.forced and node in self.steps)

    def inputs_of(self, node: Node) -> tuple[Node, ...]:
        """Return the outputs that an output is made directly from.

        Args:
            node: The output, which must have a step.
        """
        return self.steps[node].needs


def load_graph_state(
    graph: Graph,
    instance: dg.DagsterInstance,
    names: Names,
    active_runs: ActiveRuns | None = None,
) -> GraphState:
    """Complete Dagster's history, and return which outputs are up to date or have failed a check.

    Outputs may be made and verified without Dagster, or with the history of another machine. What
    is missing in this history is added to it, so that Dagster's web pages show it:

        web was built on another machine                         a materialization of web
        code failed its check, and then passed nanoset verify    a check that code has passed
        nanoset verify found an error in books                   a check that books has failed

    Args:
        graph: The outputs of the project.
        instance: The instance of Dagster, whose history is read and completed.
        names: The names of the project in Dagster.
        active_runs: The active runs; default: look them up now. A caller that has read outputs
            before must have looked them up before that: a run that ends in between would seem to
            have made nothing.
    """
    if active_runs is None:
        active_runs = ActiveRuns.look_up(instance, names)
    step_by_node = {step.node: step for step in graph.steps()}
    record_existing_outputs(graph, step_by_node, instance, names, active_runs)

    failed_check = outputs_with_failed_check(step_by_node, instance, names)
    _record_failed_checks(graph.project, step_by_node, failed_check, instance, names, active_runs)
    failed_but_up_to_date = [node for node in failed_check if step_by_node[node].is_up_to_date]
    verified = _verified_later(graph.project, failed_but_up_to_date, instance, names, active_runs)
    for node in verified:
        _record_check(node, instance, names, passed=True)
    return GraphState(step_by_node, failed_check=failed_check - verified)


def record_existing_outputs(
    graph: Graph,
    step_by_node: Mapping[Node, Step],
    instance: dg.DagsterInstance,
    names: Names,
    active_runs: ActiveRuns,
) -> None:
    """Let Dagster know of outputs that are up to date, but are missing in its history.

    For example, two machines share the folder of outputs, and each has a history of its own.

    Args:
        graph: The outputs of the project.
        step_by_node: Output → what would make it, and whether it is up to date. Inputs precede what
            is made from them.
        instance: The instance of Dagster, to whose history they are added.
        names: The names of the project in Dagster.
        active_runs: The active runs. They record what they make themselves.
    """
    recorded_digests = _recorded_digests(step_by_node, instance, names)
    for node, step in step_by_node.items():
        is_recorded = recorded_digests.get(node) == step.digest
        if not step.is_up_to_date or is_recorded or _is_being_made(node, active_runs):
            continue
        event = _materialization_of_existing(graph, step, names)
        instance.report_runless_asset_event(event)


def _is_being_made(node: Node, active_runs: ActiveRuns) -> bool:
    """Return whether an active run is making an output.

    The operator `in` takes a query for each output, and a new history may lack thousands of them.
    So it is only used if there are active runs.

    Args:
        node: The output.
        active_runs: The active runs of the project.
    """
    return bool(active_runs.runs) and node in active_runs


def _recorded_digests(
    nodes: Iterable[Node], instance: dg.DagsterInstance, names: Names
) -> dict[Node, str]:
    """Return which version of each output is the latest one in Dagster's history.

    In Dagster, an output is an asset, or a partition of one. All partitions of an asset are looked
    up together, which takes few queries.

    Args:
        nodes: The outputs to look up.
        instance: The instance of Dagster, whose history is read.
        names: The names of the project in Dagster.

    Returns:
        Output → digest of the version. Outputs that the history lacks are left out.
    """
    digests: dict[Node, str] = {}
    for asset, asset_nodes in nodes_by_asset(nodes).items():
        partitions = {partition_of(node) for node in asset_nodes}
        digest_by_partition = latest_data_versions(instance, names.asset(asset), partitions)
        for node in asset_nodes:
            partition = partition_of(node)
            if partition in digest_by_partition:
                digests[node] = digest_by_partition[partition]
    return digests


def outputs_with_failed_check(
    nodes: Iterable[Node], instance: dg.DagsterInstance, names: Names
) -> frozenset[Node]:
    """Return the outputs whose last check found errors, or did not end.

    After a run has made an output, Dagster executes its check, which reads the files. If that
    fails, the output must not be used. A check that was interrupted counts as failed, too.

    Dagster knows an output as (asset, partition), such as (`indexed_dataset`, `web`). All are
    looked up at once, and the answers are translated back.

    Args:
        nodes: The outputs to look up.
        instance: The instance of Dagster, which has the results of checks.
        names: The names of the project in Dagster.
    """
    node_by_partition: dict[tuple[dg.AssetKey, str | None], Node] = {}
    for node in nodes:
        asset = names.asset(asset_path(node))
        node_by_partition[asset, partition_of(node)] = node

    assets = dict.fromkeys(asset for asset, _ in node_by_partition)  # each once, in their order
    check_keys = [dg.AssetCheckKey(asset, CHECK) for asset in assets]
    failed = assets_with_failed_check(instance, check_keys)
    # Dagster also reports partitions that were not requested.
    return frozenset(node_by_partition[key] for key in failed if key in node_by_partition)


def _verified_later(
    project: Project,
    failed: Sequence[Node],
    instance: dg.DagsterInstance,
    names: Names,
    active_runs: ActiveRuns,
) -> frozenset[Node]:
    """Return the outputs that have passed `nanoset verify` after their check in Dagster failed.

    A check that fails leaves a record below the root, which the history notes. When the output has
    passed a check, the record is removed: by `nanoset verify`, or by a build with another history.

    Args:
        project: The project, whose root has the records.
        failed: Outputs that look up to date, and whose last check failed by Dagster's history.
        instance: The instance of Dagster, which has the results of checks.
        names: The names of the project in Dagster.
        active_runs: The active runs. What they make, they check themselves.
    """
    if not failed:
        return frozenset()
    # Read the records after the history, since a check stores its record first. If they had been
    # read before, a check that has just failed would seem to have been verified.
    failed_checks = FailedChecks.read(project.outputs)

    verified: set[Node] = set()
    for node in failed:
        has_record = failed_checks.includes_output(node.stage.layout.folder, node.name)
        if has_record or _is_being_made(node, active_runs):
            continue
        if _has_left_record(node, instance, names):
            verified.add(node)
    return frozenset(verified)


def _has_left_record(node: Node, instance: dg.DagsterInstance, names: Names) -> bool:
    """Return whether the last check of an output has left a record of its failure.

    A check stores the record in a file next to the outputs, and notes in Dagster's history that it
    has done so. There is none if the check was interrupted, or if an earlier version of nanoset has
    executed it.

    Args:
        node: An output whose last check has failed.
        instance: The instance of Dagster, which has the results of checks.
        names: The names of the project in Dagster.
    """
    check = dg.AssetCheckKey(names.asset(asset_path(node)), CHECK)
    evaluation = latest_evaluation(instance, check, partition_of(node))
    return evaluation is not None and RECORDED in evaluation.metadata


def update_checks(
    project: Project, nodes: Iterable[Node], instance: dg.DagsterInstance, names: Names
) -> None:
    """Let Dagster know of checks that were executed without it, such as by `nanoset verify`.

    Args:
        project: The project, whose root has records of the errors.
        nodes: The outputs to look at.
        instance: The instance of Dagster, to whose history checks are added.
        names: The names of the project in Dagster.
    """
    nodes = list(nodes)
    active_runs = ActiveRuns.look_up(instance, names)
    failed = outputs_with_failed_check(nodes, instance, names)
    _record_failed_checks(project, nodes, failed, instance, names, active_runs)
    for node in _verified_later(project, list(failed), instance, names, active_runs):
        is_built = current_version(project, node.stage, node.key).is_built
        if is_built or isinstance(node.stage, InParts):
            _record_check(node, instance, names, passed=True)


def _record_failed_checks(
    project: Project,
    nodes: Iterable[Node],
    known_failures: Collection[Node],
    instance: dg.DagsterInstance,
    names: Names,
    active_runs: ActiveRuns,
) -> None:
    """Let Dagster know of errors that `nanoset verify`, or a build on another machine, has found.

    Dagster then builds nothing from these outputs, also by conditions of assets.

    Args:
        project: The project, whose root has the records of errors.
        nodes: The outputs to look at.
        known_failures: Outputs whose last check has failed by Dagster's history.
        instance: The instance of Dagster, to whose history the checks are added.
        names: The names of the project in Dagster.
        active_runs: The active runs. What they make, they check themselves.
    """
    failed_checks = FailedChecks.read(project.outputs)
    if not failed_checks.version_by_output:
        return
    for node in nodes:
        if node in known_failures or _is_being_made(node, active_runs):
            continue
        if _is_version_with_error(project, node, failed_checks):
            _record_check(node, instance, names, passed=False)


def _is_version_with_error(project: Project, node: Node, failed_checks: FailedChecks) -> bool:
    """Return whether the last check of the current version of an output has found an error.

    Args:
        project: The project.
        node: The output.
        failed_checks: The records of errors.
    """
    folder = node.stage.layout.folder
    if not failed_checks.includes_output(folder, node.name):
        return False
    if isinstance(node.stage, InParts):
        return True  # a part has no version of its own
    manifest = current_version(project, node.stage, node.key).manifest
    return manifest is not None and failed_checks.includes(folder, node.name, manifest.digest)


def _record_check(node: Node, instance: dg.DagsterInstance, names: Names, *, passed: bool) -> None:
    """Let Dagster know the result of a check that was executed without it.

    Args:
        node: The output.
        instance: The instance of Dagster, to whose history the check is added.
        names: The names of the project in Dagster.
        passed: Whether no error was found.
    """
    description = "verified by `nanoset verify`, or on another machine"
    metadata = {}
    if not passed:
        description = "`nanoset verify`, or a build on another machine, has found an error"
        metadata[RECORDED] = True
    evaluation = dg.AssetCheckEvaluation(
        asset_key=names.asset(asset_path(node)),
        check_name=CHECK,
        passed=passed,
        description=description,
        metadata=metadata,
        blocking=True,
        partition=partition_of(node),
    )
    report_check(instance, evaluation)


def _materialization_of_existing(graph: Graph, step: Step, names: Names) -> dg.AssetMaterialization:
    """Return the event that adds an output to Dagster's history which another machine has made.

    Usually a run of Dagster records such an event (a materialisation) when it has made an output.

    Args:
        graph: The outputs of the project, with their manifests (lists of their files).
        step: The step that would make the output, with the digest of its version.
        names: The names of the project in Dagster.
    """
    return dg.AssetMaterialization(
        names.asset(asset_path(step.node)),
        metadata=_metadata_of_existing(graph, step.node),  # what Dagster's web page shows
        partition=partition_of(step.node),
        tags={DATA_VERSION_TAG: step.digest},
    )


def _metadata_of_existing(graph: Graph, node: Node) -> dict[str, Any]:
    """Return what Dagster's web page shows about an output that another machine has made.

    For example, for a dataset:

        summary        made on another machine, or recorded in another history of runs
        documents      120,000        (and the other counts of this kind of output)
        size_bytes     180,000,000
        path           where it is
        digest         the hash that identifies this version

    The metadata of files for a trainer also say where the project is: code of other teams, which
    trains on the files, looks for it there.

    Args:
        graph: The outputs of the project, with their manifests (lists of their files).
        node: The output.
    """
    project = graph.project
    metadata: dict[str, Any] = {
        "summary": "made on another machine, or recorded in another history of runs"
    }
    manifest = graph.versions.of(node).manifest
    if manifest is not None:
        summary = node.stage.show(project, manifest)
        metadata |= summary.figures
        metadata = output_metadata(project, manifest, summary, metadata)
    if node.stage is TRAINER_FILES:
        metadata |= reader_metadata(project, node.key.subject)
    return metadata
