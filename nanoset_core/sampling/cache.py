"""Write the trainers' index files under the trainers' own names, and find and check them again.

A trainer reads any file that has the right name. But names don't contain everything that decides
the bytes: if a corpus grows, the index files of its next version have the same names. So each set
of files has a file of ours next to it, its *receipt*: JSON with everything that the set was made
from, and the digest of each file. A set whose receipt is missing or different is built again.

For example, these are the files of one dataset for Megatron-LM; the last one is the receipt:

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
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import MissingError, StaleError
from nanoset_core.formats.indexed.dataset import index_here
from nanoset_core.formats.indexed.layout import idx_path, map_file, read_idx
from nanoset_core.outputs.differences import MADE_IN_OTHER_FORM, setting_differences
from nanoset_core.outputs.receipts import Receipt, StoredReceipt, parse_receipt, read_receipt
from nanoset_core.records.json_records import JsonForm, to_plain
from nanoset_core.sampling.config import NanosetConfig, Order
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
from nanoset_core.storage.paths import with_home
from nanoset_core.storage.reading.npy_arrays import npy_array

if TYPE_CHECKING:
    from nanoset_core.outputs.deliver import Delivery

_VERSION = 1
"""Version of the receipt."""
_RECEIPT_FORM = JsonForm("this is not a receipt of index files", indent=1, sorts_keys=True)
"""How receipts are written as JSON."""
_THREADS = min(2, os.cpu_count() or 1)
"""Threads that build the index arrays of a dataset."""
_PIECE_BYTES = 1 << 24
"""Bytes of a file that are written and hashed at once."""
_DESCRIPTION = "description"
"""The part of a set that is text. It is written last, since it completes the set for a trainer."""


def index_sets(plan: SplitPlan, config: NanosetConfig) -> Iterator[FileSet]:
    """Yield the sets of index files that a trainer needs for one split of the data, such as train.

    Index files say in which order the trainer reads samples. There is a set for each dataset of
    the split. If there are several datasets, another set says which dataset each sample is from.

    Args:
        plan: What is planned for the split.
        config: Configuration with which it was planned. Without a `path_to_cache`, the trainer
            keeps in memory which dataset each sample is from, and there is no such set.

    Yields:
        An object for each set that writes or checks its files. They need not exist.
    """
    for member in plan.members:  # the datasets
        folder = cache_dir_of(member, config)
        yield member_set(member, config, folder)
    if plan.blend is not None and config.path_to_cache is not None:
        yield blend_set(plan, plan.blend, config.path_to_cache)


def member_set(
    member: MemberPlan, config: NanosetConfig, cache_dir: str | os.PathLike[str]
) -> FileSet:
    """Return an object that writes and checks the index files of one dataset.

    They are files of the trainer with the order in which it reads the dataset, such as
    `shuffle_index.npy`.

    Args:
        member: What is planned for the dataset in one split, such as the number of samples.
        config: Configuration with which it was planned.
        cache_dir: Folder of the files.
    """
    return FileSet(
        folder=Path(cache_dir),
        files=member.files,
        receipt_name=member.receipt_name,  # a JSON file that says what they were made from
        description=member.description,  # a text that the trainer looks for
        made_from=_origin_of_member(member, config),
        # Called without arguments if files are missing.
        build_arrays=partial(_build_planned_member, member, config),
    )


def _origin_of_member(member: MemberPlan, config: NanosetConfig) -> dict[str, Any]:
    """Return everything that decides the content of a dataset's index files.

    It is stored next to the files. If it is different for a later call, for instance because
    `random_seed` has changed from 1 to 2, the files are outdated, although their names may be the
    same.

    Args:
        member: What is planned for the dataset in one split, such as train.
        config: Configuration with which it was planned.

    Returns:
        Such as {"preset": "megatron", "rows": [0, 900], "random_seed": 1, ...}.
    """
    origin: dict[str, Any] = {
        "preset": config.preset,  # the trainer
        "idx_sha256": member.idx_sha256,  # of the dataset's `.idx` file
        "rows": list(member.rows),  # the documents that the split has
        "tokens": member.tokens,
        "samples_requested": member.samples_requested,
        "sequence_length": config.sequence_length,
        "random_seed": config.random_seed,
        "add_extra_token": config.add_extra_token,
        "drop_last_partial": config.drops_last_partial(member.split),
        "shuffle_documents": config.shuffle_documents,
        "description": member.hash,  # of the text with which the trainer describes the files
    }
    if member.order is not None:
        origin.update(_origin_of_continued_order(member.order, member.begin))
    return origin


def _origin_of_continued_order(order: Order, first_sample: int) -> dict[str, Any]:
    """Return what else decides the content of index files if an earlier order is continued.

    A training run has changed the weights of its datasets, and continues the order in which it has
    read one of them.

    Args:
        order: The order of the whole run.
        first_sample: The first sample that the run reads now.

    Returns:
        Keys and values, one of which is a note for people who compare the files with those that the
        trainer builds.
    """
    note = (
        "the order of the whole run, which goes on where earlier phases stopped: "
        "the trainer would build another"
    )
    return {"order": to_plain(order), "begin": first_sample, "note": note}


def blend_set(plan: SplitPlan, blend: BlendPlan, cache_dir: str | os.PathLike[str]) -> FileSet:
    """Return an object that writes and checks the index files of a mixture of datasets.

    They say, for each training sample, which dataset it is from, and which sample of that dataset
    it is:

        dataset_index           0    0    1    0
        dataset_sample_index    0    1    0    2

    Args:
        plan: What is planned for the split, such as train.
        blend: What is planned for its mixture: the weights, the number of samples, and the names of
            the files.
        cache_dir: Folder of the files.
    """
    return FileSet(
        folder=Path(cache_dir),
        files=blend.files,  # {"dataset_index": "9f3c...-dataset_index.npy", ...}
        receipt_name=blend.receipt_name,  # a JSON file that says what they were made from
        description=blend.description,  # a text with the weights, which trainers look for
        made_from=_origin_of_blend(plan, blend),
        # Called without arguments if files are missing.
        build_arrays=partial(build_blend_indices, plan),
    )


def _origin_of_blend(plan: SplitPlan, blend: BlendPlan) -> dict[str, Any]:
    """Return everything that decides the content of the index files of a mixture of datasets.

    It is stored next to the files. If it is different for a later call, the files are outdated.

    Args:
        plan: What is planned for the split, such as train.
        blend: What is planned for its mixture.
    """
    return {
        "preset": plan.preset,  # the trainer, such as "megatron"
        "description": blend.hash,  # md5 of a text with the weights and the number of samples
        "lengths": [member.samples_given for member in plan.members],  # samples of each dataset
    }


def _build_planned_member(member: MemberPlan, config: NanosetConfig) -> MemberIndices:
    """Build the arrays that say in which order a trainer reads the samples of a dataset.

    The plan of these arrays was computed from the dataset's .idx file, which has the length of each
    document. If somebody has replaced the dataset since, the plan is wrong. So this is checked
    first.

    Args:
        member: What is planned for the dataset in one split, with the digest that the .idx file
            had.
        config: Configuration with which it was planned.

    Raises:
        StaleError: The .idx file is another one now.
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
    """Open the index files that say in which order a trainer reads a dataset.

    They are three arrays, which are mapped into memory without reading them. It is checked that
    they have the planned shapes. For example, a dataset of 2 documents is read twice, and has 3
    samples:

        document_index    (4,)      the documents in the order of reading, those of both epochs
        sample_index      (4, 2)    where each sample starts, and the last one ends: a position in
                                    the first array, and a token of this document
        shuffle_index     (3,)      the samples in the order of reading

    Args:
        member: What is planned for the dataset.
        cache_dir: Folder of the files.
        access: Fetches the files if they are in a store; None reads them from this machine.

    Raises:
        MissingError: A file is missing.
        StaleError: A file is not the one that was planned.
    """
    first_document, stop = member.rows
    n_documents = stop - first_document
    shapes = {
        "document_index": (n_documents * member.epochs,),
        "sample_index": (member.samples_built + 1, 2),
        "shuffle_index": (member.samples_given,),  # some trainers repeat the built samples in it
    }
    return MemberIndices(**_open_arrays(member.files, shapes, Path(cache_dir), access))


def open_blend(
    plan: SplitPlan, cache_dir: str | os.PathLike[str], access: FileAccess | None = None
) -> BlendIndices:
    """Open the index files that say which dataset each training sample is taken from.

    Args:
        plan: What is planned for a split, such as train, of several datasets.
        cache_dir: Folder of the files.
        access: Fetches the files if they are in a store; None reads them from this machine.

    Returns:
        Two arrays of the shape (n_samples,), mapped into memory without reading them: the dataset
        of each sample, and which sample of that dataset it is, such as 0, 0, 1 and 0, 1, 0.

    Raises:
        MissingError: A file is missing.
        StaleError: A file is not the one that was planned.
    """
    files = {} if plan.blend is None else plan.blend.files
    planned_shape = (plan.samples,)
    shapes = {"dataset_index": planned_shape, "dataset_sample_index": planned_shape}
    arrays = _open_arrays(files, shapes, Path(cache_dir), access)
    return BlendIndices(arrays["dataset_index"], arrays["dataset_sample_index"])


def cache_dir_of(member: MemberPlan, config: NanosetConfig) -> Path:
    """Return the folder of a dataset's index files, which say in which order a trainer reads it.

    It is the setting `path_to_cache`. Without it, each trainer has its own default, such as
    data/web/cache/GPTDataset_indices for the dataset data/web.

    Args:
        member: What is planned for the dataset.
        config: The setting, and the rules of the trainer.
    """
    if config.path_to_cache is not None:
        return Path(config.path_to_cache)
    folder = config.rules.default_folder(member.prefix)
    return with_home(folder, where=member.prefix)  # the path may begin with `~`


def _has_room(n_bytes: int, folder: str) -> None:
    """Take it for granted that a folder has room for files of this size."""


@dataclass(frozen=True, slots=True)
class FileSet:
    """The index files of one dataset or blend, which are built and checked together."""

    folder: Path
    """Folder that contains them."""
    files: Mapping[str, str]
    """Part → file name."""
    receipt_name: str
    """File name of the receipt."""
    description: str
    """Text of the part `description`."""
    made_from: Mapping[str, Any]
    """Everything that decides the bytes of the files, as JSON."""
    build_arrays: Callable[[], MemberIndices | BlendIndices]
    """Function that builds the arrays of the files."""

    def is_complete(self) -> bool:
        """Return whether all of these index files exist and are up to date, without writing any.

        A JSON file next to them says what they were made from, and has their sizes and digests. To
        save time, only the sizes are compared with those of the files.
        """
        delivery = self.delivery(compares_sizes=True)
        return self._recorded_digests(delivery) is not None

    def _recorded_digests(self, delivery: Delivery) -> dict[str, str] | None:
        """Return the digests of the index files, or None if the files have to be written.

        They are read from the *receipt*, a JSON file next to the index files that says what these
        were made from. They have to be written if one of them is missing or was changed, if they
        were made from other data or settings, or if the receipt does not list all of them.

        Args:
            delivery: Compares the files in a folder with the receipt.

        Returns:
            File name → sha256: {"web-shuffle_index.npy": "9f86d0..."}; or None.
        """
        # Files of other data or settings count as missing: they may be replaced (`overwrite`). This
        # call only reads.
        receipt_content = delivery.find(overwrite=True)
        if receipt_content is None:
            return None
        entries = self._entries_of_all_files(StoredReceipt(receipt_content))
        if entries is None:
            return None
        return {name: entries[name]["sha256"] for name in self.files.values()}

    def delivery(self, folder: Location | None = None, *, compares_sizes: bool = False) -> Delivery:
        """Return an object that writes these index files to a folder, or finds them there.

        With the files it writes a *receipt*, a JSON file that says what they were made from, and
        which digests they have. So a later call finds out that nothing has to be done.

        Args:
            folder: A folder, or a folder of a bucket; None for the folder that this object names.
            compares_sizes: Whether existing files are recognised by their sizes, which is fast.
                False compares their digests.
        """
        # Imported here, since reading samples needs nothing of it.
        from nanoset_core.outputs.deliver import Delivery

        target_folder = self.folder if folder is None else folder
        receipt = self._receipt()
        return Delivery(
            folder=target_folder,
            receipt=receipt,
            files=tuple(self.files.values()),
            completing_files=self._completing_files(target_folder, receipt),
            is_hashed=True,  # the receipt has the digests of the files
            keeps_equal_output=True,  # another process may have written the same files meanwhile
            compares_sizes=compares_sizes,
        )

    def _completing_files(self, folder: Location, receipt: Receipt) -> tuple[str, ...]:
        """Return the files by which a trainer recognises that all index files exist.

        A trainer may start while index files are replaced. It must not read some old and some new
        ones. So the caller deletes the files that the trainer looks for before all others, and
        writes them last:

            a trainer looks for                               result
            a description, which is a text                    the description
            all index files, as it writes no description      all of them

        In the second case, another process may be writing the same files right now. These must not
        be deleted, so the result is empty.

        Args:
            folder: A folder, or a folder of a bucket, that the files go to.
            receipt: What the files will be made from.
        """
        description_name = self.files.get(_DESCRIPTION)
        if description_name is not None:
            return (description_name,)

        stored_receipt = read_receipt(folder / self.receipt_name)
        if _may_be_being_written(stored_receipt, receipt):
            return ()
        return tuple(self.files.values())

    def _receipt(self) -> Receipt:
        """Return the content of the receipt, the JSON file next to the index files.

        It says what the files were made from. If a stored receipt says something else, they are
        outdated.
        """
        return Receipt(
            name=self.receipt_name,
            made_from={"version": _VERSION, "made_from": self.made_from},
            has_etag_or_time=False,
            json_form=_RECEIPT_FORM,
        )

    def file_entries_in(self, receipt: bytes | None) -> Mapping[str, Mapping[str, Any]] | None:
        """Return the recorded size and digest of each index file, if the files are up to date.

        They are recorded in the *receipt*, a JSON file next to the index files, together with the
        data and the settings that these were made from:

            {"made_from": {"random_seed": 1, ...},
             "files": {"web-shuffle_index.npy": {"bytes": 4128, "sha256": "9f86d0..."}}}

        Args:
            receipt: Its bytes; None if it does not exist.

        Returns:
            The files, as in the example. None if the index files have to be written again: the
            receipt is missing or damaged, does not list all of them yet, or they were made from
            other data or settings than those of this object.
        """
        stored = parse_receipt(receipt)
        if stored is None or not stored.is_of_same_output(self._receipt()):
            return None
        return self._entries_of_all_files(stored)

    def _entries_of_all_files(
        self, receipt: StoredReceipt
    ) -> Mapping[str, Mapping[str, Any]] | None:
        """Return the size and the digest of each index file, which are recorded next to them.

        Args:
            receipt: What the JSON file with these entries contains.

        Returns:
            File name → entry: {"web-shuffle_index.npy": {"bytes": 4128, "sha256": "9f86d0..."}}.
            None if a file is not recorded, for example since it was not written yet.
        """
        entries = receipt.files
        if entries is None:
            return None
        for name in self.files.values():
            if not isinstance(entries.get(name, {}).get("sha256"), str):
                return None
        return entries

    def describe_mismatch(self, name: str, receipt: bytes | None) -> str | None:
        """Describe in words why existing index files are not the ones that are needed now.

        What they were made from is recorded next to them, in a JSON file (the *receipt*). It is
        compared with what the needed files are made from. The result is one of these:

            "index files, made from something else: random_seed: 1 → 2"
            "index files, without web-nanoset.json, which would say what it was made from"
            None     (the same data and settings: they are the ones that are needed)

        Args:
            name: What to call the files in the description: "index files".
            receipt: Bytes of the JSON file; None if it does not exist.
        """
        stored_receipt = parse_receipt(receipt)
        made_from = None
        if stored_receipt is not None:
            made_from = stored_receipt.content.get("made_from")
        if not isinstance(made_from, Mapping):
            return f"{name}, without {self.receipt_name}, which would say what it was made from"
        if made_from == self.made_from:
            return None
        differences = setting_differences(made_from, self.made_from)
        if not differences:
            # Such as a setting that is null here, and was not recorded by an older version.
            return f"{name}, {MADE_IN_OTHER_FORM}"
        return f"{name}, made from something else: {'; '.join(differences)}"

    def write(
        self,
        make_room: Callable[[int, str], object] = _has_room,
        *,
        folder: Location | None = None,
    ) -> dict[str, str]:
        """Write the index files, unless they exist already and have the right content.

        A trainer may start at any time, and several processes may write the same files. So each
        file appears only when it is complete. The one that trainers look for, the description,
        comes last.

        Args:
            make_room: Called before anything is written, with the number of bytes that are needed
                and the folder. It may delete other files, or raise an error.
            folder: A folder, or a folder of a bucket; None for the folder that this object names.

        Returns:
            File name → sha256: {"web-shuffle_index.npy": "9f86d0..."}.

        Raises:
            StaleError: The dataset was replaced after the files had been planned.
            ConfigError, SampleIndexError: The content cannot be computed.
        """
        delivery = self.delivery(folder)
        digests_of_existing_files = self._recorded_digests(delivery)
        if digests_of_existing_files is not None:
            return digests_of_existing_files

        arrays = self._build_named_arrays()
        make_room(sum(array.nbytes for array in arrays.values()), str(delivery.folder))
        return self._deliver_files(arrays, delivery)

    def _deliver_files(
        self, arrays: Mapping[str, NDArray[np.integer]], delivery: Delivery
    ) -> dict[str, str]:
        """Write the index files, and put them in their places.

        Args:
            arrays: File name → array.
            delivery: The places of the files, and their receipt.

        Returns:
            File name → sha256.
        """
        # Do not sweep, that is, delete what killed processes have left: this would list the folder,
        # which may have the files of a thousand datasets.
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
        """Yield the name of each index file, and its bytes in pieces of 16 MB.

        Args:
            arrays: File name → array: {"web-shuffle_index.npy": array([2, 0, 1])}.
        """
        for name, array in arrays.items():
            yield name, _npy_pieces(array)
        # For most trainers there is also a text. It comes last: a trainer that finds it takes all
        # files for complete.
        if _DESCRIPTION in self.files:
            name = self.files[_DESCRIPTION]
            yield name, [memoryview(self.description.encode("utf-8"))]


def _write_durably(path: Path, pieces: list[memoryview]) -> None:
    """Write a new file, and wait until it is on the disk, so that it survives a power failure.

    Args:
        path: Path of the file, which must not exist. Its folder is created if necessary.
        pieces: Its bytes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.writelines(pieces)
        file.flush()
        os.fsync(file.fileno())


def _may_be_being_written(stored: StoredReceipt | None, receipt: Receipt) -> bool:
    """Return whether another process may be writing the same index files right now.

    A process first writes a *receipt*, a JSON file that says what the files will be made from. When
    all files are written, it adds the list of files.

    Args:
        stored: The receipt in the folder; None if there is none.
        receipt: The receipt of the files that are to be written now.
    """
    if stored is None:
        return True  # it may be about to be written
    is_finished = stored.files is not None
    is_of_same_files = stored.is_of_same_output(receipt)
    return is_of_same_files and not is_finished


def _sha256_of(pieces: list[memoryview]) -> str:
    """Return the sha256 of a file that consists of these pieces, as hex digits."""
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _npy_pieces(array: NDArray[np.integer]) -> list[memoryview]:
    """Return the bytes of a .npy file, which is numpy's format for arrays, without copying them.

    They are the same as those that `numpy.save` writes. But the caller also needs the digest of the
    file, and can compute it from these bytes without reading the file again.

    Returns:
        The header of the format, and then views of the array's bytes, 16 MB each.
    """
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    pieces = [header.getbuffer()]
    if array.size:  # numpy cannot cast a view of an empty array
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
    """Open the index files of a dataset, and check that they have the planned shapes.

    Index files are arrays that say in which order a trainer reads the samples. They are mapped into
    memory, so they may be larger than it. For example:

        files     {"shuffle_index": "web-shuffle_index.npy"}
        shapes    {"shuffle_index": (1000,)}
        result    {"shuffle_index": array([412, 7, ...])}

    Args:
        files: Name of each array → file name.
        shapes: Name of each array → planned shape.
        folder: Folder of the files.
        access: Fetches the files if they are in a store; None reads them from this machine.

    Raises:
        MissingError: A file is missing.
        StaleError: A file has another shape, or is not an array.
    """
    arrays = {}
    for name, shape in shapes.items():
        path = folder / files[name]
        url: Path | str = path  # for messages
        if access is not None:
            url = access.url(path)
        arrays[name] = _open_array(path, url, access)
        _check_array(arrays[name], shape, url)
    return arrays


def _check_array(array: NDArray[Any], shape: tuple[int, ...], url: object) -> None:
    """Check that an index file is what was planned: an array of integers of a certain shape.

    Index files say in which order a trainer reads samples. A file of another shape, such as (900,)
    in place of (1000,), was made for another version of the data.

    Args:
        array: The array in the file.
        shape: The planned shape.
        url: Path or address of the file, for the message.

    Raises:
        StaleError: The shape is another one, or the array has no integers of this machine's byte
            order.
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
    """Open an index file, which says in which order a trainer reads samples.

    It is an array, which is mapped into memory and may be larger than it.

    Args:
        path: Path of the file, such as `cache/web-shuffle_index.npy`.
        url: Path or address of the file, for messages.
        access: Fetches the file to this machine if it is in a store; None if it is on this machine.

    Raises:
        MissingError: The file is missing.
        StaleError: It is not a .npy file.
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
