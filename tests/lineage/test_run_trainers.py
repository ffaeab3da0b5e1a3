"""Trainers read the tokens that `nanoset explain --run` names, in 2,000 steps on 8 ranks.

The steps are made by the trainers' own samplers, batch size calculators and datasets. Megatron-LM's
sampler is not in the package megatron-core: the environment variable MEGATRON_LM names a checkout of
core_v0.16.1. The samplers of NeMo and nanotron are read from their sources, if these are on the
path; their other dependencies need not be installed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from helpers.trainer_steps import (
    MakeReader,
    megatron_reader,
    nanotron_reader,
    nemo_reader,
    trainer_steps,
)
from nanoset_core import MMapIndexedDatasetBuilder, NanosetBuilder, NanosetConfig, load_nanoset
from nanoset_core.lineage.run import Run, RunHandoff, explain_step
from nanoset_core.stages.handoff.run import ResumeSpec, RunSpec
from nanoset_core.stages.handoff.steps import Dealer

N_STEPS = 2000
SEQUENCE_LENGTH = 16
SEED = 99
END_TOKEN = 0
PAD_TOKEN = 49_999
WEIGHTS = (5.0, 3.0, 2.0)
RESUMES = (
    ResumeSpec(iteration=900, data_parallel_size=4, micro_batch_size=2),
    ResumeSpec(iteration=1500, data_parallel_size=8, micro_batch_size=2),
)
RUN = RunSpec("x", data_parallel_size=8, micro_batch_size=1, global_batch_size=16, resumes=RESUMES)
"""A run with steps of 16 samples, which was resumed twice with other ranks and micro-batches."""
RAMPED_RUN = RunSpec(
    "x",
    data_parallel_size=8,
    micro_batch_size=1,
    global_batch_size=32,
    rampup_batch_size=(8, 8, 4000),
    skipped_iterations=((700, 710),),
    resumes=RESUMES,
)
"""The same with steps that grow from 8 to 32 samples; some of them were skipped."""

TokensOf = Callable[[int], np.ndarray]
"""Returns the tokens of a sample, as a trainer's dataset gives them."""


@pytest.fixture
def process() -> Iterator[None]:
    """Let this process be the only one of a run of Megatron-core; skip if that is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the trainers
        distributed = pytest.importorskip("torch.distributed", reason="torch is not installed")
        pytest.importorskip(
            "megatron.core.datasets.gpt_dataset", reason="megatron-core is not installed"
        )
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        yield
        distributed.destroy_process_group()


@pytest.fixture
def prefixes(tmp_path) -> list[str]:
    """The prefixes of three random datasets, whose documents end with END_TOKEN."""
    random = np.random.RandomState(3)
    prefixes = []
    for name, n_documents in (("a", 3000), ("b", 2000), ("c", 900)):
        with MMapIndexedDatasetBuilder(tmp_path / name, np.uint16) as builder:
            for length in random.randint(1, 150, n_documents):
                tokens = random.randint(1, PAD_TOKEN, length)
                builder.add_document(np.append(tokens, END_TOKEN))
        prefixes.append(str(tmp_path / name))
    return prefixes


def our_nanoset(prefixes, weights, n_samples, folder, preset="megatron"):
    """Return the train split of our builder."""
    tokenizer = {"tokenizer_identifiers": {"class": "Stub"}} if preset == "megatron" else {}
    config = NanosetConfig(
        dict(zip(prefixes, weights, strict=True)),
        sequence_length=SEQUENCE_LENGTH,
        random_seed=SEED,
        split="100,0,0",
        train_split_samples=n_samples,
        preset=preset,
        path_to_cache=str(folder),
        **tokenizer,
    )
    train, _, _ = NanosetBuilder(config).build()
    return train


def megatron_tokens(
    prefixes, weights, n_samples, folder, *, split="100,0,0", seed=SEED, length=SEQUENCE_LENGTH
) -> TokensOf:
    """Return the samples of the train split of Megatron-core's own builder."""
    from megatron.core.datasets.blended_megatron_dataset_builder import (
        BlendedMegatronDatasetBuilder,
    )
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    config = GPTDatasetConfig(
        random_seed=seed,
        sequence_length=length,
        blend=(list(prefixes), list(weights)),
        split=split,
        path_to_cache=str(folder),
        tokenizer=SimpleNamespace(
            unique_identifiers={"class": "Stub"}, eod=END_TOKEN, pad=PAD_TOKEN, vocab_size=50_000
        ),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    builder = BlendedMegatronDatasetBuilder(GPTDataset, [n_samples, 0, 0], lambda: True, config)
    train, _, _ = builder.build()

    def tokens_of(sample: int) -> np.ndarray:
        row = train[sample]
        last_label = row["labels"].numpy()[-1]
        return np.append(row["tokens"].numpy(), last_label)

    return tokens_of


def handoff_of(train, preset="megatron", *, start=0, stop=None) -> RunHandoff:
    """Return a handoff with a train split, which was read from sample `start` of the run on."""
    return RunHandoff(
        manifest=None,
        loaded=train,
        dealer=Dealer.of(preset, "single", len(train), SEED),
        split_start=start,
        start=start,
        stop=stop,
    )


def check_steps(
    run: Run,
    handoff: RunHandoff,
    tokens_of: TokensOf,
    make_reader: MakeReader,
    *,
    start: int = 0,
    stop: int = N_STEPS,
) -> int:
    """Check that steps of a run have the tokens that the trainer reads.

    Args:
        run: The run.
        handoff: The handoff that these steps read.
        tokens_of: The trainer's dataset.
        make_reader: The trainer's sampler.
        start: The first step, counted from 0.
        stop: The step after the last one.

    Returns:
        How many samples were compared.
    """
    n_compared = 0
    for step in trainer_steps(run.spec, start, stop, len(handoff.loaded), make_reader):
        ours = run.samples(step.number)
        assert ours.handoff is handoff

        n_in_step = 0
        for rank, micro_batches in enumerate(step.micro_batches):
            for number, samples in enumerate(micro_batches):
                is_in_micro_batch = (ours.ranks == rank) & (ours.micro_batches == number)
                theirs = np.stack([tokens_of(sample) for sample in samples])
                tokens = handoff.loaded.batch(ours.samples[is_in_micro_batch])
                # Some trainers drop the last token, which is only predicted.
                tokens = tokens[:, : theirs.shape[1]]
                assert tokens.tolist() == theirs.tolist(), step.number
                n_in_step += len(samples)
        assert len(ours.samples) == n_in_step
        n_compared += n_in_step
    return n_compared


def test_megatron_reads_the_samples_of_a_run_with_a_ramp_up_and_resumes(
    process, prefixes, tmp_path
):
    make_reader = megatron_reader()
    theirs = megatron_tokens(prefixes, WEIGHTS, 64_000, tmp_path / "theirs")
    ours = our_nanoset(prefixes, WEIGHTS, 64_000, tmp_path / "ours")
    handoff = handoff_of(ours)
    run = Run(RAMPED_RUN, [handoff], "run")

    n_compared = check_steps(run, handoff, theirs, make_reader)

    assert n_compared > 50_000


def test_megatron_reads_the_samples_of_a_run_with_two_handoffs(process, prefixes, tmp_path):
    make_reader = megatron_reader()
    # The second one has other weights, and is read from step 1200 on.
    second_weights = (1.0, 6.0, 3.0)
    first_size = 1200 * 16
    second_size = (N_STEPS - 1200) * 16
    first = handoff_of(
        our_nanoset(prefixes, WEIGHTS, first_size, tmp_path / "ours"), start=0, stop=first_size
    )
    second = handoff_of(
        our_nanoset(prefixes, second_weights, second_size, tmp_path / "ours"),
        start=first_size,
        stop=first_size + second_size,
    )
    run = Run(RUN, [first, second], "run")

    theirs = megatron_tokens(prefixes, WEIGHTS, first_size, tmp_path / "theirs")
    assert check_steps(run, first, theirs, make_reader, stop=1200) == first_size

    theirs = megatron_tokens(prefixes, second_weights, second_size, tmp_path / "theirs")
    assert check_steps(run, second, theirs, make_reader, start=1200) == second_size


def test_nemo_deals_the_samples_of_a_run_as_explained(process, prefixes, tmp_path):
    make_reader = nemo_reader()
    ours = our_nanoset(prefixes, WEIGHTS, 32_000, tmp_path, "nemo")
    handoff = handoff_of(ours, "nemo")
    run = Run(RUN, [handoff], "run")

    # NeMo's datasets are compared in tests/loading/test_nemo.py.
    n_compared = check_steps(run, handoff, ours.tokens, make_reader)

    assert n_compared == 32_000


def nanotron_tokens(prefixes, weights, n_samples, folder) -> TokensOf:
    """Return the samples of the train split of nanotron's own builder."""
    pytest.importorskip(
        "nanotron.data.dataset_builder", reason="nanotron is not installed", exc_type=ImportError
    )
    from nanotron.data import dataset_builder, nanoset_configs

    if "train_split_samples" not in nanoset_configs.NanosetConfig.__annotations__:
        pytest.skip("nanotron 896473d is not installed")
    folder.mkdir()
    config = nanoset_configs.NanosetConfig(
        SEED,
        SEQUENCE_LENGTH,
        data_path=dict(zip(prefixes, weights, strict=True)),
        split="1,0,0",
        path_to_cache=str(folder),
        train_split_samples=n_samples,
    )
    train = dataset_builder.NanosetBuilder(config).build()[0]
    return lambda sample: train[sample]["input_ids"]


def test_nanotron_reads_the_samples_of_a_run(process, prefixes, tmp_path):
    make_reader = nanotron_reader()
    weights = (0.5, 0.3, 0.2)
    theirs = nanotron_tokens(prefixes, weights, 32_000, tmp_path / "theirs")
    ours = our_nanoset(prefixes, weights, 32_000, tmp_path / "ours", "nanotron")
    handoff = handoff_of(ours, "nanotron")
    run = Run(RUN, [handoff], "run")

    n_compared = check_steps(run, handoff, theirs, make_reader)

    assert n_compared == 32_000


def test_megatron_reads_the_documents_that_are_explained(process, project, tmp_path):
    make_reader = megatron_reader()
    run_file = tmp_path / "run.yaml"
    run_file.write_text("""\
handoff: nanosets/pretrain/handoff/current
data_parallel_size: 8
micro_batch_size: 1
global_batch_size: 24
rampup_batch_size: [8, 8, 40]
resumes: [{iteration: 6, data_parallel_size: 4}]
""")
    run = Run.open(project.outputs, run_file)

    # The project's nanoset by Megatron-core.
    loaded = load_nanoset(project.outputs.folder, "pretrain", "train")
    prefixes = [nanoset.member.prefix for nanoset in loaded.datasets]
    _, weights = loaded.config.blend("train")
    megatron_sample = megatron_tokens(
        prefixes,
        weights,
        400,
        tmp_path / "theirs",
        split=loaded.config.split,
        seed=loaded.config.random_seed,
        length=32,
    )

    # The documents, read from the datasets of their corpora.
    dataset_by_corpus = {
        Path(nanoset.member.prefix).parent.parent.name: nanoset.dataset
        for nanoset in loaded.datasets
    }

    def tokens_of_piece(piece):
        dataset = dataset_by_corpus[piece.origin.corpus]
        sequence = int(dataset.document_indices[piece.origin.document])  # its only one
        start, stop = piece.document_tokens
        return dataset.get(sequence, start, stop - start)

    for step in trainer_steps(run.spec, 0, 12, len(loaded), make_reader):
        samples = chain.from_iterable(chain.from_iterable(step.micro_batches))
        theirs = [megatron_sample(sample).tolist() for sample in samples]

        ours = []
        for sample in explain_step(project, run_file, step.number).samples:
            pieces = [tokens_of_piece(piece) for piece in sample.pieces]
            ours.append(np.concatenate(pieces).tolist())

        assert ours == theirs
