"""The asset `overview`: what a project holds, what is stale and why, what it cost, and which version others have read.

It builds nothing, and shows stale outputs under every setting of `automation`.
"""

import hashlib
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from nanoset_assets.asset_table import asset_path, partition_of, shape_of
from nanoset_assets.dagster_compat import (
    DATA_VERSION_TAG,
    INPUT_DATA_VERSION_TAG,
    condition_sensors,
    latest_data_versions,
    latest_runs,
    repository_of,
)
from nanoset_assets.hosted import Automation, ProjectDefs, tick_result
from nanoset_assets.instance_state import LOADED
from nanoset_assets.loaded import not_loaded
from nanoset_assets.stages_table import GROUP
from nanoset_assets.ui.metadata import failure, markdown, table
from nanoset_core.errors import NanosetError, one_line
from nanoset_core.project.graph import requested_nodes
from nanoset_core.project.project import Project
from nanoset_core.project.status import StatusRow, project_status
from nanoset_core.records.parsing import CONFIG_FILE
from nanoset_core.records.text import format_bytes, format_count
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import Node
from nanoset_core.untrusted import visible

OVERVIEW = "overview"
"""The name of the asset, and of the sensor that keeps it up to date."""
CHECK = "up_to_date"
"""The name of its check, which warns of outputs that are not what the files, settings and code of today ask for."""
SECONDS = 60
"""Between two ticks, at least: each asks Dagster's history and reads nanoset.yaml."""
LOOK_SECONDS = 3600
"""Between two looks, where these say that nothing has changed: each compares all outputs, as `nanoset status` does."""
_EVENTS = 200
"""Materialisations of an asset that are looked at for what its versions cost."""
_NAMED = 3
_DESCRIPTION = "The whole project on one page: tokens, outputs, what is stale and why, and who has read what."


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at a project showed."""

    metadata: dict[str, Any]
    stale: list[str]
    """What is not up to date, and why."""
    warnings: list[str] = field(default_factory=list)
    """What else keeps the project from being built: a file that cannot be loaded, or is not loaded yet."""

    @property
    def verdict(self) -> dict[str, Any]:
        """What the check says."""
        sentences = list(self.warnings)
        if self.stale:
            sentences.append(f"{format_count(len(self.stale), 'output')} missing or stale; the first: {self.stale[0]}")
        return {
            "passed": not sentences,
            "severity": dg.AssetCheckSeverity.WARN,
            "description": visible("; ".join(sentences) or "nothing is stale"),
        }


def overview_asset(hosted: ProjectDefs, automation: Automation) -> dg.AssetsDefinition:
    """Make the asset: materialised by hand it looks at once."""
    key = hosted.names.asset(OVERVIEW)

    @dg.asset(
        key=key,
        group_name=hosted.names.group(GROUP),
        check_specs=[dg.AssetCheckSpec(CHECK, asset=key, description="Warns of what is missing or stale, and why.")],
        owners=list(hosted.owners),
        tags=dict(hosted.tags),
        description=_DESCRIPTION,
    )
    def overview(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[Any]]:
        project = hosted.load_in_step(context)
        try:
            result = look(hosted, automation, project, context.instance, repository_of(context))
        except NanosetError as error:
            raise failure(error) from error
        check = dg.AssetCheckResult(check_name=CHECK, **result.verdict)
        yield dg.MaterializeResult(metadata=result.metadata, check_results=[check])

    return overview


def overview_sensor(hosted: ProjectDefs, automation: Automation) -> dg.SensorDefinition:
    """Make the sensor that reports the overview again when it has changed, without a run."""
    key = hosted.names.asset(OVERVIEW)
    ticks = hosted.ticks(OVERVIEW)
    ticks["minimum_interval_seconds"] = max(SECONDS, ticks["minimum_interval_seconds"])

    @dg.sensor(description=f"Keeps {key.to_user_string()} up to date, and builds nothing.", **ticks)
    def overview(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        # The cursor: digest of what would show a change, time of the last look, digest of what was reported last.
        seen, looked, shown = [*(context.cursor or "").split(), "", "", ""][:3]
        now = time.time()
        try:
            project = hosted.load()
        except NanosetError as error:
            return _unloadable(context, key, error, shown)

        told = _told(hosted, automation, project, context.instance, context.repository_def)
        if told == seen and now - float(looked) < LOOK_SECONDS:
            return tick_result(context, [], [], "no run, setting or corpus has changed")
        result = look(hosted, automation, project, context.instance, context.repository_def)
        mark = _digest((result.metadata, result.stale, result.warnings))
        cursor = f"{told} {int(now)} {mark}"
        if mark == shown:
            return tick_result(context, [], [], "nothing has changed", cursor=cursor)
        events = [
            dg.AssetMaterialization(key, metadata=result.metadata),
            dg.AssetCheckEvaluation(key, CHECK, **result.verdict),
        ]
        notes = [*result.warnings, *result.stale[:_NAMED]]
        return tick_result(context, [], notes, "reported", cursor=cursor, asset_events=events)

    return overview


def _unloadable(
    context: dg.SensorEvaluationContext, key: dg.AssetKey, error: NanosetError, shown: str
) -> dg.SensorResult:
    """Return the tick of a project whose nanoset.yaml cannot be loaded: the check says why, once for each error."""
    result = Look({}, [], [f"{CONFIG_FILE} cannot be loaded, so nothing is built: {one_line(error)}"])
    mark = _digest(str(error))
    if mark == shown:
        return tick_result(context, [], result.warnings, "")
    # Without the digest of what was seen, the next tick that can load the file looks again.
    cursor = f"unloadable 0 {mark}"
    event = dg.AssetCheckEvaluation(key, CHECK, **result.verdict)
    return tick_result(context, [], result.warnings, "", cursor=cursor, asset_events=[event])


def _told(
    hosted: ProjectDefs,
    automation: Automation,
    project: Project,
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition | None,
) -> str:
    """Return a digest of what shows changes without looking at outputs: settings, corpora, the runs of our assets and
    of those that depend on them, and the state of sensors that evaluate conditions."""
    names = hosted.names
    ours = {names.asset(asset_path(node)) for node in requested_nodes(project.config)}
    readers = set() if repository is None else {reader for _, reader in _read(repository, ours)}
    runs = latest_runs(instance, sorted(ours | readers))
    corpora = instance.get_dynamic_partitions(names.corpora_name)
    told = (LOADED, project.config, corpora, runs, _condition_note(hosted, automation, instance, repository))
    return _digest(told)


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()


def look(
    hosted: ProjectDefs,
    automation: Automation,
    project: Project,
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition | None,
) -> Look:
    """Compare all outputs with what nanoset.yaml, text and code ask for today.

    Args:
        hosted: what the definitions were made from.
        automation: what builds what is missing or stale.
        project: the project as it is configured now.
        instance: the instance.
        repository: all definitions of the code location, with assets that may read ours; None if they are not known.
    """
    rows = list(project_status(project))
    corpora = [row.name for row in rows if row.kind == "corpus"]
    nodes = list(requested_nodes(project.config, corpora))
    cost = _cost(hosted, instance, nodes)
    stale = [(row, "; ".join(row.why)) for row in rows if row.why and row.state != "not read"]
    readers = [] if repository is None else list(_readers(hosted, instance, repository, nodes))
    made = [row for row in rows if row.kind not in ("corpus", "folder")]
    tables = {
        "not_up_to_date": [{"output": row.label, "state": row.state, "why": why} for row, why in stale],
        "corpora": [_shown(row, cost) for row in rows if row.kind == "corpus"],
        "made_of_them": [_shown(row, cost) for row in made],
        "read_by": readers,
    }
    shown = {name: table(found, len(found)) for name, found in tables.items() if found}
    summary, numbers = _totals(project, rows)
    metadata: dict[str, Any] = {"summary": summary}
    warnings = not_loaded(hosted.config, project.config)
    if warnings:
        metadata["not_loaded"] = markdown(*warnings)
    condition_note = _condition_note(hosted, automation, instance, repository)
    if condition_note is not None:
        metadata["automation"] = markdown(condition_note)
    metadata |= {**shown, **numbers, "outputs_not_up_to_date": len(stale)}
    return Look(metadata, [f"{row.label}: {why}" for row, why in stale], warnings)


def _condition_note(
    hosted: ProjectDefs,
    automation: Automation,
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition | None,
) -> str | None:
    """Return which sensor evaluates the conditions of `automation: host`, and whether it is on; None for others."""
    if automation != "host" or repository is None:
        return None
    # Every asset but those of raw text bears the condition; tokens are the first of them.
    sensors = condition_sensors(instance, repository, hosted.names.asset(shape_of(TOKENIZED).asset))
    running = [name for name, is_running in sensors.items() if is_running]
    if running:
        return f"What follows new text is built by the sensor `{running[0]}`."
    names = ", ".join(f"`{name}`" for name in sensors) or "one"
    return (
        f"**Nothing is built automatically**: no sensor that evaluates automation conditions is on. "
        f"Switch on {names} on the page Automation; Dagster's default sensor is off at first."
    )


def _totals(project: Project, rows: Sequence[StatusRow]) -> tuple[dg.MarkdownMetadataValue, dict[str, Any]]:
    """Return the sums over all corpora and outputs: as a sentence, and as numbers that Dagster plots over time."""
    corpora = [row for row in rows if row.kind == "corpus"]
    tokens, documents = (sum(row.figures.get(name, 0) for row in corpora) for name in ("tokens", "documents"))
    size, target = sum(row.figures.get("bytes", 0) for row in rows), project.config.token_target
    text = f"**{format_count(tokens, 'token')}** in {format_count(documents, 'document')} of "
    text += f"{len(corpora):,} {'corpus' if len(corpora) == 1 else 'corpora'}; {format_bytes(size)} of outputs."
    reached = {} if target is None else {"token_target": target, "target_reached": round(tokens / target, 4)}
    goal = [] if target is None else [f"**{tokens / target:.1%}** of the {target:,} tokens that are wanted."]
    return markdown(text, *goal), {"tokens": tokens, "documents": documents, "size_bytes": size, **reached}


def _shown(row: StatusRow, cost: Mapping[tuple[str, str, str | None], float]) -> dict[str, Any]:
    counts = ("documents", "tokens") if row.kind == "corpus" else ("samples", "tokens")
    figures = {"samples" if name == "sequences" else name: count for name, count in row.figures.items()}
    return {
        "name": row.name + (f" {row.part}" if row.part else ""),
        **{name: f"{figures[name]:,}" if name in figures else "" for name in counts},
        "size": format_bytes(figures["bytes"]) if "bytes" in figures else "",
        "seconds": f"{seconds:,.1f}" if (seconds := cost.get((row.kind, row.name, row.part))) is not None else "",
    }


def _cost(
    hosted: ProjectDefs, instance: dg.DagsterInstance, nodes: Sequence[Node]
) -> Mapping[tuple[str, str, str | None], float]:
    """Return row → seconds in which its latest versions were made: those of the longest run, since others found them
    there."""
    rows = {(asset_path(node), partition_of(node)): node.row for node in nodes}
    longest: dict[tuple[tuple[str, ...], str | None], tuple[str | None, float]] = {}
    for asset in dict.fromkeys(asset_path(node) for node in nodes):
        for record in instance.fetch_materializations(hosted.names.asset(asset), limit=_EVENTS).records:
            made = record.asset_materialization
            if made is None or "seconds" not in made.metadata:
                continue
            version, seconds = (made.tags or {}).get(DATA_VERSION_TAG), float(str(made.metadata["seconds"].value))
            last, most = longest.get((asset, made.partition), (version, 0.0))
            if version == last:
                longest[asset, made.partition] = last, max(most, seconds)
    spent: dict[tuple[str, str, str | None], float] = defaultdict(float)
    for place, (_, seconds) in longest.items():
        if place in rows:
            spent[rows[place]] += seconds
    return spent


def _readers(
    hosted: ProjectDefs, instance: dg.DagsterInstance, repository: dg.RepositoryDefinition, nodes: Sequence[Node]
) -> Iterator[dict[str, Any]]:
    """Yield assets of others that depend on ours, those without partitions, and which version they were made from."""
    for key, reader in _read(repository, {hosted.names.asset(asset_path(node)) for node in nodes}):
        now = latest_data_versions(instance, key, {None}).get(None)
        event = instance.get_latest_materialization_event(reader)
        made = None if event is None else event.asset_materialization
        version = ((made and made.tags) or {}).get(f"{INPUT_DATA_VERSION_TAG}/{key.to_user_string()}")
        yield {
            "asset": reader.to_user_string(),
            "has_read": key.to_user_string(),
            "version": version or "none yet",
            "which_is": "" if version is None else "the latest" if version == now else "an older one",
            "run": "" if event is None else event.run_id[:8],
        }


def _read(repository: dg.RepositoryDefinition, ours: set[dg.AssetKey]) -> Iterator[tuple[dg.AssetKey, dg.AssetKey]]:
    """Yield (asset of ours without partitions, asset of others that depends on it)."""
    graph = repository.asset_graph
    for key in sorted(ours.intersection(graph.get_all_asset_keys())):
        if graph.get(key).partitions_def is None:
            yield from ((key, reader) for reader in sorted(graph.get(key).child_keys - ours))
