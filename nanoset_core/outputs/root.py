"""The folder of all outputs: finding, publishing and reading versions, each at <stage>/<name>/<digest>/."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoset_core.errors import FormatError, MissingError
from nanoset_core.outputs.manifest import (
    MANIFEST,
    FileFact,
    Manifest,
    Recipe,
    canonical_json,
    first_fault,
    is_digest,
    manifest_bytes,
    no_manifest,
    read_manifest,
)
from nanoset_core.storage.atomic import (
    UNFINISHED,
    point_to,
    published_folder,
    sha256_file,
    sweep_abandoned,
    write_atomic,
)
from nanoset_core.storage.location import S3Place, StorageSpec, copies_folder, is_remote, parse_place
from nanoset_core.storage.mirror import Mirror, current_bytes, mirror_of

CURRENT = "current.json"
HASHED_BYTES = 16 << 20
"""Files of an output up to this size always have a checksum."""
_SENT_AT_ONCE = 4


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
            raise no_manifest(manifest.folder / MANIFEST, found)
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


def open_root(location: str | os.PathLike[str], storage: StorageSpec | None = None) -> OutputRoot:
    """The outputs at a local folder, or at s3://bucket/prefix.

    Args:
        location: where they live.
        storage: how the bucket is reached; absent = as the AWS configuration says, with copies in the user's cache
            folder.

    Raises:
        ConfigError: this is no place in a bucket.
    """
    if not is_remote(os.fspath(location)):
        return OutputRoot(Path(location).resolve())
    storage = storage or StorageSpec()
    place = parse_place(os.fspath(location), storage, where="the output root")
    return OutputRoot(copies_folder(place, storage), remote=place)
