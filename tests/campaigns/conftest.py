"""Fixtures of all tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from campaigns.runner import run_campaign as run_with_options
from helpers.dagster_history import quick_history  # noqa: F401 - of the builds of campaigns
from helpers.sample_project import tokenizer_json
from nanoset_core.stages.shards.one_shard import engine_choice

RunCampaign = Callable[..., tuple[list[dict[str, Any]], str]]


@pytest.fixture(scope="session")
def run_campaign(tmp_path_factory: pytest.TempPathFactory) -> RunCampaign:
    """A function like that of `campaigns.runner`, of campaigns that know their tokenizer already.

    To examine the tokenizer takes longer than most of a campaign.
    """
    folder = tmp_path_factory.mktemp("known")
    (folder / "tokenizer.json").write_bytes(tokenizer_json())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        engine_choice(folder / "tokenizer.json", "auto")

    def run(
        current_folder: Path, campaign: str, *options: str, code: int | None = 0
    ) -> tuple[list[dict[str, Any]], str]:
        cache_options = ("--cache", str(folder / "cache"))
        return run_with_options(current_folder, campaign, *cache_options, *options, code=code)

    return run
