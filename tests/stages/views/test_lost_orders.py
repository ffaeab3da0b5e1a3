"""Warnings of sorted views whose order spoils a split, or does not reach the model."""

import json

import pytest

from helpers.command import invoke_nanoset
from helpers.inspecting import settings_warnings
from nanoset_core import load_config
from nanoset_core.project.orders import sorting_of

CONFIG = """\
raw: raw
root: data
tokenizer: {{path: tokenizer.json, eod: "<|endoftext|>"}}
{exports}
views:
{views}
nanosets:
  pretrain: {{{data}, sequence_length: 32{more}}}
{others}
"""
SORTED = "  top: {of: web, order: {by: tokens, descending: true}}"


@pytest.fixture
def config(make_project):
    """Return the settings of a project with some views and one nanoset."""

    file = make_project()

    def make(views=SORTED, data="blend: top", more="", others="", exports=""):
        file.write_text(
            CONFIG.format(views=views, data=data, more=more, others=others, exports=exports)
        )
        return load_config(file)

    return make


def warnings_of(config):
    return settings_warnings(config, "nanosets/pretrain/handoff")


@pytest.mark.parametrize(
    ("split", "held_out"),
    [
        ("99,1,0", "valid would be"),
        ("99,0,1", "test would be"),
        ("98,1,1", "valid and test would be"),
    ],
)
def test_a_split_that_cuts_the_end_of_an_order_is_warned_of(config, split, held_out):
    first, second = warnings_of(config(more=f', split: "{split}"'))

    assert held_out in first
    assert "documents with the lowest tokens" in first
    assert "split: {by: id, keep: [0, 0.01]}" in first
    assert "has no effect" in second


def test_an_ascending_order_leaves_the_highest_values_to_valid(config):
    views = "  top: {of: web, order: {by: tokens}}"

    assert "documents with the highest tokens" in warnings_of(config(views))[0]


@pytest.mark.parametrize(
    "data", ["blend: {top: 0.7, code: 0.3}", "blend: [code, top]", "mix: {top: 1, code: 1}"]
)
def test_a_sorted_view_in_a_blend_is_warned_of(config, data):
    assert "the view top" in warnings_of(config(data=data))[0]


def test_a_view_of_a_sorted_view_is_sorted(config):
    views = SORTED + "\n  half: {of: top, split: {keep: [0, 0.5]}}"

    assert "the view half is sorted by tokens" in warnings_of(config(views, data="blend: half"))[0]


def test_blends_per_split_are_not_cut_but_train_is_shuffled(config):
    (warning,) = warnings_of(config(data="blend_per_split: {train: top, valid: code}"))

    assert "the trainer shuffles" in warning


def test_a_train_split_of_everything_is_not_cut_but_shuffled(config):
    (warning,) = warnings_of(config(more=', split: "1,0,0"'))

    assert "the trainer shuffles" in warning


@pytest.mark.parametrize("order", ["stored", "{seed: 3}"])
def test_an_order_that_is_not_by_a_column_is_fine(config, order):
    assert warnings_of(config(f"  top: {{of: web, order: {order}}}")) == []


def test_the_last_order_of_a_chain_counts(config):
    views = SORTED + "\n  mixed: {of: top, order: {seed: 1}}"

    assert warnings_of(config(views, data="blend: mixed")) == []


def test_a_trainer_that_reads_in_order_is_not_warned_of(config):
    exports = "exports: {top-ds: {of: top, format: datatrove}}"
    more = ", preset: nanotron-main-bytes, samples: {train: 10}"

    assert warnings_of(config(exports=exports, more=more)) == []
    assert "shuffles" in warnings_of(config(exports=exports, more=more.replace("-bytes", "")))[0]


def test_tars_of_a_sorted_view_are_warned_of(config):
    others = "webdatasets: {tars: {corpora: [top, code]}}"

    (warning,) = settings_warnings(config(others=others), "shuffle_plans/tars")

    assert "shuffled into the tars" in warning


def test_packs_of_a_sorted_view_are_warned_of_and_are_in_no_order(config):
    loaded = config(more=", packing: {}")
    (name,) = loaded.packs

    assert "order of their own" in settings_warnings(loaded, f"packs/{name}", of="web")[0]
    assert sorting_of(loaded.views, name) is None
    assert warnings_of(loaded) == []


@pytest.mark.parametrize("budget", ["tokens: 1e3", "documents: 10"])
def test_a_budget_beside_an_order_is_warned_of_since_it_does_not_follow_it(config, budget):
    views = f"  top: {{of: web, {budget}, order: {{by: tokens, descending: true}}}}"

    (warning,) = settings_warnings(config(views), "views/top", of="web")

    assert f"views.top.{budget.partition(':')[0]}" in warning
    assert 'where: "tokens >=' in warning


def test_a_budget_of_the_view_above_is_named_by_its_own_key(config):
    views = "  some: {of: web, tokens: 1e3}\n  top: {of: some, order: {by: tokens}}"
    loaded = config(views)

    assert "views.some.tokens" in settings_warnings(loaded, "views/top", of="web")[0]
    assert settings_warnings(loaded, "views/some", of="web") == []


def test_status_warns_before_anything_is_built(config):
    file = config().file
    result = invoke_nanoset(["status", "--config", str(file), "--json"])

    (handoff,) = (row for row in json.loads(result.stdout) if row["part"] == "handoff")
    assert "the view top is sorted by tokens" in handoff["warnings"][0]
