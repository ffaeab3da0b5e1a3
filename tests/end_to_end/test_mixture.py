"""A mixture in nanoset.yaml: its tree, the weights that a trainer is given, its recipe, its plan
and its page.
"""

from __future__ import annotations

import numpy as np
import pytest

from helpers.building import build_all
from helpers.command import json_of, output_of
from nanoset_assets.ui.mappings import split_metadata
from nanoset_core import load_nanoset
from nanoset_core.errors import InputError
from nanoset_core.project.project import Project
from nanoset_core.stages.mappings.planning import NanosetContext

MIX = "mix: {text: {share: 3, mix: {web: {}, books: {max_epochs: 0.5}}}, code: {epochs: 0.75}}"
TRAINER = (
    '{megatron_core: "0.16.1", tokenizer_type: HuggingFaceTokenizer, tokenizer_model: '
    "/models/llama}"
)
MIXED = {
    "blend: {web: 0.7, code: 0.3}": MIX,
    'blend: books\n    sequence_length: 16\n    split: "9,1"\n    trainer_path: /lustre/data': (
        "continue: true\n    phases:\n"
        "      - {mix: {web: {share: 1, max_epochs: 0.5}, code: 1}, until: 30}\n"
        "      - {mix: {web: {share: 9, max_epochs: 0.5}, books: {share: 1, min_share: 0.6}}}\n"
        f'    sequence_length: 16\n    split: "8,1,1"\n    trainer: {TRAINER}\n'
        "    schedule: {iterations: 60, global_batch_size: 4, eval_interval: 60, eval_iters: 1}"
    ),
}


ROWS = ["text", "web", "books", "code"]
"""Names in the tree of the mixture, from top to bottom."""


def test_a_mixture_is_planned_as_a_tree(built_from):
    planned = NanosetContext(built_from(MIXED), "pretrain").plan("train")

    assert [(row.name, row.depth, row.decided_by) for row in planned.mixture] == [
        ("text", 0, "share"),
        ("web", 1, "size"),
        ("books", 1, "max_epochs"),
        ("code", 0, "epochs"),
    ]
    assert planned.corpora == ("web", "books", "code")
    _, books, code = planned.members
    assert (round(books.epochs, 1), round(code.epochs, 2)) == (0.5, 0.75)


def test_only_train_is_a_mixture(built_from):
    planned = NanosetContext(built_from(MIXED), "pretrain").plan("valid")

    assert planned.mixture == ()


def test_a_trainer_is_given_an_ordinary_blend(built_from):
    project = built_from(MIXED)
    planned = NanosetContext(project, "pretrain").plan("train")
    weights = [row.given for row in planned.mixture if row.name != "text"]
    assert np.allclose([member.weight for member in planned.members], weights)

    # Weights and prefixes alternate.
    handoff = project.outputs.current("nanosets", "pretrain/handoff")
    words = handoff.path("data_args.txt").read_text().split()

    assert np.allclose([float(word) for word in words[::2]], weights)
    assert len(load_nanoset(project.config.root_folder, "pretrain", "train")) == planned.samples


def test_the_page_of_a_blend_shows_the_tree(built_from):
    project = built_from(MIXED)
    built = project.outputs.current("nanosets", "pretrain/train/blend")
    assert [row["name"] for row in built.facts["mixture"]] == ROWS

    page = split_metadata(project, built, "pretrain", "train")

    decided_by = [record.data["decided by"] for record in page["mixture"].records]
    assert decided_by == ["share", "size", "max_epochs", "epochs"]


def test_the_command_shows_the_tree(built_from):
    words = ("map", "pretrain", "--plan", "--config", built_from(MIXED).config.file)

    text = output_of(*words)
    splits = json_of(*words, "--json")

    assert "pretrain train, mixture" in text
    assert "· books" in text
    trees = [[row["name"] for row in split.get("mixture", ())] for split in splits]
    assert trees == [ROWS, [], []]


def test_limits_of_a_mixture_hold_for_all_phases_together(built_from):
    project = built_from(MIXED)

    # Web is read to its limit in the first phase, so that books get more than their share.
    first, second = (
        NanosetContext(project, f"plain-phase-{number}").plan("train") for number in (1, 2)
    )

    web = [member for plan in (first, second) for member in plan.members if "web" in member.prefix]
    half = 0.5 * first.config.samples_in(first.members[0].tokens)
    assert sum(member.samples_given for member in web) <= half + 2
    assert second.mixture[0].decided_by in ("share", "max_epochs")


@pytest.mark.parametrize(
    "change", ["share: 3, mix: {web: {}, books: {max_epochs: 0.6}}", "train: 401"]
)
def test_the_tree_and_the_samples_of_train_are_in_the_recipe_of_each_split(built_from, change):
    file = built_from(MIXED).config.file
    before = [
        NanosetContext(Project.open(file), "pretrain").options(split)
        for split in ("train", "valid")
    ]
    old = (
        "train: 400" if "train" in change else "share: 3, mix: {web: {}, books: {max_epochs: 0.5}}"
    )
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, change))
    after = [
        NanosetContext(Project.open(file), "pretrain").options(split)
        for split in ("train", "valid")
    ]
    changed = {
        key
        for one, other in zip(before, after, strict=True)
        for key in one
        if one[key] != other[key]
    }
    assert changed == ({"mix_samples", "samples"} if "train" in change else {"mix"})
    assert all(one["blend"] == [["web", 1.0], ["books", 1.0], ["code", 1.0]] for one in after)


def test_an_impossible_mixture_is_refused_before_anything_is_built(built_from):
    project = built_from(MIXED)
    file = project.config.file
    file.write_text(file.read_text().replace("code: {epochs: 0.75}", "code: {tokens: 9.0e9}"))
    with pytest.raises(
        InputError, match=r"nanosets\.pretrain, mix\.code: the mixture is impossible"
    ):
        NanosetContext(Project.open(file), "pretrain").plan("train")
    with pytest.raises(InputError, match="the mixture is impossible"):
        build_all(file)
