"""What a project should hold, step by step, and which of it is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nanoset_core.errors import ConfigError, NanosetError
from nanoset_core.mapping.splits import SPLITS
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.pipeline import handoff, indexed, mapping, packed, raw, shuffling, tokenization
from nanoset_core.pipeline.project import Project
from nanoset_core.raw.pieces import SUFFIXES, Inventory


@dataclass(frozen=True, slots=True)
class Step:
    """One asset, or one partition of it, as the project's inputs ask for it now."""

    asset: tuple[str, ...]
    """the asset's key"""
    partition: str | None
    """corpus, split or group; None for an asset without partitions"""
    digest: str
    """of the output that belongs to the inputs as they are"""
    done: bool
    """whether that output is complete and current"""
    needs: tuple[tuple[tuple[str, ...], str | None], ...]
    """(asset, partition) of each step that comes first"""

    @property
    def key(self) -> tuple[tuple[str, ...], str | None]:
        return self.asset, self.partition

    @property
    def label(self) -> str:
        return "/".join(self.asset) + (f" [{self.partition}]" if self.partition is not None else "")


def check_corpora(project: Project, known: list[str]) -> None:
    """Raise ConfigError when a nanoset or webdataset names a corpus that the raw folder does not hold."""
    for path, corpora in _named(project):
        for corpus in corpora:
            if corpus not in known:
                empty = (project.config.raw_folder / corpus).is_dir()
                raise ConfigError(
                    "this corpus has no text that could be read" if empty else "this corpus is not in the raw folder",
                    where=f"{project.config.file}: {path}.{corpus}",
                    found=f"{', '.join(known) or 'no corpora'} in {project.config.raw_folder}",
                    remedy=f"put its files ({', '.join(SUFFIXES)}) there, or take it out of the list",
                )


def named_corpora(project: Project) -> set[str]:
    """Corpora that something is made of."""
    return {corpus for _, corpora in _named(project) for corpus in corpora}


def _named(project: Project) -> list[tuple[str, tuple[str, ...]]]:
    """(where in nanoset.yaml, corpora named there)"""
    config = project.config
    named = [(f"nanosets.{name}.blend", spec.corpora) for name, spec in config.nanosets.items()]
    named += [(f"webdatasets.{name}.corpora", spec.names) for name, spec in config.webdatasets.items()]
    return [*named, ("packed", config.packed)]


def steps(project: Project, inventories: Mapping[str, Inventory]) -> list[Step]:
    """Every step of the project in an order in which each comes after what it needs.

    Args:
        project: the project.
        inventories: corpus → a survey of its files as they are now. What needs a corpus that is not among them has
            no steps.
    """
    return steps_of(
        project, {corpus: raw.inventory_recipe(inventory).digest for corpus, inventory in inventories.items()}
    )


def steps_of(project: Project, snapshots: Mapping[str, str]) -> list[Step]:
    """As `steps`, for inventories of which only the digests are known: corpus → digest."""
    found: list[Step] = []
    datasets: dict[str, str] = {}
    for corpus, snapshot in snapshots.items():
        corpus_steps = list(_corpus_steps(project, corpus, snapshot))
        datasets[corpus] = corpus_steps[-1].digest
        found.extend(corpus_steps)
    for name, nanoset in project.config.nanosets.items():
        if datasets.keys() >= set(nanoset.corpora):
            found.extend(_nanoset_steps(project, name, datasets))
    for name, webdataset in project.config.webdatasets.items():
        if datasets.keys() >= set(webdataset.corpora):
            found.extend(_webdataset_steps(project, name, datasets))
    for corpus in project.config.packed:
        if corpus in datasets:
            found.append(_packed_step(project, corpus, datasets[corpus]))
    return found


def _is_current(project: Project, recipe: Recipe) -> bool:
    return _current_digest(project, recipe.stage, recipe.name) == recipe.digest


def _current_digest(project: Project, stage: str, name: str) -> str | None:
    try:
        current = project.outputs.current(stage, name)
    except NanosetError:
        return None  # unreadable: to be made again
    return None if current is None else current.digest


def _corpus_steps(project: Project, corpus: str, snapshot: str) -> Iterator[Step]:
    taken = _current_digest(project, raw.STAGE, corpus) == snapshot
    yield Step(("raw_jsonl",), corpus, snapshot, taken, ())
    tokenized = tokenization.tokenized_recipe(project, corpus, snapshot)
    whole = _is_current(project, tokenized) and tokenization.are_shards_whole(project, tokenized)
    yield Step(("tokenized_shards",), corpus, tokenized.digest, whole, ((("raw_jsonl",), corpus),))
    dataset = indexed.dataset_recipe(project, corpus, snapshot)
    yield Step(
        ("indexed_dataset",), corpus, dataset.digest, _is_current(project, dataset), ((("tokenized_shards",), corpus),)
    )


def _packed_step(project: Project, corpus: str, dataset_digest: str) -> Step:
    recipe = packed.packed_recipe(project, corpus, dataset_digest)
    done = _is_current(project, recipe)
    return Step(("packed_dataset",), corpus, recipe.digest, done, ((("indexed_dataset",), corpus),))


def _datasets_of(corpora: tuple[str, ...], datasets: Mapping[str, str]) -> dict[str, str]:
    return {corpus: datasets[corpus] for corpus in corpora}


def _nanoset_steps(project: Project, name: str, datasets: Mapping[str, str]) -> Iterator[Step]:
    spec = project.nanoset(name)
    last: dict[str, str] = {}
    for split in SPLITS:
        needs = tuple((("indexed_dataset",), corpus) for corpus in spec.corpora_of(split))
        mappings = mapping.mappings_recipe(project, name, split, datasets)
        done = _is_current(project, mappings) and mapping.is_cache_whole(project, mappings)
        yield Step((name, "index_mappings"), split, mappings.digest, done, needs)
        last[split] = mappings.digest
        if spec.is_blended:
            blend = mapping.blend_recipe(mappings)
            done = _is_current(project, blend) and mapping.is_cache_whole(project, blend)
            yield Step((name, "blend"), split, blend.digest, done, (((name, "index_mappings"), split),))
            last[split] = blend.digest
    recipe = handoff.handoff_recipe(project, name, last)
    asset = "blend" if spec.is_blended else "index_mappings"
    splits = tuple(((name, asset), split) for split in SPLITS)
    yield Step((name, "handoff"), None, recipe.digest, _is_current(project, recipe), splits)


def _webdataset_steps(project: Project, name: str, datasets: Mapping[str, str]) -> Iterator[Step]:
    spec = project.webdataset(name)
    plan = shuffling.plan_recipe(project, name, _datasets_of(spec.corpora, datasets))
    planned = _is_current(project, plan)
    needs = tuple((("indexed_dataset",), corpus) for corpus in spec.corpora)
    yield Step((name, "shuffle_plan"), None, plan.digest, planned, needs)
    for group in range(spec.groups):
        written = planned and shuffling.is_group_written(project, name, group)
        yield Step((name, "tars"), str(group), plan.digest, written, (((name, "shuffle_plan"), None),))
    webdataset = shuffling.webdataset_recipe(plan)
    tars = tuple(((name, "tars"), str(group)) for group in range(spec.groups))
    yield Step((name, "manifest"), None, webdataset.digest, _is_current(project, webdataset), tars)
