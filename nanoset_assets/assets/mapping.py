"""<nanoset>/index_mappings, /blend and /handoff: the trainer's own index caches and files, made before it starts."""

from collections.abc import Mapping
from typing import Any

from nanoset_assets.stage_assets import Work, page_of
from nanoset_assets.ui.nanoset import handoff_metadata, split_metadata
from nanoset_core.config.nanoset import NanosetSpec
from nanoset_core.config.project import ProjectConfig
from nanoset_core.pipeline.handoff import TRAINER_FILES
from nanoset_core.pipeline.mapping import BLENDED, INDEX_MAPPINGS, split_of


def _mappings_details(config: ProjectConfig, name: str) -> Mapping[str, Any]:
    spec = config.nanosets[name]
    return {
        "kinds": {"numpy"},
        "tags": _tags(spec),
        "description": f"Document, sample and shuffle index of each corpus of {name}, for each split, under the "
        "trainer's cache names.",
    }


def _blend_details(config: ProjectConfig, name: str) -> Mapping[str, Any]:
    return {
        "kinds": {"numpy"},
        "tags": _tags(config.nanosets[name]),
        "description": f"Which corpus, and which of its samples, is the k-th sample of {name}: "
        "the trainer's blend indices, under its cache names.",
    }


def _handoff_details(config: ProjectConfig, name: str) -> Mapping[str, Any]:
    spec = config.nanosets[name]
    return {
        "kinds": {"file"},
        "tags": _tags(spec),
        "description": f"The files and arguments with which a trainer starts on {name}, and a check that every index "
        "file that it will look for is there.",
    }


@page_of(INDEX_MAPPINGS, _mappings_details)
@page_of(BLENDED, _blend_details)
def split(work: Work) -> Mapping[str, Any]:
    """Build one split's index mappings, or its blend, and show what it takes of each corpus."""
    manifest = work.make()
    return split_metadata(work.project, manifest, work.key.subject, split_of(work.key))


@page_of(TRAINER_FILES, _handoff_details)
def handoff(work: Work) -> Mapping[str, Any]:
    """Write the trainer's files, and show how it is started."""
    return handoff_metadata(work.project, work.make(), work.key.subject)


def _tags(spec: NanosetSpec) -> dict[str, str]:
    return {"nanoset/stage": "mapping", "nanoset/preset": spec.preset}
