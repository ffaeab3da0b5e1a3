"""Exports of a project: how they are built, kept up to date, verified and deleted."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.buckets import root_in
from helpers.building import make_corpora
from helpers.changing import change_setting
from helpers.exports import CHANGES, NAMES, build_exports, note_ranges_read
from helpers.inspecting import current_dataset, current_output, graph_of, read_dataset
from helpers.sample_project import jsonl, sentences, write_project
from nanoset_assets.ui.exports import export_metadata
from nanoset_core import load_config
from nanoset_core.errors import ConfigError
from nanoset_core.project.gc.collect import collect, plan_gc
from nanoset_core.project.gc.garbage import Policy
from nanoset_core.project.project import Project
from nanoset_core.project.verify import targets, verify_project
from nanoset_core.stages.exports import samples
from nanoset_core.stages.exports.make import make_export
from nanoset_core.stages.exports.sample_files import SampleFiles
from nanoset_core.stages.exports.show import export_summary

ALL_EXPORTS = ["*-ds", "*-olmo", "*-mds", "*-lit"]
"""Names for `nanoset verify`."""


@pytest.fixture(scope="module")
def built(tmp_path_factory, tokenizer_file) -> Path:
    """The nanoset.yaml of a project with exports; not to be written to."""
    file = write_project(tmp_path_factory.mktemp("exports") / "project", tokenizer_file, CHANGES)
    build_exports(Project.open(file))
    return file


@pytest.fixture
def built_project(built) -> Project:
    """The project with exports; not to be written to."""
    return Project.open(built)


@pytest.fixture
def project(built, tmp_path) -> Project:
    """A copy of the project with exports."""
    shutil.copytree(built.parent, tmp_path / "project", symlinks=True)
    return Project.open(tmp_path / "project" / built.name)


def current_export(project: Project, name: str) -> Any:
    """Return the manifest of the current version of an export."""
    return current_output(project, f"exports/{name}")


def flip_bit(path: Path, position: int) -> None:
    """Change the lowest bit of a byte of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def replace_by_damaged_copy(path: Path) -> None:
    """Change a bit of a file, and of no link to it."""
    data = bytearray(path.read_bytes())
    path.unlink()
    data[101] ^= 1
    path.write_bytes(data)


def record_sha256(export: Any, path: Path) -> None:
    """Let the manifest of an export have the sha256 of a file that was changed."""
    manifest = export.folder / "manifest.json"
    content = json.loads(manifest.read_bytes())
    content["files"][path.name]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    del content["sha256"]
    manifest.write_text(json.dumps(content))


def messages_of(report: Any) -> list[str]:
    """Return what a report found."""
    return [finding.what for finding in report.findings]


# What exports contain


@pytest.mark.parametrize(
    ("export", "dataset"),
    [
        pytest.param("web-ds", "web", id="corpus"),
        pytest.param("kept-ds", "kept", id="view"),
    ],
)
def test_an_export_has_the_tokens_of_its_dataset(built_project, export, dataset):
    sequences = read_dataset(built_project, dataset)
    tokens = np.concatenate(sequences[0 : len(sequences)])

    exported_tokens = np.fromfile(
        current_export(built_project, export).path(f"{export}.ds"), np.uint16
    )

    assert np.array_equal(exported_tokens, tokens)


@pytest.mark.parametrize(
    ("export", "file"), [("web-ds", "web-ds.ds"), ("web-olmo", "web-olmo.npy")]
)
def test_the_tokens_of_a_corpus_are_linked(built_project, export, file):
    manifest = current_export(built_project, export)
    dataset = current_dataset(built_project, "web")

    assert os.path.samefile(manifest.path(file), dataset.path("web_text_document.bin"))
    assert manifest.facts["made_by"] == "hard link"


def test_the_size_of_an_export_has_no_linked_tokens(built_project):
    manifest = current_export(built_project, "web-ds")
    token_bytes = manifest.path("web-ds.ds").stat().st_size

    figures = export_summary(manifest).figures

    all_bytes = sum(file.size for file in manifest.files.values())
    assert figures["bytes"] == all_bytes - token_bytes


def test_the_size_of_an_export_has_tokens_that_were_copied(built_project):
    linked = current_export(built_project, "web-ds")
    copied = replace(linked, facts={**linked.facts, "made_by": "copy"})

    figures = export_summary(copied).figures

    assert figures["bytes"] == sum(file.size for file in copied.files.values())


def test_the_tokens_of_a_view_are_written_in_its_order(built_project):
    assert current_export(built_project, "kept-ds").facts["made_by"] == "written in order"


def test_the_rest_of_the_tokens_that_makes_no_sample_is_dropped(built_project):
    facts = current_export(built_project, "kept-lit").facts

    assert facts["dropped"] == facts["tokens"] % 32


def test_the_page_of_an_export_with_samples_shows_how_many_there_are(built_project):
    export = current_export(built_project, "web-mds")

    metadata = export_metadata(export)

    assert metadata["samples"] == export.facts["samples"]
    assert metadata["sequence_length"] == export.facts["sequence_length"]
    assert metadata["dropped"] == export.facts["dropped"]


@pytest.mark.parametrize("export", NAMES)
def test_the_code_that_opens_an_export_has_no_long_line_but_that_of_the_path(built_project, export):
    manifest = current_export(built_project, export)

    code = export_metadata(manifest)["opened_by"].value

    for line in code.splitlines():
        line_without_path = line.replace(manifest.url(), "")
        assert len(line_without_path) < 75
        assert line_without_path == line or len(line_without_path) < 30


def test_all_exports_pass_a_deep_verification(built_project):
    reports = list(verify_project(built_project, ALL_EXPORTS, deep=True))

    assert {report.output for report in reports} == {f"exports/{name}" for name in NAMES}
    for report in reports:
        assert report.passed
        assert report.findings == []


# Which exports are rebuilt


def test_an_export_of_a_view_that_was_renamed_is_compared_with_the_tokens_of_the_view(project):
    project = change_setting(project, "kept: {of: web", "renamed: {of: web")
    project = change_setting(project, "of: kept", "of: renamed")

    (report,) = verify_project(project, ["kept-ds"], deep=True)

    # It has the tokens of the view by its former name, which are still stored.
    assert [message for message in messages_of(report) if "dataset is missing" in message] == []


def stale_exports(project: Project) -> set[str]:
    """Return the names of the exports that a build would rebuild."""
    graph = graph_of(project, "web")
    names = set()
    for node in graph.nodes():
        if node.stage.layout.folder == "exports" and graph.stale_reasons(node):
            names.add(node.key.subject)
    return names


def test_exports_of_unchanged_data_are_up_to_date(built_project):
    assert stale_exports(built_project) == set()


def test_a_changed_rule_of_a_view_makes_the_exports_of_the_view_stale(project):
    changed_project = change_setting(project, "tokens < 100", "tokens < 50")

    assert stale_exports(changed_project) == {"kept-ds", "kept-lit"}


def test_a_changed_setting_of_an_export_makes_only_it_stale(project):
    changed_project = change_setting(project, "some/name", "another/name")

    assert stale_exports(changed_project) == {"web-ds"}


def append_documents(project: Project) -> None:
    """Append documents to the corpus that is exported."""
    raw_file = project.config.file.parent / "raw/web/more.jsonl"
    raw_file.write_bytes(jsonl(sentences("late", 5)))


def test_appended_documents_make_the_exports_of_the_corpus_and_of_its_view_stale(project):
    append_documents(project)

    assert stale_exports(project) == set(NAMES)


def test_a_stale_export_is_built_as_a_new_version(project):
    digest_by_name = {name: current_export(project, name).digest for name in NAMES}
    append_documents(project)

    manifest_by_name = build_exports(Project.open(project.config.file))

    for name in NAMES:
        assert manifest_by_name[name].digest != digest_by_name[name]
    reports = list(verify_project(Project.open(project.config.file), ALL_EXPORTS))
    assert [report.passed for report in reports] == [True] * 5


def test_garbage_collection_keeps_the_former_version_of_an_export(project):
    append_documents(project)
    build_exports(Project.open(project.config.file))

    collect(Project.open(project.config.file))

    for name in NAMES:
        folder = project.outputs.folder / "exports" / name
        assert len(list(folder.glob("*/manifest.json"))) == 2


# Damaged exports fail verification


def test_ends_of_documents_that_the_dataset_does_not_have_are_reported(project):
    index = current_export(project, "web-ds").path("web-ds.ds.index")
    data = bytearray(index.read_bytes())
    data[8] += 1  # the end of the second document
    index.write_bytes(data)

    [report] = verify_project(project, ["web-ds"])

    assert "documents end elsewhere than in the dataset" in messages_of(report)


def test_changed_tokens_are_reported_by_a_deep_verification(project):
    flip_bit(current_export(project, "kept-ds").path("kept-ds.ds"), 1000)

    [report] = verify_project(project, ["kept-ds"], deep=True)

    assert messages_of(report) == ["a file has other bytes than when it was written"]


def test_an_index_json_of_other_samples_is_reported(project):
    flip_bit(current_export(project, "kept-lit").path("index.json"), 101)

    [report] = verify_project(project, ["kept-lit"])

    assert messages_of(report) == ["index.json is not that of its dataset"]


def test_a_token_in_a_sample_that_the_dataset_does_not_have_is_reported_with_its_byte(project):
    # The export was written with this token: its manifest has the sha256 of the file.
    export = current_export(project, "web-mds")
    samples_file = export.path("shard.00000.mds")
    position = samples_file.stat().st_size - 101
    flip_bit(samples_file, position)
    record_sha256(export, samples_file)

    [report] = verify_project(project, ["web-mds"], deep=True)

    finding = report.findings[-1]
    assert finding.what == "a token is not that of the dataset"
    assert finding.where == f"{samples_file}, byte {position}"


@pytest.mark.parametrize("name", ["web-ds", "web-mds"])
def test_a_sound_export_is_not_blamed_for_a_damaged_dataset(project, name):
    replace_by_damaged_copy(current_dataset(project, "web").path("web_text_document.bin"))

    [report] = verify_project(project, [name], deep=True)

    [finding] = report.findings
    assert finding.what.startswith("the output datasets/web is damaged")
    assert finding.remedy.startswith(f"delete {current_dataset(project, 'web').folder}")


def test_a_deep_verification_reads_each_token_of_an_export_once(built_project, monkeypatch):
    n_tokens = current_export(built_project, "kept-ds").facts["tokens"]
    monkeypatch.setattr("nanoset_core.stages.source_comparison._READ_TOKENS", 1000)
    ranges_read = note_ranges_read(monkeypatch, ".ds")

    [report] = verify_project(built_project, ["kept-ds"], deep=True)

    assert messages_of(report) == []
    starts = range(0, n_tokens, 1000)
    assert ranges_read == [(start, min(start + 1000, n_tokens)) for start in starts]


def test_end_tokens_within_documents_are_reported(make_project):
    """OLMo-core divides documents at end tokens."""
    file = make_project("project", CHANGES)
    shutil.rmtree(file.parent / "raw" / "web")
    (file.parent / "raw" / "web").mkdir()
    rows = [{"text": "one <|endoftext|> two"}, {"text": "three"}]
    (file.parent / "raw/web/a.jsonl").write_bytes(jsonl(rows))
    project = Project.open(file)
    build_exports(project)

    [report] = verify_project(project, ["web-olmo"], deep=True)

    assert report.passed
    is_reported = ["1 end tokens are inside documents" in text for text in messages_of(report)]
    assert any(is_reported)


# Settings that are refused


def test_an_export_that_its_reader_cannot_read_is_not_built(project):
    changed_project = change_setting(project, "append_eod: true", "append_eod: false")
    make_corpora(changed_project, "web")

    with pytest.raises(ConfigError, match="cannot read this dataset"):
        make_export(changed_project, "web-ds")


def test_an_export_that_its_reader_cannot_read_is_refused_before_a_build(project):
    changed_project = change_setting(project, "append_eod: true", "append_eod: false")
    make_corpora(changed_project, "web")
    graph = graph_of(changed_project, "web")
    [node] = [node for node in graph.nodes() if node.key.subject == "web-ds"]

    refusal = node.stage.refusal(changed_project, node.key, graph.recipes.of(node), None)

    assert "datatrove cannot read this dataset" in refusal


def test_settings_may_name_a_corpus_that_does_not_exist(project):
    """Whether it exists is known only to a build, which reports it."""
    changed_project = change_setting(project, "web-olmo: {of: web", "web-olmo: {of: nowhere")

    assert changed_project.config.exports["web-olmo"].of == "nowhere"


def test_all_exports_can_be_verified_by_name(built_project):
    names = [target.name for target in targets(built_project)]

    export_names = [name for name in names if name.endswith("/export")]
    assert export_names == [f"{name}/export" for name in NAMES]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        pytest.param(
            "format: mds, sequence_length: 65",
            "format: mds",
            "this format has samples of one length",
            id="samples without a length",
        ),
        pytest.param(
            "format: olmo-core",
            "format: olmo-core, sequence_length: 65",
            "the length of samples is for the formats",
            id="a length without samples",
        ),
    ],
)
def test_a_length_of_samples_is_required_for_formats_with_samples_only(
    built, tmp_path, old, new, message
):
    file = tmp_path / "nanoset.yaml"
    file.write_text(built.read_text().replace(old, new))

    with pytest.raises(ConfigError, match=message):
        load_config(file)


# Exports that are written by several tasks


@pytest.fixture
def project_without_mds(project, monkeypatch) -> Project:
    """The project without its export to MDS, which would have several small files."""
    monkeypatch.setattr(samples, "FILE_BYTES", 1 << 12)
    shutil.rmtree(project.outputs.folder / "exports/web-mds")
    return project


class ReversedExecutor:
    """Runs tasks from the last to the first, as if they were sent to other processes."""

    def run(self, work: Any, tasks: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        """Yield the number of each task and its result."""
        for number, task in reversed(list(enumerate(tasks))):
            received_work = pickle.loads(pickle.dumps(work))
            received_task = pickle.loads(pickle.dumps(task))
            yield number, received_work(received_task)


@pytest.fixture
def written_numbers(project_without_mds, monkeypatch) -> list[int]:
    """The number of each file that an export to MDS began, of which it was interrupted in the third.

    Later exports continue this list.
    """
    numbers: list[int] = []
    write = SampleFiles.write

    def interrupt_third_file(self, task):
        numbers.append(task[0])
        if len(numbers) == 3:
            raise KeyboardInterrupt
        return write(self, task)

    monkeypatch.setattr(SampleFiles, "write", interrupt_third_file)
    with pytest.raises(KeyboardInterrupt):
        make_export(project_without_mds, "web-mds")
    return numbers


@pytest.mark.usefixtures("written_numbers")
def test_an_interrupted_build_of_samples_leaves_the_files_that_it_has_written(project_without_mds):
    [folder] = (project_without_mds.outputs.folder / "exports/web-mds").iterdir()

    assert {path.name for path in folder.iterdir()} == {"shard.00000.mds", "shard.00001.mds"}


@pytest.mark.usefixtures("written_numbers")
def test_the_files_of_an_interrupted_build_of_samples_can_be_collected(project_without_mds):
    garbage = plan_gc(project_without_mds, Policy(unfinished=True)).garbage

    assert "exports/web-mds" in {item.output for item in garbage}


def test_the_next_build_of_samples_writes_only_the_missing_files(
    project_without_mds, written_numbers
):
    manifest = make_export(project_without_mds, "web-mds")

    n_sample_files = len(manifest.files) - 1  # all but index.json
    assert written_numbers[:4] == [0, 1, 2, 2]
    completed_numbers = written_numbers[:2] + written_numbers[3:]
    assert sorted(completed_numbers) == list(range(n_sample_files))


@pytest.mark.usefixtures("written_numbers")
def test_a_resumed_build_of_samples_is_complete(project_without_mds):
    manifest = make_export(project_without_mds, "web-mds")

    [report] = verify_project(project_without_mds, ["web-mds"], deep=True)
    assert report.passed
    n_full_samples, n_rest_tokens = divmod(manifest.facts["tokens"], 65)
    assert n_rest_tokens > 0
    assert manifest.facts["samples"] == n_full_samples + 1


def test_an_export_does_not_depend_on_the_order_in_which_its_files_are_written(
    project_without_mds, monkeypatch
):
    project = project_without_mds
    manifest = make_export(project, "web-mds")
    content_by_name = {name: manifest.path(name).read_bytes() for name in manifest.files}

    # Every other file is missing, and written by workers that end in another order.
    manifest.path("manifest.json").unlink()
    for name in list(manifest.files)[1::2]:
        manifest.path(name).unlink()
    monkeypatch.setattr(Project, "executor", ReversedExecutor())
    rebuilt = make_export(Project.open(project.config.file), "web-mds")

    assert rebuilt.files == manifest.files
    assert {name: rebuilt.path(name).read_bytes() for name in rebuilt.files} == content_by_name


# Exports in a bucket


def test_exports_in_a_bucket_are_those_of_a_local_root(
    built_project, tmp_path, tokenizer_file, bucket
):
    # A shard a file, which does not change the dataset: each object takes some requests.
    changes = root_in(bucket) | CHANGES | {"range_mib: 0.02": "range_mib: 1"}
    file = write_project(tmp_path / "project", tokenizer_file, changes)
    stored_project = Project.open(file)

    manifest_by_name = build_exports(stored_project)

    ways = {manifest.facts["made_by"] for manifest in manifest_by_name.values()}
    assert ways == {"copy within the bucket", "written in order"}
    for name, manifest in manifest_by_name.items():
        local = current_export(built_project, name)
        assert manifest.digest == local.digest
        for file_name, fact in local.files.items():
            stored_sha256 = bucket.sha256(f"exports/{name}/{manifest.digest}/{file_name}")
            assert stored_sha256 == fact.sha256
    for report in verify_project(stored_project, ALL_EXPORTS, deep=True):
        assert report.passed
