"""Recognise splits that are too small for a trainer, and describe what they lack."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from nanoset_core.errors import InputError
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.split_data import LengthReader, SplitData
from nanoset_core.sampling.splits import SplitName

MIN_NANOTRON_TOKENS = 2
"""Tokens from which on nanotron builds index files of a dataset, even if they are too few for a
sample.
"""


def cannot_be_built(config: NanosetConfig, split: SplitName, reader: LengthReader) -> bool:
    """Return whether a split is so small that the trainer hangs or fails while it is built.

    For example, Megatron-LM never returns from a dataset without tokens (`gpt_dataset.py`,
    `_get_num_epochs`), even if no sample is requested.

    Args:
        config: Configuration of the nanoset.
        split: The split. Only splits that are shares of common datasets are checked; False is
            returned for others.
        reader: Reads the datasets' `.idx` files.
    """
    data = SplitData(config, split, reader)
    blend = config.blend(split)
    if blend is None or not data.has_share:
        return False
    prefixes, weights = blend
    if not prefixes:
        return False
    token_counts = [data.part_of(prefix).tokens for prefix in prefixes]
    is_blend = weights is not None or len(prefixes) > 1

    # Megatron-LM requires a sample of each dataset of a blend without weights.
    if is_blend and weights is None:
        return _lacks_a_sample(token_counts, config)

    # The rule `zero_samples` says where the trainer accepts 0 samples: nowhere ("never"), not in
    # blends ("no blend", as nanotron), or everywhere if there is a token ("any").
    zero_samples = config.rules.zero_samples
    if zero_samples == "never":
        return _lacks_a_sample(token_counts, config)
    if zero_samples == "no blend" and is_blend:
        return _is_too_small_for_nanotron(token_counts, config)
    return _lacks_a_token(token_counts, config)


def _lacks_a_sample(token_counts: Sequence[int], config: NanosetConfig) -> bool:
    """Return whether a dataset has too few tokens for a sample, for trainers that need one of each.

    Args:
        token_counts: Tokens of each dataset of the split.
        config: Configuration of the nanoset.
    """
    return any(config.samples_in(tokens) == 0 for tokens in token_counts)


def _is_too_small_for_nanotron(token_counts: Sequence[int], config: NanosetConfig) -> bool:
    """Return whether nanotron refuses a blend: a dataset is too small, or none has a sample.

    Args:
        token_counts: Tokens of each dataset of the blend.
        config: Configuration of the nanoset.
    """
    # A smaller dataset gets no index files.
    has_index_files = min(token_counts) >= MIN_NANOTRON_TOKENS
    has_sample = any(config.samples_in(tokens) for tokens in token_counts)
    return not (has_index_files and has_sample)


def _lacks_a_token(token_counts: Sequence[int], config: NanosetConfig) -> bool:
    """Return whether a dataset has no tokens, in a split that the trainer builds.

    Args:
        token_counts: Tokens of each dataset of the split.
        config: Configuration of the nanoset. NeMo skips a split that has no token at all.
    """
    is_skipped = config.rules.empty_split == "skip" and not any(token_counts)
    return 0 in token_counts and not is_skipped


def too_few_tokens(
    config: NanosetConfig,
    split: SplitName,
    reader: LengthReader,
    names: Sequence[str] | None = None,
) -> str:
    """Describe, for an error message, how many tokens a split has and how many a sample needs.

    For example: "tokens of train: web 12, books 3; a sample takes 17".

    Args:
        config: Configuration of the nanoset.
        split: The split.
        reader: Reads the datasets' `.idx` files.
        names: Name of each dataset in the message; by default the names of their files.
    """
    data = SplitData(config, split, reader)
    if not names:
        names = [Path(prefix).name for prefix in data.prefixes]
    texts = []
    for name, prefix in zip(names, data.prefixes, strict=True):
        tokens = data.part_of(prefix).tokens
        texts.append(f"{name} {tokens:,}")
    return f"tokens of {split}: {', '.join(texts)}; a sample takes {config.sample_tokens:,}"


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
