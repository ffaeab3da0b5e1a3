"""Execute a run of an asset: make an output, and yield its materialisation.

A run for the partition `web` of the asset `indexed_dataset`, for example, calls the stage that
makes the dataset of `web`, and records in Dagster its digest, size and time, and the metadata of
its page. A *page* is a function that makes an output and returns what the UI shows of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from nanoset_assets.project_defs import ProjectDefs
from nanoset_assets.tags import AUTOMATION_TAG, RAW_TAG
from nanoset_assets.ui.metadata import failure, result
from nanoset_core.errors import MissingError, NanosetError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.stage import Key, Node, Stage, settings_warnings
from nanoset_core.untrusted import visible


@dataclass(slots=True)
class AssetRun:
    """One run of an asset, or of one partition of it."""

    context: dg.AssetExecutionContext
    project_defs: ProjectDefs
    project: Project
    """The project with its current configuration."""
    stage: Stage
    key: Key
    make_page: PageMaker
    """Makes the output, and returns the metadata that the UI shows on the page of the asset."""
    input_label: Callable[[Node], str]
    """Returns the asset and partition of an input, for messages."""
    started: float = field(default_factory=time.monotonic)
    """When the run started, by the monotonic clock."""
    seconds: float = 0.0
    """How long it took to make the output, once it is made."""
    manifest: Manifest | None = None
    """The manifest of the output, once it is made."""

    @property
    def node(self) -> Node:
        """The output that the run makes."""
        return Node(self.stage, self.key)

    @property
    def is_automatic(self) -> bool:
        """Whether a sensor or the schedule requested the run, and not a person."""
        tags = self.context.run.tags
        return self.project_defs.names.tag(RAW_TAG) in tags or AUTOMATION_TAG in tags

    def make(self) -> Manifest:
        """Make the output as its stage does, and return its manifest.

        Raises:
            NanosetError: The output could not be made.
        """
        return self.finish(self.stage.make(self.project, self.key))

    def finish(self, manifest: Manifest) -> Manifest:
        """Record that the output is made, and how long that took; return its manifest.

        Args:
            manifest: The manifest of the output, which `results` records in Dagster.
        """
        self.manifest = manifest
        self.seconds = time.monotonic() - self.started
        return manifest

    def results(self) -> Iterator[dg.MaterializeResult[Any]]:
        """Make the output, and yield its materialisation; nothing if there was nothing to make.

        Yields:
            What Dagster records and shows of the run, at most once.

        Raises:
            dg.Failure: The output could not be made.
        """
        self._warn_of_settings()
        self.project_defs.started(self.node)
        metadata = self._make_page()  # makes the output; the metadata is for Dagster's UI
        if isinstance(metadata, dg.MaterializeResult):
            yield metadata  # a stage without manifests has made the materialisation itself
            return
        # The stage has called `finish` with the manifest of the output, unless it made none.
        if self.manifest is not None:
            yield result(self.project, self.manifest, self.seconds, metadata=metadata)

    def _warn_of_settings(self) -> None:
        """Log warnings on the settings of the output.

        It has no settings if nanoset.yaml, which may have changed, no longer requests it. Then
        making it raises an error.
        """
        config = self.project.config
        is_requested = self.key in self.stage.keys(config, (self.key.subject,))
        if is_requested:
            for warning in settings_warnings(self.stage, config, self.key):
                self.warn(warning)

    def _make_page(self) -> Mapping[str, Any] | dg.MaterializeResult[Any]:
        """Make the output, and return its metadata for Dagster's UI, or a complete result.

        Raises:
            dg.Failure: The output could not be made, for a reason that the user can correct.
            Exception: It could not be made for another reason.
        """
        try:
            return self.make_page(self)
        except Exception as error:
            # `nanoset build` reports this error; Dagster's own says only that the run failed.
            self.project_defs.failures.append((self.node, error))
            if isinstance(error, NanosetError):
                raise failure(self._with_missing_input(error)) from error
            raise

    def _with_missing_input(self, error: NanosetError) -> NanosetError:
        """Return an error that also names the asset to make first, if it is about a missing input.

        Args:
            error: The error with which the output could not be made.
        """
        if not isinstance(error, MissingError):
            return error
        # If an input is missing, `error.where` is its folder. Find the input with this folder.
        outputs = self.project.outputs
        for input_node in self.node.inputs(self.project.config).values():
            folder = outputs.folder / input_node.stage.layout.folder / input_node.name
            if error.where == outputs.access.url(folder):
                asset_label = self.input_label(input_node)  # such as "indexed_dataset [web]"
                remedy = f"run `nanoset build`, or materialise {asset_label} first"
                return error.at(error.where, remedy)
        return error

    def warn(self, text: str) -> None:
        """Write a warning into the run's log.

        Args:
            text: The warning. Secrets and invisible characters in it are hidden.
        """
        self.context.log.warning(visible(text))


PageMaker = Callable[[AssetRun], Mapping[str, Any] | dg.MaterializeResult[Any]]
"""A function that makes an output and returns its metadata, or the whole materialisation."""
