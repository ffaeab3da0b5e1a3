"""One tokenising job: source ranges → shards in worker processes, with their progress summed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nanoset_core.execution.processes import Executor, run_tasks
from nanoset_core.execution.progress import Listener, Progress
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.raw.pieces import SourceRange
from nanoset_core.storage.remote_folder import RawFolder
from nanoset_core.storage.scratch import sweep_abandoned
from nanoset_core.tokenization.distrust import noted, suspicion
from nanoset_core.tokenization.shards import (
    STAGE,
    VERSION,
    ShardSettings,
    ShardTask,
    make_shard,
)


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
    """In document order; may be made as they are needed, for one run."""
    options: Mapping[str, Any]
    """The settings that reach the tokens, as recipes hold them."""
    settings: ShardSettings
    """How each shard is made."""
    size: int
    """Stored bytes of all ranges."""

    @property
    def tasks(self) -> list[ShardTask]:
        """One for each range, in document order."""
        return [self._task(source) for source in self.ranges]

    def _task(self, source: SourceRange) -> ShardTask:
        recipe = shard_recipe(self.corpus, source, self.options)
        return ShardTask(self.root, recipe, self.folder, source, self.settings)

    def run(
        self,
        workers: int,
        executor: Executor | None = None,
        *,
        listener: Listener,
        stage: str,
        name: str,
        made: Mapping[int, Manifest] | None = None,
        on_suspects: Callable[[list[Manifest]], None] | None = None,
    ) -> list[Manifest]:
        """Make the shards that are not there yet, and again those of engines that turned out to be wrong.

        Args:
            workers: processes.
            executor: another place to work in, whatever `workers` says.
            listener: hears the progress of all ranges together.
            stage: what the work is called there.
            name: what it is called for.
            made: shards that need no work, by the number of their range.
            on_suspects: called with shards that are about to be made again, since their engine is not trusted any more.

        Returns:
            All shards, in document order.

        Raises:
            InputError, SourceChangedError, MissingError: see make_shard.
        """
        shards = dict(made or {})
        missing: list[int] = []
        everything: list[ShardTask] = []

        def tasks() -> Iterator[ShardTask]:
            for number, source in enumerate(self.ranges):
                everything.append(self._task(source))
                if number not in shards:
                    missing.append(number)
                    yield everything[number]

        done = sum(shard.facts.get("stored_bytes", 0) for shard in shards.values())
        documents = sum(shard.facts["documents"] for shard in shards.values())
        tokens = sum(shard.facts["tokens"] for shard in shards.values())
        if shards:
            listener(Progress(stage, name, done, self.size, documents=documents, tokens=tokens))
        try:
            for place, shard in run_tasks(make_shard, tasks(), workers, executor):
                shards[missing[place]] = self.root.adopted(shard)
                done += shard.facts.get("stored_bytes", 0)
                documents += shard.facts["documents"]
                tokens += shard.facts["tokens"]
                listener(Progress(stage, name, done, self.size, documents=documents, tokens=tokens))
            while suspects := self._suspects(shards):
                if on_suspects is not None:
                    on_suspects([shards[number] for number in suspects])
                again = [replace(everything[number], root=replace(self.root, rebuild=True)) for number in suspects]
                for place, shard in run_tasks(make_shard, again, workers, executor):
                    shards[suspects[place]] = self.root.adopted(shard)
        finally:
            sweep_abandoned(self.root.folder / STAGE / self.corpus)  # workers of a cancelled run end where they are
        return [shards[number] for number in sorted(shards)]

    def _suspects(self, shards: Mapping[int, Manifest]) -> list[int]:
        """Numbers of the shards whose engine gave wrong tokens, perhaps for another shard."""
        distrusted = noted(self.root)
        return sorted(number for number, shard in shards.items() if suspicion(shard, distrusted))


def shard_recipe(corpus: str, source: SourceRange, options: Mapping[str, Any]) -> Recipe:
    """What one shard is made from."""
    return Recipe(STAGE, corpus, VERSION, {"source": source.digest}, dict(options))
