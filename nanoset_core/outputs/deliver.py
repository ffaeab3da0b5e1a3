"""Deliver finished files to a place outside an output root.

Within an output root, `OutputRoot.commit` publishes outputs. This module does it everywhere else:
for the files of `nanoset pbin`, `export`, `merge` and `tokenize`, for example, which may be written
to any folder of this machine or of a bucket. Nobody else watches over that folder. So each output
has a *receipt* there, which says what made the output, and which files belong to it; see
`nanoset_core/outputs/receipts.py`. It serves two purposes:

- A call that is repeated finds its output complete, and does nothing.
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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError
from nanoset_core.outputs.apart import check_apart
from nanoset_core.outputs.drafts import Draft, draft_folder, put_in_folder, writing_into
from nanoset_core.outputs.receipt_entries import change_of, entry_of
from nanoset_core.outputs.receipts import (
    Receipt,
    StoredReceipt,
    read_receipt,
    receipt_differences,
    record_name,
    record_of,
)
from nanoset_core.storage.atomic import alone_in, atomic_file, fsync_folder
from nanoset_core.storage.location import Location, RemoteFolder, store_of
from nanoset_core.storage.store import Store, in_parallel

_REMEDY = "name another output, or replace this one with --overwrite"
"""What to do about an output that this call must not replace."""
_EXPECTED = "no such file, or one that the same call made"
"""What this call may replace."""


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
    completing: tuple[str, ...] = ()
    """Those of `files` without which readers find no output. They must be the last ones of `files`.

    They are removed before any other file is replaced. A single file is replaced at once, so that
    it need not be listed here.
    """
    inputs: tuple[Location, ...] = ()
    """Files that the output is made from, which must not be replaced by it."""
    apart_remedy: str = "name another output"
    """What the error says to do if an input would be replaced."""
    is_hashed: bool = False
    """Whether the receipt stores the sha256 of the files instead of their times of change."""
    keeps_equal: bool = False
    """Whether the files of another call stay, if it has delivered the same output meanwhile."""
    compares_sizes: bool = False
    """Whether a repeated call compares only the sizes of the files with the receipt."""
    is_resumable: bool = False
    """Whether `Draft.writers` keep files that an interrupted call has put in place.

    Then all files of other calls are removed first, so that none is kept by mistake.
    """

    @classmethod
    def of_file(
        cls,
        target: Location,
        made_from: Mapping[str, Any],
        optional: Iterable[str] = (),
        inputs: Iterable[Location] = (),
    ) -> Delivery:
        """Return a delivery of one file, with a hidden record.

        Args:
            target: The file.
            made_from: Everything that decides its bytes; see `record_of`.
            optional: Names of files that may be made in addition.
            inputs: Files that it is made from.
        """
        return cls(
            folder=target.parent,
            receipt=Receipt(name=record_name(target.name), made_from=made_from),
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
        """Return the receipt in the folder of the output, or None if it has none.

        An opening receipt comes first: it says that a call began to replace the files. A file of
        the same name that has none of the keys of the receipt is something else, and is ignored.
        """
        for name in (self.receipt.opening_name, self.receipt.name):
            stored = None if name is None else read_receipt(self.folder / name)
            if stored is not None and not stored.content.keys().isdisjoint(self.receipt.made_from):
                return stored
        return None

    def find(self, *, overwrite: bool = False) -> Mapping[str, Any] | None:
        """Find out whether the same call has delivered this output already.

        Args:
            overwrite: Whether other files in the place of the output may be replaced.

        Returns:
            The content of the receipt if the output is complete; None if it has to be made.

        Raises:
            ConfigError: There are other files, and `overwrite` is not set; or an input would be
                replaced, or a folder has the name of a file.
        """
        outputs = [self.folder / name for name in self.names]
        check_apart(outputs, self.inputs, remedy=self.apart_remedy)
        return self.find_apart(overwrite=overwrite)

    def find_apart(self, *, overwrite: bool) -> Mapping[str, Any] | None:
        """Find out whether the same call has delivered this output already.

        Unlike `find`, it does not check that no input would be replaced, which takes long if there
        are very many inputs.

        Args:
            overwrite: Whether other files in the place of the output may be replaced.

        Returns:
            The content of the receipt if the output is complete; None if it has to be made.

        Raises:
            ConfigError: There are other files, and `overwrite` is not set; or a folder has the name
                of a file.
        """
        self._check_no_folders()
        store = self.store
        existing = [name for name in self.names if store.stat(name) is not None]

        # Files without a receipt of the same call belong to another call or program.
        stored = self.stored_receipt()
        if stored is None or not stored.is_of(self.receipt):
            if existing and not overwrite:
                raise self._occupied(existing[0], stored)
            return None
        entries = stored.files
        if entries is None:
            return None  # The same call was killed while it delivered the files.

        # The output is complete if all its files exist, and none of those that the receipt lists
        # has changed. Other files are no reason to write anything: receipts of older versions do
        # not list the rejected lines.
        changes = self._changes(existing, entries)
        has_all_files = set(self.files).issubset(existing)
        has_changed_listed_file = any(name in entries for name in changes)
        if has_all_files and not has_changed_listed_file:
            return stored.content
        if changes and not overwrite:
            name, change = next(iter(changes.items()))
            raise ConfigError(
                "the output was changed since it was made",
                where=self.folder / name,
                found=change,
                remedy=_REMEDY,
            )
        return None

    def _check_no_folders(self) -> None:
        """Raise ConfigError if a local folder has the name of one of the files."""
        for name in (*self.names, self.receipt.name):
            path = self.folder / name
            # In a bucket, an object may have the name of a folder.
            if isinstance(path, Path) and path.is_dir():
                raise ConfigError(
                    "a folder of this name already exists",
                    where=path,
                    remedy="name another output",
                )

    def _changes(
        self, existing: Iterable[str], entries: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, str]:
        """Return the existing files that differ from the receipt, each with what has changed.

        Args:
            existing: Names of the files of this output that exist.
            entries: The receipt's entry of each file, by name.
        """
        changes = {}
        for name in existing:
            change: str | None = f"{name} was not there when the others were made"
            if name in entries:
                change = change_of(self.store, name, entries[name], by_size=self.compares_sizes)
            if change is not None:
                changes[name] = change
        return changes

    def _occupied(self, name: str, stored: StoredReceipt | None) -> ConfigError:
        """Return the error for a file that this call did not make, and must not replace.

        Args:
            name: Name of the file.
            stored: The receipt in its folder; None if there is none.
        """
        if stored is None:
            what = "a file exists already, and nothing says what it was made from"
            found = f"no {self.receipt.name} next to it"
        else:
            what = "an output of other input or settings exists already"
            found = "; ".join(receipt_differences(stored.content, self.receipt))
        return ConfigError(
            what,
            where=self.folder / name,
            found=found,
            expected=_EXPECTED,
            remedy=_REMEDY,
        )

    @contextmanager
    def drafting(self, *, overwrite: bool = False, sweeps: bool = True) -> Iterator[Draft]:
        """Yield a draft to write the files into, and deliver them if the block succeeds.

        Args:
            overwrite: Whether other files in their place may be replaced.
            sweeps: Whether drafts of killed processes are removed first, for which the whole folder
                is listed.

        Raises:
            ConfigError: There are other files, or another call made some in the meantime, and
                `overwrite` is not set.
            StorageError: The folder cannot be written to, or is full.
        """
        with writing_into(self.folder):
            self.find_apart(overwrite=overwrite)
            swept_names = (self.files[-1], self.receipt.name) if sweeps else ()
            with draft_folder(self.folder, self.files[-1], swept_names) as folder:
                draft = Draft(folder)
                yield draft
                deliver(draft, self, overwrite=overwrite)


def deliver(draft: Draft, delivery: Delivery, *, overwrite: bool = False) -> None:
    """Put the files of a draft in their places, and write their receipt last.

    Args:
        draft: The finished files.
        delivery: Where they go, and what they were made from.
        overwrite: Whether other files in their place may be replaced.

    Raises:
        ConfigError: There are other files in their place, and `overwrite` is not set.
        StorageError: Another call has replaced a file in the meantime.
    """
    # Hash the files before the folder is locked, since it takes long.
    if delivery.is_hashed:
        draft.hash_files(delivery.names)

    # A local folder is locked against other processes of this machine; a bucket has no locks.
    folder = delivery.folder
    with ExitStack() as stack:
        if isinstance(folder, Path):
            stack.enter_context(alone_in(folder))
        existing = delivery.find_apart(overwrite=overwrite)
        if existing is None or not delivery.keeps_equal:
            put_files_in_place(draft, delivery)


def put_files_in_place(draft: Draft, delivery: Delivery) -> None:
    """Deliver the files of a draft without checking which files they replace.

    The steps, and why they have this order, are described at the top of this module.

    Args:
        draft: The finished files.
        delivery: Where they go, and what they were made from.

    Raises:
        StorageError: Another call has replaced a file in the meantime.
    """
    store = delivery.store
    receipt = delivery.receipt
    missing_names: frozenset[str] = frozenset()  # names of files that are known not to exist
    if delivery.is_resumable:
        missing_names = _remove_files_of_other_calls(delivery)

    # From here on, readers must find no complete output until all files are in place.
    _put_opening_receipt(delivery)
    if receipt.opening_name is not None:
        store.delete(receipt.name)
    for name in delivery.completing:
        store.delete(name)

    # The files that complete the output come last.
    other_names = [name for name in delivery.files if name not in delivery.completing]
    first_names = [*delivery.optional, *other_names]
    entries = _put_files(draft, delivery, first_names, missing_names)
    entries |= _put_files(draft, delivery, delivery.completing, missing_names)

    # The receipt lists the files in the order of the delivery.
    files = {name: entries[name] for name in delivery.names if name in entries}
    # On this machine, this also makes all renames durable, in the order in which they were done.
    store.put(receipt.name, receipt.closing(files, draft.facts, draft.more))
    if receipt.opening_name is not None:
        store.delete(receipt.opening_name)


def _put_opening_receipt(delivery: Delivery) -> None:
    """Write the opening receipt, which says that a call has begun to put its files in place."""
    receipt = delivery.receipt
    name = receipt.opening_name or receipt.name
    if isinstance(delivery.folder, RemoteFolder):
        delivery.store.put(name, receipt.opening())
        return
    # The folder is made durable with the final receipt: it would take long to do that twice for
    # each of many small outputs.
    with atomic_file(delivery.folder / name, sync=False) as file:
        file.write(receipt.opening())


def _remove_files_of_other_calls(delivery: Delivery) -> frozenset[str]:
    """Remove the files in the place of an output, unless this call can continue with them.

    It can if they are those of an interrupted call that has written the same receipt.

    Returns:
        Names of the files of the delivery that do not exist now.
    """
    store = delivery.store
    _, file_names = store.level()
    present_names = set(file_names)

    # The same call was interrupted if its opening receipt exists, which lists no files.
    stored = delivery.stored_receipt()
    if stored is not None and stored.files is None and stored.is_of(delivery.receipt):
        return frozenset(delivery.names).difference(present_names)

    # Otherwise remove all files of the output, and those that the receipt of another call lists.
    earlier_names = () if stored is None else stored.files or ()
    for name in dict.fromkeys([*delivery.completing, *delivery.names, *earlier_names]):
        if name in present_names:
            store.delete(name)
    return frozenset(delivery.names)


def _put_files(
    draft: Draft, delivery: Delivery, names: Sequence[str], missing_names: frozenset[str]
) -> dict[str, Mapping[str, Any]]:
    """Put some files of a draft in place, and remove those that were not made.

    Args:
        draft: The files.
        delivery: Where they go.
        names: Names of the files to put in place.
        missing_names: Names of files that are known not to be in that place.

    Returns:
        Name of each file → its entry of the receipt.
    """

    def put(name: str) -> Mapping[str, Any] | None:
        """Put one file in place, and return its entry."""
        return _put_file(draft, delivery, name, is_new=name in missing_names)

    # Uploads take long, so several run at once. Writers depend on those before them.
    if isinstance(delivery.folder, RemoteFolder) and not draft.writers:
        entries = in_parallel(put, names)
    else:
        entries = [put(name) for name in names]
    entry_by_name = zip(names, entries, strict=True)
    return {name: entry for name, entry in entry_by_name if entry is not None}


def _put_file(
    draft: Draft, delivery: Delivery, name: str, *, is_new: bool
) -> Mapping[str, Any] | None:
    """Put one file of a draft in place, or remove an earlier one if it was not made.

    Args:
        draft: The files.
        delivery: Where they go.
        name: Name of the file.
        is_new: Whether it is known that there is no such file in that place.

    Returns:
        Its entry of the receipt; None if it was not made.
    """
    folder = delivery.folder
    sha256 = draft.sha256_by_name.get(name)
    has_marks = delivery.receipt.has_marks
    if name in draft.writers:
        write_in_place = draft.writers[name]
        write_in_place()
        # The writer does not say how many bytes it has written: the store is asked.
        return entry_of(folder, name, size=None, sha256=sha256, has_marks=has_marks)

    path = draft.folder / name
    if name in delivery.optional and not path.exists():
        delivery.store.delete(name)
        return None
    size = path.stat().st_size
    put_in_folder(path, folder, name, sha256, is_new=is_new)
    return entry_of(folder, name, size=size, sha256=sha256, has_marks=has_marks)


@contextmanager
def replaced_file(target: Location) -> Iterator[Path]:
    """Yield a path to write a file to, which replaces another one at once if the block succeeds.

    No receipt is written: this is for commands that change a file of the user in place.

    Args:
        target: The file that is replaced, on this machine or in a bucket.

    Raises:
        StorageError: The folder cannot be written to, or is full.
    """
    folder = target.parent
    with writing_into(folder), draft_folder(folder, target.name, [target.name]) as draft:
        yield draft / target.name
        put_in_folder(draft / target.name, folder, target.name)
        if isinstance(folder, Path):
            fsync_folder(folder)


def make_once(
    command: str,
    target: Location,
    sources: Iterable[Location],
    options: Mapping[str, Any],
    make: Callable[[Path], Mapping[str, Any]],
    *,
    overwrite: bool = False,
) -> tuple[Mapping[str, Any], bool]:
    """Make a file, unless the same call has made it already.

    Args:
        command: The call's name, such as `pack merge`.
        target: The file.
        sources: The files that it is made from, in order.
        options: The settings that decide its bytes.
        make: Writes the file to the path that it is passed; returns facts, as plain values.
        overwrite: Whether another file in its place may be replaced.

    Returns:
        The facts that `make` returned, now or earlier, and whether the file was made now.

    Raises:
        ConfigError: The target is one of the sources, or another file is in its place and may not
            be replaced.
        StorageError: The target cannot be written.
    """
    source_paths = list(sources)
    made_from = record_of(command, target, source_paths, options)
    delivery = Delivery.of_file(target, made_from, inputs=source_paths)

    record = delivery.find(overwrite=overwrite)
    if record is not None:
        return record["facts"], False
    with delivery.drafting(overwrite=overwrite) as draft:
        facts = make(draft.folder / target.name)
        draft.facts = facts
    return facts, True
