"""The sensor that watches the host's assets that write raw text ("land" it).

It requests a build of a corpus as soon as such an asset has been materialised, without waiting for
the files to settle as the sensor over the raw folder does. For example, when the asset `crawl`,
which writes the files of the corpus `web`, has run, a build of `web` is requested.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import dagster as dg

from nanoset_assets.assets.partition_sets import register
from nanoset_assets.assets.table import shape_of
from nanoset_assets.automation.active_runs import ActiveRuns
from nanoset_assets.automation.cursors import LandingCursor, cursor_text, read_cursor
from nanoset_assets.automation.raw_text_sensor import SENSOR as RAW_TEXT_SENSOR
from nanoset_assets.automation.ticks import tick_result
from nanoset_assets.dagster_compat import latest_materializations, latest_planned
from nanoset_assets.names import Names
from nanoset_assets.project_defs import ProjectDefs
from nanoset_assets.tags import MAX_REQUESTS
from nanoset_core.project.project import Project
from nanoset_core.stages.inventory.corpora import scan_corpora
from nanoset_core.stages.inventory.stage import INVENTORY

SENSOR = "landed"
"""Name of the sensor, without the project's prefix."""
LANDED_TAG = ".dagster/nanoset_landed"
"""Tag of runs that this sensor requested. The UI hides tags with the prefix `.dagster/`."""
LANDED_SECONDS = 5
"""Longest interval between two ticks. A tick reads the raw folder only if text has landed."""


def landing_sensor(project_defs: ProjectDefs, job: Any) -> dg.SensorDefinition:
    """Make a sensor that builds a text collection as soon as another asset has written its text.

    A sensor is a function that Dagster calls every few seconds. For example, a user's Dagster asset
    `crawl` downloads the text of the collection (corpus) `web`. After a run of `crawl`, the text is
    complete, so that this sensor can request a build of `web` at once.

    Args:
        project_defs: The names and settings of the project in Dagster. `upstream` says which assets
            write which text, such as `{"web": (AssetKey("crawl"),)}`.
        job: The job that builds a corpus.
    """
    assets = _landing_assets(project_defs)
    asset_names = ", ".join(asset.to_user_string() for asset in assets)

    @dg.sensor(
        job=job,
        description=f"Builds a corpus when an asset that lands its text is materialised: "
        f"{asset_names}.",
        **project_defs.sensor_options(SENSOR, LANDED_SECONDS),
    )
    def landed(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        """Request a build of each corpus whose text has been written since the last call."""
        return _evaluate(context, project_defs, assets)

    return landed


def _evaluate(
    context: dg.SensorEvaluationContext, project_defs: ProjectDefs, assets: Sequence[dg.AssetKey]
) -> dg.SensorResult:
    """Return the builds that one call of the sensor requests from Dagster.

    Assets of a user write the raw text of some corpora (collections of documents). When one of them
    was run, the corpus has to be built. Dagster numbers all events of its history. The sensor
    remembers, for each corpus, the last such event that it has handled. For example:

        corpus    handled    last event    now                               build?    handled
        web       4711       4800          has text                          yes       4800
        books     4712       4801          an active run is building it      later     4712
        code      none       4802          has no text: nothing was found    no        4802
        news      4713       4713          nothing was written since         no        4713

    Args:
        context: Dagster's context of the call. Its cursor is what the last call has remembered,
            such as `{"web": 4711, "books": 4712, "news": 4713}`, as JSON.
        project_defs: The names and settings of the project in Dagster.
        assets: The assets that write raw text.
    """
    handled_ids = _handled_ids(context, project_defs)
    # Corpora with new text → number of the event: {"web": 4800, "books": 4801, "code": 4802}.
    new_ids = _landed_since(context.instance, project_defs, assets, handled_ids)
    idle_reason = f"nothing has landed since the last look ({len(assets):,} assets)"
    if not new_ids:
        return tick_result(context, idle_reason=idle_reason)

    # Leave out the corpora that an active run works on (books), and those after the first 200: the
    # next call looks at them again. All others count as handled.
    candidates = _candidates(context.instance, project_defs, new_ids)
    handled_ids |= {corpus: new_ids[corpus] for corpus in candidates.corpora}

    # Leave out those without text (code). They count as handled, too: if text appears later, the
    # sensor over raw text notices it.
    project = project_defs.load()
    with_text = _corpora_with_text(project, candidates.corpora)

    # Request a run for each of the others (web). A run is for a partition, so add it to those.
    names = project_defs.names
    register(context.instance, names, with_text.corpora, project.config)
    requests = [_run_request(names, corpus, new_ids[corpus]) for corpus in with_text.corpora]
    notes = [*candidates.notes, *with_text.notes]
    cursor = cursor_text(LandingCursor(handled_ids))
    return tick_result(context, requests, notes, idle_reason, cursor=cursor)


def _handled_ids(context: dg.SensorEvaluationContext, project_defs: ProjectDefs) -> dict[str, int]:
    """Return which events of Dagster's history the sensor has handled already, by its cursor.

    Args:
        context: Dagster's context of the call, with the cursor.
        project_defs: Its `upstream` says which corpora (text collections) assets write.

    Returns:
        Corpus → number of the last event that has written its text and was handled. Corpora that
        no asset writes any more are left out.
    """
    cursor = read_cursor(LandingCursor, context.cursor)
    handled_ids: dict[str, int] = {}
    for corpus, event_id in cursor.handled_ids.items():
        if corpus in project_defs.upstream:
            handled_ids[corpus] = event_id
    return handled_ids


class _LandedCorpora(NamedTuple):
    """Corpora whose text has landed, as far as they were selected."""

    corpora: list[str]
    notes: list[str]
    """Why the others were left out."""


def _candidates(
    instance: dg.DagsterInstance, project_defs: ProjectDefs, due: Iterable[str]
) -> _LandedCorpora:
    """Divide corpora with new text into those that can be built now, and those that have to wait.

    A corpus (a collection of documents) has to wait if a run is building it, or if a run is just
    writing more of its text. The log then says, for example, "web: waits until crawl has ended".

    Args:
        instance: Dagster's instance, which knows the active runs.
        project_defs: The names and settings of the project in Dagster.
        due: The corpora with new text.

    Returns:
        At most 200 corpora (MAX_REQUESTS) that can be built, and a note on each one that has to
        wait.
    """
    active_runs = ActiveRuns.look_up(instance, project_defs.names, project_defs.upstream)
    waiting_reasons = _waiting_reasons(active_runs)
    corpora: list[str] = []
    notes: list[str] = []
    for corpus in due:
        if corpus in waiting_reasons:
            notes.append(f"{corpus}: {waiting_reasons[corpus]}")
        else:
            corpora.append(corpus)
    return _LandedCorpora(corpora[:MAX_REQUESTS], notes)


def _corpora_with_text(project: Project, candidates: Sequence[str]) -> _LandedCorpora:
    """Divide text collections (corpora) into those that do have text, and notes on the others.

    For example, a user's Dagster asset was run to download the text of `web`, but has found
    nothing. Then there is nothing to build, and a note says so.

    Args:
        project: The project, which knows the folder of raw text.
        candidates: The corpora for which such an asset was run.
    """
    if not candidates:
        return _LandedCorpora([], [])
    existing_corpora = scan_corpora(project).corpora
    corpora: list[str] = []
    notes: list[str] = []
    for corpus in candidates:
        if corpus in existing_corpora:
            corpora.append(corpus)
        else:
            notes.append(
                f"{corpus}: what lands it was made, but there is no text in "
                f"{project.config.raw}; {RAW_TEXT_SENSOR} waits for it"
            )
    return _LandedCorpora(corpora, notes)


def _run_request(names: Names, corpus: str, event: int) -> dg.RunRequest:
    """Return the request to build a corpus whose raw text another asset has just written.

    Dagster starts only one run for each run key. The key names the event by which the text was
    written, such as `web:4711`. So if this request is repeated, nothing is built twice.

    Args:
        names: Knows the names of the project in Dagster.
        corpus: Name of the corpus, such as "web".
        event: The number of the event in Dagster's history, such as 4711.
    """
    run_key = f"{corpus}:{event}"
    return dg.RunRequest(run_key, partition_key=corpus, tags={names.tag(LANDED_TAG): run_key})


def _landing_assets(project_defs: ProjectDefs) -> list[dg.AssetKey]:
    """Return the user's assets that write raw text, each once, even if it writes several corpora.

    Args:
        project_defs: Its `upstream` says which assets write which corpus, such as `{"web":
            (AssetKey("crawl"),), "news": (AssetKey("crawl"), AssetKey("feeds"))}`.
    """
    assets = chain.from_iterable(project_defs.upstream.values())
    return list(dict.fromkeys(assets))


def _waiting_reasons(active_runs: ActiveRuns) -> dict[str, str]:
    """Say which corpora cannot be built now, because a run is active, and why.

    For example, `{"web": "waits until crawl has ended", "books": "a run is under way, another
    follows it"}`: a run is writing the text of `web`, and another run is building `books`.

    Args:
        active_runs: The runs that are queued or working.
    """
    reasons: dict[str, str] = {}
    for corpus, asset in active_runs.landing.items():
        reasons[corpus] = f"waits until {asset} has ended"
    for corpus in active_runs.corpora:
        reasons[corpus] = "a run is under way, another follows it"
    return reasons


def _landed_since(
    instance: dg.DagsterInstance,
    project_defs: ProjectDefs,
    assets: Sequence[dg.AssetKey],
    handled: Mapping[str, int],
) -> dict[str, int]:
    """Return the text collections (corpora) whose text was written after their last build began.

    Dagster numbers all events of its history, so a later event has a larger number:

        4700    a build of `web` began
        4711    a run of the asset `crawl` has written the text of `web`     →     {"web": 4711}

    Args:
        instance: Dagster's instance, which has the history.
        project_defs: Its `upstream` says which assets write the text of which corpus.
        assets: All these assets.
        handled: Corpus → number of the last such event for which a build was already requested.

    Returns:
        Corpus → number of the event.
    """
    latest_event_ids = latest_materializations(instance, assets)  # asset → its last run
    new_event_ids: dict[str, int] = {}
    for corpus, writers in project_defs.upstream.items():
        event_id = max(latest_event_ids.get(writer, 0) for writer in writers)
        if event_id <= handled.get(corpus, 0):
            continue  # a build was requested for this text
        if event_id <= _latest_build_id(instance, project_defs.names, corpus):
            continue  # another sensor, or a person, has started a build, which reads this text
        new_event_ids[corpus] = event_id
    return new_event_ids


def _latest_build_id(instance: dg.DagsterInstance, names: Names, corpus: str) -> int:
    """Return the number of the event in Dagster's history with which a corpus's last build began.

    Args:
        instance: Dagster's instance, with the history. It numbers all events in their order.
        names: Knows the names of the project in Dagster.
        corpus: Name of the corpus (a text collection), such as "web".

    Returns:
        The number; 0 if the corpus was never built.
    """
    # A build makes several assets. The first one is the list of the corpus's files. So the build
    # began when Dagster planned to make this list.
    file_list = names.asset(shape_of(INVENTORY).asset)
    return latest_planned(instance, file_list, corpus).storage_id
