"""How `nanoset map` plans and builds the index files of the nanosets of a project.

A nanoset is a weighted blend of datasets, described in nanoset.yaml. The command prints, for each
of its splits, how many samples will be taken of each dataset. Then it writes the index files with
the order of the samples, and the files with which a trainer is started.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoset_core.cli.echo import echo
from nanoset_core.cli.known_warnings import print_warnings
from nanoset_core.cli.progress import shown_progress
from nanoset_core.cli.split_tables import ShownSplit, print_splits, warn, with_reads
from nanoset_core.cli.terminal import print_rows
from nanoset_core.sampling.splits import SPLITS, SplitName
from nanoset_core.untrusted import Multiline

if TYPE_CHECKING:
    from nanoset_core.outputs.manifest import Manifest
    from nanoset_core.project.project import Project
    from nanoset_core.sampling.epoch_limits import ExceededLimit
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
    """Print how many samples training runs take of each dataset, and write index files.

    The file nanoset.yaml describes each such blend, which is called a nanoset: for example, 70 % of
    web and 30 % of code. The index files store the order of the samples. A trainer that finds them
    starts without delay.

    Args:
        config: The project's nanoset.yaml.
        names: The nanosets; empty for all. With `continued_run`, exactly one.
        splits: The splits (train, valid or test) to print and build.
        continued_run: A training run that continues with this nanoset; None if it begins a new run.
        plan_only: Whether to print the plans, and write no index files.
        as_json: Whether to print the plans as JSON.

    Raises:
        ConfigError: nanoset.yaml has mistakes, or names no such nanoset.
        MissingError: A dataset has not been built.
        StaleError: A dataset was made from other inputs than the present ones.
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
    _build(project, names, splits, as_json=as_json)

    # The options of this command are not stored: a later build would not continue the run.
    if continuation:
        file = project.config.file.name
        echo(
            f"add these lines to {file}, so that `nanoset build` continues the run as well:",
            err=as_json,
        )
        echo(err=as_json)
        echo(Multiline(continuation), err=as_json)


def _show_plans(
    project: Project,
    names: Sequence[str],
    splits: Sequence[SplitName],
    *,
    plan_only: bool,
    as_json: bool,
) -> None:
    """Print how many samples each split of some training runs takes of each dataset.

    A plan says which samples a split consists of. Its accuracy depends on what it is for:

                                       to build afterwards    only to show it (`plan_only`)
        samples are counted            exactly                quickly, may be wrong by one or two
        packed datasets are needed     built already          or planned as well

    (In a packed dataset, each sequence is filled with several documents.)

    Args:
        project: The project with its built datasets.
        names: The nanosets, each of which is a weighted blend of datasets for a training run.
        splits: The splits (train, valid or test) of each of them.
        plan_only: Whether nothing is built afterwards.
        as_json: Whether to print JSON instead of tables.
    """
    from nanoset_core.sampling.split_data import LengthReader
    from nanoset_core.stages.packs.show import packs_row

    # Plan the splits, and before that the packed datasets that they need, as the table says.
    reader = LengthReader(project.outputs.access)
    packs = _planned_packs(project, names, reader) if plan_only else {}
    plans = _planned_splits(project, names, splits, reader, packs, exact=not plan_only)

    # Collect the limits that are exceeded: datasets that would be read more often than the setting
    # `max_epochs` allows. The user gets a warning for each. If they change the plan, the warning
    # below that says so names them.
    exceeded: list[ExceededLimit] = []
    for planned in plans:
        if not planned.context.changes_at_limits:
            exceeded.extend(planned.plan.exceeded)

    shown = [_shown_split(planned, packs) for planned in plans]
    if as_json:
        print_splits(shown, exceeded, as_json=True)
        return
    print_rows([packs_row(name, manifest) for name, manifest in packs.items()])
    print_splits(shown, exceeded, as_json=False)
    _warn_of_empty_splits(plans)
    for planned in plans:
        for text in planned.context.limit_warnings(planned.plan):
            warn(f"warning: {planned.title}: {text}")


@dataclass(frozen=True, slots=True)
class _SplitOfNanoset:
    """A planned split of a nanoset."""

    context: NanosetContext
    """The nanoset, with what its splits are planned from."""
    plan: PlannedSplit

    @property
    def title(self) -> str:
        """Name of the nanoset and of the split, such as "pretrain train"."""
        return f"{self.context.name} {self.plan.split}"


def _planned_splits(
    project: Project,
    names: Sequence[str],
    splits: Sequence[SplitName],
    reader: LengthReader,
    packs: Mapping[str, Manifest],
    *,
    exact: bool,
) -> list[_SplitOfNanoset]:
    """Plan how many samples some splits take of each dataset.

    For example, the split train of the data mixture `pretrain` takes 800 samples of the dataset
    `web` and 200 of `books`.

    Args:
        project: The project with its built datasets.
        names: The nanosets: data mixtures for training.
        splits: The splits (train, valid or test) of each of them.
        reader: Reads how many tokens each document has.
        packs: Name → manifest of packed datasets. These are made from other datasets, by filling
            each sample with several documents. They may only be planned and not built yet.
        exact: A training run may be continued with other weights. Then its plan depends on what the
            run has read before. True: count this exactly. False: estimate it, which is faster, and
            wrong by a sample or two of each dataset.

    Returns:
        The plans: all splits of the first nanoset, then those of the second one, ….
    """
    from nanoset_core.stages.mappings.planning import NanosetContext

    unique_names = dict.fromkeys(names)  # a user may name one twice
    unique_splits = dict.fromkeys(splits)
    plans: list[_SplitOfNanoset] = []
    for name in unique_names:
        # The context looks up the other datasets of the mixture, and adds them to the mapping that
        # it gets. So give it a copy.
        known_datasets = dict(packs)
        context = NanosetContext(project, name, reader, known_datasets, exact=exact)
        for split in unique_splits:
            plans.append(_SplitOfNanoset(context, context.plan(split)))
    return plans


def _shown_split(planned: _SplitOfNanoset, packs: Mapping[str, Manifest]) -> ShownSplit:
    """Return what a split of the training data consists of, as plain values to print.

    Args:
        planned: The plan of the split, and the data mixture that it belongs to (`context`).
        packs: Datasets that are planned but not built yet: name → record with its counts.
    """
    context = planned.context
    plan = planned.plan
    corpora = context.corpora_with_reads(plan)  # how often the text of each collection is read
    return ShownSplit(
        nanoset=context.name,  # such as "pretrain"
        split=plan.split,  # such as "train"
        members=_member_values(plan, packs),  # how many samples are taken of each dataset
        corpora=with_reads(corpora.coverage, corpora.tokens_by_reads),
        mixture=[asdict(row) for row in plan.mixture],  # the share of each part of the mixture
    )


def _warn_of_empty_splits(plans: Iterable[_SplitOfNanoset]) -> None:
    """Warn of splits that get so few tokens that these do not fill a single sample.

    For example, 0.1 % of a small dataset for the split valid may be less than a sample.

    Args:
        plans: The splits with their plans. `lacking` says what is missing for a first sample.
    """
    for planned in plans:
        if planned.plan.lacking and not planned.plan.members:
            warn(f"warning: {planned.title}: {planned.plan.lacking}")


def _planned_packs(
    project: Project, names: Sequence[str], reader: LengthReader
) -> dict[str, Manifest]:
    """Plan the packed datasets that some nanosets read, without building them.

    In a packed dataset, each sequence is filled with several documents. To plan how many samples a
    nanoset (a data mixture) takes of it, the number of these sequences is enough.

    Args:
        project: The project, whose nanoset.yaml describes the packed datasets.
        names: The nanosets.
        reader: Reads how many tokens each document has.

    Returns:
        Name of a packed dataset → its manifest, a record with its counts.
    """
    from nanoset_core.stages.packs.make import planned_packs

    datasets: set[str] = set()
    for name in names:
        spec = project.nanoset(name)
        datasets.update(spec.corpora)  # the datasets of the mixture
        datasets.update(spec.earlier_corpora)  # those that the training run has read before

    packs: dict[str, Manifest] = {}
    for pack in project.config.packs:
        if pack in datasets:
            packs[pack] = planned_packs(project, pack, reader)
    return packs


def _member_values(plan: PlannedSplit, packs: Mapping[str, Manifest]) -> list[dict[str, Any]]:
    """Return how many samples a split takes of each dataset, as plain values.

    Args:
        plan: The plan of the split.
        packs: Packed datasets (each of their sequences has several documents) that are not built
            yet: name → record with counts, such as how many sequences there will be.

    Returns:
        For each dataset a mapping such as {"corpus": "web", "samples_given": 700, …}. That of a
        packed dataset has its counts as "packing". Empty for a split without samples.
    """
    values: list[dict[str, Any]] = []
    for number, dataset in enumerate(plan.members):
        name = plan.corpora[number]
        row = {"corpus": name, **dataset.to_json()}
        if name in packs:
            row["packing"] = packs[name].facts
        values.append(row)
    return values


def _warn_of_settings(project: Project, names: Sequence[str]) -> None:
    """Warn of settings of data mixtures (nanosets) that are allowed but rarely intended.

    Args:
        project: The project, which remembers the warnings that the user has seen.
        names: The nanosets.
    """
    from nanoset_core.stages.handoff.stage import TRAINER_FILES
    from nanoset_core.stages.stage import Key, Node

    # `nanoset status` prints the same lines. A warning that the user has seen there is not printed
    # again, which only works if both commands print exactly the same text.
    lines: list[str] = []
    for name in names:
        output = Node(TRAINER_FILES, Key(name))
        label = output.row.label  # such as "nanoset pretrain"
        for text in TRAINER_FILES.settings_warnings(project.config, output.key):
            lines.append(f"warning: {label}: {text}")
    print_warnings(project, lines, err=True)


def _build(
    project: Project, names: Sequence[str], splits: Sequence[SplitName], *, as_json: bool
) -> None:
    """Write the index files of nanosets, and the files with which a trainer is started on them.

    A nanoset is a weighted blend of datasets. If only some of its splits are built, a trainer
    cannot be started yet, so the files for that are not written.

    Args:
        project: The project with its built datasets.
        names: The nanosets.
        splits: The splits (train, valid or test) of each of them.
        as_json: Whether standard output is JSON, so that messages go to standard error.
    """
    from nanoset_core.project.permission import PassedChecks, check_allowed
    from nanoset_core.stages.handoff.make import write_handoff
    from nanoset_core.stages.handoff.start import START
    from nanoset_core.stages.mappings.make import write_blended, write_mappings
    from nanoset_core.stages.mappings.stage import INDEX_MAPPINGS
    from nanoset_core.stages.stage import Key, Node

    has_all_splits = splits == SPLITS
    passed_checks = PassedChecks()
    with shown_progress() as progress:
        project = replace(project, progress=progress)
        for name in names:
            for split in splits:
                node = Node(INDEX_MAPPINGS, Key(name, split))
                check_allowed(project, node, passed_checks)
                # First the samples of each dataset, and then the order in which a blend takes them.
                write_mappings(project, name, split)
                if project.nanoset(name).is_blended:
                    write_blended(project, name, split)
            if has_all_splits:
                start = write_handoff(project, name).url(START)
                echo(f"{name}: {start} says how to start training on it", err=as_json)
