"""A project as one Dagster instance knows it: its configuration, its names, and how a run opens it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import dagster as dg

from nanoset_assets.instance_state import CONFIG_ERROR_TAG, is_run_process, owner_tag
from nanoset_assets.names import Names, names_of
from nanoset_assets.ui.metadata import failure
from nanoset_core.cli.progress import Watch
from nanoset_core.errors import ConfigError, NanosetError
from nanoset_core.execution.progress import NOTE, WAITING, Progress, ProgressCallback, silent
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig, load_config
from nanoset_core.stages.stage import Node
from nanoset_core.storage.leases import at_work
from nanoset_core.untrusted import visible

Automation = Literal["own", "host", "none"]
"""What builds what is missing or stale: sensors of the project, a sensor of the host, or nothing."""
REBUILD_TAG = "nanoset/rebuild"
"""On runs that make outputs again even where they are complete; its value is "true"."""
LOG_SECONDS = 15.0
_RETRY_FAILURES_TAG = "dagster/retry_on_asset_or_op_failure"
"""On runs: whether `run_retries` of dagster.yaml tries them again when a step failed."""


@dataclass(frozen=True, slots=True, eq=False)
class ProjectDefs:
    """What all definitions of one project are made from."""

    config: ProjectConfig
    """As it was when the definitions were loaded."""
    names: Names = field(default_factory=Names)
    reread: Callable[[], ProjectConfig] | None = None
    """Gives the configuration as it is now; None: its file is read."""
    upstream: Mapping[str, tuple[dg.AssetKey, ...]] = field(default_factory=dict)
    """Corpus → assets of others that land its text."""
    owners: Sequence[str] = ()
    """Of all its assets."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Of all its assets, beside their own."""
    pool: str | None = None
    """Of its assets that use a whole machine; None: one of its own."""
    run_tags: Mapping[str, str] = field(default_factory=dict)
    """Of all runs of its jobs."""
    op_tags: Mapping[str, str] = field(default_factory=dict)
    """Of the ops of all its assets."""
    retries: int = 0
    """How often an asset that fails is made again within its run."""
    translation: Callable[[dg.AssetSpec, Mapping[str, str]], dg.AssetSpec] | None = None
    """Changes what is said of an asset, given its `name` without prefix and its `subject`."""
    execute: Callable[[Any], Iterator[dg.MaterializeResult[Any]]] | None = None
    """Makes the output of an AssetRun; None: as the stage does."""
    building: Project | None = None
    """The project of the `nanoset build` that executes the runs in its process."""
    started: Callable[[Node], None] = lambda node: None
    """Is called when an output begins to be made in this process."""
    failures: list[tuple[Node, Exception]] = field(default_factory=list)
    """Outputs that could not be made in this process, or are not right; Dagster only tells that a run failed."""

    def load(self, listener: ProgressCallback = silent, *, rebuild: bool = False) -> Project:
        """Open the project as it is configured now; see load_config for what it raises."""
        config = load_config(self.config.file) if self.reread is None else self.reread()
        return Project(config, _said_by_lease(listener), rebuild, None if self.building is None else self.building.seen)

    def load_in_step(
        self,
        context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext | dg.OpExecutionContext,
        listener: ProgressCallback = silent,
        *,
        rebuild: bool = False,
    ) -> Project:
        """Open the project as it is configured now, in a step of a run.

        Raises:
            dg.Failure: nanoset.yaml has a mistake, or is gone. Dagster tries neither the step nor the run again; the
                sensors request the run again once the file is correct.
        """
        if self.building is not None:  # `nanoset build` reports errors itself
            return self.load(listener, rebuild=rebuild)
        try:
            return self.load(listener, rebuild=rebuild)
        except NanosetError as error:
            tags = {CONFIG_ERROR_TAG: "true", _RETRY_FAILURES_TAG: "false"}
            context.instance.add_run_tags(context.run.run_id, tags)
            raise failure(error, allow_retries=False) from error

    def ticks(self, sensor: str, seconds: int | None = None) -> dict[str, Any]:
        """Return what the decorator of a sensor of this project takes: name, interval, and whether it is on."""
        spec = self.config.automation
        return {
            "name": self.names.definition(sensor),
            "minimum_interval_seconds": min(spec.sensor_seconds, seconds or spec.sensor_seconds),
            "default_status": dg.DefaultSensorStatus.RUNNING if spec.enabled else dg.DefaultSensorStatus.STOPPED,
        }

    @staticmethod
    def of(
        config: ProjectConfig,
        key_prefix: str | Sequence[str] | None = None,
        group_prefix: str | None = None,
        **details: Any,
    ) -> ProjectDefs:
        """Make a project under the names that are given, or else those of its nanoset.yaml; `details` are other fields.

        Raises:
            ConfigError: a prefix can be no part of a name, or is another than that of nanoset.yaml.
        """
        spec, where = config.dagster, f"{config.file}: dagster"
        configured = names_of(spec.key_prefix, spec.group_prefix, where)
        given = names_of(key_prefix, spec.group_prefix if group_prefix is None else group_prefix)
        if configured.key_prefix and given.key_prefix not in ((), configured.key_prefix):
            found, expected = "/".join(configured.key_prefix), "/".join(given.key_prefix)
            what, remedy = (
                "this project has another key prefix already",
                "give it the same prefix in both places, or in one",
            )
            raise ConfigError(what, where=where, found=found, expected=expected, remedy=remedy)
        names = Names(given.key_prefix or configured.key_prefix, given.group_prefix)
        return ProjectDefs(config, names, **details)

    def translated(self, assets: Iterable[dg.AssetsDefinition]) -> list[dg.AssetsDefinition]:
        """Apply the host's translation; ConfigError where it gives an asset another key."""
        translation = self.translation
        if translation is None:
            return list(assets)

        def translate(spec: dg.AssetSpec) -> dg.AssetSpec:
            *above, name = self.names.path(spec.key) or ()
            found = translation(spec, {"name": "/".join([*above, name]), "subject": "/".join(above)})
            if found.key != spec.key:
                was, now = spec.key.to_user_string(), found.key.to_user_string()
                what, remedy = "a translation may not give an asset another key", "name a `key_prefix` of the project"
                raise ConfigError(what, where="translation", found=now, expected=was, remedy=remedy)
            return found

        return list(dg.map_asset_specs(translate, assets))

    def open_in_run(self, context: dg.AssetExecutionContext, *, rebuild: bool) -> Project:
        """Open the project as it is configured now; progress goes to `nanoset build`, or else to the run's log."""
        if is_run_process():
            context.instance.add_run_tags(context.run.run_id, owner_tag(self.names, context.run.run_id))
        listener = _log_listener(context) if self.building is None else self.building.listener
        must_rebuild = rebuild or context.run.tags.get(REBUILD_TAG) == "true"
        return self.load_in_step(context, listener, rebuild=must_rebuild)


def tick_result(
    context: dg.SensorEvaluationContext, requests: list[dg.RunRequest], notes: Sequence[str], nothing: str, **more: Any
) -> dg.SensorResult:
    """Return what a tick asks for, or why it asks for nothing; notes go to the tick's log."""
    for note in notes:
        context.log.info(visible(note))
    return dg.SensorResult(requests, None if requests else visible("; ".join(notes) or nothing), **more)


def _said_by_lease(listener: ProgressCallback) -> ProgressCallback:
    """Let the lease on what is made say how far it has come, besides."""

    def listen(progress: Progress) -> None:
        if progress.stage != NOTE:
            share = None if progress.stage == WAITING else progress.done / max(progress.total, 1)
            at_work(f"{progress.stage} {progress.name}", share)
        listener(progress)

    return listen


def _log_listener(context: dg.AssetExecutionContext) -> ProgressCallback:
    """Write progress into the run's log: at once, then every few seconds, and at the end."""
    watch, last = Watch(), -LOG_SECONDS

    def listen(progress: Progress) -> None:
        nonlocal last
        if progress.stage == NOTE:
            if watch.is_new(progress):
                context.log.info(visible(progress.name))
            return
        line, now = watch.describe(progress), time.monotonic()
        if now - last >= LOG_SECONDS or progress.done >= progress.total:
            last = now
            context.log.info(line)

    return listen
