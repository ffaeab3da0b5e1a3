"""`nanoset map` without a project completes index files that it wrote, and replaces no others."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import Result

from helpers.command import invoke_nanoset
from helpers.sample_pairs import GROWING, write_pair
from nanoset_core import NanosetBuilder, NanosetConfig
from nanoset_core.errors import ConfigError
from nanoset_core.stages.mappings.standalone import write_index_files

SEQUENCE_LENGTH = 8
SPLIT = "9,1,0"


def map_data(prefixes: Sequence[str], *arguments: object) -> Result:
    """Run `nanoset map` on some datasets, with further arguments."""
    command = ["map", "--data-path", *prefixes, "--seq-length", SEQUENCE_LENGTH, "--split", SPLIT]
    return invoke_nanoset([*command, *arguments])


def digest_by_name(folder: Path) -> Mapping[str, str]:
    """Return the digest of each file in a folder."""
    digests = {}
    for path in folder.iterdir():
        digests[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests


@pytest.fixture
def dataset(tmp_path: Path) -> str:
    """The prefix of a dataset."""
    return write_pair(tmp_path / "a", GROWING[:40])


class FinishedCall(NamedTuple):
    """A call of `nanoset map` that wrote all index files of a dataset."""

    dataset: str
    preset: str
    folder: Path
    """Where it wrote them."""
    digests: Mapping[str, str]
    """Digest of each file, by name."""

    def run_again(self, *arguments: object) -> Result:
        """Run the same command again, with further arguments."""
        return map_data(
            [self.dataset],
            "--data-cache-path",
            self.folder,
            "--preset",
            self.preset,
            *arguments,
        )


@pytest.fixture(params=["megatron", "nemo", "nanotron"])
def finished_call(dataset: str, tmp_path: Path, request: pytest.FixtureRequest) -> FinishedCall:
    """A call that wrote all index files, with each preset."""
    call = FinishedCall(dataset, request.param, tmp_path / "cache", {})
    outcome = call.run_again()
    assert outcome.exit_code == 0, outcome.output
    assert "already exists" not in outcome.output
    return call._replace(digests=digest_by_name(call.folder))


def refusal_of(call: FinishedCall) -> str:
    """Repeat a call that is refused, and changes nothing; return what the error says it found."""
    digests_before = digest_by_name(call.folder)

    outcome = call.run_again()

    assert isinstance(outcome.exception, ConfigError)
    assert "--overwrite" in outcome.exception.remedy
    assert digest_by_name(call.folder) == digests_before
    return outcome.exception.found


# Files of the same call


def test_a_repeated_call_writes_nothing(finished_call):
    outcome = finished_call.run_again()

    # A line for each of the two splits that have a share of the data.
    assert outcome.output.count("(already exists)") == 2
    assert outcome.output.count(f" in {finished_call.folder}") == 2
    assert digest_by_name(finished_call.folder) == finished_call.digests


def test_the_files_are_those_of_the_library(finished_call, tmp_path):
    config = NanosetConfig(
        finished_call.dataset,
        path_to_cache=str(tmp_path / "by-library"),
        sequence_length=SEQUENCE_LENGTH,
        split=SPLIT,
        preset=finished_call.preset,
    )

    NanosetBuilder(config).build()

    assert digest_by_name(tmp_path / "by-library") == finished_call.digests


@pytest.mark.parametrize("n_renames", range(6))
def test_a_killed_call_is_completed_by_the_next_one(finished_call, monkeypatch, n_renames):
    """The call is killed after some of its renames, which publish files one at a time."""
    for path in finished_call.folder.iterdir():
        path.unlink()
    replace = os.replace
    n_renamed = 0

    def replace_until_killed(source, target):
        nonlocal n_renamed
        if n_renamed == n_renames:
            raise KeyboardInterrupt
        n_renamed += 1
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace_until_killed)
        killed_outcome = finished_call.run_again()
    completing_outcome = finished_call.run_again()

    assert killed_outcome.exit_code != 0
    assert completing_outcome.exit_code == 0
    # No other file is left of the killed call.
    assert digest_by_name(finished_call.folder) == finished_call.digests


def test_a_call_that_an_older_version_left_unfinished_is_completed(finished_call):
    # Older versions stored what the files are made from in a hidden file until all were written.
    receipts = list(finished_call.folder.glob("*nanoset.json"))
    assert receipts
    for receipt in receipts:
        made_from = json.loads(receipt.read_bytes())["made_from"]
        mark = receipt.with_name(f".{receipt.name}.begun")
        mark.write_text(json.dumps(made_from))
        receipt.unlink()

    outcome = finished_call.run_again()

    assert outcome.exit_code == 0
    assert digest_by_name(finished_call.folder) == finished_call.digests
    assert not list(finished_call.folder.glob(".*.begun"))


# Files of another origin


def test_index_files_of_another_dataset_are_not_replaced(finished_call):
    write_pair(finished_call.dataset, GROWING[:44])

    assert "idx_sha256" in refusal_of(finished_call)


def test_with_overwrite_index_files_of_another_dataset_are_replaced(finished_call):
    write_pair(finished_call.dataset, GROWING[:44])

    outcome = finished_call.run_again("--overwrite")

    assert outcome.exit_code == 0
    assert digest_by_name(finished_call.folder) != finished_call.digests
    assert "already exists" in finished_call.run_again().output


def remove_receipts(call: FinishedCall) -> None:
    """Leave only the files that a trainer itself would have written."""
    for path in call.folder.glob("*.json"):
        path.unlink()


def test_index_files_of_a_trainer_are_not_replaced(finished_call):
    remove_receipts(finished_call)

    assert "would say what it was made from" in refusal_of(finished_call)


def test_with_overwrite_index_files_of_a_trainer_are_replaced(finished_call):
    remove_receipts(finished_call)

    outcome = finished_call.run_again("--overwrite")

    assert outcome.exit_code == 0
    assert digest_by_name(finished_call.folder) == finished_call.digests


# Calls without a cache folder


def test_without_a_cache_folder_index_files_are_stored_next_to_the_dataset(dataset, tmp_path):
    outcome = map_data([dataset])

    folder = tmp_path / "a" / "cache" / "GPTDataset_indices"
    assert f" in {folder}" in outcome.output
    assert list(folder.glob("*train-document_index.npy"))


def test_without_a_cache_folder_a_blend_has_only_the_files_of_its_datasets(dataset, tmp_path):
    datasets = [dataset, write_pair(tmp_path / "b", GROWING[:40])]

    outcome = map_data(datasets)

    assert outcome.exit_code == 0
    assert "keeps no file of a blend" in outcome.output
    config = NanosetConfig(datasets, sequence_length=SEQUENCE_LENGTH, split=SPLIT)
    assert [files.folder for files in write_index_files(config)] == [None, None]
    folder_of_second = tmp_path / "b" / "cache" / "GPTDataset_indices"
    assert list(folder_of_second.glob("*train-document_index.npy"))
