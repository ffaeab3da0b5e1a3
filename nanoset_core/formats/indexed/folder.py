"""Join the indexed datasets of a folder into one: each once, and never the output of an earlier call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.execution.progress import Meter, ProgressCallback, silent
from nanoset_core.formats.indexed.builder import merge_heard
from nanoset_core.formats.indexed.composing import read_pairs, write_merged_idx
from nanoset_core.formats.indexed.identity import first_repeated_dataset
from nanoset_core.formats.indexed.layout import pair_files, read_idx
from nanoset_core.outputs.recorded import (
    Draft,
    OutputPlace,
    RecordedOutput,
    check_apart,
    noted_path,
    read_record,
    real_path,
    record_of,
    record_path,
)
from nanoset_core.storage.identity import names_of_both
from nanoset_core.storage.location import Location, RemoteFolder, store_of
from nanoset_core.storage.store import Stored
from nanoset_core.storage.working_copies import downloaded

COMMAND = "merge"
_APART = "if this is an earlier merge, move it out of the folder; else name another output"


@dataclass(frozen=True, slots=True)
class Merged:
    """A joined dataset."""

    prefix: Location
    parts: tuple[tuple[Location, int], ...]
    """Prefix and documents of each dataset that is in it, in order."""
    tokens: int
    """Tokens in all of them."""
    made: bool
    """False where it was there already."""

    @property
    def documents(self) -> int:
        """Documents in all of them."""
        return sum(documents for _, documents in self.parts)


def merge_folder(
    folder: Location, output_prefix: Location, *, overwrite: bool = False, listener: ProgressCallback = silent
) -> Merged:
    """Join all .bin/.idx pairs of a folder, sorted by name, but for the output of an earlier call, into one.

    The output may lie in the same folder; `overwrite` replaces a pair of other datasets, or of unknown origin.

    Raises:
        MissingError: the folder has no pair, or one that lacks its .bin or .idx.
        ConfigError: the output is an input, or may not be replaced; or an input is itself a merge of others.
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
            if not _join_within(output_prefix, files, output.made_from["sources"], draft, listener):
                _join_here(output_prefix, files, draft, listener)
    facts = draft.facts if record is None else record["facts"]
    counted = tuple(zip(parts, facts["documents"], strict=True))
    return Merged(output_prefix, counted, facts["tokens"], made=record is None)


def pairs_at(place: Location) -> list[Location]:
    """Return the prefixes of the pairs that a path means: that of one, a file of one, a folder of some, or what their
    names begin with, as `web` for web_text_document; where there is none, the prefix that the path would be."""
    prefix = place.with_name(place.stem) if place.suffix in (".bin", ".idx") else place
    beside = _stems(prefix.parent)
    if prefix.name in beside:
        return [prefix]
    within = [place / stem for stem in _stems(place)]
    begun = [prefix.with_name(stem) for stem in beside if stem.startswith(f"{prefix.name}_")]
    if not within and not begun and place == place.parent and str(place) != ".":
        what, remedy = "no dataset in this folder", "name a prefix of .bin and .idx, or a folder that holds some"
        raise MissingError(what, where=place, remedy=remedy)
    return within or begun or [prefix]


def _stems(folder: Location) -> list[str]:
    """Return the names of a folder's pairs, or halves of such, sorted."""
    names = [name for name in store_of(folder).level()[1] if not name.startswith(".")]
    return sorted({stem for stem, dot, end in (name.rpartition(".") for name in names) if end in ("bin", "idx")})


def _pairs(folder: Location, output_prefix: Location) -> list[Location]:
    """Return the prefixes of the folder's pairs, sorted by name, without an earlier output at `output_prefix`."""
    endings: dict[str, set[str]] = {}
    for path in folder.iterdir():
        if path.suffix in (".bin", ".idx") and not path.name.startswith("."):
            endings.setdefault(path.stem, set()).add(path.suffix)
    if real_path(folder) == real_path(output_prefix.parent) and _is_merged(output_prefix):
        endings.pop(output_prefix.name, None)
    if not endings:
        remedy = "name the folder that holds them with --input"
        raise MissingError("no datasets to merge", where=folder, expected="pairs of .bin and .idx", remedy=remedy)
    for name, found in endings.items():
        if lacking := {".bin", ".idx"} - found:
            where, lone = folder / f"{name}{found.pop()}", f"no {name}{lacking.pop()} beside it"
            remedy = "finish writing it, or move it out of the folder"
            raise MissingError("this dataset is not whole", where=where, found=lone, remedy=remedy)
    return [folder / name for name in sorted(endings)]


def _is_merged(prefix: Location) -> bool:
    """Return whether `merge_folder` made a pair, or a killed call left a part of it."""
    record = read_record(record_path(prefix)) or {}
    place, noted = OutputPlace(prefix.parent), record.get("files", {})  # copies have other times, and the same sizes
    return record.get("command") == COMMAND and all(place.has(name, fact["bytes"]) for name, fact in noted.items())


def _check_once(parts: Sequence[Location]) -> None:
    """Refuse what would give documents twice: a dataset under two names, or together with an earlier merge of it."""
    repeated = first_repeated_dataset(parts)
    if repeated is not None:
        raise ConfigError(
            "documents would be joined twice",
            where=repeated[1],
            found=names_of_both(*repeated),
            expected="each document in one dataset of the folder",
            remedy="remove the link, or move it out of the folder",
        )
    own = {real_path(pair_files(part)[0]): part for part in parts}
    for part in filter(_is_merged, parts):
        sources = (read_record(record_path(part)) or {}).get("sources", [])
        taken = (own.get(real_path(noted_path(source, part))) for source in sources)
        if (twice := next(filter(None, taken), None)) is not None:
            raise ConfigError(
                "documents would be joined twice",
                where=part,
                found=f"an earlier merge of {twice} and others, which lie in the same folder",
                expected="each document in one dataset of the folder",
                remedy="move the earlier merge, or what it was made of, out of the folder",
            )


def _join_here(output_prefix: Location, files: Sequence[Location], draft: Draft, listener: ProgressCallback) -> None:
    """Write the joined pair into a draft."""
    with downloaded(files) as here:
        parts, size = [path.with_suffix("") for path in here[::2]], sum(path.stat().st_size for path in here[::2])
        meter = Meter(listener, "merge", output_prefix.name, size)
        merge_heard([(str(part), None) for part in parts], draft.folder / output_prefix.name, meter.advance)
        indexes = [read_idx(path, validate=False) for path in here[1::2]]
        counts = [len(index.document_indices) - 1 for index in indexes]
        draft.facts = {"documents": counts, "tokens": size // indexes[0].dtype.itemsize}


def _join_within(
    output_prefix: Location,
    files: Sequence[Location],
    rows: Sequence[Mapping[str, Any]],
    draft: Draft,
    listener: ProgressCallback,
) -> bool:
    """Write the joined .idx into a draft, and let a bucket join the .bin of its own objects.

    Return False, with nothing done, where a file lies elsewhere or a dataset has modes. `rows`: sizes and ETags of the
    files, as the record holds them.
    """
    binary = pair_files(output_prefix)[0]
    remote = [file for file in (binary, *files) if isinstance(file, RemoteFolder)]
    if len(remote) <= len(files) or any(file.store != remote[0].store for file in remote):
        return False
    store = remote[0].store
    stored = [Stored(file.path, row["bytes"], row["etag"], 0) for file, row in zip(remote[1:], rows, strict=True)]
    read = read_pairs(store, list(zip(stored[::2], stored[1::2], strict=True)))
    if read is None:
        return False
    pairs, dtype = read
    write_merged_idx(draft.folder / f"{output_prefix.name}.idx", store, pairs, dtype)
    size = sum(pair.bin.size for pair in pairs)
    draft.facts = {"documents": [pair.documents for pair in pairs], "tokens": size // dtype.itemsize}

    def join() -> Mapping[str, Any]:
        meter = Meter(listener, "merge", output_prefix.name, size)
        store.compose(remote[0].path, [pair.bin for pair in pairs], joined=meter.advance)
        made = store.stat(remote[0].path)
        if made is None:
            raise MissingError("no such object", where=binary, remedy="run again once no other call writes it")
        return {"bytes": made.size, "etag": made.mark}

    draft.elsewhere[binary.name] = join
    return True
