"""Merge the indexed datasets of a folder into one: the command `nanoset merge`.

The output may be in the same folder. So an output of an earlier call is recognised, and left out.
No document is merged twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.execution.progress import SILENT, Progress
from nanoset_core.formats.indexed.builder import MergeInput, merge_inputs
from nanoset_core.formats.indexed.composing import read_pairs, write_merged_idx
from nanoset_core.formats.indexed.identity import first_repeated_dataset
from nanoset_core.formats.indexed.layout import pair_files, read_idx
from nanoset_core.outputs.apart import real_path
from nanoset_core.outputs.deliver import Delivery, Draft
from nanoset_core.outputs.receipts import (
    Receipt,
    noted_path,
    read_record,
    record_name,
    record_of,
)
from nanoset_core.storage.identity import names_of_both
from nanoset_core.storage.location import Location, RemoteFolder, store_of
from nanoset_core.storage.store import Stored
from nanoset_core.storage.working_copies import downloaded

COMMAND = "merge"
"""Name of the command, in the record next to an output."""
_ENDINGS = (".bin", ".idx")
"""Endings of the two files of a pair."""


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
    """Merge all .bin/.idx pairs of a folder, sorted by name, except the output of an earlier call.

    Args:
        folder: Where the pairs are.
        output_prefix: Prefix of the output, which may be in the same folder.
        overwrite: Replace an output that was made from other datasets, or is of unknown origin.
        progress: Shows how far the work has come.

    Raises:
        MissingError: The folder has no pair, or the .bin or .idx of a pair is missing.
        ConfigError: The output is also an input, or may not be replaced; or an input was itself
            merged from other inputs.
        FormatError: A pair is damaged, or token types differ.
        StorageError: The output cannot be written.
    """
    parts = _pairs(folder, output_prefix)
    files: list[Location] = []
    for part in parts:
        files += pair_files(part)
    _check_each_once(parts)

    made_from = record_of(COMMAND, output_prefix, files, {})
    names = [file.name for file in pair_files(output_prefix)]
    delivery = Delivery(
        folder=output_prefix.parent,
        receipt=Receipt(name=record_name(output_prefix.name), made_from=made_from),
        files=tuple(names),
        completing=(names[1],),
        inputs=tuple(files),
        apart_remedy=(
            "if this is an earlier merge, move it out of the folder; else name another output"
        ),
    )
    record = delivery.find(overwrite=overwrite)
    if record is not None:
        facts = record["facts"]
    else:
        with delivery.drafting(overwrite=overwrite) as draft:
            # If all files are in one bucket, their tokens need not be downloaded.
            facts = _merge_within_bucket(
                output_prefix, files, made_from["sources"], draft, progress
            )
            if facts is None:
                facts = _merge_on_disk(output_prefix, files, draft, progress)
            draft.facts = facts
    parts_with_documents = tuple(zip(parts, facts["documents"], strict=True))
    return Merged(output_prefix, parts_with_documents, facts["tokens"], made=record is None)


def pairs_at(place: Location) -> list[Location]:
    """Return the prefixes of the pairs that a path on a command line names.

    The path may be a prefix, one of the two files, a folder with pairs, or the beginning of names
    of pairs: `web` also names web_text_document. If it is none of these, it is returned as the
    prefix of a pair that does not exist.

    Args:
        place: The path, or the address of an object in a bucket.

    Raises:
        MissingError: The path is the root of a disk or bucket, and no pair is in it.
    """
    prefix = place
    if place.suffix in _ENDINGS:
        prefix = place.with_name(place.stem)
    siblings = _stems(prefix.parent)
    if prefix.name in siblings:
        return [prefix]
    pairs_in_folder = [place / stem for stem in _stems(place)]
    if pairs_in_folder:
        return pairs_in_folder
    pairs_with_name = [
        prefix.with_name(stem) for stem in siblings if stem.startswith(f"{prefix.name}_")
    ]
    if pairs_with_name:
        return pairs_with_name
    # The root of a disk or bucket has no name, so it cannot be a prefix.
    if place == place.parent and str(place) != ".":
        raise MissingError(
            "no dataset in this folder",
            where=place,
            remedy="name a prefix of .bin and .idx, or a folder that contains some",
        )
    return [prefix]


def _stems(folder: Location) -> list[str]:
    """Return the names of a folder's .bin and .idx files without endings, sorted.

    A name is included even if one of the two files is missing.
    """
    _, names = store_of(folder).level()
    stems = set()
    for name in names:
        stem, dot, ending = name.rpartition(".")
        if f"{dot}{ending}" in _ENDINGS and not name.startswith("."):
            stems.add(stem)
    return sorted(stems)


def _pairs(folder: Location, output_prefix: Location) -> list[Location]:
    """Return the prefixes of the pairs in a folder, sorted by name.

    Args:
        folder: The folder.
        output_prefix: Prefix of the output. If an earlier call has written it, it is left out.

    Raises:
        MissingError: There are no pairs, or the .bin or .idx of a pair is missing.
    """
    endings_by_name: dict[str, set[str]] = {}
    for path in folder.iterdir():
        if path.suffix in _ENDINGS and not path.name.startswith("."):
            endings_by_name.setdefault(path.stem, set()).add(path.suffix)
    if real_path(folder) == real_path(output_prefix.parent) and _is_merged(output_prefix):
        endings_by_name.pop(output_prefix.name, None)
    if not endings_by_name:
        raise MissingError(
            "no datasets to merge",
            where=folder,
            expected="pairs of .bin and .idx",
            remedy="name the folder that contains them with --input",
        )
    for name, endings in endings_by_name.items():
        if len(endings) == len(_ENDINGS):
            continue
        [ending] = endings
        [missing_ending] = set(_ENDINGS) - endings
        raise MissingError(
            "this dataset is incomplete",
            where=folder / f"{name}{ending}",
            found=f"no {name}{missing_ending} next to it",
            remedy="finish writing it, or move it out of the folder",
        )
    return [folder / name for name in sorted(endings_by_name)]


def _is_merged(prefix: Location) -> bool:
    """Return whether `merge_folder` wrote a pair, or one of its files before it was killed."""
    record = _record(prefix)
    if record.get("command") != COMMAND:
        return False
    # Sizes are compared and times are not, since a copy has other times.
    store = store_of(prefix.parent)
    for name, fact in record.get("files", {}).items():
        stored = store.stat(name)
        if stored is None or stored.size != fact["bytes"]:
            return False
    return True


def _record(prefix: Location) -> Mapping[str, Any]:
    """Return the record next to a pair, or an empty mapping if it has none."""
    return read_record(prefix.with_name(record_name(prefix.name))) or {}


def _check_each_once(parts: Sequence[Location]) -> None:
    """Check that no documents would be merged twice.

    Args:
        parts: Prefixes of the datasets.

    Raises:
        ConfigError: A dataset has two names, or is next to a dataset that was merged from it.
    """
    repeated = first_repeated_dataset(parts)
    if repeated is not None:
        raise ConfigError(
            "documents would be joined twice",
            where=repeated[1],
            found=names_of_both(*repeated),
            expected="each document in one dataset of the folder",
            remedy="remove the link, or move it out of the folder",
        )

    part_by_bin = {real_path(pair_files(part)[0]): part for part in parts}
    for part in parts:
        if not _is_merged(part):
            continue
        for source in _record(part).get("sources", []):
            merged_part = part_by_bin.get(real_path(noted_path(source, part)))
            if merged_part is not None:
                raise ConfigError(
                    "documents would be joined twice",
                    where=part,
                    found=f"an earlier merge of {merged_part} and others, "
                    "which are in the same folder",
                    expected="each document in one dataset of the folder",
                    remedy="move the earlier merge, or its inputs, out of the folder",
                )


def _merge_on_disk(
    output_prefix: Location, files: Sequence[Location], draft: Draft, progress: Progress
) -> dict[str, Any]:
    """Write the merged pair into a draft; files in a bucket are downloaded first.

    Args:
        output_prefix: Prefix of the output.
        files: The .bin and .idx of the first dataset, then those of the second one, and so on.
        draft: The files to write.
        progress: Shows how far the work has come.

    Returns:
        The facts for the record: documents of each dataset, and tokens of all.
    """
    with downloaded(files) as local_files:
        bin_paths = local_files[::2]
        idx_paths = local_files[1::2]
        size_bytes = sum(path.stat().st_size for path in bin_paths)
        work = progress.work("merge", output_prefix.name, size_bytes)
        inputs = [MergeInput(str(path.with_suffix(""))) for path in bin_paths]
        merge_inputs(inputs, draft.folder / output_prefix.name, work.advance)

        indexes = [read_idx(path, validate=False) for path in idx_paths]
        document_counts = [len(index.document_indices) - 1 for index in indexes]
        return {
            "documents": document_counts,
            "tokens": size_bytes // indexes[0].dtype.itemsize,
        }


def _merge_within_bucket(
    output_prefix: Location,
    files: Sequence[Location],
    rows: Sequence[Mapping[str, Any]],
    draft: Draft,
    progress: Progress,
) -> dict[str, Any] | None:
    """Write the merged .idx into a draft, and prepare that the bucket itself joins the .bin files.

    Args:
        output_prefix: Prefix of the output.
        files: The .bin and .idx of the first dataset, then those of the second one, and so on.
        rows: Sizes and ETags of these files, as the record lists them.
        draft: The files to write.
        progress: Shows how far the work has come.

    Returns:
        The facts for the record, as `_merge_on_disk` returns them. None if this is not possible,
        since a file is not in the output's bucket, or a dataset has modes; then nothing is done.
    """
    bin_file, _ = pair_files(output_prefix)
    remote_inputs = [file for file in files if isinstance(file, RemoteFolder)]
    if not isinstance(bin_file, RemoteFolder) or len(remote_inputs) < len(files):
        return None
    store = bin_file.store
    if any(file.store != store for file in remote_inputs):
        return None

    objects = []
    for file, row in zip(remote_inputs, rows, strict=True):
        objects.append(Stored(file.path, row["bytes"], row["etag"], 0))
    pairs_and_dtype = read_pairs(store, list(zip(objects[::2], objects[1::2], strict=True)))
    if pairs_and_dtype is None:
        return None
    pairs, dtype = pairs_and_dtype
    write_merged_idx(draft.folder / f"{output_prefix.name}.idx", store, pairs, dtype)
    size_bytes = sum(pair.bin.size for pair in pairs)
    document_counts = [pair.documents for pair in pairs]
    target = bin_file.path

    def join() -> None:
        """Let the bucket join the .bin."""
        work = progress.work("merge", output_prefix.name, size_bytes)
        store.compose(target, [pair.bin for pair in pairs], joined=work.advance)

    # It is called when the .idx is complete.
    draft.writers[bin_file.name] = join
    return {"documents": document_counts, "tokens": size_bytes // dtype.itemsize}
