"""Webdatasets of nanoset.yaml: every form of its settings, and recipes that hold what reaches the
bytes alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import yaml

from helpers.building import make_corpora, make_dataset, make_inventory, make_shards, open_project
from helpers.command import invoke_nanoset
from helpers.inspecting import current_dataset, node_at
from nanoset_core import MMapIndexedDataset, iterate_shards
from nanoset_core.errors import ConfigError, MissingError, StaleError
from nanoset_core.stages.registry import sweep
from nanoset_core.stages.webdataset import make as shuffling
from nanoset_core.stages.webdataset.stage import WEBDATASET
from nanoset_core.storage.atomic import discard, open_unfinished

LENGTH = 33
COMMON = {"sequence_length": LENGTH, "samples_per_shard": 16, "member": "npy", "groups": 2}


@pytest.fixture
def project(make_project):
    """→ a function that opens the project, its corpora tokenized, with other webdatasets."""
    file = make_project()
    base = yaml.safe_load(file.read_text()) | {"nanosets": {}}
    tokenized = []

    def opened(changes=None, **webdatasets):
        sets = {name: COMMON | spec for name, spec in webdatasets.items()}
        file.write_text(
            yaml.safe_dump(base | {"webdatasets": sets} | (changes or {}), sort_keys=False)
        )
        project = open_project(file)
        if (changes or {}) not in tokenized:
            make_corpora(project)
            tokenized.append(changes or {})
        return project

    return opened


def made(project, name):
    shuffling.make_plan(project, name)
    for group in range(project.webdataset(name).groups):
        shuffling.write_group(project, name, group)
    return shuffling.finish(project, name)


def rows_of(manifest):
    return [tuple(row.tolist()) for row in iterate_shards(manifest.folder)]


def rows(project, *corpora):
    tokens = [t for corpus in corpora for t in tokens_of(project, corpus)]
    return [tuple(tokens[at : at + LENGTH]) for at in range(0, len(tokens) - LENGTH + 1, LENGTH)]


def tokens_of(project, corpus):
    manifest = current_dataset(project, corpus)
    return MMapIndexedDataset(manifest.path(manifest.facts["prefix"])).tokens.tolist()


def tars(folder):
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.glob("*.tar"))
    }


def test_every_form_of_its_settings(project):
    changes = {"tokenizer": {"path": "tokenizer.json", "eod": "<|endoftext|>", "bos": "<|pad|>"}}
    weights = {"corpora": {"web": 3, "code": 1}, "mix": "weights"}
    opened = project(
        changes,
        carried={"corpora": ["web", "code", "books"], "tail": "carry"},
        mixed={"corpora": {"web": 0.5, "code": 2.0, "books": 0}},
        shares=weights | {"contexts": 40},
        scarce=weights,
        even={"corpora": ["web"], "even": True, "bos": True, "sequence_length": LENGTH + 1},
    )
    carried, mixed, shares, scarce, even = (
        made(opened, name) for name in opened.config.webdatasets
    )
    web, code = rows(opened, "web"), rows(opened, "code")
    assert sorted(rows_of(carried)) == sorted(rows(opened, "web", "code", "books"))
    assert carried.facts["tokens_dropped"] < LENGTH
    quality = shuffling.current_plan(opened, "carried")[0].facts["quality"]
    assert (quality["contexts"], quality["even"]) == (carried.facts["sequences"], True)
    found = Counter(rows_of(mixed))
    assert Counter(code * 2) <= found
    rest = found - Counter(code * 2)
    assert rest <= Counter(web)
    assert rest.total() == int(len(web) * 0.5 + 0.5)
    assert [source["contexts"] for source in shares.facts["sources"]] == [30, 10]
    sources = scarce.facts["sources"]
    assert max(source["frequency"] for source in sources) == 1
    assert abs(sources[0]["contexts"] - 3 * sources[1]["contexts"]) <= 2
    lines = (even.folder / "manifest.jsonl").read_bytes().splitlines()
    assert len({json.loads(line)["num_sequences"] for line in lines}) == 1
    assert even.facts["sequences"] + even.facts["contexts_left_out"] == len(web)
    assert Counter(rows_of(even)) <= Counter((1, *row) for row in web)


def test_engine_memory_workers_and_groups_are_in_no_digest(project):
    spec = {"corpora": ["web", "code"]}
    manifest = made(project(same=spec), "same")
    expected = tars(manifest.folder)
    others = [{"engine": "tiled"}, {"engine": "buckets", "memory_mib": 200}, {"groups": 5}]
    for other in others:
        opened = project(same=spec | other)
        assert shuffling.make_plan(opened, "same").digest == manifest.recipe["parents"]["plan"]
        again = made(open_project(opened.config.file, rebuild=True), "same")
        assert again.digest == manifest.digest
        assert tars(again.folder) == expected
        assert not (again.folder / ".shards").exists()


def test_what_reaches_the_bytes_is_in_the_digest(project):
    half = {"corpora": {"web": 1.0, "code": 0.5}}
    changes = [
        {"seed": 1},
        {"even": True},
        {"tail": "carry"},
        {"member": "json.gz"},
        half,
        half | {"mix": "weights"},
    ]
    changes += [{"corpora": {"web": 1.0, "code": 1.0}}, half | {"mix": "weights", "contexts": 30}]
    opened = project(
        **{
            f"a{i}": {"corpora": ["web", "code"]} | change
            for i, change in enumerate([{}, *changes])
        }
    )
    plans = [node_at(f"shuffle_plans/{name}") for name in opened.config.webdatasets]
    options = [node.stage.recipe(opened, node.key, {}).options for node in plans]
    assert len({json.dumps(one, sort_keys=True) for one in options}) == len(changes) + 1


def tokshuf_settings(golden_tars):
    return {
        "tokenizer": {
            "path": str(golden_tars / "tokenizer" / "tokenizer.json"),
            "eod": "<|endoftext|>",
        },
        "tokenization": {"preset": "tokshuf", "workers": 1, "range_mib": 0.02},
    }


def test_the_preset_tokshuf_gives_the_command_s_tars(project, golden_tars, tmp_path):
    spec = {"corpora": ["web"], "preset": "tokshuf"}
    manifest = made(project(tokshuf_settings(golden_tars), like=spec), "like")
    arguments = [
        "--input",
        tmp_path / "project/raw/web",
        "--output",
        tmp_path / "out",
        "--preset",
        "tokshuf",
    ]
    arguments += [
        "--tokenizer",
        golden_tars / "tokenizer",
        "--seqlen",
        LENGTH,
        "--wds-chunk-size",
        16,
        "--member",
        "npy",
    ]
    arguments += ["--workers", 1, "--max-rejected-fraction", 0.5]
    outcome = invoke_nanoset(["shuffle", *arguments], catch_exceptions=False)
    assert outcome.exit_code == 0
    assert tars(tmp_path / "out") == tars(manifest.folder)


def test_the_preset_tokshuf_wants_its_own_tokens_and_files(project, golden_tars, tmp_path):
    spec = {"corpora": ["web"], "preset": "tokshuf"}
    settings = tokshuf_settings(golden_tars)
    other = settings | {"tokenizer": settings["tokenizer"] | {"eod": "<|padding|>"}}
    with pytest.raises(ConfigError, match="the token 0"):
        shuffling.make_plan(project(other, like=spec), "like")
    with pytest.raises(ConfigError, match="does not know this tokenizer"):
        shuffling.make_plan(
            project(
                settings | {"tokenizer": {"path": "tokenizer.json", "eod": "<|pad|>"}}, like=spec
            ),
            "like",
        )
    opened = project(settings, like=spec)
    (tmp_path / "project/raw/web/zz.jsonl").write_text('{"text": "one more"}\n')
    make_inventory(opened, "web")
    with pytest.raises(StaleError, match="other files"):
        shuffling.make_plan(opened, "like")


def test_tars_that_are_missing(project):
    opened = project(a={"corpora": ["web"]})
    with pytest.raises(MissingError):
        shuffling.write_group(opened, "a", 0)
    shuffling.make_plan(opened, "a")
    shuffling.write_group(opened, "a", 0)
    assert shuffling.is_group_written(opened, "a", 0)
    assert not shuffling.is_group_written(opened, "a", 1)
    folder, access = next(opened.outputs.folder.glob("webdatasets/a/*")), opened.outputs.access
    markers = sorted((folder / ".shards").iterdir())
    markers[0].write_text('{"made_fr')  # as a kill leaves it
    assert f".shards/{markers[0].name}" in WEBDATASET.unfinished_files(access, folder)
    assert not shuffling.is_group_written(opened, "a", 0)
    markers[1].write_text('{"made_from": "something else"}')
    assert WEBDATASET.unfinished_files(access, folder) is None
    with pytest.raises(MissingError, match="some shards have not been written"):
        shuffling.finish(opened, "a")


def test_tars_are_made_of_the_planned_datasets_alone(project, tmp_path):
    opened = project(a={"corpora": ["web"]})
    shuffling.make_plan(opened, "a")
    shuffling.write_group(opened, "a", 0)
    file = tmp_path / "project/raw/web/part-1/web-3.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    before = current_dataset(opened, "web").facts["tokens"]
    file.write_bytes(b"".join(reversed(lines)))
    for stage in (make_inventory, make_shards, make_dataset):
        stage(opened, "web")
    assert current_dataset(opened, "web").facts["tokens"] == before
    for group in (0, 1):  # one is written already
        with pytest.raises(StaleError, match="made from other inputs"):
            shuffling.write_group(opened, "a", group)
    assert sorted(rows_of(made(opened, "a"))) == sorted(rows(opened, "web"))


@pytest.mark.parametrize("text", ["", "{", '{"nanoset": 1}', "altered"])
def test_a_webdataset_whose_manifest_is_damaged_is_made_again(project, text):
    opened = project(all={"corpora": ["web"]})
    manifest = made(opened, "all")
    file = manifest.folder / "manifest.json"
    expected = {
        path.name: path.read_bytes() for path in manifest.folder.iterdir() if path.is_file()
    }
    file.write_text(
        file.read_text().replace('"tokens": ', '"tokens": 1') if text == "altered" else text
    )
    assert made(opened, "all").digest == manifest.digest
    assert {
        path.name: path.read_bytes() for path in manifest.folder.iterdir() if path.is_file()
    } == expected


def test_what_killed_builds_left_beside_a_complete_one_goes(project):
    """Markers; tars in the making, of processes that are gone; what a living one holds stays."""
    opened = project(plain={"corpora": ["web"]})
    done = made(opened, "plain")
    before = sorted(path.name for path in done.folder.iterdir())
    (done.folder / ".shards").mkdir()
    (done.folder / ".shards" / "shard-00000000.json").write_text("{}")
    made(opened, "plain")
    assert sorted(path.name for path in done.folder.iterdir()) == before
    living = open_unfinished(done.folder / "shard-00000000.tar")
    gone = subprocess.Popen(["true"])
    gone.wait()
    with open_unfinished(done.folder / "shard-00000001.tar") as file:
        os.rename(file.name, file.name.replace(f"-{os.getpid()}.", f"-{gone.pid}."))
    (done.folder / ".shards").mkdir()
    sweep(opened)
    assert sorted(path.name for path in done.folder.iterdir()) == sorted(
        [*before, Path(living.name).name]
    )
    discard(living)


def test_another_build_may_complete_it_between_two_looks(project, monkeypatch):
    """Its notes are gone when this build reads them: then the manifest says what they said."""
    opened = project(plain={"corpora": ["web"]})
    done = made(opened, "plain")
    real, looks = type(opened.outputs).find, []

    def find(outputs, recipe):
        looks.append(recipe.stage)
        return (
            None
            if looks.count(done.stage) <= 2 and recipe.stage == done.stage
            else real(outputs, recipe)
        )

    monkeypatch.setattr(type(opened.outputs), "find", find)
    assert shuffling.finish(opened, "plain").digest == done.digest
    assert looks.count(done.stage) == 3
