"""Write the files that a trainer is started with, by preset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nanoset_core.handoff.megatron import ARGUMENTS, megatron_files
from nanoset_core.handoff.request import Handoff
from nanoset_core.mapping.splits import SPLITS, SplitName

START = "START.md"
DATA = "data.yaml"
_NEMO_NAMES: dict[SplitName, str] = {"train": "train", "valid": "validation", "test": "test"}
_NEMO_SAMPLES: dict[SplitName, str] = {
    "train": "max_steps * global_batch_size",
    "valid": "(max_steps // val_check_interval + 1) * limit_val_batches * global_batch_size",
    "test": "limit_test_batches * global_batch_size",
}


def handoff_files(handoff: Handoff) -> tuple[dict[str, bytes], list[str]]:
    """Return the files that start the preset's trainer, START.md among them.

    Returns:
        (file name → content, notes for the user).

    Raises:
        ConfigError: there is a space in a path.
    """
    handoff.check_paths()
    writer, command = _WRITERS[handoff.config.preset]
    texts, notes = writer(handoff)
    texts[START] = _start(handoff, command.format(folder=handoff.folder), sorted(texts), notes)
    return {name: text.encode() for name, text in texts.items()}, notes


def _start(handoff: Handoff, command: str, names: list[str], notes: list[str]) -> str:
    built = ", ".join(f"{split} {handoff.samples[split]:,}" for split in SPLITS)
    lines = [f"# {handoff.name}", "", f"Samples built: {built} of {handoff.config.sequence_length:,} tokens."]
    if handoff.span is not None:
        lines.append(f"It is the phase of iterations {handoff.span[0]:,} to {handoff.span[1]:,}.")
    lines += ["", "Start:", "", f"    {command}", "", f"Files here: {', '.join(names)}; index files: {handoff.cache}"]
    lines += ["", "To know:", "", *(f"- {note}" for note in notes)] if notes else []
    return "\n".join(lines) + "\n"


def _nanotron_files(handoff: Handoff) -> tuple[dict[str, str], list[str]]:
    """Return the data and tokens sections of nanotron's YAML, and notes.

    Source: nanotron 896473d `config/config.py` (NanosetDatasetsArgs, DataArgs).
    """
    config = handoff.config
    parts = handoff.data("train")
    alone = len(parts) == 1 and parts[0][0] is None
    dataset = {
        "data_path": parts[0][1] if alone else {path: weight for weight, path in parts},
        "split": config.split,
        "path_to_cache": handoff.cache,
    }
    tokens: dict[str, Any] = {"sequence_length": config.sequence_length}
    if handoff.run is not None:
        tokens["train_steps"] = handoff.run.iterations
    notes = []
    if config.train_split_samples is not None:
        notes.append(
            f"The index files of train are for {config.train_split_samples:,} samples: train_steps * global batch size "
            "must be that. nanotron's cache names don't hold the number, so it would not notice another."
        )
    return _yaml({"data": {"dataset": dataset, "seed": config.random_seed}, "tokens": tokens}), notes


def _nemo_files(handoff: Handoff) -> tuple[dict[str, str], list[str]]:
    """Return the data section of NeMo's YAML, and notes.

    Source: NeMo 8cfedd72 `examples/nlp/language_modeling/conf/megatron_gpt_config.yaml`.
    """
    config = handoff.config
    pairs = {split: handoff.data(split) for split in SPLITS if handoff.data(split)}
    words = {
        _NEMO_NAMES[split]: [word for weight, path in found for word in ((path,) if weight is None else (weight, path))]
        for split, found in pairs.items()
    }
    data: dict[str, Any] = {
        "data_prefix": words if handoff.is_per_split else words["train"],
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
    notes = [
        f"The index files of {split} are for {asked:,} samples: {_NEMO_SAMPLES[split]} must be that."
        for split in SPLITS
        if (asked := config.samples(split)) is not None
    ]
    return _yaml(value), [*notes, "NeMo keeps no blends: it computes them at its start, as ours are."]


def _yaml(value: dict[str, Any]) -> dict[str, str]:
    import yaml

    return {DATA: yaml.safe_dump(value, sort_keys=False)}


_Writer = Callable[[Handoff], tuple[dict[str, str], list[str]]]
_MEGATRON = f"torchrun … pretrain_gpt.py $(cat {{folder}}/{ARGUMENTS}) …"
_NANOTRON = "merge data.yaml into nanotron's YAML, then run_train.py --config-file …"
_WRITERS: dict[str, tuple[_Writer, str]] = {
    "megatron": (megatron_files, _MEGATRON),
    "megatron-0.10": (megatron_files, _MEGATRON),
    "nemo": (_nemo_files, "merge data.yaml into the model's YAML"),
    "nanotron": (_nanotron_files, _NANOTRON),
    "nanotron-000": (_nanotron_files, _NANOTRON),
}
"""Preset → what makes its files, and the command that START.md shows."""
