"""Fixtures that more than one room uses."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from helpers.locations import GOLDEN_FILES
from helpers.sample_project import tokenizer_json, write_project

# The same examples in every run, so that a red suite is red for a reason; HYPOTHESIS_PROFILE=search
# looks for new ones.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


ROOMS = ("assets", "storage", "tokenization/bpe")
"""Rooms whose tests share what takes long to make: one worker runs all of a room. Of others it runs
all of a file.
"""
LONGEST = [
    "storage",
    "assets",
    "tokenization/bpe",
    "deploy/test_postgres.py",
    "end_to_end/test_build.py",
    "faults/test_commands.py",
    "faults/test_interruptions.py",
    "golden_outputs/test_requests.py",
    "faults/test_campaign.py",
]
"""The groups of tests that take longest, first."""


def pytest_configure(config: pytest.Config) -> None:
    """Workers take groups in the order in which they are collected, and not those of many tests
    first.
    """
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The groups that take longest come first: of two workers, neither is to be alone with one at
    the end.
    """
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(_group(item.path), len(ranks)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """`--dist loadfile`, with all files of some rooms taken as one."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class LoadRoomScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(config.rootpath / nodeid.partition("::")[0])

    return LoadRoomScheduling(config, log)


# whatever the environment says: three workers and each child would compile all again
sys.dont_write_bytecode = False
gc.disable()  # until the collection's end: what is imported and collected stays, and is much


def pytest_collection_finish() -> None:
    """What was imported stays: collecting garbage, as every command that fails does, need not look
    at it.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


def _group(file: Path) -> str:
    name = file.relative_to(Path(__file__).parent)
    return next((room for room in ROOMS if name.is_relative_to(room)), name.as_posix())


@pytest.fixture(scope="session")
def golden_tars() -> Path:
    """Tars that peers wrote, what their readers saw, and the contexts that tokshuf-rust makes."""
    return GOLDEN_FILES / "webdataset"


@pytest.fixture(scope="session", autouse=True)
def _alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What engines learn about tokenizers stays out of the user's cache folder, and Dagster reports
    nothing.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("DAGSTER_DISABLE_TELEMETRY", "1")
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """What tests write need not survive a power cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _same_engines() -> Iterator[None]:
    """`engine: auto` takes the same engine whether or not the extra `fast` is installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nanoset_core.tokenizers.engines.is_installed", lambda: False)
        yield


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE tokenizer trained on the test corpora."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_bytes(tokenizer_json(400, "web", "code", "books"))
    return path


@pytest.fixture
def make_project(tmp_path: Path, tokenizer_file: Path) -> Callable[..., Path]:
    """Writes a project into a folder; → its nanoset.yaml."""

    def make(name: str = "project", replacements: dict[str, str] | None = None) -> Path:
        return write_project(tmp_path / name, tokenizer_file, replacements)

    return make


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An S3Store below a prefix of a new bucket."""
    from helpers import s3_server

    with s3_server.s3_server() as endpoint:
        for name, value in s3_server.CREDENTIALS.items():
            monkeypatch.setenv(name, value)
        yield s3_server.new_bucket(endpoint, "some/prefix")
