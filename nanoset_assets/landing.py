"""Assets of others that land raw text: when one was materialised, the corpora that depend on it are built at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import dagster as dg

from nanoset_assets.dagster_compat import latest_materializations, latest_planned
from nanoset_assets.hosted import ProjectDefs
from nanoset_assets.instance_state import UnderWay, register
from nanoset_assets.raw_text_sensor import MOST_REQUESTS
from nanoset_assets.raw_text_sensor import SENSOR as RAW
from nanoset_core.pipeline import raw

SENSOR = "landed"
SECONDS = 5
"""Between two looks for events; the raw folder is read only when something has landed."""
LANDED_TAG = ".dagster/nanoset_landed"
"""On runs that an asset of others caused. Dagster shows no tags of this prefix."""


def landing_sensor(hosted: ProjectDefs, job: Any) -> dg.SensorDefinition:
    """Make the sensor over assets that land text; `job` builds one corpus."""
    names, spec = hosted.names, hosted.config.automation
    assets = list(dict.fromkeys(key for keys in hosted.upstream.values() for key in keys))

    @dg.sensor(
        name=names.definition(SENSOR),
        job=job,
        minimum_interval_seconds=min(SECONDS, spec.sensor_seconds),
        default_status=dg.DefaultSensorStatus.RUNNING if spec.enabled else dg.DefaultSensorStatus.STOPPED,
        description=f"Has a corpus built when what lands its text was materialised: "
        f"{', '.join(key.to_user_string() for key in assets)}.",
    )
    def landed(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        instance, handled = context.instance, _handled(context.cursor)
        events = latest_materializations(instance, assets)
        newest = {
            corpus: max((events[key] for key in keys if key in events), default=0)
            for corpus, keys in hosted.upstream.items()
        }
        inventory = names.asset(raw.INVENTORY.asset)
        due = {
            corpus: event
            for corpus, event in newest.items()
            # A run that began after the event takes its text, whatever asked for that run.
            if event > handled.get(corpus, 0) and event > latest_planned(instance, inventory, corpus)[1]
        }
        if not due:
            return dg.SensorResult(skip_reason=f"nothing has landed since the last look ({len(assets):,} assets)")
        runs = UnderWay(instance, names)
        busy, writing = hosted.corpora_under_way(runs), hosted.being_landed(runs)
        free = [corpus for corpus in due if corpus not in busy and corpus not in writing][:MOST_REQUESTS]
        project = hosted.load()
        there = raw.scan(project).corpora if free else {}
        notes = [f"{corpus}: a run is under way, another follows it" for corpus in due if corpus in busy]
        notes += [f"{corpus}: waits until {writing[corpus]} has ended" for corpus in due if corpus in writing]
        notes += [
            f"{corpus}: what lands it was made, but there is no text in {project.config.raw}; {RAW} waits for it"
            for corpus in free
            if corpus not in there
        ]
        handled |= {corpus: due[corpus] for corpus in free}
        requests = [_request(names.tag(LANDED_TAG), corpus, due[corpus]) for corpus in free if corpus in there]
        for note in notes:
            context.log.info(note)
        register(instance, names, [str(request.partition_key) for request in requests])
        return dg.SensorResult(requests, skip_reason=None if requests else "; ".join(notes), cursor=json.dumps(handled))

    return landed


def _request(tag: str, corpus: str, event: int) -> dg.RunRequest:
    return dg.RunRequest(f"{corpus}:{event}", partition_key=corpus, tags={tag: f"{corpus}:{event}"})


def _handled(cursor: str | None) -> dict[str, int]:
    """Read corpus → the latest event of which it was built; a cursor of another sensor counts as none."""
    try:
        value: Mapping[str, Any] = json.loads(cursor or "{}")
        return {corpus: int(event) for corpus, event in value.items()}
    except (ValueError, TypeError, AttributeError):
        return {}
