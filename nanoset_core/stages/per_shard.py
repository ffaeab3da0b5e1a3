"""Make outputs that exist once for each shard of a corpus, such as the tables of its columns.

All of them are made in the same way: look which outputs exist, make the others in worker processes,
and collect what the caller needs of each. If text is appended to a corpus, only the outputs of its
new shards are made. If a build is killed, the next one makes only what is missing.

A stage says in two classes what its outputs are. `PerShard` belongs to the process that makes
them: it knows all shards. `PerShardTask` is sent to a worker: it makes the output of one shard.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Generic, TypeVar

from nanoset_core.execution.processes import Executor, run_tasks
from nanoset_core.execution.progress import Amount, RunningWork, progress_reported_to
from nanoset_core.outputs.manifest import Manifest, Recipe, Written
from nanoset_core.outputs.root import OutputRoot

SHARDS = "shards"
"""Fact of an output that lists what was made for each shard of a corpus: digests, in the order of
the shards.

The set of shards of a corpus lists the shards, and its columns list a table for each shard.
"""

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

        Args:
            folder: An empty folder.

        Returns:
            The facts of the output's manifest, such as a number of documents.
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
        """Return everything that decides the bytes of the output of a shard.

        Args:
            shard: One of `shards`.

        Returns:
            The recipe, which has the same stage and name for all shards.
        """

    @abstractmethod
    def task(self, shard: Shard, recipe: Recipe) -> PerShardTask:
        """Return the task that makes the output of a shard. Called only if it has to be made.

        Args:
            shard: One of `shards`.
            recipe: Recipe of the output.
        """

    @abstractmethod
    def result(self, manifest: Manifest) -> Result:
        """Return what the caller needs of an output, such as its facts.

        May be called in several threads at once.

        Args:
            manifest: Manifest of the output.
        """

    @abstractmethod
    def amount(self, shard: Shard, result: Result) -> Amount:
        """Return how much of the work is done as soon as the output of a shard exists.

        Args:
            shard: One of `shards`.
            result: What `result` returned for its output.

        Returns:
            Such as the number of the shard's documents.
        """


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
    """Make one output for each shard of a corpus, except those that exist already.

    A corpus is a collection of text. It is divided into shards, each of which is a range of its
    text. Many outputs, such as a table of document ids, are made shard by shard, in worker
    processes. If some text is appended, or a build is killed, the next build makes only what is
    missing:

        shard              0         1         2         3
        its output         exists    exists    missing   missing
        what is done       read it   read it   make it   make it
        results            [ result of 0, result of 1, result of 2, result of 3 ]

    Args:
        outputs: Says what the output of a shard is, and how a worker makes it.
        root: The folder (or bucket) of all outputs.
        work: Shows the progress.
        workers: Number of worker processes on this machine.
        executor: Runs the tasks elsewhere, for example on a cluster; None for this machine.
        look_first: Find the existing outputs in this process, so that workers only get tasks for
            missing ones. If it is false, each worker looks for the output of its task itself.

    Returns:
        What the caller needs of the output of each shard, and which outputs existed.

    Raises:
        ExceptionGroup: Some outputs could not be made because of `PerShardTask.deferred_errors`.
            All others were made.
    """
    existing: dict[int, Result] = {}  # number of the shard → what the caller needs
    if look_first and not root.rebuild:
        existing = _find_existing(outputs, root)
    _report_existing(outputs, existing, work)

    newly_made = _MissingOutputs(outputs, root, existing, work).make(workers, executor)
    result_by_shard = existing | newly_made
    results = [result_by_shard[number] for number in range(len(result_by_shard))]
    return MadePerShard(results, list(existing))


def _report_existing(
    outputs: PerShard[Shard, Result], existing: Mapping[int, Result], work: RunningWork
) -> None:
    """Tell the progress display how much of the work an earlier build has done already.

    For example, the shards of a corpus have 100, 80 and 20 documents. If the outputs of shards 0
    and 2 exist, the display starts at 120 of 200 documents.

    Args:
        outputs: Says how much work a shard is, such as the number of its documents.
        existing: Number of the shard → what the caller needs of its output, for existing outputs.
        work: Shows the progress.
    """
    if existing:
        for number, shard in enumerate(outputs.shards()):
            if number in existing:
                amount = outputs.amount(shard, existing[number])  # such as a number of documents
                work.add_existing(amount)
    work.report()


def _find_existing(outputs: PerShard[Shard, Result], root: OutputRoot) -> dict[int, Result]:
    """Find the shards whose outputs an earlier build has made.

    The output of a shard is a folder. Its name is a digest of everything that decides its bytes:

        columns/web/3f9c…/     output of shard 0
        columns/web/a07e…/     output of shard 1

    If the text or a setting changes, so does the digest, and then there is no folder of that name.

    Args:
        outputs: Says which digest the output of each shard has.
        root: The folder of all outputs. If it is in a bucket, it is listed once for all shards.

    Returns:
        Number of the shard → what the caller needs of its output. Shards whose output is missing or
        incomplete are left out.
    """
    recipe = None
    digests: list[str] = []  # the name of each folder, such as 3f9c…
    for shard in outputs.shards():
        recipe = outputs.recipe(shard)
        digests.append(recipe.digest)
    if recipe is None:  # there are no shards
        return {}

    # Look into the folders columns/web/3f9c… and so on; all recipes have this stage and this name.
    # `_output_in(outputs, root, folder)` is called for each. It returns None if nothing is found.
    look_into_folder = partial(_output_in, outputs)
    found_outputs = root.each_version(look_into_folder, recipe.stage, recipe.name, digests)
    result_by_shard: dict[int, Result] = {}
    for number, output in enumerate(found_outputs):
        if output is not None:
            result_by_shard[number] = output.result
    return result_by_shard


def _output_in(
    outputs: PerShard[Shard, Result], root: OutputRoot, folder: Path
) -> _ExistingOutput[Result] | None:
    """Return the output in a folder, or None if it is missing or incomplete.

    Args:
        outputs: What the outputs are.
        root: The output root, which may have been listed.
        folder: The folder.
    """
    manifest = root.find_at(folder)
    return None if manifest is None else _ExistingOutput(outputs.result(manifest))


@dataclass(frozen=True, slots=True)
class _ExistingOutput(Generic[Result]):
    """An output that exists. Its result may be None, which alone would look like a missing one."""

    result: Result
    """What the caller needs of the output."""


@dataclass(frozen=True, slots=True)
class _MissingOutput(Generic[Shard]):
    """An output that has to be made."""

    number: int
    """Number of its shard, from 0."""
    shard: Shard
    """The shard."""
    digest: str
    """Digest of the output."""


class _MissingOutputs(Generic[Shard, Result]):
    """Makes the outputs of all shards except those that exist, in worker processes."""

    def __init__(
        self,
        outputs: PerShard[Shard, Result],
        root: OutputRoot,
        existing: Collection[int],
        work: RunningWork,
    ) -> None:
        """Start without any task.

        Args:
            outputs: What the outputs are, and how each is made.
            root: The folder (or bucket) of all outputs.
            existing: Numbers of the shards whose outputs exist.
            work: Receives the progress.
        """
        self._outputs = outputs
        self._root = root
        self._existing = frozenset(existing)
        self._work = work
        self._started: list[_MissingOutput[Shard]] = []
        """The output of each task that was created, shape (n_tasks,)."""

    def make(self, workers: int, executor: Executor | None) -> dict[int, Result]:
        """Make the missing outputs in worker processes, and return what the caller needs of each.

        There is a task for each missing output, so tasks have other numbers than shards:

            shard        0         1         2         3
            output       exists    exists    missing   missing
            task                             0         1

        Args:
            workers: Number of processes on this machine.
            executor: Runs the tasks elsewhere, for example on a cluster; None for this machine.

        Returns:
            Number of the shard → what the caller needs of its output.

        Raises:
            ExceptionGroup: Some outputs could not be made because of
                `PerShardTask.deferred_errors`. All others were made.
        """
        result_by_shard: dict[int, Result] = {}
        errors: list[Exception] = []
        with progress_reported_to(self._work.receive):
            # Tasks end in any order. Each returns the manifest of its output, or an error that does
            # not keep the other outputs from being made.
            outcomes = run_tasks(_make_output, self._tasks(), workers, executor)
            for task_number, outcome in outcomes:
                if isinstance(outcome, Exception):
                    errors.append(outcome)
                    continue
                output = self._started[task_number]  # `_tasks` has added it when the task began
                result_by_shard[output.number] = self._result_of_made(output, outcome)
        if errors:
            raise ExceptionGroup("the outputs of some shards could not be made", errors)
        return result_by_shard

    def _tasks(self) -> Iterator[PerShardTask]:
        """Yield a task for each missing output, as workers take them: there may be very many."""
        for number, shard in enumerate(self._outputs.shards()):
            if number not in self._existing:
                recipe = self._outputs.recipe(shard)
                self._started.append(_MissingOutput(number, shard, recipe.digest))
                yield self._outputs.task(shard, recipe)

    def _result_of_made(self, output: _MissingOutput[Shard], manifest: Manifest) -> Result:
        """Return what the caller needs of an output that was made, and report the progress.

        Args:
            output: The output, as it was started.
            manifest: Its manifest.
        """
        self._root.note_made(manifest)  # so that the next step need not look for it
        result = self._outputs.result(manifest)
        self._work.advance_part(output.digest, self._outputs.amount(output.shard, result))
        return result


def _make_output(task: PerShardTask) -> Manifest | Exception:
    """Make one output in a worker, or return an error that is raised later.

    Args:
        task: Makes the output. Its `deferred_errors` are returned, and all others raised.
    """
    try:
        return task.make()
    except task.deferred_errors as error:
        return error
