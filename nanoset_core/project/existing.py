"""Which outputs there are below a root, by names alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nanoset_core.errors import FormatError, StorageError
from nanoset_core.loading.opening import CACHE, STAGE
from nanoset_core.outputs.manifest import is_digest
from nanoset_core.outputs.root import CURRENT, read_current
from nanoset_core.stages.registry import stages
from nanoset_core.stages.stage import is_of_corpora
from nanoset_core.storage.access import FileAccess

_DEEPEST = 4


class Output(NamedTuple):
    """All versions of one output."""

    stage: str
    name: str
    folder: Path
    versions: set[str]
    """Their digests."""
    current: str | None
    """Digest of the current version; None where there is none."""

    @property
    def subject(self) -> str:
        """The corpus, nanoset or webdataset that it belongs to."""
        return self.name.partition("/")[0]


def stage_folders() -> list[str]:
    """Return the folders of all stages below the root: first those of corpora, from which the others are made."""
    corpora_first = sorted(stages(), key=lambda stage: not is_of_corpora(stage))
    return list(dict.fromkeys(stage.layout.folder for stage in corpora_first))


def _outputs_in(listing: FileAccess, stage: str, name: str = "") -> Iterator[Output]:
    """Yield every output of a stage by names alone; links are followed."""
    folder = listing.folder.joinpath(stage, name)
    entries = [entry for entry in listing.entries(folder) if entry.name[0] != "."]
    # Beside versions `current` is the link to one of them; right below a stage it is a corpus of this name.
    folders = [entry for entry in entries if entry.is_folder and (entry.name != "current" or not name)]
    # A corpus may have a name that looks like a digest, but stands where no version can.
    versions = {entry.name for entry in folders if name and is_digest(entry.name)}
    pointed = any(entry.name == CURRENT for entry in entries)
    if versions or pointed:
        try:
            current = read_current(folder, listing) if pointed else None
        except FormatError as error:
            raise unreadable(folder, f"{error.where}: {error.found}") from error
        if current not in (None, *versions):
            raise unreadable(folder / str(current), "this is the current version, but it is gone")
        yield Output(stage, name, folder, versions, current)
    for entry in folders:
        is_cache = stage == STAGE and entry.name == CACHE and name != "" and "/" not in name
        if entry.name not in versions and not is_cache and name.count("/") < _DEEPEST:
            yield from _outputs_in(listing, stage, f"{name}/{entry.name}".lstrip("/"))


def all_outputs(listing: FileAccess) -> list[Output]:
    """Return every output, by names alone, those of corpora first; StorageError for one that is damaged."""
    return [output for folder in stage_folders() for output in _outputs_in(listing, folder)]


def unreadable(place: Path, why: str) -> StorageError:
    """Return the error for a version that has to stay and cannot be read."""
    what = "a version that is current, is kept, or that another one needs, cannot be read, so nothing is removed"
    remedy = f"run `nanoset build`, which makes it again, or delete {place} if you do not need it"
    return StorageError(what, where=place, found=why, remedy=remedy)
