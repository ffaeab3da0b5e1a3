"""`nanoset build` on a small project: complete, never twice, the same bytes whatever happens."""

from __future__ import annotations

import os
import random
import re
import signal
import time

import dagster as dg
import pytest

from helpers.child_processes import members, start_forked, wait_until
from helpers.inspecting import verify_at
from helpers.sample_platform import build_template, copy_template
from helpers.sample_project import jsonl, sentences, tree, write_project
from nanoset_assets.asset_names import asset_path, label_of, partition_of
from nanoset_assets.build import build
from nanoset_assets.commands import show_report
from nanoset_assets.names import Names
from nanoset_core.errors import ConfigError, InputError, SourceChangedError
from nanoset_core.project.project import Project


@pytest.fixture
def instance(tmp_path):
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as opened:
        yield opened


@pytest.fixture(scope="module")
def first(tmp_path_factory, tokenizer_file):
    """(The folder of a project that was built by one worker, undisturbed, with its history; what
    the build said).
    """
    config = write_project(tmp_path_factory.mktemp("template") / "project", tokenizer_file)
    return config.parent, build_template(config, config.parent / "home")


@pytest.fixture
def template(first):
    """That folder; not to be written to."""
    return first[0]


@pytest.fixture
def built(template, tmp_path):
    """nanoset.yaml of a project of one's own that was built."""
    return copy_template(template, tmp_path / "built")


@pytest.fixture
def history(built):
    with dg.DagsterInstance.local_temp(str(built.parent / "home")) as opened:
        yield opened


def made(report):
    return sorted(report.made)


def test_everything_is_made_once_and_then_nothing(first, built, history):
    report = first[1]
    assert made(report) == sorted(label_of(step.node) for step in report.steps)
    before = tree(built.parent / "data")
    second = build(Project.open(built), history)
    assert second.made == {}
    assert all(step.is_up_to_date for step in second.steps)
    assert tree(built.parent / "data") == before
    assert sorted(history.get_dynamic_partitions(Names().corpora_name)) == ["books", "code", "web"]


def test_a_build_with_nothing_to_do_prints_at_most_ten_lines(built, history, capsys):
    for number in range(12):  # each file is a warning
        (built.parent / f"raw/web/notes-{number}.pdf").write_bytes(b"%PDF")
        (built.parent / f"raw/notes-{number}.txt").write_text("beside the corpora")

    show_report(Project.open(built), build(Project.open(built), history))

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 10
    assert any("notes-0" in line for line in lines)
    assert any("more new warnings: `nanoset status --warnings`" in line for line in lines)
    assert any(line.startswith("Everything is up to date: nothing was made") for line in lines)


def test_a_selection_that_is_up_to_date_is_not_called_everything(built, history, capsys):
    (built.parent / "raw/web/more.jsonl").write_bytes(jsonl(sentences("more", 3)))

    show_report(
        Project.open(built), build(Project.open(built), history, select="plain"), is_selected=True
    )

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 10
    assert any(line.startswith("What was selected is up to date") for line in lines)
    assert any("stale" in line for line in lines)


def test_a_report_counts_outputs_as_its_tables_do(built, history, capsys):
    report = build(Project.open(built), history, rebuild=True, select="web")

    show_report(Project.open(built), report)

    shown = capsys.readouterr().out
    n_up_to_date = int(re.search(r"^(\d+) up to date$", shown, re.MULTILINE)[1])
    assert f"Made 1 of {n_up_to_date} outputs" in shown


def test_the_history_holds_digest_counts_and_path(built, history):
    report = build(Project.open(built), history)
    event = history.get_latest_materialization_event(
        dg.AssetKey("indexed_dataset")
    ).asset_materialization
    step = next(
        s
        for s in report.steps
        if asset_path(s.node) == ("indexed_dataset",) and partition_of(s.node) == event.partition
    )
    assert event.tags["dagster/data_version"] == step.digest
    assert event.metadata["digest"].value == step.digest
    assert event.metadata["path"].value.endswith(step.digest)
    for name in ("documents", "tokens", "rejected", "size_bytes"):
        assert isinstance(event.metadata[name].value, int)


def test_a_changed_file_rebuilds_its_corpus_and_what_is_made_of_it(built, history):
    shards = set((built.parent / "data/shards/web").iterdir())
    changed = built.parent / "raw/web/part-1/web-3.jsonl"
    changed.write_bytes(changed.read_bytes() + jsonl(sentences("late", 3)))
    report = build(Project.open(built), history)
    assert not report.failed
    assert {label for label in made(report) if "[web]" in label} == {
        "raw_jsonl [web]",
        "tokenized_shards [web]",
        "indexed_dataset [web]",
    }
    assert not [
        label
        for label in made(report)
        if "[code]" in label or "[books]" in label or "plain" in label
    ]
    assert [label for label in made(report) if "pretrain/blend" in label]
    assert "shuffled/manifest" in report.made
    new = set((built.parent / "data/shards/web").iterdir()) - shards
    assert len(new) == 1, "one changed file is one range tokenized again"


def test_what_takes_the_place_of_other_settings_is_said(built, history, capsys):
    other = built.with_name("other.yaml")
    other.write_text(built.read_text().replace("seed: 7", "seed: 8"))
    for config, change in ((other, "7 → 8"), (built, "8 → 7")):
        report = build(Project.open(config), history, select="pretrain/train")
        assert report.made
        show_report(Project.open(config), report)
        said = capsys.readouterr().out
        assert f"Made by other settings than before: nanoset pretrain (seed: {change})." in said
        # only where outputs of these settings had been there, and another nanoset.yaml took their
        # place
        assert ("another nanoset.yaml uses the same root" in said) is (config == built)
    show_report(Project.open(built), build(Project.open(built), history, select="pretrain/train"))
    assert "other settings" not in capsys.readouterr().out


def test_a_new_corpus_touches_nothing_else(built, history):
    extra = built.parent / "raw" / "extra"
    extra.mkdir()
    (extra / "a.jsonl").write_bytes(jsonl(sentences("extra", 20)))
    report = build(Project.open(built), history)
    assert made(report) == [
        "indexed_dataset [extra]",
        "raw_jsonl [extra]",
        "tokenized_shards [extra]",
    ]


def test_lost_outputs_are_made_again_with_the_same_bytes(built, history):
    data = built.parent / "data"
    before = tree(data)
    next(data.glob("datasets/web/*/*.bin")).unlink()
    next(data.glob("nanosets/pretrain/cache/*-sample_index.npy")).unlink()
    next(data.glob("webdatasets/shuffled/*/shard-00000001.tar")).write_bytes(b"cut short")
    next(data.glob("shards/code/*/tokens.bin")).unlink()
    report = build(Project.open(built), history)
    assert not report.failed
    assert report.made
    assert tree(data) == before


def test_select_and_force(make_project, instance, built, history):
    report = build(
        Project.open(make_project()), instance, select='key:"tokenized_shards" or key:"raw_jsonl"'
    )
    assert {label.split()[0] for label in report.made} == {"raw_jsonl", "tokenized_shards"}
    before = tree(built.parent / "data")
    times = {path: path.stat().st_mtime_ns for path in (built.parent / "data").rglob("*.tar")}
    forced = build(Project.open(built), history, select="shuffled/tars", rebuild=True)
    assert made(forced) == [f"shuffled/tars [{group}]" for group in range(3)]
    assert tree(built.parent / "data") == before
    assert all(path.stat().st_mtime_ns > then for path, then in times.items())
    with pytest.raises(ConfigError, match="selects nothing"):
        build(Project.open(built), history, select="no_such_asset")


def test_force_makes_every_stage_again(built, history):
    data = built.parent / "data"
    before, inodes = (
        tree(data),
        {path: path.stat().st_ino for path in data.rglob("*") if path.is_file()},
    )
    report = build(Project.open(built), history, rebuild=True)
    assert made(report) == sorted(label_of(step.node) for step in report.steps)
    assert tree(data) == before
    for name in ("tokens.bin", "web_text_document.bin", "inventory.json"):
        assert all(path.stat().st_ino != inodes[path] for path in data.rglob(name))


def start_build(config, home):
    said = config.parent / "said"
    return start_forked(
        "build", "--config", config, environment={"DAGSTER_HOME": str(home)}, said=said
    ), said


def published(data):
    """How many outputs are there; folders may come and go while they are counted."""
    return sum("manifest.json" in files for _, _, files in os.walk(data))


def kill_once_made(process, data, outputs, seconds):
    """Kill the build, and not its workers, a moment after it has published so many outputs; →
    whether it still ran.
    """
    try:
        while process.is_alive() and published(data) < outputs:
            time.sleep(0.02)  # to look takes what the build needs
        time.sleep(seconds)
    finally:
        process.kill()
        process.join()
    assert wait_until(lambda: not members(process.pid)), "its workers end by themselves"
    return process.exitcode == -signal.SIGKILL


def test_killed_at_any_moment_and_run_again_gives_the_same_bytes(template, make_project, tmp_path):
    """By two workers: their number leaves no trace either."""
    expected = tree(template / "data")
    outputs = sum(name.endswith("manifest.json") for name in expected)
    disturbed = make_project("disturbed", {"workers: 1": "workers: 2"})
    moments = random.Random(20260101)
    killed = 0
    for part in range(3):
        process, _ = start_build(disturbed, tmp_path / "home")
        killed += kill_once_made(
            process, disturbed.parent / "data", outputs * part // 3, moments.uniform(0, 0.05)
        )
        for manifest in (disturbed.parent / "data").rglob("manifest.json"):
            if ".tmp-" not in str(manifest):
                name = manifest.relative_to(disturbed.parent / "data").as_posix()
                assert tree(manifest.parent).get("manifest.json") == expected[name], (
                    "what looks finished is finished"
                )
    assert killed >= 2
    process, said = start_build(disturbed, tmp_path / "home")
    process.join()
    assert process.exitcode == 0, said.read_text()
    assert tree(disturbed.parent / "data") == expected
    with dg.DagsterInstance.from_config(str(tmp_path / "home")) as history:
        assert all(run.is_finished for run in history.get_runs()), (
            "runs of killed builds are closed by the next one"
        )


def add_to_web(config, lines):
    """Bad lines in a file of good ones; → the file."""
    file = config.parent / "raw/web/part-0/web-0.jsonl"
    file.write_bytes(file.read_bytes() + lines)
    return file


def cut_code(config):
    """A file that cannot be read to its end; → the file."""
    file = config.parent / "raw/code/code.jsonl.gz"
    file.write_bytes(file.read_bytes()[:-40])
    return file


def test_bad_lines_are_kept_counted_and_shown(make_project, instance):
    config = make_project()
    add_to_web(
        config,
        b'{"text": "cut off\n{"no": "text"}\n[1]\n{"text": 5}\n\n{"text": "\xff"}\n{"text": '
        b'"\\ud800"}\n',
    )
    report = build(Project.open(config), instance, corpora=["web"])
    assert not report.failed
    facts = Project.open(config).outputs.current("tokenized", "web").facts
    assert facts["documents"] == 240
    assert facts["lines"] == 247 == facts["documents"] + facts["rejected"]
    reasons = (
        "blank_line invalid_json invalid_utf8 lone_surrogate missing_key not_an_object "
        "text_not_a_string"
    )
    assert facts["reasons"] == dict.fromkeys(reasons.split(), 1)
    assert (
        sum(
            path.read_bytes().count(b"\n")
            for path in config.parent.glob("data/shards/web/*/rejects.jsonl")
        )
        == 7
    )


def test_too_many_rejects_fail_their_corpus_and_nothing_else(make_project, instance):
    config = make_project("strict", {"max_rejected_fraction: 0.2": "max_rejected_fraction: 0.001"})
    bad = add_to_web(config, b"nonsense\n")
    report = build(Project.open(config), instance)
    assert list(report.failed) == ["tokenized_shards [web]"]
    assert isinstance(report.failed["tokenized_shards [web]"], InputError)
    assert "max_rejected_fraction" in str(report.failed["tokenized_shards [web]"])
    assert {
        "raw_jsonl [web]",
        "indexed_dataset [code]",
        "plain/index_mappings [train]",
    } <= report.made.keys()
    assert {"indexed_dataset [web]", "shuffled/manifest"} <= set(report.skipped)
    bad.write_bytes(bad.read_bytes().removesuffix(b"nonsense\n"))
    assert not build(Project.open(config), instance, corpora=["web"]).failed


def test_the_policy_fail_names_the_line_and_reaches_what_was_made_before(make_project, instance):
    config = make_project()
    add_to_web(config, b"nonsense\n")
    lenient = config.read_text()
    for text, said in (
        (lenient.replace("max_rejected_fraction: 0.2", "on_reject: fail"), "web-0.jsonl:61"),
        (lenient, ""),
        (lenient.replace("max_rejected_fraction: 0.2", "on_reject: fail"), "on_reject: fail"),
    ):
        config.write_text(text)
        failed = build(Project.open(config), instance, corpora=["web"]).failed
        assert said in str(failed.get("tokenized_shards [web]", ""))
        assert bool(failed) == bool(said)


def test_a_corrupt_gzip_fails_its_corpus_where_nothing_else_is_said(make_project, instance):
    config = make_project("strict", {"max_rejected_fraction: 0.2": "max_rejected_fraction: 1"})
    file = cut_code(config)
    report = build(Project.open(config), instance, corpora=["code", "web"])
    assert list(report.failed) == ["tokenized_shards [code]"]
    error = report.failed["tokenized_shards [code]"]
    assert error.where == str(file)
    assert "1 file not readable to the end" in error.found
    assert "documents.max_unreadable_fraction" in error.remedy
    assert "indexed_dataset [web]" in report.made


def metadata_of(instance, asset, partition):
    """Of the last materialisation."""
    (record,) = instance.fetch_materializations(
        dg.AssetRecordsFilter(dg.AssetKey(asset), asset_partitions=[partition]), limit=1
    ).records
    return record.asset_materialization.metadata


def evaluation_of(instance, asset, partition, name="verified"):
    """The last evaluation of an asset's check."""
    for run in instance.get_run_records():
        for entry in instance.all_logs(
            run.dagster_run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION
        ):
            found = entry.dagster_event.event_specific_data
            if (found.asset_key, found.partition, found.check_name) == (
                dg.AssetKey(asset),
                partition,
                name,
            ):
                return found
    raise AssertionError(f"{asset} was not checked")


LENIENT = {"max_rejected_fraction: 0.2": "max_unreadable_fraction: 1"}
CUT_SHORT = "1 file not readable to the end ("
"""Begins what people are told of the gzip file that was cut."""


@pytest.fixture
def cut_and_built(make_project, instance):
    """The nanoset.yaml of a project with a corrupt gzip file that is allowed, built."""
    config = make_project("lenient", LENIENT)
    cut_code(config)
    report = build(Project.open(config), instance, corpora=["code"])
    assert not report.failed
    return config, report


def test_a_corrupt_gzip_that_is_allowed_is_read_to_where_it_breaks(cut_and_built):
    config, _ = cut_and_built

    facts = Project.open(config).outputs.current("tokenized", "code").facts

    assert facts["faults"] == 1
    assert 50 < facts["documents"] < 120
    assert facts["reasons"]["truncated_gzip"] == 1


def test_a_corrupt_gzip_that_is_allowed_is_reported_by_each_build(cut_and_built, instance, capsys):
    config, first = cut_and_built
    second = build(Project.open(config), instance, corpora=["code"])

    for report in (first, second):
        show_report(Project.open(config), report)
        shown = capsys.readouterr().out
        warnings = [
            line for line in shown.splitlines() if line.startswith("warning: corpus code: ")
        ]
        assert CUT_SHORT in warnings[0]
        assert "code.jsonl.gz from line " in warnings[0]
        assert not report.made or re.search(r"│ code +│ up to date │.* 1 file │", shown)


def test_a_corrupt_gzip_that_is_allowed_is_shown_in_the_ui(cut_and_built, instance):
    for asset in ("tokenized_shards", "indexed_dataset"):
        evaluation = evaluation_of(instance, asset, "code")
        assert evaluation.passed, "losses that are allowed block nothing"
        assert f"**`{CUT_SHORT}" in metadata_of(instance, asset, "code")["summary"].value

    findings = evaluation_of(instance, "tokenized_shards", "code").metadata["findings"].records
    texts = [row.data["found"] for row in findings]
    assert any(CUT_SHORT in text and "code.jsonl.gz from line " in text for text in texts)

    losses = evaluation_of(instance, "tokenized_shards", "code", "losses")
    assert (losses.passed, losses.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert CUT_SHORT in losses.description


def test_a_corrupt_gzip_that_is_no_longer_allowed_fails_what_was_built(
    cut_and_built, instance, capsys
):
    """As in a project that an older version built: its current dataset is judged again."""
    config, _ = cut_and_built
    (allowed,) = LENIENT.values()
    config.write_text(config.read_text().replace(allowed, "max_rejected_fraction: 0.2"))

    report = build(Project.open(config), instance, corpora=["code"])

    assert list(report.failed) == ["tokenized_shards [code]"]
    show_report(Project.open(config), report)
    lines = capsys.readouterr().out.splitlines()
    failing = next(line for line in lines if line.startswith("failing: corpus code: "))
    assert "code.jsonl.gz from line " in failing
    assert "documents.max_unreadable_fraction: 0" in failing
    for address in ("tokenized/code", "datasets/code"):
        (error,) = verify_at(Project.open(config), address).errors
        assert error.what == "a file cannot be read to its end"
        assert "documents.max_unreadable_fraction" in error.remedy


def test_an_empty_corpus_and_an_unknown_one(make_project, instance):
    config = make_project()
    (config.parent / "raw/empty").mkdir()
    (config.parent / "raw/empty/nothing.jsonl").write_bytes(b"")
    report = build(Project.open(config), instance, corpora=["empty"])
    assert list(report.failed) == ["tokenized_shards [empty]"]
    assert "holds no text" in str(report.failed["tokenized_shards [empty]"])
    config.write_text(config.read_text().replace("blend: books", "blend: bokos"))
    with pytest.raises(ConfigError, match=r"nanosets\.plain\.blend\.bokos"):
        build(Project.open(config), instance)
    (config.parent / "raw/bokos").mkdir()
    with pytest.raises(ConfigError, match="no text that could be read"):
        build(Project.open(config), instance)


def test_a_corpus_that_cannot_be_surveyed_holds_up_only_what_needs_it(
    make_project, instance, capsys
):
    config = make_project()
    (config.parent / "raw/code/gone.jsonl").symlink_to(config.parent / "nowhere.jsonl")
    report = build(Project.open(config), instance)
    assert list(report.failed) == ["raw_jsonl [code]"]
    assert "nowhere.jsonl" in str(report.failed["raw_jsonl [code]"])
    assert report.skipped == ["pretrain", "shuffled"]
    assert "plain/index_mappings [train]" in report.made
    show_report(Project.open(config), report)
    shown = capsys.readouterr().out
    assert re.search(r"plain train[ │]+up to date", shown)
    assert re.search(r"pretrain train[ │]+missing", shown)


def test_another_range_size_cuts_other_shards_of_the_same_dataset(built, history):
    before = tree(built.parent / "data/datasets")
    built.write_text(built.read_text().replace("range_mib: 0.02", "range_mib: 64"))
    report = build(Project.open(built), history)
    assert made(report) == [
        "tokenized_shards [books]",
        "tokenized_shards [code]",
        "tokenized_shards [web]",
    ]
    assert tree(built.parent / "data/datasets") == before


def test_a_file_that_changes_under_the_build_fails_its_corpus(make_project, instance):
    config = make_project()
    project = Project.open(config)
    from helpers.building import make_inventory, make_shards

    make_inventory(project, "web")
    file = config.parent / "raw/web/part-0/web-1.jsonl"
    file.write_bytes(file.read_bytes().replace(b"web", b"wob"))
    with pytest.raises(SourceChangedError, match=r"web-1\.jsonl"):
        make_shards(project, "web")
    assert not build(project, instance).failed
