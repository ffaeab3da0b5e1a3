"""A project: the settings, the outputs and the tokenizer that every stage works with."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar

from nanoset_core.errors import ConfigError, MissingError, one_of, remedy_for_name
from nanoset_core.execution.processes import Executor
from nanoset_core.execution.progress import SILENT, Progress
from nanoset_core.outputs.root import OutputRoot, Seen
from nanoset_core.project.run_settings import ExecutorSpec, chosen_executor
from nanoset_core.project.settings import ProjectConfig, load_config
from nanoset_core.stages.mappings.resolved import ResolvedNanoset
from nanoset_core.stages.views.settings import base_of
from nanoset_core.stages.webdataset.settings import WebdatasetSpec
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.copies.worker_folders import task_folder
from nanoset_core.storage.in_use.leases import leased
from nanoset_core.storage.location import local_path
from nanoset_core.tokenizers.files.source import as_source, missing_tokenizer, tokenizer_files
from nanoset_core.tokenizers.tokenizer import TokenizerFacts, token_id, tokenizer_facts

if TYPE_CHECKING:
    from nanoset_core.execution.cluster import TaskCluster
    from nanoset_core.execution.slurm import SlurmJobs

_ATTEMPTS = 8
"""How many times work is tried whose working copies are removed."""
_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True)
class Project:
    """A project: what every stage gets to make its outputs.

    The class has no slots, so that `cached_property` can keep how the outputs are reached.
    """

    config: ProjectConfig
    """The settings of nanoset.yaml."""
    progress: Progress = SILENT
    """Shows the progress of long work."""
    rebuild: bool = False
    """Whether to rebuild outputs even if they are complete."""
    seen: Seen | None = None
    """Current versions that were looked up recently, if several steps of a run share them."""
    listed_folder: str | None = field(default=None, kw_only=True, compare=False, repr=False)
    """Path below the root of a folder that is listed only once; see `with_listing`."""

    @staticmethod
    def open(
        config_file: str | os.PathLike[str],
        progress: Progress = SILENT,
        *,
        rebuild: bool = False,
    ) -> Project:
        """Open a project by its nanoset.yaml, which is read and checked.

        The result gives access to the settings, the outputs and the tokenizer. All commands begin
        so:

            project = Project.open("nanoset.yaml")
            project.config.raw            the folder of raw text
            project.outputs               the folder of outputs

        Args:
            config_file: The file, or its folder.
            progress: Shows the progress of long work.
            rebuild: Whether to rebuild outputs even if they are complete.

        Raises:
            MissingError: There is no such file.
            ConfigError: The file is not YAML, or has mistakes.
        """
        return Project(load_config(config_file), progress, rebuild)

    @contextlib.contextmanager
    def in_task(self) -> Iterator[Project]:
        """Yield the project for one task, which may run on a worker of a cluster.

        Such a worker has its own copies of the tokenizer and of files from buckets.
        """
        with task_folder() as folder:
            yield self if folder is None else replace(self, config=self.config.for_worker(folder))

    @property
    def outputs(self) -> OutputRoot:
        """The root with all outputs."""
        return OutputRoot(self._access, self.rebuild, self.seen)

    @cached_property
    def _access(self) -> FileAccess:
        """How the outputs are reached. Symbolic links in its path are resolved only once."""
        access = self.config.root_access
        if self.listed_folder is None:
            return access
        return access.with_listing(access.folder / self.listed_folder)

    def with_listing(self, folder: str) -> Project:
        """Return the same project with a cached listing of a folder, if outputs are in a bucket.

        The bucket is then asked once for all files of the folder, and not for each of them.

        Args:
            folder: Path of the folder below the root, such as datasets.
        """
        return replace(self, listed_folder=folder)

    @property
    def executor(self) -> Executor | None:
        """The cluster on which the tasks of a build run; None if they run in processes of this
        machine.

        For example, tokenizing a large text is divided into thousands of tasks. The setting
        `executor` says where they run, and makes no difference to the results:

            executor: {kind: processes}                       None
            executor: {kind: dask, address: tcp://a:8786}     the Dask cluster at this address
            executor: {kind: slurm, jobs: 20}                 20 jobs of Slurm

        Workers of a cluster may not see the disk of this machine. So they are sent the files of the
        tokenizer, which the tasks need.
        """
        spec, chosen_by = chosen_executor(f"{self.config.file}: executor", self.config.executor)
        if spec.kind == "processes":
            return None
        from nanoset_core.execution.cluster_executor import ClusterExecutor

        cluster = self._cluster(spec, chosen_by)  # Dask, Ray or Slurm
        files_for_workers = tuple(tokenizer_files(self.config.tokenizer_file))
        return ClusterExecutor(cluster, self.outputs.access, files_for_workers, self.progress)

    @property
    def slurm_folder(self) -> Path:
        """The folder for the logs of Slurm jobs and, while these run, for their keys."""
        return self.config.file.parent / ".nanoset" / "slurm"

    @property
    def tokenizer(self) -> TokenizerFacts:
        """What is known of the tokenizer: its vocabulary, special tokens and so on.

        The settings name its file: `tokenizer: {path: tokenizer.json}`. If there is no such file
        yet, the error says where to put it.

        Raises:
            MissingError: There is no tokenizer file; or see `tokenizer_facts`.
        """
        file = self.config.tokenizer_file
        if not file.is_file():
            raise missing_tokenizer(
                as_source(file).path,
                name=self.config.tokenizer.path,
                where=f"{self.config.file}: tokenizer.path",
            )
        return tokenizer_facts(file)

    def special(self, key: Literal["bos", "eod", "pad"]) -> int | None:
        """Return the id of a special token, such as the one that ends documents.

        The settings name tokens by their texts. With `eod: </s>`, `special("eod")` is 2, if the
        tokenizer gives this id to the token.

        Args:
            key: "bos" (begin of a document), "eod" (end of a document) or "pad" (fills up samples).

        Returns:
            The id, or None if the settings do not name the token.

        Raises:
            ConfigError: The tokenizer has no such token.
        """
        token = getattr(self.config.tokenizer, key)
        if token is None:
            return None
        return token_id(self.config.tokenizer_file, token, f"{self.config.file}: tokenizer.{key}")

    def nanoset(self, name: str) -> ResolvedNanoset:
        """Return the settings of a nanoset, a set of samples for a training.

        Args:
            name: Its name, a key of the section `nanosets`.

        Raises:
            ConfigError: There is none with this name.
        """
        # A run with phases is written under one name, such as `run`, in nanoset.yaml. But then each
        # phase is a nanoset, such as `run-phase-1`.
        nanosets = self.config.nanosets
        phases = [nanoset for nanoset in nanosets if nanoset.startswith(f"{name}-phase-")]
        if name not in nanosets and phases:
            raise ConfigError(
                f"{name} has phases, each of which is a nanoset",
                where=f"{self.config.file}: nanosets",
                found=repr(name),
                expected=one_of(phases, "none"),
                remedy="name one or several of them",
            )
        return self._named("nanosets", nanosets, name)

    def webdataset(self, name: str) -> WebdatasetSpec:
        """Return the settings of a webdataset, a set of shuffled tar files.

        Args:
            name: Its name, a key of the section `webdatasets`.

        Raises:
            ConfigError: There is none with this name.
        """
        return self._named("webdatasets", self.config.webdatasets, name)

    def _cluster(self, spec: ExecutorSpec, where: str) -> TaskCluster:
        """Return the cluster on which tasks run, by the settings: one of Dask, Ray or Slurm.

            kind: dask, address: tcp://a:8786     a Dask cluster that is running
            kind: ray, address: ray://a:10001     a Ray cluster that is running
            kind: slurm, jobs: 20                 20 jobs of Slurm, which are started when needed

        Args:
            spec: The settings, of any kind but `processes`.
            where: The setting that chose the cluster, for errors.
        """
        if spec.kind == "slurm":
            return self._slurm_jobs(spec, where)
        if spec.kind == "ray":
            from nanoset_core.execution.ray_cluster import RayCluster

            return RayCluster(spec.address or "", spec.wait_seconds, where)
        from nanoset_core.execution.dask_scheduler import DaskScheduler

        # A relative path starts in the folder of nanoset.yaml.
        scheduler_file: Path | None = None
        if spec.scheduler_file is not None:
            base = self.config.file.parent
            scheduler_file = local_path(spec.scheduler_file, base=base, where=where)
        return DaskScheduler(spec.address, scheduler_file, spec.wait_seconds, where)

    def _slurm_jobs(self, spec: ExecutorSpec, where: str) -> SlurmJobs:
        """Return the jobs of Slurm that do the tasks of a build, without starting them yet.

        Slurm runs jobs on the machines of a cluster. For example, these settings ask for 20 jobs
        with 4 processors each, and 8 GB of memory, which is 2 GB for each processor by default:

            executor: {kind: slurm, jobs: 20, cpus: 4}

        Args:
            spec: The settings.
            where: The setting that chose Slurm, for errors.
        """
        from nanoset_core.execution.slurm import SlurmJobs

        cpus = spec.cpus or 1
        memory = spec.memory or f"{2 * cpus}GB"
        return SlurmJobs(
            jobs=spec.jobs or 1,
            cpus=cpus,
            memory=memory,
            seconds=spec.time_seconds,
            folder=self.slurm_folder,
            partition=spec.partition,
            account=spec.account,
            directives=spec.directives or (),
            wait_seconds=spec.wait_seconds,
            where=where,
        )

    def _named(self, key: str, specs: Mapping[str, _R], name: str) -> _R:
        """Return the settings with a name in a section of nanoset.yaml. For example, with

            nanosets:
              pretrain: {…}

        the name `pretrain` in the section "nanosets" gives {…}, and `pretrian` an error that asks
        "did you mean pretrain?"

        Args:
            key: Key of the section.
            specs: Name → settings, of the whole section.
            name: The name.

        Raises:
            ConfigError: There is no such name in the section.
        """
        if name in specs:
            return specs[name]
        raise ConfigError(
            "no such name",
            where=f"{self.config.file}: {key}",
            found=repr(name),
            expected=one_of(specs, "none: it is empty"),
            remedy=remedy_for_name(name, specs, "correct the name, or add it there"),
        )


def holding(
    function: Callable[Concatenate[Project, str, _P], _R],
) -> Callable[Concatenate[Project, str, _P], _R]:
    """Decorate a function that makes an output, so that `nanoset gc` does not delete what it needs.

    `nanoset gc` deletes old files, and may run on another machine at the same time. So while the
    decorated function runs, there is a lease: a small file that names what is in use, and that
    `nanoset gc` looks for. For example:

        @holding
        def make_view(project, name): …

        make_view(project, "best-web")     leases "best-web", and "web", from which it is made

    Args:
        function: Makes an output. Its first arguments are the project, and the name of the output.
            It may be called several times, until all files that it reads exist on this machine.

    Returns:
        A function with the same arguments.
    """

    @wraps(function)
    def call_with_lease(project: Project, name: str, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Call the function with a lease on the output, and on what it is made from."""
        access = project.outputs.access
        with leased(access, leased_names(project, name), name):
            # If another process deletes local copies of files in a bucket, call it again.
            return despite_lost_copies(access, lambda: function(project, name, *args, **kwargs))

    return call_with_lease


def despite_lost_copies(access: FileAccess, work: Callable[[], _R]) -> _R:
    """Do some work with outputs in a bucket, again if local copies of files vanish meanwhile.

    Files in a bucket are downloaded when they are needed, and the copies stay on this machine. To
    make room, another process may delete copies that the work is about to read. Then the work fails
    with an error about a missing file. When it is repeated, the file is downloaded again.

    Args:
        access: Access to the outputs.
        work: The work, a function that can be called several times: up to _ATTEMPTS (8) times.

    Returns:
        What the function returns.

    Raises:
        FileNotFoundError, MissingError: A file is missing, and not only its copy; or the last
            attempt failed.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return work()
        except (FileNotFoundError, MissingError) as error:
            # If the bucket does not have the file, or if there is no bucket, do not try again.
            if not _may_be_lost_copy(access, error):
                raise
    return work()  # the last attempt: every error is raised


def _may_be_lost_copy(access: FileAccess, error: FileNotFoundError | MissingError) -> bool:
    """Return whether the missing file of an error may be a copy of a file in the bucket.

    Args:
        access: How the outputs are reached.
        error: The error. It names files below the root by their local paths or by their URLs.
    """
    return any(access.may_have_lost(str(path)) for path in _missing_paths(error))


def _missing_paths(error: FileNotFoundError | MissingError) -> list[Any]:
    """Return the missing file of an error, and what else may be its path.

    Args:
        error: The error. A FileNotFoundError has the path as an attribute, or as an argument if
            Python code raised it.
    """
    if isinstance(error, MissingError):
        return [error.where]
    return [*error.args, error.filename, error.filename2]


def leased_names(project: Project, name: str) -> set[str]:
    """Return the names of what must not be deleted while an output is made: it, and what it needs.

    For example, a nanoset, which is what a training reads, is made from a view (a selection of
    documents) of a corpus (a collection of texts):

        "pretrain"     {"pretrain", "best-web", "web"}
        "best-web"     {"best-web", "web"}
        "web"          {"web"}

    Args:
        project: Its settings say what the output is made from.
        name: Name of the output.
    """
    config = project.config
    names = {name}
    if name in config.nanosets:
        names.update(config.nanosets[name].corpora)
    if name in config.webdatasets:
        names.update(config.webdatasets[name].corpora)

    # Add the corpus that each view comes from. `base_of` returns it, or the name itself if that is
    # a corpus already.
    corpora = {base_of(config.derived, dataset) for dataset in names}
    return names | corpora
