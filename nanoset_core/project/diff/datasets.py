"""`nanoset diff`: compare two versions of a corpus's dataset, and say what has to be rebuilt.

The inventories of both versions, lists of files, say which files differ. For these files, the
tables of documents say how many documents and tokens each version has: for example, `a.jsonl` was
changed, and has 120 documents in place of 100. `view_diff` compares two versions of a view.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from nanoset_core.outputs.differences import setting_differences
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.diff.outcomes import Outcome, find_outcomes
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.origin import shards_of
from nanoset_core.stages.inventory.changes import FileChange, changed_files
from nanoset_core.stages.inventory.make import load_inventory
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.per_shard import SHARDS
from nanoset_core.stages.shards.document_counts import DocumentCounts, counts_by_file
from nanoset_core.stages.shards.names import SHARDS_FOLDER
from nanoset_core.stages.shards.one_shard import DOCUMENTS
from nanoset_core.stages.shards.shard_sets import ranges_of_shards
from nanoset_core.text.inventory.pieces import Inventory, Piece

Change: TypeAlias = FileChange | Literal["other settings"]


@dataclass(frozen=True, slots=True)
class DatasetVersion:
    """One version of a corpus's dataset, with the files and shards that it was made from."""

    dataset: Manifest
    """Manifest of the dataset."""
    tokenized: Manifest
    """Manifest of the set of shards."""
    files: dict[str, list[Piece]]
    """Path of each file → its pieces, in document order."""
    shards: dict[str, tuple[str, ...]]
    """Digest of each shard → the files that it was made from, in document order."""

    @property
    def options(self) -> dict[str, Any]:
        """The settings that the dataset and its shards were made with."""
        return {**self.tokenized.recipe["options"], **self.dataset.recipe["options"]}

    def to_json(self) -> dict[str, Any]:
        """Return the version as plain values, for JSON: digest, time, and counts of what it has."""
        facts = self.dataset.facts
        values: dict[str, Any] = {
            "digest": self.dataset.digest,
            "made_at": self.dataset.written_ns / 1e9,
        }
        for name in ("documents", "sequences", "tokens", "rejected", "faults"):
            values[name] = facts[name]
        values["files"] = len(self.files)
        return values


@dataclass(frozen=True, slots=True)
class FileDiff:
    """One file of raw text that differs between two versions."""

    path: str
    """Path of the file, relative to the corpus's folder."""
    change: Change
    """What happened to it. `other settings`: its bytes are the same, but gave other documents or
    tokens.
    """
    before: DocumentCounts
    """What the old version has of it."""
    after: DocumentCounts
    """What the new version has of it."""


@dataclass(frozen=True, slots=True)
class DatasetDiff:
    """The differences between two versions of a corpus's dataset."""

    old: DatasetVersion
    new: DatasetVersion
    settings: list[str]
    """Settings that differ, as `name: before → after`."""
    files: list[FileDiff]
    """Files of raw text that differ: those of the old version in document order, then those that
    were added.
    """
    outcomes: list[Outcome]
    """What becomes of each output that nanoset.yaml requests."""

    @property
    def unchanged(self) -> int:
        """How many files are the same in both versions."""
        n_different = sum(file.change != "removed" for file in self.files)
        return len(self.new.files) - n_different

    @property
    def shards_kept(self) -> int:
        """How many shards both versions share."""
        return len(self.old.shards.keys() & self.new.shards.keys())

    def total(self, side: Literal["before", "after"]) -> DocumentCounts:
        """Return the documents and tokens of the files that differ, added up.

        Args:
            side: Which version's counts: "before" for the old one, "after" for the new one.
        """
        total = DocumentCounts()
        for file in self.files:
            total += file.before if side == "before" else file.after
        return total

    def to_json(self) -> dict[str, Any]:
        """Return the differences as plain values, for JSON.

        Returns:
            The corpus, both versions, and what differs: settings, files, and outcomes of outputs.
        """
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


def diff_datasets(project: Project, old_dataset: Manifest, new_dataset: Manifest) -> DatasetDiff:
    """Compare two builds of the dataset of a text collection: the command `nanoset diff`.

    Every build is kept as a version. `find_versions` finds those that a user names.

    Args:
        project: The project, whose output folder has the versions.
        old_dataset: The manifest of the old version, which describes it.
        new_dataset: The manifest of the new version.

    Returns:
        Which files and settings differ, and what the new version means for other outputs.

    Raises:
        MissingError: What a version was made from was deleted.
        FormatError: The file that describes it cannot be read.
    """
    old = _open_version(project.outputs, old_dataset)
    new = _open_version(project.outputs, new_dataset)
    return DatasetDiff(
        old=old,
        new=new,
        settings=setting_differences(old.options, new.options),
        files=_compare_files(old, new),
        outcomes=list(find_outcomes(project, old_dataset, new_dataset)),
    )


def _open_version(outputs: OutputRoot, dataset: Manifest) -> DatasetVersion:
    """Find out which files of raw text an old build of a dataset was made from.

    Args:
        outputs: The outputs of the project, with all builds that were not deleted.
        dataset: Describes the dataset, and names the list of files that it was made from.

    Raises:
        MissingError: The list of files or the list of shards was deleted.
        FormatError: The shards were not made from the files of the list.
    """
    # The list of the files, the inventory. Large files are divided into pieces.
    manifest = outputs.version(
        INVENTORY.layout.folder,
        dataset.name,
        dataset.recipe["parents"]["inventory"],  # a digest, since there may be several lists
        what_if_missing="the inventory of this version was deleted",
        remedy="compare versions of which `nanoset gc` has not removed the inputs",
    )
    inventory = load_inventory(manifest)

    # The text was tokenized in shards, each from some of the pieces.
    list_of_shards = shards_of(outputs, dataset)
    paths_by_shard = _files_by_shard(list_of_shards, inventory)
    return DatasetVersion(dataset, list_of_shards, inventory.pieces_by_file, paths_by_shard)


def _files_by_shard(list_of_shards: Manifest, inventory: Inventory) -> dict[str, tuple[str, ...]]:
    """Return which files of raw text each shard has tokens of.

    The text of all files is cut into ranges of about equal size, and each range is tokenized to a
    shard. For example, of the files a, b and c:

        range 1    a, and the first half of b     shard 3f9c…    ("a", "b")
        range 2    the second half of b, and c    shard 81aa…    ("b", "c")

    Args:
        list_of_shards: Lists the digests of the shards.
        inventory: The files that the shards were made from.

    Returns:
        Digest of the shard → paths of its files, in the order of the text.

    Raises:
        FormatError: The shards were not made from these files.
    """
    ranges = ranges_of_shards(inventory, list_of_shards)

    paths_by_shard: dict[str, tuple[str, ...]] = {}
    for digest, text_range in zip(list_of_shards.facts[SHARDS], ranges, strict=True):
        paths_by_shard[digest] = text_range.files
    return paths_by_shard


def _compare_files(old: DatasetVersion, new: DatasetVersion) -> list[FileDiff]:
    """Return which files of raw text differ between two builds of a dataset. For example:

        a.jsonl    changed           400 documents before, 410 after
        b.jsonl    added             none before, 300 after
        c.jsonl    other settings    200 before, 198 after: the same bytes, but another limit on
                                     the length of documents

    Args:
        old: The old build, with the files that it was made from.
        new: The new build.
    """
    changes = changed_files(old.files, new.files)
    paths = list(changes)
    has_other_settings = old.dataset.recipe["options"] != new.dataset.recipe["options"]
    if has_other_settings:
        # The documents of files that are the same may differ, too.
        paths = list(dict.fromkeys([*old.files, *new.files]))

    counts_before = _count_documents(old, paths)
    counts_after = _count_documents(new, paths)
    diffs = []
    for path in paths:
        before = counts_before.get(path, DocumentCounts())
        after = counts_after.get(path, DocumentCounts())
        if path in changes or before != after:
            diff = FileDiff(path, changes.get(path, "other settings"), before=before, after=after)
            diffs.append(diff)
    return diffs


def _count_documents(
    version: DatasetVersion, paths: Collection[str]
) -> Mapping[str, DocumentCounts]:
    """Count the documents, and their tokens, that a dataset has of some files of raw text.

    Each shard, a tokenized piece of the text, has a table of its documents. A large file may be in
    several shards.

    Args:
        version: The dataset, with the files of each shard.
        paths: The files, such as ["b.jsonl"].

    Returns:
        File → its counts. Use only those of `paths`: other files that are in the same shards are
        counted in part.
    """
    access = version.dataset.access
    shards_folder = access.folder / SHARDS_FOLDER / version.dataset.name

    def count_in_shard(digest: str) -> dict[str, DocumentCounts]:
        """Return file → its counts in one shard."""
        table = access.fetch(shards_folder / digest / DOCUMENTS)  # downloaded from a bucket
        return counts_by_file(table)

    # Count in several shards at the same time, and add up.
    shard_digests = _shards_with(version, paths)
    totals: dict[str, DocumentCounts] = {}
    for counts_in_shard in access.each_copy(count_in_shard, shard_digests):
        for path, counts in counts_in_shard.items():
            totals[path] = totals.get(path, DocumentCounts()) + counts
    return totals


def _shards_with(version: DatasetVersion, paths: Collection[str]) -> list[str]:
    """Return the tokenized pieces of text (shards) that contain documents of some files.

    For example:

        shard 3f9c…    a.jsonl, b.jsonl
        shard 81aa…    b.jsonl, c.jsonl

    b.jsonl is in both. a.jsonl is only in the first one.

    Args:
        version: A build of a dataset, with the files of each of its shards.
        paths: The files.

    Returns:
        Digests of the shards, in the order of the text.
    """
    path_set = set(paths)
    digests = []
    for digest, files in version.shards.items():
        if not path_set.isdisjoint(files):
            digests.append(digest)
    return digests
