"""Find out how the loaded definitions differ from the current nanoset.yaml.

Runs and ticks read nanoset.yaml each time. But assets, partitions, dependencies, jobs and the
intervals of sensors stay as they were when the code location was loaded, until it is reloaded. For
example, a nanoset that was added to the file has no assets yet, so no sensor may request them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nanoset_assets.asset_names import asset_path, partition_of
from nanoset_assets.asset_table import shape_of
from nanoset_assets.stage_assets import asset_outputs
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.registry import stages
from nanoset_core.stages.stage import Key, Node, Stage, is_of_corpora

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
        """Return all assets that Dagster has for a configuration, each with its partitions.

        Partitions of assets of corpora are left out: they change without a reload.

        Args:
            config: The settings of nanoset.yaml when the definitions were loaded.

        Returns:
            For a nanoset `pretrain`, for example, the asset ("pretrain", "blend") with the
            partitions train, valid and test.
        """
        parts_by_asset: dict[tuple[str, ...], frozenset[str | None]] = {}
        dynamic_assets: set[tuple[str, ...]] = set()
        for stage in stages():
            # A stage has one asset for all corpora, or else one for each nanoset, webdataset, …
            for subject, keys in asset_outputs(stage, config).items():
                asset = asset_path(Node(stage, Key(subject)))
                if is_of_corpora(stage):
                    dynamic_assets.add(asset)
                else:
                    # Key("pretrain", "train"), the key of an output, is the partition train.
                    parts_by_asset[asset] = frozenset(key.part for key in keys)
        return LoadedAssets(parts_by_asset, frozenset(dynamic_assets))

    def __contains__(self, node: Node) -> bool:
        """Return whether a run of the loaded definitions can make an output."""
        asset = asset_path(node)
        if asset in self.dynamic_assets:
            return True
        return partition_of(node) in self.parts_by_asset.get(asset, ())

    def missing(self, nodes: Iterable[Node]) -> list[Node]:
        """Return the outputs that no run of the loaded definitions can make.

        Args:
            nodes: Outputs of the current nanoset.yaml.
        """
        return [node for node in nodes if node not in self]


def reload_notes(loaded: ProjectConfig, now: ProjectConfig) -> list[str]:
    """Return a note if definitions have to be reloaded, because nanoset.yaml was edited.

    Every run and tick reads the settings again, so most edits need no reload.

    Args:
        loaded: The configuration from which the loaded definitions were made.
        now: The current configuration.

    Returns:
        A list with the note, or an empty one.
    """
    # Compare the parts of the settings that definitions are made from, such as each nanoset.
    changed_parts = _changed_keys(_definition_inputs(loaded), _definition_inputs(now))
    if not changed_parts:
        return []
    return [f"{now.file.name} has another {', '.join(changed_parts)} than is loaded: {RELOAD}"]


def _changed_keys(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the keys, sorted, that only one of two mappings has, or with another value.

    Args:
        before: The first mapping, such as {"a": 1, "b": 2}.
        after: The second one, such as {"a": 1, "b": 3, "c": 4}.

    Returns:
        The keys; in this example, ["b", "c"].
    """
    missing = object()  # unlike any value, also unlike None
    changed: list[str] = []
    for key in sorted(before.keys() | after.keys()):
        if before.get(key, missing) != after.get(key, missing):
            changed.append(key)
    return changed


def _definition_inputs(config: ProjectConfig) -> dict[str, Any]:
    """Return the parts of a configuration whose change requires Dagster to reload the definitions.

    Args:
        config: The settings of nanoset.yaml.

    Returns:
        Name of each part for messages, such as `nanoset 'pretrain'` → a value that can be compared.
    """
    return {
        # A change of `settle_seconds` needs no reload, as each tick reads it again: leave it out.
        "automation": replace(config.automation, settle_seconds=0),
        "dagster": config.dagster,
        "raw or root": (config.raw, config.root),
        **_asset_inputs(config),
    }


def _asset_inputs(config: ProjectConfig) -> dict[str, Any]:
    """Return what the assets of a configuration are, and what each is made from.

    Args:
        config: The settings of nanoset.yaml.

    Returns:
        `nanoset 'pretrain'`, for example → all outputs of this data mixture, each with its inputs.
        An asset of corpora has no outputs here, since new corpora need no reload.
    """
    outputs_by_name: dict[str, set[Any]] = defaultdict(set)
    for stage in stages():
        for subject, keys in asset_outputs(stage, config).items():
            if is_of_corpora(stage):
                outputs_by_name[f"asset {shape_of(stage).asset}"] = set()
            else:
                # Several stages make outputs of the same data mixture.
                outputs = outputs_by_name[f"{stage.kind} {subject!r}"]
                outputs.update(_outputs_with_inputs(stage, keys, config))
    return dict(outputs_by_name)


def _outputs_with_inputs(
    stage: Stage, keys: Iterable[Key], config: ProjectConfig
) -> Iterator[tuple[Node, frozenset[Node]]]:
    """Yield some outputs of a stage, each with the outputs that it is made from.

    Args:
        stage: The stage.
        keys: The outputs, as the stage identifies them.
        config: The settings of nanoset.yaml, which decide what an output is made from.
    """
    for key in keys:
        node = Node(stage, key)
        yield node, frozenset(node.inputs(config).values())
