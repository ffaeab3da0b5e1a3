"""`nanoset diff`: how two versions of a dataset differ, and what that means downstream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from nanoset_core.errors import FormatError, NanosetError, one_line
from nanoset_core.outputs.current import setting_differences
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.pipeline.graph import Graph
from nanoset_core.pipeline.indexed import DATASET
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.stage import Key, Node
from nanoset_core.tokenization.document_table import FileCounts
from nanoset_core.versions.diff_versions import DatasetVersion, FileDiff, compare_files, find_versions

Effect = Literal["survives", "rebuilt", "to be rebuilt", "not built"]


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
            "corpus": self.new.corpus,
            "old": _version_json(self.old),
            "new": _version_json(self.new),
            "settings": self.settings,
            "files": [asdict(file) for file in self.files],
            "files_unchanged": self.unchanged,
            "shards_kept": self.shards_kept,
            "outcomes": [asdict(outcome) for outcome in self.outcomes],
        }


def diff_datasets(project: Project, first: str, second: str | None = None) -> DatasetDiff:
    """Compare two versions of a dataset.

    Args:
        project: the project.
        first: the older version's digest, or its first digits; or, without `second`, a corpus.
        second: the newer version's digest. Without it, the previous version of the corpus is compared with the current.

    Raises:
        ConfigError: no such version or corpus.
        MissingError, FormatError: what a version was made from is gone, or cannot be read.
    """
    old, new = find_versions(project, first, second)
    settings = setting_differences(
        {**old.tokenized.recipe["options"], **old.dataset.recipe["options"]},
        {**new.tokenized.recipe["options"], **new.dataset.recipe["options"]},
    )
    return DatasetDiff(old, new, settings, compare_files(old, new), list(_outcomes(project, old, new)))


def _version_json(version: DatasetVersion) -> dict[str, Any]:
    facts = version.dataset.facts
    counts = {name: facts[name] for name in ("documents", "sequences", "tokens", "rejected", "faults")}
    made_at = version.dataset.written_ns / 1e9
    return {"digest": version.digest, "made_at": made_at, **counts, "files": len(version.files)}


def _outcomes(project: Project, old: DatasetVersion, new: DatasetVersion) -> Iterator[Outcome]:
    """Yield an outcome for each row of outputs that read datasets, as `nanoset status` has them."""
    graph, dataset = Graph(project, {}, [old.corpus]), Node(DATASET, Key(old.corpus))
    hit = set(graph.impact_of(dataset))
    for nodes in graph.rows():
        if any(parent.stage is DATASET for node in nodes for parent in node.inputs(project.config).values()):
            output = " ".join(filter(None, nodes[0].row))
            if hit.isdisjoint(nodes):
                yield Outcome(output, "survives", f"it takes nothing of {old.corpus}")
            else:
                yield _outcome(project, nodes, output, dataset, old.digest, new.digest)


def _outcome(project: Project, nodes: list[Node], output: str, dataset: Node, old: str, new: str) -> Outcome:
    """Return the outcome of one row that reads a dataset, such as the index mappings and the blend of one split."""
    manifest = nodes[-1].stage.current(project, nodes[-1].key).manifest
    if manifest is None:
        return Outcome(output, "not built", "there is no version of it")
    if old == new:
        return Outcome(output, "survives", "both versions are the same")
    made = _origin(project, nodes, nodes[-1], manifest, dataset)
    if made == new:
        before, after = (_index_files(project, nodes, digest) for digest in (old, new))
        counts = (None, None) if before is None or after is None else (len(after), len(after & before))
        return Outcome(output, "rebuilt", "it is made from the new version", *counts)
    found = Outcome(output, "to be rebuilt", f"it is made from {'the old' if made == old else 'another'} version")
    current = DATASET.current(project, dataset.key).manifest
    if current is None or current.digest != new:
        return found
    try:
        planned = [node.stage.planned_files(project, node.key) for node in nodes]
    except NanosetError as error:
        return replace(found, why=f"{found.why}; it cannot be built: {one_line(error)}")
    for files, there in filter(None, planned):
        found = replace(found, index_files=len(files), kept_files=len(files & there))
    return found


def _origin(project: Project, nodes: list[Node], node: Node, manifest: Manifest, dataset: Node) -> str | None:
    """Return which version of a dataset a manifest's output was made from, perhaps by others of its row."""
    for name, parent in node.inputs(project.config).items():
        digest = manifest.recipe["parents"].get(name)
        if digest is not None and parent == dataset:
            return str(digest)
        if digest is not None and parent in nodes:
            version = None
            with suppress(FormatError):  # `nanoset status` and `gc` tell of it
                place = project.outputs.folder / parent.stage.folder / parent.stage.name(parent.key)
                version = project.outputs.manifest_at(place / digest)
            if version is not None and (origin := _origin(project, nodes, parent, version, dataset)) is not None:
                return origin
    return None


def _index_files(project: Project, nodes: list[Node], dataset: str) -> set[str] | None:
    """Return the shared files of the latest version that was made from a dataset; None where there are none."""
    versions = [
        (node, manifest)
        for node in nodes
        for manifest in project.outputs.versions(node.stage.folder, node.stage.name(node.key))
        if node.stage.key_of(manifest.name) == node.key
    ]
    latest = next((one.digest for _, one in versions if dataset in one.recipe["parents"].values()), None)
    shared = [
        files
        for node, one in versions
        if latest in (one.digest, *one.recipe["parents"].values())
        and (files := node.stage.shared_files(one)) is not None
    ]
    return set().union(*shared) if shared else None
