"""Recipes and manifests: what an output is made from, and which files it has.

The folder of an output is named by the digest of its recipe, so that two outputs of one recipe
cannot differ, and a change of any input or setting leads to another folder. `manifest.json` is
written last: a folder without it is an output that was never completed.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, overload

from nanoset_core.errors import FormatError, MissingError, NanosetError
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.paths import is_inside
from nanoset_core.storage.regular_files import read_regular

MANIFEST = "manifest.json"
DIGEST_HEX_DIGITS = 20
"""Length of a digest: 80 bits of a sha256, which keep the paths of outputs short."""
_DIGEST = re.compile(rf"[0-9a-f]{{{DIGEST_HEX_DIGITS}}}")
_KEYS = {"nanoset", "digest", "recipe", "facts", "files", "sha256"}
_PARSE_ERRORS = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What code that reads parsed JSON raises if the JSON has another form than it expects."""
Parsed = TypeVar("Parsed")


def canonical_json(value: object) -> bytes:
    """Return a value as JSON of which equal values have the same bytes.

    Keys are sorted, there are no spaces, and other characters than ASCII are escaped.
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode()


def digest_of(value: object) -> str:
    """Return a short content digest of any JSON value."""
    return hashlib.sha256(canonical_json(value)).hexdigest()[:DIGEST_HEX_DIGITS]


def is_digest(value: object) -> bool:
    """Return whether a value has the form of a digest, so that a folder may have it as its name."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that can change an output's bytes, and nothing else."""

    stage: str
    """Folder of the stage, below the root: inventory, shards, datasets, nanosets and so on."""
    name: str
    """Name of the output: a corpus, a split of a nanoset, or a webdataset, for example."""
    version: int
    """Version of the algorithm, which is raised if the same inputs would result in other bytes."""
    parents: Mapping[str, str] = field(default_factory=dict)
    """Name → digest of each output that this one is made from."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings that can change the bytes."""

    def to_json(self) -> dict[str, Any]:
        """Return the recipe as it is stored in manifests."""
        return {
            "stage": self.stage,
            "name": self.name,
            "version": self.version,
            "parents": dict(self.parents),
            "options": dict(self.options),
        }

    @property
    def digest(self) -> str:
        """Digest of the recipe, which is the name of the output's folder."""
        return digest_of(self.to_json())


@dataclass(frozen=True, slots=True)
class Written:
    """What a function that wrote the files of an output knows about them."""

    facts: Mapping[str, Any]
    """Counts and findings, which the manifest stores."""
    files: Mapping[str, str | FileFact] = field(default_factory=dict)
    """File name → the sha256 that was computed while the file was written, or a `FileFact`.

    A `FileFact` is for files that are stored elsewhere, or that need no sha256. Files that are not
    named here are hashed when the output is committed.
    """


@dataclass(frozen=True, slots=True)
class FileFact:
    """Size, checksum and location of one file of an output."""

    size: int
    """Bytes."""
    sha256: str | None = None
    """Checksum of its bytes, or None if computing it would need another pass over the data."""
    pieces: str | None = None
    """Name of the file that lists the sha256 of its pieces, if it was joined within a bucket."""
    within: str | None = None
    """Path below the root of another output's file that contains its bytes.

    Then the bytes are not stored a second time.
    """
    begin: int = 0
    """Position of its first byte in the file `within`."""

    def to_json(self) -> dict[str, Any]:
        """Return the file's entry of a manifest, without what does not apply to it."""
        entry: dict[str, Any] = {"bytes": self.size}
        if self.sha256:
            entry["sha256"] = self.sha256
        if self.pieces:
            entry["pieces"] = self.pieces
        if self.within:
            entry["within"] = self.within
            entry["begin"] = self.begin
        return entry

    @staticmethod
    def from_json(entry: Mapping[str, Any]) -> FileFact:
        """Return the file that an entry of a manifest describes."""
        return FileFact(
            size=int(entry["bytes"]),
            sha256=entry.get("sha256"),
            pieces=entry.get("pieces"),
            within=entry.get("within"),
            begin=int(entry.get("begin", 0)),
        )


class FilePlace(NamedTuple):
    """Where the bytes of an output's file are."""

    path: Path
    """Local path of the file itself, or of another output's file that contains it."""
    begin: int
    """Position of its first byte there."""


class FileFault(NamedTuple):
    """A file that is missing or has the wrong size."""

    name: str
    size: int | None
    """Its size in bytes; None if it is missing."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A complete version of an output: its folder, recipe, facts and files."""

    folder: Path
    """Absolute path; the folder contains manifest.json and the files."""
    recipe: Mapping[str, Any]
    """What it was made from, as `Recipe.to_json` returned it."""
    digest: str
    """Digest of the recipe."""
    facts: Mapping[str, Any]
    """Counts and other findings; never times, hosts or paths."""
    files: Mapping[str, FileFact]
    """Path below the folder → size and checksum of the file."""
    access: FileAccess = field(compare=False, repr=False)
    """How the files are read."""
    stored: Mapping[str, int] | None = field(default=None, compare=False, repr=False)
    """Path → bytes of all files that were in the folder when the manifest was read.

    None if the store did not report them along with the manifest.
    """

    @property
    def stage(self) -> str:
        """Folder of the stage, below the root."""
        return str(self.recipe["stage"])

    @property
    def name(self) -> str:
        """Name of the output."""
        return str(self.recipe["name"])

    @property
    def written_ns(self) -> int:
        """When the manifest was written, in nanoseconds since 1970.

        0 if the manifest is in a bucket and this machine has no copy of it.
        """
        return self.access.written_ns(self.folder / MANIFEST)

    def path(self, name: str) -> Path:
        """Return the local path of a file, after downloading it if it is in a bucket.

        Args:
            name: One of `files`. It may also be the prefix of several: `web_text_document` stands
                for `web_text_document.bin` and `web_text_document.idx`, and all are downloaded.

        Returns:
            The path of the file, or the prefix as a path.
        """
        names = [name]
        if name not in self.files:
            names = [file for file in self.files if file.startswith(f"{name}.")]
        for file in names:
            fact = self.files[file]
            if fact.within is not None:
                continue  # Its bytes are in a file of another output.
            pieces = None if fact.pieces is None else self.path(fact.pieces)
            self.access.fetch(self.folder / file, size=fact.size, sha256=fact.sha256, pieces=pieces)
        return self.folder / name

    def place(self, name: str) -> FilePlace:
        """Return where the bytes of a file are: in itself, or in a file of another output."""
        fact = self.files[name]
        if fact.within is None:
            return FilePlace(self.folder / name, 0)
        return FilePlace(self.access.folder / fact.within, fact.begin)

    def url(self, name: str = "") -> str:
        """Return where a file, or the whole output, is stored, for messages."""
        return self.access.url(self.folder / name)

    def load(self, name: str, make: Callable[[Any], Parsed]) -> Parsed:
        """Read one of the JSON files.

        Args:
            name: The file.
            make: Converts the parsed JSON to the result.

        Raises:
            MissingError: The file does not exist.
            FormatError: Its bytes are not those that were written, or `make` failed.
        """
        path = self.path(name)
        try:
            data = read_regular(path)
            self._check_bytes(name, data)
            return make(json.loads(data))
        except FileNotFoundError as error:
            raise MissingError(
                "a file of an output was deleted",
                where=self.url(name),
                remedy="run `nanoset build`",
            ) from error
        except _PARSE_ERRORS as error:
            found = error.what if isinstance(error, NanosetError) else repr(error)[:500]
            raise FormatError(
                "this file is not as it was written",
                where=path,
                found=found,
                remedy=f"delete {self.folder}; the next build makes it again",
            ) from error

    def _check_bytes(self, name: str, data: bytes) -> None:
        """Raise ValueError if a file's bytes have another size or sha256 than in the manifest."""
        fact = self.files.get(name)
        if fact is None:
            return
        has_size = len(data) == fact.size
        has_sha256 = fact.sha256 is None or fact.sha256 == hashlib.sha256(data).hexdigest()
        if not (has_size and has_sha256):
            raise ValueError("its size or sha256 is not that in the manifest")

    def damage(self) -> str | None:
        """Return a description of the first file that is missing or has the wrong size.

        Returns:
            For example "tokens.bin is missing"; None if all files are whole.
        """
        sizes = {name: fact.size for name, fact in self.files.items()}
        fault = first_fault(self.sizes(), sizes)
        if fault is None:
            return None
        if fault.size is None:
            return f"{fault.name} is missing"
        return f"{fault.name} has {fault.size:,} bytes instead of {sizes[fault.name]:,}"

    def sizes(self) -> Mapping[str, int]:
        """Return the sizes of the files that exist.

        Returns:
            Path below the folder → bytes.
        """
        sizes = self.stored
        if sizes is None:
            sizes = self.access.sizes(self.folder, self.files)
        borrowed = {name: fact for name, fact in self.files.items() if fact.within is not None}
        if not borrowed:
            return sizes

        # A range of another output's file exists if that file is long enough.
        existing = {name: size for name, size in sizes.items() if name not in borrowed}
        for name, fact in borrowed.items():
            containing_size = self.access.size(self.place(name).path) or 0
            if fact.begin + fact.size <= containing_size:
                existing[name] = fact.size
        return existing


def first_fault(sizes: Mapping[str, int], expected: Mapping[str, int]) -> FileFault | None:
    """Return the first file that is missing or has the wrong size, or None.

    Args:
        sizes: Name → bytes of the files that exist.
        expected: Name → bytes that the files should have.
    """
    for name, expected_size in expected.items():
        size = sizes.get(name)
        if size != expected_size:
            return FileFault(name, size)
    return None


def read_manifest(folder: Path, access: FileAccess | None = None) -> Manifest | None:
    """Read the manifest of an output as it is stored now.

    Args:
        folder: Folder of the output.
        access: How its files are read. By default the folder is a local one.

    Returns:
        The manifest, or None if the folder has none.

    Raises:
        FormatError: The file is not a manifest, or its digest is not that of its recipe.
    """
    path = folder / MANIFEST
    access = access or FileAccess(folder)
    try:
        data, stored = access.read_beside(path)
        value = json.loads(data)
        _check_content(value)
        manifest = Manifest(
            folder=folder,
            recipe=dict(value["recipe"]),
            digest=value["digest"],
            facts=dict(value["facts"]),
            files={name: FileFact.from_json(entry) for name, entry in value["files"].items()},
            access=access,
            stored=stored,
        )
        expected_digest = Recipe(**manifest.recipe).digest
    except (FileNotFoundError, NotADirectoryError):
        return None
    except _PARSE_ERRORS as error:
        raise no_manifest(access.url(path), repr(error)[:500]) from error

    if manifest.digest != expected_digest:
        found = f"digest {manifest.digest}, but its recipe has {expected_digest}"
        raise no_manifest(access.url(path), found)
    return manifest


def _check_content(value: Mapping[str, Any]) -> None:
    """Check that a manifest was not altered, and that its paths stay within its folder or the root.

    Args:
        value: The parsed file, which may be anything.

    Raises:
        ValueError: A check failed. Values of another type raise other errors.
    """
    if not value.keys() <= _KEYS:
        raise ValueError(f"unknown keys {sorted(value.keys() - _KEYS)}")
    if "sha256" in value and value["sha256"] != _checksum(value):
        raise ValueError("its facts and files do not have the sha256 that it states")

    for name, fact in value["files"].items():
        if not is_inside(name):
            raise ValueError(f"a file named {name!r}, which is not below its folder")
        if not is_inside(fact.get("within", name)):
            raise ValueError(f"{name!r} within {fact['within']!r}, which is not below the root")
        if "pieces" in fact and value["files"][fact["pieces"]].keys() != {"bytes", "sha256"}:
            raise ValueError(f"no list of the pieces of {name!r}")


def _checksum(value: Mapping[str, Any]) -> str:
    """Return the sha256 of a manifest's facts and files; the digest protects its recipe."""
    return hashlib.sha256(canonical_json([value["facts"], value["files"]])).hexdigest()


def no_manifest(where: str, found: str) -> FormatError:
    """Return the error for a manifest.json that is not a manifest."""
    return FormatError(
        "this is not a manifest",
        where=where,
        found=found,
        remedy="delete the folder; the next build makes it again",
    )


def manifest_bytes(
    recipe: Recipe, facts: Mapping[str, Any], files: Mapping[str, FileFact]
) -> bytes:
    """Return the content of manifest.json; equal arguments result in equal bytes."""
    value = {
        "nanoset": 1,
        "digest": recipe.digest,
        "recipe": recipe.to_json(),
        "facts": dict(facts),
        "files": {name: fact.to_json() for name, fact in sorted(files.items())},
    }
    # The checksum will be compared with that of the parsed file, in which tuples are lists.
    value["sha256"] = _checksum(json.loads(json.dumps(value, allow_nan=False)))
    return json.dumps(value, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"


def pack(manifest: Manifest) -> bytes:
    """Return a manifest as compressed bytes, without its `stored`; see `unpack`."""
    # Imported here, since it is slow to import and readers of finished outputs do not need it.
    import orjson

    files = {
        name: (fact.size, fact.sha256, fact.pieces, fact.within, fact.begin)
        for name, fact in manifest.files.items()
    }
    content = orjson.dumps((manifest.recipe, manifest.digest, manifest.facts, files))
    return zlib.compress(content, 1)


def unpack(packed: bytes, access: FileAccess) -> Manifest:
    """Return a manifest that was packed.

    Args:
        packed: Result of `pack`.
        access: How the files below the root of the output are read.
    """
    import orjson

    recipe, digest, facts, files = orjson.loads(zlib.decompress(packed))
    return Manifest(
        folder=access.folder / recipe["stage"] / recipe["name"] / digest,
        recipe=recipe,
        digest=digest,
        facts=facts,
        files={name: FileFact(*fact) for name, fact in files.items()},
        access=access,
    )


class PackedManifests(Sequence[Manifest]):
    """Manifests of one root, which are held compressed and are unpacked whenever they are read.

    A corpus may have hundreds of thousands of shards. Packed, a manifest takes a few hundred bytes.
    """

    def __init__(self, packed: Iterable[bytes], access: FileAccess) -> None:
        self._packed = list(packed)
        self._access = access

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
