"""`nanoset map`: index mappings and blends before the trainer starts, or just their plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from nanoset_core.cli.echo import echo
from nanoset_core.cli.known_warnings import print_warnings
from nanoset_core.cli.options import (
    ANY_FOLDER,
    CONFIG_OPTION,
    FILE,
    OVERWRITE_OPTION,
    ManyValued,
    flag,
    option,
    option_for,
    options_for,
)
from nanoset_core.cli.progress import progress_bars
from nanoset_core.cli.terminal import Row, print_json, print_made, print_rows
from nanoset_core.errors import ConfigError
from nanoset_core.sampling.config import DEFAULT_SPLIT
from nanoset_core.sampling.splits import SPLITS, SplitName, parse_split, split_numbers
from nanoset_core.stages.handoff.settings import EXAMPLE, UNNAMED
from nanoset_core.stages.mappings.rows import (
    corpus_rows,
    corpus_total_row,
    corpus_totals,
    member_rows,
    mixture_rows,
)
from nanoset_core.stages.mappings.settings import NanosetSpec, ScheduleSpec
from nanoset_core.untrusted import Multiline

if TYPE_CHECKING:
    from nanoset_core.outputs.manifest import Manifest
    from nanoset_core.project.project import Project
    from nanoset_core.sampling.config import NanosetConfig
    from nanoset_core.sampling.corpora import CorpusCoverage
    from nanoset_core.sampling.coverage import MemberCoverage
    from nanoset_core.sampling.epoch_limits import ExceededLimit
    from nanoset_core.sampling.planned import SplitPlan

MANY_EPOCHS = 8
"""Reading a text more often than this gets a warning."""
_MISPLACED = {
    True: ("--data-path and the like name the data", "leave the names of nanosets out"),
    False: (
        "a project's nanosets have their settings in nanoset.yaml",
        "add --data-path, or leave it out",
    ),
}
"""Why names of nanosets, or options of data without a project, have no effect, and what to do."""
_BESIDE = (
    "each dataset's files beside it; without --data-cache-path the trainer keeps no file of a blend"
)


@click.command("map", cls=ManyValued, short_help="Build the index files that a trainer looks for.")
@click.argument("nanosets", nargs=-1)
@CONFIG_OPTION
@flag("--plan plan_only", "Show what would be built; build nothing.")
@option(
    "--split-name", "Only this split; may be repeated.", type=click.Choice(SPLITS), multiple=True
)
@flag("--json as_json", "Print the plan as JSON.")
@option(
    "--continue-from",
    "Let the run go on with NANOSETS' blend: the handoff that it was started with, or its name.",
)
@option(
    "--consumed-samples",
    "Samples that this run has consumed, of all ranks.",
    type=click.IntRange(0),
)
@option("--data-path", "Without a project: prefixes, or pairs of weight and prefix.", multiple=True)
@option("--train-data-path", "The same for train alone.", multiple=True)
@option("--valid-data-path", "The same for valid.", multiple=True)
@option("--test-data-path", "The same for test.", multiple=True)
@option("--data-args-path", "A file with --data-path.", type=FILE)
@option("--per-split-data-args-path", "A JSON file with all three.", type=FILE)
@option_for(
    NanosetSpec,
    "split",
    default=DEFAULT_SPLIT,
    show_default=True,
    help="Shares of train, valid and test.",
)
@option_for(NanosetSpec, "sequence_length", "--seq-length", param="seq_length", required=False)
@option_for(NanosetSpec, "seed")
@option("--train-samples", "Samples of train; default: one epoch.", type=click.IntRange(1))
@option("--valid-samples", "Samples of valid.", type=click.IntRange(1))
@option("--test-samples", "Samples of test.", type=click.IntRange(1))
@option_for(
    ScheduleSpec, "iterations", "--train-iters", param="train_iters", required=False,
    help="Training steps; samples follow from this and the next three options.",
)  # fmt: skip
@option_for(ScheduleSpec, "global_batch_size", required=False)
@options_for(ScheduleSpec, "eval_interval", "eval_iters")
@option(
    "--data-cache-path",
    "Folder for the index files; default: beside each dataset.",
    type=ANY_FOLDER,
)
@option_for(NanosetSpec, "preset")
@option(
    "--trainer", f"Version and tokenizer options of Megatron-LM, as in nanoset.yaml: {EXAMPLE}."
)
@option(
    "--tokenizer-identifiers",
    "Instead: the tokenizer's unique_identifiers: JSON, or its file.",
    default="{}",
)
@option(
    "--trainer-path",
    "HERE=THERE: prefix of paths here, and what the trainer has in its place.",
    multiple=True,
)
@option_for(
    NanosetSpec, "trainer_python", help="Python that the trainer runs, such as 3.12 (preset nemo)."
)
@option_for(NanosetSpec, "max_epochs", help="How often a dataset may be read at most.")
@option_for(
    NanosetSpec, "on_exhaustion", help="What happens where a dataset would be read more often."
)
@OVERWRITE_OPTION
def command(
    nanosets: tuple[str, ...],
    config: Path,
    plan_only: bool,
    split_name: tuple[SplitName, ...],
    as_json: bool,
    continue_from: str | None,
    consumed_samples: int | None,
    **options: Any,
) -> None:
    """Build the index files that a trainer looks for, so that it starts at once; or, with --plan,
    show what they hold.

    In a project, for NANOSETS (default: all). With Megatron-LM's data arguments, for any .bin/.idx
    without a project. With --continue-from and --consumed-samples, for a run that goes on with
    another blend, and repeats no sample.
    """
    if (continue_from is None) != (consumed_samples is None) or (
        continue_from is not None and len(nanosets) != 1
    ):
        needs = "NAME --continue-from HANDOFF --consumed-samples N"
        raise click.UsageError(
            f"a run goes on with one nanoset, from a handoff, at a number of samples: {needs}"
        )
    given = click.get_current_context().get_parameter_source
    is_alone = any(options[key] for key in options if key.endswith(("data_path", "data_args_path")))
    said = [
        f"--{key.replace('_', '-')}"
        for key in sorted(options)
        if given(key) is ParameterSource.COMMANDLINE
    ]
    if unused := nanosets if is_alone else said:
        why, remedy = _MISPLACED[is_alone]
        expected = f"nothing, since {why}"
        raise ConfigError(
            "this would have no effect", found=", ".join(unused), expected=expected, remedy=remedy
        )
    splits = split_name or SPLITS
    if is_alone:
        _map_alone(options, splits, plan_only=plan_only, as_json=as_json)
    else:
        before = None if continue_from is None else (continue_from, consumed_samples or 0)
        _map_project(config, nanosets, splits, before, plan_only=plan_only, as_json=as_json)


def _map_project(
    config: Path,
    names: Sequence[str],
    splits: Sequence[SplitName],
    before: tuple[str, int] | None,
    *,
    plan_only: bool,
    as_json: bool,
) -> None:
    from nanoset_core.project.project import Project
    from nanoset_core.stages.inventory.shared_files import check_nanoset_files
    from nanoset_core.stages.mappings.run_before import continued_project
    from nanoset_core.stages.shards.options import check_tokenizer

    project = Project.open(config)
    check_tokenizer(project)
    lines = ""
    if before is not None:
        project, lines = continued_project(project, names[0], *before)
    names = names or tuple(project.config.nanosets)
    for name in names:
        check_nanoset_files(project, name)

    _show_plans(project, names, splits, plan_only=plan_only, as_json=as_json)
    _warn_of_settings(project, names)
    if plan_only:
        return
    _build(project, names, splits)
    if lines:
        echo(f"for `nanoset build` to keep it, write into {project.config.file.name}:")
        echo()
        echo(Multiline(lines))


def _show_plans(
    project: Project,
    names: Sequence[str],
    splits: Sequence[SplitName],
    *,
    plan_only: bool,
    as_json: bool,
) -> None:
    """Print what splits of a project's nanosets will hold; of packs that are not built, as they
    will be.
    """
    from nanoset_core.sampling.plan import LengthReader
    from nanoset_core.stages.mappings.planning import NanosetContext
    from nanoset_core.stages.packs.show import packs_row
    from nanoset_core.stages.packs.stage import planned_packs

    # Packs that the nanosets read, also if they are not built yet: only a plan can do without them.
    reader = LengthReader(project.outputs.access)
    specs = map(project.nanoset, names if plan_only else ())
    read = {corpus for spec in specs for corpus in (*spec.corpora, *spec.earlier)}
    packs = {
        name: planned_packs(project, name, reader) for name in project.config.packs if name in read
    }
    contexts = {
        name: NanosetContext(project, name, reader, {**packs}, exact=not plan_only)
        for name in names
    }
    planned = {
        (name, split): context.plan(split) for name, context in contexts.items() for split in splits
    }

    packed = [packs_row(name, manifest) for name, manifest in packs.items()]
    print_rows([] if as_json else packed)
    shown = []
    for (name, split), found in planned.items():
        members = _member_values(zip(found.corpora, found.members, strict=False), packs)
        corpora = [corpus.to_json() for corpus in contexts[name].corpora(found)]
        shown.append(_ShownSplit(name, split, members, corpora, list(map(asdict, found.mixture))))
    _show(shown, [one for found in planned.values() for one in found.exceeded], as_json=as_json)

    lacking = {
        key: found.lacking for key, found in planned.items() if found.lacking and not found.members
    }
    for (name, split), text in lacking.items() if not as_json else ():
        _warn(f"warning: {name} {split}: {text}")


def _build(project: Project, names: Sequence[str], splits: Sequence[SplitName]) -> None:
    """Build the index files of nanosets, and if these are of all splits, the files that a trainer
    is started with.
    """
    from nanoset_core.stages.handoff import stage as handoff
    from nanoset_core.stages.handoff.start import START
    from nanoset_core.stages.mappings import stage as mapping

    with progress_bars() as (listener, _):
        project = replace(project, listener=listener)
        for name in names:
            for split in splits:
                mapping.write_mappings(project, name, split)
                if project.nanoset(name).is_blended:
                    mapping.write_blended(project, name, split)
            if splits == SPLITS:
                start = handoff.write_handoff(project, name).url(START)
                echo(f"{name}: {start} says how to start on it")


def _warn_of_settings(project: Project, names: Sequence[str]) -> None:
    """Warn of settings of some nanosets that are allowed but rarely intended, such as orders that
    are lost.
    """
    from nanoset_core.stages.handoff.stage import TRAINER_FILES
    from nanoset_core.stages.stage import Key, Node

    # Worded as `nanoset status` does, so that a warning that was seen there is known here.
    lines: list[str] = []
    for name in names:
        node = Node(TRAINER_FILES, Key(name))
        label = " ".join(filter(None, node.row))
        lines += [
            f"warning: {label}: {text}"
            for text in TRAINER_FILES.settings_warnings(project.config, node.key)
        ]
    print_warnings(project, lines, err=True)


def _map_alone(
    options: Row, splits: Sequence[SplitName], *, plan_only: bool, as_json: bool
) -> None:
    from nanoset_core.sampling.coverage import coverage
    from nanoset_core.sampling.epoch_policies import apply_epoch_limits
    from nanoset_core.sampling.plan import LengthReader, plan_splits
    from nanoset_core.stages.handoff.data_args import config_from_arguments
    from nanoset_core.stages.mappings.standalone import write_index_files

    config = config_from_arguments(options, splits)
    if not plan_only and config.rules.hashes_tokenizer and not config.tokenizer_identifiers:
        _warn(f"warning: {UNNAMED.format(place='--trainer')}: add --trainer '{EXAMPLE}'")
    if config.blend_per_split is None and len(split_numbers(config.split)) < len(SPLITS):
        meant = ", ".join(map("{} {:.2%}".format, SPLITS, parse_split(config.split)))
        echo(f"split {config.split!r} has fewer than three numbers, and means {meant}", err=True)
    prefixes = [prefix for split in SPLITS for prefix in (config.blend(split) or ([], None))[0]]
    most: float | None = options["max_epochs"]
    limits = {} if most is None else dict.fromkeys(prefixes, most)
    reader = LengthReader()
    limited = apply_epoch_limits(config, limits, options["on_exhaustion"], reader)
    planned = plan_splits(limited.config, splits, reader)
    shown = []
    for split, plan in planned.items():
        rows = coverage(plan, limited.config, limits) if plan else []
        members = _member_values((Path(row.prefix).name, row) for row in rows)
        corpora = [corpus.to_json() for corpus in _corpora_alone(plan, limited.config, rows)]
        shown.append(_ShownSplit("data", split, members, corpora, []))
    _show(shown, [one for one in limited.exceeded if one.split in splits], as_json=as_json)
    for found in (
        () if plan_only else write_index_files(limited.config, overwrite=options["overwrite"])
    ):
        place = f", {_BESIDE}" if found.folder is None else f" in {found.folder}"
        print_made(
            f"{found.split}: {found.samples:,} samples, {found.hash}{place}",
            is_new=found.made,
            err=True,
        )


def _corpora_alone(
    plan: SplitPlan | None, config: NanosetConfig, rows: Sequence[MemberCoverage]
) -> list[CorpusCoverage]:
    """Return what a split without a project reads of each dataset."""
    from nanoset_core.sampling.corpora import MemberReads, corpus_coverage, separate_corpora

    if plan is None:
        return []
    reads = {
        member.prefix: MemberReads.of(plan, config, member, row.samples_given)
        for member, row in zip(plan.members, rows, strict=True)
    }
    return corpus_coverage(separate_corpora(plan), reads, config)


def _member_values(
    members: Iterable[tuple[str, MemberCoverage]],
    packs: Mapping[str, Manifest] = MappingProxyType({}),
) -> list[dict[str, Any]]:
    """Return what a split takes of each dataset as JSON values; of packs with their counts."""
    found = []
    for corpus, row in members:
        values = {"corpus": corpus, **row.to_json()}
        if corpus in packs:
            values["packing"] = packs[corpus].facts
        found.append(values)
    return found


@dataclass(frozen=True, slots=True)
class _ShownSplit:
    """The plan of a split, as JSON values."""

    nanoset: str
    split: SplitName
    members: list[dict[str, Any]]
    """Of `MemberCoverage`, with `corpus`."""
    corpora: list[dict[str, Any]]
    """Of `CorpusCoverage`."""
    mixture: list[dict[str, Any]]
    """Of `MixRow`; empty without a mixture."""

    def to_json(self) -> dict[str, Any]:
        """Return plain types."""
        values = {
            "nanoset": self.nanoset,
            "split": self.split,
            "members": self.members,
            "corpora": self.corpora,
        }
        values |= corpus_totals(self.corpora)
        return values | {"mixture": self.mixture} if self.mixture else values


def _show(
    splits: Sequence[_ShownSplit], exceeded: Iterable[ExceededLimit], *, as_json: bool
) -> None:
    """Print tables for each split of a nanoset, and warn of what would have been read more often
    than it may be.
    """
    if as_json:
        print_json([split.to_json() for split in splits])
        return
    for shown in splits:
        _show_split(shown)
    for text in dict.fromkeys(one.text for one in exceeded):
        _warn(f"without max_epochs this would be read too often: {text}")


def _show_split(shown: _ShownSplit) -> None:
    """Print what a split takes of each dataset and corpus, and warn of a split without samples and
    of many epochs.
    """
    title = f"{shown.nanoset} {shown.split}"
    members = shown.members
    if not members:
        echo(f"{title}: no data")
    tokens = sum(member["tokens"] for member in members)
    samples = sum(member["samples_given"] for member in members)

    total = None
    if len(members) > 1:
        taken = sum(member["tokens_taken"] for member in members)
        unused = sum(member["surplus"] for member in members)
        total = {"corpus": "all", "samples": samples, "unused samples": unused, "tokens": taken}
        total["tokens per epoch"] = tokens
    print_rows(
        mixture_rows(shown.mixture), title=f"{title}, mixture", text=("decided by", "of train")
    )
    print_rows(member_rows(members), title=title, total=total)
    corpora_total = corpus_total_row(shown.corpora) if len(shown.corpora) > 1 else None
    print_rows(
        corpus_rows(shown.corpora),
        title=f"{title}, by corpus",
        text=("read through",),
        total=corpora_total,
    )

    if members and not samples:
        hangs = "" if tokens else "; Megatron-LM hangs on such a split: give it no share"
        _warn(f"warning: {title} has no sample: its {tokens:,} tokens are too few for one{hangs}")
    for member in members:
        if member["epochs"] > MANY_EPOCHS and member["max_epochs"] is None:
            times = f"{member['epochs']:,.1f} times (max_epochs would limit that)"
            _warn(f"warning: {title} reads {member['corpus']} {times}")


def _warn(text: str) -> None:
    echo(text, fg="yellow", err=True)
