"""Write the data section of NeMo's YAML.

Source: NeMo 8cfedd72 `examples/nlp/language_modeling/conf/megatron_gpt_config.yaml`.
"""

from __future__ import annotations

from typing import Any

from nanoset_core.sampling.splits import SPLITS, SplitName
from nanoset_core.stages.handoff.description import FilesAndNotes, Handoff
from nanoset_core.stages.handoff.yaml_file import yaml_file

_SPLIT_NAMES: dict[SplitName, str] = {"train": "train", "valid": "validation", "test": "test"}
"""Split → its name in NeMo."""
_PHASE_NOTE = (
    "Do not resume the checkpoint of the phase before with these settings: NeMo would skip as many "
    "samples of this phase as the run has read before. Load only the weights of the checkpoint, or "
    "use `continue_from` in nanoset.yaml instead of phases."
)
"""Note on a later phase of a run."""
_SAMPLE_RULES: dict[SplitName, str] = {
    "train": "max_steps * global_batch_size",
    "valid": "(max_steps // val_check_interval + 1) * limit_val_batches * global_batch_size",
    "test": "limit_test_batches * global_batch_size",
}
"""Split → formula of the number of samples that NeMo requests, with the keys of its YAML."""


def nemo_files(handoff: Handoff) -> FilesAndNotes:
    """Return what a user adds to NeMo's YAML file, so that it reads the data that was built.

        model:
          seed: 1234
          encoder_seq_length: 4096
          data: {data_prefix: [0.7, /data/web, 0.3, /data/code], …}

    Args:
        handoff: The built nanoset: a weighted blend of datasets with its index files. Its paths are
            those where the trainer runs.

    Returns:
        The file data.yaml with this section, and notes for the user.
    """
    model = {
        "seed": handoff.config.random_seed,
        "encoder_seq_length": handoff.config.sequence_length,
        "data": _data_section(handoff),
    }
    return FilesAndNotes(yaml_file({"model": model}), _notes(handoff))


def _data_section(handoff: Handoff) -> dict[str, Any]:
    """Return the section `model.data` of NeMo's YAML file, which names the datasets.

    Args:
        handoff: Describes the data that was built for the trainer: datasets, weights, index files.

    Returns:
        NeMo's keys with their values.
    """
    config = handoff.config
    data: dict[str, Any] = {
        "data_prefix": _data_prefix(handoff),  # [0.7, "/data/web", 0.3, "/data/code"]
        "index_mapping_dir": handoff.cache,  # the folder of the index files
        "data_impl": "mmap",
        "seq_length": config.sequence_length,
        "dataloader_type": "single",
        "shuffle_documents": config.shuffle_documents,
        "validation_drop_last": config.drop_last_partial_validation_sequence,
        "no_seqlen_plus_one_input_tokens": not config.add_extra_token,
    }
    for mask in handoff.spec.masks:  # such as "reset_position_ids"
        data[mask] = True
    if not handoff.is_per_split:  # train, valid and test share the data
        data["splits_string"] = config.split  # "98,1,1"
    return data


def _data_prefix(
    handoff: Handoff,
) -> list[str | float] | dict[str, list[str | float]]:
    """Return the datasets and their weights, in the form that NeMo's setting `data_prefix` has.

        all splits share their data      [0.7, "/data/web", 0.3, "/data/code"]
        each split has its own           {"train": [1.0, "/data/web"], "validation": […]}

    Args:
        handoff: Describes the data that was built: the weights and paths of the datasets of each
            split (train, valid and test).

    Returns:
        One list, or a list for each split that has data, by its name in NeMo.
    """
    if not handoff.is_per_split:
        return _data_words(handoff, "train")
    words_by_split: dict[str, list[str | float]] = {}
    for split in SPLITS:
        words = _data_words(handoff, split)
        if words:
            words_by_split[_SPLIT_NAMES[split]] = words
    return words_by_split


def _notes(handoff: Handoff) -> list[str]:
    """Return notes on the settings of NeMo that must agree with the data that was built.

    For example, "The index files of train are for 64,000 samples", together with a formula of
    NeMo's settings that must have this value.

    Args:
        handoff: Describes the data that was built, with the number of samples of each split.
    """
    notes: list[str] = []
    for split, formula in _SAMPLE_RULES.items():
        n_samples = handoff.config.samples(split)
        if n_samples is None:
            continue  # built for one epoch
        notes.append(
            f"The index files of {split} are for {n_samples:,} samples. "
            f"{formula} must have that value."
        )
    if handoff.spec.span is not None and handoff.spec.span[0] > 0:
        notes.append(_PHASE_NOTE)
    notes.append(
        "NeMo does not store blends: it computes them when it starts, with the same result."
    )
    return notes


def _data_words(handoff: Handoff, split: SplitName) -> list[str | float]:
    """Return the datasets of a split as NeMo's YAML file lists them.

    With weights, these are [0.7, "/data/web", 0.3, "/data/code"], and without ["/data/web"].

    Args:
        handoff: Describes the data that was built: the datasets of each split.
        split: The split: "train", "valid" or "test".
    """
    words: list[str | float] = []
    for weight, path in handoff.data(split):
        if weight is not None:
            words.append(weight)
        words.append(path)
    return words
