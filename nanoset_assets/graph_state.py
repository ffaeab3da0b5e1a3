"""How far a project has come: the steps that its files ask for, beside what Dagster has recorded of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import dagster as dg

from nanoset_assets.checks import CHECK, unverified_of
from nanoset_core.errors import NanosetError
from nanoset_core.pipeline import raw, state
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.state import Step

Key = tuple[tuple[str, ...], str | None]
"""(asset, partition)"""


@dataclass(frozen=True, slots=True)
class Standing:
    """Every step of a project at one moment."""

    steps: Mapping[Key, Step]
    """in an order in which each comes after what it needs"""
    unrecorded: frozenset[Key]
    """steps that Dagster has no materialisation of"""
    unverified: frozenset[Key]
    """steps whose last check found errors, or never came to its end"""

    def is_due(self, key: Key) -> bool:
        """Whether a step's output is not the one that its inputs ask for, is unknown to Dagster, or not verified."""
        return key in self.steps and (not self.is_good(key) or key in self.unrecorded)

    def is_ready(self, key: Key) -> bool:
        """Whether everything that a step needs is made of the inputs as they are, and is not known to be faulty."""
        return key in self.steps and all(self.is_good(need) for need in self.steps[key].needs)

    def is_good(self, key: Key) -> bool:
        """Whether a step's output is the one that its inputs ask for, and not known to be faulty."""
        return key in self.steps and self.steps[key].done and key not in self.unverified


def take_standing(project: Project, instance: dg.DagsterInstance, snapshots: Mapping[str, str]) -> Standing:
    """The standing of a project whose corpora are those of `snapshots`: corpus → digest of its inventory."""
    steps = {step.key: step for step in state.steps_of(project, snapshots)}
    checks = [dg.AssetCheckKey(dg.AssetKey(asset), CHECK) for asset in dict.fromkeys(asset for asset, _ in steps)]
    return Standing(steps, _unrecorded(instance, steps), frozenset(unverified_of(instance, checks)))


def inventory_digests(project: Project, corpora: Iterable[str]) -> dict[str, str]:
    """Corpus → digest of its current inventory; those without one are left out."""
    digests: dict[str, str] = {}
    for corpus in sorted(corpora):
        try:
            manifest = project.outputs.current(raw.STAGE, corpus)
        except NanosetError:
            continue  # unreadable: it will be taken again
        if manifest is not None:
            digests[corpus] = manifest.digest
    return digests


def _unrecorded(instance: dg.DagsterInstance, steps: Iterable[Key]) -> frozenset[Key]:
    steps = list(steps)
    recorded: set[Key] = set()
    for asset in dict.fromkeys(asset for asset, _ in steps):
        key = dg.AssetKey(asset)
        recorded.update((asset, partition) for partition in instance.get_materialized_partitions(key))
        if (asset, None) in steps and instance.get_latest_materialization_event(key) is not None:
            recorded.add((asset, None))
    return frozenset(steps) - recorded
