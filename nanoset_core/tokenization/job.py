"""One tokenising job: source ranges → shards in worker processes, with their progress summed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nanoset_core.execution.processes import Executor, run_tasks
from nanoset_core.execution.progress import Progress, ProgressCallback
from nanoset_core.outputs.compact import Compactor
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
    """In document order; may be made as they are first needed."""
    options: Mapping[str, Any]
    """The settings that reach the tokens, as recipes hold them."""
    settings: ShardSettings
    """How each shard is made."""
    size: int
    """Stored bytes of all ranges."""

    def _task(self, source: SourceRange) -> ShardTask:
        return ShardTask(self.root, self._recipe(source), self.folder, source, self.settings)

    def _recipe(self, source: SourceRange) -> Recipe:
        return shard_recipe(self.corpus, source, self.options)

    def run(
        self,
        workers: int,
        executor: Executor | None = None,
        *,
        listener: ProgressCallback,
        stage: str,
        name: str,
        look_first: bool = False,
        on_suspects: Callable[[Iterable[Manifest]], None] | None = None,
    ) -> Sequence[Manifest]:
        """Make the shards that are not there yet, and again those of engines that turned out to be wrong.

        Args:
            workers: processes.
            executor: another place to work in, whatever `workers` says.
            listener: hears the progress of all ranges together.
            stage: what the work is called there.
            name: what it is called for.
            look_first: whether this process looks for shards that need no work, so that nobody is given them.
            on_suspects: called with shards that are about to be made again, since their engine is not trusted any more.

        Returns:
            All shards, in document order.

        Raises:
            InputError, SourceChangedError, MissingError: see make_shard.
        """
        compactor = Compactor(self.root)
        made: dict[int, bytes] = {}
        missing: list[int] = []
        news = Progress(stage, name, 0, self.size)

        def keep(number: int, shard: Manifest) -> None:
            nonlocal news
            made[number], facts = compactor.pack(shard), shard.facts
            done = news.done + facts.get("stored_bytes", 0)
            documents, tokens = news.documents + facts["documents"], news.tokens + facts["tokens"]
            news = replace(news, done=done, documents=documents, tokens=tokens)

        def tasks() -> Iterator[ShardTask]:
            for number, source in enumerate(self.ranges):
                if number not in made:
                    missing.append(number)
                    yield self._task(source)

        if look_first:
            for number, found in enumerate(self._finished(compactor)):
                if found is not None:
                    keep(number, compactor.unpack(found))
        if made:
            listener(news)
        try:
            for place, shard in run_tasks(make_shard, tasks(), workers, executor):
                keep(missing[place], shard)
                listener(news)
            while suspects := self._suspects(compactor, made):
                if on_suspects is not None:
                    on_suspects(compactor.unpack(made[number]) for number in suspects)
                for place, shard in run_tasks(make_shard, self._again(set(suspects)), workers, executor):
                    made[suspects[place]] = compactor.pack(shard)
        finally:
            sweep_abandoned(self.root.folder / STAGE / self.corpus)  # workers of a cancelled run end where they are
        return compactor.sequence(made[number] for number in sorted(made))

    def _finished(self, compactor: Compactor) -> list[bytes | None]:
        """The shard of each range that is there, whole."""

        def find(outputs: OutputRoot, place: Path) -> bytes | None:
            shard = outputs.find_at(place)
            return None if shard is None else compactor.pack(shard)

        digests = [self._recipe(source).digest for source in self.ranges]
        return self.root.each_version(find, STAGE, self.corpus, digests)

    def _suspects(self, compactor: Compactor, made: Mapping[int, bytes]) -> list[int]:
        """Numbers of the shards whose engine gave wrong tokens, perhaps for another shard."""
        if not (distrusted := noted(self.root)):
            return []
        return sorted(number for number, shard in made.items() if suspicion(compactor.unpack(shard), distrusted))

    def _again(self, numbers: Collection[int]) -> Iterator[ShardTask]:
        """Tasks that make these shards, even where they are there."""
        root = replace(self.root, rebuild=True)
        return (replace(self._task(source), root=root) for at, source in enumerate(self.ranges) if at in numbers)


def shard_recipe(corpus: str, source: SourceRange, options: Mapping[str, Any]) -> Recipe:
    """What one shard is made from."""
    return Recipe(STAGE, corpus, VERSION, {"source": source.digest}, dict(options))
