"""Write the trainers' index files under the trainers' own names, and find and check them again.

A trainer reads any file that has the right name. But names don't contain everything that decides
the bytes: if a corpus grows, the index files of its next version have the same names. So each set
of files has a file of ours next to it, the *sidecar*: JSON with everything that the set was made
from, and the digest of each file. A set whose sidecar is missing or different is built again.

For example, these are the files of one dataset for Megatron-LM; the last one is the sidecar:

    5ce5…-GPTDataset-train-description.txt
    5ce5…-GPTDataset-train-document_index.npy
    5ce5…-GPTDataset-train-sample_index.npy
    5ce5…-GPTDataset-train-shuffle_index.npy
    5ce5…-GPTDataset-train-nanoset.json
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import MissingError, StaleError
from nanoset_core.formats.indexed.dataset import index_here
from nanoset_core.formats.indexed.layout import idx_path, map_file, read_idx
from nanoset_core.outputs.current import setting_differences
from nanoset_core.outputs.deliver import Delivery
from nanoset_core.outputs.receipts import Receipt, StoredReceipt, parse_receipt, read_receipt
from nanoset_core.records.json_records import JsonForm, to_plain
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.indices import (
    BlendIndices,
    MemberIndices,
    build_blend_indices,
    build_member_indices,
)
from nanoset_core.sampling.planned import BlendPlan, MemberPlan, SplitPlan
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import sha256_file
from nanoset_core.storage.location import Location
from nanoset_core.storage.npy_arrays import npy_array

_VERSION = 1
"""Version of the sidecar."""
_SIDECAR_FORM = JsonForm("this is not a sidecar of index files", indent=1, sorts_keys=True)
"""How sidecars are written as JSON."""
_THREADS = min(2, os.cpu_count() or 1)
"""Threads that build the index arrays of a dataset."""
_PIECE_BYTES = 1 << 24
"""Bytes of a file that are written and hashed at once."""
_DESCRIPTION = "description"
"""The part of a set that is text. It is written last, since it completes the set for a trainer."""


def index_sets(plan: SplitPlan, config: NanosetConfig) -> Iterator[FileSet]:
    """Yield all sets of a split's index files: one for each dataset, and one for the blend.

    Index files are the trainer's own files with the order of documents and samples. Those of one
    dataset are built and checked together, as a *set*.

    Args:
        plan: Plan of the split.
        config: Configuration with which it was planned. Without a `path_to_cache`, a blend has no
            files: the trainer keeps its index in memory.

    Yields:
        One set for each dataset, in the order of the plan, and at last one for the blend. The files
        need not exist.
    """
    for member in plan.members:
        yield member_set(member, config, cache_dir_of(member, config))
    if plan.blend is not None and config.path_to_cache is not None:
        yield blend_set(plan, plan.blend, config.path_to_cache)


def member_set(
    member: MemberPlan, config: NanosetConfig, cache_dir: str | os.PathLike[str]
) -> FileSet:
    """Return the set of a dataset's index files, the trainer's order of documents and samples.

    Args:
        member: Plan of the dataset's part of a split.
        config: Configuration with which it was planned.
        cache_dir: The folder.
    """
    return FileSet(
        folder=Path(cache_dir),
        files=member.files,
        sidecar=member.sidecar,
        description=member.description,
        made_from=_origin_of_member(member, config),
        build_arrays=partial(_build_planned_member, member, config),
    )


def _origin_of_member(member: MemberPlan, config: NanosetConfig) -> dict[str, Any]:
    """Return everything that decides the bytes of a dataset's index files.

    It is stored in a file next to them, the sidecar, so that it is known later what the files were
    made from.
    """
    origin: dict[str, Any] = {
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
        "description": member.hash,  # the hash stands for the text of the trainer's description
    }
    is_later_phase = member.order is not None
    if is_later_phase:
        origin["order"] = to_plain(member.order)
        origin["begin"] = member.begin
        # For people who compare the files with those that the trainer builds.
        origin["note"] = (
            "the order of the whole run, which goes on where earlier phases stopped: "
            "the trainer would build another"
        )
    return origin


def blend_set(plan: SplitPlan, blend: BlendPlan, cache_dir: str | os.PathLike[str]) -> FileSet:
    """Return the set of a blend's index files, which say which dataset each sample is from.

    Args:
        plan: Plan of the split.
        blend: Plan of its blend.
        cache_dir: The folder.
    """
    # Everything that decides the bytes of the files. The description has the weights and the size.
    made_from = {
        "preset": plan.preset,
        "description": blend.hash,
        "lengths": [member.samples_given for member in plan.members],
    }
    return FileSet(
        folder=Path(cache_dir),
        files=blend.files,
        sidecar=blend.sidecar,
        description=blend.description,
        made_from=made_from,
        build_arrays=partial(build_blend_indices, plan),
    )


def _build_planned_member(member: MemberPlan, config: NanosetConfig) -> MemberIndices:
    """Build the index arrays of a dataset, after a check that it is the one that was planned with.

    Args:
        member: Plan of the dataset's part of a split.
        config: Configuration with which it was planned.

    Raises:
        StaleError: The .idx is not the one with which it was planned.
    """
    path = index_here(member.prefix)
    idx_sha256 = sha256_file(path)
    if idx_sha256 != member.idx_sha256:
        raise StaleError(
            "the dataset is not the one that was planned with",
            where=idx_path(member.prefix),
            found=f"sha256 {idx_sha256}",
            expected=f"sha256 {member.idx_sha256}",
            remedy="plan again",
        )
    lengths = read_idx(path, validate=False).sequence_lengths
    return build_member_indices(member, config, lengths, threads=_THREADS)


def open_member(
    member: MemberPlan, cache_dir: str | os.PathLike[str], access: FileAccess | None = None
) -> MemberIndices:
    """Map a dataset's index files, the order of its sequences and samples, into memory.

    A sequence is an entry of the dataset, usually a document. A sample is what a trainer reads: a
    fixed number of tokens, which may be of several sequences.

    Args:
        member: Plan of the dataset's part of a split, which says what the files must contain.
        cache_dir: Folder of the files.
        access: Fetches the files if they are in a store; None reads them from this machine.

    Raises:
        MissingError: A file is missing.
        StaleError: A file is not the one that was planned.
    """
    start, stop = member.rows
    n_sequences = stop - start
    shapes = {
        # The numbers of all sequences, once for each epoch, in the order of reading.
        "document_index": (n_sequences * member.epochs,),
        # The sequence and the token at which each sample starts, and at which the last one ends.
        "sample_index": (member.samples_built + 1, 2),
        # The numbers of the samples in shuffled order. They may be repeated, so there may be more
        # than were built.
        "shuffle_index": (member.samples_given,),
    }
    return MemberIndices(**_open_arrays(member.files, shapes, Path(cache_dir), access))


def open_blend(
    plan: SplitPlan, cache_dir: str | os.PathLike[str], access: FileAccess | None = None
) -> BlendIndices:
    """Map a blend's index files, which say what each sample is, into memory.

    Args:
        plan: Plan of the split. One without a blend has no files.
        cache_dir: Folder of the files.
        access: Fetches the files if they are in a store; None reads them from this machine.

    Returns:
        Two arrays of the shape (n_samples,): the dataset of each sample, and the number of the
        sample within its dataset.

    Raises:
        MissingError: A file is missing.
        StaleError: A file is not the one that was planned.
    """
    files = {} if plan.blend is None else plan.blend.files
    shapes = {"dataset_index": (plan.samples,), "dataset_sample_index": (plan.samples,)}
    return BlendIndices(**_open_arrays(files, shapes, Path(cache_dir), access))


def cache_dir_of(member: MemberPlan, config: NanosetConfig) -> Path:
    """Return the folder of a dataset's index files: `path_to_cache`, or the trainer's default.

    Args:
        member: Plan of the dataset's part of a split.
        config: Configuration of the nanoset.

    Returns:
        For Megatron-LM without a `path_to_cache`, a path such as
        `data/web/cache/GPTDataset_indices` for the dataset `data/web`.
    """
    if config.path_to_cache is not None:
        return Path(config.path_to_cache)
    rules = config.rules
    folder = rules.folder.format(
        prefix=member.prefix,
        kind=rules.member_kind,
        folder=os.path.dirname(member.prefix) or ".",
    )
    return Path(folder)


def _has_room(n_bytes: int, folder: str) -> None:
    """Take it for granted that a folder has room for files of this size."""


@dataclass(frozen=True, slots=True)
class FileSet:
    """The index files of one dataset or blend, which are built and checked together."""

    folder: Path
    """Folder that contains them."""
    files: Mapping[str, str]
    """Part → file name."""
    sidecar: str
    """File name of the sidecar."""
    description: str
    """Text of the part `description`."""
    made_from: Mapping[str, Any]
    """Everything that decides the bytes of the files, as JSON."""
    build_arrays: Callable[[], MemberIndices | BlendIndices]
    """Function that builds the arrays of the files."""

    def digests_if_complete(self, *, deep: bool) -> dict[str, str] | None:
        """Return the digests of the files, if all of them exist and are those of this set.

        The digests are in the *sidecar*, a file of ours next to them.

        Args:
            deep: Check the digests of the files, and not only their sizes.

        Returns:
            File name → sha256; None if a file is missing or belongs to another set.
        """
        sidecar = self.delivery(compares_sizes=not deep).find(overwrite=True)
        return None if sidecar is None else self._digests_in(sidecar)

    def delivery(self, folder: Location | None = None, *, compares_sizes: bool = False) -> Delivery:
        """Return an object that writes the files of this set to a folder, or finds them there.

        Next to the files, it writes a *receipt*: a JSON file that says what they were made from.

        Args:
            folder: Folder or bucket that the files go to; by default the folder of this set.
            compares_sizes: Whether existing files are compared by their sizes instead of digests.
        """
        target_folder = self.folder if folder is None else folder
        receipt = self._receipt()
        return Delivery(
            folder=target_folder,
            receipt=receipt,
            files=tuple(self.files.values()),
            # Removed first and written last, since a trainer that finds these reads all files.
            completing_files=self._completing_files(target_folder, receipt),
            is_hashed=True,
            # If another process has written the same files meanwhile, they stay.
            keeps_equal_output=True,
            compares_sizes=compares_sizes,
        )

    def _completing_files(self, folder: Location, receipt: Receipt) -> tuple[str, ...]:
        """Return the files whose existence makes a trainer take the set as complete.

        They are deleted first and written last, so that a trainer never reads old and new files as
        one set.

        Args:
            folder: Folder or bucket that the files go to.
            receipt: What the sidecar, a JSON file next to them, will say about this set.
        """
        # Most trainers take a set as complete if its description exists.
        if _DESCRIPTION in self.files:
            return (self.files[_DESCRIPTION],)

        # Other trainers have no descriptions, and look for the arrays. So all old arrays are
        # deleted first. But if another process is writing this set, its arrays must stay.
        stored = read_receipt(folder / self.sidecar)
        if _is_finished_or_other_set(stored, receipt):
            return tuple(self.files.values())
        return ()

    def _receipt(self) -> Receipt:
        """Return what the sidecar of this set says if its files are up to date."""
        return Receipt(
            name=self.sidecar,
            made_from={"version": _VERSION, "made_from": self.made_from},
            has_etag_or_time=False,
            json_form=_SIDECAR_FORM,
        )

    def file_notes_in(self, sidecar: bytes | None) -> Mapping[str, Mapping[str, Any]] | None:
        """Return the size and digest of each index file, from the file in which they are recorded.

        That file, the *sidecar*, is stored next to the index files. It also says from which data
        and settings these were made.

        Args:
            sidecar: Its bytes; None if it does not exist.

        Returns:
            File name → {"bytes": size, "sha256": digest}. None if the sidecar was written for index
            files that were made from other data or settings, or if the digest of a file is missing.
        """
        stored = parse_receipt(sidecar)
        if stored is None or not stored.is_of_same_output(self._receipt()):
            return None  # missing, damaged, or of other index files
        has_all_digests = self._digests_in(stored.content) is not None
        return stored.files if has_all_digests else None

    def _digests_in(self, sidecar: Mapping[str, Any]) -> dict[str, str] | None:
        """Return file name → sha256 in the content of a sidecar, or None if one is missing."""
        notes = StoredReceipt(sidecar).files or {}
        digests: dict[str, str] = {}
        for name in self.files.values():
            sha256 = notes.get(name, {}).get("sha256")
            if not isinstance(sha256, str):
                return None
            digests[name] = sha256
        return digests

    def describe_mismatch(self, name: str, sidecar: bytes | None) -> str | None:
        """Describe why an existing file does not belong to this set; return None if it does.

        Args:
            name: What to call the file.
            sidecar: Bytes of the sidecar, a JSON file next to it, whose entry "made_from" has the
                data and settings that the file was made from; None if there is none.

        Returns:
            For example: "web-shuffle.npy, made from something else: random_seed: 1 → 2".
        """
        stored = parse_receipt(sidecar)
        made_from = None if stored is None else stored.content.get("made_from")
        if not isinstance(made_from, Mapping):
            return f"{name}, without {self.sidecar}, which would say what it was made from"
        differences = setting_differences(made_from, self.made_from)
        if not differences:
            return None
        return f"{name}, made from something else: {'; '.join(differences)}"

    def write(
        self,
        make_room: Callable[[int, str], object] = _has_room,
        *,
        folder: Location | None = None,
    ) -> dict[str, str]:
        """Write the files, unless they exist with the right digests.

        Each file appears as a whole. The description, which completes the set for a trainer, comes
        last. If another process writes the same set at the same time, its files stay.

        Args:
            make_room: Called with the bytes that the files need, and their folder, before any is
                written.
            folder: Folder or bucket that the files go to; by default the folder of this set.

        Returns:
            File name → sha256.

        Raises:
            StaleError: The .idx is not the one with which the set was planned.
            ConfigError, SampleIndexError: The arrays cannot be built.
        """
        # Keep the files if they exist.
        delivery = self.delivery(folder)
        sidecar = delivery.find(overwrite=True)
        digests = None if sidecar is None else self._digests_in(sidecar)
        if digests is not None:
            return digests

        arrays = self._build_named_arrays()
        make_room(sum(array.nbytes for array in arrays.values()), str(delivery.folder))
        # `sweeps` would list the folder, which may have the files of a thousand datasets.
        with delivery.drafting(overwrite=True, sweeps=False) as draft:
            for name, pieces in self._pieces_of_files(arrays):
                _write_durably(draft.folder / name, pieces)
                draft.sha256_by_name[name] = _sha256_of(pieces)
        return draft.sha256_by_name

    def _build_named_arrays(self) -> dict[str, NDArray[np.integer]]:
        """Build the arrays of the set, and return file name → array."""
        indices = self.build_arrays()
        arrays = {}
        for part, name in self.files.items():
            if part != _DESCRIPTION:
                arrays[name] = getattr(indices, part)  # a part of the set is named like its array
        return arrays

    def _pieces_of_files(
        self, arrays: Mapping[str, NDArray[np.integer]]
    ) -> Iterator[tuple[str, list[memoryview]]]:
        """Yield the name of each file and its bytes in pieces, the description last.

        Args:
            arrays: File name → array.
        """
        for name, array in arrays.items():
            yield name, _npy_pieces(array)
        if _DESCRIPTION in self.files:
            yield self.files[_DESCRIPTION], [memoryview(self.description.encode("utf-8"))]


def _write_durably(path: Path, pieces: list[memoryview]) -> None:
    """Write a new file, and wait until it is on the disk.

    Args:
        path: Path of the file, which must not exist.
        pieces: Its bytes.
    """
    # In some presets, names of index files begin with a folder.
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())


def _is_finished_or_other_set(stored: StoredReceipt | None, receipt: Receipt) -> bool:
    """Return whether the files in a folder are a complete set, or belong to another one.

    Otherwise another process may be writing the set.

    Args:
        stored: The sidecar in the folder, which says what the files belong to; None if there is
            none.
        receipt: The sidecar of the set that is to be written.
    """
    if stored is None:
        return False
    is_finished = stored.files is not None  # the list of files is added at the end
    return is_finished or not stored.is_of_same_output(receipt)


def _sha256_of(pieces: list[memoryview]) -> str:
    """Return the sha256 of a file that consists of these pieces, as hex digits."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _npy_pieces(array: NDArray[np.integer]) -> list[memoryview]:
    """Return the bytes that `numpy.save` writes, without copying those of the array.

    Returns:
        The header, and the bytes of the array in pieces.
    """
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    pieces = [header.getbuffer()]
    if array.size:  # an empty array has no bytes that could be viewed
        array_bytes = np.ascontiguousarray(array).data.cast("B")
        for start in range(0, len(array_bytes), _PIECE_BYTES):
            pieces.append(array_bytes[start : start + _PIECE_BYTES])
    return pieces


def _open_arrays(
    files: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    folder: Path,
    access: FileAccess | None,
) -> dict[str, NDArray[Any]]:
    """Map index files into memory, and check their shapes.

    Args:
        files: Name of each array, such as document_index → file name.
        shapes: Name of each array → shape that was planned.
        folder: Folder of the files.
        access: Fetches the files if they are in a store; None reads them from this machine.

    Returns:
        Name of each array → the array.

    Raises:
        MissingError: A file is missing.
        StaleError: A file is not the one that was planned.
    """
    arrays = {}
    for name, shape in shapes.items():
        path = folder / files[name]
        url = path if access is None else access.url(path)
        arrays[name] = _open_array(path, url, access)
        _check_array(arrays[name], shape, url)
    return arrays


def _check_array(array: NDArray[Any], shape: tuple[int, ...], url: object) -> None:
    """Check that the array of an index file consists of integers, and has the planned shape.

    Args:
        array: The array.
        shape: The planned shape.
        url: Path or address of the file, for the error.

    Raises:
        StaleError: It does not.
    """
    is_integer = array.dtype.kind in "iu" and array.dtype.isnative
    if array.shape != shape or not is_integer:
        raise StaleError(
            "an index file is not the one that was planned",
            where=url,
            found=f"shape {array.shape}, {array.dtype.str}",
            expected=f"shape {shape}, whole numbers",
            remedy="build the nanoset again",
        )


def _open_array(path: Path, url: object, access: FileAccess | None) -> NDArray[Any]:
    """Map one index file into memory.

    Args:
        path: Path of the file.
        url: Path or address of the file, for errors.
        access: Fetches the file if it is in a store; None reads it from this machine.

    Raises:
        MissingError: The file is missing.
        StaleError: It is not an array.
    """
    try:
        local_path = path if access is None else access.fetch(path)
        return npy_array(map_file(local_path))
    except MissingError as error:
        raise MissingError(
            "an index file is missing",
            where=url,
            remedy="build the nanoset again",
        ) from error
    except ValueError as error:
        raise StaleError(
            "not an index file",
            where=url,
            found=error,
            remedy="build the nanoset again",
        ) from error
