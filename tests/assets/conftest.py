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
from helpers.sample_platform import Platform, build_template, copy_template
from helpers.sample_project import CONFIG, write_raw
from nanoset_core.stages.dataset import verify as verifying


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
    config_file = copy_template(template, tmp_path / "project")
    with dg.DagsterInstance.local_temp(str(tmp_path / "project" / "home")) as instance:
        yield Platform(config_file, instance)


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance of Dagster with an empty history."""
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as opened:
        yield opened


@pytest.fixture
def spoiling(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[None]]:
    """A context in which every merge leaves a token outside of the vocabulary, as a bad disk may."""
    real = verifying.verify_pair

    def spoiled(prefix: Path, **options: Any) -> Any:
        path = Path(f"{prefix}.bin")
        path.write_bytes(struct.pack("<H", 9999) + path.read_bytes()[2:])
        return real(prefix, **options)

    @contextmanager
    def spoil() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(verifying, "verify_pair", spoiled)
            yield

    return spoil
