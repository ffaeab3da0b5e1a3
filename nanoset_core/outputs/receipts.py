"""Receipts: the files next to outputs that say what made them.

Every output that is written outside an output root has a receipt in its folder. It is a JSON object
that contains

- everything that decides the bytes of the output, under keys that depend on the kind of receipt,
- under `files`, an entry for each file of the output, with its size and, for example, its checksum:
  see `receipt_entries.py`.

A receipt without `files` is an *opening receipt*. It says that a call began to put its files in
place and did not end: the call is running, or was killed. See `nanoset_core/outputs/deliver.py`.

There are three kinds of receipts. They have different names and keys, so that older versions of
nanoset and other programs can read them:

- Commands such as `nanoset pbin write` write hidden receipts: `.web.pbin.made.json` is that of the
  file `web.pbin`.
- Next to index files in a trainer's cache folder is a receipt whose name ends in `nanoset.json`.
- A folder of tars in a bucket has the manifest that all webdatasets have, `manifest.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nanoset_core.errors import MissingError
from nanoset_core.outputs.differences import setting_differences
from nanoset_core.records.json_records import JsonForm, as_parsed
from nanoset_core.storage.location import (
    Location,
    store_of,
)
from nanoset_core.storage.places import (
    location_seen_from,
    path_seen_from,
    requests_at_once,
    takes_requests,
)
from nanoset_core.storage.requests import in_parallel

_HIDDEN_RECEIPT_ENDING = ".made.json"
"""How the names of hidden receipts end."""
PAIR_RECEIPT_ENDING = ".manifest.json"
"""How the names of the receipts end that `nanoset tokenize` writes next to its .bin and .idx."""
RECEIPT_VERSION = 1
"""Version of the format of hidden receipts, which each receipt has under the key "nanoset"."""
FILES = "files"
"""Key of a receipt: name of each file → its entry. Opening receipts lack it."""
_MAX_NAMED_FILES = 5
"""An error names at most this many input files that differ; it counts the others."""


_RECEIPT_FORM = JsonForm("this is not a receipt of an output", indent=1, ends_with_newline=True)
"""How hidden receipts are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a call writes into the receipt of its output."""

    name: str
    """Name of the receipt's file, in the folder of the output."""
    made_from: Mapping[str, Any]
    """Everything that decides the bytes of the output, as plain JSON values.

    Each key is a key of the receipt. Two calls with equal values make the same output.
    """
    opening_name: str | None = None
    """Name of the opening receipt, if it is another file, which is removed at the end.

    It is one if readers take an output for complete once a file has the name of the receipt.
    """
    flags: Mapping[str, str] = field(default_factory=dict)
    """Setting → flag of the command, for settings whose flag has another name; for messages."""
    has_etag_or_time: bool = True
    """Whether entries of files have ETags (in a bucket) or times of change (on this machine)."""
    json_form: JsonForm = _RECEIPT_FORM
    """How the content of the receipt is written as JSON."""

    @property
    def has_separate_opening(self) -> bool:
        """Whether the opening receipt is not in the same file as the final one."""
        return self.opening_name is not None

    @property
    def name_of_opening(self) -> str:
        """Name of the file of the opening receipt."""
        return self.name if self.opening_name is None else self.opening_name

    def opening(self) -> bytes:
        """Return the bytes of the opening receipt, which is written before the first file."""
        return self.json_form.write(self.made_from)

    def closing(
        self,
        files: Mapping[str, Mapping[str, Any]],
        facts: Mapping[str, Any] | None,
        more: Mapping[str, Any],
    ) -> bytes:
        """Return the bytes of the final receipt, which is written after the last file of an output.

        A receipt says what an output was made from, and the final one also lists its files. For
        example:

            {"command": "pack merge", "sources": [...], "facts": {"documents": 3},
             "files": {"web.pbin": {"bytes": 80, "mtime_ns": ...}}}

        Args:
            files: Name of each file of the output → its size, checksum and so on.
            facts: Counts and other findings, if the receipt has them.
            more: Further keys and values.

        Returns:
            JSON, with the keys of `made_from` first.
        """
        content = dict(self.made_from)
        if facts is not None:
            content["facts"] = facts
        content[FILES] = files
        content.update(more)
        return self.json_form.write(content)


@dataclass(frozen=True, slots=True)
class StoredReceipt:
    """A receipt that was read from the folder of an output."""

    content: Mapping[str, Any]

    @property
    def files(self) -> Mapping[str, Mapping[str, Any]] | None:
        """Name of each file of the output → its entry, such as {"web.bin": {"bytes": 80}}.

        None if the receipt does not list the files. A call writes such a receipt before it puts the
        files in place, and replaces it at the end. So the call was killed in between.
        """
        files = self.content.get(FILES)
        if not isinstance(files, Mapping):
            return None
        for entry in files.values():
            # Somebody may have edited the receipt. If a file has no size, do not trust it.
            if not isinstance(entry, Mapping) or not isinstance(entry.get("bytes"), int):
                return None
        return files

    def is_of_same_output(self, receipt: Receipt) -> bool:
        """Return whether a call with another receipt makes the same output.

        Args:
            receipt: What that call writes. Its inputs and settings are compared with this receipt.
        """
        return all(self.content.get(key) == value for key, value in receipt.made_from.items())


def parse_receipt(data: bytes | None) -> StoredReceipt | None:
    """Return the receipt with these bytes, or None if they are not a JSON object.

    A user may have any file under the name of a receipt, so this is not an error.

    Args:
        data: The bytes; None if the receipt does not exist.
    """
    # Receipts have no declared keys: each kind of output, and each version, has written its own.
    try:
        content = json.loads(data or b"")
    except (ValueError, RecursionError):
        return None
    return StoredReceipt(content) if isinstance(content, dict) else None


def read_receipt(path: Location) -> StoredReceipt | None:
    """Return the receipt at a path, or None if it does not exist or is not a JSON object.

    Args:
        path: The receipt's file, on this machine or in a bucket.
    """
    return parse_receipt(store_of(path.parent).read(path.name))


def hidden_receipt_name(output_name: str) -> str:
    """Return the name of the hidden receipt of a file, or of a .bin/.idx pair by its prefix.

    The receipt of `web.pbin` is `.web.pbin.made.json`, which is hidden because it is not data.

    Args:
        output_name: Name of the file, or prefix of the pair, without its folder.
    """
    return f".{output_name}{_HIDDEN_RECEIPT_ENDING}"


def is_hidden_receipt_name(name: str) -> bool:
    """Return whether a file has the name of a hidden receipt, such as `.web.pbin.made.json`."""
    return name.startswith(".") and name.endswith(_HIDDEN_RECEIPT_ENDING)


def read_command_receipt(path: Location) -> dict[str, Any] | None:
    """Return the content of a command's receipt, or None if it does not exist or is not a receipt.

    Args:
        path: The receipt's file, such as `out/.web.pbin.made.json` or `out/web.manifest.json`.
    """
    receipt = read_receipt(path)
    if receipt is None or "nanoset" not in receipt.content:
        return None
    return dict(receipt.content)


def describe_call(
    command: str, output: Location, sources: Iterable[Location], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a call makes its output from: its command, options and input files.

    The result is stored in the receipt of the output. If a later call gets an equal one, it need
    not make the output again. For `nanoset pack merge web.pbin a.pbin b.pbin`:

        {"nanoset": 1, "command": "pack merge", "options": {},
         "sources": [{"path": "a.pbin", "bytes": 80, "mtime_ns": …}, {"path": "b.pbin", …}]}

    Input files are recognised by their size and time of change, or by their ETag in a bucket.

    Args:
        command: The call's name, such as `pack merge`.
        output: The file, or the folder or prefix of the files, that the call makes.
        sources: The files that it reads, in order.
        options: The settings that decide the bytes.

    Raises:
        MissingError: A source does not exist.
    """

    # A later call compares its values with those that it reads from the stored JSON, in which a
    # tuple, for example, has become a list. So convert them as JSON does.
    content: dict[str, Any] = as_parsed(
        {"options": dict(options), "sources": _source_rows(sources, output)}
    )
    return {"nanoset": RECEIPT_VERSION, "command": command, **content}


def _source_rows(sources: Iterable[Location], output: Location) -> list[dict[str, Any]]:
    """Return what a receipt says about the files that an output is made from: a row for each.

    Objects in a bucket are looked up with requests, several at the same time.

    Args:
        sources: The files.
        output: The output. Paths of local files are relative to it.
    """

    def describe(source: Location) -> dict[str, Any]:
        """Return the path of a source, its size, and its time of change or ETag."""
        return _source_row(source, output)

    source_paths = list(sources)
    return in_parallel(describe, source_paths, requests_at_once(source_paths))


def _source_row(path: Location, output: Location) -> dict[str, Any]:
    """Return what the receipt of an output says about one of the files that it is made from.

        an object in a bucket    {"path": "s3://bucket/a.pbin", "bytes": 80, "etag": ...}
        a local file             {"path": "a.pbin", "bytes": 80, "mtime_ns": ...}

    The ETag, or the time of change, shows later whether the file was replaced.

    Args:
        path: The file.
        output: The output. The path of a local file is relative to it, so that both can be moved
            together.

    Raises:
        MissingError: The file does not exist.
    """
    if takes_requests(path):
        stored = path.store.stat(path.path)
        if stored is None:
            raise MissingError("no such object", where=path, remedy="name an object that exists")
        return {"path": str(path), "bytes": stored.size, "etag": stored.mark}

    try:
        stat = path.stat()
        relative_path = path_seen_from(path, output)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MissingError("no such file", where=path, remedy="name a file that exists") from error
    return {"path": relative_path, "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def source_location(source: Mapping[str, Any], output: Location) -> Location:
    """Return the location of an input file that the receipt of an output lists.

    Args:
        source: One of the receipt's `sources`, as `_source_row` returned it.
        output: The output whose receipt it is.
    """
    return location_seen_from(str(source["path"]), output)


def receipt_differences(content: Mapping[str, Any], receipt: Receipt) -> list[str]:
    """Return how this call differs from the call that made an existing output, for a message.

    A user who runs a command again with `--seed 8` instead of 7 reads `--seed: 7 → 8`, and so knows
    why the existing output is not the one that the command would make.

    Args:
        content: What is stored about the call that made the existing output.
        receipt: The same of this call.

    Returns:
        At least one difference, such as `a.bin was not among the files` or `--seed: 7 → 8`.
    """
    made_from = receipt.made_from
    command = content.get("command")
    if command != made_from.get("command"):
        # Receipts of `nanoset tokenize` once did not name their command.
        return [f"it was made by `nanoset {command or 'tokenize'}`"]

    differences = _source_differences(content.get("sources"), made_from["sources"])
    options = _recorded_options(content)
    differences += flag_differences(options, made_from["options"], receipt.flags)
    # The receipts differ in any case. If nothing else does, the version of nanoset does.
    return differences or ["another version"]


def _recorded_options(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options in the receipt of an output, none if somebody has damaged the receipt.

    Args:
        content: The receipt, as it was read from its file.
    """
    options = content.get("options")
    return options if isinstance(options, Mapping) else {}


def _source_differences(sources_before: object, sources_now: object) -> list[str]:
    """Return how the input files of two calls differ; at most five are named (_MAX_NAMED_FILES).

        before          now             result
        a.bin, b.bin    a.bin           "b.bin was one of the files"
        a.bin, b.bin    b.bin, a.bin    "the files came in another order"

    Args:
        sources_before: The input files in an earlier call's receipt; anything if it was edited.
        sources_now: The list of input files of this call.

    Returns:
        The differences. If there are more than five, the last one is such as "7 more files differ".
    """
    before = _sources_by_path(sources_before)
    now = _sources_by_path(sources_now)
    differences = list(_differences_by_path(before, now))
    if not differences and list(before) != list(now):
        return ["the files came in another order"]

    n_unnamed = len(differences) - _MAX_NAMED_FILES
    if n_unnamed <= 0:
        return differences
    return [*differences[:_MAX_NAMED_FILES], f"{n_unnamed:,} more files differ"]


def _differences_by_path(
    before: Mapping[str, list[Any]], now: Mapping[str, list[Any]]
) -> Iterator[str]:
    """Yield how each input file differs between two calls, for those that do.

    A file may be listed twice, if it is read twice. So each path has a list of entries.

    Args:
        before: Path → what the receipt of the earlier call says about the file, such as
            {"a.bin": [{"path": "a.bin", "bytes": 80, "mtime_ns": ...}]}.
        now: The same of this call.

    Yields:
        For example `b.bin was not among the files`.
    """
    for path in {**now, **before}:
        if path not in now:
            yield f"{path} was one of the files"
        elif path not in before:
            yield f"{path} was not among the files"
        elif before[path] != now[path]:
            yield f"{path} was another file, or written again since"


def flag_differences(
    before: Mapping[str, Any], now: Mapping[str, Any], flags: Mapping[str, str]
) -> list[str]:
    """Return the settings that differ between two calls of a command, by the names of its flags.

        before    {"max_tokens": 5, "seed": 7}
        now       {"max_tokens": 6, "seed": 7}
        result    ["--max-tokens: 5 → 6"]

    Args:
        before: Settings of the earlier call.
        now: Settings of this call.
        flags: Flags of the command by setting, for settings whose flag has another name, such as
            {"max_tokens": "--limit"}.
    """
    # Each difference is a text such as "max_tokens: 5 → 6". Put the flag in place of the name.
    lines = []
    for difference in setting_differences(before, now, words={}):
        name, values = difference.split(": ", 1)
        default_flag = "--" + name.replace("_", "-")  # such as --max-tokens
        lines.append(f"{flags.get(name, default_flag)}: {values}")
    return lines


def _sources_by_path(sources: object) -> dict[str, list[Any]]:
    """Group a receipt's sources by their paths; a file that is read twice has two entries.

    Args:
        sources: The list in a receipt; if a receipt was edited, it may be anything.

    Returns:
        Path → entries, such as {"a.bin": [{"path": "a.bin", "bytes": 80}]}.
    """
    entries_by_path: dict[str, list[Any]] = {}
    if not isinstance(sources, Sequence):
        return entries_by_path
    for source in sources:
        if isinstance(source, Mapping):
            entries = entries_by_path.setdefault(str(source.get("path")), [])
            entries.append(dict(source))
    return entries_by_path
