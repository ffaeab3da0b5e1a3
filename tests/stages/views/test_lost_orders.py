"""Settings warn of a sorted view if its order spoils a split, or does not reach the model."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from helpers.command import invoke_nanoset
from helpers.inspecting import settings_warnings
from nanoset_core import ProjectConfig, load_config
from nanoset_core.stages.order_warnings import sorting_of

CONFIG = """\
raw: raw
root: data
tokenizer: {{path: tokenizer.json, eod: "<|endoftext|>"}}
{exports}
views:
{views}
nanosets:
  pretrain: {{{data}, sequence_length: 32{nanoset_settings}}}
{webdatasets}
"""
SORTED = "  top: {of: web, order: {by: tokens, descending: true}}"
"""A view whose longest documents are first."""


@pytest.fixture
def config(make_project) -> Callable[..., ProjectConfig]:
    """A function that returns the settings of a project with some views and one nanoset."""
    file = make_project()

    def load(
        views: str = SORTED,
        data: str = "blend: top",
        nanoset_settings: str = "",
        webdatasets: str = "",
        exports: str = "",
    ) -> ProjectConfig:
        text = CONFIG.format(
            views=views,
            data=data,
            nanoset_settings=nanoset_settings,
            webdatasets=webdatasets,
            exports=exports,
        )
        file.write_text(text)
        return load_config(file)

    return load


def warnings_of_nanoset(config: ProjectConfig) -> list[str]:
    """Return the warnings of the settings of the nanoset."""
    return settings_warnings(config, "nanosets/pretrain/handoff")


# Splits


@pytest.mark.parametrize(
    ("split", "held_out"),
    [
        ("99,1,0", "valid would be"),
        ("99,0,1", "test would be"),
        ("98,1,1", "valid and test would be"),
    ],
)
def test_a_split_that_cuts_off_the_end_of_an_order_is_warned_of(config, split, held_out):
    settings = config(nanoset_settings=f', split: "{split}"')

    split_warning, shuffle_warning = warnings_of_nanoset(settings)

    assert held_out in split_warning
    assert "documents with the lowest tokens" in split_warning
    assert "split: {by: id, keep: [0, 0.01]}" in split_warning
    assert "has no effect" in shuffle_warning


def test_an_ascending_order_leaves_the_highest_values_to_valid(config):
    settings = config("  top: {of: web, order: {by: tokens}}")

    split_warning = warnings_of_nanoset(settings)[0]

    assert "documents with the highest tokens" in split_warning


@pytest.mark.parametrize(
    "data", ["blend: {top: 0.7, code: 0.3}", "blend: [code, top]", "mix: {top: 1, code: 1}"]
)
def test_a_sorted_view_in_a_blend_is_warned_of(config, data):
    warnings = warnings_of_nanoset(config(data=data))

    assert "the view top" in warnings[0]


def test_a_view_of_a_sorted_view_is_sorted(config):
    views = f"{SORTED}\n  half: {{of: top, split: {{keep: [0, 0.5]}}}}"

    warnings = warnings_of_nanoset(config(views, data="blend: half"))

    assert "the view half is sorted by tokens" in warnings[0]


# Shuffling


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(
            {"data": "blend_per_split: {train: top, valid: code}"}, id="another blend for valid"
        ),
        pytest.param({"nanoset_settings": ', split: "1,0,0"'}, id="no other split"),
    ],
)
def test_an_order_that_no_split_cuts_off_is_only_shuffled(config, changes):
    (warning,) = warnings_of_nanoset(config(**changes))

    assert "the trainer shuffles" in warning


@pytest.mark.parametrize("order", ["stored", "{seed: 3}"])
def test_an_order_that_is_not_by_a_column_needs_no_warning(config, order):
    settings = config(f"  top: {{of: web, order: {order}}}")

    assert warnings_of_nanoset(settings) == []


def test_only_the_last_order_of_views_of_views_matters(config):
    views = f"{SORTED}\n  mixed: {{of: top, order: {{seed: 1}}}}"

    assert warnings_of_nanoset(config(views, data="blend: mixed")) == []


EXPORTS = "exports: {top-ds: {of: top, format: datatrove}}"


def test_a_trainer_that_reads_in_order_needs_no_warning(config):
    settings = config(
        exports=EXPORTS,
        nanoset_settings=", preset: nanotron-main-bytes, samples: {train: 10}",
    )

    assert warnings_of_nanoset(settings) == []


def test_a_trainer_that_shuffles_is_warned_of(config):
    settings = config(
        exports=EXPORTS, nanoset_settings=", preset: nanotron-main, samples: {train: 10}"
    )

    assert "shuffles" in warnings_of_nanoset(settings)[0]


# Other outputs


def test_tars_of_a_sorted_view_are_warned_of(config):
    settings = config(webdatasets="webdatasets: {tars: {corpora: [top, code]}}")

    (warning,) = settings_warnings(settings, "shuffle_plans/tars")

    assert "shuffled into the tars" in warning


def test_packs_of_a_sorted_view_are_warned_of(config):
    settings = config(nanoset_settings=", packing: {}")
    (name,) = settings.packs

    warnings = settings_warnings(settings, f"packs/{name}", of="web")

    assert "order of their own" in warnings[0]


def test_packs_of_a_sorted_view_are_not_sorted(config):
    settings = config(nanoset_settings=", packing: {}")
    (name,) = settings.packs

    assert sorting_of(settings.views, name) is None
    assert warnings_of_nanoset(settings) == []


@pytest.mark.parametrize(
    ("budget", "key"),
    [("tokens: 1e3", "views.top.tokens"), ("documents: 10", "views.top.documents")],
)
def test_a_budget_is_warned_of_since_it_does_not_follow_the_order(config, budget, key):
    settings = config(f"  top: {{of: web, {budget}, order: {{by: tokens, descending: true}}}}")

    (warning,) = settings_warnings(settings, "views/top", of="web")

    assert key in warning
    assert f"use `top: {{by: tokens, {budget.partition(':')[0]}: …}}`" in warning


def test_a_budget_of_the_view_that_is_sorted_is_named_by_its_own_key(config):
    settings = config("  some: {of: web, tokens: 1e3}\n  top: {of: some, order: {by: tokens}}")

    warnings_of_sorted_view = settings_warnings(settings, "views/top", of="web")
    warnings_of_its_source = settings_warnings(settings, "views/some", of="web")

    assert "views.some.tokens" in warnings_of_sorted_view[0]
    assert warnings_of_its_source == []


def test_status_warns_before_anything_is_built(config):
    output = invoke_nanoset(["status", "--config", config().file, "--json"]).stdout

    (handoff,) = [row for row in json.loads(output) if row["part"] == "handoff"]
    assert "the view top is sorted by tokens" in handoff["warnings"][0]
