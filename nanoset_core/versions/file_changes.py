"""How a corpus's files differ from its inventory, by names, sizes and times; no large file is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.pipeline import raw
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.stage import Budget
from nanoset_core.raw.contents import Contents, contents_of
from nanoset_core.raw.fingerprints import FingerprintMemory, fingerprint, is_cut_unread
from nanoset_core.raw.listing import FileStat
from nanoset_core.raw.pieces import Inventory, Piece
from nanoset_core.raw.survey import no_text
from nanoset_core.serialization.text import format_count

READ_BYTES = 8 << 20
"""Files whose digests are not known are read up to this many bytes in all, such as files written lately."""


@dataclass(frozen=True, slots=True)
class FileChanges:
    """How a corpus's files differ from those of its inventory."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    touched: tuple[str, ...] = ()
    """Of the same size, but copied or written since: only reading them would tell whether the content differs."""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.touched)

    def __str__(self) -> str:
        named = {"added": self.added, "removed": self.removed, "changed": self.changed}
        found = [(what, paths) for what, paths in named.items() if paths]
        found += (
            [("copied or written again, which the next build reads to compare", self.touched)] if self.touched else []
        )
        return "; ".join(
            f"{format_count(len(paths), 'file')} {what} ({', '.join(paths[:2])}{', …' * (len(paths) > 2)})"
            for what, paths in found
        )


@dataclass(frozen=True, slots=True)
class StatSurvey:
    """A corpus's files as they are now."""

    recipe: Recipe | None
    """Of the inventory that would be taken now; None where that needs reading files."""
    changes: FileChanges
    """Against the current inventory; without one, all files are added."""
    contents: Contents
    """What lies in its folder."""


def survey_stats(project: Project, corpus: str, live: Manifest | None, budget: Budget) -> StatSurvey:
    """Compare a corpus's files with its current inventory, by digests that earlier surveys kept.

    Raises:
        MissingError: the corpus has no folder.
        InputError: it holds no text, or cannot be read.
        FormatError: the inventory cannot be read.
    """
    folder = raw.corpus_folder(project, corpus)
    contents = contents_of(folder, folder.parent)
    if not contents.texts:
        raise no_text(folder, contents)
    memory = FingerprintMemory(raw.memory_file(project, corpus), cut_unread=is_cut_unread(folder))
    noted = read_inventory(live) if live is not None else {}
    texts = contents.ordered
    found = {stat.path: memory.recall(stat) for stat in texts}
    unknown = [stat for stat in texts if found[stat.path] is None and _may_be_same(stat, noted)]
    if (size := sum(stat.size for stat in unknown)) <= budget.left:  # all or none: some would look as if they differed
        budget.left -= size
        found |= {stat.path: fingerprint(folder, stat) for stat in unknown}
    changes = _changes(texts, found, noted)
    if live is not None and not changes and live.recipe["version"] == raw.VERSION:
        return StatSurvey(Recipe(**live.recipe), changes, contents)
    if any(pieces is None for pieces in found.values()):
        return StatSurvey(None, changes, contents)
    inventory = Inventory(corpus, tuple(piece for pieces in found.values() for piece in pieces or ()))
    return StatSurvey(raw.inventory_recipe(inventory), changes, contents)


def read_inventory(manifest: Manifest) -> dict[str, list[Piece]]:
    """Return path → pieces of an inventory; FormatError where its file cannot be read."""
    inventory = manifest.load(raw.FILE, Inventory.from_json)
    files: dict[str, list[Piece]] = {}
    for piece in inventory.pieces:
        files.setdefault(piece.path, []).append(piece)
    return files


def _may_be_same(stat: FileStat, noted: dict[str, list[Piece]]) -> bool:
    return stat.path in noted and noted[stat.path][-1].end == stat.size


def _changes(
    texts: Sequence[FileStat], found: dict[str, list[Piece] | None], noted: dict[str, list[Piece]]
) -> FileChanges:
    changed: list[str] = []
    touched: list[str] = []
    for stat in texts:
        if stat.path in noted and found[stat.path] != noted[stat.path]:
            unknown = found[stat.path] is None and _may_be_same(stat, noted)
            (touched if unknown else changed).append(stat.path)
    added = tuple(path for path in found if path not in noted)
    removed = tuple(path for path in noted if path not in found)
    return FileChanges(added, removed, tuple(changed), tuple(touched))
