"""The current version of an output, whole or not."""

from __future__ import annotations

from dataclasses import dataclass

from nanoset_core.errors import FormatError
from nanoset_core.outputs.manifest import MANIFEST, Manifest, Recipe
from nanoset_core.pipeline.project import Project
from nanoset_core.versions.outputs import read_current
from nanoset_core.versions.reasons import differences


@dataclass(frozen=True, slots=True)
class Live:
    """What is there of an output."""

    manifest: Manifest | None
    """of the current version"""
    problem: str | None
    """why there is none, or what is wrong with it"""
    made_at: float | None
    """when it was made, seconds since 1970"""

    @property
    def exists(self) -> bool:
        """Whether a version was ever made current."""
        return self.problem != NOT_BUILT

    def why_not(self, wanted: Recipe) -> list[str]:
        """Why it is not the output of a recipe; [] where it is."""
        if self.manifest is None or (self.manifest.digest == wanted.digest and self.problem is not None):
            return [self.problem or NOT_BUILT]
        return [] if self.manifest.digest == wanted.digest else differences(self.manifest.recipe, wanted)


NOT_BUILT = "not built yet"


def live_version(project: Project, stage: str, name: str) -> Live:
    """The current version of an output."""
    folder = project.outputs.folder / stage / name
    digest, problem = read_current(folder, project.outputs.access)
    if digest is None:
        return Live(None, problem or NOT_BUILT, None)
    try:
        manifest = project.outputs.manifest_at(folder / digest)
    except FormatError as error:
        return Live(None, f"damaged: {error.where}: {error.what}", None)
    if manifest is None:
        return Live(None, f"damaged: {digest}/{MANIFEST} is missing", None)
    damage = manifest.damage()
    made_at = (manifest.folder / MANIFEST).stat().st_mtime
    return Live(manifest, None if damage is None else f"damaged: {damage}", made_at)
