"""A project as one Dagster instance knows it: its configuration, its names, and what lands its text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import dagster as dg

from nanoset_assets.names import Names, names_of
from nanoset_assets.run_requests import assets_under_way, partitions_under_way
from nanoset_core.config.project import ProjectConfig, load_config
from nanoset_core.errors import ConfigError
from nanoset_core.execution.progress import ProgressCallback, silent
from nanoset_core.outputs.root import Seen
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.raw import INVENTORY
from nanoset_core.pipeline.stages import stages

Automation = Literal["own", "host", "none"]
"""Who has built what is missing or stale: sensors of the project, somebody else's, or nobody."""


@dataclass(frozen=True, slots=True, eq=False)
class HostedProject:
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
    run_tags: Mapping[str, str] = field(default_factory=dict)
    """Of all runs of its jobs."""

    def load(self, listener: ProgressCallback = silent, *, rebuild: bool = False, seen: Seen | None = None) -> Project:
        """The project as it is configured now; see load_config for what it raises, and Project for the arguments."""
        config = load_config(self.config.file) if self.reread is None else self.reread()
        return Project(config, listener, rebuild, seen)

    def corpora_under_way(self, instance: dg.DagsterInstance) -> set[str]:
        """Corpora of which a run is queued or has not ended."""
        assets = [self.names.asset(stage.asset) for stage in stages() if stage.by_corpus and stage.asset]
        return partitions_under_way(instance, self.names.unit(INVENTORY.kind), assets)

    def being_landed(self, instance: dg.DagsterInstance) -> dict[str, str]:
        """Corpus whose text is being landed → the asset that a run or backfill is to make."""
        landing = assets_under_way(instance, {key for keys in self.upstream.values() for key in keys})
        first = {name: next((key for key in keys if key in landing), None) for name, keys in self.upstream.items()}
        return {name: key.to_user_string() for name, key in first.items() if key is not None}

    @staticmethod
    def of(
        config: ProjectConfig,
        key_prefix: str | Sequence[str] | None = None,
        group_prefix: str | None = None,
        **details: Any,
    ) -> HostedProject:
        """A project under the names that are given, or else those of its nanoset.yaml; `details` are other fields.

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
        return HostedProject(config, names, **details)
