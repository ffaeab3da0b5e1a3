"""`nanoset build`: what it is asked to make, the checks of what it made, `packed`, and what it says
at its end.
"""

from __future__ import annotations

import errno
import gzip
import re
import shlex
import shutil
from types import SimpleNamespace

import dagster as dg
import pytest

from helpers.progress import RecordingDisplay
from helpers.sample_project import CONFIG, FEWER, jsonl, sentences
from nanoset_assets.asset_names import asset_path, label_of, partition_of
from nanoset_assets.build import build, selected
from nanoset_assets.checks import VerificationError
from nanoset_assets.commands import show_report
from nanoset_assets.dagster_compat import checks_without_success
from nanoset_assets.definitions import build_definitions
from nanoset_assets.names import Names
from nanoset_assets.tags import CHECK
from nanoset_core import MMapIndexedDataset, PackedDataset
from nanoset_core.errors import ConfigError
from nanoset_core.project import disk
from nanoset_core.project.graph import Graph, graph_over
from nanoset_core.project.project import Project

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


def test_a_build_says_what_begins_and_ends_and_names_engine_and_end_of_documents(
    make_project, instance
):
    lines, shown = [], RecordingDisplay()
    config = make_project()
    build(
        Project.open(config, shown.progress),
        instance,
        select="tokenized_shards",
        corpora=["web"],
        say=lines.append,
    )
    plan, begun, ended = lines
    assert re.fullmatch(r"plan: 2 steps, from [0-9.]+ kB of text in 1 corpus", plan)
    assert begun == "[1/2] raw_jsonl, tokenized_shards [web] …"
    assert re.fullmatch(r"\[2/2\] raw_jsonl, tokenized_shards \[web\]: made in [0-9.]+ s", ended)
    assert shown.steps == ["[1/2] raw_jsonl [web]", "[2/2] tokenized_shards [web]"]
    assert "EOD '<|endoftext|>' (id 0)" in shown.notes
    done = [work for work in shown.works if work.stage == "tokenized_shards"]
    assert (done[0].done, done[-1].done) == (0, done[-1].total)
    assert done[-1].documents
    assert done[-1].tokens
    (config.parent / "raw/web/part-0/web-0.jsonl").write_bytes(b"no line of JSON\n" * 1000)
    lines.clear()
    build(Project.open(config), instance, corpora=["web"], say=lines.append)
    assert [line.partition("]: ")[2].rpartition(" after ")[0] for line in lines] == [
        "",
        "",
        "tokenized_shards [web] failed",
    ]


def test_what_failed_is_why_an_output_is_missing(make_project, instance, capsys):
    project = Project.open(make_project())
    (odd := project.config.raw_folder / "odd").mkdir()
    (odd / "a.jsonl.gz").write_bytes(gzip.compress(b""))
    report = build(project, instance, corpora=["odd"])
    assert "missing: corpus odd: the corpus holds no text" in said(project, report, capsys)


def test_a_full_disk_is_why_an_output_is_missing_and_what_never_ran_is_not_said(
    make_project, instance, capsys, monkeypatch
):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("nanoset_core.stages.dataset.make.merge_inputs", full)
    lines = []
    project = Project.open(make_project())
    report = build(project, instance, say=lines.append)
    assert report.failed.keys() == {
        f"indexed_dataset [{corpus}]" for corpus in ("books", "code", "web")
    }
    assert len(lines) == 7
    assert all("] raw_jsonl, tokenized_shards, indexed_dataset [" in line for line in lines[1:])
    assert "missing: corpus web: the disk is full" in (shown := said(project, report, capsys))
    assert "corpus web: not built yet" not in shown
    assert "pretrain/index_mappings [train]" in report.skipped


def test_a_run_from_the_ui_is_refused_too_where_the_disk_is_too_small(
    make_project, instance, monkeypatch
):
    config = make_project()
    definitions, names = build_definitions(Project.open(config).config), Names()
    instance.add_dynamic_partitions(names.corpora_name, ["web"])
    job = definitions.resolve_job_def("corpus")
    monkeypatch.setattr(disk, "LEAST_BYTES", 1)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _place: SimpleNamespace(free=0))
        with pytest.raises(dg.Failure, match="too little room") as caught:
            job.execute_in_process(instance=instance, partition_key="web")
        assert "datasets" in str(caught.value)
        assert not (config.parent / "data/shards").exists()
    job.execute_in_process(instance=instance, partition_key="web")
    monkeypatch.setattr(shutil, "disk_usage", lambda _place: SimpleNamespace(free=0))
    assert job.execute_in_process(instance=instance, partition_key="web").success, (
        "nothing was to be made"
    )


@pytest.fixture
def select(make_project):
    """select(*texts) → labels of what they select, of a project that is not built."""
    project = Project.open(make_project())
    nodes = graph_over(project, {}, ["books", "code", "web"]).nodes()
    definitions = build_definitions(project.config)
    return lambda *texts: {
        label_of(node) for node in selected(nodes, texts, (), definitions, Names())
    }


def test_outputs_are_selected_by_name_as_verify_does(select):
    assert select("books") == steps_of("books")
    assert select("plain/train") == {"plain/index_mappings [train]"}
    assert {label.partition("/")[0] for label in select("pla*", "shuffled")} == {
        "plain",
        "shuffled",
    }
    assert select("pretrain/*") == select("pretrain") == select("group:pretrain")
    assert select("code", 'key:"raw_jsonl"') == steps_of("code") | {
        "raw_jsonl [books]",
        "raw_jsonl [web]",
    }


@pytest.mark.parametrize("text", ["no_such_asset", "a b", "group:none", "pretrain/nothing", ""])
def test_what_selects_nothing_is_told_with_what_could_be_selected(select, text):
    with pytest.raises(ConfigError, match="this selects nothing") as caught:
        select(text)
    assert repr(text) == caught.value.found
    for name in (
        "indexed_dataset",
        "pretrain/handoff",
        "books",
        "plain",
        "shuffled",
        "+pretrain/blend",
    ):
        assert name in str(caught.value.expected)


def test_one_corpus_is_built_up_to_its_dataset_and_no_other_is_looked_at(
    make_project, instance, capsys
):
    config = make_project(replacements={"webdatasets:": "pbin: [books]\nwebdatasets:"})
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


def test_samples_are_offered_of_what_can_be_read_and_the_line_can_be_pasted(
    make_project, instance, capsys
):
    config = make_project('it\'s "a" pro ject')
    project = Project.open(config)
    assert "Read samples" not in said(project, build(project, instance, select="books"), capsys)
    shown = said(project, build(project, instance, select="plain"), capsys)
    assert (
        f"Train on it: {project.outputs.current('nanosets', 'plain/handoff').path('START.md')} "
        "says how" in shown
    )
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
            asked.append((self, label_of(node)))
        return original(self, node)

    monkeypatch.setattr(Graph, "current", current)
    project = Project.open(config)
    report = build(project, instance, select="books")
    assert "3 up to date" in said(project, report, capsys)
    assert asked.count((report.graph, "indexed_dataset [web]")) == 1
    assert asked.count((report.graph, "indexed_dataset [books]")) == 2


def evaluations(instance):
    """(asset, partition) → the last evaluation of its check."""
    found = {}
    for run in sorted(instance.get_run_records(), key=lambda record: record.storage_id):
        for entry in instance.all_logs(
            run.dagster_run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION
        ):
            evaluation = entry.dagster_event.event_specific_data
            if evaluation.check_name == CHECK:
                found[evaluation.asset_key.to_user_string(), evaluation.partition] = evaluation
            else:
                assert (evaluation.check_name, evaluation.passed) in {
                    ("losses", True),
                    ("trainer", False),
                }
    return found


def test_what_lies_among_the_files_is_described_and_blocks_nothing(make_project, instance):
    config = make_project()
    (config.parent / "raw/web/notes.txt").touch()
    (config.parent / "raw/web/empty.jsonl").touch()
    report = build(Project.open(config), instance, corpora=["web"])
    assert not report.failed
    found = evaluations(instance)
    assert all(evaluation.passed for evaluation in found.values()), (
        "to conditions a failed check is an error"
    )
    assert (
        found["raw_jsonl", "web"].description
        == "1 file is not read: 1 .txt (notes.txt); 1 file is empty: empty.jsonl"
    )
    event = instance.fetch_materializations(
        dg.AssetRecordsFilter(dg.AssetKey("raw_jsonl"), asset_partitions=["web"]), limit=1
    ).records[0]
    summary = event.asset_materialization.metadata["summary"].value
    assert "**1** `file is not read: 1 .txt (notes.txt)`" in summary
    again = build(Project.open(config), instance, corpora=["web"])
    assert again.made == {}


def test_every_asset_is_checked_in_a_build(make_project, instance):
    config = make_project()
    report = build(Project.open(config), instance)
    assert not report.failed
    assert {run.tags["user"] for run in instance.get_runs()} == {"nanoset build"}, (
        "which the UI shows as who launched it"
    )
    found = evaluations(instance)
    assert all(evaluation.passed and evaluation.blocking for evaluation in found.values())
    assert set(found) == {
        ("/".join(asset_path(step.node)), partition_of(step.node)) for step in report.steps
    }
    dataset = found["indexed_dataset", "web"]
    assert dataset.metadata["documents"].value == 240
    assert dataset.metadata["documents_compared"].value == 64
    assert build(Project.open(config), instance).made == {}, "checks make no step due"


def test_an_error_stops_what_is_made_of_it_and_is_shown_with_its_remedy(
    make_project, instance, spoiling
):
    config = make_project()
    with spoiling():
        report = build(Project.open(config), instance, select='key:"raw_jsonl"+')
    assert set(report.failed) == {
        "indexed_dataset [books]",
        "indexed_dataset [code]",
        "indexed_dataset [web]",
    }
    assert set(report.made) == {
        f"{asset} [{corpus}]"
        for asset in ("raw_jsonl", "tokenized_shards")
        for corpus in ("books", "code", "web")
    }
    error = report.failed["indexed_dataset [web]"]
    assert isinstance(error, VerificationError)
    assert "a token is not in the vocabulary" in str(error)
    assert "found: id 9999" in str(error)
    assert "remedy:" in str(error)
    assert "pretrain/index_mappings [train]" in report.skipped
    assert "shuffled/shuffle_plan" in report.skipped
    assert not (config.parent / "data" / "nanosets").exists()
    # The dataset is there and recorded; the next build must not take it for good.
    again = build(Project.open(config), instance)
    assert "indexed_dataset [web]" in again.failed
    assert "pretrain/index_mappings [train]" in again.skipped
    # Made again it is whole, is checked again, and what was held up follows.
    mended = build(Project.open(config), instance, select="indexed_dataset", rebuild=True)
    assert not mended.failed
    assert not build(Project.open(config), instance).failed
    assert build(Project.open(config), instance).made == {}


def unverified(platform):
    return checks_without_success(
        platform.instance, platform.definitions.resolve_asset_graph().asset_check_keys
    )


def test_a_warning_is_described_and_does_not_block(built_platform):
    raw = built_platform.raw / "web/part-0/web-0.jsonl"
    raw.write_bytes(raw.read_bytes().replace(b"model", b"modem"))
    outcome = built_platform.definitions.resolve_job_def("corpus").execute_in_process(
        instance=built_platform.instance,
        partition_key="web",
        asset_selection=[dg.AssetKey("indexed_dataset")],
    )
    assert outcome.success
    (evaluation,) = outcome.get_asset_check_evaluations()
    assert evaluation.passed
    assert "source line" in evaluation.description
    (row,) = evaluation.metadata["findings"].records
    assert row.data["remedy"].startswith("run `nanoset build`")
    assert unverified(built_platform) == set()


def test_a_check_can_be_run_alone_as_from_the_ui(built_platform):
    key = dg.AssetCheckKey(dg.AssetKey("indexed_dataset"), CHECK)
    job = built_platform.definitions.resolve_job_def("corpus")
    outcome = job.get_subset(asset_check_selection={key}, asset_selection=set()).execute_in_process(
        instance=built_platform.instance, partition_key="web"
    )
    (evaluation,) = outcome.get_asset_check_evaluations()
    assert evaluation.passed
    assert not outcome.get_asset_materialization_events()


def test_what_was_never_checked_is_not_due(make_project, instance, monkeypatch):
    """A project that was built before there were checks is not built again for them."""
    config = make_project(replacements=FEWER)
    with monkeypatch.context() as patch:
        patch.setattr("nanoset_assets.definitions.checks_for", lambda config: [])
        build(Project.open(config), instance)
    assert build(Project.open(config), instance).made == {}


def test_checks_say_what_they_check(make_project):
    graph = build_definitions(Project.open(make_project()).config).resolve_asset_graph()
    for key in graph.asset_check_keys:
        spec = graph.get_check_spec(key)
        assert spec.description
        assert spec.blocking == (key.name == CHECK)
        assert spec.partitions_def == graph.get(key.asset_key).partitions_def


ASSET = dg.AssetKey("packed_dataset")


@pytest.fixture
def project(make_project):
    def open_project(packed="[web, books]"):
        rest = CONFIG[CONFIG.index("nanosets:") :]
        file = make_project(replacements={rest: f"pbin: {packed}\n"})
        return Project.open(file)

    return open_project


def materialised(instance):
    return set(instance.get_materialized_partitions(ASSET))


def test_a_build_packs_the_corpora_that_are_listed_and_no_other(project, instance, capsys):
    opened = project()
    report = build(opened, instance)
    assert not report.failed
    assert materialised(instance) == {"web", "books"}
    root = opened.config.root_folder
    assert sorted(path.name for path in (root / "packed").iterdir()) == ["books", "web"]
    for corpus in ("web", "books"):
        dataset = MMapIndexedDataset(
            root / "datasets" / corpus / "current" / f"{corpus}_text_document"
        )
        found = PackedDataset(root / "packed" / corpus / "current" / f"{corpus}.pbin")
        assert [document.tolist() for document in found] == [
            sequence.tolist() for sequence in dataset[:]
        ]
    (event,) = instance.fetch_materializations(
        dg.AssetRecordsFilter(ASSET, asset_partitions=["web"]), limit=10
    ).records
    metadata = event.asset_materialization.metadata
    assert (metadata["documents"].value, metadata["dagster/partition_row_count"].value) == (
        240,
        240,
    )
    assert metadata["file"].value.endswith("web.pbin")
    show_report(opened, report)
    assert re.search(r"│ web +│ up to date +│ +240 │", capsys.readouterr().out)
    assert build(opened, instance).made == {}


def test_a_corpus_that_is_no_longer_listed_succeeds_and_makes_nothing(project, instance):
    opened = project("[web]")
    definitions = build_definitions(opened.config)
    for name in ("corpora", "packed_dataset"):
        instance.add_dynamic_partitions(Names().path_name(name), ["web", "code"])
    for job in ("corpus", "packed"):
        outcome = definitions.resolve_job_def(job).execute_in_process(
            instance=instance, partition_key="code"
        )
        assert outcome.success
    assert materialised(instance) == set()
    assert not (opened.config.root_folder / "packed").exists()


def test_a_corpus_that_failed_is_named(project, instance):
    opened = project()
    (opened.config.raw_folder / "web" / "bad.jsonl").write_text("no json\n" * 500)
    report = build(opened, instance)
    assert list(report.failed) == ["tokenized_shards [web]"]
    assert report.skipped == ["indexed_dataset [web]", "packed_dataset [web]"]
    assert materialised(instance) == {"books"}
