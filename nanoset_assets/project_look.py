"""Collect what the asset `overview` shows of a project.

It shows what the project contains, which outputs are stale and why, how long they took to build,
and which of the host's other assets were made from them. For example, "**1,234,567 tokens** in
5,000 documents of 2 corpora; 8.00 MB of outputs", and a table with a row for each corpus.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from nanoset_assets.asset_names import asset_path, partition_of
from nanoset_assets.asset_table import shape_of
from nanoset_assets.dagster_compat import (
    DATA_VERSION_TAG,
    INPUT_DATA_VERSION_TAG,
    condition_sensors,
    latest_data_versions,
)
from nanoset_assets.loaded import reload_notes
from nanoset_assets.names import Names
from nanoset_assets.project_defs import Automation, ProjectDefs
from nanoset_assets.ui.metadata import markdown, table
from nanoset_core.project.graph import requested_nodes
from nanoset_core.project.project import Project
from nanoset_core.project.status import StatusRow, project_status
from nanoset_core.records.text import format_bytes, format_count
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import Node
from nanoset_core.untrusted import visible

_MAX_EVENTS = 200
"""How many materialisations of an asset are read, the latest first, to find build times."""
RowKey = tuple[str, str, str | None]
"""Kind, name and part of a row of `nanoset status`."""


@dataclass(frozen=True, slots=True)
class OverviewContent:
    """What the asset `overview` and its check show."""

    metadata: dict[str, Any]
    """Metadata of the asset's materialisation."""
    stale: list[str]
    """Each output that is not up to date, with the reasons."""
    warnings: list[str] = field(default_factory=list)
    """Other problems: nanoset.yaml is invalid, or changed after the definitions were loaded."""

    @property
    def verdict(self) -> dict[str, Any]:
        """The result of the check, as arguments of `dg.AssetCheckResult`."""
        sentences = list(self.warnings)
        if self.stale:
            outputs = format_count(len(self.stale), "output")
            sentences.append(f"{outputs} missing or stale; the first: {self.stale[0]}")
        return {
            "passed": not sentences,
            "severity": dg.AssetCheckSeverity.WARN,
            "description": visible("; ".join(sentences) or "nothing is stale"),
        }


def overview_content(
    project_defs: ProjectDefs,
    automation: Automation,
    project: Project,
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition | None,
) -> OverviewContent:
    """Return the page that compares all outputs with the current nanoset.yaml, text and code.

    Args:
        project_defs: What the definitions were made from.
        automation: What builds missing and stale outputs.
        project: The project, with the current configuration.
        instance: The instance of Dagster, for the history of materialisations.
        repository: All definitions of the code location, with assets that depend on this project's;
            None if they are unknown.

    Returns:
        The metadata of the page, and the findings of its check.

    Raises:
        NanosetError: The outputs or the raw text cannot be read.
    """
    # A row is the outputs that `nanoset status` shows together, or a folder that is not read.
    rows = list(project_status(project))
    stale = [f"{row.label}: {_reasons(row)}" for row in rows if _is_stale(row)]
    warnings = reload_notes(project_defs.config, project.config)
    note = condition_note(project_defs, automation, instance, repository)

    # In the order in which Dagster shows it: a summary, what the user has to do, tables, and
    # numbers that Dagster plots over time.
    totals = _totals(project, rows)
    n_corpora = sum(row.kind == "corpus" for row in rows)
    metadata: dict[str, Any] = {"summary": markdown(*_summary_sentences(totals, n_corpora))}
    if warnings:
        metadata["not_loaded"] = markdown(*warnings)
    if note is not None:
        metadata["automation"] = markdown(note)
    metadata |= _tables(project_defs.names, project, instance, repository, rows)
    metadata |= totals
    metadata["outputs_not_up_to_date"] = len(stale)
    return OverviewContent(metadata, stale, warnings)


def _is_stale(row: StatusRow) -> bool:
    """Return whether the outputs of a row are not up to date. A folder without text has none."""
    return bool(row.why) and row.state != "not read"


def _tables(
    names: Names,
    project: Project,
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition | None,
    rows: Sequence[StatusRow],
) -> dict[str, Any]:
    """Return the tables of the page that have rows.

    Args:
        names: The names of the project in Dagster.
        project: The project, with the current configuration.
        instance: The instance of Dagster, for the history of materialisations.
        repository: All definitions of the code location; None if they are unknown.
        rows: All rows of `nanoset status`. Each is an output, or several of the same kind.
    """
    corpora = [row for row in rows if row.kind == "corpus"]
    # A row of the kind "folder" is a folder that is not read, and no output.
    other_outputs = [row for row in rows if row.kind not in ("corpus", "folder")]
    nodes = list(requested_nodes(project.config, [row.name for row in corpora]))
    seconds_by_row = _seconds_by_row(names, instance, nodes)
    rows_by_table = {
        "not_up_to_date": _stale_rows(rows),
        "corpora": _table_rows(corpora, ("documents", "tokens"), seconds_by_row),
        "made_of_them": _table_rows(other_outputs, ("samples", "tokens"), seconds_by_row),
        # Assets outside the project that depend on its assets.
        "read_by": _reader_rows(names, instance, repository, nodes),
    }
    tables: dict[str, Any] = {}
    for name, table_rows in rows_by_table.items():
        if table_rows:
            tables[name] = table(table_rows, len(table_rows))
    return tables


def _reasons(row: StatusRow) -> str:
    """Return why the outputs of a row are not up to date, in one line."""
    return "; ".join(row.why)


def condition_note(
    project_defs: ProjectDefs,
    automation: Automation,
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition | None,
) -> str | None:
    """Return a note on the sensor that builds everything, or None if `automation` is not `host`.

    With `host`, each asset has a condition (Dagster's `AutomationCondition`), and a sensor of the
    host, which watches all of its assets, builds those whose condition is met.

    Args:
        project_defs: The names and settings of the project in Dagster.
        automation: What builds missing and stale outputs.
        instance: The instance of Dagster, which records which sensors are switched on.
        repository: All definitions of the code location; if None, there is no note.

    Returns:
        Which sensor it is, or a warning if none is switched on.
    """
    if automation != "host" or repository is None:
        return None
    # A sensor that watches one asset of the project usually watches all, so look up any of them.
    any_asset = project_defs.names.asset(shape_of(TOKENIZED).asset)
    is_on_by_sensor = condition_sensors(instance, repository, any_asset)
    for sensor, is_on in is_on_by_sensor.items():
        if is_on:
            return f"The sensor `{sensor}` builds everything downstream of new text."
    return _nothing_built_warning(is_on_by_sensor)


def _nothing_built_warning(sensors: Iterable[str]) -> str:
    """Return the warning for a project whose automation conditions no sensor evaluates.

    Args:
        sensors: Names of the sensors that could be switched on.
    """
    sensor_names = ", ".join(f"`{sensor}`" for sensor in sensors) or "one"
    return (
        "**Nothing is built automatically**: no sensor that evaluates automation conditions is on. "
        f"Switch on {sensor_names} on the page Automation; Dagster's default sensor is off at "
        "first."
    )


def _summary_sentences(totals: Mapping[str, Any], n_corpora: int) -> list[str]:
    """Return the totals over all corpora and outputs, in sentences.

    Args:
        totals: What `_totals` returns.
        n_corpora: The number of corpora.

    Returns:
        Such as ["**1,200 tokens** in 30 documents of 2 corpora; 8.00 MB of outputs.", "**12.0%** of
        the target of 10,000 tokens."]
    """
    corpora = "corpus" if n_corpora == 1 else "corpora"
    tokens = format_count(totals["tokens"], "token")
    documents = format_count(totals["documents"], "document")
    size = format_bytes(totals["size_bytes"])
    sentences = [f"**{tokens}** in {documents} of {n_corpora:,} {corpora}; {size} of outputs."]
    target = totals.get("token_target")  # nanoset.yaml may set one
    if target is not None:
        share = totals["tokens"] / target
        sentences.append(f"**{share:.1%}** of the target of {target:,} tokens.")
    return sentences


def _totals(project: Project, rows: Sequence[StatusRow]) -> dict[str, Any]:
    """Return the totals over all corpora and outputs, as numbers that Dagster plots over time.

    Args:
        project: The project, which may have a target of tokens.
        rows: All rows of `nanoset status`.

    Returns:
        Such as `{"tokens": 1200, "documents": 30, "size_bytes": 8000000}`, with the keys
        `token_target` and `target_reached` (a share) if there is a target.
    """
    corpora = [row for row in rows if row.kind == "corpus"]
    totals: dict[str, Any] = {
        "tokens": _sum_of("tokens", corpora),
        "documents": _sum_of("documents", corpora),
        "size_bytes": _sum_of("bytes", rows),
    }
    target = project.config.token_target
    if target is not None:
        totals["token_target"] = target
        totals["target_reached"] = round(totals["tokens"] / target, 4)
    return totals


def _sum_of(figure: str, rows: Iterable[StatusRow]) -> int:
    """Return the sum of a figure, such as tokens, over rows; those that lack it count as 0."""
    return sum(row.figures.get(figure, 0) for row in rows)


def _stale_rows(rows: Iterable[StatusRow]) -> list[dict[str, Any]]:
    """Return the rows of the table of outputs that are not up to date, each with the reasons.

    Args:
        rows: All rows of `nanoset status`.
    """
    table_rows: list[dict[str, Any]] = []
    for row in rows:
        if _is_stale(row):
            table_rows.append({"output": row.label, "state": row.state, "why": _reasons(row)})
    return table_rows


def _table_rows(
    rows: Iterable[StatusRow], counts: Sequence[str], seconds_by_row: Mapping[RowKey, float]
) -> list[dict[str, Any]]:
    """Return the rows of a table of outputs: counts, sizes and build times.

    Args:
        rows: The rows of `nanoset status` to show.
        counts: Names of the counts that the table shows, such as tokens.
        seconds_by_row: Row → how many seconds the builds of its current versions took.
    """
    table_rows: list[dict[str, Any]] = []
    for row in rows:
        cells = _count_cells(row, counts)
        seconds = seconds_by_row.get((row.kind, row.name, row.part))
        cells["seconds"] = "" if seconds is None else f"{seconds:,.1f}"
        table_rows.append(cells)
    return table_rows


def _count_cells(row: StatusRow, counts: Sequence[str]) -> dict[str, Any]:
    """Return the cells of a row with its name, counts and size; unknown ones are empty.

    Args:
        row: The row of `nanoset status`.
        counts: Names of the counts that the table shows, such as tokens.
    """
    figures = dict(row.figures)
    if "sequences" in figures:
        # The sequences of a packed dataset are what others call samples.
        figures["samples"] = figures["sequences"]

    label = row.name
    if row.part:  # such as the split of a nanoset
        label += f" {row.part}"
    cells: dict[str, Any] = {"name": label}
    for name in counts:
        count = figures.get(name)
        cells[name] = "" if count is None else f"{count:,}"
    size = figures.get("bytes")
    cells["size"] = "" if size is None else format_bytes(size)
    return cells


def _seconds_by_row(
    names: Names, instance: dg.DagsterInstance, nodes: Sequence[Node]
) -> Mapping[RowKey, float]:
    """Return how long the builds of the latest versions took, by row of `nanoset status`.

    Args:
        names: The names of the project in Dagster.
        instance: The instance of Dagster, for the history of materialisations.
        nodes: All outputs of the project.

    Returns:
        Row, such as ("nanoset", "pretrain", "train") → seconds.
    """
    seconds_by_row: dict[RowKey, float] = defaultdict(float)
    nodes_by_asset: dict[tuple[str, ...], list[Node]] = defaultdict(list)
    for node in nodes:
        nodes_by_asset[asset_path(node)].append(node)
    for asset, asset_nodes in nodes_by_asset.items():
        seconds_by_partition = _seconds_by_partition(instance, names.asset(asset))
        for node in asset_nodes:
            # Several outputs may share a row, such as all groups of tars: add up their times.
            partition = partition_of(node)
            if partition in seconds_by_partition:
                seconds_by_row[node.row] += seconds_by_partition[partition]
    return seconds_by_row


def _seconds_by_partition(
    instance: dg.DagsterInstance, asset: dg.AssetKey
) -> dict[str | None, float]:
    """Return how long the build of the latest version took, for each partition of an asset.

    Args:
        instance: The instance of Dagster, for the history of materialisations.
        asset: Key of the asset.

    Returns:
        Partition, or None for an asset without partitions → seconds. Partitions whose time was not
        recorded are left out.
    """
    # A version may have several events: one of the run that built it, and others of runs that found
    # it up to date after a moment. So collect all events of a partition.
    events_by_partition: dict[str | None, list[dg.AssetMaterialization]] = defaultdict(list)
    records = instance.fetch_materializations(asset, limit=_MAX_EVENTS).records
    for record in records:  # the latest first
        event = record.asset_materialization
        if event is not None and "seconds" in event.metadata:
            events_by_partition[event.partition].append(event)
    return {partition: _build_seconds(events) for partition, events in events_by_partition.items()}


def _build_seconds(events: Sequence[dg.AssetMaterialization]) -> float:
    """Return how long the build of the latest version of an output took, in seconds.

    The same version may be materialised several times. The longest run has built it; the others
    only found that it exists.

    Args:
        events: Materialisations of the output, the latest first.
    """
    versions = [(event.tags or {}).get(DATA_VERSION_TAG) for event in events]
    seconds_of_latest: list[float] = []
    for event, version in zip(events, versions, strict=True):
        if version == versions[0]:
            seconds_of_latest.append(float(str(event.metadata["seconds"].value)))
    return max(seconds_of_latest)


def _reader_rows(
    names: Names,
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition | None,
    nodes: Sequence[Node],
) -> list[dict[str, Any]]:
    """Return the rows of the table of readers: other teams' assets that depend on this project's.

    Each row shows from which version of the project's asset the reader was made.

    Args:
        names: The names of the project in Dagster.
        instance: The instance of Dagster, for the history of materialisations.
        repository: All definitions of the code location; None if they are unknown.
        nodes: All outputs of the project.
    """
    if repository is None:
        return []
    our_assets = {names.asset(asset_path(node)) for node in nodes}
    return [_reader_row(instance, reader) for reader in readers_of(repository, our_assets)]


def _reader_row(instance: dg.DagsterInstance, reader: Reader) -> dict[str, Any]:
    """Return the row of one asset that depends on an asset of this project.

    Args:
        instance: The instance of Dagster, for the history of materialisations.
        reader: The asset, and the project's asset that it depends on, which has no partitions.
    """
    source = reader.source.to_user_string()
    event = instance.get_latest_materialization_event(reader.key)
    # A materialisation has a tag with the data version of each input that existed.
    version_read = _tags_of(event).get(f"{INPUT_DATA_VERSION_TAG}/{source}")
    which_is = ""
    if version_read is not None:
        is_latest = version_read == _latest_version(instance, reader.source)
        which_is = "the latest" if is_latest else "an older one"
    return {
        "asset": reader.key.to_user_string(),
        "has_read": source,
        "version": version_read or "none yet",
        "which_is": which_is,
        "run": "" if event is None else event.run_id[:8],
    }


def _latest_version(instance: dg.DagsterInstance, asset: dg.AssetKey) -> str | None:
    """Return the data version of an asset without partitions; None if it was never materialised."""
    no_partition = None
    return latest_data_versions(instance, asset, {no_partition}).get(no_partition)


def _tags_of(event: dg.EventLogEntry | None) -> Mapping[str, str]:
    """Return the tags of a materialisation, empty if there is no such event."""
    if event is None or event.asset_materialization is None:
        return {}
    return event.asset_materialization.tags or {}


@dataclass(frozen=True, slots=True)
class Reader:
    """An asset of the host that depends on an asset of this project."""

    key: dg.AssetKey
    """The host's asset."""
    source: dg.AssetKey
    """The project's asset."""


def readers_of(repository: dg.RepositoryDefinition, our_keys: set[dg.AssetKey]) -> list[Reader]:
    """Return the assets outside this project that depend on its assets without partitions.

    Each partition has a version of its own, so there would be no single version that they read.

    Args:
        repository: All definitions of the code location.
        our_keys: The assets of this project.

    Returns:
        Pairs of another asset and the asset of this project that it depends on, such as the handoff
        of a nanoset.
    """
    graph = repository.asset_graph
    readers: list[Reader] = []
    for source in sorted(our_keys.intersection(graph.get_all_asset_keys())):
        asset = graph.get(source)
        if asset.partitions_def is None:
            for key in sorted(asset.child_keys - our_keys):
                readers.append(Reader(key, source))
    return readers
