"""The trainers' index files: written under their own names, found again, and checked before they are believed.

A trainer takes a file of the right name for the right file. Beside each set of files we keep one of our own that says
what the set was made from, as far as the names do not, with the digest of every file; without it, or when it says
something else, the set is made anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import MissingError, StaleError
from nanoset_core.indexed.dataset import index_here
from nanoset_core.indexed.layout import idx_path
from nanoset_core.indexed.reading import map_file, read_idx
from nanoset_core.mapping.config import NanosetConfig
from nanoset_core.mapping.indices import BlendIndices, MemberIndices, build_blend_indices, build_member_indices
from nanoset_core.mapping.planned import BlendPlan, MemberPlan, SplitPlan
from nanoset_core.mapping.presets import get_preset
from nanoset_core.outputs.current import setting_differences
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import atomic_file, fsync_folder, sha256_file
from nanoset_core.storage.npy import array_of
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.storage.scratch import alone_in

_VERSION = 1
_PIECE_BYTES = 1 << 24


def write_member(
    member: MemberPlan, config: NanosetConfig, cache_dir: str | os.PathLike[str], *, threads: int = 1
) -> dict[str, str]:
    """Write a dataset's index files unless they are there.

    What is there is believed only when its digests are right. Each file appears whole; the description, which completes
    the set for a trainer, comes last.

    Args:
        member: plan of the dataset.
        config: that it was planned with.
        cache_dir: the folder to write into.
        threads: more than one shortens the wall time; the result is the same.

    Returns:
        File name → sha256.

    Raises:
        StaleError: the .idx is no longer the one that was planned with.
        ConfigError: the split's last sample would end in an empty sequence.
    """
    files = member_set(member, config, cache_dir)
    known = files.complete(deep=True)
    if known is not None:
        return known
    _check_idx(member)
    lengths = read_idx(index_here(member.prefix), validate=False).sequence_lengths
    return files.write(build_member_indices(member, config, lengths, threads=threads))


def write_blend(plan: SplitPlan, config: NanosetConfig, cache_dir: str | os.PathLike[str]) -> dict[str, str]:
    """Write a blend's index files unless they are there.

    Args:
        plan: of the split.
        config: that it was planned with.
        cache_dir: the folder to write into.

    Returns:
        File name → sha256; {} for a split that is a plain dataset.

    Raises:
        SampleIndexError: a dataset is too short for the blend.
    """
    if plan.blend is None:
        return {}
    files = blend_set(plan, plan.blend, cache_dir)
    known = files.complete(deep=True)
    return files.write(build_blend_indices(plan)) if known is None else known


def member_is_cached(member: MemberPlan, config: NanosetConfig, cache_dir: str | os.PathLike[str]) -> bool:
    """Whether a dataset's index files are complete and made from just this; sizes are checked, not digests."""
    return member_set(member, config, cache_dir).complete(deep=False) is not None


def blend_is_cached(plan: SplitPlan, cache_dir: str | os.PathLike[str]) -> bool:
    """Whether a blend's index files are complete and made from just this; sizes are checked, not digests."""
    return plan.blend is not None and blend_set(plan, plan.blend, cache_dir).complete(deep=False) is not None


def open_member(
    member: MemberPlan, config: NanosetConfig, cache_dir: str | os.PathLike[str], access: FileAccess | None = None
) -> MemberIndices:
    """Memory-map a dataset's index files.

    Args:
        member: plan of the dataset.
        config: that it was planned with.
        cache_dir: the folder of the files.
        access: how they are reached, where they do not simply lie there.

    Raises:
        MissingError: a file is not there.
        StaleError: a file is not as planned.
    """
    shapes = {
        "document_index": ((member.rows[1] - member.rows[0]) * member.epochs,),
        "sample_index": (member.samples_built + 1, 2),
        "shuffle_index": (member.samples_given,),
    }
    paths = {part: _fetched(Path(cache_dir) / member.files[part], access) for part in shapes}
    return MemberIndices(**{part: _open(paths[part], shape) for part, shape in shapes.items()})


def open_blend(plan: SplitPlan, cache_dir: str | os.PathLike[str], access: FileAccess | None = None) -> BlendIndices:
    """Memory-map a blend's index files; arguments and errors as `open_member`."""
    files = {} if plan.blend is None else plan.blend.files
    parts = ("dataset_index", "dataset_sample_index")
    paths = {part: _fetched(Path(cache_dir) / files[part], access) for part in parts}
    return BlendIndices(**{part: _open(path, (plan.samples,)) for part, path in paths.items()})


def cache_dir_of(member: MemberPlan, config: NanosetConfig) -> Path:
    """Where a dataset's index files are looked for: in `path_to_cache`, or in the trainer's own place."""
    if config.path_to_cache is not None:
        return Path(config.path_to_cache)
    return default_cache_dir(member.prefix, config.preset)


def default_cache_dir(prefix: str, preset: str) -> Path:
    """Where the trainer keeps a dataset's index files when it is given no folder."""
    rules = get_preset(preset)
    return Path(rules.folder.format(prefix=prefix, kind=rules.member_kind, folder=os.path.dirname(prefix) or "."))


@dataclass(frozen=True, slots=True)
class FileSet:
    """Files that belong together."""

    folder: Path
    """Where they are."""
    files: Mapping[str, str]
    """Part → file name."""
    sidecar: str
    """File name of what they were made from."""
    description: str
    """Text of the part `description`."""
    made_from: Mapping[str, Any]
    """All that decides their bytes."""

    def complete(self, *, deep: bool) -> dict[str, str] | None:
        """{file name: sha256} if all are there and were made from just this, else None; deep: digests are checked."""
        try:
            notes = self.notes_in(read_regular(self.folder / self.sidecar))
            if notes is None:
                return None
            for name, note in notes.items():
                path = self.folder / name
                if path.stat().st_size != note["bytes"] or (deep and sha256_file(path) != note["sha256"]):
                    return None
            return {name: note["sha256"] for name, note in notes.items()}
        except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, RecursionError):
            return None  # not there, or not ours

    def notes_in(self, sidecar: bytes | None) -> dict[str, dict[str, Any]] | None:
        """{file name: {"bytes", "sha256"}} by a sidecar; None where it is not of this set."""
        try:
            noted = json.loads(sidecar or b"")
            if noted["version"] != _VERSION or noted["made_from"] != self.made_from:
                return None
            return {name: noted["files"][name] for name in self.files.values()}
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    def note(self, files: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """What the sidecar holds: of each file {"bytes", "sha256"}, and what all were made from."""
        return {"version": _VERSION, "made_from": self.made_from, "files": files}

    def foreign(self) -> str | None:
        """What tells that files which are there are not of this set; None where they are, or none is there."""
        there = next((name for name in self.files.values() if (self.folder / name).exists()), None)
        sidecar = None
        with contextlib.suppress(OSError):
            sidecar = read_regular(self.folder / self.sidecar)
        return None if there is None else self.foreign_by(there, sidecar)

    def foreign_by(self, there: str, sidecar: bytes | None) -> str | None:
        """As `foreign`, of a file that is there, by the sidecar beside it."""
        try:
            made_from = json.loads(sidecar or b"")["made_from"]
            differences = setting_differences(made_from, self.made_from)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return f"{there}, without {self.sidecar}, which would say what it was made from"
        return f"{there}, made from something else: {'; '.join(differences)}" if differences else None

    def write(self, arrays: MemberIndices | BlendIndices) -> dict[str, str]:
        """Write all files, each whole, the description last; return {file name: sha256}.

        Where another process has written them meanwhile, they stay.
        """
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
        note = json.dumps(self.note(notes), indent=1, sort_keys=True)
        _write(self.folder / self.sidecar, [memoryview(note.encode("utf-8"))])
        if "description" in self.files:
            _write(self.folder / self.files["description"], [memoryview(text)])
        for folder in {(self.folder / name).parent for name in notes}:
            fsync_folder(folder)
        return {name: str(note["sha256"]) for name, note in notes.items()}

    def _withdraw(self) -> None:
        """Let a trainer not take what is there for a whole set while it is replaced.

        Index files themselves stay until new ones take their place: another process may be writing the same ones.
        Without a description they are all that a trainer looks for, so there those of another origin go.
        """
        names = [self.files["description"]] if "description" in self.files else []
        if not names and (self.folder / self.sidecar).exists():
            names = list(self.files.values())
        for name in (*names, self.sidecar):
            (self.folder / name).unlink(missing_ok=True)


def member_set(member: MemberPlan, config: NanosetConfig, cache_dir: str | os.PathLike[str]) -> FileSet:
    """A dataset's index files in a folder, there or not."""
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
    return FileSet(Path(cache_dir), member.files, member.sidecar, member.description, made_from)


def blend_set(plan: SplitPlan, blend: BlendPlan, cache_dir: str | os.PathLike[str]) -> FileSet:
    """A blend's index files in a folder, there or not."""
    lengths = [member.samples_given for member in plan.members]
    made_from = {"preset": plan.preset, "description": blend.hash, "lengths": lengths}
    return FileSet(Path(cache_dir), blend.files, blend.sidecar, blend.description, made_from)


def _npy_pieces(array: NDArray[np.integer]) -> list[memoryview]:
    """The bytes that numpy.save writes, in pieces."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    body = np.ascontiguousarray(array).data.cast("B") if array.size else memoryview(b"")
    return [header.getbuffer(), *(body[begin : begin + _PIECE_BYTES] for begin in range(0, len(body), _PIECE_BYTES))]


def _write(path: Path, pieces: list[memoryview]) -> None:
    with atomic_file(path, sync=False) as file:
        for piece in pieces:
            file.write(piece)


def _fetched(path: Path, access: FileAccess | None) -> Path:
    return path if access is None else access.fetch(path)


def _open(path: Path, shape: tuple[int, ...]) -> NDArray[Any]:
    try:
        array = array_of(map_file(path))
    except MissingError as error:
        raise MissingError("an index file is not there", where=path, remedy="build the nanoset again") from error
    except ValueError as error:
        raise StaleError("not an index file", where=path, found=error, remedy="build the nanoset again") from error
    if array.shape != shape or array.dtype.kind not in "iu" or not array.dtype.isnative:
        raise StaleError(
            "an index file is not the one that was planned",
            where=path,
            found=f"shape {array.shape}, {array.dtype.str}",
            expected=f"shape {shape}, whole numbers",
            remedy="build the nanoset again",
        )
    return array


def _check_idx(member: MemberPlan) -> None:
    found = sha256_file(index_here(member.prefix))
    if found != member.idx_sha256:
        raise StaleError(
            "the dataset is not the one that was planned with",
            where=idx_path(member.prefix),
            found=f"sha256 {found}",
            expected=f"sha256 {member.idx_sha256}",
            remedy="plan again",
        )
