"""The section `nanosets` of nanoset.yaml, as a user writes it.

What may not be combined in it is in `rules.py`. Stages work with `ResolvedNanoset` (`resolved.py`),
in which the phases of a run are nanosets of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from nanoset_core.errors import ConfigError
from nanoset_core.outputs.differences import NUMBERS_OF_SCHEDULE
from nanoset_core.records.frozen import FrozenDict
from nanoset_core.records.rules import Section
from nanoset_core.records.settings import Range
from nanoset_core.sampling.config import DEFAULT_SEED, DEFAULT_SPLIT, MASKS
from nanoset_core.sampling.epoch_policies import Policy
from nanoset_core.sampling.presets import get_preset
from nanoset_core.sampling.splits import SPLITS, SplitName, parse_split
from nanoset_core.stages.handoff.settings import TrainerSpec
from nanoset_core.stages.mappings.mix_settings import Mix, unweighted
from nanoset_core.stages.packing import PackingSpec
from nanoset_core.stages.views.settings import ViewSpec

BlendSpec = str | tuple[str, ...] | Mapping[str, float]
"""A corpus, a list of corpora (each in full), or corpora with weights."""
Epochs = Annotated[float, Range(1, 1e6)]
Iterations = Annotated[int, Range(1, 1 << 40)]


def corpora_of(blend: BlendSpec | None) -> tuple[str, ...]:
    """Return the corpora of a blend, in the order in which it names them.

    Args:
        blend: A corpus, a list of corpora, or corpora with weights; None for no data.

    Returns:
        Names of corpora: `{"web": 0.7, "code": 0.3}` gives ("web", "code").
    """
    if blend is None:
        return ()
    if isinstance(blend, str):
        return (blend,)
    return tuple(blend)


def blend_or_members(blend: BlendSpec | None, mix: Mix | None) -> BlendSpec | None:
    """Return which corpora a training run reads, with weights if these are known.

    Its settings have one of two keys. A `mix` is a tree of shares, whose weights depend on the
    sizes of the datasets. They are computed later, so here each of its corpora has the weight 1.

        blend: {web: 0.7, code: 0.3}           → {"web": 0.7, "code": 0.3}
        blend: web                             → "web"
        mix: {web: {}, code: {epochs: 2}}      → {"web": 1.0, "code": 1.0}
        neither                                → None

    Args:
        blend: Value of the key `blend`, or None.
        mix: Value of the key `mix`, or None.
    """
    if blend is not None:
        return blend
    return unweighted(mix)


def is_blended(blend: BlendSpec | None) -> bool:
    """Return whether a blend is a mixture that has to be built.

    Args:
        blend: A corpus, a list of corpora, or corpora with weights; None for no data.

    Returns:
        True for several corpora, and for a single one with a weight. One corpus without a weight is
        a plain dataset, as in Megatron-LM.
    """
    return isinstance(blend, Mapping) or len(corpora_of(blend)) > 1


@dataclass(frozen=True, slots=True)
class PhaseSpec:
    """One phase of a training run, from the end of the previous phase to `until`."""

    blend: BlendSpec | None = None
    """What is read in this phase: a corpus, a list of corpora, or corpora with weights."""
    until: int | None = None
    """Iteration at which it ends, exclusive (Megatron-LM's --phase-transition-iterations). The last
    phase needs none.
    """
    mix: Mix | None = None
    """Instead of `blend`: a tree of corpora, like `mix` of a nanoset. Its tokens and epochs are
    those of the phase.
    """

    @property
    def data(self) -> BlendSpec | None:
        """What is read in this phase: see `blend_or_members`."""
        return blend_or_members(self.blend, self.mix)


@dataclass(frozen=True, slots=True)
class ContinueSpec:
    """The run that a nanoset continues. What the run has read is not read again."""

    handoff: str = field(
        metadata={"example": "data/nanosets/pretrain/handoff/0a1b2c3d4e5f60718293"}
    )
    """Folder of the handoff's version that the run was started with."""
    consumed_samples: Annotated[int, Range(0, 1 << 62)] = field(metadata={"example": 2_560_000})
    """Samples of train that the run has consumed on all ranks together. Megatron-LM prints the
    number with each iteration.
    """


@dataclass(frozen=True, slots=True)
class ScheduleSpec:
    """Length and batch size of the training run, from which numbers of samples are computed."""

    iterations: Iterations = field(metadata={"example": 100_000})
    """Training steps (--train-iters)."""
    global_batch_size: Annotated[int, Range(1, 1 << 24)] = field(metadata={"example": 512})
    """Samples in each step (--global-batch-size)."""
    eval_interval: Iterations = 1000
    """Steps between evaluations (--eval-interval)."""
    eval_iters: Annotated[int, Range(0, 1 << 24)] = 100
    """Steps of each evaluation (--eval-iters)."""

    def recorded(self) -> list[int]:
        """Return the numbers in the order in which the recipe of a handoff lists them.

        For 1,000 iterations with batches of 64 samples, which evaluate after every 100 iterations
        with 10 batches: [1000, 64, 100, 10].
        """
        return [getattr(self, name) for name in NUMBERS_OF_SCHEDULE]

    def samples(self, iterations: int | None = None) -> dict[SplitName, int]:
        """Return how many samples the trainer requests for training, validation and test.

        A schedule says how long a run is. For example, 1,000 iterations of 8 samples, with an
        evaluation of 10 batches every 100 iterations:

            train    1,000 * 8 = 8,000
            valid    11 * 10 * 8 = 880    Megatron-LM requests one more than 1,000 / 100 evaluations
            test     10 * 8 = 80

        Source: Megatron-LM core_v0.16.1 `training/training.py` (get_train_valid_test_num_samples).

        Args:
            iterations: Iterations of a phase of the run, which only train depends on; None takes
                those of the whole run.

        Returns:
            Split → samples, without splits that it does not read.
        """
        # Megatron-LM requests one evaluation every `eval_interval` iterations, and one more.
        evaluations = self.iterations // self.eval_interval + 1
        steps: dict[SplitName, int] = {
            "train": self.iterations if iterations is None else iterations,
            "valid": evaluations * self.eval_iters,
            "test": self.eval_iters,
        }
        samples: dict[SplitName, int] = {}
        for split, n_steps in steps.items():
            if n_steps > 0:
                samples[split] = n_steps * self.global_batch_size
        return samples


def recorded_batch_size(schedule: Sequence[int]) -> int:
    """Return how many samples an iteration reads: 64, if a recipe lists [1000, 64, 100, 10].

    Args:
        schedule: The option `schedule` of the recipe of a handoff; see `ScheduleSpec.recorded`.
    """
    return schedule[NUMBERS_OF_SCHEDULE.index("global_batch_size")]


@dataclass(frozen=True, slots=True)
class NanosetSpec(Section):
    """A blend of corpora, cut into samples of one length, in a fixed order.

    It is divided into train, valid and test.
    """

    sequence_length: Annotated[int, Range(1, 2**31 - 2)] = field(metadata={"example": 2048})
    """Tokens in a sample. One more token is read, for the labels."""
    blend: BlendSpec | None = None
    """A corpus, a list of corpora (each in full), or corpora with weights. `split` divides it."""
    mix: Mix | None = None
    """Instead of `blend`: a tree of corpora and groups of them, with shares, floors, caps, and
    targets in tokens.
    """
    blend_per_split: Mapping[SplitName, BlendSpec | None] = field(default_factory=FrozenDict)
    """A blend for each split, instead of `blend` and `split`."""
    phases: tuple[PhaseSpec, ...] = ()
    """Blends that follow one another in one run, instead of `blend`. Each becomes a nanoset of its
    own.
    """
    continue_: bool = False
    """Whether each of the `phases` continues with the samples of a corpus where the earlier phases
    stopped.
    """
    continue_from: ContinueSpec | None = None
    """The run that continues with this blend. `schedule` or `samples` are those of the whole run.
    """
    split: str | None = None
    """Shares of train, valid and test; absent = "969,30,1"."""
    seed: Annotated[int, Range(0, 2**32 - 1)] = DEFAULT_SEED
    """Seed of every shuffle."""
    samples: Mapping[SplitName, Annotated[int, Range(1, 1 << 62)]] = field(
        default_factory=FrozenDict
    )
    """Number of samples of each split; absent = one epoch. With weights an epoch ends when the
    first corpus is used up: `nanoset map` and `build` report how many tokens of the others are
    unused. Exceptions are valid and test of preset nanotron, and train of nanotron-main: their
    epoch has as many samples as all corpora together, so some corpora are read more than once.
    """
    schedule: ScheduleSpec | None = None
    """The trainer's run, instead of `samples`."""
    max_epochs: Epochs | Mapping[str, Epochs] | None = None
    """How often documents of a corpus may be read at most, on average, for all corpora or for
    some; absent = any number of times. If several members of the blend contain a document, all of
    them count.
    """
    on_exhaustion: Policy = "raise"
    """What happens if a corpus would be read more often than `max_epochs`."""
    held_out: Literal["warn", "block"] | None = None
    """What happens if train contains a document of valid or test, or one with the same tokens:
    a warning, or nothing is made that trains on it. Absent = a warning if the same document of a
    corpus is on both sides.
    """
    preset: Literal[
        "megatron",
        "megatron-0.10",
        "nemo",
        "nanotron",
        "nanotron-000",
        "nanotron-main",
        "nanotron-main-bytes",
    ] = "megatron"
    """Trainer whose index files are matched bit for bit; nanotron's main reads `exports` of format
    datatrove.
    """
    scales: tuple[Annotated[float, Range(1e-9, 0.999)], ...] = ()
    """Sizes of smaller runs, such as [0.01, 0.1], that repeat documents as often as this one. Each
    becomes a nanoset of its own, such as NAME-scale-0_01, with a part of the documents.
    """
    packing: PackingSpec | None = None
    """Fit whole documents into samples by best-fit packing instead of cutting one long stream."""
    trainer_path: str | None = None
    """How the trainer spells the output root, which is part of its cache names. Absent = the
    root's absolute path.
    """
    trainer_python: str | None = None
    """Version of Python that the trainer runs on, in quotes, such as "3.12" (preset nemo). From
    3.12 on, Python adds up the shares of `split` differently, so that some sequences change splits.
    Absent = a version before 3.12.
    """
    trainer: TrainerSpec | None = None
    """Megatron-LM's version and tokenizer options, which are part of its cache names. START.md has
    the lines to write.
    """
    tokenizer_identifiers: Mapping[str, Any] | str = field(default_factory=FrozenDict)
    """Instead of `trainer`: its tokenizer.unique_identifiers, or a file that contains them, such as
    a …-description.txt that the trainer wrote.
    """
    reset_position_ids: bool = False
    """Whether positions start at 0 again after an end of document, in `load_nanoset` and for the
    trainer.
    """
    reset_attention_mask: bool = False
    """Whether attention stops at an end of document; needs `create_attention_mask`."""
    eod_mask_loss: bool = False
    """Whether the loss leaves out end-of-document tokens."""
    create_attention_mask: bool = False
    """Whether `load_nanoset` adds an attention mask to each sample (Megatron-LM does by default).
    """
    inter_document_masking: bool = False
    """Whether samples say where documents start, so that attention and positions stay within a
    document (Megatron-LM from core 0.19 on).
    """

    @property
    def data(self) -> BlendSpec | None:
        """The data that all splits share, see `blend_or_members`; None if there is none."""
        return blend_or_members(self.blend, self.mix)

    def blend_of(self, split: SplitName) -> BlendSpec | None:
        """Return the corpora that one split reads, with their weights if there are any.

        Args:
            split: `train`, `valid` or `test`.

        Returns:
            The data that all splits share; or, if each has a blend of its own, that of the split.
            None if the split has none.
        """
        return self.blend_per_split.get(split) if self.blend_per_split else self.data

    @property
    def trained_corpora(self) -> tuple[str, ...]:
        """The corpora, or selections of them, that are used for training.

        blend: web, split: "98,2,0"                   ("web",): train gets 98 %
        blend: web, split: "0,100,0"                  (): train gets nothing
        blend_per_split: {train: web, valid: wiki}    ("web",): wiki is only for validation
        """
        corpora = corpora_of(self.blend_of("train"))
        if not self.shares:
            return corpora  # train reads all of them
        share_of_train = parse_split(self.shares)[0]
        return corpora if share_of_train > 0 else ()

    @property
    def corpora(self) -> tuple[str, ...]:
        """Every corpus of any split or phase, each once, in the order of nanoset.yaml."""
        blends = [self.data]
        if self.data is None:
            blends = [phase.data for phase in self.phases]
        blends.extend(self.blend_per_split.values())
        corpora: dict[str, None] = {}
        for blend in blends:
            corpora |= dict.fromkeys(corpora_of(blend))
        return tuple(corpora)

    @property
    def is_blended(self) -> bool:
        """Whether any split is a mixture."""
        if get_preset(self.preset).always_blends:
            return True
        return any(is_blended(self.blend_of(split)) for split in SPLITS)

    @property
    def shares(self) -> str | None:
        """Shares of train, valid and test, or None if each has data of its own."""
        preset = get_preset(self.preset)
        if not preset.has_splits:
            return "1,0,0"  # all samples are for training
        if self.blend_per_split:
            return None
        split = self.split or DEFAULT_SPLIT
        if preset.removes_spaces_in_split:
            split = "".join(split.split())
        return split

    @property
    def masks(self) -> tuple[str, ...]:
        """The options for masking at ends of documents that are set."""
        return tuple(name for name in MASKS if getattr(self, name))

    @property
    def transitions(self) -> list[int]:
        """Iterations at which one phase ends and the next begins."""
        return [phase.until for phase in self.phases[:-1] if phase.until is not None]

    @property
    def phase_bounds(self) -> list[int]:
        """Iterations at which phases begin and end, from 0 to the end of the run."""
        end = self.schedule.iterations if self.schedule else 0
        return [0, *self.transitions, end]

    def resolved_names(self, name: str) -> list[str]:
        """Return the names under which the data of a training run is built.

        Usually this is the name of its section in nanoset.yaml. If the run changes its data on the
        way, the section has phases, and each phase is built separately:

            no phases       "pretrain"   → ["pretrain"]
            two phases      "pretrain"   → ["pretrain-phase-1", "pretrain-phase-2"]

        Args:
            name: Name of the section.
        """
        if not self.phases:
            return [name]
        return [f"{name}-phase-{number}" for number in range(1, len(self.phases) + 1)]

    def broken_rules(self, where: str) -> Iterator[ConfigError]:
        """Yield an error for each setting that contradicts or lacks another one of this nanoset."""
        # There are so many rules that they have a file of their own, which imports this class.
        from nanoset_core.stages.mappings.rules import nanoset_errors

        yield from nanoset_errors(where, self)

    def epoch_limit(self, corpus: str) -> float | None:
        """Return how often the documents of a corpus may be read at most in a training run.

            max_epochs: 4                → 4 for each corpus (a collection of texts)
            max_epochs: {web: 4}         → 4 for web, and None for others: no limit

        Args:
            corpus: Name of a corpus, or of a view, which selects some of its documents.

        Returns:
            A number of epochs, such as 4.0; None if `max_epochs` does not limit the corpus.
        """
        limits = self.max_epochs
        if isinstance(limits, Mapping):
            return limits.get(corpus)
        return limits


@dataclass(frozen=True, slots=True)
class ExpandedNanosets:
    """Nanosets in which shorthands are written out, and the views that these stand for."""

    nanosets: Mapping[str, NanosetSpec]
    views: Mapping[str, ViewSpec]
    """All views of the project: those of nanoset.yaml, and those that shorthands stand for."""
    errors: list[ConfigError]
    """Mistakes in the keys of the shorthands. If there are any, the rest cannot be used."""
