"""Make the shards of a corpus that do not exist yet, in worker processes.

A fast engine turns the text into tokens. For some documents, its tokens are compared with those of
the tokenizer's own library. If an engine gives wrong tokens, it is recorded as *distrusted*, and
the shards are made again without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from nanoset_core.errors import NanosetError
from nanoset_core.execution.processes import Executor
from nanoset_core.execution.progress import Amount, Progress
from nanoset_core.outputs.manifest import Manifest, PackedManifests, Recipe, pack, unpack
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.stages.per_shard import PerShard, make_per_shard
from nanoset_core.stages.shards import purged
from nanoset_core.stages.shards.names import SHARDS_FOLDER
from nanoset_core.stages.shards.one_shard import ShardSettings, ShardTask, shard_recipe
from nanoset_core.storage.atomic import sweep_abandoned
from nanoset_core.storage.location import Location
from nanoset_core.text.inventory.pieces import SourceRange
from nanoset_core.tokenizers import distrust
from nanoset_core.untrusted import safe_logger

logger = safe_logger(__name__)


class MadeShards(NamedTuple):
    """The shards of a corpus, and what decided their tokens."""

    shards: Sequence[Manifest]
    """In document order."""
    options: dict[str, Any]
    """The options of their recipes, which name the engines that were not used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeJob:
    """The ranges of a corpus's text, each of which becomes a shard."""

    root: OutputRoot
    """Where workers store the shards."""
    corpus: str
    """Name of the shards, and of the folder that contains them."""
    folder: Location
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

    def run(self) -> MadeShards:
        """Tokenize all ranges of text, with implementations of the tokenizer that can be trusted.

        There are several implementations (engines), and fast ones are compared with the reference
        in a share of the documents. For example:

            attempt 1    engine "gigatoken"     gives wrong tokens for a document: it is recorded
            attempt 2    engine "tokenizers"    all ranges are tokenized

        Ranges whose tokens exist already, by the same engines and settings, are not tokenized
        again.

        Returns:
            The tokens of each range (a shard), those that existed before included.

        Raises:
            InputError, SourceChangedError, MissingError: A worker could not make its shard; see
                `ShardTask.write`.
            ReturnedDocumentsError: Erased documents are in the text again. It is raised after all
                other shards were made.
            NanosetError: An engine gave wrong tokens that was already distrusted.
        """
        tokenizer = self.options["tokenizer"]
        distrusted = list(distrust.load_records(self.root, tokenizer))
        while True:
            options = {**self.options, **distrust.recipe_options(distrusted)}
            attempt = self._attempt(options)

            # This attempt, or another process, may have found engines that give wrong tokens.
            records = [*attempt.records, *distrust.load_records(self.root, tokenizer, refresh=True)]
            excluded_names = options.get(distrust.OPTION, ())
            new_records = [record for record in records if record.name not in excluded_names]
            if new_records:
                _warn_of_engines(new_records)
                distrusted += new_records
            elif attempt.shards is None:  # an excluded engine was used, and ended the attempt
                raise _distrusted_engine_used(records[0])
            else:
                return MadeShards(attempt.shards, options)

    def _attempt(self, options: Mapping[str, Any]) -> _Attempt:
        """Try to tokenize all ranges of text, and stop if a tokenizer gives wrong tokens.

        A tokenizer has several implementations (engines), and some of the tokens of the fast ones
        are checked. If they are wrong, the caller calls this method again, without this engine.

        Args:
            options: Settings that decide the tokens. They name the engines to avoid.

        Returns:
            Either the tokens of all ranges, or the record of wrong ones.
        """
        try:
            return _Attempt(shards=self._make_missing_shards(options))
        except distrust.DistrustError as error:
            # The worker has recorded the engine with the outputs, so that no later run uses it. But
            # on a network file system, this machine may not see the worker's record yet.
            distrust.NOTEBOOK.add(self.root, error.record)
            return _Attempt(records=(error.record,))
        finally:
            shards_folder = self.root.folder / SHARDS_FOLDER / self.corpus
            sweep_abandoned(shards_folder)  # incomplete files of workers that were cancelled

    def _make_missing_shards(self, options: Mapping[str, Any]) -> Sequence[Manifest]:
        """Make a shard, which has the tokens, of each range of text that has none yet.

        Worker processes do this. The folder of a shard is named by a digest of its range and of the
        options, so a range is only tokenized again if one of these has changed.

        Args:
            options: Settings that decide the tokens.

        Returns:
            Manifests of all shards, in document order. They are stored compressed, since there may
            be 100,000, and unpacked when they are used.

        Raises:
            ReturnedDocumentsError: Some ranges contain documents that the user had erased before,
                for example in a new file. It is raised after all other shards were made.
        """
        progress = self.progress.work(self.activity, self.subject, self.text_bytes)
        try:
            shards = make_per_shard(
                _ShardsOfRanges(job=self, options=options),
                self.root,
                progress,
                workers=self.workers,
                executor=self.executor,
                look_first=self.look_first,
            )
        except ExceptionGroup as group:
            raise _all_returned_documents(group) from group  # one error for all ranges
        return PackedManifests(shards.results, self.root.access)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """The result of an attempt to make all shards."""

    shards: Sequence[Manifest] | None = None
    """All shards, in document order; None if an engine gave wrong tokens."""
    records: Sequence[distrust.Distrust] = ()
    """The wrong tokens that ended the attempt."""


def _warn_of_engines(records: Iterable[distrust.Distrust]) -> None:
    """Log that shards are made again, once for each engine that gave wrong tokens."""
    record_by_engine = {record.name: record for record in records}
    for record in record_by_engine.values():
        logger.warning(
            "%s: %s; shards are made again with another engine", record.where, record.what
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ShardsOfRanges(PerShard[SourceRange, bytes]):
    """The shards of a job's ranges; the packed manifest of each is needed.

    Manifests are packed, since there may be 100,000.
    """

    job: TokenizeJob
    options: Mapping[str, Any]
    """Options of the recipes."""

    def shards(self) -> Iterable[SourceRange]:
        """Return the ranges of text."""
        return self.job.ranges

    def recipe(self, shard: SourceRange) -> Recipe:
        return shard_recipe(self.job.corpus, shard, self.options)

    def task(self, shard: SourceRange, recipe: Recipe) -> ShardTask:
        job = self.job
        return ShardTask(
            root=job.root, recipe=recipe, folder=job.folder, source=shard, settings=job.settings
        )

    def result(self, manifest: Manifest) -> bytes:
        return pack(manifest)

    def amount(self, shard: SourceRange, result: bytes) -> Amount:
        facts = unpack(result, self.job.root.access).facts
        return Amount(facts.get("stored_bytes", 0), facts["documents"], facts["tokens"])


def _all_returned_documents(
    group: ExceptionGroup[Exception],
) -> purged.ReturnedDocumentsError:
    """Return one error for the erased documents that are in the text of any shard again.

    Each worker reports those of its own part of the text. The caller records all of them, and
    tokenizes the text again without them.

    Args:
        group: The errors of all workers.
    """
    places: list[purged.ErasedPlace] = []
    for error in group.exceptions:
        if isinstance(error, purged.ReturnedDocumentsError):
            places += error.places
    return purged.ReturnedDocumentsError(places)


def _distrusted_engine_used(record: distrust.Distrust) -> NanosetError:
    """Return the error for a tokenizer that was used although it had produced wrong tokens before.

    The tokenizer has several implementations (engines). Samples of their tokens are compared, and
    one that was wrong is recorded, and not used any more. But if another machine has another
    version of nanoset, it may use it regardless.

    Args:
        record: The document (`where`), the engine, and the wrong tokens that it produced again.
    """
    return NanosetError(
        "an engine that must not be used any more gave wrong tokens",
        where=record.where,
        found=record,  # as text
        expected="tokens of another engine, since this one is recorded as distrusted",
        remedy="set the engine to `tokenizers`, install the same version of nanoset on all "
        "machines, and report this",
    )
