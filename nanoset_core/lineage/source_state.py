"""Tell whether a raw file is still the one that an inventory lists."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from nanoset_core.errors import SourceChangedError
from nanoset_core.pipeline import raw
from nanoset_core.raw.contents import stat_file
from nanoset_core.raw.fingerprints import FingerprintMemory
from nanoset_core.raw.pieces import Inventory, StoredPiece, is_same_object
from nanoset_core.storage.location import RawFolder

FileState = Literal["unchanged", "changed", "gone", "unknown"]
MOST_HASHED_BYTES = 256 << 20


def file_state(inventory: Inventory | None, root: Path, folder: RawFolder, file: str, byte: int) -> FileState:
    """Tell whether a file, or the piece of it that holds a byte, is as the inventory says.

    Nothing is read if size and times are those of when the file was hashed. Otherwise the piece is hashed again, unless
    it is larger than 256 MiB (`unknown`; so is a file without an inventory).

    Args:
        inventory: what the dataset was made from.
        root: the output root, which holds the memory of hashed files.
        folder: the corpus's folder.
        file: relative path.
        byte: position in the decompressed file; of a compressed file or table any.
    """
    if not (folder / file).is_file():
        return "gone"
    if inventory is None:
        return "unknown"
    pieces = [piece for piece in inventory.pieces if piece.path == file]
    stat = stat_file(folder, file)
    if not pieces or stat.size < pieces[-1].end:
        return "changed"
    memory = FingerprintMemory(raw.memory_below(root, folder.name))
    if (known := memory.recall(stat)) is not None:
        return "unchanged" if known == pieces or is_same_object(known[0], pieces[0]) else "changed"
    piece = next((piece for piece in pieces if piece.begin <= byte < piece.end), pieces[0])
    if piece.size > MOST_HASHED_BYTES:
        return "unknown"
    try:
        StoredPiece(folder, piece).check()
    except SourceChangedError:
        return "changed"
    return "unchanged"
