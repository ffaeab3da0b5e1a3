"""A project as a component in another team's code location ("host"), in the UI and on the command
line.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import dagster as dg
import pytest
from live.browser import browsing, chromium
from live.dagster_dev import REPOSITORY, dagster_dev
from live.host import write_host

from helpers.daemons import until

WEB_DEDUP = dg.AssetKey(["lake", "web_dedup"])
"""The asset of the host that lands the text of the corpus `web`."""
DOWNSTREAM = [
    dg.AssetKey(["llm", "indexed_dataset"]),
    dg.AssetKey(["llm", "pretrain", "blend"]),
    dg.AssetKey(["llm", "pretrain", "handoff"]),
    dg.AssetKey(["llm", "shuffled", "manifest"]),
    dg.AssetKey(["report"]),
]
"""Assets that are built automatically after it, by the project or by the host."""
BUILD_SECONDS = 400
QUIET_SECONDS = 5
"""How long to wait for runs that should not be started."""
DIALOG_SECONDS = 1.5
"""How long a dialog moves after it has opened, and clicks miss it."""


class Host(NamedTuple):
    """The files of a host, and its environment."""

    folder: Path
    home: Path
    environment: dict[str, str]


@pytest.fixture
def host(tokenizer_file, tmp_path) -> Host:
    """A host with two components, of which one has text of one corpus."""
    folder = tmp_path / "acme"
    home = tmp_path / "home"
    environment = write_host(folder, home, tokenizer_file.read_bytes())
    return Host(folder, home, environment)


# In the UI


def is_materialised(instance: dg.DagsterInstance, key: dg.AssetKey) -> bool:
    """Return whether an asset was materialised."""
    return instance.get_latest_materialization_event(key) is not None


def is_requested(instance: dg.DagsterInstance, key: dg.AssetKey) -> bool:
    """Return whether there is a run that materialises an asset."""
    return any(key in (run.asset_selection or ()) for run in instance.get_runs())


@pytest.mark.skipif(chromium() is None, reason="needs Chromium: apt-get install chromium")
def test_everything_downstream_is_built_after_a_click_on_an_asset_of_the_host(host, tmp_path):
    log = tmp_path / "dev.log"
    with (
        dagster_dev(
            host.folder,
            host.home,
            log,
            module="acme.definitions",
            environment=host.environment,
        ) as address,
        browsing(chromium() or "", tmp_path) as browser,
        dg.DagsterInstance.from_config(str(host.home)) as instance,
    ):
        # Materialise the asset that lands text; a dialog asks whether what it depends on is stale.
        browser.open(f"{address}/assets/lake/web_dedup", "Materialize")
        browser.click_until("Materialize", lambda: "Are you sure?" in browser.text())
        time.sleep(DIALOG_SECONDS)
        browser.click_until("Confirm", lambda: is_requested(instance, WEB_DEDUP))

        # Everything downstream is built without another click.
        def missing() -> list[str]:
            return [str(key) for key in DOWNSTREAM if not is_materialised(instance, key)]

        until(
            lambda: not missing(),
            BUILD_SECONDS,
            lambda: f"{missing()} were not built:\n{log.read_text()[-5000:]}",
        )

        # Nothing else is built: the other project has no text, and the host's own assets without
        # automation wait for a click.
        time.sleep(QUIET_SECONDS)
        runs = instance.get_runs()
        assert all(run.is_success for run in runs), [(run.job_name, run.status) for run in runs]
        jobs = {run.job_name for run in runs if run.job_name.startswith(("llm", "small"))}
        assert jobs == {"llm__corpus", "llm__pretrain", "llm__shuffled"}
        assert instance.get_dynamic_partitions("small/corpora") == []
        assert set(instance.get_dynamic_partitions("llm/corpora")) == {"code", "web"}
        assert not is_materialised(instance, dg.AssetKey("raw_jsonl"))
        assert not is_materialised(instance, dg.AssetKey("model"))

        # The page of the handoff says how to start the training.
        browser.open(f"{address}/assets/llm/pretrain/handoff", "Ready to train")
        browser.photograph(tmp_path / "handoff.png")


# On the command line


@pytest.fixture
def run_dg(host) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A function that runs Dagster's command `dg` in the folder of the host."""
    environment = os.environ | host.environment
    environment["DAGSTER_HOME"] = str(host.home)
    environment["PYTHONPATH"] = os.pathsep.join([host.environment["PYTHONPATH"], str(REPOSITORY)])

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        program = "from dagster_dg_cli.cli import main; main()"
        return subprocess.run(
            [sys.executable, "-c", program, *arguments],
            cwd=host.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.mark.parametrize("what", ["yaml", "defs"])
def test_dg_check_accepts_the_component(run_dg, what):
    process = run_dg("check", what)

    assert process.returncode == 0, process.stdout + process.stderr


def test_dg_list_defs_lists_the_assets_of_the_component(run_dg):
    process = run_dg("list", "defs", "--json")

    assert "llm/pretrain/handoff" in process.stdout, process.stdout + process.stderr


def test_dg_check_yaml_points_to_the_line_of_a_misspelt_key(host, run_dg):
    defs_file = host.folder / "src/acme/defs/llm/defs.yaml"
    text = defs_file.read_text().replace("sensor_seconds: 2", "sensor_secs: 2")
    defs_file.write_text(text)
    line_number = text.partition("sensor_secs")[0].count("\n") + 1

    process = run_dg("check", "yaml")

    assert process.returncode == 1
    assert f"defs.yaml:{line_number}" in process.stdout
