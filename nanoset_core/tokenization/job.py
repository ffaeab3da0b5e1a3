"""One tokenizing job: source ranges → shards in worker processes, with their progress summed."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nanoset_core.errors import NanosetError
from nanoset_core.execution.processes import Executor, run_tasks
from nanoset_core.execution.progress import Progress, ProgressCallback
from nanoset_core.outputs.manifest import Manifest, PackedManifests, Recipe, pack, unpack
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.raw.pieces import SourceRange
from nanoset_core.storage.atomic import sweep_abandoned
from nanoset_core.storage.location import RawFolder
from nanoset_core.tokenization import distrust
from nanoset_core.tokenization.distrust import Distrust, DistrustError
from nanoset_core.tokenization.shards import STAGE, VERSION, ShardSettings, ShardTask, make_shard

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeJob:
    """Source ranges of one corpus, each to become a shard named by what it is made from."""

    root: OutputRoot
    """Where the shards go; each worker puts there what it made."""
    corpus: str
    """Name of the shards, and of the folder that holds them."""
    folder: RawFolder
    """The corpus's folder of raw text."""
    ranges: Iterable[SourceRange]
    """In document order; may be made as they are first needed."""
    options: Mapping[str, Any]
    """The settings that reach the tokens, as recipes hold them, without distrusted engines."""
    settings: ShardSettings
    """How each shard is made."""
    workers: int
    """Processes."""
    executor: Executor | None = None
    """Runs the tasks instead, whatever `workers` says."""
    listener: ProgressCallback
    """Receives the progress of all ranges together."""
    news: Progress
    """What it receives first."""
    look_first: bool = False
    """This process looks for finished shards, so that workers are given unfinished ones only."""

    def run(self) -> tuple[Sequence[Manifest], dict[str, Any]]:
        """Make the shards that are not there yet; all of them again without an engine that turns out to be wrong.

        It may be this job that finds an engine wrong, or another process that notes one meanwhile.

        Returns:
            All shards, in document order; and the options of their recipes, with the engines that were not used.

        Raises:
            InputError, SourceChangedError, MissingError: See make_shard.
            NanosetError: An engine that is not to be used gave wrong tokens.
        """
        distrusted = distrust.noted(self.root, self.options["tokenizer"])
        while True:
            options = {**self.options, **distrust.recipe_options(distrusted)}
            try:
                shards = self._make(distrusted, options)
                more = self._beyond(distrusted)
                if not more:
                    return shards, options
            except DistrustError as error:
                distrust.note(self.root, error.record)  # a worker's record may not be seen from here yet
                more = self._beyond(distrusted, error.record)
                if not more:
                    raise NanosetError(
                        "an engine gave wrong tokens that was not to be used any more",
                        where=error.record.where,
                        found=error.record,
                        expected="tokens of another engine, since this one is recorded as distrusted",
                        remedy="set the engine to `tokenizers`, install the same version of nanoset on all machines, "
                        "and report this",
                    ) from error
            finally:
                sweep_abandoned(self.root.folder / STAGE / self.corpus)  # a cancelled run's workers end where they are
            for one in more:
                logger.warning("%s: %s; shards are made again with another engine", one.where, one.what)
            distrusted = [*distrusted, *more]

    def _beyond(self, distrusted: Sequence[Distrust], *found: Distrust) -> list[Distrust]:
        """Return one record of each engine that is noted by now, or was found wrong, and not yet distrusted."""
        noted = [*distrust.noted(self.root, self.options["tokenizer"], again=True), *found]
        known = {(one.engine, one.version) for one in distrusted}
        return [one for name, one in {(one.engine, one.version): one for one in noted}.items() if name not in known]

    def _make(self, distrusted: Sequence[Distrust], options: Mapping[str, Any]) -> Sequence[Manifest]:
        news = self.news
        without = frozenset((one.engine, one.version) for one in distrusted)
        made: dict[int, bytes] = {}
        missing: list[int] = []

        def keep(number: int, shard: Manifest) -> None:
            nonlocal news
            made[number], facts = pack(shard), shard.facts
            done = news.done + facts.get("stored_bytes", 0)
            documents, tokens = news.documents + facts["documents"], news.tokens + facts["tokens"]
            news = replace(news, done=done, documents=documents, tokens=tokens)

        def tasks() -> Iterator[ShardTask]:
            for number, source in enumerate(self.ranges):
                if number not in made:
                    missing.append(number)
                    recipe = shard_recipe(self.corpus, source, options)
                    yield ShardTask(self.root, recipe, self.folder, source, self.settings, without)

        for number, shard in self._finished(options) if self.look_first else ():
            keep(number, shard)
        if made:
            self.listener(news)
        for place, shard in run_tasks(make_shard, tasks(), self.workers, self.executor):
            keep(missing[place], shard)
            self.listener(news)
        return PackedManifests((made[number] for number in sorted(made)), self.root.access)

    def _finished(self, options: Mapping[str, Any]) -> Iterator[tuple[int, Manifest]]:
        """Yield (number of its range, shard) of those that are there, whole."""

        def find(outputs: OutputRoot, place: Path) -> bytes | None:
            shard = outputs.find_at(place)
            return None if shard is None else pack(shard)

        digests = [shard_recipe(self.corpus, source, options).digest for source in self.ranges]
        for number, found in enumerate(self.root.each_version(find, STAGE, self.corpus, digests)):
            if found is not None:
                yield number, unpack(found, self.root.access)


def shard_recipe(corpus: str, source: SourceRange, options: Mapping[str, Any]) -> Recipe:
    """Return what one shard is made from."""
    return Recipe(STAGE, corpus, VERSION, {"source": source.digest}, dict(options))
