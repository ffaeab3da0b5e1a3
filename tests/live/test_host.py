"""A host's own asset is materialised by clicking, and a project's corpus, blend and tars follow by
themselves.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import dagster as dg
import pytest
from live.browser import browsing, chromium
from live.dagster_dev import REPOSITORY, dagster_dev
from live.host import write_host

from helpers.daemons import until

PAGE = "/assets/lake/web_dedup"
FOLLOWING = [
    ["llm", "indexed_dataset"],
    ["llm", "pretrain", "blend"],
    ["llm", "pretrain", "handoff"],
    ["llm", "shuffled", "manifest"],
    ["report"],
]


@pytest.mark.skipif(chromium() is None, reason="needs Chromium: apt-get install chromium")
def test_everything_follows_a_click_on_the_hosts_asset(tokenizer_file, tmp_path):
    folder, home = tmp_path / "acme", tmp_path / "home"
    environment = write_host(folder, home, tokenizer_file.read_bytes())
    with (
        dagster_dev(
            folder, home, tmp_path / "dev.log", module="acme.definitions", more=environment
        ) as address,
        browsing(chromium() or "", tmp_path) as browser,
        dg.DagsterInstance.from_config(str(home)) as instance,
    ):
        browser.open(address + PAGE, "Materialize")
        # of what it depends on
        browser.click_until("Materialize", lambda: "Are you sure?" in browser.text())
        time.sleep(1.5)  # a dialog that still moves is missed
        browser.click_until(
            "Confirm", lambda: is_asked_for(instance, dg.AssetKey(["lake", "web_dedup"]))
        )
        until(
            lambda: all(made(instance, path) for path in FOLLOWING),
            400,
            lambda: (
                f"{[path for path in FOLLOWING if not made(instance, path)]} did not follow:\n"
                + (tmp_path / "dev.log").read_text()[-5000:]
            ),
        )
        time.sleep(5)
        runs = instance.get_runs()
        assert all(run.is_success for run in runs), [(run.job_name, run.status) for run in runs]
        mine = {run.job_name for run in runs if run.job_name.startswith(("llm", "small"))}
        assert mine == {"llm__corpus", "llm__pretrain", "llm__shuffled"}, (
            "the other project had no text to build"
        )
        assert instance.get_dynamic_partitions("small/corpora") == []
        assert set(instance.get_dynamic_partitions("llm/corpora")) == {"code", "web"}
        assert not made(instance, ["raw_jsonl"])
        assert not made(instance, ["model"])
        browser.open(f"{address}/assets/llm/pretrain/handoff", "Ready to train")
        browser.photograph(tmp_path / "handoff.png")


def made(instance, path):
    return instance.get_latest_materialization_event(dg.AssetKey(path)) is not None


def is_asked_for(instance, key):
    return any(key in (run.asset_selection or ()) for run in instance.get_runs())


def test_dagsters_own_commands_know_the_component(tokenizer_file, tmp_path):
    folder = tmp_path / "acme"
    environment = write_host(folder, tmp_path / "home", tokenizer_file.read_bytes())
    environment = {**os.environ, **environment, "DAGSTER_HOME": str(tmp_path / "home")}
    environment["PYTHONPATH"] += os.pathsep + str(REPOSITORY)

    def dg_says(*arguments: str) -> subprocess.CompletedProcess[str]:
        program = "from dagster_dg_cli.cli import main; main()"
        command = [sys.executable, "-c", program, *arguments]
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )

    for arguments in (["check", "yaml"], ["check", "defs"]):
        checked = dg_says(*arguments)
        assert checked.returncode == 0, checked.stdout + checked.stderr
    listed = dg_says("list", "defs", "--json")
    assert "llm/pretrain/handoff" in listed.stdout, listed.stdout + listed.stderr
    file = folder / "src/acme/defs/llm/defs.yaml"
    file.write_text(file.read_text().replace("sensor_seconds: 2", "sensor_secs: 2"))
    line = next(
        n for n, text in enumerate(file.read_text().splitlines(), 1) if "sensor_secs" in text
    )
    refused = dg_says("check", "yaml")
    assert refused.returncode == 1
    assert f"defs.yaml:{line}" in refused.stdout
