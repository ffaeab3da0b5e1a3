"""The current version of an output, and whether a build would make another one.

Each output has a recipe: the digests of the outputs that it is made from, the version of its
algorithm, and the settings that can change its bytes. An output is stale if the recipe that made
its current version differs from the recipe that follows from nanoset.yaml. The differences are the
reasons that `nanoset status` prints, such as `seed: 7 → 8`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from nanoset_core.outputs.differences import Reason, differences, setting_differences
from nanoset_core.outputs.manifest import Manifest, Recipe

_NOT_BUILT = "not built yet"
"""Problem of an output that has no current version."""


@dataclass(frozen=True, slots=True)
class CurrentVersion:
    """The current version of an output, and what is wrong with it.

    There are four cases:

        output                              manifest    damage
        not built yet                       None        None
        built, and whole                    …           None
        a file is missing                   …           "web.bin is missing"
        current.json or the manifest is     None        "3f9c…/manifest.json is missing"
        missing or not valid
    """

    manifest: Manifest | None
    """Manifest of the current version; None if there is no version, or if it cannot be read."""
    damage: str | None = None
    """What is wrong with files of the version; None if they are whole, or there is no version."""
    error: Exception | None = field(default=None, compare=False)
    """Error that was raised while current.json or the manifest was read."""

    @property
    def made_at(self) -> float | None:
        """When the version was made, in seconds since 1970, or None if there is none."""
        return None if self.manifest is None else self.manifest.written_ns / 1e9

    @property
    def is_built(self) -> bool:
        """Whether there is a current version, even if it is damaged."""
        return self.manifest is not None or self.damage is not None

    @property
    def whole_manifest(self) -> Manifest | None:
        """Manifest of the current version; None if there is no version, or if it is damaged."""
        return self.manifest if self.damage is None else None

    @property
    def problem(self) -> str | None:
        """Why there is no whole version, for users: "not built yet" or "damaged: …"; or None."""
        if not self.is_built:
            return _NOT_BUILT
        return None if self.damage is None else f"damaged: {self.damage}"

    def reasons_to_replace(self, expected: Recipe) -> list[Reason]:
        """Return why an output has to be built again; nothing if it is up to date.

        The recipe of an output says what it is made from: the algorithm, settings and inputs. An
        output is up to date if it has the recipe that a build would use now, and all of its files:

            there is no version            "not built yet"
            another recipe                 "web changed" (an input), "seed: 7 → 8" (a setting)
            the same, but a file is lost   "tokens.bin is missing"

        Args:
            expected: The recipe that a build would use.
        """
        if self.manifest is None:
            return [Reason(self.problem or _NOT_BUILT)]
        if self.manifest.digest != expected.digest:
            return differences(self.manifest.recipe, expected)
        if self.problem is not None:
            return [Reason(self.problem)]
        return []

    def other_settings(self, expected: Recipe) -> list[str]:
        """Return which settings differ between this version and a recipe with the same inputs.

        If a user has only changed settings, and then changes them back, this version can be used
        again without a build. So the user is told what has changed.

        Args:
            expected: What a build would make now: from which inputs, and with which settings.

        Returns:
            Differences such as `seed: 7 → 8`. The list is empty if there is no version, or if other
            inputs were used, or if the output is made without inputs.
        """
        if self.manifest is None:
            return []
        recipe = self.manifest.recipe  # what this version was made from
        has_inputs = bool(expected.parents)  # name of each input → its digest
        if not has_inputs or recipe["parents"] != expected.parents:
            return []
        return setting_differences(recipe["options"], expected.options)
