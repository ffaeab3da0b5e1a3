"""The contents of the files with which a trainer is started on a built nanoset, by preset.

A preset, such as `megatron` or `nemo`, stands for one trainer and version. Each trainer gets files
of its own format; for example, Megatron-LM gets `arguments.txt` with options, and NeMo `data.yaml`.
Every trainer also gets START.md, which says how it is started, and a template of run.yaml.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from nanoset_core.errors import ConfigError
from nanoset_core.sampling.splits import SPLITS
from nanoset_core.stages.handoff.description import FilesAndNotes, Handoff
from nanoset_core.stages.handoff.megatron import ARGUMENTS, megatron_files
from nanoset_core.stages.handoff.nanotron import nanotron_files, nanotron_main_files
from nanoset_core.stages.handoff.nemo import nemo_files
from nanoset_core.stages.handoff.notes import notes_of
from nanoset_core.stages.handoff.run import RUN, run_text
from nanoset_core.stages.handoff.start import START, TOKENIZER_OPTIONS, start_text
from nanoset_core.untrusted import shell_word, visible


@dataclass(frozen=True, slots=True)
class TrainerStart:
    """How one trainer is started."""

    write: Callable[[Handoff], FilesAndNotes]
    """Returns the files that the trainer is started with."""
    instructions: str
    """How START.md says that it is started: Markdown with the placeholders `shell_options`,
    `arguments`, `tokenizer`, `length`, `processes` and `micro_batch`.
    """


_MEGATRON = TrainerStart(
    megatron_files,
    r"""    {shell_options}torchrun --nproc-per-node {processes} pretrain_gpt.py \
        $(cat {arguments}){tokenizer} \
        --num-layers 24 --hidden-size 2048 --num-attention-heads 16 \
        --max-position-embeddings {length} \
        --micro-batch-size {micro_batch} --lr 3e-4 --bf16

The number of processes, and the options from `--num-layers` on, are an example. Replace them by
those of your machine and model. The global batch size must be a multiple of `--micro-batch-size`
times the number of data-parallel processes.""",
)
_NEMO = TrainerStart(
    nemo_files,
    """Merge `data.yaml` into the YAML of the model. It does not contain the tokenizer, the number
of steps and the batch size.""",
)
_NANOTRON = TrainerStart(
    nanotron_files,
    """Merge `data.yaml` into the YAML of the run, and pass it to `run_train.py --config-file …`.
It does not contain the tokenizer and the batch size, and `train_steps` only if nanoset.yaml has a
`schedule`.""",
)
_NANOTRON_MAIN = TrainerStart(
    nanotron_main_files,
    """Merge `data.yaml` into the YAML of the run, and pass it to `run_train.py --config-file …`.
The list `data_stages` of `data.yaml` replaces that of the run. `data.yaml` does not contain the
batch size, and `train_steps` only if nanoset.yaml has a `schedule`.""",
)
TRAINERS: Mapping[str, TrainerStart] = {
    "megatron": _MEGATRON,
    "megatron-0.10": _MEGATRON,
    "nemo": _NEMO,
    "nanotron": _NANOTRON,
    "nanotron-000": _NANOTRON,
    "nanotron-main": _NANOTRON_MAIN,
    "nanotron-main-bytes": _NANOTRON_MAIN,
}
"""Preset → how its trainer is started."""
_EXAMPLE_PROCESSES = 8
"""Processes in the example of a command, if they can share the batch size of the run."""
_EXAMPLE_MICRO_BATCH = 4
"""The same for the samples that each process trains on at once."""
_SHELL_PATTERN = re.compile(r"[*?\[]")
"""Characters by which a shell takes a word of `$(cat …)` for a pattern of file names."""


class HandoffFiles(NamedTuple):
    """The files of a handoff, and notes for its user."""

    contents: dict[str, bytes]
    """Name of each file → its content."""
    notes: list[str]
    """What the user should know, in sentences; START.md contains them, too."""


def handoff_files(handoff: Handoff) -> HandoffFiles:
    """Return the files that a user needs to start a trainer on data that was built.

    Args:
        handoff: Everything that the files mention: the settings, the datasets, the number of
            samples of each split, warnings, and paths as they are where the trainer runs.

    Returns:
        The content of each file, and notes for the user.

    Raises:
        ConfigError: A path contains a space, or characters that cannot be seen.
    """
    _check_paths(handoff)

    # The trainer's own files, such as arguments.txt with the options of Megatron-LM.
    trainer = TRAINERS[handoff.config.preset]
    texts, notes = trainer.write(handoff)
    notes = [*notes, *notes_of(handoff.config, handoff.empty, handoff.views, handoff.warnings)]

    texts[RUN] = _run_template(handoff)
    instructions = _instructions(handoff, trainer.instructions, texts.get(ARGUMENTS, ""))
    texts[START] = start_text(handoff, instructions, sorted(texts), notes)
    contents = {name: text.encode() for name, text in texts.items()}
    return HandoffFiles(contents, notes)


def _run_template(handoff: Handoff) -> str:
    """Return the text of run.yaml, a template in which the user describes the training run.

    Args:
        handoff: The data that was built, and its schedule, if nanoset.yaml has one.
    """
    schedule = handoff.spec.schedule
    batch_size = None if schedule is None else schedule.global_batch_size
    return run_text(handoff.folder, batch_size)


def _instructions(handoff: Handoff, template: str, arguments: str) -> str:
    """Return the instructions for starting the trainer, in Markdown.

    Args:
        handoff: The data that was built, and the paths of its files where the trainer runs.
        template: The instructions with placeholders. For example, "$(cat {arguments})" becomes
            "$(cat /data/…/arguments.txt)".
        arguments: The text of arguments.txt, the trainer's command line options; "" if it has none.
    """
    processes = _ExampleProcesses.of(handoff)
    # If arguments.txt names no tokenizer, the user has to add such options to the command.
    tokenizer_reminder = "" if handoff.tokenizer else f" {TOKENIZER_OPTIONS}"
    return template.format(
        shell_options=_shell_options(arguments),
        arguments=shell_word(f"{handoff.folder}/{ARGUMENTS}"),
        tokenizer=tokenizer_reminder,
        length=handoff.config.sequence_length,
        processes=processes.n_processes,
        micro_batch=processes.micro_batch,
    )


def _shell_options(arguments: str) -> str:
    """Return a line to run before a command with "$(cat arguments.txt)", or "" if none is needed.

    A shell replaces words with characters such as "*" by names of files, unless `set -f` is run.

    Args:
        arguments: The text of arguments.txt.
    """
    has_patterns = _SHELL_PATTERN.search(arguments) is not None
    if not has_patterns:
        return ""
    return (
        f"set -f  # otherwise the shell takes words of {ARGUMENTS} for patterns of file names\n    "
    )


class _ExampleProcesses(NamedTuple):
    """The processes of a training run in the example of a command."""

    n_processes: int
    """Number of processes."""
    micro_batch: int
    """Samples that each process trains on at once."""

    @classmethod
    def of(cls, handoff: Handoff) -> _ExampleProcesses:
        """Choose numbers by which the batch size of the run can be divided, if that is known.

        Megatron-LM refuses a batch that cannot be divided among the processes. For a batch of 12
        samples, 4 processes train on 1 sample each at once. Without a `schedule` in nanoset.yaml,
        the user chooses the batch size later.

        Args:
            handoff: The data that was built, and its schedule, if nanoset.yaml has one.
        """
        if handoff.spec.schedule is None:
            return cls(_EXAMPLE_PROCESSES, _EXAMPLE_MICRO_BATCH)
        batch_size = handoff.spec.schedule.global_batch_size
        n_processes = math.gcd(_EXAMPLE_PROCESSES, batch_size)
        return cls(n_processes, math.gcd(_EXAMPLE_MICRO_BATCH, batch_size // n_processes))


def _check_paths(handoff: Handoff) -> None:
    """Check that a trainer's command line can contain the paths of all files.

    Trainers divide their arguments at spaces, so they would take "/my data/web" for two words.

    Args:
        handoff: The built training data, with all paths that its trainer gets.

    Raises:
        ConfigError: A path contains a space, or characters that cannot be seen.
    """
    where = f"nanosets.{handoff.section}.trainer_path"
    for split in SPLITS:
        for dataset in handoff.data(split):
            check_path(dataset.path, where)
    check_path(handoff.folder, where)
    check_path(handoff.cache, where)


def check_path(path: str, where: str) -> None:
    """Check that a path can be a word on the trainer's command line.

    Trainers divide their arguments at spaces, so "/data/my web" would be two words. Characters that
    cannot be seen, such as control characters, would make the files hard to check for a user.

    Args:
        path: The path where the trainer runs.
        where: The key of nanoset.yaml that can change the path, for messages.

    Raises:
        ConfigError: The path contains such characters.
    """
    if any(character.isspace() for character in path):
        raise ConfigError(
            "the trainer cuts its data arguments at spaces",
            where=where,
            found=repr(path),
            remedy="set trainer_path to a link without spaces, or move the outputs",
        )
    # `visible` replaces characters that cannot be seen, such as control characters.
    if visible(path) != path:
        raise ConfigError(
            "this path has characters that cannot be seen in the trainer's arguments",
            where=where,
            found=repr(path),
            remedy="set trainer_path to a link without such characters, or move the outputs",
        )
