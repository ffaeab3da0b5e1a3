"""Exports of a project: made, kept fresh, verified, and collected with what they are of."""

import os
import pickle
import shutil

import numpy as np
import pytest

from helpers.building import make_corpora, make_view
from helpers.exports import CHANGES, NAMES, build_exports
from helpers.inspecting import graph_of, read_dataset
from helpers.s3_server import root_in
from helpers.sample_project import jsonl, sentences, write_project
from nanoset_core import load_config
from nanoset_core.errors import ConfigError
from nanoset_core.project.gc import collect, plan_gc
from nanoset_core.project.project import Project
from nanoset_core.project.verify import targets, verify_project
from nanoset_core.stages.exports import samples
from nanoset_core.stages.exports.make import make_export
from nanoset_core.stages.exports.sample_files import SampleFiles

ALL = ["*-ds", "*-olmo", "*-mds", "*-lit"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tokenizer_file):
    file = write_project(tmp_path_factory.mktemp("exports") / "project", tokenizer_file, CHANGES)
    build_exports(Project.open(file))
    return file


@pytest.fixture
def project(whole, tmp_path):
    return Project.open(
        shutil.copytree(whole.parent, tmp_path / "project", symlinks=True) / whole.name
    )


def tokens_of(project, name):
    dataset = read_dataset(project, name)
    return np.concatenate(dataset[0 : len(dataset)])


def stored_tokens(project, name, ending=".ds"):
    return np.fromfile(project.outputs.current("exports", name).path(f"{name}{ending}"), np.uint16)


def test_tokens_are_those_of_the_dataset(whole):
    project = Project.open(whole)
    assert np.array_equal(stored_tokens(project, "web-ds"), tokens_of(project, "web"))
    assert np.array_equal(stored_tokens(project, "kept-ds"), tokens_of(project, "kept"))
    web = project.outputs.current("datasets", "web")
    for name, ending in (("web-ds", ".ds"), ("web-olmo", ".npy")):
        made = project.outputs.current("exports", name)
        assert os.path.samefile(made.path(f"{name}{ending}"), web.path("web_text_document.bin"))
        assert made.facts["made_by"] == "hard link"
    assert project.outputs.current("exports", "kept-ds").facts["made_by"] == "written in order"
    reports = {one.output: one for one in verify_project(project, ALL, deep=True)}
    assert set(reports) == {f"exports/{name}" for name in NAMES}
    assert all(report.passed and not report.findings for report in reports.values())


def stale(project):
    graph = graph_of(project, "web")
    return {
        node.key.subject
        for node in graph.nodes()
        if node.stage.layout.folder == "exports" and graph.stale_reasons(node)
    }


def test_after_an_append_and_a_changed_rule_only_what_changed_is_made(project):
    assert stale(project) == set()
    file = project.config.file
    file.write_text(file.read_text().replace("tokens < 100", "tokens < 50"))
    assert stale(Project.open(file)) == {"kept-ds", "kept-lit"}
    file.write_text(file.read_text().replace("some/name", "another/name"))
    assert stale(Project.open(file)) == {"kept-ds", "web-ds", "kept-lit"}
    (file.parent / "raw/web/more.jsonl").write_bytes(jsonl(sentences("late", 5)))
    assert stale(Project.open(file)) == {*NAMES}
    before = {name: project.outputs.current("exports", name).digest for name in NAMES}
    after = build_exports(Project.open(file))
    assert all(after[name].digest != before[name] for name in NAMES)
    collect(Project.open(file))
    assert all(
        len(list((file.parent / "data/exports" / name).glob("*/manifest.json"))) == 2
        for name in NAMES
    )
    assert [report.passed for report in verify_project(Project.open(file), ALL)] == [True] * 5


def test_damage_is_found(project):
    made = project.outputs.current("exports", "web-ds")
    index = made.path("web-ds.ds.index")
    data = bytearray(index.read_bytes())
    data[8] += 1
    index.write_bytes(data)
    (found,) = verify_project(project, ["web-ds"])
    assert "documents end elsewhere than in the dataset" in [one.what for one in found.findings]
    kept = project.outputs.current("exports", "kept-ds").path("kept-ds.ds")
    data = bytearray(kept.read_bytes())
    data[1000] ^= 1
    kept.write_bytes(data)
    (found,) = verify_project(project, ["kept-ds"], deep=True)
    assert [one.what for one in found.findings] == [
        "a file has other bytes than when it was written"
    ]


def test_end_tokens_within_documents_are_told(make_project):
    file = make_project("project", CHANGES)
    rows = [{"text": "one <|endoftext|> two"}, {"text": "three"}]
    shutil.rmtree(file.parent / "raw" / "web")
    (file.parent / "raw" / "web").mkdir()
    (file.parent / "raw/web/a.jsonl").write_bytes(jsonl(rows))
    project = Project.open(file)
    build_exports(project)
    (report,) = verify_project(project, ["web-olmo"], deep=True)
    assert report.passed
    assert any("1 end tokens are inside documents" in one.what for one in report.findings)


def test_what_the_reader_cannot_read_is_refused_before_it_is_made(project):
    file = project.config.file
    file.write_text(file.read_text().replace("append_eod: true", "append_eod: false"))
    other = Project.open(file)
    make_corpora(other, "web")
    with pytest.raises(ConfigError, match="cannot read this dataset"):
        make_export(other, "web-ds")
    graph = graph_of(other, "web")
    (node,) = (node for node in graph.nodes() if node.key.subject == "web-ds")
    said = node.stage.refusal(other, node.key, graph.recipe(node), None)
    assert "datatrove cannot read this dataset" in said
    file.write_text(file.read_text().replace("web-olmo: {of: web", "web-olmo: {of: nowhere"))
    # a missing corpus is told by the build
    assert load_config(file).exports["web-olmo"].of == "nowhere"
    assert [one.name for one in targets(other) if one.name.endswith("/export")] == [
        f"{name}/export" for name in NAMES
    ]


def test_samples_are_written_by_tasks_and_a_killed_build_keeps_its_files(project, monkeypatch):
    monkeypatch.setattr(samples, "FILE_BYTES", 1 << 12)
    project.outputs.folder.joinpath("exports/web-mds").rename(
        project.config.file.parent / "earlier"
    )
    tried, write = [], SampleFiles.write

    def written(self, task):
        tried.append(task[0])
        if len(tried) == 3:
            raise KeyboardInterrupt
        return write(self, task)

    monkeypatch.setattr(SampleFiles, "write", written)
    with pytest.raises(KeyboardInterrupt):
        make_export(project, "web-mds")
    (folder,) = (project.outputs.folder / "exports/web-mds").iterdir()
    assert {path.name for path in folder.iterdir()} == {"shard.00000.mds", "shard.00001.mds"}
    assert "exports/web-mds" in {one.output for one in plan_gc(project, unfinished=True).garbage}
    made = make_export(project, "web-mds")
    assert tried[:4] == [0, 1, 2, 2]
    assert sorted(set(tried)) == sorted(tried[:2] + tried[3:]) == [*range(len(made.files) - 1)]
    assert [one.passed for one in verify_project(project, ["web-mds"], deep=True)] == [True]
    assert made.facts["samples"] == -(-made.facts["tokens"] // 65)
    # by workers that end in another order
    there = {name: made.path(name).read_bytes() for name in made.files}
    made.path("manifest.json").unlink()
    for name in list(there)[1::2]:
        (made.folder / name).unlink()
    monkeypatch.setattr(Project, "executor", Backwards())
    again = make_export(Project.open(project.config.file), "web-mds")
    assert again.files == made.files
    assert {name: again.path(name).read_bytes() for name in again.files} == there


class Backwards:
    def run(self, work, tasks):
        for number, task in reversed([*enumerate(tasks)]):
            yield number, pickle.loads(pickle.dumps(work))(pickle.loads(pickle.dumps(task)))


def test_samples_that_are_not_those_of_the_dataset_are_found(project):
    made = project.outputs.current("exports", "kept-lit")
    assert made.facts["dropped"] == made.facts["tokens"] % 32
    for output, name in (
        (made, "index.json"),
        (project.outputs.current("datasets", "web"), "web_text_document.bin"),
    ):
        data = bytearray(output.path(name).read_bytes())
        data[101] ^= 1
        output.path(name).write_bytes(data)
    (report,) = verify_project(project, ["kept-lit"])
    assert [one.what for one in report.findings] == ["index.json is not that of its dataset"]
    (report,) = verify_project(project, ["web-mds"], deep=True)
    (found,) = report.findings
    assert found.what == "a token is not that of the dataset"
    path, _, byte = str(found.where).rpartition(", byte ")
    assert path.endswith("shard.00000.mds")
    with open(path, "rb") as file:
        file.seek(int(byte))
        assert file.read(1)[0] ^ 1 == data[101]


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        (
            "format: mds, sequence_length: 65",
            "format: mds",
            "this format has samples of one length",
        ),
        (
            "format: olmo-core",
            "format: olmo-core, sequence_length: 65",
            "the length of samples is for the formats",
        ),
    ],
)
def test_the_length_of_samples_is_asked_for_where_there_are_some(
    whole, tmp_path, before, after, what
):
    file = tmp_path / "nanoset.yaml"
    file.write_text(whole.read_text().replace(before, after))
    with pytest.raises(ConfigError, match=what):
        load_config(file)


def test_in_a_bucket_the_bytes_are_the_same(tmp_path, tokenizer_file, whole, bucket):
    project = Project.open(
        write_project(tmp_path / "project", tokenizer_file, root_in(bucket) | CHANGES)
    )
    make_corpora(project, "web")
    make_view(project, "kept")
    made = {name: make_export(project, name) for name in NAMES}
    assert {one.facts["made_by"] for one in made.values()} == {
        "copy within the bucket",
        "written in order",
    }
    here = Project.open(whole).outputs
    for name, one in made.items():
        local = here.current("exports", name)
        assert one.digest == local.digest
        for file in local.files:
            assert bucket.sha256(f"exports/{name}/{one.digest}/{file}") == local.files[file].sha256
    assert all(report.passed for report in verify_project(project, ALL, deep=True))
