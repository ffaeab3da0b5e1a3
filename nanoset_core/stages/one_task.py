"""Make an output in one task: on a worker of the project's executor, or in this process.

Packs and `.pbin` files are made in this way. Outputs that are made shard by shard are divided into
many tasks instead (see `per_shard`).
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from nanoset_core.execution.processes import run_tasks
from nanoset_core.execution.progress import Progress
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project


class Making(Protocol):
    """A function that makes one output.

    It is pickled to reach a worker, so it must be a function of a module, or a `partial` of one.
    """

    def __call__(self, root: OutputRoot, *, progress: Progress) -> Manifest:
        """Make the output.

        Args:
            root: The output root, which any process can reach.
            progress: Shows how far the work has come.

        Returns:
            Manifest of the output, which is not current yet.
        """


def make_in_one_task(project: Project, make: Making) -> Manifest:
    """Make an output by a single task, and make it the current version, which is used from then on.

    Args:
        project: The project. If it has an executor, such as a cluster, the task runs on one of its
            workers, and otherwise in this process.
        make: Makes the output, such as `partial(_convert, task=task)`.

    Returns:
        Manifest of the output.

    Raises:
        NanosetError: Whatever `make` raises.
    """
    # The argument of the task is the root of all outputs. Its only result is (0, manifest).
    work = partial(make, progress=project.progress)
    tasks = [project.outputs]
    [(_task_number, manifest)] = run_tasks(work, tasks, workers=1, executor=project.executor)

    # On another machine, the outputs may have another path. Here they have that of the project.
    manifest = project.outputs.rebase(manifest)
    return project.outputs.make_current(manifest)
