"""`nanoset map`: build the index files of trainers before they start, or print their plan.

Trainers such as Megatron-LM write files with the order of the samples when they start, which can
take an hour. The command writes the same files in advance: for the nanosets of a project, or for
any datasets that options such as `--data-path` name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from nanoset_core.cli.map_prefixes import map_prefixes
from nanoset_core.cli.map_project import RunPosition, map_project
from nanoset_core.cli.options import (
    ANY_FOLDER,
    CONFIG_OPTION,
    FILE,
    OVERWRITE_OPTION,
    ManyValued,
    flag,
    many_valued_option,
    option,
    option_for,
    options_for,
    several_options,
)
from nanoset_core.errors import ConfigError
from nanoset_core.sampling.config import DEFAULT_SPLIT
from nanoset_core.sampling.splits import SPLITS, SplitName
from nanoset_core.stages.handoff.settings import EXAMPLE
from nanoset_core.stages.mappings.settings import NanosetSpec, ScheduleSpec

_DATA_PARAMETERS = (
    "data_path",
    "train_data_path",
    "valid_data_path",
    "test_data_path",
    "data_args_path",
    "per_split_data_args_path",
)
"""Parameters of the command whose options name data, so that no project is needed."""


_DATA_OPTIONS = several_options(
    many_valued_option(
        "--data-path",
        "Without a project: prefixes of .bin/.idx pairs, or a weight before each prefix.",
    ),
    many_valued_option("--train-data-path", "Like --data-path, for train only."),
    many_valued_option("--valid-data-path", "Like --data-path, for valid only."),
    many_valued_option("--test-data-path", "Like --data-path, for test only."),
    option("--data-args-path", "A file that contains the values of --data-path.", type=FILE),
    option(
        "--per-split-data-args-path",
        "A JSON file with the data of train, valid and test.",
        type=FILE,
    ),
)
"""Options that name data without a project."""

# `option_for` takes the type, default and help of an option from the field of a settings class.
_SAMPLES_OPTIONS = several_options(
    option_for(
        NanosetSpec,
        "split",
        default=DEFAULT_SPLIT,
        show_default=True,
        help="Shares of train, valid and test.",
    ),
    option_for(NanosetSpec, "sequence_length", "--seq-length", param="seq_length", required=False),
    option_for(NanosetSpec, "seed"),
    option("--train-samples", "Samples of train; default: one epoch.", type=click.IntRange(1)),
    option("--valid-samples", "Samples of valid.", type=click.IntRange(1)),
    option("--test-samples", "Samples of test.", type=click.IntRange(1)),
    option_for(
        ScheduleSpec,
        "iterations",
        "--train-iters",
        param="train_iters",
        required=False,
        help="Training steps; samples follow from this and the next three options.",
    ),
    option_for(ScheduleSpec, "global_batch_size", required=False),
    options_for(ScheduleSpec, "eval_interval", "eval_iters"),
    option(
        "--data-cache-path",
        "Folder for the index files; default: next to each dataset.",
        type=ANY_FOLDER,
    ),
)
"""Options for the samples of each split, without a project."""

_TRAINER_OPTIONS = several_options(
    option_for(NanosetSpec, "preset"),
    option(
        "--trainer", f"Version and tokenizer options of Megatron-LM, as in nanoset.yaml: {EXAMPLE}."
    ),
    option(
        "--tokenizer-identifiers",
        "In place of --trainer: the tokenizer's unique_identifiers, as JSON or as a file of JSON.",
        default="{}",
    ),
    option(
        "--trainer-path",
        "HERE=THERE: the prefix of paths on this machine, and the one that the trainer sees "
        "instead.",
        multiple=True,
    ),
    option_for(
        NanosetSpec,
        "trainer_python",
        help="Python that the trainer runs, such as 3.12 (preset nemo).",
    ),
    option_for(NanosetSpec, "max_epochs", help="How many times a dataset may be read at most."),
    option_for(
        NanosetSpec,
        "on_exhaustion",
        help="What happens if a dataset would be read more often than that.",
    ),
)
"""Options for the trainer that will read the index files, without a project."""


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
    "Continue a training run with this nanoset: the handoff that the run was started with, or the "
    "name of its nanoset.",
)
@option(
    "--consumed-samples",
    "Samples that the run has consumed, of all ranks.",
    type=click.IntRange(0),
)
@_DATA_OPTIONS
@_SAMPLES_OPTIONS
@_TRAINER_OPTIONS
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
    """Build the index files that a trainer looks for, so that it starts without delay.

    In a project, the command builds the index files of NANOSETS, or of all nanosets if you name
    none.

    Without a project, it builds index files for any pairs of .bin and .idx files. Name these by the
    data arguments of Megatron-LM, such as --data-path.

    With --plan, the command builds nothing, and only prints what each split would contain.

    With --continue-from and --consumed-samples, a training run continues with another blend, and
    repeats no sample.
    """
    continued_run = _continued_run(continue_from, consumed_samples, nanosets)
    splits = split_name or SPLITS

    # `options` are for work without a project: they describe the data, the samples of each split,
    # and the trainer. If none of them names data, as --data-path does, nanoset.yaml of the project
    # describes all that, and none of these options may be given.
    has_data_arguments = any(options[name] for name in _DATA_PARAMETERS)
    if not has_data_arguments:
        _check_none_is_given(options)
        map_project(config, nanosets, splits, continued_run, plan_only=plan_only, as_json=as_json)
        return

    # Without a project, there are no nanosets that could be named.
    if nanosets:
        raise ConfigError(
            "this would have no effect",
            found=", ".join(nanosets),
            expected="nothing, since --data-path and similar options name the data",
            remedy="leave out the names of nanosets",
        )
    map_prefixes(options, splits, plan_only=plan_only, as_json=as_json)


def _continued_run(
    handoff: str | None, consumed_samples: int | None, nanosets: tuple[str, ...]
) -> RunPosition | None:
    """Return the training run that continues with other data, as the user describes it.

    For example, `nanoset map second --continue-from first --consumed-samples 8000`: a run was
    started on the blend of datasets "first". After 8,000 samples, it shall continue with the blend
    "second".

    Args:
        handoff: The value of --continue-from: the files that the run was started with, or their
            name.
        consumed_samples: The value of --consumed-samples.
        nanosets: The blends (nanosets) that the user named.

    Returns:
        The run; None if neither option was given.

    Raises:
        UsageError: One of the two options is missing, or there is not exactly one nanoset.
    """
    if handoff is None and consumed_samples is None:
        return None
    if handoff is None or consumed_samples is None or len(nanosets) != 1:
        raise click.UsageError(
            "to continue a run, name one nanoset, the run's handoff, and the samples that it has "
            "consumed: NAME --continue-from HANDOFF --consumed-samples N"
        )
    return RunPosition(handoff, consumed_samples)


def _check_none_is_given(options: dict[str, Any]) -> None:
    """Check that the user gave no option that would have no effect, such as --seed.

    The command works in two ways. With `--data-path`, options describe the data, the samples and
    the trainer. Without it, the project's file nanoset.yaml describes all that, and such an option
    would be ignored. The user would not notice it.

    Args:
        options: Parameter of the command → value, for all these options. Most are defaults.

    Raises:
        ConfigError: Such an option was given.
    """
    context = click.get_current_context()  # knows which options are not just defaults
    given_flags: list[str] = []
    for name in sorted(options):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            given_flags.append(f"--{name.replace('_', '-')}")
    if given_flags:
        raise ConfigError(
            "this would have no effect",
            found=", ".join(given_flags),
            expected="nothing, since a project's nanosets have their settings in nanoset.yaml",
            # With --data-path, the command needs no project, and uses these options.
            remedy="add --data-path, or leave it out",
        )
