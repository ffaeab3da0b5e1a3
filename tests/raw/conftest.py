import hashlib
from pathlib import Path

import pytest

from nanoset_core.raw.pieces import Piece


@pytest.fixture
def stored(tmp_path):
    """Writes a file and gives the piece that is all of it, as an inventory would."""

    def store(name: str, data: bytes, folder: Path = tmp_path) -> Piece:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        return Piece(name, 0, len(data), 1, hashlib.sha256(data).hexdigest())

    return store
