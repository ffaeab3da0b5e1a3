"""Make outputs that exist once for each shard of a corpus, such as the tables of its columns.

All of them are made in the same way: look which outputs exist, make the others in worker processes,
and collect what the caller needs of each. If text is appended to a corpus, only the outputs of its
new shards are made. If a build is killed, the next one makes only what is missing.

A stage says in two classes what its outputs are. `PerShard` belongs to the process that makes
them: it knows all shards. `PerShardTask` is sent to a worker: it makes the output of one shard.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from nanoset_core.execution.processes import Executor, run_tasks
from nanoset_core.execution.progress import Amount, RunningWork, progress_reported_to
from nanoset_core.outputs.manifest import Manifest, Recipe, Written
from nanoset_core.outputs.root import OutputRoot

Shard = TypeVar("Shard")
"""What identifies a shard for its stage, such as its number, or the range of text it is made from.
"""
Result = TypeVar("Result")
"""What is needed of each output after all of them were made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PerShardTask(ABC):
    """Everything that a worker needs to make the output of one shard."""

    deferred_errors: ClassVar[tuple[type[Exception], ...]] = ()
    """Errors of `write` that are raised only after the outputs of all other shards were made."""

    root: OutputRoot
    """The output root."""
    recipe: Recipe
    """Recipe of the output."""

    @abstractmethod
    def write(self, folder: Path) -> Written:
        """Write the files of the output to a folder, and describe them.

        `self.root` reaches the outputs from the process in which this is called.
        """

    def make(self) -> Manifest:
        """Make and store the output, or return it if it exists already."""
        with self.root.in_task() as root:
            task = replace(self, root=root)
            return root.commit(task.recipe, task.write)


class PerShard(ABC, Generic[Shard, Result]):
    """Outputs of one kind, of which each shard of a corpus has one."""

    @abstractmethod
    def shards(self) -> Iterable[Shard]:
        """Return the shards in their order.

        They may be created as they are needed. This method is called several times.
        """

    @abstractmethod
    def recipe(self, shard: Shard) -> Recipe:
        """Return the recipe of the output of a shard. All are of one stage and name."""

    @abstractmethod
    def task(self, shard: Shard, recipe: Recipe) -> PerShardTask:
        """Return the task that makes the output of a shard. Called only if it has to be made."""

    @abstractmethod
    def result(self, manifest: Manifest) -> Result:
        """Return what the caller needs of an output. May be called in several threads at once."""

    @abstractmethod
    def amount(self, shard: Shard, result: Result) -> Amount:
        """Return how much of the work is done as soon as the output of this shard exists."""


@dataclass(frozen=True, slots=True)
class MadePerShard(Generic[Result]):
    """The outputs of all shards."""

    results: list[Result]
    """What `PerShard.result` returned for the output of each shard, in the order of the shards."""
    existing: list[int]
    """Numbers of the shards whose outputs were not made, because they existed."""


def make_per_shard(
    outputs: PerShard[Shard, Result],
    root: OutputRoot,
    work: RunningWork,
    *,
    workers: int,
    executor: Executor | None,
    look_first: bool = True,
) -> MadePerShard[Result]:
    """Make the output of each shard that has none yet, in worker processes.

    Args:
        outputs: What the outputs are, and how each is made.
        root: The output root.
        work: Receives the progress. Workers may report on the part of one shard; the name of that
            part is the digest of the shard's output.
        workers: Number of processes.
        executor: Runs the tasks instead of these processes; None for processes of this machine.
        look_first: Whether to look in this process which outputs exist, so that workers get only
            tasks for missing ones. Otherwise each worker looks for the output of its task.

    Raises:
        ExceptionGroup: Some outputs could not be made because of `PerShardTask.deferred_errors`.
            All others were made.
    """
    result_by_number: dict[int, Result] = {}
    if look_first and not root.rebuild:
        result_by_number = _find_existing(outputs, root)
    existing = list(result_by_number)

    # What earlier builds made counts as done from the start.
    if existing:
        for number, shard in enumerate(outputs.shards()):
            if number in result_by_number:
                work.add_existing(outputs.amount(shard, result_by_number[number]))
    work.report()

    result_by_number |= _make_missing(outputs, existing, work, workers, executor)
    results = [result_by_number[number] for number in range(len(result_by_number))]
    return MadePerShard(results, existing)


def _find_existing(outputs: PerShard[Shard, Result], root: OutputRoot) -> dict[int, Result]:
    """Return number of the shard → what is needed of its output, for all that exist and are whole.

    For outputs in a bucket, only one listing is requested, and then their manifests.
    """

    def look(listed_root: OutputRoot, folder: Path) -> _FoundOutput[Result] | None:
        manifest = listed_root.find_at(folder)
        return None if manifest is None else _FoundOutput(outputs.result(manifest))

    recipe: Recipe | None = None
    digests: list[str] = []
    for shard in outputs.shards():
        recipe = outputs.recipe(shard)
        digests.append(recipe.digest)
    if recipe is None:
        return {}

    result_by_number: dict[int, Result] = {}
    for number, found in enumerate(root.each_version(look, recipe.stage, recipe.name, digests)):
        if found is not None:
            result_by_number[number] = found.result
    return result_by_number


@dataclass(frozen=True, slots=True)
class _FoundOutput(Generic[Result]):
    """An output that exists. The result itself may be None, so that it cannot say that."""

    result: Result


@dataclass(frozen=True, slots=True)
class _MissingOutput(Generic[Shard]):
    """An output that has to be made."""

    number: int
    """Number of its shard, from 0."""
    shard: Shard
    digest: str
    """Digest of the output."""


def _make_missing(
    outputs: PerShard[Shard, Result],
    existing: Collection[int],
    work: RunningWork,
    workers: int,
    executor: Executor | None,
) -> dict[int, Result]:
    """Make the outputs of all shards but some; return number → what is needed of the output.

    Args:
        outputs: See `make_per_shard`, also for the other parameters.
        existing: Numbers of the shards whose outputs exist.

    Raises:
        ExceptionGroup: See `make_per_shard`.
    """
    existing_numbers = frozenset(existing)
    handed_out: list[_MissingOutput[Shard]] = []  # the output of each task

    def tasks() -> Iterator[PerShardTask]:
        # Tasks are created as they are handed out, since there may be very many.
        for number, shard in enumerate(outputs.shards()):
            if number not in existing_numbers:
                recipe = outputs.recipe(shard)
                handed_out.append(_MissingOutput(number, shard, recipe.digest))
                yield outputs.task(shard, recipe)

    result_by_number: dict[int, Result] = {}
    errors: list[Exception] = []
    with progress_reported_to(work.receive):
        for task_number, made in run_tasks(_make_output, tasks(), workers, executor):
            if isinstance(made, Exception):
                errors.append(made)
                continue
            output = handed_out[task_number]
            result = outputs.result(made)
            result_by_number[output.number] = result
            work.advance_part(output.digest, outputs.amount(output.shard, result))
    if errors:
        raise ExceptionGroup("the outputs of some shards could not be made", errors)
    return result_by_number


def _make_output(task: PerShardTask) -> Manifest | Exception:
    """Make one output in a worker, or return an error that is raised later."""
    try:
        return task.make()
    except task.deferred_errors as error:
        return error
