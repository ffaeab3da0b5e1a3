"""Fixtures that several folders use, and the order in which workers run the tests."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from helpers.locations import GOLDEN_FILES
from helpers.sample_project import tokenizer_json, write_project

# Hypothesis draws the same examples in every run, so that a failure has a cause in the code. How long
# it takes to draw them depends on the machine, so it is not checked.
# HYPOTHESIS_PROFILE=search looks for new examples.
settings.register_profile(
    "same",
    max_examples=50,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("search", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


SHARING_FOLDERS = ("assets", "storage", "tokenizers/engines")
"""Folders whose tests share fixtures that take long to make.

One worker runs all tests of such a folder. Of other folders, one worker runs all tests of a file.
"""
LONGEST = [
    "storage",
    "assets",
    "tokenizers/engines",
    "deploy/test_postgres.py",
    "end_to_end/test_build.py",
    "campaigns/test_commands.py",
    "campaigns/test_interruptions.py",
    "golden_outputs/test_requests.py",
    "campaigns/test_campaign.py",
]
"""The groups of tests that take longest, the longest first."""


def pytest_configure(config: pytest.Config) -> None:
    """Let workers take groups in the order of collection, instead of those with many tests first."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let each worker begin the collection of a folder at another place.

    pytest compiles a file of tests when it is collected for the first time, which takes half of the
    collection. Workers that read the files in the same order would each compile all of them.
    """
    report = yield
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    worker_count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if isinstance(collector, pytest.Dir) and report.passed:
        start = len(report.result) * int(worker.removeprefix("gw")) // worker_count
        report.result = report.result[start:] + report.result[:start]
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the groups that take longest first, so that no worker is left with one at the end.

    All others are sorted by file: xdist demands the same order of all workers.
    """
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (ranks.get(_group(item.path), len(ranks)), item.path))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let `--dist loadfile` treat all files of some folders as one."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class LoadFolderScheduling(LoadScopeScheduling):
        """Gives all tests of a group to the same worker."""

        def _split_scope(self, nodeid: str) -> str:
            return _group(config.rootpath / nodeid.partition("::")[0])

    return LoadFolderScheduling(config, log)


# Even if the environment says otherwise: each worker and child process would compile all modules.
sys.dont_write_bytecode = False
# Modules that are imported during the collection of tests are never garbage.
gc.disable()


def pytest_collection_finish() -> None:
    """Exempt what was imported from garbage collection, which takes less time then.

    Every command that fails collects garbage. The little garbage of the imports is not collected
    before, since that takes a second in each worker.
    """
    gc.freeze()
    gc.enable()


@cache
def _group(file: Path) -> str:
    """Return the folder or file of tests that one worker runs."""
    name = file.relative_to(Path(__file__).parent)
    for folder in SHARING_FOLDERS:
        if name.is_relative_to(folder):
            return folder
    return name.as_posix()


@pytest.fixture(scope="session")
def golden_tars() -> Path:
    """The folder of tars that other tools wrote, and of what their readers returned."""
    return GOLDEN_FILES / "webdataset"


@pytest.fixture(scope="session", autouse=True)
def _alone(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[None]:
    """Keep tests out of the user's cache folder, and Dagster from sending telemetry.

    All workers have one cache folder: to compare the engines of a tokenizer takes some seconds.
    """
    folder = tmp_path_factory.getbasetemp()
    if hasattr(pytestconfig, "workerinput"):  # each worker has a folder below that of all workers
        folder = folder.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setenv("DAGSTER_DISABLE_TELEMETRY", "1")
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        yield


@pytest.fixture(autouse=True)
def _own_history() -> None:
    """Let each test use the history next to its nanoset.yaml.

    A build sets DAGSTER_HOME for the rest of its process, which would be the next test's as well.
    """
    os.environ.pop("DAGSTER_HOME", None)


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Do not wait for the disk: what tests write need not survive a power cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _same_engines() -> Iterator[None]:
    """Let `engine: auto` take the same engine whether or not the extra `fast` is installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nanoset_core.tokenizers.engines.is_installed", lambda: False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _one_processor() -> Iterator[None]:
    """Let commands start no workers unless a test asks for some, as on a machine with one processor.

    To start a worker takes longer than most of the work of a test.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda process_id: {0}, raising=False)
        yield


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a byte-level BPE tokenizer, trained on the corpora of the sample project."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_bytes(tokenizer_json(400, "web", "code", "books"))
    return path


@pytest.fixture
def make_project(tmp_path: Path, tokenizer_file: Path) -> Callable[..., Path]:
    """A function that writes the sample project and returns its nanoset.yaml."""

    def make(name: str = "project", replacements: dict[str, str] | None = None) -> Path:
        return write_project(tmp_path / name, tokenizer_file, replacements)

    return make


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A place below a prefix in a new bucket of a server in this process."""
    from helpers import s3_server

    with s3_server.s3_server() as endpoint:
        for name, value in s3_server.CREDENTIALS.items():
            monkeypatch.setenv(name, value)
        yield s3_server.new_bucket(endpoint, "some/prefix")
