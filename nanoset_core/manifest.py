"""What made an output: its recipe, digest, counts and files. The manifest is the only mark of completeness."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from nanoset_core.errors import FormatError, MissingError, NanosetError
from nanoset_core.paths import is_inside
from nanoset_core.remote.mirror import Mirror, current_bytes, mirror_of
from nanoset_core.remote.spec import S3Place
from nanoset_core.storage import UNFINISHED, point_to, published_folder, sha256_file, sweep_abandoned, write_atomic

MANIFEST = "manifest.json"
CURRENT = "current.json"
DIGEST_HEX_DIGITS = 20
HASHED_BYTES = 16 << 20
"""Files of an output up to this size always have a checksum."""
_SENT_AT_ONCE = 4
_DIGEST = re.compile(rf"[0-9a-f]{{{DIGEST_HEX_DIGITS}}}")
_KEYS = {"nanoset", "digest", "recipe", "facts", "files", "sha256"}
Made = TypeVar("Made")


def canonical_json(value: object) -> bytes:
    """The one spelling of a value: sorted keys, no spaces, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def digest_of(value: object) -> str:
    """A short content digest of any JSON value."""
    return hashlib.sha256(canonical_json(value)).hexdigest()[:DIGEST_HEX_DIGITS]


def is_digest(value: object) -> bool:
    """Whether a value, taken from a file, is what `digest_of` gives, and so a folder's name."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that can change an output's bytes, and nothing else."""

    stage: str
    """the folder below the root: inventory, shards, datasets, nanosets, webdatasets…"""
    name: str
    """what it is made of or for: a corpus, a nanoset's split, a webdataset"""
    version: int
    """of the algorithm; raised when the same inputs would give other bytes"""
    parents: Mapping[str, str] = field(default_factory=dict)
    """name → digest of each output that this one is made from"""
    options: Mapping[str, Any] = field(default_factory=dict)
    """settings that reach the bytes"""

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
    """bytes"""
    sha256: str | None = None
    """of its bytes; None where hashing would cost a second pass over the data"""


@dataclass(frozen=True, slots=True)
class Manifest:
    """A complete output: where it lies, what made it, what is in it."""

    folder: Path
    """absolute; holds manifest.json and the files"""
    recipe: Mapping[str, Any]
    """as Recipe.to_json gave it"""
    digest: str
    """of the recipe"""
    facts: Mapping[str, Any]
    """counts and other findings; never times, hosts or paths"""
    files: Mapping[str, FileFact]
    """relative name → size and checksum"""
    stored: Mapping[str, int] | None = field(default=None, compare=False, repr=False)
    """relative name → bytes of what lay beside it in its bucket when it was read; None for a local one"""

    @property
    def stage(self) -> str:
        return str(self.recipe["stage"])

    @property
    def name(self) -> str:
        return str(self.recipe["name"])

    def path(self, name: str) -> Path:
        """The absolute path of one of its files, or of several by what their names begin with, before a dot.

        Those of an output that lives in a bucket are brought first, unless they are here.
        """
        mirror = mirror_of(self.folder)
        for file, fact in self.files.items() if mirror is not None else ():
            if mirror is not None and (file == name or file.startswith(f"{name}.")):
                mirror.bring(self.folder / file, size=fact.size, sha256=fact.sha256)
        return self.folder / name

    def load(self, name: str, make: Callable[[Any], Made]) -> Made:
        """What `make` gives of one of its JSON files.

        Raises:
            MissingError: the file is not there.
            FormatError: it is not as it was written, or `make` does not take it.
        """
        path = self.path(name)
        try:
            data = path.read_bytes()
            self._check(name, data)
            return make(json.loads(data))
        except FileNotFoundError as error:
            raise MissingError("a file of an output is gone", where=path, remedy="run `nanoset build`") from error
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise FormatError(
                "this file is not as it was written",
                where=path,
                found=error.what if isinstance(error, NanosetError) else repr(error)[:500],
                expected="what nanoset writes there",
                remedy=f"delete {self.folder}; the next build makes it again",
            ) from error

    def _check(self, name: str, data: bytes) -> None:
        fact = self.files.get(name)
        if fact is not None and len(data) != fact.size:
            raise ValueError(f"{len(data):,} bytes instead of {fact.size:,}")
        if fact is not None and fact.sha256 not in (None, digest := hashlib.sha256(data).hexdigest()):
            raise ValueError(f"sha256 {digest} instead of {fact.sha256}")

    def damage(self) -> str | None:
        """What is missing or of the wrong size, or None when every listed file is whole."""
        fault = first_fault(self.folder, {name: fact.size for name, fact in self.files.items()}, self.stored)
        if fault is None:
            return None
        name, size = fault
        if size is None:
            return f"{name} is missing"
        return f"{name} has {size:,} bytes instead of {self.files[name].size:,}"


def first_fault(
    folder: Path, wanted: Mapping[str, int], stored: Mapping[str, int] | None = None, *, here: bool = False
) -> tuple[str, int | None] | None:
    """(name, bytes or None) of the first file that is missing below a folder or of another size than wanted.

    Args:
        folder: where they should be.
        wanted: name → bytes.
        stored: what lies there, where it is known.
        here: look at the local copies alone, where the folder lives in a bucket.
    """
    mirror = None if here else mirror_of(folder)
    if stored is None and mirror is not None:
        stored = mirror.sizes(folder)
    for name, size in wanted.items():
        found = _size_of(folder / name) if stored is None else stored.get(name)
        if found != size:
            return name, found
    return None


def _size_of(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def read_manifest(folder: Path, *, here: bool = False) -> Manifest | None:
    """The manifest in `folder`, or None when there is none.

    Of a folder that lives in a bucket it is the bucket's, fresh; with `here` the local copy, published or not.

    Raises:
        FormatError: the file is there but is no manifest of ours, or its digest is not that of its recipe.
    """
    path, mirror = folder / MANIFEST, None if here else mirror_of(folder)
    stored = None
    try:
        if mirror is not None:
            stored = mirror.refresh_beside(path)
        value = json.loads(path.read_bytes())
        _check_content(value)
        files = {name: FileFact(int(fact["bytes"]), fact.get("sha256")) for name, fact in value["files"].items()}
        manifest = Manifest(folder, dict(value["recipe"]), value["digest"], dict(value["facts"]), files, stored)
        digest = Recipe(**value["recipe"]).digest
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise _no_manifest(path, repr(error)[:500]) from error
    if manifest.digest != digest:
        raise _no_manifest(path, f"digest {manifest.digest}, but its recipe has {digest}")
    return manifest


def _check_content(value: Mapping[str, Any]) -> None:
    """ValueError where a manifest was altered, or names a file outside of its folder."""
    if not value.keys() <= _KEYS:
        raise ValueError(f"unknown keys {sorted(value.keys() - _KEYS)}")
    if "sha256" in value and value["sha256"] != _checksum(value):
        raise ValueError("its content is not that of its own checksum")
    for name in value["files"]:
        if not is_inside(name):
            raise ValueError(f"a file named {name!r}, which is not below its folder")


def _checksum(value: Mapping[str, Any]) -> str:
    """sha256 of a manifest's facts and files; its recipe has the digest."""
    return hashlib.sha256(canonical_json([value["facts"], value["files"]])).hexdigest()


def _no_manifest(path: Path, found: str) -> FormatError:
    return FormatError(
        "this is not a manifest",
        where=path,
        found=found,
        expected="the JSON that nanoset writes beside each output",
        remedy="delete the folder; the next build makes it again",
    )


def manifest_bytes(recipe: Recipe, facts: Mapping[str, Any], files: Mapping[str, FileFact]) -> bytes:
    """The text of manifest.json: the same recipe and findings give the same bytes."""
    value = {
        "nanoset": 1,
        "digest": recipe.digest,
        "recipe": recipe.to_json(),
        "facts": dict(facts),
        "files": {
            name: {"bytes": fact.size} | ({"sha256": fact.sha256} if fact.sha256 else {})
            for name, fact in sorted(files.items())
        },
    }
    value["sha256"] = _checksum(json.loads(json.dumps(value, allow_nan=False)))
    return json.dumps(value, indent=1, sort_keys=True, allow_nan=False).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class OutputRoot:
    """The folder that holds every output, each at <stage>/<name>/<digest>/."""

    folder: Path
    """absolute"""
    rebuild: bool = False
    """make outputs again even where they are complete"""
    remote: S3Place | None = None
    """where the outputs live, when `folder` only mirrors them"""
    here: bool = False
    """work in the mirror alone: the caller sends what is made"""

    def __post_init__(self) -> None:
        if self.remote is not None:
            Mirror(self.folder, self.remote).register()

    def __reduce__(self) -> tuple[object, ...]:
        # By way of __init__, so that a worker process knows the mirror, too.
        return OutputRoot, (self.folder, self.rebuild, self.remote, self.here)

    @property
    def mirror(self) -> Mirror | None:
        """The mirror that the folder is, or None for a root on a local file system."""
        return None if self.here else mirror_of(self.folder)

    def place(self, recipe: Recipe) -> Path:
        """Where the output of `recipe` lies, whether or not it is there yet."""
        return self.folder / recipe.stage / recipe.name / recipe.digest

    def find(self, recipe: Recipe) -> Manifest | None:
        """The complete output of `recipe`, or None when it is missing or damaged, its manifest included."""
        if self.here:
            return self._here(recipe)
        try:
            manifest = read_manifest(self.place(recipe))
        except FormatError:
            return None  # to be made again, like any other damage
        if manifest is None or manifest.digest != recipe.digest or manifest.damage():
            return None
        return manifest

    def publish(self, recipe: Recipe, write: Callable[[Path], tuple[Mapping[str, Any], Mapping[str, str]]]) -> Manifest:
        """Make an output once: return it when it is there, else let `write` fill a folder and publish that folder.

        Args:
            recipe: what the output is made from.
            write: fills the folder that it is given; returns the facts and the sha256 of those files that it hashed.
        """
        if not self.rebuild and (done := self.find(recipe)) is not None:
            return done
        if self.rebuild or self._here(recipe) is None:
            self._make(recipe, write)
        return self._send(self.place(recipe))

    def _here(self, recipe: Recipe) -> Manifest | None:
        """The output as it was made whole on this machine, though it may not be in its bucket yet."""
        try:
            manifest = read_manifest(self.place(recipe), here=True)
        except FormatError:
            return None
        sizes = {} if manifest is None else {name: fact.size for name, fact in manifest.files.items()}
        return manifest if first_fault(self.place(recipe), sizes, here=True) is None else None

    def _make(self, recipe: Recipe, write: Callable[[Path], tuple[Mapping[str, Any], Mapping[str, str]]]) -> None:
        final = self.place(recipe)

        def made_meanwhile() -> bool:
            return not self.rebuild and self._here(recipe) is not None

        with published_folder(final, keep=made_meanwhile) as scratch:
            facts, checksums = write(scratch)
            names = (path for path in sorted(scratch.rglob("*")) if path.is_file())
            files = {
                name: _fact(path, checksums.get(name))
                for path in names
                for name in [path.relative_to(scratch).as_posix()]
            }
            (scratch / MANIFEST).write_bytes(manifest_bytes(recipe, facts, files))

    def _send(self, place: Path) -> Manifest:
        """Bring a finished output to the bucket where it lives, if it does; → its manifest."""
        manifest = read_manifest(place, here=True)
        if manifest is None:
            raise MissingError("the output vanished while it was published", where=place, remedy="run it again")
        if self.mirror is not None:
            self.mirror.publish(place, {name: fact.sha256 for name, fact in manifest.files.items()}, MANIFEST)
        return manifest

    @contextlib.contextmanager
    def sending(self) -> Iterator[Callable[[Manifest], None]]:
        """A function that sends finished outputs to their bucket while others are made; all are there when it ends.

        Where the root is local the function does nothing.
        """
        if self.mirror is None:
            yield lambda manifest: None
            return
        with ThreadPoolExecutor(_SENT_AT_ONCE) as pool:
            under_way: list[Future[Manifest]] = []

            def send(manifest: Manifest) -> None:
                ended: list[Future[Manifest]] = []
                unended: list[Future[Manifest]] = []
                for future in under_way:
                    (ended if future.done() else unended).append(future)
                under_way[:] = unended  # or each would be looked at again for every output that is sent
                for future in ended:
                    future.result()
                under_way.append(pool.submit(self._send, manifest.folder))

            try:
                yield send
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
            for future in under_way:
                future.result()

    def seal(self, recipe: Recipe, facts: Mapping[str, Any], files: Mapping[str, FileFact]) -> Manifest:
        """Complete an output whose files were published one by one into its place: write its manifest, last."""
        place = self.place(recipe)
        sweep_abandoned(place)
        write_atomic(place / MANIFEST, manifest_bytes(recipe, facts, files))
        return self._send(place)

    def current(self, stage: str, name: str) -> Manifest | None:
        """The live version of an output, or None when there is none, or when files of it are missing.

        Raises:
            FormatError: the pointer to it, or its manifest, cannot be read.
        """
        manifest = self._named(stage, name)
        return None if manifest is None or manifest.damage() else manifest

    def _named(self, stage: str, name: str) -> Manifest | None:
        """The manifest that current.json names, whole or not."""
        path = self.folder / stage / name / CURRENT
        try:
            digest = json.loads(current_bytes(path))["digest"]
            if not is_digest(digest):
                raise ValueError(f"{digest!r} is no digest")
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise FormatError(
                "this does not name a version",
                where=path,
                found=repr(error)[:500],
                expected='{"digest": "…"}',
                remedy="delete the file; the next build writes it again",
            ) from error
        manifest = read_manifest(path.parent / digest)
        if manifest is not None and (manifest.stage, manifest.name, manifest.digest) != (stage, name, digest):
            found = f"that of {manifest.stage}/{manifest.name}/{manifest.digest}"
            raise _no_manifest(manifest.folder / MANIFEST, found)
        return manifest

    def require(self, stage: str, name: str, *, remedy: str) -> Manifest:
        """The live version of an output that another is made from.

        Raises:
            MissingError: it was never made, or its files are damaged.
        """
        manifest = self._named(stage, name)
        if manifest is None:
            raise MissingError(
                f"the {stage} of {name!r} have not been made", where=self.folder / stage / name, remedy=remedy
            )
        if damage := manifest.damage():
            raise MissingError(
                f"the {stage} of {name!r} are damaged", where=manifest.folder, found=damage, remedy=remedy
            )
        return manifest

    def sweep(self) -> None:
        """Remove what killed processes left unfinished, in every place where outputs are published."""
        for folder, folders, _ in os.walk(self.folder):
            sweep_abandoned(Path(folder))
            # Complete outputs are not looked into; nothing is written there any more.
            folders[:] = [
                name
                for name in folders
                if not name.startswith(UNFINISHED) and not (Path(folder) / name / MANIFEST).exists()
            ]

    def make_current(self, manifest: Manifest) -> None:
        """Let <stage>/<name>/current.json, and the `current` link beside it, name this version."""
        parent = manifest.folder.parent
        wanted = canonical_json({"digest": manifest.digest}) + b"\n"
        path = parent / CURRENT
        if not path.exists() or path.read_bytes() != wanted:
            write_atomic(path, wanted)
        if self.mirror is not None:
            self.mirror.send_small(path)
        link = parent / "current"
        if not link.is_symlink() or link.readlink() != Path(manifest.digest):
            point_to(link, manifest.digest)


def _fact(path: Path, checksum: str | None) -> FileFact:
    size = path.stat().st_size
    if checksum is None and size <= HASHED_BYTES:
        checksum = sha256_file(path)
    return FileFact(size, checksum)
