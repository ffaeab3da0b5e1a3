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
from nanoset_core.errors import MissingError, NanosetError, StaleError
from nanoset_core.outputs.failed_checks import record_success
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.graph.nodes import is_requested
from nanoset_core.project.permission import check_allowed
from nanoset_core.project.project import Project
from nanoset_core.stages.stage import Key, Node, Stage, Summary, settings_warnings
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
    started: float = field(default_factory=time.monotonic)
    """When the run started, by the monotonic clock."""
    seconds: float = 0.0
    """How long it took to make the output, once it is made."""
    manifest: Manifest | None = None
    """The manifest of the output, once it is made."""
    summary: Summary | None = None
    """What `nanoset status` shows of the output, once it is made: its size, warnings and so on.

    A page that needs it sets it, so that it is computed once.
    """

    @property
    def node(self) -> Node:
        """The output that the run makes."""
        return Node(self.stage, self.key)

    @property
    def _is_requested(self) -> bool:
        """Whether nanoset.yaml still requests the output: it may have been changed meanwhile."""
        return is_requested(self.project.config, self.node)

    @property
    def is_automatic(self) -> bool:
        """Whether a sensor or the schedule requested the run, and not a person.

        Sensors and the schedule add a tag to each run that they request.
        """
        tags = self.context.run.tags
        return self.project_defs.names.tag(RAW_TAG) in tags or AUTOMATION_TAG in tags

    def make(self) -> Manifest:
        """Make the output as its stage (its step of the pipeline) does, and return its manifest.

        The manifest is the file that lists what is in the output's folder, with the digest of each
        file.

        Raises:
            NanosetError: The output could not be made.
        """
        return self.finish(self.stage.make(self.project, self.key))

    def finish(self, manifest: Manifest) -> Manifest:
        """Note the manifest of the output that was just made, and how long it took.

        Both are shown in Dagster when the run ends, see `results`.

        Args:
            manifest: The manifest, which is the file that lists what is in the output's folder. It
                is also returned.
        """
        self.manifest = manifest
        self.seconds = time.monotonic() - self.started
        return manifest

    def results(self) -> Iterator[dg.MaterializeResult[Any]]:
        """Make the output of this run, and yield what Dagster is to record about it.

        Dagster calls this when somebody materialises an asset, such as the dataset of the text
        collection `web`.

        Yields:
            What Dagster records, at most once: nothing if the settings do not request the output.

        Raises:
            dg.Failure: The output could not be made.
        """
        self._warn_of_settings()
        self.project_defs.started(self.node)  # counts it: "3 of 71"
        page = self._make_output()
        if self.project.rebuild:
            self._forget_failed_check()
        if isinstance(page, dg.MaterializeResult):
            yield page  # it is complete already
        elif self.manifest is not None and self.summary is not None:
            for warning in self.summary.warnings:
                self.warn(warning)
            yield result(self.project, self.manifest, self.summary, self.seconds, metadata=page)
        # Otherwise nothing was made, because the settings do not request it.

    def _forget_failed_check(self) -> None:
        """Remove the record of an error in the files that this run has replaced.

        The quick check that follows would keep the record of a deep check, which reads every byte.
        If that check finds an error, it writes a record of its own.
        """
        outputs = self.project.outputs
        try:
            record_success(outputs, self.stage.layout.folder, self.node.name)
        except (NanosetError, OSError) as error:
            self.warn(f"the record of a failed check cannot be removed: {error}")

    def _warn_of_settings(self) -> None:
        """Log warnings about settings of the output that are allowed, but rarely intended.

        Settings of the output only exist if nanoset.yaml still requests it. The file may have been
        changed since Dagster showed the asset. In this case nothing is logged: making the output
        will fail, and report the reason.
        """
        config = self.project.config
        if self._is_requested:
            for warning in settings_warnings(self.stage, config, self.key):
                self.warn(warning)

    def _make_output(self) -> Mapping[str, Any] | dg.MaterializeResult[Any]:
        """Make the output; if this fails, note the error for `nanoset build`.

        The command `nanoset build` reads the list `project_defs.failures`: it prints the errors of
        all outputs, but Dagster would only report that a run has failed.

        Returns:
            What Dagster's web page shows of the output, such as its size.

        Raises:
            dg.Failure: The output could not be made, for a reason that the user can correct: the
                text says how. Dagster's web page shows the text.
            Exception: The output could not be made for another reason, such as a fault of nanoset.
        """
        try:
            return self._make_allowed_output()
        except Exception as error:
            self.project_defs.failures.append((self.node, error))
            if isinstance(error, NanosetError):
                raise failure(self._with_remedy_for_input(error)) from error
            raise

    def _make_allowed_output(self) -> Mapping[str, Any] | dg.MaterializeResult[Any]:
        """Make the output unless the settings forbid it, and return what the web page shows of it.

        For example, they may forbid to make the files for a training run if it would read documents
        that contain texts of evaluations. The settings may also have stopped requesting the output:
        then making it fails, and the error says so.

        Raises:
            NanosetError: The output is forbidden, or could not be made.
        """
        if self._is_requested:
            check_allowed(self.project, self.node, self.project_defs.passed_checks)
        make_output_and_page = self.make_page  # each kind of output has a function for this
        page = make_output_and_page(self)
        # A page that is a complete result is that of a part of an output, without a summary.
        is_complete = isinstance(page, dg.MaterializeResult)
        if self.manifest is not None and self.summary is None and not is_complete:
            self.summary = self.stage.show(self.project, self.manifest)
        return page

    def _with_remedy_for_input(self, error: NanosetError) -> NanosetError:
        """Return an error; if an input is missing or out of date, add how to make the input.

        For example, a split of a data mixture is made from the dataset of `web`. If the user has
        not made that yet, the error gets this remedy:

            run `nanoset build`, or materialise indexed_dataset [web] first

        Args:
            error: The error with which the output of this run could not be made.
        """
        # Imported here, since names come from the table of assets, which imports this module.
        from nanoset_assets.assets.output_names import label_of

        if not isinstance(error, MissingError | StaleError) or error.where is None:
            return error
        for input_node in self.node.inputs(self.project.config).values():
            if self._is_in_folder_of(input_node, error.where):
                remedy = f"run `nanoset build`, or materialise {label_of(input_node)} first"
                return error.at(error.where, remedy)
        return error

    def _is_in_folder_of(self, node: Node, place: str) -> bool:
        """Return whether an error is about an output: the folder of its versions, or one of them.

            folder of the output    place of the error           result
            /out/datasets/web       /out/datasets/web            True
            /out/datasets/web       /out/datasets/web/5f0c…      True
            /out/datasets/web       /out/datasets/web_long       False

        Args:
            node: The output.
            place: Path or URL that the error names.
        """
        outputs = self.project.outputs
        url = outputs.access.url(outputs.folder / node.path)
        return place == url or place.startswith(f"{url}/")

    def warn(self, text: str) -> None:
        """Write a warning into the run's log.

        Args:
            text: The warning. Secrets and invisible characters in it are hidden.
        """
        self.context.log.warning(visible(text))


PageMaker = Callable[[AssetRun], Mapping[str, Any] | dg.MaterializeResult[Any]]
"""A function that makes an output and returns its metadata, or the whole materialisation."""
