"""Find out how the loaded definitions differ from the current nanoset.yaml.

Runs and ticks read nanoset.yaml each time. But assets, partitions, dependencies, jobs and the
intervals of sensors stay as they were when the code location was loaded, until it is reloaded. For
example, a nanoset that was added to the file has no assets yet, so no sensor may request them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from nanoset_assets.assets.stage_assets import asset_outputs
from nanoset_assets.assets.table import shape_of
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.registry import stages
from nanoset_core.stages.stage import Node, Stage, is_of_corpora
from nanoset_core.wording import abbreviated

_MAX_NAMES = 10
"""How many names of outputs a note lists."""
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

        A sensor may only request these outputs from Dagster. For example, the settings have a data
        mixture `pretrain` of two text collections (corpora):

            outputs              the splits train and valid of `pretrain`, …
            stages_of_corpora    the steps done for each corpus, such as tokenizing. Dagster can do
                                 them for new corpora without loading the settings again.

        Args:
            config: The settings.
        """
        return LoadedAssets(
            outputs=frozenset(_fixed_outputs(config)),
            stages_of_corpora=frozenset(_requested_stages_of_corpora(config)),
        )

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
    But Dagster's assets, and the arrows that it draws between them, are only made when it loads the
    file. Two examples, with a nanoset (a data mixture for training) named `pretrain`:

        pretrain gets a split    "nanoset.yaml has another nanoset 'pretrain' than is loaded: choose
                                 Reload on the page Deployment, Code locations"
        pretrain gets a corpus   "builds use the new inputs of nanoset 'pretrain'; only the arrows
                                 of the asset graph are old: choose Reload …"

    The first edit needs a reload, since Dagster has no partition for the new split. After the
    second one, runs are right without it.

    Args:
        loaded: The settings that Dagster has loaded.
        now: The current settings.

    Returns:
        The notes; empty if no reload is needed.
    """
    # Compare what Dagster reads only when it loads the settings: options, and which assets exist.
    changed_parts = _changed_keys(_parts_read_at_load(loaded), _parts_read_at_load(now))

    # Compare also what the assets are made from. Leave out those that are in the first list.
    parts_with_other_inputs = [
        name
        for name in _changed_keys(_inputs_by_name(loaded), _inputs_by_name(now))
        if name not in changed_parts
    ]

    notes: list[str] = []
    if changed_parts:
        names = abbreviated(changed_parts, _MAX_NAMES)
        notes.append(f"{now.file.name} has another {names} than is loaded: {RELOAD}")
    if parts_with_other_inputs:
        names = abbreviated(parts_with_other_inputs, _MAX_NAMES)
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


def _parts_read_at_load(config: ProjectConfig) -> dict[str, Any]:
    """Return the settings whose changes have no effect before Dagster loads the settings again.

    Most settings are read by each run, so a change has an effect at once. But Dagster makes its
    assets, jobs and sensors only once, when it loads the settings. For example, for a data mixture
    `pretrain` with two splits, each of which is a partition of an asset:

        {
            "automation": the options of the sensors,
            "dagster": the options of the assets and jobs,
            "raw or root": ("raw", "outputs"),     (the folders of the texts and of the outputs)
            "asset indexed_dataset": True,         (the asset exists)
            "nanoset 'pretrain'": {the split train, the split valid},
            …
        }

    The partitions of `indexed_dataset` are corpora (text collections). Dagster can add corpora
    without loading the settings again, so it only matters whether the asset exists.

    Args:
        config: All settings.

    Returns:
        Name of the part in messages → a value that differs if the part has changed.
    """
    # The sensor reads `settle_seconds` at each call, so changes of it do not count.
    automation = replace(config.automation, settle_seconds=0)
    parts: dict[str, Any] = {
        "automation": automation,
        "dagster": config.dagster,
        "raw or root": (config.raw, config.root),
    }
    for stage in _requested_stages_of_corpora(config):
        parts[f"asset {shape_of(stage).asset}"] = True
    parts.update(_outputs_by_name(config))
    return parts


def _requested_stages_of_corpora(config: ProjectConfig) -> list[Stage]:
    """Return the steps of the pipeline that are done for each text collection (corpus).

    Tokenizing, for example, is done for all corpora. Other steps, such as writing files for a
    certain trainer, are only included if the settings request them for some corpus.

    Args:
        config: The settings.
    """
    return [stage for stage in stages() if is_of_corpora(stage) and asset_outputs(stage, config)]


def _fixed_outputs(config: ProjectConfig) -> list[Node]:
    """Return the outputs that the settings name, such as the splits of each data mixture.

    Outputs of text collections (corpora) are not among them: it depends on the folder of raw text
    which ones there are.

    Args:
        config: The settings.
    """
    outputs: list[Node] = []
    for stage in stages():  # the steps of the pipeline, such as writing the splits
        if is_of_corpora(stage):
            continue
        keys_by_subject = asset_outputs(stage, config)  # such as {"pretrain": [its splits]}
        for key in chain.from_iterable(keys_by_subject.values()):
            outputs.append(Node(stage, key))
    return outputs


def _outputs_by_name(config: ProjectConfig) -> dict[str, set[Node]]:
    """Return the outputs that the settings name, grouped by what they are made for.

    For example, for a data mixture `pretrain`:

        {"nanoset 'pretrain'": {the split train, the split valid}}

    Args:
        config: The settings.
    """
    outputs_by_name: dict[str, set[Node]] = defaultdict(set)
    for output in _fixed_outputs(config):
        outputs_by_name[_name_in_notes(output)].add(output)
    return dict(outputs_by_name)


def _inputs_by_name(config: ProjectConfig) -> dict[str, dict[Node, set[Node]]]:
    """Return what each output that the settings name is made from, grouped as the outputs are.

    For example, for a data mixture `pretrain` of the text collections `web` and `books`:

        {
            "nanoset 'pretrain'": {
                the split train: {the dataset of web, the dataset of books},
                the split valid: {the dataset of web},
            },
        }

    Args:
        config: The settings.

    Returns:
        Name in messages → output → the outputs that it is made from.
    """
    inputs_by_name: dict[str, dict[Node, set[Node]]] = {}
    for name, outputs in _outputs_by_name(config).items():
        inputs_by_name[name] = {output: set(output.inputs(config).values()) for output in outputs}
    return inputs_by_name


def _name_in_notes(output: Node) -> str:
    """Return what notes call the entry of nanoset.yaml that requests an output.

        split `train` of the data mixture `pretrain`       "nanoset 'pretrain'"
        selection `clean` of the documents of `web`        "view 'clean'"

    Args:
        output: The output. Its key has a subject, such as `pretrain` or `web`, and a part, such as
            `train` or `clean`.
    """
    kind = output.stage.kind  # such as "nanoset"
    if output.stage.layout.is_named_by_part:  # a text collection may have several views
        return f"{kind} {output.key.part!r}"
    return f"{kind} {output.key.subject!r}"
