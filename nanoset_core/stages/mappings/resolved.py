"""Nanosets as stages use them: each phase of a run is a nanoset, and a schedule is its samples.

A nanoset of nanoset.yaml with the key `phases`

    nanosets:
      pretrain:
        schedule: {iterations: 1000, global_batch_size: 8}
        continue: true
        phases: [{blend: web, until: 600}, {blend: [web, code]}]

is resolved to two nanosets, with names, iterations and data

    pretrain-phase-1    0 to 600       web
    pretrain-phase-2    600 to 1000    web and code; continues pretrain-phase-1

Settings never change: resolving makes new objects of another type from those that were read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from nanoset_core.records.frozen import FrozenDict, freeze
from nanoset_core.records.settings import NOT_A_KEY
from nanoset_core.sampling.descriptions import read_identifiers
from nanoset_core.sampling.mix_tree import MixPart
from nanoset_core.sampling.presets import get_preset
from nanoset_core.sampling.splits import SPLITS, SplitName, parse_split
from nanoset_core.stages.mappings.settings import NanosetSpec, corpora_of
from nanoset_core.storage.paths import expanded


@dataclass(frozen=True, slots=True)
class ResolvedNanoset(NanosetSpec):
    """A nanoset, or one phase of a run, whose settings need no further look at nanoset.yaml.

    Of the keys that exclude each other, `blend` is set if `mix` is: to the corpora of the mixture,
    until their weights are computed. `samples` is set if `schedule` is, and `tokenizer_identifiers`
    is a mapping, also if nanoset.yaml names a file or the trainer's options.
    """

    tokenizer_identifiers: Mapping[str, Any] = field(default_factory=FrozenDict)
    """The trainer's tokenizer.unique_identifiers, which are part of the names of its index files.
    """
    span: tuple[int, int] | None = field(default=None, metadata=NOT_A_KEY)
    """(start, stop) of the phase in iterations of the run; None if the nanoset is no phase."""
    previous_phase: str | None = field(default=None, metadata=NOT_A_KEY)
    """Name of the phase that it continues: it does not read again what that phase has read. None if
    it continues no phase.
    """
    earlier_corpora: tuple[str, ...] = field(default=(), metadata=NOT_A_KEY)
    """Corpora of all phases before it, if it continues the previous phase."""

    @property
    def mixture(self) -> MixPart | None:
        """The tree of shares that decides the weights of `blend`, or None if they are written."""
        return None if self.mix is None else MixPart(mix=self.mix)

    @property
    def continues_run(self) -> bool:
        """Whether train continues where another run, or the phase before, stopped."""
        return self.previous_phase is not None or self.continue_from is not None

    def corpora_of(self, split: SplitName) -> tuple[str, ...]:
        """Return the corpora whose changes make the index files of a split out of date.

        Suppose that train reads web and code, and valid reads wiki. Then for valid:

            situation                                         result
            most trainers                                     wiki, which valid reads
            a trainer that gives the index files of all       web, code, wiki
              versions of a corpus the same names, as NeMo
            a run that has read books before, and continues   web, code, wiki, books
              with these corpora

        In the last two situations, the index files of all splits are in a folder that is named
        after the versions of all corpora. Test reads nothing. Such a split counts as if it read
        web, code and wiki.

        Args:
            split: `train`, `valid` or `test`.

        Returns:
            Names of corpora or views (selections of a corpus's documents), each once.
        """
        all_corpora = self.corpora  # of all splits
        if self.continues_run:
            return tuple(dict.fromkeys((*all_corpora, *self.earlier_corpora)))  # each once
        trainer = get_preset(self.preset)
        if not trainer.index_names_have_versions:  # such as NeMo
            return all_corpora

        corpora_of_split = corpora_of(self.blend_of(split))
        if not corpora_of_split:
            return all_corpora
        return corpora_of_split


def resolve_nanosets(nanosets: Mapping[str, NanosetSpec], file: Path) -> dict[str, ResolvedNanoset]:
    """Return the settings of all training data, with everything that they refer to filled in.

        nanoset.yaml                         result
        tune: …                              tune
        pretrain: …, with two phases         pretrain-phase-1 and pretrain-phase-2
        tokenizer_identifiers: ids.json      the content of this file: {"class": …}
        schedule: {iterations: 1000, …}      how many samples these are: {"train": 8000, …}

    The phases of a training run read different data. A tokenizer's identifiers are a part of the
    names that Megatron-LM gives to index files.

    Args:
        nanosets: Name → settings as they are written in nanoset.yaml.
        file: The nanoset.yaml. Paths in it start in its folder.

    Returns:
        Name of the training data, or of the phase → settings.

    Raises:
        ConfigError: A file of tokenizer identifiers contains none.
    """
    resolved: dict[str, ResolvedNanoset] = {}
    for name, spec in nanosets.items():
        identifiers = _tokenizer_identifiers(spec, file, where=f"{file}: nanosets.{name}")
        nanoset = _resolve(spec, identifiers)
        if nanoset.phases:
            resolved |= _nanosets_of_phases(name, nanoset)
        else:
            resolved[name] = _with_samples(nanoset)
    return resolved


def _tokenizer_identifiers(spec: NanosetSpec, file: Path, where: str) -> Mapping[str, Any]:
    """Return how the trainer identifies its tokenizer, such as `{"class": "HFTokenizer", …}`.

    Megatron-LM hashes this into the names of its index files. It comes from one of these keys:

        trainer: {…}                                    the options of Megatron-LM
        tokenizer_identifiers: {class: …}               written in nanoset.yaml
        tokenizer_identifiers: identifiers.json         a file

    Args:
        spec: The settings.
        file: The nanoset.yaml. Paths in it start in its folder.
        where: The key of the nanoset, for errors.

    Returns:
        Name of an identifier → value; empty without either key.

    Raises:
        ConfigError: The file that `tokenizer_identifiers` names contains none.
    """
    if spec.trainer is not None:
        return _frozen(spec.trainer.identifiers())

    if isinstance(spec.tokenizer_identifiers, Mapping):
        return spec.tokenizer_identifiers  # empty if the key is missing

    # The path of a file, in which `~` stands for the home folder.
    path = file.parent / expanded(spec.tokenizer_identifiers, f"{file}: tokenizer_identifiers")
    return _frozen(read_identifiers(path, f"{where}.tokenizer_identifiers"))


def _frozen(values: Mapping[str, Any]) -> FrozenDict[str, Any]:
    """Return a mapping that cannot be changed, as all settings: lists in it become tuples."""
    return FrozenDict(freeze(values))


def _resolve(spec: NanosetSpec, identifiers: Mapping[str, Any]) -> ResolvedNanoset:
    """Convert the settings of training data, as nanoset.yaml has them, to the type for later use.

    All values are the same, except for two keys:

        in nanoset.yaml                             result
        tokenizer_identifiers: ids.json             the content of this file
        mix: {web: {share: 3}, code: {…}},          blend: {"web": 1.0, "code": 1.0}. The weights
          which replaces `blend`                      are computed later, from sizes of datasets

    Args:
        spec: The settings as they are written.
        identifiers: How the trainer identifies its tokenizer, such as `{"class": …}`.
    """
    values = {key.name: getattr(spec, key.name) for key in fields(spec)}
    values["tokenizer_identifiers"] = identifiers
    values["blend"] = spec.data  # {"web": 1.0, "code": 1.0} if nanoset.yaml has a `mix`
    return ResolvedNanoset(**values)


def _nanosets_of_phases(name: str, run: ResolvedNanoset) -> dict[str, ResolvedNanoset]:
    """Return the settings of each phase of a training run, which reads other data in each phase.

        phase               data    iterations of the run
        pretrain-phase-1    web     0 to 600
        pretrain-phase-2    code    600 to 1000

    Args:
        name: Name of the run, such as "pretrain".
        run: Settings of the run, with its phases.

    Returns:
        Name of the phase → its settings.
    """
    phase_names = run.resolved_names(name)
    iteration_ranges = pairwise(run.phase_bounds)  # [0, 600, 1000] → (0, 600), (600, 1000)
    nanosets: dict[str, ResolvedNanoset] = {}
    for number, (start, stop) in enumerate(iteration_ranges):
        nanoset = _nanoset_of_phase(run, phase_names, number, (start, stop))
        nanosets[phase_names[number]] = _with_samples(nanoset, iterations=stop - start)
    return nanosets


def _nanoset_of_phase(
    run: ResolvedNanoset, phase_names: list[str], number: int, span: tuple[int, int]
) -> ResolvedNanoset:
    """Return the settings of one phase of a training run, which reads other data in each phase.

    They are those of the run, except for the data and what depends on the phases before:

        phase    blend    span             previous_phase        earlier_corpora
        0        web      (0, 600)         None                  ()
        1        code     (600, 1000)      "pretrain-phase-1"    ("web",)

    The last two are only set if the run has the key `continue: true`. Then a phase does not read
    again what the phases before it have read.

    Args:
        run: Settings of the run.
        phase_names: Name of each phase: ["pretrain-phase-1", "pretrain-phase-2"].
        number: Number of the phase, from 0 on.
        span: The iterations of the run at which the phase starts and ends.
    """
    phase = run.phases[number]
    nanoset = replace(run, blend=phase.data, mix=phase.mix, span=span)
    is_first = number == 0
    if is_first or not run.continue_:
        return nanoset

    earlier_corpora: list[str] = []
    for earlier_phase in run.phases[:number]:
        earlier_corpora += corpora_of(earlier_phase.data)
    return replace(
        nanoset,
        previous_phase=phase_names[number - 1],
        earlier_corpora=tuple(dict.fromkeys(earlier_corpora)),  # each once
    )


def _with_samples(nanoset: ResolvedNanoset, *, iterations: int | None = None) -> ResolvedNanoset:
    """Return settings with the number of samples that each split needs for the trainer's schedule.

    For example, a schedule of 1,000 iterations with 8 samples each, and two evaluations of 10
    iterations on valid:

        train     8,000
        valid     160
        test      none, if it has no share of the documents

    Args:
        nanoset: The settings. If they have no `schedule`, they are returned as they are.
        iterations: Number of iterations of a phase; None for all of the schedule.
    """
    if nanoset.schedule is None:
        return nanoset

    trainer = get_preset(nanoset.preset)
    sample_counts: dict[SplitName, int] = {}
    for split, n_samples in nanoset.schedule.samples(iterations).items():
        # Some trainers always read valid and test once, and take no number of samples for them.
        is_requested = trainer.takes_samples(split)
        if is_requested and _has_data(nanoset, split):
            sample_counts[split] = n_samples
    return replace(nanoset, samples=FrozenDict(sample_counts))


def _has_data(nanoset: ResolvedNanoset, split: SplitName) -> bool:
    """Return whether a split of the training data gets any documents.

    Either all splits share one blend of corpora, and `shares` says how they divide its documents.
    Or each split has a blend of its own, or none:

        settings                                        train  valid  test
        blend: web, split: "98,2,0"                     yes    yes    no
        blend_per_split: {train: web, test: code}       yes    no     yes

    Args:
        nanoset: The settings. Its `shares` are the text "98,2,0", or None if splits have their own.
        split: `train`, `valid` or `test`.
    """
    if nanoset.blend_of(split) is None:
        return False
    if not nanoset.shares:
        return True  # all documents of a blend of its own
    return parse_split(nanoset.shares)[SPLITS.index(split)] > 0
