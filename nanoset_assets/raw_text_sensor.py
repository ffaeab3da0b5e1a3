"""The sensor over the raw folder.

It registers corpora as partitions, and requests builds of those whose text has changed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from nanoset_assets.active_runs import ActiveRuns
from nanoset_assets.asset_table import shape_of
from nanoset_assets.corpus_partitions import KnownCorpora, PartitionsRequest, partition_changes
from nanoset_assets.dagster_compat import latest_data_versions
from nanoset_assets.failed_runs import has_made, why_not_repeated
from nanoset_assets.graph_state import current_inventories, load_graph_state
from nanoset_assets.hosted import ProjectDefs
from nanoset_assets.loaded import not_loaded
from nanoset_assets.raw_text_cursor import RawTextCursor
from nanoset_assets.run_owner import close_abandoned_runs
from nanoset_assets.tags import MAX_REQUESTS, RAW_TAG
from nanoset_core.errors import InputError, NanosetError, raised
from nanoset_core.project.graph import graph_over
from nanoset_core.project.project import Project
from nanoset_core.project.requested_corpora import check_requested_corpora
from nanoset_core.stages.inventory.corpora import scan_corpora
from nanoset_core.stages.inventory.make import (
    inventory_recipe,
    overwritten_file,
    quiet_period,
    remembered_inventory,
)
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.text.contents import Contents
from nanoset_core.text.notices import abbreviated
from nanoset_core.text.survey import RawText, is_quiescent
from nanoset_core.untrusted import visible

SENSOR = "raw_text"
PATIENCE = 20
"""A corpus that something writes to is waited for this many times settle_seconds; then the rest of
it is built.
"""
_NAMES_SHOWN = 5


def raw_text_sensor(hosted: ProjectDefs, job: Any) -> dg.SensorDefinition:
    """Make the sensor over the raw folder.

    Args:
        hosted: The project.
        job: Builds one corpus.
    """

    @dg.sensor(
        job=job,
        description="Looks at names, sizes and times below the raw folder. Registers new corpora as partitions, has "
        "every corpus built that has changed and been left alone for `automation.settle_seconds`, and retires the "
        "partitions of corpora that are gone and that nothing needs. Says what of nanoset.yaml is not loaded yet.",
        **hosted.sensor_options(SENSOR),
    )
    def raw_text(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        instance = context.instance
        close_abandoned_runs(instance, hosted.names)
        project = hosted.load()
        # Runs first: what ends while files and outputs are read would else be built again.
        active_runs = ActiveRuns(instance, hosted.names, hosted.upstream)
        tick = _Tick(
            hosted,
            project,
            active_runs,
            scan_corpora(project),
            RawTextCursor.from_json(context.cursor),
        )
        tick.notes += not_loaded(hosted.config, project.config)
        try:
            return tick.result()
        finally:
            for note in tick.notes:
                context.log.info(visible(note))

    return raw_text


@dataclass(frozen=True, slots=True)
class _ChangedCorpus:
    """A corpus whose current inventory is not one of its files."""

    contents: Contents
    """Its files."""
    is_quiet: bool
    """Whether nothing writes to it; else it is built without the files that something writes to."""
    current: str | None
    """Digest of its current inventory, if it has one."""

    @property
    def name(self) -> str:
        return self.contents.corpus

    @property
    def state(self) -> str:
        """What is built: the tag of the runs that are requested for it."""
        state = f"{self.name}:{self.contents.signature}"
        return state if self.is_quiet else f"{state}:in_part"


@dataclass(slots=True)
class _Tick:
    """One look at the raw folder, compared with what is registered, made and under way."""

    hosted: ProjectDefs
    project: Project
    active_runs: ActiveRuns
    text: RawText
    before: RawTextCursor
    """What the tick before saw."""
    after: RawTextCursor = field(default_factory=RawTextCursor)
    """What this tick sees."""
    notes: list[str] = field(default_factory=list)
    complaints: list[NanosetError] = field(default_factory=list)

    @property
    def instance(self) -> dg.DagsterInstance:
        """The instance that ticks."""
        return self.active_runs.instance

    @property
    def inventory_asset(self) -> dg.AssetKey:
        """The asset whose partitions are built."""
        return self.hosted.names.asset(shape_of(INVENTORY).asset)

    def result(self) -> dg.SensorResult:
        """Return what the tick requests.

        Raises:
            NanosetError: Something is wrong with the raw folder and nothing else is to be done, so
                that the tick is shown as failed. A tick that requests something reports it in its
                log, and the next one fails.
        """
        partitions = self._partition_requests()
        for name, contents in self.text.corpora.items():
            self.after.marks[name] = contents.signature
        requests = self._run_requests()

        has_nothing_to_do = not requests and not partitions and self.after == self.before
        if self.complaints and has_nothing_to_do:
            raise _joined(self.complaints)
        self.notes += map(str, self.complaints)
        skip_reason = None if requests else self._skip_reason()
        return dg.SensorResult(
            requests, skip_reason, self.after.to_json(), dynamic_partitions_requests=partitions
        )

    def _partition_requests(self) -> list[PartitionsRequest]:
        """Return the requests that add corpora as partitions and delete others.

        Missing corpora are logged.
        """
        before = KnownCorpora(set(self.before.marks), set(self.before.gone), self.before.members)
        changes = partition_changes(
            self.project.config, self.hosted.names, self.active_runs, self.text, before
        )
        self.after.gone.extend(changes.gone)
        self.after.members.update(changes.members)
        self.notes += changes.notes
        self._complain(changes.registered)
        return changes.requests

    def _complain(self, registered: set[str]) -> None:
        """Log corpora in nanoset.yaml that have no text, unless an upstream asset lands it."""
        present = [*self.text.corpora, *self.text.faults]
        upstream = self.hosted.upstream
        awaited = sorted(upstream.keys() - {*present, *registered})
        for corpus in awaited:
            landing = ", ".join(key.to_user_string() for key in upstream[corpus])
            self.notes.append(f"{corpus}: there is no text yet; {landing} lands it")
        self.complaints += dict.fromkeys(self.text.faults.values())
        self.complaints += raised(
            check_requested_corpora, self.project.config, [*present, *awaited]
        )

    def _run_requests(self) -> list[dg.RunRequest]:
        """Return the runs that build what has changed, at most `MAX_REQUESTS`."""
        requests: list[dg.RunRequest] = []
        changed = self._changed_corpora()
        n_looked_at = 0
        for corpus in changed:
            if len(requests) == MAX_REQUESTS:
                break
            n_looked_at += 1
            request = self._run_request(corpus)
            if request is not None:
                requests.append(request)
        n_later = len(changed) - n_looked_at
        if n_later:
            self.notes.append(f"{n_later:,} more are asked for later")
        return requests

    def _changed_corpora(self) -> list[_ChangedCorpus]:
        """Return the corpora that can be built now and whose inventory is not one of their files."""
        corpora = self.text.corpora
        recipes = current_inventories(self.project, corpora)
        for name, recipe in recipes.items():
            if self._is_inventory_of(corpora[name], recipe.digest):
                self.after.taken[name] = recipe.digest
        taken = dict(self.after.taken)

        # Record inventories that another machine made, or under another history, with what was made
        # from them.
        recorded = latest_data_versions(self.instance, self.inventory_asset, set(taken))
        if any(recorded.get(name) != digest for name, digest in taken.items()):
            graph = graph_over(self.project, {name: recipes[name] for name in taken})
            load_graph_state(graph, self.instance, self.hosted.names, self.active_runs)

        now_ns = time.time_ns()
        changed: list[_ChangedCorpus] = []
        for name, contents in corpora.items():
            if name in taken:
                continue
            current = recipes[name].digest if name in recipes else None
            corpus = _ChangedCorpus(contents, self._is_quiet(contents, now_ns), current)
            if name in self.active_runs.corpora:
                self.notes.append(f"{name}: a run is under way")
            elif name in self.active_runs.landing:
                self.notes.append(f"{name}: waits until {self.active_runs.landing[name]} has ended")
            elif corpus.is_quiet or not self._is_left_alone(corpus, now_ns / 1e9):
                changed.append(corpus)
        return changed

    def _is_inventory_of(self, contents: Contents, digest: str) -> bool:
        """Return whether an inventory is one of the files as they are now."""
        name = contents.corpus
        if (
            self.before.marks.get(name) == contents.signature
            and self.before.taken.get(name) == digest
        ):
            return True
        inventory = remembered_inventory(self.project, contents)
        return inventory is not None and inventory_recipe(inventory).digest == digest

    def _is_quiet(self, contents: Contents, now_ns: int) -> bool:
        """Return whether nothing has been written to a corpus for `settle_seconds`."""
        return is_quiescent(
            contents,
            self.before.marks.get(contents.corpus),
            now_ns=now_ns,
            settle_seconds=self.project.config.automation.settle_seconds,
        )

    def _is_left_alone(self, corpus: _ChangedCorpus, now: float) -> bool:
        """Return whether a corpus that something writes to is not built yet.

        It is not until nothing has been written for settle_seconds, so that an upload is one build.
        If something still writes to it after PATIENCE times as long, the files that have been left
        alone are built, if there is anything new and the other files can still be read as they
        were.

        Args:
            corpus: The corpus.
            now: Seconds since 1970.
        """
        name = corpus.name
        project = self.project
        since = self.before.written.get(name, now)
        self.after.written[name] = since
        if now - since < PATIENCE * project.config.automation.settle_seconds:
            return True

        inventory = remembered_inventory(project, corpus.contents, quiet_period(project, name))
        if inventory is not None:
            is_empty = not inventory.pieces
            if is_empty or corpus.current == inventory_recipe(inventory).digest:
                return True
        changed_file = overwritten_file(project, name, corpus.contents.texts)
        if changed_file is not None:
            self.notes.append(
                f"{name}: what {changed_file} held in the last build was overwritten, and something writes to it"
            )
            return True
        del self.after.written[name]
        self.notes.append(f"{name}: built without the files that something writes to")
        return False

    def _run_request(self, corpus: _ChangedCorpus) -> dg.RunRequest | None:
        """Return the run that builds a corpus; None if it has been tried, or was built meanwhile."""
        state = corpus.state
        tags = {self.hosted.names.tag(RAW_TAG): state}
        runs = self.instance.get_run_records(dg.RunsFilter(tags=tags))  # the latest first
        if not runs:
            return dg.RunRequest(state, partition_key=corpus.name, tags=tags)

        reason = why_not_repeated(self.instance, runs[0], runs)
        if reason is not None:
            self.notes.append(f"{corpus.name}: {reason}")
            return None
        if self._has_made_current(runs[0], corpus):
            self.after.taken[corpus.name] = corpus.current or ""
            return None
        # A tick that is repeated gives the same run key, and so no second run.
        return dg.RunRequest(f"{state}:{len(runs)}", partition_key=corpus.name, tags=tags)

    def _has_made_current(self, run: dg.RunRecord, corpus: _ChangedCorpus) -> bool:
        """Return whether a run for these very files made the current inventory.

        If it did, nothing is to be done, although sizes and times of the files do not show it.
        """
        if not corpus.is_quiet or corpus.current is None:
            return False
        return has_made(self.instance, run, self.inventory_asset, corpus.name, corpus.current)

    def _skip_reason(self) -> str:
        """Return why the tick requests no run."""
        text = self.text
        waiting = list(self.after.written)
        folder = self.project.config.raw_folder
        summary = f"{len(text.corpora):,} corpora, {text.files:,} files in {folder}"
        if not waiting and not self.notes:
            summary += ": nothing has changed"
        texts = [summary]
        if waiting:
            texts.append(f"waiting until nothing writes to {abbreviated(waiting, _NAMES_SHOWN)}")
        texts += self.notes

        not_read = [f"{name}: {what}" for name, what in text.aside.items()]
        texts += not_read[:_NAMES_SHOWN]
        n_more = len(not_read) - _NAMES_SHOWN
        if n_more > 0:
            texts.append(f"and {n_more:,} more that are not read")
        return "; ".join(texts)


def _joined(errors: list[NanosetError]) -> NanosetError:
    """Return several errors as one."""
    if len(errors) == 1:
        return errors[0]
    lines = "\n".join(map(str, errors))
    return InputError(f"{len(errors)} things are wrong with the raw text:\n{lines}")
