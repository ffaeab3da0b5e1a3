"""Write the sections of nanotron's YAML that name the data, for its releases and main branch.

The releases read the token files of this project directly, with their weights:
`data_path: {/data/web: 0.7, /data/code: 0.3}`. The main branch reads copies in another format
(.ds files), called exports. Notes tell the user which number of steps the index files fit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nanoset_core.stages.handoff.description import FilesAndNotes, Handoff
from nanoset_core.stages.handoff.yaml_file import yaml_file

_COMMIT = "2c895af7a95010a96fa53e2dc77cc0ce92799e3f"
"""Commit of datatrove's branch nouamane/avoid-s3, which nanotron's main branch needs."""
_AVOID_S3 = f"pip install git+https://github.com/huggingface/datatrove@{_COMMIT}"
_NANOSET_CLASS_NOTE = (
    "The samples have the order of nanotron's class Nanoset. run_train.py of commit 2411b022 uses "
    "TokenizedBytes instead, which has the order of the preset nanotron-main-bytes."
)
"""Note on the order of the preset nanotron-main."""
_TOKENIZED_BYTES_CLASS_NOTE = (
    "The samples have the order of TokenizedBytes, which run_train.py of commit 2411b022 uses. "
    "Keep the defaults of its dataset section."
)
"""Note on the order of the preset nanotron-main-bytes."""


def nanotron_files(handoff: Handoff) -> FilesAndNotes:
    """Return what a user adds to nanotron's YAML file, so that it reads the data that was built.

        data:
          dataset: {data_path: /data/web, split: "98,1,1", path_to_cache: /data/cache}
          seed: 42
        tokens: {sequence_length: 4096, …}

    Source: nanotron 896473d `config/config.py` (NanosetDatasetsArgs, DataArgs).

    Args:
        handoff: The built nanoset: a weighted blend of datasets with its index files. Its paths are
            those where the trainer runs.

    Returns:
        The file data.yaml with these sections, and notes for the user.
    """
    config = handoff.config
    dataset_section = {
        "data_path": _data_path(handoff),
        "split": config.split,
        "path_to_cache": handoff.cache,
    }
    sections = {
        "data": {"dataset": dataset_section, "seed": config.random_seed},
        "tokens": _tokens(handoff),
    }

    # The index files fit one length of the run only, which the user has to choose.
    notes = []
    if config.train_split_samples is not None:
        notes.append(
            f"The index files of train are for {config.train_split_samples:,} samples. train_steps "
            "* global batch size must have that value: nanotron would not notice another one, "
            "since the names of its index files do not contain it."
        )
    return FilesAndNotes(yaml_file(sections), notes)


def _data_path(handoff: Handoff) -> str | dict[str, float | None]:
    """Return the datasets of train as nanotron names them.

    A single dataset without a weight is named by its path. Several are a mapping from path to
    weight, such as {"/data/web": 0.7, "/data/code": 0.3}.

    Args:
        handoff: Describes the data that was built: the blend of train.
    """
    datasets = handoff.data("train")
    if len(datasets) == 1 and datasets[0].weight is None:
        return datasets[0].path
    return {dataset.path: dataset.weight for dataset in datasets}


def nanotron_main_files(handoff: Handoff) -> FilesAndNotes:
    """Write the part of nanotron's YAML file that names the training data, for its main branch.

    nanotron is a training framework. Its main branch reads .ds files, a format of the library
    datatrove. The user copies these sections to the file with which nanotron is started:

        data_stages:
          - name: smol
            start_training_step: 1
            data:
              dataset: …        the .ds files, and their weights
              seed: 1234
        tokens: …               lengths and numbers of samples

    A data stage is a part of a run with data of its own. nanotron accepts data only in stages, so
    the whole run is one stage.

    Source: nanotron 2411b022 `config/config.py` (Config, DatasetStageArgs, DataArgs,
    NanosetDatasetsArgs), `run_train.py`.

    Args:
        handoff: The built training data: a weighted blend of datasets with its index files. Its
            paths are those where the trainer runs.

    Returns:
        The file data.yaml with these sections, and notes for the user.
    """
    data_section = {
        "dataset": _exported_datasets(handoff),
        "seed": handoff.config.random_seed,
    }
    data_stage = {
        "name": handoff.name,
        "start_training_step": 1,  # nanotron counts steps from 1
        "data": data_section,
    }
    sections = {"data_stages": [data_stage], "tokens": _tokens(handoff)}
    notes = [
        f"nanotron needs datatrove's branch nouamane/avoid-s3: `{_AVOID_S3}`. Releases up to "
        "0.10.1 do not accept `folder_path`, `eos_token_id` and `matched_files`, so that nanotron "
        "fails with a TypeError.",
        f"train has {handoff.samples['train']:,} samples: train_steps * global batch size must "
        "have that value.",
        "The run must have only the data stage of data.yaml. With several stages, nanotron reads "
        "other samples.",
    ]

    # nanotron has two classes that read .ds files. `Nanoset` shuffles the samples of all datasets
    # together, and `TokenizedBytes` does not. The data was built for one of the two, as the user
    # has chosen. So add a note that this class has to be used.
    if handoff.config.rules.shuffles_blend:
        notes.append(_NANOSET_CLASS_NOTE)
    else:
        notes.append(_TOKENIZED_BYTES_CLASS_NOTE)
    return FilesAndNotes(yaml_file(sections), notes)


def _exported_datasets(handoff: Handoff) -> dict[str, Any]:
    """Return the section of nanotron's YAML file that names the datasets of train.

    nanotron's main branch reads copies of the datasets in its own format, .ds files. For example:

        dataset_folder: ["/data/exports/web/5e6f", "/data/exports/code/7a8b"]
        dataset_weights: [0.7, 0.3]
        token_size_in_bytes: 2
        …

    Args:
        handoff: Describes the data that was built: the datasets of train with their weights, and
            the folders of these copies.

    Returns:
        The keys of nanotron's NanosetDatasetsArgs with their values.
    """
    datasets = handoff.data("train")
    weights = [dataset.weight for dataset in datasets if dataset.weight is not None]
    token_dtype = next(iter(handoff.datasets.values())).dtype  # the same for all datasets
    return {
        "dataset_folder": [handoff.exports[dataset.path] for dataset in datasets],
        "dataset_weights": weights or None,
        "dataset_max_tokens": None,
        "tokenizer_name": handoff.tokenizer_name,
        "vocab_size": handoff.vocab_size,
        "token_size_in_bytes": np.dtype(token_dtype).itemsize,
    }


def _tokens(handoff: Handoff) -> dict[str, int]:
    """Return the section `tokens`: the length of a sample, and of the run if it is known."""
    tokens = {"sequence_length": handoff.config.sequence_length}
    if handoff.run is not None:
        tokens["train_steps"] = handoff.run.iterations
    return tokens
