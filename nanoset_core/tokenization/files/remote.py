"""Tokenizers in a bucket: their files are small, and read from copies that are updated at every use."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from nanoset_core.errors import MissingError
from nanoset_core.storage.location import RemoteFolder, StorageSpec, copies_folder, mirror_folder
from nanoset_core.storage.mirror import copies_of
from nanoset_core.tokenization.files.source import FOLDER_NAMES, HELD

_COMPANIONS = ("tokenizer_config.json", "merges.txt")


def tokenizer_here(location: RemoteFolder, mirror: Path | None = None) -> Path:
    """Copy a tokenizer's file as the bucket has it now, with what is read beside it; or its folder.

    Args:
        location: the file, or the folder that holds it.
        mirror: folder of working copies; absent = that in the user's cache folder.

    Raises:
        MissingError: neither is there.
        StorageError: the bucket cannot be reached, or refuses.
    """
    if location.is_file():
        return _copy(location.parent, [location.name, *_COMPANIONS], mirror) / location.name
    names = location.store.level(location.path)[1]
    wanted = [name for name in names if name in FOLDER_NAMES or name.endswith(".tiktoken")]
    if not wanted:
        raise MissingError(
            "no tokenizer there",
            where=location,
            found="no such object, and no folder that holds one",
            expected=HELD,
            remedy="correct the address; tokenizer.json is what save_pretrained and tokenizer.save write",
        )
    gone = [name for name in FOLDER_NAMES if name not in wanted]
    return _copy(location, [*wanted, *gone, *_COMPANIONS], mirror)


def _copy(folder: RemoteFolder, names: Iterable[str], mirror: Path | None) -> Path:
    """Update the copies of these names, and remove those of what the folder does not hold; → their folder."""
    place = folder.place.below(folder.path) if folder.path else folder.place
    access = copies_of(copies_folder(place, StorageSpec()) if mirror is None else mirror_folder(place, mirror), place)
    for name in dict.fromkeys(names):
        access.revalidate(access.folder / name)
    return access.folder
