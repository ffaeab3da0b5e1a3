"""`nanoset diff` says which files two versions of a corpus differ in, and what has to be rebuilt."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.building import make_corpora, make_shuffle_plan
from helpers.changing import build, change_web
from helpers.command import invoke_nanoset, json_of, output_of
from helpers.inspecting import diff_of
from helpers.sample_project import SPLITS, jsonl, sentences
from nanoset_core import MMapIndexedDataset
from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.project.diff.datasets import DatasetDiff, FileDiff
from nanoset_core.project.gc.collect import collect
from nanoset_core.project.gc.garbage import Policy
from nanoset_core.project.project import Project
from nanoset_core.stages.shards.document_counts import DocumentCounts, counts_by_file
from nanoset_core.stages.shards.document_table import document_table
from nanoset_core.text.document_batch import DocumentBatch

CHANGED_FILE = "part-1/web-3.jsonl"
"""The file of the corpus web that `change_web` appends to."""
NO_DOCUMENTS = DocumentCounts()


def rebuild_web(folder: Path) -> Project:
    """Build the corpus web of a project, but not what is made from it."""
    project = Project.open(folder / "nanoset.yaml")
    make_corpora(project, "web")
    return project


def change_config(folder: Path, old: str, new: str) -> None:
    """Replace text in the nanoset.yaml of a project."""
    config = folder / "nanoset.yaml"
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, new))


def count_tokens(dataset: Any, start: int, n_documents: int) -> DocumentCounts:
    """Count documents and their tokens in the dataset itself.

    Args:
        dataset: The manifest of the dataset.
        start: Number of the first document.
        n_documents: How many documents are counted.
    """
    opened = MMapIndexedDataset(dataset.path(dataset.facts["prefix"]))
    sequences = slice(opened.document_indices[start], opened.document_indices[start + n_documents])
    return DocumentCounts(n_documents, int(opened.sequence_lengths[sequences].sum()))


def fate_by_output(diff: DatasetDiff) -> dict[str, str]:
    """Return what becomes of each output that is made from the corpus."""
    return {outcome.output: outcome.fate for outcome in diff.outcomes}


# Files that differ


class TwoVersions(NamedTuple):
    """A project with two versions of the dataset `web`."""

    project: Project
    old: Any
    """The manifest of the older one."""
    new: Any
    """The manifest of the current one."""


@pytest.fixture(scope="module")
def web_with_other_files(built, tmp_path_factory) -> TwoVersions:
    """The corpus web after a file was removed, one changed and one added; not to be written to."""
    folder = tmp_path_factory.mktemp("diff") / "project"
    shutil.copytree(built, folder, symlinks=True)
    old = Project.open(folder / "nanoset.yaml").outputs.current("datasets", "web")
    (folder / "raw/web/part-0/web-0.jsonl").unlink()
    change_web(folder)
    (folder / "raw/web/part-2").mkdir()
    (folder / "raw/web/part-2/web-9.jsonl").write_bytes(jsonl(sentences("new", 7)))
    project = rebuild_web(folder)
    return TwoVersions(project, old, new=project.outputs.current("datasets", "web"))


def test_the_current_version_of_a_corpus_is_compared_with_the_one_before(web_with_other_files):
    project, old, new = web_with_other_files

    diff = diff_of(project, "web")

    assert diff.old.dataset.digest == old.digest
    assert diff.new.dataset.digest == new.digest


def test_files_that_differ_are_listed_with_their_documents_and_tokens(web_with_other_files):
    project, old, new = web_with_other_files

    diff = diff_of(project, "web")

    assert diff.files == [
        FileDiff("part-0/web-0.jsonl", "removed", count_tokens(old, 0, 60), NO_DOCUMENTS),
        FileDiff(
            "part-1/web-3.jsonl", "changed", count_tokens(old, 180, 60), count_tokens(new, 120, 63)
        ),
        FileDiff("part-2/web-9.jsonl", "added", NO_DOCUMENTS, count_tokens(new, 183, 7)),
    ]
    assert diff.unchanged == 2
    assert diff.settings == []


def test_the_files_that_differ_explain_the_change_of_the_token_count(web_with_other_files):
    project, old, new = web_with_other_files

    diff = diff_of(project, "web")

    difference = diff.total("after").tokens - diff.total("before").tokens
    assert difference == new.facts["tokens"] - old.facts["tokens"]


def test_shards_of_both_versions_are_counted(web_with_other_files):
    diff = diff_of(web_with_other_files.project, "web")

    assert diff.shards_kept == len(diff.old.shards.keys() & diff.new.shards.keys())
    assert diff.shards_kept >= 1


def test_versions_are_compared_in_the_order_in_which_they_are_named(web_with_other_files):
    project, old, new = web_with_other_files

    diff = diff_of(project, new.digest, old.digest)

    assert [(file.path, file.change) for file in diff.files] == [
        ("part-1/web-3.jsonl", "changed"),
        ("part-2/web-9.jsonl", "removed"),
        ("part-0/web-0.jsonl", "added"),
    ]


def test_changed_settings_are_named_and_change_every_file(copy):
    folder = copy()
    change_config(folder, "append_eod: true", "append_eod: false")

    diff = diff_of(rebuild_web(folder), "web")

    changed_settings = [setting.partition(":")[0] for setting in diff.settings]
    assert changed_settings == ["token ids after each document (EOD)"]
    assert {file.change for file in diff.files} == {"other settings"}
    assert len(diff.files) == 4
    for file in diff.files:
        assert file.before.documents == 60
        assert file.after.documents == 60
        # One end token less for each document.
        assert file.before.tokens - file.after.tokens == 60


def test_another_size_of_ranges_changes_no_file(copy):
    folder = copy()
    change_config(folder, "range_mib: 0.02", "range_mib: 0.5")
    project = rebuild_web(folder)
    digest = project.outputs.current("datasets", "web").digest

    diff = diff_of(project, digest, digest)

    assert diff.files == []
    assert {outcome.fate for outcome in diff.outcomes} == {"survives"}


def test_only_shards_of_files_that_differ_are_read(changed):
    project, folder = changed
    diff_before = diff_of(project, "web")
    shards_of_changed_file = set()
    for version in (diff_before.old, diff_before.new):
        for digest, files in version.shards.items():
            if CHANGED_FILE in files:
                shards_of_changed_file.add(digest)
    for shard_folder in (folder / "data/shards/web").iterdir():
        if shard_folder.name not in shards_of_changed_file:
            (shard_folder / "documents.parquet").write_bytes(b"not to be read")

    diff = diff_of(project, "web")

    assert diff.files == diff_before.files


# What has to be rebuilt


def needed_cache_files(project: Project) -> set[str]:
    """Return the names of the index files of the split `pretrain/train`."""
    names: set[str] = set()
    for output in ("index_mappings", "blend"):
        manifest = project.outputs.current("nanosets", f"pretrain/train/{output}")
        names.update(manifest.facts["cache_files"])
    return names


@pytest.fixture
def project_with_new_web(copy) -> Project:
    """A built project, of which only the corpus web was rebuilt after a change of its text."""
    folder = copy()
    change_web(folder)
    return rebuild_web(folder)


def build_all_of(project: Project) -> None:
    """Build all outputs of a project."""
    build(project.config.file.parent)


def test_before_the_rebuild_what_was_made_from_a_dataset_is_to_be_rebuilt(project_with_new_web):
    diff = diff_of(project_with_new_web, "web")

    expected_fates = {"packed books": "survives", "webdataset shuffled": "to be rebuilt"}
    for split in SPLITS:
        expected_fates[f"nanoset pretrain {split}"] = "to be rebuilt"
        expected_fates[f"nanoset plain {split}"] = "survives"
    assert fate_by_output(diff) == expected_fates


def test_with_a_new_plan_only_tars_of_the_old_plan_are_to_be_rebuilt(project_with_new_web):
    make_shuffle_plan(project_with_new_web, "shuffled")

    diff = diff_of(project_with_new_web, "web")

    assert fate_by_output(diff)["webdataset shuffled"] == "to be rebuilt"


def test_after_the_rebuild_the_same_outputs_are_called_rebuilt(project_with_new_web):
    build_all_of(project_with_new_web)

    diff = diff_of(project_with_new_web, "web")

    assert fate_by_output(diff)["nanoset pretrain train"] == "rebuilt"
    assert fate_by_output(diff)["webdataset shuffled"] == "rebuilt"


def test_the_index_files_that_a_rebuild_keeps_are_known_before_it(project_with_new_web):
    cache = project_with_new_web.outputs.folder / "nanosets/pretrain/cache"
    cache_files_before = {path.name for path in cache.iterdir()}

    diff = diff_of(project_with_new_web, "web")

    build_all_of(project_with_new_web)
    needed_files = needed_cache_files(project_with_new_web)
    outcome_by_output = {outcome.output: outcome for outcome in diff.outcomes}
    train = outcome_by_output["nanoset pretrain train"]
    assert train.index_files == len(needed_files)
    assert train.kept_files == len(needed_files & cache_files_before)
    assert train.kept_files > 0  # those of the corpus code


def test_a_rebuild_does_not_change_the_number_of_index_files_that_are_kept(project_with_new_web):
    diff_before = diff_of(project_with_new_web, "web")
    build_all_of(project_with_new_web)

    diff_after = diff_of(project_with_new_web, "web")

    outcomes_before = {outcome.output: outcome for outcome in diff_before.outcomes}
    outcomes_after = {outcome.output: outcome for outcome in diff_after.outcomes}
    for split in SPLITS:
        before = outcomes_before[f"nanoset pretrain {split}"]
        after = outcomes_after[f"nanoset pretrain {split}"]
        assert before.index_files == after.index_files
        assert before.kept_files == after.kept_files


def test_outputs_that_were_never_built_or_cannot_be_are_marked(copy):
    folder = copy()
    change_config(folder, "samples: {train: 400}", "samples: {train: 4000000}\n    max_epochs: 2")
    shutil.rmtree(folder / "data/webdatasets")
    change_web(folder)

    diff = diff_of(rebuild_web(folder), "web")

    outcomes = {outcome.output: outcome for outcome in diff.outcomes}
    assert outcomes["webdataset shuffled"].fate == "not built"
    assert "it cannot be built: " in outcomes["nanoset pretrain train"].why


# Older versions


def test_two_older_versions_can_be_compared(copy):
    folder = copy()
    project = Project.open(folder / "nanoset.yaml")
    digests = [project.outputs.current("datasets", "web").digest]
    for word in ("one", "two"):
        change_web(folder, word)
        rebuilt = rebuild_web(folder)
        digests.append(rebuilt.outputs.current("datasets", "web").digest)
    first, second, third = digests

    # Digests may be abbreviated.
    diff = diff_of(project, first[:8], second[:8])

    assert diff.files[0].after.documents - diff.files[0].before.documents == 3
    fates = {outcome.fate for outcome in diff.outcomes if "pretrain" in outcome.output}
    assert fates == {"to be rebuilt"}
    # Index files are counted only for the current version.
    assert {outcome.index_files for outcome in diff.outcomes} == {None}
    assert diff_of(project, first, third).files[0].after.documents == 66


def test_an_old_version_can_be_compared_while_gc_keeps_it(changed):
    project, _ = changed
    diff_before = diff_of(project, "web")

    collect(project, Policy(keep=1))
    assert diff_of(project, "web").to_json() == diff_before.to_json()

    collect(project)
    with pytest.raises(MissingError, match="no previous version"):
        diff_of(project, "web")


# Errors


@pytest.mark.parametrize(
    ("first", "second", "error", "message"),
    [
        pytest.param("nothing", None, ConfigError, "no such corpus", id="unknown corpus"),
        pytest.param("../datasets/web", None, ConfigError, "cannot name a corpus", id="path"),
        pytest.param("code", None, MissingError, "no previous version", id="one version only"),
        pytest.param("abc", "def", ConfigError, "no such version", id="unknown digests"),
        pytest.param("*", "*", ConfigError, "no such version", id="patterns"),
    ],
)
def test_versions_that_do_not_exist_are_errors(built, first, second, error, message):
    project = Project.open(built / "nanoset.yaml")

    with pytest.raises(error, match=message):
        diff_of(project, first, second)


def test_an_error_about_a_view_that_was_not_built_names_those_that_were(copy):
    folder = copy()
    change_config(folder, "nanosets:\n", "views: {clean: {of: web, documents: 3}}\nnanosets:\n")
    # nanoset stores what it remembers of lists of ids in a hidden folder next to the views.
    for name in (".given", "best"):
        (folder / "data" / "views" / name).mkdir(parents=True)
    project = Project.open(folder / "nanoset.yaml")

    with pytest.raises(ConfigError, match="the view has no dataset yet") as caught:
        diff_of(project, "clean")

    assert caught.value.expected == "one of best"


def test_a_version_that_is_deleted_while_it_is_looked_up_is_no_version(built, monkeypatch):
    project = Project.open(built / "nanoset.yaml")
    digest = project.outputs.current("datasets", "web").digest
    monkeypatch.setattr(type(project.outputs), "manifest_at", lambda outputs, folder: None)

    with pytest.raises(ConfigError, match="no such version"):
        diff_of(project, digest, digest)


def test_versions_of_two_corpora_cannot_be_compared(built):
    project = Project.open(built / "nanoset.yaml")
    web = project.outputs.current("datasets", "web")
    code = project.outputs.current("datasets", "code")

    with pytest.raises(ConfigError, match="two corpora"):
        diff_of(project, web.digest, code.digest)


def table_of_changed_file(project: Project) -> Path:
    """Return the table of documents of the first current shard with the changed file."""
    diff = diff_of(project, "web")
    for digest, files in diff.new.shards.items():
        if CHANGED_FILE in files:
            return project.outputs.folder / "shards/web" / digest / "documents.parquet"
    raise AssertionError("no shard has the changed file")


def test_a_damaged_table_of_documents_is_an_error(changed):
    project, _ = changed
    table_of_changed_file(project).write_bytes(b"PAR1 no")

    with pytest.raises(FormatError, match="not the table"):
        diff_of(project, "web")


def test_a_missing_table_of_documents_is_an_error(changed):
    project, _ = changed
    table_of_changed_file(project).unlink()

    with pytest.raises(MissingError, match="table of documents is missing"):
        diff_of(project, "web")


def test_a_deleted_inventory_is_an_error(changed):
    project, folder = changed
    shutil.rmtree(folder / "data/inventory/web")

    with pytest.raises(MissingError, match="inventory of this version was deleted"):
        diff_of(project, "web")


# The command


@pytest.fixture(scope="module")
def config_of_changed(built, tmp_path_factory) -> Path:
    """The nanoset.yaml of a project whose corpus web was rebuilt after a change of one file."""
    folder = tmp_path_factory.mktemp("diff-command") / "project"
    shutil.copytree(built, folder, symlinks=True)
    change_web(folder)
    rebuild_web(folder)
    return folder / "nanoset.yaml"


def test_the_command_prints_the_files_and_what_becomes_of_the_outputs(config_of_changed):
    outcome = invoke_nanoset(["diff", "web", "--config", config_of_changed])

    assert outcome.exit_code == 0, outcome.output
    assert CHANGED_FILE in outcome.output
    assert "changed" in outcome.output
    assert "to be rebuilt" in outcome.output
    assert "+3" in outcome.output
    assert "files that differ: 1, the same: 3" in outcome.output


def test_the_command_shows_a_limited_number_of_files(config_of_changed):
    output = output_of("diff", "web", "--show", 0, "--config", config_of_changed)

    assert "… and 1 more file (--show)" in output


def test_the_command_prints_json(config_of_changed):
    content = json_of("diff", "web", "--json", "--config", config_of_changed)

    assert content["new"]["documents"] - content["old"]["documents"] == 3
    assert content["files"][0]["after"]["documents"] == 63


def test_a_dataset_with_one_version_is_no_error_for_scripts(built):
    config_file = built / "nanoset.yaml"

    assert output_of("diff", "code", "--config", config_file) == (
        "code has only one version: there is nothing to compare\n"
    )
    assert json_of("diff", "code", "--json", "--config", config_file) is None


# Documents and tokens of each file of a shard, counted from its table of documents


def write_document_table(
    path: Path, names: list[str] | str, file_numbers: np.ndarray, lengths: np.ndarray
) -> None:
    """Write the table of a shard's documents.

    Args:
        path: The table.
        names: Names of the files.
        file_numbers: int32, (n_documents,), the file of each document, as an index into `names`.
        lengths: int32, (n_documents,), how many tokens each document has.
    """
    n_documents = len(file_numbers)
    numbers = list(range(n_documents))
    batch = DocumentBatch(
        files=file_numbers.tolist(), lines=numbers, offsets=numbers, ids=[None] * n_documents
    )
    with document_table(path, names) as add:
        add(batch, lengths, np.ones(n_documents, bool))


FILE_NAMES = "abcdef"
DOCUMENTS = st.lists(
    st.tuples(st.sampled_from(range(len(FILE_NAMES))), st.integers(0, 2**31 - 1)), max_size=60
)
"""(number of its file, number of its tokens) of each document of a shard."""


@settings(max_examples=50, deadline=None)
@given(DOCUMENTS)
def test_counts_by_file_equal_those_of_a_plain_loop(tmp_path_factory, documents):
    expected: dict[str, DocumentCounts] = {}
    for file_number, n_tokens in documents:
        name = FILE_NAMES[file_number]
        expected[name] = expected.get(name, NO_DOCUMENTS) + DocumentCounts(1, n_tokens)
    path = tmp_path_factory.mktemp("counts") / "documents.parquet"
    file_numbers = np.array([file_number for file_number, _ in documents], np.int32)
    lengths = np.array([n_tokens for _, n_tokens in documents], np.int32)
    write_document_table(path, FILE_NAMES, file_numbers, lengths)

    counts = counts_by_file(path)

    assert counts == expected
    # Also in the same order: that of the files' first documents.
    assert list(counts) == list(expected)


def test_counts_are_added_over_row_groups(tmp_path):
    n_documents = 150_000  # more than a row group has
    path = tmp_path / "documents.parquet"
    file_numbers = np.sort(np.arange(n_documents) % 3).astype(np.int32)
    lengths = np.arange(n_documents, dtype=np.int32)
    write_document_table(path, ["a", "b", "c"], file_numbers, lengths)

    counts = counts_by_file(path)

    expected = {}
    for number, name in enumerate("abc"):
        n_tokens = int(lengths[file_numbers == number].sum())
        expected[name] = DocumentCounts(n_documents // 3, n_tokens)
    assert counts == expected
