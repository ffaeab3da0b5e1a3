"""The output folder of `nanoset shuffle`, on this machine or in a bucket.

The tars are written to another folder first. A local output is then replaced by a rename, at once.
In a bucket there is no rename, so the order of the uploads makes sure that readers find either a
complete output or none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError, FormatError
from nanoset_core.outputs.deliver import Delivery, Draft, put_files_in_place
from nanoset_core.outputs.manifest import (
    MANIFEST,
    Manifest,
    Recipe,
    StoredManifest,
    read_manifest,
)
from nanoset_core.outputs.receipts import Receipt, flag_differences, parse_receipt
from nanoset_core.records.json_records import load, to_plain
from nanoset_core.stages.webdataset.lists import LISTS
from nanoset_core.stages.webdataset.names import FOLDER
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import fsync_folder, move_into_place, sweep_abandoned
from nanoset_core.storage.location import Location, store_of
from nanoset_core.storage.places import is_file_in_the_way
from nanoset_core.storage.regular_files import read_regular

_UPLOAD_NOTE = ".begun"
"""Object in a bucket's folder while a call uploads the output to it.

It says what the output is made from, and remains if the call is killed.
"""
_KEYS_OF_RECIPE = ("nanoset", "digest", "recipe")
"""Keys of a manifest that say what the output is made from."""
_FLAGS = {
    "sequence_length": "--seqlen",
    "samples_per_shard": "--wds-chunk-size",
    "text_key": "--json-key",
}
"""Name of an option in a recipe → its flag, if the flag has another name."""


@dataclass(frozen=True, slots=True)
class TarsFolder:
    """Folder of the tars of one call, with their lists and manifest."""

    folder: Path
    """Path of the folder for `access`."""
    draft: Path
    """Folder on this machine where the tars are written first."""
    access: FileAccess
    """Access to the folder, which may be in a bucket."""
    output: Location
    """The folder as the user named it."""

    def names(self) -> frozenset[str] | None:
        """Return the names of the files in the folder, or None if the path is not a folder.

        Returns:
            The names, without that of the note on an unfinished upload; empty if the folder does
            not exist.
        """
        if is_file_in_the_way(self.output):
            return None
        return self.access.names(self.folder) - {_UPLOAD_NOTE}

    def manifest(self) -> Manifest | None:
        """Return the manifest in the folder, or None if there is none.

        Raises:
            FormatError: The file is not a manifest of ours.
        """
        return read_manifest(self.folder, self.access)

    def unfinished_upload(self) -> str | None:
        """Return which result was being uploaded to a bucket when a call was killed, or None.

        A call writes a note into the folder before it uploads tar files, and deletes it at the end.
        The note has a digest of the input and settings, such as "3f2a…", which is returned. By it,
        the same call can later continue.
        """
        if not self.access.takes_requests:
            return None  # on this machine, a finished folder appears at once, by a rename
        note = store_of(self.output).read(_UPLOAD_NOTE)
        if note is None:
            return None  # no upload was interrupted
        receipt = parse_receipt(note)  # the note as a record, which is JSON
        if receipt is None:
            # Older versions wrote the digest alone, which is not JSON.
            return note.decode(errors="replace")
        return str(receipt.content.get("digest"))

    def forget_unfinished_upload(self) -> None:
        """Remove the note that `unfinished_upload` reads."""
        store_of(self.output).delete(_UPLOAD_NOTE)

    def check_may_write(self, recipe: Recipe, *, overwrite: bool) -> None:
        """Check that the output folder has nothing that a user would lose if it were written anew.

        A folder may be written if it is empty, or if this command has made its content: from the
        same input and settings, or if the user allows to replace it.

        Args:
            recipe: Input and settings of the new result.
            overwrite: Whether the user allows to replace a result of other input or settings.

        Raises:
            ConfigError: It may not be written.
        """
        names = self.names()
        if names is None:
            raise self._occupied_error()  # there is a file instead of a folder
        if len(names) == 0:
            return
        earlier = self._earlier_result()
        if earlier is None:
            self._check_is_unfinished_upload(recipe, overwrite=overwrite)
        elif not overwrite:  # otherwise the user allows to remove other files, too
            self._check_not_replaced(earlier, names, recipe)

    def _check_is_unfinished_upload(self, recipe: Recipe, *, overwrite: bool) -> None:
        """Check that the folder has only tars that a killed call has uploaded to a bucket.

        Args:
            recipe: Input and settings of the new result, which must be those of the killed call.
            overwrite: Whether they may be others.

        Raises:
            ConfigError: The folder has other files.
        """
        uploaded_digest = self.unfinished_upload()  # of the input and settings of the killed call
        if uploaded_digest is None:
            raise self._occupied_error()
        if uploaded_digest != recipe.digest and not overwrite:
            raise self._occupied_error()

    def _occupied_error(self) -> ConfigError:
        """Return the error for an output folder that has files of somebody else."""
        return ConfigError(
            "there is something else already",
            where=self.output,
            expected="no such folder, an empty one, or an earlier result",
            remedy="give another --output, or remove it",
        )

    def _earlier_result(self) -> Manifest | None:
        """Return the manifest in the folder, or None if it has none of a shuffle."""
        with contextlib.suppress(FormatError):
            manifest = self.manifest()
            if manifest is not None and manifest.stage == FOLDER:
                return manifest
        return None

    def _check_not_replaced(self, earlier: Manifest, names: frozenset[str], recipe: Recipe) -> None:
        """Check that writing the output anew loses nothing that is in its folder.

        An earlier result is in the folder, and the user does not allow to replace it. These things
        would be lost:

        - The earlier result, if it was made from other input or with other settings.
        - Files that somebody else has put into the folder, such as notes.txt.

        Args:
            earlier: Record of the earlier result, with the names of its files.
            names: Names of all files in the folder.
            recipe: Input and settings of the new result.

        Raises:
            ConfigError: Something would be lost.
        """
        if earlier.digest != recipe.digest:
            raise ConfigError(
                "an output of other input or settings exists already",
                where=self.output,
                found="; ".join(_differences(earlier, recipe)),
                remedy="name another --output, or replace this one with --overwrite",
            )
        foreign_files = sorted(names - {MANIFEST, *earlier.files})
        if foreign_files:
            raise ConfigError(
                "the output is damaged, and rebuilding it would remove other files in its folder",
                where=self.output,
                found=", ".join(foreign_files[:5]),
                remedy="move them elsewhere, or replace everything in the folder with --overwrite",
            )

    def publish(self, manifest: Manifest) -> Manifest:
        """Move the finished tar files to the output folder, which replaces an earlier result.

        They were written to a draft folder on this machine.

        Args:
            manifest: The manifest in the draft folder: a record of its files.

        Returns:
            The manifest in its new place.
        """
        if self.access.takes_requests:  # the output is in a bucket
            self._upload(manifest)
            return replace(manifest, access=self.access)

        fsync_folder(self.draft)
        # Remove an earlier output that a killed call had moved away.
        sweep_abandoned(self.folder.parent, self.folder.name)
        move_into_place(self.draft, self.folder)
        return replace(manifest, folder=self.folder)

    def _upload(self, manifest: Manifest) -> None:
        """Upload the finished tar files to a bucket, and write a record of them at the end.

        The record is the file manifest.json. It must arrive last, since readers take it as the sign
        of a complete result. So it is not uploaded with the other files. `put_files_in_place`
        uploads these, and then writes a new manifest.json, with the same content as the draft's:

            "nanoset", "digest", "recipe"     what the result was made from (_KEYS_OF_RECIPE)
            "facts"                           counts, such as {"sequences": 8192, ...}
            "sha256"                          checksum of the manifest itself
            "files"                           the size and sha256 of each file

        Args:
            manifest: The manifest in the draft folder, with the files to upload.
        """
        path = self.draft / MANIFEST
        content = to_plain(load(StoredManifest, read_regular(path), where=path))

        draft = Draft(
            self.draft,
            facts=content["facts"],
            more={"sha256": content["sha256"]},  # a further key of the new manifest
            sha256_by_name=_known_sha256(manifest),
        )
        made_from = {key: content[key] for key in _KEYS_OF_RECIPE}
        put_files_in_place(draft, self._delivery(list(manifest.files), made_from))

    def _delivery(self, names: Sequence[str], made_from: Mapping[str, Any]) -> Delivery:
        """Return in which order tar files are uploaded, so that nobody reads half of a result.

        Data loaders find the tars by lists, such as index.json. So these steps follow each other:

            delete the lists of an earlier result, if there is one
            write a note that an upload has begun
            upload the tars, and then their lists
            write the manifest, which says that everything has arrived, and delete the note

        Args:
            names: Names of the tars, the lists and other files.
            made_from: What the tars are made from, such as {"digest": "3f2a…", ...}.
        """
        receipt = Receipt(
            opening_name=_UPLOAD_NOTE,  # the note
            name=MANIFEST,
            made_from=made_from,  # both files say this
            has_etag_or_time=False,  # the manifest has only the size and sha256 of files
            json_form=StoredManifest.json_form,  # how the manifest is written as JSON
        )
        lists = tuple(name for name in LISTS if name in names)
        tars_and_others = tuple(name for name in names if name not in lists)
        return Delivery(
            folder=self.output,
            receipt=receipt,
            completing_files=lists,  # are deleted first
            files=(*tars_and_others, *lists),  # are uploaded in this order
            resumes_interrupted=True,
        )


def _known_sha256(manifest: Manifest) -> dict[str, str]:
    """Return the sha256 of each file of a result for which the manifest has it, by file name."""
    known_sha256: dict[str, str] = {}
    for name, fact in manifest.files.items():
        if fact.sha256 is not None:
            known_sha256[name] = fact.sha256
    return known_sha256


def _differences(earlier: Manifest, recipe: Recipe) -> list[str]:
    """Return in words how an earlier result differs from the one that would be made now.

    For example, one message about the input files, if they were rewritten since, and one about each
    option with another value, such as --seed.

    Args:
        earlier: Record of the earlier result.
        recipe: Input and settings of the new result, which has another digest.

    Returns:
        At least one difference.
    """
    differences: list[str] = []
    if earlier.name != recipe.name:
        differences.append("it was made under another name")
    if earlier.recipe["parents"] != recipe.parents:
        differences.append("it was made from other files, or they were moved or rewritten since")
    differences += flag_differences(earlier.recipe["options"], recipe.options, _FLAGS)
    if not differences:
        differences.append("it was made by another version of nanoset")
    return differences
