"""mapping: datasets → the trainer's document, sample and shuffle indices for each split, and the blend over them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nanoset_core.errors import ConfigError, FormatError, NanosetError, StorageError, one_line, raised
from nanoset_core.execution.progress import Progress
from nanoset_core.formats.indexed.layout import idx_path
from nanoset_core.loading.opening import BLEND, LACKING, MAPPINGS, PLAN_FILE, STAGE, split_bytes
from nanoset_core.outputs.manifest import Manifest, Recipe, first_fault
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project, holding
from nanoset_core.project.settings import ProjectConfig
from nanoset_core.sampling.cache import FileSet, blend_set, member_set, open_blend
from nanoset_core.sampling.coverage import coverage
from nanoset_core.sampling.planned import SplitPlan
from nanoset_core.sampling.splits import SPLITS, SplitName
from nanoset_core.stages.contamination.stage import gates
from nanoset_core.stages.datasets import current_dataset, dataset_node
from nanoset_core.stages.held_out import stage as held_out
from nanoset_core.stages.mappings.planning import NanosetContext, PlannedSplit, cache_folder
from nanoset_core.stages.mappings.run_before import versions_before
from nanoset_core.stages.report import Report, Run, run_here
from nanoset_core.stages.same_text import check_split_text
from nanoset_core.stages.stage import (
    PART,
    SUBJECT,
    Key,
    Layout,
    Node,
    OutsideFiles,
    Planned,
    ReadingBudget,
    Summary,
    check_recipe,
    require,
    size_bytes,
)
from nanoset_core.storage.access import FileAccess

VERSION, MIXTURE = 1, "mixture"
CORPORA = "corpora"
Notes = Mapping[str, Mapping[str, Any]]
"""Name of a cache file → its `bytes` and `sha256`."""
_CHUNK = 1 << 22


def mappings_recipe(nanoset: NanosetContext, split: SplitName, datasets: Mapping[str, str] | None = None) -> Recipe:
    """Return what the index mappings of one split are made from; without digests of datasets, of the current ones."""
    options = json.loads(json.dumps(nanoset.options(split)))
    parents = dict(datasets or nanoset.digests(nanoset.spec.corpora_of(split)))
    return Recipe(STAGE, f"{nanoset.name}/{split}/{MAPPINGS}", VERSION, parents, options)


@holding
def write_mappings(project: Project, name: str, split: SplitName) -> Manifest:
    """Write the trainer's index caches of every member corpus for one split; raises as `NanosetContext.plan`."""
    check_split_text(project, name, split)
    nanoset = NanosetContext(project, name)
    recipe, planned = mappings_recipe(nanoset, split), nanoset.plan(split)
    files, new, access = dict[str, Mapping[str, Any]](), dict[str, str](), project.outputs.access
    members, sidecars = planned.plan.members if planned.plan is not None else (), list[str]()
    listed = access.with_listing(nanoset.cache)
    for number, member in enumerate(members, start=1):
        one = member_set(member, planned.config, nanoset.cache)
        found = None if project.rebuild else _stored(listed, one)
        if found is None:
            idx = access.fetch(idx_path(Path(member.prefix)))  # it may have made room for that of another member
            made = one.write(partial(_make_room, access, idx))
            found, new, sidecars = _notes(nanoset.cache, made), new | made, [*sidecars, member.sidecar]
            if access.capacity is not None:  # before they make room in turn
                _send(project, nanoset.cache, new, sidecars)
                new, sidecars = {}, []
        files |= found
        project.listener(Progress(MAPPINGS, f"{name} {split}", number, len(members), unit="corpora"))
    _send(project, nanoset.cache, new, sidecars)
    return _publish(nanoset, recipe, planned, files)


@holding
def write_blended(project: Project, name: str, split: SplitName) -> Manifest:
    """Write the trainer's blend caches for one split, over the index mappings made before.

    MissingError, StaleError where these were not made yet, or from other inputs; ConfigError where there is no blend.
    """
    nanoset = NanosetContext(project, name)
    if not nanoset.spec.is_blended:
        what = "there is no blend to write: this nanoset reads one corpus without a weight"
        raise ConfigError(what, where=f"{project.config.file}: nanosets.{name}")
    key = Key(name, split)
    mappings = require(project, INDEX_MAPPINGS, key)
    check_recipe(mappings, mappings_recipe(nanoset, split))
    planned, cache = nanoset.plan(split), nanoset.cache
    files: Notes = {}
    given, access = None, project.outputs.access
    if planned.plan is not None and planned.plan.blend is not None:
        one = blend_set(planned.plan, planned.plan.blend, cache)
        found = None if project.rebuild else _stored(access.with_listing(cache), one)
        if found is None:
            made = one.write(access.make_room)
            _send(project, cache, made, [one.sidecar])
            found = _notes(cache, made)
        files, given = found, _given(planned.plan, cache, access)
    recipe = BLENDED.recipe(project, key, {MAPPINGS: mappings.digest})
    return _publish(nanoset, recipe, planned, files, given)


def _stored(listed: FileAccess, one: FileSet) -> Notes | None:
    """Return the notes on a set of cache files that a store holds whole; None for one that it does not, or is local."""
    if not listed.has_copies:
        return None
    try:
        notes = one.notes_in(listed.read_current(one.folder / one.sidecar))
    except FileNotFoundError:
        return None
    sizes = {} if notes is None else {name: note["bytes"] for name, note in notes.items()}
    return None if first_fault(listed.sizes(one.folder, sizes), sizes) is not None else notes


def _send(project: Project, cache: Path, files: Mapping[str, str], sidecars: Iterable[str]) -> None:
    """Upload cache files to where outputs live; descriptions, which complete a set, go last."""
    last = [name for name in files if not name.endswith(".npy")]
    sha256 = {cache / name: digest for name, digest in files.items()}
    first = [*(name for name in files if name not in last), *sidecars]
    for names in (first, last):
        project.outputs.access.send((cache / name for name in names), sha256)


def _make_room(access: FileAccess, idx: Path, size: int, folder: str) -> None:
    """Make room for index files of a dataset; StorageError where these, and its .idx, are too large to be read."""
    access.make_room(size + idx.stat().st_size, f"{folder}: the index files of a dataset, with its .idx")


def _notes(cache: Path, files: Mapping[str, str]) -> Notes:
    return {file: {"bytes": (cache / file).stat().st_size, "sha256": sha256} for file, sha256 in files.items()}


def _given(plan: SplitPlan, cache: Path, access: FileAccess) -> list[int]:
    """Return how many samples the built blend takes of each dataset."""
    index = open_blend(plan, cache, access).dataset_index
    counts = np.zeros(len(plan.members), np.int64)
    for begin in range(0, len(index), _CHUNK):
        counts += np.bincount(index[begin : begin + _CHUNK].astype(np.int64), minlength=len(counts))
    return counts.tolist()


def _publish(
    nanoset: NanosetContext,
    recipe: Recipe,
    planned: PlannedSplit,
    files: Notes,
    given: list[int] | None = None,
) -> Manifest:
    outputs = nanoset.project.outputs

    def write(folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
        (folder / PLAN_FILE).write_bytes(split_bytes(outputs.folder, planned.plan, planned.config))
        return _facts(nanoset, planned, given) | {"cache_files": files}, {}

    return outputs.make_current(outputs.commit(recipe, write))


def _facts(nanoset: NanosetContext, planned: PlannedSplit, given: list[int] | None) -> dict[str, Any]:
    plan = planned.plan
    lacking = {} if planned.lacking is None else {LACKING: planned.lacking}
    if plan is None:
        return {"samples": 0, "blended": False, "members": [], **lacking}
    limits = {member.prefix: member.max_epochs for member in planned.members if member.max_epochs is not None}
    rows = planned.members if given is None else coverage(plan, planned.config, limits, given)
    members = [
        {
            "corpus": corpus,
            **{key: value for key, value in row.to_json().items() if key != "prefix"},
            "epochs_built": member.epochs,
        }
        for corpus, row, member in zip(planned.corpora, rows, plan.members, strict=True)
    ]
    corpora = [corpus.to_json() for corpus in nanoset.corpora(planned, rows)]
    mix = {MIXTURE: list(map(asdict, planned.mixture))} if planned.mixture else {}
    return {
        "samples": plan.samples,
        "blended": plan.blend is not None,
        "members": members,
        CORPORA: corpora,
        **lacking,
        **mix,
    }


def samples_read(facts: Mapping[str, Any]) -> int:
    """Return the samples of a split that the run reads, by the facts of its output.

    The trainer's own length of a dataset without a blend is that of whole epochs, also if fewer samples are requested.
    """
    return sum(member["samples_given"] for member in facts["members"])


def unused_samples(facts: Mapping[str, Any]) -> int:
    """Return the samples that a split's index files hold and the run does not read."""
    return sum(member["surplus"] for member in facts["members"])


class _SplitStage(OutsideFiles):
    """What the index mappings and the blend of a split have in common."""

    kind = "nanoset"
    version = VERSION

    def fault(self, project: Project, key: Key, manifest: Manifest) -> str | None:
        wanted = {name: fact["bytes"] for name, fact in manifest.facts.get("cache_files", {}).items()}
        fault = first_fault(project.outputs.access.sizes(cache_folder(project, key.subject), wanted), wanted)
        return None if fault is None else f"an index file is missing or of another size: {fault[0]}"

    def show(self, project: Project, manifest: Manifest) -> Summary:
        files = manifest.facts.get("cache_files", {}).values()
        figures = {"bytes": size_bytes(manifest) + sum(fact["bytes"] for fact in files)}
        if "members" in manifest.facts:
            samples = samples_read(manifest.facts)
            figures["samples"] = samples
            figures["unused_samples"] = unused_samples(manifest.facts)
            length = manifest.recipe["options"].get("sequence_length")
            if length is not None:  # of the index mappings; a blend's options are those of its mappings
                figures["tokens"] = samples * int(length)
        for corpus in manifest.facts.get(CORPORA, ()):
            for name in ("unique_tokens", "repeated_tokens"):
                figures[name] = figures.get(name, 0) + corpus[name]
        return Summary(figures, self._details(manifest))

    def _details(self, manifest: Manifest) -> Mapping[str, str]:
        if "members" not in manifest.facts:
            return {}
        # Outputs of earlier versions tell no epochs of corpora.
        epochs = [corpus["epochs"] for corpus in manifest.facts.get(CORPORA, manifest.facts["members"])] or [0]
        ends = dict.fromkeys(f"{end:.2f}" for end in (min(epochs), max(epochs)))
        details: dict[str, str] = {}
        if unused := unused_samples(manifest.facts):
            details["unused samples"] = f"{unused:,}"
        if CORPORA in manifest.facts:
            corpora = manifest.facts[CORPORA]
            details["unique tokens"] = f"{sum(corpus['unique_tokens'] for corpus in corpora):,}"
            details["repeated tokens"] = f"{sum(corpus['repeated_tokens'] for corpus in corpora):,}"
        details["epochs"] = " to ".join(ends)
        unused_tokens = [member["tokens_unseen"] for member in manifest.facts["members"]]
        if None not in unused_tokens:
            details["unused tokens"] = f"{sum(unused_tokens):,}"
        return details


class MappingsStage(_SplitStage, Planned):
    """The trainer's document, sample and shuffle index of every corpus of a split."""

    layout = Layout(STAGE, (SUBJECT, PART, MAPPINGS))

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        return [Key(name, split, requested_at=f"nanosets.{name}.blend") for name in config.nanosets for split in SPLITS]

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        corpora = config.nanosets[key.subject].corpora_of(split_of(key))
        gated = gates(config, corpora) | held_out.gate(config, key.subject) if key.part == "train" else {}
        return {corpus: dataset_node(config, corpus) for corpus in corpora} | gated

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        return mappings_recipe(NanosetContext(project, key.subject), split_of(key), parents)

    def make(self, project: Project, key: Key) -> Manifest:
        return write_mappings(project, key.subject, split_of(key))

    def verify(self, project: Project, key: Key, *, deep: bool = False, run: Run = run_here) -> Report:
        from nanoset_core.stages.mappings.verify import verify_mappings

        return verify_mappings(project, key.subject, split_of(key), deep)

    def show(self, project: Project, manifest: Manifest) -> Summary:
        facts = manifest.facts

        # Versions of before 0.2 do not say why a split is short.
        shortage = facts.get(LACKING)
        if shortage is None and facts["members"] and not facts["samples"]:
            shortage = "it has no sample"
        warnings = [] if shortage is None else [shortage]
        return replace(super().show(project, manifest), warnings=warnings)

    def refusal(self, project: Project, key: Key, wanted: Recipe, reading: ReadingBudget) -> str | None:
        """Return why the split cannot be planned, where its datasets are there and their .idx files not too big."""
        if errors := raised(check_split_text, project, key.subject, split_of(key)):
            return one_line(errors[0])
        try:
            current = [current_dataset(project, corpus) for corpus in project.nanoset(key.subject).corpora]
            if any(wanted.parents.get(one.name, one.digest) != one.digest for one in current):
                return None
            size = sum(one.files[idx_path(one.facts["prefix"]).name].size for one in current)
        except (NanosetError, OSError):
            return None  # a dataset is not built
        if not reading.spend(size):
            return None
        try:
            NanosetContext(project, key.subject, exact=False).plan(split_of(key))
        except NanosetError as error:
            return one_line(error)
        return None

    def references(self, outputs: OutputRoot, manifest: Manifest) -> Iterable[str]:
        """Return what says how far the run that this one goes on from has read."""
        if (before := manifest.recipe["options"].get("after", {}).get("handoff")) is not None:
            yield from (found.digest for found in versions_before(outputs, *before.split("/")).values())

    def planned_files(self, project: Project, key: Key) -> tuple[Set[str], Set[str]] | None:
        """Return names of (index files that a split would have now, index files that exist); None without any."""
        planned = NanosetContext(project, key.subject).plan(split_of(key)).plan
        if planned is None:
            return None
        parts = (*planned.members, *filter(None, [planned.blend]))
        files = {file for part in parts for file in part.cache_files}
        return files, project.outputs.access.names(cache_folder(project, key.subject))


class BlendStage(_SplitStage):
    """Which corpus, and which of its samples, is the k-th sample of a split."""

    layout = Layout(STAGE, (SUBJECT, PART, BLEND))

    def keys(self, config: ProjectConfig, corpora: Collection[str]) -> Iterable[Key]:
        blended = [name for name, spec in config.nanosets.items() if spec.is_blended]
        return [Key(name, split, requested_at=f"nanosets.{name}.blend") for name in blended for split in SPLITS]

    def inputs(self, config: ProjectConfig, key: Key) -> Mapping[str, Node]:
        return {MAPPINGS: Node(INDEX_MAPPINGS, key)}

    def recipe(self, project: Project, key: Key, parents: Mapping[str, str]) -> Recipe:
        return Recipe(STAGE, self.layout.name_of(key), VERSION, parents)

    def make(self, project: Project, key: Key) -> Manifest:
        return write_blended(project, key.subject, split_of(key))

    def verify(self, project: Project, key: Key, *, deep: bool = False, run: Run = run_here) -> Report:
        from nanoset_core.stages.mappings.verify import verify_blend

        return verify_blend(project, key.subject, split_of(key), deep)


def split_of(key: Key) -> SplitName:
    """Return the split of a key."""
    return next(split for split in SPLITS if split == key.part)


def index_files(manifest: Manifest) -> set[str]:
    """Return the index files that one split's output lists, and the notes beside them; FormatError without a plan."""
    names, path = set(manifest.facts.get("cache_files", {})), manifest.folder / PLAN_FILE
    try:
        plan = json.loads(manifest.access.read_current(path))["plan"] or {}
        for part in filter(None, (*plan.get("members", ()), plan.get("blend"))):
            names |= {*part["files"].values(), part["sidecar"]}
    except FileNotFoundError:
        return names
    except StorageError:  # of the store, not of the file
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(
            "this is not the plan of a split",
            where=manifest.url(PLAN_FILE),
            found=repr(error),
            remedy="run `nanoset build`",
        ) from error
    return names


INDEX_MAPPINGS = MappingsStage()
BLENDED = BlendStage()
