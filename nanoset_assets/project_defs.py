"""What all Dagster definitions of a project are made from, and how their runs open the project.

The *host* is the Dagster code location that contains the definitions; it may have other assets too.
`ProjectDefs` holds the settings of the project, and what the host decides about its definitions:
prefixes, owners, tags, and so on. Every run and every tick of a sensor calls `ProjectDefs.load`,
which reads nanoset.yaml again, so that an edit of a weight, for example, needs no reload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal

import dagster as dg

from nanoset_assets.history.run_owner import is_run_process, owner_tag
from nanoset_assets.names import Names, names_of
from nanoset_assets.run_log import RunLog
from nanoset_assets.tags import REBUILD_TAG, REPEATABLE_TAG
from nanoset_assets.ui.metadata import failure
from nanoset_core.errors import ConfigError, NanosetError
from nanoset_core.execution.progress import SILENT, Progress
from nanoset_core.project.permission import PassedChecks
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig, load_config
from nanoset_core.stages.stage import Node
from nanoset_core.storage.places import is_here

Automation = Literal["own", "host", "none"]
"""What builds missing and stale outputs: the project's sensors, the host's sensor, or nothing."""
_RETRY_FAILURES_TAG = "dagster/retry_on_asset_or_op_failure"
"""Dagster's tag of runs: whether `run_retries` of dagster.yaml applies if a step failed."""


@dataclass(frozen=True, slots=True, eq=False)
class ProjectDefs:
    """What all definitions of one project are made from: assets, checks, jobs and sensors."""

    config: ProjectConfig
    """The configuration when the definitions were loaded."""
    names: Names = field(default_factory=Names)
    """The names of everything in Dagster."""
    reread: Callable[[], ProjectConfig] | None = None
    """Returns the current configuration; default: read its file."""
    upstream: Mapping[str, tuple[dg.AssetKey, ...]] = field(default_factory=dict)
    """Corpus → assets of the host that land its text."""
    owners: Sequence[str] = ()
    """Owners of all assets."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of all assets, in addition to those that depend on the stage."""
    pool: str | None = None
    """Pool of the assets that use a whole machine; default: one of this project."""
    run_tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of all runs of the project's jobs."""
    op_tags: Mapping[str, str] = field(default_factory=dict)
    """Tags of the ops of all assets."""
    retries: int = 0
    """How many times an asset that fails is retried within its run."""
    translation: Callable[[dg.AssetSpec, Mapping[str, str]], dg.AssetSpec] | None = None
    """Changes the spec of an asset, given its `name` without prefix and its `subject`."""
    execute: Callable[[Any], Iterator[dg.MaterializeResult[Any]]] | None = None
    """Makes the output of an AssetRun; default: `AssetRun.results`."""
    build_project: Project | None = None
    """The project of the `nanoset build` that executes runs in this process; None otherwise."""
    started: Callable[[Node], None] = lambda node: None
    """Called when a step in this process starts to make an output."""
    passed_checks: PassedChecks = field(default_factory=PassedChecks)
    """The searches that were found to allow outputs, so that each run need not read all again."""
    failures: list[tuple[Node, Exception]] = field(default_factory=list)
    """Outputs that could not be made in this process, or whose check failed, with the error.

    `nanoset build` needs it: Dagster's own exception only says that a run failed.
    """

    @staticmethod
    def of(
        config: ProjectConfig,
        key_prefix: str | Sequence[str] | None = None,
        group_prefix: str | None = None,
        **details: Any,
    ) -> ProjectDefs:
        """Collect what the Dagster definitions of a project are made from: its settings and names.

        Several projects can be in one Dagster. So the names of each start with a prefix, such as
        `llm`: its assets are `llm/raw_jsonl`, `llm/tokenized_shards` and so on. The prefix can be
        set in the settings file or here, in Python; if it is set in both, it must be the same.

        Args:
            config: The settings, from nanoset.yaml.
            key_prefix: Prefix of all names; None: that of the settings.
            group_prefix: Prefix of the names of asset groups, which arrange assets in the UI; None:
                that of the settings.
            details: Other fields of this class, such as `owners=["team:data"]`.

        Raises:
            ConfigError: A prefix has characters that are not allowed, or is not that of the
                settings.
        """
        # Read the prefixes of the settings, and those of the arguments.
        spec = config.dagster
        where = f"{config.file}: dagster"
        in_file = names_of(spec.key_prefix, spec.group_prefix, where)
        in_arguments = names_of(key_prefix, group_prefix)
        common_key_prefix = _common_key_prefix(in_file, in_arguments, where)

        # Groups only arrange assets in the UI, so the argument overrides the file.
        if group_prefix is None:
            group_prefix = spec.group_prefix
        return ProjectDefs(config, Names(common_key_prefix, group_prefix), **details)

    def load(self, progress: Progress = SILENT, *, rebuild: bool = False) -> Project:
        """Open the project with its current settings: each run and each call of a sensor does this.

        So an edit of the settings file has an effect at once, although Dagster loaded the
        definitions of assets earlier.

        Args:
            progress: Shows how far the work is.
            rebuild: Whether outputs are built again even if they are up to date.

        Returns:
            The project, through which outputs are read and built.

        Raises:
            ConfigError: The settings file has a mistake.
            MissingError: The settings file does not exist.
        """
        # The command `nanoset build` is an exception. All of its runs use the settings with which
        # it was started, and share what it knows about outputs.
        if self.build_project is not None:
            return replace(self.build_project, progress=progress, rebuild=rebuild)

        if self.reread is not None:
            config = self.reread()  # the settings are in a defs.yaml, for example
        else:
            config = load_config(self.config.file)
        return Project(config, progress, rebuild)

    def note_on_raw_folder(self, instance: dg.DagsterInstance, project: Project) -> str | None:
        """Return a note if the folder of raw text does not exist, since nothing has written it yet.

        Assets of the user may write the text. When they run for the first time, they also create
        the folder. If it disappears later, something is wrong: a disk is not mounted, for example.
        Then there is no note, and whoever reads the folder reports the error.

        Args:
            instance: Dagster's instance. It has a partition for each corpus that ever had text.
            project: The project with its current settings.

        Returns:
            Such as "/data/raw does not exist yet: waiting for lake/web_text". None if the folder
            exists, or if it should exist.
        """
        raw = project.config.raw_folder
        # Sensors call this in each tick, so first try what is quick: a folder on a disk.
        if not self.upstream or (is_here(raw) and raw.exists()):
            return None
        had_text = bool(instance.get_dynamic_partitions(self.names.corpora_name))
        if had_text or raw.is_dir() or raw.is_file():
            return None
        writers = sorted(set(chain.from_iterable(self.upstream.values())))
        labels = ", ".join(writer.to_user_string() for writer in writers)
        return f"{raw} does not exist yet: waiting for {labels}"

    def load_in_step(
        self,
        context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext | dg.OpExecutionContext,
        progress: Progress = SILENT,
        *,
        rebuild: bool = False,
    ) -> Project:
        """Open the project with its current settings, in a step of a Dagster run.

        Args:
            context: Dagster's context of the step.
            progress: Shows how far the work is.
            rebuild: Whether outputs are built again even if they are up to date.

        Returns:
            The project, through which outputs are read and built.

        Raises:
            dg.Failure: The settings file has a mistake, or was deleted.
        """
        is_run_of_build = self.build_project is not None
        try:
            return self.load(progress, rebuild=rebuild)
        except NanosetError as error:
            if is_run_of_build:
                raise  # `nanoset build` reports the error itself
            raise failure_without_retry(context, error) from error

    def open_in_run(self, context: dg.AssetExecutionContext, *, rebuild: bool) -> Project:
        """Open the project with its current settings, when a run begins to build an output.

        Args:
            context: Dagster's context of the run.
            rebuild: Whether the output is built again even if it is up to date. A tag of the run
                can request this, too.

        Raises:
            dg.Failure: The settings file has a mistake, or was deleted.
        """
        self._tag_with_process(context)
        if self.build_project is None:  # a server of Dagster has started the run
            progress = Progress(RunLog(context.log))
        else:  # the command `nanoset build` has, and shows the progress in its terminal
            progress = self.build_project.progress
        must_rebuild = rebuild or context.run.tags.get(REBUILD_TAG) == "true"
        return self.load_in_step(context, progress, rebuild=must_rebuild)

    def _tag_with_process(self, context: dg.AssetExecutionContext) -> None:
        """Store in a tag of a run which process executes it.

        If the process is killed, Dagster shows the run as active forever. A later process notices
        by the tag that this one does not exist any more, and marks the run as failed.

        Args:
            context: Dagster's context of the run.
        """
        # Dagster may execute each step of a run in a child process. It ends before the run does, so
        # it must not be in the tag.
        if is_run_process():
            run_id = context.run.run_id
            context.instance.add_run_tags(run_id, owner_tag(self.names, run_id))

    def sensor_options(self, sensor: str, max_seconds: int | None = None) -> dict[str, Any]:
        """Return what all sensors of the project have in common, as arguments of `dg.sensor`.

        A sensor is a function that Dagster calls every few seconds, to start runs if something has
        changed. For example:

            {"name": "llm__landed", "minimum_interval_seconds": 5, "default_status": RUNNING}

        Args:
            sensor: Name of the sensor, without the project's prefix (`llm` in the example).
            max_seconds: The sensor is called at least that often, even if the settings have a
                longer interval; None: no limit.
        """
        automation = self.config.automation
        interval = automation.sensor_seconds
        if max_seconds is not None:
            interval = min(interval, max_seconds)
        status = dg.DefaultSensorStatus
        return {
            "name": self.names.definition(sensor),
            "minimum_interval_seconds": interval,
            "default_status": status.RUNNING if automation.enabled else status.STOPPED,
        }

    def translated(self, assets: Iterable[dg.AssetsDefinition]) -> list[dg.AssetsDefinition]:
        """Let a function of the user change how the project's assets appear in Dagster.

        For example, a team may want other descriptions, owners or tags. The function `translation`
        gets the spec of an asset (Dagster's description of it), and returns another one. Without
        such a function, the assets remain as they are.

        Args:
            assets: All assets of the project.

        Raises:
            ConfigError: The function changes the key of an asset, which other code relies on.
        """
        if self.translation is None:
            return list(assets)
        return list(dg.map_asset_specs(self._translated_spec, assets))

    def _translated_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """Let the user's function change the spec of one asset, and check that its key is the same.

        The function gets the spec (Dagster's description of an asset), and what the asset is:

            key                          name                subject
            llm/pretrain/blend           pretrain/blend      pretrain     (a data mixture)
            llm/raw_jsonl                raw_jsonl           ""           (one asset for all)

        Args:
            spec: The spec that the project gives the asset.

        Raises:
            ConfigError: The function changes the key.
        """
        if self.translation is None:
            return spec
        path = self.names.path(spec.key) or ()  # without prefix: ("pretrain", "blend")
        details = {
            "name": "/".join(path),  # "pretrain/blend"
            "subject": "/".join(path[:-1]),  # "pretrain"
        }
        translated = self.translation(spec, details)
        if translated.key != spec.key:
            raise ConfigError(
                "a translation may not give an asset another key",
                where="translation",
                found=translated.key.to_user_string(),
                expected=spec.key.to_user_string(),
                remedy="name a `key_prefix` of the project",
            )
        return translated


def _common_key_prefix(in_file: Names, in_arguments: Names, where: str) -> tuple[str, ...]:
    """Return the prefix of a project's names in Dagster, which a file or Python code may set.

    The command `nanoset build` only reads the file. So if both set a prefix, it must be the same:

        settings file     Python code     result
        llm               none            ("llm",)
        none              llm             ("llm",)
        llm               llm             ("llm",)
        llm               team            ConfigError
        none              none            ()

    Args:
        in_file: The names with the prefix of the file.
        in_arguments: The names with the prefix of the code.
        where: Which setting it is, for the message.

    Raises:
        ConfigError: The prefixes differ.
    """
    if not in_file.key_prefix:
        return in_arguments.key_prefix
    if not in_arguments.key_prefix:
        return in_file.key_prefix
    if in_arguments.key_prefix != in_file.key_prefix:
        raise ConfigError(
            "this project has another key prefix already",
            where=where,
            found="/".join(in_file.key_prefix),
            expected="/".join(in_arguments.key_prefix),
            remedy="give it the same prefix in both places, or in one",
        )
    return in_file.key_prefix


def failure_without_retry(
    context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext | dg.OpExecutionContext,
    error: NanosetError,
) -> dg.Failure:
    """Return the exception by which a step fails, in a run that must not be retried at once.

    This is for errors that have nothing to do with the outputs of the run, such as a mistake in the
    settings file. The run gets two tags: one tells Dagster not to retry it, the other tells the
    sensors of this project that they may request the same outputs again, for example once the file
    was corrected.

    Args:
        context: Dagster's context of the step.
        error: What is wrong.

    Returns:
        The exception, for the caller to raise.
    """
    tags = {
        _RETRY_FAILURES_TAG: "false",  # for Dagster
        REPEATABLE_TAG: "true",  # for the sensors
    }
    context.instance.add_run_tags(context.run.run_id, tags)
    return failure(error, allow_retries=False)
