"""`nanoset status` says what a build would do, and why."""

from __future__ import annotations

import json
import os
import platform
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

from helpers.building import (
    build_all,
    make_blend,
    make_dataset,
    make_handoff,
    make_inventory,
    make_mappings,
    make_shards,
    make_shuffle_plan,
    make_tars,
)
from helpers.changing import build, change_web
from helpers.command import invoke_nanoset
from helpers.inspecting import graph_of, leased_by_a_build, node_at
from helpers.sample_project import SPLITS, jsonl, sentences, tree
from nanoset_core.errors import NanosetError
from nanoset_core.outputs.differences import Reason
from nanoset_core.project import survey as survey_module
from nanoset_core.project.gc.collect import (
    bytes_freed_by_removing,
    collect,
    old_versions,
    plan_gc,
)
from nanoset_core.project.graph.graph import Graph
from nanoset_core.project.graph.reasons_to_build import ANOTHER_IS_CURRENT
from nanoset_core.project.project import Project
from nanoset_core.project.status import StatusRow, project_status
from nanoset_core.stages.stage import Node

PRETRAIN_ROWS = {f"nanoset pretrain {part}" for part in (*SPLITS, "handoff")}
"""Labels of the rows of the nanoset `pretrain`, which is made from the corpora web and code."""


def open_project(folder: Path) -> Project:
    """Open the project in a folder."""
    return Project.open(folder / "nanoset.yaml")


def rows_by_label(folder: Path) -> dict[str, StatusRow]:
    """Return the rows of a project's status by their labels, such as `corpus web`."""
    return {row.label: row for row in project_status(open_project(folder))}


def outdated(folder: Path) -> dict[str, str]:
    """Return the states of the rows that are not up to date, by their labels."""
    rows = rows_by_label(folder)
    return {label: row.state for label, row in rows.items() if row.state != "up to date"}


def reasons(folder: Path, label: str) -> list[str]:
    """Return why a row is in its state."""
    return list(rows_by_label(folder)[label].why)


def change_config(folder: Path, old: str, new: str) -> None:
    """Replace text in the nanoset.yaml of a project."""
    config = folder / "nanoset.yaml"
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, new))


def print_status(folder: Path) -> str:
    """Return what `nanoset status` prints about a project."""
    return invoke_nanoset(["status", "--config", folder / "nanoset.yaml"]).output


def print_status_as_json(folder: Path) -> Any:
    """Return the rows that `nanoset status --json` prints about a project."""
    return json.loads(
        invoke_nanoset(["status", "--json", "--config", folder / "nanoset.yaml"]).stdout
    )


# Projects that are up to date, or were never built


def test_everything_is_up_to_date_after_a_build(built):
    rows = rows_by_label(built)

    assert {row.state for row in rows.values()} == {"up to date"}
    assert not any(row.why for row in rows.values())


def test_status_changes_no_output(built):
    data_before = tree(built / "data")

    rows_by_label(built)

    assert tree(built / "data") == data_before


def test_corpora_come_before_what_is_made_from_them(built):
    assert list(rows_by_label(built)) == [
        "corpus books",
        "corpus code",
        "corpus web",
        "nanoset pretrain train",
        "nanoset pretrain valid",
        "nanoset pretrain test",
        "nanoset pretrain handoff",
        "nanoset plain train",
        "nanoset plain valid",
        "nanoset plain test",
        "nanoset plain handoff",
        "webdataset shuffled",
        "packed books",
    ]


def test_a_corpus_has_the_figures_of_its_dataset(built):
    dataset = open_project(built).outputs.current("datasets", "web")

    row = rows_by_label(built)["corpus web"]

    assert row.figures["files"] == 4
    assert row.figures["documents"] == 240
    assert row.figures["tokens"] == dataset.facts["tokens"]
    n_bytes = sum(os.path.getsize(path) for path in dataset.folder.glob("web_*"))
    assert row.figures["bytes"] == n_bytes
    written_at = (dataset.folder / "manifest.json").stat().st_mtime
    assert row.made_at == pytest.approx(written_at)


def test_a_split_has_the_figures_of_its_samples(built):
    row = rows_by_label(built)["nanoset pretrain train"]

    assert row.figures["samples"] == 400
    assert row.figures["tokens"] == 400 * 32


def test_everything_is_missing_before_a_build(copy):
    folder = copy()
    shutil.rmtree(folder / "data")

    rows = rows_by_label(folder)

    assert {row.state for row in rows.values()} == {"missing"}
    assert rows["corpus web"].why == ("not built yet",)
    assert rows["nanoset pretrain train"].why == (
        "corpus web is not up to date",
        "corpus code is not up to date",
    )
    assert not (folder / "data").exists()


@pytest.fixture
def without_books(copy) -> Path:
    """The folder of a project that has no outputs of the corpus books itself."""
    folder = copy()
    for stage in ("inventory", "tokenized", "datasets"):
        shutil.rmtree(folder / "data" / stage / "books")
    return folder


def test_a_corpus_without_outputs_has_a_row_in_the_table(without_books):
    output = print_status(without_books)

    corpora_table = output.partition("packed")[0]
    assert "│ books " in corpora_table
    assert "not built yet, counted below" not in output


def test_many_corpora_without_outputs_are_listed_below_the_table(without_books, monkeypatch):
    monkeypatch.setattr("nanoset_core.cli.commands.status._MAX_UNBUILT", 0)

    output = print_status(without_books)

    assert "corpus: 1 of 3 not built yet, counted below" in output
    assert "missing: corpus books: not built yet" in output
    corpora_table = output.partition("packed")[0]
    assert "│ books " not in corpora_table
    assert "│ web " in output


def test_equal_reasons_share_a_line_if_there_are_many(copy, monkeypatch):
    monkeypatch.setattr("nanoset_core.cli.commands.status._MAX_REASONS", 2)
    folder = copy()
    shutil.rmtree(folder / "data")

    lines = print_status(folder).splitlines()

    missing_lines = [line for line in lines if line.startswith("missing: ")]
    assert missing_lines == [
        "missing: corpus books, corpus code, corpus web: not built yet",
        "missing: nanoset pretrain train, nanoset pretrain valid, nanoset pretrain test "
        "and 7 more: what they are made from is not up to date",
    ]
    assert "`nanoset status --json` lists the reasons of each output" in lines


def test_causes_come_before_what_follows_from_them_if_there_are_many(copy, monkeypatch):
    monkeypatch.setattr("nanoset_core.cli.commands.status._MAX_REASONS", 3)
    folder = copy()
    change_config(folder, "append_eod: true", "append_eod: false")
    change_config(folder, "seed: 7", "seed: 8")

    lines = print_status(folder).splitlines()

    stale_lines = [line for line in lines if line.startswith("stale: ")]
    splits = "nanoset pretrain train, nanoset pretrain valid, nanoset pretrain test"
    assert stale_lines == [
        "stale: corpus books, corpus code, corpus web: token ids after each document (EOD): "
        "[0] → []",
        f"stale: {splits}: seed: 7 → 8",
        f"stale: {splits} and 7 more: what they are made from is not up to date",
    ]


# Changes of the raw text


def add_file(file: Path) -> None:
    """Write another file next to a file of raw text."""
    (file.parent / "web-4.jsonl").write_bytes(jsonl(sentences("new", 2)))


def change_file(file: Path) -> None:
    """Write other text of the same length into a file of raw text."""
    file.write_bytes(file.read_bytes().replace(b"the", b"eht"))


def append_to_file(file: Path) -> None:
    """Append documents to a file of raw text."""
    file.write_bytes(file.read_bytes() + jsonl(sentences("late", 3)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(add_file, "1 file added (part-1/web-4.jsonl)", id="added"),
        pytest.param(Path.unlink, "1 file removed (part-1/web-3.jsonl)", id="removed"),
        pytest.param(change_file, "1 file changed (part-1/web-3.jsonl)", id="changed"),
        pytest.param(append_to_file, "1 file changed (part-1/web-3.jsonl)", id="grown"),
    ],
)
def test_changed_files_make_everything_stale_that_is_made_from_them(
    copy, change: Callable[[Path], None], reason
):
    folder = copy()

    change(folder / "raw/web/part-1/web-3.jsonl")

    assert reasons(folder, "corpus web") == [reason]
    states = outdated(folder)
    assert set(states) == {"corpus web", "webdataset shuffled"} | PRETRAIN_ROWS
    assert set(states.values()) == {"stale"}
    build(folder)
    assert outdated(folder) == {}


def test_a_small_file_with_a_new_time_is_read_to_compare(copy):
    folder = copy()
    for path in (folder / "raw/web").rglob("*.jsonl*"):
        os.utime(path, (time.time() - 100, time.time() - 100))

    assert outdated(folder) == {}


def test_a_large_file_with_a_new_time_is_not_read_and_makes_its_corpus_stale(copy, monkeypatch):
    folder = copy()
    # Fingerprints are remembered only of files that were not written just now.
    for path in (folder / "raw/web").rglob("*.jsonl*"):
        os.utime(path, (time.time() - 100, time.time() - 100))
    make_inventory(open_project(folder), "web")
    touched_file = folder / "raw/web/part-1/web-3.jsonl"
    os.utime(touched_file, (time.time() - 99, time.time() - 99))

    monkeypatch.setattr(survey_module, "READ_BYTES", 10)

    assert reasons(folder, "corpus web") == [
        "1 file copied or written again, which the next build reads to compare (part-1/web-3.jsonl)"
    ]
    assert "corpus web is not up to date" in reasons(folder, "webdataset shuffled")


def test_a_corpus_of_several_inputs_of_an_input_is_one_reason_before_its_text_was_read(copy):
    folder = copy()
    # The index mappings of `pretrain` are made from web itself, and from a view of it.
    change_config(folder, "{web: 0.7, code: 0.3}", "{web: 0.5, clean: 0.5}")
    change_config(folder, "nanosets:", "views: {clean: {of: web, tokens: 100}}\nnanosets:")
    graph = Graph(open_project(folder), known={}, corpora=["web"])

    blend = node_at("nanosets/pretrain/train/blend")

    assert graph.stale_reasons(blend) == [
        Reason("corpus web is not up to date", input="index_mappings")
    ]


def test_the_reasons_of_an_output_are_found_out_once_before_new_text_was_read(copy, monkeypatch):
    # Otherwise, each of 1,000 groups of tars would look at their plan and all its corpora again.
    folder = copy()
    change_web(folder)
    reasons_of_unknown_inputs = Graph._reasons_of_unknown_inputs
    calls: Counter[Node] = Counter()

    def counted_reasons(graph: Graph, node: Node) -> list[Reason]:
        calls[node] += 1
        return reasons_of_unknown_inputs(graph, node)

    monkeypatch.setattr(Graph, "_reasons_of_unknown_inputs", counted_reasons)

    assert "corpus web is not up to date" in reasons(folder, "webdataset shuffled")
    assert max(calls.values()) == 1


def test_a_copied_project_needs_a_build_that_only_reads_its_files(copy, monkeypatch, tmp_path):
    # `cp -r` gives all files new times and inodes.
    folder = tmp_path / "copied"
    shutil.copytree(copy(), folder, symlinks=True, copy_function=shutil.copyfile)
    raw_files = sorted((folder / "raw").rglob("*.jsonl*"))
    for number, path in enumerate(raw_files):
        os.utime(path, (1e9 + number, 1e9 + number))
    # The smallest of the files may be read to compare. All are reported nevertheless.
    smallest_size = min(path.stat().st_size for path in raw_files)
    monkeypatch.setattr(survey_module, "READ_BYTES", smallest_size + 1)
    n_web_files = len([*(folder / "raw/web").rglob("*.jsonl*")])
    assert n_web_files > 1

    first_reason = reasons(folder, "corpus web")[0]
    assert first_reason.startswith(f"{n_web_files} files copied or written again")

    # The build writes only files that save time.
    data_before = tree(folder / "data")
    build(folder)
    assert outdated(folder) == {}
    changed_names = [
        name
        for name, digest in tree(folder / "data").items()
        if data_before.get(name) != digest
        and not name.endswith(".fingerprints.json")
        and not name.startswith(".in-use")
    ]
    assert changed_names == []


def test_files_that_did_not_change_are_not_read(copy, monkeypatch):
    folder = copy()
    for path in (folder / "raw").rglob("*.jsonl*"):
        os.utime(path, (1e9, 1e9))
    for corpus in ("web", "code", "books"):
        make_inventory(open_project(folder), corpus)

    def refuse_to_read(*_: object) -> NoReturn:
        raise AssertionError("a file was read")

    monkeypatch.setattr(survey_module, "fingerprint", refuse_to_read)

    assert outdated(folder) == {}


class ShrunkFile(NamedTuple):
    """A file of the corpus web that has fewer lines than when the project was built."""

    folder: Path
    """The folder of the project."""
    path: Path
    text_before: bytes
    notice: str
    """The notice about it that is expected."""


@pytest.fixture
def shrunk_file(copy) -> ShrunkFile:
    """A file of which only the first lines remain."""
    folder = copy()
    path = folder / "raw/web/part-0/web-0.jsonl"
    text_before = path.read_bytes()
    first_lines = text_before.splitlines(keepends=True)[:30]
    path.write_bytes(b"".join(first_lines))
    sizes = f"{len(text_before):,} → {path.stat().st_size:,} bytes"
    notice = f"1 file is smaller than in the previous version: part-0/web-0.jsonl ({sizes})"
    return ShrunkFile(folder, path, text_before, notice)


def notices_of_web(folder: Path) -> list[str]:
    """Return the notices about the corpus web."""
    return [notice.text for notice in rows_by_label(folder)["corpus web"].notices]


def test_a_file_that_shrank_is_noticed_before_and_after_the_build(shrunk_file):
    assert notices_of_web(shrunk_file.folder) == [shrunk_file.notice]

    build(shrunk_file.folder)

    assert notices_of_web(shrunk_file.folder) == [shrunk_file.notice]


def test_the_notice_of_a_file_that_shrank_disappears_when_the_file_is_restored(shrunk_file):
    build(shrunk_file.folder)

    shrunk_file.path.write_bytes(shrunk_file.text_before)

    assert notices_of_web(shrunk_file.folder) == []
    build(shrunk_file.folder)
    assert notices_of_web(shrunk_file.folder) == []


# Changes of the settings


def test_changed_settings_are_named_with_their_values(copy):
    folder = copy()

    change_config(folder, "append_eod: true", "append_eod: false")
    change_config(folder, "seed: 7", "seed: 8")
    change_config(folder, "member: npy", "member: json.gz")

    changed_settings = [reason.partition(":")[0] for reason in reasons(folder, "corpus web")]
    assert changed_settings == ["token ids after each document (EOD)"]
    assert "seed: 7 → 8" in reasons(folder, "nanoset pretrain valid")
    assert "web changed" in reasons(folder, "nanoset pretrain valid")
    assert "member: npy → json.gz" in reasons(folder, "webdataset shuffled")
    assert reasons(folder, "packed books") == ["dataset changed"]


def test_a_new_path_for_trainers_is_described_in_words(copy):
    folder = copy()

    change_config(folder, "    trainer_path: /lustre/data\n", "")

    start = (
        "where trainers find the outputs (trainer_path, or else their location): /lustre/data → "
    )
    matching = [
        reason for reason in reasons(folder, "nanoset pretrain train") if reason.startswith(start)
    ]
    assert matching


def test_two_configurations_of_one_root_see_what_the_other_one_replaced(copy):
    folder = copy()
    other_config = folder / "other.yaml"
    text = (folder / "nanoset.yaml").read_text()
    other_config.write_text(text.replace("seed: 7", "seed: 8"))

    # The seed of one nanoset makes nothing else stale.
    other_rows = project_status(Project.open(other_config))
    other_states = {row.label: row.state for row in other_rows if row.state != "up to date"}
    assert other_states == dict.fromkeys(PRETRAIN_ROWS, "stale")

    # After the other one was built, this one is stale.
    build_all(other_config)
    assert reasons(folder, "nanoset pretrain train") == ["seed: 8 → 7", ANOTHER_IS_CURRENT]
    assert reasons(folder, "nanoset pretrain handoff") == [
        "train changed",
        "valid changed",
        "test changed",
    ]
    assert set(outdated(folder)) == PRETRAIN_ROWS


# Damaged outputs


@pytest.mark.parametrize(
    ("pattern", "label", "reason"),
    [
        ("datasets/web/*/*.bin", "corpus web", "damaged: web_text_document.bin is missing"),
        ("shards/web/*/tokens.idx", "corpus web", "a shard is missing or damaged"),
        ("tokenized/web/*/manifest.json", "corpus web", "manifest.json is missing"),
        ("inventory/web/*/inventory.json", "corpus web", "damaged: inventory.json is missing"),
        (
            "nanosets/pretrain/cache/*-train-sample_index.npy",
            "nanoset pretrain train",
            "an index file is missing",
        ),
        (
            "nanosets/plain/valid/index_mappings/*/plan.json",
            "nanoset plain valid",
            "damaged: plan.json is missing",
        ),
        (
            "nanosets/plain/handoff/*/START.md",
            "nanoset plain handoff",
            "damaged: START.md is missing",
        ),
        (
            "webdatasets/shuffled/*/shard-00000002.tar",
            "webdataset shuffled",
            "damaged: shard-00000002.tar is missing",
        ),
        (
            "shuffle_plans/shuffled/*/plan.json",
            "webdataset shuffled",
            "damaged: plan.json is missing",
        ),
        ("packed/books/*/books.pbin", "packed books", "damaged: books.pbin is missing"),
    ],
)
def test_a_lost_file_is_named_in_the_row_of_its_output(copy, pattern, label, reason):
    folder = copy()
    next((folder / "data").glob(pattern)).unlink()

    row = rows_by_label(folder)[label]

    assert row.state == "stale"
    assert [text for text in row.why if reason in text], row.why


@pytest.mark.parametrize(
    "output", ["tokenized/web", "nanosets/pretrain/train/blend", "webdatasets/shuffled"]
)
@pytest.mark.parametrize("file", ["current.json", "current/manifest.json"])
def test_outputs_with_unreadable_manifests_are_reported_as_damaged(copy, output, file):
    folder = copy()
    (folder / "data" / output / file).write_text("{]")

    rows = [row for row in rows_by_label(folder).values() if row.state != "up to date"]

    assert {row.state for row in rows} <= {"stale", "missing"}
    all_reasons = "; ".join("; ".join(row.why) for row in rows)
    assert "does not name a version" in all_reasons or "not a manifest" in all_reasons


@pytest.mark.parametrize("old_target", [None, "nowhere"])
def test_a_wrong_link_to_the_current_version_is_reported_and_set_by_a_build(copy, old_target):
    folder = copy()
    link = folder / "data/datasets/web/current"
    target = link.readlink()
    link.unlink()
    if old_target is not None:
        link.symlink_to(old_target)

    assert outdated(folder) == {"corpus web": "stale"}
    [reason] = reasons(folder, "corpus web")
    assert reason.startswith("the link `current`")

    build(folder)
    assert link.readlink() == target
    assert outdated(folder) == {}


def test_a_folder_in_the_place_of_a_link_is_a_failure_although_the_output_is_up_to_date(copy):
    folder = copy()
    link = folder / "data/datasets/web/current"
    version = link.resolve()
    link.unlink()
    shutil.copytree(version, link)

    assert outdated(folder) == {"corpus web": "failing"}
    [reason] = reasons(folder, "corpus web")
    assert reason == f"a folder is where the link `current` should be: {link}"


def test_a_row_without_a_current_version_counts_the_bytes_that_exist(copy):
    folder = copy()
    shutil.rmtree(folder / "data/nanosets/pretrain/train/blend")

    row = rows_by_label(folder)["nanoset pretrain train"]

    assert row.state == "missing"
    assert row.to_json()["bytes"] > 0


# Outputs that cannot be built


def test_corpora_that_cannot_be_read_are_failing_and_all_others_have_their_state(copy):
    folder = copy()
    shutil.rmtree(folder / "raw/code")
    (folder / "raw/books/dangling.jsonl").symlink_to(folder / "nowhere")

    rows = rows_by_label(folder)

    assert rows["corpus code"].state == "failing"
    assert "no folder of raw text" in rows["corpus code"].why[0]
    assert rows["corpus books"].state == "failing"
    assert "a file is missing" in rows["corpus books"].why[0]
    assert rows["corpus web"].state == "up to date"
    assert rows["nanoset pretrain train"].why == ("waits for corpus code, which fails",)
    assert rows["packed books"].why == ("waits for corpus books, which fails",)


def test_a_split_that_cannot_be_built_is_failing(copy):
    folder = copy()
    too_many_samples = "samples: {train: 4000000}\n    max_epochs: 2"
    change_config(folder, "samples: {train: 400}", too_many_samples)

    rows = rows_by_label(folder)

    assert rows["nanoset pretrain train"].state == "failing"
    assert "more often" in rows["nanoset pretrain train"].why[0]
    assert "; remedy: " in rows["nanoset pretrain train"].why[0]
    waits = "waits for nanoset pretrain train, which fails"
    assert rows["nanoset pretrain handoff"].why == (waits,)


def test_a_handoff_is_failing_if_its_trainer_cannot_take_the_path(copy):
    folder = copy()
    change_config(folder, "/lustre/data", "/my data")

    row = rows_by_label(folder)["nanoset pretrain handoff"]

    assert row.state == "failing"
    assert "at spaces" in row.why[0]


@pytest.fixture
def with_rejects(copy) -> Path:
    """The folder of a built project with three rejected lines in the corpus web."""
    folder = copy()
    add_bad_lines(folder, 3)
    build(folder)
    return folder


def add_bad_lines(folder: Path, n_lines: int) -> None:
    """Add lines that are no JSON to a file of the corpus web."""
    file = folder / "raw/web/part-0/web-0.jsonl"
    file.write_bytes(file.read_bytes() + b"no json\n" * n_lines)


def test_rejected_lines_are_counted_and_the_files_that_list_them_are_named(with_rejects):
    row = rows_by_label(with_rejects)["corpus web"]
    outcome = invoke_nanoset(["status", "--config", with_rejects / "nanoset.yaml"])

    assert row.state == "up to date"
    assert row.figures["rejected"] == 3
    rejected_lines = []
    for path in row.rejects:
        rejected_lines += Path(path).read_text().splitlines()
    assert len(rejected_lines) == 3
    assert outcome.exit_code == 0
    assert f"rejected lines of web: {row.rejects[0]}" in outcome.output


def test_a_corpus_fails_if_a_new_limit_allows_fewer_rejected_lines(with_rejects):
    change_config(with_rejects, "max_rejected_fraction: 0.2", "max_rejected_fraction: 0.001")

    row = rows_by_label(with_rejects)["corpus web"]

    assert row.state == "failing"
    assert "3 of 243 lines rejected, 1.23% (invalid_json 3)" in row.why[0]
    assert "documents.max_rejected_fraction" in row.why[0]
    assert "remedy: repair the lines, or raise" in row.why[0]


def test_a_corpus_whose_documents_are_all_empty_is_failing_after_they_were_tokenized(copy):
    folder = copy()
    (folder / "raw/empty").mkdir()
    (folder / "raw/empty/a.jsonl").write_bytes(jsonl([{"text": "", "id": "1"}]))
    assert outdated(folder)["corpus empty"] == "missing"

    project = open_project(folder)
    make_inventory(project, "empty")
    with pytest.raises(NanosetError):
        make_shards(project, "empty")

    row = rows_by_label(folder)["corpus empty"]
    assert row.state == "failing"
    assert "the corpus holds no text" in row.why[0]


def test_rejected_lines_of_a_changed_file_are_counted_after_its_shards_were_made(with_rejects):
    change_config(with_rejects, "max_rejected_fraction: 0.2", "max_rejected_fraction: 0.001")
    add_bad_lines(with_rejects, 1)
    assert outdated(with_rejects)["corpus web"] == "stale"

    project = open_project(with_rejects)
    make_inventory(project, "web")
    with pytest.raises(NanosetError):
        make_shards(project, "web")

    rows = rows_by_label(with_rejects)
    assert rows["corpus web"].state == "failing"
    assert "4 of 244 lines rejected" in rows["corpus web"].why[0]

    # The dataset of before still exists, so what is made from it has not changed.
    for label in PRETRAIN_ROWS:
        assert rows[label].state == "stale"
        assert rows[label].why == ("waits for corpus web, which fails",)
    assert rows["nanoset plain train"].state == "up to date"


# Builds that are under way


def test_groups_of_tars_are_not_looked_at_if_their_webdataset_is_up_to_date(built, monkeypatch):
    groups_looked_at = []

    def record_group(project: Project, name: str, group: int) -> bool:
        groups_looked_at.append(group)
        return True

    monkeypatch.setattr("nanoset_core.stages.webdataset.make.is_group_written", record_group)

    assert not reasons(built, "webdataset shuffled")
    assert not groups_looked_at


def test_groups_of_tars_are_counted_while_they_are_written(copy):
    folder = copy()
    change_config(folder, "seed: 5", "seed: 6")
    assert reasons(folder, "webdataset shuffled") == ["seed: 5 → 6"]

    project = open_project(folder)
    plan = make_shuffle_plan(project, "shuffled")
    make_tars(project, "shuffled", 1)
    assert reasons(folder, "webdataset shuffled") == [
        "plan changed",
        "1 of 3 groups of tars written",
    ]

    # A damaged plan is reported, too.
    (plan.folder / "plan.json").write_bytes(b"x" * plan.files["plan.json"].size)
    assert "this file is not as it was written" in reasons(folder, "webdataset shuffled")


def test_the_row_of_a_running_build_is_marked(copy):
    folder = copy()

    with leased_by_a_build(open_project(folder), "web"):
        busy_labels = {label for label, row in rows_by_label(folder).items() if row.busy}
        assert busy_labels == {"corpus web"}
        assert outdated(folder) == {}


def test_a_corpus_is_printed_as_being_built_instead_of_stale(copy):
    folder = copy()
    change_web(folder)
    (change,) = reasons(folder, "corpus web")

    with leased_by_a_build(open_project(folder), "web"):
        outcome = invoke_nanoset(["status", "--config", folder / "nanoset.yaml"])
        rows = print_status_as_json(folder)

    host = platform.node()
    assert outcome.exit_code == 1
    assert f"being built: corpus web: {change}" in outcome.output
    assert f"being built: corpus web: on {host}" in outcome.output
    (web,) = [row for row in rows if row["kind"] == "corpus" and row["name"] == "web"]
    assert web["state"] == "being built"
    assert web["why"] == [change, f"on {host}"]
    assert web["building"] is True
    assert web["host"] == host
    assert web["share"] is None

    # After the build has ended, without success.
    assert outdated(folder)["corpus web"] == "stale"


def test_outputs_that_a_build_makes_later_wait_and_keep_their_reasons(copy):
    folder = copy()
    (folder / "raw/books/late.jsonl").write_bytes(jsonl(sentences("late", 3)))
    reasons_before = rows_by_label(folder)["packed books"].why

    with leased_by_a_build(open_project(folder), "books"):
        rows = rows_by_label(folder)

    assert rows["corpus books"].state == "being built"
    assert rows["packed books"].state == "stale"
    assert rows["packed books"].busy is None
    assert rows["packed books"].why == (
        *reasons_before,
        "waits for corpus books, which is being built",
    )


# Agreement with builds


def check_against_graph(folder: Path) -> None:
    """Check that the rows that are not up to date are those of the steps that a build makes."""
    steps = graph_of(open_project(folder)).steps()
    stale_steps = [step for step in steps if not step.is_up_to_date]
    labels = {" ".join(filter(None, step.node.row)) for step in stale_steps}

    stale_outputs = [(step.node.stage.layout.folder, step.node.name) for step in stale_steps]
    assert set(outdated(folder)) == labels, stale_outputs


@pytest.mark.parametrize("seed", range(3))
def test_exactly_what_a_build_would_make_is_not_up_to_date(copy, seed):
    folder = copy()
    draw = random.Random(seed)
    project = open_project(folder)
    actions = [
        lambda: change_web(folder, f"word{draw.random()}"),
        lambda: make_inventory(project, "web"),
        lambda: make_shards(project, "web"),
        lambda: make_dataset(project, "web"),
        lambda: make_mappings(project, "pretrain", draw.choice(SPLITS)),
        lambda: make_blend(project, "pretrain", draw.choice(SPLITS)),
        lambda: make_handoff(project, "pretrain"),
        lambda: make_shuffle_plan(project, "shuffled"),
        lambda: draw.choice(sorted((folder / "data").glob("*/*/*/*.*"))).unlink(),
        lambda: draw.choice(sorted((folder / "data/nanosets").glob("*/cache/*.npy"))).unlink(),
        lambda: build(folder),
    ]

    for _ in range(12):
        action = draw.choice(actions)
        try:
            action()
        except NanosetError:
            # A step whose inputs are missing changes nothing.
            continue
        check_against_graph(folder)


# The command


def test_the_command_succeeds_if_everything_is_up_to_date(built):
    outcome = invoke_nanoset(["status", "--config", built / "nanoset.yaml"])

    assert outcome.exit_code == 0, outcome.output
    assert "13 up to date" in outcome.output


def test_the_command_fails_and_says_why_if_something_is_stale(copy):
    folder = copy()
    change_web(folder)

    outcome = invoke_nanoset(["status", "--config", folder / "nanoset.yaml"])

    assert outcome.exit_code == 1
    assert "stale: corpus web: 1 file changed (part-1/web-3.jsonl)" in outcome.output


def test_the_command_prints_all_rows_as_json(copy):
    folder = copy()
    change_web(folder)

    outcome = invoke_nanoset(["status", "--json", "--config", folder / "nanoset.yaml"])

    assert outcome.exit_code == 1
    row_by_name = {
        (row["kind"], row["name"], row["part"]): row for row in json.loads(outcome.output)
    }
    assert row_by_name["corpus", "web", None]["state"] == "stale"
    assert row_by_name["corpus", "code", None]["documents"] == 120


# Files that are not read


@pytest.fixture
def with_unread_files(copy) -> Path:
    """The folder of a built project with files among its raw text that no build reads."""
    folder = copy()
    (folder / "raw/web/notes.doc").write_text("not read")
    (folder / "raw/web/part-0/b.jsonl.gz.part").write_text("not all of it")
    (folder / "raw/c4").mkdir()
    (folder / "raw/c4/a.json.xz").write_bytes(b"BZh")
    return folder


def test_files_that_are_not_read_are_noticed_and_make_nothing_stale(with_unread_files):
    rows = rows_by_label(with_unread_files)

    notice_kinds = [notice.kind for notice in rows["corpus web"].notices]
    assert notice_kinds == ["not_read", "unfinished"]
    assert rows["corpus books"].notices == ()
    assert rows.pop("folder c4").state == "not read"
    assert {row.state for row in rows.values()} == {"up to date"}


def test_files_that_are_not_read_are_printed_and_the_command_succeeds(with_unread_files):
    outcome = invoke_nanoset(["status", "-c", with_unread_files / "nanoset.yaml"])

    assert outcome.exit_code == 0
    assert "notice: corpus web: 1 file is not read: 1 .doc (notes.doc)" in outcome.output
    assert (
        "not read: folder c4: a folder in which nothing is read: 1 file is not read: 1 .json.xz"
        in outcome.output
    )


def test_files_that_are_not_read_are_in_the_json(with_unread_files):
    rows = print_status_as_json(with_unread_files)

    folder_row = rows[0]
    del folder_row["why"]
    assert folder_row == {
        "kind": "folder",
        "name": "c4",
        "part": None,
        "state": "not read",
        "made_at": None,
        "building": False,
        "rejects": [],
        "warnings": [],
        "notices": [],
    }
    (web,) = [row for row in rows if row["name"] == "web"]
    assert web["notices"][0] == {
        "kind": "not_read",
        "files": 1,
        "text": "1 file is not read: 1 .doc (notes.doc)",
    }


# Old versions


def test_a_project_without_old_versions_names_none(built):
    assert "nanoset gc" not in print_status(built)


def test_old_versions_are_named_with_their_size_and_the_command_that_removes_them(copy):
    folder = copy()
    project = open_project(folder)
    change_web(folder)
    build(folder)

    count, size = old_versions(project)

    plan = plan_gc(project)
    assert count == len(plan.garbage)
    assert size == plan.size
    lines = print_status(folder).splitlines()
    (line,) = [line for line in lines if "nanoset gc" in line]
    assert line.startswith(f"{count:,} old versions and index files, ")

    # After a collection, no old versions are named any more.
    collect(project)
    assert old_versions(project) == (0, 0)
    assert "nanoset gc" not in print_status(folder)


def test_a_version_that_another_process_has_just_deleted_has_no_size(tmp_path):
    assert bytes_freed_by_removing([tmp_path / "deleted"]) == 0


def test_the_status_says_why_old_versions_cannot_be_counted(copy):
    folder = copy()
    config = folder / "nanoset.yaml"
    misspelt = "storage: {keep_runs: [nanosets/pretrain/handoff/0a1b]}\n"
    config.write_text(config.read_text() + misspelt)

    lines = print_status(folder).splitlines()

    (line,) = [line for line in lines if "old versions" in line]
    assert line.startswith("warning: old versions cannot be counted: ")
    assert "0a1b" in line
    assert "storage.keep_runs" in line
