"""`nanoset build`: which outputs it makes, what it prints meanwhile, and how its report reads."""

from __future__ import annotations

import errno
import gzip
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from helpers.progress import RecordingDisplay
from helpers.sample_project import jsonl, sentences, write_project
from nanoset_assets import commands
from nanoset_assets.assets.output_names import label_of
from nanoset_assets.build.builder import build, selected
from nanoset_assets.build.report import BuildReport
from nanoset_assets.build.runs import BuildRuns
from nanoset_assets.commands import show_report
from nanoset_assets.definitions import build_definitions
from nanoset_assets.names import Names
from nanoset_assets.project_defs import ProjectDefs
from nanoset_core.errors import ConfigError, InputError
from nanoset_core.project.dry_run import disk
from nanoset_core.project.graph.current_versions import CurrentVersions
from nanoset_core.project.graph.graph import graph_over
from nanoset_core.project.project import Project
from nanoset_core.project.verify import targets

CORPUS_ASSETS = ("raw_jsonl", "tokenized_shards", "indexed_dataset")


def corpus_steps(*corpora: str) -> set[str]:
    """Return the labels of all steps that make the datasets of corpora."""
    labels = set()
    for corpus in corpora:
        for asset in CORPUS_ASSETS:
            labels.add(f"{asset} [{corpus}]")
    return labels


def append_documents(config_file: Path) -> None:
    """Append documents to a raw file of the corpus `web`."""
    with (config_file.parent / "raw/web/part-0/web-0.jsonl").open("ab") as file:
        file.write(jsonl(sentences("late", 3)))


def printed_report(project: Project, report: BuildReport, capsys) -> str:
    """Return what `nanoset build` prints of a report."""
    capsys.readouterr()
    show_report(project, report)
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def module_instance(tmp_path_factory) -> Iterator[dg.DagsterInstance]:
    """An instance for builds that several tests look at; their projects are in other folders."""
    home = str(tmp_path_factory.mktemp("home"))
    with dg.DagsterInstance.ephemeral(tempdir=home) as instance:
        yield instance


# What is made


def test_a_selected_asset_is_built_with_everything_that_it_needs(make_project, instance):
    report = build(Project.open(make_project()), instance, select="indexed_dataset")

    assert not report.failed
    assert set(report.made) == corpus_steps("books", "code", "web")


def test_only_stale_outputs_are_made_for_a_selected_asset(built_platform):
    append_documents(built_platform.config_file)
    project = Project.open(built_platform.config_file)

    report = build(project, built_platform.instance, select="indexed_dataset")

    assert set(report.made) == corpus_steps("web")


def test_a_rebuild_makes_the_selected_assets_alone(built_platform):
    project = Project.open(built_platform.config_file)

    report = build(project, built_platform.instance, select="indexed_dataset", rebuild=True)

    assert set(report.made) == {
        "indexed_dataset [books]",
        "indexed_dataset [code]",
        "indexed_dataset [web]",
    }


def test_a_derived_asset_of_a_corpus_is_built_if_it_is_selected(built_platform):
    shutil.rmtree(built_platform.config.root_folder / "packed")
    project = Project.open(built_platform.config_file)

    report = build(project, built_platform.instance, corpora=["code"], select="packed_dataset")

    assert set(report.made) == {"packed_dataset [code]"}


def test_a_build_looks_up_again_only_outputs_that_it_has_made(
    make_project, instance, capsys, monkeypatch
):
    config_file = make_project()
    assert not build(Project.open(config_file), instance, select="indexed_dataset").failed
    (config_file.parent / "raw/books/late.jsonl").write_bytes(jsonl(sentences("late", 3)))

    # Record which outputs are looked up in the root, and are not known to the graph already.
    lookups: list[tuple[CurrentVersions, str]] = []
    find_version = CurrentVersions.of

    def find_version_and_record(self, node):
        if node not in self._versions:
            lookups.append((self, label_of(node)))
        return find_version(self, node)

    monkeypatch.setattr(CurrentVersions, "of", find_version_and_record)

    project = Project.open(config_file)
    report = build(project, instance, select="books")

    assert "3 up to date" in printed_report(project, report, capsys)
    versions = report.graph.versions
    assert lookups.count((versions, "indexed_dataset [web]")) == 1
    assert lookups.count((versions, "indexed_dataset [books]")) == 2  # before and after


# One corpus


@dataclass(frozen=True)
class FinishedBuild:
    """A build that several tests look at."""

    project: Project
    report: BuildReport


@pytest.fixture(scope="module")
def books_build(tmp_path_factory, tokenizer_file, module_instance) -> FinishedBuild:
    """A build of the corpus `books`, in a project whose corpus `code` is unreadable."""
    folder = tmp_path_factory.mktemp("books") / "project"
    replacements = {"webdatasets:": "pbin: [books]\nwebdatasets:"}
    config_file = write_project(folder, tokenizer_file, replacements)
    (folder / "raw/code/gone.jsonl").symlink_to(folder / "nowhere.jsonl")
    project = Project.open(config_file)
    return FinishedBuild(project, build(project, module_instance, corpora=["books"]))


def test_one_corpus_is_built_up_to_its_dataset(books_build):
    assert set(books_build.report.made) == corpus_steps("books")


def test_a_build_of_one_corpus_ignores_an_unreadable_one(books_build):
    assert books_build.report.failed == {}
    assert books_build.report.skipped == []


def test_the_report_of_one_corpus_shows_nothing_else(books_build, capsys):
    printed = printed_report(books_build.project, books_build.report, capsys)

    assert re.search(r"│ books +│ up to date", printed)
    assert "Made 1 of 1 outputs" in printed  # `pbin` of this corpus was not requested
    assert "missing" not in printed
    assert "web" not in printed
    assert "pretrain" not in printed


def test_an_unknown_corpus_is_refused_with_the_names_of_all_corpora(make_project, instance):
    project = Project.open(make_project())

    with pytest.raises(ConfigError, match="--corpus") as caught:
        build(project, instance, corpora=["wbe", "web"])

    assert caught.value.found == "'wbe'"
    assert caught.value.expected == "one of books, code, web"


# Selections by text


@pytest.fixture(scope="module")
def select(tmp_path_factory, tokenizer_file) -> Callable[..., set[str]]:
    """A function that returns the labels of the outputs that texts select."""
    folder = tmp_path_factory.mktemp("select") / "project"
    project = Project.open(write_project(folder, tokenizer_file))
    nodes = graph_over(project, {}, ["books", "code", "web"]).nodes()
    project_defs = ProjectDefs.of(project.config)

    def select_labels(*texts: str) -> set[str]:
        return {label_of(node) for node in selected(nodes, texts, (), project_defs)}

    return select_labels


@pytest.mark.parametrize("text", ["clean", "clean/view", "web/views", "web/clean", "cle*"])
def test_builds_and_checks_select_a_view_by_the_same_names(tmp_path, tokenizer_file, text):
    views = {"webdatasets:": "views:\n  clean: {of: web, documents: 10}\nwebdatasets:"}
    project = Project.open(write_project(tmp_path / "project", tokenizer_file, views))
    nodes = graph_over(project, {}, ["books", "code", "web"]).nodes()

    chosen = selected(nodes, [text], (), ProjectDefs.of(project.config))

    assert {label_of(node) for node in chosen} == {"web/views [clean]"}
    assert [target.name for target in targets(project, [text])] == ["clean/view"]


def test_the_name_of_a_corpus_selects_its_outputs(select):
    assert select("books") == corpus_steps("books")


def test_the_address_of_a_split_selects_its_outputs(select):
    assert select("plain/train") == {"plain/index_mappings [train]"}


def test_a_pattern_selects_all_names_that_match_it(select):
    labels = select("pla*", "shuffled")

    assert {label.partition("/")[0] for label in labels} == {"plain", "shuffled"}


@pytest.mark.parametrize("text", ["pretrain/*", "group:pretrain"])
def test_a_pattern_of_addresses_and_a_group_select_like_the_name_of_a_nanoset(select, text):
    assert select(text) == select("pretrain")


def test_a_selection_in_dagsters_syntax_is_united_with_a_name(select):
    labels = select("code", 'key:"raw_jsonl"')

    assert labels == corpus_steps("code") | {"raw_jsonl [books]", "raw_jsonl [web]"}


@pytest.mark.parametrize("text", ["no_such_asset", "a b", "group:none", "pretrain/nothing", ""])
def test_a_text_that_selects_nothing_is_refused_with_examples(select, text):
    with pytest.raises(ConfigError, match="this selects nothing") as caught:
        select(text)

    assert caught.value.found == repr(text)
    expected = str(caught.value.expected)
    assert "indexed_dataset" in expected
    assert "pretrain/handoff" in expected
    assert "books" in expected
    assert "plain" in expected
    assert "shuffled" in expected
    assert "+pretrain/blend" in expected


def test_the_error_for_the_name_of_a_split_alone_suggests_its_address(select):
    with pytest.raises(ConfigError, match="this selects nothing") as caught:
        select("train")

    assert caught.value.remedy == "did you mean 'pretrain/train'?"


# What is shown while a build runs


@dataclass(frozen=True)
class WatchedBuild:
    """What a build has shown."""

    lines: list[str]
    """Lines that were printed."""
    display: RecordingDisplay
    """The display of progress."""


@pytest.fixture(scope="module")
def watched_build(tmp_path_factory, tokenizer_file, module_instance) -> WatchedBuild:
    """A build that tokenizes one corpus."""
    folder = tmp_path_factory.mktemp("watched") / "project"
    display = RecordingDisplay()
    project = Project.open(write_project(folder, tokenizer_file), display.progress)
    lines: list[str] = []
    build(project, module_instance, select="tokenized_shards", corpora=["web"], say=lines.append)
    return WatchedBuild(lines, display)


def test_a_build_prints_its_plan_and_the_start_and_end_of_each_run(watched_build):
    plan, start, end = watched_build.lines

    assert re.fullmatch(r"plan: 2 steps, from [0-9.]+ kB of text in 1 corpus", plan)
    assert start == "[1/2] raw_jsonl, tokenized_shards [web] …"
    assert re.fullmatch(r"\[2/2\] raw_jsonl, tokenized_shards \[web\]: made in [0-9.]+ s", end)


def test_a_build_shows_its_steps(watched_build):
    assert watched_build.display.steps == ["[1/2] raw_jsonl [web]", "[2/2] tokenized_shards [web]"]


def test_a_build_notes_the_token_at_the_end_of_documents(watched_build):
    assert "EOD '<|endoftext|>' (id 0)" in watched_build.display.notes


def test_a_build_shows_the_progress_of_tokenization_from_start_to_end(watched_build):
    works = [work for work in watched_build.display.works if work.stage == "tokenized_shards"]

    first_work = works[0]
    last_work = works[-1]
    assert first_work.done == 0
    assert last_work.done == last_work.total
    assert last_work.documents
    assert last_work.tokens


def fail_in_dagster(monkeypatch, n_outputs: int) -> None:
    """Let the run of a corpus make some outputs, and then fail without an error of a step."""
    execute = BuildRuns._execute_in_dagster

    def execute_and_fail(runs: BuildRuns, job: dg.JobDefinition, nodes: Sequence[Any]) -> None:
        if n_outputs:
            execute(runs, job, nodes[:n_outputs])
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(BuildRuns, "_execute_in_dagster", execute_and_fail)


def test_outputs_that_were_made_before_dagster_failed_are_reported_as_made(
    make_project, instance, monkeypatch
):
    fail_in_dagster(monkeypatch, n_outputs=2)

    report = build(Project.open(make_project()), instance, corpora=["web"])

    assert list(report.made) == ["raw_jsonl [web]", "tokenized_shards [web]"]
    assert list(report.failed) == ["indexed_dataset [web]"]
    assert report.skipped == []


def test_a_run_that_fails_after_its_last_output_is_reported_as_failed_at_its_end(
    make_project, instance, monkeypatch
):
    fail_in_dagster(monkeypatch, n_outputs=3)

    report = build(Project.open(make_project()), instance, corpora=["web"])

    assert len(report.made) == 3
    assert list(report.failed) == [
        "the end of the run of raw_jsonl, tokenized_shards, indexed_dataset [web]"
    ]
    assert report.skipped == []
    assert report.nodes_given_up() == set()


def test_a_run_that_fails_before_its_first_output_is_reported_as_a_failure_of_that(
    make_project, instance, monkeypatch
):
    fail_in_dagster(monkeypatch, n_outputs=0)

    report = build(Project.open(make_project()), instance, corpora=["web"])

    assert report.made == {}
    assert list(report.failed) == ["raw_jsonl [web]"]
    assert report.skipped == ["tokenized_shards [web]", "indexed_dataset [web]"]


def test_a_run_of_one_step_that_fails_is_named_once(make_project, instance, monkeypatch):
    project = Project.open(make_project())
    build(project, instance, corpora=["web"])
    fail_in_dagster(monkeypatch, n_outputs=0)
    lines: list[str] = []

    build(
        project,
        instance,
        select="indexed_dataset",
        corpora=["web"],
        rebuild=True,
        say=lines.append,
    )

    assert re.fullmatch(r"\[1/1\] indexed_dataset \[web\]: failed after .*", lines[-1])


def test_a_build_prints_which_step_of_a_run_failed(make_project, instance):
    config_file = make_project()
    raw_file = config_file.parent / "raw/web/part-0/web-0.jsonl"
    raw_file.write_bytes(b"no line of JSON\n" * 1000)
    lines: list[str] = []

    build(Project.open(config_file), instance, corpora=["web"], say=lines.append)

    _plan, _start, end = lines
    assert re.fullmatch(r"\[\d/3\] .*\]: tokenized_shards \[web\] failed after .*", end)


# Failures


def test_the_report_shows_an_output_that_was_not_made_as_failing_with_the_error(
    make_project, instance, capsys
):
    project = Project.open(make_project())
    folder = project.config.raw_folder / "odd"
    folder.mkdir()
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(b""))

    report = build(project, instance, corpora=["odd"])

    printed = printed_report(project, report, capsys)
    assert "failing: corpus odd: the corpus holds no text" in printed


def test_steps_that_failed_for_the_same_reason_are_printed_with_one_error(capsys):
    refusal = "Slurm refuses the jobs"
    failed: dict[str, Exception] = {
        "tokenized_shards [web]": ConfigError(refusal),
        "tokenized_shards [code]": InputError("this file is damaged"),
        "tokenized_shards [books]": ConfigError(refusal),
    }
    report = BuildReport(steps=[], graph=SimpleNamespace(), failed=failed)

    commands._print_failures(report)

    printed = capsys.readouterr().err
    assert "failed: tokenized_shards [web], tokenized_shards [books]\n" in printed
    assert "failed: tokenized_shards [code]\n" in printed
    assert printed.count(refusal) == 1


def test_outputs_are_failing_of_which_only_the_build_shows_that_they_fail(
    make_project, instance, capsys, monkeypatch
):
    project = Project.open(make_project())

    def fail(*_arguments: object, **_options: object) -> None:
        raise InputError("the moon is full")

    monkeypatch.setattr("nanoset_core.stages.shards.make.tokenize_corpus", fail)
    report = build(project, instance, corpora=["web"])

    printed = printed_report(project, report, capsys)
    assert "failing: corpus web: the moon is full" in printed


@dataclass(frozen=True)
class FailedBuild(FinishedBuild):
    """A build that several tests look at, with the lines that it printed."""

    lines: list[str]


@pytest.fixture(scope="module")
def full_disk_build(tmp_path_factory, tokenizer_file, module_instance) -> FailedBuild:
    """A build during which the disk is full when datasets are written."""

    def fail_to_merge(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = tmp_path_factory.mktemp("full") / "project"
    project = Project.open(write_project(folder, tokenizer_file))
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nanoset_core.stages.dataset.merging.merge_inputs", fail_to_merge)
        report = build(project, module_instance, say=lines.append)
    return FailedBuild(project, report, lines)


def test_a_full_disk_fails_the_steps_that_write(full_disk_build):
    assert full_disk_build.report.failed.keys() == {
        "indexed_dataset [books]",
        "indexed_dataset [code]",
        "indexed_dataset [web]",
    }


def test_steps_that_need_a_failed_one_are_skipped(full_disk_build):
    assert "pretrain/index_mappings [train]" in full_disk_build.report.skipped


def test_skipped_steps_are_not_printed(full_disk_build):
    _plan, *lines = full_disk_build.lines

    # The start and the end of the run of each of three corpora.
    assert len(lines) == 6
    for line in lines:
        assert "] raw_jsonl, tokenized_shards, indexed_dataset [" in line


def test_the_report_gives_a_full_disk_as_the_reason_of_failing_outputs(full_disk_build, capsys):
    printed = printed_report(full_disk_build.project, full_disk_build.report, capsys)

    assert "failing: corpus web: the disk is full" in printed
    assert "corpus web: not built yet" not in printed


# Text that arrives while a build runs


def test_the_report_names_corpora_whose_text_has_changed_since_the_build_listed_it(
    make_project, instance, capsys
):
    config_file = make_project()
    project = Project.open(config_file)
    report = build(project, instance, select="indexed_dataset")
    append_documents(config_file)

    printed = printed_report(project, report, capsys)

    assert (
        "Text has changed since this build listed it: corpus web (1 file changed "
        "(part-0/web-0.jsonl)). The next `nanoset build` reads it." in printed
    )


def test_the_report_does_not_name_corpora_that_were_stale_and_not_selected(built_platform, capsys):
    append_documents(built_platform.config_file)
    (built_platform.config_file.parent / "raw/books/new.jsonl").write_bytes(jsonl(["some text"]))
    project = Project.open(built_platform.config_file)
    report = build(project, built_platform.instance, select="books")

    printed = printed_report(project, report, capsys)

    assert report.made
    assert "Text has changed" not in printed


# A disk with too little room, for a run from the UI


@pytest.fixture
def _no_free_space(monkeypatch) -> None:
    """Let every disk be full, and the smallest outputs be refused on it."""
    monkeypatch.setattr(disk, "LEAST_BYTES", 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=0))


@pytest.mark.usefixtures("_no_free_space")
def test_a_run_from_the_ui_is_refused_before_it_fills_the_disk(make_project, instance):
    config_file = make_project()
    instance.add_dynamic_partitions(Names().corpora_name, ["web"])
    job = build_definitions(Project.open(config_file).config).resolve_job_def("corpus")

    with pytest.raises(dg.Failure, match="too little room") as caught:
        job.execute_in_process(instance=instance, partition_key="web")

    assert "datasets" in str(caught.value)
    assert not (config_file.parent / "data/shards").exists()


@pytest.mark.usefixtures("_no_free_space")
def test_a_run_from_the_ui_that_has_nothing_to_make_needs_no_room(built_platform):
    job = built_platform.definitions.resolve_job_def("corpus")

    result = job.execute_in_process(instance=built_platform.instance, partition_key="web")

    assert result.success


# What the report offers to do next


@pytest.fixture(scope="module")
def plain_build(tmp_path_factory, tokenizer_file, module_instance) -> FinishedBuild:
    """A build of a nanoset, in a folder whose name a shell would split."""
    folder = tmp_path_factory.mktemp("plain") / 'it\'s "a" pro ject'
    project = Project.open(write_project(folder, tokenizer_file))
    return FinishedBuild(project, build(project, module_instance, select="plain"))


def printed_line(printed: str, label: str) -> str:
    """Return the text after a label at the start of a printed line."""
    lines = [line for line in printed.splitlines() if line.startswith(label)]
    return lines[0].removeprefix(label)


def test_the_report_of_a_corpus_does_not_offer_to_read_samples(make_project, instance, capsys):
    project = Project.open(make_project())

    report = build(project, instance, select="books")

    assert "Read samples" not in printed_report(project, report, capsys)


def test_the_report_of_a_nanoset_names_the_instructions_for_training(plain_build, capsys):
    handoff = plain_build.project.outputs.current("nanosets", "plain/handoff")

    printed = printed_report(plain_build.project, plain_build.report, capsys)

    assert f"Train on it: {handoff.path('START.md')} says how" in printed


def test_the_command_to_read_samples_runs_as_it_is_printed(plain_build, capsys):
    printed = printed_report(plain_build.project, plain_build.report, capsys)

    command, option, program = shlex.split(printed_line(printed, "Read samples: "))

    assert command == "python"
    assert option == "-c"
    exec(program, {})
    assert "'tokens'" in capsys.readouterr().out


def test_the_command_to_look_at_a_nanoset_can_be_pasted_into_a_shell(plain_build, capsys):
    config_file = plain_build.project.config.file

    printed = printed_report(plain_build.project, plain_build.report, capsys)

    words = shlex.split(printed_line(printed, "Look at it: "))
    assert f"NANOSET_CONFIG={config_file}" in words


def test_a_report_with_the_history_of_another_dagster_names_that_first(
    plain_build, capsys, monkeypatch, tmp_path
):
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))

    printed = printed_report(plain_build.project, plain_build.report, capsys)

    expected = f"Look at it in the Dagster of {tmp_path}. If it does not show this project: "
    assert printed_line(printed, expected).startswith("DAGSTER_HOME=")


@pytest.mark.parametrize(("has_dg", "program"), [(True, "dg"), (False, "dagster")])
def test_the_command_to_look_at_a_nanoset_starts_a_program_that_is_installed(
    plain_build, capsys, monkeypatch, has_dg, program
):
    module_spec = ModuleSpec("dagster_dg_cli", None) if has_dg else None
    monkeypatch.setattr(commands, "find_spec", lambda _name: module_spec)

    printed = printed_report(plain_build.project, plain_build.report, capsys)

    words = shlex.split(printed_line(printed, "Look at it: "))
    assert words[-4:] == [program, "dev", "-m", "nanoset_assets.definitions"]


@pytest.mark.parametrize("corpora", [[], ["code"]], ids=["all corpora", "one corpus"])
def test_outputs_of_an_unreadable_corpus_are_counted(make_project, instance, capsys, corpora):
    config_file = make_project()
    (config_file.parent / "raw/code/gone.jsonl").symlink_to("nowhere.jsonl")
    project = Project.open(config_file)

    report = build(project, instance, corpora=corpora, select=["code"])

    printed = printed_report(project, report, capsys)
    assert "failing: corpus code: " in printed
    n_outputs = sum(map(int, re.findall(r"(\d+) (?:missing|failing)", printed)))
    assert n_outputs > 0
    assert f"Made 0 of {n_outputs} outputs" in printed
