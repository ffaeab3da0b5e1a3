"""Settings of nanosets (training sets), their checks, and how a run in phases becomes one nanoset for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from nanoset_core.errors import ConfigError, raised
from nanoset_core.outputs.names import check_asset_name, check_corpora
from nanoset_core.records.parsing import FrozenDict, Rule, broken, freeze
from nanoset_core.records.settings import Range
from nanoset_core.sampling.config import DEFAULT_SEED, DEFAULT_SPLIT, DOCUMENTS, END_MASKS, MASKS, check_masks
from nanoset_core.sampling.coverage import Policy
from nanoset_core.sampling.mixture import MixPart
from nanoset_core.sampling.planned import read_identifiers
from nanoset_core.sampling.presets import get_preset
from nanoset_core.sampling.splits import SPLITS, SplitName, parse_split
from nanoset_core.stages.handoff.trainer_settings import DOCUMENTS_SINCE, TrainerSpec
from nanoset_core.stages.mappings.mix_settings import Mix, mix_errors, sources, unweighted
from nanoset_core.stages.packs.settings import PackingSpec
from nanoset_core.stages.shards.framing import adds_template
from nanoset_core.stages.shards.settings import TokenizationSpec
from nanoset_core.storage.paths import expanded

_TEXTS = {
    "data": (
        "the data must be given once",
        "name the corpora, for example blend: {web: 0.8, code: 0.2}",
        "one of blend, mix, blend_per_split, phases",
    ),
    "weight": ("a weight is 0 or negative", "give it a share, or leave the corpus out of the blend"),
    "split": ("split cuts a blend that all splits share; here each has its own", "remove it"),
    "no data": ("no split has data", "give train a blend at least"),
    "per split": ("this trainer cannot take a blend for each split", "give `blend` and `split`"),
    "schedule": ("phases are counted in iterations, which need a schedule", "add it, with the trainer's numbers"),
    "phases": (
        "phases must follow one another",
        "give each phase but the last an `until` above that of the phase before, and below schedule.iterations",
    ),
    "samples": ("samples and schedule both give the number of samples", "keep one of them"),
    "continue": ("the phases before the first are not known", "give `phases`, or `continue_from` in place of it"),
    "one phase": ("phases and continue_from both say what came before", "keep one of them"),
    "goes on": (
        "this trainer cannot go on with another blend without repeating samples",
        "remove the key, or use preset megatron, megatron-0.10 or nemo",
    ),
    "no weights": (
        "a blend without weights has no shares to go on with",
        "give each corpus a weight, for example {web: 0.8, code: 0.2}",
    ),
    "unnamed": (
        "the trainer would not find the index files of a run that goes on, and build its own, which repeat samples",
        "add `trainer`, with its version and tokenizer options, or `tokenizer_identifiers`",
    ),
    "no samples": ("a run that goes on needs the number of its samples", "add `schedule`, or `samples: {train: …}`"),
    "max_epochs": ("this corpus is not in the blend", "name a corpus of the blend, or remove the key"),
    "no ends": (
        "this option looks for end-of-document tokens, and no document has one",
        "set tokenization.append_eod to true, or remove the key",
    ),
    "mask": ("this trainer has no such option, or fails with it", "remove the key"),
    "identifiers": ("trainer and tokenizer_identifiers both give the tokenizer's identifiers", "keep one of them"),
    "no hash": ("the cache names of this trainer do not hold its tokenizer", "remove the key"),
    "version": (
        "the preset is that of another version of megatron-core",
        "set preset to megatron-0.10 for core 0.9 and 0.10, to megatron for newer ones",
    ),
    "windows": ("this trainer reads whole folders, in one stage: it has no splits and phases", "remove the key"),
    "share": ("samples are asked of a split that gets no documents", "give it a share in `split`, or remove the key"),
}
"""Rule of a nanoset → what is wrong, and the remedy; see `broken`."""

BlendSpec = str | tuple[str, ...] | Mapping[str, float]
"""A corpus, a list of corpora (each in full), or corpora with weights."""
Epochs = Annotated[float, Range(1, 1e6)]
Iterations = Annotated[int, Range(1, 1 << 40)]


def corpora_of(blend: BlendSpec | None) -> tuple[str, ...]:
    """Return the corpora of a blend, in the order given."""
    if blend is None:
        return ()
    return (blend,) if isinstance(blend, str) else tuple(blend)


def is_blended(blend: BlendSpec | None) -> bool:
    """Return whether there is a mixture to build: one corpus without a weight is a plain dataset, as in Megatron-LM."""
    return isinstance(blend, Mapping) or len(corpora_of(blend)) > 1


@dataclass(frozen=True, slots=True)
class PhaseSpec:
    """One phase of a training run: from where the one before ended to `until`."""

    blend: BlendSpec | None = None
    """What is read in this phase: a corpus, a list of corpora, or corpora with weights."""
    until: int | None = None
    """Iteration at which it ends, exclusive (Megatron-LM's --phase-transition-iterations); absent for the last."""
    mix: Mix | None = None
    """Instead of `blend`: a tree of corpora, as `mix` of a nanoset; its tokens and epochs are those of the phase."""

    def __post_init__(self) -> None:
        if self.blend is None:
            object.__setattr__(self, "blend", unweighted(self.mix))


@dataclass(frozen=True, slots=True)
class ContinueSpec:
    """The run that a nanoset goes on with: what it has read is not read again."""

    handoff: str = field(metadata={"example": "data/nanosets/pretrain/handoff/0a1b2c3d4e5f60718293"})
    """Folder of the version of a handoff that the run was started with."""
    consumed_samples: Annotated[int, Range(0, 1 << 62)] = field(metadata={"example": 2_560_000})
    """Samples of train that the run has consumed, of all ranks (Megatron-LM prints them with each iteration)."""


@dataclass(frozen=True, slots=True)
class ScheduleSpec:
    """The trainer's run, from which the number of samples follows."""

    iterations: Iterations = field(metadata={"example": 100_000})
    """Training steps (--train-iters)."""
    global_batch_size: Annotated[int, Range(1, 1 << 24)] = field(metadata={"example": 512})
    """Samples of a step (--global-batch-size)."""
    eval_interval: Iterations = 1000
    """Steps between evaluations (--eval-interval)."""
    eval_iters: Annotated[int, Range(0, 1 << 24)] = 100
    """Steps of an evaluation (--eval-iters)."""

    def samples(self, iterations: int | None = None) -> dict[SplitName, int]:
        """Return split → samples that the trainer asks for, after Megatron-LM's `get_train_valid_test_num_samples`.

        Args:
            iterations: those of a phase; None is all.
        """
        evaluations = self.iterations // self.eval_interval + 1
        steps: dict[SplitName, int] = {
            "train": self.iterations if iterations is None else iterations,
            "valid": evaluations * self.eval_iters,
            "test": self.eval_iters,
        }
        return {split: count * self.global_batch_size for split, count in steps.items() if count}


@dataclass(frozen=True, slots=True)
class NanosetSpec:
    """One training set: a blend of corpora, cut into samples, in a fixed order."""

    sequence_length: Annotated[int, Range(1, 2**31 - 2)] = field(metadata={"example": 2048})
    """Tokens in a sample; one more is read, for the labels."""
    blend: BlendSpec | None = None
    """A corpus, a list of corpora (each in full), or corpora with weights; cut by `split`."""
    mix: Mix | None = None
    """Instead of `blend`: a tree of corpora and groups of them, with shares, floors, caps, and targets in tokens."""
    blend_per_split: Mapping[SplitName, BlendSpec | None] = field(default_factory=FrozenDict)
    """Split → its own blend, instead of `blend` and `split`."""
    phases: tuple[PhaseSpec, ...] = ()
    """Blends that follow one another in one run, instead of `blend`; each becomes a nanoset of its own."""
    continue_: bool = False
    """Whether each of the `phases` goes on with the samples of a corpus where the ones before it stopped."""
    continue_from: ContinueSpec | None = None
    """The run that goes on with this blend; `schedule` or `samples` are those of the whole run."""
    split: str | None = None
    """Shares of train, valid and test; absent = "969,30,1"."""
    seed: Annotated[int, Range(0, 2**32 - 1)] = DEFAULT_SEED
    """Seed of every shuffle."""
    samples: Mapping[SplitName, Annotated[int, Range(1, 1 << 62)]] = field(default_factory=FrozenDict)
    """Split → samples; absent = one epoch. With weights an epoch ends when the first corpus is used up: `nanoset map`
    and `build` say how many tokens of the others are unused."""
    schedule: ScheduleSpec | None = None
    """The trainer's run, instead of `samples`."""
    max_epochs: Epochs | Mapping[str, Epochs] | None = None
    """How often documents of a corpus may be read at most, for all corpora or for some; absent = any number of times.
    All members of the blend that hold a document (the corpus, views, packs) count."""
    on_exhaustion: Policy = "raise"
    """What happens where a corpus would be read more often than `max_epochs`."""
    held_out: Literal["warn", "block"] | None = None
    """What a document of valid or test means that train reads too, or a document with the same tokens: a warning, or
    nothing is made that trains on it. Absent = a warning where the same document of a corpus is on both sides."""
    preset: Literal[
        "megatron", "megatron-0.10", "nemo", "nanotron", "nanotron-000", "nanotron-main", "nanotron-main-bytes"
    ] = "megatron"
    """Trainer whose index files are matched bit for bit; nanotron's main reads `exports` of format datatrove."""
    packing: PackingSpec | None = None
    """Lay documents whole into samples: its corpora are read as `packs` of `sequence_length`."""
    trainer_path: str | None = None
    """How the trainer spells the output root; goes into its cache names. Absent = the root's absolute path."""
    trainer_python: str | None = None
    """Python that the trainer runs, in quotes, such as "3.12" (preset nemo): from 3.12 on it adds the shares of `split`
    up otherwise, and some sequences change splits. Absent = one before 3.12."""
    trainer: TrainerSpec | None = None
    """Megatron-LM's version and tokenizer options, which go into its cache names; START.md has the lines to write."""
    tokenizer_identifiers: Mapping[str, Any] | str = field(default_factory=FrozenDict)
    """Instead of `trainer`, its tokenizer.unique_identifiers; or a file that holds them, such as a …-description.txt
    that the trainer wrote."""
    reset_position_ids: bool = False
    """Whether positions begin again after an end of document, in `load_nanoset` and for the trainer."""
    reset_attention_mask: bool = False
    """Whether attention stops at an end of document; needs `create_attention_mask`."""
    eod_mask_loss: bool = False
    """Whether the loss leaves out end-of-document tokens."""
    create_attention_mask: bool = False
    """Whether `load_nanoset` gives each sample its attention mask (Megatron-LM makes one by default)."""
    inter_document_masking: bool = False
    """Whether samples tell where documents begin, so that attention and positions stay within one (Megatron-LM from
    core 0.19 on)."""
    span: tuple[int, int] | None = field(default=None, init=False)
    """Iterations of the phase that it is, (begin, end excl); set by `resolved`."""
    after: str | None = field(default=None, init=False)
    """Name of the phase that it goes on from; set by `resolved`."""
    earlier: tuple[str, ...] = field(default=(), init=False)
    """Corpora of the phases that it goes on from; set by `resolved`."""

    def __post_init__(self) -> None:
        if self.blend is None:  # until the weights are worked out
            object.__setattr__(self, "blend", unweighted(self.mix))

    @property
    def mixture(self) -> MixPart | None:
        """The tree that decides the weights of `blend`."""
        return None if self.mix is None else MixPart(mix=self.mix)

    def blend_of(self, split: SplitName) -> BlendSpec | None:
        """Return the blend of one split; None where it has no data of its own."""
        return self.blend_per_split.get(split) if self.blend_per_split else self.blend

    def corpora_of(self, split: SplitName) -> tuple[str, ...]:
        """Return the corpora that a split depends on: its own; all where it has no data, or where the folder of all
        splits' index files is named after them, or is that of a run that goes on.
        """
        if self.goes_on:
            return tuple(dict.fromkeys((*self.corpora, *self.earlier)))
        own = corpora_of(self.blend_of(split)) if get_preset(self.preset).names_tell_versions else ()
        return own or self.corpora

    @property
    def goes_on(self) -> bool:
        """Whether train goes on where a run, or the phases before, stopped."""
        return self.after is not None or self.continue_from is not None

    def trains_on(self, corpus: str) -> bool:
        """Return whether train reads a corpus."""
        return corpus in corpora_of(self.blend_of("train")) and (not self.shares or parse_split(self.shares)[0] > 0)

    @property
    def corpora(self) -> tuple[str, ...]:
        """Every corpus of any split, each once, in the order given; while phases are not resolved, of any phase."""
        shared = [self.blend] if self.blend is not None else [phase.blend for phase in self.phases]
        blends = (*shared, *self.blend_per_split.values())
        return tuple(dict.fromkeys(corpus for blend in blends for corpus in corpora_of(blend)))

    @property
    def is_blended(self) -> bool:
        """Whether any split is a mixture."""
        return get_preset(self.preset).windows or any(is_blended(self.blend_of(split)) for split in SPLITS)

    @property
    def shares(self) -> str | None:
        """Shares of train, valid and test; None where each has data of its own."""
        if get_preset(self.preset).windows:
            return "1,0,0"
        split = self.split or DEFAULT_SPLIT
        if get_preset(self.preset).hashes_tokenizer:
            split = "".join(split.split())  # Megatron-LM hashes the text, and its command line is cut at spaces
        return None if self.blend_per_split else split

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
        return [0, *self.transitions, self.schedule.iterations if self.schedule else 0]

    def epoch_limit(self, corpus: str) -> float | None:
        """Return how often a corpus may be read at most."""
        limits = self.max_epochs
        return limits.get(corpus) if isinstance(limits, Mapping) else limits


def resolved(nanosets: Mapping[str, NanosetSpec], file: Path) -> FrozenDict[str, NanosetSpec]:
    """Return nanosets with numbers of samples, identifiers and single phases instead of schedules, files and lists.

    Args:
        nanosets: name → spec, as nanoset.yaml holds them; each phase becomes the nanoset `<name>-phase-<n>`.
        file: the nanoset.yaml, where relative paths start.

    Raises:
        ConfigError: a file holds no identifiers.
    """
    named = ((name, _with_identifiers(spec, file, f"{file}: nanosets.{name}")) for name, spec in nanosets.items())
    return FrozenDict(found for name, spec in named for found in _resolved(name, spec))


def _with_identifiers(spec: NanosetSpec, file: Path, where: str) -> NanosetSpec:
    if spec.trainer is not None:
        return replace(spec, tokenizer_identifiers=freeze(spec.trainer.identifiers()))
    if isinstance(spec.tokenizer_identifiers, Mapping):
        return spec
    path = file.parent / expanded(spec.tokenizer_identifiers, f"{file}: tokenizer_identifiers")
    identifiers = read_identifiers(path, f"{where}.tokenizer_identifiers")
    return replace(spec, tokenizer_identifiers=freeze(identifiers))


def _resolved(name: str, spec: NanosetSpec) -> Iterator[tuple[str, NanosetSpec]]:
    if not spec.phases:
        yield name, _with_samples(spec, None)
        return
    before: list[str] = []
    for number, (phase, span) in enumerate(zip(spec.phases, pairwise(spec.phase_bounds), strict=True), start=1):
        one = _with_samples(replace(spec, blend=phase.blend, mix=phase.mix), span[1] - span[0])
        object.__setattr__(one, "span", span)
        if spec.continue_ and number > 1:
            object.__setattr__(one, "after", f"{name}-phase-{number - 1}")
            object.__setattr__(one, "earlier", tuple(dict.fromkeys(before)))
        before += corpora_of(phase.blend)
        yield f"{name}-phase-{number}", one


def _with_samples(spec: NanosetSpec, iterations: int | None) -> NanosetSpec:
    if spec.schedule is None:
        return spec
    rules = get_preset(spec.preset)
    shares = dict(zip(SPLITS, parse_split(spec.shares), strict=True)) if spec.shares else {}
    asked = {
        split: count
        for split, count in spec.schedule.samples(iterations).items()
        if rules.takes_samples(split) and spec.blend_of(split) is not None and shares.get(split, 1) > 0
    }
    return replace(spec, samples=FrozenDict(asked))


def nanoset_errors(file: Path, name: str, nanoset: NanosetSpec) -> Iterator[ConfigError]:
    """Yield an error for each setting that excludes another one, lacks one that it needs, or selects no data."""
    where = f"{file}: nanosets.{name}"
    yield from raised(check_asset_name, name, where)
    data = [("", nanoset.blend, nanoset.mix)]
    data += [(f".phases[{number}]", phase.blend, phase.mix) for number, phase in enumerate(nanoset.phases)]
    blends = [(f"{key}.{'blend' if mix is None else 'mix'}"[1:], blend) for key, blend, mix in data]
    blends += [(f"blend_per_split.{split}", blend) for split, blend in nanoset.blend_per_split.items()]
    for key, blend in blends:
        if blend is not None:
            yield from raised(check_corpora, file, f"nanosets.{name}.{key}", corpora_of(blend))
        if isinstance(blend, Mapping) and sum(blend.values()) == 0 < len(blend):
            yield ConfigError("the weights sum to 0", where=f"{where}.{key}", remedy="give each corpus a share")
        elif isinstance(blend, Mapping):
            of = [(weight <= 0, "weight", f".{key}.{corpus}", weight) for corpus, weight in blend.items()]
            yield from broken(where, _TEXTS, *of)
    yield from broken(where, _TEXTS, *_data_rules(nanoset))
    yield from mix_errors(where, data, nanoset.schedule or nanoset.samples.get("train"), nanoset.max_epochs)
    yield from _preset_errors(where, nanoset)
    yield from _sample_errors(where, nanoset)


def _data_rules(nanoset: NanosetSpec) -> Iterator[Rule]:
    """Yield the rules of where the data comes from, as `broken` takes them."""
    given = [
        *sources(nanoset.blend, nanoset.mix),
        *(key for key in ("blend_per_split", "phases") if getattr(nanoset, key)),
    ]
    yield len(given) != 1, "data", "", " and ".join(given) or "none of them"
    if nanoset.blend_per_split:
        preset = get_preset(nanoset.preset)
        yield nanoset.split is not None, "split", ".split", nanoset.split
        yield not nanoset.corpora, "no data", ".blend_per_split", None
        yield not preset.per_split_blends, "per split", ".blend_per_split", f"preset {nanoset.preset}"
    if nanoset.phases:
        bounds, ends = nanoset.phase_bounds, [phase.until for phase in nanoset.phases]
        in_order = all(begin < end for begin, end in pairwise(bounds))
        wrong = None in ends[:-1] or ends[-1] not in (None, bounds[-1]) or not in_order
        found = f"until {', '.join(map(str, ends))} of {bounds[-1]} iterations"
        yield nanoset.schedule is None, "schedule", ".schedule", None
        yield nanoset.schedule and wrong, "phases", ".phases", found
    yield nanoset.schedule and nanoset.samples, "samples", "", "both"
    yield from _continue_rules(nanoset)
    for corpus in nanoset.max_epochs if isinstance(nanoset.max_epochs, Mapping) else ():
        yield corpus not in nanoset.corpora, "max_epochs", f".max_epochs.{corpus}", None


def _continue_rules(nanoset: NanosetSpec) -> Iterator[Rule]:
    asked = (nanoset.continue_ and nanoset.phases) or nanoset.continue_from
    key = ".continue_from" if nanoset.continue_from else ".continue"
    yield nanoset.continue_ and not nanoset.phases, "continue", ".continue", None
    yield nanoset.continue_from and nanoset.phases, "one phase", "", "both"
    rules, blends = get_preset(nanoset.preset), [nanoset.blend_of("train"), *(phase.blend for phase in nanoset.phases)]
    yield asked and not rules.goes_on, "goes on", key, f"preset {nanoset.preset}"
    named = nanoset.trainer is not None or nanoset.tokenizer_identifiers
    yield asked and rules.hashes_tokenizer and not named, "unnamed", ".trainer", None
    plain = [blend for blend in blends if isinstance(blend, tuple) and len(blend) > 1]
    yield asked and plain, "no weights", key, plain[0] if plain else None
    has_samples = nanoset.schedule or "train" in nanoset.samples or nanoset.phases
    yield asked and not has_samples, "no samples", key, None


def _preset_errors(where: str, nanoset: NanosetSpec) -> Iterator[ConfigError]:
    """Errors of options that the trainer does not have."""
    preset, found = get_preset(nanoset.preset), f"preset {nanoset.preset}"
    alien = [key for key in ("split", "phases") if getattr(nanoset, key)] if preset.windows else []
    yield from broken(where, _TEXTS, *((True, "windows", f".{key}", found) for key in alien))
    for error in raised(preset.compensates, nanoset.trainer_python):
        yield error.at(f"{where}.trainer_python", "remove the key, or correct it")
    yield from broken(where, _TEXTS, *((name not in preset.masks, "mask", f".{name}", found) for name in nanoset.masks))
    for error in raised(check_masks, nanoset.masks):
        yield error.at(f"{where}.{error.where}")
    if nanoset.trainer is not None:
        errors = [*trainer_errors(f"{where}.", nanoset.trainer, nanoset.preset, nanoset.tokenizer_identifiers)]
        yield from errors
        is_older = nanoset.inter_document_masking and not errors and nanoset.trainer.minor < DOCUMENTS_SINCE
        found = f"megatron_core {nanoset.trainer.megatron_core}"
        yield from broken(where, _TEXTS, (is_older, "mask", f".{DOCUMENTS}", found))


def end_token_errors(
    file: Path, nanosets: Mapping[str, NanosetSpec], tokenization: TokenizationSpec
) -> Iterator[ConfigError]:
    """Yield an error for each mask that looks for end-of-document tokens although documents get none.

    If the tokenizer's own template is added, it may end documents; its file is not read here.
    """
    if tokenization.append_eod or adds_template(tokenization.preset, tokenization.special_tokens):
        return
    for name, nanoset in nanosets.items():
        masks = [mask for mask in END_MASKS if getattr(nanoset, mask)]
        rules = [(True, "no ends", f".{mask}", "tokenization.append_eod: false") for mask in masks]
        yield from broken(f"{file}: nanosets.{name}", _TEXTS, *rules)


def trainer_errors(where: str, trainer: TrainerSpec, preset: str, identifiers: object) -> Iterator[ConfigError]:
    """Yield an error for each setting of a trainer that it lacks, or that contradicts others.

    Args:
        where: what comes before the keys `trainer` and `preset`.
        trainer: the settings.
        preset: name of the preset.
        identifiers: those of the tokenizer, if they are given too.
    """
    hashes, found = get_preset(preset).hashes_tokenizer, f"preset {preset}"
    yield from broken(
        where,
        _TEXTS,
        (identifiers, "identifiers", "trainer", "both"),
        (not hashes, "no hash", "trainer", found),
    )
    if errors := raised(trainer.arguments):
        yield errors[0].at(f"{where}trainer.{errors[0].where}")
    elif hashes:
        is_old, at = trainer.minor <= 10, f"{found}, megatron_core {trainer.megatron_core}"
        yield from broken(where, _TEXTS, (is_old != (preset == "megatron-0.10"), "version", "preset", at))


def _sample_errors(where: str, nanoset: NanosetSpec) -> Iterator[ConfigError]:
    if nanoset.split is not None and nanoset.shares is not None:
        # The text as it is written: `shares` of Megatron-LM has no spaces, so that "98 1 1" would be one number.
        check = partial(parse_split, exactly_three=get_preset(nanoset.preset).exactly_three_shares)
        if errors := raised(check, nanoset.split):
            yield errors[0].at(f"{where}.split", errors[0].remedy)
            return
    shares = (1.0, 1.0, 1.0) if nanoset.shares is None else parse_split(nanoset.shares)
    found = f"split {nanoset.shares!r}" if nanoset.shares else "no blend for it"
    for split, share in zip(SPLITS, shares, strict=True):
        is_empty = share == 0 or (nanoset.blend_per_split and nanoset.blend_of(split) is None)
        yield from broken(where, _TEXTS, (split in nanoset.samples and is_empty, "share", f".samples.{split}", found))
