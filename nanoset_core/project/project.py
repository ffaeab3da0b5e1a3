"""A project: its configuration, its outputs, and where its progress is reported."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, Literal, ParamSpec, TypeVar

from nanoset_core.errors import ConfigError, MissingError, one_of, remedy_for_name
from nanoset_core.execution.processes import Executor
from nanoset_core.execution.progress import ProgressCallback, silent
from nanoset_core.outputs.root import OutputRoot, Seen
from nanoset_core.project.running import ExecutorSpec, chosen_executor
from nanoset_core.project.settings import ProjectConfig, load_config
from nanoset_core.stages.mappings.settings import NanosetSpec
from nanoset_core.stages.views.settings import base_of
from nanoset_core.stages.webdataset.settings import WebdatasetSpec
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.leases import leased
from nanoset_core.storage.location import local_path
from nanoset_core.storage.working_copies import task_folder
from nanoset_core.tokenizers.files.source import as_source, missing_tokenizer, tokenizer_files
from nanoset_core.tokenizers.tokenizer import TokenizerFacts, token_id, tokenizer_facts

if TYPE_CHECKING:
    from nanoset_core.execution.dask_connection import DaskCluster

_ATTEMPTS = 8
_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Project:
    """What every stage of the pipeline works on."""

    config: ProjectConfig
    listener: ProgressCallback = silent
    """Called with how far long work has come."""
    rebuild: bool = False
    """Make outputs again even where they are complete."""
    seen: Seen | None = None
    """Recently looked up current versions, where several steps of a run share them."""

    _access: FileAccess | None = field(default=None, init=False, compare=False, repr=False)

    @staticmethod
    def open(
        config_file: str | os.PathLike[str],
        listener: ProgressCallback = silent,
        *,
        rebuild: bool = False,
    ) -> Project:
        """Read nanoset.yaml; see load_config for what it raises."""
        return Project(load_config(config_file), listener, rebuild)

    @contextlib.contextmanager
    def in_task(self) -> Iterator[Project]:
        """Yield the same project for one task.

        A worker of a cluster has its own tokenizer and working copies.
        """
        with task_folder() as folder:
            yield self if folder is None else replace(self, config=self.config.below(folder))

    @property
    def outputs(self) -> OutputRoot:
        access = self._access
        if access is None:
            access = self.config.root_access
            object.__setattr__(self, "_access", access)  # links of its path are resolved once
        return OutputRoot(access, self.rebuild, self.seen)

    def with_listing(self, folder: str) -> Project:
        """Return the same project with one cached listing of its outputs, if they are in a bucket."""
        listed, access = replace(self), self.outputs.access
        object.__setattr__(listed, "_access", access.with_listing(access.folder / folder))
        return listed

    @property
    def executor(self) -> Executor | None:
        """Where tasks run, or None for processes of this machine; no output depends on it."""
        spec, where = chosen_executor(self.config.file, self.config.executor)
        if spec.kind == "processes":
            return None
        from nanoset_core.execution.dask import DaskExecutor

        files = tuple(tokenizer_files(self.config.tokenizer_file))
        return DaskExecutor(self._cluster(spec, where), self.outputs.access, files, self.listener)

    @property
    def slurm_folder(self) -> Path:
        """Beside nanoset.yaml: logs of Slurm jobs, and keys as long as these run."""
        return self.config.file.parent / ".nanoset" / "slurm"

    @property
    def tokenizer(self) -> TokenizerFacts:
        """What the tokenizer is; raises as `tokenizer_facts`."""
        if not self.config.tokenizer_file.is_file():
            spec, file = self.config.tokenizer, self.config.tokenizer_file
            raise missing_tokenizer(
                as_source(file).path, name=spec.path, where=f"{self.config.file}: tokenizer.path"
            )
        return tokenizer_facts(self.config.tokenizer_file)

    def special(self, key: Literal["bos", "eod", "pad"]) -> int | None:
        """Return the id of a special token, or None if nanoset.yaml does not name one."""
        token = getattr(self.config.tokenizer, key)
        if token is None:
            return None
        return token_id(self.config.tokenizer_file, token, f"{self.config.file}: tokenizer.{key}")

    def nanoset(self, name: str) -> NanosetSpec:
        """Return a nanoset's settings; ConfigError when there is none of that name."""
        return self._named("nanosets", self.config.nanosets, name)

    def webdataset(self, name: str) -> WebdatasetSpec:
        """Return a webdataset's settings; ConfigError when there is none of that name."""
        return self._named("webdatasets", self.config.webdatasets, name)

    def _cluster(self, spec: ExecutorSpec, where: str) -> DaskCluster:
        """Return the settings of a cluster with absolute paths.

        Relative ones start at the folder of nanoset.yaml.
        """
        if spec.kind == "slurm":
            from nanoset_core.execution.slurm import SlurmJobs

            cpus = spec.cpus or 1
            return SlurmJobs(
                jobs=spec.jobs or 1,
                cpus=cpus,
                memory=spec.memory or f"{2 * cpus}GB",
                seconds=spec.time_seconds,
                folder=self.slurm_folder,
                partition=spec.partition,
                account=spec.account,
                directives=spec.directives or (),
                wait_seconds=spec.wait_seconds,
                where=where,
            )
        from nanoset_core.execution.dask_scheduler import DaskScheduler

        base, file = self.config.file.parent, spec.scheduler_file
        at = None if file is None else local_path(file, base=base, where=where)
        return DaskScheduler(spec.address, at, spec.wait_seconds, where)

    def _named(self, key: str, specs: Mapping[str, _R], name: str) -> _R:
        """Return the settings with a name in a section of nanoset.yaml, or raise ConfigError."""
        if name not in specs:
            raise ConfigError(
                "no such name",
                where=f"{self.config.file}: {key}",
                found=repr(name),
                expected=one_of(specs, "none: it is empty"),
                remedy=remedy_for_name(name, specs, "correct the name, or add it there"),
            )
        return specs[name]


def holding(
    stage: Callable[Concatenate[Project, str, _P], _R],
) -> Callable[Concatenate[Project, str, _P], _R]:
    """Decorate a function so that it holds a lease on its second argument while it runs.

    The second argument is a corpus, a nanoset or a webdataset.

    Where working copies are removed meanwhile, it begins again: what it had finished is kept.
    """

    @functools.wraps(stage)
    def held(project: Project, name: str, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with leased(project.outputs.access, names_of(project, name), name):
            return despite_lost_copies(
                project.outputs.access, lambda: stage(project, name, *args, **kwargs)
            )

    return held


def despite_lost_copies(access: FileAccess, work: Callable[[], _R]) -> _R:
    """Return the result of `work`, called again if working copies were removed meanwhile.

    Copies are removed to make room on the disk.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return work()
        except (FileNotFoundError, MissingError) as error:
            named = (
                [error.where]
                if isinstance(error, MissingError)
                else [*error.args, error.filename, error.filename2]
            )
            ours = (str(access.folder), access.store.url())
            if not (access.has_copies and any(str(name).startswith(ours) for name in named)):
                raise
    return work()


def names_of(project: Project, name: str) -> set[str]:
    """Return a name, and the names of all datasets that the output with that name is made from."""
    config = project.config
    names = {name}
    if name in config.nanosets:
        names.update(config.nanosets[name].corpora)
    if name in config.webdatasets:
        names.update(config.webdatasets[name].corpora)
    corpora = {base_of(config.derived, source) for source in names}
    return names | corpora
