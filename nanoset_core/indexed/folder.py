"""Joining the indexed datasets of a folder into one: each once, and never what an earlier call joined of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.execution.progress import Meter, ProgressCallback, silent
from nanoset_core.indexed.builder import MMapIndexedDatasetBuilder, merge_heard
from nanoset_core.indexed.layout import idx_path, pair_files, prefix_of
from nanoset_core.indexed.reading import read_idx
from nanoset_core.outputs.recorded import (
    Draft,
    RecordedOutput,
    check_apart,
    noted_path,
    read_record,
    real_path,
    record_of,
    record_path,
    sizes_hold,
)
from nanoset_core.storage.remote_folder import Location, RemoteFolder
from nanoset_core.storage.s3_requests import CONNECTIONS
from nanoset_core.storage.store import Stored, in_parallel
from nanoset_core.storage.working_copies import brought

COMMAND = "merge"
_APART = "if this is an earlier merge, move it out of the folder; else name another output"


@dataclass(frozen=True, slots=True)
class Merged:
    """A joined dataset."""

    prefix: Location
    """Of its pair."""
    parts: tuple[tuple[Location, int], ...]
    """Prefix and documents of each dataset that is in it, in order."""
    tokens: int
    """In all of them."""
    made: bool
    """False where it was there already."""

    @property
    def documents(self) -> int:
        """In all of them."""
        return sum(documents for _, documents in self.parts)


def merge_folder(
    folder: Location, output_prefix: Location, *, overwrite: bool = False, listener: ProgressCallback = silent
) -> Merged:
    """Join all .bin/.idx pairs of a folder, sorted by name, but for the output of an earlier call, into one.

    Args:
        folder: of the pairs, on this machine or in a bucket.
        output_prefix: of the pair to write; it may lie in the same folder.
        overwrite: whether a pair of other datasets, or of unknown origin, may be replaced.
        listener: hears the progress.

    Raises:
        MissingError: the folder has no pair, or one that lacks its .bin or .idx.
        ConfigError: the output is one of the inputs; or is there, and may not be replaced; or one of the inputs is
            itself a merge of others.
        FormatError: a pair is damaged, or token types differ.
        StorageError: the output cannot be written.
    """
    parts = _pairs(folder, output_prefix)
    files = [path for part in parts for path in pair_files(part)]
    check_apart(pair_files(output_prefix), files, remedy=_APART)
    _check_once(parts)
    output = RecordedOutput(
        record=record_path(output_prefix),
        made_from=record_of(COMMAND, output_prefix, files, {}),
        files=pair_files(output_prefix),
    )
    record = output.find(overwrite=overwrite)
    if record is None:
        with output.making(overwrite=overwrite) as draft:
            if isinstance(output_prefix, RemoteFolder) and (within := _within(output_prefix, files)) is not None:
                _join_within(output_prefix, within, draft, listener)
            else:
                _join_here(output_prefix, files, draft, listener)
        return _merged(output_prefix, parts, draft.facts, made=True)
    return _merged(output_prefix, parts, record["facts"], made=False)


def _pairs(folder: Location, output_prefix: Location) -> list[Location]:
    """Prefixes of the folder's pairs, sorted by name, without one that an earlier call left at `output_prefix`."""
    endings: dict[str, set[str]] = {}
    for path in folder.iterdir():
        if path.suffix in (".bin", ".idx") and not path.name.startswith("."):
            endings.setdefault(path.stem, set()).add(path.suffix)
    if real_path(folder) == real_path(output_prefix.parent) and _is_merged(output_prefix):
        endings.pop(output_prefix.name, None)
    if not endings:
        raise MissingError(
            "no datasets to merge",
            where=folder,
            expected="pairs of .bin and .idx",
            remedy="name the folder that holds them with --input",
        )
    for name, found in endings.items():
        if lacking := {".bin", ".idx"} - found:
            raise MissingError(
                "this dataset is not whole",
                where=folder / f"{name}{found.pop()}",
                found=f"no {name}{lacking.pop()} beside it",
                expected="pairs of .bin and .idx",
                remedy="finish writing it, or move what is there out of the folder",
            )
    return [folder / name for name in sorted(endings)]


def _is_merged(prefix: Location) -> bool:
    """Whether a pair is what `merge_folder` made, or a part of it that a killed call left."""
    record = read_record(record_path(prefix))
    return (
        record is not None
        and record.get("command") == COMMAND
        and ("files" not in record or sizes_hold(record, prefix.parent))
    )


def _check_once(parts: Sequence[Location]) -> None:
    """Make sure that no document comes twice: in a dataset, and in a merge of it."""
    own = {real_path(pair_files(part)[0]): part for part in parts}
    for part in parts:
        if _is_merged(part):
            record = read_record(record_path(part)) or {}
            taken = [own.get(real_path(noted_path(source, part))) for source in record.get("sources", [])]
            twice = next(filter(None, taken), None)
            if twice is not None:
                raise ConfigError(
                    "documents would be joined twice",
                    where=part,
                    found=f"an earlier merge of {twice} and others, which lie in the same folder",
                    expected="each document in one dataset of the folder",
                    remedy="move the earlier merge, or what it was made of, out of the folder",
                )


def _join_here(output_prefix: Location, files: Sequence[Location], draft: Draft, listener: ProgressCallback) -> None:
    """Write the joined pair into a draft."""
    with brought(files) as here:
        parts = [prefix_of(path) for path in here[::2]]
        meter = Meter(listener, "merge", output_prefix.name, sum(path.stat().st_size for path in here[::2]))
        merge_heard(parts, draft.folder / output_prefix.name, meter.advance)
        draft.facts = _facts([idx_path(part) for part in parts], draft.folder / output_prefix.name)


def _within(output_prefix: RemoteFolder, files: Sequence[Location]) -> list[RemoteFolder] | None:
    """The files, where all of them lie in the bucket of the output; None where one does not."""
    found = [file for file in files if isinstance(file, RemoteFolder) and file.place == output_prefix.place]
    return found if len(found) == len(files) else None


def _join_within(
    output_prefix: RemoteFolder, files: Sequence[RemoteFolder], draft: Draft, listener: ProgressCallback
) -> None:
    """Write the joined .idx into a draft, and let the bucket make the .bin of its own objects."""
    store, binary = output_prefix.store, output_prefix.with_name(f"{output_prefix.name}.bin")
    with brought(files[1::2]) as indices:
        bins = in_parallel(_stored, files[::2], CONNECTIONS)
        first = read_idx(indices[0], validate=False)
        prefix = draft.folder / output_prefix.name
        with MMapIndexedDatasetBuilder(prefix, first.dtype, multimodal=first.modes is not None) as builder:
            for index, found in zip(indices, bins, strict=True):
                builder.add_index_alone(index, found.size, store.url(found.name).removesuffix(".bin"))
        draft.facts = _facts(indices, prefix)

    def join() -> Mapping[str, Any]:
        meter = Meter(listener, "merge", output_prefix.name, sum(found.size for found in bins))
        store.compose(binary.path, bins, joined=meter.advance)
        made = _stored(binary)
        return {"bytes": made.size, "etag": made.mark}

    draft.elsewhere[binary.name] = join


def _stored(path: RemoteFolder) -> Stored:
    """What a bucket says of an object."""
    found = path.store.stat(path.path)
    if found is None:
        raise MissingError("no such object", where=path, remedy="run again once nothing writes to the parts any more")
    return found


def _facts(parts: Sequence[Path], merged: Path) -> dict[str, Any]:
    counts = [len(read_idx(part, validate=False).document_indices) - 1 for part in parts]
    found = read_idx(idx_path(merged))
    if len(found.document_indices) - 1 != sum(counts):
        raise FormatError(
            "the joined dataset has not the documents of its parts",
            where=merged,
            found=f"{len(found.document_indices) - 1:,} documents",
            expected=f"{sum(counts):,}",
            remedy="run again once nothing writes to the parts any more",
        )
    return {"documents": counts, "tokens": int(found.sequence_lengths.sum(dtype="int64"))}


def _merged(prefix: Location, parts: Sequence[Location], facts: Mapping[str, Any], *, made: bool) -> Merged:
    return Merged(prefix, tuple(zip(parts, facts["documents"], strict=True)), facts["tokens"], made)
