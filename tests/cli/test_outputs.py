"""Where the output of a command cannot be written: one sentence with the place and what helps, and nothing half."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from sample_project import jsonl, sentences

from nanoset_core.cli import nanoset
from nanoset_core.errors import StorageError
from nanoset_core.indexed import MMapIndexedDatasetBuilder
from nanoset_core.packed import write_packed

COMMANDS = {
    "tokenize": "--input in/a.jsonl --output-prefix OUT/x --tokenizer in/tokenizer.json --workers 1",
    "tokenize with scratch": "--input in/a.jsonl --output-prefix out/x --scratch OUT --tokenizer in/tokenizer.json",
    "merge": "--input in/pairs --output-prefix OUT/x",
    "shuffle": "--input in/pairs/p --output OUT/x --seqlen 9 --workers 1",
    "shuffle with scratch": "--input in/pairs/p --output out/x --scratch OUT --seqlen 9 --workers 1",
    "pack": "write in/pairs/p -o OUT/x.pbin",
    "pack text": "write in/a.jsonl -o OUT/x.pbin --tokenizer in/tokenizer.json --eod <|pad|> --workers 1",
    "pack merge": "merge in/p.pbin in/p.pbin -o OUT/x.pbin",
    "pack shuffle": "shuffle in/p.pbin --seed 1 -o OUT/x.pbin",
    "pack filter": "filter in/p.pbin --every 2 -o OUT/x.pbin",
    "pack repair": "repair in/p.pbin -o OUT/x.pbin",
    "pack raw-index": "raw-index in/a.jsonl -o OUT/x.idx",
    "import-parquet": "in/t.parquet --output OUT/x.jsonl",
    "map": "--data-path in/pairs/p --seq-length 8 --split 1,0,0 --data-cache-path OUT/x",
    "init": "OUT/x",
    "demo": "OUT/x --megabytes 0.01",
}
"""What it is called here → arguments; OUT is the folder that takes nothing."""


def arguments(command: str, folder: str) -> list[str]:
    return [command.split()[0], *COMMANDS[command].replace("OUT", folder).split()]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> Path:
    """A folder with an input of each kind, `in`, of which nothing is to change."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path_factory.mktemp("given")
    (folder / "in" / "pairs").mkdir(parents=True)
    rows = sentences("web", 30)
    (folder / "in" / "a.jsonl").write_bytes(jsonl(rows))
    (folder / "in" / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    pq.write_table(pa.Table.from_pylist(rows), folder / "in" / "t.parquet")
    documents = [np.arange(1, 40 + number) for number in range(20)]
    write_packed(folder / "in" / "p.pbin", documents, token_bytes=2)
    with MMapIndexedDatasetBuilder(folder / "in" / "pairs" / "p", np.uint16) as builder:
        for document in documents:
            builder.add_document(document)
    return folder


@pytest.fixture(autouse=True)
def _there(given: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(given)


def refused(command: str, folder: str) -> StorageError:
    outcome = CliRunner().invoke(nanoset, arguments(command, folder))
    assert isinstance(outcome.exception, StorageError), f"{outcome.output}\n{outcome.exception!r}"
    return outcome.exception


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_that_cannot_be_made(command: str) -> None:
    error = refused(command, "/proc/none")
    assert str(error).startswith("/proc/none")
    assert "the folder cannot be made" in str(error)
    assert "name a place" in (error.remedy or "")


@pytest.fixture
def _small_files() -> Iterator[None]:
    """Files may not grow beyond a few bytes, so that every write of an output is refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("command", [name for name in COMMANDS if "scratch" not in name])
@pytest.mark.usefixtures("_small_files")
def test_a_disk_that_takes_nothing_more(command: str, tmp_path: Path) -> None:
    error = refused(command, str(tmp_path))
    assert "a file may not grow further" in str(error)
    assert str(error).startswith(str(tmp_path))
    assert error.remedy
    made = {path.name for path in tmp_path.rglob("x*") if path.is_file() and not path.name.startswith(".")}
    assert not {name for name in made if (tmp_path / name).exists()}
