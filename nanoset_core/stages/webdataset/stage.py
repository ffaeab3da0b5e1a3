"""shuffling: datasets → plan → shuffled tars, group by group → the manifests that name them."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import (
    ConfigError,
    FormatError,
    MissingError,
    NanosetError,
    StaleError,
    one_line,
    raised,
)
from nanoset_core.formats.tars.members import compressor_identity
from nanoset_core.outputs.current import Reason
from nanoset_core.outputs.manifest import MANIFEST, Manifest, Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.orders import reordering_warnings
from nanoset_core.project.project import Project, holding
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.stages.contamination.stage import gates
from nanoset_core.stages.dataset.tokens import has_room_for_tokens
from nanoset_core.stages.datasets import current_dataset, dataset_node, padding_of
from nanoset_core.stages.inventory.make import current_inventory
from nanoset_core.stages.inventory.shared_files import check_webdataset_files
from nanoset_core.stages.packs.stage import PACKS
from nanoset_core.stages.report import Report, Run, run_here
from nanoset_core.stages.shards import stage as tokenization
from nanoset_core.stages.shards.document_table import counts_by_file, tokens_by_file
from nanoset_core.stages.shards.shards import DOCUMENTS
from nanoset_core.stages.stage import (
    PART,
    SUBJECT,
    Advising,
    Estimated,
    InParts,
    Key,
    Layout,
    Node,
    Planned,
    ReadingBudget,
    Resumable,
    Summary,
    check_recipe,
    counted,
    current_version,
    require,
)
from nanoset_core.stages.text_estimate import TextEstimate
from nanoset_core.stages.views.stage import is_view
from nanoset_core.stages.webdataset.contexts import SourceContexts
from nanoset_core.stages.webdataset.lists import LISTS, write_lists
from nanoset_core.stages.webdataset.plan import ShufflePlan, plan_shuffle
from nanoset_core.stages.webdataset.plan_settings import TOKSHUF_EOT, PlanSettings, shared_settings, tokshuf_tokens
from nanoset_core.stages.webdataset.quality import shuffle_quality
from nanoset_core.stages.webdataset.settings import WebdatasetSpec
from nanoset_core.stages.webdataset.shards import (
    MARKERS,
    TarFacts,
    clear_markers,
    read_markers,
    shard_stem,
    write_markers,
)
from nanoset_core.stages.webdataset.sources import TokenSource
from nanoset_core.stages.webdataset.stored_rows import ROWS
from nanoset_core.stages.webdataset.writing import WriteOptions, write_shards
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import sweep_abandoned

VERSION = 2
PLANS = "shuffle_plans"
STAGE = "webdatasets"
PLAN_FILE = "plan.json"
_CONTEXTS_AT_ONCE = 1 << 20
_TAR = re.compile(r"shard-\d{8,}\.tar")


def webdataset_recipe(name: str, plan: str) -> Recipe:
    """Return what the tars of a webdataset are made from: the plan of this digest."""
    return Recipe(STAGE, name, VERSION, {"plan": plan})


@holding
def make_plan(project: Project, name: str) -> Manifest:
    """Plan the shards of a webdataset from its corpora's current datasets; make the plan the current one.

    InputError where they do not fill a context; with tokshuf ConfigError, StaleError: other tokenizer or shards.
    """
    check_webdataset_files(project, name)
    spec = project.webdataset(name)
    datasets = {corpus: current_dataset(project, corpus) for corpus in spec.names}
    recipe = SHUFFLE_PLAN.recipe(project, Key(name), {corpus: one.digest for corpus, one in datasets.items()})

    def write(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
        plan = plan_shuffle(
            _sources(project, datasets, project.outputs.access.has_copies), _settings(project, spec, datasets)
        )
        (folder / PLAN_FILE).write_text(json.dumps(plan.to_json(), indent=1) + "\n", encoding="utf-8")
        return plan.to_json() | {"quality": shuffle_quality(plan)}, {}

    return project.outputs.make_current(project.outputs.commit(recipe, write))


def _settings(project: Project, spec: WebdatasetSpec, datasets: dict[str, Manifest]) -> PlanSettings:
    is_tokshuf, eod = spec.preset == "tokshuf", project.special("eod")
    settings = PlanSettings(
        sequence_length=spec.sequence_length,
        pad_id=project.special("pad") if spec.tail == "pad" else None,
        bos_id=project.special("bos") if spec.bos else None,
        eod=eod,
        vocab_size=project.tokenizer.max_id + 1,
        streams={name: _file_tokens(project, name, one) for name, one in datasets.items()} if is_tokshuf else None,
        frequencies=spec.numbers if spec.mix == "frequencies" else None,
        weights=spec.numbers if spec.mix == "weights" else None,
        contexts=spec.contexts,
        **shared_settings(spec),
    )
    if not is_tokshuf:
        return settings
    file = project.config.tokenizer_file
    if eod != TOKSHUF_EOT:
        what, remedy = "tokshuf-rust ends documents with the token 0", "name that token, or use the default preset"
        found, expected = f"{project.config.tokenizer.eod!r}, the token {eod}", repr(tokshuf_tokens(file)[0])
        where = f"{project.config.file}: tokenizer.eod"
        raise ConfigError(what, where=where, found=found, expected=expected, remedy=remedy)
    return settings.of_tokshuf(file)


def _file_tokens(project: Project, corpus: str, dataset: Manifest) -> list[int]:
    """Return the tokens of each file of a corpus, in the dataset's order."""
    if is_view(dataset):
        what, remedy = "the preset tokshuf cuts each file on its own, which a view has not", "name a corpus"
        raise ConfigError(what, where=f"{project.config.file}: webdatasets", found=f"the view {corpus}", remedy=remedy)
    wanted = dataset.recipe["parents"]["inventory"]
    tokenized = require(project, tokenization.TOKENIZED, Key(corpus))
    inventory_manifest, inventory = current_inventory(project, corpus)
    if tokenized.recipe["parents"]["inventory"] != wanted or inventory_manifest.digest != wanted:
        raise StaleError(
            "the dataset was made from other files than the present ones",
            where=dataset.url(),
            found=wanted,
            expected=inventory_manifest.digest,
            remedy="run `nanoset build`, or materialise tokenized_shards and indexed_dataset first",
        )
    shards = tokenization.current_shards(project, tokenized)
    counts = project.outputs.access.each_copy(lambda shard: counts_by_file(shard.path(DOCUMENTS)), shards)
    return list(tokens_by_file(inventory.files, counts).values())


def current_plan(project: Project, name: str) -> tuple[Manifest, ShufflePlan]:
    """Return a webdataset's current plan; MissingError where it was not made yet."""
    manifest = require(project, SHUFFLE_PLAN, Key(name))
    return manifest, manifest.load(PLAN_FILE, ShufflePlan.from_json)


def group_shards(plan: ShufflePlan, groups: int, group: int) -> range:
    """Return the shards of one group: as even a share of them as whole numbers allow."""
    return range(plan.shards * group // groups, plan.shards * (group + 1) // groups)


@holding
def write_group(project: Project, name: str, group: int) -> list[TarFacts]:
    """Write the tars of one group of shards into the webdataset's folder, those that are not there yet.

    Each appears whole or not at all; the folder counts as complete only once `finish` has written its manifests. Raises
    as `write_shards`; or StaleError where a corpus has another dataset than the planned one.
    """
    manifest, plan = current_plan(project, name)
    recipe = webdataset_recipe(manifest.name, manifest.digest)
    spec = project.webdataset(name)
    shards = group_shards(plan, spec.groups, group)
    folder, there = project.outputs.place(recipe), None
    with contextlib.suppress(FormatError):  # then all are written again
        there = project.outputs.manifest_at(folder)
    if there is not None and not project.rebuild and project.outputs.is_whole(there, folder):
        return list(_of_shards(there, shards).values())
    datasets = {corpus: current_dataset(project, corpus) for corpus in spec.names}
    present = {corpus: dataset.digest for corpus, dataset in datasets.items()}
    check_recipe(manifest, replace(Recipe(**manifest.recipe), parents=present))
    folder.mkdir(parents=True, exist_ok=True)
    sweep_abandoned(folder)
    access = project.outputs.access
    kept = [] if there is None else list(_of_shards(there, shards).values())  # tars of a damaged webdataset stay
    write_markers(folder, kept, recipe.digest, access)
    facts = {} if project.rebuild else _noted(project, recipe, shards)
    if missing := [shard for shard in shards if shard not in facts]:
        options = WriteOptions(
            engine=spec.engine,
            memory_bytes=spec.memory_mib << 20,
            workers=project.config.workers,
            executor=project.executor,
            listener=project.listener,
            name=f"{name} group {group}",
            access=access,
        )
        sources = _sources(project, datasets, access.has_copies and not _come_here(project, datasets.values()))
        made = write_shards(plan, sources, missing, folder, options, made_from=recipe.digest, force=project.rebuild)
        facts |= {fact.shard: fact for fact in made}
    if project.outputs.find(recipe) is not None:
        # Tars of a finished webdataset were made again: its manifest holds their facts.
        clear_markers(folder, access)
    return [facts[shard] for shard in shards]


def _written(project: Project, recipe: Recipe, shards: range) -> dict[int, TarFacts]:
    """Return shard → facts, of those shards whose tars are there and of the size written."""
    done = project.outputs.find(recipe)
    return _noted(project, recipe, shards) if done is None else _of_shards(done, shards)


def _noted(project: Project, recipe: Recipe, shards: range) -> dict[int, TarFacts]:
    """Return the same by the markers beside the tars, of a webdataset that is not complete."""
    noted = read_markers(project.outputs.place(recipe), shards, recipe.digest, project.outputs.access)
    if len(noted) == len(shards):
        return noted
    done = project.outputs.find(recipe)  # another build may have completed it meanwhile, and removed the markers
    return noted if done is None else _of_shards(done, shards)


def _of_shards(done: Manifest, shards: range) -> dict[int, TarFacts]:
    facts = (TarFacts(**row) for row in done.facts["shards_written"])
    return {fact.shard: fact for fact in facts if fact.shard in shards}


def group_facts(project: Project, name: str, group: int) -> dict[Path, TarFacts | None]:
    """Return tar → facts of one group of the current plan; None where it is not there, or not of the size written."""
    manifest, plan = current_plan(project, name)
    recipe = webdataset_recipe(manifest.name, manifest.digest)
    shards = group_shards(plan, project.webdataset(name).groups, group)
    facts, folder = _written(project, recipe, shards), project.outputs.place(recipe)
    return {folder / f"{shard_stem(shard)}.tar": facts.get(shard) for shard in shards}


def is_group_written(project: Project, name: str, group: int) -> bool:
    """Return whether every tar of a group of the current plan is there."""
    return None not in group_facts(project, name, group).values()


@holding
def finish(project: Project, name: str) -> Manifest:
    """Write the lists that name a webdataset's tars, and make it current; MissingError where one is not there."""
    manifest, plan = current_plan(project, name)
    recipe = webdataset_recipe(manifest.name, manifest.digest)
    done = project.outputs.find(recipe)
    if done is None or project.rebuild:
        done = _finish(project, recipe, plan, manifest.recipe["parents"])
    clear_markers(done.folder, project.outputs.access)  # also of a build that was killed after completing it
    project.outputs.access.remove_all(done.folder / ROWS)
    return project.outputs.make_current(done)


def _finish(project: Project, recipe: Recipe, plan: ShufflePlan, digest_by_source: Mapping[str, str]) -> Manifest:
    """Write the lists of a webdataset whose tars are all there.

    Args:
        project: the project.
        recipe: of the webdataset.
        plan: of its tars.
        digest_by_source: the dataset that each source of the plan is.

    Raises:
        MissingError: a tar is missing, or packs that the plan was made of.
    """
    folder = project.outputs.place(recipe)
    facts = _written(project, recipe, range(plan.shards))
    if missing := [shard for shard in range(plan.shards) if shard not in facts]:
        raise MissingError(
            "some shards have not been written",
            where=project.outputs.access.url(folder),
            found=f"{len(facts):,} of {plan.shards:,}; the first missing is {shard_stem(missing[0])}.tar",
            remedy=f"run `nanoset build`, or materialise every partition of {recipe.name}/tars first",
        )
    padding = PackPadding.of(project, plan, digest_by_source)
    ordered = [padding.counted(facts[shard]) for shard in range(plan.shards)]
    sources = padding.counted_sources()
    counts = ("sequence_length", "tokens_dropped", "contexts_left_out", "shards")
    summary = {
        "sequences": plan.contexts,
        **{name: getattr(plan, name) for name in counts},
        "tokens": sum(fact.tokens for fact in ordered),
        "pad_tokens": sum(fact.pad_tokens for fact in ordered),
        "sources": [source.to_json() for source in sources],
        "shards_written": [asdict(fact) for fact in ordered],
    }
    tokenizer = project.config.tokenizer_file.name
    files = write_lists(plan, ordered, folder, name=recipe.name, tokenizer=tokenizer, sources=sources)
    return project.outputs.finalize(recipe, summary, files)


@dataclass(frozen=True, slots=True)
class PackPadding:
    """The padding within packs, which the plan of a shuffle counts as tokens: to it, a pack is a row like any other."""

    plan: ShufflePlan
    by_source: Mapping[int, NDArray[np.int64]]
    """Number of a source that is packs → tokens of each pack that are padding, shape (packs,)."""

    @classmethod
    def of(cls, project: Project, plan: ShufflePlan, digest_by_source: Mapping[str, str]) -> PackPadding:
        """Return the padding of the packs among the sources of a plan.

        Raises:
            MissingError: the packs that the plan was made of are gone.
        """
        by_source: dict[int, NDArray[np.int64]] = {}
        for number, source in enumerate(plan.table.sources):
            if source.name in project.config.packs:
                gone = "the packs that the tars were made of are gone"
                digest = digest_by_source[source.name]
                packs = project.outputs.version(PACKS.layout.folder, source.name, digest, gone)
                by_source[number] = padding_of(packs)
        return cls(plan, by_source)

    def counted(self, fact: TarFacts) -> TarFacts:
        """Return the facts of a tar with the padding within its packs counted as padding."""
        padding = self._padding(self.plan.shard_contexts(fact.shard))
        return replace(fact, tokens=fact.tokens - padding, pad_tokens=fact.pad_tokens + padding)

    def counted_sources(self) -> tuple[SourceContexts, ...]:
        """Return the counts of the sources with the padding within packs counted as padding."""
        table = self.plan.table
        sources = list(table.sources)
        for number in self.by_source:
            first, stop = table.first_contexts[number : number + 2].tolist()
            padding = 0
            for begin in range(first, stop, _CONTEXTS_AT_ONCE):
                end = min(begin + _CONTEXTS_AT_ONCE, stop)
                padding += self._padding(np.arange(begin, end, dtype=np.int64))
            source = sources[number]
            tokens_used = source.tokens_used - padding
            sources[number] = replace(source, tokens_used=tokens_used, pad_tokens=source.pad_tokens + padding)
        return tuple(sources)

    def _padding(self, contexts: NDArray[np.int64]) -> int:
        """Return the padding within packs of some contexts, int64, shape (contexts,)."""
        if not self.by_source:
            return 0
        source, start, _ = self.plan.table.locate(contexts)
        padding = 0
        for number, padding_by_pack in self.by_source.items():
            # Every row of packs is one pack, since both have one length.
            packs = start[source == number] // self.plan.settings.row_tokens
            padding += int(padding_by_pack[packs].sum())
        return padding


def _sources(project: Project, datasets: Mapping[str, Manifest], is_stored: bool) -> list[TokenSource]:
    greatest_id = project.tokenizer.max_id
    sources: list[TokenSource] = []
    for corpus, dataset in datasets.items():
        source = TokenSource.of_output(corpus, dataset, is_stored=is_stored, is_chosen=is_view(dataset))
        sources.append(replace(source, greatest_id=greatest_id))
    return sources


def _come_here(project: Project, datasets: Iterable[Manifest]) -> bool:
    """Return whether tokens in a bucket are copied, once for all groups, and not read there by each."""
    return project.executor is None and has_room_for_tokens(*datasets)


class PlanStage(Planned, Advising):
    """Which context of which corpus comes where in a webdataset."""

    layout = Layout(PLANS)
    kind = "webdataset"
    version = VERSION

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        return [Key(name, requested_at=f"{STAGE}.{name}.corpora") for name in config.webdatasets]

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        names = config.webdatasets[key.subject].names
        return {corpus: dataset_node(config, corpus) for corpus in names} | gates(config, names)

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        """Return the recipe of the plan; the order of the datasets numbers their contexts."""
        spec = project.webdataset(key.subject)
        options = shared_settings(spec) | {
            "corpora": list(spec.names),
            "numbers": spec.numbers,
            "contexts": spec.contexts,
            "sequence_length": spec.sequence_length,
            "mix": spec.mix if spec.numbers is not None else None,
            "pad": project.special("pad") if spec.tail == "pad" else None,
            "bos": project.special("bos") if spec.bos else None,
            "compressor": compressor_identity() if spec.member == "json.gz" else None,
        }
        return Recipe(PLANS, key.subject, VERSION, parents, options)

    def make(self, project: Project, key: Key) -> Manifest:
        return make_plan(project, key.subject)

    def verify(self, project: Project, key: Key, *, deep: bool = False, run: Run = run_here) -> Report:
        from nanoset_core.stages.webdataset.verify import verify_plan

        return verify_plan(project, key.subject)

    def refusal(self, project: Project, key: Key, wanted: Recipe, reading: ReadingBudget) -> str | None:
        """Return that two of its corpora hold the same file."""
        errors = raised(check_webdataset_files, project, key.subject)
        return one_line(errors[0]) if errors else None

    def settings_warnings(self, config: ProjectConfig, key: Key) -> Iterable[str]:
        corpora = config.webdatasets[key.subject].names
        return reordering_warnings(corpora, config.views, config.packs, "its contexts are shuffled into the tars")


def _tokens_in_tars(spec: WebdatasetSpec, tokens_by_corpus: Mapping[str, float]) -> float:
    """Return how many tokens the tars of a webdataset hold, by the tokens of its corpora."""
    numbers = spec.numbers or dict.fromkeys(spec.names, 1.0)
    if spec.mix == "frequencies":
        return sum(tokens_by_corpus[corpus] * frequency for corpus, frequency in numbers.items())
    if spec.contexts is not None:
        return float(spec.contexts * spec.sequence_length)
    # By weights, as many contexts as repeat no corpus: the corpus that is used up first decides.
    tokens_per_weight = [tokens_by_corpus[corpus] / weight for corpus, weight in numbers.items() if weight]
    return sum(numbers.values()) * min(tokens_per_weight)


class TarsStage(InParts, Estimated):
    """The tars of a webdataset, group by group: a part of its version, which the last stage completes."""

    layout = Layout(STAGE, (SUBJECT, "tars", PART))  # parts have no folder of their own: no output has such a name
    kind = "webdataset"
    version = VERSION
    parts_name = "groups of tars"
    estimated_as = "tars"

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        return [
            Key(name, str(group), requested_at=f"{STAGE}.{name}.groups")
            for name, spec in config.webdatasets.items()
            for group in range(spec.groups)
        ]

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        return {"plan": Node(SHUFFLE_PLAN, Key(key.subject))}

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        return webdataset_recipe(key.subject, parents["plan"])

    def disk_bytes(self, project: Project, key: Key, text_of: Callable[[str], TextEstimate]) -> int:
        """Return the size of one group of tars.

        Views and packs count as empty: how many documents a view chooses is not known before it is built.
        """
        spec = project.webdataset(key.subject)
        tokens_by_corpus = dict.fromkeys(spec.names, 0.0)
        for name in spec.names:
            if name not in project.config.derived:
                tokens_by_corpus[name] = text_of(name).tokens
        return int(_tokens_in_tars(spec, tokens_by_corpus) * project.tokenizer.dtype.itemsize / spec.groups)

    def part_digest(self, recipe: Recipe) -> str:
        return recipe.parents["plan"]

    def make(self, project: Project, key: Key) -> Manifest:
        write_group(project, key.subject, int(key.part or 0))
        return current_plan(project, key.subject)[0]

    def verify(self, project: Project, key: Key, *, deep: bool = False, run: Run = run_here) -> Report:
        from nanoset_core.stages.webdataset.verify import verify_group

        return verify_group(project, key.subject, key.part or "0")

    def part_problem(self, project: Project, key: Key, recipe: Recipe) -> Reason | None:
        plan = current_version(project, SHUFFLE_PLAN, Key(key.subject))
        if plan.problem is not None or plan.manifest is None or plan.manifest.digest != recipe.parents["plan"]:
            return Reason("plan changed", "plan")
        try:
            is_written = is_group_written(project, key.subject, int(key.part or 0))
        except NanosetError as error:
            return Reason(error.what)
        return None if is_written else self.NOT_WRITTEN


class WebdatasetStage(Resumable):
    """Shuffled tars with the lists that name them."""

    layout = Layout(STAGE)
    kind = "webdataset"
    version = VERSION

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        return [Key(name, requested_at=f"{STAGE}.{name}") for name in config.webdatasets]

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        groups = range(config.webdatasets[key.subject].groups)
        tars = {f"tars {group}": Node(SHUFFLED_TARS, Key(key.subject, str(group))) for group in groups}
        return {"plan": Node(SHUFFLE_PLAN, key)} | tars

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        return webdataset_recipe(key.subject, parents["plan"])

    def make(self, project: Project, key: Key) -> Manifest:
        return finish(project, key.subject)

    def verify(self, project: Project, key: Key, *, deep: bool = False, run: Run = run_here) -> Report:
        from nanoset_core.stages.webdataset.verify import verify_webdataset

        return verify_webdataset(project, key.subject, deep, run)

    def show(self, project: Project, manifest: Manifest) -> Summary:
        dropped = manifest.facts["tokens_dropped"]
        details = {"tokens dropped": "" if dropped is None else f"{dropped:,}"}
        return Summary(counted(manifest, "shards", "sequences", "tokens"), details)

    def unfinished_version(self, manifest: Manifest) -> str | None:
        """Return the digest of the webdataset that a plan gives: some of its tars may be written already."""
        if manifest.stage != PLANS:
            return None
        return webdataset_recipe(manifest.name, manifest.digest).digest

    def sweep(self, outputs: OutputRoot) -> None:
        """Remove tars of builds that were killed after another one had completed their webdataset."""
        for manifest in (outputs.folder / STAGE).glob(f"*/*/{MANIFEST}"):
            folder = manifest.parent
            if not folder.is_symlink():
                sweep_abandoned(folder)
                if (folder / MARKERS).is_dir():
                    clear_markers(folder, outputs.access)

    def unfinished_files(self, access: FileAccess, folder: Path) -> set[str] | None:
        """Return tars and lists; markers say for which webdataset they were made, but one that was cut off."""
        markers = {f"{MARKERS}/{name}" for name in access.names(folder / MARKERS) if name.endswith(".json")}
        made_from = set()
        for marker in markers:
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
                made_from.add(json.loads(access.read_current(folder / marker))["made_from"])
        return {*filter(_TAR.fullmatch, access.names(folder)), *LISTS, *markers} if made_from == {folder.name} else None


SHUFFLE_PLAN = PlanStage()
SHUFFLED_TARS = TarsStage()
WEBDATASET = WebdatasetStage()
