"""Find out how the loaded definitions differ from the current nanoset.yaml.

Runs and ticks read nanoset.yaml each time. But assets, partitions, dependencies, jobs and the
intervals of sensors stay as they were when the code location was loaded, until it is reloaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nanoset_assets.asset_names import asset_path, partition_of
from nanoset_assets.asset_table import shape_of
from nanoset_assets.stage_assets import subjects_of
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.registry import stages
from nanoset_core.stages.stage import Node, is_of_corpora

RELOAD = "choose Reload on the page Deployment, Code locations"
"""What the user has to do in Dagster's UI after a change of the definitions."""


@dataclass(frozen=True, slots=True)
class LoadedAssets:
    """The assets and partitions of the loaded definitions.

    A request for any other asset or partition would fail the whole tick of a sensor, and with it
    every other request.
    """

    parts_by_asset: Mapping[tuple[str, ...], frozenset[str | None]]
    """Asset → its fixed partitions; {None} for an asset without partitions."""
    dynamic_assets: frozenset[tuple[str, ...]]
    """Assets whose partitions are corpora, which may be added at any time."""

    @staticmethod
    def of(config: ProjectConfig) -> LoadedAssets:
        """Return the assets of the definitions that were made from a configuration.

        Args:
            config: The settings of nanoset.yaml when the definitions were loaded.
        """
        parts_by_asset: dict[tuple[str, ...], frozenset[str | None]] = {}
        dynamic_assets: set[tuple[str, ...]] = set()
        for stage in stages():
            # A stage has an asset for each nanoset, webdataset, …, or one for all corpora.
            for keys in subjects_of(stage, config).values():
                asset = asset_path(Node(stage, keys[0]))
                if is_of_corpora(stage):
                    dynamic_assets.add(asset)
                else:
                    parts_by_asset[asset] = frozenset(key.part for key in keys)
        return LoadedAssets(parts_by_asset, frozenset(dynamic_assets))

    def __contains__(self, node: Node) -> bool:
        """Return whether a run of the loaded definitions can make an output."""
        asset = asset_path(node)
        if asset in self.dynamic_assets:
            return True
        return partition_of(node) in self.parts_by_asset.get(asset, ())

    def missing(self, nodes: Iterable[Node]) -> list[Node]:
        """Return the outputs that no run of the loaded definitions can make."""
        return [node for node in nodes if node not in self]


def reload_notes(loaded: ProjectConfig, now: ProjectConfig) -> list[str]:
    """Return at most one note on changes of nanoset.yaml that need a reload of definitions.

    Most edits need no reload, because every run and tick reads the settings again.

    Args:
        loaded: The configuration from which the loaded definitions were made.
        now: The current configuration.
    """
    before = _definition_inputs(loaded)
    after = _definition_inputs(now)
    changed: list[str] = []
    for name in sorted(before.keys() | after.keys()):
        if before.get(name, ()) != after.get(name, ()):
            changed.append(name)
    if not changed:
        return []
    return [f"{now.file.name} has another {', '.join(changed)} than is loaded: {RELOAD}"]


def _definition_inputs(config: ProjectConfig) -> dict[str, Any]:
    """Return the parts of a configuration that decide the definitions.

    Definitions are Dagster's assets, jobs and sensors. If one of these parts changes, they have to
    be loaded again.

    Args:
        config: The settings of nanoset.yaml.

    Returns:
        Name of each part for messages → a value that can be compared.
    """
    inputs: dict[str, Any] = {
        # Each tick reads `settle_seconds` again.
        "automation": replace(config.automation, settle_seconds=0),
        "dagster": config.dagster,
        "raw or root": (config.raw, config.root),
    }
    for stage in stages():
        for subject, keys in subjects_of(stage, config).items():
            if is_of_corpora(stage):
                # Definitions do not list corpora: these are added as partitions when they appear.
                # Only whether there is such an asset matters.
                inputs[f"asset {shape_of(stage).asset}"] = None
                continue
            # Stages with the same kind and subject are one part, such as all of a nanoset. What
            # matters is which outputs there are, and what each is made from.
            outputs = inputs.setdefault(f"{stage.kind} {subject!r}", set())
            for key in keys:
                node = Node(stage, key)
                outputs.add((node, frozenset(node.inputs(config).values())))
    return inputs
