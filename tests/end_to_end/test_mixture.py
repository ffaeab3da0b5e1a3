"""A mixture in nanoset.yaml becomes an ordinary blend, and its tree is shown to the user."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.building import build_all
from helpers.changing import change_setting
from helpers.command import json_of, output_of
from nanoset_assets.ui.mappings import split_metadata
from nanoset_core import load_nanoset
from nanoset_core.errors import InputError
from nanoset_core.project.project import Project
from nanoset_core.stages.mappings.planning import NanosetContext

TEXT = "share: 3, mix: {web: {}, books: {max_epochs: 0.5}}"
MIX = f"mix: {{text: {{{TEXT}}}, code: {{epochs: 0.75}}}}"
IMPOSSIBLE = ("code: {epochs: 0.75}", "code: {tokens: 9.0e9}")
"""A part of MIX, and one instead of it that needs more tokens than the run reads."""
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
"""Replacements that make a mixture of `pretrain`, and one in each of two phases of `plain`."""
ROWS = ["text", "web", "books", "code"]
"""Names in the tree of the mixture, from top to bottom."""


def test_a_mixture_is_planned_as_a_tree(built_from):
    planned = NanosetContext(built_from(MIXED), "pretrain").plan("train")

    assert [row.name for row in planned.mixture] == ROWS
    assert [row.depth for row in planned.mixture] == [0, 1, 1, 0]
    assert [row.decided_by for row in planned.mixture] == ["share", "size", "max_epochs", "epochs"]
    assert planned.corpora == ("web", "books", "code")


def test_a_mixture_keeps_the_epochs_that_it_states(built_from):
    planned = NanosetContext(built_from(MIXED), "pretrain").plan("train")

    _web, books, code = planned.members
    assert round(books.epochs, 1) == 0.5
    assert round(code.epochs, 2) == 0.75


def test_only_the_training_split_is_a_mixture(built_from):
    planned = NanosetContext(built_from(MIXED), "pretrain").plan("valid")

    assert planned.mixture == ()


def test_a_trainer_gets_an_ordinary_blend(built_from):
    project = built_from(MIXED)
    planned = NanosetContext(project, "pretrain").plan("train")

    # The weights are those of the corpora in the tree.
    weights = [row.given for row in planned.mixture if row.name != "text"]
    assert np.allclose([member.weight for member in planned.members], weights)

    # In the trainer's arguments, weights and prefixes alternate.
    handoff = project.outputs.current("nanosets", "pretrain/handoff")
    words = handoff.path("data_args.txt").read_text().split()
    trainer_weights = [float(word) for word in words[::2]]
    assert np.allclose(trainer_weights, weights)


def test_a_mixture_has_the_samples_of_its_plan(built_from):
    project = built_from(MIXED)
    planned = NanosetContext(project, "pretrain").plan("train")

    train = load_nanoset(project.config.root_folder, "pretrain", "train")

    assert len(train) == planned.samples


def test_the_page_of_a_blend_shows_the_tree(built_from):
    project = built_from(MIXED)
    built = project.outputs.current("nanosets", "pretrain/train/blend")
    assert [row["name"] for row in built.facts["mixture"]] == ROWS

    page = split_metadata(project, built, "pretrain", "train")

    decided_by = [record.data["decided by"] for record in page["mixture"].records]
    assert decided_by == ["share", "size", "max_epochs", "epochs"]


def test_the_command_prints_the_tree(built_from):
    output = output_of("map", "pretrain", "--plan", "--config", built_from(MIXED).config.file)

    assert "pretrain train, mixture" in output
    assert "· books" in output


def test_the_json_of_a_plan_holds_the_tree_of_train(built_from):
    config = built_from(MIXED).config.file

    train, valid, test = json_of("map", "pretrain", "--plan", "--config", config, "--json")

    assert [row["name"] for row in train["mixture"]] == ROWS
    assert not valid.get("mixture")
    assert not test.get("mixture")


def test_a_limit_holds_for_all_phases_together(built_from):
    project = built_from(MIXED)

    # Web is read to its limit in the first phase, so that books get more than their share.
    first_phase = NanosetContext(project, "plain-phase-1").plan("train")
    second_phase = NanosetContext(project, "plain-phase-2").plan("train")

    members = [*first_phase.members, *second_phase.members]
    n_web_samples = sum(member.samples_given for member in members if "web" in member.prefix)
    web_tokens = first_phase.members[0].tokens
    limit = 0.5 * first_phase.config.samples_in(web_tokens)
    # Each phase may round up by one sample.
    assert n_web_samples <= limit + 2
    assert second_phase.mixture[0].decided_by in ("share", "max_epochs")


@pytest.mark.parametrize(
    ("old", "new", "changed_options"),
    [
        pytest.param(TEXT, TEXT.replace("0.5", "0.6"), {"mix"}, id="tree"),
        pytest.param("train: 400", "train: 401", {"mix_samples", "samples"}, id="samples of train"),
    ],
)
def test_the_recipe_of_each_split_holds_the_tree_and_the_samples_of_train(
    built_from, old, new, changed_options
):
    project = built_from(MIXED)
    options_before = options_of_splits(project)

    options = options_of_splits(change_setting(project, old, new))

    assert {key for key in options if options[key] != options_before[key]} == changed_options


def options_of_splits(project: Project) -> dict[str, list[object]]:
    """Return the options in the recipes of `pretrain`: name → values of train and valid."""
    context = NanosetContext(project, "pretrain")
    train = context.options("train")
    valid = context.options("valid")
    assert train["blend"] == valid["blend"] == [["web", 1.0], ["books", 1.0], ["code", 1.0]]
    assert train.keys() == valid.keys()
    return {key: [train[key], valid[key]] for key in train}


def test_an_impossible_mixture_is_refused_by_its_plan(built_from):
    project = change_setting(built_from(MIXED), *IMPOSSIBLE)

    with pytest.raises(
        InputError, match=r"nanosets\.pretrain, mix\.code: the mixture is impossible"
    ):
        NanosetContext(project, "pretrain").plan("train")


def test_an_impossible_mixture_is_refused_by_a_build(built_from):
    project = change_setting(built_from(MIXED), *IMPOSSIBLE)

    with pytest.raises(InputError, match="the mixture is impossible"):
        build_all(project.config.file)
