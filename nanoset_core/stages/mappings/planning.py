"""planning: nanoset.yaml and the current datasets → the settings under which a nanoset is built, and its plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from nanoset_core.errors import ConfigError, InputError
from nanoset_core.loading.opening import CACHE, STAGE
from nanoset_core.outputs.manifest import Manifest, digest_of
from nanoset_core.project.project import Project
from nanoset_core.sampling.config import Blend, NanosetConfig
from nanoset_core.sampling.corpora import CorpusCoverage, MemberReads, corpus_coverage
from nanoset_core.sampling.coverage import (
    ExceededLimit,
    MemberCoverage,
    apply_epoch_limits,
    coverage,
    documents_read_too_often,
)
from nanoset_core.sampling.mixture import MixRow, mixture_of
from nanoset_core.sampling.orders import Read, orders_after, other_versions
from nanoset_core.sampling.plan import (
    BlendPlan,
    LengthReader,
    MemberPlan,
    SplitPlan,
    cannot_be_built,
    largest_epoch_size,
    no_training_sample,
    plan_split,
    too_few_tokens,
)
from nanoset_core.sampling.presets import get_preset
from nanoset_core.sampling.splits import SPLITS, SplitName, parse_split, without_share
from nanoset_core.stages.corpus_parts import DatasetParts
from nanoset_core.stages.datasets import current_dataset
from nanoset_core.stages.mappings.run_before import handoff_named, read_before
from nanoset_core.stages.mappings.settings import BlendSpec, corpora_of, is_blended
from nanoset_core.stages.views.settings import base_of, chain_of

_Part = TypeVar("_Part", MemberPlan, BlendPlan)


@dataclass(frozen=True, slots=True)
class PlannedSplit:
    """One split of a nanoset, before it is built."""

    split: SplitName
    """Which split."""
    config: NanosetConfig
    """What it is built with, limits on epochs kept."""
    plan: SplitPlan | None
    """None where the split has no share of the data, or too little for a sample."""
    members: tuple[MemberCoverage, ...]
    """What it takes of each dataset."""
    exceeded: tuple[ExceededLimit, ...]
    """Datasets that would have been read too often before limits were applied."""
    corpora: tuple[str, ...]
    """Of the members, in their order."""
    lacking: str | None
    """Why it has no sample, where it has a share of the data."""
    mixture: tuple[MixRow, ...] = ()
    """What each part of its mixture gets; of train alone, where there is one."""

    @property
    def samples(self) -> int:
        """Length of the split."""
        return 0 if self.plan is None else self.plan.samples


def cache_folder(project: Project, name: str) -> Path:
    """Return the folder of all splits and versions; file or folder names in it carry a hash."""
    return project.outputs.folder / STAGE / name / CACHE


class NanosetContext:
    """One nanoset of a project: its specification and its current datasets, each looked up once.

    So all answers are about the same versions of the datasets, even where one is replaced meanwhile.
    """

    def __init__(
        self,
        project: Project,
        name: str,
        reader: LengthReader | None = None,
        datasets: dict[str, Manifest] | None = None,
        *,
        exact: bool = True,
    ) -> None:
        """Look a nanoset up by name, or raise ConfigError.

        Args:
            project: the project.
            name: of the nanoset.
            reader: of `.idx` files, which may be shared.
            datasets: known ones by corpus, to which others are added.
            exact: False counts what earlier phases took within a sample or two a corpus, which takes no time.
        """
        self.project, self.name, self.spec, self.exact = project, name, project.nanoset(name), exact
        self.reader = LengthReader(project.outputs.access) if reader is None else reader
        self._datasets = {} if datasets is None else datasets
        self._parts: DatasetParts | None = None

    def dataset(self, corpus: str) -> Manifest:
        """Return a corpus's dataset, as it was current at the first call; MissingError where it was not made yet."""
        if corpus not in self._datasets:
            self._datasets[corpus] = current_dataset(self.project, corpus)
        return self._datasets[corpus]

    @property
    def corpus_reader(self) -> DatasetParts:
        """What finds the documents that several datasets of the nanoset hold."""
        if self._parts is None:
            datasets = {self.prefix(name): self.dataset(name) for name in self.spec.corpora}
            self._parts = DatasetParts(self.project.outputs, datasets)
        return self._parts

    def digests(self, corpora: Iterable[str]) -> dict[str, str]:
        """Return corpus → digest of its dataset; raises as `dataset`."""
        return {corpus: self.dataset(corpus).digest for corpus in corpora}

    @property
    def cache(self) -> Path:
        """The nanoset's `cache_folder`."""
        return cache_folder(self.project, self.name)

    @property
    def index_folder(self) -> str:
        """Folder below `cache`, with a slash at its end, where a trainer finds the index files of all splits.

        "" where the trainer's own names tell versions apart. NeMo's do not: the next version of a corpus would replace
        the files that a run over the present one reads. Nor do names tell where a run goes on.
        """
        if self.spec.goes_on:
            return f"goes-on-{digest_of([self.digests(self.spec.corpora_of('train')), self._settings('train')])}/"
        if get_preset(self.spec.preset).names_tell_versions:
            return ""
        made_from = [self.digests(self.spec.corpora), self.spec.shares]
        return digest_of([*made_from, "compensated sums"] if self.compensated_sums else made_from) + "/"

    @property
    def compensated_sums(self) -> bool:
        """Whether the trainer's Python adds shares up with compensation."""
        return get_preset(self.spec.preset).compensates(self.spec.trainer_python)

    @property
    def trainer_root(self) -> str:
        """How the trainer spells the output root."""
        config = self.project.config
        own = str(config.root_folder) if config.root_place is None else config.root_place.url()
        return (self.spec.trainer_path or own).rstrip("/")

    def prefix(self, corpus: str) -> str:
        """Return the path of a corpus's dataset, without .bin and .idx."""
        dataset = self.dataset(corpus)
        return str(dataset.folder / dataset.facts["prefix"])

    def trainer_prefix(self, corpus: str) -> str:
        """Return the same as the trainer spells it, which goes into its cache names."""
        dataset = self.dataset(corpus)
        return f"{self.trainer_root}/{dataset.stage}/{dataset.name}/{dataset.digest}/{dataset.facts['prefix']}"

    @property
    def tokenizer_identifiers(self) -> dict[str, Any]:
        """The trainer's tokenizer as its cache names hold it."""
        # a file of them was read when nanoset.yaml was
        return dict(cast("Mapping[str, Any]", self.spec.tokenizer_identifiers))

    def options(self, split: SplitName) -> dict[str, Any]:
        """Return the settings that reach the bytes of one split's index files, and where these lie, as JSON."""
        # the folder of all splits is named after those of train, and after the parents of the recipe
        others = self.spec.goes_on and split != "train"
        return self._settings(split) | ({"index_files": digest_of(self._settings("train"))} if others else {})

    def _settings(self, split: SplitName) -> dict[str, Any]:
        spec, limits = self.spec, self.spec.max_epochs
        options: dict[str, Any] = {
            "preset": spec.preset,
            "sequence_length": spec.sequence_length,
            "split": spec.shares,
            "seed": spec.seed,
            "trainer_path": self.trainer_root,
            "tokenizer_identifiers": self.tokenizer_identifiers,
        }
        if (before := self._before()) is not None:
            options["after"] = before
        if not get_preset(spec.preset).names_tell_versions:
            options["index_files"] = "a folder for each version"
        if self.compensated_sums:
            options["sums"] = "compensated"
        if limits is not None:
            # Where splits share one set of weights, the samples of each decide what the others get.
            limits = dict(limits) if isinstance(limits, Mapping) else limits
            options["epochs"] = {"most": limits, "then": spec.on_exhaustion, "samples": dict(spec.samples)}
        has_limits = limits is not None or (spec.mixture is not None and bool(spec.mixture.epoch_limits()))
        if has_limits and self._may_share_documents(split):
            # Earlier versions counted epochs for each member by itself.
            options["epochs_of"] = "documents"
        if spec.mixture is not None:  # whose weights are worked out for train; the blend has its order
            options |= spec.mixture.to_json() | {"mix_samples": spec.samples.get("train")}
        return options | {"samples": spec.samples.get(split), "blend": _ordered(spec.blend_of(split))}

    def _may_share_documents(self, split: SplitName) -> bool:
        """Return whether a document may have several copies in what a split reads, by nanoset.yaml alone."""
        derived = self.project.config.derived
        names = self.spec.corpora if self.spec.blend is not None else corpora_of(self.spec.blend_of(split))
        if split == "train":
            names = tuple(dict.fromkeys((*names, *self.spec.earlier)))
        corpora = [base_of(derived, name) for name in names]
        if len(set(corpora)) < len(corpora):
            return True
        views = [view for name in names if name in derived for view in chain_of(derived, name)]
        return any(self.project.config.repeats(view) for view in views)

    def _before(self) -> dict[str, Any] | None:
        """Return what a run has read before, as JSON: the phase before it, or a handoff; None where it begins."""
        if (given := self.spec.continue_from) is not None:
            return {"handoff": "/".join(handoff_named(given)), "consumed_samples": given.consumed_samples}
        return None if (phase := self._phase) is None else {"phases": digest_of(phase.options("train"))}

    @property
    def _phase(self) -> NanosetContext | None:
        """The phase before this one."""
        after = self.spec.after
        if after is None:
            return None
        return NanosetContext(self.project, after, self.reader, self._datasets, exact=self.exact)

    def _read(self) -> Read | None:
        """Return what a run has read of the phase before, or of the nanoset that it goes on from."""
        if self.spec.continue_from is not None:
            return read_before(self.project.outputs, self.spec.continue_from)
        if (phase := self._phase) is None:
            return None
        planned = phase.plan("train")
        if planned.plan is None:
            what, remedy = "the phase before has no sample of train to go on from", "give it a share in `split`"
            raise ConfigError(what, where=f"nanosets.{phase.name}", remedy=remedy)
        return Read(planned.plan, planned.config, min(phase.spec.samples["train"], planned.plan.samples))

    def _going_on(self, prefixes: Mapping[str, str], config: NanosetConfig) -> NanosetConfig:
        """Return the settings with what a run has read before; ConfigError where it cannot go on."""
        if (read := self._read()) is None:
            return config
        for key in ("sequence_length", "random_seed", "preset"):
            if (before := getattr(read.config, key)) != (now := getattr(config, key)):
                what, remedy = "a run cannot go on under another setting", "set what it was started with"
                raise ConfigError(what, where=key, found=now, expected=before, remedy=remedy)
        orders = orders_after(read, exact=self.exact)
        if other := other_versions(orders, prefixes):
            raise ConfigError(
                "a corpus has changed since the run read it, so that its order cannot go on",
                found=", ".join(f"{corpus}: {prefixes[corpus]}" for corpus in other),
                expected=", ".join(other.values()),
                remedy="give new text a corpus of its own; the old version comes back with the old text and settings",
            )
        consumed = 0 if self.spec.continue_from is None else self.spec.continue_from.consumed_samples
        return replace(config, orders=orders, consumed_samples=consumed)

    def plan(self, split: SplitName) -> PlannedSplit:
        """Plan one split. A weighted blend without a number of samples gets one epoch of its scarcest corpus.

        Raises:
            MissingError: a member's dataset was not made yet.
            ConfigError, InputError: the split cannot be filled as asked.
        """
        try:
            config, limits, exceeded = self._within_limits(split)
            if config.samples(split) == 0:
                plan, config = None, config.with_samples({})
            else:
                plan = plan_split(config, split, self.reader, exact=self.exact)
            if split == "train" and 0 < config.consumed_samples >= (config.samples(split) or 0):
                raise _nothing_left(config)
            built, asked = config.samples(split) or 0, self.spec.samples.get(split, 0)
            if split == "train" and self.spec.continue_ and built < asked:
                raise _cut_short(asked, config)
            lacking = None if plan is not None and plan.samples else self._lacking(split, config)
            folder = self.index_folder
            if plan is not None and folder:
                moved = tuple(_moved(member, folder) for member in plan.members)
                plan = replace(plan, members=moved, blend=plan.blend and _moved(plan.blend, folder))
        except (ConfigError, InputError) as error:
            name = f"nanosets.{self.name}"
            if name in (error.where or ""):
                raise
            raise error.at(f"{name}, {error.where}" if error.where else name) from error
        members = coverage(plan, config, limits) if plan is not None else []
        own = tuple(one for one in exceeded if one.split == split)
        mix = self.spec.mixture if split == "train" and plan is not None else None
        rows = () if mix is None else mixture_of(mix, config, self.reader).rows
        corpora = corpora_of(self.spec.blend_of(split))
        return PlannedSplit(split, config, plan, tuple(members), own, corpora, lacking, rows)

    def _within_limits(self, split: SplitName) -> tuple[NanosetConfig, dict[str, float], tuple[ExceededLimit, ...]]:
        """Return (settings of the split, limits of the datasets by prefix, datasets that exceed them)."""
        spec = self.spec
        exceeded: tuple[ExceededLimit, ...] = ()
        shared = spec.blend is not None
        config, prefixes = self._as_asked(SPLITS if shared else (split,))
        limits = {prefixes[corpus]: limit for corpus in prefixes if (limit := spec.epoch_limit(corpus)) is not None}
        if limits:
            if not (shared and spec.on_exhaustion == "redistribute"):
                # Other splits may lack samples without this one being refused.
                config = config.with_samples({split: config.samples(split)})
            config, exceeded = apply_epoch_limits(config, limits, spec.on_exhaustion, self.reader, self.corpus_reader)

        samples = config.samples(split)
        is_one_epoch = samples is None
        weighted = isinstance(spec.blend_of(split), Mapping)
        if weighted and samples is None and config.rules.needs_samples(split):
            samples = self._epoch_of_scarcest(config, split)
        config = config.with_samples({split: samples})

        # One epoch of each member may still read a document several times. Of valid and test, that is no repetition
        # in training.
        if limits and is_one_epoch and split == "train":
            config, exceeded = self._limited_epoch(config, split, limits)
        if spec.mixture is not None and split == "train":
            self._check_mixture(config, prefixes)
        return config, limits, exceeded

    def _limited_epoch(
        self, config: NanosetConfig, split: SplitName, limits: Mapping[str, float]
    ) -> tuple[NanosetConfig, tuple[ExceededLimit, ...]]:
        """Return (settings, datasets that exceed limits) of a split for which no number of samples is requested."""
        if not config.rules.takes_samples(split) or not self._may_share_documents(split):
            return config, ()
        plan = plan_split(config, split, self.reader, exact=self.exact)
        if plan is None or not plan.samples:
            return config, ()
        policy = self.spec.on_exhaustion
        counted = config.with_samples({split: plan.samples})
        limited = apply_epoch_limits(counted, limits, policy, self.reader, self.corpus_reader)
        if not limited.exceeded or policy == "repeat":
            return config, limited.exceeded
        return limited.config, limited.exceeded

    def _check_mixture(self, config: NanosetConfig, prefixes: Mapping[str, str]) -> None:
        """Raise InputError if the parts of a mixture together read documents more often than they may be."""
        mix = self.spec.mixture
        limits = {} if mix is None else mix.epoch_limits()
        if not limits or not self._may_share_documents("train"):
            return
        by_prefix = {prefixes[name]: limit for name, limit in limits.items()}
        exceeded = documents_read_too_often(config, "train", by_prefix, self.reader, self.corpus_reader)
        if exceeded:
            raise InputError(
                "parts of the mixture together read documents more often than max_epochs allows",
                where="mix",
                found="; ".join(one.text for one in exceeded),
                remedy="give less to one of these parts, choose views that share no documents, or raise max_epochs",
            )

    def corpora(self, planned: PlannedSplit, members: Sequence[MemberCoverage] | None = None) -> list[CorpusCoverage]:
        """Return what a split reads of each corpus, through all of its members.

        Args:
            planned: the split.
            members: what is taken of each dataset, as counted in a built blend; absent = as planned.

        Raises:
            MissingError: what a view was chosen from, or packs were made of, was deleted.
        """
        plan = planned.plan
        if plan is None:
            return []
        rows_by_prefix = {member.prefix: member.rows for member in plan.members}
        reads = {
            member.prefix: MemberReads.of(plan, planned.config, member, row.samples_given)
            for member, row in zip(plan.members, members or planned.members, strict=True)
        }

        # Datasets that only earlier phases of the run read: their documents may be read again through other members.
        for prefix, order in planned.config.orders.items() if planned.split == "train" else ():
            if prefix not in reads:
                lengths, _ = self.reader.read(prefix)
                tokens = int(lengths[slice(*order.rows)].sum(dtype=np.int64))
                rows_by_prefix[prefix] = order.rows
                reads[prefix] = MemberReads(tokens, order.taken, 0, order.epochs, order.separate_last_epoch)
        return corpus_coverage(self.corpus_reader.parts(rows_by_prefix), reads, planned.config)

    def _as_asked(self, splits: tuple[SplitName, ...]) -> tuple[NanosetConfig, dict[str, str]]:
        """Return (the nanoset's settings as they stand in nanoset.yaml, corpus → prefix)."""
        spec = self.spec
        corpora = dict.fromkeys(corpus for split in splits for corpus in spec.corpora_of(split))
        prefixes = {corpus: self.prefix(corpus) for corpus in corpora}
        if spec.blend is not None:
            data: dict[str, Any] = {"data_path": _data(spec.blend, prefixes), "split": spec.shares}
        else:
            # A split without data has the settings of the others, since some must have data.
            named = [split for split in splits if spec.blend_of(split) is not None] or SPLITS
            blends = [spec.blend_of(split) if split in named else None for split in SPLITS]
            data = {"blend_per_split": [_data(blend, prefixes) for blend in blends]}
        config = NanosetConfig(
            **data,
            sequence_length=spec.sequence_length,
            random_seed=spec.seed,
            preset=spec.preset,
            tokenizer_identifiers=self.tokenizer_identifiers,
            trainer_paths={prefixes[corpus]: self.trainer_prefix(corpus) for corpus in corpora},
            path_to_cache=str(self.cache),
            compensated_sums=self.compensated_sums,
        )
        config = config.with_samples({split: spec.samples.get(split) for split in splits})
        if "train" in splits:
            config = self._going_on(prefixes, config)
        for split in reversed(SPLITS[1:]) if spec.blend is not None else ():
            is_asked = split in spec.samples and spec.schedule is None
            if not is_asked and cannot_be_built(config, split, self.reader):
                shares = without_share(config.split, split, exactly_three=config.rules.exactly_three_shares)
                asked = {other: config.samples(other) for other in SPLITS if other != split}
                config = replace(config, split=shares).with_samples(asked)
        if spec.mixture is not None:
            if 0 < config.consumed_samples >= (config.samples("train") or config.consumed_samples + 1):
                raise _nothing_left(config)
            weights = mixture_of(spec.mixture, config, self.reader).weights
            config = replace(config, data_path=dict(zip(config.blend("train")[0], weights, strict=True)))  # type: ignore[index]
        return config, prefixes

    def _epoch_of_scarcest(self, config: NanosetConfig, split: SplitName) -> int | None:
        """Return for how many samples of a blend no corpus is read twice; None where the split has no share."""
        if config.blend_per_split is None and parse_split(config.split)[SPLITS.index(split)] <= 0:
            return None
        return largest_epoch_size(config, split=split, reader=self.reader)

    def _lacking(self, split: SplitName, built: NanosetConfig) -> str | None:
        """Return why a split has no sample, None where it has no share; InputError of train."""
        spec = self.spec
        if spec.blend_of(split) is None:
            return None
        config = built if spec.shares is None else replace(built, split=spec.shares)
        if spec.shares is not None and config.shares()[SPLITS.index(split)] <= 0:
            return None
        found = too_few_tokens(config, split, self.reader, corpora_of(spec.blend_of(split)))
        if split == "train":
            raise no_training_sample(config, found)
        is_given = config.split != built.split and built.shares()[SPLITS.index(split)] <= 0
        elsewhere = f"; its share went to the split before it (split: {built.split})" if is_given else ""
        return f"it has no sample: {found}{elsewhere}. Give it a larger share, or none"


def _cut_short(asked: int, config: NanosetConfig) -> InputError:
    """Make the error of a phase of a run that goes on which limits cut: the trainer would ask for all its samples."""
    return InputError(
        "max_epochs leaves fewer samples than the phase has, for which the trainer would build its own index files",
        where="max_epochs",
        found=f"{config.train_split_samples:,} samples",
        expected=f"{asked:,}",
        remedy="end the phase earlier (`until`), raise max_epochs, or let on_exhaustion be redistribute",
    )


def _nothing_left(config: NanosetConfig) -> ConfigError:
    return ConfigError(
        "the run has consumed all samples of train, so that none is left to go on with",
        where="continue_from.consumed_samples",
        found=f"{config.consumed_samples:,} of {config.train_split_samples or 0:,} samples",
        remedy="let `schedule`, or `samples`, be that of the whole run, from its first sample on; or, where they are "
        "made fewer by on_exhaustion: stop, raise max_epochs",
    )


def _ordered(blend: BlendSpec | None) -> Any:
    """Return a blend as JSON: in the order given, since the trainer breaks ties by it."""
    if isinstance(blend, Mapping):
        return [[corpus, weight] for corpus, weight in blend.items()]
    return list(blend) if isinstance(blend, tuple) else blend


def _data(blend: BlendSpec | None, prefixes: Mapping[str, str]) -> Blend | None:
    if blend is None:
        return None
    if isinstance(blend, Mapping):
        return {prefixes[corpus]: weight for corpus, weight in blend.items()}
    if not is_blended(blend):
        return prefixes[blend if isinstance(blend, str) else blend[0]]
    return [prefixes[corpus] for corpus in blend]


def _moved(part: _Part, folder: str) -> _Part:
    files = {key: folder + name for key, name in part.files.items()}
    return replace(part, files=files, sidecar=folder + part.sidecar)
