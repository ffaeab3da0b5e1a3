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
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from nanoset_assets.assets.table import shape_of
from nanoset_assets.automation.active_runs import ActiveRuns
from nanoset_assets.automation.corpus_partitions import (
    KnownCorpora,
    PartitionChanges,
    partition_changes,
)
from nanoset_assets.automation.cursors import RawTextCursor, cursor_text, read_cursor
from nanoset_assets.automation.failed_runs import has_made, reason_not_repeated
from nanoset_assets.automation.ticks import tick_result
from nanoset_assets.code_location.loaded import reload_notes
from nanoset_assets.dagster_compat import latest_data_versions
from nanoset_assets.history.graph_state import record_existing_outputs
from nanoset_assets.project_defs import ProjectDefs
from nanoset_assets.tags import MAX_REQUESTS, RAW_TAG
from nanoset_core.errors import ConfigError, NanosetError, combined
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.project.graph.graph import graph_over
from nanoset_core.project.project import Project
from nanoset_core.project.requested_corpora import check_requested_corpora
from nanoset_core.stages.inventory.corpora import scan_corpora
from nanoset_core.stages.inventory.make import (
    current_inventory_recipes,
    inventory_recipe,
    overwritten_file,
    quiet_period_of,
    remembered_inventory,
)
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.text.files.contents import Contents
from nanoset_core.text.files.survey import RawText, is_quiescent
from nanoset_core.untrusted import visible
from nanoset_core.wording import abbreviated

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
    """Return the runs that Dagster shall start now, for the folders of raw text that have changed.

    Dagster calls this every few seconds.

    Args:
        context: Dagster's context of this call. Its cursor is a text that the last call has left.
        project_defs: The names and settings of the project in Dagster.

    Raises:
        NanosetError: Something is wrong with the folders, and there is no run to start.
    """
    # Look up the active runs before the files. If a run ends in between, it still counts as active,
    # so that what it has just built is not requested again.
    active_runs = ActiveRuns.look_up(context.instance, project_defs.names, project_defs.upstream)
    project = project_defs.load()  # with the current nanoset.yaml
    note = project_defs.note_on_raw_folder(context.instance, project)
    if note is not None:
        return tick_result(context, notes=[note])
    tick = _Tick(
        project_defs=project_defs,
        project=project,
        active_runs=active_runs,
        text=scan_corpora(project),  # the names, sizes and times of all files
        last_cursor=read_cursor(RawTextCursor, context.cursor),
        notes=reload_notes(project_defs.config, project.config),
    )
    try:
        return tick.result(context)
    finally:
        _log_notes(context, tick.notes)  # also if there is an error, which they may explain


def _log_notes(context: dg.SensorEvaluationContext, notes: Iterable[str]) -> None:
    """Write lines into the log of a call of the sensor.

    Args:
        context: Dagster's context of this call.
        notes: The lines.
    """
    for note in notes:
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

    Its methods add to `next_cursor` and `notes`.
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

    @property
    def instance(self) -> dg.DagsterInstance:
        """The instance in which the sensor runs."""
        return self.active_runs.instance

    @property
    def inventory_asset(self) -> dg.AssetKey:
        """The asset whose partitions are the corpora and whose outputs are their inventories."""
        return self.project_defs.names.asset(shape_of(INVENTORY).asset)

    def result(self, context: dg.SensorEvaluationContext) -> dg.SensorResult:
        """Return what Dagster has to do: runs to start, and partitions to add or to remove.

        A cursor is returned, too: a text that Dagster hands to the next call of the sensor, so that
        this can see what has changed in the meantime.

        Args:
            context: Dagster's context of this call.

        Raises:
            NanosetError: Something is wrong with the raw text, and there is nothing else to return.
        """
        changes = self._partition_changes()
        self.notes += changes.notes  # such as why a partition cannot be removed yet
        errors = self._errors_of_corpora(had_text_before=changes.registered)
        run_requests = self._run_requests()
        self._store_in_cursor(changes)

        has_requests = bool(run_requests or changes.requests)
        self._raise_or_note(errors, has_requests=has_requests)
        return tick_result(
            context,
            run_requests,
            idle_reason=self._skip_reason(),
            cursor=cursor_text(self.next_cursor),
            dynamic_partitions_requests=changes.requests,
        )

    def _raise_or_note(self, errors: Sequence[NanosetError], *, has_requests: bool) -> None:
        """Raise the errors of corpora if this call has no other result; otherwise log them.

        If an error is raised, Dagster discards everything else that the call returns. But a mistake
        in one folder must not keep the others from being built. So errors are only raised by a call
        that finds nothing new.

        Args:
            errors: What is wrong with corpora, which are folders of raw text.
            has_requests: Whether the call requests runs or changes of partitions.

        Raises:
            NanosetError: All errors in one.
        """
        has_new_cursor = self.next_cursor != self.last_cursor
        if errors and not has_requests and not has_new_cursor:
            raise combined(errors, self.project.config.raw_folder)
        self.notes += map(str, errors)

    def _store_in_cursor(self, changes: PartitionChanges) -> None:
        """Store what this call has seen of folders and partitions, for the next call.

        Args:
            changes: The partitions that are added and removed.
        """
        # Partitions whose folder is missing. If it still is at the next call, they are removed.
        self.next_cursor.missing.extend(changes.missing)
        # Some assets exist only for some corpora: name of their set of partitions → its corpora.
        self.next_cursor.members.update(changes.members)
        for name, contents in self.text.corpora.items():
            self.next_cursor.signatures[name] = contents.signature  # a hash of its list of files

    def _partition_changes(self) -> PartitionChanges:
        """Return which partitions to add and to remove, since folders of raw text came or went.

        Each folder, such as `raw/web`, is a partition of the assets that are made from it. The
        sensor is called every few seconds, for example:

            call      folders in raw/    changes
            first     web, books         add `web` and `books`
            second    web, news          add `news`; `books` may be being replaced, so wait
            third     web, news          remove `books`

        A partition is not removed while the settings name the folder, or a run makes the partition.
        """
        # What the last call has seen, as it has left it in the cursor.
        known_before = KnownCorpora(
            seen=set(self.last_cursor.signatures),  # folders that had text
            missing=set(self.last_cursor.missing),  # partitions whose folder was missing
            # Some assets exist only for some folders, and have a separate set of partitions: name
            # of the set → the partitions that this sensor has added to it.
            members=self.last_cursor.members,
        )
        return partition_changes(
            self.project.config, self.project_defs.names, self.active_runs, self.text, known_before
        )

    def _errors_of_corpora(self, had_text_before: set[str]) -> list[NanosetError]:
        """Return what is wrong with the corpora, which are folders of raw text such as raw/web.

        There are two kinds of errors: a folder cannot be read, or the settings name a folder that
        does not exist. It is no error if a user's asset in Dagster has yet to write the folder.

        Args:
            had_text_before: Corpora that are partitions in Dagster, since they once had text.
        """
        # Several corpora may have the same error: report it once.
        errors = list(dict.fromkeys(self.text.faults.values()))

        existing = [*self.text.corpora, *self.text.faults]  # readable or not
        not_written_yet = self._corpora_not_written_yet({*existing, *had_text_before})
        try:
            check_requested_corpora(self.project.config, [*existing, *not_written_yet])
        except ConfigError as error:
            errors.append(error)
        return errors

    def _corpora_not_written_yet(self, known: Collection[str]) -> list[str]:
        """Return the corpora whose raw text is still to be written by a user's asset in Dagster.

        For each of them, a note is added to the log:

            web: there is no text yet; crawl lands it      (`crawl` is the name of the asset)

        Args:
            known: Corpora that have text, or had some before.
        """
        writers_by_corpus = self.project_defs.upstream  # such as {"web": (AssetKey("crawl"),)}
        not_written_yet = [corpus for corpus in sorted(writers_by_corpus) if corpus not in known]
        for corpus in not_written_yet:
            labels = ", ".join(asset.to_user_string() for asset in writers_by_corpus[corpus])
            self.notes.append(f"{corpus}: there is no text yet; {labels} lands it")
        return not_written_yet

    def _run_requests(self) -> list[dg.RunRequest]:
        """Return requests for runs that build the corpora whose raw text has changed.

        A build of a corpus (a folder of raw text) stores an inventory: the list of the files that
        it has read. It is compared with the present files:

            corpus    files now                        result
            web       those of its inventory           no request
            books     one more                         a request
            code      one more, still being written    no request before it is complete
        """
        inventories = current_inventory_recipes(self.project, self.text.corpora)
        up_to_date = self._up_to_date(inventories)  # web
        self._record_in_history(up_to_date)
        for name, recipe in up_to_date.items():
            self.next_cursor.up_to_date[name] = recipe.digest  # spares the next call to compare it

        now_ns = time.time_ns()
        changed = self._changed_corpora(inventories, up_to_date, now_ns)  # books and code
        buildable = [corpus for corpus in changed if self._can_be_built(corpus, now_ns / 1e9)]
        return self._requests_for(buildable)

    def _requests_for(self, buildable: Sequence[_ChangedCorpus]) -> list[dg.RunRequest]:
        """Return requests for runs that build changed corpora, at most 200 (MAX_REQUESTS).

        The next call of this sensor, some seconds later, finds that the other corpora are still not
        built, and requests them.

        Args:
            buildable: The corpora (folders of raw text) that have changed, and can be built now.
        """
        requests: list[dg.RunRequest] = []
        n_examined = 0
        for corpus in buildable:
            if len(requests) == MAX_REQUESTS:
                break
            n_examined += 1
            request = self._run_request(corpus)  # None if earlier runs for its files are enough
            if request is not None:
                requests.append(request)
        n_later = len(buildable) - n_examined
        if n_later:
            self.notes.append(f"{n_later:,} more are requested later")
        return requests

    def _changed_corpora(
        self, inventories: Mapping[str, Recipe], up_to_date: Collection[str], now_ns: int
    ) -> list[_ChangedCorpus]:
        """Return the corpora (folders of raw text) that have changed since their last build.

        Args:
            inventories: Corpus → the list of the files that its last build has read, as a recipe
                with a digest. Corpora that were never built are left out.
            up_to_date: Names of the corpora that have not changed.
            now_ns: The present time, in nanoseconds since 1970.
        """
        changed: list[_ChangedCorpus] = []
        for name, contents in self.text.corpora.items():
            if name in up_to_date:
                continue
            inventory = inventories.get(name)
            corpus = _ChangedCorpus(
                contents=contents,
                is_quiet=self._is_quiet(contents, now_ns),
                current_digest=None if inventory is None else inventory.digest,
            )
            changed.append(corpus)
        return changed

    def _can_be_built(self, corpus: _ChangedCorpus, now: float) -> bool:
        """Return whether a corpus with changed files can be built now, or has to wait.

        It has to wait in these cases:

            a run makes something of it             note in the log: "web: a run is under way"
            an asset of the user writes its text    note: "web: waits until crawl has ended"
            any other program writes its text       the next call of the sensor gets the time

        Args:
            corpus: The corpus (a folder of raw text).
            now: The present time, in seconds since 1970.
        """
        name = corpus.name
        if name in self.active_runs.corpora:
            self.notes.append(f"{name}: a run is under way")
            return False
        if name in self.active_runs.landing:
            writer = self.active_runs.landing[name]
            self.notes.append(f"{name}: waits until {writer} has ended")
            return False

        # A corpus is quiet if nothing was written to it for a while.
        written_since = self.last_cursor.written_since.get(name, now)
        if corpus.is_quiet or self._is_built_in_part(corpus, seconds_waited=now - written_since):
            return True
        self.next_cursor.written_since[name] = written_since
        return False

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
        """Add outputs to Dagster's history that another machine has built, so that it shows them.

        Two machines may share the outputs, each with a Dagster of its own. The sensor is called
        every few seconds, and usually the history lacks nothing, so look for one output of each
        corpus first. Any build of a corpus begins with its inventory, the list of its files. If the
        history has that, it is assumed to have the other outputs of the corpus, too.

        Args:
            inventories: Corpus (a folder of raw text) that is up to date → the recipe of its
                inventory. The digest of the recipe identifies the list.
        """
        if self._are_in_history(inventories):
            return
        # Look up everything that is made from these corpora, and add what the history lacks.
        graph = graph_over(self.project, inventories)
        step_by_node = {step.node: step for step in graph.steps()}
        record_existing_outputs(
            graph, step_by_node, self.instance, self.project_defs.names, self.active_runs
        )

    def _are_in_history(self, inventories: Mapping[str, Recipe]) -> bool:
        """Return whether Dagster's history has the current inventory of each corpus.

        When a run makes an inventory (a list of files), Dagster records the digest of its recipe as
        the *data version* of a partition. This takes one query for all corpora.

        Args:
            inventories: Corpus → the recipe of its current inventory.
        """
        digests = {name: recipe.digest for name, recipe in inventories.items()}
        recorded_digests = latest_data_versions(self.instance, self.inventory_asset, set(digests))
        return all(recorded_digests.get(name) == digest for name, digest in digests.items())

    def _is_up_to_date(self, contents: Contents, digest: str) -> bool:
        """Return whether the files of a corpus are those that the last build has read.

        Args:
            contents: The files of the corpus.
            digest: A hash of the list of files that the last build has read.
        """
        if self._was_found_up_to_date(contents, digest):
            return True  # this was quick to find out
        # Make the list of the present files from their remembered digests, and compare its hash.
        present_files = remembered_inventory(self.project, contents)
        if present_files is None:
            return False  # a file is new, and was never read
        return inventory_recipe(present_files).digest == digest

    def _was_found_up_to_date(self, contents: Contents, digest: str) -> bool:
        """Return whether the last call of the sensor has compared the same files and the same list.

        The last call has stored what it has seen: a signature (a hash of the names, sizes and times
        of the files), and the digest of the list if both were the same.

        Args:
            contents: The files of a corpus.
            digest: A hash of the list of files that the last build has read.
        """
        name = contents.corpus
        has_same_files = self.last_cursor.signatures.get(name) == contents.signature
        return has_same_files and self.last_cursor.up_to_date.get(name) == digest

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

    def _is_built_in_part(self, corpus: _ChangedCorpus, seconds_waited: float) -> bool:
        """Return whether to build a corpus now, although something is writing to its folder.

        Usually it waits, so that an upload leads to one build at its end. But a crawler may write
        all the time. So after a long wait (20 times the setting `settle_seconds`), the corpus is
        built without the files that are being written, if that makes sense. The log says so.

        Args:
            corpus: A corpus to which something was written a short time ago.
            seconds_waited: For how long it has had to wait.
        """
        max_wait = PATIENCE * self.project.config.automation.settle_seconds
        if seconds_waited < max_wait or not self._can_be_built_in_part(corpus):
            return False
        self.notes.append(f"{corpus.name}: built without the files that something writes to")
        return True

    def _can_be_built_in_part(self, corpus: _ChangedCorpus) -> bool:
        """Return whether to build a corpus without the files that are still being written.

        For example, the last build has read `a.jsonl`, and now some files (marked *) are written:

            files now                       result
            a.jsonl, b.jsonl *              False: nothing new would be built
            a.jsonl, b.jsonl *, c.jsonl     True: c.jsonl would be built
            a.jsonl *, c.jsonl              False: the old text of a.jsonl would be lost

        Args:
            corpus: A corpus (a folder of raw text) to which something is written.
        """
        if not self._has_new_settled_files(corpus):
            return False
        overwritten = overwritten_file(self.project, corpus.name, corpus.contents.texts)
        if overwritten is not None:
            self.notes.append(
                f"{corpus.name}: {overwritten} of the last build was overwritten, "
                "and something still writes to it"
            )
            return False
        return True

    def _has_new_settled_files(self, corpus: _ChangedCorpus) -> bool:
        """Return whether a corpus has new text in files that nobody is writing any more.

        Args:
            corpus: A corpus (a folder of raw text), with the digest of the list of files that its
                last build has read.
        """
        # List the files to which nothing was written for a while. A file that was never read before
        # has no digest yet, so the list cannot be made: the result is None.
        quiet_seconds = quiet_period_of(self.project, corpus.name)
        settled_files = remembered_inventory(self.project, corpus.contents, quiet_seconds)
        if settled_files is None:
            return True
        if not settled_files.pieces:
            return False  # there is no text in them
        return inventory_recipe(settled_files).digest != corpus.current_digest

    def _run_request(self, corpus: _ChangedCorpus) -> dg.RunRequest | None:
        """Return the request for a run that builds a corpus, or None if no run is needed.

        Each run has a tag that identifies the files for which it was requested, such as "web:5f0c".
        So the runs that were already requested for the present files can be found.

        Dagster starts only one run for each key. So the key of the first run is "web:5f0c", and
        those of further attempts are "web:5f0c:1", "web:5f0c:2" and so on.

        Args:
            corpus: A changed corpus (a folder of raw text) that can be built now.
        """
        tags = {self.project_defs.names.tag(RAW_TAG): corpus.files_id}
        earlier_runs = self.instance.get_run_records(dg.RunsFilter(tags=tags))  # the latest first
        run_key = corpus.files_id
        if earlier_runs:
            if not self._needs_another_run(corpus, earlier_runs):
                return None
            run_key += f":{len(earlier_runs)}"
        return dg.RunRequest(run_key=run_key, partition_key=corpus.name, tags=tags)

    def _needs_another_run(
        self, corpus: _ChangedCorpus, earlier_runs: Sequence[dg.RunRecord]
    ) -> bool:
        """Return whether to build a corpus once more, although there were runs for its files.

            the latest of these runs                                      another run
            has failed, and would fail again                              no
            has succeeded, but without files that were being written      yes
            has succeeded, but its list of files is not the current one   yes
            has succeeded, and has made the current list of files         no

        In the last case, the next call need not ask again, so this is stored in the cursor.

        Args:
            corpus: The corpus, which is a folder of raw text.
            earlier_runs: The runs for its present files, the latest first.
        """
        latest_run = earlier_runs[0]
        failure_reason = reason_not_repeated(self.instance, latest_run, earlier_runs)
        if failure_reason is not None:
            self.notes.append(f"{corpus.name}: {failure_reason}")
            return False
        if not corpus.is_quiet:
            return True  # something still writes to it, so the runs have built only some files

        digest = corpus.current_digest
        if digest is None:
            return True  # no build has ever succeeded
        if not has_made(self.instance, latest_run, self.inventory_asset, corpus.name, digest):
            return True  # another run has made the current list of files
        self.next_cursor.up_to_date[corpus.name] = digest
        return False

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
