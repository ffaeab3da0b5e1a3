"""The stage `handoff`: writes the files with which a trainer is started on a built nanoset.

A nanoset is a weighted blend of datasets, for which an earlier stage has written index files: the
order of the samples of each split. A handoff is a small folder that a trainer is started with, for
example Megatron-LM with `pretrain_gpt.py $(cat …/handoff/current/arguments.txt)`. It depends on
the index files of all splits, and on the settings that its files mention.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from nanoset_core.errors import ConfigError, one_line
from nanoset_core.loading.layout import HANDOFF, MASKS_OPTION, NANOSETS_FOLDER
from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.sampling.splits import SPLITS
from nanoset_core.stages.exports.settings import exports_for_trainer
from nanoset_core.stages.exports.stage import EXPORT
from nanoset_core.stages.handoff.evaluation_warnings import evaluation_warnings
from nanoset_core.stages.handoff.gather import trainer_tokenizer, views_of
from nanoset_core.stages.handoff.names import VERSION, VERSION_BY_PRESET
from nanoset_core.stages.handoff.replaced import planned_length_warning, planned_order_warning
from nanoset_core.stages.handoff.show import handoff_summary
from nanoset_core.stages.mappings.planning import NanosetContext
from nanoset_core.stages.mappings.stage import BLENDED, INDEX_MAPPINGS
from nanoset_core.stages.order_warnings import nanoset_order_warnings
from nanoset_core.stages.report import CheckRunner, Report, run_here
from nanoset_core.stages.stage import (
    SUBJECT,
    Advising,
    BoundToMachine,
    Key,
    Layout,
    Node,
    Planned,
    ReadingBudget,
    Stage,
    Summary,
    WarnsBeforeReplacing,
)


class HandoffStage(BoundToMachine, Planned, Advising, WarnsBeforeReplacing):
    """Writes the files with which the trainer of a nanoset is started."""

    layout = Layout(NANOSETS_FOLDER, (SUBJECT, HANDOFF))
    kind = "nanoset"
    version = VERSION

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        """Return the name of each nanoset, since each one has a handoff."""
        return [Key(name, requested_at=f"nanosets.{name}") for name in config.nanosets]

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        """Return the outputs that the files of a trainer are made from.

        For example:

            "train"            the index files of train; also "valid" and "test"
            "export of web"    a copy of the dataset web in the trainer's format, for a trainer that
                               does not read datasets themselves

        Args:
            config: The settings of the project.
            key: Names the data mixture, such as "pretrain".

        Returns:
            Name of an input → the output.
        """
        # The last step that makes index files depends on whether there is more than one dataset.
        last_stage = completing_stage(is_blended=config.nanosets[key.subject].is_blended)
        nodes: dict[str, Node] = {}
        for split in SPLITS:
            nodes[split] = Node(last_stage, Key(key.subject, split))
        for dataset, export in export_nodes(config, key.subject).items():
            nodes[f"export of {dataset}"] = export
        return nodes

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        """Return everything that decides the bytes of the files with which a trainer is started.

        If nothing in it has changed, the files are not written again.

        Args:
            project: Has the settings and the tokenizer.
            key: Names the data mixture, such as "pretrain".
            parents: What the files are made from: name → digest, such as {"train": "1a2b…"}.
        """
        nanoset = NanosetContext(project, key.subject)
        options: dict[str, Any] = {
            "trainer_path": nanoset.trainer_root,
            "vocab_size": project.tokenizer.max_id + 1,
            # The iterations at which the run continues with other data, if any.
            "transitions": nanoset.spec.transitions,
            **_later_options(nanoset),
        }
        version = VERSION_BY_PRESET.get(nanoset.spec.preset, VERSION)
        return Recipe(NANOSETS_FOLDER, self.layout.name_of(key), version, parents, options)

    def refusal(
        self, project: Project, key: Key, recipe: Recipe | None, reading: ReadingBudget
    ) -> str | None:
        """Return why the files cannot be written: trainers refuse paths with spaces, for example.

        Args:
            project: Its outputs are what the trainer is going to read.
            key: Names the data mixture, such as "pretrain".
            recipe: Not used.
            reading: Not used: nothing is read.
        """
        from nanoset_core.stages.handoff.description import section_of
        from nanoset_core.stages.handoff.trainer_files import check_path

        nanoset = NanosetContext(project, key.subject)
        section = section_of(nanoset.name, nanoset.spec)
        try:
            # All paths that the trainer gets begin with this one.
            check_path(nanoset.trainer_root, f"nanosets.{section}.trainer_path")
        except ConfigError as error:
            return one_line(error)
        return None

    def make(self, project: Project, key: Key) -> Manifest:
        """Write the handoff of a nanoset, and return its manifest. See `write_handoff`."""
        from nanoset_core.stages.handoff.make import write_handoff

        return write_handoff(project, key.subject)

    def verify(
        self, project: Project, key: Key, *, deep: bool = False, run: CheckRunner = run_here
    ) -> Report:
        """Check that the files of a handoff are unchanged. See `verify_handoff`."""
        from nanoset_core.stages.handoff.verify import verify_handoff

        return verify_handoff(project, key.subject)

    def settings_warnings(self, config: ProjectConfig, key: Key) -> Iterable[str]:
        """Yield warnings on settings of a nanoset that are allowed but rarely intended.

        For example, a view (a selection of documents) may have an order, which is lost if the
        trainer shuffles; evaluations are requested, and there are no samples for them; or the
        version of the trainer is not known.

        Args:
            config: The settings of the project.
            key: Names the nanoset: a weighted blend of datasets.

        Yields:
            Sentences without their full stop.
        """
        spec = config.nanosets[key.subject]
        yield from nanoset_order_warnings(config.views, spec)
        yield from evaluation_warnings(spec)
        version_warning = None if spec.trainer is None else spec.trainer.version_warning()
        if version_warning is not None:
            yield version_warning

    def replacement_warning(
        self, project: Project, manifest: Manifest, changed_inputs: Collection[str]
    ) -> str | None:
        """Return the warning that the samples of a training run may get another order.

        nanoset cannot know whether a run has begun with the files of the current version. If it
        has, it must continue with the samples in their old order.

        Args:
            project: The project, with its settings.
            manifest: Manifest of the current files with which the trainer is started.
            changed_inputs: Inputs that the build makes from other settings or datasets. Only
                "train" matters: the order of the samples that the run reads.

        Returns:
            The warning, or None if no later phase of a run depends on the order, and the run is as
            long as before.
        """
        if "train" not in changed_inputs:
            return None
        order_warning = planned_order_warning(project, manifest)  # of a run with phases
        if order_warning is not None:
            return order_warning
        return planned_length_warning(project, manifest)

    def show(self, project: Project, manifest: Manifest) -> Summary:
        """Return the summary of a handoff, which Dagster and `nanoset status` show."""
        return handoff_summary(project, manifest)


TRAINER_FILES = HandoffStage()


def completing_stage(*, is_blended: bool) -> Stage:
    """Return the stage that completes a split of a nanoset.

    A nanoset of several datasets is completed by the stage that blends their index files. One that
    reads a single dataset has nothing to blend.
    """
    return BLENDED if is_blended else INDEX_MAPPINGS


def _later_options(nanoset: NanosetContext) -> dict[str, Any]:
    """Return the values of newer settings for a recipe, without those that are not set.

    A recipe lists what decides the bytes of an output, and a digest of it identifies the output. So
    a setting that older versions of this package did not have must not be listed if it is not set:
    all outputs of these versions would have to be built again.

    Args:
        nanoset: The data mixture, with its settings in nanoset.yaml.

    Returns:
        Name of an option → value, such as {"tokenizer": ["--vocab-size 32000"]}.
    """
    spec = nanoset.spec
    options: dict[str, Any] = {}
    tokenizer_arguments = list(trainer_tokenizer(nanoset))
    if tokenizer_arguments:
        options["tokenizer"] = tokenizer_arguments
    view_names = views_of(nanoset)  # the datasets that are selections of documents
    if view_names:
        options["views"] = view_names
    if spec.masks:
        options[MASKS_OPTION] = list(spec.masks)
    if spec.schedule is not None:
        options["schedule"] = spec.schedule.recorded()  # how long the run is
        # The phase of the run. All recipes with a schedule list it, even if it is None.
        options["span"] = None if spec.span is None else list(spec.span)
    return options


def export_nodes(config: ProjectConfig, name: str) -> dict[str, Node]:
    """Return the exports that a trainer reads: copies of datasets in its own format.

    For example, nanotron reads .ds files. Most trainers read the datasets themselves.

    Args:
        config: The settings of the project, with its data mixtures and exports.
        name: Name of the mixture (a nanoset).

    Returns:
        Name of a dataset → its export. Datasets without one are left out.
    """
    nodes: dict[str, Node] = {}
    export_by_dataset = exports_for_trainer(config.nanosets[name], config.exports)
    for dataset, export_name in export_by_dataset.items():
        if export_name is not None:
            nodes[dataset] = Node(EXPORT, Key(export_name))
    return nodes
