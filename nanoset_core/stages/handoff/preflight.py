#!/usr/bin/env python3
"""Say whether Megatron-LM will find its index files, before a job is queued.

Run it where the trainer runs, with the trainer's options (those of arguments.txt beside it are
added):

    python preflight.py --tokenizer-type HuggingFaceTokenizer --tokenizer-model /models/llama

It needs the standard library and what the trainer has: its tokenizer is built by Megatron-LM
itself. Exit codes: 0, every index file will be found; 1, some will not, and the lines that
nanoset.yaml needs are printed, or an option is given of which it does not know which index files it
asks for; 2, it cannot tell.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import sys
from typing import Any

NANOSET = ""
INDEXES: dict[str, list[str]] = {}
"""Description → the other files of each index; these three are filled in when this file is written."""
SAMPLES: dict[str, int | None] = {}
"""Split that has data → the samples it was built for; None for one epoch. Empty for a phase."""

_KEYS = {"seq_length": "sequence_length", "seed": "seed", "split": "split"}
"""Option that decides which index files are looked for → the key of nanoset.yaml that sets it."""
_SCHEDULE = ("iterations", "global_batch_size", "eval_interval", "eval_iters")
_NAMED = ("data_args_path", "per_split_data_args_path")
_DATA = ("data_path", "train_data_path", "valid_data_path", "test_data_path")
_TRANSITIONS = "phase_transition_iterations"
_RUN: dict[str, int | None] = {
    "train_iters": 0,
    "train_samples": 0,
    "global_batch_size": 0,
    "eval_interval": 1000,
    "eval_iters": 100,
    "start_eval_at_iter": 0,
    "eval_global_batch_size": 0,
}
"""Option of which the numbers of samples are made → Megatron-LM's default; 0 where it has none."""
_RUN_SWITCHES = ("skip_train", "full_validation")
_UNKNOWN = (
    *(
        "rampup_batch_size",
        "step_batch_size_schedule",
    ),  # samples of an iteration change during the run
    *(
        "mid_level_dataset_surplus",
        "multiple_validation_sets",
    ),  # other samples of a corpus in a blend
    *(
        "mock_data",
        "fim_data",
        "sft",
        "perform_rl_step",
    ),  # other datasets, with other indexes or none
    *("yaml_cfg", "use_checkpoint_args"),  # options from elsewhere
)
"""Options that change which indexes are asked for, in ways that are not computed here."""
_TEXTS = (
    *("split", _TRANSITIONS, "data_cache_path", *_NAMED),
    *(
        "tokenizer_type",
        "tokenizer_model",
        "tokenizer_metadata",
        "vocab_file",
        "merge_file",
        "tiktoken_pattern",
    ),
    *("chat_template", "tokenizer_prompt_format", "sft_tokenizer_prompt_format"),
)
_NUMBERS = _RUN | {
    "seq_length": None,
    "seed": None,
    "vocab_size": None,
    "vocab_extra_ids": 0,
    "tiktoken_num_special_tokens": 1000,
    "null_tokenizer_eod_id": None,
    "null_tokenizer_pad_id": -1,
}
_SWITCHES = (
    *(
        *_RUN_SWITCHES,
        "tokenizer_sentencepiece_legacy",
        "trust_remote_code",
        "legacy_tokenizer",
        "use_gigatoken",
    ),
    *("tokenizer_hf_use_fast", "tokenizer_hf_include_special_tokens"),
    *("tokenizer_hf_no_use_fast", "tokenizer_hf_no_include_special_tokens"),
)
_LISTS = ("tokenizer_special_tokens", "tiktoken_special_tokens", *_DATA, *_UNKNOWN)
_BUILDERS = (
    "megatron.core.tokenizers.utils.build_tokenizer",
    "megatron.core.tokenizers.text.utils.build_tokenizer",
)
_UNUSED = {
    "rank": 0,
    "make_vocab_size_divisible_by": 128,
    "tensor_model_parallel_size": 1,
    "pad_vocab_size": False,
}


def main() -> int:
    """Compare the run's options with those that the index files were built for; return the exit
    code.
    """
    folder = os.path.dirname(os.path.abspath(__file__))
    try:
        with open(os.path.join(folder, "arguments.txt"), encoding="utf-8") as file:
            built = file.read().split()
        was, now = _options(built), _options(built + sys.argv[1:])
        unknown = [
            name
            for name in (*_UNKNOWN, *([_TRANSITIONS] if SAMPLES else []))
            if getattr(now, name) is not None
        ]
        if unknown:
            flags = ", ".join(map(_flag, unknown))
            _say(
                f"It does not know which indexes Megatron-LM asks for with {flags}: leave that out here."
            )
            return 1
        return _found(now, [*_different(was, now), *_samples(now)], _identifiers(now))
    except Exception as error:  # noqa: BLE001 — whatever keeps Megatron-LM from building its tokenizer here
        _say(
            f"It cannot tell: {str(error) or type(error).__name__}",
            "Give the trainer's options, in its environment.",
        )
        return 2


def _found(now: argparse.Namespace, lines: list[str], identifiers: Any) -> int:
    """Say which indexes will be found, and what nanoset.yaml needs for the others; return the exit
    code.
    """
    cache = now.data_cache_path
    files = [name for description, others in INDEXES.items() for name in (description, *others)]
    if lost := [name for name in files if not os.path.isfile(os.path.join(cache, name))]:
        _say(
            f"{len(lost)} of {len(files)} index files are not there, such as {os.path.join(cache, lost[0])}"
        )
        _say(
            "Run `nanoset build`, or set trainer_path in nanoset.yaml to where the trainer finds the output root."
        )
        return 1
    tokenizer = {"tokenizer": identifiers}
    run = {"sequence_length": now.seq_length, "random_seed": now.seed, "split": now.split}
    missing = [name for name in INDEXES if not _is_found(cache, name, run | tokenizer)]
    if not all(_is_found(cache, name, tokenizer) for name in INDEXES):
        lines.append(_line("tokenizer_identifiers", identifiers, "trainer"))
    if missing or lines:
        _say(f"{len(missing) or 'Some'} of {len(INDEXES)} indexes will be built again.")
        _say(
            "In nanoset.yaml:", "", "nanosets:", f"  {NANOSET}:", *(f"    {line}" for line in lines)
        )
        return 1
    _say(f"All {len(INDEXES)} indexes will be found in {cache}.")
    return 0


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _options(words: list[str]) -> argparse.Namespace:
    """Return the options that are known here, those of the tokenizer as every version of
    Megatron-LM names them.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False, exit_on_error=False)
    for name in _TEXTS:
        parser.add_argument(_flag(name))
    for name, default in _NUMBERS.items():
        parser.add_argument(_flag(name), type=int, default=default)
    for name in _SWITCHES:
        parser.add_argument(_flag(name), action="store_true")
    for name in _LISTS:
        parser.add_argument(_flag(name), nargs="*")
    parser.add_argument(
        "--no-tokenizer-sentencepiece-ignore-extra-whitespaces",
        "--disable-tokenizer-sentencepiece-ignore-extra-whitespaces",
        dest="tokenizer_sentencepiece_ignore_extra_whitespaces",
        action="store_false",
    )
    found = parser.parse_known_args(words)[0]
    found.tokenizer_special_tokens = found.tokenizer_special_tokens or found.tiktoken_special_tokens
    found.tiktoken_special_tokens = found.tokenizer_special_tokens
    found.special_tokens, found.metadata_path = (
        found.tokenizer_special_tokens,
        found.tokenizer_metadata,
    )
    vars(found).update(_UNUSED, padded_vocab_size=found.vocab_size or 1)
    return found


def _different(was: argparse.Namespace, now: argparse.Namespace) -> list[str]:
    """Return a line of nanoset.yaml for each option that asks for other index files.

    Raises:
        ValueError: the data are given otherwise than by arguments.txt, or --split is spelled
            otherwise.
    """
    changed = [name for name, value in vars(now).items() if getattr(was, name) != value]
    if other := [_flag(name) for name in (*_NAMED, *_DATA) if name in changed]:
        raise ValueError(f"arguments.txt names the data: leave {', '.join(other)} out")
    if " " in (now.split or ""):
        raise ValueError(
            "Megatron-LM hashes --split as it is spelled: leave its spaces out, as arguments.txt does"
        )
    lines = [_line(key, getattr(now, name)) for name, key in _KEYS.items() if name in changed]
    if SAMPLES:
        return lines
    run = [name for name in (*_RUN, *_RUN_SWITCHES, _TRANSITIONS) if name in changed]
    return lines + [f"# {_flag(name)}: change schedule, or phases" for name in run]


def _samples(now: argparse.Namespace) -> list[str]:
    """Return a line of nanoset.yaml if Megatron-LM will ask for other numbers of samples than there
    are.

    Source: main (d98e8a64) `megatron/training/training.py` (get_train_valid_test_num_samples,
        update_train_iters).

    Raises:
        ValueError: an option is missing without which these cannot be told, or is no such number.
    """
    if not SAMPLES:
        return []
    batch, interval, steps = now.global_batch_size, now.eval_interval, now.eval_iters
    if not (now.train_iters or now.train_samples) or not batch:
        raise ValueError(
            "the samples depend on --global-batch-size, and --train-iters or --train-samples"
        )
    if interval < 1:
        raise ValueError(
            f"--eval-interval has to be 1 or more, since Megatron-LM divides by it, and is {interval}"
        )
    train, test = (
        now.train_iters * batch or now.train_samples,
        steps * (now.eval_global_batch_size or batch),
    )
    iterations = train // batch
    points = (
        1
        if now.skip_train
        else max(iterations // interval + 1 - now.start_eval_at_iter // interval, 0)
    )
    asked = {"train": train, "valid": None if now.full_validation else points * test, "test": test}
    if all(asked[split] in (0, count) for split, count in SAMPLES.items()):
        return []
    schedule = dict(zip(_SCHEDULE, (iterations, batch, interval, steps), strict=True))
    test = steps * batch
    if asked == {
        "train": iterations * batch,
        "valid": (iterations // interval + 1) * test,
        "test": test,
    }:
        return [_line("schedule", schedule, "samples")]
    return [
        _line("samples", {split: asked[split] for split in SAMPLES if asked[split]}, "schedule")
    ]


def _line(key: str, value: Any, other: str = "") -> str:
    return f"{key}: {json.dumps(value)}" + (
        f"   # in place of {other}, if that is there" if other else ""
    )


def _identifiers(options: argparse.Namespace) -> Any:
    if not options.legacy_tokenizer:
        for name in _BUILDERS:
            try:
                module = importlib.import_module(name)
            except ModuleNotFoundError as error:
                if not name.startswith(error.name or " "):
                    raise
                continue
            return module.build_tokenizer(options).unique_identifiers
    return (
        importlib.import_module("megatron.training.tokenizer")
        .build_tokenizer(options)
        .unique_identifiers
    )


def _is_found(cache: str, name: str, run: dict[str, Any]) -> bool:
    """Return whether the trainer's hash, with its own tokenizer and options, names the files that
    are there.
    """
    with open(os.path.join(cache, name), encoding="utf-8") as file:
        description = json.load(file)
    for one in description.get("datasets", (description,)):
        one.update((key, value) for key, value in run.items() if one.get(key) is not None)
    text = json.dumps(description, indent=4)
    return name.startswith(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest())


if __name__ == "__main__":
    sys.exit(main())
