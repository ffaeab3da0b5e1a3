"""Manifests by the hundred thousand, kept in a few hundred bytes each."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import overload

import orjson

from nanoset_core.outputs.manifest import FileFact, Manifest
from nanoset_core.outputs.root import OutputRoot


def pack(manifest: Manifest) -> bytes:
    """Return a manifest as bytes, without its `stored`; see `unpack`."""
    files = {name: (fact.size, fact.sha256, fact.pieces) for name, fact in manifest.files.items()}
    return zlib.compress(orjson.dumps((manifest.recipe, manifest.digest, manifest.facts, files)), 1)


def unpack(packed: bytes, outputs: OutputRoot) -> Manifest:
    """Return the manifest that `pack` was given, of an output below this root."""
    recipe, digest, facts, files = orjson.loads(zlib.decompress(packed))
    folder = outputs.folder / recipe["stage"] / recipe["name"] / digest
    known = {name: FileFact(*fact) for name, fact in files.items()}
    return Manifest(folder, recipe, digest, facts, known, outputs.access)


class PackedManifests(Sequence[Manifest]):
    """Packed manifests of outputs below one root; each is unpacked whenever it is asked for."""

    def __init__(self, packed: Iterable[bytes], outputs: OutputRoot) -> None:
        self._packed, self._outputs = list(packed), outputs

    def __len__(self) -> int:
        return len(self._packed)

    @overload
    def __getitem__(self, index: int) -> Manifest: ...
    @overload
    def __getitem__(self, index: slice) -> PackedManifests: ...
    def __getitem__(self, index: int | slice) -> Manifest | PackedManifests:
        if isinstance(index, slice):
            return PackedManifests(self._packed[index], self._outputs)
        return unpack(self._packed[index], self._outputs)
