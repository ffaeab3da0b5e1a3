"""Where the tars of one call go: a local folder, which appears by a rename, or a folder of a
bucket.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

from nanoset_core.errors import ConfigError, FormatError
from nanoset_core.outputs.manifest import MANIFEST, Manifest, Recipe, read_manifest
from nanoset_core.outputs.recorded import OutputPlace, flag_differences
from nanoset_core.stages.webdataset.lists import LISTS
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import fsync_folder, move_into_place, sweep_abandoned
from nanoset_core.storage.location import Location

STAGE = "webdatasets"
_PUBLISHING = ".begun"
"""Object that marks a folder of a bucket to which a call publishes, or was publishing when it was
killed.
"""
_FLAGS = {
    "sequence_length": "--seqlen",
    "samples_per_shard": "--wds-chunk-size",
    "text_key": "--json-key",
}
"""Options whose flags have other names."""


@dataclass(frozen=True, slots=True)
class TarsFolder:
    """Where the tars of one call go, with their lists and manifest."""

    folder: Path
    """As `access` names it."""
    draft: Path
    """Where they are written first; in a bucket a folder of the output's name."""
    access: FileAccess
    output: Location
    """The folder, as the user names it."""

    @property
    def place(self) -> OutputPlace:
        return OutputPlace(self.output)

    def names(self) -> frozenset[str] | None:
        """Return the names of what is in it; None if it is no folder."""
        if isinstance(self.output, Path) and self.output.exists() and not self.output.is_dir():
            return None
        return self.access.names(self.folder) - {_PUBLISHING}

    def manifest(self) -> Manifest | None:
        """Return the manifest of the result that it holds.

        Raises:
            FormatError: The manifest is none of ours.
        """
        return read_manifest(self.folder, self.access)

    def interrupted(self) -> str | None:
        """Return the digest of the result that a call was publishing to a bucket when it was
        killed.
        """
        if isinstance(self.output, Path):
            return None
        data = self.place.store.read(_PUBLISHING)
        if data is None:
            return None
        return data.decode(errors="replace")

    def forget_interruption(self) -> None:
        """Remove what `interrupted` reads."""
        self.place.store.delete(_PUBLISHING)

    def check_may_write(self, recipe: Recipe, *, overwrite: bool) -> None:
        """Check that a result may be put here.

        Args:
            recipe: Of the result.
            overwrite: Whether the result of other input or settings may be replaced.

        Raises:
            ConfigError: The folder holds something else.
        """
        # Nothing is lost if the folder is missing or empty.
        names = self.names()
        if names is not None and not names:
            return
        earlier: Manifest | None = None
        with contextlib.suppress(FormatError):
            earlier = self.manifest()
        if earlier is not None and earlier.stage == STAGE:
            if not overwrite:
                self._check_not_replaced(earlier, names or frozenset(), recipe)
            return

        # Tars without a manifest are ours if a call was publishing them.
        interrupted = self.interrupted()
        if interrupted is not None and (overwrite or interrupted == recipe.digest):
            return
        raise ConfigError(
            "there is something else already",
            where=self.output,
            expected="no such folder, an empty one, or an earlier result",
            remedy="give another --output, or remove it",
        )

    def _check_not_replaced(self, earlier: Manifest, names: frozenset[str], recipe: Recipe) -> None:
        """Check that an earlier result is of the same input and settings, and that there are no
        other files.
        """
        if earlier.digest != recipe.digest:
            differences: list[str] = []
            if earlier.recipe["parents"] != recipe.parents:
                differences.append(
                    "it was made from other files, or they were moved or rewritten since"
                )
            differences += flag_differences(
                earlier.recipe["options"], recipe.to_json()["options"], _FLAGS
            )
            raise ConfigError(
                "an output of other input or settings exists already",
                where=self.output,
                found="; ".join(differences) or "it was made under another name",
                remedy="name another --output, or replace this one with --overwrite",
            )
        foreign = sorted(names - {MANIFEST, *earlier.files})
        if foreign:
            raise ConfigError(
                "the output is damaged, and rebuilding it would remove other files in its folder",
                where=self.output,
                found=", ".join(foreign[:5]),
                remedy="move them elsewhere, or replace everything in the folder with --overwrite",
            )

    def publish(self, manifest: Manifest) -> Manifest:
        """Put the draft in place of an earlier result, and return its manifest there.

        A local folder is replaced by a rename. To a bucket the tars are sent first, then the lists
        that name them, and the manifest last.
        """
        if isinstance(self.output, Path):
            fsync_folder(self.draft)
            # What a killed call had moved away.
            sweep_abandoned(self.output.parent, self.output.name)
            move_into_place(self.draft, self.output)
            return replace(manifest, folder=self.output)
        return self._publish_to_bucket(manifest)

    def _publish_to_bucket(self, manifest: Manifest) -> Manifest:
        store = self.place.store
        earlier: Manifest | None = None
        with contextlib.suppress(ValueError):
            earlier = self.manifest()

        # From here on the folder is neither the old result nor the new one: readers must find no
        # list.
        store.put(_PUBLISHING, manifest.digest.encode())
        for name in (MANIFEST, *LISTS):
            store.delete(name)

        # Tars, then the lists that name them, then the manifest.
        access = self.access.with_copies_in(self.draft.parent)
        sha256_by_name = {name: fact.sha256 for name, fact in manifest.files.items()}
        tars: dict[Path, str] = {}
        for name, sha256 in sha256_by_name.items():
            if name not in LISTS and sha256 is not None:
                tars[self.draft / name] = sha256
        access.send(tars, tars)
        access.publish(self.draft, sha256_by_name, MANIFEST)

        # Files of the earlier result that the new one does not have.
        old_names = set() if earlier is None else earlier.files.keys() - sha256_by_name.keys()
        for name in old_names:
            store.delete(name)
        self.forget_interruption()
        return replace(manifest, access=access)
