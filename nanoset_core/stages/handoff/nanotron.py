"""The sections of nanotron's YAML that name the data: of its releases, and of its main branch."""

from __future__ import annotations

from typing import Any

import numpy as np

from nanoset_core.stages.handoff.description import FilesAndNotes, Handoff
from nanoset_core.stages.handoff.yaml_file import yaml_file

_COMMIT = "2c895af7a95010a96fa53e2dc77cc0ce92799e3f"
_AVOID_S3 = f"pip install git+https://github.com/huggingface/datatrove@{_COMMIT}"
_NANOSET_ORDER = (
    "The order is that of its class Nanoset. run_train.py of 2411b022 trains through TokenizedBytes, in another order: "
    "that of preset nanotron-main-bytes."
)
_BYTES_ORDER = (
    "The order is that of TokenizedBytes, through which run_train.py of 2411b022 trains, with the defaults of its "
    "dataset section and without data stages."
)


def nanotron_files(handoff: Handoff) -> FilesAndNotes:
    """Return the data and tokens sections of the YAML of nanotron's releases.

    Source: nanotron 896473d `config/config.py` (NanosetDatasetsArgs, DataArgs).
    """
    config = handoff.config
    datasets = handoff.data("train")
    data_path: object = {path: weight for weight, path in datasets}
    if len(datasets) == 1 and datasets[0].weight is None:
        data_path = datasets[0].path
    dataset = {
        "data_path": data_path,
        "split": config.split,
        "path_to_cache": handoff.cache,
    }
    sections = {
        "data": {"dataset": dataset, "seed": config.random_seed},
        "tokens": _tokens(handoff),
    }
    notes = []
    if config.train_split_samples is not None:
        notes.append(
            f"The index files of train are for {config.train_split_samples:,} samples: train_steps * global batch size "
            "must be that. nanotron's cache names don't hold the number, so it would not notice another."
        )
    return FilesAndNotes(yaml_file(sections), notes)


def nanotron_main_files(handoff: Handoff) -> FilesAndNotes:
    """Return the data and tokens sections of the YAML of nanotron's main branch, which reads
    exports.

    Source: nanotron 2411b022 `config/config.py` (NanosetDatasetsArgs, DataArgs), `run_train.py`.
    """
    config = handoff.config
    datasets = handoff.data("train")
    weights = [dataset.weight for dataset in datasets if dataset.weight is not None]
    dtypes = [counts.dtype for counts in handoff.datasets.values()]
    dataset = {
        "dataset_folder": [handoff.exports[dataset.path] for dataset in datasets],
        "dataset_weights": weights or None,
        "dataset_max_tokens": None,
        "tokenizer_name": handoff.tokenizer_name,
        "vocab_size": handoff.vocab_size,
        "token_size_in_bytes": np.dtype(dtypes[0]).itemsize,
    }
    sections = {
        "data": {"dataset": dataset, "seed": config.random_seed},
        "tokens": _tokens(handoff),
    }
    notes = [
        f"It needs datatrove's branch nouamane/avoid-s3: `{_AVOID_S3}`. No release up to 0.10.1 takes `folder_path`, "
        "`eos_token_id` and `matched_files`: nanotron would end in a TypeError.",
        f"{handoff.samples['train']:,} samples: train_steps * global batch size must be that.",
        _NANOSET_ORDER if config.rules.shuffles_blend else _BYTES_ORDER,
    ]
    return FilesAndNotes(yaml_file(sections), notes)


def _tokens(handoff: Handoff) -> dict[str, Any]:
    """Return the section `tokens`."""
    tokens = {"sequence_length": handoff.config.sequence_length}
    if handoff.run is not None:
        tokens["train_steps"] = handoff.run.iterations
    return tokens
