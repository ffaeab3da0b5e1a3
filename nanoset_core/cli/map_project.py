"""How `nanoset map` plans and builds the index files of the nanosets of a project."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoset_core.cli.echo import echo
from nanoset_core.cli.known_warnings import print_warnings
from nanoset_core.cli.progress import shown_progress
from nanoset_core.cli.split_tables import ShownSplit, print_splits, warn
from nanoset_core.cli.terminal import print_rows
from nanoset_core.sampling.splits import SPLITS, SplitName
from nanoset_core.untrusted import Multiline

if TYPE_CHECKING:
    from nanoset_core.outputs.manifest import Manifest
    from nanoset_core.project.project import Project
    from nanoset_core.sampling.split_data import LengthReader
    from nanoset_core.stages.mappings.planning import NanosetContext, PlannedSplit


@dataclass(frozen=True, slots=True)
class RunPosition:
    """A training run, and how far it has come."""

    handoff: str
    """The handoff that it was started with: its folder, or the name of its nanoset."""
    consumed_samples: int
    """Samples that it has consumed, of all ranks."""


def map_project(
    config: Path,
    names: Sequence[str],
    splits: Sequence[SplitName],
    continued_run: RunPosition | None,
    *,
    plan_only: bool,
    as_json: bool,
) -> None:
    """Print the plans of a project's nanosets, and build their index files.

    A plan says how many samples a split takes of each dataset.

    Args:
        config: The project's nanoset.yaml.
        names: The nanosets; empty for all. With `continued_run`, exactly one.
        splits: The splits.
        continued_run: A run that continues with this nanoset.
        plan_only: Whether to build nothing.
        as_json: Whether to print the plans as JSON.
    """
    from nanoset_core.project.project import Project
    from nanoset_core.stages.inventory.shared_files import check_nanoset_files
    from nanoset_core.stages.mappings.run_before import continued_project
    from nanoset_core.stages.shards.options import check_tokenizer

    # Open the project; for a nanoset that continues a run, as if nanoset.yaml said so.
    project = Project.open(config)
    check_tokenizer(project)
    continuation = ""  # lines for nanoset.yaml
    if continued_run is not None:
        project, continuation = continued_project(
            project, names[0], continued_run.handoff, continued_run.consumed_samples
        )
    names = names or tuple(project.config.nanosets)
    for name in names:
        check_nanoset_files(project, name)

    # Print first: a build may take long.
    _show_plans(project, names, splits, plan_only=plan_only, as_json=as_json)
    _warn_of_settings(project, names)
    if plan_only:
        return
    _build(project, names, splits)

    # The options of this command are not stored: a later build would not continue the run.
    if continuation:
        file = project.config.file.name
        echo(f"add these lines to {file}, so that `nanoset build` continues the run as well:")
        echo()
        echo(Multiline(continuation))


def _show_plans(
    project: Project,
    names: Sequence[str],
    splits: Sequence[SplitName],
    *,
    plan_only: bool,
    as_json: bool,
) -> None:
    """Print what splits of a project's nanosets will contain.

    Args:
        plan_only: Whether nothing is built afterwards. If so, packs that are not built yet are
            planned, too.
        as_json: Whether to print JSON.
    """
    from nanoset_core.sampling.split_data import LengthReader
    from nanoset_core.stages.mappings.planning import NanosetContext
    from nanoset_core.stages.packs.show import packs_row

    # Packs are sequences that are filled with documents. A build needs packs that are built.
    reader = LengthReader(project.outputs.access)
    packs: dict[str, Manifest] = {}
    if plan_only:
        packs = _planned_packs(project, names, reader)

    # Plan all splits before any is printed, since a plan may fail.
    contexts: dict[str, NanosetContext] = {}  # what the splits of each nanoset are planned from
    for name in names:
        datasets = dict(packs)  # a copy, since the context adds the datasets that it looks up
        contexts[name] = NanosetContext(project, name, reader, datasets, exact=not plan_only)
    plans = _planned_splits(contexts, splits)

    # Print them, and the datasets that would be read more often than `max_epochs` allows.
    shown = [
        _shown_split(contexts[name], name, split, plan, packs)
        for (name, split), plan in plans.items()
    ]
    exceeded = list(chain.from_iterable(plan.exceeded for plan in plans.values()))
    if not as_json:
        print_rows([packs_row(name, manifest) for name, manifest in packs.items()])
    print_splits(shown, exceeded, as_json=as_json)
    if not as_json:
        _warn_of_empty_splits(plans)


def _planned_splits(
    contexts: Mapping[str, NanosetContext], splits: Sequence[SplitName]
) -> dict[tuple[str, SplitName], PlannedSplit]:
    """Return (nanoset, split) → its plan. All are planned before any is printed: one may fail.

    Args:
        contexts: Name of each nanoset → what its splits are planned from.
    """
    plans: dict[tuple[str, SplitName], PlannedSplit] = {}
    for name, context in contexts.items():
        for split in splits:
            plans[name, split] = context.plan(split)
    return plans


def _shown_split(
    context: NanosetContext,
    name: str,
    split: SplitName,
    plan: PlannedSplit,
    packs: Mapping[str, Manifest],
) -> ShownSplit:
    """Return the plan of a split as plain values.

    Args:
        context: What the splits of the nanoset are planned from.
        packs: Name of packs that are not built yet → their planned manifest.
    """
    corpora = [corpus.to_json() for corpus in context.corpora(plan)]
    mixture = [asdict(row) for row in plan.mixture]
    return ShownSplit(name, split, _member_values(plan, packs), corpora, mixture)


def _warn_of_empty_splits(plans: Mapping[tuple[str, SplitName], PlannedSplit]) -> None:
    """Warn of splits that have a share of the data, but too little for a sample."""
    for (name, split), plan in plans.items():
        if plan.lacking and not plan.members:
            warn(f"warning: {name} {split}: {plan.lacking}")


def _planned_packs(
    project: Project, names: Sequence[str], reader: LengthReader
) -> dict[str, Manifest]:
    """Return the manifests of the packed datasets that nanosets read, planned if not built yet.

    Args:
        reader: Reads the lengths of documents.
    """
    from nanoset_core.stages.packs.stage import planned_packs

    # The datasets that the nanosets read, or have read in earlier phases of a run.
    members: set[str] = set()
    for name in names:
        spec = project.nanoset(name)
        members.update(spec.corpora)
        members.update(spec.earlier_corpora)

    packs: dict[str, Manifest] = {}
    for name in project.config.packs:
        if name in members:
            packs[name] = planned_packs(project, name, reader)
    return packs


def _member_values(plan: PlannedSplit, packs: Mapping[str, Manifest]) -> list[dict[str, Any]]:
    """Return what a split takes of each dataset, as plain values.

    Args:
        packs: Name of each packed dataset → its manifest, whose counts are added.
    """
    members: list[dict[str, Any]] = []
    # A split without samples names datasets, but has no members.
    for name, coverage in zip(plan.corpora, plan.members, strict=False):
        values = {"corpus": name, **coverage.to_json()}
        if name in packs:
            values["packing"] = packs[name].facts
        members.append(values)
    return members


def _warn_of_settings(project: Project, names: Sequence[str]) -> None:
    """Warn of settings of nanosets that are allowed but rarely intended."""
    from nanoset_core.stages.handoff.stage import TRAINER_FILES
    from nanoset_core.stages.stage import Key, Node

    # Known warnings, which are only counted, are recognised by their text. So use the text that
    # `nanoset status` prints.
    lines: list[str] = []
    for name in names:
        node = Node(TRAINER_FILES, Key(name))
        label = node.row.label  # what `nanoset status` calls the nanoset
        for text in TRAINER_FILES.settings_warnings(project.config, node.key):
            lines.append(f"warning: {label}: {text}")
    print_warnings(project, lines, err=True)


def _build(project: Project, names: Sequence[str], splits: Sequence[SplitName]) -> None:
    """Build the index files of nanosets, and what trainers start with if no split is left out."""
    from nanoset_core.stages.handoff import stage as handoff
    from nanoset_core.stages.handoff.start import START
    from nanoset_core.stages.mappings import stage as mapping

    with shown_progress() as progress:
        project = replace(project, progress=progress)
        for name in names:
            for split in splits:
                # First the samples of each dataset, and then the order in which a blend takes them.
                mapping.write_mappings(project, name, split)
                if project.nanoset(name).is_blended:
                    mapping.write_blended(project, name, split)
            has_all_splits = splits == SPLITS
            if has_all_splits:
                start = handoff.write_handoff(project, name).url(START)
                echo(f"{name}: {start} says how to start training on it")
