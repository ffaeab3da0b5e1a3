"""NeMo's Megatron collection: the data section of its YAML.

Source: NeMo 8cfedd72 `examples/nlp/language_modeling/conf/megatron_gpt_config.yaml`.
"""

from __future__ import annotations

from typing import Any

from nanoset_core.handoff.request import Handoff
from nanoset_core.mapping.splits import SPLITS, SplitName

DATA = "data.yaml"
_NAMES: dict[SplitName, str] = {"train": "train", "valid": "validation", "test": "test"}


def nemo_files(handoff: Handoff) -> tuple[dict[str, str], list[str]]:
    """(file name → text, what the user has to know)."""
    import yaml

    config = handoff.config
    data: dict[str, Any] = {
        "data_prefix": _prefix(handoff),
        "index_mapping_dir": handoff.cache,
        "data_impl": "mmap",
        "seq_length": config.sequence_length,
        "dataloader_type": "single",
        "shuffle_documents": config.shuffle_documents,
        "validation_drop_last": config.drop_last_partial_validation_sequence,
        "no_seqlen_plus_one_input_tokens": not config.add_extra_token,
    }
    data |= dict.fromkeys(handoff.masks, True)
    if not handoff.is_per_split:
        data["splits_string"] = config.split
    value = {"model": {"seed": config.random_seed, "encoder_seq_length": config.sequence_length, "data": data}}
    return {DATA: yaml.safe_dump(value, sort_keys=False)}, _notes(handoff)


def _prefix(handoff: Handoff) -> Any:
    if not handoff.is_per_split:
        return _pairs(handoff, "train")
    return {_NAMES[split]: _pairs(handoff, split) for split in SPLITS if handoff.data(split)}


def _pairs(handoff: Handoff, split: SplitName) -> list[float | str]:
    words = [(path,) if weight is None else (weight, path) for weight, path in handoff.data(split)]
    return [word for pair in words for word in pair]


def _notes(handoff: Handoff) -> list[str]:
    rules = {
        "train": "max_steps * global_batch_size",
        "valid": "(max_steps // val_check_interval + 1) * limit_val_batches * global_batch_size",
        "test": "limit_test_batches * global_batch_size",
    }
    return [
        f"The index files of {split} are for {asked:,} samples: {rules[split]} must be that."
        for split in SPLITS
        if (asked := handoff.config.samples(split)) is not None
    ] + ["NeMo keeps no blends: it computes them at its start, as ours are."]
