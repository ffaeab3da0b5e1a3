"""The key `scales` of a nanoset stands for smaller runs and for the views that these read."""

from __future__ import annotations

import pytest

from helpers.building import make_corpora, make_view
from helpers.inspecting import read_dataset
from helpers.views import texts_of
from nanoset_core.errors import ConfigError
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig, load_config
from nanoset_core.stages.mappings.planning import NanosetContext
from nanoset_core.stages.mappings.scaled_runs import SCALE_SEED

START = """\
raw: raw
root: data
tokenizer: {path: tokenizer.json, eod: </s>}
"""
"""The sections of a nanoset.yaml before its nanosets."""


@pytest.fixture
def load(tmp_path):
    """A function that loads a nanoset.yaml from its nanosets and views."""

    def load_nanosets(nanosets: str, views: str = "{}") -> ProjectConfig:
        file = tmp_path / "nanoset.yaml"
        file.write_text(f"{START}views: {views}\nnanosets: {{{nanosets}}}\n", encoding="utf-8")
        return load_config(file)

    return load_nanosets


def test_the_settings_equal_those_with_the_smaller_run_written_out(load):
    full = "sequence_length: 8, split: '98,1,1'"

    short = load(
        f"full: {{{full}, blend: {{web: 0.7, code: 0.3}}, samples: {{train: 1000, valid: 50}}, "
        "max_epochs: {web: 4}, scales: [0.1]}"
    )

    written_out = load(
        f"full: {{{full}, blend: {{web: 0.7, code: 0.3}}, samples: {{train: 1000, valid: 50}}, "
        "max_epochs: {web: 4}}, "
        f"full-scale-0_1: {{{full}, blend: {{web-scale-0_1: 0.7, code-scale-0_1: 0.3}}, "
        "samples: {train: 100, valid: 5}, max_epochs: {web-scale-0_1: 4}}",
        f"{{web-scale-0_1: {{of: web, split: {{keep: [0, 0.1], seed: {SCALE_SEED}}}}}, "
        f"code-scale-0_1: {{of: code, split: {{keep: [0, 0.1], seed: {SCALE_SEED}}}}}}}",
    )
    assert short.views == written_out.views
    assert short.nanosets["full-scale-0_1"] == written_out.nanosets["full-scale-0_1"]


def test_amounts_of_a_mixture_are_scaled_but_not_its_shares_and_epochs(load):
    config = load(
        "full: {sequence_length: 8, samples: {train: 1000}, scales: [0.5], mix: {"
        "web: 0.7, code: {tokens: 1000}, others: {share: 0.3, mix: {a: {epochs: 2}, b: {}}}}}"
    )

    mixture = config.nanosets["full-scale-0_5"].mixture
    assert mixture is not None
    assert mixture.to_json()["mix"] == {
        "web-scale-0_5": {"share": 0.7},
        "code-scale-0_5": {"tokens": 500.0},
        "others": {
            "share": 0.3,
            "mix": {"a-scale-0_5": {"epochs": 2.0}, "b-scale-0_5": {}},
        },
    }


def test_the_views_of_a_divided_corpus_are_scaled(load):
    config = load(
        "full: {sequence_length: 8, samples: {train: 1000}, scales: [0.5], "
        "mix: {topics: {of: web, by: topic, values: [news]}}}"
    )

    assert config.views["topics-news-scale-0_5"].of == "topics-news"
    assert config.nanosets["full-scale-0_5"].corpora == ("topics-news-scale-0_5",)


def test_all_phases_of_a_run_are_scaled(load):
    config = load(
        "full: {sequence_length: 8, schedule: {iterations: 1000, global_batch_size: 4}, "
        "scales: [0.1], phases: [{blend: web, until: 600}, {blend: [web, code]}]}"
    )

    first_phase = config.nanosets["full-scale-0_1-phase-1"]
    second_phase = config.nanosets["full-scale-0_1-phase-2"]
    assert first_phase.span == (0, 60)
    assert first_phase.samples["train"] == 60 * 4
    assert second_phase.span == (60, 100)
    assert second_phase.corpora == ("web-scale-0_1", "code-scale-0_1")


def test_all_runs_are_evaluated_on_the_same_documents_if_these_are_given_apart(load):
    config = load(
        "full: {sequence_length: 8, samples: {train: 1000, valid: 50}, scales: [0.1], "
        "blend_per_split: {train: web, valid: news}}"
    )

    run = config.nanosets["full-scale-0_1"]
    assert run.blend_of("train") == "web-scale-0_1"
    assert run.blend_of("valid") == "news"
    assert run.samples == {"train": 100, "valid": 50}
    assert list(config.views) == ["web-scale-0_1"]


def test_nanosets_of_one_corpus_share_the_view_of_a_scale(load):
    nanoset = "{sequence_length: 8, blend: web, samples: {train: 10}, scales: [0.1]}"

    config = load(f"a: {nanoset}, b: {nanoset}")

    assert list(config.views) == ["web-scale-0_1"]
    assert list(config.nanosets) == ["a", "a-scale-0_1", "b", "b-scale-0_1"]


@pytest.mark.parametrize(
    ("nanosets", "message"),
    [
        pytest.param(
            "a: {sequence_length: 8, blend: web, scales: [0.1]}",
            "the length of the run is not known",
            id="no length",
        ),
        pytest.param(
            "a: {sequence_length: 8, blend: web, samples: {train: 9}, scales: [0.1], "
            "continue_from: {handoff: x, consumed_samples: 1}}",
            "has no smaller runs",
            id="continued run",
        ),
        pytest.param(
            "a: {sequence_length: 8, blend: web, samples: {train: 9}, scales: [0.1]}, "
            "a-scale-0_1: {sequence_length: 8, blend: web}",
            "a nanoset whose name is taken",
            id="name of a nanoset",
        ),
        pytest.param(
            "a: {sequence_length: 8, schedule: {iterations: 10, global_batch_size: 1}, "
            "scales: [0.1], phases: [{blend: web, until: 5}, {blend: code}]}",
            "a phase has no iteration",
            id="phase too short",
        ),
        pytest.param(
            "a: {sequence_length: 8, blend: web, samples: {train: 9}, scales: [1]}",
            "scales",
            id="not smaller",
        ),
    ],
)
def test_a_mistake_is_refused_with_its_key(load, nanosets, message):
    with pytest.raises(ConfigError, match=message) as caught:
        load(nanosets)

    assert "nanosets.a" in str(caught.value)


def test_a_mistake_is_reported_once_and_not_for_each_scale(load):
    with pytest.raises(ConfigError, match="`max_epochs` has no effect") as caught:
        load(
            "a: {sequence_length: 8, mix: {web: 1, code: 2}, max_epochs: 1, samples: {train: 99}, "
            "scales: [0.1, 0.5]}"
        )

    assert "nanosets.a.max_epochs" in str(caught.value)
    assert "scale" not in str(caught.value)


def test_a_view_of_that_name_with_other_documents_is_refused(load):
    with pytest.raises(ConfigError, match="a view whose name is taken"):
        load(
            "a: {sequence_length: 8, blend: web, samples: {train: 9}, scales: [0.1]}",
            "{web-scale-0_1: {of: web, documents: 5}}",
        )


@pytest.fixture
def scaled_project(make_project) -> Project:
    """A project whose nanoset has two smaller runs, with its corpora and views."""
    changes = {"samples: {train: 400}": "samples: {train: 1200}\n    scales: [0.1, 0.5]"}
    project = Project.open(make_project(replacements=changes))
    make_corpora(project)
    for name in project.config.views:
        make_view(project, name)
    return project


def test_the_documents_of_a_smaller_run_are_a_part_of_those_of_a_larger_one(scaled_project):
    smallest = set(texts_of(read_dataset(scaled_project, "web-scale-0_1")))
    medium = set(texts_of(read_dataset(scaled_project, "web-scale-0_5")))
    full = set(texts_of(read_dataset(scaled_project, "web")))

    assert smallest < medium < full


def epochs_by_corpus(project: Project, name: str) -> list[float]:
    """Return how often the train split of a nanoset reads each of its datasets."""
    return [member.epochs for member in NanosetContext(project, name).plan("train").members]


def test_a_smaller_run_repeats_its_documents_as_often_as_the_full_one(scaled_project):
    # The documents are chosen by hash, so that half of them have about half of the tokens.
    epochs_of_full = epochs_by_corpus(scaled_project, "pretrain")
    epochs_of_half = epochs_by_corpus(scaled_project, "pretrain-scale-0_5")

    assert epochs_of_half == pytest.approx(epochs_of_full, rel=0.2)
    assert epochs_of_half[0] > 1.5


def test_a_share_of_a_split_with_another_seed_is_a_share_of_its_documents(make_project):
    views = """\
views:
  half:  {of: web, split: {keep: [0, 0.5]}}
  same:  {of: half, split: {keep: [0, 0.5]}}
  other: {of: half, split: {keep: [0, 0.5], seed: 1}}
nanosets:
"""
    project = Project.open(make_project(replacements={"nanosets:\n": views}))
    make_corpora(project)
    n_documents = {}
    for name in project.config.views:
        make_view(project, name)
        n_documents[name] = len(read_dataset(project, name))

    assert n_documents["same"] == n_documents["half"]
    assert n_documents["other"] == pytest.approx(n_documents["half"] / 2, rel=0.25)
