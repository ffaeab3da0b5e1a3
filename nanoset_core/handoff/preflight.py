#!/usr/bin/env python3
"""Say whether Megatron-LM will find its index files, before a job is queued.

Run it where the trainer runs, with the trainer's options (those of arguments.txt beside it are added):

    python preflight.py --tokenizer-type HuggingFaceTokenizer --tokenizer-model /models/llama

It needs the standard library and what the trainer has: its tokenizer is built by Megatron-LM itself. Exit codes: 0,
every index file will be found; 1, some will not, and the lines that nanoset.yaml needs are printed; 2, it cannot tell.
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

_KEYS = {"--seq-length": "sequence_length", "--seed": "seed", "--split": "split"}
"""Option that decides which index files are looked for → the key of nanoset.yaml that sets it."""
_PHASES = ("--train-samples", "--phase-transition-iterations")
_DATA = ("--data-path", "--train-data-path", "--valid-data-path", "--test-data-path")
_NAMED = ("--data-args-path", "--per-split-data-args-path")
_RUN = {
    "--train-iters": 0,
    "--train-samples": 0,
    "--global-batch-size": 0,
    "--eval-interval": 1000,
    "--eval-iters": 100,
}
"""Option → Megatron-LM's default; 0 where it has none."""
_TOKENIZER: dict[str, dict[str, Any]] = {
    "--tokenizer-type": {},
    "--tokenizer-model": {},
    "--tokenizer-metadata": {},
    "--vocab-file": {},
    "--merge-file": {},
    "--vocab-size": {"type": int},
    "--vocab-extra-ids": {"type": int, "default": 0},
    "--tokenizer-special-tokens": {"nargs": "+"},
    "--tiktoken-special-tokens": {"nargs": "+"},
    "--tiktoken-pattern": {},
    "--tiktoken-num-special-tokens": {"type": int, "default": 1000},
    "--tokenizer-sentencepiece-legacy": {"action": "store_true"},
    "--tokenizer-hf-use-fast": {"action": "store_true"},
    "--tokenizer-hf-include-special-tokens": {"action": "store_true"},
    "--tokenizer-hf-no-use-fast": {"action": "store_true"},
    "--tokenizer-hf-no-include-special-tokens": {"action": "store_true"},
    "--trust-remote-code": {"action": "store_true"},
    "--legacy-tokenizer": {"action": "store_true"},
    "--use-gigatoken": {"action": "store_true"},
    "--chat-template": {},
    "--null-tokenizer-eod-id": {"type": int},
    "--null-tokenizer-pad-id": {"type": int, "default": -1},
    "--tokenizer-prompt-format": {},
    "--sft-tokenizer-prompt-format": {},
    "--data-cache-path": {},
}
_BUILDERS = (
    "megatron.core.tokenizers.utils.build_tokenizer",
    "megatron.core.tokenizers.text.utils.build_tokenizer",
)
_UNUSED = {"rank": 0, "make_vocab_size_divisible_by": 128, "tensor_model_parallel_size": 1, "pad_vocab_size": False}


def main() -> int:
    """Compare the run's options with those that the index files were built for; return the exit code."""
    folder = os.path.dirname(os.path.abspath(__file__))
    try:
        with open(os.path.join(folder, "arguments.txt"), encoding="utf-8") as file:
            built = file.read().split()
        given = built + sys.argv[1:]
        lines, options = [*_different(built, given), *_samples(given)], _options(given)
        identifiers = _identifiers(options)
    except Exception as error:  # noqa: BLE001 — whatever keeps Megatron-LM from building its tokenizer here
        _say(f"It cannot tell: {str(error) or type(error).__name__}", "Give the trainer's options, in its environment.")
        return 2
    cache = options.data_cache_path
    files = [name for description, others in INDEXES.items() for name in (description, *others)]
    if lost := [name for name in files if not os.path.isfile(os.path.join(cache, name))]:
        _say(f"{len(lost)} of {len(files)} index files are not there, such as {os.path.join(cache, lost[0])}")
        _say("Run `nanoset build`, or set trainer_path in nanoset.yaml to where the trainer finds the output root.")
        return 1
    tokenizer = {"tokenizer": identifiers}
    missing = [name for name in INDEXES if not _is_found(cache, name, _described(given) | tokenizer)]
    if not all(_is_found(cache, name, tokenizer) for name in INDEXES):
        lines.append(_line("tokenizer_identifiers", identifiers, "trainer"))
    if missing or lines:
        _say(f"{len(missing) or 'Some'} of {len(INDEXES)} indexes will be built again.")
        _say("In nanoset.yaml:", "", "nanosets:", f"  {NANOSET}:", *(f"    {line}" for line in lines))
        return 1
    _say(f"All {len(INDEXES)} indexes will be found in {cache}.")
    return 0


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _parser() -> argparse.ArgumentParser:
    return argparse.ArgumentParser(allow_abbrev=False, add_help=False)


def _words(words: list[str], *flags: str) -> dict[str, str | None]:
    """Return option → its last value."""
    parser = _parser()
    for flag in flags:
        parser.add_argument(flag, dest=flag)
    return vars(parser.parse_known_args(words)[0])


def _different(built: list[str], given: list[str]) -> list[str]:
    """Return a line of nanoset.yaml for each option that asks for other index files.

    Raises:
        ValueError: the data are given otherwise than by arguments.txt, or --split is spelled otherwise.
    """
    flags = (*_KEYS, *_PHASES, *_NAMED)
    was, now = _words(built, *flags), _words(given, *flags)
    if other := [*(flag for flag in _NAMED if was[flag] != now[flag]), *(flag for flag in _DATA if flag in given)]:
        raise ValueError(f"arguments.txt names the data: leave {', '.join(other)} out")
    if " " in (now["--split"] or ""):
        raise ValueError("Megatron-LM hashes --split as it is spelled: leave its spaces out, as arguments.txt does")
    lines = [_line(key, _number(now[flag])) for flag, key in _KEYS.items() if was[flag] != now[flag]]
    changed = [flag for flag in _PHASES if was[flag] != now[flag]]
    return lines if SAMPLES else lines + [f"# {flag} {now[flag]}: change schedule, or phases" for flag in changed]


def _samples(given: list[str]) -> list[str]:
    """Return a line of nanoset.yaml if Megatron-LM will ask for other numbers of samples than there are.

    Source: core_v0.16.1 `megatron/training/training.py` (get_train_valid_test_num_samples).

    Raises:
        ValueError: an option is missing without which these cannot be told.
    """
    if not SAMPLES:
        return []
    run = [int(text or default) for text, default in zip(_words(given, *_RUN).values(), _RUN.values(), strict=True)]
    iterations, samples, batch, interval, steps = run
    if not (iterations or samples) or not batch:
        raise ValueError("the samples depend on --global-batch-size, and --train-iters or --train-samples")
    train = iterations * batch or samples
    iterations = train // batch
    asked = {"train": train, "valid": (iterations // interval + 1) * steps * batch, "test": steps * batch}
    if all(asked[split] in (0, count) for split, count in SAMPLES.items()):
        return []
    if train != iterations * batch:
        return [_line("samples", {split: asked[split] for split in SAMPLES}, "schedule")]
    names = ("iterations", "global_batch_size", "eval_interval", "eval_iters")
    return [_line("schedule", dict(zip(names, (iterations, batch, interval, steps), strict=True)), "samples")]


def _number(text: str | None) -> int | str | None:
    return int(text) if text is not None and text.isdecimal() else text


def _line(key: str, value: Any, other: str = "") -> str:
    return f"{key}: {json.dumps(value)}" + (f"   # in place of {other}, if that is there" if other else "")


def _options(given: list[str]) -> argparse.Namespace:
    """Return the tokenizer's options as every version of Megatron-LM names them."""
    parser = _parser()
    for flag, settings in _TOKENIZER.items():
        parser.add_argument(flag, **settings)
    parser.add_argument(
        "--no-tokenizer-sentencepiece-ignore-extra-whitespaces",
        "--disable-tokenizer-sentencepiece-ignore-extra-whitespaces",
        dest="tokenizer_sentencepiece_ignore_extra_whitespaces",
        action="store_false",
    )
    found = parser.parse_known_args(given)[0]
    found.tokenizer_special_tokens = found.tokenizer_special_tokens or found.tiktoken_special_tokens
    found.tiktoken_special_tokens = found.tokenizer_special_tokens
    found.special_tokens, found.metadata_path = found.tokenizer_special_tokens, found.tokenizer_metadata
    vars(found).update(_UNUSED, padded_vocab_size=found.vocab_size or 1)
    return found


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
    return importlib.import_module("megatron.training.tokenizer").build_tokenizer(options).unique_identifiers


def _described(given: list[str]) -> dict[str, Any]:
    """Return what the descriptions hold of the run's options."""
    now = _words(given, *_KEYS)
    return {
        "sequence_length": _number(now["--seq-length"]),
        "random_seed": _number(now["--seed"]),
        "split": now["--split"],
    }


def _is_found(cache: str, name: str, run: dict[str, Any]) -> bool:
    """Return whether the trainer's hash, with its own tokenizer and options, names the files that are there."""
    with open(os.path.join(cache, name), encoding="utf-8") as file:
        description = json.load(file)
    for one in description.get("datasets", (description,)):
        one.update((key, value) for key, value in run.items() if one.get(key) is not None)
    text = json.dumps(description, indent=4)
    return name.startswith(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest())


if __name__ == "__main__":
    sys.exit(main())
