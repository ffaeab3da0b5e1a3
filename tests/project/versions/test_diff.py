"""`nanoset diff`: what went in and out, and what survives."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.building import make_corpora, make_shuffle_plan
from helpers.changing import build, change_web
from helpers.command import invoke_nanoset
from helpers.sample_project import jsonl, sentences
from nanoset_core import MMapIndexedDataset
from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.project.diff import FileDiff, diff_datasets
from nanoset_core.project.gc import collect
from nanoset_core.project.project import Project
from nanoset_core.stages.shards.document_counts import DocumentCounts, counts_by_file
from nanoset_core.stages.shards.document_table import document_table
from nanoset_core.text.document_batch import DocumentBatch


def chain(folder, corpus="web"):
    project = Project.open(folder / "nanoset.yaml")
    make_corpora(project, corpus)
    return project


def tokens_of(dataset, first, count):
    """Counted from the merged dataset itself."""
    opened = MMapIndexedDataset(dataset.path(dataset.facts["prefix"]))
    ends = opened.document_indices
    return int(opened.sequence_lengths[ends[first] : ends[first + count]].sum())


def test_files_that_came_went_and_changed(copy):
    folder = copy()
    old = Project.open(folder / "nanoset.yaml").outputs.current("datasets", "web")
    change_web(folder)
    (folder / "raw/web/part-0/web-0.jsonl").unlink()
    (folder / "raw/web/part-2").mkdir()
    (folder / "raw/web/part-2/web-9.jsonl").write_bytes(jsonl(sentences("new", 7)))
    project = chain(folder)
    new = project.outputs.current("datasets", "web")
    diff = diff_datasets(project, "web")
    assert (diff.old.dataset.digest, diff.new.dataset.digest) == (old.digest, new.digest)
    assert diff.settings == []
    assert diff.files == [
        FileDiff(
            "part-0/web-0.jsonl",
            "removed",
            DocumentCounts(60, tokens_of(old, 0, 60)),
            DocumentCounts(),
        ),
        FileDiff(
            "part-1/web-3.jsonl",
            "changed",
            DocumentCounts(60, tokens_of(old, 180, 60)),
            DocumentCounts(63, tokens_of(new, 120, 63)),
        ),
        FileDiff(
            "part-2/web-9.jsonl",
            "added",
            DocumentCounts(),
            DocumentCounts(7, tokens_of(new, 183, 7)),
        ),
    ]
    assert diff.unchanged == 2
    assert diff.shards_kept == len(diff.old.shards.keys() & diff.new.shards.keys()) >= 1
    step = diff.total("after").tokens - diff.total("before").tokens
    assert step == new.facts["tokens"] - old.facts["tokens"]
    other = diff_datasets(project, new.digest, old.digest)
    assert [(file.path, file.change) for file in other.files] == [
        ("part-1/web-3.jsonl", "changed"),
        ("part-2/web-9.jsonl", "removed"),
        ("part-0/web-0.jsonl", "added"),
    ]


def test_changed_settings_show_in_every_file_that_they_reach(copy):
    folder = copy()
    config = folder / "nanoset.yaml"
    config.write_text(config.read_text().replace("append_eod: true", "append_eod: false"))
    diff = diff_datasets(chain(folder), "web")
    assert [setting.partition(":")[0] for setting in diff.settings] == [
        "token ids after each document (EOD)"
    ]
    assert {file.change for file in diff.files} == {"other settings"}
    assert len(diff.files) == 4
    for file in diff.files:
        assert file.before.documents == file.after.documents == 60
        assert file.before.tokens - file.after.tokens == 60, "one end token a document"


def test_other_ranges_alone_change_no_file(copy):
    folder = copy()
    config = folder / "nanoset.yaml"
    config.write_text(config.read_text().replace("range_mib: 0.02", "range_mib: 0.5"))
    project = chain(folder)
    current = project.outputs.current("datasets", "web").digest
    diff = diff_datasets(project, current, current)
    assert diff.files == []
    assert {outcome.fate for outcome in diff.outcomes} == {"survives"}


def test_only_shards_of_files_that_differ_are_read(changed):
    project, folder = changed
    diff = diff_datasets(project, "web")
    touched = {
        digest
        for version in (diff.old, diff.new)
        for digest, files in version.shards.items()
        if "part-1/web-3.jsonl" in files
    }
    for folder_of_shard in (folder / "data/shards/web").iterdir():
        if folder_of_shard.name not in touched:
            (folder_of_shard / "documents.parquet").write_bytes(b"not to be read")
    assert diff_datasets(project, "web").files == diff.files


def test_what_survives_before_and_after_the_rebuild(copy):
    folder = copy()
    change_web(folder)
    project = chain(folder)
    waiting = {outcome.output: outcome for outcome in diff_datasets(project, "web").outcomes}
    fates = {"packed books": "survives", "webdataset shuffled": "to be rebuilt"}
    for split in ("train", "valid", "test"):
        fates |= {
            f"nanoset pretrain {split}": "to be rebuilt",
            f"nanoset plain {split}": "survives",
        }
    assert {name: outcome.fate for name, outcome in waiting.items()} == fates
    train = waiting["nanoset pretrain train"]
    make_shuffle_plan(project, "shuffled")
    planned = {outcome.output: outcome.fate for outcome in diff_datasets(project, "web").outcomes}
    assert planned["webdataset shuffled"] == "to be rebuilt", (
        "its tars are still those of the old plan"
    )
    there = {path.name for path in (folder / "data/nanosets/pretrain/cache").iterdir()}
    build(folder)
    rebuilt = {outcome.output: outcome for outcome in diff_datasets(project, "web").outcomes}
    assert (
        rebuilt["nanoset pretrain train"].fate == rebuilt["webdataset shuffled"].fate == "rebuilt"
    )
    needed = {
        name
        for asset in ("index_mappings", "blend")
        for name in project.outputs.current("nanosets", f"pretrain/train/{asset}").facts[
            "cache_files"
        ]
    }
    assert (train.index_files, train.kept_files) == (len(needed), len(needed & there))
    assert train.kept_files > 0, "those of the corpus code, which did not change"
    for split in ("train", "valid", "test"):
        before, after = waiting[f"nanoset pretrain {split}"], rebuilt[f"nanoset pretrain {split}"]
        assert (before.index_files, before.kept_files) == (after.index_files, after.kept_files)


def test_what_was_never_built_or_cannot_be_is_told(copy):
    folder = copy()
    config = folder / "nanoset.yaml"
    config.write_text(
        config.read_text().replace(
            "samples: {train: 400}", "samples: {train: 4000000}\n    max_epochs: 2"
        )
    )
    shutil.rmtree(folder / "data/webdatasets")
    change_web(folder)
    found = {outcome.output: outcome for outcome in diff_datasets(chain(folder), "web").outcomes}
    assert found["webdataset shuffled"].fate == "not built"
    assert "it cannot be built: " in found["nanoset pretrain train"].why


def test_after_a_third_version_the_old_ones_still_compare(copy):
    folder = copy()
    project = Project.open(folder / "nanoset.yaml")
    digests = [project.outputs.current("datasets", "web").digest]
    for word in ("one", "two"):
        change_web(folder, word)
        digests.append(chain(folder).outputs.current("datasets", "web").digest)
    diff = diff_datasets(project, digests[0][:8], digests[1][:8])
    assert diff.files[0].after.documents - diff.files[0].before.documents == 3
    assert {outcome.fate for outcome in diff.outcomes if "pretrain" in outcome.output} == {
        "to be rebuilt"
    }
    assert {outcome.index_files for outcome in diff.outcomes} == {None}, (
        "it is not the current version"
    )
    assert diff_datasets(project, digests[0], digests[2]).files[0].after.documents == 66


def test_what_gc_keeps_can_be_compared(changed):
    project, _ = changed
    before = diff_datasets(project, "web")
    collect(project, keep=1)
    assert diff_datasets(project, "web").to_json() == before.to_json()
    collect(project)
    with pytest.raises(MissingError, match="no previous version"):
        diff_datasets(project, "web")


@pytest.mark.parametrize(
    ("first", "second", "error", "message"),
    [
        ("nothing", None, ConfigError, "no such corpus"),
        ("../datasets/web", None, ConfigError, "cannot name a corpus"),
        ("code", None, MissingError, "no previous version"),
        ("abc", "def", ConfigError, "no such version"),
        ("*", "*", ConfigError, "no such version"),
        ("@web", "@code", ConfigError, "two corpora"),
    ],
)
def test_names_of_nothing_are_errors(copy, first, second, error, message):
    project = Project.open(copy() / "nanoset.yaml")
    first, second = (
        one and (project.outputs.current("datasets", one[1:]).digest if one[0] == "@" else one)
        for one in (first, second)
    )
    with pytest.raises(error, match=message):
        diff_datasets(project, first, second)


def test_lost_and_broken_tables_are_named(changed):
    project, folder = changed
    diff = diff_datasets(project, "web")
    shard = next(
        digest for digest, files in diff.new.shards.items() if "part-1/web-3.jsonl" in files
    )
    table = folder / "data/shards/web" / shard / "documents.parquet"
    table.write_bytes(b"PAR1 no")
    with pytest.raises(FormatError, match="not the table"):
        diff_datasets(project, "web")
    table.unlink()
    with pytest.raises(MissingError, match="table of documents is missing"):
        diff_datasets(project, "web")
    shutil.rmtree(folder / "data/inventory/web")
    with pytest.raises(MissingError, match="inventory of this version was deleted"):
        diff_datasets(project, "web")


def test_the_command(copy):
    folder = copy()
    change_web(folder)
    chain(folder)
    config = ["--config", str(folder / "nanoset.yaml")]
    printed = invoke_nanoset(["diff", "web", *config])
    assert printed.exit_code == 0, printed.output
    for text in (
        "part-1/web-3.jsonl",
        "changed",
        "to be rebuilt",
        "+3",
        "files that differ: 1, the same: 3",
    ):
        assert text in printed.output
    assert (
        "… and 1 more file (--show)"
        in invoke_nanoset(["diff", "web", "--show", "0", *config]).output
    )
    value = json.loads(invoke_nanoset(["diff", "web", "--json", *config]).output)
    assert value["new"]["documents"] - value["old"]["documents"] == 3
    assert value["files"][0]["after"]["documents"] == 63


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**31 - 1)), max_size=60))
def test_counting_by_file_is_as_a_plain_loop_does_it(tmp_path_factory, rows):
    expected = {}
    for file, tokens in rows:
        expected["abcdef"[file]] = expected.get("abcdef"[file], DocumentCounts()) + DocumentCounts(
            1, tokens
        )
    path = tmp_path_factory.mktemp("counts") / "documents.parquet"
    files, lengths = (np.array([row[place] for row in rows], np.int32) for place in (0, 1))
    with document_table(path, "abcdef") as add:
        add(batch(files), lengths, np.ones(len(rows), bool))
    assert counts_by_file(path) == expected
    assert list(counts_by_file(path)) == list(expected)


def test_counts_are_added_over_row_groups(tmp_path):
    rows = 150_000
    path = tmp_path / "documents.parquet"
    files = np.sort(np.arange(rows) % 3).astype(np.int32)
    lengths = np.arange(rows, dtype=np.int32)
    with document_table(path, ["a", "b", "c"]) as add:
        add(batch(files), lengths, np.ones(rows, bool))
    assert counts_by_file(path) == {
        name: DocumentCounts(rows // 3, int(lengths[files == number].sum()))
        for number, name in enumerate("abc")
    }


def batch(files):
    numbers = list(range(len(files)))
    return DocumentBatch(
        files=files.tolist(), lines=numbers, offsets=numbers, ids=[None] * len(files)
    )
