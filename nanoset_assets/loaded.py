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
        """Return which assets and partitions Dagster has after it loaded certain settings.

        The result has two fields. For the settings of a data mixture `pretrain` of the corpora
        (collections of documents) `web` and `books`, they contain, for example:

            parts_by_asset    ("pretrain", "blend")      {"train", "valid", "test"}
                              ("pretrain", "handoff")    {None}    (the asset has no partitions)
            dynamic_assets    ("raw_jsonl",)             its partitions are the corpora. More can be
                                                         added without loading settings again

        Args:
            config: The settings when Dagster loaded them.
        """
        parts_by_asset: dict[tuple[str, ...], frozenset[str | None]] = {}
        dynamic_assets: set[tuple[str, ...]] = set()
        for stage in stages():
            # A stage is a step of the pipeline. It has one asset for all corpora; or else one for
            # each data mixture, for example, whose name is the subject. `asset_outputs` returns
            # {"": [Key("")]} in the first case, and in the second case, for example,
            # {"pretrain": [Key("pretrain", "train"), Key("pretrain", "valid"), …]}.
            for subject, keys in asset_outputs(stage, config).items():
                asset = asset_path(Node(stage, Key(subject)))
                if is_of_corpora(stage):
                    dynamic_assets.add(asset)
                else:
                    # An output such as Key("pretrain", "train") is the partition "train".
                    parts_by_asset[asset] = frozenset(key.part for key in keys)
        return LoadedAssets(parts_by_asset, frozenset(dynamic_assets))

    def __contains__(self, node: Node) -> bool:
        """Return whether a run of the loaded definitions can make an output."""
        asset = asset_path(node)
        if asset in self.dynamic_assets:
            return True
        return partition_of(node) in self.parts_by_asset.get(asset, ())

    def missing(self, nodes: Iterable[Node]) -> list[Node]:
        """Return the outputs that Dagster cannot build before it has loaded the settings again.

        For example, somebody has added a data mixture to the settings. Until a reload, Dagster has
        no assets for it.

        Args:
            nodes: Outputs that the current settings request.
        """
        return [node for node in nodes if node not in self]


def reload_notes(loaded: ProjectConfig, now: ProjectConfig) -> list[str]:
    """Return a note for the user if Dagster has to load the settings again after an edit.

    Most edits, such as that of a weight, need no reload: every run reads the settings file itself.
    But assets and their dependencies are only made when Dagster loads the file. For example:
    "nanoset.yaml has another nanoset 'pretrain' than is loaded: choose Reload on the page
    Deployment, Code locations".

    Args:
        loaded: The settings that Dagster has loaded.
        now: The current settings.

    Returns:
        A list with the note; empty if no reload is needed.
    """
    # Compare the parts of the settings that definitions are made from, such as each nanoset.
    changed_parts = _changed_keys(_definition_inputs(loaded), _definition_inputs(now))
    if not changed_parts:
        return []
    return [f"{now.file.name} has another {', '.join(changed_parts)} than is loaded: {RELOAD}"]


def _changed_keys(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the keys under which two mappings differ, sorted.

    For example:

        before    {"a": 1, "b": 2}
        after     {"a": 1, "b": 3, "c": 4}
        result    ["b", "c"]                  (`b` has another value, `c` was added)
    """
    changed: list[str] = []
    for key in sorted(before.keys() | after.keys()):
        was_added_or_removed = key not in before or key not in after
        if was_added_or_removed or before[key] != after[key]:
            changed.append(key)
    return changed


def _definition_inputs(config: ProjectConfig) -> dict[str, Any]:
    """Return the settings that Dagster's definitions are made from: assets, sensors and so on.

    If one of them changes, Dagster has to load its definitions again. Each has a name for the
    message that says so:

        {"automation": …, "dagster": …, "raw or root": …, "nanoset 'pretrain'": …, "view 'long'": …}

    Args:
        config: All settings.
    """
    return {
        # A sensor reads `settle_seconds` each time, so a change of it needs no reload.
        "automation": replace(config.automation, settle_seconds=0),
        "dagster": config.dagster,
        "raw or root": (config.raw, config.root),
        **_asset_inputs(config),
    }


def _asset_inputs(config: ProjectConfig) -> dict[str, Any]:
    """Return which assets are made for some settings, and what each of them is made from.

    This is computed for the settings that Dagster has loaded, and for the present ones. If
    something differs, Dagster has to load its definitions again. For example, with the mixture
    `pretrain`, which is made from the dataset `web` (a corpus, which is a collection of documents):

        {
            "asset raw_jsonl": set(),
            "nanoset 'pretrain'": {index files of train, made from the dataset web; …},
        }

    The first one is empty, since an asset of corpora is the same for all settings: when corpora are
    added, nothing has to be loaded again.

    Args:
        config: All settings.

    Returns:
        Name for messages → all outputs of this name, each with the outputs that it is made from.
    """
    outputs_by_name: dict[str, set[Any]] = defaultdict(set)
    for stage in stages():
        for subject, keys in asset_outputs(stage, config).items():
            if is_of_corpora(stage):
                outputs_by_name[f"asset {shape_of(stage).asset}"] = set()
            else:
                # A stage is a step of the pipeline. Several make outputs of the same data mixture,
                # so collect them under its name.
                outputs = outputs_by_name[f"{stage.kind} {subject!r}"]
                outputs.update(_outputs_with_inputs(stage, keys, config))
    return dict(outputs_by_name)


def _outputs_with_inputs(
    stage: Stage, keys: Iterable[Key], config: ProjectConfig
) -> Iterator[tuple[Node, frozenset[Node]]]:
    """Yield some outputs of a pipeline step, each with the outputs that it is made from.

    For example, the index files of a split are made from the datasets that the split mixes.

    Args:
        stage: The step.
        keys: Which of its outputs, such as Key("pretrain", "train") for the split train of
            `pretrain`.
        config: The settings, which say what each output is made from.
    """
    for key in keys:
        node = Node(stage, key)
        yield node, frozenset(node.inputs(config).values())
