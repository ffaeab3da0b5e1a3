"""Deliver finished files to a place outside an output root.

Within an output root, `OutputRoot.commit` publishes outputs. This module does it everywhere else:
for the files of `nanoset pbin`, `export`, `merge` and `tokenize`, for example, which may be written
to any folder of this machine or of a bucket. Nobody else watches over that folder. So each output
has a *receipt* there, which says what made the output, and which files belong to it; see
`nanoset_core/outputs/receipts.py`. It serves two purposes:

- A call that is repeated finds its output complete, and does nothing. For example, a second
  `nanoset pbin write` of the same files finds `.web.pbin.made.json` next to `web.pbin`.
- No call replaces files that another call, or another program, has made, unless `--overwrite` is
  set.

A call first writes its files to a draft folder. Then it delivers them, in this order:

1. It writes the opening receipt.
2. It deletes the files by which readers recognise a complete output, such as the .idx of a pair.
3. It puts the other files in place, and then those that complete the output. On this machine, files
   are renamed. To a bucket, they are uploaded, or the bucket copies them from its own objects.
4. It writes the final receipt.

If the call is killed on the way, readers find the earlier output or an incomplete one, never a
mixture. The same call, when repeated, recognises the opening receipt and completes the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from nanoset_core.errors import ConfigError, NanosetError
from nanoset_core.outputs.apart import check_apart
from nanoset_core.outputs.receipt_entries import change_of, entry_of
from nanoset_core.outputs.receipts import (
    Receipt,
    StoredReceipt,
    describe_call,
    hidden_receipt_name,
    is_hidden_receipt_name,
    read_receipt,
    receipt_differences,
)
from nanoset_core.storage.atomic import UNFINISHED, sha256_file
from nanoset_core.storage.location import Location, store_of
from nanoset_core.storage.places import is_folder_in_the_way, takes_requests
from nanoset_core.storage.requests import TRANSFERS_AT_ONCE, in_parallel
from nanoset_core.storage.store import Store
from nanoset_core.storage.writing.drafts import (
    alone_at,
    draft_folder,
    make_durable,
    put_in_folder,
    put_small_file,
    writing_into,
)

_REMEDY = "name another output, or replace this one with --overwrite"
"""What to do about an output that this call must not replace."""
_EXPECTED = "no such file, or one that the same call made"
"""What this call may replace."""
_QUOTED_NAMES = 5
"""Number of file names that messages quote."""


@dataclass(slots=True)
class Draft:
    """The finished files of an output, before they are delivered.

    A command writes `web.bin` and `web.idx` to a temporary folder first. Along with them it passes
    on what it knows: counts for the receipt, and checksums, so that no file is read again.
    `nanoset_core/storage/writing/drafts.py` makes such folders.
    """

    folder: Path
    """Where the files are, under their final names."""
    facts: Mapping[str, Any] | None = None
    """Counts and other findings for the receipt."""
    more: dict[str, Any] = field(default_factory=dict)
    """Further keys and values of the receipt."""
    sha256_by_name: dict[str, str] = field(default_factory=dict)
    """Checksums of files that were computed while the files were written."""
    writers: dict[str, Callable[[], object]] = field(default_factory=dict)
    """Functions that write a file directly to its final place, by the file's name.

    A bucket can join a large object from others, for example, so that it is not in the draft.
    """

    def hash_files(self, names: Iterable[str]) -> None:
        """Compute the checksums of files, except those that are known or not in the draft.

        Some functions compute the checksum while they write a file, so that it need not be read
        again.

        Args:
            names: Names of the files.
        """
        for name in names:
            path = self.folder / name
            if name not in self.sha256_by_name and path.exists():
                self.sha256_by_name[name] = sha256_file(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The files that one call delivers to one folder, and their receipt."""

    folder: Location
    """The folder, on this machine or in a bucket."""
    receipt: Receipt
    files: tuple[str, ...]
    """Names of the files that are always made, in the order in which they are put in place."""
    optional: tuple[str, ...] = ()
    """Names of files that are made only if needed, such as a list of rejected lines.

    If a call does not make one, it removes the one of an earlier call.
    """
    completing_files: tuple[str, ...] = ()
    """The files by which readers recognise a complete output, such as the .idx of a .bin/.idx pair.

    They must be the last ones of `files`. They are removed before any other file is replaced, and
    put in place last. If there is a single file, it need not be listed: it is replaced at once.
    """
    inputs: tuple[Location, ...] = ()
    """Files that the output is made from, which must not be replaced by it."""
    replaced_input_remedy: str = "name another output"
    """What the error says to do if an input would be replaced."""
    is_hashed: bool = False
    """Whether the receipt stores the sha256 of the files instead of their times of change."""
    keeps_equal_output: bool = False
    """Whether the files of another call stay, if it has delivered the same output meanwhile."""
    compares_sizes: bool = False
    """Whether a repeated call compares only the sizes of the files with the receipt."""
    resumes_interrupted: bool = False
    """Whether the call keeps the files that an interrupted call has put in place.

    Its `Draft.writers` decide that: each does nothing if its file exists. So the files of other
    calls are removed first, or a writer would keep one of these by mistake.
    """
    needs_own_folder: bool = False
    """Whether the folder must contain nothing else, as for an output that consists of many files.

    If the output replaces one of another receipt, with which it has files in common, all files of
    that output are removed.
    """

    @classmethod
    def of_file(
        cls,
        target: Location,
        made_from: Mapping[str, Any],
        optional: Iterable[str] = (),
        inputs: Iterable[Location] = (),
    ) -> Delivery:
        """Return the delivery of a single file, with a receipt next to it of what it was made from.

            data/web.pbin              the file
            data/.web.pbin.made.json   the receipt, a hidden file

        If the command is run again, it finds the receipt, and need not make the file again.

        Args:
            target: The file.
            made_from: Everything that decides its bytes; see `describe_call`.
            optional: Names of further files in the same folder, which are only made if needed.
            inputs: Files that it is made from.
        """
        return cls(
            folder=target.parent,
            receipt=Receipt(name=hidden_receipt_name(target.name), made_from=made_from),
            files=(target.name,),
            optional=tuple(optional),
            inputs=tuple(inputs),
        )

    @property
    def store(self) -> Store:
        """The folder as a store, in which files are addressed by their names."""
        return store_of(self.folder)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all files, including the optional ones."""
        return (*self.files, *self.optional)

    def stored_receipt(self) -> StoredReceipt | None:
        """Return the receipt in the folder, which says what made the output, or None without one.

        A call writes an opening receipt before it replaces any file, and the final one at the end.
        It then deletes the opening one, unless both are the same file. So there may be:

            opening, final    a call was killed in between. It may have replaced files, so that the
                              final receipt of an earlier call is no longer true: the opening one
            final             a call has completed the output: the final one
        """
        expected_keys = self.receipt.made_from.keys()  # such as "inputs"
        file_names = dict.fromkeys([self.receipt.name_of_opening, self.receipt.name])  # each once
        for name in file_names:
            stored = read_receipt(self.folder / name)
            # A JSON file of this name that has none of the keys is not a receipt.
            if stored is not None and not expected_keys.isdisjoint(stored.content):
                return stored
        return None

    def find(self, *, overwrite: bool = False) -> Mapping[str, Any] | None:
        """Check that the output may be written, and return its receipt if it was made already.

        The receipt is a file next to the output that says what made it. A second call of `nanoset
        pbin write a.jsonl` has nothing to do, unless `a.jsonl` was changed since.

        Args:
            overwrite: Whether files that another call or program has made may be replaced.

        Returns:
            The content of the receipt. The caller has nothing to do then. None if it has to make
            the output.

        Raises:
            ConfigError: A file of the output is one of its inputs, or has the name of a folder; or
                another call or program has made one of the files, and `overwrite` is not set.
        """
        outputs = [self.folder / name for name in self.names]
        check_apart(outputs, self.inputs, remedy=self.replaced_input_remedy)  # no input is replaced
        return self.find_finished(overwrite=overwrite)

    def find_finished(self, *, overwrite: bool) -> Mapping[str, Any] | None:
        """Return the receipt if the same call has made this output before, or None if not.

        The receipt is a file next to the output that says what made it. The cases are:

            no files                                          None: make the output
            files, and a receipt of the same call             the receipt: nothing is to be done
            the same, but the call was killed, or files       None: make the output again
              are missing
            files of another call, or without a receipt,      an error; None with `overwrite`
              or files that were changed since

        This is `find` without its check of the inputs, which is slow if there are many.

        Args:
            overwrite: Whether files that another call or program has made may be replaced.

        Raises:
            ConfigError: A file has the name of a folder; or another call or program has made one of
                the files, and `overwrite` is not set.
        """
        self._check_no_folders()
        existing = [name for name in self.names if self.store.stat(name) is not None]
        stored = self.stored_receipt()

        if stored is None or not stored.is_of_same_output(self.receipt):
            if not overwrite:
                self._check_not_occupied(existing, stored)
            return None
        if stored.files is None:  # the call was killed before it had written all files
            return None

        changes = self._changes(existing, stored.files)
        has_all_files = set(self.files).issubset(existing)
        # Receipts of older versions of this program do not list all files. One that is not listed
        # is no reason to make the output again.
        has_changed_file = any(name in stored.files for name in changes)
        if has_all_files and not has_changed_file:
            return stored.content
        if changes and not overwrite:
            raise self._changed_error(changes)  # somebody may want to keep a changed file
        return None

    def _check_not_occupied(self, existing: Sequence[str], stored: StoredReceipt | None) -> None:
        """Check that no files of another call or program are in the place of the output.

        Args:
            existing: Names of the output's files that exist already.
            stored: The receipt of another call in the folder, or None without one.

        Raises:
            ConfigError: There are some.
        """
        if existing:
            raise self._occupied(existing[0], stored)
        if self.needs_own_folder:
            self._check_no_other_files()

    def _changed_error(self, changes: Mapping[str, str]) -> ConfigError:
        """Return the error for an output that was changed, with the first of its changes.

        For example: "the output was changed since it was made", with "web.bin has 90 bytes, and had
        80".

        Args:
            changes: Name of each file that was changed → what has changed.
        """
        name, change = next(iter(changes.items()))
        return ConfigError(
            "the output was changed since it was made",
            where=self.folder / name,
            found=change,
            remedy=_REMEDY,
        )

    def _check_no_other_files(self) -> None:
        """Check that the folder contains no files of other calls or programs, such as notes.txt.

        Raises:
            ConfigError: It contains some.
        """
        folder_names, file_names = self.store.level()
        other_names: list[str] = []
        for name in sorted([*folder_names, *file_names]):
            is_of_output = name in self.names or name == self.receipt.name
            if not is_of_output and not name.startswith(UNFINISHED):
                other_names.append(name)
        if other_names:
            raise ConfigError(
                "the folder of the output contains other files",
                where=self.folder,
                found=", ".join(other_names[:_QUOTED_NAMES]),
                expected="no such folder, an empty one, or an earlier result",
                remedy="name another output, or add --overwrite to keep these files next to it",
            )

    def _check_no_folders(self) -> None:
        """Check that no folder has the path of a file of the output, or of its receipt.

        A file cannot replace a folder. In a bucket, the folder `web.bin` would consist of objects
        such as `web.bin/a`, and could exist next to the object `web.bin`, which confuses most
        programs.

        Raises:
            ConfigError: A folder is in the way.
        """
        for name in (*self.names, self.receipt.name):
            if is_folder_in_the_way(self.folder / name):
                raise ConfigError(
                    "a folder of this name already exists",
                    where=self.folder / name,
                    remedy="name another output",
                )

    def _changes(
        self, existing: Iterable[str], entries: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, str]:
        """Return the existing files that differ from the receipt, each with what has changed.

        The receipt is a JSON file next to the output. It lists the size of each file, and a
        checksum or a time of change:

            web.bin has another size         "web.bin has 90 bytes, and had 80"
            web.idx is not in the receipt    "web.idx was not there when the others were made"
            web.txt is as it was             not in the result

        Args:
            existing: Names of the files of this output that exist.
            entries: Name of each file in the receipt → its size and so on, such as
                {"web.bin": {"bytes": 80, "mtime_ns": 17673...}}.

        Returns:
            Name → change.
        """
        changes = {}
        for name in existing:
            change: str | None
            if name in entries:
                # None if the file is as the receipt says
                change = change_of(self.store, name, entries[name], by_size=self.compares_sizes)
            else:
                change = f"{name} was not there when the others were made"
            if change is not None:
                changes[name] = change
        return changes

    def _occupied(self, name: str, stored: StoredReceipt | None) -> ConfigError:
        """Return the error for a file that this call did not make, and must not replace.

        For example: "an output of other input or settings exists already", with what differs:
        "--seed: 7 → 8". The user then names another file, or adds `--overwrite`.

        Args:
            name: Name of the file.
            stored: The receipt in its folder, which says what made the file; None without one.
        """
        if stored is None:
            message = "a file exists already, and nothing says what it was made from"
            found = f"no {self.receipt.name} next to it"
        else:
            message = "an output of other input or settings exists already"
            found = "; ".join(receipt_differences(stored.content, self.receipt))
        return ConfigError(
            message,
            where=self.folder / name,
            found=found,
            expected=_EXPECTED,
            remedy=_REMEDY,
        )

    @contextmanager
    def drafting(self, *, overwrite: bool = False, sweeps: bool = True) -> Iterator[Draft]:
        """Yield a temporary folder for the files of an output, and put them in place at the end.

            with delivery.drafting() as draft:
                (draft.folder / "web.pbin").write_bytes(...)
            # web.pbin was moved, or uploaded, to its place, with a receipt next to it

        The receipt is a small file that says what the output was made from. If the block fails,
        nothing is moved, and the temporary folder is removed. Errors of the block name the places
        of the finished files, instead of those in the temporary folder.

        Args:
            overwrite: Whether files that another call or program has made may be replaced.
            sweeps: Whether to remove first the temporary files and folders of earlier calls that
                were killed. To find them, the whole folder is listed.

        Yields:
            The draft. The caller writes all files to its folder, under their final names.

        Raises:
            ConfigError: Another call or program has made one of the files, and `overwrite` is not
                set.
            StorageError: The folder cannot be written to, or is full.
        """
        with writing_into(self.folder):
            # Raise the ConfigError before the work begins. `deliver` checks again.
            self.find_finished(overwrite=overwrite)

            draft_name = self.files[-1]
            swept_names = (draft_name, self.receipt.name) if sweeps else ()
            with draft_folder(self.folder, draft_name, swept_names) as folder:
                draft = Draft(folder)
                with _errors_name_final_places(folder, self.folder):
                    yield draft
                deliver(draft, self, overwrite=overwrite)


@contextmanager
def _errors_name_final_places(draft_folder: Path, final_folder: Location) -> Iterator[None]:
    """Let errors of the block name the places of finished files, instead of temporary ones.

    Users know the folder that they have named, but not the temporary folder.

    Args:
        draft_folder: The temporary folder, in which the block writes files.
        final_folder: The folder to which the files will be moved.
    """
    try:
        yield
    except NanosetError as error:
        raise error.with_places(str(draft_folder), str(final_folder)) from error


def deliver(draft: Draft, delivery: Delivery, *, overwrite: bool = False) -> None:
    """Put finished files in their places, and write their receipt, which says what made them.

    Other processes may do the same at this moment. So the folder is locked, and looked at once
    more:

        the same output is there by now    replace it, or keep it if the delivery says so
        another output is there by now     an error, unless `overwrite` is set
        neither                            put the files in place

    Args:
        draft: The finished files, in a temporary folder.
        delivery: Where they go, and what they were made from.
        overwrite: Whether files that another call or program has made may be replaced.

    Raises:
        ConfigError: Another call or program has made one of the files, and `overwrite` is not set.
        StorageError: Another call has replaced a file in the meantime.
    """
    # Some receipts store checksums. Hashing takes long, so do it before the folder is locked.
    if delivery.is_hashed:
        draft.hash_files(delivery.names)

    with alone_at(delivery.folder):
        # This finds the same output, and raises the error for another one.
        receipt_of_same_output = delivery.find_finished(overwrite=overwrite)
        is_made_already = receipt_of_same_output is not None
        if is_made_already and delivery.keeps_equal_output:
            return
        put_files_in_place(draft, delivery)


def put_files_in_place(draft: Draft, delivery: Delivery) -> None:
    """Deliver the files of a draft, a temporary folder, without checking which files they replace.

    For example, the index `web.idx` and the tokens `web.bin` replace those of an earlier call:

        1. write the opening receipt    if this process is killed, a repeated call continues
        2. delete the old web.idx       readers look for it first, so they now find no output
        3. put web.bin, then web.idx    now readers find the new output
        4. write the final receipt      it lists the files, and says what made them

    Args:
        draft: The finished files, in a temporary folder.
        delivery: Where they go, and what they were made from.

    Raises:
        StorageError: Another call has replaced a file in the meantime.
    """
    # A repeated call may keep the files that it finds in their places. So none of them may be from
    # another call.
    missing_names: frozenset[str] = frozenset()  # of files that are known not to exist
    if delivery.resumes_interrupted:
        missing_names = _remove_files_of_other_calls(delivery)

    _put_opening_receipt(delivery)
    _hide_earlier_output(delivery)
    entries = _Placement(draft, delivery, missing_names).put_files()  # file → size and so on
    _put_final_receipt(draft, delivery, entries)


def _hide_earlier_output(delivery: Delivery) -> None:
    """Remove the files by which readers recognise a complete output, before any other is replaced.

    Readers of `web.bin` and `web.idx` look for `web.idx` first. Without it, nobody reads a mixture
    of an old and a new file.

    Args:
        delivery: The delivery that is about to replace the output.
    """
    if delivery.receipt.has_separate_opening:
        delivery.store.delete(delivery.receipt.name)  # of the earlier output: some look for it
    for name in delivery.completing_files:  # such as web.idx
        delivery.store.delete(name)


def _put_final_receipt(
    draft: Draft, delivery: Delivery, entries: Mapping[str, Mapping[str, Any]]
) -> None:
    """Write the receipt of an output: a JSON file that lists its files, and says what made them.

        {"command": "pbin merge", "sources": …, "files": {"web.pbin": {"bytes": 80, …}}, …}

    It also shows that the output is complete, since it is written after all other files.

    Args:
        draft: Has what else the receipt says about the output, such as counts.
        delivery: Where the output is, and the names of its files, in order.
        entries: Name of each file → what the receipt says about it. Optional files that were not
            made are missing.
    """
    receipt = delivery.receipt
    files = {name: entries[name] for name in delivery.names if name in entries}
    content = receipt.closing(files, draft.facts, draft.more)
    # On a disk, this also makes sure that the files that were renamed survive a power failure.
    delivery.store.put(receipt.name, content)
    if receipt.opening_name is not None:
        delivery.store.delete(receipt.opening_name)  # it said that this work had begun


def _put_opening_receipt(delivery: Delivery) -> None:
    """Write a small file that says that a call has begun to put its files in place.

    It is called the opening receipt, and says what the output is made from. If the call is killed
    before it writes the final receipt, a repeated call finds the opening one, and completes the
    output.

    Args:
        delivery: The delivery that begins.
    """
    receipt = delivery.receipt
    # The folder is made durable with the final receipt: it would take long to do that twice for
    # each of many small outputs.
    put_small_file(delivery.folder, receipt.name_of_opening, receipt.opening())


def _remove_files_of_other_calls(delivery: Delivery) -> frozenset[str]:
    """Remove the files of an earlier output, and return which files of the new one are missing.

    An output is, for example, an export of a dataset to 100 files. It is put into its folder file
    by file. The folder may have:

        files of another export                  they are removed, so 100 files are missing
        60 files of the same export, since an    they stay, so 40 files are missing
        earlier call was killed

    Args:
        delivery: The output that is about to be put into the folder.

    Returns:
        Names of the files of the output that do not exist now.
    """
    _folder_names, file_names = delivery.store.level()
    existing_names = frozenset(file_names)
    stored = delivery.stored_receipt()
    if stored is not None and _is_interrupted(stored, delivery):
        return frozenset(delivery.names) - existing_names

    names_to_remove = [*_names_of_earlier_output(delivery, stored)]
    if delivery.needs_own_folder:
        names_to_remove += _names_of_damaged_outputs(delivery, existing_names)
    for name in dict.fromkeys(names_to_remove):  # each once
        if name in existing_names:
            delivery.store.delete(name)
    return frozenset(delivery.names)


def _names_of_damaged_outputs(delivery: Delivery, existing_names: Iterable[str]) -> list[str]:
    """Return the names of all files of other outputs that have a file in common with this one.

    These outputs are damaged once the common file is replaced, so they are removed. For example, an
    export to MDS replaces the index.json of an export to litdata:

        index.json                 of both
        chunk-0-0.bin              only of the export to litdata: useless without its index.json
        .web.litdata.made.json     the receipt of the export to litdata

    Args:
        delivery: The output that replaces the others.
        existing_names: Names of the files in its folder.
    """
    names: list[str] = []
    for receipt_name in existing_names:
        if receipt_name == delivery.receipt.name or not is_hidden_receipt_name(receipt_name):
            continue
        stored = read_receipt(delivery.folder / receipt_name)
        if stored is None or stored.files is None:
            continue
        if not stored.files.keys().isdisjoint(delivery.names):
            names += [*stored.files, receipt_name]
    return names


def _is_interrupted(stored: StoredReceipt, delivery: Delivery) -> bool:
    """Return whether a receipt is of a call that was killed while it made the same output.

    A receipt says what an output was made from, and, once all files are in place, lists these
    files. If the list is missing, the call did not come to its end.

    Args:
        stored: The receipt that was read from the folder of the output.
        delivery: The files of the output, and the receipt that says what made it.
    """
    return stored.files is None and stored.is_of_same_output(delivery.receipt)


def _names_of_earlier_output(delivery: Delivery, stored: StoredReceipt | None) -> Iterable[str]:
    """Return the names of the files of an earlier output, in the order in which to remove them.

    These are the names that this output has, too, and those in the receipt of the earlier one.

    For example, a reader looks for the `.idx` of a dataset before it reads the `.bin`. So the
    `.idx` is first: once it is gone, nobody takes the rest for a complete output, even if this
    process is killed before it has removed the others.

    Args:
        delivery: The output that replaces the earlier one: where its files go and how they are
            named.
        stored: The receipt of the earlier output, which lists its files; None without one.
    """
    names = [*delivery.completing_files, *delivery.names]  # web.idx, web.bin, web.idx
    if stored is not None and stored.files is not None:
        names += stored.files  # perhaps more than the new output has
    return dict.fromkeys(names)  # each once: web.idx, web.bin


@dataclass(frozen=True, slots=True)
class _Placement:
    """Puts the files of a draft in their places."""

    draft: Draft
    """A folder with finished files. For some files it has functions instead (`draft.writers`),
    which write them directly to their places.
    """
    delivery: Delivery
    """Where the files go."""
    missing_names: frozenset[str]
    """Names of files that are known not to be in that place."""

    def put_files(self) -> dict[str, Mapping[str, Any]]:
        """Put all files of an output in place, those by which readers recognise it last.

        For example, `web.bin` and a list of rejected lines come first, at the same time, and then
        `web.idx`: readers look for this one first, so they do not find the others too early.

        Returns:
            Name of each file that was put in place → what the receipt, the list of the output's
            files, says about it, such as {"web.bin": {"bytes": 80}}.
        """
        last_files = self.delivery.completing_files  # web.idx
        first_files = [name for name in self.delivery.files if name not in last_files]  # web.bin
        optional_files = self.delivery.optional  # the list of rejected lines, if there are any

        entries = self._put_in_any_order([*optional_files, *first_files])
        entries.update(self._put_in_any_order(last_files))
        return entries

    def _put_in_any_order(self, names: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        """Put files of an output into its folder, several at once if that is possible.

        Args:
            names: Names of the files, such as ["web.rejects", "web.bin"].

        Returns:
            Name of each file that was put in place → what the receipt, the list of the output's
            files, says about it, such as {"web.bin": {"bytes": 80}}. Optional files that were not
            made are left out, such as web.rejects, a list of rejected lines.
        """
        n_threads = self._number_of_threads()
        if n_threads > 1:
            entries = in_parallel(self._put_or_remove, names, n_threads)
        else:
            entries = [self._put_or_remove(name) for name in names]
        entry_by_name = zip(names, entries, strict=True)
        return {name: entry for name, entry in entry_by_name if entry is not None}

    def _number_of_threads(self) -> int:
        """Return how many files can be put into the folder of the output at the same time.

        in a bucket, finished files    several: an upload waits for the server most of the time
        on a disk, finished files      1: they are only renamed, which is quick
        files that a function of the   1: the function may read the files that were put in place
        draft writes to their place    before
        """
        if self.draft.writers:
            return 1
        return TRANSFERS_AT_ONCE if takes_requests(self.delivery.folder) else 1

    def _put_or_remove(self, name: str) -> Mapping[str, Any] | None:
        """Put a file of an output into its folder, or remove an optional one that was not made.

        Args:
            name: Name of the file.

        Returns:
            What the receipt, the list of the output's files, says about the file, such as {"bytes":
            80}; None if it was not made.
        """
        if name in self.draft.writers:
            write_in_place = self.draft.writers[name]
            write_in_place()
            return self._entry(name, size=None)
        if self._was_not_needed(name):
            # An earlier call may have left such a file, which is no longer true.
            self.delivery.store.delete(name)
            return None
        return self._put_finished_file(name)

    def _was_not_needed(self, name: str) -> bool:
        """Return whether a file is optional, such as a list of rejected lines, and was not made."""
        return name in self.delivery.optional and not (self.draft.folder / name).exists()

    def _put_finished_file(self, name: str) -> Mapping[str, Any]:
        """Move or upload a finished file from its temporary folder to its place.

        Args:
            name: Name of the file, in both folders.

        Returns:
            What the receipt, the list of the output's files, says about the file, such as
            `{"bytes": 80, "sha256": "9f86..."}`.
        """
        path = self.draft.folder / name
        size = path.stat().st_size
        put_in_folder(
            path,
            self.delivery.folder,
            name,
            sha256=self.draft.sha256_by_name.get(name),
            is_new=name in self.missing_names,  # known to replace no file, which saves a request
        )
        return self._entry(name, size)

    def _entry(self, name: str, size: int | None) -> Mapping[str, Any]:
        """Return what the receipt of an output says about one of its files.

        A receipt is a small JSON file next to the output. It lists the files, so that a later call
        notices if one was changed since.

        Args:
            name: Name of the file, which is in its place.
            size: Bytes of the file, or None to look them up.

        Returns:
            For example {"bytes": 80, "sha256": "9f86…"}.
        """
        return entry_of(
            self.delivery.folder,
            name,
            size=size,
            sha256=self.draft.sha256_by_name.get(name),
            has_etag_or_time=self.delivery.receipt.has_etag_or_time,
        )


@contextmanager
def replaced_file(target: Location) -> Iterator[Path]:
    """Yield a path to write a new version of a file to, and replace the file if the block succeeds.

        with replaced_file(Path("data/web.pbin")) as path:   # a path in a temporary folder
            path.write_bytes(...)                            # readers still find the old file
        # data/web.pbin is the new file

    Args:
        target: The file that is replaced, on this machine or in a bucket.

    Yields:
        A path in a temporary folder on this machine.

    Raises:
        StorageError: The folder cannot be written to, or is full.
    """
    folder = target.parent
    with writing_into(folder), draft_folder(folder, target.name, [target.name]) as draft:
        new_file = draft / target.name
        yield new_file
        put_in_folder(new_file, folder, target.name)
        make_durable(folder)


class MadeFile(NamedTuple):
    """The result of a call that makes a file once."""

    facts: Mapping[str, Any]
    """What the function that wrote the file returned, now or when the file was made."""
    is_made_now: bool
    """Whether this call has made the file; False if it existed already."""


def make_once(
    command: str,
    target: Location,
    sources: Iterable[Location],
    options: Mapping[str, Any],
    make: Callable[[Path], Mapping[str, Any]],
    *,
    overwrite: bool = False,
) -> MadeFile:
    """Make a file, unless the same call has made it already.

    A user runs `nanoset pbin merge a.pbin b.pbin` a second time. If neither the inputs nor the
    settings have changed, nothing is to be done: a receipt next to the output, a hidden JSON file,
    says what made it. The receipt also has the facts about the output, such as counts, which the
    command prints.

    Args:
        command: The call's name, such as `pbin merge`.
        target: The file.
        sources: The files that it is made from, in order.
        options: The settings that decide its bytes.
        make: Writes the file to the path that it is passed; returns facts, as plain values.
        overwrite: Whether another file in its place may be replaced.

    Returns:
        The facts that `make` returned, now or earlier, and whether the file was made now.

    Raises:
        ConfigError: The target is a source, or another file that may not be replaced.
        StorageError: The target cannot be written.
    """
    # Two calls are the same if they have the same command, sources and options.
    source_paths = list(sources)
    made_from = describe_call(command, target, source_paths, options)
    delivery = Delivery.of_file(target, made_from, inputs=source_paths)
    receipt = delivery.find(overwrite=overwrite)
    if receipt is not None:
        return MadeFile(receipt["facts"], is_made_now=False)

    with delivery.drafting(overwrite=overwrite) as draft:
        facts = make(draft.folder / target.name)
        draft.facts = facts
    return MadeFile(facts, is_made_now=True)
