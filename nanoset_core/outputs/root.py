"""The folder of all outputs: finding, publishing and reading versions, each at <stage>/<name>/<digest>/."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from nanoset_core.errors import FormatError, MissingError
from nanoset_core.outputs.manifest import (
    MANIFEST,
    FileFact,
    Manifest,
    Recipe,
    canonical_json,
    is_digest,
    manifest_bytes,
    no_manifest,
    read_manifest,
)
from nanoset_core.outputs.seen import SEEN_SECONDS, Seen
from nanoset_core.storage.access import FileAccess, LocalAccess, access_to, for_a_task
from nanoset_core.storage.atomic import (
    UNFINISHED,
    point_to,
    published_folder,
    sha256_file,
    sweep_abandoned,
    write_atomic,
)
from nanoset_core.storage.location import StorageSpec
from nanoset_core.storage.regular_files import read_regular

R = TypeVar("R")
CURRENT = "current.json"
HASHED_BYTES = 16 << 20
"""Files of an output up to this size always have a checksum."""


Writing = Callable[[Path], tuple[Mapping[str, Any], Mapping[str, str | FileFact]]]
"""Fills a folder; see `OutputRoot.commit`."""


@dataclass(frozen=True, slots=True)
class OutputRoot:
    """The folder that holds every output, each at <stage>/<name>/<digest>/."""

    access: FileAccess
    """How the files are reached."""
    rebuild: bool = False
    """Whether outputs are made again even where they are complete."""
    seen: Seen | None = field(default=None, compare=False, repr=False)
    """Versions in a store that were found current a moment ago; None: each is looked at whenever it is asked for."""

    @property
    def folder(self) -> Path:
        """Absolute: where the outputs are, or their copies."""
        return self.access.folder

    @property
    def local(self) -> OutputRoot:
        """What is made in the folder of this machine, though it may live elsewhere: the caller sends it."""
        return OutputRoot(LocalAccess(self.folder), self.rebuild)

    def place(self, recipe: Recipe) -> Path:
        """Where the output of `recipe` lies, whether or not it is there yet."""
        return self.folder / recipe.stage / recipe.name / recipe.digest

    def find(self, recipe: Recipe) -> Manifest | None:
        """The complete output of `recipe`, or None when it is missing or damaged, its manifest included."""
        return self.find_at(self.place(recipe))

    def find_at(self, place: Path) -> Manifest | None:
        """The complete output at the place of its recipe; None as for `find`."""
        try:
            manifest = self.manifest_at(place)
        except FormatError:
            return None  # to be made again, like any other damage
        return manifest if manifest is not None and self.is_whole(manifest, place) else None

    @staticmethod
    def is_whole(manifest: Manifest, place: Path) -> bool:
        """Whether what was found at a place is the complete output that belongs there."""
        return manifest.digest == place.name and manifest.damage() is None

    def each_version(
        self, work: Callable[[OutputRoot, Path], R], stage: str, name: str, digests: Sequence[str]
    ) -> list[R]:
        """`work` on many versions of an output, with the outputs as they are found a moment before; see `each_folder`.

        Args:
            work: takes the outputs, and the folder of a version.
            stage: of the output.
            name: of the output.
            digests: of the versions.
        """

        def look(access: FileAccess, folder: Path) -> R:
            return work(replace(self, access=access), folder)

        return self.access.each_folder(look, self.folder / stage / name, digests)

    def manifest_at(self, folder: Path) -> Manifest | None:
        """The manifest of the version that lies in a folder; None where there is none. Raises as `read_manifest`."""
        seen = self.seen_current(folder.parent)
        return seen if seen is not None and seen.folder == folder else read_manifest(folder, self.access)

    def commit(self, recipe: Recipe, write: Writing) -> Manifest:
        """Make an output once: return it when it is there, else let `write` fill a folder and publish that folder.

        Args:
            recipe: what the output is made from.
            write: fills the folder that it is given; returns the facts and the sha256 of those files that it hashed,
                or else what is known of files that it put where outputs live, and not into the folder.
        """
        place, looked_at, there = self.place(recipe), time.monotonic(), True
        if not self.rebuild:
            with contextlib.suppress(FormatError):  # to be made again, like any other damage
                if (found := self.manifest_at(place)) is not None and self.is_whole(found, place):
                    return found
                there = found is not None
        if self.rebuild or self.local.find(recipe) is None:
            self._make(recipe, write)
        return self._send(place, is_new=not there and time.monotonic() - looked_at < SEEN_SECONDS)

    def _make(self, recipe: Recipe, write: Writing) -> None:
        final = self.place(recipe)

        def made_meanwhile() -> bool:
            return not self.rebuild and self.local.find(recipe) is not None

        with published_folder(final, keep=made_meanwhile) as scratch:
            facts, known = write(scratch)
            files = {name: fact for name, fact in known.items() if isinstance(fact, FileFact)}
            checksums = {name: digest for name, digest in known.items() if isinstance(digest, str)}
            for path in sorted(scratch.rglob("*")):
                if path.is_file():
                    name = path.relative_to(scratch).as_posix()
                    files[name] = _fact(path, checksums.get(name))
            (scratch / MANIFEST).write_bytes(manifest_bytes(recipe, facts, files))

    def _send(self, place: Path, *, is_new: bool = False) -> Manifest:
        """Let a finished output be where outputs live; → its manifest. is_new: a moment ago there was none."""
        manifest = self.local.manifest_at(place)
        self.forget(place.parent)
        if manifest is None:
            raise MissingError("the output vanished while it was published", where=place, remedy="run it again")
        files = {name: fact.sha256 for name, fact in manifest.files.items()}
        return replace(manifest, access=self.access, stored=self.access.publish(place, files, MANIFEST, is_new=is_new))

    @contextlib.contextmanager
    def at_hand(self) -> Iterator[OutputRoot]:
        """The same outputs for the time of one task; see `for_a_task`."""
        with for_a_task(self.access) as access:
            yield replace(self, access=access)

    def rebase(self, manifest: Manifest) -> Manifest:
        """An output that another process made and put where outputs live, as this process reaches it."""
        place = self.folder / manifest.stage / manifest.name / manifest.digest
        return replace(manifest, folder=place, access=self.access)

    def invalidate(self, recipe: Recipe) -> None:
        """Remove the manifest of what stands where files of a new output go one by one: it is not to speak for them."""
        place = self.place(recipe)
        self.forget(place.parent)
        self.access.store.delete(self.access.name(place / MANIFEST))

    def finalize(self, recipe: Recipe, facts: Mapping[str, Any], files: Mapping[str, FileFact]) -> Manifest:
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
        manifest = self.live(stage, name)
        return None if manifest is None or manifest.damage() else manifest

    def live(self, stage: str, name: str) -> Manifest | None:
        """The version that current.json names, whether its files are whole or not; raises as `current`."""
        folder = self.folder / stage / name
        if (seen := self.seen_current(folder)) is not None:
            return seen
        digest = current_digest(self.access, folder)
        manifest = None if digest is None else self.manifest_at(folder / digest)
        if manifest is not None and (manifest.stage, manifest.name, manifest.digest) != (stage, name, digest):
            found = f"that of {manifest.stage}/{manifest.name}/{manifest.digest}"
            raise no_manifest(manifest.folder / MANIFEST, found)
        self.note_current(manifest)
        return manifest

    def seen_current(self, output: Path) -> Manifest | None:
        """The version of the output in a folder that was current a moment ago, where that is remembered."""
        found = None if self.seen is None else self.seen.find(output)
        return found if found is not None and (found.folder / MANIFEST).is_file() else None  # or its copy was removed

    def note_current(self, manifest: Manifest | None) -> None:
        """Remember a version as the current one for a moment, where it lives in a store."""
        if self.seen is not None and manifest is not None and self.access.has_copies:
            self.seen.note(manifest)

    def forget(self, output: Path) -> None:
        """Let the output in a folder be looked at anew."""
        if self.seen is not None:
            self.seen.forget(output)

    def versions(self, stage: str, name: str, *, strict: bool = False) -> Iterator[Manifest]:
        """Every version of an output, the one made last first, read one by one as they are asked for; damaged ones too.

        Args:
            stage: of the output.
            name: of the output.
            strict: raise where a manifest cannot be read; otherwise that version is passed over.

        Raises:
            FormatError: a manifest cannot be read, and `strict` is set.
        """
        folder = self.folder / stage / name
        return self._read(folder, self._made_in(folder).items(), strict=strict)

    def _made_in(self, folder: Path) -> dict[str, int]:
        """Digest of each version in the folder of an output → when it was made, nanoseconds since 1970."""
        return {name: at for name, at in self.access.written_in(folder, MANIFEST).items() if is_digest(name)}

    def _read(self, folder: Path, made: Iterable[tuple[str, int]], *, strict: bool = False) -> Iterator[Manifest]:
        for _, path in sorted(((at, folder / name) for name, at in made), reverse=True):
            try:
                manifest = self.manifest_at(path)
            except FormatError:
                if strict:
                    raise
                continue
            if manifest is not None:
                yield manifest

    def previous(self, manifest: Manifest) -> Manifest | None:
        """The version of an output that was made last before another, as far as it is still there and can be read."""
        folder = manifest.folder.parent
        made = self._made_in(folder)
        made_ns = made.get(manifest.digest, manifest.written_ns)  # by one clock, where it is there
        return next(self._read(folder, ((name, at) for name, at in made.items() if at < made_ns)), None)

    def require(self, stage: str, name: str, *, remedy: str) -> Manifest:
        """The live version of an output that another is made from.

        Raises:
            MissingError: it was never made, or its files are damaged.
        """
        manifest = self.live(stage, name)
        if manifest is None:
            raise MissingError(
                f"the output {stage}/{name} has not been built", where=self.folder / stage / name, remedy=remedy
            )
        if damage := manifest.damage():
            raise MissingError(
                f"the output {stage}/{name} is damaged", where=manifest.folder, found=damage, remedy=remedy
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
        self.forget(parent)
        wanted = canonical_json({"digest": manifest.digest}) + b"\n"
        path = parent / CURRENT
        is_new = not path.exists() or read_regular(path) != wanted
        if is_new:
            write_atomic(path, wanted)
        self.access.send_small(path, wanted, is_new=is_new)
        link = parent / "current"
        if not link.is_symlink() or link.readlink() != Path(manifest.digest):
            point_to(link, manifest.digest)
        self.note_current(manifest)


def _fact(path: Path, checksum: str | None) -> FileFact:
    size = path.stat().st_size
    if checksum is None and size <= HASHED_BYTES:
        checksum = sha256_file(path)
    return FileFact(size, checksum)


def current_digest(access: FileAccess, folder: Path) -> str | None:
    """Digest of the current version of the output in a folder; None where no version was made current.

    Raises:
        FormatError: the file that names it cannot be read.
    """
    path = folder / CURRENT
    try:
        digest = json.loads(access.read_current(path))["digest"]
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
    return str(digest)


def open_root(location: str | os.PathLike[str] | OutputRoot, storage: StorageSpec | None = None) -> OutputRoot:
    """The outputs at a local folder, or at s3://bucket/prefix.

    Args:
        location: where they live; a root that is open already is given back.
        storage: how the bucket is reached; absent = as the AWS configuration says, with copies in the user's cache
            folder.

    Raises:
        ConfigError: this is no place in a bucket.
    """
    if isinstance(location, OutputRoot):
        return location
    return OutputRoot(access_to(location, storage, "the output root"))
