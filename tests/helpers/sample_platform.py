"""The sample project as Dagster's daemon sees it.

Sensors are evaluated, and their requests carried out, in the process of the test.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg

from nanoset_assets.automation import raw_text_sensor, stale_sensor
from nanoset_assets.build.builder import BuildReport, build
from nanoset_assets.definitions import build_definitions
from nanoset_assets.project_defs import ProjectDefs
from nanoset_assets.tags import CHECK
from nanoset_core.project.project import Project
from nanoset_core.project.settings import load_config
from nanoset_core.stages.inventory.corpora import corpus_names
from nanoset_core.stages.inventory.make import survey_corpus


def age(folder: Path, seconds: float = 3600.0) -> None:
    """Let every file below a folder look as if it had been written some seconds ago."""
    modified_at = time.time_ns() - int(seconds * 1e9)
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, ns=(modified_at, modified_at))


class Platform:
    """A project with its history, and the daemon: it evaluates sensors and carries out requests."""

    def __init__(self, config_file: Path, instance: dg.DagsterInstance) -> None:
        """Load the definitions of a project.

        Args:
            config_file: The nanoset.yaml of the project.
            instance: Its history.
        """
        self.config_file = config_file
        self.instance = instance
        self.cursor: str | None = None
        """The cursor of the sensor over raw text."""
        self.stale_requests: list[dg.RunRequest] = []
        """The runs that the sensor of stale outputs has requested in its last tick."""
        self.load()

    def load(self) -> None:
        """Load the definitions again, as `dagster dev` does after a change of nanoset.yaml."""
        self.config = load_config(self.config_file)
        self.raw = self.config.raw_folder
        self.definitions = build_definitions(self.config)
        self._repository = self.definitions.get_repository_def()
        self.names = ProjectDefs.of(self.config).names

    def edit_settings(self, old: str, new: str) -> None:
        """Replace a text of nanoset.yaml, without loading the definitions again."""
        text = self.config_file.read_text()
        assert old in text
        self.config_file.write_text(text.replace(old, new))

    @property
    def corpora(self) -> set[str]:
        """The partitions of assets that every corpus has."""
        return set(self.instance.get_dynamic_partitions(self.names.corpora_name))

    def partitions(self, asset: str) -> set[str]:
        """Return the partitions of an asset that only some corpora have."""
        return set(self.instance.get_dynamic_partitions(self.names.path_name(asset)))

    def evaluate(self, sensor: str, cursor: str | None = None) -> dg.SensorResult:
        """Evaluate a sensor once, without carrying out what it requests."""
        definition = self._repository.get_sensor_def(self.names.definition(sensor))
        with (
            dg.build_sensor_context(
                instance=self.instance, cursor=cursor, repository_def=self._repository
            ) as context,
            dg.partition_loading_context(dynamic_partitions_store=self.instance),
        ):
            return definition.evaluate_tick(context)

    # Raw text

    def look(self) -> Any:
        """Evaluate the sensor over raw text once, and return its tick.

        Partitions that it requests are added and deleted, but no run is started.
        """
        tick = self.evaluate(raw_text_sensor.SENSOR, self.cursor)
        self.cursor = tick.cursor
        for request in tick.dynamic_partitions_requests or []:
            if isinstance(request, dg.AddDynamicPartitionsRequest):
                self.instance.add_dynamic_partitions(
                    request.partitions_def_name, request.partition_keys
                )
            else:
                for name in request.partition_keys:
                    self.instance.delete_dynamic_partition(request.partitions_def_name, name)
        return tick

    def requested_run_keys(self) -> dict[str, str]:
        """Evaluate the sensor over raw text; return the run keys that it requests, by corpus."""
        requests = self.look().run_requests or []
        return {request.partition_key: request.run_key for request in requests}

    def run(self, request: dg.RunRequest, *, raises: bool = True) -> dg.ExecuteInProcessResult:
        """Carry out a request to build a corpus.

        Args:
            request: The request.
            raises: Whether the error of a step is raised.
        """
        job = self.definitions.resolve_job_def(self.names.definition("corpus"))
        return job.execute_in_process(
            instance=self.instance,
            partition_key=request.partition_key,
            tags={**request.tags, "dagster/run_key": request.run_key},
            raise_on_error=raises,
        )

    def tick(self) -> list[str]:
        """Evaluate the sensor over raw text, carry out its runs, and return their corpora."""
        requests = self.look().run_requests or []
        for request in requests:
            assert self.run(request).success
        return sorted(request.partition_key for request in requests)

    def check_dataset(self, corpus: str) -> dg.AssetCheckEvaluation:
        """Run only the check of the dataset of a corpus, as a person does in the UI."""
        key = dg.AssetCheckKey(dg.AssetKey("indexed_dataset"), CHECK)
        job = self.definitions.resolve_job_def(self.names.definition("corpus"))
        check_job = job.get_subset(asset_check_selection={key}, asset_selection=set())
        result = check_job.execute_in_process(
            instance=self.instance, partition_key=corpus, raise_on_error=False
        )
        (evaluation,) = result.get_asset_check_evaluations()
        return evaluation

    # Missing and stale outputs

    def automation(self) -> dict[str, set[str | None]]:
        """Evaluate the sensor of stale outputs; return the partitions that it requests, by asset."""
        tick = self.evaluate(stale_sensor.SENSOR)
        self.stale_requests = list(tick.run_requests or [])
        partitions_by_asset: dict[str, set[str | None]] = defaultdict(set)
        for request in self.stale_requests:
            for key in request.asset_selection or ():
                partitions_by_asset[key.to_user_string()].add(request.partition_key)
        return dict(partitions_by_asset)

    def carry_out(
        self,
        partitions_by_asset: dict[str, set[str | None]] | None = None,
        *,
        raises: bool = True,
    ) -> None:
        """Carry out what the last tick requested, as the daemon does.

        Args:
            partitions_by_asset: Partitions to materialise instead, as a person does in the UI.
            raises: Whether the error of a step is raised.
        """
        requests = self.stale_requests
        if partitions_by_asset is not None:
            requests = _requests_of(partitions_by_asset)
        for request in requests:
            job = self.definitions.resolve_job_def(request.job_name or "__ASSET_JOB")
            job.execute_in_process(
                instance=self.instance,
                partition_key=request.partition_key,
                asset_selection=list(request.asset_selection or ()),
                tags=request.tags,
                raise_on_error=raises,
            )

    def follow(self) -> list[dict[str, set[str | None]]]:
        """Evaluate the sensor of stale outputs and carry out its requests until there are none.

        Returns:
            The requested partitions by asset of each tick.
        """
        ticks: list[dict[str, set[str | None]]] = []
        requested = self.automation()
        while requested:
            ticks.append(requested)
            assert len(ticks) < 10, f"it requests outputs again and again: {ticks}"
            self.carry_out()
            requested = self.automation()
        return ticks


def _requests_of(partitions_by_asset: dict[str, set[str | None]]) -> list[dg.RunRequest]:
    """Return a request for each partition of some assets."""
    requests = []
    for asset, partitions in partitions_by_asset.items():
        selection = [dg.AssetKey.from_user_string(asset)]
        for partition in sorted(partitions, key=str):
            requests.append(dg.RunRequest(partition_key=partition, asset_selection=selection))
    return requests


def build_template(config_file: Path, home: Path) -> BuildReport:
    """Build a project with its history below `home`; tests take copies of both."""
    age(load_config(config_file).raw_folder)
    home.mkdir()
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        report = build(Project.open(config_file), instance)
    assert not report.failed
    return report


def copy_template(template: Path, folder: Path) -> Path:
    """Copy a built project with its history, and return the nanoset.yaml of the copy.

    The digests of the copied raw files are remembered, so that nothing is hashed in the test.
    """
    shutil.copytree(template, folder, symlinks=True)
    project = Project.open(folder / "nanoset.yaml")
    for corpus in corpus_names(project):
        survey_corpus(project, corpus)  # digests are remembered by inode, and a copy has another
    return project.config.file


@contextmanager
def open_copy(template: Path, folder: Path) -> Iterator[Platform]:
    """Copy a built project with its history into a new folder, and open both."""
    config_file = copy_template(template, folder)
    with dg.DagsterInstance.local_temp(str(folder / "home")) as instance:
        yield Platform(config_file, instance)
