"""The sensor that watches the raw folder.

It registers corpora as partitions, and requests builds of corpora whose text has changed. Each tick
(Dagster calls a sensor every some seconds) lists the raw folder and compares names, sizes and times
of the files with the inventories, the lists of files that the last builds read. It does not read
text. For example, a new folder `raw/web` becomes the partition `web`, and a run of it is requested.

An upload takes time, so a changed corpus is not built before nothing has been written to it for
`settle_seconds`. If something never stops writing, the files that have settled are built without
the others after a while (`PATIENCE`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from nanoset_assets.active_runs import ActiveRuns
from nanoset_assets.asset_table import shape_of
from nanoset_assets.corpus_partitions import KnownCorpora, PartitionsRequest, partition_changes
from nanoset_assets.dagster_compat import latest_data_versions
from nanoset_assets.failed_runs import has_made, reason_not_repeated
from nanoset_assets.graph_state import current_inventories, record_existing_outputs
from nanoset_assets.loaded import reload_notes
from nanoset_assets.project_defs import ProjectDefs
from nanoset_assets.raw_text_cursor import RawTextCursor, read_cursor
from nanoset_assets.run_owner import close_abandoned_runs
from nanoset_assets.tags import MAX_REQUESTS, RAW_TAG
from nanoset_core.errors import ConfigError, InputError, NanosetError
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
    """Make a Dagster sensor that notices new and changed files of raw text, and has them built.

    A sensor is a function that Dagster calls every few seconds. This one looks at the folders of
    raw text, such as `raw/web`, each of which is a corpus:

        a new folder                     becomes a partition of the assets in Dagster
        new or changed files             a run builds the corpus, once nobody writes to it any more
        a folder was deleted             its partition is removed, unless something still needs it

    Args:
        project_defs: The names and settings of the project in Dagster.
        job: The job that builds a corpus.

    Returns:
        The sensor `raw_text`.
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
        return _evaluate(context, project_defs)

    return raw_text


def _evaluate(context: dg.SensorEvaluationContext, project_defs: ProjectDefs) -> dg.SensorResult:
    """Look at the folders of raw text, and return the runs that Dagster shall start for them.

    Dagster calls this every few seconds.

    Args:
        context: Dagster's context of this call, with the cursor: what the last call has remembered.
        project_defs: The names and settings of the project in Dagster.

    Raises:
        NanosetError: Something is wrong with the folders, and there is no run to start.
    """
    instance = context.instance
    # A run whose process was killed would count as active forever: mark it as failed.
    close_abandoned_runs(instance, project_defs.names)
    project = project_defs.load()  # with the current nanoset.yaml

    # Look up the active runs before anything else: if one ends meanwhile, it still counts as
    # active, so that what it has just built is not requested again.
    active_runs = ActiveRuns(instance, project_defs.names, project_defs.upstream)
    tick = _Tick(
        project_defs=project_defs,
        project=project,
        active_runs=active_runs,
        text=scan_corpora(project),
        last_cursor=read_cursor(context.cursor),
    )
    tick.notes += reload_notes(project_defs.config, project.config)
    try:
        return tick.result()
    finally:
        # The notes may explain an error, so log them in that case, too.
        for note in tick.notes:
            context.log.info(visible(note))


@dataclass(frozen=True, slots=True)
class _ChangedCorpus:
    """A corpus whose files differ from its current inventory."""

    contents: Contents
    """Its files."""
    is_quiet: bool
    """Whether all files have settled; otherwise it is built without those that have not."""
    current_digest: str | None
    """Digest of its current inventory, the list of its files; None if it has none."""

    @property
    def name(self) -> str:
        """The name of the corpus."""
        return self.contents.corpus

    @property
    def files_id(self) -> str:
        """Identifies the files that a run builds, such as `web:5f0c…`; a tag of runs for them."""
        files_id = f"{self.name}:{self.contents.signature}"
        return files_id if self.is_quiet else f"{files_id}:in_part"


@dataclass(slots=True)
class _Tick:
    """One tick: compares the raw folder with partitions, inventories and active runs.

    The methods fill `next_cursor`, `notes` and `errors` as they go.
    """

    project_defs: ProjectDefs
    project: Project
    active_runs: ActiveRuns
    text: RawText
    """The corpora of the raw folder and their files."""
    last_cursor: RawTextCursor
    """The cursor that the tick before stored."""
    next_cursor: RawTextCursor = field(default_factory=RawTextCursor)
    """The cursor that this tick stores."""
    notes: list[str] = field(default_factory=list)
    """Lines for the log of the tick."""
    errors: list[NanosetError] = field(default_factory=list)
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
        """Return what this call of the sensor requests, and what the next call has to know.

        Dagster calls the sensor every few seconds. The result has three parts: runs to start,
        partitions to add or remove, and the cursor, a text that Dagster hands to the next call. By
        it, the next call sees which files have changed in the meantime.

        Raises:
            NanosetError: Something is wrong with the raw text, and the result would be empty.
        """
        # These two methods also fill `next_cursor`, `notes` and `errors`.
        partition_requests = self._partition_requests()
        run_requests = self._run_requests()
        # The signature of a corpus is a hash of the names, sizes and times of its files. By it, the
        # next tick sees whether they have changed.
        for name, contents in self.text.corpora.items():
            self.next_cursor.signatures[name] = contents.signature

        has_requests = bool(run_requests or partition_requests)
        self._raise_or_note_errors(has_requests=has_requests)
        skip_reason = None if run_requests else self._skip_reason()
        return dg.SensorResult(
            run_requests=run_requests,
            skip_reason=skip_reason,
            cursor=dump(self.next_cursor).decode(),
            dynamic_partitions_requests=partition_requests,
        )

    def _raise_or_note_errors(self, *, has_requests: bool) -> None:
        """Raise the errors that this call has found, or only log them if it has a result.

        Dagster calls a sensor every few seconds. The call returns runs to start, and a cursor,
        which is the state for the next call. If it raises an error instead, Dagster discards both.
        So an error must not keep healthy corpora from being built:

            this call has found                      what happens to the error
            an error in `books`, new text in `web`   logged, and a run of `web` is requested
            an error in `books`, nothing else        raised: Dagster shows that the sensor fails

        Args:
            has_requests: Whether this call requests runs, or changes of partitions.

        Raises:
            NanosetError: There are errors, and this call has no other result.
        """
        has_new_cursor = self.next_cursor != self.last_cursor
        if self.errors and not has_requests and not has_new_cursor:
            raise _joined(self.errors)
        for error in self.errors:
            self.notes.append(str(error))

    def _partition_requests(self) -> list[PartitionsRequest]:
        """Request partitions in Dagster for new folders of raw text; for deleted ones, removals.

        Each corpus (a folder of raw text, such as `raw/web`) is a partition of the assets that are
        made from it. This compares the folders with those that the last call of the sensor has
        seen. That call stored them in a *cursor*, a text that Dagster hands to this call:

            raw/ in the last call    web, books
            raw/ now                 web, books, news
            requested                add the partition `news`

        In addition, this fills fields of this object: `next_cursor` (for the next call), `notes`
        (for the log), and `errors`, if a corpus cannot be read.

        Returns:
            Requests that add and delete partitions.
        """
        known_before = KnownCorpora(
            seen=set(self.last_cursor.signatures),  # those that had text
            missing=set(self.last_cursor.missing),  # partitions without text
            members=self.last_cursor.members,  # partition set → its corpora
        )
        changes = partition_changes(
            self.project.config, self.project_defs.names, self.active_runs, self.text, known_before
        )
        # What the next call has to know: its `missing` and `members` above.
        self.next_cursor.missing.extend(changes.missing)
        self.next_cursor.members.update(changes.members)

        self.notes += changes.notes  # such as why a partition cannot be deleted yet
        self._find_errors_of_corpora(registered=changes.registered)
        return changes.requests

    def _find_errors_of_corpora(self, registered: set[str]) -> None:
        """Add to `errors` what is wrong with corpora: folders of raw text, such as raw/web.

        A corpus is missing if the settings name it, but it has no folder. For example:

            corpus                                                 error?
            exists, but cannot be read                             yes
            is missing: the settings misspell it, as `boks`        yes
            is missing, but an asset of the user will write it     no: it is not written yet
            is missing, but had text before                        yes: it was deleted

        Args:
            registered: The corpora that are partitions in Dagster. They had text before.
        """
        # 1. Corpora that exist, but cannot be read: `faults` has an error for each. Several corpora
        #    may have the same error: report it once.
        unique_faults = dict.fromkeys(self.text.faults.values())
        self.errors += unique_faults

        # 2. Corpora that the settings name, and that are missing. It is fine if an asset has yet to
        #    write a corpus, but not if the corpus was there before (`registered`).
        existing = [*self.text.corpora, *self.text.faults]  # readable or not
        not_written_yet = self._not_written_yet([*existing, *registered])
        try:
            check_requested_corpora(self.project.config, [*existing, *not_written_yet])
        except ConfigError as error:
            self.errors.append(error)

    def _not_written_yet(self, known_corpora: list[str]) -> list[str]:
        """Return the corpora whose text has yet to be written by other assets, and note each.

        For example, a user's Dagster asset `crawl` downloads the text of the corpus `web`, but was
        never run. So it is no mistake that the folder `raw/web` is missing.

        Args:
            known_corpora: The corpora that have text, or had some before.
        """
        upstream = self.project_defs.upstream
        corpora = sorted(upstream.keys() - set(known_corpora))
        for corpus in corpora:
            writers = ", ".join(key.to_user_string() for key in upstream[corpus])
            self.notes.append(f"{corpus}: there is no text yet; {writers} lands it")
        return corpora

    def _run_requests(self) -> list[dg.RunRequest]:
        """Return requests for runs that build the corpora whose raw text has changed.

        At most 200 are requested (MAX_REQUESTS). The next call of this sensor, some seconds later,
        finds that the other corpora are still not built, and requests them.
        """
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
        """Return the corpora whose raw files have changed, and that can be built now.

        A corpus is a folder of raw text. When it is built, its files are recorded in a list, the
        inventory. For example:

            files now            inventory            the corpus
            a.jsonl              a.jsonl              is up to date
            a.jsonl, b.jsonl     a.jsonl              has changed: it is returned
            a.jsonl, c.jsonl     a.jsonl              waits, if somebody is just writing c.jsonl

        In addition, this stores which corpora are up to date: in `next_cursor`, so that the next
        call of the sensor need not compare them, and in Dagster's history, if another machine has
        built them. It adds to `notes`, for the log, why a corpus waits.
        """
        inventories = current_inventories(self.project, self.text.corpora)
        up_to_date = self._up_to_date(inventories)
        for name, recipe in up_to_date.items():  # saves the next tick the comparison
            self.next_cursor.up_to_date[name] = recipe.digest
        self._record_in_history(up_to_date)  # if another machine has built them

        # All other corpora have changed. Leave out those that have to wait.
        now_ns = time.time_ns()
        changed: list[_ChangedCorpus] = []
        for name, contents in self.text.corpora.items():
            if name in up_to_date:
                continue
            inventory = inventories.get(name)
            current_digest = None if inventory is None else inventory.digest
            is_quiet = self._is_quiet(contents, now_ns)
            corpus = _ChangedCorpus(contents, is_quiet, current_digest)
            if self._can_be_built(corpus, now_ns / 1e9):
                changed.append(corpus)
        return changed

    def _can_be_built(self, corpus: _ChangedCorpus, now: float) -> bool:
        """Return whether a corpus with changed files can be built now; if not, log why.

        It has to wait in three cases:

        - A run is building it: "web: a run is under way".
        - A run of another asset is writing its text: "web: waits until crawl has ended".
        - Some other program is writing files, so that they may be incomplete.

        Args:
            corpus: The corpus. It is quiet if nothing has been written to it for a while.
            now: The present time, in seconds since 1970.
        """
        name = corpus.name
        if name in self.active_runs.corpora:
            self.notes.append(f"{name}: a run is under way")
            return False
        if name in self.active_runs.landing:
            # A run of another asset is writing the text of the corpus.
            writer = self.active_runs.landing[name]
            self.notes.append(f"{name}: waits until {writer} has ended")
            return False
        # Nothing has been written to the files of a quiet corpus for a while.
        return corpus.is_quiet or not self._has_to_wait(corpus, now)

    def _up_to_date(self, inventories: Mapping[str, Recipe]) -> dict[str, Recipe]:
        """Return the corpora whose files are the same as in the last build.

        A build stores an *inventory* of each corpus: which files it has read, with their digests.
        If the inventory still describes the files in the folder of the corpus, there is nothing to
        build.

        Args:
            inventories: Corpus → what its current inventory was made from.

        Returns:
            The entries of `inventories` whose corpora have not changed since.
        """
        up_to_date: dict[str, Recipe] = {}
        for name, recipe in inventories.items():
            if self._is_up_to_date(self.text.corpora[name], recipe.digest):
                up_to_date[name] = recipe
        return up_to_date

    def _record_in_history(self, inventories: Mapping[str, Recipe]) -> None:
        """Let Dagster know of outputs that another machine has built.

        Dagster shows an output as built if its own database, the history, has a record of that. If
        another machine has built it, or the database was deleted, the output exists without a
        record. To find out quickly, only one output of each corpus is looked up, the inventory,
        which is made before all others.

        Args:
            inventories: Corpus that is up to date → what its inventory was made from.
        """
        recorded = latest_data_versions(self.instance, self.inventory_asset, set(inventories))
        if all(recorded.get(name) == recipe.digest for name, recipe in inventories.items()):
            return

        graph = graph_over(self.project, inventories)  # all outputs of these corpora
        step_by_node = {step.node: step for step in graph.steps()}
        record_existing_outputs(
            graph, step_by_node, self.instance, self.project_defs.names, self.active_runs
        )

    def _is_up_to_date(self, contents: Contents, digest: str) -> bool:
        """Return whether the files of a corpus are those that the last build has read.

        The quick way is to look at what the last call of the sensor has stored: if the names, sizes
        and times of the files are the same as then, and so is the inventory, its result still
        holds. Otherwise an inventory of the present files is made, and the digests of both are
        compared.

        Args:
            contents: The files of the corpus.
            digest: The digest of its current inventory.
        """
        # The quick way. A signature is a hash of the names, sizes and times of files.
        name = contents.corpus
        has_same_files = self.last_cursor.signatures.get(name) == contents.signature
        has_same_inventory = self.last_cursor.up_to_date.get(name) == digest
        if has_same_files and has_same_inventory:
            return True

        # The slow way: compare the inventory with the one that a build would make now.
        new_inventory = remembered_inventory(self.project, contents)
        if new_inventory is None:
            return False  # a file is new, and was never read
        return inventory_recipe(new_inventory).digest == digest

    def _is_quiet(self, contents: Contents, now_ns: int) -> bool:
        """Return whether nobody is writing to a corpus at the moment, so that it can be built.

        An upload of many files takes a while, and should lead to one build at its end. A corpus is
        quiet if its last change is at least `settle_seconds` ago (a setting, such as 60), and its
        files have the same names, sizes and times as in the last call of the sensor.

        Args:
            contents: The files of the corpus, with their times.
            now_ns: The present time, in nanoseconds since 1970.
        """
        signature_in_last_tick = self.last_cursor.signatures.get(contents.corpus)
        settle_seconds = self.project.config.automation.settle_seconds
        return is_quiescent(
            contents, signature_in_last_tick, now_ns=now_ns, settle_seconds=settle_seconds
        )

    def _has_to_wait(self, corpus: _ChangedCorpus, now: float) -> bool:
        """Return whether a corpus (a folder of raw text) waits, since something writes to it.

        Usually it waits, so that an upload leads to one build at its end. But if something writes
        to it all the time, such as a crawler, it would wait forever. After a long wait (20 times
        `settle_seconds`), the files to which nothing is written any more are built without the
        others:

            a.jsonl    written an hour ago       built now
            b.jsonl    written 5 seconds ago     left out, and built later

        This is not done if nothing new would be built, or if text of the last build would be lost.

        In addition, this stores in `next_cursor`, for the next call, since when the corpus waits.

        Args:
            corpus: A changed corpus to which something was written a short time ago.
            now: The present time, in seconds since 1970.
        """
        waiting_since = self.last_cursor.written_since.get(corpus.name, now)
        max_wait = PATIENCE * self.project.config.automation.settle_seconds
        has_waited_long = now - waiting_since >= max_wait
        if (
            has_waited_long
            and self._has_new_settled_files(corpus)
            and not self._would_lose_text(corpus)
        ):
            # From now on, the corpus waits again, for the files that are left out. As no time is
            # stored in the next cursor, the next call takes its own time as the start.
            self.notes.append(f"{corpus.name}: built without the files that something writes to")
            return False
        self.next_cursor.written_since[corpus.name] = waiting_since
        return True

    def _would_lose_text(self, corpus: _ChangedCorpus) -> bool:
        """Return whether a build without the files that are being written would lose text.

        Suppose that the last build has read `a.jsonl`, and somebody is uploading a new version of
        this file. A build now would have to leave it out. So the text of its old version would
        vanish from the dataset, until the upload is complete. A note in the log names the file.

        Args:
            corpus: A corpus to which something is written.
        """
        changed_file = overwritten_file(self.project, corpus.name, corpus.contents.texts)
        if changed_file is None:
            return False
        self.notes.append(
            f"{corpus.name}: {changed_file} of the last build was overwritten, "
            "and something still writes to it"
        )
        return True

    def _has_new_settled_files(self, corpus: _ChangedCorpus) -> bool:
        """Return whether a corpus has new text, apart from the files that are still being written.

        If not, there is nothing to build now. For example, the last build has read `a.jsonl`:

            files now                          result
            a.jsonl, b.jsonl (being written)   False
            a.jsonl, b.jsonl (complete)        True

        Args:
            corpus: A corpus (a folder of raw text) to which something is written.
        """
        # Compare the current inventory, the list of files that the last build read, with the one
        # that such a build would make. The latter is known if all settled files were read before.
        quiet_period = quiet_period_of(self.project, corpus.name)
        settled_inventory = remembered_inventory(self.project, corpus.contents, quiet_period)
        if settled_inventory is None:
            return True  # a settled file is new, and was never read
        if not settled_inventory.pieces:
            return False  # no settled file has text, so there is nothing to build
        return inventory_recipe(settled_inventory).digest != corpus.current_digest

    def _run_request(self, corpus: _ChangedCorpus) -> dg.RunRequest | None:
        """Return the request for a run that builds a corpus, or None if no run is needed.

        Each run has a tag that identifies the files of the corpus for which it was requested. So
        the runs that were already requested for the present files can be found:

            earlier runs for these files             result
            none                                     a request with the key "3f9c"
            one, but another may be successful       a request with the key "3f9c:1"
            one, and another would do the same       None

        Args:
            corpus: A changed corpus that can be built now.
        """
        tags = {self.project_defs.names.tag(RAW_TAG): corpus.files_id}
        earlier_runs = self.instance.get_run_records(dg.RunsFilter(tags=tags))  # the latest first
        run_key = corpus.files_id
        if earlier_runs:
            if not self._needs_another_run(corpus, earlier_runs):
                return None
            # Dagster starts one run for each run key, so another attempt needs a new one.
            run_key = f"{corpus.files_id}:{len(earlier_runs)}"
        return dg.RunRequest(run_key=run_key, partition_key=corpus.name, tags=tags)

    def _needs_another_run(
        self, corpus: _ChangedCorpus, earlier_runs: Sequence[dg.RunRecord]
    ) -> bool:
        """Return whether to build a corpus once more, although there were runs for its files.

        A corpus is a folder of raw text. The first case that applies decides:

            1. a run has failed, and would fail again       no
            2. no build of the corpus has ever succeeded    yes
            3. something is still writing to the corpus     yes: the runs have built only some files
            4. the latest run has succeeded                 no: it has built the present files
            5. otherwise                                    yes

        In case 1, the reason is added to `notes`, for the log. In case 4, `next_cursor` gets the
        digest of the corpus, so that the next call of the sensor takes it for up to date without
        these questions.

        Args:
            corpus: The corpus.
            earlier_runs: The runs for its present files, the latest first.
        """
        latest_run = earlier_runs[0]
        failure_reason = reason_not_repeated(self.instance, latest_run, earlier_runs)
        if failure_reason is not None:
            self.notes.append(f"{corpus.name}: {failure_reason}")
            return False

        if corpus.current_digest is None:
            return True  # no build has succeeded yet
        if not corpus.is_quiet:
            return True  # something still writes to it, so the runs have not built all files

        # Has the latest run made the present list of files (the inventory)? It was a run for the
        # present files, so the corpus is up to date then.
        is_up_to_date = has_made(
            self.instance, latest_run, self.inventory_asset, corpus.name, corpus.current_digest
        )
        if is_up_to_date:
            self.next_cursor.up_to_date[corpus.name] = corpus.current_digest
        return not is_up_to_date

    def _skip_reason(self) -> str:
        """Say for Dagster's UI why this call of the sensor starts no run.

        Returns:
            Such as "2 corpora, 8 files in /data/raw; waiting until nothing writes to web", or "2
            corpora, 8 files in /data/raw: nothing has changed".
        """
        written_corpora = list(self.next_cursor.written_since)  # something still writes to them
        summary = self._summary()
        if not written_corpora and not self.notes:
            summary += ": nothing has changed"
        parts = [summary]
        if written_corpora:
            names = abbreviated(written_corpora, _MAX_NAMES)
            parts.append(f"waiting until nothing writes to {names}")
        parts += self.notes
        parts += self._unread_texts()
        return "; ".join(parts)

    def _summary(self) -> str:
        """Say how much raw text there is: "2 corpora, 8 files in /data/raw"."""
        folder = self.project.config.raw_folder
        return f"{len(self.text.corpora):,} corpora, {self.text.files:,} files in {folder}"

    def _unread_texts(self) -> list[str]:
        """Name files and folders in the folder of raw text that are no part of any corpus, and why.

        For example, "notes.txt: …". At most five are named (_MAX_NAMES); the others are counted:
        "and 12 more that are not read".
        """
        unread = [f"{name}: {reason}" for name, reason in self.text.unread_entries.items()]
        texts = unread[:_MAX_NAMES]
        n_unnamed = len(unread) - _MAX_NAMES
        if n_unnamed > 0:
            texts.append(f"and {n_unnamed:,} more that are not read")
        return texts


def _joined(errors: list[NanosetError]) -> NanosetError:
    """Combine errors of the raw text into one, so that Dagster shows all of them.

    Args:
        errors: At least one. If there is only one, it is returned as it is.

    Returns:
        Such as "2 things are wrong with the raw text:", with the errors in the lines below.
    """
    if len(errors) == 1:
        return errors[0]
    lines = "\n".join(map(str, errors))
    return InputError(f"{len(errors)} things are wrong with the raw text:\n{lines}")
