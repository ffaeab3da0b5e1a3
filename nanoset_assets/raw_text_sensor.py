"""The sensor that notices new, changed and removed raw text, and has the corpora concerned built."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import dagster as dg

from nanoset_assets.hosted import ProjectDefs
from nanoset_assets.instance_state import RAW_TAG, Attempts, UnderWay, current_inventories
from nanoset_assets.running import close_abandoned_runs
from nanoset_core.config.project import ProjectConfig
from nanoset_core.errors import InputError, NanosetError
from nanoset_core.pipeline import raw
from nanoset_core.pipeline.graph import asked_nodes, check_corpora, named_corpora
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.stage import Node
from nanoset_core.raw.survey import CorpusFiles, RawText, is_quiescent
from nanoset_core.storage.paths import is_inside

SENSOR = "raw_text"
MOST_REQUESTS = 200
"""Runs that one tick asks for; the next ticks ask for the rest."""
PATIENCE = 20
"""So many times settle_seconds a corpus is waited for that something writes to; then the rest of it is built."""
_NAMES_SHOWN = 5
RELOAD = "choose Reload on the page Deployment, Code locations"


def raw_text_sensor(hosted: ProjectDefs, job: Any) -> dg.SensorDefinition:
    """Make the sensor over the raw folder; `job` builds one corpus."""
    spec = hosted.config.automation

    @dg.sensor(
        name=hosted.names.definition(SENSOR),
        job=job,
        minimum_interval_seconds=spec.sensor_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING if spec.enabled else dg.DefaultSensorStatus.STOPPED,
        description="Looks at names, sizes and times below the raw folder. Registers new corpora as partitions, has "
        "every corpus built that has changed and been left alone for `automation.settle_seconds`, and retires the "
        "partitions of corpora that are gone and that nothing needs. Says what of nanoset.yaml is not loaded yet.",
    )
    def raw_text(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        close_abandoned_runs(context.instance, hosted.names)
        project = hosted.load()
        tick = _Tick(hosted, project, context.instance, raw.scan(project), Seen.from_json(context.cursor))
        if (missed := not_loaded(hosted.config, project.config)) is not None:
            tick.notes.insert(0, missed)
        for note in tick.notes:
            context.log.info(note)
        return tick.result()

    return raw_text


@dataclass(frozen=True, slots=True)
class Seen:
    """What the tick before saw, kept in the cursor; without it everything is compared again, and nothing made twice."""

    marks: Mapping[str, str] = field(default_factory=dict)
    """corpus → mark of its files"""
    taken: Mapping[str, str] = field(default_factory=dict)
    """corpus → digest of the inventory that is known to be one of those very files"""
    gone: frozenset[str] = frozenset()
    """registered corpora that were not there"""
    written: Mapping[str, float] = field(default_factory=dict)
    """corpus → since when something writes to it, seconds since 1970"""

    @staticmethod
    def from_json(cursor: str | None) -> Seen:
        """Read the cursor of an earlier tick; one that this sensor did not write counts as none."""
        try:
            value = json.loads(cursor or "{}")
            return Seen(
                dict(value["marks"]), dict(value["taken"]), frozenset(value["gone"]), dict(value.get("written", {}))
            )
        except (ValueError, KeyError, TypeError):
            return Seen()

    def to_json(self) -> str:
        value = {"marks": dict(self.marks), "taken": dict(self.taken), "gone": sorted(self.gone)}
        value |= {"written": dict(self.written)} if self.written else {}
        return json.dumps(value, separators=(",", ":"))


class _Tick:
    """One look at the raw folder, compared with what is registered, made and under way."""

    def __init__(
        self, hosted: ProjectDefs, project: Project, instance: dg.DagsterInstance, text: RawText, before: Seen
    ) -> None:
        self._hosted, self._names = hosted, hosted.names
        self._project, self._instance, self._text, self._before = project, instance, text, before
        self.notes: list[str] = []
        self._registered = set(instance.get_dynamic_partitions(self._names.corpora_name))
        self._complaints: list[NanosetError] = list(dict.fromkeys(text.faults.values()))
        self._retired = self._removed()
        self._taken = self._inventoried()
        self._waiting: dict[str, float] = {}
        self._later = 0
        self._requests = list(self._ask(self._changed()))

    def _removed(self) -> set[str]:
        """Return registered corpora that were gone at the last look too, and that nothing needs.

        Partitions that this sensor has never seen text of, and this project has no inventory of, may be another
        project's, and stay.
        """
        there = [*self._text.corpora, *self._text.faults]
        seen = self._before.marks.keys() | self._before.gone
        unseen = [name for name in self._registered.difference(there, seen) if is_inside(name) and "/" not in name]
        if unseen:
            seen |= current_inventories(self._project, unseen).keys()
        self._gone = self._registered.difference(there) & seen
        awaited = self._hosted.upstream.keys() - set(there) - self._registered
        for corpus in sorted(awaited):
            landing = ", ".join(key.to_user_string() for key in self._hosted.upstream[corpus])
            self.notes.append(f"{corpus}: there is no text yet; {landing} lands it")
        try:
            check_corpora(self._project.config, [*there, *awaited])
        except NanosetError as error:
            self._complaints.append(error)
        return (self._gone & self._before.gone) - named_corpora(self._project.config)

    def _inventoried(self) -> dict[str, str]:
        """Return corpus → digest of its current inventory, where that is one of the files as they are."""
        recipes = current_inventories(self._project, self._text.corpora)
        self._current = {name: recipe.digest for name, recipe in recipes.items()}
        files = self._text.corpora
        return {name: digest for name, digest in self._current.items() if self._is_inventory(files[name], digest)}

    def _is_inventory(self, found: CorpusFiles, digest: str) -> bool:
        before = self._before
        if before.marks.get(found.corpus) == found.signature and before.taken.get(found.corpus) == digest:
            return True
        inventory = raw.known(self._project, found)
        return inventory is not None and raw.inventory_recipe(inventory).digest == digest

    def _changed(self) -> list[CorpusFiles]:
        """Return corpora whose inventory is not one of their files, or that Dagster has no record of."""
        corpora = self._text.corpora
        self._unrecorded = corpora.keys() - self._instance.get_materialized_partitions(
            self._names.asset(raw.INVENTORY.asset)
        )
        return [corpora[name] for name in corpora if name not in self._taken or name in self._unrecorded]

    def _ask(self, changed: list[CorpusFiles]) -> Iterable[dg.RunRequest]:
        runs = UnderWay(self._instance, self._names)
        under_way = self._hosted.corpora_under_way(runs) if changed else set()
        landing = self._hosted.being_landed(runs) if changed and self._hosted.upstream else {}
        asked, now_ns = 0, time.time_ns()
        settle = self._project.config.automation.settle_seconds
        for found in changed:
            name = found.corpus
            quiet = is_quiescent(found, self._before.marks.get(name), now_ns=now_ns, settle_seconds=settle)
            if name in under_way:
                self.notes.append(f"{name}: a run is under way")
            elif name in landing:
                self.notes.append(f"{name}: waits until {landing[name]} has ended")
            elif not quiet and self._is_awaited(found, now_ns / 1e9):
                continue
            elif asked == MOST_REQUESTS:
                self._later += 1
            elif (request := self._request(found, quiet)) is not None:
                asked += 1
                yield request

    def _request(self, found: CorpusFiles, quiet: bool) -> dg.RunRequest | None:
        """Return the run that builds a corpus, unless it has been tried; not `quiet`: without what is written to."""
        name = found.corpus
        attempts = Attempts.of(self._instance, self._names, f"{name}:{found.signature}" + ("" if quiet else ":in_part"))
        if attempts.held is not None:
            self.notes.append(f"{name}: {attempts.held}")
        elif (
            quiet
            and name in self._current
            and attempts.took(self._instance, self._names.asset(raw.INVENTORY.asset), self._current[name])
        ):
            self._taken[name] = self._current[name]
        else:
            return dg.RunRequest(attempts.next_key, partition_key=name, tags={self._names.tag(RAW_TAG): attempts.state})
        return None

    def _is_awaited(self, found: CorpusFiles, now: float) -> bool:
        """Return whether a corpus that something writes to is left alone for now.

        That is so until nothing has been written for settle_seconds, so that an upload is one build; but where it goes
        on for PATIENCE times as long, the files that have been left alone are built, if there is anything new and
        the others can still be read as they were.
        """
        name, settle = found.corpus, self._project.config.automation.settle_seconds
        since = self._waiting[name] = self._before.written.get(name, now)
        if now - since < PATIENCE * settle:
            return True
        inventory = raw.known(self._project, found, raw.settling(self._project, name))
        if inventory is None or (
            inventory.pieces and self._current.get(name) != raw.inventory_recipe(inventory).digest
        ):
            if (path := raw.overwritten(self._project, name, found.files)) is not None:
                self.notes.append(f"{name}: what {path} held in the last build is gone, and something writes to it")
                return True
            del self._waiting[name]
            self.notes.append(f"{name}: built without the files that something writes to")
            return False
        return True

    def result(self) -> dg.SensorResult:
        """Return what the tick asks for.

        Raises:
            NanosetError: Something is wrong with the raw folder and nothing else is to be done, so that the tick is
                shown as failed. (A tick that asks for something reports it in its log, and the next one fails.)
        """
        new = sorted(self._text.corpora.keys() - self._registered)
        partitions: list[dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest] = []
        if new:
            partitions.append(self._names.corpora.build_add_request(new))
        if self._retired:
            partitions.append(self._names.corpora.build_delete_request(sorted(self._retired)))
        after = Seen(
            {name: found.signature for name, found in self._text.corpora.items()},
            self._taken,
            frozenset(self._gone - self._retired),
            self._waiting,
        )
        self.notes.extend(str(error) for error in self._complaints)
        if not self._requests and not partitions and self._complaints and after == self._before:
            raise _together(self._complaints)
        return dg.SensorResult(
            run_requests=self._requests,
            dynamic_partitions_requests=partitions,
            cursor=after.to_json(),
            skip_reason=None if self._requests else self._reason(),
        )

    def _reason(self) -> str:
        text = self._text
        parts = [f"{len(text.corpora):,} corpora, {text.files:,} files in {self._project.config.raw_folder}"]
        if self._waiting:
            parts.append(f"waiting until nothing writes to {_some(list(self._waiting))}")
        if self._later:
            parts.append(f"{self._later:,} more are asked for later")
        if not self._waiting and not self.notes:
            parts[0] += ": nothing has changed"
        aside = [f"{name}: {what}" for name, what in text.aside.items()]
        more = [f"and {len(aside) - _NAMES_SHOWN:,} more that are not read"] if len(aside) > _NAMES_SHOWN else []
        return "; ".join([*parts, *self.notes, *aside[:_NAMES_SHOWN], *more])


def _some(names: list[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def _together(errors: list[NanosetError]) -> NanosetError:
    if len(errors) == 1:
        return errors[0]
    return InputError(f"{len(errors)} things are wrong with the raw text:\n" + "\n".join(map(str, errors)))


def not_loaded(loaded: ProjectConfig, now: ProjectConfig) -> str | None:
    """Return what changed in nanoset.yaml that shows only once the definitions are loaded again; None: nothing.

    Values are read anew by every run and tick. Which assets there are, their partitions and dependencies, and when
    sensors and schedule tick, belong to the definitions.
    """
    before, after = (
        _shape(config)
        | {
            "automation": replace(config.automation, settle_seconds=0),
            "dagster": config.dagster,
            "raw or root": (config.raw, config.root),
        }
        for config in (loaded, now)
    )
    changed = sorted(what for what in before.keys() | after.keys() if before.get(what) != after.get(what))
    return f"{now.file.name} has another {', '.join(changed)} than is loaded: {RELOAD}" if changed else None


def _shape(config: ProjectConfig) -> dict[str, object]:
    """Return nanoset, webdataset, or asset of all corpora → its outputs, each with what it is made from."""
    shape: dict[str, set[tuple[Node, frozenset[Node]]]] = {}
    for node in asked_nodes(config):
        if node.stage.by_corpus:
            shape[f"asset {node.stage.asset}"] = set()  # its partitions are the corpora, whichever they are
        else:
            outputs = shape.setdefault(f"{node.stage.kind} {node.key.subject!r}", set())
            outputs.add((node, frozenset(node.inputs(config).values())))
    return dict(shape)
