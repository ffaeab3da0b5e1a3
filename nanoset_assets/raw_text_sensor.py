"""The sensor that watches the raw folder.

It registers corpora as partitions, and requests builds of corpora whose text has changed. Each tick
lists the raw folder and compares names, sizes and times of the files with the inventories of the
last builds; it does not read text.

An upload takes time, so a changed corpus is not built before nothing has been written to it for
`settle_seconds`. If something never stops writing, the files that have settled are built without
the others after a while (`PATIENCE`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from nanoset_assets.active_runs import ActiveRuns
from nanoset_assets.asset_table import shape_of
from nanoset_assets.corpus_partitions import KnownCorpora, PartitionsRequest, partition_changes
from nanoset_assets.dagster_compat import latest_data_versions
from nanoset_assets.failed_runs import has_made, why_not_repeated
from nanoset_assets.graph_state import current_inventories, load_graph_state
from nanoset_assets.loaded import reload_notes
from nanoset_assets.project_defs import ProjectDefs
from nanoset_assets.raw_text_cursor import RawTextCursor, read_cursor
from nanoset_assets.run_owner import close_abandoned_runs
from nanoset_assets.tags import MAX_REQUESTS, RAW_TAG
from nanoset_core.errors import InputError, NanosetError, raised
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.project.graph import graph_over
from nanoset_core.project.project import Project
from nanoset_core.project.requested_corpora import check_requested_corpora
from nanoset_core.records.json_records import dump
from nanoset_core.stages.inventory.corpora import scan_corpora
from nanoset_core.stages.inventory.make import (
    inventory_recipe,
    overwritten_file,
    quiet_period_of,
    remembered_inventory,
)
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.text.contents import Contents
from nanoset_core.text.notices import abbreviated
from nanoset_core.text.survey import RawText, is_quiescent
from nanoset_core.untrusted import visible

SENSOR = "raw_text"
"""Name of the sensor, without the project's prefix."""
PATIENCE = 20
"""How many times `settle_seconds` the sensor waits for a corpus that is being written.

Then it has the files built that have settled.
"""
_MAX_NAMES = 5
"""How many names a message lists at most."""


def raw_text_sensor(project_defs: ProjectDefs, job: Any) -> dg.SensorDefinition:
    """Make the sensor that watches the raw folder.

    Args:
        project_defs: The names and settings of the project in Dagster.
        job: The job that builds a corpus.
    """

    @dg.sensor(
        job=job,
        description="Watches names, sizes and times of the files in the raw folder. Registers new "
        "corpora as partitions, builds a changed corpus once nothing has been written to it for "
        "`automation.settle_seconds`, and removes the partitions of deleted corpora that nothing "
        "needs. Reports changes of nanoset.yaml that are not loaded yet.",
        **project_defs.sensor_options(SENSOR),
    )
    def raw_text(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        """Request runs and changes of partitions for what has changed in the raw folder."""
        instance = context.instance
        close_abandoned_runs(instance, project_defs.names)
        project = project_defs.load()
        # Look up runs before files and outputs: a run that ends in between still counts as active,
        # so what it has just built is not requested again.
        active_runs = ActiveRuns(instance, project_defs.names, project_defs.upstream)
        tick = _Tick(
            project_defs=project_defs,
            project=project,
            active_runs=active_runs,
            text=scan_corpora(project),
            before=read_cursor(context.cursor),
        )
        tick.notes += reload_notes(project_defs.config, project.config)
        try:
            return tick.result()
        finally:
            for note in tick.notes:
                context.log.info(visible(note))

    return raw_text


@dataclass(frozen=True, slots=True)
class _ChangedCorpus:
    """A corpus whose files differ from its current inventory."""

    contents: Contents
    """Its files."""
    is_quiet: bool
    """Whether all files have settled; otherwise it is built without those that have not."""
    current: str | None
    """Digest of its current inventory, or None if it has none."""

    @property
    def name(self) -> str:
        """The name of the corpus."""
        return self.contents.corpus

    @property
    def state(self) -> str:
        """Identifies the files that a run builds; a tag of the runs that are requested for it."""
        state = f"{self.name}:{self.contents.signature}"
        return state if self.is_quiet else f"{state}:in_part"


@dataclass(slots=True)
class _Tick:
    """One tick: compares the raw folder with partitions, inventories and active runs.

    The methods fill `after`, `notes` and `complaints` as they go.
    """

    project_defs: ProjectDefs
    project: Project
    active_runs: ActiveRuns
    text: RawText
    """The corpora of the raw folder and their files."""
    before: RawTextCursor
    """The cursor that the tick before stored."""
    after: RawTextCursor = field(default_factory=RawTextCursor)
    """The cursor that this tick stores."""
    notes: list[str] = field(default_factory=list)
    """Lines for the log of the tick."""
    complaints: list[NanosetError] = field(default_factory=list)
    """Errors of the raw folder, or of the corpora that nanoset.yaml names."""

    @property
    def instance(self) -> dg.DagsterInstance:
        """The instance in which the sensor runs."""
        return self.active_runs.instance

    @property
    def inventory_asset(self) -> dg.AssetKey:
        """The asset whose partitions are the corpora and whose outputs are their inventories."""
        return self.project_defs.names.asset(shape_of(INVENTORY).asset)

    def result(self) -> dg.SensorResult:
        """Return the runs and partitions that the tick requests, and the cursor for the next tick.

        Raises:
            NanosetError: Something is wrong with the raw folder, and the tick has nothing to
                request or to store.
        """
        partitions = self._partition_requests()
        # Store the signature of each corpus, by which the next tick sees whether its files changed.
        for name, contents in self.text.corpora.items():
            self.after.marks[name] = contents.signature
        requests = self._run_requests()

        # If a tick raises an error, Dagster discards its requests and its cursor. So raise the
        # complaints only if there is neither. Otherwise log them; a later tick raises them.
        has_results = bool(requests or partitions) or self.after != self.before
        if self.complaints and not has_results:
            raise _joined(self.complaints)
        for complaint in self.complaints:
            self.notes.append(str(complaint))

        skip_reason = None
        if not requests:
            skip_reason = self._skip_reason()
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=skip_reason,
            cursor=dump(self.after).decode(),
            dynamic_partitions_requests=partitions,
        )

    def _partition_requests(self) -> list[PartitionsRequest]:
        """Return the requests that add and delete partitions, and note corpora without text."""
        before = KnownCorpora(set(self.before.marks), set(self.before.gone), self.before.members)
        changes = partition_changes(
            self.project.config, self.project_defs.names, self.active_runs, self.text, before
        )
        self.after.gone.extend(changes.gone)
        self.after.members.update(changes.members)
        self.notes += changes.notes
        self._check_corpora(changes.registered)
        return changes.requests

    def _check_corpora(self, registered: set[str]) -> None:
        """Add complaints about corpora that cannot be read or that have no text.

        A corpus is allowed to have no text until the upstream asset that lands it has run.

        Args:
            registered: The corpora that are partitions already.
        """
        present = [*self.text.corpora, *self.text.faults]
        upstream = self.project_defs.upstream
        awaited = sorted(upstream.keys() - {*present, *registered})
        for corpus in awaited:
            landing = ", ".join(key.to_user_string() for key in upstream[corpus])
            self.notes.append(f"{corpus}: there is no text yet; {landing} lands it")

        # Several corpora may have the same fault.
        self.complaints += dict.fromkeys(self.text.faults.values())
        self.complaints += raised(
            check_requested_corpora, self.project.config, [*present, *awaited]
        )

    def _run_requests(self) -> list[dg.RunRequest]:
        """Return the runs that build changed corpora, at most `MAX_REQUESTS`."""
        requests: list[dg.RunRequest] = []
        changed = self._changed_corpora()
        n_examined = 0
        for corpus in changed:
            if len(requests) == MAX_REQUESTS:
                break
            n_examined += 1
            request = self._run_request(corpus)
            if request is not None:
                requests.append(request)
        n_later = len(changed) - n_examined
        if n_later:
            self.notes.append(f"{n_later:,} more are requested later")
        return requests

    def _changed_corpora(self) -> list[_ChangedCorpus]:
        """Return the corpora whose files differ from their inventory and that can be built now.

        The inventory of a corpus is the output that lists its files, as the last build found them.
        """
        # Corpora whose inventory lists their present files are up to date.
        corpora = self.text.corpora
        recipes = current_inventories(self.project, corpora)
        up_to_date: dict[str, Recipe] = {}
        for name, recipe in recipes.items():
            if self._is_up_to_date(corpora[name], recipe.digest):
                up_to_date[name] = recipe
                self.after.taken[name] = recipe.digest
        self._record_inventories(up_to_date)

        # Of the others, choose those for which nothing is under way.
        now_ns = time.time_ns()
        changed: list[_ChangedCorpus] = []
        for name, contents in corpora.items():
            if name in up_to_date:
                continue
            corpus = _ChangedCorpus(
                contents=contents,
                is_quiet=self._is_quiet(contents, now_ns),
                current=recipes[name].digest if name in recipes else None,
            )
            if name in self.active_runs.corpora:
                self.notes.append(f"{name}: a run is under way")
            elif name in self.active_runs.landing:
                self.notes.append(f"{name}: waits until {self.active_runs.landing[name]} has ended")
            elif corpus.is_quiet or not self._has_to_wait(corpus, now_ns / 1e9):
                changed.append(corpus)
        return changed

    def _record_inventories(self, recipes: Mapping[str, Recipe]) -> None:
        """Add inventories that are missing from Dagster's history, and what was made from them.

        Another machine may have made them, or a build whose history was deleted.

        Args:
            recipes: Corpus that is up to date → recipe of its inventory.
        """
        recorded = latest_data_versions(self.instance, self.inventory_asset, set(recipes))
        if any(recorded.get(name) != recipe.digest for name, recipe in recipes.items()):
            # Its result is not needed: it adds outputs that are missing from the history.
            graph = graph_over(self.project, recipes)
            load_graph_state(graph, self.instance, self.project_defs.names, self.active_runs)

    def _is_up_to_date(self, contents: Contents, digest: str) -> bool:
        """Return whether the current inventory of a corpus lists its present files.

        Args:
            contents: The files of the corpus.
            digest: The digest of its current inventory.
        """
        # If neither has changed since the last tick, its answer holds. Its cursor has the signature
        # of the files (`marks`), and the digest of the inventory of a corpus that was up to date
        # (`taken`).
        name = contents.corpus
        has_same_files = self.before.marks.get(name) == contents.signature
        has_same_inventory = self.before.taken.get(name) == digest
        if has_same_files and has_same_inventory:
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

    def _has_to_wait(self, corpus: _ChangedCorpus, now: float) -> bool:
        """Return whether a corpus that is being written has to wait, and store since when it does.

        A corpus waits until nothing has been written to it for `settle_seconds`, so that an upload
        leads to one build. After PATIENCE times as long, it is built without the files that have
        not settled, if that gives anything new, and if no file of the last build is missing then.

        Args:
            corpus: The corpus.
            now: The present time, in seconds since 1970.
        """
        name = corpus.name
        project = self.project
        written_since = self.before.written.get(name, now)
        self.after.written[name] = written_since
        if now - written_since < PATIENCE * project.config.automation.settle_seconds:
            return True

        # Wait if the files that have settled give nothing new. The inventory of these files is None
        # if some have not been read before: then they do.
        settled = remembered_inventory(project, corpus.contents, quiet_period_of(project, name))
        if settled is not None:
            is_empty = not settled.pieces
            if is_empty or inventory_recipe(settled).digest == corpus.current:
                return True

        # Wait if a file of the last build is being overwritten: its text would be lost.
        changed_file = overwritten_file(project, name, corpus.contents.texts)
        if changed_file is not None:
            self.notes.append(
                f"{name}: {changed_file} of the last build was overwritten, "
                "and something still writes to it"
            )
            return True

        # Build it now, and start to wait again for the files that have not settled.
        del self.after.written[name]
        self.notes.append(f"{name}: built without the files that something writes to")
        return False

    def _run_request(self, corpus: _ChangedCorpus) -> dg.RunRequest | None:
        """Return the request for a run that builds a corpus, unless an earlier run was enough.

        Args:
            corpus: The corpus.

        Returns:
            The request; None if an earlier run for the same files succeeded, or failed and would
            fail again.
        """
        # Earlier runs for the same files have the same tag.
        files_id = corpus.state
        tags = {self.project_defs.names.tag(RAW_TAG): files_id}
        runs = self.instance.get_run_records(dg.RunsFilter(tags=tags))  # the latest first
        if not runs:
            return dg.RunRequest(run_key=files_id, partition_key=corpus.name, tags=tags)

        latest_run = runs[0]
        reason = why_not_repeated(self.instance, latest_run, runs)
        if reason is not None:
            self.notes.append(f"{corpus.name}: {reason}")
            return None
        if self._has_made_current(latest_run, corpus):
            self.after.taken[corpus.name] = corpus.current or ""  # remember it as up to date
            return None

        # The run key depends only on earlier runs: if Dagster repeats a tick, it recognises the
        # request and does not start a second run.
        run_key = f"{files_id}:{len(runs)}"
        return dg.RunRequest(run_key=run_key, partition_key=corpus.name, tags=tags)

    def _has_made_current(self, run: dg.RunRecord, corpus: _ChangedCorpus) -> bool:
        """Return whether an earlier run for the same files made the current inventory.

        If so, the corpus is up to date, although names, sizes and times of its files do not show
        it.
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
            texts.append(f"waiting until nothing writes to {abbreviated(waiting, _MAX_NAMES)}")
        texts += self.notes

        not_read = [f"{name}: {reason}" for name, reason in text.unread_entries.items()]
        texts += not_read[:_MAX_NAMES]
        n_more = len(not_read) - _MAX_NAMES
        if n_more > 0:
            texts.append(f"and {n_more:,} more that are not read")
        return "; ".join(texts)


def _joined(errors: list[NanosetError]) -> NanosetError:
    """Return one error that lists several; a single error is returned unchanged."""
    if len(errors) == 1:
        return errors[0]
    lines = "\n".join(map(str, errors))
    return InputError(f"{len(errors)} things are wrong with the raw text:\n{lines}")
