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

from nanoset_assets.assets.output_names import (
    asset_path,
    label_of,
    nodes_by_asset,
    partition_of,
)
from nanoset_assets.assets.table import shape_of
from nanoset_assets.code_location.loaded import reload_notes
from nanoset_assets.dagster_compat import (
    DATA_VERSION_TAG,
    INPUT_DATA_VERSION_TAG,
    condition_sensors,
    has_failed_last_check,
    latest_data_versions,
)
from nanoset_assets.history.graph_state import outputs_with_failed_check
from nanoset_assets.names import Names
from nanoset_assets.project_defs import Automation, ProjectDefs
from nanoset_assets.tags import CHECK
from nanoset_assets.ui.metadata import markdown, table
from nanoset_core.outputs.failed_checks import FailedChecks
from nanoset_core.project.graph.nodes import requested_nodes
from nanoset_core.project.project import Project
from nanoset_core.project.purge.interrupted import interrupted_purges
from nanoset_core.project.status import StatusRow, project_status
from nanoset_core.stages.shards.stage import TOKENIZED
from nanoset_core.stages.stage import Node, RowName
from nanoset_core.untrusted import visible
from nanoset_core.wording import format_bytes, format_count

_CHECK_FAILED = "its last check has failed"
"""Why nothing is made of an output although it looks up to date."""
_MAX_EVENTS = 200
"""How many materialisations of an asset are read, the latest first, to find build times."""


@dataclass(frozen=True, slots=True)
class OverviewContent:
    """What the asset `overview` and its check show."""

    metadata: dict[str, Any]
    """Metadata of the asset's materialisation."""
    stale: list[str]
    """Each output that is not up to date, with the reasons."""
    warnings: list[str] = field(default_factory=list)
    """Other problems: nanoset.yaml is invalid, or changed after the definitions were loaded; or a
    purge was interrupted.
    """

    @property
    def verdict(self) -> dict[str, Any]:
        """The result of the check, as arguments of Dagster's `AssetCheckResult`.

        For example, if two outputs are out of date:

            passed         False
            severity       WARN
            description    "2 outputs missing or stale; the first: pretrain/train: …"
        """
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
    """Compare all outputs of a project with its settings, and arrange the result for Dagster's UI.

    It becomes one page for the whole project, which answers: how much text is there, what is out of
    date and why, and who reads the outputs? The page has these entries, in this order. Those
    without content are left out, except the first one and the numbers:

        summary           "**1,200 tokens** in 30 documents of 2 corpora; 8.00 MB of outputs."
        not_loaded        "nanoset.yaml has another nanoset 'pretrain' than is loaded: …"
        not_finished      "the purge of 2026-11-29 was interrupted, …"
        automation        "The sensor `builder` builds everything downstream of new text."
        not_up_to_date    a table: pretrain/train is stale, since files changed since it was built
        corpora           a table: documents, tokens, size and build time of each corpus
        made_of_them      a table: the same of data mixtures and other outputs
        read_by           a table of other teams' assets that read the outputs
        tokens, …         numbers that Dagster plots over time: 1200, …

    Args:
        project_defs: The names and settings of the project when Dagster loaded it.
        automation: What builds outputs that are out of date: sensors of the project, a sensor of
            the user, or nothing.
        project: The project with its present settings.
        instance: Dagster's instance, with the history of runs.
        repository: All assets in Dagster, also those of other teams; None if they are not known.

    Returns:
        What the page shows, and what its check warns of.

    Raises:
        NanosetError: The outputs or the raw text cannot be read.
    """
    # The rows of the command `nanoset status`. A row is one output, or several that belong
    # together. Folders of raw text that are ignored, since they contain no text, also have a row.
    rows = list(project_status(project))
    corpora = [row.name for row in rows if row.row_name.is_corpus]
    outputs = list(requested_nodes(project.config, corpora))
    faulty = _outputs_found_faulty(project_defs.names, instance, project, outputs)

    config_warnings = reload_notes(project_defs.config, project.config)
    purge_warnings = [str(purge) for purge in interrupted_purges(project.outputs)]
    note = automation_note(project_defs, automation, instance, repository)
    messages_by_entry = {
        "not_loaded": config_warnings,
        "not_finished": purge_warnings,
        "automation": [note] if note else [],
    }

    stale = _stale_lines(rows, faulty)
    totals = _totals(project, rows)  # tokens, documents, size_bytes, …
    metadata: dict[str, Any] = {"summary": markdown(*_summary_sentences(totals, len(corpora)))}
    for entry, messages in messages_by_entry.items():
        if messages:
            metadata[entry] = markdown(*messages)
    metadata |= _tables(project_defs.names, outputs, instance, repository, rows, faulty)
    metadata |= totals
    metadata["outputs_not_up_to_date"] = len(stale)
    return OverviewContent(metadata, stale, [*config_warnings, *purge_warnings])


def _is_stale(row: StatusRow) -> bool:
    """Return whether an output is not up to date.

    Args:
        row: What the command `nanoset status` says about the output. A folder that contains no text
            also has such a row, with the state "not read". It is no output, so it cannot be out of
            date.
    """
    return bool(row.why) and row.state != "not read"


def _outputs_found_faulty(
    names: Names, instance: dg.DagsterInstance, project: Project, nodes: Iterable[Node]
) -> list[str]:
    """Return the labels of the outputs whose last check has found errors, as only Dagster knows.

    Since a check records its errors below the root, `nanoset status` lists such outputs, too. These
    are left out here. Checks of nanoset 0.2.0 and before are only in Dagster's history.

    Such an output may look up to date, but its files are damaged, so that it has to be rebuilt. Or
    nothing may be made of it, for example since train contains held-out documents.

    Args:
        names: Knows the names of the project in Dagster.
        instance: Dagster's instance, which has the results of checks.
        project: The project, whose root has the records.
        nodes: The outputs to look up.

    Returns:
        Such as ["indexed_dataset [web]"], sorted.
    """
    recorded_outputs = FailedChecks.read(project.outputs).version_by_output
    labels: list[str] = []
    # A single query finds the failed checks, usually none, and those that have not ended.
    for node in outputs_with_failed_check(nodes, instance, names):
        if (node.stage.layout.folder, node.name) in recorded_outputs:
            continue
        if _has_check_ended(node, instance, names):
            labels.append(label_of(node))
    return sorted(labels)


def _has_check_ended(node: Node, instance: dg.DagsterInstance, names: Names) -> bool:
    """Return whether the failed check of an output has ended.

    If it has not ended, a run may be making the output now. This takes a query for each output.

    Args:
        node: An output whose last check has failed or has not ended.
        instance: Dagster's instance, which has the results of checks.
        names: Knows the names of the project in Dagster.
    """
    check = dg.AssetCheckKey(names.asset(asset_path(node)), CHECK)
    return has_failed_last_check(instance, check, partition_of(node))


def _tables(
    names: Names,
    nodes: Sequence[Node],
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition | None,
    rows: Sequence[StatusRow],
    faulty: Iterable[str],
) -> dict[str, Any]:
    """Return the tables of the page that shows the state of the whole project.

    Tables without rows are left out:

        not_up_to_date    outputs that have to be made or whose check has failed, and why
        corpora           the collections of documents, with their numbers of documents and tokens
        made_of_them      the outputs that are made of these, such as data mixtures
        read_by           assets of other teams that are made from outputs of this project

    Args:
        names: Knows the names of the project in Dagster.
        nodes: All outputs of the project.
        instance: Dagster's instance, with the history of runs.
        repository: All assets in Dagster; None if they are not known.
        rows: What the command `nanoset status` says about each output. A row of the kind "folder"
            is a folder that is not read, and no output.
        faulty: Labels of outputs whose last check has found errors.
    """
    corpora = [row for row in rows if row.row_name.is_corpus]
    other_outputs = [row for row in rows if row.kind not in ("corpus", "folder")]
    seconds_by_row = _seconds_by_row(names, instance, nodes)
    rows_by_table = {
        "not_up_to_date": [*_stale_rows(rows), *_faulty_rows(faulty)],
        "corpora": _table_rows(corpora, ("documents", "tokens"), seconds_by_row),
        "made_of_them": _table_rows(other_outputs, ("samples", "tokens"), seconds_by_row),
        "read_by": _reader_rows(names, instance, repository, nodes),
    }
    tables: dict[str, Any] = {}
    for name, table_rows in rows_by_table.items():
        if table_rows:
            tables[name] = table(table_rows, len(table_rows))
    return tables


def _stale_lines(rows: Iterable[StatusRow], faulty: Iterable[str]) -> list[str]:
    """Return a line for each output that is not up to date, or whose check has failed.

    For example, ["nanoset pretrain train: seed: 7 → 8", "indexed_dataset [web]: its last check has
    failed"].

    Args:
        rows: What the command `nanoset status` says about each output.
        faulty: Labels of outputs whose last check has found errors.
    """
    lines = [_stale_line(row) for row in rows if _is_stale(row)]
    lines += [f"{label}: {_CHECK_FAILED}" for label in faulty]
    return lines


def _stale_line(row: StatusRow) -> str:
    """Return a line that says which output is not up to date, and why.

        nanoset pretrain train: seed: 7 → 8
        corpus web: being built (1 file added (c.jsonl); tokenized_shards 42%, on host-a)

    Args:
        row: What the command `nanoset status` says about the output. If it is being built, the last
            reason in `why` says what the build does.
    """
    if row.state == "being built":
        return f"{row.label}: being built ({_reasons(row)})"
    return f"{row.label}: {_reasons(row)}"


def _reasons(row: StatusRow) -> str:
    """Return why an output is not up to date, in one line.

    Args:
        row: What the command `nanoset status` says about it. `why` has the reasons, such as ["the
            weight of `web` was changed"].
    """
    return "; ".join(row.why)


def automation_note(
    project_defs: ProjectDefs,
    automation: Automation,
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition | None,
) -> str | None:
    """Say which sensor of Dagster builds the outputs; warn if it is switched off.

    A team may let one sensor build the assets of all its projects (`automation` is then "host").
    Dagster creates such a sensor, but switched off, and users forget to switch it on.

    Args:
        project_defs: The names and settings of the project in Dagster.
        automation: What builds the outputs. If it is not "host", there is nothing to say.
        instance: Dagster's instance, which knows the sensors that are switched on.
        repository: All assets and sensors in Dagster; None if they are not known.

    Returns:
        The sentence, as Markdown, or None.
    """
    if automation != "host" or repository is None:
        return None
    # The sensors that build a certain asset: name → whether it is on. Take any asset of the
    # project, since a sensor usually builds all or none of them.
    any_asset = project_defs.names.asset(shape_of(TOKENIZED).asset)
    is_on_by_sensor = condition_sensors(instance, repository, any_asset)
    for sensor, is_on in is_on_by_sensor.items():
        if is_on:
            return f"The sensor `{sensor}` builds everything downstream of new text."
    return _nothing_built_warning(is_on_by_sensor)


def _nothing_built_warning(sensors: Iterable[str]) -> str:
    """Return the warning that outputs are never built, since the sensor for it is switched off.

    For example: "**Nothing is built automatically**: … Switch on
    `default_automation_condition_sensor` on the page Automation; …".

    Args:
        sensors: Names of the sensors that a user could switch on. If there are none, one has to be
            created.
    """
    sensor_names = ", ".join(f"`{sensor}`" for sensor in sensors) or "one"
    return (
        "**Nothing is built automatically**: no sensor that evaluates automation conditions is on. "
        f"Switch on {sensor_names} on the page Automation; Dagster's default sensor is off at "
        "first."
    )


def _summary_sentences(totals: Mapping[str, Any], n_corpora: int) -> list[str]:
    """Say how much text the whole project has, and how much of the planned text this is.

    For example:

        **1,200 tokens** in 30 documents of 2 corpora; 8.00 MB of outputs.
        **12.0%** of the target of 10,000 tokens.          (if the settings have a target)

    Args:
        totals: The numbers, such as `{"tokens": 1200, "documents": 30, "size_bytes": 8000000,
            "token_target": 10000}`.
        n_corpora: How many corpora (collections of documents) there are.
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
    """Add up the text and the outputs of the whole project, for plots over time.

    For example, for two corpora (collections of documents) of 700 and 500 tokens:

        {"tokens": 1200, "documents": 30, "size_bytes": 8000000}

    If the settings have a target of 10,000 tokens, also `{"token_target": 10000, "target_reached":
    0.12}`.

    Args:
        project: Has the settings.
        rows: What the command `nanoset status` says about each output.
    """
    corpora = [row for row in rows if row.row_name.is_corpus]
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
    """Return the sum of a count, such as "tokens", over some outputs.

    Args:
        figure: Name of the count.
        rows: What the command `nanoset status` says about the outputs. One that is not built yet
            has no counts, and adds nothing.
    """
    return sum(row.figures.get(figure, 0) for row in rows)


def _stale_rows(rows: Iterable[StatusRow]) -> list[dict[str, Any]]:
    """Return the table of the outputs that are not up to date, with the reasons.

        output            state      why
        pretrain/train    stale      files changed since it was built
        news              missing    not built yet

    Args:
        rows: What the command `nanoset status` says about each output.
    """
    table_rows: list[dict[str, Any]] = []
    for row in rows:
        if _is_stale(row):
            table_rows.append({"output": row.label, "state": row.state, "why": _reasons(row)})
    return table_rows


def _faulty_rows(labels: Iterable[str]) -> list[dict[str, Any]]:
    """Return rows like those of `_stale_rows` for outputs whose last check has found errors.

    Args:
        labels: The labels of the outputs, such as "indexed_dataset [web]".
    """
    return [{"output": label, "state": "check failed", "why": _CHECK_FAILED} for label in labels]


def _table_rows(
    rows: Iterable[StatusRow], counts: Sequence[str], seconds_by_row: Mapping[RowName, float]
) -> list[dict[str, Any]]:
    """Return a table of outputs: what they contain, and how long it took to build them.

        kind       name    tokens       size       seconds
        packed     web     1,234,567    2.47 MB    12.3
        columns    web                  800 kB                 (the time is not known)

    Several kinds of outputs may have the same name. The table of the corpora has no column `kind`.

    Args:
        rows: What the command `nanoset status` says about the outputs.
        counts: The columns with counts: in the example, "tokens".
        seconds_by_row: How long it took to build the current version of each output.
    """
    table_rows: list[dict[str, Any]] = []
    for row in rows:
        cells: dict[str, Any] = {**_name_cells(row), **_count_cells(row, counts)}
        seconds = seconds_by_row.get(row.row_name)
        cells["seconds"] = "" if seconds is None else f"{seconds:,.1f}"
        table_rows.append(cells)
    return table_rows


def _name_cells(row: StatusRow) -> dict[str, str]:
    """Return how a table names an output.

        train split of the mixture `pretrain`    {"kind": "nanoset", "name": "pretrain train"}
        text collection (corpus) `web`           {"name": "web"}

    Args:
        row: What the command `nanoset status` says about the output.
    """
    name = f"{row.name} {row.part}" if row.part else row.name
    if row.kind == "corpus":
        return {"name": name}
    return {"kind": row.kind, "name": name}


def _count_cells(row: StatusRow, counts: Sequence[str]) -> dict[str, str]:
    """Return what a table shows of an output: its counts and its size.

    For example, `{"samples": "1,000", "tokens": "2,048,000", "size": "8.00 kB"}`. A count that is
    not known is an empty text.

    Args:
        row: What the command `nanoset status` says about the output.
        counts: Names of the counts to show: in the example, "samples" and "tokens".
    """
    figures = dict(row.figures)
    if "sequences" in figures:
        # What a packed dataset counts as sequences are samples in the words of the table.
        figures["samples"] = figures["sequences"]

    cells: dict[str, str] = {}
    for name in counts:
        count = figures.get(name)
        cells[name] = "" if count is None else f"{count:,}"
    size = figures.get("bytes")
    cells["size"] = "" if size is None else format_bytes(size)
    return cells


def _seconds_by_row(
    names: Names, instance: dg.DagsterInstance, nodes: Iterable[Node]
) -> Mapping[RowName, float]:
    """Return how long it took to build each output, by its row in a table of all outputs.

    Some outputs share a row, such as the groups of files of one dataset. Their times are added up.

    Args:
        names: Knows the names of the project in Dagster.
        instance: Dagster's instance, with the history of runs.
        nodes: All outputs of the project.

    Returns:
        Row, such as ("nanoset", "pretrain", "train") → seconds.
    """
    seconds_by_row: dict[RowName, float] = defaultdict(float)
    for asset, outputs in nodes_by_asset(nodes).items():
        # Dagster records the time of each partition of an asset, such as a split.
        seconds_by_partition = _seconds_by_partition(instance, names.asset(asset))
        for output in outputs:
            partition = partition_of(output)
            if partition in seconds_by_partition:
                seconds_by_row[output.row] += seconds_by_partition[partition]
    return seconds_by_row


def _seconds_by_partition(
    instance: dg.DagsterInstance, asset: dg.AssetKey
) -> dict[str | None, float]:
    """Return how long it took to build the current version of each partition of a Dagster asset.

    For example, the asset of all datasets has a partition for each collection of documents:
    `{"web": 12.3, "books": 4.5}`. An asset without partitions has one entry: `{None: 12.3}`.

    Args:
        instance: Dagster's instance, with the history of runs.
        asset: The key of the asset.

    Returns:
        Partition → seconds. Partitions whose time was not recorded are left out.
    """
    timed_events = _timed_events_by_partition(instance, asset)
    return {partition: _build_seconds(events) for partition, events in timed_events.items()}


def _timed_events_by_partition(
    instance: dg.DagsterInstance, asset: dg.AssetKey
) -> Mapping[str | None, list[dg.AssetMaterialization]]:
    """Return what Dagster has recorded of runs that say how many seconds they have taken.

    Args:
        instance: Dagster's instance, with the history of runs.
        asset: The key of the asset that the runs have made.

    Returns:
        Partition of the asset → records of the runs that have made it, the latest first. Only the
        latest of the asset are read (_MAX_EVENTS).
    """
    events_by_partition: dict[str | None, list[dg.AssetMaterialization]] = defaultdict(list)
    for record in instance.fetch_materializations(asset, limit=_MAX_EVENTS).records:
        event = record.asset_materialization
        if event is not None and "seconds" in event.metadata:
            events_by_partition[event.partition].append(event)
    return events_by_partition


def _build_seconds(events: Sequence[dg.AssetMaterialization]) -> float:
    """Return how long it took to build the current version of an output.

    There may be several runs for the same version. The first has built it, and the others only
    noticed, in a moment, that it exists. So the longest time is that of the build:

        run              version    seconds
        today            5f0c       0.2
        yesterday        5f0c       12.3      this one has built the current version
        last week        81ab       40.0      an older version

    Args:
        events: What Dagster has recorded of the runs, the latest first.
    """
    versions = [(event.tags or {}).get(DATA_VERSION_TAG) for event in events]
    current_version = versions[0]
    seconds_of_current: list[float] = []
    for event, version in zip(events, versions, strict=True):
        if version == current_version:
            seconds_of_current.append(float(str(event.metadata["seconds"].value)))
    return max(seconds_of_current)  # [0.2, 12.3] gives 12.3


def _reader_rows(
    names: Names,
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition | None,
    nodes: Sequence[Node],
) -> list[dict[str, Any]]:
    """Return a table of other teams' assets that read this project's outputs.

    By it, one sees who still uses an old version:

        asset         has_read            version    which_is        run
        eval/train    pretrain/handoff    5f0c       the latest      1a2b3c4d
        old/train     pretrain/handoff    81ab       an older one    5e6f7a8b

    Args:
        names: Knows the names of the project in Dagster.
        instance: Dagster's instance, with the history of runs.
        repository: All assets in Dagster; if None, they are not known, and the table is empty.
        nodes: All outputs of the project.
    """
    if repository is None:
        return []
    our_assets = {names.asset(asset_path(node)) for node in nodes}
    return [_reader_row(instance, reader) for reader in readers_of(repository, our_assets)]


def _reader_row(instance: dg.DagsterInstance, reader: Reader) -> dict[str, Any]:
    """Say which version of an output another team's asset has read, as a row of a table.

    For example, `{"asset": "eval/train", "has_read": "pretrain/handoff", "version": "5f0c",
    "which_is": "the latest", "run": "1a2b3c4d"}`.

    Args:
        instance: Dagster's instance, with the history.
        reader: The other team's asset, and which of this project's assets it reads.
    """
    source = reader.source.to_user_string()
    # When Dagster builds an asset, it records the version of each input in a tag.
    event = instance.get_latest_materialization_event(reader.key)  # None if it was never built
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
    """Return the assets of other teams that depend on assets of this project.

    Only project assets without partitions are considered, such as the files for a trainer.
    Partitions of an asset have different versions, so one could not say which version was read.

    Args:
        repository: All assets in Dagster.
        our_keys: The keys of this project's assets.

    Returns:
        For each dependency: the other team's asset, and the project's asset that it depends on.
    """
    graph = repository.asset_graph
    readers: list[Reader] = []
    for source in sorted(our_keys.intersection(graph.get_all_asset_keys())):
        asset = graph.get(source)
        if asset.partitions_def is None:
            for key in sorted(asset.child_keys - our_keys):
                readers.append(Reader(key, source))
    return readers
