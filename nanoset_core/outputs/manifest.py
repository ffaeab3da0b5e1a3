"""Recipes and manifests: what an output is made from, and what it holds. Only outputs with a
manifest are complete.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, overload

from nanoset_core.errors import FormatError, MissingError, NanosetError
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.paths import is_inside
from nanoset_core.storage.regular_files import read_regular

MANIFEST = "manifest.json"
DIGEST_HEX_DIGITS = 20
_DIGEST = re.compile(rf"[0-9a-f]{{{DIGEST_HEX_DIGITS}}}")
_KEYS = {"nanoset", "digest", "recipe", "facts", "files", "sha256"}
Made = TypeVar("Made")


def canonical_json(value: object) -> bytes:
    """Return the canonical spelling of a value: sorted keys, no spaces, ASCII."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode()


def digest_of(value: object) -> str:
    """Return a short content digest of any JSON value."""
    return hashlib.sha256(canonical_json(value)).hexdigest()[:DIGEST_HEX_DIGITS]


def is_digest(value: object) -> bool:
    """Return whether a value read from a file could be a result of `digest_of`, and so a folder's
    name.
    """
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that can change an output's bytes, and nothing else."""

    stage: str
    """The folder below the root: inventory, shards, datasets, nanosets, webdatasets and so on."""
    name: str
    """What it is made of or for: a corpus, a nanoset's split, a webdataset."""
    version: int
    """Of the algorithm; raised when the same inputs would give other bytes."""
    parents: Mapping[str, str] = field(default_factory=dict)
    """Name → digest of each output that this one is made from."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings that reach the bytes."""

    def to_json(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "name": self.name,
            "version": self.version,
            "parents": dict(self.parents),
            "options": dict(self.options),
        }

    @property
    def digest(self) -> str:
        """Twenty hex digits over the recipe."""
        return digest_of(self.to_json())


@dataclass(frozen=True, slots=True)
class FileFact:
    """One file of an output."""

    size: int
    """Bytes."""
    sha256: str | None = None
    """Of its bytes; None where hashing would cost a second pass over the data."""
    pieces: str | None = None
    """For a file joined within a store: the file beside it that lists the sha256 of its pieces."""
    within: str | None = None
    """For one that is a range of another output's file and not kept twice: that file, below the
    root.
    """
    begin: int = 0
    """Byte of it at which the range begins."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A complete output: its place, recipe, facts and files."""

    folder: Path
    """Absolute; holds manifest.json and the files."""
    recipe: Mapping[str, Any]
    """As Recipe.to_json gave it."""
    digest: str
    """Of the recipe."""
    facts: Mapping[str, Any]
    """Counts and other findings; never times, hosts or paths."""
    files: Mapping[str, FileFact]
    """Relative name → size and checksum."""
    access: FileAccess = field(compare=False, repr=False)
    """How its files are reached."""
    stored: Mapping[str, int] | None = field(default=None, compare=False, repr=False)
    """Relative name → bytes of all files in the folder when the manifest was read, where the store
    told.
    """

    @property
    def stage(self) -> str:
        return str(self.recipe["stage"])

    @property
    def name(self) -> str:
        return str(self.recipe["name"])

    @property
    def written_ns(self) -> int:
        """When the manifest was written, nanoseconds since 1970; 0 where this machine has no copy
        of it.
        """
        return self.access.written_ns(self.folder / MANIFEST)

    def path(self, name: str) -> Path:
        """Return the local path of a file, or of the files `name`.*, after downloading what is
        stored elsewhere.
        """
        named = (
            [name]
            if name in self.files
            else [file for file in self.files if file.startswith(f"{name}.")]
        )
        for file in named:
            fact = self.files[file]
            if fact.within is not None:
                continue
            pieces = None if fact.pieces is None else self.path(fact.pieces)
            self.access.fetch(self.folder / file, size=fact.size, sha256=fact.sha256, pieces=pieces)
        return self.folder / name

    def place(self, name: str) -> tuple[Path, int]:
        """Return (file with the bytes of one of its files: itself, or one of another output; first
        byte there).
        """
        fact = self.files[name]
        return (
            (self.folder / name, 0)
            if fact.within is None
            else (self.access.folder / fact.within, fact.begin)
        )

    def url(self, name: str = "") -> str:
        """Return where a file, or the whole output, is stored, for messages."""
        return self.access.url(self.folder / name)

    def load(self, name: str, make: Callable[[Any], Made]) -> Made:
        """Parse one of its JSON files by `make`.

        Raises:
            MissingError: the file is not there.
            FormatError: it is not as it was written, or `make` does not take it.
        """
        path, fact = self.path(name), self.files.get(name)
        try:
            data = read_regular(path)
            if fact is not None and (
                len(data) != fact.size
                or fact.sha256 not in (None, hashlib.sha256(data).hexdigest())
            ):
                raise ValueError("its size or sha256 is not that in the manifest")
            return make(json.loads(data))
        except FileNotFoundError as error:
            raise MissingError(
                "a file of an output is gone", where=self.url(name), remedy="run `nanoset build`"
            ) from error
        except (
            ValueError,
            LookupError,
            TypeError,
            AttributeError,
            ArithmeticError,
            RecursionError,
        ) as error:
            raise FormatError(
                "this file is not as it was written",
                where=path,
                found=error.what if isinstance(error, NanosetError) else repr(error)[:500],
                remedy=f"delete {self.folder}; the next build makes it again",
            ) from error

    def damage(self) -> str | None:
        """Return the first file that is missing or of the wrong size, in words; None when all are
        whole.
        """
        fault = first_fault(self.sizes(), {name: fact.size for name, fact in self.files.items()})
        if fault is None:
            return None
        name, size = fault
        return (
            f"{name} is missing"
            if size is None
            else f"{name} has {size:,} bytes instead of {self.files[name].size:,}"
        )

    def sizes(self) -> Mapping[str, int]:
        """Return relative name → bytes of those of its files that are there."""
        sizes = self.access.sizes(self.folder, self.files) if self.stored is None else self.stored
        elsewhere = {name: fact for name, fact in self.files.items() if fact.within is not None}
        if not elsewhere:
            return sizes
        whole = {name: self.access.size(self.place(name)[0]) or 0 for name in elsewhere}
        there = {
            name: fact.size
            for name, fact in elsewhere.items()
            if fact.begin + fact.size <= whole[name]
        }
        return {name: size for name, size in sizes.items() if name not in elsewhere} | there


def first_fault(
    found: Mapping[str, int], wanted: Mapping[str, int]
) -> tuple[str, int | None] | None:
    """Return (name, bytes or None) of the first file that is missing, or of another size than
    wanted.
    """
    return next(
        ((name, found.get(name)) for name, size in wanted.items() if found.get(name) != size), None
    )


def read_manifest(folder: Path, access: FileAccess | None = None) -> Manifest | None:
    """Read the manifest of the output in a folder as it is stored now; None when there is none.

    Args:
        folder: of the output.
        access: how it is reached; absent = it is a local folder.

    Raises:
        FormatError: the file is there but is no manifest of ours, or its digest is not that of its
            recipe.
    """
    path, access = folder / MANIFEST, access or FileAccess(folder)
    try:
        data, stored = access.read_beside(path)
        value = json.loads(data)
        _check_content(value)
        files = {
            name: FileFact(
                int(fact["bytes"]),
                fact.get("sha256"),
                fact.get("pieces"),
                fact.get("within"),
                int(fact.get("begin", 0)),
            )
            for name, fact in value["files"].items()
        }
        recipe, digest = dict(value["recipe"]), value["digest"]
        manifest = Manifest(folder, recipe, digest, dict(value["facts"]), files, access, stored)
        expected = Recipe(**recipe).digest
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise no_manifest(access.url(path), repr(error)[:500]) from error
    if digest != expected:
        raise no_manifest(access.url(path), f"digest {digest}, but its recipe has {expected}")
    return manifest


def _check_content(value: Mapping[str, Any]) -> None:
    """Raise ValueError where a manifest was altered, or names a file outside of its folder."""
    if not value.keys() <= _KEYS:
        raise ValueError(f"unknown keys {sorted(value.keys() - _KEYS)}")
    if "sha256" in value and value["sha256"] != _checksum(value):
        raise ValueError("its content is not that of its own checksum")
    for name, fact in value["files"].items():
        if not is_inside(name):
            raise ValueError(f"a file named {name!r}, which is not below its folder")
        if not is_inside(fact.get("within", name)):
            raise ValueError(f"{name!r} within {fact['within']!r}, which is not below the root")
        if "pieces" in fact and value["files"][fact["pieces"]].keys() != {"bytes", "sha256"}:
            raise ValueError(f"no list of the pieces of {name!r}")


def _checksum(value: Mapping[str, Any]) -> str:
    """Return the sha256 of a manifest's facts and files; its recipe has the digest."""
    return hashlib.sha256(canonical_json([value["facts"], value["files"]])).hexdigest()


def no_manifest(where: str, found: str) -> FormatError:
    """Return the error for a file in a manifest's place that is none."""
    remedy = "delete the folder; the next build makes it again"
    return FormatError("this is not a manifest", where=where, found=found, remedy=remedy)


def manifest_bytes(
    recipe: Recipe, facts: Mapping[str, Any], files: Mapping[str, FileFact]
) -> bytes:
    """Return the text of manifest.json: the same recipe and findings give the same bytes."""
    value = {
        "nanoset": 1,
        "digest": recipe.digest,
        "recipe": recipe.to_json(),
        "facts": dict(facts),
        "files": {
            name: {"bytes": fact.size}
            | ({"sha256": fact.sha256} if fact.sha256 else {})
            | ({"pieces": fact.pieces} if fact.pieces else {})
            | ({"within": fact.within, "begin": fact.begin} if fact.within else {})
            for name, fact in sorted(files.items())
        },
    }
    value["sha256"] = _checksum(json.loads(json.dumps(value, allow_nan=False)))
    return json.dumps(value, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"


def pack(manifest: Manifest) -> bytes:
    """Return a manifest as bytes, without its `stored`; see `unpack`."""
    import orjson  # slow to import, which a reader of finished outputs need not

    files = {
        name: (fact.size, fact.sha256, fact.pieces, fact.within, fact.begin)
        for name, fact in manifest.files.items()
    }
    return zlib.compress(orjson.dumps((manifest.recipe, manifest.digest, manifest.facts, files)), 1)


def unpack(packed: bytes, access: FileAccess) -> Manifest:
    """Return the manifest that `pack` was given, of an output below the root that `access` reaches."""
    import orjson

    recipe, digest, facts, files = orjson.loads(zlib.decompress(packed))
    folder = access.folder / recipe["stage"] / recipe["name"] / digest
    return Manifest(
        folder,
        recipe,
        digest,
        facts,
        {name: FileFact(*fact) for name, fact in files.items()},
        access,
    )


class PackedManifests(Sequence[Manifest]):
    """Manifests of one root by the hundred thousand, in a few hundred bytes each, unpacked whenever
    they are read.
    """

    def __init__(self, packed: Iterable[bytes], access: FileAccess) -> None:
        self._packed, self._access = list(packed), access

    def __len__(self) -> int:
        return len(self._packed)

    @overload
    def __getitem__(self, index: int) -> Manifest: ...
    @overload
    def __getitem__(self, index: slice) -> PackedManifests: ...
    def __getitem__(self, index: int | slice) -> Manifest | PackedManifests:
        if isinstance(index, slice):
            return PackedManifests(self._packed[index], self._access)
        return unpack(self._packed[index], self._access)
