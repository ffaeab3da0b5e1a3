"""`nanoset build --dry-run` reports what a build would make, and writes nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import Result

from helpers.changing import change_setting
from helpers.command import invoke_nanoset, json_of
from helpers.sample_project import OF_BOOKS, jsonl, sentences, write_project
from nanoset_assets.build.builder import build, dry_run
from nanoset_core.errors import ConfigError
from nanoset_core.project.dry_run import disk
from nanoset_core.project.dry_run.plan import DryRun
from nanoset_core.project.project import Project
from nanoset_core.stages.views import choosing


def folder_state(folder: Path) -> dict[str, Any]:
    """Return size and modification time of everything in a folder, by path."""
    state = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        state[str(path)] = (status.st_size, status.st_mtime_ns)
    return state


def invoke_dry_run(config_file: Path, *options: str) -> Result:
    """Run `nanoset build --dry-run` with further options."""
    arguments = ["build", "--dry-run", "--config", config_file, *options]
    return invoke_nanoset(arguments, catch_exceptions=False)


def planned_steps(plan: DryRun) -> set[str]:
    """Return the labels of all steps that a build would take."""
    steps: set[str] = set()
    for row in plan.rows:
        steps.update(row.steps)
    return steps


def append_documents(config_file: Path) -> None:
    """Append documents to a raw file of the corpus `web`."""
    with (config_file.parent / "raw/web/part-0/web-0.jsonl").open("ab") as file:
        file.write(jsonl(sentences("late", 3)))


@pytest.fixture(scope="module")
def unbuilt_config_file(tmp_path_factory, tokenizer_file) -> Path:
    """The nanoset.yaml of a project that was never built. Tests that share it only read."""
    return write_project(tmp_path_factory.mktemp("unbuilt") / "project", tokenizer_file)


@pytest.fixture
def config_file(make_project) -> Path:
    """The nanoset.yaml of a project that was never built, which a test may change and build.

    It has the corpora `books` and `code`, of which `code` is not used.
    """
    config_file = make_project(replacements=OF_BOOKS)
    shutil.rmtree(config_file.parent / "raw" / "web")
    return config_file


# What is written


def test_a_dry_run_writes_nothing_before_the_first_build(config_file, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    state_before = folder_state(tmp_path)

    result = invoke_dry_run(config_file)

    assert result.exit_code == 0
    assert "Nothing was made: this was a dry run." in result.output
    assert folder_state(tmp_path) == state_before


def test_a_dry_run_does_not_read_files_that_the_settings_name_before_the_first_build(
    make_project, tmp_path, monkeypatch
):
    settings = """views:
  known: {of: web, exclude: ids.txt}
contamination:
  quiz: {files: quiz.jsonl}
attributes:
  web: {files: scores.parquet}
nanosets:"""
    config_file = make_project(replacements={"nanosets:": settings})
    for name in ("ids.txt", "quiz.jsonl", "scores.parquet"):
        (config_file.parent / name).write_text("any content\n")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    state_before = folder_state(tmp_path)

    def refuse_to_read(_folder, names):
        raise AssertionError(f"{names} are read")

    monkeypatch.setattr(choosing, "read_ids", refuse_to_read)

    result = invoke_dry_run(config_file)

    assert result.exit_code == 0, result.output
    assert folder_state(tmp_path) == state_before


def test_a_dry_run_writes_nothing_in_a_built_project_whose_text_has_changed(
    built_platform, tmp_path
):
    append_documents(built_platform.config_file)
    state_before = folder_state(tmp_path)

    result = invoke_dry_run(built_platform.config_file)

    assert result.exit_code == 0
    assert folder_state(tmp_path) == state_before


# The steps are those of the build that follows


def test_the_plan_of_the_first_build_names_the_steps_of_the_build(config_file, instance):
    plan = dry_run(Project.open(config_file))

    report = build(Project.open(config_file), instance)
    assert planned_steps(plan) == set(report.made)


def test_before_the_first_build_every_output_is_missing(unbuilt_config_file):
    plan = dry_run(Project.open(unbuilt_config_file))

    assert {row.state for row in plan.rows} == {"missing"}
    assert plan.text_bytes.keys() == {"books", "code", "web"}
    assert plan.disk_bytes["shards"] > 0


def test_the_plan_of_a_build_that_has_nothing_to_do_is_empty(built_platform):
    plan = dry_run(Project.open(built_platform.config_file))

    assert not plan.rows


def test_outputs_whose_links_are_missing_are_planned_but_need_no_space(built_platform):
    config_file = built_platform.config_file
    for link in (config_file.parent / "data").rglob("current"):
        link.unlink()

    plan = dry_run(Project.open(config_file))
    forced_plan = dry_run(Project.open(config_file), rebuild=True)

    assert plan.step_count > 10
    assert plan.disk_bytes == {}
    assert plan.text_bytes == {}
    assert forced_plan.disk_bytes["datasets"] > 0


def test_the_plan_after_a_change_of_text_names_the_steps_of_the_build(built_platform):
    config_file = built_platform.config_file
    append_documents(config_file)

    choice = ["pretrain/index_mappings"]  # what is made of the new text, but for the webdataset

    plan = dry_run(Project.open(config_file), select=choice)

    report = build(Project.open(config_file), built_platform.instance, select=choice)
    assert planned_steps(plan) == set(report.made)
    assert "indexed_dataset [web]" in report.made
    assert "pretrain/index_mappings [train]" in report.made


def test_the_plan_after_a_change_of_text_gives_the_file_as_the_reason(built_platform):
    append_documents(built_platform.config_file)

    plan = dry_run(Project.open(built_platform.config_file))

    assert plan.rows[0].why == ("1 file changed (part-0/web-0.jsonl)",)
    assert plan.text_bytes.keys() == {"web"}


def test_text_is_not_counted_if_outputs_are_made_from_the_tokens_that_exist(built_platform):
    shutil.rmtree(built_platform.config_file.parent / "data/datasets/web")

    plan = dry_run(Project.open(built_platform.config_file))

    assert plan.rows[0].label == "corpus web"
    assert plan.text_bytes == {}


def test_outputs_whose_space_is_not_estimated_are_named(built_platform):
    shutil.rmtree(built_platform.config_file.parent / "data/nanosets")

    output = invoke_dry_run(built_platform.config_file).output

    assert "is not estimated for: nanoset; " in output
    assert "takes about 0 B" not in output


def test_the_estimate_of_a_first_build_says_what_it_does_not_count(unbuilt_config_file):
    plan = dry_run(Project.open(unbuilt_config_file))
    output = invoke_dry_run(unbuilt_config_file).output

    assert plan.not_estimated == ("nanoset",)
    assert ", not counting: nanoset; " in output


def test_text_is_counted_that_is_read_for_its_columns_only(built_platform):
    project = Project.open(built_platform.config_file)
    project = change_setting(project, "documents: {", "documents: {columns: [note], ")

    plan = dry_run(project)

    assert plan.text_bytes.keys() == {"books", "code", "web"}


@pytest.mark.parametrize(
    "choice",
    [
        pytest.param({"corpora": ["books"]}, id="a corpus"),
        pytest.param({"select": ["pretrain/train"]}, id="a split"),
        pytest.param({"select": ["+shuffled/shuffle_plan"]}, id="Dagster's syntax"),
        pytest.param(
            {"select": ["books"], "corpora": ["books", "code"]}, id="a name within corpora"
        ),
    ],
)
def test_a_selection_chooses_the_same_steps_as_in_a_build(config_file, instance, choice):
    plan = dry_run(Project.open(config_file), **choice)

    report = build(Project.open(config_file), instance, **choice)
    assert planned_steps(plan) == set(report.made)


def test_outputs_that_are_up_to_date_are_planned_only_with_force(built_platform):
    project = Project.open(built_platform.config_file)

    plan = dry_run(project, corpora=["web"])
    forced_plan = dry_run(project, corpora=["web"], rebuild=True)

    assert not plan.rows
    (row,) = forced_plan.rows
    assert row.why == ("it is rebuilt, because of --force",)
    assert len(row.steps) == 3


# JSON


@pytest.fixture(scope="module")
def report(unbuilt_config_file) -> Any:
    """The JSON of a dry run of the corpus `web`."""
    options = ("--dry-run", "--json", "--corpus", "web")
    return json_of("build", *options, "--config", unbuilt_config_file)


def test_json_lists_the_steps_of_each_output(report):
    assert report["steps"] == 3
    assert report["outputs"][0]["steps"] == [
        "raw_jsonl [web]",
        "tokenized_shards [web]",
        "indexed_dataset [web]",
    ]


def test_json_states_the_size_of_the_text(report):
    assert report["text_bytes"] > 0
    assert report["text_bytes"] == report["corpora"]["web"]


def test_json_states_what_the_outputs_need_on_disk_and_what_is_free(report, unbuilt_config_file):
    assert report["disk_bytes"] > 0
    assert report["disk_bytes"] == sum(report["disk"].values())
    assert report["free_bytes"] > 0
    assert report["root"] == str(unbuilt_config_file.parent / "data")


def test_json_is_refused_without_dry_run(unbuilt_config_file):
    result = invoke_nanoset(["build", "--json", "--config", unbuilt_config_file])

    assert result.exit_code == 2


# Faults


@pytest.fixture
def unreadable_config_file(unbuilt_config_file, tmp_path) -> Path:
    """The nanoset.yaml of a project whose corpus `code` has a file that does not exist."""
    folder = tmp_path / "project"
    shutil.copytree(unbuilt_config_file.parent, folder)
    (folder / "raw/code/gone.jsonl").symlink_to(folder / "nowhere.jsonl")
    return folder / "nanoset.yaml"


def test_an_unreadable_corpus_and_the_outputs_that_wait_for_it_are_named(unreadable_config_file):
    result = invoke_dry_run(unreadable_config_file, "--json")

    rows = {(row["name"], row["part"]): row for row in json.loads(result.stdout)["outputs"]}
    assert rows["code", None]["state"] == "failing"
    assert "gone.jsonl" in rows["code", None]["why"][0]
    assert rows["pretrain", "train"]["steps"] == []  # it mixes web and code
    assert rows["pretrain", "train"]["why"] == ["waits for corpus code, which fails"]
    assert rows["plain", "train"]["steps"]  # it reads books alone


def test_status_gives_the_same_states_and_reasons(unreadable_config_file):
    planned = json.loads(invoke_dry_run(unreadable_config_file, "--json").stdout)["outputs"]
    status = invoke_nanoset(["status", "--json", "--config", unreadable_config_file])

    def described(rows: list[dict[str, Any]]) -> dict[str, Any]:
        return {" ".join(filter(None, (r["kind"], r["name"], r["part"]))): r for r in rows}

    status_rows = described(json.loads(status.stdout))
    assert planned
    for label, row in described(planned).items():
        assert row["state"] == status_rows[label]["state"], label
        assert row["why"] == status_rows[label]["why"], label


@pytest.mark.parametrize("options", [(), ("--json",), ("--select", "books")])
def test_a_dry_run_of_a_build_that_would_fail_ends_with_1(unreadable_config_file, options):
    result = invoke_dry_run(unreadable_config_file, *options)

    assert result.exit_code == 1  # as the build, even if another corpus is selected
    assert result.stderr.endswith("this build would fail, as shown above\n")


def test_a_list_of_ids_that_does_not_exist_is_found_before_the_first_build(make_project):
    settings = """views:
  known: {of: web, exclude: ids.txt}
  fewer: {of: known, documents: 3}
nanosets:"""
    config_file = make_project(replacements={"nanosets:": settings})

    result = invoke_dry_run(config_file)

    assert result.exit_code == 1
    text = " ".join(result.output.split())
    assert "no file matches this path or pattern (ids.txt)" in text


def test_a_failing_output_that_is_not_selected_does_not_count(unreadable_config_file):
    result = invoke_dry_run(unreadable_config_file, "--corpus", "books")

    assert result.exit_code == 0


def test_a_dry_run_of_a_build_that_the_disk_has_no_room_for_ends_with_1(
    unbuilt_config_file, monkeypatch
):
    monkeypatch.setattr(disk, "LEAST_BYTES", 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1))

    result = invoke_dry_run(unbuilt_config_file)

    assert result.exit_code == 1
    assert "the disk is too small for this build, which would not start" in result.stdout


def test_a_token_that_the_tokenizer_lacks_is_an_error_as_in_the_first_build(config_file):
    change_setting(Project.open(config_file), "<|endoftext|>", "<|nothing|>")

    with pytest.raises(ConfigError, match="the tokenizer has no such token"):
        invoke_dry_run(config_file)


@pytest.mark.parametrize("option", ["--select", "--corpus"])
def test_an_unknown_name_is_refused_as_by_a_build(unbuilt_config_file, option):
    with pytest.raises(ConfigError):
        invoke_dry_run(unbuilt_config_file, option, "nothing-such")
