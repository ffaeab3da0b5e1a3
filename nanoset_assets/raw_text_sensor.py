"""The sensors that have corpora built: one over the raw folder, and one over assets of others that land text."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

import dagster as dg

from nanoset_assets.asset_table import shape_of
from nanoset_assets.dagster_compat import latest_data_versions, latest_materializations, latest_planned
from nanoset_assets.hosted import ProjectDefs, tick_result
from nanoset_assets.instance_state import (
    MOST_REQUESTS,
    RAW_TAG,
    ActiveRuns,
    assets_of_partition_set,
    close_abandoned_runs,
    corpora_by_partition_set,
    current_inventories,
    load_graph_state,
    register,
    took,
    why_not_again,
)
from nanoset_assets.loaded import not_loaded
from nanoset_core.errors import InputError, NanosetError, raised
from nanoset_core.project.graph import graph_over
from nanoset_core.project.project import Project
from nanoset_core.project.requested_corpora import check_requested_corpora, requested_corpora
from nanoset_core.stages.inventory.corpora import scan_corpora
from nanoset_core.stages.inventory.make import inventory_recipe, overwritten_file, quiet_period, remembered_inventory
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.text.contents import Contents, some
from nanoset_core.text.survey import RawText, is_quiescent
from nanoset_core.untrusted import visible

SENSOR = "raw_text"
LANDED = "landed"
LANDED_TAG = ".dagster/nanoset_landed"
"""On runs that an asset of others caused. Dagster shows no tags of this prefix."""
LANDED_SECONDS = 5
"""Between two looks for events; the raw folder is read only when something has landed."""
PATIENCE = 20
"""So many times settle_seconds a corpus is waited for that something writes to; then the rest of it is built."""
_NAMES_SHOWN = 5


def raw_text_sensor(hosted: ProjectDefs, job: Any) -> dg.SensorDefinition:
    """Make the sensor over the raw folder; `job` builds one corpus."""

    @dg.sensor(
        job=job,
        description="Looks at names, sizes and times below the raw folder. Registers new corpora as partitions, has "
        "every corpus built that has changed and been left alone for `automation.settle_seconds`, and retires the "
        "partitions of corpora that are gone and that nothing needs. Says what of nanoset.yaml is not loaded yet.",
        **hosted.ticks(SENSOR),
    )
    def raw_text(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        instance = context.instance
        close_abandoned_runs(instance, hosted.names)
        project = hosted.load()
        # Runs first: what ends while files and outputs are read would else be built again.
        active_runs = ActiveRuns(instance, hosted.names, hosted.upstream)
        tick = _Tick(hosted, project, active_runs, scan_corpora(project), Seen.from_json(context.cursor))
        tick.notes += not_loaded(hosted.config, project.config)
        try:
            return tick.result()
        finally:
            for note in tick.notes:
                context.log.info(visible(note))

    return raw_text


@dataclass(frozen=True, slots=True)
class Seen:
    """What a tick saw, kept in the cursor; without it everything is compared again, and nothing made twice."""

    marks: dict[str, str] = field(default_factory=dict)
    """corpus → mark of its files"""
    taken: dict[str, str] = field(default_factory=dict)
    """corpus → digest of the inventory that is known to be one of those very files"""
    gone: list[str] = field(default_factory=list)
    """registered corpora that were not there"""
    written: dict[str, float] = field(default_factory=dict)
    """corpus → since when something writes to it, seconds since 1970"""
    members: dict[str, list[str]] = field(default_factory=dict)
    """name of a set of partitions that only some corpora have → corpora that this sensor wants in it"""

    @staticmethod
    def from_json(cursor: str | None) -> Seen:
        """Read the cursor of an earlier tick; one that this sensor did not write counts as none."""
        try:
            found = Seen(**json.loads(cursor or "{}"))
        except (ValueError, TypeError):
            return Seen()
        return found if all(isinstance(value, dict | list) for value in asdict(found).values()) else Seen()


@dataclass(slots=True)
class _Tick:
    """One look at the raw folder, compared with what is registered, made and under way."""

    hosted: ProjectDefs
    project: Project
    active_runs: ActiveRuns
    text: RawText
    before: Seen
    after: Seen = field(default_factory=Seen)
    notes: list[str] = field(default_factory=list)
    complaints: list[NanosetError] = field(default_factory=list)

    @property
    def instance(self) -> dg.DagsterInstance:
        """Whose tick this is."""
        return self.active_runs.instance

    def result(self) -> dg.SensorResult:
        """Return what the tick asks for.

        Raises:
            NanosetError: Something is wrong with the raw folder and nothing else is to be done, so that the tick is
                shown as failed. (A tick that asks for something reports it in its log, and the next one fails.)
        """
        partitions = self._partitions()
        self.after.marks.update({name: found.signature for name, found in self.text.corpora.items()})
        ready = iter(list(self._ready()))
        requests = list(islice(filter(None, map(self._request, ready)), MOST_REQUESTS))
        self.notes += [f"{later:,} more are asked for later"] if (later := len(list(ready))) else []
        if self.complaints and not requests and not partitions and self.after == self.before:
            raise _together(self.complaints)
        self.notes += map(str, self.complaints)
        cursor, reason = json.dumps(asdict(self.after), separators=(",", ":")), None if requests else self._reason()
        return dg.SensorResult(requests, reason, cursor, dynamic_partitions_requests=partitions)

    def _partitions(self) -> list[dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest]:
        """Add corpora, and take away those that were gone at the last look too, and that nothing needs.

        Partitions that this sensor has never seen text of may be another project's, and stay.
        """
        names = self.hosted.names
        config = self.project.config
        registered = set(self.instance.get_dynamic_partitions(names.corpora_name))
        present = [*self.text.corpora, *self.text.faults]

        # A corpus is retired once two looks in sequence have not found it.
        seen = {*self.before.marks, *self.before.gone}
        gone = registered.difference(present) & seen
        may_retire = gone.intersection(self.before.gone) - requested_corpora(config)
        retired = self._without_targeted(names.corpora_name, may_retire)
        self.after.gone.extend(sorted(gone - retired))

        # Complain of what nanoset.yaml names and is not there, unless an upstream asset lands it.
        awaited = sorted(self.hosted.upstream.keys() - {*present, *registered})
        for corpus in awaited:
            landing = ", ".join(key.to_user_string() for key in self.hosted.upstream[corpus])
            self.notes.append(f"{corpus}: there is no text yet; {landing} lands it")
        self.complaints += dict.fromkeys(self.text.faults.values())
        self.complaints += raised(check_requested_corpora, config, [*present, *awaited])

        # Of sets that only some corpora are in, nanoset.yaml may take a corpus out as well.
        requests = _partition_requests(names.corpora, self.text.corpora.keys() - registered, retired)
        remaining = (registered | self.text.corpora.keys()) - retired
        for set_name, members in corpora_by_partition_set(config, names, remaining).items():
            if set_name == names.corpora_name:
                continue
            registered_members = set(self.instance.get_dynamic_partitions(set_name))
            dropped = registered_members.intersection(self.before.members.get(set_name, ())) - members
            removed = self._without_targeted(set_name, dropped)
            # Those that are still targeted are remembered, to be removed later.
            self.after.members[set_name] = sorted(members | (dropped - removed))
            definition = dg.DynamicPartitionsDefinition(name=set_name)
            requests += _partition_requests(definition, members - registered_members, removed)
        return requests

    def _without_targeted(self, set_name: str, corpora: set[str]) -> set[str]:
        """Return those of some partitions that no active run and no open backfill is to make.

        Dagster ends a whole backfill as failed if one of the partitions that it targets is deleted.
        """
        if not corpora:
            return corpora
        assets = assets_of_partition_set(self.hosted.names, set_name)
        targeted = {corpus for corpus in corpora if any(self.active_runs.targets(asset, corpus) for asset in assets)}
        for corpus in sorted(targeted):
            self.notes.append(f"{corpus}: its partition of {set_name} stays until the run or backfill of it has ended")
        return corpora - targeted

    def _ready(self) -> Iterator[tuple[Contents, bool, str | None]]:
        """Yield corpora whose inventory is not one of their files: these, whether they have been left alone, and the
        digest of the current inventory."""
        corpora = self.text.corpora
        recipes = current_inventories(self.project, corpora)
        current = {name: recipe.digest for name, recipe in recipes.items()}
        taken = {name: digest for name, digest in current.items() if self._is_inventory(corpora[name], digest)}
        self.after.taken.update(taken)
        recorded = latest_data_versions(self.instance, self.hosted.names.asset(shape_of(INVENTORY).asset), set(taken))
        if any(recorded.get(name) != digest for name, digest in taken.items()):
            graph = graph_over(self.project, {name: recipes[name] for name in taken})
            load_graph_state(graph, self.instance, self.hosted.names, self.active_runs)
        changed = [found for name, found in corpora.items() if name not in taken]
        runs = self.active_runs
        now_ns, settle = time.time_ns(), self.project.config.automation.settle_seconds
        for found in changed:
            name = found.corpus
            quiet = is_quiescent(found, self.before.marks.get(name), now_ns=now_ns, settle_seconds=settle)
            if name in runs.corpora:
                self.notes.append(f"{name}: a run is under way")
            elif name in runs.landing:
                self.notes.append(f"{name}: waits until {runs.landing[name]} has ended")
            elif quiet or not self._is_awaited(found, current.get(name), now_ns / 1e9):
                yield found, quiet, current.get(name)

    def _is_inventory(self, found: Contents, digest: str) -> bool:
        if self.before.marks.get(found.corpus) == found.signature and self.before.taken.get(found.corpus) == digest:
            return True
        inventory = remembered_inventory(self.project, found)
        return inventory is not None and inventory_recipe(inventory).digest == digest

    def _request(self, ready: tuple[Contents, bool, str | None]) -> dg.RunRequest | None:
        """Return the run that builds a corpus, unless it has been tried; not `quiet`: without what is written to."""
        (found, quiet, current), names = ready, self.hosted.names
        name, tag, inventory = found.corpus, names.tag(RAW_TAG), names.asset(shape_of(INVENTORY).asset)
        state = f"{name}:{found.signature}" + ("" if quiet else ":in_part")
        runs = self.instance.get_run_records(dg.RunsFilter(tags={tag: state}))  # the latest first
        held = why_not_again(self.instance, runs[0], runs) if runs else None
        if held is not None:
            self.notes.append(f"{name}: {held}")
        elif quiet and runs and current is not None and took(self.instance, runs[0], inventory, name, current):
            self.after.taken[name] = current
        else:  # a tick that is repeated gives the same run key, and so no second run
            key = f"{state}:{len(runs)}" if runs else state
            return dg.RunRequest(key, partition_key=name, tags={tag: state})
        return None

    def _is_awaited(self, found: Contents, current: str | None, now: float) -> bool:
        """Return whether a corpus that something writes to is left alone for now.

        That is so until nothing has been written for settle_seconds, so that an upload is one build; but where it goes
        on for PATIENCE times as long, the files that have been left alone are built, if there is anything new and
        the others can still be read as they were.
        """
        name, project = found.corpus, self.project
        since = self.after.written[name] = self.before.written.get(name, now)
        if now - since < PATIENCE * project.config.automation.settle_seconds:
            return True
        inventory = remembered_inventory(project, found, quiet_period(project, name))
        if inventory is not None and (not inventory.pieces or current == inventory_recipe(inventory).digest):
            return True
        if (path := overwritten_file(project, name, found.texts)) is not None:
            self.notes.append(f"{name}: what {path} held in the last build is gone, and something writes to it")
            return True
        del self.after.written[name]
        self.notes.append(f"{name}: built without the files that something writes to")
        return False

    def _reason(self) -> str:
        text, waiting = self.text, self.after.written
        said = f"{len(text.corpora):,} corpora, {text.files:,} files in {self.project.config.raw_folder}"
        said += "" if waiting or self.notes else ": nothing has changed"
        waits = [f"waiting until nothing writes to {some(list(waiting), _NAMES_SHOWN)}"] if waiting else []
        aside = [f"{name}: {what}" for name, what in text.aside.items()]
        more = [f"and {len(aside) - _NAMES_SHOWN:,} more that are not read"] if len(aside) > _NAMES_SHOWN else []
        return "; ".join([said, *waits, *self.notes, *aside[:_NAMES_SHOWN], *more])


def _partition_requests(
    definition: dg.DynamicPartitionsDefinition, added: Iterable[str], removed: Iterable[str]
) -> list[dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest]:
    """Return the requests that add partitions to a set, and remove others; none for nothing."""
    requests: list[dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest] = []
    if new := sorted(added):
        requests.append(definition.build_add_request(new))
    if old := sorted(removed):
        requests.append(definition.build_delete_request(old))
    return requests


def _together(errors: list[NanosetError]) -> NanosetError:
    if len(errors) == 1:
        return errors[0]
    return InputError(f"{len(errors)} things are wrong with the raw text:\n" + "\n".join(map(str, errors)))


def landing_sensor(hosted: ProjectDefs, job: Any) -> dg.SensorDefinition:
    """Make the sensor over assets of others that land text; `job` builds one corpus."""
    names = hosted.names
    assets = list(dict.fromkeys(key for keys in hosted.upstream.values() for key in keys))

    @dg.sensor(
        job=job,
        description=f"Has a corpus built when what lands its text was materialised: "
        f"{', '.join(key.to_user_string() for key in assets)}.",
        **hosted.ticks(LANDED, LANDED_SECONDS),
    )
    def landed(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        instance = context.instance
        handled: dict[str, int] = json.loads(context.cursor or "{}")
        due = _landed_since(instance, hosted, assets, handled)
        nothing = f"nothing has landed since the last look ({len(assets):,} assets)"
        if not due:
            return dg.SensorResult(skip_reason=nothing)

        # Corpora that cannot be built yet; they stay due, so that the next tick looks at them again.
        active_runs = ActiveRuns(instance, names, hosted.upstream)
        waiting_reasons = {corpus: f"waits until {asset} has ended" for corpus, asset in active_runs.landing.items()}
        waiting_reasons |= dict.fromkeys(active_runs.corpora, "a run is under way, another follows it")
        candidates = [corpus for corpus in due if corpus not in waiting_reasons][:MOST_REQUESTS]

        # Corpora whose upstream asset was materialised although their folder holds no text.
        project = hosted.load()
        corpora_with_text = scan_corpora(project).corpora if candidates else {}
        for corpus in candidates:
            if corpus not in corpora_with_text:
                waiting_reasons[corpus] = (
                    f"what lands it was made, but there is no text in {project.config.raw}; {SENSOR} waits for it"
                )

        notes = [f"{corpus}: {waiting_reasons[corpus]}" for corpus in due if corpus in waiting_reasons]
        states = {corpus: f"{corpus}:{due[corpus]}" for corpus in candidates if corpus in corpora_with_text}
        register(instance, names, states, project.config)
        requests = [
            dg.RunRequest(state, partition_key=corpus, tags={names.tag(LANDED_TAG): state})
            for corpus, state in states.items()
        ]
        cursor = json.dumps(handled | {corpus: due[corpus] for corpus in candidates})
        return tick_result(context, requests, notes, nothing, cursor=cursor)

    return landed


def _landed_since(
    instance: dg.DagsterInstance, hosted: ProjectDefs, assets: list[dg.AssetKey], handled: Mapping[str, int]
) -> dict[str, int]:
    """Return corpus → the latest event of what lands it, where no run has begun since, which would have its text."""
    events, inventory = latest_materializations(instance, assets), hosted.names.asset(shape_of(INVENTORY).asset)
    newest = {corpus: max(events.get(key, 0) for key in keys) for corpus, keys in hosted.upstream.items()}
    return {
        corpus: event
        for corpus, event in newest.items()
        if event > handled.get(corpus, 0) and event > latest_planned(instance, inventory, corpus)[1]
    }
