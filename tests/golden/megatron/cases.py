"""The golden cases, and how to ask for each of them through NanosetConfig."""

import json
from pathlib import Path

import numpy as np

from nanoset_core.sampling.config import NanosetConfig

FOLDER = Path(__file__).parent
CASES = json.loads((FOLDER / "manifest.json").read_bytes())["cases"]
TOKENIZER = {"class": "StubTokenizer", "tokenizer_path": ["stub"], "vocab_size": "50000"}
SPLITS = ("train", "valid", "test")


def cases(*kinds):
    """Cases of these kinds."""
    return [case for case in CASES if case["kind"] in kinds]


def name_of(case):
    return case["name"]


def rows(kind):
    """The rows of the one case that is a table."""
    (case,) = cases(kind)
    return case["meta"]["rows"]


def arrays(case):
    return np.load(FOLDER / case["file"])


def blend_of(prefixes, weights):
    if weights is not None:
        return dict(zip(prefixes, weights, strict=True))
    return prefixes[0] if len(prefixes) == 1 else prefixes


def config_of(case, cache_dir):
    """The configuration of a gpt, blend or nanotron case; run it with FOLDER as the working folder."""
    params = case["params"]
    options = {
        "sequence_length": params["seq_len"],
        "random_seed": params["seed"],
        "path_to_cache": str(cache_dir),
    }
    if case["kind"] == "nanotron":
        sizes = params.get("split_num_samples") or [params["train_samples"], None, None]
        preset = "nanotron" if "split_num_samples" not in params else "nanotron-000"
        options |= {"preset": preset, "data_path": params["data_path"], "split": params["split"]}
    else:
        sizes = params["sizes"]
        options |= {
            "tokenizer_identifiers": TOKENIZER,
            "add_extra_token": params.get("add_extra", True),
            "drop_last_partial_validation_sequence": params.get("drop_last_valid", True),
        }
        if "blend_per_split" in params:
            options["blend_per_split"] = [
                blend and blend_of(*blend) for blend in params["blend_per_split"]
            ]
        else:
            prefixes = params.get("prefixes") or [params["prefix"]]
            options |= {
                "data_path": blend_of(prefixes, params.get("weights")),
                "split": params["split"],
            }
    sizes = {f"{split}_split_samples": size for split, size in zip(SPLITS, sizes, strict=True)}
    return NanosetConfig(**options, **sizes)
