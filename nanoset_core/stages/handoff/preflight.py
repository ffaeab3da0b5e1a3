#!/usr/bin/env python3
"""Check that Megatron-LM will find its index files, before a job waits in the queue for a cluster.

Megatron-LM names each index file after a hash of a JSON description: the dataset, the split, the
sequence length, the seed and the identifiers of the tokenizer. If one option of the run differs,
the trainer looks for other files and spends the first hour of the job on building them.

Run this script in the trainer's environment, with the trainer's options:

    python preflight.py --tokenizer-type HuggingFaceTokenizer --tokenizer-model /models/llama

It adds the options of arguments.txt, which is in the same folder, and compares what they ask for
with the files. It needs nothing but the standard library and Megatron-LM, which builds the
tokenizer, since only Megatron-LM knows its tokenizer's identifiers. By this tokenizer, Megatron-LM
also recognizes padding and ends of documents. So the script compares their tokens with the data.

Exit codes:
    0: Megatron-LM will find every index file, and recognize padding and ends of documents.
    1: It will not. The script prints the lines of nanoset.yaml that have to change, or the tokens
       that differ. Or an option was given whose index files the script cannot predict.
    2: The check failed, for example because Megatron-LM could not build the tokenizer.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import sys
from typing import Any

# The next four constants are filled in when this script is written next to arguments.txt.
NANOSET = ""
INDEXES: dict[str, list[str]] = {}
"""File with the description of each index → the other files of that index."""
SAMPLES: dict[str, int | None] = {}
"""Split that has data → number of samples its index was built for, or None for one epoch.

Empty for a phase of a longer run, whose samples do not follow from the options of one job.
"""

TOKEN_IDS: dict[str, int] = {}
"""Attribute of Megatron-LM's tokenizer, "eod" or "pad" → the id of this token in the data.

Without "pad" if the samples are not filled up, and without "eod" if documents end with no token.
"""

KEY_BY_OPTION = {"seq_length": "sequence_length", "seed": "seed", "split": "split"}
"""Option that is part of the description of an index → its key in nanoset.yaml."""

MEANING_BY_TOKEN = {
    "eod": "In the data, documents end with token {token_id}.",
    "pad": "In the data, samples are filled up with the padding token {token_id}.",
}
"""Attribute of Megatron-LM's tokenizer → what its token is for, in a sentence."""
REMEDY_BY_TOKEN = {
    "eod": "Correct the trainer's tokenizer, such as eos_token in tokenizer_config.json.",
    "pad": "Correct the trainer's tokenizer, such as pad_token in tokenizer_config.json. If it "
    "cannot name one, as in older versions of Megatron-LM, use packs with `tail: carry`.",
}
"""The same attribute → what the user can do."""
REMEDY_FOR_AMBIGUOUS_PADDING = (
    "Correct the trainer's tokenizer, such as eos_token in tokenizer_config.json, so that it uses "
    "this token only for padding. Or start the run with --allow-ambiguous-pad-tokens."
)
"""What the user can do if the tokenizer also uses its padding token as another special token."""
REMEDY_FOR_MASKED_ENDS = (
    "Correct the trainer's tokenizer, such as pad_token in tokenizer_config.json, so that it names "
    "another padding token, or none."
)
"""What the user can do if the tokenizer takes the ends of documents for padding."""

END_OPTIONS = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")
"""Options with which Megatron-LM looks for the token at the end of documents."""

DATA_OPTIONS = ("data_path", "train_data_path", "valid_data_path", "test_data_path")
DATA_FILE_OPTIONS = ("data_args_path", "per_split_data_args_path")
PHASE_OPTION = "phase_transition_iterations"

DEFAULT_BY_RUN_OPTION = {
    "train_iters": 0,
    "train_samples": 0,
    "global_batch_size": 0,
    "eval_interval": 1000,
    "eval_iters": 100,
    "start_eval_at_iter": 0,
    "eval_global_batch_size": 0,
}
"""Option from which Megatron-LM computes numbers of samples → its default, or 0 without one."""
RUN_SWITCHES = ("skip_train", "full_validation")

UNPREDICTABLE_OPTIONS = (
    # The number of samples of an iteration changes during the run.
    "rampup_batch_size",
    "step_batch_size_schedule",
    # A blend takes another number of samples of each corpus.
    "mid_level_dataset_surplus",
    "multiple_validation_sets",
    # Other dataset classes, with other indexes or none.
    "mock_data",
    "fim_data",
    "sft",
    "perform_rl_step",
    # Options are read from elsewhere.
    "yaml_cfg",
    "use_checkpoint_args",
)
"""Options that change which indexes Megatron-LM asks for, in ways that are not computed here."""

TEXT_OPTIONS = (
    "split",
    PHASE_OPTION,
    "data_cache_path",
    *DATA_FILE_OPTIONS,
    "tokenizer_type",
    "tokenizer_model",
    "tokenizer_metadata",
    "vocab_file",
    "merge_file",
    "tiktoken_pattern",
    "chat_template",
    "tokenizer_prompt_format",
    "sft_tokenizer_prompt_format",
)
DEFAULT_BY_NUMBER_OPTION = DEFAULT_BY_RUN_OPTION | {
    "seq_length": None,
    "seed": None,
    "vocab_size": None,
    "vocab_extra_ids": 0,
    "tiktoken_num_special_tokens": 1000,
    "null_tokenizer_eod_id": None,
    "null_tokenizer_pad_id": -1,
}
SWITCHES = (
    *RUN_SWITCHES,
    *END_OPTIONS,
    "allow_ambiguous_pad_tokens",
    "tokenizer_sentencepiece_legacy",
    "trust_remote_code",
    "legacy_tokenizer",
    "use_gigatoken",
    "tokenizer_hf_use_fast",
    "tokenizer_hf_include_special_tokens",
    "tokenizer_hf_no_use_fast",
    "tokenizer_hf_no_include_special_tokens",
)
LIST_OPTIONS = (
    "tokenizer_special_tokens",
    "tiktoken_special_tokens",
    *DATA_OPTIONS,
    *UNPREDICTABLE_OPTIONS,
)

TRAINER_KEYS = (
    "tokenizer_type",
    "tokenizer_model",
    "vocab_file",
    "merge_file",
    "vocab_size",
    "vocab_extra_ids",
    "special_tokens",
    "tiktoken_pattern",
    "tiktoken_num_special_tokens",
    "tokenizer_sentencepiece_legacy",
    "tokenizer_sentencepiece_ignore_extra_whitespaces",
    "tokenizer_hf_use_fast",
    "tokenizer_hf_include_special_tokens",
    "tokenizer_hf_no_use_fast",
    "tokenizer_hf_no_include_special_tokens",
    "trust_remote_code",
    "chat_template",
    "use_gigatoken",
    "null_tokenizer_eod_id",
    "legacy_tokenizer",
)
"""Options of the tokenizer that nanoset.yaml may have as keys under `trainer`."""

REMEDY_FOR_SLOW_CLASS = (
    "The folder of the tokenizer lacks files: by default, Megatron-LM core 0.15 and 0.16 load the",
    "slow class of a tokenizer, which may not read tokenizer.json. Choose one of these remedies:",
    "- Copy all files of the tokenizer into the folder, such as vocab.json and merges.txt, or",
    "  tokenizer.model.",
    '- Write "tokenizer_class": "PreTrainedTokenizerFast" into its tokenizer_config.json.',
    "- With core 0.16, set `tokenizer_hf_use_fast: true` under `trainer` in nanoset.yaml, and run",
    "  `nanoset build`. The index files get other names by this.",
)
"""What the user can do if a tokenizer has no files for the class that Megatron-LM loads."""

TOKENIZER_MODULES = (
    "megatron.core.tokenizers.utils.build_tokenizer",
    "megatron.core.tokenizers.text.utils.build_tokenizer",
)
"""Modules with `build_tokenizer`, in newer and in older versions of megatron-core."""
CONFIG_MODULE = "megatron.core.datasets.blended_megatron_dataset_config"
"""Module with `BlendedMegatronDatasetConfig`, the settings of Megatron-LM's datasets."""
BUILD_ARGUMENTS = {
    "rank": 0,
    "make_vocab_size_divisible_by": 128,
    "tensor_model_parallel_size": 1,
    "pad_vocab_size": False,
}
"""Arguments that `build_tokenizer` reads although they do not change the identifiers."""


def main() -> int:
    """Check whether a run will find the index files, and return the exit code of this script.

    arguments.txt has the options for which the index files were built, such as --seed 7. The user
    adds the other options of the run. Some of them may replace those of arguments.txt:

        python preflight.py --tokenizer-model /models/llama --seed 8

    This prints "seed: 8": the line of nanoset.yaml that has to change, so that nanoset builds index
    files for this run.
    """
    folder = os.path.dirname(os.path.abspath(__file__))
    try:
        with open(os.path.join(folder, "arguments.txt"), encoding="utf-8") as file:
            built_arguments = file.read().split()
        # If an option comes twice, the second value counts: that of the command line.
        run_arguments = [*built_arguments, *sys.argv[1:]]
        built = parse_options(built_arguments)
        run = parse_options(run_arguments)

        unpredictable = unpredictable_options(run)
        if unpredictable:
            flags = ", ".join(flag_of(name) for name in unpredictable)
            say(
                f"This script cannot predict the indexes that Megatron-LM uses with {flags}.",
                "Run it without, to check everything else.",
            )
            return 1

        changes = required_changes(built, run)  # such as ["seed: 8"]
        try:
            tokenizer = build_tokenizer(run)
        except ImportError:
            raise  # Megatron-LM itself, or a package that it needs, is missing
        except Exception as error:
            if not lacks_slow_files(run):
                raise
            say(f"The check failed: {error}", *REMEDY_FOR_SLOW_CLASS)
            return 2
        has_other_tokens = report_other_tokens(run, tokenizer)
        has_masked_ends = report_masked_ends(run, tokenizer)
        code = report(built, run, changes, tokenizer.unique_identifiers)
        if has_other_tokens or has_masked_ends:
            return 1
        return code
    except Exception as error:  # noqa: BLE001 — Megatron-LM's tokenizers raise errors of any type
        reason = str(error) or type(error).__name__
        say(
            f"The check failed: {reason}",
            "Run it in the trainer's environment, with the trainer's options.",
        )
        return 2


def report_other_tokens(run: argparse.Namespace, tokenizer: Any) -> bool:
    """Print which tokens Megatron-LM would not recognize in the data, and return whether any.

    Megatron-LM's loss leaves out the token that its tokenizer names as padding. If the tokenizer of
    a run names none, or another one, the loss counts padding as text. With options such as
    --reset-position-ids, the same holds for the token at the end of documents.

    Args:
        run: The options of the run.
        tokenizer: The tokenizer of the run, which Megatron-LM has built.
    """
    has_other_tokens = False
    for attribute, token_id in tokens_to_recognize(run).items():
        trainer_id = special_id(tokenizer, attribute)
        remedy = REMEDY_BY_TOKEN[attribute]
        if trainer_id == token_id:
            if attribute != "pad" or not ignores_padding(run, tokenizer):
                continue
            found = "uses it for another purpose, too, so Megatron-LM would not recognize it"
            remedy = REMEDY_FOR_AMBIGUOUS_PADDING
        elif trainer_id is None or trainer_id < 0:  # -1: SentencePiece has no such token
            found = "names no such token, so Megatron-LM would not recognize it"
        else:
            found = f"names token {trainer_id}, which Megatron-LM would look for instead"

        has_other_tokens = True
        say(
            MEANING_BY_TOKEN[attribute].format(token_id=token_id),
            f"But the tokenizer of this run {found}.",
            remedy,
            "",
        )
    return has_other_tokens


def report_masked_ends(run: argparse.Namespace, tokenizer: Any) -> bool:
    """Print that Megatron-LM would take the ends of documents for padding, and return whether so.

    Many tokenizers name one token for both purposes. Then Megatron-LM leaves this token out of the
    loss wherever it is in the data, and replaces it by token 0. So the model never learns to end a
    document. That depends on the version of Megatron-LM's core:

        0.15 and older    always
        0.16 and newer    only if the tokenizer names the token as padding and as nothing else

    Source: Megatron-LM core_v0.15.3 `megatron/core/datasets/gpt_dataset.py`
    (GPTDataset.__init__, __getitem__).

    Args:
        run: The options of the run.
        tokenizer: The tokenizer of the run, which Megatron-LM has built.
    """
    end_id = TOKEN_IDS.get("eod")
    if end_id is None or special_id(tokenizer, "pad") != end_id:
        return False
    # Core 0.16 and newer do not look for padding if the tokenizer uses its token twice.
    if ignores_padding(run, tokenizer):
        return False
    # The user has passed --allow-ambiguous-pad-tokens: the ends are meant to be masked.
    if run.allow_ambiguous_pad_tokens:
        return False

    say(
        MEANING_BY_TOKEN["eod"].format(token_id=end_id),
        "But the tokenizer of this run names it as padding, so Megatron-LM would leave all ends of "
        "documents out of the loss, and replace them by token 0.",
        REMEDY_FOR_MASKED_ENDS,
        "",
    )
    return True


def tokens_to_recognize(run: argparse.Namespace) -> dict[str, int]:
    """Return the tokens of the data that Megatron-LM has to recognize in a run.

    These are all of TOKEN_IDS, except that Megatron-LM only looks for ends of documents with
    options such as --eod-mask-loss.

    Args:
        run: The options of the run.

    Returns:
        Attribute of Megatron-LM's tokenizer → the id of the token: {"eod": 0, "pad": 1}.
    """
    token_ids = dict(TOKEN_IDS)
    looks_for_ends = any(getattr(run, option) for option in END_OPTIONS)
    if not looks_for_ends:
        token_ids.pop("eod", None)
    return token_ids


def special_id(tokenizer: Any, attribute: str) -> Any:
    """Return the id of a special token of Megatron-LM's tokenizer, or None if it has no such token.

    Args:
        tokenizer: The tokenizer of the run, which Megatron-LM has built.
        attribute: Its attribute for this token, such as "pad".
    """
    try:
        return getattr(tokenizer, attribute)
    except Exception:  # noqa: BLE001 — some tokenizers of Megatron-LM raise an error for no token
        return None


def ignores_padding(run: argparse.Namespace, tokenizer: Any) -> bool:
    """Return whether Megatron-LM ignores the padding token that its tokenizer names.

    From core 0.16 on, it does so if the tokenizer has the same id for another special token, such
    as the one at the end of documents. With --allow-ambiguous-pad-tokens, it does not.

    Source: Megatron-LM main (d98e8a64), `megatron/core/datasets/megatron_dataset.py`
    (MegatronDataset.__init__).

    Args:
        run: The options of the run.
        tokenizer: The tokenizer of the run, which names a padding token.
    """
    is_ambiguous = tokenizer.pad in other_special_ids(tokenizer)
    if not is_ambiguous or run.allow_ambiguous_pad_tokens:
        return False
    # Versions that do not ignore the token do not have the option.
    settings = importlib.import_module(CONFIG_MODULE).BlendedMegatronDatasetConfig
    return hasattr(settings, "allow_ambiguous_pad_tokens")


def other_special_ids(tokenizer: Any) -> list[Any]:
    """Return the ids of special tokens that Megatron-LM compares with the padding token.

    Args:
        tokenizer: The tokenizer of the run, which Megatron-LM has built.
    """
    # Only a tokenizer class of the user may have a dictionary of all special tokens.
    ids: list[Any] = []
    try:
        for name, token_id in tokenizer.special_tokens_dict.items():
            if name != "pad_token":
                ids.append(token_id)
    except (AttributeError, IndexError, ValueError):  # those that Megatron-LM expects
        ids = []
    return ids or [special_id(tokenizer, "eos"), special_id(tokenizer, "eod")]


def report(
    built: argparse.Namespace, run: argparse.Namespace, changes: list[str], identifiers: Any
) -> int:
    """Print whether Megatron-LM will find all indexes of a run, and return the exit code.

    Megatron-LM names an index by a hash of options such as --seed. If the run has another seed than
    the one that an index was built with, Megatron-LM looks for another name. It finds no such file,
    and builds a new index.

        a file of an index is missing                    1
        an option differs, such as the seed              1, and prints "seed: 8" for nanoset.yaml
        all indexes exist, and have the right names      0

    Args:
        built: The options of arguments.txt, for which the index files were built.
        run: The options of the run.
        changes: Lines of nanoset.yaml that have to change because of options of the run, except for
            its tokenizer. If there are any, indexes will be rebuilt.
        identifiers: The identifiers of the run's tokenizer.
    """
    cache = run.data_cache_path
    missing_files = [name for name in all_files() if not os.path.isfile(os.path.join(cache, name))]
    if missing_files:
        report_missing(os.path.join(cache, missing_files[0]), len(missing_files))
        return 1

    all_changes = list(changes)
    has_same_tokenizer = not renamed_indexes(cache, {"tokenizer": identifiers})
    if not has_same_tokenizer:
        all_changes += tokenizer_changes(built, run, identifiers)

    # The values of the run from which Megatron-LM computes the names.
    fields = {
        "tokenizer": identifiers,
        "sequence_length": run.seq_length,
        "random_seed": run.seed,
        "split": run.split,
    }
    renamed = renamed_indexes(cache, fields)
    if renamed or all_changes:
        report_rebuilt(len(renamed), all_changes)
        return 1

    say(f"Megatron-LM will find all {len(INDEXES)} indexes in {cache}.")
    return 0


def tokenizer_changes(
    built: argparse.Namespace, run: argparse.Namespace, identifiers: Any
) -> list[str]:
    """Return what to change in nanoset.yaml if the indexes were built for another tokenizer.

    nanoset.yaml describes the tokenizer by one of two keys:

        trainer                  the version of Megatron-LM and its options, as the user knows them
        tokenizer_identifiers    what Megatron-LM computes from these, such as {"class": …}

    If `trainer` is wrong, the user may correct it, or write the identifiers of the run instead. The
    result offers both.

    Args:
        built: The options of arguments.txt, for which the index files were built.
        run: The options of the run.
        identifiers: The identifiers of the run's tokenizer.

    Returns:
        Lines of nanoset.yaml.
    """
    lines = [yaml_line("tokenizer_identifiers", identifiers, replaced_key="trainer")]
    changed_keys = [key for key in TRAINER_KEYS if getattr(built, key) != getattr(run, key)]
    if changed_keys:
        lines.append("# or set under trainer instead:")
    else:
        # The options are those of `trainer`, so its version has to be another one.
        lines.append(
            "# or keep trainer, and correct it: a checkout of Megatron-LM's main branch needs "
            "megatron_core: main"
        )
    for key in changed_keys:
        lines.append(f"#   {yaml_line(key, getattr(run, key))}")
    return lines


def all_files() -> list[str]:
    """Return the names of the files of all indexes."""
    files: list[str] = []
    for description, other_files in INDEXES.items():
        files += [description, *other_files]
    return files


def report_missing(example: str, n_missing: int) -> None:
    """Print that index files are missing."""
    say(
        f"{n_missing} of {len(all_files())} index files are missing, such as {example}",
        "Run `nanoset build`. If the trainer finds the output root under another path, set",
        "trainer_path in nanoset.yaml to that path.",
    )


def report_rebuilt(n_renamed: int, changes: list[str]) -> None:
    """Print that the trainer will rebuild indexes, and how to build them in advance.

    For example:

        3 of 3 indexes will be rebuilt by the trainer.
        To build them in advance, change nanoset.yaml:

        nanosets:
          pretrain:
            seed: 8

    Args:
        n_renamed: How many indexes have another name for this run, because of its tokenizer,
            --seq-length, --seed or --split. It is 0 if the run only requests other numbers of
            samples: this script does not compute how many indexes have another name then.
        changes: Lines of nanoset.yaml that have to change.
    """
    count = str(n_renamed) if n_renamed else "Some"
    say(
        f"{count} of {len(INDEXES)} indexes will be rebuilt by the trainer.",
        "To build them in advance, change nanoset.yaml:",
        "",
        "nanosets:",
        f"  {NANOSET}:",
    )
    for line in changes:
        say(f"    {line}")


def say(*lines: str) -> None:
    """Print lines."""
    for line in lines:
        sys.stdout.write(f"{line}\n")


def flag_of(name: str) -> str:
    """Return the command-line spelling of an option."""
    return f"--{name.replace('_', '-')}"


def parse_options(words: list[str]) -> argparse.Namespace:
    """Parse those options of a trainer's command line that decide which index files it looks for.

    Such are --seed and the options of the tokenizer. All others, such as --lr, are ignored.

        --seed 7 --lr 0.1      seed=7, and the default or None for each option that is not given

    Megatron-LM's function `build_tokenizer` gets the same object. So attributes that any version of
    this function reads are added.

    Args:
        words: The command line, divided at spaces: ["--seed", "7", …].

    Raises:
        argparse.ArgumentError: An option lacks its value, or has text in place of a number.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False, exit_on_error=False)
    for name in TEXT_OPTIONS:
        parser.add_argument(flag_of(name))
    for name, default in DEFAULT_BY_NUMBER_OPTION.items():
        parser.add_argument(flag_of(name), type=int, default=default)
    for name in SWITCHES:
        parser.add_argument(flag_of(name), action="store_true")
    for name in LIST_OPTIONS:
        parser.add_argument(flag_of(name), nargs="*")
    parser.add_argument(
        "--no-tokenizer-sentencepiece-ignore-extra-whitespaces",
        "--disable-tokenizer-sentencepiece-ignore-extra-whitespaces",
        dest="tokenizer_sentencepiece_ignore_extra_whitespaces",
        action="store_false",
    )
    options, _ = parser.parse_known_args(words)
    add_tokenizer_attributes(options)
    return options


def add_tokenizer_attributes(options: argparse.Namespace) -> None:
    """Add what Megatron-LM's `build_tokenizer` reads under names that are not those of options."""
    # Versions of Megatron-LM have different names for the same two values.
    special_tokens = options.tokenizer_special_tokens or options.tiktoken_special_tokens
    options.tokenizer_special_tokens = special_tokens
    options.tiktoken_special_tokens = special_tokens
    options.special_tokens = special_tokens
    options.metadata_path = options.tokenizer_metadata

    # `build_tokenizer` needs these, too, but the tokenizer's identifiers do not depend on them. So
    # any number will do for the size of the padded vocabulary, which training would compute.
    options.padded_vocab_size = options.vocab_size or 1
    for name, value in BUILD_ARGUMENTS.items():
        setattr(options, name, value)


def unpredictable_options(run: argparse.Namespace) -> list[str]:
    """Return the options of a run whose effect on the indexes is not computed here."""
    names = list(UNPREDICTABLE_OPTIONS)
    if not has_phases():
        # A nanoset without phases was built for one run without transitions.
        names.append(PHASE_OPTION)
    return [name for name in names if getattr(run, name) is not None]


def has_phases() -> bool:
    """Return whether the run is divided into phases, each of which reads other data.

    Then several jobs train one after another, and no numbers of samples are given for one job.
    """
    return not SAMPLES


def required_changes(built: argparse.Namespace, run: argparse.Namespace) -> list[str]:
    """Return what to change in nanoset.yaml, so that the index files of a run are built.

    For example, the index files were built for --seed 7 and --train-iters 40. The run has --seed 8
    and --train-iters 50, which needs other index files. The result is two lines:

        seed: 8
        schedule: {"iterations": 50, …}

    Args:
        built: The options of arguments.txt, for which the index files were built.
        run: The options of the run.

    Returns:
        Lines of nanoset.yaml; or comments, if no single line corresponds to an option. Empty if the
        options request the same index files.

    Raises:
        ValueError: The options of the run cannot be compared, see `check_data` and `check_length`.
    """
    changed = [name for name, value in vars(run).items() if getattr(built, name) != value]
    check_data(run, changed)
    lines = changed_settings(run, changed)
    if has_phases():
        return lines + schedule_comments(changed)
    return lines + changed_samples(run)


def changed_settings(run: argparse.Namespace, changed: list[str]) -> list[str]:
    """Return lines of nanoset.yaml for the sequence length, seed and split that have changed.

    For a run with --seed 8 instead of --seed 7, this is ["seed: 8"].

    Args:
        run: The options of the run.
        changed: Names of the options that differ from those of arguments.txt.
    """
    lines: list[str] = []
    for name, key in KEY_BY_OPTION.items():
        if name in changed:
            lines.append(yaml_line(key, getattr(run, name)))
    return lines


def check_data(run: argparse.Namespace, changed: list[str]) -> None:
    """Check that a run reads the data of arguments.txt.

    Args:
        run: The options of the run.
        changed: Names of the options that differ from those of arguments.txt.

    Raises:
        ValueError: The run names other data than arguments.txt, or spells --split with spaces.
    """
    data_flags = [flag_of(name) for name in (*DATA_FILE_OPTIONS, *DATA_OPTIONS) if name in changed]
    if data_flags:
        raise ValueError(f"arguments.txt names the data: leave {', '.join(data_flags)} out")
    if " " in (run.split or ""):
        raise ValueError(
            "Megatron-LM hashes --split as it is spelled: leave its spaces out, "
            "as arguments.txt does"
        )


def schedule_comments(changed: list[str]) -> list[str]:
    """Return a comment for each changed option on the length of a run with several phases.

    The numbers of samples of a phase follow from the schedule of all phases together. So no single
    line of nanoset.yaml corresponds to these options.
    """
    names = (*DEFAULT_BY_RUN_OPTION, *RUN_SWITCHES, PHASE_OPTION)
    return [f"# {flag_of(name)}: change schedule, or phases" for name in names if name in changed]


def changed_samples(run: argparse.Namespace) -> list[str]:
    """Return what to change in nanoset.yaml if its number of samples is not that of the run.

    Options such as --train-iters decide how many samples Megatron-LM requests of train, valid and
    test. Its index files were built for certain numbers. For example, of a run with batches of 8:

        built for        {"train": 320, "valid": 24, "test": 8}      (SAMPLES)
        --train-iters 50 requests {"train": 400, "valid": 24, "test": 8}
        result           ['schedule: {"iterations": 50, "global_batch_size": 8, …}   # replaces …']

    Returns:
        One line with the key `schedule`; or with the key `samples`, such as {"train": 400, …}, if
        no schedule gives the numbers of the run. Empty if the index files have these numbers.

    Raises:
        ValueError: The run lacks an option from which the numbers are computed, or it is invalid.
    """
    check_length(run)
    requested = requested_samples(run)
    if has_samples_of_run(requested):
        return []

    schedule = schedule_of(run)
    if scheduled_samples(schedule) == requested:
        return [yaml_line("schedule", schedule, replaced_key="samples")]
    # With --skip-train, for example, no schedule gives these numbers. Leave out splits without a
    # number: 0 if the split is not read, None if all of it is read once.
    samples = {split: requested[split] for split in SAMPLES if requested[split]}
    return [yaml_line("samples", samples, replaced_key="schedule")]


def has_samples_of_run(requested: dict[str, int | None]) -> bool:
    """Return whether the index files were built for as many samples as a run requests.

    Args:
        requested: Split → number of samples. A split with 0 samples is not read.
    """
    return all(requested[split] in (0, n_built_for) for split, n_built_for in SAMPLES.items())


def check_length(run: argparse.Namespace) -> None:
    """Check that the options of a run give its numbers of samples.

    Raises:
        ValueError: An option is missing or invalid.
    """
    if not (run.train_iters or run.train_samples) or not run.global_batch_size:
        raise ValueError(
            "the samples depend on --global-batch-size, and --train-iters or --train-samples"
        )
    if run.eval_interval < 1:
        raise ValueError(
            "--eval-interval has to be 1 or more, since Megatron-LM divides by it, "
            f"and is {run.eval_interval}"
        )


def train_samples_of(run: argparse.Namespace) -> int:
    """Return how many samples a run trains on."""
    samples: int = run.train_iters * run.global_batch_size or run.train_samples
    return samples


def requested_samples(run: argparse.Namespace) -> dict[str, int | None]:
    """Return how many samples of each split Megatron-LM requests, computed as it does that.

    For example, a run has 100 iterations of 8 samples. Valid is evaluated after every 25 of them,
    and at the end once more, with 2 iterations each time. Test is evaluated once:

        train    100 * 8 = 800
        valid    (100 // 25 + 1) * 2 * 8 = 80
        test     2 * 8 = 16

    Source: Megatron-LM main (d98e8a64), `megatron/training/training.py`
    (get_train_valid_test_num_samples, update_train_iters).

    Args:
        run: The options of the run.

    Returns:
        Split → number of samples; None with --full-validation, by which valid is read completely.
    """
    train_samples = train_samples_of(run)  # 800
    iterations = train_samples // run.global_batch_size  # 100
    samples_per_evaluation = run.eval_iters * (run.eval_global_batch_size or run.global_batch_size)

    # With --start-eval-at-iter 50, for example, two evaluations are left out.
    evaluations_left_out = run.start_eval_at_iter // run.eval_interval
    evaluations = iterations // run.eval_interval + 1 - evaluations_left_out
    if run.skip_train:
        evaluations = 1

    valid_samples: int | None = max(evaluations, 0) * samples_per_evaluation
    if run.full_validation:
        valid_samples = None
    return {"train": train_samples, "valid": valid_samples, "test": samples_per_evaluation}


def schedule_of(run: argparse.Namespace) -> dict[str, int]:
    """Return the key `schedule` of nanoset.yaml that is closest to a run."""
    return {
        "iterations": train_samples_of(run) // run.global_batch_size,
        "global_batch_size": run.global_batch_size,
        "eval_interval": run.eval_interval,
        "eval_iters": run.eval_iters,
    }


def scheduled_samples(schedule: dict[str, int]) -> dict[str, int]:
    """Return how many samples of each split nanoset builds for a `schedule`."""
    batch = schedule["global_batch_size"]
    test_samples = schedule["eval_iters"] * batch
    evaluations = schedule["iterations"] // schedule["eval_interval"] + 1
    return {
        "train": schedule["iterations"] * batch,
        "valid": evaluations * test_samples,
        "test": test_samples,
    }


def yaml_line(key: str, value: Any, *, replaced_key: str = "") -> str:
    """Return a line of nanoset.yaml; a comment says which key has to be removed in its favour."""
    line = f"{key}: {json.dumps(value)}"
    if replaced_key:
        line += f"   # replaces {replaced_key}: remove that key if you have it"
    return line


def build_tokenizer(run: argparse.Namespace) -> Any:
    """Return the tokenizer of a run, which Megatron-LM itself builds.

    The function for this is in different modules, depending on the version.
    """
    if not run.legacy_tokenizer:
        for name in TOKENIZER_MODULES:
            try:
                module = importlib.import_module(name)
            except ModuleNotFoundError as error:
                # If the module itself is missing, or a package that it is in, this is another
                # version of megatron-core. If the module imports something that is missing, the
                # installation is broken.
                missing_name = error.name or ""
                is_other_version = f"{name}.".startswith(f"{missing_name}.")
                if not is_other_version:
                    raise
                continue
            return module.build_tokenizer(run)

    # The tokenizers of versions before 0.15, and those of --legacy-tokenizer.
    module = importlib.import_module("megatron.training.tokenizer")
    return module.build_tokenizer(run)


def lacks_slow_files(run: argparse.Namespace) -> bool:
    """Return whether a tokenizer has the files of its fast class, but not those of its slow class.

    The library transformers has two classes of many tokenizers. The fast one reads tokenizer.json,
    and the slow one other files, such as tokenizer.model. By default, Megatron-LM core 0.15 and
    0.16 load the slow class. From version 5 on, transformers has the fast ones only.

    Source: Megatron-LM core_v0.16.1
    `megatron/core/tokenizers/text/libraries/huggingface_tokenizer.py`
    (HuggingFaceTokenizer.__init__).

    Args:
        run: The options of the run. Megatron-LM could not build its tokenizer.
    """
    # With this option, Megatron-LM has tried the fast class.
    if run.tokenizer_type != "HuggingFaceTokenizer" or run.tokenizer_hf_use_fast:
        return False
    if loading_error(run, use_fast=True) is not None:
        return False
    error_of_slow_class = loading_error(run, use_fast=False)
    if isinstance(error_of_slow_class, ImportError):
        return False  # it lacks a package, such as sentencepiece, and perhaps no files
    return error_of_slow_class is not None


def loading_error(run: argparse.Namespace, *, use_fast: bool) -> Exception | None:
    """Return the error of transformers when it loads the tokenizer of a run, or None.

    Args:
        run: The options of the run.
        use_fast: Whether to load the fast class of the tokenizer, or its slow class.
    """
    try:
        importlib.import_module("transformers").AutoTokenizer.from_pretrained(
            run.tokenizer_model, use_fast=use_fast, trust_remote_code=run.trust_remote_code
        )
    except Exception as error:  # noqa: BLE001 — transformers raises errors of any type
        return error
    return None


def renamed_indexes(cache: str, fields: dict[str, Any]) -> list[str]:
    """Return the indexes to which Megatron-LM would give another name for this run.

    It would not find them, and build indexes with these names.

    Args:
        cache: Folder of the index files.
        fields: Field of the description of an index → its value in the run.
    """
    renamed: list[str] = []
    for name in INDEXES:
        with open(os.path.join(cache, name), encoding="utf-8") as file:
            description = json.load(file)
        set_fields(description, fields)
        if not name.startswith(digest_of(description)):
            renamed.append(name)
    return renamed


def set_fields(description: dict[str, Any], fields: dict[str, Any]) -> None:
    """Give fields of a description their values in a run.

    The description of a blend contains those of its datasets, which have the fields. A field that
    is missing or null stays so: there is no `split`, for example, if each split has its own data.
    """
    for dataset in description.get("datasets", [description]):
        for field, value in fields.items():
            if dataset.get(field) is not None:
                dataset[field] = value


def digest_of(description: dict[str, Any]) -> str:
    """Return the MD5 of the description of an index, with which the name of the index starts."""
    text = json.dumps(description, indent=4)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
