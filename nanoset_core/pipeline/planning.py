"""planning: nanoset.yaml and the current datasets → the settings under which a nanoset is built, and what they give."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from nanoset_core.config.nanoset import BlendSpec, NanosetSpec, corpora_of, is_blended
from nanoset_core.errors import ConfigError, InputError
from nanoset_core.loading.opening import CACHE, STAGE
from nanoset_core.mapping.config import NanosetConfig
from nanoset_core.mapping.coverage import MemberCoverage, coverage
from nanoset_core.mapping.epoch_limits import Exhausted, settle
from nanoset_core.mapping.plan import BlendPlan, LengthReader, MemberPlan, SplitPlan, largest_epoch_size, plan_split
from nanoset_core.mapping.presets import get_preset
from nanoset_core.mapping.splits import SPLITS, SplitName, parse_split
from nanoset_core.outputs.manifest import Manifest, digest_of
from nanoset_core.pipeline import indexed
from nanoset_core.pipeline.indexed import current_dataset
from nanoset_core.pipeline.project import Project

_Part = TypeVar("_Part", MemberPlan, BlendPlan)


@dataclass(frozen=True, slots=True)
class PlannedSplit:
    """One split of a nanoset, before it is built."""

    split: SplitName
    """train, valid or test"""
    config: NanosetConfig
    """what it is built with, limits on epochs kept"""
    plan: SplitPlan | None
    """None where the split has no share of the data"""
    members: tuple[MemberCoverage, ...]
    """what it takes of each dataset"""
    exhausted: tuple[Exhausted, ...]
    """datasets that would have been read too often, whatever was done about it"""
    corpora: tuple[str, ...]
    """of the members"""

    @property
    def samples(self) -> int:
        """Length of the split."""
        return 0 if self.plan is None else self.plan.samples


def trainer_root(project: Project, name: str) -> str:
    """How the trainer spells the output root."""
    config = project.config
    own = str(config.root_folder) if config.root_place is None else config.root_place.url
    return (project.nanoset(name).trainer_path or own).rstrip("/")


def cache_folder(project: Project, name: str) -> Path:
    """One folder for all splits and versions; every file name in it, or that of a folder, carries a hash."""
    return project.outputs.folder / STAGE / name / CACHE


def index_folder(project: Project, name: str) -> str:
    """Folder below `cache_folder`, with a slash at its end, where a trainer finds the index files of all splits.

    "" where the trainer's own names tell versions apart. NeMo's do not: the next version of a corpus would replace the
    files that a run over the present one reads.
    """
    spec = project.nanoset(name)
    if get_preset(spec.preset).names_tell_versions:
        return ""
    versions = {corpus: current_dataset(project, corpus).digest for corpus in spec.corpora}
    return digest_of([versions, spec.shares]) + "/"


def trainer_prefix(project: Project, name: str, dataset: Manifest) -> str:
    """How the trainer spells the prefix of a dataset: what goes into its cache names."""
    place = f"{indexed.STAGE}/{dataset.name}/{dataset.digest}/{dataset.facts['prefix']}"
    return f"{trainer_root(project, name)}/{place}"


def nanoset_options(project: Project, name: str) -> dict[str, Any]:
    """The settings of a nanoset that reach the bytes of any of its splits."""
    spec = project.nanoset(name)
    limits = spec.max_epochs
    options: dict[str, Any] = {
        "preset": spec.preset,
        "sequence_length": spec.sequence_length,
        "split": spec.shares,
        "seed": spec.seed,
        "trainer_path": trainer_root(project, name),
        "tokenizer_identifiers": dict(spec.tokenizer_identifiers),
    }
    if not get_preset(spec.preset).names_tell_versions:
        options["index_files"] = "a folder for each version"
    if limits is not None:
        # Where splits share one set of weights, the samples of each decide what the others get.
        limits = dict(limits) if isinstance(limits, Mapping) else limits
        options["epochs"] = {"most": limits, "then": spec.on_exhaustion, "samples": dict(spec.samples)}
    return options


def blend_options(blend: BlendSpec | None) -> Any:
    """A blend as JSON: in the order given, since the trainer breaks ties by it."""
    if isinstance(blend, Mapping):
        return [[corpus, weight] for corpus, weight in blend.items()]
    return list(blend) if isinstance(blend, tuple) else blend


def plan_nanoset(project: Project, name: str, split: SplitName, reader: LengthReader | None = None) -> PlannedSplit:
    """Plan one split over the current datasets of its corpora. reader: shared by splits that are planned together.

    Raises:
        MissingError: a member's dataset was not made yet.
        ConfigError, InputError: the split cannot be filled as asked.
    """
    spec = project.nanoset(name)
    with _naming(name):
        reader = reader or LengthReader()
        whole, limits, exhausted = _settled(project, name, spec, split, reader)
        config = _one_split(whole, name, spec, split, reader)
        plan = _filed(plan_split(config, split, reader), index_folder(project, name))
    members = coverage(plan, config, limits) if plan is not None else []
    found = tuple(one for one in exhausted if one.split == split)
    return PlannedSplit(split, config, plan, tuple(members), found, corpora_of(spec.blend_of(split)))


def _filed(plan: SplitPlan | None, folder: str) -> SplitPlan | None:
    """The plan with all its index files in a folder."""
    if plan is None or not folder:
        return plan
    members = tuple(_moved(member, folder) for member in plan.members)
    return replace(plan, members=members, blend=None if plan.blend is None else _moved(plan.blend, folder))


def _moved(part: _Part, folder: str) -> _Part:
    files = {key: folder + name for key, name in part.files.items()}
    return replace(part, files=files, sidecar=folder + part.sidecar)


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Let an error say whose plan it is."""
    try:
        yield
    except (ConfigError, InputError) as error:
        where = error.where or ""
        if f"nanosets.{name}" in where:
            raise
        raise type(error)(
            error.what,
            where=f"nanosets.{name}, {where}" if where else f"nanosets.{name}",
            found=error.found,
            expected=error.expected,
            remedy=error.remedy,
        ) from error


def loading_config(project: Project, name: str, split: SplitName) -> NanosetConfig:
    """The settings under which one split of a nanoset is built; raises as `plan_nanoset`.

    A weighted blend without a number of samples gets as many as the scarcest corpus fills in one epoch.
    """
    spec, reader = project.nanoset(name), LengthReader()
    config, _, _ = _settled(project, name, spec, split, reader)
    return _one_split(config, name, spec, split, reader)


def _settled(
    project: Project, name: str, spec: NanosetSpec, split: SplitName, reader: LengthReader
) -> tuple[NanosetConfig, dict[str, float], tuple[Exhausted, ...]]:
    """(settings of every split that matters to this one, limits of the datasets, what breaks them)."""
    shared = spec.blend is not None
    config, prefixes = _as_asked(project, name, spec, SPLITS if shared else (split,))
    limits = {prefixes[corpus]: limit for corpus in prefixes if (limit := spec.epoch_limit(corpus)) is not None}
    if not limits:
        return config, limits, ()
    if not (shared and spec.on_exhaustion == "redistribute"):
        # What another split lacks is no reason to refuse this one.
        config = config.with_samples({split: config.samples(split)})
    settled = settle(config, limits, spec.on_exhaustion, reader)
    return settled.config, limits, settled.exhausted


def _as_asked(
    project: Project, name: str, spec: NanosetSpec, splits: tuple[SplitName, ...]
) -> tuple[NanosetConfig, dict[str, str]]:
    """(the nanoset's settings as they stand in nanoset.yaml, corpus → prefix)."""
    corpora = dict.fromkeys(corpus for split in splits for corpus in spec.corpora_of(split))
    datasets = {corpus: current_dataset(project, corpus) for corpus in corpora}
    prefixes = {corpus: str(found.folder / found.facts["prefix"]) for corpus, found in datasets.items()}
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
        tokenizer_identifiers=dict(spec.tokenizer_identifiers),
        trainer_paths={prefixes[corpus]: trainer_prefix(project, name, found) for corpus, found in datasets.items()},
        path_to_cache=str(cache_folder(project, name)),
    )
    return config.with_samples({split: spec.samples.get(split) for split in splits}), prefixes


def _data(blend: BlendSpec | None, prefixes: Mapping[str, str]) -> Any:
    if blend is None:
        return None
    if isinstance(blend, Mapping):
        return {prefixes[corpus]: weight for corpus, weight in blend.items()}
    if not is_blended(blend):
        return prefixes[blend if isinstance(blend, str) else blend[0]]
    return [prefixes[corpus] for corpus in blend]


def _one_split(
    config: NanosetConfig, name: str, spec: NanosetSpec, split: SplitName, reader: LengthReader
) -> NanosetConfig:
    samples = config.samples(split)
    weighted = isinstance(spec.blend_of(split), Mapping)
    if weighted and samples is None and config.rules.takes_samples(split):
        samples = _epoch_of_scarcest(config, name, split, reader)
    return config.with_samples({split: samples})


def _epoch_of_scarcest(config: NanosetConfig, name: str, split: SplitName, reader: LengthReader) -> int | None:
    if config.blend_per_split is None and parse_split(config.split)[SPLITS.index(split)] <= 0:
        return None
    size = largest_epoch_size(config, split=split, reader=reader)
    if size == 0:
        prefixes, _ = config.blend(split) or ([], None)
        samples = {prefix: _epoch_samples(config, prefix, split) for prefix in prefixes}
        scarcest = min(samples, key=samples.__getitem__)
        raise InputError(
            f"one epoch of a corpus does not fill its share of a single sample of the {split} split",
            where=f"nanosets.{name}.split",
            found=f"{Path(scarcest).name} has {samples[scarcest]} whole samples",
            remedy=f"give the split a larger share, add text, or set nanosets.{name}.samples.{split}",
        )
    return size


def _epoch_samples(config: NanosetConfig, prefix: str, split: SplitName) -> int:
    if config.blend_per_split is None:
        alone = replace(config, data_path=prefix)
    else:
        alone = replace(config, blend_per_split=[prefix if other == split else None for other in SPLITS])
    plan = plan_split(alone.with_samples({}), split)
    return 0 if plan is None else plan.samples
