"""`nanoset takedown` adds documents to the list that views exclude, and says what holds them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import Result

from helpers.building import (
    build_all,
    make_corpora,
    make_derived_pbin,
    make_export,
    make_view,
)
from helpers.command import invoke_nanoset
from helpers.inspecting import find_document, leased_by_a_build
from helpers.sample_project import jsonl, write_project
from nanoset_core.errors import ConfigError
from nanoset_core.lineage.exclusion import uses_without_exclusion
from nanoset_core.lineage.takedown import UnsearchedOutput, add_ids, holdings
from nanoset_core.project.project import Project
from nanoset_core.sampling.splits import SPLITS

CHANGES = {
    "nanosets:\n": "views:\n  kept: {of: web, exclude: drop.txt}\nnanosets:\n",
    "blend: {web: 0.7, code: 0.3}": "blend: {kept: 0.7, code: 0.3}",
    "samples: {train: 400}\n": "schedule: {iterations: 40, global_batch_size: 10, eval_interval: 100, eval_iters: 1}\n",
    "groups: 3": "groups: 1",
}
"""Replacements in the settings of the sample project: a view, and a nanoset with training steps."""
BATCH_SIZE = 10


@pytest.fixture(scope="module")
def built_with_view(tmp_path_factory, tokenizer_file) -> Path:
    """The folder of a built project with a view that excludes a document; not to be written to."""
    folder = tmp_path_factory.mktemp("takedown") / "project"
    file = write_project(folder, tokenizer_file, CHANGES)
    (folder / "drop.txt").write_text("web-3\n")
    build_all(file)
    return folder


@pytest.fixture
def project(built_with_view, tmp_path) -> Project:
    """A copy of the built project with a view, to be changed."""
    folder = shutil.copytree(built_with_view, tmp_path / "project", symlinks=True)
    return Project.open(folder / "nanoset.yaml")


def take_down(
    project: Project, *ids: str, reason: str = "requested", options: Sequence[object] = ()
) -> Result:
    """Run `nanoset takedown` without a build; errors are raised."""
    command = ["takedown", *ids, "--reason", reason, "--no-build", *options]
    return invoke_nanoset([*command, "--config", project.config.file], catch_exceptions=False)


def replace_in_settings(project: Project, old: str, new: str) -> None:
    """Replace a part of the project's nanoset.yaml."""
    file = project.config.file
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


# What holds the documents


def test_each_output_with_the_documents_says_how_many_it_holds(built_with_view):
    project = Project.open(built_with_view / "nanoset.yaml")

    found = holdings(project, ["web-20", "web-11", "web-3", "nobody"])

    documents_by_output = {holding.output: holding.documents for holding in found}
    assert documents_by_output["corpus web"] == 3
    # The view excludes web-3.
    assert documents_by_output["view kept"] == 2
    assert documents_by_output["webdataset shuffled"] == 3
    assert not [output for output in documents_by_output if "books" in output]


def test_exports_and_pbin_files_say_how_many_of_the_documents_they_hold(project):
    replace_in_settings(
        project,
        "views:\n",
        "pbin: [code, kept]\nexports: {copy: {of: web, format: datatrove}}\nviews:\n",
    )
    project = Project.open(project.config.file)
    make_export(project, "copy")
    make_derived_pbin(project, "kept")

    found = holdings(project, ["web-20", "web-3"])

    documents_by_output = {holding.output: holding.documents for holding in found}
    assert documents_by_output["export copy"] == 2
    assert documents_by_output["pbin kept"] == 1
    assert "pbin code" not in documents_by_output


def test_an_export_of_another_dataset_than_before_is_searched_as_it_was_built(project):
    export = "exports: {copy: {of: kept, format: olmo-core}}"
    replace_in_settings(project, "views:\n", f"{export}\nviews:\n")
    project = Project.open(project.config.file)
    make_export(project, "copy")
    replace_in_settings(project, "of: kept, format", "of: code, format")

    found = holdings(Project.open(project.config.file), ["web-20"])

    documents_by_output = {holding.output: holding.documents for holding in found}
    assert documents_by_output["export copy"] == 1


def test_a_nanoset_says_which_samples_and_steps_have_the_documents(built_with_view):
    project = Project.open(built_with_view / "nanoset.yaml")
    samples = []
    for identity in ("web-20", "web-11"):
        for place in find_document(project, "pretrain", "train", identity=identity):
            samples += [appearance.sample for appearance in place.appearances]

    found = holdings(project, ["web-20", "web-11", "web-3", "nobody"])

    (train,) = [holding for holding in found if holding.output == "nanoset pretrain train"]
    first_sample = min(samples)
    last_sample = max(samples)
    assert train.samples == (first_sample, last_sample)
    # Steps are counted from 1, as `nanoset explain --step` and the logs of trainers do.
    assert train.steps == (1 + first_sample // BATCH_SIZE, 1 + last_sample // BATCH_SIZE)


def test_each_split_counts_its_own_documents(project, monkeypatch):
    # Eight documents are in train, fewer in valid, and one or two in test.
    numbers = [*range(20, 180, 20), 200, 210, 220, 236]
    ids = [f"web-{number}" for number in numbers]
    ids_by_split: dict[str, set[str]] = {split: set() for split in SPLITS}
    for identity in ids:
        for split in SPLITS:
            for place in find_document(project, "pretrain", split, identity=identity):
                if place.appearances:
                    ids_by_split[split].add(identity)
    # Documents of valid are also found in its samples if the first documents are all in train.
    monkeypatch.setattr("nanoset_core.lineage.takedown.MAX_PLACED", 3)

    holding_by_output = {holding.output: holding for holding in holdings(project, ids)}

    for split, expected_ids in ids_by_split.items():
        holding = holding_by_output[f"nanoset pretrain {split}"]
        n_expected = len(expected_ids)
        assert n_expected > 0
        # A document of the split may be in no sample, since it is in the tail.
        assert n_expected <= holding.documents <= n_expected + 2


def test_training_data_made_from_an_earlier_version_of_a_view_holds_its_documents(project):
    list_file = project.config.file.parent / "drop.txt"
    list_file.write_text("web-3\nweb-4\n")
    # The view is rebuilt, but neither the nanoset nor the tars that are made from it.
    project = Project.open(project.config.file)
    make_view(project, "kept")

    documents_by_output = {
        holding.output: holding.documents for holding in holdings(project, ["web-4"])
    }

    assert "view kept" not in documents_by_output
    assert documents_by_output["nanoset pretrain train"] == 1


def test_the_command_says_if_it_looked_for_some_documents_only_in_samples(project, monkeypatch):
    monkeypatch.setattr("nanoset_core.lineage.takedown.MAX_PLACED", 1)

    output = take_down(project, "web-20", "web-11").output

    assert "samples and steps are those of the first 1 documents of each dataset" in output


# Damaged outputs


def delete_tables_of_shards(project: Project, corpus: str) -> None:
    """Delete the tables with the ids of a corpus's documents."""
    for table in project.outputs.folder.glob(f"shards/{corpus}/*/*.parquet"):
        table.unlink()


def unsearched_outputs(project: Project, *ids: str) -> list[str]:
    """Return the outputs that could not be searched for documents."""
    results = holdings(project, ids)
    return [result.output for result in results if isinstance(result, UnsearchedOutput)]


def test_outputs_made_from_a_damaged_corpus_are_reported_as_not_searched(project):
    delete_tables_of_shards(project, "web")

    outputs = unsearched_outputs(project, "web-20")

    assert outputs == [
        "corpus web",
        "view kept",
        "nanoset pretrain train",
        "nanoset pretrain valid",
        "nanoset pretrain test",
        "webdataset shuffled",
    ]


def test_tars_whose_plan_was_deleted_are_reported_as_not_searched(project):
    shutil.rmtree(project.outputs.folder / "shuffle_plans" / "shuffled")

    assert unsearched_outputs(project, "web-20") == ["webdataset shuffled"]


def test_splits_whose_current_version_is_damaged_are_reported_as_not_searched(project):
    mappings = project.outputs.folder / "nanosets/pretrain/train/index_mappings"
    (mappings / "current" / "manifest.json").unlink()

    assert unsearched_outputs(project, "web-20") == ["nanoset pretrain train"]


def test_outputs_that_were_not_built_are_not_reported(project):
    shutil.rmtree(project.outputs.folder / "nanosets")
    shutil.rmtree(project.outputs.folder / "webdatasets")

    assert unsearched_outputs(project, "web-20") == []


def test_the_command_names_damaged_outputs_and_why_they_were_not_searched(project):
    delete_tables_of_shards(project, "code")

    output = take_down(project, "web-20").output

    assert "corpus code may contain the documents, too: " in output
    assert "the corpus code was not searched for these ids: " in output
    assert "a shard is not whole" in output


# The list


def test_the_command_adds_the_ids_with_the_reason_to_the_list(project):
    # A reason with a line break is written on one line.
    outcome = take_down(project, "web-20", "web-3", reason="asked\nfor")

    assert "1 id added, 1 already listed" in outcome.output
    list_file = project.config.file.parent / "drop.txt"
    first_line, comment, new_line = list_file.read_text().splitlines()[:3]
    assert first_line == "web-3"
    assert comment.endswith(": asked for")
    assert new_line == "web-20"

    # The view excludes both.
    view = make_view(Project.open(project.config.file), "kept")
    assert view.facts["documents"] == 238


@pytest.mark.parametrize("pattern", ["drop/*.txt", "drop"])
def test_a_pattern_or_folder_of_lists_is_an_error(project, pattern):
    replace_in_settings(project, "exclude: drop.txt", f"exclude: {pattern}")
    (project.config.file.parent / "drop").mkdir()

    with pytest.raises(ConfigError, match="it is not clear which list to add to") as caught:
        take_down(project, "web-20")

    assert caught.value.found == pattern


def test_a_new_list_that_fits_a_pattern_of_a_view_is_created(project):
    replace_in_settings(project, "exclude: drop.txt", "exclude: drop/*.txt")
    list_file = project.config.file.parent / "drop" / "2026.txt"

    take_down(project, "web-20", options=["--list", list_file])

    assert list_file.read_text().endswith("web-20\n")


def test_a_list_that_no_view_excludes_is_refused_before_it_is_written(project):
    list_file = project.config.file.parent / "dorp.txt"

    with pytest.raises(ConfigError, match="no view excludes this list") as caught:
        take_down(project, "web-20", options=["--list", list_file])

    assert caught.value.expected == "one of drop.txt"
    assert not list_file.exists()


def test_a_relative_path_of_a_list_starts_in_the_current_folder(project, tmp_path, monkeypatch):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)

    with pytest.raises(ConfigError, match="no view excludes this list") as caught:
        take_down(project, "web-20", options=["--list", "drop.txt"])
    outcome = take_down(project, "web-20", options=["--list", "../project/drop.txt"])

    assert caught.value.found == str(folder / "drop.txt")
    assert f"{tmp_path}/project/drop.txt: 1 id added" in outcome.output.replace("\n", "")


@pytest.mark.parametrize("identity", ["", "a\nb", "# a"], ids=repr)
def test_an_id_that_no_line_can_hold_is_refused(tmp_path, identity):
    with pytest.raises(ConfigError, match="cannot be a line"):
        add_ids(tmp_path / "list.txt", ["x", identity], "reason", "2026-01-01")

    assert not (tmp_path / "list.txt").exists()


def test_a_running_build_is_named_with_what_to_do_after_it(project):
    with leased_by_a_build(project, "web"):
        output = take_down(project, "web-20").output

    assert "notice: a running build may still include these documents: process " in output
    assert "makes web; run `nanoset build` once it has ended" in output


# What the list does not achieve


def uses(project: Project, *ids: str) -> list[tuple[str, str]]:
    """Return the outputs that read documents without excluding the list, with the dataset."""
    project = Project.open(project.config.file)
    list_file = project.config.file.parent / "drop.txt"
    found = uses_without_exclusion(project, ids, list_file)
    return [(use.output, use.dataset) for use in found]


def test_outputs_that_read_the_corpus_of_a_view_do_not_exclude_its_list(project):
    # Of the nanoset `pretrain`, only the view `kept` has documents of web.
    assert uses(project, "web-20") == [("webdataset shuffled", "web")]


def test_splits_that_read_documents_of_another_corpus_do_not_exclude_the_list(project):
    assert uses(project, "code-3") == [
        ("nanoset pretrain train", "code"),
        ("nanoset pretrain valid", "code"),
        ("nanoset pretrain test", "code"),
        ("webdataset shuffled", "code"),
    ]


def test_a_split_without_a_share_reads_no_documents(project):
    replace_in_settings(project, 'split: "80,15,5"', 'split: "80,20,0"')

    outputs = [output for output, _ in uses(project, "code-3")]

    assert outputs == ["nanoset pretrain train", "nanoset pretrain valid", "webdataset shuffled"]


@pytest.mark.parametrize(
    ("view", "is_excluded"),
    [
        pytest.param("{of: kept, tokens: 1e9}", True, id="a view of the view with the list"),
        pytest.param("{of: web, tokens: 1e9}", False, id="a view of the corpus"),
    ],
)
def test_a_view_that_is_not_built_excludes_the_list_of_the_view_that_it_is_made_from(
    project, view, is_excluded
):
    replace_in_settings(project, "views:\n", f"views:\n  few: {view}\n")
    replace_in_settings(project, "kept: 0.7, code: 0.3", "few: 1.0")
    replace_in_settings(project, "corpora: [web, code, books]", "corpora: [code, books]")

    outputs = {output for output, _ in uses(project, "web-20")}

    assert outputs == (set() if is_excluded else {f"nanoset pretrain {split}" for split in SPLITS})


def test_exports_and_pbin_files_of_the_corpus_do_not_exclude_the_list(project):
    replace_in_settings(
        project,
        "views:\n",
        "pbin: [web, kept]\nexports: {copy: {of: web, format: datatrove}}\nviews:\n",
    )

    outputs = [output for output, _ in uses(project, "web-20")]

    assert outputs == ["webdataset shuffled", "export copy", "pbin web"]


def test_the_command_names_outputs_that_still_read_the_documents_and_fails(project):
    outcome = take_down(project, "web-20")

    assert outcome.exit_code == 1
    output = outcome.output.replace("\n", "")
    assert "these outputs do not leave out the documents" in output
    assert "webdataset shuffled" in output
    assert "name kept instead of web" in output


@pytest.mark.parametrize("error", [SystemExit(1), ConfigError("a setting is wrong")], ids=repr)
def test_the_command_names_outputs_that_still_read_the_documents_if_the_build_fails(
    project, monkeypatch, error
):
    def fail() -> None:
        raise error

    monkeypatch.setattr("nanoset_core.cli.commands.takedown.build_of", lambda context, config: fail)

    outcome = invoke_nanoset(
        ["takedown", "web-20", "--reason", "requested", "--config", project.config.file]
    )

    assert outcome.exit_code == 1
    assert "these outputs do not leave out the documents" in outcome.output.replace("\n", "")
    assert "webdataset shuffled" in outcome.output


def test_the_command_says_which_view_is_missing(project):
    output = take_down(project, "code-3").output

    assert "add a view {of: code, exclude: drop.txt}" in output


def test_the_command_succeeds_if_all_outputs_exclude_the_list(project):
    replace_in_settings(project, "corpora: [web, code, books]", "corpora: [kept, code, books]")

    outcome = take_down(project, "web-20")

    assert outcome.exit_code == 0
    assert "do not leave out" not in outcome.output


def test_ids_of_no_document_are_named(project):
    outcome = take_down(project, "nobody", "web-3", "nowhere")

    assert "no corpus has a document with 2 of these ids, such as 'nobody'" in outcome.output


def test_nothing_is_said_of_ids_that_documents_have(project):
    assert "no corpus has" not in take_down(project, "web-3", "code-3").output


def test_ids_of_several_documents_of_a_corpus_are_named(project):
    copies = [{"id": "books-3", "text": "another text"}, {"id": "books-3", "text": "and another"}]
    (project.config.file.parent / "raw/books/late.jsonl").write_bytes(jsonl(copies))
    make_corpora(project, "books")

    outcome = take_down(project, "books-3", "books-4")

    assert "1 of these ids belongs to several documents of corpus books" in outcome.output
    assert "3 documents have 'books-3'" in outcome.output


def test_nothing_is_said_of_ids_that_documents_of_different_corpora_have(project):
    copy = [{"id": "web-3", "text": "another text"}]
    (project.config.file.parent / "raw/books/late.jsonl").write_bytes(jsonl(copy))
    make_corpora(project, "books")

    assert "several documents" not in take_down(project, "web-3").output
