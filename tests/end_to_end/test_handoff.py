"""From nanoset.yaml to a trainer's arguments: plans, limits, blends for each split, phases, what a
trainer finds.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from helpers.building import (
    build_all,
    make_blend,
    make_dataset,
    make_handoff,
    make_inventory,
    make_mappings,
    make_shards,
)
from helpers.changing import change_web
from helpers.command import invoke_nanoset, output_of
from helpers.megatron_core import IDENTIFIERS, check_megatron_core
from helpers.sample_project import SPLITS, tree
from nanoset_core import load_nanoset
from nanoset_core.errors import (
    FormatError,
    InputError,
    MissingError,
    NanosetError,
    StaleError,
)
from nanoset_core.project.project import Project
from nanoset_core.project.verify import verify_output
from nanoset_core.stages.handoff.data_args import read_per_split
from nanoset_core.stages.handoff.settings import UNNAMED
from nanoset_core.stages.mappings import stage as mapping
from nanoset_core.stages.mappings.lookup import cache_folder
from nanoset_core.stages.mappings.planning import NanosetContext

MASKS = (
    "reset_position_ids",
    "reset_attention_mask",
    "eod_mask_loss",
    "create_attention_mask",
    "inter_document_masking",
)
PER_SPLIT = {
    'blend: books\n    sequence_length: 16\n    split: "9,1"\n    trainer_path: /lustre/data': (
        "blend_per_split: {train: {web: 0.75, code: 0.25}, valid: books}\n    sequence_length: 16\n"
        "    schedule: {iterations: 50, global_batch_size: 8, eval_interval: 25, eval_iters: 4}\n"
        "    tokenizer_identifiers: " + json.dumps(IDENTIFIERS)
    )
}
TRAINER = (
    '{megatron_core: "0.16.1", tokenizer_type: HuggingFaceTokenizer, tokenizer_model: '
    "/models/llama}"
)
PHASES = {
    'blend: books\n    sequence_length: 16\n    split: "9,1"\n    trainer_path: /lustre/data': (
        "phases: [{blend: {web: 1, code: 1}, until: 30}, {blend: books}]\n    sequence_length: 16\n"
        '    split: "8,1,1"\n    schedule: {iterations: 40, global_batch_size: 4, eval_interval: '
        "20, eval_iters: 1}"
    )
}


def with_limit(make_project, policy: str, most: str = "{web: 1.5}") -> Project:
    change = f"samples: {{train: 800}}\n    max_epochs: {most}\n    on_exhaustion: {policy}"
    return build_all(make_project(replacements={"samples: {train: 400}": change}))


def dataset(project: Project, corpus: str) -> Path:
    return project.outputs.current("datasets", corpus).path(f"{corpus}_text_document")


def test_blends_for_each_split(built_from):
    project = built_from(PER_SPLIT)
    root = project.config.root_folder
    train, valid = load_nanoset(root, "plain", "train"), load_nanoset(root, "plain", "valid")
    assert len(train.datasets) == 2
    assert len(train) == 400
    assert len(valid) >= (50 // 25 + 1) * 4 * 8
    with pytest.raises(MissingError, match="no blend"):
        load_nanoset(root, "plain", "test")
    done = project.outputs.current("nanosets", "plain/handoff")
    blends = read_per_split(done.path("per_split_data_args.json"))
    web, code = (
        str(project.outputs.current("datasets", name).path(f"{name}_text_document"))
        for name in ("web", "code")
    )
    assert blends[0] == {web: 0.75, code: 0.25}
    assert (Path(blends[1]).name, blends[2]) == ("books_text_document", None)
    assert done.facts["loads_fast"]
    facts = project.outputs.current("nanosets", "plain/train/blend").facts
    assert [member["samples_given"] for member in facts["members"]] == np.bincount(
        train.dataset_index
    ).tolist()


def test_a_damaged_handoff_leaves_masks_that_are_given(built_from):
    project = built_from(PER_SPLIT)
    root = project.config.root_folder
    folder = project.outputs.current("nanosets", "plain/handoff").folder
    (folder / "manifest.json").write_text("{")
    with pytest.raises(FormatError) as caught:
        load_nanoset(root, "plain", "train")
    assert str(folder.parent) in caught.value.where
    assert len(load_nanoset(root, "plain", "train", **dict.fromkeys(MASKS, False))) == 400


PRETRAIN = """blend: {web: 0.7, code: 0.3}
    sequence_length: 32
    split: "80,15,5"
    seed: 7
    samples: {train: 400}
"""
SCHEDULE = "schedule: {iterations: 10, global_batch_size: 4, eval_interval: 5}"
NOT_ONE_SAMPLE = {
    "no documents": (
        "{web: 0.7, code: 0.3}",
        32,
        "99.9,0.1",
        "",
        "valid",
        ["--split 100,0,0", "--eval-iters 0"],
    ),
    "documents of one": (
        "{web: 0.7, code: 0.3}",
        32,
        "99.7,0.3",
        "",
        "valid",
        ["--split 100,0,0", "--eval-iters 0"],
    ),
    "with a schedule": (
        "{web: 0.7, code: 0.3}",
        32,
        "99.9,0.1",
        SCHEDULE,
        "valid",
        ["--eval-iters 0"],
    ),
    "too few tokens": ("{web: 0.7, code: 0.3}", 2048, "99,1", "", "valid", ["--split 99,1"]),
    "test alone": ("{web: 0.7, code: 0.3}", 32, "90,9.9,0.1", "", "test", ["--split 90,10,0"]),
    "without weights": (
        "[web, code]",
        32,
        "99.9,0.1",
        "",
        "valid",
        ["--split 100,0,0", "--eval-iters 0"],
    ),
    "one corpus": ("web", 32, "99.9,0.1", "", "valid", ["--split 100,0,0", "--eval-iters 0"]),
    "nanotron": (
        "{web: 0.7, code: 0.3}",
        32,
        "99.9,0.1",
        "preset: nanotron",
        "valid",
        ["    split: 100,0,0"],
    ),
    "nemo": (
        "{web: 0.7, code: 0.3}",
        32,
        "99.9,0.1,0",
        "preset: nemo",
        "valid",
        ["    splits_string: 99.9,0.1,0"],
    ),
}


@pytest.mark.parametrize("case", NOT_ONE_SAMPLE)
def test_a_split_without_a_sample_is_empty_and_said(make_project, case):
    blend, length, shares, more, split, given = NOT_ONE_SAMPLE[case]
    settings = f'blend: {blend}\n    sequence_length: {length}\n    split: "{shares}"\n    {more}\n'
    project = build_all(make_project(replacements={PRETRAIN: settings}))
    found = project.outputs.current("nanosets", f"pretrain/{split}/index_mappings")
    assert found.facts["samples"] == 0
    (warning,) = mapping.INDEX_MAPPINGS.show(project, found).warnings
    assert f"tokens of {split}: web " in warning
    report = verify_output(project, f"pretrain/{split}")
    assert (report.passed, [one.what for one in report.warnings]) == (True, [warning])
    status = invoke_nanoset(["status", "--config", str(project.config.file)])
    assert f"warning: nanoset pretrain {split}: {warning}" in status.stdout
    done = project.outputs.current("nanosets", "pretrain/handoff")
    assert warning in done.path("START.md").read_text()
    arguments = (
        done.path("data.yaml" if "preset" in more else "arguments.txt").read_text().splitlines()
    )
    assert set(given) <= set(arguments)
    assert len(load_nanoset(project.config.root_folder, "pretrain", "train"))
    if "preset" not in more:
        assert ("--eval-iters 0" in given) == ("--eval-iters 0" in arguments)


@pytest.mark.parametrize(
    "blend", ["blend: {web: 0.7, code: 0.3}", "blend: web", "blend: [web, code]"]
)
def test_a_training_set_without_a_sample_is_an_error(make_project, blend):
    config = make_project(replacements={PRETRAIN: f"{blend}\n    sequence_length: 131072\n"})
    with pytest.raises(NanosetError, match="no sample") as caught:
        build_all(config)
    assert "web" in str(caught.value)


def test_phases(built_from):
    project = built_from(PHASES)
    root = project.config.root_folder
    assert len(load_nanoset(root, "plain-phase-1", "train")) == 30 * 4
    assert len(load_nanoset(root, "plain-phase-2", "train")) >= 10 * 4
    arguments = (
        project.outputs.current("nanosets", "plain-phase-2/handoff")
        .path("arguments.txt")
        .read_text()
    )
    assert "--phase-transition-iterations 30\n" in arguments
    assert "--train-samples 160\n" in arguments


def test_a_lost_index_file_is_found_before_the_trainer_does(built_from):
    project = built_from(PER_SPLIT)
    lost = next(cache_folder(project, "plain").glob("*dataset_index.npy"))
    lost.unlink()
    with pytest.raises(MissingError) as caught:
        make_handoff(project, "plain")
    assert caught.value.where == str(lost)
    assert "plain/blend" in caught.value.remedy


def changed(project: Project, word: str) -> None:
    change_web(project.config.file.parent, word)
    for stage in (make_inventory, make_shards, make_dataset):
        stage(project, "web")


def test_nothing_is_made_over_what_belongs_to_older_datasets(built_from):
    project = built_from()
    folder = project.config.root_folder / "nanosets/pretrain"
    before = tree(project.config.root_folder / "nanosets")
    changed(project, "late")
    again = Project.open(project.config.file, rebuild=True)
    with pytest.raises(StaleError, match="than the present ones") as caught:
        make_blend(again, "pretrain", "train")
    assert caught.value.where.startswith(str(folder / "train/index_mappings"))
    for split in SPLITS:
        make_mappings(project, "pretrain", split)
    with pytest.raises(StaleError, match="than the present ones") as caught:
        make_handoff(again, "pretrain")
    assert caught.value.where.startswith(str(folder / "train/blend"))
    after = tree(project.config.root_folder / "nanosets")
    kept = [name for name in before if "/blend/" in name or "/handoff/" in name]
    assert kept
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}


def test_a_dataset_that_is_replaced_while_it_is_planned(built_from, monkeypatch):
    project = built_from()
    plainly, meanwhile = NanosetContext.plan, ["late"]

    def plan_meanwhile(*arguments):
        changed(project, meanwhile.pop())
        return plainly(*arguments)

    monkeypatch.setattr(NanosetContext, "plan", plan_meanwhile)
    made = make_mappings(project, "pretrain", "train")
    assert not meanwhile
    prefixes = [
        member["prefix"]
        for member in json.loads(made.path("plan.json").read_bytes())["plan"]["members"]
    ]
    digests = made.recipe["parents"]
    assert prefixes == [
        f"datasets/{name}/{digests[name]}/{name}_text_document" for name in ("web", "code")
    ]


def test_limits_are_raised_by_default(make_project):
    with pytest.raises(InputError, match=r"^nanosets\.pretrain: .*max_epochs"):
        with_limit(make_project, "raise")


@pytest.mark.parametrize("policy", ["stop", "redistribute", "repeat"])
def test_limits_reach_what_is_built(make_project, policy):
    project = with_limit(make_project, policy)
    train = load_nanoset(project.config.root_folder, "pretrain", "train")
    facts = project.outputs.current("nanosets", "pretrain/train/blend").facts
    assert (facts["members"][0]["epochs"] <= 1.5) is (policy != "repeat")
    assert (len(train) >= 800) is (policy != "stop")
    words = (
        project.outputs.current("nanosets", "pretrain/handoff")
        .path("data_args.txt")
        .read_text()
        .split()
    )
    weights = [float(word) for word in words[::2]]
    assert (weights == [0.7, 0.3]) is (policy != "redistribute")
    planned = NanosetContext(project, "pretrain").plan("train")
    assert planned.exceeded
    assert {member.max_epochs for member in planned.members} == {1.5, None}


def test_map_in_a_project_builds_what_the_pipeline_builds(built_from):
    whole = built_from(PER_SPLIT)
    config = whole.config.file
    before = tree(whole.config.root_folder)
    for name in before:
        if name.startswith("nanosets/") and not before[name].startswith("->"):
            (whole.config.root_folder / name).unlink()
    planned = output_of("map", "--config", config, "--plan", "--json")
    rows = json.loads(planned)
    assert [(row["nanoset"], row["split"]) for row in rows] == [
        (name, split) for name in ("pretrain", "plain") for split in SPLITS
    ]
    assert [member["corpus"] for member in rows[0]["members"]] == ["web", "code"]
    assert "START.md says how to start" in output_of("map", "--config", config)
    assert tree(whole.config.root_folder) == before


def test_map_without_a_project(built_from, tmp_path):
    project = built_from({"trainer_path: /lustre/data\n": f"trainer: {TRAINER}\n"})
    done = project.outputs.current("nanosets", "pretrain/handoff")
    size = {split: load_nanoset(project.config.root_folder, "pretrain", split) for split in SPLITS}
    own = tmp_path / "cache"
    samples = [
        NanosetContext(project, "pretrain").plan(split).config.samples(split) for split in SPLITS
    ]
    arguments = [
        "map", "--data-args-path", done.path("data_args.txt"), "--split", "80,15,5", "--seq-length", 32, "--seed", 7,
        "--data-cache-path", own, "--train-samples", samples[0], "--valid-samples", samples[1],
        "--test-samples", samples[2],
    ]  # fmt: skip
    assert "web_text_document" in output_of(*arguments, "--plan")
    assert not own.exists()
    said = output_of(*arguments, "--trainer", TRAINER)
    assert f"train: {len(size['train']):,} samples" in said
    assert "warning" not in said
    theirs = {path.name: path.read_bytes() for path in cache_folder(project, "pretrain").iterdir()}
    assert {path.name: path.read_bytes() for path in own.iterdir()} == theirs
    told = [
        json.loads(content)
        for name, content in theirs.items()
        if name.endswith("GPTDataset-train-description.txt")
    ]
    assert [one["tokenizer"]["tokenizer_path"] for one in told] == ["/models/llama"] * 2


def test_map_without_a_tokenizer_warns_with_what_to_add(built_from, tmp_path):
    web, cache = dataset(built_from(), "web"), tmp_path / "cache"
    arguments = [
        "map",
        "--data-path",
        web,
        "--seq-length",
        8,
        "--split",
        "9,1",
        "--data-cache-path",
        cache,
    ]
    said = output_of(*arguments)
    assert UNNAMED.format(place="--trainer") in said
    names = {path.name for path in cache.iterdir()}
    added = said.partition("add --trainer '")[2].partition("'")[0]
    assert "warning" not in output_of(*arguments, "--trainer", added)
    assert len({path.name for path in cache.iterdir()} - names) == len(names)
    assert "warning" not in output_of(
        *arguments, "--tokenizer-identifiers", json.dumps(IDENTIFIERS)
    )
    assert "warning" not in output_of(*arguments, "--preset", "nanotron")


def test_map_takes_weights_on_the_command_line(built_from, tmp_path):
    project = built_from()
    web, code = (dataset(project, name) for name in ("web", "code"))
    output_of(
        "map", "--data-path", 0.5, web, 0.5, code, "--seq-length", 8, "--train-iters", 5, "--global-batch-size", 4,
        "--eval-iters", 1, "--split", "8,1,1", "--data-cache-path", tmp_path / "c",
        "--trainer-path", f"{web}=/lustre/web", "--tokenizer-identifiers", json.dumps(IDENTIFIERS),
    )  # fmt: skip
    told = [path.read_text() for path in (tmp_path / "c").glob("*GPTDataset-train-description.txt")]
    assert sorted(json.loads(text)["dataset_path"] for text in told) == sorted(
        [str(code), "/lustre/web"]
    )
    assert {json.loads(text)["tokenizer"]["class"] for text in told} == {"Stub"}


def test_megatron_core_starts_from_the_handoff(built_from):
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    from megatron.core.datasets.utils import get_blend_from_list

    project = built_from(PER_SPLIT)
    done, cache = (
        project.outputs.current("nanosets", "plain/handoff"),
        cache_folder(project, "plain"),
    )
    given = json.loads(done.path("per_split_data_args.json").read_bytes())
    theirs = check_megatron_core(
        *(project, "plain", cache, [400, 96, 32], 5),
        random_seed=1234,
        sequence_length=16,
        blend_per_split=[get_blend_from_list(given[split]) for split in SPLITS],
        fast_cache_load=True,
        defer_npy_index_mmap=True,
        sequences_per_dataset=json.loads(done.path("sequences_per_dataset.json").read_bytes()),
    )
    assert theirs[2] is None
    assert None not in theirs[:2]
