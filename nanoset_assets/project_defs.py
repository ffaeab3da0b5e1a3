"""What all Dagster definitions of a project are made from, and how their runs open the project.

The *host* is the Dagster code location that contains the definitions; it may have other assets too.
`ProjectDefs` holds the settings of the project, and what the host decides about its definitions:
prefixes, owners, tags, and so on. Every run and every tick of a sensor calls `ProjectDefs.load`,
which reads nanoset.yaml again, so that an edit of a weight, for example, needs no reload.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import dagster as dg

from nanoset_assets.names import Names, names_of
from nanoset_assets.run_owner import is_run_process, owner_tag
from nanoset_assets.tags import CONFIG_ERROR_TAG, REBUILD_TAG
from nanoset_assets.ui.metadata import failure
from nanoset_core.errors import ConfigError, NanosetError
from nanoset_core.execution.progress import SILENT, Display, Progress, RunningWork
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig, load_config
from nanoset_core.stages.stage import Node
from nanoset_core.untrusted import visible

Automation = Literal["own", "host", "none"]
"""What builds missing and stale outputs: the project's sensors, the host's sensor, or nothing."""
LOG_SECONDS = 15.0
"""Seconds between two lines of progress in a run's log."""
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
        """Return what the definitions of a project are made from, with its names in Dagster.

        Args:
            config: The settings of nanoset.yaml.
            key_prefix: Prefix of the key of every asset, such as "llm"; default: that of
                nanoset.yaml.
            group_prefix: Prefix of the name of every asset group; default: that of nanoset.yaml.
            details: Other fields of `ProjectDefs`.

        Raises:
            ConfigError: A prefix cannot be part of a name, or differs from that of nanoset.yaml.
        """
        # The prefixes in nanoset.yaml, and those in the arguments
        spec = config.dagster
        where = f"{config.file}: dagster"
        in_file = names_of(spec.key_prefix, spec.group_prefix, where)
        in_arguments = names_of(key_prefix, group_prefix)
        if in_file.key_prefix and in_arguments.key_prefix:
            _check_same_prefix(in_file, in_arguments, where)

        # Groups only arrange assets in the UI, so the argument overrides the file.
        if group_prefix is None:
            group_prefix = spec.group_prefix
        names = Names(in_arguments.key_prefix or in_file.key_prefix, group_prefix)
        return ProjectDefs(config, names, **details)

    def load(self, progress: Progress = SILENT, *, rebuild: bool = False) -> Project:
        """Open the project with its current configuration, or with that of a `nanoset build`.

        Args:
            progress: Shows the progress of builds.
            rebuild: Whether builds make outputs even if they are up to date.

        Returns:
            The project, with which stages read and make outputs.

        Raises:
            ConfigError: nanoset.yaml has a mistake.
            MissingError: nanoset.yaml does not exist.
        """
        if self.build_project is not None:
            # All runs of a `nanoset build` use the settings with which it began, and share what it
            # knows about outputs. Reading a long nanoset.yaml in each step would take most of the
            # time of small outputs.
            return replace(self.build_project, progress=progress, rebuild=rebuild)
        if self.reread is not None:
            config = self.reread()  # the settings are in a defs.yaml, for example
        else:
            config = load_config(self.config.file)
        return Project(config, progress, rebuild)

    def load_in_step(
        self,
        context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext | dg.OpExecutionContext,
        progress: Progress = SILENT,
        *,
        rebuild: bool = False,
    ) -> Project:
        """Open the project with its current configuration, in a step of a run.

        Args:
            context: Dagster's context of the step.
            progress: Shows the progress of builds.
            rebuild: Whether builds make outputs even if they are up to date.

        Returns:
            The project, with which stages read and make outputs.

        Raises:
            dg.Failure: nanoset.yaml has a mistake, or was deleted. Dagster retries neither the step
                nor the run; the sensors request the run again once the file is correct.
        """
        is_run_of_build = self.build_project is not None
        try:
            return self.load(progress, rebuild=rebuild)
        except NanosetError as error:
            if is_run_of_build:
                raise  # `nanoset build` reports the error itself
            # The first tag keeps Dagster from repeating the run at once. By the second, the sensors
            # know that the run may be requested again later.
            tags = {_RETRY_FAILURES_TAG: "false", CONFIG_ERROR_TAG: "true"}
            context.instance.add_run_tags(context.run.run_id, tags)
            raise failure(error, allow_retries=False) from error

    def open_in_run(self, context: dg.AssetExecutionContext, *, rebuild: bool) -> Project:
        """Open the project with its current configuration, in a run of an asset.

        Args:
            context: Dagster's context of the run.
            rebuild: Whether the output is rebuilt even if it is up to date.

        Returns:
            The project, whose progress is shown in the log of the run.

        Raises:
            dg.Failure: nanoset.yaml has a mistake, or was deleted.
        """
        run = context.run
        # Tag the run with the process that executes it, so that a later process can tell if it was
        # killed. Dagster may execute the step in a child of that process, which adds no tag.
        if is_run_process():
            context.instance.add_run_tags(run.run_id, owner_tag(self.names, run.run_id))

        # `nanoset build`, which has a `build_project`, shows the progress on its terminal.
        if self.build_project is None:
            progress = Progress(RunLog(context.log))
        else:
            progress = self.build_project.progress
        must_rebuild = rebuild or run.tags.get(REBUILD_TAG) == "true"
        return self.load_in_step(context, progress, rebuild=must_rebuild)

    def sensor_options(self, sensor: str, max_seconds: int | None = None) -> dict[str, Any]:
        """Return the name, interval and default status of a sensor, as decorator arguments.

        Args:
            sensor: Name of the sensor, without the project's prefix.
            max_seconds: Longest interval between two ticks, if nanoset.yaml sets a longer one.

        Returns:
            Arguments of `dg.sensor`.
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
        """Return assets with specs that the user's function `translation` may have changed.

        Args:
            assets: All assets of the project.

        Returns:
            The assets, whose descriptions, tags and so on may differ, but whose keys are the same.

        Raises:
            ConfigError: The function changes the key of an asset.
        """
        if self.translation is None:
            return list(assets)
        return list(dg.map_asset_specs(self._translated_spec, assets))

    def _translated_spec(self, spec: dg.AssetSpec) -> dg.AssetSpec:
        """Return the spec that the user's function `translation` makes of the spec of an asset.

        Args:
            spec: The spec that the project gives the asset.

        Raises:
            ConfigError: The function changes the key of the asset.
        """
        if self.translation is None:
            return spec
        # The key without the project's prefix: (subject, asset) for an asset of a nanoset, for
        # example, and (asset,) for an asset of all corpora.
        path = self.names.path(spec.key) or ()
        details = {"name": "/".join(path), "subject": "/".join(path[:-1])}
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


def _check_same_prefix(in_file: Names, in_arguments: Names, where: str) -> None:
    """Check that nanoset.yaml and the code that uses it set the same key prefix.

    `nanoset build` only knows that of the file, and an asset must have one key everywhere.

    Args:
        in_file: The names with the prefix of nanoset.yaml.
        in_arguments: The names with the prefix that the code sets.
        where: Where the prefix is in the file, for the message.

    Raises:
        ConfigError: The prefixes differ.
    """
    if in_arguments.key_prefix != in_file.key_prefix:
        raise ConfigError(
            "this project has another key prefix already",
            where=where,
            found="/".join(in_file.key_prefix),
            expected="/".join(in_arguments.key_prefix),
            remedy="give it the same prefix in both places, or in one",
        )


def tick_result(
    context: dg.SensorEvaluationContext,
    requests: Sequence[dg.RunRequest] = (),
    notes: Sequence[str] = (),
    idle_reason: str = "",
    **more: Any,
) -> dg.SensorResult:
    """Return what a tick requests, or why it requests nothing; notes go to the tick's log.

    Args:
        context: Dagster's context of the tick, one call of a sensor.
        requests: The runs.
        notes: Lines for the log of the tick.
        idle_reason: Why nothing is requested, if there are no notes either.
        more: Further arguments of `dg.SensorResult`, such as `cursor`.

    Returns:
        What the function of a sensor has to return to Dagster.
    """
    for note in notes:
        context.log.info(visible(note))
    skip_reason = None
    if not requests:
        skip_reason = visible("; ".join(notes) or idle_reason)
    return dg.SensorResult(list(requests), skip_reason, **more)


class RunLog(Display):
    """Shows progress in the log of a run: work at its start, every few seconds, and at its end."""

    def __init__(self, log: dg.DagsterLogManager) -> None:
        self._log = log
        self._logged_at = -LOG_SECONDS

    def note(self, text: str) -> None:
        self._log.info(visible(text))

    def work(self, work: RunningWork, *, is_new: bool) -> None:
        now = time.monotonic()
        if now - self._logged_at >= LOG_SECONDS or work.is_finished:
            self._logged_at = now
            self._log.info(work.description)
