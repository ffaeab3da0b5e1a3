"""Make the shards of a corpus that do not exist yet, in worker processes.

Engines are compared with a reference meanwhile. If one gives wrong tokens, it is recorded as
distrusted, and the shards are made again without it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoset_core.errors import NanosetError
from nanoset_core.execution.processes import Executor, run_tasks
from nanoset_core.execution.progress import Amount, Progress, progress_reported_to
from nanoset_core.outputs.manifest import Manifest, PackedManifests, pack, unpack
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.stages.shards import purged
from nanoset_core.stages.shards.make import (
    SHARDS,
    ShardSettings,
    ShardTask,
    make_shard,
    shard_recipe,
)
from nanoset_core.storage.atomic import sweep_abandoned
from nanoset_core.storage.location import RawFolder
from nanoset_core.text.pieces import SourceRange
from nanoset_core.tokenizers import distrust
from nanoset_core.untrusted import safe_logger

logger = safe_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeJob:
    """The ranges of a corpus's text, each of which becomes a shard."""

    root: OutputRoot
    """Where workers store the shards."""
    corpus: str
    """Name of the shards, and of the folder that contains them."""
    folder: RawFolder
    """The corpus's folder of raw text."""
    ranges: Iterable[SourceRange]
    """In document order. They may be created as they are needed, and are iterated several times."""
    options: Mapping[str, Any]
    """The settings that decide the tokens, as in recipes, without distrusted engines."""
    settings: ShardSettings
    """How each shard is made."""
    workers: int
    """Processes."""
    executor: Executor | None = None
    """Runs the tasks instead of these processes."""
    progress: Progress
    """Shows the progress of all ranges together."""
    activity: str
    """What the progress calls the work."""
    subject: str
    """What the progress calls the text."""
    text_bytes: int
    """Stored bytes of all ranges."""
    look_first: bool = False
    """Whether to look for finished shards in this process, so that workers get only tasks for
    missing ones.
    """

    def run(self) -> tuple[Sequence[Manifest], dict[str, Any]]:
        """Make the shards that do not exist yet, until no engine that was used is distrusted.

        An engine may become distrusted while the job runs: by this job, or by another process.

        Returns:
            All shards, in document order; and the options of their recipes, with the engines that
            were not used.

        Raises:
            InputError, SourceChangedError, MissingError: As `make_shard`.
            ReturnedDocumentsError: As `make_shard`, after all other shards were made.
            NanosetError: An engine gave wrong tokens that was already distrusted.
        """
        tokenizer = self.options["tokenizer"]
        distrusted = list(distrust.load_records(self.root, tokenizer))
        while True:
            options = {**self.options, **distrust.recipe_options(distrusted)}
            shards: Sequence[Manifest] | None = None
            records: list[distrust.Distrust] = []
            try:
                shards = self._make(options)
            except distrust.DistrustError as error:
                records.append(error.record)
                # The worker stored the record as well, but a network file system may show it to
                # this machine only later.
                distrust.NOTEBOOK.add(self.root, error.record)
            finally:
                # Workers of a cancelled run were ended wherever they were.
                sweep_abandoned(self.root.folder / SHARDS / self.corpus)

            # Engines that were not yet distrusted when this attempt started.
            records += distrust.load_records(self.root, tokenizer, refresh=True)
            known_names = options.get(distrust.OPTION, ())
            new_records = [record for record in records if record.name not in known_names]
            if not new_records:
                if shards is None:
                    raise _distrusted_engine_used(records[0])
                return shards, options

            record_by_engine = {record.name: record for record in new_records}
            for record in record_by_engine.values():
                logger.warning(
                    "%s: %s; shards are made again with another engine", record.where, record.what
                )
            distrusted += new_records

    def _make(self, options: Mapping[str, Any]) -> Sequence[Manifest]:
        """Make the shards that do not exist yet; return all of them, in document order.

        Args:
            options: Of their recipes.

        Raises:
            ReturnedDocumentsError: Some shards could not be made, as erased documents are in their
                text again.
        """
        work = self.progress.work(self.activity, self.subject, self.text_bytes)
        # Number of the range → its shard. Manifests are packed, since there may be 100,000.
        packed_shards: dict[int, bytes] = {}
        missing: list[int] = []  # number of the range of each task

        def tasks() -> Iterator[ShardTask]:
            for number, source in enumerate(self.ranges):
                if number not in packed_shards:
                    missing.append(number)
                    recipe = shard_recipe(self.corpus, source, options)
                    yield ShardTask(self.root, recipe, self.folder, source, self.settings)

        if self.look_first:
            for number, shard in self._finished(options):
                packed_shards[number] = pack(shard)
                work.add_existing(_amount_of(shard))
        work.report()

        returned_places: list[purged.ErasedPlace] = []
        with progress_reported_to(work.receive):
            for task, outcome in run_tasks(_shard_or_places, tasks(), self.workers, self.executor):
                if not isinstance(outcome, Manifest):
                    returned_places += outcome
                    continue
                packed_shards[missing[task]] = pack(outcome)
                work.advance_part(outcome.digest, _amount_of(outcome))
        if returned_places:
            raise purged.ReturnedDocumentsError(returned_places)
        in_order = [packed_shards[number] for number in sorted(packed_shards)]
        return PackedManifests(in_order, self.root.access)

    def _finished(self, options: Mapping[str, Any]) -> Iterator[tuple[int, Manifest]]:
        """Yield (number of its range, shard) for each shard that exists and is whole."""

        def pack_if_whole(outputs: OutputRoot, folder: Path) -> bytes | None:
            shard = outputs.find_at(folder)
            return None if shard is None else pack(shard)

        digests = [shard_recipe(self.corpus, source, options).digest for source in self.ranges]
        packed = self.root.each_version(pack_if_whole, SHARDS, self.corpus, digests)
        for number, shard in enumerate(packed):
            if shard is not None:
                yield number, unpack(shard, self.root.access)


def _amount_of(shard: Manifest) -> Amount:
    """Return how much of a corpus's text is in a shard."""
    facts = shard.facts
    return Amount(facts.get("stored_bytes", 0), facts["documents"], facts["tokens"])


def _shard_or_places(task: ShardTask) -> Manifest | Collection[purged.ErasedPlace]:
    """Make a shard, or return the places of erased documents that are in its text again."""
    try:
        return make_shard(task)
    except purged.ReturnedDocumentsError as error:
        return error.places


def _distrusted_engine_used(record: distrust.Distrust) -> NanosetError:
    """Return the error for an engine that was used although it is distrusted."""
    return NanosetError(
        "an engine that must not be used any more gave wrong tokens",
        where=record.where,
        found=record,
        expected="tokens of another engine, since this one is recorded as distrusted",
        remedy="set the engine to `tokenizers`, install the same version of nanoset on all "
        "machines, and report this",
    )
