"""How a corpus's files differ from its inventory, by names, sizes and times; no large file is read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from nanoset_core.outputs.manifest import Manifest, Recipe
from nanoset_core.pipeline import raw
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.stage import Budget
from nanoset_core.raw.contents import Contents, contents_of
from nanoset_core.raw.fingerprints import FingerprintMemory, fingerprint, is_cut_unread
from nanoset_core.raw.pieces import Inventory, Piece
from nanoset_core.raw.survey import no_text
from nanoset_core.serialization.text import format_count

READ_BYTES = 8 << 20
"""Files whose digests are not known are read up to this many bytes in all, such as files written lately."""


class StatSurvey(NamedTuple):
    """A corpus's files as they are now."""

    recipe: Recipe | None
    """Of the inventory that would be taken now; None where that needs reading files."""
    changes: str
    """How they differ from the current inventory, without which all are added; empty where they do not."""
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
    ends = {path: pieces[-1].end for path, pieces in noted.items()}
    unknown = [stat for stat in texts if found[stat.path] is None and ends.get(stat.path) == stat.size]
    if (size := sum(stat.size for stat in unknown)) <= budget.left:  # all or none: some would look as if they differed
        budget.left -= size
        found |= {stat.path: fingerprint(folder, stat) for stat in unknown}
    changes = _changes(found, noted, {stat.path for stat in unknown})
    if live is not None and not changes and live.recipe["version"] == raw.VERSION:
        return StatSurvey(Recipe(**live.recipe), changes, contents)
    if any(pieces is None for pieces in found.values()):
        return StatSurvey(None, changes, contents)
    inventory = Inventory(corpus, tuple(piece for pieces in found.values() for piece in pieces or ()))
    return StatSurvey(raw.inventory_recipe(inventory), changes, contents)


def read_inventory(manifest: Manifest) -> dict[str, list[Piece]]:
    """Return path → pieces of an inventory; FormatError where its file cannot be read."""
    files: dict[str, list[Piece]] = {}
    for piece in manifest.load(raw.FILE, Inventory.from_json).pieces:
        files.setdefault(piece.path, []).append(piece)
    return files


def _changes(found: Mapping[str, list[Piece] | None], noted: Mapping[str, list[Piece]], unknown: set[str]) -> str:
    """Describe how files differ from those that are noted; unknown: those that may be the same."""
    other = [path for path in found if path in noted and found[path] != noted[path]]
    named = {
        "added": [path for path in found if path not in noted],
        "removed": [path for path in noted if path not in found],
        "changed": [path for path in other if found[path] is not None or path not in unknown],
        "copied or written again, which the next build reads to compare": [
            path for path in other if found[path] is None and path in unknown
        ],
    }
    return "; ".join(
        f"{format_count(len(paths), 'file')} {what} ({', '.join(paths[:2])}{', …' * (len(paths) > 2)})"
        for what, paths in named.items()
        if paths
    )
