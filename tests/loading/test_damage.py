"""Index files and plans that lead nowhere: an error of ours, one by one and in batches."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from nanoset_core.errors import FormatError, StaleError
from nanoset_core.indexed import MMapIndexedDatasetBuilder
from nanoset_core.loading import NanosetBuilder, NanosetConfig
from nanoset_core.loading.opening import PLAN_FILE, read_split, split_bytes
from nanoset_core.mapping.plan import plan_split
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.storage.access import FileAccess


def configured(folder):
    for name, first in (("a", 0), ("b", 5000)):
        (folder / "datasets").mkdir(exist_ok=True)
        with MMapIndexedDatasetBuilder(folder / "datasets" / name, np.uint16) as builder:
            builder.add_documents(np.arange(first, first + 900), [30] * 30, [1] * 30)
    blend = {str(folder / "datasets" / name): 1.0 for name in ("a", "b")}
    return NanosetConfig(
        blend, sequence_length=9, split="1,0,0", train_split_samples=60, path_to_cache=str(folder / "c")
    )


def damaged(folder, part, change):
    """A split whose one index file was changed."""
    train, _, _ = NanosetBuilder(configured(folder)).build()
    member = train.datasets[0].member
    names = member.files if part in member.files else train.plan.blend.files
    path = folder / "c" / names[part]
    array = np.load(path)
    change(array)
    path.unlink()  # it is mapped
    np.save(path, array)
    return type(train).open(train.plan, train.config, folder / "c")


def put(value, *place):
    def change(array):
        array[place] = value

    return change


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("document_index", put(10_000)),
        ("document_index", put(-1)),
        ("sample_index", put(-1, slice(None), 0)),
        ("sample_index", put(1 << 30, slice(None), 0)),
        ("sample_index", put(-5, slice(None), 1)),
        ("sample_index", lambda array: array.sort(axis=0) or array.__setitem__(slice(None), array[::-1].copy())),
        ("shuffle_index", put(1 << 20)),
        ("dataset_index", put(7)),
        ("dataset_index", put(-1)),
        ("dataset_sample_index", put(-3)),
        ("dataset_sample_index", put(1 << 40)),
    ],
)
def test_numbers_that_lead_nowhere(tmp_path, part, change):
    split = damaged(tmp_path, part, change)
    with pytest.raises((StaleError, IndexError)) as one:
        for index in range(len(split)):
            split.tokens(index)
    with pytest.raises((StaleError, IndexError)) as many:
        split.batch(range(len(split)))
    for caught in (one, many):
        assert type(caught.value).__module__ == "nanoset_core.errors"
        assert str(tmp_path) in str(caught.value)


def told(folder):
    config = configured(folder)
    plan = plan_split(config, "train")
    return json.loads(split_bytes(folder, plan, config))


def test_a_plan_is_read_back(tmp_path):
    plan, config = read_split(told(tmp_path), tmp_path)
    assert [Path(member.prefix).parent for member in plan.members] == [tmp_path / "datasets"] * 2
    assert list(config.data_path) == [member.prefix for member in plan.members]


def test_plans_stay_below_the_root(tmp_path):
    (tmp_path / "root").mkdir()
    value = told(tmp_path / "root")
    outputs = OutputRoot(FileAccess(tmp_path / "root"))
    hostile = {
        "up": ("prefix", "../datasets/a"),
        "absolute": ("prefix", "/etc/passwd"),
        "number": ("prefix", 7),
        "sidecar": ("sidecar", "../../x.json"),
        "files": ("files", value["plan"]["members"][0]["files"] | {"shuffle_index": "/etc/passwd"}),
        "missing": ("files", {}),
        "rows": ("rows", [1]),
        "text": ("samples_built", "9"),
    }
    for name, (key, text) in hostile.items():
        forged = json.loads(json.dumps(value))
        forged["plan"]["members"][0][key] = text

        def write(folder, forged=forged):
            (folder / PLAN_FILE).write_text(json.dumps(forged))
            return {}, {}

        manifest = outputs.commit(Recipe("nanosets", name, 1), write)
        with pytest.raises(FormatError, match="not as it was written") as caught:
            manifest.load(PLAN_FILE, lambda value: read_split(value, outputs.folder))
        assert caught.value.where == str(manifest.path(PLAN_FILE))
