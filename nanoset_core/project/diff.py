"""`nanoset diff`: how two versions of a dataset differ, and what that means downstream; of views see `diff_views`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from nanoset_core.errors import ConfigError, FormatError, MissingError, NanosetError, one_line, one_of, remedy_for_name
from nanoset_core.outputs.current import setting_differences
from nanoset_core.outputs.erasures import erasure_of_version
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.names import check_corpus_name
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.graph import Graph
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.origin import shards_of
from nanoset_core.stages.dataset.stage import DATASET
from nanoset_core.stages.inventory.make import pieces_by_file
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.mappings.stage import INDEX_MAPPINGS
from nanoset_core.stages.packs.stage import PACKS
from nanoset_core.stages.shards.document_table import FileCounts, counts_by_file
from nanoset_core.stages.shards.shards import DOCUMENTS, STAGE
from nanoset_core.stages.stage import Key, Node, current_version
from nanoset_core.stages.views.stage import VIEW
from nanoset_core.text.pieces import Inventory, Piece, cut_ranges

Change = Literal["added", "removed", "changed", "other settings"]
Effect = Literal["survives", "rebuilt", "to be rebuilt", "not built"]
_PREFIX = re.compile(r"[0-9a-f]{4,20}")


@dataclass(frozen=True, slots=True)
class DatasetVersion:
    """One version of a merged dataset, with the files and shards that it was made from."""

    dataset: Manifest
    tokenized: Manifest
    files: dict[str, list[Piece]]
    """Path → its pieces, in document order."""
    shards: dict[str, tuple[str, ...]]
    """Digest of each shard → the files that it reads, in document order."""

    @property
    def digest(self) -> str:
        return self.dataset.digest

    def to_json(self) -> dict[str, Any]:
        counts = {name: self.dataset.facts[name] for name in ("documents", "sequences", "tokens", "rejected", "faults")}
        return {"digest": self.digest, "made_at": self.dataset.written_ns / 1e9, **counts, "files": len(self.files)}


@dataclass(frozen=True, slots=True)
class FileDiff:
    """One source file that is not in both versions alike."""

    path: str
    """Relative to the corpus's folder."""
    change: Change
    """other settings: the same bytes gave other counts."""
    before: FileCounts
    after: FileCounts


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the change from one version to the other means for one output."""

    output: str
    """Nanoset and split, webdataset, or packed corpus."""
    fate: Effect
    """Rebuilt: it is made from the new version already."""
    why: str
    """In words."""
    index_files: int | None = None
    """Of a split: the trainer's index files that the new version asks for; None where that cannot be told."""
    kept_files: int | None = None
    """Those of them that the old version had too (rebuilt), or that are there already (to be rebuilt)."""


@dataclass(frozen=True, slots=True)
class DatasetDiff:
    """Two versions of a dataset, compared."""

    old: DatasetVersion
    new: DatasetVersion
    settings: list[str]
    """Settings that differ, as `name: before → after`."""
    files: list[FileDiff]
    """Source files that differ, in document order, removed ones in between."""
    outcomes: list[Outcome]
    """What becomes of each output of the present configuration."""

    @property
    def unchanged(self) -> int:
        """Files that are the same in both."""
        return len(self.new.files) - sum(file.change != "removed" for file in self.files)

    @property
    def shards_kept(self) -> int:
        """How many shards both versions share."""
        return len(self.old.shards.keys() & self.new.shards.keys())

    def total(self, side: str) -> FileCounts:
        """Return the sum over the files that differ; side: before or after."""
        return sum((getattr(file, side) for file in self.files), FileCounts())

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "corpus": self.new.dataset.name,
            "old": self.old.to_json(),
            "new": self.new.to_json(),
            "settings": self.settings,
            "files": [asdict(file) for file in self.files],
            "files_unchanged": self.unchanged,
            "shards_kept": self.shards_kept,
            "outcomes": [asdict(outcome) for outcome in self.outcomes],
        }


def diff_datasets(project: Project, first: str, second: str | None = None) -> DatasetDiff:
    """Compare two versions of a dataset; arguments and errors as for `find_versions`."""
    old, new = (_open(project.outputs, one) for one in find_versions(project, first, second))
    before, after = ({**one.tokenized.recipe["options"], **one.dataset.recipe["options"]} for one in (old, new))
    outcomes = list(_outcomes(project, old.dataset, new.dataset))
    return DatasetDiff(old, new, setting_differences(before, after), _compare_files(old, new), outcomes)


def find_versions(project: Project, first: str, second: str | None) -> tuple[Manifest, Manifest]:
    """Return the versions that two digests (or their beginnings) name; or, of a corpus or view, the last two.

    ConfigError where there are no such, several, or of two corpora; MissingError where there is no previous one,
    FormatError where one cannot be read.
    """
    outputs = project.outputs
    if second is None:
        first = project.config.packs[first].of if first in project.config.packs else first
        stage = VIEW.layout.folder if first in project.config.views else DATASET.layout.folder
        old, new = _previous_and_current(outputs, stage, check_corpus_name(first, "CORPUS"))
    else:
        old, new = (_named(outputs, digest) for digest in (first, second))
    if (old.stage, old.name) != (new.stage, new.name):
        what, remedy = "these are datasets of two corpora", "name two versions of one corpus or view"
        raise ConfigError(what, found=f"{old.name} and {new.name}", remedy=remedy)
    return old, new


def _previous_and_current(outputs: OutputRoot, stage: str, corpus: str) -> tuple[Manifest, Manifest]:
    current, folder = outputs.current_version(stage, corpus), outputs.folder / stage / corpus
    if current.manifest is None:
        names = sorted(outputs.access.names(folder.parent))
        views = outputs.access.names(outputs.folder / VIEW.layout.folder)
        remedy = "name one of these, or two digests; or run `nanoset build` first"
        raise ConfigError(
            "no such corpus, or it has no dataset yet",
            where=outputs.access.url(folder),
            found=current.problem if current.exists else repr(corpus),
            expected=one_of(names, "a built corpus; there is none yet"),
            remedy=remedy_for_name(corpus, [*names, *sorted(views)], remedy),
        )
    for version in outputs.versions(stage, corpus, strict=True):
        if version.digest != current.manifest.digest:
            return version, current.manifest
    found = f"the current one alone, {current.manifest.digest}"
    remedy = "name two digests, or build again once its text or settings changed"
    raise MissingError(
        "there is no previous version of it", where=outputs.access.url(folder), found=found, remedy=remedy
    )


def _named(outputs: OutputRoot, digest: str) -> Manifest:
    places = [outputs.folder / stage.layout.folder for stage in (DATASET, VIEW)]
    corpora = [place / corpus for place in places for corpus in outputs.access.names(place)]
    known = [corpus / one for corpus in corpora for one in outputs.digests_in(corpus)]
    found = [one for one in known if _PREFIX.fullmatch(digest) and one.name.startswith(digest)]
    manifest = outputs.manifest_at(found[0]) if len(found) == 1 else None
    if manifest is None:
        rows = sorted(f"{one.parent.name} {one.name}" for one in found or known)
        erasure = (
            erasure_of_version(outputs.access, "", "", digest) if not found and _PREFIX.fullmatch(digest) else None
        )
        if erasure is not None:
            raise MissingError(
                f"this version was erased by the purge of {erasure.day}",
                where=outputs.access.url(places[0]),
                found=repr(digest),
                remedy=f"compare versions that were made since; {erasure.receipt} lists them",
            )
        raise ConfigError(
            "several datasets have digests that begin so" if len(found) > 1 else "no such version of a dataset",
            where=outputs.access.url(places[0]),
            found=repr(digest),
            expected=f"the first four digits or more {one_of(rows[:10], 'of a built dataset; there is none yet')}",
            remedy="name one of these, or a corpus alone" if rows else "run `nanoset build` first",
        )
    return manifest


def _open(outputs: OutputRoot, dataset: Manifest) -> DatasetVersion:
    tokenized = shards_of(outputs, dataset)
    gone, remedy = "the inventory of this version is gone", "compare versions that `nanoset gc` has not taken apart"
    digest = dataset.recipe["parents"]["inventory"]
    inventory = outputs.version(INVENTORY.layout.folder, dataset.name, digest, gone, remedy)
    files = pieces_by_file(inventory)
    pieces = Inventory(dataset.name, tuple(piece for found in files.values() for piece in found))
    ranges, digests = cut_ranges(pieces, tokenized.recipe["options"]["range_bytes"]), tokenized.facts["shards"]
    if len(ranges) != len(digests):
        what, remedy = "the shards of this version are not those of its inventory", "delete the folder, and build again"
        found = f"{len(digests):,} shards instead of {len(ranges):,}"
        raise FormatError(what, where=tokenized.url(), found=found, remedy=remedy)
    shards = {digest: source.files for digest, source in zip(digests, ranges, strict=True)}
    return DatasetVersion(dataset, tokenized, files, shards)


def _compare_files(old: DatasetVersion, new: DatasetVersion) -> list[FileDiff]:
    """Return every file that was added, removed or changed, or of which other settings made something else.

    Only tables of shards that hold such files are read: under the same settings, equal bytes give equal documents.
    """
    is_same = old.dataset.recipe["options"] == new.dataset.recipe["options"]
    paths = dict.fromkeys([*old.files, *new.files])
    differ = [path for path in paths if not is_same or old.files.get(path) != new.files.get(path)]
    before, after = (_count(version, set(differ)) for version in (old, new))
    found = []
    for path in differ:
        was, now = before.get(path, FileCounts()), after.get(path, FileCounts())
        change: Change = "added" if path not in old.files else "removed" if path not in new.files else "changed"
        if old.files.get(path) != new.files.get(path):
            found.append(FileDiff(path, change, was, now))
        elif was != now:
            found.append(FileDiff(path, "other settings", was, now))
    return found


def _count(version: DatasetVersion, paths: set[str]) -> dict[str, FileCounts]:
    counts: dict[str, FileCounts] = {}
    access, corpus = version.dataset.access, version.dataset.name

    def count(digest: str) -> dict[str, FileCounts]:
        return counts_by_file(access.fetch(access.folder / STAGE / corpus / digest / DOCUMENTS))

    holding = [digest for digest, files in version.shards.items() if not paths.isdisjoint(files)]
    for table in access.each_copy(count, holding):
        for path, found in table.items():
            counts[path] = counts.get(path, FileCounts()) + found
    return counts


def _outcomes(project: Project, old: Manifest, new: Manifest) -> Iterator[Outcome]:
    """Yield an outcome for each row of outputs that read datasets, as `nanoset status` has them."""
    dataset = Node(DATASET, Key(old.name))
    for nodes in Graph(project, {}, [old.name]).rows():
        inputs = {parent for node in nodes for parent in node.inputs(project.config).values()}
        for stage in (PACKS, VIEW):
            derived = [parent for parent in inputs if parent.stage is stage]
            inputs |= {above for parent in derived for above in parent.inputs(project.config).values()}
        output = " ".join(filter(None, nodes[0].row))
        if dataset in inputs:
            yield _outcome(project, nodes, output, old, new)
        elif any(parent.stage is DATASET for parent in inputs):
            yield Outcome(output, "survives", f"it does not use {old.name}")


def _outcome(project: Project, nodes: list[Node], output: str, old: Manifest, new: Manifest) -> Outcome:
    """Return the outcome of one row that reads a dataset, such as the index mappings and the blend of one split."""
    manifest = current_version(project, nodes[-1].stage, nodes[-1].key).manifest
    if manifest is None:
        return Outcome(output, "not built", "it was never built")
    if old.digest == new.digest:
        return Outcome(output, "survives", "both versions are the same")
    made_from = _origins(project, nodes, manifest)
    is_split = nodes[0].stage is INDEX_MAPPINGS
    if new.digest in made_from:
        before, after = (_index_files(project, nodes, one.digest) if is_split else None for one in (old, new))
        counts = (None, None) if before is None or after is None else (len(after), len(after & before))
        return Outcome(output, "rebuilt", "it is made from the new version", *counts)
    version = "the old" if old.digest in made_from else "another"
    found = Outcome(output, "to be rebuilt", f"it is made from {version} version")
    current = current_version(project, DATASET, Key(old.name)).manifest
    if current is None or current.digest != new.digest or not is_split:
        return found
    try:
        planned = INDEX_MAPPINGS.planned_files(project, nodes[0].key)
    except NanosetError as error:
        return replace(found, why=f"{found.why}; it cannot be built: {one_line(error)}")
    if planned is None:
        return found
    files, there = planned
    return replace(found, index_files=len(files), kept_files=len(files & there))


def _origins(project: Project, nodes: list[Node], manifest: Manifest) -> set[str]:
    """Return digests of what an output was made from, perhaps by another one of its row."""
    made_from = manifest.recipe["parents"]
    found = {str(digest) for digest in made_from.values()}
    for name, parent in nodes[-1].inputs(project.config).items():
        if name in made_from and (parent in nodes or parent.stage in (VIEW, PACKS)):
            found |= _above(project, parent, made_from[name])
    return found


def _above(project: Project, node: Node, digest: str) -> set[str]:
    """Return digests of what a version was made from, and of what a view below packs was."""
    found, place = set[str](), project.outputs.folder / node.stage.layout.folder / node.name
    with suppress(FormatError):  # `nanoset status` and `gc` tell of it
        if (version := project.outputs.manifest_at(place / digest)) is not None:
            for name, parent in version.recipe["parents"].items():
                above = node.inputs(project.config).get(name)
                found |= {str(parent)} | (_above(project, above, parent) if above and above.stage is VIEW else set())
    return found


def _index_files(project: Project, nodes: list[Node], dataset: str) -> set[str] | None:
    """Return the index files of the latest versions of a row that were made from a dataset; None where it has none."""
    made, files = {dataset}, None
    for node in nodes:
        for version in project.outputs.versions(node.stage.layout.folder, node.name):
            if not made.isdisjoint(version.recipe["parents"].values()):
                made.add(version.digest)
                if "cache_files" in version.facts:
                    files = (files or set()) | set(version.facts["cache_files"])
                break
    return files
