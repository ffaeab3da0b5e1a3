"""nanotron: the data and tokens sections of its YAML.

Source: nanotron 896473d `config/config.py` (NanosetDatasetsArgs, DataArgs).
"""

from __future__ import annotations

from typing import Any

from nanoset_core.handoff.request import Handoff

DATA = "data.yaml"


def nanotron_files(handoff: Handoff) -> tuple[dict[str, str], list[str]]:
    """(file name → text, what the user has to know)."""
    import yaml

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
    value = {"data": {"dataset": dataset, "seed": config.random_seed}, "tokens": tokens}
    notes = []
    if config.train_split_samples is not None:
        notes.append(
            f"The index files of train are for {config.train_split_samples:,} samples: train_steps * global batch size "
            "must be that. nanotron's cache names don't hold the number, so it would not notice another."
        )
    return {DATA: yaml.safe_dump(value, sort_keys=False)}, notes
