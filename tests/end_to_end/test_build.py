"""`nanoset build` builds a project completely and once, with the same bytes after any failure."""

from __future__ import annotations

import os
import random
import re
import signal
import time

import dagster as dg
import pytest

from helpers.building import build_all, make_inventory, make_shards
from helpers.changing import change_web
from helpers.child_processes import members, start_forked, wait_until
from helpers.inspecting import verify_at
from helpers.sample_platform import build_template, copy_template
from helpers.sample_project import jsonl, sentences, tree, write_project
from nanoset_assets.assets.output_names import asset_path, label_of, partition_of
from nanoset_assets.build import builder
from nanoset_assets.build.builder import build
from nanoset_assets.commands import show_report
from nanoset_assets.names import Names
from nanoset_core.errors import ConfigError, InputError, SourceChangedError
from nanoset_core.project.project import Project


@pytest.fixture
def instance(tmp_path):
    """An empty Dagster instance."""
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as opened:
        yield opened


@pytest.fixture(scope="module")
def template_and_report(tmp_path_factory, tokenizer_file):
    """The folder of a project that one worker built, with its history, and the build's report."""
    config = write_project(tmp_path_factory.mktemp("template") / "project", tokenizer_file)
    return config.parent, build_template(config, config.parent / "home")


@pytest.fixture
def template(template_and_report):
    """The folder of a built project, which is not to be written to."""
    return template_and_report[0]


@pytest.fixture
def first_report(template_and_report):
    """The report of the build of the template."""
    return template_and_report[1]


@pytest.fixture
def built(template, tmp_path):
    """The nanoset.yaml of a built project that the test may change."""
    return copy_template(template, tmp_path / "built")


@pytest.fixture
def history(built):
    """The Dagster instance that the project of `built` was built with."""
    with dg.DagsterInstance.local_temp(str(built.parent / "home")) as opened:
        yield opened


def built_labels(report):
    """Return the labels of the outputs that a build made, sorted."""
    return sorted(report.made)


def test_a_first_build_builds_every_output(first_report):
    assert built_labels(first_report) == sorted(label_of(step.node) for step in first_report.steps)


def test_the_core_alone_builds_the_same_outputs_as_dagster(template, make_project):
    config = make_project("alone")

    build_all(config)

    assert tree(config.parent / "data") == tree(template / "data")


def test_a_second_build_has_nothing_to_do(built, history):
    digests_before = tree(built.parent / "data")

    report = build(Project.open(built), history)

    assert report.made == {}
    assert all(step.is_up_to_date for step in report.steps)
    assert tree(built.parent / "data") == digests_before


def test_corpora_become_partitions_in_dagster(history):
    partitions = history.get_dynamic_partitions(Names().corpora_name)

    assert sorted(partitions) == ["books", "code", "web"]


def test_a_build_with_nothing_to_do_prints_at_most_ten_lines(built, history, capsys):
    # Each of these files is a notice.
    for number in range(12):
        (built.parent / f"raw/web/notes-{number}.pdf").write_bytes(b"%PDF")
        (built.parent / f"raw/notes-{number}.txt").write_text("beside the corpora")

    show_report(Project.open(built), build(Project.open(built), history))

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 10
    assert any("more new notices: `nanoset status --warnings`" in line for line in lines)
    assert any(line.startswith("Everything is up to date: nothing was made") for line in lines)


def test_a_selection_that_is_up_to_date_is_not_called_everything(built, history, capsys):
    (built.parent / "raw/web/more.jsonl").write_bytes(jsonl(sentences("more", 3)))

    report = build(Project.open(built), history, select="plain")
    show_report(Project.open(built), report, is_selected=True)

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


def test_the_history_holds_the_digest_the_path_and_the_counts_of_a_dataset(built, history):
    report = build(Project.open(built), history)

    event = history.get_latest_materialization_event(
        dg.AssetKey("indexed_dataset")
    ).asset_materialization
    (step,) = [
        step
        for step in report.steps
        if asset_path(step.node) == ("indexed_dataset",)
        and partition_of(step.node) == event.partition
    ]
    assert event.tags["dagster/data_version"] == step.digest
    assert event.metadata["digest"].value == step.digest
    assert event.metadata["path"].value.endswith(step.digest)
    for name in ("documents", "tokens", "rejected", "size_bytes"):
        assert isinstance(event.metadata[name].value, int)


def test_a_changed_file_rebuilds_its_corpus_and_its_dependants(built, history):
    shards = built.parent / "data/shards/web"
    shards_before = set(shards.iterdir())
    change_web(built.parent)

    report = build(Project.open(built), history)

    # The outputs of the corpus are rebuilt, and those that read it.
    assert not report.failed
    labels = built_labels(report)
    assert [label for label in labels if "[web]" in label] == [
        "indexed_dataset [web]",
        "raw_jsonl [web]",
        "tokenized_shards [web]",
    ]
    assert any("pretrain/blend" in label for label in labels)
    assert "shuffled/manifest" in labels

    # Nothing else is.
    for other in ("[code]", "[books]", "plain"):
        assert not any(other in label for label in labels)

    # Only the range of the changed file is tokenized again.
    new_shards = set(shards.iterdir()) - shards_before
    assert len(new_shards) == 1


def test_a_build_reports_outputs_that_another_configuration_replaces(built, history, capsys):
    other = built.with_name("other.yaml")
    other.write_text(built.read_text().replace("seed: 7", "seed: 8"))

    # Another nanoset.yaml with the same root: its outputs take the place of the first ones.
    shown = build_and_show(other, history, capsys)
    assert "Made by other settings than before: nanoset pretrain (seed: 7 → 8 for train)." in shown
    assert "another nanoset.yaml uses the same root" not in shown

    # The first one again: outputs of its settings existed before.
    shown = build_and_show(built, history, capsys)
    assert "Made by other settings than before: nanoset pretrain (seed: 8 → 7 for train)." in shown
    assert "another nanoset.yaml uses the same root" in shown

    # Up to date: nothing is replaced.
    report = build(Project.open(built), history, select="pretrain/train")
    show_report(Project.open(built), report)
    assert "other settings" not in capsys.readouterr().out


def test_a_build_that_begins_again_reports_what_it_has_replaced_before(
    built, history, capsys, monkeypatch
):
    other = built.with_name("other.yaml")
    other.write_text(built.read_text().replace("seed: 7", "seed: 8"))
    build_and_show(other, history, capsys)

    # A tokenizing engine becomes distrusted during the build, so that the build begins again.
    records = iter([[], ["a faulty engine"], ["a faulty engine"]])
    monkeypatch.setattr(builder, "load_records", lambda *args, **kwargs: next(records))
    shown = build_and_show(built, history, capsys)

    assert "Made by other settings than before: nanoset pretrain (seed: 8 → 7 for train)." in shown
    assert "another nanoset.yaml uses the same root" in shown


def test_a_build_names_the_splits_whose_settings_have_changed(built, history, capsys):
    config = built.read_text().replace("seed: 7", "seed: 8")
    built.write_text(config.replace("samples: {train: 400}", "samples: {train: 300}"))

    report = build(Project.open(built), history, select="pretrain")
    show_report(Project.open(built), report)

    expected = "nanoset pretrain (samples: 400 → 300 for train; seed: 7 → 8)."
    assert f"Made by other settings than before: {expected}" in capsys.readouterr().out


def test_a_build_names_the_view_whose_settings_have_changed(built, history, capsys):
    config = built.read_text()
    built.write_text(config + "views: {few: {of: books, tokens: 500}}\n")
    build(Project.open(built), history, select="books/views")
    built.write_text(config + "views: {few: {of: books, tokens: 600}}\n")

    report = build(Project.open(built), history, select="books/views")
    show_report(Project.open(built), report)

    shown = capsys.readouterr().out
    assert "Made by other settings than before: view books few (views.few.tokens:" in shown


def build_and_show(config, history, capsys):
    """Build outputs of the training split of `pretrain`, and return what the report prints."""
    report = build(Project.open(config), history, select="pretrain/train")
    assert report.made
    show_report(Project.open(config), report)
    return capsys.readouterr().out


def test_a_forced_build_notices_an_overwritten_file_that_looks_unchanged(built, history):
    file = built.parent / "raw/web/part-0/web-0.jsonl"
    # Digests of files that were written in the last seconds are not remembered, so set a past time.
    an_hour_ago = time.time_ns() - 3600 * 10**9
    os.utime(file, ns=(an_hour_ago, an_hour_ago))
    project = Project.open(built)
    build(project, history, select="web")
    inventory_before = project.outputs.require("inventory", "web", remedy="build")
    # The new text has the same size, and as after `rsync --inplace --times`, the same inode and time.
    file.write_bytes(file.read_bytes().replace(b"the", b"teh"))
    os.utime(file, ns=(an_hour_ago, an_hour_ago))

    ordinary_report = build(Project.open(built), history, select="web")
    forced_report = build(Project.open(built), history, select="web", rebuild=True)

    assert ordinary_report.made == {}
    assert forced_report.failed == {}
    inventory = Project.open(built).outputs.require("inventory", "web", remedy="build")
    assert inventory.digest != inventory_before.digest
    # The digest of the present text is remembered, so there is nothing left to do.
    assert build(Project.open(built), history, select="web").made == {}


def test_a_new_corpus_rebuilds_no_other_output(built, history):
    new_corpus = built.parent / "raw" / "extra"
    new_corpus.mkdir()
    (new_corpus / "a.jsonl").write_bytes(jsonl(sentences("extra", 20)))

    report = build(Project.open(built), history)

    assert built_labels(report) == [
        "indexed_dataset [extra]",
        "raw_jsonl [extra]",
        "tokenized_shards [extra]",
    ]


def test_lost_and_damaged_outputs_are_rebuilt_with_the_same_bytes(built, history):
    data = built.parent / "data"
    digests_before = tree(data)
    next(data.glob("datasets/web/*/*.bin")).unlink()
    next(data.glob("nanosets/pretrain/cache/*-sample_index.npy")).unlink()
    next(data.glob("webdatasets/shuffled/*/shard-00000001.tar")).write_bytes(b"cut short")
    next(data.glob("shards/code/*/tokens.bin")).unlink()

    report = build(Project.open(built), history)

    assert not report.failed
    assert report.made
    assert tree(data) == digests_before


def test_a_selection_builds_only_what_it_names(make_project, instance):
    project = Project.open(make_project())

    report = build(project, instance, select='key:"tokenized_shards" or key:"raw_jsonl"')

    assert {label.split()[0] for label in report.made} == {"raw_jsonl", "tokenized_shards"}


def test_a_rebuild_of_a_selection_writes_the_same_bytes_again(built, history):
    data = built.parent / "data"
    digests_before = tree(data)
    time_by_tar = {path: path.stat().st_mtime_ns for path in data.rglob("*.tar")}

    report = build(Project.open(built), history, select="shuffled/tars", rebuild=True)

    assert built_labels(report) == [
        "shuffled/tars [0]",
        "shuffled/tars [1]",
        "shuffled/tars [2]",
    ]
    assert tree(data) == digests_before
    for path, time_before in time_by_tar.items():
        assert path.stat().st_mtime_ns > time_before


def test_a_selection_of_nothing_is_an_error(built, history):
    with pytest.raises(ConfigError, match="selects nothing"):
        build(Project.open(built), history, select="no_such_asset")


def test_a_rebuild_of_everything_writes_the_same_bytes_again(built, history):
    data = built.parent / "data"
    digests_before = tree(data)
    inode_by_file = {path: path.stat().st_ino for path in data.rglob("*") if path.is_file()}

    report = build(Project.open(built), history, rebuild=True)

    assert built_labels(report) == sorted(label_of(step.node) for step in report.steps)
    assert tree(data) == digests_before
    for name in ("tokens.bin", "web_text_document.bin", "inventory.json"):
        for path in data.rglob(name):
            assert path.stat().st_ino != inode_by_file[path], f"{path} was not written again"


def start_build(config, home):
    """Start `nanoset build` in a process of its own; return it and the file with its output."""
    output = config.parent / "output"
    environment = {"DAGSTER_HOME": str(home)}
    process = start_forked("build", "--config", config, environment=environment, output=output)
    return process, output


def count_outputs(data):
    """Return how many outputs are published; folders may come and go while they are counted."""
    return sum("manifest.json" in files for _, _, files in os.walk(data))


def kill_build(process, data, n_outputs, seconds):
    """Kill a build, but not its workers, and return whether it was still running.

    Args:
        process: The build.
        data: The root of its outputs.
        n_outputs: The build is killed once it has published that many outputs.
        seconds: How long to wait then.
    """
    try:
        while process.is_alive() and count_outputs(data) < n_outputs:
            time.sleep(0.02)  # counting takes processor time that the build needs
        time.sleep(seconds)
    finally:
        process.kill()
        process.join()
    assert wait_until(lambda: not members(process.pid)), "the workers did not end"
    return process.exitcode == -signal.SIGKILL


def test_a_build_that_was_killed_at_any_moment_is_completed_with_the_same_bytes(
    template, make_project, tmp_path
):
    expected_tree = tree(template / "data")
    n_outputs = sum(name.endswith("manifest.json") for name in expected_tree)
    # By two workers, unlike the template: their number has no effect on the outputs.
    config = make_project("disturbed", {"workers: 1": "workers: 2"})
    data = config.parent / "data"
    home = tmp_path / "home"

    # Kill three builds, each at another moment. What they published is complete.
    moments = random.Random(20260101)
    n_killed = 0
    for part in range(3):
        process, _output = start_build(config, home)
        n_killed += kill_build(process, data, n_outputs * part // 3, moments.uniform(0, 0.05))
        for manifest in data.rglob("manifest.json"):
            if ".tmp-" in str(manifest):
                continue
            name = manifest.relative_to(data).as_posix()
            assert tree(manifest.parent).get("manifest.json") == expected_tree[name]
    assert n_killed >= 2

    # The next build completes the outputs, with one process, which needs no workers to start.
    config.write_text(config.read_text().replace("workers: 2", "workers: 1"))
    process, output = start_build(config, home)
    process.join()
    assert process.exitcode == 0, output.read_text()
    assert tree(data) == expected_tree

    # It also closes the runs of the killed builds.
    with dg.DagsterInstance.from_config(str(home)) as history:
        assert all(run.is_finished for run in history.get_runs())


def add_to_web(config, lines):
    """Add bad lines to a file of the corpus web, and return the file."""
    file = config.parent / "raw/web/part-0/web-0.jsonl"
    file.write_bytes(file.read_bytes() + lines)
    return file


def cut_code(config):
    """Cut off the end of the gzip file of the corpus code, and return the file."""
    file = config.parent / "raw/code/code.jsonl.gz"
    file.write_bytes(file.read_bytes()[:-40])
    return file


BAD_LINES = {
    "invalid_json": b'{"text": "cut off',
    "missing_key": b'{"no": "text"}',
    "not_an_object": b"[1]",
    "text_not_a_string": b'{"text": 5}',
    "blank_line": b"",
    "invalid_utf8": b'{"text": "\xff"}',
    "lone_surrogate": b'{"text": "\\ud800"}',
}
"""Reason for which a line is rejected → such a line."""
N_WEB_DOCUMENTS = 240
"""Documents of the corpus web in the sample project."""


def test_rejected_lines_are_stored_and_counted_by_reason(make_project, instance):
    config = make_project()
    add_to_web(config, b"".join(line + b"\n" for line in BAD_LINES.values()))

    report = build(Project.open(config), instance, corpora=["web"])

    assert not report.failed
    facts = Project.open(config).outputs.current("tokenized", "web").facts
    assert facts["documents"] == N_WEB_DOCUMENTS
    assert facts["rejected"] == len(BAD_LINES)
    assert facts["lines"] == N_WEB_DOCUMENTS + len(BAD_LINES)
    assert facts["reasons"] == dict.fromkeys(BAD_LINES, 1)
    files = config.parent.glob("data/shards/web/*/rejects.jsonl")
    n_stored_lines = sum(path.read_bytes().count(b"\n") for path in files)
    assert n_stored_lines == len(BAD_LINES)


def test_too_many_rejected_lines_fail_only_their_corpus(make_project, instance):
    config = make_project("strict", {"max_rejected_fraction: 0.2": "max_rejected_fraction: 0.001"})
    bad_line = b"nonsense\n"
    bad_file = add_to_web(config, bad_line)

    report = build(Project.open(config), instance)

    # The corpus fails, with the setting that it exceeds.
    assert list(report.failed) == ["tokenized_shards [web]"]
    error = report.failed["tokenized_shards [web]"]
    assert isinstance(error, InputError)
    assert "max_rejected_fraction" in str(error)

    # What does not depend on it is built, and the rest is skipped.
    built_without_web = {"indexed_dataset [code]", "plain/index_mappings [train]"}
    assert {"raw_jsonl [web]", *built_without_web} <= report.made.keys()
    assert {"indexed_dataset [web]", "shuffled/manifest"} <= set(report.skipped)

    # It is built once the line was removed.
    bad_file.write_bytes(bad_file.read_bytes().removesuffix(bad_line))
    assert not build(Project.open(config), instance, corpora=["web"]).failed


def test_rejects_can_be_made_an_error_before_and_after_a_build(make_project, instance):
    config = make_project()
    add_to_web(config, b"nonsense\n")
    lenient_settings = config.read_text()
    strict_settings = lenient_settings.replace("max_rejected_fraction: 0.2", "on_reject: fail")

    def build_web(settings):
        config.write_text(settings)
        return build(Project.open(config), instance, corpora=["web"]).failed

    # While the corpus is tokenized, the error names the line.
    failed = build_web(strict_settings)
    assert "web-0.jsonl:61" in str(failed["tokenized_shards [web]"])

    # The lenient settings accept it.
    assert not build_web(lenient_settings)

    # Shards that were built with lenient settings are judged again.
    failed = build_web(strict_settings)
    assert "on_reject: fail" in str(failed["tokenized_shards [web]"])


def test_a_corrupt_gzip_file_fails_its_corpus_by_default(make_project, instance):
    # Lenient about rejected lines: an unreadable file is another matter.
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
    """Return the metadata of the last materialization of an asset's partition."""
    (record,) = instance.fetch_materializations(
        dg.AssetRecordsFilter(dg.AssetKey(asset), asset_partitions=[partition]), limit=1
    ).records
    return record.asset_materialization.metadata


def evaluation_of(instance, asset, partition, name="verified"):
    """Return the last evaluation of a check of an asset's partition."""
    for run in instance.get_run_records():
        entries = instance.all_logs(
            run.dagster_run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION
        )
        for entry in entries:
            evaluation = entry.dagster_event.event_specific_data
            is_of_asset = evaluation.asset_key == dg.AssetKey(asset)
            is_of_partition = evaluation.partition == partition
            if is_of_asset and is_of_partition and evaluation.check_name == name:
                return evaluation
    raise AssertionError(f"{asset} was not checked")


LENIENT = {"max_rejected_fraction: 0.2": "max_unreadable_fraction: 1"}
CUT_SHORT = "1 file not readable to the end ("
"""How messages about the cut gzip file begin."""


@pytest.fixture
def cut_and_built(make_project, instance):
    """The nanoset.yaml of a project that was built with a corrupt gzip file, and the report."""
    config = make_project("lenient", LENIENT)
    cut_code(config)
    report = build(Project.open(config), instance, corpora=["code"])
    assert not report.failed
    return config, report


def test_a_corrupt_gzip_that_is_allowed_is_read_up_to_the_damage(cut_and_built):
    config, _ = cut_and_built

    facts = Project.open(config).outputs.current("tokenized", "code").facts

    assert facts["faults"] == 1
    assert 50 < facts["documents"] < 120
    assert facts["reasons"]["truncated_gzip"] == 1


def test_a_corrupt_gzip_that_is_allowed_is_reported_by_each_build(cut_and_built, instance, capsys):
    config, first_report = cut_and_built
    second_report = build(Project.open(config), instance, corpora=["code"])

    # The first build prints a table that counts the file.
    shown = assert_cut_file_is_reported(config, first_report, capsys)
    assert first_report.made
    assert re.search(r"│ code +│ up to date │.* 1 file │", shown)

    # The second build has nothing to do, and warns again.
    assert_cut_file_is_reported(config, second_report, capsys)
    assert not second_report.made


def assert_cut_file_is_reported(config, report, capsys):
    """Check that a report warns of the cut file, and return what it prints."""
    show_report(Project.open(config), report)
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    warnings = [line for line in lines if line.startswith("warning: corpus code: ")]
    assert CUT_SHORT in warnings[0]
    assert "code.jsonl.gz from line " in warnings[0]
    return shown


def test_a_corrupt_gzip_that_is_allowed_is_shown_in_the_ui(cut_and_built, instance):
    for asset in ("tokenized_shards", "indexed_dataset"):
        evaluation = evaluation_of(instance, asset, "code")
        assert evaluation.passed, "losses that are allowed block nothing"

    warnings = metadata_of(instance, "tokenized_shards", "code")["warnings"].value
    assert "**1 file not readable to the end " in warnings
    assert f"**`{CUT_SHORT}" in metadata_of(instance, "indexed_dataset", "code")["summary"].value

    findings = evaluation_of(instance, "tokenized_shards", "code").metadata["findings"].records
    texts = [row.data["found"] for row in findings]
    assert any(CUT_SHORT in text and "code.jsonl.gz from line " in text for text in texts)

    losses = evaluation_of(instance, "tokenized_shards", "code", "losses")
    assert not losses.passed
    assert losses.severity == dg.AssetCheckSeverity.WARN
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


def test_a_corpus_without_text_fails(make_project, instance):
    config = make_project()
    (config.parent / "raw/empty").mkdir()
    (config.parent / "raw/empty/nothing.jsonl").write_bytes(b"")

    report = build(Project.open(config), instance, corpora=["empty"])

    assert list(report.failed) == ["tokenized_shards [empty]"]
    assert "holds no text" in str(report.failed["tokenized_shards [empty]"])


def test_a_blend_of_an_unknown_corpus_is_an_error(make_project, instance):
    config = make_project(replacements={"blend: books": "blend: bokos"})

    with pytest.raises(ConfigError, match=r"nanosets\.plain\.blend: this corpus is not"):
        build(Project.open(config), instance)


def test_a_blend_of_an_empty_folder_is_an_error(make_project, instance):
    config = make_project(replacements={"blend: books": "blend: bokos"})
    (config.parent / "raw/bokos").mkdir()

    with pytest.raises(ConfigError, match="no text that could be read"):
        build(Project.open(config), instance)


def test_a_corpus_that_cannot_be_surveyed_blocks_only_its_dependants(
    make_project, instance, capsys
):
    config = make_project()
    (config.parent / "raw/code/gone.jsonl").symlink_to(config.parent / "nowhere.jsonl")

    report = build(Project.open(config), instance)

    assert list(report.failed) == ["raw_jsonl [code]"]
    assert "nowhere.jsonl" in str(report.failed["raw_jsonl [code]"])
    assert report.skipped == ["pretrain", "shuffled"]
    assert "plain/index_mappings [train]" in report.made

    # The table shows what is missing.
    show_report(Project.open(config), report)
    shown = capsys.readouterr().out
    assert re.search(r"plain train[ │]+up to date", shown)
    assert re.search(r"pretrain train[ │]+missing", shown)


def test_another_range_size_makes_other_shards_but_the_same_datasets(built, history):
    digests_before = tree(built.parent / "data/datasets")
    built.write_text(built.read_text().replace("range_mib: 0.02", "range_mib: 64"))

    report = build(Project.open(built), history)

    assert built_labels(report) == [
        "tokenized_shards [books]",
        "tokenized_shards [code]",
        "tokenized_shards [web]",
    ]
    assert tree(built.parent / "data/datasets") == digests_before


def test_a_file_that_changes_during_a_build_fails_its_corpus(make_project, instance):
    config = make_project()
    project = Project.open(config)
    make_inventory(project, "web")
    file = config.parent / "raw/web/part-0/web-1.jsonl"
    file.write_bytes(file.read_bytes().replace(b"web", b"wob"))

    with pytest.raises(SourceChangedError, match=r"web-1\.jsonl"):
        make_shards(project, "web")

    # The next build reads the file as it is now.
    assert not build(project, instance, corpora=["web"]).failed
