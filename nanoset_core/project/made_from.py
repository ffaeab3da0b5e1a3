"""Find what a version of an output was made from.

`nanoset gc` keeps what needed versions were made from, and `nanoset purge` erases what was made
from certain documents. Both follow the same connections between versions, in opposite directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.stages.registry import stage_of


class VersionSources(NamedTuple):
    """The other versions that a version was made from or refers to, by their digests."""

    parents: Sequence[str] = ()
    """Those that its recipe names, such as the dataset for a selection of documents."""
    references: Sequence[str] = ()
    """Those that only its stage can find, such as the list of the shards of a dataset."""

    @property
    def digests(self) -> list[str]:
        """All of them."""
        return [*self.parents, *self.references]


def sources_of(root: OutputRoot, manifest: Manifest) -> VersionSources:
    """Return what a version (a build of an output) was made from or refers to, directly.

    The recipe of a version names what it was made from, its parents. A few outputs have references
    to further ones in their files. For example:

        version                    parents                references
        view (some documents)      dataset 3f9c…          none
        list of shards             list of raw files      the shards (tokenized pieces of text)

    Args:
        root: The output folder of the project.
        manifest: Manifest of the version. It must not be that of a shard, which is made from raw
            text alone.
    """
    parents = [str(digest) for digest in manifest.recipe["parents"].values()]
    stage = stage_of(manifest.stage, manifest.name)  # the code that makes outputs of its kind
    if stage is None:  # a kind that this version of nanoset does not have
        return VersionSources(parents)
    references = list(stage.references(root, manifest))
    return VersionSources(parents, references)
