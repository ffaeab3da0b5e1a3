"""What a trainer has to know of a built nanoset, and the files that it is started with, by preset."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pprint import pformat
from typing import Any

import numpy as np

from nanoset_core.errors import ConfigError
from nanoset_core.records.parsing import yaml_value
from nanoset_core.sampling.config import DOCUMENTS, NanosetConfig
from nanoset_core.sampling.splits import SPLITS, SplitName
from nanoset_core.stages.handoff import preflight
from nanoset_core.stages.handoff.notes import notes_of
from nanoset_core.stages.handoff.run import RUN, run_text
from nanoset_core.stages.handoff.settings import UNNAMED
from nanoset_core.stages.mappings.settings import NanosetSpec, ScheduleSpec
from nanoset_core.untrusted import shell_line, shell_word, visible

START = "START.md"
DATA = "data.yaml"
DATA_ARGS = "data_args.txt"
PER_SPLIT = "per_split_data_args.json"
SEQUENCES = "sequences_per_dataset.json"
ARGUMENTS = "arguments.txt"
PREFLIGHT = "preflight.py"
UNKNOWN_TOKENIZER = UNNAMED.format(place="nanoset.yaml")
_VERSION = 'megatron_core: "0.16.1"   # python -c "import megatron.core as core; print(core.__version__)"'
_TRAINER = ("tokenizer_type: HuggingFaceTokenizer", "tokenizer_model: /models/x   # as the trainer is given it")
_RUN = "--train-iters … --global-batch-size … --eval-interval … --eval-iters …"
_NAMED = "--tokenizer-type … --tokenizer-model …"
_UINT16_VOCABULARY = 65536  # GPTDatasetConfig.token_dtype_code: above it int32
_PATTERN = re.compile(r"[*?\[]")
"""What a shell expands in the words that `$(cat …)` gives it."""
_NEMO_NAMES: dict[SplitName, str] = {"train": "train", "valid": "validation", "test": "test"}
_NEMO_SAMPLES: dict[SplitName, str] = {
    "train": "max_steps * global_batch_size",
    "valid": "(max_steps // val_check_interval + 1) * limit_val_batches * global_batch_size",
    "test": "limit_test_batches * global_batch_size",
}


@dataclass(frozen=True, slots=True)
class DatasetCounts:
    """Counts that a trainer may be given instead of reading a dataset's .idx."""

    sequences: int
    """Sequences in the .idx."""
    document_indices: int
    """Length of its document_indices: documents + 1."""
    dtype: str
    """Name of the tokens' type, such as uint16."""


@dataclass(frozen=True, slots=True)
class Handoff:
    """A built nanoset as a trainer sees it; every path is spelled as the trainer will spell it."""

    name: str
    spec: NanosetSpec
    """Its settings in nanoset.yaml."""
    config: NanosetConfig
    """Those that it was built with, and the samples of every split that has data."""
    samples: Mapping[SplitName, int]
    """Split → samples that were built; 0 where it has no data."""
    folder: str
    """Folder of the handoff's own files."""
    cache: str
    """Folder of the index files."""
    datasets: Mapping[str, DatasetCounts]
    """Prefix → counts."""
    vocab_size: int
    """Tokens of the tokenizer, special ones included."""
    tokenizer: tuple[str, ...] = ()
    """Megatron-LM's arguments that name the tokenizer, a flag and its values each; none where the user names it."""
    tokenizer_note: str | None = None
    """Note on a tokenizer that Megatron-LM does not know."""
    indexes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The trainer's description of each index that it will look for → its other files, names below `cache`."""
    empty: Mapping[SplitName, str] = field(default_factory=dict)
    """Split that has a share of the data and no sample → why."""
    views: Sequence[str] = ()
    """Names of the datasets that are views, of which the trainer reads the .idx."""
    warnings: Sequence[str] = ()
    """Settings of nanoset.yaml that are allowed but rarely intended, as `nanoset status` words them."""
    exports: Mapping[str, str] = field(default_factory=dict)
    """Prefix → folder of the dataset's .ds file, for a trainer that reads those."""
    tokenizer_name: str | None = None
    """What these call the tokenizer."""

    @property
    def section(self) -> str:
        """Name that nanoset.yaml has for it: of all phases, if it is one."""
        return self.name if self.spec.span is None else self.name.rpartition("-phase-")[0]

    @property
    def is_per_split(self) -> bool:
        """Whether every split has data of its own."""
        return self.config.blend_per_split is not None

    def data(self, split: SplitName) -> list[tuple[float | None, str]]:
        """Return (weight, prefix) of each dataset of a split; no weight where the trainer is given none."""
        prefixes, weights = self.config.blend(split) or ([], None)
        paths = [self.config.trainer_path(prefix) for prefix in prefixes]
        return [(None if weights is None else weights[number], path) for number, path in enumerate(paths)]

    @property
    def evaluates(self) -> bool:
        """Whether the trainer is given data of valid or test."""
        shares = (1.0, 1.0, 1.0) if self.is_per_split else self.config.shares()
        return any(self.data(split) and shares[SPLITS.index(split)] > 0 for split in SPLITS[1:])

    @property
    def run(self) -> ScheduleSpec | None:
        """The run that the built training samples are enough for: shorter than `schedule` where limits cut them.

        In phases it is `schedule`, since the iterations of the others decide where this one begins.
        """
        schedule, built = self.spec.schedule, self.config.train_split_samples
        if schedule is None or built is None or self.spec.transitions or built == schedule.samples()["train"]:
            return schedule
        return replace(schedule, iterations=built // schedule.global_batch_size)

    @property
    def sample_count_mismatch(self) -> dict[SplitName, int]:
        """Split → samples that `run` asks for, where its index files are for another number."""
        if self.run is None:
            return {}
        asked = self.run.samples(None if self.spec.span is None else self.spec.span[1] - self.spec.span[0])
        if self.run != self.spec.schedule:
            asked["train"] = self.config.train_split_samples or 0
        built = {split: self.config.samples(split) for split in SPLITS if self.samples[split]}
        return {
            split: asked[split]
            for split, count in built.items()
            if count is not None and split in asked and asked[split] != count
        }


def handoff_files(handoff: Handoff) -> tuple[dict[str, bytes], list[str]]:
    """Return the files that start the preset's trainer, START.md among them.

    Returns:
        (file name → content, notes for the user).

    Raises:
        ConfigError: there is a space in a path.
    """
    prefixes = [path for split in SPLITS for _, path in handoff.data(split)]
    for path in (*prefixes, handoff.folder, handoff.cache):
        where = f"nanosets.{handoff.section}.trainer_path"
        if any(map(str.isspace, path)):
            what = "the trainer cuts its data arguments at spaces"
            remedy = "set trainer_path to a link without spaces, or move the outputs"
            raise ConfigError(what, where=where, found=repr(path), remedy=remedy)
        if visible(path) != path:
            what = "this path has characters that cannot be seen in the trainer's arguments"
            remedy = "set trainer_path to a link without such characters, or move the outputs"
            raise ConfigError(what, where=where, found=repr(path), remedy=remedy)
    writer, command = _WRITERS[handoff.config.preset]
    texts, notes = writer(handoff)
    notes += notes_of(handoff.config, handoff.empty, handoff.views, handoff.warnings)
    schedule = handoff.spec.schedule
    texts[RUN] = run_text(handoff.folder, None if schedule is None else schedule.global_batch_size)
    more = "" if handoff.tokenizer else f" {_NAMED}"
    arguments = shell_word(f"{handoff.folder}/{ARGUMENTS}")
    command = command.format(arguments=arguments, more=more, length=handoff.config.sequence_length)
    if _PATTERN.search(texts.get(ARGUMENTS, "")) is not None:
        command = f"set -f  # or the shell takes words of {ARGUMENTS} for patterns of file names\n    {command}"
    texts[START] = _start(handoff, command, sorted(texts), notes)
    return {name: text.encode() for name, text in texts.items()}, notes


def _start(handoff: Handoff, command: str, names: list[str], notes: list[str]) -> str:
    built = ", ".join(f"{split} {handoff.samples[split]:,}" for split in SPLITS)
    lines = [f"# {handoff.name}", "", f"Samples built: {built} of {handoff.config.sequence_length:,} tokens."]
    if handoff.spec.span is not None:
        lines.append(f"It is the phase of iterations {handoff.spec.span[0]:,} to {handoff.spec.span[1]:,}.")
    lines += ["", "Start:", "", f"    {command}", "", f"Files here: {', '.join(names)}; index files: {handoff.cache}"]
    if PREFLIGHT in names:
        lines += ["", "Whether the trainer will find them, asked where it runs, with its options:", ""]
        words = [word for argument in handoff.tokenizer for word in argument.split()]
        named = shell_line(*words) or _NAMED
        run = "" if handoff.spec.schedule else f" {_RUN}"
        lines.append(f"    {shell_line('python', f'{handoff.folder}/{PREFLIGHT}')} {named}{run}")
        if not handoff.config.tokenizer_identifiers:
            lines += ["", f"**{UNKNOWN_TOKENIZER}.** Write into nanoset.yaml, and build again:", ""]
            known = [_VERSION, *(map(_key, handoff.tokenizer) if handoff.tokenizer else _TRAINER)]
            lines += ["    nanosets:", f"      {handoff.section}:", "        trainer:"]
            lines += [f"{' ' * 10}{line}" for line in known]
    lines += ["", "To know:", "", *(f"- {note}" for note in notes)] if notes else []
    return "\n".join(lines) + "\n"


def _key(argument: str) -> str:
    """Return the line of `trainer` in nanoset.yaml for an argument that names the tokenizer."""
    flag, *values = argument.split()
    name = flag.removeprefix("--").replace("-", "_")
    if name in ("tokenizer_special_tokens", "tiktoken_special_tokens"):
        return f"special_tokens: {json.dumps(values, ensure_ascii=False)}"
    value = values[0] if values else "true"
    return f"{name}: {value if value == 'true' or value.isdecimal() else yaml_value(value)}"


def _megatron_files(handoff: Handoff) -> tuple[dict[str, str], list[str]]:
    """Return data arguments, sequences per dataset, and the command line that finds every cache; and notes.

    Sources: Megatron-LM core_v0.16.1 `training/utils.py` (get_blend_and_blend_per_split), `training/training.py`
    (get_train_valid_test_num_samples), `tools/build_sequences_per_dataset.py`.
    """
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
    files[PREFLIGHT] = _preflight(handoff)
    return files, [*notes, *filter(None, [handoff.tokenizer_note]), *_notes(handoff)]


def _preflight(handoff: Handoff) -> str:
    """Return preflight.py with what it looks for."""
    samples = {split: handoff.config.samples(split) for split in SPLITS if handoff.samples[split]}
    values = {
        'NANOSET = ""': handoff.section,
        "INDEXES: dict[str, list[str]] = {}": {name: list(others) for name, others in handoff.indexes.items()},
        "SAMPLES: dict[str, int | None] = {}": {} if handoff.spec.transitions else samples,
    }
    text = inspect.getsource(preflight)
    for line, value in values.items():
        text = text.replace(line, line.partition("=")[0] + "= " + pformat(value, width=120))
    return text


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
    for mask in handoff.spec.masks:
        if mask != "create_attention_mask":  # which is Megatron-LM's default
            yield f"--{'dataloader-' * (mask == DOCUMENTS)}{mask.replace('_', '-')}"
    if SEQUENCES in files and config.rules.starts_without_scanning:
        yield f"--per-dataset-sequences-path {handoff.folder}/{SEQUENCES}"
    if loads_fast(handoff):
        yield "--dataloader-fast-cache-load"
    yield from _length(handoff)


def _length(handoff: Handoff) -> Iterator[str]:
    schedule = handoff.spec.schedule
    if not handoff.evaluates:
        yield "--eval-iters 0"  # core 0.16.1 evaluates with any other number, and fails without data
    if schedule is None:
        if (samples := handoff.config.train_split_samples) is not None:
            yield f"--train-samples {samples}"
        return
    if handoff.spec.transitions:
        # In phases Megatron-LM computes with --train-samples alone, and fails without.
        yield f"--train-samples {schedule.iterations * schedule.global_batch_size}"
        yield f"--phase-transition-iterations {','.join(map(str, handoff.spec.transitions))}"
    elif handoff.run != schedule:
        yield f"--train-samples {handoff.config.train_split_samples}"
    else:
        yield f"--train-iters {schedule.iterations}"
    yield f"--global-batch-size {schedule.global_batch_size}"
    yield f"--eval-interval {schedule.eval_interval}"
    if handoff.evaluates:
        yield f"--eval-iters {schedule.eval_iters}"


def _notes(handoff: Handoff) -> Iterator[str]:
    config = handoff.config
    if handoff.samples["train"] and config.train_split_samples is None:
        yield (
            "train was built for one epoch, but Megatron-LM always asks for a number of samples: it would build its "
            "own index. Set `schedule`, or `samples: {train: …}`, to what the run will ask for."
        )
    if handoff.run is not None and handoff.run != handoff.spec.schedule:
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
    if handoff.spec.schedule is None:
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
            "With `blend_per_split` in place of `blend` and `split`, the arguments hold it."
        )


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


def _nanotron_main_files(handoff: Handoff) -> tuple[dict[str, str], list[str]]:
    """Return the data and tokens sections of the YAML of nanotron's main, and notes.

    Source: nanotron 2411b022 `config/config.py` (NanosetDatasetsArgs, DataArgs), `run_train.py`.
    """
    config, parts = handoff.config, handoff.data("train")
    weights = [weight for weight, _ in parts if weight is not None]
    dataset = {
        "dataset_folder": [handoff.exports[path] for _, path in parts],
        "dataset_weights": weights or None,
        "dataset_max_tokens": None,
        "tokenizer_name": handoff.tokenizer_name,
        "vocab_size": handoff.vocab_size,
        "token_size_in_bytes": np.dtype(next(iter(handoff.datasets.values())).dtype).itemsize,
    }
    tokens: dict[str, Any] = {"sequence_length": config.sequence_length}
    if handoff.run is not None:
        tokens["train_steps"] = handoff.run.iterations
    notes = [
        f"It needs datatrove's branch nouamane/avoid-s3: `{_AVOID_S3}`. No release up to 0.10.1 takes `folder_path`, "
        "`eos_token_id` and `matched_files`: nanotron would end in a TypeError.",
        f"{handoff.samples['train']:,} samples: train_steps * global batch size must be that.",
        _NANOSET_ORDER if config.rules.shuffles_blend else _BYTES_ORDER,
    ]
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
    data |= dict.fromkeys(handoff.spec.masks, True)
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
_MEGATRON = r"""torchrun --nproc-per-node 8 pretrain_gpt.py $(cat {arguments}){more} \
        --num-layers 24 --hidden-size 2048 --num-attention-heads 16 --max-position-embeddings {length} \
        --micro-batch-size 4 --lr 3e-4 --bf16

The options of the model and its training, from --num-layers on, are an example."""
_NANOTRON = "merge data.yaml into nanotron's YAML, then run_train.py --config-file …"
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
_WRITERS: dict[str, tuple[_Writer, str]] = {
    "megatron": (_megatron_files, _MEGATRON),
    "megatron-0.10": (_megatron_files, _MEGATRON),
    "nemo": (_nemo_files, "merge data.yaml into the model's YAML"),
    "nanotron": (_nanotron_files, _NANOTRON),
    "nanotron-000": (_nanotron_files, _NANOTRON),
    "nanotron-main": (_nanotron_main_files, _NANOTRON),
    "nanotron-main-bytes": (_nanotron_main_files, _NANOTRON),
}
"""Preset → what makes its files, and the command that START.md shows."""
