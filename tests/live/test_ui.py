"""The real UI, from `dagster dev`, in a real browser: a partition is materialised by clicking, and
its page read.
"""

from __future__ import annotations

import time

import dagster as dg
import pytest
from live.browser import browsing, chromium
from live.dagster_dev import dagster_dev

from nanoset_assets.build import build
from nanoset_assets.instance import dagster_home
from nanoset_core.project.project import Project

PAGE = "/assets/tokenized_shards?view=partitions&partition=books"


@pytest.fixture
def project(make_project, tmp_path, monkeypatch):
    """A project whose corpora are listed and registered, and nothing more."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    file = make_project(replacements={"raw: raw\n": "raw: raw\nautomation: {enabled: false}\n"})
    opened = Project.open(file)
    with dg.DagsterInstance.from_config(str(dagster_home(opened.config))) as instance:
        assert not build(opened, instance, select="raw_jsonl").failed
    return opened


@pytest.mark.skipif(chromium() is None, reason="needs Chromium: apt-get install chromium")
def test_a_partition_is_materialised_by_clicking(project, tmp_path):
    config = project.config.file
    with (
        dagster_dev(config, tmp_path / "home", tmp_path / "dev.log") as address,
        browsing(chromium() or "", tmp_path) as browser,
    ):
        browser.open(address + PAGE, "Materialize…", "Materialized (0)", "No metadata entries")
        for left in reversed(range(4)):
            browser.click_until("Materialize…", lambda: "Launch 1 run" in browser.text())
            time.sleep(1.5)  # a dialog that still moves is missed, and a click beside it closes it
            browser.click("Launch 1 run")
            try:
                browser.wait_for("Materialized (1)", 45)
                break
            except TimeoutError:
                if not left:
                    raise
                browser.open(address + PAGE, "Materialize…")
        browser.open(address + PAGE, "90 documents")
        assert "0 of 90 lines rejected" in browser.text()
        assert "1 of 1 shard made" in browser.text()
        assert "token_lengths" in browser.text()
        browser.open(f"{address}/assets/tokenized_shards?view=checks", "verified", "Passed")
    assert project.outputs.current("tokenized", "books").facts["documents"] == 90
