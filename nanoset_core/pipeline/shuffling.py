"""shuffling: datasets → plan → shuffled tars, group by group → the manifests that name them."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nanoset_core.errors import MissingError
from nanoset_core.indexed.dataset import MMapIndexedDataset
from nanoset_core.manifest import FileFact, Manifest, Recipe, canonical_json
from nanoset_core.pipeline.indexed import current_dataset
from nanoset_core.pipeline.project import Project
from nanoset_core.progress import Progress
from nanoset_core.shuffling.contexts import TokenSource
from nanoset_core.shuffling.members import compressor_identity
from nanoset_core.shuffling.plan import ShufflePlan, plan_shuffle
from nanoset_core.shuffling.webdataset import ShardFacts, shard_stem, write_manifest, write_shard
from nanoset_core.storage import fsync_folder, sweep_abandoned, write_atomic
from nanoset_core.workers import run_tasks

VERSION = 1
PLANS = "shuffle_plans"
STAGE = "webdatasets"
PLAN_FILE = "plan.json"
_FACTS = ".shards"


def plan_recipe(project: Project, name: str, datasets: dict[str, str]) -> Recipe:
    """What a shuffle plan is made from: corpus → dataset digest, in the order that numbers the contexts."""
    spec = project.webdataset(name)
    options = {
        "corpora": list(spec.corpora),
        "sequence_length": spec.sequence_length,
        "samples_per_shard": spec.samples_per_shard,
        "seed": spec.seed,
        "member": spec.member,
        "tail": spec.tail,
        "pad": project.pad if spec.tail == "pad" else None,
        "compressor": compressor_identity() if spec.member == "json.gz" else None,
    }
    return Recipe(PLANS, name, VERSION, datasets, options)


def webdataset_recipe(plan: Recipe) -> Recipe:
    """What the tars are made from."""
    return Recipe(STAGE, plan.name, VERSION, {"plan": plan.digest})


def make_plan(project: Project, name: str) -> Manifest:
    """Plan the shards of a webdataset from its corpora's current datasets; make the plan the current one.

    Raises:
        InputError: the corpora do not fill a single context.
    """
    spec = project.webdataset(name)
    datasets = {corpus: current_dataset(project, corpus) for corpus in spec.corpora}
    recipe = plan_recipe(project, name, {corpus: manifest.digest for corpus, manifest in datasets.items()})

    def write(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
        plan = plan_shuffle(
            _open_sources(_prefixes(datasets)),
            sequence_length=spec.sequence_length,
            samples_per_shard=spec.samples_per_shard,
            seed=spec.seed,
            member=spec.member,
            tail=spec.tail,
            pad_id=project.pad if spec.tail == "pad" else None,
            eod=project.eod,
            vocab_size=project.tokenizer.max_id + 1,
        )
        (folder / PLAN_FILE).write_text(json.dumps(plan.to_json(), indent=1) + "\n")
        return plan.to_json(), {}

    manifest = project.outputs.publish(recipe, write)
    project.outputs.make_current(manifest)
    return manifest


def current_plan(project: Project, name: str) -> tuple[Manifest, ShufflePlan]:
    """A webdataset's live plan.

    Raises:
        MissingError: it was not made yet.
    """
    manifest = project.outputs.require(PLANS, name, remedy=f"materialise {name}/shuffle_plan first")
    return manifest, ShufflePlan.from_json(json.loads(manifest.path(PLAN_FILE).read_bytes()))


def group_shards(plan: ShufflePlan, groups: int, group: int) -> range:
    """The shards of one group: as even a share of them as whole numbers allow."""
    return range(plan.shards * group // groups, plan.shards * (group + 1) // groups)


@dataclass(frozen=True, slots=True)
class _TarTask:
    plan: dict[str, Any]
    prefixes: dict[str, Path]
    shard: int
    folder: Path


def write_group(project: Project, name: str, group: int) -> list[ShardFacts]:
    """Write the tars of one group of shards into the webdataset's folder, those that are not there yet.

    Each appears whole or not at all; the folder counts as complete only once `finish` has written its manifests.
    """
    manifest, plan = current_plan(project, name)
    recipe = webdataset_recipe(Recipe(**manifest.recipe))
    folder = project.outputs.place(recipe)
    (folder / _FACTS).mkdir(parents=True, exist_ok=True)
    sweep_abandoned(folder)
    shards = group_shards(plan, project.webdataset(name).groups, group)
    facts = {} if project.rebuild else _written(project, recipe, shards)
    todo = [shard for shard in shards if shard not in facts]
    prefixes = _prefixes({corpus: current_dataset(project, corpus) for corpus in project.webdataset(name).corpora})
    tasks = [_TarTask(plan.to_json(), prefixes, shard, folder) for shard in todo]
    for done, (number, written) in enumerate(run_tasks(_write_tar, tasks, project.config.workers), start=1):
        facts[todo[number]] = written
        project.listener(Progress("tars", f"{name} group {group}", done, len(todo), unit="shards"))
    if project.outputs.find(recipe) is not None:
        _forget_facts(folder)  # tars of a finished webdataset were made again: its manifest holds their facts
    return [facts[shard] for shard in shards]


def _forget_facts(folder: Path) -> None:
    shutil.rmtree(folder / _FACTS, ignore_errors=True)
    fsync_folder(folder)


def _write_tar(task: _TarTask) -> ShardFacts:
    facts = write_shard(ShufflePlan.from_json(task.plan), _open_sources(task.prefixes), task.shard, task.folder)
    write_atomic(task.folder / _FACTS / f"{shard_stem(task.shard)}.json", canonical_json(asdict(facts)))
    return facts


def _written(project: Project, recipe: Recipe, shards: range) -> dict[int, ShardFacts]:
    """Facts of those shards of a webdataset whose tars are there and of the size written."""
    folder = project.outputs.place(recipe)
    done = project.outputs.find(recipe)
    rows = done.facts["shards_written"] if done is not None else _fact_files(folder, shards)
    facts = [ShardFacts(**row) for row in rows]
    return {fact.shard: fact for fact in facts if fact.shard in shards and _has_size(folder, fact)}


def _fact_files(folder: Path, shards: range) -> list[dict[str, Any]]:
    paths = (folder / _FACTS / f"{shard_stem(shard)}.json" for shard in shards)
    return [json.loads(path.read_bytes()) for path in paths if path.exists()]


def _has_size(folder: Path, fact: ShardFacts) -> bool:
    path = folder / f"{fact.stem}.tar"
    return path.is_file() and path.stat().st_size == fact.size_bytes


def is_group_written(project: Project, name: str, group: int) -> bool:
    """Whether every tar of a group of the current plan is there."""
    manifest, plan = current_plan(project, name)
    shards = group_shards(plan, project.webdataset(name).groups, group)
    return len(_written(project, webdataset_recipe(Recipe(**manifest.recipe)), shards)) == len(shards)


def finish(project: Project, name: str) -> Manifest:
    """Write the lists that name a webdataset's tars, complete it, and make it the current one.

    Raises:
        MissingError: some of its tars have not been written.
    """
    manifest, plan = current_plan(project, name)
    recipe = webdataset_recipe(Recipe(**manifest.recipe))
    done = project.outputs.find(recipe)
    if done is None or project.rebuild:
        done = _finish(project, recipe, plan)
    project.outputs.make_current(done)
    return done


def _finish(project: Project, recipe: Recipe, plan: ShufflePlan) -> Manifest:
    folder = project.outputs.place(recipe)
    facts = _written(project, recipe, range(plan.shards))
    if missing := [shard for shard in range(plan.shards) if shard not in facts]:
        raise MissingError(
            "some shards have not been written",
            where=folder,
            found=f"{len(facts):,} of {plan.shards:,}; the first missing is {shard_stem(missing[0])}.tar",
            remedy=f"materialise every partition of {recipe.name}/tars first",
        )
    ordered = [facts[shard] for shard in range(plan.shards)]
    tokenizer = str(project.config.tokenizer_file.name)
    checksums = write_manifest(plan, ordered, folder, name=recipe.name, tokenizer=tokenizer)
    files = {f"{fact.stem}.tar": FileFact(fact.size_bytes, fact.sha256) for fact in ordered}
    files |= {name: FileFact((folder / name).stat().st_size, checksum) for name, checksum in checksums.items()}
    summary = {
        "sequences": plan.contexts,
        "sequence_length": plan.sequence_length,
        "tokens": plan.tokens,
        "pad_tokens": plan.pad_tokens,
        "tokens_dropped": plan.tokens_dropped,
        "shards": plan.shards,
        "sources": plan.to_json()["sources"],
        "shards_written": [asdict(fact) for fact in ordered],
    }
    sealed = project.outputs.seal(recipe, summary, files)
    _forget_facts(folder)
    return sealed


def _prefixes(datasets: dict[str, Manifest]) -> dict[str, Path]:
    return {corpus: manifest.path(manifest.facts["prefix"]) for corpus, manifest in datasets.items()}


def _open_sources(prefixes: dict[str, Path]) -> list[TokenSource]:
    return [TokenSource(corpus, MMapIndexedDataset(prefix).tokens) for corpus, prefix in prefixes.items()]
