"""Manifests by the hundred thousand, kept in a few hundred bytes each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import orjson

from nanoset_core.outputs.manifest import FileFact, Manifest
from nanoset_core.outputs.root import OutputRoot


@dataclass(frozen=True, slots=True)
class Compactor:
    """Packs manifests of outputs below one root; what their recipes share is kept once."""

    outputs: OutputRoot
    _shared: list[dict[str, Any]] = field(default_factory=list)
    """The distinct recipes, without parents."""

    def pack(self, manifest: Manifest) -> bytes:
        """Return a manifest as bytes, for `unpack` of this same object."""
        recipe = {name: value for name, value in manifest.recipe.items() if name != "parents"}
        if recipe not in self._shared:
            self._shared.append(recipe)
        files = {name: (fact.size, fact.sha256, fact.pieces) for name, fact in manifest.files.items()}
        parents = manifest.recipe["parents"]
        packed = orjson.dumps((self._shared.index(recipe), parents, manifest.digest, manifest.facts, files))
        return bytes(memoryview(packed))  # orjson's own object keeps its buffer of several kilobytes

    def unpack(self, packed: bytes) -> Manifest:
        """Return the manifest that `pack` was given, without its `stored`."""
        number, parents, digest, facts, files = orjson.loads(packed)
        recipe = self._shared[number] | {"parents": parents}
        folder = self.outputs.folder / recipe["stage"] / recipe["name"] / digest
        known = {name: FileFact(*fact) for name, fact in files.items()}
        return Manifest(folder, recipe, digest, facts, known, self.outputs.access)

    def sequence(self, packed: Iterable[bytes]) -> ManifestSequence:
        """Return packed manifests as a sequence of manifests."""
        return ManifestSequence(self, list(packed))


class ManifestSequence(Sequence[Manifest]):
    """Packed manifests; each is unpacked whenever it is asked for."""

    def __init__(self, compactor: Compactor, packed: list[bytes]) -> None:
        self._compactor, self._packed = compactor, packed

    def __len__(self) -> int:
        return len(self._packed)

    @overload
    def __getitem__(self, index: int) -> Manifest: ...
    @overload
    def __getitem__(self, index: slice) -> ManifestSequence: ...
    def __getitem__(self, index: int | slice) -> Manifest | ManifestSequence:
        if isinstance(index, slice):
            return ManifestSequence(self._compactor, self._packed[index])
        return self._compactor.unpack(self._packed[index])
