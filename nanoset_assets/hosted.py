"""A project as one Dagster instance knows it: its configuration, its names, and what lands its text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import dagster as dg

from nanoset_assets.instance_state import UnderWay
from nanoset_assets.names import Names, names_of
from nanoset_core.config.project import ProjectConfig, load_config
from nanoset_core.errors import ConfigError
from nanoset_core.execution.progress import ProgressCallback, silent
from nanoset_core.outputs.root import Seen
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.raw import INVENTORY
from nanoset_core.pipeline.stage import Node
from nanoset_core.pipeline.stages import stages

Automation = Literal["own", "host", "none"]
"""What builds what is missing or stale: sensors of the project, a sensor of the host, or nothing."""


@dataclass(slots=True)
class InProcess:
    """What `nanoset build` shares with the runs that it executes in its process."""

    listener: ProgressCallback
    """Called with the progress."""
    seen: Seen | None = None
    """What was found in a bucket, which the next run need not ask for."""
    failures: list[tuple[Node, Exception]] = field(default_factory=list)
    """Outputs that could not be made, or are not right; Dagster only tells that a run failed."""


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
    owners: tuple[str, ...] = ()
    """Of all its assets."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """Of all its assets, beside their own."""
    pool: str | None = None
    """Of its assets that use a whole machine; None: one of its own."""
    run_tags: Mapping[str, str] = field(default_factory=dict)
    """Of all runs of its jobs."""
    process: InProcess | None = None
    """Of the `nanoset build` that executes the runs in its process."""

    def load(self, listener: ProgressCallback = silent, *, rebuild: bool = False) -> Project:
        """Open the project as it is configured now; see load_config for what it raises."""
        config = load_config(self.config.file) if self.reread is None else self.reread()
        seen = None if self.process is None else self.process.seen
        return Project(config, listener, rebuild, seen)

    def note_failure(self, node: Node, error: Exception) -> None:
        """Let `nanoset build` know that an output could not be made, or is not right."""
        if self.process is not None:
            self.process.failures.append((node, error))

    def corpora_under_way(self, runs: UnderWay) -> set[str]:
        """Return the corpora of which a run is queued or has not ended."""
        assets = [self.names.asset(stage.asset) for stage in stages() if stage.by_corpus and stage.asset]
        return runs.corpora(self.names.definition(INVENTORY.kind), assets)

    def being_landed(self, runs: UnderWay) -> dict[str, str]:
        """Return corpus whose text is being landed → the asset that a run or backfill is to make."""
        landing = runs.assets({key for keys in self.upstream.values() for key in keys})
        first = {name: next((key for key in keys if key in landing), None) for name, keys in self.upstream.items()}
        return {name: key.to_user_string() for name, key in first.items() if key is not None}

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
        configured = names_of(spec.key_prefix, spec.group_prefix, where=where)
        given = names_of(
            key_prefix, spec.group_prefix if group_prefix is None else group_prefix, where="key_prefix, group_prefix"
        )
        if configured.key_prefix and given.key_prefix not in ((), configured.key_prefix):
            raise ConfigError(
                "this project has another key prefix already",
                where=where,
                found="/".join(configured.key_prefix),
                expected="/".join(given.key_prefix),
                remedy="give it the same prefix in both places, or in one",
            )
        names = given if given.key_prefix else Names(configured.key_prefix, given.group_prefix)
        return ProjectDefs(config, names, **details)
