"""2,000 steps on 8 ranks: trainers' own samplers, batch sizes and datasets read the tokens that
explain --run says.

Megatron-LM's sampler is in no wheel: MEGATRON_LM names a checkout of core_v0.16.1. Those of NeMo
and nanotron are read from their sources, wherever they are on the path; nothing else of them needs
to be importable.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from helpers.trainer_sources import source_file
from nanoset_core import MMapIndexedDatasetBuilder, NanosetBuilder, NanosetConfig, load_nanoset
from nanoset_core.lineage.run import Run, RunHandoff, explain_step
from nanoset_core.stages.handoff.run import ResumeSpec, RunSpec
from nanoset_core.stages.handoff.steps import Dealer

STEPS, S = 2000, 16
SIZES = ("data_parallel_size", "micro_batch_size", "global_batch_size")
RAMPED = RunSpec(
    *("x", 8, 1, 32, (8, 8, 4000)),
    skipped_iterations=((700, 710),),
    resumes=(ResumeSpec(900, 4, 2), ResumeSpec(1500, 8, 2)),
)
PLAIN = RunSpec("x", 8, 1, 16, resumes=(ResumeSpec(900, 4, 2), ResumeSpec(1500, 8, 2)))


@pytest.fixture
def process():
    """A run of one process, without warnings of the trainers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist = pytest.importorskip("torch.distributed", reason="torch is not installed")
        pytest.importorskip(
            "megatron.core.datasets.gpt_dataset", reason="megatron-core is not installed"
        )
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        yield
        dist.destroy_process_group()


def classes(file: Path, *names: str) -> list:
    """Classes and functions of a source, run without what it imports."""
    import abc
    import typing

    from torch.utils.data import BatchSampler
    from torch.utils.data.distributed import DistributedSampler

    tree = ast.parse(file.read_text())
    tree.body = [node for node in tree.body if getattr(node, "name", None) in names]
    space = vars(typing) | {
        "abc": abc,
        "itertools": itertools,
        "chain": itertools.chain,
        "BatchSampler": BatchSampler,
    }
    space |= {
        "torch": importlib.import_module("torch"),
        "DistributedSampler": DistributedSampler,
        "Dataset": object,
    }
    space["logging"] = SimpleNamespace(info=lambda *_: None)
    exec(compile("from __future__ import annotations\n", str(file), "exec"), space)
    exec(compile(tree, str(file), "exec", dont_inherit=True, flags=annotations()), space)
    return [space[name] for name in names]


def annotations() -> int:
    import __future__

    return __future__.annotations.compiler_flag


def sampled(package: str):
    """What makes the iterator over micro-batches of one rank: (total, consumed, micro-batch, rank,
    ranks).
    """
    if package == "megatron":
        (sampler,) = classes(
            source_file(package, "training", "datasets", "data_samplers.py"),
            "MegatronPretrainingSampler",
        )
        return lambda *place: iter(sampler(*place))
    if package == "nemo":
        path = ("collections", "nlp", "data", "language_modeling", "megatron", "data_samplers.py")
        *_, sampler = classes(
            source_file(package, *path), "BaseMegatronSampler", "MegatronPretrainingSampler"
        )
        return lambda *place: iter(sampler(*place))
    names = ("SkipBatchSampler", "_get_train_sampler")
    *_, make = classes(source_file(package, "dataloader.py"), *names)

    def interleaved(total, consumed, micro_batch, rank, ranks):
        mine = iter(make(ranks, rank, range(total), consumed))
        return iter(lambda: list(itertools.islice(mine, micro_batch)), [])

    return interleaved


def micro_batches(spec: RunSpec, begin: int, end: int, total: int, make):
    """Yield, for each step, rank → its micro-batches of samples: by the real calculators, restarted
    at each resume.
    """
    from megatron.core import num_microbatches_calculator as real

    consumed, settings = 0, {name: getattr(spec, name) for name in SIZES}
    starts = [(resume.iteration, resume) for resume in spec.resumes]
    for start, resume, stop in zip(
        *(
            [0, *(at for at, _ in starts)],
            [None, *(one for _, one in starts)],
            [*(at for at, _ in starts), end],
        ),
        strict=True,
    ):
        settings |= {
            name: value for name in SIZES if (value := getattr(resume, name, None)) is not None
        }
        ranks, micro, size = settings.values()
        args = (size, micro, ranks, False, 1)
        calculator = (
            real.ConstantNumMicroBatchesCalculator(*args)
            if spec.rampup_batch_size is None
            else real.RampupBatchsizeNumMicroBatchesCalculator(*args, *spec.rampup_batch_size)
        )
        readers = None
        for step in range(max(start, begin), min(stop, end)):
            readers = readers or [
                make(total, consumed, micro, rank, ranks) for rank in range(ranks)
            ]
            calculator.update(consumed, True)
            yield step + 1, [[next(reader) for _ in range(calculator.get())] for reader in readers]
            consumed += calculator.get() * micro * ranks


def compare(run: Run, part: RunHandoff, tokens, make, begin: int, end: int) -> int:
    """Compare steps begin + 1 to end with what the trainer's own classes read; return how many
    samples.
    """
    count = 0
    for step, ranks in micro_batches(run.spec, begin, end, len(part.loaded), make):
        found = run.samples(step)
        assert found.handoff is part
        for rank, batches in enumerate(ranks):
            for number, samples in enumerate(batches):
                mine = found.samples[(found.ranks == rank) & (found.micro_batches == number)]
                theirs = np.stack([tokens(sample) for sample in samples])
                assert part.loaded.batch(mine)[:, : theirs.shape[1]].tolist() == theirs.tolist(), (
                    step
                )
                count += len(samples)
        assert len(found.samples) == sum(len(samples) for batches in ranks for samples in batches)
    return count


@pytest.fixture
def prefixes(tmp_path):
    random = np.random.RandomState(3)
    for name, count in (("a", 3000), ("b", 2000), ("c", 900)):
        with MMapIndexedDatasetBuilder(tmp_path / name, np.uint16) as builder:
            for length in random.randint(1, 150, count):
                builder.add_document(np.append(random.randint(1, 49999, length), 0))
    return [str(tmp_path / name) for name in ("a", "b", "c")]


def ours(prefixes, weights, samples, folder, preset="megatron"):
    blend = dict(zip(prefixes, weights, strict=True))
    config = NanosetConfig(
        *(blend,), sequence_length=S, random_seed=99, split="100,0,0", train_split_samples=samples, preset=preset,
        path_to_cache=str(folder), **({"tokenizer_identifiers": {"class": "Stub"}} if preset == "megatron" else {}),
    )  # fmt: skip
    return NanosetBuilder(config).build()[0]


def megatron_dataset(prefixes, weights, samples, folder, split="100,0,0", seed=99, length=S):
    """The train split of Megatron-LM's own builder, as what gives the tokens of a sample."""
    from megatron.core.datasets.blended_megatron_dataset_builder import (
        BlendedMegatronDatasetBuilder,
    )
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    masks = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask")
    tokenizer = SimpleNamespace(
        unique_identifiers={"class": "Stub"}, eod=0, pad=49999, vocab_size=50000
    )
    config = GPTDatasetConfig(
        random_seed=seed,
        sequence_length=length,
        blend=(list(prefixes), list(weights)),
        split=split,
        path_to_cache=str(folder),
        tokenizer=tokenizer,
        **dict.fromkeys(masks, False),
    )
    dataset = BlendedMegatronDatasetBuilder(
        GPTDataset, [samples, 0, 0], lambda: True, config
    ).build()[0]

    def tokens(sample):
        found = dataset[sample]
        return np.append(found["tokens"].numpy(), found["labels"].numpy()[-1])

    return tokens


def part_of(loaded, preset="megatron", base=0, end=None):
    return RunHandoff(None, loaded, Dealer.of(preset, "single", len(loaded), 99), base, base, end)


def test_megatron_core_through_ramp_up_and_resumes(process, prefixes, tmp_path):
    make, blend = sampled("megatron"), (prefixes, (5.0, 3.0, 2.0))
    read = megatron_dataset(*blend, 64_000, tmp_path / "theirs")
    part = part_of(ours(*blend, 64_000, tmp_path / "ours"))
    assert compare(Run(RAMPED, [part], "run"), part, read, make, 0, STEPS) > 50_000


def test_megatron_core_in_two_phases(process, prefixes, tmp_path):
    make, until = sampled("megatron"), 1200
    weights, sizes, parts = (
        [(5.0, 3.0, 2.0), (1.0, 6.0, 3.0)],
        [until * 16, (STEPS - until) * 16],
        [],
    )
    for shares, size, base in zip(weights, sizes, (0, until * 16), strict=True):
        parts.append(
            part_of(ours(prefixes, shares, size, tmp_path / "ours"), base=base, end=base + size)
        )
    spans, run = ((0, until), (until, STEPS)), Run(PLAIN, parts, "run")
    for part, shares, size, span in zip(parts, weights, sizes, spans, strict=True):
        read = megatron_dataset(prefixes, shares, size, tmp_path / "theirs")
        assert compare(run, part, read, make, *span) == size


def test_nemo_deals_as_its_sampler(process, prefixes, tmp_path):
    make = sampled("nemo")
    part = part_of(loaded := ours(prefixes, (5.0, 3.0, 2.0), 32_000, tmp_path, "nemo"), "nemo")
    assert compare(Run(PLAIN, [part], "run"), part, loaded.tokens, make, 0, STEPS) == 32_000


def test_nanotron_with_its_dataset(process, prefixes, tmp_path):
    make = sampled("nanotron")
    pytest.importorskip(
        "nanotron.data.dataset_builder", reason="nanotron is not installed", exc_type=ImportError
    )
    from nanotron.data import dataset_builder, nanoset_configs

    if "train_split_samples" not in nanoset_configs.NanosetConfig.__annotations__:
        pytest.skip("nanotron 896473d is not installed")
    (tmp_path / "theirs").mkdir()
    blend, cache = dict(zip(prefixes, (0.5, 0.3, 0.2), strict=True)), str(tmp_path / "theirs")
    settings = {
        "data_path": blend,
        "split": "1,0,0",
        "path_to_cache": cache,
        "train_split_samples": 32_000,
    }
    dataset = dataset_builder.NanosetBuilder(
        nanoset_configs.NanosetConfig(99, S, **settings)
    ).build()[0]
    part = part_of(
        ours(prefixes, (0.5, 0.3, 0.2), 32_000, tmp_path / "ours", "nanotron"), "nanotron"
    )
    read = compare(
        Run(PLAIN, [part], "run"), part, lambda one: dataset[one]["input_ids"], make, 0, STEPS
    )
    assert read == 32_000


def test_the_whole_explanation_of_steps_of_megatron_core(process, project, tmp_path):
    make, file = sampled("megatron"), tmp_path / "run.yaml"
    loaded = load_nanoset(project.outputs.folder, "pretrain", "train")
    numbers = (
        "data_parallel_size: 8\nmicro_batch_size: 1\nglobal_batch_size: 24\nrampup_batch_size: "
        "[8, 8, 40]\n"
    )
    resumes = "resumes: [{iteration: 6, data_parallel_size: 4}]"
    file.write_text(f"handoff: nanosets/pretrain/handoff/current\n{numbers}{resumes}")
    run = Run.open(project.outputs, file)
    blend = [part.member.prefix for part in loaded.datasets], loaded.config.blend("train")[1]
    read = megatron_dataset(
        *blend, 400, tmp_path / "theirs", loaded.config.split, loaded.config.random_seed, 32
    )
    datasets = {
        Path(part.member.prefix).parent.parent.name: part.dataset for part in loaded.datasets
    }

    def tokens(piece):
        dataset = datasets[piece.origin.corpus]  # each document of it is one sequence
        begin, end = piece.document_tokens
        return dataset.get(int(dataset.document_indices[piece.origin.document]), begin, end - begin)

    for step, ranks in micro_batches(run.spec, 0, 12, len(loaded), make):
        expected = [
            read(sample).tolist() for batches in ranks for samples in batches for sample in samples
        ]
        found = explain_step(project, file, step).samples
        assert [
            np.concatenate(list(map(tokens, sample.pieces))).tolist() for sample in found
        ] == expected
