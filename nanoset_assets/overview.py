"""The asset `overview`: a whole project on one page.

It builds nothing, and shows stale outputs under every setting of `automation`.
"""

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import dagster as dg

from nanoset_assets.asset_names import asset_path
from nanoset_assets.dagster_compat import latest_runs, repository_of
from nanoset_assets.hosted import Automation, ProjectDefs, tick_result
from nanoset_assets.project_look import Look, condition_note, look, readers_of
from nanoset_assets.stage_assets import GROUP
from nanoset_assets.tags import LOADED
from nanoset_assets.ui.metadata import failure
from nanoset_core.errors import NanosetError, one_line
from nanoset_core.project.graph import requested_nodes
from nanoset_core.project.project import Project
from nanoset_core.records.parsing import CONFIG_FILE

OVERVIEW = "overview"
"""The name of the asset, and of the sensor that keeps it up to date."""
CHECK = "up_to_date"
"""The name of its check, which warns of outputs that are not what the files, settings and code of
today ask for.
"""
SECONDS = 60
"""Between two ticks, at least: each asks Dagster's history and reads nanoset.yaml."""
LOOK_SECONDS = 3600
"""Between two looks if nothing seems to have changed: each compares all outputs, as `nanoset
status` does.
"""
_NAMED = 3
"""Stale outputs that the log of a tick names."""
_UNLOADABLE = "unloadable"
_DESCRIPTION = (
    "The whole project on one page: tokens, outputs, what is stale and why, and who has read what."
)


@dataclass(frozen=True, slots=True)
class _Cursor:
    """What the sensor remembers of earlier ticks."""

    seen: str = ""
    """Digest of what shows changes."""
    looked_at: float = 0.0
    """When all outputs were compared last, seconds since 1970."""
    reported: str = ""
    """Digest of what was reported last."""

    @staticmethod
    def parse(text: str | None) -> "_Cursor":
        fields = (text or "").split()
        if len(fields) != 3:
            return _Cursor()
        return _Cursor(fields[0], float(fields[1]), fields[2])

    def __str__(self) -> str:
        return f"{self.seen} {int(self.looked_at)} {self.reported}"


def overview_asset(hosted: ProjectDefs, automation: Automation) -> dg.AssetsDefinition:
    """Make the asset; if it is materialised by hand, it looks at once."""
    key = hosted.names.asset(OVERVIEW)

    @dg.asset(
        key=key,
        group_name=hosted.names.group(GROUP),
        check_specs=[
            dg.AssetCheckSpec(
                CHECK, asset=key, description="Warns of what is missing or stale, and why."
            )
        ],
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
    options = hosted.sensor_options(OVERVIEW)
    options["minimum_interval_seconds"] = max(SECONDS, options["minimum_interval_seconds"])

    @dg.sensor(
        description=f"Keeps {key.to_user_string()} up to date, and builds nothing.", **options
    )
    def overview(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        before = _Cursor.parse(context.cursor)
        now = time.time()
        try:
            project = hosted.load()
        except NanosetError as error:
            return _unloadable(context, key, error, before)

        # Do not look again if nothing that is quick to ask about has changed.
        seen = _change_digest(hosted, automation, project, context.instance, context.repository_def)
        if seen == before.seen and now - before.looked_at < LOOK_SECONDS:
            return tick_result(context, [], [], "no run, setting or corpus has changed")

        result = look(hosted, automation, project, context.instance, context.repository_def)
        reported = _digest((result.metadata, result.stale, result.warnings))
        cursor = str(_Cursor(seen, now, reported))
        if reported == before.reported:
            return tick_result(context, [], [], "nothing has changed", cursor=cursor)
        events = [
            dg.AssetMaterialization(key, metadata=result.metadata),
            dg.AssetCheckEvaluation(key, CHECK, **result.verdict),
        ]
        notes = [*result.warnings, *result.stale[:_NAMED]]
        return tick_result(context, [], notes, "reported", cursor=cursor, asset_events=events)

    return overview


def _unloadable(
    context: dg.SensorEvaluationContext, key: dg.AssetKey, error: NanosetError, before: _Cursor
) -> dg.SensorResult:
    """Return the tick of a project whose nanoset.yaml is invalid.

    The sensor logs each error once.
    """
    warning = f"{CONFIG_FILE} cannot be loaded, so nothing is built: {one_line(error)}"
    result = Look({}, [], [warning])
    reported = _digest(str(error))
    if reported == before.reported:
        return tick_result(context, [], result.warnings, "")
    # Without the digest of what was seen, the next tick that can load the file looks again.
    cursor = str(_Cursor(_UNLOADABLE, 0, reported))
    event = dg.AssetCheckEvaluation(key, CHECK, **result.verdict)
    return tick_result(context, [], result.warnings, "", cursor=cursor, asset_events=[event])


def _change_digest(
    hosted: ProjectDefs,
    automation: Automation,
    project: Project,
    instance: dg.DagsterInstance,
    repository: dg.RepositoryDefinition | None,
) -> str:
    """Return a digest of what shows changes without looking at outputs.

    These are settings, corpora, the runs of our assets and of those that depend on them, and the
    state of sensors that evaluate conditions.
    """
    names = hosted.names
    keys = {names.asset(asset_path(node)) for node in requested_nodes(project.config)}
    if repository is not None:
        keys.update([reader.key for reader in readers_of(repository, keys)])
    runs = latest_runs(instance, sorted(keys))
    corpora = instance.get_dynamic_partitions(names.corpora_name)
    note = condition_note(hosted, automation, instance, repository)
    return _digest((LOADED, project.config, corpora, runs, note))


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()
