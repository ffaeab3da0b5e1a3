"""Write Megatron-LM's data arguments, sequences per dataset, and the command line that finds every cache.

Sources: Megatron-LM core_v0.16.1 `training/utils.py` (get_blend_and_blend_per_split), `training/training.py`
(get_train_valid_test_num_samples), `tools/build_sequences_per_dataset.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from nanoset_core.handoff.request import Handoff
from nanoset_core.mapping.splits import SPLITS, SplitName

DATA_ARGS = "data_args.txt"
PER_SPLIT = "per_split_data_args.json"
SEQUENCES = "sequences_per_dataset.json"
ARGUMENTS = "arguments.txt"
_UINT16_VOCABULARY = 65536  # GPTDatasetConfig.token_dtype_code: above it int32


def megatron_files(handoff: Handoff) -> tuple[dict[str, str], list[str]]:
    """Return (file name → text, notes for the user)."""
    files, notes = {}, []
    if handoff.is_per_split:
        per_split = {split: " ".join(_lines(handoff, split)).split() or None for split in SPLITS}
        files[PER_SPLIT] = json.dumps(per_split, indent=1) + "\n"
    else:
        files[DATA_ARGS] = "".join(f"{line}\n" for line in _lines(handoff, "train"))
    expected = "uint16" if handoff.vocab_size <= _UINT16_VOCABULARY else "int32"
    if odd := [path for path, count in handoff.datasets.items() if count.dtype != expected]:
        notes.append(
            f"No {SEQUENCES}: with it Megatron-LM would take the tokens of {', '.join(odd)} for another type, since it "
            f"goes by the vocabulary ({handoff.vocab_size:,}) instead of the .idx. Without it, it reads them right."
        )
    else:
        counts = {path: [count.sequences, count.document_indices] for path, count in handoff.datasets.items()}
        files[SEQUENCES] = json.dumps(counts, indent=1) + "\n"
    files[ARGUMENTS] = "".join(f"{line}\n" for line in _arguments(handoff, files))
    if handoff.tokenizer_note is not None:
        notes.append(handoff.tokenizer_note)
    return files, [*notes, *_notes(handoff)]


def loads_fast(handoff: Handoff) -> bool:
    """Return whether --dataloader-fast-cache-load can be given.

    Megatron-LM refuses it with a blend that splits share, and fails where it does not find an index.
    """
    return handoff.is_per_split and handoff.config.rules.starts_without_scanning and not handoff.sample_count_mismatch


def _lines(handoff: Handoff, split: SplitName) -> list[str]:
    return [path if weight is None else f"{weight!r} {path}" for weight, path in handoff.data(split)]


def _arguments(handoff: Handoff, files: dict[str, str]) -> Iterator[str]:
    config = handoff.config
    if handoff.is_per_split:
        yield f"--per-split-data-args-path {handoff.folder}/{PER_SPLIT}"
    else:
        yield f"--data-args-path {handoff.folder}/{DATA_ARGS}"
        yield f"--split {config.split.replace(' ', '')}"
    yield f"--seq-length {config.sequence_length}"
    yield f"--seed {config.random_seed}"
    yield from handoff.tokenizer
    yield f"--data-cache-path {handoff.cache}"
    for mask in handoff.masks:
        if mask != "create_attention_mask":  # which is Megatron-LM's default
            yield f"--{mask.replace('_', '-')}"
    if SEQUENCES in files and config.rules.starts_without_scanning:
        yield f"--per-dataset-sequences-path {handoff.folder}/{SEQUENCES}"
    if loads_fast(handoff):
        yield "--dataloader-fast-cache-load"
    yield from _length(handoff)


def _length(handoff: Handoff) -> Iterator[str]:
    schedule = handoff.schedule
    if schedule is None:
        if (samples := handoff.config.train_split_samples) is not None:
            yield f"--train-samples {samples}"
        return
    if handoff.transitions:
        # In phases Megatron-LM computes with --train-samples alone, and fails without.
        yield f"--train-samples {schedule.iterations * schedule.global_batch_size}"
        yield f"--phase-transition-iterations {','.join(map(str, handoff.transitions))}"
    elif handoff.run != schedule:
        yield f"--train-samples {handoff.config.train_split_samples}"
    else:
        yield f"--train-iters {schedule.iterations}"
    yield f"--global-batch-size {schedule.global_batch_size}"
    yield f"--eval-interval {schedule.eval_interval}"
    yield f"--eval-iters {schedule.eval_iters}"


def _notes(handoff: Handoff) -> Iterator[str]:
    config = handoff.config
    if handoff.samples["train"] and config.train_split_samples is None:
        yield (
            "train was built for one epoch, but Megatron-LM always asks for a number of samples: it would build its "
            "own index. Set `schedule`, or `samples: {train: …}`, to what the run will ask for."
        )
    if handoff.run is not None and handoff.run != handoff.schedule:
        yield (
            f"The run is shorter than its schedule: {config.train_split_samples:,} training samples, enough for "
            f"{handoff.run.iterations:,} iterations, are what max_epochs allows. With `iterations: "
            f"{handoff.run.iterations}` in `schedule` all numbers agree."
        )
    for split, asked in handoff.sample_count_mismatch.items():
        yield (
            f"The cache of {split} is for {config.samples(split):,} samples, but the run asks for {asked:,}: "
            "Megatron-LM would build its own index, which knows no max_epochs. Change `schedule` until this is gone."
        )
    if handoff.schedule is None:
        evaluated: tuple[SplitName, ...] = ("valid", "test")
        for split in evaluated:
            if not handoff.samples[split]:
                continue
            built = config.samples(split)
            if built is None:
                rule = "all samples of one epoch, which it asks for with --full-validation (valid only)"
            else:
                steps = "(train_iters // eval_interval + 1) * eval_iters" if split == "valid" else "eval_iters"
                rule = f"{built:,} samples: {steps} * global_batch_size must be that"
            yield f"The cache of {split} is for {rule}. With `schedule` in nanoset.yaml the numbers agree."
    if handoff.is_per_split and handoff.sample_count_mismatch:
        yield "--dataloader-fast-cache-load is not given, since an index would be missing."
    if not handoff.is_per_split and handoff.config.rules.starts_without_scanning:
        yield (
            "--dataloader-fast-cache-load is not given: Megatron-LM refuses it where splits share a blend. "
            "With `blend_per_split` instead of `blend` and `split` it is."
        )
