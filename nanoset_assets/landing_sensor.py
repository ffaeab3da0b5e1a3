"""The sensor over your assets that land text.

It requests a build of a corpus as soon as its text has landed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg

from nanoset_assets.active_runs import ActiveRuns
from nanoset_assets.asset_table import shape_of
from nanoset_assets.dagster_compat import latest_materializations, latest_planned
from nanoset_assets.hosted import ProjectDefs, tick_result
from nanoset_assets.partition_sets import register
from nanoset_assets.raw_text_sensor import SENSOR as RAW_TEXT_SENSOR
from nanoset_assets.tags import MAX_REQUESTS
from nanoset_core.stages.inventory.corpora import scan_corpora
from nanoset_core.stages.inventory.stage import INVENTORY

SENSOR = "landed"
LANDED_TAG = ".dagster/nanoset_landed"
"""On runs that an asset of the host caused. Dagster shows no tags of this prefix."""
LANDED_SECONDS = 5
"""Between two looks for events. The raw folder is read only after something has landed."""


def landing_sensor(hosted: ProjectDefs, job: Any) -> dg.SensorDefinition:
    """Make the sensor over assets of the host that land text.

    Args:
        hosted: The project.
        job: Builds one corpus.
    """
    names = hosted.names
    assets = list(dict.fromkeys(key for keys in hosted.upstream.values() for key in keys))
    asset_names = ", ".join(key.to_user_string() for key in assets)

    @dg.sensor(
        job=job,
        description=f"Has a corpus built when what lands its text was materialised: {asset_names}.",
        **hosted.sensor_options(SENSOR, LANDED_SECONDS),
    )
    def landed(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        instance = context.instance
        # The cursor: corpus → the latest event that led to a request.
        handled: dict[str, int] = json.loads(context.cursor or "{}")
        due = _landed_since(instance, hosted, assets, handled)
        nothing = f"nothing has landed since the last look ({len(assets):,} assets)"
        if not due:
            return dg.SensorResult(skip_reason=nothing)

        # Corpora that cannot be built yet; they stay due, so that the next tick looks at them
        # again.
        active_runs = ActiveRuns(instance, names, hosted.upstream)
        waiting_reasons: dict[str, str] = {}
        for corpus, asset in active_runs.landing.items():
            waiting_reasons[corpus] = f"waits until {asset} has ended"
        for corpus in active_runs.corpora:
            waiting_reasons[corpus] = "a run is under way, another follows it"
        candidates = [corpus for corpus in due if corpus not in waiting_reasons][:MAX_REQUESTS]

        # Corpora whose upstream asset was materialised although their folder holds no text.
        project = hosted.load()
        corpora_with_text = scan_corpora(project).corpora if candidates else {}
        for corpus in candidates:
            if corpus not in corpora_with_text:
                waiting_reasons[corpus] = (
                    f"what lands it was made, but there is no text in {project.config.raw}; "
                    f"{RAW_TEXT_SENSOR} waits for it"
                )

        corpora = [corpus for corpus in candidates if corpus in corpora_with_text]
        register(instance, names, corpora, project.config)
        requests: list[dg.RunRequest] = []
        for corpus in corpora:
            run_key = f"{corpus}:{due[corpus]}"
            tags = {names.tag(LANDED_TAG): run_key}
            requests.append(dg.RunRequest(run_key, partition_key=corpus, tags=tags))

        notes = [
            f"{corpus}: {waiting_reasons[corpus]}" for corpus in due if corpus in waiting_reasons
        ]
        for corpus in candidates:
            handled[corpus] = due[corpus]
        return tick_result(context, requests, notes, nothing, cursor=json.dumps(handled))

    return landed


def _landed_since(
    instance: dg.DagsterInstance,
    hosted: ProjectDefs,
    assets: Sequence[dg.AssetKey],
    handled: Mapping[str, int],
) -> dict[str, int]:
    """Return the latest landing event of each corpus that has not been built since.

    Args:
        instance: The instance.
        hosted: The project.
        assets: Those that land text.
        handled: Corpus → the latest event that is handled.
    """
    event_by_asset = latest_materializations(instance, assets)
    inventory = hosted.names.asset(shape_of(INVENTORY).asset)
    due: dict[str, int] = {}
    for corpus, keys in hosted.upstream.items():
        event = max(event_by_asset.get(key, 0) for key in keys)
        if event <= handled.get(corpus, 0):
            continue
        last_planned = latest_planned(instance, inventory, corpus)
        if event > last_planned.storage_id:
            due[corpus] = event
    return due
