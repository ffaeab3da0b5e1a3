"""Index files: the bytes of numpy.save under the trainer's names, never stale, never half a set."""

import hashlib
import io
import json
import os
from dataclasses import replace

import numpy as np
import pytest

from helpers.sample_pairs import GROWING, write_pair
from nanoset_core.errors import MissingError, SampleIndexError, StaleError
from nanoset_core.loading.blended_nanoset import open_split
from nanoset_core.loading.builder import NanosetBuilder
from nanoset_core.sampling import cache
from nanoset_core.sampling.cache import blend_set, cache_dir_of, member_set
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.indices import build_blend_indices
from nanoset_core.sampling.plan import plan_split


@pytest.fixture
def config(tmp_path):
    blend = {
        write_pair(tmp_path / "a", GROWING[:40]): 2.0,
        write_pair(tmp_path / "b", GROWING[:40], 100): 1.0,
    }
    return NanosetConfig(blend, sequence_length=8, split="1,0,0", train_split_samples=90)


def snapshot(folder):
    return {
        path.name: (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.iterdir()
    }


def write_all(config, folder):
    plan = plan_split(config, "train")
    digests = blend_set(plan, plan.blend, folder).write()
    for member in plan.members:
        digests |= member_set(member, config, folder).write()
    return plan, digests


@pytest.mark.parametrize("preset", ["megatron", "nemo", "nanotron"])
def test_writes_what_it_says_and_nothing_twice(config, tmp_path, preset):
    config = NanosetConfig.from_json(config.to_json() | {"preset": preset})
    folder = tmp_path / "cache"
    plan, digests = write_all(config, folder)
    before = snapshot(folder)
    ours = {member.sidecar for member in plan.members} | {plan.blend.sidecar}
    assert set(before) == set(digests) | ours
    assert {name: hashlib.sha256(before[name][2]).hexdigest() for name in digests} == digests
    assert write_all(config, folder)[1] == digests
    assert snapshot(folder) == before


def test_bytes_are_those_of_numpy_save(config, tmp_path):
    plan, _ = write_all(config, tmp_path / "cache")
    for part in ("document_index", "sample_index", "shuffle_index"):
        data = (tmp_path / "cache" / plan.members[0].files[part]).read_bytes()
        buffer = io.BytesIO()
        np.save(buffer, np.load(io.BytesIO(data)))
        assert data == buffer.getvalue()


def test_the_description_comes_after_the_arrays_and_the_sidecar_is_complete_last(
    config, tmp_path, monkeypatch
):
    order = []
    rename = os.replace
    monkeypatch.setattr(
        os,
        "replace",
        lambda source, target: (order.append(os.path.basename(target)), rename(source, target)),
    )
    plan = plan_split(config, "train")
    member = plan.members[0]

    member_set(member, config, tmp_path / "cache").write()

    arrays = member.cache_files[:3]
    assert order == [member.sidecar, *arrays, member.files["description"], member.sidecar]


@pytest.mark.parametrize(
    "part", ["document_index", "sample_index", "shuffle_index", "description", "sidecar"]
)
@pytest.mark.parametrize("damage", ["gone", "cut", "changed"])
def test_damaged_files_are_made_anew(config, tmp_path, part, damage):
    folder = tmp_path / "cache"
    plan, digests = write_all(config, folder)
    member = plan.members[0]
    path = folder / (member.sidecar if part == "sidecar" else member.files[part])
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if damage == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    assert member_set(member, config, folder).write().items() <= digests.items()
    assert path.read_bytes() == data


CHANGES = [
    {"random_seed": 5},
    {"train_split_samples": 200},
    {"add_extra_token": False},
    {"drop_last_partial_validation_sequence": False, "split": "0,1,0", "valid_split_samples": 90},
]


@pytest.mark.parametrize(
    ("preset", "change"),
    [
        *(("megatron", change) for change in CHANGES),
        *(("nanotron", change) for change in CHANGES[:2]),
    ],
    ids=str,
)
def test_options_that_the_name_does_not_hold_are_not_mixed_up(config, tmp_path, change, preset):
    base = config.to_json() | {"preset": preset}
    if "split" in change:
        base |= {"split": "0,1,0", "valid_split_samples": 90}
    folder = str(tmp_path / "cache")
    for options in (base, base | change, base):
        shared = NanosetBuilder(
            NanosetConfig.from_json(options | {"path_to_cache": folder})
        ).build()
        alone = NanosetBuilder(
            NanosetConfig.from_json(options | {"path_to_cache": str(tmp_path / "new")})
        ).build()
        for ours, fresh in zip(shared, alone, strict=True):
            assert (ours is None) == (fresh is None)
            if ours is not None:
                np.testing.assert_array_equal(
                    ours.batch(range(len(ours))), fresh.batch(range(len(fresh)))
                )
        for path in (tmp_path / "new").iterdir():
            path.unlink()


@pytest.mark.parametrize("preset", ["megatron", "nanotron", "nemo"])
def test_data_that_grew_is_not_read_through_an_old_index(config, tmp_path, preset):
    values = config.to_json() | {"preset": preset, "path_to_cache": str(tmp_path / "cache")}
    config = NanosetConfig.from_json(values)
    old, _, _ = NanosetBuilder(config).build()
    name = old.datasets[0].cache_files[0]
    write_pair(tmp_path / "a", GROWING[:160])
    new, _, _ = NanosetBuilder(config).build()
    assert name in {path.name for path in (tmp_path / "cache").iterdir()}
    assert new.datasets[0].document_index.max() == 159
    assert old.datasets[0].document_index.max() == 39  # an open reader keeps what it opened


@pytest.mark.parametrize("preset", ["megatron", "nemo"])
def test_a_stop_in_the_middle_of_replacing_leaves_no_set_that_a_trainer_takes(
    config, tmp_path, preset, monkeypatch
):
    folder = tmp_path / "cache"
    config = NanosetConfig.from_json(config.to_json() | {"preset": preset})
    plan, _ = write_all(config, folder)
    write_pair(tmp_path / "a", GROWING[:160])
    member = plan_split(config, "train").members[0]
    assert member.files == plan.members[0].files
    real = os.replace

    def stop(source, target):
        if os.path.basename(target) == member.files["sample_index"]:
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        member_set(member, config, folder).write()
    assert not all((folder / name).exists() for name in member.cache_files)
    monkeypatch.setattr(os, "replace", real)
    member_set(member, config, folder).write()
    assert all((folder / name).exists() for name in member.cache_files)


def test_planned_and_written_from_different_data(config, tmp_path):
    member = plan_split(config, "train").members[0]
    write_pair(tmp_path / "a", GROWING[:41])
    with pytest.raises(StaleError, match="plan again"):
        member_set(member, config, tmp_path / "cache").write()


def test_opening_checks_shapes(config, tmp_path):
    folder = tmp_path / "cache"
    plan, _ = write_all(config, folder)
    assert len(open_split(plan, config, folder)) == 90
    path = folder / plan.members[1].files["shuffle_index"]
    np.save(path, np.arange(3, dtype=np.uint32))
    with pytest.raises(StaleError, match="shape"):
        open_split(plan, config, folder)
    path.write_bytes(b"nonsense")
    with pytest.raises(StaleError, match="not an index file"):
        open_split(plan, config, folder)
    path.unlink()
    with pytest.raises(MissingError, match="index file"):
        open_split(plan, config, folder)


def test_a_blend_that_takes_too_much(config):
    plan = plan_split(config, "train")
    first, second = plan.members
    short_plan = replace(plan, members=(first, replace(second, samples_given=29)))
    with pytest.raises(SampleIndexError, match="raise surplus") as caught:
        build_blend_indices(short_plan)
    assert caught.value.found == "more than 29"


def test_plain_datasets_have_no_blend(config):
    plain = NanosetConfig(next(iter(config.data_path)), sequence_length=8, split="1,0,0")
    plan = plan_split(plain, "train")
    assert plan.blend is None
    with pytest.raises(SampleIndexError, match="plain dataset"):
        build_blend_indices(plan)


def test_folders_beside_the_data(config, tmp_path):
    folders = {
        "megatron": "a/cache/GPTDataset_indices",
        "nanotron": "a/cache/Nanoset_indices",
        "nemo": "",
    }
    for preset, folder in folders.items():
        alone = NanosetConfig(
            next(iter(config.data_path)), sequence_length=8, split="1,0,0", preset=preset
        )
        assert cache_dir_of(plan_split(alone, "train").members[0], alone) == tmp_path / folder


def test_sidecar_says_what_the_set_is_from(config, tmp_path):
    plan, digests = write_all(config, tmp_path / "cache")
    member = plan.members[0]
    noted = json.loads((tmp_path / "cache" / member.sidecar).read_bytes())
    index = hashlib.sha256((tmp_path / "a.idx").read_bytes()).hexdigest()
    assert noted["made_from"]["idx_sha256"] == member.idx_sha256 == index
    assert {
        name: note["sha256"] for name, note in noted["files"].items()
    }.items() <= digests.items()


def test_what_another_process_wrote_meanwhile_stays(config, tmp_path, monkeypatch):
    """Its own files, complete by then, are withdrawn for no moment: it may be about to say how
    large they are.
    """
    folder, plan = tmp_path / "cache", plan_split(config, "train")
    real = cache.build_member_indices

    def overtaken(member, *arguments, **options):
        built = real(member, *arguments, **options)
        monkeypatch.setattr(cache, "build_member_indices", real)
        member_set(member, config, folder).write()
        overtaken.before = snapshot(folder)
        return built

    monkeypatch.setattr(cache, "build_member_indices", overtaken)
    digests = member_set(plan.members[0], config, folder).write()
    assert snapshot(folder) == overtaken.before
    assert {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in digests
    } == digests
