"""Every golden dataset and blend, from configuration to samples, description, hash and cache file names."""

import hashlib

import numpy as np
import pytest
from golden.megatron.cases import FOLDER, SPLITS, arrays, cases, config_of, name_of
from golden.trainers.cases import CASES, array_parts, digest, samples_digest, write_datasets

from nanoset_core.errors import ConfigError
from nanoset_core.loading import BlendedNanoset, NanosetBuilder, NanosetConfig

BUILT = cases("gpt", "blend", "blend_per_split", "nanotron")


@pytest.fixture(autouse=True)
def in_golden_folder(monkeypatch):
    monkeypatch.chdir(FOLDER)


def assert_same(dataset, meta, arrays, prefix):
    assert len(dataset) == meta["len"]
    assert dataset.unique_description == meta["description"]
    assert dataset.unique_description_hash == meta["hash"]
    for key in arrays.files:
        part = key.removeprefix(prefix)
        if not key.startswith(prefix) or "." in part:
            continue
        if part == "samples":
            rows = np.arange(len(arrays[key]))
            np.testing.assert_array_equal(dataset.batch(rows), arrays[key])
            np.testing.assert_array_equal([dataset.tokens(k) for k in rows], arrays[key])
        else:
            np.testing.assert_array_equal(getattr(dataset, part), arrays[key])
            assert getattr(dataset, part).dtype == arrays[key].dtype
    for number, member in enumerate(meta.get("datasets", [])):
        assert_same(dataset.datasets[number], member, arrays, f"{prefix}d{number}.")


def assert_case(case, splits):
    for split, dataset in zip(SPLITS, splits, strict=True):
        meta = case["meta"][split]
        assert (dataset is None) == (meta is None)
        if dataset is not None:
            assert_same(dataset, meta, arrays(case), f"{split}.")


@pytest.mark.parametrize("case", BUILT, ids=name_of)
def test_case(case, tmp_path):
    assert_case(case, NanosetBuilder(config_of(case, tmp_path)).build())
    written = {path.name for path in tmp_path.iterdir() if not path.name.endswith("nanoset.json")}
    assert written == set(case["meta"]["cache_files"])
    if "cache_dir" in case["params"]:
        for path in (FOLDER / case["params"]["cache_dir"]).iterdir():
            assert (tmp_path / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("case", [case for case in BUILT if "D3" in case["name"]], ids=name_of)
def test_cached_case_is_the_same_and_writes_nothing(case, tmp_path):
    NanosetBuilder(config_of(case, tmp_path)).build()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert_case(case, NanosetBuilder(config_of(case, tmp_path)).build())
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("case", cases("gpt_error", "blend_error"), ids=name_of)
def test_what_the_peer_refuses_or_hangs_on_is_an_error(case, tmp_path):
    with pytest.raises(ConfigError, match="expected:"):
        NanosetBuilder(config_of(case, tmp_path)).build()


@pytest.mark.parametrize("case", [case for case in BUILT if "D2" in case["name"]], ids=name_of)
def test_blend_attributes(case, tmp_path):
    for dataset in filter(None, NanosetBuilder(config_of(case, tmp_path)).build()):
        assert isinstance(dataset, BlendedNanoset)
        assert len(dataset.datasets) == 2
        for file in dataset.cache_files + dataset.datasets[0].cache_files:
            assert (tmp_path / file).is_file()


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
