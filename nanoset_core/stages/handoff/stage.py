"""handoff: a nanoset's built splits → the files with which its trainer is started."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from nanoset_core.errors import MissingError
from nanoset_core.formats.indexed.layout import idx_path, read_idx
from nanoset_core.loading.opening import (
    BLEND,
    CACHE,
    HANDOFF,
    MAPPINGS,
    MASKS_OPTION,
    PLAN_FILE,
    STAGE,
    read_split,
)
from nanoset_core.outputs.manifest import Manifest, Recipe, first_fault
from nanoset_core.project.evaluation import evaluation_warnings
from nanoset_core.project.orders import nanoset_order_warnings
from nanoset_core.project.project import Project, holding
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.planned import SplitPlan
from nanoset_core.sampling.presets import get_preset
from nanoset_core.sampling.splits import SPLITS, SplitName
from nanoset_core.stages.exports.settings import exports_read
from nanoset_core.stages.exports.stage import EXPORT
from nanoset_core.stages.handoff.tokenizer import tokenizer_arguments, tokenizer_note
from nanoset_core.stages.handoff.writers import (
    START,
    UNKNOWN_TOKENIZER,
    DatasetCounts,
    Handoff,
    handoff_files,
    loads_fast,
)
from nanoset_core.stages.mappings.planning import NanosetContext
from nanoset_core.stages.mappings.settings import corpora_of
from nanoset_core.stages.mappings.stage import BLENDED, INDEX_MAPPINGS, mappings_recipe
from nanoset_core.stages.report import Report, Run, run_here
from nanoset_core.stages.stage import (
    SUBJECT,
    Advising,
    BoundToMachine,
    Key,
    Layout,
    Node,
    Summary,
    check_recipe,
    counted,
    require,
)
from nanoset_core.tokenizers.files import define

VERSION, WITH_PREFLIGHT = 2, 3


def _tokenizer_arguments(nanoset: NanosetContext) -> tuple[str, ...]:
    if nanoset.spec.trainer is not None:
        return nanoset.spec.trainer.arguments()
    return tokenizer_arguments(define(nanoset.project.config.tokenizer_file))


def _export_nodes(config: ProjectConfig, name: str) -> dict[str, Node]:
    """Return corpus or view → the export of it that a nanoset's trainer reads."""
    read = exports_read(config.nanosets[name], config.exports)
    return {corpus: Node(EXPORT, Key(export)) for corpus, export in read.items() if export is not None}


def _exports(nanoset: NanosetContext) -> dict[str, Manifest]:
    """Return corpus or view → its current export; MissingError, StaleError without one of its current dataset."""
    found = {}
    for corpus, node in _export_nodes(nanoset.project.config, nanoset.name).items():
        made = found[corpus] = require(nanoset.project, EXPORT, node.key)
        recipe = EXPORT.recipe(nanoset.project, node.key, {"dataset": nanoset.dataset(corpus).digest})
        check_recipe(made, recipe)
    return found


@holding
def write_handoff(project: Project, name: str) -> Manifest:
    """Write the files with which the nanoset's trainer is started, over its built splits.

    MissingError, StaleError where a split or an index file is not there, or was made from other inputs.
    """
    nanoset = NanosetContext(project, name)
    blended = nanoset.spec.is_blended
    last = BLENDED if blended else INDEX_MAPPINGS
    built = {split: require(project, last, Key(name, split)) for split in SPLITS}
    exports = _exports(nanoset)
    parents = built | {f"export of {corpus}": manifest for corpus, manifest in exports.items()}
    recipe = TRAINER_FILES.recipe(project, Key(name), {one: manifest.digest for one, manifest in parents.items()})
    _check_cache(nanoset)
    request = _request(nanoset, recipe, built, exports)
    for split, manifest in built.items():
        key, expected = Key(name, split), mappings_recipe(nanoset, split)
        if blended:
            expected = BLENDED.recipe(project, key, {MAPPINGS: expected.digest})
        check_recipe(manifest, expected)

    def write(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
        files, notes = handoff_files(request)
        for file, content in files.items():
            (folder / file).write_bytes(content)
        return {"notes": notes, "samples": dict(request.samples), "loads_fast": loads_fast(request)}, {}

    return project.outputs.make_current(project.outputs.commit(recipe, write))


def _check_cache(nanoset: NanosetContext) -> None:
    """Raise MissingError unless every index file that the trainer will look for is there, of the size it had.

    With --dataloader-fast-cache-load Megatron-LM takes them for granted.
    """
    outputs, assets = nanoset.project.outputs, [(split, asset) for split in SPLITS for asset in (MAPPINGS, BLEND)]
    found = (outputs.current(STAGE, f"{nanoset.name}/{split}/{asset}") for split, asset in assets)
    listed = (manifest.facts["cache_files"] for manifest in found if manifest is not None)
    sizes = {file: fact["bytes"] for files in listed for file, fact in files.items()}
    if (fault := first_fault(outputs.access.sizes(nanoset.cache, sizes), sizes)) is not None:
        raise MissingError(
            "an index file that the trainer will look for is not there",
            where=nanoset.cache / fault[0],
            expected=f"{sizes[fault[0]]:,} bytes",
            remedy=f"run `nanoset build`, or materialise {nanoset.name}/{MAPPINGS} and {nanoset.name}/{BLEND} again",
        )


def _request(
    nanoset: NanosetContext, recipe: Recipe, built: Mapping[SplitName, Manifest], exports: Mapping[str, Manifest]
) -> Handoff:
    definition = define(nanoset.project.config.tokenizer_file)
    spec, root = nanoset.spec, nanoset.project.outputs.folder
    # What was built, not planned again: an older version may have built other shares.
    planned = {
        split: manifest.load(PLAN_FILE, lambda value: read_split(value, root)) for split, manifest in built.items()
    }
    corpora = dict.fromkeys(corpus for split in SPLITS for corpus in corpora_of(spec.blend_of(split)))
    folder = f"{nanoset.trainer_root}/{STAGE}/{nanoset.name}"
    return Handoff(
        name=nanoset.name,
        spec=spec,
        config=_whole(planned),
        samples={split: 0 if plan is None else plan.samples for split, (plan, _) in planned.items()},
        empty=_empty(nanoset.project, built),
        folder=f"{folder}/{HANDOFF}/{recipe.digest}",
        cache=f"{folder}/{CACHE}/{nanoset.index_folder}".rstrip("/"),
        datasets={nanoset.trainer_prefix(corpus): _counts(nanoset.dataset(corpus)) for corpus in corpora},
        vocab_size=nanoset.project.tokenizer.max_id + 1,
        tokenizer=_tokenizer_arguments(nanoset),
        tokenizer_note=tokenizer_note(definition, nanoset.project.config.tokenizer.eod),
        indexes=_indexes(planned, nanoset.index_folder),
        views=[] if exports else _views(nanoset),
        warnings=[*TRAINER_FILES.settings_warnings(nanoset.project.config, Key(nanoset.name))],
        exports={
            nanoset.trainer_prefix(corpus): f"{nanoset.trainer_root}/{made.stage}/{made.name}/{made.digest}"
            for corpus, made in exports.items()
        },
        tokenizer_name=next((made.recipe["options"]["tokenizer_name"] for made in exports.values()), None),
    )


def _views(nanoset: NanosetContext) -> list[str]:
    return [name for name in nanoset.spec.corpora if name in nanoset.project.config.views]


def _indexes(planned: Mapping[SplitName, tuple[SplitPlan | None, NanosetConfig]], folder: str) -> dict[str, list[str]]:
    """Return the trainer's description of each index → the index's other files; none where it writes none."""
    plans = [plan for plan, _ in planned.values() if plan is not None]
    parts = [
        {kind: name.removeprefix(folder) for kind, name in part.files.items()}
        for plan in plans
        for part in (*plan.members, *filter(None, [plan.blend]))
    ]
    return {files.pop("description"): list(files.values()) for files in parts if "description" in files}


def _counts(dataset: Manifest) -> DatasetCounts:
    idx = read_idx(dataset.access.fetch(idx_path(dataset.folder / dataset.facts["prefix"])), validate=False)
    return DatasetCounts(len(idx.sequence_lengths), len(idx.document_indices), idx.dtype.name)


def _empty(project: Project, built: Mapping[SplitName, Manifest]) -> dict[SplitName, str]:
    found = {split: list(INDEX_MAPPINGS.show(project, manifest).warnings) for split, manifest in built.items()}
    return {split: texts[0] for split, texts in found.items() if texts}


def _whole(planned: Mapping[SplitName, tuple[SplitPlan | None, NanosetConfig]]) -> NanosetConfig:
    """Merge the configurations that the three splits were built with."""
    samples = {split: config.samples(split) for split, (_, config) in planned.items()}
    paths = {prefix: path for _, config in planned.values() for prefix, path in config.trainer_paths.items()}
    whole = replace(planned["train"][1].with_samples(samples), trainer_paths=paths)
    if whole.blend_per_split is None:
        return whole
    blends = [
        config.blend_per_split[number] if plan is not None and config.blend_per_split else None
        for number, (plan, config) in enumerate(planned.values())
    ]
    return replace(whole, blend_per_split=blends)


class HandoffStage(BoundToMachine, Advising):
    """The files with which a nanoset's trainer is started."""

    layout = Layout(STAGE, (SUBJECT, HANDOFF))
    kind = "nanoset"
    version = VERSION

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        return [Key(name, requested_at=f"nanosets.{name}") for name in config.nanosets]

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        last = BLENDED if config.nanosets[key.subject].is_blended else INDEX_MAPPINGS
        splits = {split: Node(last, Key(key.subject, split)) for split in SPLITS}
        return splits | {f"export of {name}": node for name, node in _export_nodes(config, key.subject).items()}

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        nanoset = NanosetContext(project, key.subject)
        spec = nanoset.spec
        options: dict[str, Any] = {
            "trainer_path": nanoset.trainer_root,
            "vocab_size": project.tokenizer.max_id + 1,
            "transitions": spec.transitions,
        }
        if tokenizer := _tokenizer_arguments(nanoset):
            options["tokenizer"] = list(tokenizer)
        if views := _views(nanoset):
            options["views"] = views
        if spec.masks:
            options[MASKS_OPTION] = list(spec.masks)
        if (schedule := spec.schedule) is not None:
            names = ("iterations", "global_batch_size", "eval_interval", "eval_iters")
            options["schedule"] = [getattr(schedule, name) for name in names]
            options["span"] = spec.span and list(spec.span)
        version = WITH_PREFLIGHT if get_preset(spec.preset).hashes_tokenizer else VERSION
        return Recipe(STAGE, self.layout.name_of(key), version, parents, options)

    def make(self, project: Project, key: Key) -> Manifest:
        return write_handoff(project, key.subject)

    def verify(self, project: Project, key: Key, *, deep: bool = False, run: Run = run_here) -> Report:
        from nanoset_core.stages.handoff.verify import verify_handoff

        return verify_handoff(project, key.subject)

    def settings_warnings(self, config: ProjectConfig, key: Key) -> Iterable[str]:
        spec = config.nanosets[key.subject]
        yield from nanoset_order_warnings(spec, config.views, config.packs)
        yield from evaluation_warnings(spec)

    def show(self, project: Project, manifest: Manifest) -> Summary:
        spec = project.nanoset(manifest.name.removesuffix(f"/{HANDOFF}"))
        if not get_preset(spec.preset).hashes_tokenizer or spec.tokenizer_identifiers:
            return Summary(counted(manifest))
        # Without the path of this version, so that a warning that was seen stays known after a rebuild.
        warning = f"{UNKNOWN_TOKENIZER}: {START} of the handoff has the lines to add"
        return Summary(counted(manifest), warnings=[warning])


TRAINER_FILES = HandoffStage()
