"""Make an output in one task: on a worker of a cluster if the project has an executor, otherwise in
this process.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from nanoset_core.execution.processes import run_tasks
from nanoset_core.execution.progress import ProgressCallback, silent
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project


class Making(Protocol):
    """Makes one output; it is importable by name, or a partial of such a function, so that it
    pickles.
    """

    def __call__(self, root: OutputRoot, *, listener: ProgressCallback) -> Manifest:
        """Make the output below a root, as any process reaches it."""


def make_in_one_task(project: Project, make: Making) -> Manifest:
    """Make an output in one task, and make it the current version."""
    executor = project.executor
    # callbacks do not reach other machines
    listener = project.listener if executor is None else silent
    work = partial(make, listener=listener)
    [(_, manifest)] = run_tasks(work, [project.outputs], 1, executor)
    return project.outputs.make_current(project.outputs.rebase(manifest))
