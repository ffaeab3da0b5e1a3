"""The sample project as Dagster's daemon sees it.

Sensors are evaluated, and their requests carried out, in the process of the test.
"""

from __future__ import annotations

import os
import shutil
import time
from collections import defaultdict
from pathlib import Path

import dagster as dg

from nanoset_assets import raw_text_sensor, stale_sensor
from nanoset_assets.build import BuildReport, build
from nanoset_assets.definitions import build_definitions
from nanoset_assets.project_defs import ProjectDefs
from nanoset_core.project.project import Project
from nanoset_core.project.settings import load_config
from nanoset_core.stages.inventory.corpora import corpus_names
from nanoset_core.stages.inventory.make import survey_corpus


def age(folder: Path, seconds: float = 3600.0) -> None:
    """Let every file below a folder look as if it had been written some seconds ago."""
    then = time.time_ns() - int(seconds * 1e9)
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, ns=(then, then))


class Platform:
    """A project with its history, and the daemon: it evaluates sensors and carries out requests."""

    def __init__(self, config_file: Path, instance: dg.DagsterInstance) -> None:
        self.config_file, self.instance = config_file, instance
        self.cursor: str | None = None
        self.asked_for: list[dg.RunRequest] = []
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
        with (
            dg.build_sensor_context(
                instance=self.instance, cursor=cursor, repository_def=self._repository
            ) as context,
            dg.partition_loading_context(dynamic_partitions_store=self.instance),
        ):
            return self._repository.get_sensor_def(self.names.definition(sensor)).evaluate_tick(
                context
            )

    def look(self):
        """Evaluate the sensor of raw text once; partitions that it requests are added, but no run
        starts.
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

    def asked(self) -> dict[str, str]:
        """Evaluate the sensor of raw text; return the run keys that it requests, by corpus."""
        return {
            request.partition_key: request.run_key for request in self.look().run_requests or []
        }

    def run(self, request, *, raises: bool = True) -> dg.ExecuteInProcessResult:
        return self.definitions.resolve_job_def(self.names.definition("corpus")).execute_in_process(
            instance=self.instance,
            partition_key=request.partition_key,
            tags={**request.tags, "dagster/run_key": request.run_key},
            raise_on_error=raises,
        )

    def tick(self) -> list[str]:
        """Evaluate the sensor of raw text, carry out its runs, and return their corpora."""
        done = self.look().run_requests or []
        for request in done:
            assert self.run(request).success
        return sorted(request.partition_key for request in done)

    def automation(self) -> dict[str, set[str | None]]:
        """Evaluate the sensor of stale outputs; return the partitions that it requests, by asset."""
        tick = self.evaluate(stale_sensor.SENSOR)
        self.asked_for = tick.run_requests or []
        asked: dict[str, set[str | None]] = defaultdict(set)
        for request in self.asked_for:
            for key in request.asset_selection:
                asked[key.to_user_string()].add(request.partition_key)
        return dict(asked)

    def carry_out(
        self, asked: dict[str, set[str | None]] | None = None, *, raises: bool = True
    ) -> None:
        """Carry out what the last tick requested, as the daemon does.

        Args:
            asked: Partitions by asset to materialise instead, as a person does in the UI.
            raises: Whether the error of a step is raised.
        """
        by_hand = [
            dg.RunRequest(partition_key=part, asset_selection=[dg.AssetKey.from_user_string(asset)])
            for asset, partitions in (asked or {}).items()
            for part in sorted(partitions, key=str)
        ]
        for request in self.asked_for if asked is None else by_hand:
            self.definitions.resolve_job_def(request.job_name or "__ASSET_JOB").execute_in_process(
                instance=self.instance,
                partition_key=request.partition_key,
                asset_selection=list(request.asset_selection),
                tags=request.tags,
                raise_on_error=raises,
            )

    def follow(self) -> list[dict[str, set[str | None]]]:
        """Evaluate the sensor of stale outputs and carry out its requests until there are none."""
        ticks = []
        while asked := self.automation():
            ticks.append(asked)
            assert len(ticks) < 10, f"it does not come to rest: {ticks}"
            self.carry_out()
        return ticks


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
        survey_corpus(project, corpus)  # a copied file is another one to the memory of digests
    return project.config.file
