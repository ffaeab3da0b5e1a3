"""A dry run shows what the views would choose that a build would make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.building import make_corpora, make_view, open_project
from helpers.command import invoke_nanoset
from helpers.sample_project import jsonl, sentences, write_project
from nanoset_assets.build.builder import dry_run
from nanoset_core.errors import NanosetError, one_line_with_remedy
from nanoset_core.project.dry_run import views as planned_views
from nanoset_core.project.project import Project
from nanoset_core.stages.mappings.planning import NanosetContext

VIEWS = """\
views:
  long: {of: web, top: {by: tokens, documents: 30}}
  short: {of: web, top: {by: tokens, tokens: 500, ascending: true}}
  wrong: {of: web, top: {by: file, documents: 30}}
nanosets:
"""


@pytest.fixture
def project(tmp_path: Path, tokenizer_file: Path) -> Project:
    """A project whose corpora are built, and none of its views."""
    file = write_project(tmp_path / "project", tokenizer_file, {"nanosets:\n": VIEWS})
    project = open_project(file)
    make_corpora(project)
    return project


def views_of(project: Project) -> Any:
    """Return what the views would choose by a dry run."""
    return dry_run(Project.open(project.config.file)).views


def test_the_views_have_the_documents_and_tokens_that_a_build_gives_them(project):
    planned = views_of(project)

    for name in ["long", "short"]:
        facts = make_view(project, name).facts
        assert planned[name].documents == facts["documents"]
        assert planned[name].tokens == facts["tokens"]


def test_a_rule_with_a_mistake_hides_no_other_view(project):
    assert list(views_of(project)) == ["long", "short"]


def test_views_that_are_up_to_date_are_not_shown(project):
    make_view(project, "long")  # makes all views of the corpus

    assert views_of(project) == {}


def test_views_of_a_corpus_that_is_rebuilt_first_are_not_shown(project):
    raw = project.config.file.parent / "raw" / "web"
    (raw / "late.jsonl").write_bytes(jsonl(sentences("late", 3)))

    assert views_of(project) == {}


def test_views_of_a_large_corpus_are_not_shown(project, monkeypatch):
    monkeypatch.setattr(planned_views, "MAX_DOCUMENTS", 100)

    assert views_of(project) == {}


def test_the_command_prints_where_the_view_is_cut(project):
    outcome = invoke_nanoset(["build", "--dry-run", "-c", project.config.file])

    text = " ".join(outcome.output.split())
    assert "view long would hold 30 documents" in text
    assert "the cut is at tokens =" in text


def test_the_command_prints_json(project):
    outcome = invoke_nanoset(["build", "--dry-run", "--json", "-c", project.config.file])

    values = json.loads(outcome.stdout)
    assert values["views"]["long"] == views_of(project)["long"].to_json()


def with_settings(project: Project, views: str, nanosets: str = "") -> Path:
    """Write a nanoset.yaml with other views and further nanosets, and return its path."""
    text = project.config.file.read_text().replace(VIEWS, f"views:\n{views}nanosets:\n{nanosets}")
    file = project.config.file.parent / "other.yaml"
    file.write_text(text)
    return file


def test_a_view_of_a_view_that_does_not_exist_yet_is_shown(project):
    views = """\
  best: {of: web, top: {by: tokens, documents: 30}}
  half-of-best: {of: best, split: {keep: [0, 0.5]}}
"""
    file = with_settings(project, views)

    planned = dry_run(Project.open(file)).views

    facts = make_view(Project.open(file), "half-of-best").facts
    assert planned["half-of-best"].documents == facts["documents"]


def test_the_cut_of_another_view_is_not_that_of_a_view_of_it(project):
    views = """\
  best: {of: web, top: {by: tokens, documents: 30}}
  half-of-best: {of: best, split: {keep: [0, 0.5]}}
"""
    file = with_settings(project, views)

    planned = dry_run(Project.open(file)).views

    assert len(planned["best"].cuts) == 1
    assert planned["half-of-best"].cuts == ()


def test_a_mixture_with_a_view_that_would_be_empty_would_fail(project):
    nanoset = "{sequence_length: 8, samples: {train: 10}, mix: {empty: {}, code: {}}}"
    file = with_settings(project, '  empty: {of: web, where: "tokens < 0"}\n', f"  m: {nanoset}\n")

    outcome = invoke_nanoset(["build", "--dry-run", "-c", file], env={"COLUMNS": "300"})

    assert outcome.exit_code == 1
    assert "nanoset m would fail: no tokens in empty, a part of its mixture" in outcome.output


def test_a_long_list_leaves_out_views_and_not_nanosets(project):
    views = "".join(f"  v{number}: {{of: web, documents: 5}}\n" for number in range(110))
    file = with_settings(project, views)

    outcome = invoke_nanoset(["build", "--dry-run", "-c", file], env={"COLUMNS": "300"})

    assert "nanoset pretrain train" in outcome.output
    assert "outputs more (--json lists all)" in outcome.output


# Nanosets that would fail

SMALL_VIEW = "  few: {of: web, top: {by: tokens, documents: 3}}\n"
TRAINER = (
    '{megatron_core: "0.19.0", tokenizer_type: HuggingFaceTokenizer, tokenizer_model: /models/x}'
)


def failure_of_build(project: Project, nanoset: str) -> str:
    """Make the view `few`, and return why the train split of a nanoset cannot be planned then."""
    make_view(project, "few")
    with pytest.raises(NanosetError) as caught:
        NanosetContext(project, nanoset).plan("train")
    return one_line_with_remedy(caught.value)


def test_a_nanoset_of_a_view_without_enough_tokens_for_a_sample_would_fail(project):
    nanoset = '  small: {blend: few, sequence_length: 5000, split: "1,0,0"}\n'
    small_project = Project.open(with_settings(project, SMALL_VIEW, nanoset))

    planned = dry_run(small_project)

    error = failure_of_build(small_project, "small")
    assert "train has no sample" in error
    assert planned.failures == (f"nanoset small train would fail: {error}",)
    assert planned.would_fail


RUN = """\
  run:
    sequence_length: 32
    split: {split}
    trainer: {trainer}
    schedule: {{iterations: 40, global_batch_size: 2, eval_interval: 40, eval_iters: 1}}
    continue: true
    phases: [{{blend: web, until: 20}}, {{blend: {{web: 0.9, few: 0.1}}}}]
"""


def test_a_later_phase_of_a_view_that_is_too_small_for_validation_would_fail(project):
    nanoset = RUN.format(split='"98,1,1"', trainer=TRAINER)
    small_project = Project.open(with_settings(project, SMALL_VIEW, nanoset))

    planned = dry_run(small_project)

    error = failure_of_build(small_project, "run-phase-2")
    assert "other sequences of a dataset than in earlier phases" in error
    assert planned.failures == (f"nanoset run-phase-2 train would fail: {error}",)


def test_a_later_phase_of_a_small_view_would_not_fail_without_validation(project):
    nanoset = RUN.format(split='"1,0,0"', trainer=TRAINER)

    planned = dry_run(Project.open(with_settings(project, SMALL_VIEW, nanoset)))

    assert planned.failures == ()


def test_a_nanoset_whose_other_dataset_is_rebuilt_is_not_planned(project):
    nanoset = '  small: {blend: [few, code], sequence_length: 5000, split: "1,0,0"}\n'
    file = with_settings(project, SMALL_VIEW, nanoset)
    (file.parent / "raw" / "code" / "late.jsonl").write_bytes(jsonl(sentences("late", 3)))

    planned = dry_run(Project.open(file))

    assert planned.failures == ()
