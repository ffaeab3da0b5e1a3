"""Find out how the loaded definitions differ from the current nanoset.yaml.

Runs and ticks read nanoset.yaml each time. But assets, partitions, dependencies, jobs and the
intervals of sensors stay as they were when the code location was loaded, until it is reloaded. For
example, a nanoset that was added to the file has no assets yet, so no sensor may request them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nanoset_assets.asset_table import shape_of
from nanoset_assets.stage_assets import asset_outputs
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.registry import stages
from nanoset_core.stages.stage import Node, Stage, is_of_corpora

RELOAD = "choose Reload on the page Deployment, Code locations"
"""What the user has to do in Dagster's UI after a change of the definitions."""


@dataclass(frozen=True, slots=True)
class LoadedAssets:
    """The assets and partitions of the loaded definitions.

    A request for any other asset or partition would fail the whole tick of a sensor, and with it
    every other request.
    """

    outputs: frozenset[Node]
    """Outputs with a fixed place in Dagster, such as the split `train` of a data mixture."""
    stages_of_corpora: frozenset[Stage]
    """Steps of the pipeline with a partition for each corpus, which may be added at any time."""

    @staticmethod
    def of(config: ProjectConfig) -> LoadedAssets:
        """Return what Dagster can make after it has loaded some settings.

        For example, the settings have a data mixture `pretrain` of two text collections (corpora):

            outputs              the splits train and valid of `pretrain`, …
            stages_of_corpora    the steps done for each corpus, such as tokenizing. Dagster can do
                                 them for new corpora without loading the settings again.

        Args:
            config: The settings.
        """
        outputs: set[Node] = set()
        stages_of_corpora: set[Stage] = set()
        for stage in stages():  # the steps of the pipeline
            assets = asset_outputs(stage, config)  # such as {"pretrain": [the keys of its splits]}
            if assets and is_of_corpora(stage):
                stages_of_corpora.add(stage)
            else:
                for keys in assets.values():
                    outputs.update(Node(stage, key) for key in keys)
        return LoadedAssets(frozenset(outputs), frozenset(stages_of_corpora))

    def __contains__(self, node: Node) -> bool:
        """Return whether a run of the loaded definitions can make an output."""
        return node.stage in self.stages_of_corpora or node in self.outputs

    def missing(self, nodes: Iterable[Node]) -> list[Node]:
        """Return the outputs that Dagster cannot build before it has loaded the settings again.

        For example, somebody has added a data mixture to the settings. Until a reload, Dagster has
        no assets for it.

        Args:
            nodes: Outputs that the current settings request.
        """
        return [node for node in nodes if node not in self]


def reload_notes(loaded: ProjectConfig, now: ProjectConfig) -> list[str]:
    """Return notes for the user if Dagster has to load the settings again after an edit.

    Most edits, such as that of a weight, need no reload: every run reads the settings file itself.
    But assets and their dependencies are only made when Dagster loads the file. For example:

        a nanoset was added     "nanoset.yaml has another nanoset 'pretrain' than is loaded: choose
                                Reload on the page Deployment, Code locations"
        a corpus was added to   "builds use the new inputs of nanoset 'pretrain'; only the arrows of
        its blend               the asset graph are old: choose Reload …"

    Args:
        loaded: The settings that Dagster has loaded.
        now: The current settings.

    Returns:
        The notes; empty if no reload is needed.
    """
    # Compare the parts of the settings that definitions are made from, such as each nanoset.
    changed_parts = _changed_keys(_definition_inputs(loaded), _definition_inputs(now))
    parts_with_other_inputs = [
        name
        for name in _changed_keys(_asset_inputs(loaded), _asset_inputs(now))
        if name not in changed_parts
    ]
    notes: list[str] = []
    if changed_parts:
        names = ", ".join(changed_parts)
        notes.append(f"{now.file.name} has another {names} than is loaded: {RELOAD}")
    if parts_with_other_inputs:
        names = ", ".join(parts_with_other_inputs)
        notes.append(
            f"builds use the new inputs of {names}; "
            f"only the arrows of the asset graph are old: {RELOAD}"
        )
    return notes


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

    If one of them changes, Dagster has to load its definitions again. What the assets are made from
    is left out: if only this changes, Dagster shows old arrows between them, but runs are right.

    Args:
        config: All settings.

    Returns:
        Name for messages → value: {"automation": …, "nanoset 'pretrain'": …, "view 'long'": …, …}
    """
    outputs_by_name: dict[str, set[Node]] = {}
    for name, outputs in _asset_inputs(config).items():
        outputs_by_name[name] = {node for node, _inputs in outputs}

    # A change of this setting needs no reload, since the sensor reads it each time. So replace it
    # by a value that is always the same.
    automation = replace(config.automation, settle_seconds=0)
    return {
        "automation": automation,
        "dagster": config.dagster,
        "raw or root": (config.raw, config.root),
        **outputs_by_name,
    }


def _asset_inputs(config: ProjectConfig) -> dict[str, set[tuple[Node, frozenset[Node]]]]:
    """Return what each data mixture and the like is made from, according to the settings.

    Dagster draws this as arrows between assets when it loads the settings. For example:

        {"nanoset 'pretrain'": {(the split train, made from the datasets web and books), …}}

    Args:
        config: The settings.

    Returns:
        Name for messages → its outputs, each with those that it is made from. Assets for all text
        collections (corpora), such as "asset raw_jsonl", have an empty set: Dagster loads nothing
        again when a corpus is added to them.
    """
    outputs_by_name: dict[str, set[tuple[Node, frozenset[Node]]]] = defaultdict(set)
    for stage in stages():  # the steps of the pipeline
        for subject, keys in asset_outputs(stage, config).items():
            if is_of_corpora(stage):  # one asset for all corpora
                outputs_by_name[f"asset {shape_of(stage).asset}"] = set()
                continue
            # The subject is the mixture "pretrain", for example, and the keys are its splits.
            outputs = outputs_by_name[f"{stage.kind} {subject!r}"]
            for key in keys:
                node = Node(stage, key)
                outputs.add((node, frozenset(node.inputs(config).values())))
    return dict(outputs_by_name)
