"""What `nanoset build` is asked to make, and what it says at its end."""

from __future__ import annotations

import re
import shlex

import pytest
from sample_project import jsonl, sentences

from nanoset_assets.build import build, selected
from nanoset_assets.commands import show_report
from nanoset_assets.definitions import build_definitions
from nanoset_assets.names import Names
from nanoset_core.errors import ConfigError
from nanoset_core.pipeline.graph import Graph, graph_over
from nanoset_core.pipeline.project import Project

CORPUS = ("raw_jsonl", "tokenized_shards", "indexed_dataset")


def steps_of(*corpora):
    return {f"{asset} [{corpus}]" for corpus in corpora for asset in CORPUS}


def said(project, report, capsys):
    show_report(project, report)
    return capsys.readouterr().out


def test_what_a_selected_asset_needs_is_made_where_it_is_missing_or_stale(make_project, instance):
    config = make_project()
    first = build(Project.open(config), instance, select="indexed_dataset")
    assert not first.failed
    assert set(first.made) == steps_of("books", "code", "web")
    file = config.parent / "raw/web/part-0/web-0.jsonl"
    file.write_bytes(file.read_bytes() + jsonl(sentences("late", 3)))
    second = build(Project.open(config), instance, select="indexed_dataset")
    assert set(second.made) == steps_of("web")
    third = build(Project.open(config), instance, select="indexed_dataset", rebuild=True)
    assert set(third.made) == {f"indexed_dataset [{corpus}]" for corpus in ("books", "code", "web")}


@pytest.fixture
def select(make_project):
    """select(*texts) → labels of what they select, of a project that is not built."""
    project = Project.open(make_project())
    nodes = graph_over(project, {}, ["books", "code", "web"]).nodes()
    definitions = build_definitions(project.config)
    return lambda *texts: {node.label for node in selected(nodes, texts, (), definitions, Names())}


def test_outputs_are_selected_by_name_as_verify_does(select):
    assert select("books") == steps_of("books")
    assert select("plain/train") == {"plain/index_mappings [train]"}
    assert {label.partition("/")[0] for label in select("pla*", "shuffled")} == {"plain", "shuffled"}
    assert select("pretrain/*") == select("pretrain") == select("group:pretrain")
    assert select("code", 'key:"raw_jsonl"') == steps_of("code") | {"raw_jsonl [books]", "raw_jsonl [web]"}


@pytest.mark.parametrize("text", ["no_such_asset", "a b", "group:none", "pretrain/nothing", ""])
def test_what_selects_nothing_is_told_with_what_could_be_selected(select, text):
    with pytest.raises(ConfigError, match="this selects nothing") as caught:
        select(text)
    assert repr(text) == caught.value.found
    for name in ("indexed_dataset", "pretrain/handoff", "books", "plain", "shuffled", "+pretrain/blend"):
        assert name in str(caught.value.expected)


def test_one_corpus_is_built_up_to_its_dataset_and_no_other_is_looked_at(make_project, instance, capsys):
    config = make_project(replacements={"webdatasets:": "packed: [books]\nwebdatasets:"})
    (config.parent / "raw/code/gone.jsonl").symlink_to(config.parent / "nowhere.jsonl")
    project = Project.open(config)
    report = build(project, instance, corpora=["books"])
    assert (report.failed, report.skipped) == ({}, [])
    assert set(report.made) == steps_of("books")
    shown = said(project, report, capsys)
    assert re.search(r"│ books +│ up to date", shown)
    assert "web" not in shown
    assert "pretrain" not in shown
    packed = build(project, instance, corpora=["books"], select="packed_dataset")
    assert set(packed.made) == {"packed_dataset [books]"}


def test_an_unknown_corpus_is_told_with_those_that_are_there(make_project, instance):
    with pytest.raises(ConfigError, match="--corpus") as caught:
        build(Project.open(make_project()), instance, corpora=["wbe", "web"])
    assert (caught.value.found, caught.value.expected) == ("'wbe'", "one of books, code, web")


def test_samples_are_offered_of_what_can_be_read_and_the_line_can_be_pasted(make_project, instance, capsys):
    config = make_project('it\'s "a" pro ject')
    project = Project.open(config)
    assert "Read samples" not in said(project, build(project, instance, select="books"), capsys)
    shown = said(project, build(project, instance, select="plain/valid"), capsys)
    line = next(line for line in shown.splitlines() if line.startswith("Read samples: "))
    python, flag, program = shlex.split(line.removeprefix("Read samples: "))
    assert (python, flag) == ("python", "-c")
    exec(program, {})  # it is what people are told to run
    assert "'tokens'" in capsys.readouterr().out
    look = next(line for line in shown.splitlines() if line.startswith("Look at it: "))
    assert f"NANOSET_CONFIG={config}" in shlex.split(look)


def test_only_what_was_made_is_looked_at_again(make_project, instance, capsys, monkeypatch):
    config = make_project()
    assert not build(Project.open(config), instance, select="indexed_dataset").failed
    (config.parent / "raw/books/late.jsonl").write_bytes(jsonl(sentences("late", 3)))
    asked = []
    original = Graph.current

    def current(self, node):
        if node not in self._current:
            asked.append((self, node.label))
        return original(self, node)

    monkeypatch.setattr(Graph, "current", current)
    project = Project.open(config)
    report = build(project, instance, select="books")
    assert "3 up to date" in said(project, report, capsys)
    assert asked.count((report.graph, "indexed_dataset [web]")) == 1
    assert asked.count((report.graph, "indexed_dataset [books]")) == 2
