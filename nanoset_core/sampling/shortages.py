"""Recognise splits that are too small for a trainer, and describe what they lack.

For example, valid has one sequence of 12 tokens, and a sample takes 17. Some trainers build such a
split as a dataset without samples, others never return or fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from pathlib import Path

from nanoset_core.errors import InputError
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.split_data import LengthReader, SplitData
from nanoset_core.sampling.splits import SplitName
from nanoset_core.wording import format_count


def cannot_be_built(config: NanosetConfig, split: SplitName, reader: LengthReader) -> bool:
    """Return whether a split is so small that the trainer would hang or fail.

    For example, 0.01 of a small dataset are for validation, and no document falls into it. Then
    Megatron-LM loops forever (`gpt_dataset.py`, `_get_num_epochs`).

    Args:
        config: What is trained, and with which trainer.
        split: The split: train, valid or test. If it has its own datasets, nothing is checked, and
            the result is False.
        reader: Reads the lengths of documents from the datasets' `.idx` files.

    Raises:
        MissingError, FormatError: An `.idx` file is missing or damaged.
    """
    data = SplitData(config, split, reader)
    blend = config.blend(split)
    if blend is None or not data.has_share:
        return False
    prefixes, weights = blend  # paths of the datasets, and their weights
    if not prefixes:
        return False
    token_counts = [data.part_of(prefix).tokens for prefix in prefixes]
    return _are_too_few_tokens(config, token_counts, has_weights=weights is not None)


def _are_too_few_tokens(
    config: NanosetConfig, token_counts: Sequence[int], *, has_weights: bool
) -> bool:
    """Return whether a trainer cannot read a split because its datasets have too few tokens.

    NeMo leaves out a split in which no dataset has a token, which is no error. Some trainers accept
    datasets without a sample, but no blend of nothing but such datasets.

    Args:
        config: What is trained, and with which trainer.
        token_counts: Tokens of each dataset of the split, at least one.
        has_weights: Whether the datasets have weights, by which they are blended.
    """
    trainer_skips_split = config.rules.empty_split == "skip" and not any(token_counts)
    if trainer_skips_split:
        return False
    least_tokens = _least_tokens(config, n_datasets=len(token_counts), has_weights=has_weights)
    if min(token_counts) < least_tokens:
        return True
    needs_any_sample = config.rules.zero_samples == "no blend" and has_weights
    return needs_any_sample and max(token_counts) < config.sample_tokens


def _least_tokens(config: NanosetConfig, *, n_datasets: int, has_weights: bool) -> int:
    """Return how many tokens a trainer needs of each dataset of a split (train, valid or test).

    If a dataset has fewer, the trainer hangs or fails. It depends on the trainer (`zero_samples`),
    and on whether samples are divided among datasets by weights:

        `zero_samples`    weights    result
        "never"           any        those of a sample: the trainer accepts no empty dataset
        others            no         those of a sample: it takes all samples of each dataset
        others            yes        1: it repeats a dataset until it has enough tokens; or 2, if
                                     it checks that there are so many (NeMo and nanotron)

    For a single dataset without weights, it is the last row, too.

    Args:
        config: What is trained, and with which trainer.
        n_datasets: Number of datasets of the split.
        has_weights: Whether they have weights.
    """
    zero_samples = config.rules.zero_samples
    takes_all_samples = n_datasets > 1 and not has_weights
    if zero_samples == "never" or takes_all_samples:
        return config.sample_tokens
    return max(1, config.rules.least_tokens)


def too_few_tokens(
    config: NanosetConfig,
    split: SplitName,
    reader: LengthReader,
    names: Sequence[str] | None = None,
) -> str:
    """Describe, for an error message, that a split has too few tokens for a training sample.

    For example: "tokens of train: web 12, books 3; a sample takes 17". If some of the datasets have
    enough, only the others are named: "tokens of valid: rare 0, and enough in 30 others; …".

    Args:
        config: What is trained: the datasets, and the length of a sample.
        split: The split: train, valid or test.
        reader: Reads the lengths of documents from the datasets' `.idx` files.
        names: Name of each dataset in the message; by default the names of their files.
    """
    data = SplitData(config, split, reader)
    if not names:
        names = [Path(prefix).name for prefix in data.prefixes]
    token_counts = [data.part_of(prefix).tokens for prefix in data.prefixes]
    are_too_small = _are_too_small(config, split, token_counts)
    sizes = [f"{name} {tokens:,}" for name, tokens in zip(names, token_counts, strict=True)]
    too_small = list(compress(sizes, are_too_small))

    found = f"tokens of {split}: {', '.join(too_small)}"
    n_others = len(token_counts) - len(too_small)
    if n_others > 0:
        found += f", and enough in {format_count(n_others, 'other')}"
    return f"{found}; a sample takes {config.sample_tokens:,}"


def _are_too_small(
    config: NanosetConfig, split: SplitName, token_counts: Sequence[int]
) -> Sequence[bool]:
    """Return which datasets are the reason why a trainer cannot build a split.

    Args:
        config: What is trained, and with which trainer.
        split: The split: train, valid or test.
        token_counts: How many tokens of each dataset belong to the split.

    Returns:
        True or False for each dataset. True for all if none of them alone is the reason.
    """
    blend = config.blend(split)
    has_weights = blend is not None and blend[1] is not None
    least_tokens = _least_tokens(config, n_datasets=len(token_counts), has_weights=has_weights)
    are_too_small = [tokens < least_tokens for tokens in token_counts]
    if not any(are_too_small):
        return [True] * len(token_counts)
    return are_too_small


def no_training_sample(config: NanosetConfig, found: str) -> InputError:
    """Return the error for a train split that has too few tokens for a single sample.

    Args:
        config: Configuration of the nanoset.
        found: How many tokens the split has, as `too_few_tokens` describes it.
    """
    return InputError(
        "train has no sample",
        found=found,
        expected=f"{config.sample_tokens:,} tokens or more",
        remedy="make samples shorter (sequence_length), add text, "
        "or give train a larger share in `split`",
    )
