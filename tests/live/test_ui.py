"""The real UI of `dagster dev` in a real browser: a partition is materialised by clicks."""

from __future__ import annotations

import time

import dagster as dg
import pytest
from live.browser import Browser, browsing, chromium
from live.dagster_dev import dagster_dev

from nanoset_assets.build.builder import build
from nanoset_assets.history.instance import dagster_home
from nanoset_core.project.project import Project

PAGE = "/assets/tokenized_shards?view=partitions&partition=books"
ATTEMPTS = 4
DIALOG_SECONDS = 1.5
"""How long a dialog moves after it has opened: a click next to it would close it."""
RUN_SECONDS = 45


@pytest.fixture
def project(make_project, tmp_path, monkeypatch) -> Project:
    """A project whose corpora are registered and listed, but not tokenized."""
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    settings = "raw: raw\nautomation: {enabled: false}\n"
    project = Project.open(make_project(replacements={"raw: raw\n": settings}))
    with dg.DagsterInstance.from_config(str(dagster_home(project.config))) as instance:
        assert not build(project, instance, select="raw_jsonl").failed
    return project


def materialise_by_clicks(browser: Browser, url: str) -> None:
    """Materialise the partition of a page; on a busy machine, that takes several attempts."""
    for attempt in range(1, ATTEMPTS + 1):
        browser.click_until("Materialize…", lambda: "Launch 1 run" in browser.text())
        time.sleep(DIALOG_SECONDS)
        browser.click("Launch 1 run")
        try:
            browser.wait_for("Materialized (1)", RUN_SECONDS)
        except TimeoutError:
            if attempt == ATTEMPTS:
                raise
            browser.open(url, "Materialize…")
        else:
            return


@pytest.mark.skipif(chromium() is None, reason="needs Chromium: apt-get install chromium")
def test_a_partition_is_materialised_by_clicks_and_its_page_shows_what_was_made(project, tmp_path):
    with (
        dagster_dev(project.config.file, tmp_path / "home", tmp_path / "dev.log") as address,
        browsing(chromium() or "", tmp_path) as browser,
    ):
        url = address + PAGE
        browser.open(url, "Materialize…", "Materialized (0)", "No metadata entries")

        materialise_by_clicks(browser, url)

        # The page of the partition.
        browser.open(url, "90 documents")
        text = browser.text()
        assert "0 of 90 lines rejected" in text
        assert "1 of 1 shard made" in text
        assert "token_lengths" in text

        # The page of its checks.
        browser.open(f"{address}/assets/tokenized_shards?view=checks", "verified", "Passed")

    assert project.outputs.current("tokenized", "books").facts["documents"] == 90
