"""Assets of others that land raw text: when one was materialised, the corpora that depend on it are built at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import dagster as dg

from nanoset_assets.dagster_compat import latest_materializations
from nanoset_assets.hosted import HostedProject
from nanoset_assets.registration import register
from nanoset_core.pipeline import raw

SENSOR = "landed"
SECONDS = 5
"""Between two looks at the history; the raw folder is read only when something has landed."""
LANDED_TAG = ".dagster/nanoset_landed"
"""On runs that an asset of others caused. Dagster shows no tags of this prefix."""


def landing_sensor(hosted: HostedProject, job: Any) -> dg.SensorDefinition:
    """The sensor over assets that land text; `job` builds one corpus."""
    names, spec = hosted.names, hosted.config.automation
    assets = list(dict.fromkeys(key for keys in hosted.upstream.values() for key in keys))

    @dg.sensor(
        name=names.unit(SENSOR),
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
        due = {corpus: event for corpus, event in newest.items() if event > handled.get(corpus, 0)}
        if not due:
            return dg.SensorResult(skip_reason=f"nothing has landed since the last look ({len(assets):,} assets)")
        project, under_way = hosted.open(), hosted.corpora_under_way(instance)
        there = raw.scan(project).corpora
        requests, notes = [], []
        for corpus, event in due.items():
            if corpus not in there:
                notes.append(f"{corpus}: what lands it was materialised, but there is no text in {project.config.raw}")
            elif corpus in under_way:
                notes.append(f"{corpus}: a run is under way, another follows it")
            else:
                requests.append(_request(names.tag(LANDED_TAG), corpus, event))
                handled[corpus] = event
        for note in notes:
            context.log.info(note)
        register(project, names, instance, [str(request.partition_key) for request in requests])
        return dg.SensorResult(
            requests,
            skip_reason=None if requests else "; ".join(notes),
            cursor=json.dumps(handled),
        )

    return landed


def _request(tag: str, corpus: str, event: int) -> dg.RunRequest:
    return dg.RunRequest(f"{corpus}:{event}", partition_key=corpus, tags={tag: f"{corpus}:{event}"})


def _handled(cursor: str | None) -> dict[str, int]:
    """Corpus → the latest event of which it was built; of anything else than a cursor of ours, nothing."""
    try:
        value: Mapping[str, Any] = json.loads(cursor or "{}")
        return {corpus: int(event) for corpus, event in value.items()}
    except (ValueError, TypeError, AttributeError):
        return {}
