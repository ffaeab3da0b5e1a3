"""Merge the indexed datasets of a folder into one: the command `nanoset merge`.

The output may be in the same folder. So an output of an earlier call is recognised, and left out.
No document is merged twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.execution.progress import SILENT, Progress
from nanoset_core.formats.indexed.builder import MergeInput, merge_inputs
from nanoset_core.formats.indexed.composing import StoredPair, read_pairs, write_merged_idx
from nanoset_core.formats.indexed.identity import first_repeated_dataset
from nanoset_core.formats.indexed.layout import pair_files, read_idx
from nanoset_core.formats.indexed.pairs import PAIR_ENDINGS
from nanoset_core.outputs.deliver import Delivery, Draft
from nanoset_core.outputs.receipts import (
    Receipt,
    describe_call,
    hidden_receipt_name,
    read_command_receipt,
    source_location,
)
from nanoset_core.outputs.recorded_tokenization import (
    TOKENIZER,
    common_tokenizer,
    framing_notices,
    pair_receipt_names,
    recorded_tokenizations,
)
from nanoset_core.storage.copies.temporary import downloaded
from nanoset_core.storage.location import Location, store_of
from nanoset_core.storage.places import common_bucket, path_in_place, real_path
from nanoset_core.storage.reading.identity import names_of_both
from nanoset_core.storage.store import Store, Stored

COMMAND = "merge"
"""Name of the command, in the receipt next to an output."""


@dataclass(frozen=True, slots=True)
class Merged:
    """A dataset that was merged from others."""

    prefix: Location
    """Prefix of its files."""
    parts: tuple[tuple[Location, int], ...]
    """(prefix, number of documents) of each dataset that was merged, in order."""
    tokens: int
    """Tokens of all datasets together."""
    made: bool
    """Whether this call wrote it; False if it existed already."""
    notices: tuple[str, ...] = ()
    """Sentences for the user, such as that only some datasets have end-of-document tokens."""

    @property
    def documents(self) -> int:
        """Number of documents of all datasets together."""
        return sum(documents for _, documents in self.parts)


def merge_folder(
    folder: Location,
    output_prefix: Location,
    *,
    overwrite: bool = False,
    progress: Progress = SILENT,
) -> Merged:
    """Merge all datasets of a folder into one, in the order of their names.

    A dataset is a pair of files. For example, tokenized in parts:

        part-0.bin, part-0.idx, part-1.bin, part-1.idx    →    web.bin, web.idx

    If the output exists already, and was made from the same files, nothing is written. An earlier
    output in the same folder is not merged again.

    Args:
        folder: Where the pairs are.
        output_prefix: Path of the output without .bin and .idx, which may be in the same folder.
        overwrite: Replace an output that was made from other datasets, or is of unknown origin.
        progress: Shows how far the work has come.

    Raises:
        MissingError: The folder has no pair, or one file of a pair is missing.
        ConfigError: The output is also an input or may not be replaced, or an input is a merge of
            other inputs.
        FormatError: A pair is damaged, or tokenizers or token types differ.
        StorageError: The output cannot be written.
    """
    parts = _pairs(folder, output_prefix)
    _check_each_once(parts)
    tokenizations = recorded_tokenizations(_receipts_of_parts(folder, parts))
    tokenizer = common_tokenizer(tokenizations)
    merge = _FolderMerge(output_prefix, parts, tokenizer, progress)

    delivery = merge.delivery()
    receipt = delivery.find(overwrite=overwrite)
    if receipt is not None:
        facts = receipt["facts"]
    else:
        facts = merge.deliver(delivery, overwrite=overwrite)
    return Merged(
        output_prefix,
        parts=tuple(zip(parts, facts["documents"], strict=True)),
        tokens=facts["tokens"],
        made=receipt is None,
        notices=tuple(framing_notices(tokenizations)),
    )


def _pairs(folder: Location, output_prefix: Location) -> list[Location]:
    """Return the datasets of a folder that are to be merged, sorted by name.

    For part-1.idx, part-0.bin, web.bin, part-1.bin, part-0.idx and web.idx, these are part-0 and
    part-1, if web is the result of an earlier merge.

    Args:
        folder: The folder.
        output_prefix: Path of the output, without .bin and .idx.

    Raises:
        MissingError: There are no datasets, or the .bin or .idx of one is missing.
    """
    endings_by_name = _endings_by_name(folder)

    # Leave out the output of an earlier call.
    is_output_in_folder = real_path(folder) == real_path(output_prefix.parent)
    if is_output_in_folder and _is_merged(output_prefix):
        endings_by_name.pop(output_prefix.name, None)
    if not endings_by_name:
        raise MissingError(
            "no datasets to merge",
            where=folder,
            expected="pairs of .bin and .idx",
            remedy="name the folder that contains them with --input",
        )
    for name, endings in endings_by_name.items():
        _check_complete(folder / name, endings)
    return [folder / name for name in sorted(endings_by_name)]


def _endings_by_name(folder: Location) -> dict[str, set[str]]:
    """Return the name of each .bin or .idx in a folder → which of these endings exist."""
    endings_by_name: dict[str, set[str]] = {}
    for path in folder.iterdir():
        if path.suffix in PAIR_ENDINGS and not path.name.startswith("."):
            endings_by_name.setdefault(path.stem, set()).add(path.suffix)
    return endings_by_name


def _check_complete(prefix: Location, endings: set[str]) -> None:
    """Check that a dataset has both of its files.

    Args:
        prefix: Path of the dataset without an ending.
        endings: Endings of the files that exist.
    """
    if endings == set(PAIR_ENDINGS):
        return
    present = ".bin" if ".bin" in endings else ".idx"
    missing = ".idx" if present == ".bin" else ".bin"
    raise MissingError(
        "this dataset is incomplete",
        where=prefix.with_name(f"{prefix.name}{present}"),
        found=f"no {prefix.name}{missing} next to it",
        remedy="finish writing it, or move it out of the folder",
    )


def _is_merged(prefix: Location) -> bool:
    """Return whether a dataset was made by merging others.

    A merge leaves a receipt, a small file next to its output. It has the name of the command and
    the sizes of the files that were made: {"command": …, "files": {"web.bin": {"bytes": 800}, …}}.

    Args:
        prefix: Path of the dataset, such as `data/web` for data/web.bin and data/web.idx.
    """
    receipt = _receipt_of(prefix)
    if receipt.get("command") != COMMAND:
        return False
    # If the files have other sizes, somebody has replaced them. A merge that was killed may have
    # left a receipt that lists no files yet: then its output counts as merged.
    store = store_of(prefix.parent)
    for name, entry in receipt.get("files", {}).items():
        stored = store.stat(name)
        if stored is None or stored.size != entry["bytes"]:
            return False
    return True


def _receipt_of(prefix: Location) -> Mapping[str, Any]:
    """Return the receipt next to a pair, or an empty mapping if it has none.

    The receipt of a merged pair lists the files that it was merged from.
    """
    return read_command_receipt(prefix.with_name(hidden_receipt_name(prefix.name))) or {}


def _check_each_once(parts: Sequence[Location]) -> None:
    """Check that no documents would be merged twice.

    There are two ways in which that may happen:

        a link             two names of the same dataset
        an earlier merge   of datasets in the folder, whose result is in the folder, too

    Args:
        parts: Prefixes of the datasets.

    Raises:
        ConfigError: A dataset has two names, or is next to a dataset that was merged from it.
    """
    repeated = first_repeated_dataset(parts)
    if repeated is not None:
        first_name, second_name = repeated
        raise ConfigError(
            "documents would be joined twice",
            where=second_name,
            found=names_of_both(first_name, second_name),
            expected="each document in one dataset of the folder",
            remedy="remove the link, or move it out of the folder",
        )
    _check_no_earlier_merge(parts)


def _check_no_earlier_merge(parts: Sequence[Location]) -> None:
    """Check that no dataset is the result of an earlier merge of others of these datasets.

    Args:
        parts: Prefixes of the datasets.

    Raises:
        ConfigError: A dataset contains another one.
    """
    part_by_bin: dict[str, Location] = {}
    for part in parts:
        bin_file, _ = pair_files(part)
        part_by_bin[real_path(bin_file)] = part
    for part in parts:
        for source_file in _files_merged_into(part):
            contained_part = part_by_bin.get(real_path(source_file))
            if contained_part is not None:
                raise ConfigError(
                    "documents would be joined twice",
                    where=part,
                    found=f"an earlier merge of {contained_part} and others, "
                    "which are in the same folder",
                    expected="each document in one dataset of the folder",
                    remedy="move the earlier merge, or its inputs, out of the folder",
                )


def _files_merged_into(prefix: Location) -> list[Location]:
    """Return the files that a dataset was merged from by an earlier call; none for other datasets.

    Args:
        prefix: Prefix of the dataset, next to which its receipt is.
    """
    if not _is_merged(prefix):
        return []
    return [source_location(source, prefix) for source in _receipt_of(prefix).get("sources", [])]


def _receipts_of_parts(folder: Location, parts: Sequence[Location]) -> list[Location]:
    """Return the receipts of datasets, as far as there are any.

    Args:
        folder: The folder of the datasets. It is listed, which takes fewer requests to a bucket
            than to look for each receipt.
        parts: Prefixes of the datasets. They were made by `nanoset tokenize`, by an earlier merge,
            or by another program, which writes no receipt.
    """
    _, names = store_of(folder).level()
    names_in_folder = set(names)
    receipts = []
    for part in parts:
        for name in pair_receipt_names(part.name):
            if name in names_in_folder:
                receipts.append(folder / name)
    return receipts


@dataclass(frozen=True, slots=True)
class _FolderMerge:
    """The datasets that one call merges, and where the merged one goes."""

    output_prefix: Location
    """Prefix of the output."""
    parts: Sequence[Location]
    """Prefixes of the datasets, in order."""
    tokenizer: str | None
    """Fingerprint of the tokenizer of all datasets, if their receipts name it."""
    progress: Progress
    """Shows how many bytes of tokens have been merged."""

    @property
    def source_files(self) -> list[Location]:
        """The .bin and .idx of the first dataset, then those of the second one, and so on."""
        files: list[Location] = []
        for part in self.parts:
            files += pair_files(part)
        return files

    def delivery(self) -> Delivery:
        """Describe the output of the merge: its files, and what they are made from.

        A merge writes `web.bin` and `web.idx`, and a receipt next to them. This is a small file
        that says from which files, with which sizes, they were made (`made_from`). If the same
        command is started again, it finds by the receipt that nothing has to be done.

        The files are put in place in a certain order. Other programs find a dataset by its .idx,
        and must not find one that is half written. So the .idx is a completing file: it is removed
        first, and comes last.
        """
        bin_name, idx_name = [file.name for file in pair_files(self.output_prefix)]
        made_from = describe_call(COMMAND, self.output_prefix, self.source_files, options={})
        return Delivery(
            folder=self.output_prefix.parent,
            receipt=Receipt(name=hidden_receipt_name(self.output_prefix.name), made_from=made_from),
            files=(bin_name, idx_name),
            completing_files=(idx_name,),
            inputs=tuple(self.source_files),
            replaced_input_remedy=(
                "if this is an earlier merge, move it out of the folder; else name another output"
            ),
        )

    def deliver(self, delivery: Delivery, *, overwrite: bool) -> dict[str, Any]:
        """Write the merged dataset to a draft folder, and move its files to their place.

        So nobody sees an incomplete dataset. If an error occurs, the draft is discarded.

        Args:
            delivery: Where the files go, and the receipt of what they were made from.
            overwrite: Replace an output that was made from other datasets.

        Returns:
            Facts about the output: documents of each dataset, and tokens of all.
        """
        sources = delivery.receipt.made_from["sources"]  # the merged datasets, for the receipt
        with delivery.drafting(overwrite=overwrite) as draft:
            draft.facts = self.write(draft, sources)
            if self.tokenizer is not None:  # for a later call that merges the output with others
                draft.more[TOKENIZER] = self.tokenizer
            # Here, at the end of the block, the files are moved, and a receipt with the facts is
            # written next to them.
        return draft.facts

    def write(self, draft: Draft, sources: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Write the merged dataset, on this machine or within a bucket.

        To merge datasets means to put their files of tokens one after another. There are two ways:

            within a bucket    the bucket joins the files by itself, so that no tokens are
                               downloaded; all files must be in this bucket
            on this machine    files in buckets are downloaded first

        Args:
            draft: The temporary folder that files are written to.
            sources: Size and ETag of each of `source_files`, as the receipt of the output lists
                them.

        Returns:
            The facts for the receipt: documents of each dataset, and tokens of all.
        """
        bucket = common_bucket([self.output_prefix, *self.source_files])
        if bucket is None:  # a file is on this machine, or in another bucket
            return self._merge_on_disk(draft)
        pairs_and_dtype = read_pairs(bucket, self._objects_in_bucket(sources))
        if pairs_and_dtype is None:  # texts with images are only merged on this machine
            return self._merge_on_disk(draft)
        pairs, dtype = pairs_and_dtype
        return self._join_in_bucket(draft, bucket, pairs, dtype)

    def _objects_in_bucket(
        self, sources: Sequence[Mapping[str, Any]]
    ) -> list[tuple[Stored, Stored]]:
        """Return the files of all datasets as objects of the bucket that contains them.

        Args:
            sources: Size and ETag (a bucket's name for the content) of each file, in the order of
                `source_files`.

        Returns:
            The (.bin, .idx) of each dataset: for one in s3://data/web, objects with the names
            `web/tokens.bin` and `web/tokens.idx`.
        """
        bin_objects: list[Stored] = []
        idx_objects: list[Stored] = []
        for file, source in zip(self.source_files, sources, strict=True):
            # The time of writing is not needed here, so it is set to 0.
            stored = Stored(path_in_place(file), source["bytes"], source["etag"], written_ns=0)
            if file.suffix == ".bin":
                bin_objects.append(stored)
            else:
                idx_objects.append(stored)
        return list(zip(bin_objects, idx_objects, strict=True))

    def _join_in_bucket(
        self, draft: Draft, bucket: Store, pairs: Sequence[StoredPair], dtype: np.dtype
    ) -> dict[str, Any]:
        """Merge datasets that are in a bucket, without a download of their tokens.

        A dataset has a small index (.idx) and a large file of tokens (.bin). The merged index is
        written here. The bucket is asked to join the files of tokens by itself.

        Args:
            draft: A folder for the new files, which are delivered to the bucket from there.
            bucket: The bucket that contains the datasets, and will contain the output.
            pairs: The datasets, in order.
            dtype: Type of their tokens.

        Returns:
            The facts for the receipt of the output.
        """
        bin_file, idx_file = pair_files(self.output_prefix)
        write_merged_idx(draft.folder / idx_file.name, bucket, pairs, dtype)
        # The .bin is not in the folder. When the output is delivered, this function is called.
        draft.writers[bin_file.name] = partial(self._join_bins, bucket, pairs)
        return {
            "documents": [pair.documents for pair in pairs],
            "tokens": _bytes_of_tokens(pairs) // dtype.itemsize,
        }

    def _join_bins(self, bucket: Store, pairs: Sequence[StoredPair]) -> None:
        """Let a bucket join the .bin files of datasets to that of the output.

        Args:
            bucket: The bucket.
            pairs: The datasets, in order.
        """
        bin_file, _ = pair_files(self.output_prefix)
        work = self.progress.work("merge", self.output_prefix.name, _bytes_of_tokens(pairs))
        objects = [pair.bin for pair in pairs]
        bucket.compose(path_in_place(bin_file), objects, joined=work.advance)

    def _merge_on_disk(self, draft: Draft) -> dict[str, Any]:
        """Merge datasets on this machine; files in a bucket are downloaded first.

        Each dataset has two files, a .bin with its tokens and an .idx with its index. The merged
        pair is written into a draft folder, and is moved to its place by the caller.

        Args:
            draft: Folder of the files before they are delivered.

        Returns:
            The facts for the receipt of the output: documents of each dataset, and tokens of all.
        """
        name = self.output_prefix.name
        with downloaded(self.source_files) as local_files:
            bin_paths = local_files[::2]  # the .bin and the .idx of each pair alternate
            idx_paths = local_files[1::2]
            size_bytes = sum(path.stat().st_size for path in bin_paths)
            work = self.progress.work("merge", name, size_bytes)
            inputs = [MergeInput(str(path.with_suffix(""))) for path in bin_paths]
            merge_inputs(inputs, draft.folder / name, work.advance)
            return _facts_of_merge(idx_paths, size_bytes)


def _bytes_of_tokens(pairs: Sequence[StoredPair]) -> int:
    """Return the size of the .bin files of datasets together."""
    return sum(pair.bin.size for pair in pairs)


def _facts_of_merge(idx_paths: Sequence[Path], size_bytes: int) -> dict[str, Any]:
    """Return what the receipt of a merged dataset records: `{"documents": [100, 50], "tokens": …}`.

    Args:
        idx_paths: The .idx of each dataset that was merged.
        size_bytes: Size of their tokens together.
    """
    indexes = [read_idx(path, validate=False) for path in idx_paths]
    return {
        "documents": [len(index.document_indices) - 1 for index in indexes],
        "tokens": size_bytes // indexes[0].dtype.itemsize,
    }
