"""Write the trainers' index files under the trainers' own names, and find and check them again.

A trainer takes a file of the right name for the right file. Beside each set of files there is one of our own, the
sidecar. It holds what decides the set's bytes, as far as the names do not, and the digest of every file. A set without
its sidecar, or with one of other contents, is made anew.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import MissingError, StaleError
from nanoset_core.formats.indexed.dataset import index_here
from nanoset_core.formats.indexed.layout import idx_path, map_file, read_idx
from nanoset_core.outputs.current import setting_differences
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.indices import BlendIndices, MemberIndices, build_blend_indices, build_member_indices
from nanoset_core.sampling.planned import BlendPlan, MemberPlan, SplitPlan
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import alone_in, atomic_file, fsync_folder, sha256_file
from nanoset_core.storage.regular_files import array_of, read_regular

_VERSION = 1
_THREADS = min(2, os.cpu_count() or 1)
_PIECE_BYTES = 1 << 24
_UNREADABLE = (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""Raised where a sidecar is not there, or not ours."""


def index_sets(plan: SplitPlan, config: NanosetConfig) -> Iterator[FileSet]:
    """Yield all sets of a split's index files, those of the datasets first.

    A blend without a cache folder has no files: the trainer keeps it in memory.
    """
    for member in plan.members:
        yield member_set(member, config, cache_dir_of(member, config))
    if plan.blend is not None and config.path_to_cache is not None:
        yield blend_set(plan, plan.blend, config.path_to_cache)


def member_set(member: MemberPlan, config: NanosetConfig, cache_dir: str | os.PathLike[str]) -> FileSet:
    """Return the set of a dataset's index files in a folder, there or not."""
    made_from = {
        "preset": config.preset,
        "idx_sha256": member.idx_sha256,
        "rows": list(member.rows),
        "tokens": member.tokens,
        "samples_requested": member.samples_requested,
        "sequence_length": config.sequence_length,
        "random_seed": config.random_seed,
        "add_extra_token": config.add_extra_token,
        "drop_last_partial": config.drops_last_partial(member.split),
        "shuffle_documents": config.shuffle_documents,
        "description": member.hash,
    }
    if member.order is not None:
        note = "the order of the whole run, which goes on where earlier phases stopped: the trainer would build another"
        made_from |= {"order": asdict(member.order) | {"rows": list(member.order.rows)}, "begin": member.begin}
        made_from["note"] = note

    def build() -> MemberIndices:
        idx = index_here(member.prefix)
        if (found := sha256_file(idx)) != member.idx_sha256:
            raise StaleError(
                "the dataset is not the one that was planned with",
                where=idx_path(member.prefix),
                found=f"sha256 {found}",
                expected=f"sha256 {member.idx_sha256}",
                remedy="plan again",
            )
        return build_member_indices(member, config, read_idx(idx, validate=False).sequence_lengths, threads=_THREADS)

    return FileSet(Path(cache_dir), member.files, member.sidecar, member.description, made_from, build)


def blend_set(plan: SplitPlan, blend: BlendPlan, cache_dir: str | os.PathLike[str]) -> FileSet:
    """Return the set of a blend's index files in a folder, there or not."""
    lengths = [member.samples_given for member in plan.members]
    made_from = {"preset": plan.preset, "description": blend.hash, "lengths": lengths}
    build = partial(build_blend_indices, plan)
    return FileSet(Path(cache_dir), blend.files, blend.sidecar, blend.description, made_from, build)


def open_member(
    member: MemberPlan, cache_dir: str | os.PathLike[str], access: FileAccess | None = None
) -> MemberIndices:
    """Memory-map a dataset's index files, fetched by `access`; MissingError, StaleError where one is not as planned."""
    shapes = {
        "document_index": ((member.rows[1] - member.rows[0]) * member.epochs,),
        "sample_index": (member.samples_built + 1, 2),
        "shuffle_index": (member.samples_given,),
    }
    return MemberIndices(**_open_parts(member.files, shapes, cache_dir, access))


def open_blend(plan: SplitPlan, cache_dir: str | os.PathLike[str], access: FileAccess | None = None) -> BlendIndices:
    """Memory-map a blend's index files; arguments and errors as `open_member`."""
    files = {} if plan.blend is None else plan.blend.files
    shapes = dict.fromkeys(("dataset_index", "dataset_sample_index"), (plan.samples,))
    return BlendIndices(**_open_parts(files, shapes, cache_dir, access))


def cache_dir_of(member: MemberPlan, config: NanosetConfig) -> Path:
    """Return the folder of a dataset's index files: `path_to_cache`, or the trainer's own place."""
    if config.path_to_cache is not None:
        return Path(config.path_to_cache)
    rules, prefix = config.rules, member.prefix
    return Path(rules.folder.format(prefix=prefix, kind=rules.member_kind, folder=os.path.dirname(prefix) or "."))


@dataclass(frozen=True, slots=True)
class FileSet:
    """Index files that belong together."""

    folder: Path
    """Folder that holds them."""
    files: Mapping[str, str]
    """Part → file name."""
    sidecar: str
    """File name of the sidecar."""
    description: str
    """Text of the part `description`."""
    made_from: Mapping[str, Any]
    """All that decides their bytes."""
    build: Callable[[], MemberIndices | BlendIndices]
    """Builds the arrays."""

    def complete(self, *, deep: bool) -> dict[str, str] | None:
        """Return {file name: sha256} if all are there and were made from just this, else None.

        deep: check digests, not only sizes.
        """
        try:
            notes = self.notes_in(read_regular(self.folder / self.sidecar)) or {}
            for name, note in notes.items():
                path = self.folder / name
                if path.stat().st_size != note["bytes"] or (deep and sha256_file(path) != note["sha256"]):
                    return None
            return {name: note["sha256"] for name, note in notes.items()} or None
        except _UNREADABLE:
            return None

    def notes_in(self, sidecar: bytes | None) -> dict[str, dict[str, Any]] | None:
        """Return {file name: {"bytes", "sha256"}} of a sidecar's bytes; None where it is not of this set."""
        try:
            noted = json.loads(sidecar or b"")
            if noted["version"] != _VERSION or noted["made_from"] != self.made_from:
                return None
            return {name: noted["files"][name] for name in self.files.values()}
        except _UNREADABLE:
            return None

    def note(self, files: Mapping[str, Mapping[str, Any]]) -> bytes:
        """Return the content of the sidecar, by {file name: {"bytes", "sha256"}}."""
        content = {"version": _VERSION, "made_from": self.made_from, "files": files}
        return json.dumps(content, indent=1, sort_keys=True).encode()

    def foreign(self, there: str, sidecar: bytes | None) -> str | None:
        """Return why a file that is there, with this sidecar beside it, is not of this set; None where it is."""
        try:
            differences = setting_differences(json.loads(sidecar or b"")["made_from"], self.made_from)
        except _UNREADABLE:
            return f"{there}, without {self.sidecar}, which would say what it was made from"
        return f"{there}, made from something else: {'; '.join(differences)}" if differences else None

    def write(self, make_room: Callable[[int, str], object] = lambda size, what: None) -> dict[str, str]:
        """Write the files unless they are there with the right digests; return file name → sha256.

        `make_room` takes the bytes that they need, and their folder, before any is written.

        Each file appears whole. The description, which completes the set for a trainer, comes last. Where another
        process writes them meanwhile, its files stay. StaleError where the .idx is no longer the one that was planned
        with; ConfigError, SampleIndexError where the arrays cannot be built.
        """
        known = self.complete(deep=True)
        if known is not None:
            return known
        arrays = self.build()
        size = sum(getattr(arrays, part).nbytes for part in self.files if part != "description")
        make_room(size, str(self.folder))
        with alone_in(self.folder):
            known = self.complete(deep=True)
            return self._replace(arrays) if known is None else known

    def _replace(self, arrays: MemberIndices | BlendIndices) -> dict[str, str]:
        self._withdraw()
        notes = {}
        text = self.description.encode("utf-8")
        for part, name in self.files.items():
            pieces = [memoryview(text)] if part == "description" else _npy_pieces(getattr(arrays, part))
            digest = hashlib.sha256()
            for piece in pieces:
                digest.update(piece)
            notes[name] = {"bytes": sum(map(len, pieces)), "sha256": digest.hexdigest()}
            if part != "description":
                _write(self.folder / name, pieces)
        _write(self.folder / self.sidecar, [memoryview(self.note(notes))])
        if "description" in self.files:
            _write(self.folder / self.files["description"], [memoryview(text)])
        for folder in {(self.folder / name).parent for name in notes}:
            fsync_folder(folder)
        return {name: str(note["sha256"]) for name, note in notes.items()}

    def _withdraw(self) -> None:
        """Remove what makes a trainer take the files that are there for a whole set.

        Index files themselves stay until new ones take their place: another process may be writing the same ones.
        Without a description they are all that a trainer looks for, so those of another origin are removed.
        """
        names = [self.files["description"]] if "description" in self.files else []
        if not names and (self.folder / self.sidecar).exists():
            names = list(self.files.values())
        for name in (*names, self.sidecar):
            (self.folder / name).unlink(missing_ok=True)


def _npy_pieces(array: NDArray[np.integer]) -> list[memoryview]:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    body = np.ascontiguousarray(array).data.cast("B") if array.size else memoryview(b"")
    return [header.getbuffer(), *(body[begin : begin + _PIECE_BYTES] for begin in range(0, len(body), _PIECE_BYTES))]


def _write(path: Path, pieces: list[memoryview]) -> None:
    with atomic_file(path, sync=False) as file:
        file.writelines(pieces)


def _open_parts(
    files: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    cache_dir: str | os.PathLike[str],
    access: FileAccess | None,
) -> dict[str, NDArray[Any]]:
    opened, remedy = {}, "build the nanoset again"
    for part, shape in shapes.items():
        path = Path(cache_dir) / files[part]
        where = path if access is None else access.url(path)
        try:
            array = opened[part] = array_of(map_file(path if access is None else access.fetch(path)))
        except MissingError as error:
            raise MissingError("an index file is not there", where=where, remedy=remedy) from error
        except ValueError as error:
            raise StaleError("not an index file", where=where, found=error, remedy=remedy) from error
        if array.shape != shape or array.dtype.kind not in "iu" or not array.dtype.isnative:
            what, found = "an index file is not the one that was planned", f"shape {array.shape}, {array.dtype.str}"
            raise StaleError(what, where=where, found=found, expected=f"shape {shape}, whole numbers", remedy=remedy)
    return opened
