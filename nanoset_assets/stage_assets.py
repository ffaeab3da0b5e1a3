"""The one frame of all assets: key, partitions and dependencies come from a stage, the rest from its page.

A page is a function that makes an output and tells what the UI shows of it. A stage without one gets a plain asset.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from nanoset_assets.failures import note_failure
from nanoset_assets.hosted import HostedProject
from nanoset_assets.names import Names
from nanoset_assets.partitions import dependencies_of, partitions_of
from nanoset_assets.running import open_in_run
from nanoset_assets.ui.metadata import result
from nanoset_core.config.project import ProjectConfig
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.pipeline.project import Project
from nanoset_core.pipeline.raw import INVENTORY
from nanoset_core.pipeline.stage import Key, Node, Stage

GROUP = "corpora"
"""Group of the assets whose partitions are corpora; others have their nanoset's or webdataset's."""


@dataclass(slots=True)
class Work:
    """One run of an asset, or of one partition of it."""

    context: dg.AssetExecutionContext
    names: Names
    project: Project
    stage: Stage
    key: Key
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    """From the start until the output was there."""
    manifest: Manifest | None = None
    """Of the output, once it is there."""

    def make(self) -> Manifest:
        """Make the output."""
        return self.made(self.stage.make(self.project, self.key))

    def made(self, manifest: Manifest) -> Manifest:
        """Take an output for the one that was to be made, and note how long it took."""
        self.manifest, self.seconds = manifest, time.monotonic() - self.started
        return manifest


Page = Callable[[Work], Mapping[str, Any] | dg.MaterializeResult[Any]]
"""Makes the output; returns the metadata, or the whole result where it is not that of a manifest."""
Details = Callable[[ProjectConfig, str], Mapping[str, Any]]
"""Configuration and subject → what else `dagster.asset` takes: description, kinds, tags, pool…"""
_pages: dict[Stage, tuple[Page, Details]] = {}


def page_of(stage: Stage, details: Details) -> Callable[[Page], Page]:
    """Let a function be the page of a stage's assets."""

    def register(page: Page) -> Page:
        _pages[stage] = page, details
        return page

    return register


def _plain(work: Work) -> Mapping[str, Any]:
    work.make()
    return {}


def _no_details(config: ProjectConfig, subject: str) -> Mapping[str, Any]:
    return {}


def subjects_of(stage: Stage, config: ProjectConfig) -> list[str]:
    """Subjects that have an asset of their own; "" stands for all corpora."""
    if stage.asset is None:
        return []
    subjects = dict.fromkeys(key.subject for key in stage.keys(config, ("",)))
    return list(subjects) if not stage.by_corpus else [""] * bool(subjects)


def live_place(stage: Stage, config: ProjectConfig, subject: str) -> str:
    """Where the live versions of an asset's outputs are, as nanoset.yaml said when it was loaded."""
    key = Key("<corpus>") if stage.by_corpus else Key(subject, "<split>")
    if stage is INVENTORY:
        return f"{config.raw_folder}/{key.subject}"
    if config.root_place is not None:
        return f"{config.root_place.url}/{stage.folder}/{stage.name(key)}/<digest>"
    return f"{config.root_folder}/{stage.folder}/{stage.name(key)}/current"


def stage_asset(stage: Stage, hosted: HostedProject, subject: str) -> dg.AssetsDefinition:
    """The asset of a stage: of one nanoset or webdataset, or of all corpora."""
    config, names = hosted.config, hosted.names
    page, details = _pages.get(stage, (_plain, _no_details))
    given = dict(details(config, subject))
    # Computed here, where the project lies now: what a run recorded stays as it was when the project is moved.
    given["metadata"] = {"dagster/uri": live_place(stage, config, subject)} | given.get("metadata", {})

    given["tags"] = {**given.get("tags", {}), **hosted.tags}
    if "pool" in given:
        given["pool"] = names.pool(given["pool"])

    decorate = dg.asset(
        key=names.asset(Node(stage, Key(subject)).asset),
        deps=dependencies_of(stage, hosted, subject),
        partitions_def=partitions_of(stage, hosted, subject),
        group_name=names.group(GROUP if stage.by_corpus else subject),
        code_version=str(stage.version),
        owners=list(hosted.owners),
        **given,
    )

    def asset(context: dg.AssetExecutionContext) -> Iterator[dg.MaterializeResult[Any]]:
        part = context.partition_key if context.has_partition_key else None
        key = Key(part or "") if stage.by_corpus else Key(subject, part)
        opened = open_in_run(hosted, context)
        # Where an output is required, making one that nanoset.yaml does not name says what it names instead.
        if not given.get("output_required", True) and key not in stage.keys(opened.config, (key.subject,)):
            context.log.info(f"{opened.config.file} does not ask for {Node(stage, key).label}: nothing to make")
            return
        work = Work(context, names, opened, stage, key)
        try:
            found = page(work)
        except Exception as error:
            note_failure(Node(stage, key), error)
            raise
        if isinstance(found, dg.MaterializeResult):
            yield found
        elif work.manifest is not None:
            yield result(opened, work.manifest, work.seconds, found)

    definition: dg.AssetsDefinition = decorate(asset)
    return definition
