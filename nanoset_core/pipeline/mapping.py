"""mapping: datasets → the trainer's document, sample and shuffle indices for each split, and the blend over them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError, InputError
from nanoset_core.loading.config import NanosetConfig
from nanoset_core.loading.opening import BLEND, CACHE, MAPPINGS, PLAN_FILE, STAGE, split_bytes
from nanoset_core.manifest import Manifest, Recipe
from nanoset_core.mapping.cache import write_blend, write_member
from nanoset_core.mapping.plan import SplitPlan, largest_epoch_size, plan_split
from nanoset_core.mapping.splits import SPLITS, SplitName, parse_split
from nanoset_core.pipeline import indexed
from nanoset_core.pipeline.indexed import current_dataset
from nanoset_core.pipeline.project import Project
from nanoset_core.progress import Progress

VERSION = 1


def mappings_recipe(project: Project, name: str, split: SplitName, datasets: Mapping[str, str]) -> Recipe:
    """What the index mappings of one split are made from: corpus → dataset digest."""
    spec = project.nanoset(name)
    blend = spec.blend
    options = {
        "preset": spec.preset,
        "sequence_length": spec.sequence_length,
        "split": spec.split,
        "seed": spec.seed,
        "samples": spec.samples.get(split),
        # In the order given: the trainer breaks ties by it.
        "blend": [[corpus, weight] for corpus, weight in blend.items()] if isinstance(blend, Mapping) else spec.corpora,
        "trainer_path": _trainer_root(project, name),
        "tokenizer_identifiers": dict(spec.tokenizer_identifiers),
    }
    return Recipe(STAGE, f"{name}/{split}/{MAPPINGS}", VERSION, datasets, json.loads(json.dumps(options)))


def blend_recipe(mappings: Recipe) -> Recipe:
    """What the blend of one split is made from."""
    place = mappings.name.removesuffix(MAPPINGS) + BLEND
    return Recipe(STAGE, place, VERSION, {MAPPINGS: mappings.digest})


def _trainer_root(project: Project, name: str) -> str:
    return (project.nanoset(name).trainer_path or str(project.config.root_folder)).rstrip("/")


def cache_folder(project: Project, name: str) -> Path:
    """One folder for all splits and versions, since a trainer takes one; every file name in it carries a hash."""
    return project.outputs.folder / STAGE / name / CACHE


def trainer_prefix(project: Project, name: str, dataset: Manifest) -> str:
    """How the trainer spells the prefix of a dataset: what goes into its cache names."""
    place = f"{indexed.STAGE}/{dataset.name}/{dataset.digest}/{dataset.facts['prefix']}"
    return f"{_trainer_root(project, name)}/{place}"


def loading_config(project: Project, name: str, split: SplitName) -> NanosetConfig:
    """The settings under which one split of a nanoset is planned, over the current datasets of its corpora.

    A weighted blend without a number of samples gets as many as the scarcest corpus fills in one epoch.
    """
    spec = project.nanoset(name)
    datasets = {corpus: current_dataset(project, corpus) for corpus in spec.corpora}
    prefixes = {corpus: str(found.path(found.facts["prefix"])) for corpus, found in datasets.items()}
    if isinstance(spec.blend, Mapping):
        data_path: Any = {prefixes[corpus]: weight for corpus, weight in spec.blend.items()}
    else:
        data_path = prefixes[spec.corpora[0]] if not spec.is_blended else list(prefixes.values())
    samples = dict(spec.samples)
    config = NanosetConfig(
        data_path=data_path,
        split=spec.split,
        sequence_length=spec.sequence_length,
        random_seed=spec.seed,
        preset=spec.preset,
        tokenizer_identifiers=dict(spec.tokenizer_identifiers),
        trainer_paths={prefixes[corpus]: trainer_prefix(project, name, found) for corpus, found in datasets.items()},
        path_to_cache=str(cache_folder(project, name)),
    )
    if isinstance(spec.blend, Mapping) and split not in samples and config.rules.takes_samples(split):
        samples[split] = _epoch_of_scarcest(config, name, split)
    # The one split only: what another lacks is no reason to refuse this one.
    return replace(config, **{f"{split}_split_samples": samples.get(split)})


def _epoch_of_scarcest(config: NanosetConfig, name: str, split: SplitName) -> int | None:
    if parse_split(config.split)[SPLITS.index(split)] <= 0:
        return None
    size = largest_epoch_size(config, split=split)
    if size == 0:
        prefixes, _ = config.blend(split) or ([], None)
        samples = {prefix: _epoch_samples(config, prefix, split) for prefix in prefixes}
        scarcest = min(samples, key=samples.__getitem__)
        raise InputError(
            f"one epoch of a corpus does not fill its share of a single sample of the {split} split",
            where=f"nanosets.{name}.split",
            found=f"split {config.split!r} leaves {Path(scarcest).name} {samples[scarcest]} whole samples",
            remedy=f"give the split a larger share, add text, or set nanosets.{name}.samples.{split}",
        )
    return size


def _epoch_samples(config: NanosetConfig, prefix: str, split: SplitName) -> int:
    alone = replace(config, data_path=prefix, **{f"{split}_split_samples": None})
    plan = plan_split(alone, split)
    return 0 if plan is None else plan.samples


def write_mappings(project: Project, name: str, split: SplitName) -> Manifest:
    """Write the trainer's index caches of every member corpus for one split.

    Raises:
        MissingError: a member's dataset was not made yet.
        ConfigError, InputError: the split cannot be filled as asked.
    """
    digests = {corpus: current_dataset(project, corpus).digest for corpus in project.nanoset(name).corpora}
    recipe = mappings_recipe(project, name, split, digests)
    config = loading_config(project, name, split)
    plan = plan_split(config, split)
    files: dict[str, str] = {}
    members = plan.members if plan is not None else ()
    for number, member in enumerate(members, start=1):
        files |= write_member(member, config, cache_folder(project, name))
        project.listener(Progress(MAPPINGS, f"{name} {split}", number, len(members), unit="corpora"))
    return _publish(project, recipe, name, plan, config, files)


def write_blended(project: Project, name: str, split: SplitName) -> Manifest:
    """Write the trainer's blend caches for one split, over the index mappings made before.

    Raises:
        MissingError: the split's index mappings were not made yet.
        ConfigError: the nanoset has no blend.
    """
    if not project.nanoset(name).is_blended:
        raise ConfigError("one corpus without a weight has no blend", where=f"{project.config.file}: nanosets.{name}")
    mappings = project.outputs.require(
        STAGE, f"{name}/{split}/{MAPPINGS}", remedy=f"materialise {name}/{MAPPINGS} for the split {split!r} first"
    )
    config = loading_config(project, name, split)
    plan = plan_split(config, split)
    files = write_blend(plan, config, cache_folder(project, name)) if plan is not None else {}
    recipe = blend_recipe(Recipe(**mappings.recipe))
    return _publish(project, recipe, name, plan, config, files)


def _publish(
    project: Project,
    recipe: Recipe,
    name: str,
    plan: SplitPlan | None,
    config: NanosetConfig,
    files: Mapping[str, str],
) -> Manifest:
    cache = cache_folder(project, name)

    def write(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
        (folder / PLAN_FILE).write_bytes(split_bytes(project.outputs.folder, plan, config))
        return _facts(project, name, plan) | {
            "cache_files": {
                file: {"bytes": (cache / file).stat().st_size, "sha256": checksum} for file, checksum in files.items()
            }
        }, {}

    manifest = project.outputs.publish(recipe, write)
    project.outputs.make_current(manifest)
    return manifest


def _facts(project: Project, name: str, plan: SplitPlan | None) -> dict[str, Any]:
    if plan is None:
        return {"samples": 0, "blended": False, "members": []}
    members = [
        {
            "corpus": corpus,
            "weight": member.weight,
            "sequences": member.rows[1] - member.rows[0],
            "tokens": member.tokens,
            "epochs": member.epochs,
            "samples_asked": member.samples_requested,
            "samples_given": member.samples_given,
        }
        for corpus, member in zip(project.nanoset(name).corpora, plan.members, strict=True)
    ]
    return {"samples": plan.samples, "blended": plan.blend is not None, "members": members}


def is_cache_whole(project: Project, recipe: Recipe) -> bool:
    """Whether every cache file that an output's manifest lists is there, of the size it had."""
    manifest = project.outputs.find(recipe)
    if manifest is None:
        return False
    cache = cache_folder(project, recipe.name.split("/")[0])
    return all(
        (cache / file).is_file() and (cache / file).stat().st_size == fact["bytes"]
        for file, fact in manifest.facts["cache_files"].items()
    )


def current_facts(project: Project, name: str, split: SplitName) -> Mapping[str, Any] | None:
    """Facts of the live version of one split, or None when it is not complete."""
    last = BLEND if project.nanoset(name).is_blended else MAPPINGS
    manifest = project.outputs.current(STAGE, f"{name}/{split}/{last}")
    return None if manifest is None else manifest.facts
