"""How `nanoset map` plans and builds index files without a project, for .bin/.idx pairs.

The user names the datasets with the options of Megatron-LM, such as
`--data-path 0.7 web 0.3 code --train-samples 1000`. The command first prints the plan: how many
samples each split takes of each dataset. Then it writes the index files, which contain the order of
the samples and have the names that the trainer looks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoset_core.cli.echo import echo
from nanoset_core.cli.split_tables import ShownSplit, print_splits, warn, with_reads
from nanoset_core.cli.terminal import print_made
from nanoset_core.sampling.splits import SPLITS, SplitName, parse_split, split_numbers
from nanoset_core.stages.handoff.settings import EXAMPLE, UNNAMED

if TYPE_CHECKING:
    from nanoset_core.sampling.config import NanosetConfig
    from nanoset_core.sampling.planned import SplitPlan

_NEXT_TO_DATASETS = (
    "each dataset's files next to it; without --data-cache-path the trainer keeps no file of a "
    "blend"
)
"""Where index files are without --data-cache-path, for the line that lists them."""


def map_prefixes(
    options: Mapping[str, Any], splits: Sequence[SplitName], *, plan_only: bool, as_json: bool
) -> None:
    """Print how training samples will be taken of datasets, and write the trainer's index files.

    The user names the datasets as for the trainer, Megatron-LM:

        --data-path 0.7 web 0.3 code --train-samples 1000 --split 98,2,0

    The plan says, for example, that the split train takes 700 samples of web and 300 of code. The
    index files store the order of these samples. A trainer that finds them starts without delay.

    Args:
        options: Name of an option → its value: the data arguments of Megatron-LM, and others.
        splits: The splits (train, valid or test) to print and build.
        plan_only: Whether to print the plan, and write no index files.
        as_json: Whether to print the plan as JSON.

    Raises:
        ConfigError: Options are missing or contradict each other. Or a dataset would be read more
            often than --max-epochs allows, and --on-exhaustion says that this is an error.
        MissingError: A dataset or a file of data arguments does not exist.
        FormatError: The .bin and the .idx of a dataset do not belong together.
    """
    from nanoset_core.sampling.epoch_policies import apply_epoch_limits
    from nanoset_core.sampling.plan import plan_splits
    from nanoset_core.sampling.split_data import LengthReader
    from nanoset_core.stages.handoff.data_args import config_from_arguments, trainer_warning

    config = config_from_arguments(options, splits)
    if not plan_only:
        _warn_of_unknown_tokenizer(config)
        version_warning = trainer_warning(options.get("trainer"))
        if version_warning is not None:
            warn(f"warning: --trainer: {version_warning}")
    _explain_short_split(config)

    # A dataset that would be read too often changes the blend, or is an error (--on-exhaustion).
    limits = _epoch_limits(config, options["max_epochs"])
    reader = LengthReader()
    limited = apply_epoch_limits(config, limits, options["on_exhaustion"], reader)

    # Print the plan of each split, with a warning for each limit that changed the blend.
    plans = plan_splits(limited.config, splits, reader)
    _check_token_files(plans.values())
    shown = [_shown_split(split, plan, limited.config, limits) for split, plan in plans.items()]
    exceeded = [limit for limit in limited.exceeded if limit.split in splits]
    print_splits(shown, exceeded, as_json=as_json)

    if not plan_only:
        _build(limited.config, overwrite=options["overwrite"])


def _check_token_files(plans: Iterable[SplitPlan | None]) -> None:
    """Check that the .bin of each dataset has the tokens that its .idx lists.

    Index files are computed from the .idx alone, so the .bin need not be on this machine. Those in
    a bucket are not looked up.

    Args:
        plans: What each split takes of each dataset; None for a split without data.

    Raises:
        FormatError: A .bin is longer or shorter than its .idx says.
    """
    from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
    from nanoset_core.stages.dataset.named_pair import open_pair

    prefixes: set[str] = set()
    for plan in plans:
        if plan is not None:
            prefixes.update(member.prefix for member in plan.members)
    for prefix in sorted(prefixes):
        is_on_this_machine = MMapIndexedDataset.exists(prefix)  # False for those in a bucket
        if is_on_this_machine:
            # Opening both files compares their sizes. `validate` would also read all of the .idx.
            open_pair(Path(prefix), validate=False)


def _warn_of_unknown_tokenizer(config: NanosetConfig) -> None:
    """Warn if the trainer will not find the index files, as its tokenizer is not known.

    Some trainers look for index files by a hash over their settings, and the name of the tokenizer
    is one of these. Without it, the files get a name that the trainer does not look for.

    Args:
        config: The settings of the splits, as the trainer has them.
    """
    if config.rules.hashes_tokenizer and not config.tokenizer_identifiers:
        warn(f"warning: {UNNAMED.format(place='--trainer')}: add --trainer '{EXAMPLE}'")


def _shown_split(
    split: SplitName,
    plan: SplitPlan | None,
    config: NanosetConfig,
    limits: Mapping[str, float],
) -> ShownSplit:
    """Return how much a split reads of each dataset, as plain values for a table or for JSON.

    For example, for the split train of a blend of two datasets, `web` and `books`:

        members    the samples of `web`, and those of `books`
        corpora    their tokens, and how many times these are read

    A project would also have a name, and may describe its weights by a tree, the mixture. Here the
    user only gives the paths of datasets, so the name is "data", and there is no tree.

    Args:
        split: The split, such as "train".
        plan: How the samples of the split are drawn; None if it has no data.
        config: The settings of all splits.
        limits: Dataset → how many times it may be read, such as {"/data/web": 4.0}.
    """
    from nanoset_core.sampling.coverage import coverage

    members: list[dict[str, Any]] = []
    corpora: list[dict[str, Any]] = []
    if plan is not None:
        datasets = coverage(plan, config, limits)  # the samples of each dataset
        for dataset in datasets:
            name = Path(dataset.prefix).name  # "web" for the files /data/web.bin and .idx
            members.append({"corpus": name, **dataset.to_json()})
        sample_counts = [dataset.samples_given for dataset in datasets]
        corpora = _token_counts(plan, config, sample_counts)
    return ShownSplit(nanoset="data", split=split, members=members, corpora=corpora, mixture=[])


def _explain_short_split(config: NanosetConfig) -> None:
    """Print what the option `--split` means if it has fewer than three numbers.

    It has the shares of train, valid and test. The trainer also accepts fewer, and users may not
    expect what it makes of these:

        split '98,2' has fewer than three numbers, and means train 98.00%, valid 2.00%, test 0.00%

    Args:
        config: The settings of the splits.
    """
    if config.blend_per_split is not None:  # the option is not used
        return
    if len(split_numbers(config.split)) >= len(SPLITS):
        return
    shares = dict(zip(SPLITS, parse_split(config.split), strict=False))
    meaning = ", ".join(f"{split} {share:.2%}" for split, share in shares.items())
    echo(f"split {config.split!r} has fewer than three numbers, and means {meaning}", err=True)


def _epoch_limits(config: NanosetConfig, max_epochs: float | None) -> dict[str, float]:
    """Return how many times each dataset may be read in a training run, as --max-epochs says.

    For example, for 4.0: {"/data/web": 4.0, "/data/code": 4.0}.

    Args:
        config: Settings of the splits, which list the datasets.
        max_epochs: The limit, which is the same for all datasets; None for no limit.

    Returns:
        Dataset, named by the path of its files without their ending → limit; empty without a limit.
    """
    if max_epochs is None:
        return {}
    limits: dict[str, float] = {}
    for split in SPLITS:
        blend = config.blend(split)
        if blend is not None:
            prefixes, _ = blend
            limits.update(dict.fromkeys(prefixes, max_epochs))
    return limits


def _token_counts(
    plan: SplitPlan, config: NanosetConfig, sample_counts: Sequence[int]
) -> list[dict[str, Any]]:
    """Return how many tokens a split reads of each dataset, and how often, as values to print.

    For example, a dataset has 1,000 tokens, and the split takes 200 samples of 10 tokens:

        {"corpus": "web", "tokens_available": 1000, "tokens": 2000, "epochs": 2.0, …}

    A project counts this for each corpus (collection of documents), of which several datasets may
    have copies. Here only datasets are known, so each one counts as a corpus.

    Args:
        plan: How the samples of the split are drawn.
        config: The settings of all splits.
        sample_counts: How many samples the split takes of each dataset, in the order of the plan.
    """
    from nanoset_core.sampling.corpora import (
        MemberReads,
        corpus_coverage,
        separate_corpora,
        tokens_by_reads,
    )

    corpora = separate_corpora(plan)  # one for each dataset
    reads_by_path = MemberReads.by_prefix(plan, config, sample_counts)  # what training reads of it
    rows = corpus_coverage(corpora, reads_by_path, config)
    return with_reads(rows, tokens_by_reads(corpora, reads_by_path, config))


def _build(config: NanosetConfig, *, overwrite: bool) -> None:
    """Write the index files of all splits, and print which were written and which existed already.

    For example: "train: 1,000 samples, 3f0a… in /cache (already exists)". The hash is a part of
    the files' names, by which the trainer finds them.

    Args:
        config: The settings of the splits.
        overwrite: Whether to replace files that were made from other data or settings.
    """
    from nanoset_core.stages.mappings.standalone import write_index_files

    for files in write_index_files(config, overwrite=overwrite):
        place = f", {_NEXT_TO_DATASETS}" if files.folder is None else f" in {files.folder}"
        print_made(
            f"{files.split}: {files.samples:,} samples, {files.hash}{place}",
            is_new=files.made,
            err=True,
        )
