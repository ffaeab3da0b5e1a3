"""The steps of a run, as trainers' own samplers and batch size calculators make them.

The samplers are classes and functions of the trainers' source files, run without what these files
import.
"""

from __future__ import annotations
import __future__

import abc
import ast
import itertools
import typing
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from helpers.trainer_sources import source_file
from nanoset_core.stages.handoff.run import RunSpec

MakeReader = Callable[[int, int, int, int, int], Iterator[list[int]]]
"""Makes the iterator over the micro-batches that a rank reads.

Its arguments are the number of samples, how many were consumed before, samples of a micro-batch, the
rank, and the number of ranks.
"""


class TrainerStep(NamedTuple):
    """The samples that a step of a run reads."""

    number: int
    """Number of the step, from 1."""
    micro_batches: list[list[list[int]]]
    """The micro-batches of each rank; each is a list of samples."""


class TrainerStart(NamedTuple):
    """The settings with which a trainer was started or resumed."""

    start: int
    stop: int
    """The range of steps, from 0, that it made with these settings."""
    data_parallel_size: int
    micro_batch_size: int
    global_batch_size: int


# Samplers


def megatron_reader() -> MakeReader:
    """Return the sampler of Megatron-LM."""
    file = source_file("megatron", "training", "datasets", "data_samplers.py")
    sampler = run_definitions(file, "MegatronPretrainingSampler")["MegatronPretrainingSampler"]
    return lambda *arguments: iter(sampler(*arguments))


def nemo_reader() -> MakeReader:
    """Return the sampler of NeMo."""
    folder = ("collections", "nlp", "data", "language_modeling", "megatron")
    file = source_file("nemo", *folder, "data_samplers.py")
    definitions = run_definitions(file, "BaseMegatronSampler", "MegatronPretrainingSampler")
    sampler = definitions["MegatronPretrainingSampler"]
    return lambda *arguments: iter(sampler(*arguments))


def nanotron_reader() -> MakeReader:
    """Return the sampler of nanotron, whose samples a data loader batches."""
    file = source_file("nanotron", "dataloader.py")
    definitions = run_definitions(file, "SkipBatchSampler", "_get_train_sampler")
    make_sampler = definitions["_get_train_sampler"]

    def read(
        n_samples: int, consumed: int, micro_batch_size: int, rank: int, n_ranks: int
    ) -> Iterator[list[int]]:
        samples = iter(make_sampler(n_ranks, rank, range(n_samples), consumed))
        while micro_batch := list(islice(samples, micro_batch_size)):
            yield micro_batch

    return read


def run_definitions(file: Path, *names: str) -> dict[str, Any]:
    """Return classes and functions of a source file by name, without running the rest of it."""
    import torch
    from torch.utils.data import BatchSampler
    from torch.utils.data.distributed import DistributedSampler

    tree = ast.parse(file.read_text())
    tree.body = [node for node in tree.body if getattr(node, "name", None) in names]
    # Annotations may name what is not imported, so they are not evaluated.
    code = compile(
        tree, str(file), "exec", dont_inherit=True, flags=__future__.annotations.compiler_flag
    )

    # What the definitions use of what their file imports.
    namespace: dict[str, Any] = {
        **vars(typing),
        "__name__": "trainer",
        "abc": abc,
        "itertools": itertools,
        "chain": itertools.chain,
        "torch": torch,
        "BatchSampler": BatchSampler,
        "DistributedSampler": DistributedSampler,
        "Dataset": object,
        "logging": SimpleNamespace(info=lambda *_: None),
    }
    exec(code, namespace)
    return namespace


# Steps


def starts_of(spec: RunSpec, n_steps: int) -> list[TrainerStart]:
    """Return how a trainer was started and resumed in the first steps of a run."""
    boundaries = [0, *(resume.iteration for resume in spec.resumes), n_steps]
    settings = {
        "data_parallel_size": spec.data_parallel_size,
        "micro_batch_size": spec.micro_batch_size,
        "global_batch_size": spec.global_batch_size,
    }
    starts = []
    for number, (start, stop) in enumerate(itertools.pairwise(boundaries)):
        if number > 0:
            for name in settings:
                value = getattr(spec.resumes[number - 1], name)
                if value is not None:
                    settings[name] = value
        starts.append(TrainerStart(start, stop, **settings))
    return starts


def micro_batch_calculator(spec: RunSpec, start: TrainerStart) -> Any:
    """Return Megatron-core's calculator of the number of micro-batches of a step."""
    from megatron.core import num_microbatches_calculator as megatron

    settings = (
        start.global_batch_size,
        start.micro_batch_size,
        start.data_parallel_size,
        False,  # decrease_batch_size_if_needed
        1,  # its rank: only that of rank 0 writes to the log
    )
    if spec.rampup_batch_size is None:
        return megatron.ConstantNumMicroBatchesCalculator(*settings)
    return megatron.RampupBatchsizeNumMicroBatchesCalculator(*settings, *spec.rampup_batch_size)


def trainer_steps(
    spec: RunSpec, start: int, stop: int, n_samples: int, make_reader: MakeReader
) -> Iterator[TrainerStep]:
    """Yield the steps [start, stop) of a run, counted from 0, over one dataset.

    Args:
        spec: The settings of the run.
        start: The first step, which reads the first samples of the dataset.
        stop: The step after the last one.
        n_samples: Number of samples of the dataset.
        make_reader: The trainer's sampler.
    """
    consumed = 0
    for trainer_start in starts_of(spec, stop):
        n_ranks = trainer_start.data_parallel_size
        micro_batch_size = trainer_start.micro_batch_size
        calculator = micro_batch_calculator(spec, trainer_start)
        steps = range(max(trainer_start.start, start), min(trainer_start.stop, stop))
        if not steps:
            continue

        readers = [
            make_reader(n_samples, consumed, micro_batch_size, rank, n_ranks)
            for rank in range(n_ranks)
        ]
        for step in steps:
            calculator.update(consumed, True)
            n_micro_batches = calculator.get()
            micro_batches = [list(islice(reader, n_micro_batches)) for reader in readers]
            yield TrainerStep(step + 1, micro_batches)
            consumed += n_micro_batches * micro_batch_size * n_ranks
