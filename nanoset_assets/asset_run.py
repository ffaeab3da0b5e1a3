"""One run of an asset: it makes an output, and yields what the UI shows of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from nanoset_assets.hosted import ProjectDefs
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
    hosted: ProjectDefs
    project: Project
    """As it is configured now."""
    stage: Stage
    key: Key
    page: Page
    """Makes the output, and describes it for the UI."""
    input_label: Callable[[Node], str]
    """What messages call an input."""
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    """From the start until the output was made."""
    manifest: Manifest | None = None
    """Of the output, once it is made."""

    @property
    def node(self) -> Node:
        """The output."""
        return Node(self.stage, self.key)

    @property
    def is_automatic(self) -> bool:
        """Whether a sensor or the schedule requested the run, because of files that it saw."""
        tags = self.context.run.tags
        return self.hosted.names.tag(RAW_TAG) in tags or AUTOMATION_TAG in tags

    def make(self) -> Manifest:
        """Make the output as its stage does."""
        return self.finish(self.stage.make(self.project, self.key))

    def finish(self, manifest: Manifest) -> Manifest:
        """Note that the output is made, and how long that took; return its manifest."""
        self.manifest = manifest
        self.seconds = time.monotonic() - self.started
        return manifest

    def results(self) -> Iterator[dg.MaterializeResult[Any]]:
        """Make the output, and yield its materialisation.

        Raises:
            dg.Failure: It could not be made.
        """
        # If nanoset.yaml does not have the output any more, the stage fails below and says what it
        # has instead.
        config = self.project.config
        if self.key in self.stage.keys(config, (self.key.subject,)):
            for warning in settings_warnings(self.stage, config, self.key):
                self.warn(warning)
        self.hosted.started(self.node)
        try:
            shown = self.page(self)
        except Exception as error:
            self.hosted.failures.append((self.node, error))
            if isinstance(error, NanosetError):
                raise failure(self._with_missing_input(error)) from error
            raise

        if isinstance(shown, dg.MaterializeResult):
            yield shown
        elif self.manifest is not None:
            yield result(self.project, self.manifest, self.seconds, shown)

    def _with_missing_input(self, error: NanosetError) -> NanosetError:
        """Let the error about an input that was never made say which asset makes it."""
        if not isinstance(error, MissingError):
            return error
        outputs = self.project.outputs
        for node in self.node.inputs(self.project.config).values():
            folder = outputs.folder / node.stage.layout.folder / node.name
            if error.where == outputs.access.url(folder):
                label = self.input_label(node)
                return error.at(error.where, f"run `nanoset build`, or materialise {label} first")
        return error

    def warn(self, text: str) -> None:
        """Write a warning into the run's log."""
        self.context.log.warning(visible(text))


Page = Callable[[AssetRun], Mapping[str, Any] | dg.MaterializeResult[Any]]
"""Makes an output, and returns its metadata for the UI, or the whole materialisation."""
