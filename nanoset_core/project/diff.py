"""`nanoset diff`: compare two versions of a corpus's dataset, and say what has to be rebuilt.

The inventories of both versions, lists of files, say which files differ. For these files, the
tables of documents say how many documents and tokens each version has: for example, `a.jsonl` was
changed, and has 120 documents in place of 100. `view_diff` compares two versions of a view.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Literal

from nanoset_core.errors import FormatError
from nanoset_core.outputs.current import setting_differences
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.find_versions import find_versions
from nanoset_core.project.outcomes import Outcome, find_outcomes
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.origin import shards_of
from nanoset_core.stages.inventory.make import pieces_by_file
from nanoset_core.stages.inventory.stage import INVENTORY
from nanoset_core.stages.shards.document_counts import DocumentCounts, counts_by_file
from nanoset_core.stages.shards.make import DOCUMENTS, SHARDS
from nanoset_core.text.pieces import Inventory, Piece, cut_ranges

Change = Literal["added", "removed", "changed", "other settings"]


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


def diff_datasets(project: Project, first: str, second: str | None = None) -> DatasetDiff:
    """Compare two versions of a corpus's dataset, and say what each output becomes with the newer.

    Args:
        project: Its output root has the versions.
        first: Without `second`, the name of a corpus, whose last two versions are compared. With
            `second`, the first digits of the old version's digest.
        second: The first digits of the new version's digest, such as "3f9c", or None.

    Raises:
        MissingError: There is no previous version, or what a version was made from was deleted.
        ConfigError: There is no such version, there are several, or the two are of different
            corpora.
        FormatError: The manifest of a version cannot be read.
    """
    versions = find_versions(project, first, second)
    old = _open_version(project.outputs, versions.old)
    new = _open_version(project.outputs, versions.new)
    return DatasetDiff(
        old=old,
        new=new,
        settings=setting_differences(old.options, new.options),
        files=_compare_files(old, new),
        outcomes=list(find_outcomes(project, versions.old, versions.new)),
    )


def _open_version(outputs: OutputRoot, dataset: Manifest) -> DatasetVersion:
    """Return a version of a dataset with the files and shards that it was made from.

    A dataset is made in three steps: the inventory lists the files of raw text, with a digest of
    each piece; the text is tokenized into shards; and the shards are joined to the dataset.

    Args:
        outputs: The output root.
        dataset: Manifest of the version.

    Raises:
        MissingError: The inventory or the set of shards was deleted.
        FormatError: The shards were not made from the files of the inventory.
    """
    shard_set = shards_of(outputs, dataset)
    inventory = outputs.version(
        INVENTORY.layout.folder,
        dataset.name,
        dataset.recipe["parents"]["inventory"],
        what_if_missing="the inventory of this version was deleted",
        remedy="compare versions of which `nanoset gc` has not removed the inputs",
    )
    pieces_of_file = pieces_by_file(inventory)
    files_of_shard = _files_by_shard(shard_set, pieces_of_file)
    return DatasetVersion(dataset, shard_set, pieces_of_file, files_of_shard)


def _files_by_shard(
    tokenized: Manifest, pieces_of_file: Mapping[str, Sequence[Piece]]
) -> dict[str, tuple[str, ...]]:
    """Return the files of raw text that each shard of a corpus was made from.

    For example, the text of the files a, b and c was cut into the ranges (a, half of b) and (half
    of b, c); the tokens of the first range are the first shard.

    Args:
        tokenized: Manifest of the set of shards.
        pieces_of_file: Path of each file of raw text → its pieces: stretches of the file, each with
            a digest.

    Returns:
        Digest of the shard → paths of its files, in document order.

    Raises:
        FormatError: The shards were not made from these files.
    """
    # No manifest says which files are in a range. But the same text is always cut in the same way,
    # so cut it again, as the build did.
    all_pieces = tuple(chain.from_iterable(pieces_of_file.values()))
    inventory = Inventory(tokenized.name, all_pieces)
    text_ranges = cut_ranges(inventory, tokenized.recipe["options"]["range_bytes"])
    shard_digests = tokenized.facts["shards"]
    if len(text_ranges) != len(shard_digests):
        raise FormatError(
            "the shards of this version are not those of its inventory",
            where=tokenized.url(),
            found=f"{len(shard_digests):,} shards instead of {len(text_ranges):,}",
            remedy="delete the folder, and build again",
        )

    files_by_shard: dict[str, tuple[str, ...]] = {}
    for digest, text_range in zip(shard_digests, text_ranges, strict=True):
        files_by_shard[digest] = text_range.files
    return files_by_shard


def _compare_files(old: DatasetVersion, new: DatasetVersion) -> list[FileDiff]:
    """Return the files of raw text that differ between two versions of a dataset.

    Args:
        old: The old version of the dataset.
        new: The new version of the same dataset.

    Returns:
        The files, each with its numbers of documents and tokens before and after. Files with the
        same bytes are included if other settings changed these numbers.
    """
    paths = _files_to_compare(old, new)
    counts_before = _count_documents(old, paths)
    counts_after = _count_documents(new, paths)
    diffs = []
    for path in paths:
        diff = FileDiff(
            path,
            _change_of_file(path, old, new),
            before=counts_before.get(path, DocumentCounts()),
            after=counts_after.get(path, DocumentCounts()),
        )
        # Other settings need not make a difference to every file.
        is_unaffected = diff.change == "other settings" and diff.before == diff.after
        if not is_unaffected:
            diffs.append(diff)
    return diffs


def _files_to_compare(old: DatasetVersion, new: DatasetVersion) -> list[str]:
    """Return the files whose documents may differ, so that the tables of other files are not read.

    With the same settings, the same bytes give the same documents.

    Args:
        old: The old version of the dataset.
        new: The new version of the dataset.
    """
    paths = list(dict.fromkeys([*old.files, *new.files]))
    has_same_settings = old.dataset.recipe["options"] == new.dataset.recipe["options"]
    if not has_same_settings:
        return paths
    return [path for path in paths if old.files.get(path) != new.files.get(path)]


def _change_of_file(path: str, old: DatasetVersion, new: DatasetVersion) -> Change:
    """Return what happened to a file between two versions of a dataset.

    Args:
        path: Path of the file. At least one of the versions was made from it.
        old: The old version.
        new: The new version.

    Returns:
        The change; `other settings` if the file has the same bytes in both versions.
    """
    if path not in old.files:
        return "added"
    if path not in new.files:
        return "removed"
    if old.files[path] != new.files[path]:
        return "changed"
    return "other settings"


def _count_documents(
    version: DatasetVersion, paths: Collection[str]
) -> Mapping[str, DocumentCounts]:
    """Count the documents and tokens that some files of raw text gave.

    Args:
        version: The version of the dataset.
        paths: The files.

    Returns:
        File → its counts. Ignore other files in it: they were in the same shards, and their counts
        may be incomplete.
    """
    access = version.dataset.access
    shards_folder = access.folder / SHARDS / version.dataset.name

    def count_in_shard(digest: str) -> dict[str, DocumentCounts]:
        """Return file → its counts in one shard."""
        table = access.fetch(shards_folder / digest / DOCUMENTS)  # downloaded from a bucket
        return counts_by_file(table)

    # Count in several shards in parallel. A large file may be in several shards: add up its counts.
    totals: dict[str, DocumentCounts] = {}
    for counts_in_shard in access.each_copy(count_in_shard, _shards_with(version, paths)):
        for path, counts in counts_in_shard.items():
            totals[path] = totals.get(path, DocumentCounts()) + counts
    return totals


def _shards_with(version: DatasetVersion, paths: Collection[str]) -> list[str]:
    """Return the shards that contain documents of some files of raw text.

    A shard is the tokens of one range of a corpus's text, which may begin or end within a file.

    Args:
        version: The version of the dataset, which was made from all of its shards.
        paths: The files.

    Returns:
        Digests of the shards, in document order.
    """
    path_set = set(paths)
    digests = []
    for digest, files in version.shards.items():
        if not path_set.isdisjoint(files):
            digests.append(digest)
    return digests
