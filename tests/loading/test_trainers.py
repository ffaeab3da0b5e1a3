"""Random nanosets through each trainer's own builder: arrays, samples, hashes and cache files, byte for byte."""

import hashlib

import pytest
from golden.trainers.cases import CASES, array_parts, digest, samples_digest, write_datasets

from nanoset_core.errors import ConfigError
from nanoset_core.loading import BlendedNanoset, NanosetBuilder, NanosetConfig


@pytest.fixture
def in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # relative paths are part of hashes
    return tmp_path


def facts(dataset, expected):
    """What is known of the trainer's dataset, of ours."""
    if dataset is None or expected is None:
        return None if dataset is None else "a dataset"
    preset, blended = dataset.config.preset, isinstance(dataset, BlendedNanoset)
    found = {"len": len(dataset)}
    if "hash" in expected:
        found["hash"] = dataset.unique_description_hash
    found["arrays"] = {name: digest(array_parts(getattr(dataset, name))) for name in expected["arrays"]}
    found["samples"] = samples_digest(dataset, preset, blended=blended)
    if blended:
        pairs = zip(dataset.datasets, expected["datasets"], strict=True)
        found["datasets"] = [facts(member, theirs) for member, theirs in pairs]
    return found


@pytest.mark.parametrize("case", [case for case in CASES if "splits" in case], ids=lambda case: case["name"])
def test_the_same_as_the_trainer(case, in_folder):
    write_datasets(case, in_folder)
    config = NanosetConfig(**case["config"], path_to_cache="cache")
    splits = NanosetBuilder(config).build()
    for split, expected in zip(splits, case["splits"], strict=True):
        assert facts(split, expected) == expected
    ours = ("Blendable",) if config.preset == "nemo" else ()  # NeMo keeps no blends
    written = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for path in (in_folder / "cache").iterdir()
        if not path.name.endswith("nanoset.json") and not any(mark in path.name for mark in ours)
    }
    assert written == case["files"]


@pytest.mark.parametrize("case", [case for case in CASES if "refused" in case], ids=lambda case: case["name"])
def test_an_error_where_the_trainer_fails(case, in_folder):
    write_datasets(case, in_folder)
    with pytest.raises(ConfigError, match="expected:"):
        NanosetBuilder(NanosetConfig(**case["config"], path_to_cache="cache")).build()
    assert not (in_folder / "cache").exists()
