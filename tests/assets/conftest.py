"""A project that is built once; each test gets a copy."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from helpers.dagster_history import quick_history  # noqa: F401 - for all tests of this folder
from helpers.sample_platform import Platform, build_template, open_copy
from helpers.sample_project import CONFIG, write_raw
from nanoset_core.stages.dataset import verify as verifying

UNKNOWN_TOKEN = 9999
"""A token that is not in the vocabulary of the sample project's tokenizer."""


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> Path:
    """The folder of a built project, with its history in `home`."""
    folder = tmp_path_factory.mktemp("template") / "project"
    write_raw(folder / "raw")
    (folder / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    (folder / "nanoset.yaml").write_text(CONFIG + "pbin: [code]\n")
    build_template(folder / "nanoset.yaml", folder / "home")
    return folder


@pytest.fixture
def built_platform(template: Path, tmp_path: Path) -> Iterator[Platform]:
    """A built project as Dagster's daemon sees it."""
    with open_copy(template, tmp_path / "project") as platform:
        yield platform


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance of Dagster with an empty history."""
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as opened:
        yield opened


@pytest.fixture(scope="session")
def spoil_merges() -> Callable[[], AbstractContextManager[None]]:
    """A function whose context spoils a token of every dataset that is verified, as a bad disk may.

    The token is written just before a check reads the dataset, and after the merge has committed
    it, so that only the check can notice it.
    """
    verify_pair = verifying.verify_pair

    def verify_spoiled_pair(prefix: Path, **options: Any) -> Any:
        tokens_path = Path(f"{prefix}.bin")
        content = tokens_path.read_bytes()
        tokens_path.write_bytes(struct.pack("<H", UNKNOWN_TOKEN) + content[2:])
        return verify_pair(prefix, **options)

    @contextmanager
    def spoil() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(verifying, "verify_pair", verify_spoiled_pair)
            yield

    return spoil


@pytest.fixture
def call_during_checks(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """A function that lets each check of a dataset call another function before it ends."""
    verify_pair = verifying.verify_pair

    def call_during(function: Callable[[], object]) -> None:
        def verify_pair_and_call(prefix: Path, **options: Any) -> Any:
            function()
            return verify_pair(prefix, **options)

        monkeypatch.setattr(verifying, "verify_pair", verify_pair_and_call)

    return call_during
