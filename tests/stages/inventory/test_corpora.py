"""Corpora that nanoset.yaml describes have texts at other keys, and may share a folder."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.building import make_dataset, make_shards, run_stages
from helpers.command import run_nanoset
from helpers.inspecting import (
    current_dataset,
    explain_sample,
    find_document,
    node_at,
    verify_at,
    verify_output,
)
from helpers.keyed_corpora import (
    CORPORA,
    KEY_BY_CORPUS,
    N_WEB,
    WEB,
    open_with_corpora,
    write_keyed_project,
)
from helpers.sample_pairs import pair_bytes
from helpers.sample_project import EOD, jsonl
from nanoset_core.errors import ConfigError, InputError, MissingError
from nanoset_core.project.gc.collect import plan_gc
from nanoset_core.project.project import Project
from nanoset_core.project.requested_corpora import check_requested_corpora
from nanoset_core.project.status import StatusRow, project_status
from nanoset_core.stages.inventory.corpora import corpus_names, scan_corpora
from nanoset_core.stages.inventory.make import (
    current_inventory,
    make_inventory,
    remembered_inventory,
)
from nanoset_core.stages.inventory.notices import corpus_notices
from nanoset_core.stages.inventory.verify import verify_inventory
from nanoset_core.stages.shards.options import token_options
from nanoset_core.stages.shards.repeats import LOOK


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tokenizer_file: Path) -> Path:
    """The folder of a project with all its outputs; tests must not write to it."""
    folder = write_keyed_project(tmp_path_factory.mktemp("corpora"), tokenizer_file)
    run_stages(Project.open(folder / "nanoset.yaml"))
    return folder


@pytest.fixture
def project(built: Path) -> Project:
    """The project of that folder."""
    return Project.open(built / "nanoset.yaml")


@pytest.fixture
def copy(built: Path, tmp_path: Path) -> Callable[..., Project]:
    """A function that opens a copy of the project, with other corpora if they are given.

    All calls open the same copy.
    """
    folder = tmp_path / "copy"
    shutil.copytree(built, folder, symlinks=True)

    def open_copy(corpora: str = CORPORA, replacements: dict[str, str] | None = None) -> Project:
        return open_with_corpora(folder, corpora, replacements)

    return open_copy


def status_by_corpus(project: Project) -> dict[str, StatusRow]:
    """Return the row of each corpus in `nanoset status`."""
    return {row.name: row for row in project_status(project) if row.kind == "corpus"}


def make_corpus(project: Project, corpus: str) -> None:
    """Make the dataset of a corpus from its raw text."""
    make_inventory(project, corpus)
    make_shards(project, corpus)
    make_dataset(project, corpus)


# Their tokens


@pytest.fixture(scope="module")
def tokenized(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the pairs that `nanoset tokenize` makes of the same text."""
    out = tmp_path_factory.mktemp("tokenized")
    for folder, keys in {"web": ["text", "title"], "code": ["content"]}.items():
        arguments = ["--input", built / "raw" / folder, "--output-prefix", out / folder]
        arguments += ["--tokenizer", built / "tokenizer.json", "--eod", EOD, "--append-eod"]
        run_nanoset("tokenize", *arguments, "--workers", 1, "--json-keys", *keys)
    return out


@pytest.mark.parametrize(
    ("corpus", "pair"),
    [
        ("web", "web_text_document"),
        ("web_title", "web_title_document"),
        ("code", "code_content_document"),
    ],
)
def test_a_dataset_has_the_bytes_of_nanoset_tokenize_with_the_same_key(
    project, tokenized, corpus, pair
):
    dataset = current_dataset(project, corpus)

    assert pair_bytes(dataset.path(dataset.facts["prefix"])) == pair_bytes(tokenized / pair)


def test_the_datasets_of_all_corpora_differ(project):
    datasets = [current_dataset(project, corpus) for corpus in KEY_BY_CORPUS]

    pairs = {pair_bytes(dataset.path(dataset.facts["prefix"])) for dataset in datasets}

    assert len(pairs) == 3


def test_the_files_of_a_dataset_are_named_after_corpus_and_key(project):
    dataset = current_dataset(project, "web_title")

    assert dataset.facts["prefix"] == "web_title_title_document"


# Their files and digests


def test_corpora_are_those_of_the_settings_and_of_other_folders(project):
    assert corpus_names(project) == ["code", "web", "web_title"]
    check_requested_corpora(project.config, corpus_names(project))


def test_corpora_of_one_folder_have_the_same_files(project):
    scan = scan_corpora(project)

    assert list(scan.corpora) == ["code", "web", "web_title"]
    assert scan.corpora["web_title"].corpus == "web_title"
    assert scan.corpora["web_title"].signature == scan.corpora["web"].signature
    assert not scan.faults


def test_the_files_of_a_folder_are_hashed_once_for_all_its_corpora(project):
    fingerprint_files = project.outputs.folder.rglob(".fingerprints.json")

    assert sorted(path.parent.name for path in fingerprint_files) == ["code", "web"]


@pytest.mark.parametrize("folder", ["tokenized", "datasets"])
@pytest.mark.parametrize(
    ("corpus", "is_equal"),
    [
        pytest.param("web", True, id="a corpus without settings"),
        pytest.param("web_title", False, id="a corpus with another key"),
    ],
)
def test_settings_of_a_corpus_change_its_digests_alone(project, copy, folder, corpus, is_equal):
    project_without_settings = copy("")
    inventory, _ = current_inventory(project, "web")
    parents = {"inventory": inventory.digest}
    node = node_at(f"{folder}/{corpus}")

    recipe_without_settings = node.stage.recipe(project_without_settings, node.key, parents)
    recipe = node.stage.recipe(project, node.key, parents)

    assert (recipe == recipe_without_settings) == is_equal


def test_the_keys_of_a_corpus_are_options_of_its_tokens(project):
    options = token_options(project, "code")

    assert options["text_key"] == "content"
    assert options["id_key"] == "sha"


# Status, verify, explain and gc


def test_all_outputs_of_a_built_project_are_up_to_date(project):
    assert {row.state for row in project_status(project)} == {"up to date"}


def test_another_text_key_makes_only_its_own_corpus_stale(copy):
    project = copy(CORPORA.replace("title}", "id}"))

    status = status_by_corpus(project)

    assert status["web_title"].state == "stale"
    assert status["web"].state == "up to date"
    assert status["code"].state == "up to date"


@pytest.mark.parametrize("corpus", KEY_BY_CORPUS)
def test_verify_tokenizes_sampled_documents_at_the_key_of_their_corpus(project, corpus):
    report = verify_output(project, corpus, deep=True)

    assert report.passed
    assert not report.findings
    assert report.figures["documents_sampled"] > 0
    assert report.figures["documents_compared"] == report.figures["documents_sampled"]


@pytest.fixture
def project_with_changed_titles(copy: Callable[..., Project]) -> Project:
    """A project in which the titles of one file were changed after the build."""
    project = copy()
    file = project.config.raw_folder / "web/2.jsonl"
    file.write_bytes(file.read_bytes().replace(b"title of", b"titel of"))
    return project


def test_verify_names_a_file_whose_texts_were_changed(project_with_changed_titles):
    report = verify_output(project_with_changed_titles, "web_title", deep=True)

    (finding,) = report.findings
    file = project_with_changed_titles.config.raw_folder / "web/2.jsonl"
    assert str(file) in finding.where
    assert "the file was changed since" in finding.found


def test_verify_ignores_changes_at_the_key_of_another_corpus(project_with_changed_titles):
    report = verify_output(project_with_changed_titles, "web", deep=True)

    assert not report.findings


def test_explain_shows_the_text_at_the_key_of_the_corpus(project):
    seen_corpora = set()
    for sample in range(60):
        for piece in explain_sample(project, "both", "train", sample).pieces:
            origin = piece.origin
            file = project.config.corpus_folder(origin.corpus) / origin.file
            row = json.loads(file.read_text().splitlines()[origin.line - 1])
            text = row[KEY_BY_CORPUS[origin.corpus]]
            assert piece.source.state == "unchanged"
            assert piece.source.text.removesuffix("…") in text
            assert origin.id == row.get("id", row.get("sha"))
            seen_corpora.add(origin.corpus)

    assert seen_corpora == KEY_BY_CORPUS.keys()


@pytest.mark.parametrize(
    ("line", "corpora"),
    [
        # A relative path is one below the folder of a corpus, or begins with the name of a corpus.
        ("a/1.jsonl:7", ["web", "web_title"]),
        ("web/a/1.jsonl:7", ["web"]),
        ("web_title/a/1.jsonl:7", ["web_title"]),
        # An absolute path names the folder, which two corpora share.
        ("{raw}/web/a/1.jsonl:7", ["web", "web_title"]),
        ("{resolved_raw}/web/a/1.jsonl:7", ["web", "web_title"]),
    ],
)
def test_explain_finds_a_line_in_every_corpus_that_its_path_may_mean(project, line, corpora):
    raw = project.config.raw_folder
    line = line.format(raw=raw, resolved_raw=raw.resolve())

    documents = find_document(project, "both", "train", file=line)

    assert sorted(document.origin.corpus for document in documents) == corpora


@pytest.mark.parametrize(
    "line",
    [
        "a/1.jsonl:7",
        "web/a/1.jsonl:7",
        "{raw}/web/a/1.jsonl:7",
        "{resolved_raw}/web/a/1.jsonl:7",
    ],
)
def test_explain_finds_a_line_in_the_corpus_that_is_named(project, line):
    raw = project.config.raw_folder
    line = line.format(raw=raw, resolved_raw=raw.resolve())

    documents = find_document(project, "both", "train", file=line, corpus="web_title")

    assert [document.origin.corpus for document in documents] == ["web_title"]


def test_explain_does_not_find_a_line_of_an_unknown_file(project):
    line = f"{project.config.raw_folder}/web/a/none.jsonl:7"

    with pytest.raises(MissingError, match="no such document"):
        find_document(project, "both", "train", file=line)


def test_explain_finds_a_document_by_the_id_at_the_key_of_its_corpus(project):
    documents = find_document(project, "both", "train", identity="code-3")

    assert [document.origin.corpus for document in documents] == ["code"]


def outputs_without_corpus(project: Project) -> set[str]:
    """Return the addresses of outputs whose corpus no longer exists, which gc leaves alone."""
    root = project.outputs.folder
    return {str(item.path.relative_to(root)) for item in plan_gc(project).left_alone}


def test_gc_finds_the_folder_of_a_corpus_that_has_another_name(copy):
    assert not outputs_without_corpus(copy())


def test_gc_reports_the_outputs_of_a_corpus_that_is_no_longer_in_the_settings(copy):
    project = copy("corpora: {code: {text_key: content}}\n")

    assert "datasets/web_title" in outputs_without_corpus(project)


# Folders that are missing, ambiguous or unreadable


def line_of(project: Project, start: str) -> int:
    """Return the number of the first line of nanoset.yaml that has a key."""
    lines = project.config.file.read_text().splitlines()
    return 1 + next(number for number, line in enumerate(lines) if line.strip().startswith(start))


def test_a_missing_folder_is_an_error_that_names_the_setting(copy):
    project = copy(CORPORA.replace("folder: web", "folder: wbe"))

    with pytest.raises(ConfigError, match="this corpus is not in the raw folder") as caught:
        check_requested_corpora(project.config, corpus_names(project))

    line = line_of(project, "web_title:")
    assert str(caught.value.where).endswith(f"nanoset.yaml:{line}: corpora.web_title")
    assert str(project.config.raw_folder / "wbe") in caught.value.remedy


def test_a_missing_corpus_is_an_error_that_names_the_key_and_all_datasets(copy):
    project = copy(CORPORA + "pbin: [nope]\nviews: {short: {of: web}}\n")

    with pytest.raises(ConfigError, match="this corpus is not in the raw folder") as caught:
        check_requested_corpora(project.config, corpus_names(project))

    assert str(caught.value.where).endswith(f"nanoset.yaml:{line_of(project, 'pbin:')}: pbin")
    assert caught.value.found.startswith("'nope'; ")
    assert caught.value.found.endswith(", and nanoset.yaml has short")


def test_all_missing_corpora_are_reported_at_once(copy):
    project = copy(CORPORA + "pbin: [nope, nada]\n")

    with pytest.raises(ConfigError) as caught:
        check_requested_corpora(project.config, corpus_names(project))

    message = str(caught.value)
    assert "2 mistakes" in message
    assert "'nope'" in message
    assert "'nada'" in message


def test_a_missing_corpus_of_settings_in_another_file_has_no_line(copy):
    project = copy(CORPORA + "pbin: [nope]\n")
    # As in a defs.yaml.
    settings = project.config.file.read_text()
    project.config.file.write_text("config:\n" + textwrap.indent(settings, "  "))

    with pytest.raises(ConfigError, match=r"nanoset\.yaml: pbin"):
        check_requested_corpora(project.config, corpus_names(project))


def test_a_missing_folder_does_not_concern_other_corpora(copy):
    project = copy(CORPORA.replace("folder: web", "folder: wbe"))

    status = status_by_corpus(project)

    assert corpus_names(project) == ["code", "web"]
    assert list(scan_corpora(project).corpora) == ["code", "web"]
    assert status["web_title"].state == "failing"
    assert status["web"].state == "up to date"


@pytest.fixture
def ambiguous_project(copy: Callable[..., Project]) -> Project:
    """A project with a folder of the name that its settings give to a corpus of another folder."""
    project = copy()
    raw = project.config.raw_folder
    shutil.copytree(raw / "web", raw / "web_title")
    return project


def test_a_corpus_that_may_be_in_either_of_two_folders_is_an_error(ambiguous_project):
    with pytest.raises(ConfigError, match="either of two folders") as caught:
        corpus_names(ambiguous_project)

    assert str(caught.value.where).endswith("nanoset.yaml: corpora.web_title")


def test_an_ambiguous_corpus_does_not_concern_other_corpora(ambiguous_project):
    scan = scan_corpora(ambiguous_project)

    assert list(scan.corpora) == ["code", "web"]
    assert isinstance(scan.faults["web_title"], ConfigError)


def test_a_folder_that_cannot_be_read_is_a_fault_of_all_its_corpora(copy):
    project = copy()
    web = project.config.raw_folder / "web"
    (web / "loop").symlink_to(web)

    scan = scan_corpora(project)

    assert list(scan.corpora) == ["code"]
    assert scan.faults["web"] is scan.faults["web_title"]


def test_too_many_rejects_name_the_setting_of_the_text_key(copy):
    project = copy(CORPORA.replace("title}", "titel}"))
    make_inventory(project, "web_title")

    with pytest.raises(InputError, match="reject") as caught:
        make_shards(project, "web_title")

    assert "corpora.web_title.text_key" in str(caught.value)


# Patterns of files


@pytest.fixture
def project_with_divided_folder(copy: Callable[..., Project]) -> Project:
    """A project in which the files of one folder are divided between two corpora."""
    project = copy(CORPORA + "  web: {files: [a/]}\n  web_rest: {folder: web, exclude: [a]}\n")
    # The digests of files that were just written would not be remembered.
    for file in project.config.raw_folder.glob("web/**/*.jsonl"):
        os.utime(file, (1e9, 1e9))
    return project


@pytest.mark.parametrize(("corpus", "file"), [("web", "a/1.jsonl"), ("web_rest", "2.jsonl")])
def test_patterns_divide_the_files_of_a_folder_between_corpora(
    project_with_divided_folder, corpus, file
):
    contents = scan_corpora(project_with_divided_folder).corpora[corpus]

    assert [text.path for text in contents.texts] == [file]


def test_status_reports_files_that_patterns_leave_out(project_with_divided_folder):
    status = status_by_corpus(project_with_divided_folder)

    assert [notice.kind for notice in status["web"].notices] == ["left_out"]


def test_patterns_of_a_corpus_make_only_that_corpus_stale(project_with_divided_folder):
    status = status_by_corpus(project_with_divided_folder)

    assert status["web"].state == "stale"
    assert status["web_title"].state == "up to date"
    assert status["code"].state == "up to date"


@pytest.mark.parametrize("corpus", ["web", "web_rest"])
def test_a_corpus_is_made_of_the_files_that_its_patterns_choose(
    project_with_divided_folder, corpus
):
    make_inventory(project_with_divided_folder, corpus)

    shards = make_shards(project_with_divided_folder, corpus)

    assert shards.facts["documents"] == 40
    assert not verify_inventory(project_with_divided_folder, corpus).findings


def test_the_inventory_of_chosen_files_is_remembered(project_with_divided_folder):
    contents = scan_corpora(project_with_divided_folder).corpora["web"]
    make_inventory(project_with_divided_folder, "web")

    assert remembered_inventory(project_with_divided_folder, contents) is not None


@pytest.fixture
def project_without_matching_files(copy: Callable[..., Project]) -> Project:
    """A project with a corpus whose patterns choose no file of its folder."""
    return copy(CORPORA + "  web: {files: [train-*]}\n")


def test_patterns_that_choose_no_file_are_named(project_without_matching_files):
    fault = scan_corpora(project_without_matching_files).faults["web"]

    assert "2 files left out: 2.jsonl, a/1.jsonl" in str(fault)
    assert "no file fits train-*" in fault.remedy


def test_patterns_that_choose_no_file_do_not_concern_other_corpora(project_without_matching_files):
    assert "web_title" in scan_corpora(project_without_matching_files).corpora


def test_a_corpus_without_matching_files_fails(project_without_matching_files):
    assert status_by_corpus(project_without_matching_files)["web"].state == "failing"
    with pytest.raises(InputError, match="files and exclude leave no file"):
        make_inventory(project_without_matching_files, "web")


# Files that are not text of the corpus


@pytest.fixture
def copy_with_json_document(copy: Callable[..., Project]) -> Callable[..., Project]:
    """A function as `copy`; the corpus web has a file that describes it, in JSON."""
    path = copy().config.raw_folder / "web/corpus.json"
    path.write_text(json.dumps({"name": "web", "files": 2}, indent=1))
    return copy


def test_a_json_document_among_the_texts_is_named_with_the_setting_that_leaves_it_out(
    copy_with_json_document,
):
    project = copy_with_json_document()
    make_inventory(project, "web")

    with pytest.raises(InputError, match="not what its ending says") as caught:
        make_shards(project, "web")

    setting = 'corpora: {web: {exclude: ["corpus.json"]}}'
    assert str(caught.value.where).endswith("web/corpus.json")
    assert "the file is one JSON document over many lines, not JSON lines" in caught.value.found
    assert setting in caught.value.remedy
    assert setting in status_by_corpus(project)["web"].why[0]


def test_a_json_document_that_the_settings_leave_out_is_not_read(copy_with_json_document):
    project = copy_with_json_document(CORPORA + "  web: {exclude: [corpus.json]}\n")
    make_inventory(project, "web")

    assert make_shards(project, "web").facts["documents"] == N_WEB


def test_status_and_verify_warn_of_zero_bytes_at_the_end_of_a_gzip_file(copy):
    project = copy()
    member = gzip.compress(jsonl(WEB[:9]), mtime=0)
    (project.config.raw_folder / "web/3.jsonl.gz").write_bytes(member + bytes(512))
    make_corpus(project, "web")

    row = status_by_corpus(project)["web"]
    report = verify_at(project, "tokenized/web")

    warning = (
        "1 gzip file with zero bytes at the end, as of a download that was cut short: "
        "512 bytes in 3.jsonl.gz"
    )
    assert row.state == "up to date"
    assert row.warnings == (warning,)
    assert [finding.found for finding in report.findings] == [warning]


# Validation and test data in a corpus of training data

SEPARATING_CORPORA = (
    'corpora: {web: {exclude: ["test-*", "validation-*"]}, '
    'web_test: {folder: web, files: ["test-*"]}, '
    'web_valid: {folder: web, files: ["validation-*"]}}'
)
"""Settings that divide the folder into data of each split."""
WITHOUT_TITLES = {"web_title: 1, ": ""}
"""Leaves the corpus web_title out of the blend: nothing reads the held-out files through it."""


@pytest.fixture
def copy_with_held_out_files(copy: Callable[..., Project]) -> Callable[..., Project]:
    """A function as `copy`; the folder web has files that are named after splits."""
    folder = copy().config.raw_folder / "web"
    for name in ("train-0", "test-0", "test-1", "validation-0"):
        (folder / f"{name}.jsonl").write_bytes(jsonl(WEB[:3]))
    return copy


def test_held_out_files_that_train_reads_are_reported_with_settings_that_separate_them(
    copy_with_held_out_files,
):
    status = status_by_corpus(copy_with_held_out_files())

    (notice,) = status["web"].notices
    assert len(status["web_title"].notices) == 1
    assert notice.text == (
        "3 files are named as validation or test data, in a corpus that may be trained on: "
        "test-0.jsonl, test-1.jsonl, validation-0.jsonl; "
        f"to separate them write {SEPARATING_CORPORA}"
    )


def test_held_out_files_of_a_corpus_that_nothing_reads_are_reported(copy_with_held_out_files):
    # A trainer may read the dataset of the corpus without a nanoset.
    without_web = {"web: 1, web_title: 1, ": ""}

    notices = corpus_notices(copy_with_held_out_files(replacements=without_web), "web")

    assert "held_out" in [notice.kind for notice in notices]


def test_patterns_that_choose_held_out_files_need_no_notice(copy_with_held_out_files):
    project = copy_with_held_out_files(
        "corpora: {web: {files: ['*']}, code: {text_key: content}}\n"
    )

    assert status_by_corpus(project)["web"].notices == ()


@pytest.mark.parametrize(
    ("corpora", "corpus"),
    [
        (CORPORA, "web"),
        (CORPORA, "web_title"),
        ("corpora: {web: {files: ['*']}, code: {text_key: content}}\n", "web"),
    ],
    ids=["a folder", "a second corpus of the folder", "patterns"],
)
def test_verify_warns_of_what_status_notices(copy_with_held_out_files, corpora, corpus):
    project = copy_with_held_out_files(corpora)

    warnings = [finding.what for finding in verify_inventory(project, corpus).warnings]

    notices = status_by_corpus(project)[corpus].notices
    assert warnings == [notice.text for notice in notices]


@pytest.mark.parametrize(
    ("corpora", "replacements"),
    [
        pytest.param(SEPARATING_CORPORA, WITHOUT_TITLES, id="separate corpora"),
        pytest.param(CORPORA, WITHOUT_TITLES | {'"1,0,0"': '"0,1,0"'}, id="train reads nothing"),
    ],
)
def test_held_out_files_that_train_does_not_read_need_no_notice(
    copy_with_held_out_files, corpora, replacements
):
    project = copy_with_held_out_files(corpora + "\n", replacements)

    notices = corpus_notices(project, "web")

    assert [notice.kind for notice in notices if not notice.is_expected] == []


# Texts that occur twice


@pytest.fixture(scope="module")
def folder_with_copies(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a project with a copy of a file, and one of another file in reverse order."""
    folder = tmp_path_factory.mktemp("copies") / "project"
    shutil.copytree(built, folder, symlinks=True)
    (folder / "raw/web/3.jsonl").write_bytes(jsonl(WEB[:40][::-1]))
    (folder / "raw/web/4.jsonl").write_bytes(jsonl(WEB[40:]))
    make_corpus(open_with_duplicate_limit(folder, 0.24), "web")
    return folder


def open_with_duplicate_limit(folder: Path, limit: float) -> Project:
    """Open a project with another limit for the share of repeated documents.

    Its corpora have one shard each, since documents are only compared within a shard.
    """
    corpora = f"{CORPORA}documents: {{max_duplicate_fraction: {limit}}}\n"
    return open_with_corpora(folder, corpora, {"range_mib: 0.02": "range_mib: 1"})


def test_a_file_with_the_bytes_of_another_is_reported(folder_with_copies):
    project = open_with_duplicate_limit(folder_with_copies, 0.24)

    (notice,) = status_by_corpus(project)["web"].notices

    assert notice.text.endswith(
        "the same bytes as another, so that its text is read again: 4.jsonl (2.jsonl)"
    )


def test_status_and_verify_warn_of_repeated_documents(folder_with_copies):
    project = open_with_duplicate_limit(folder_with_copies, 0.24)

    (warning,) = status_by_corpus(project)["web"].warnings
    (finding,) = verify_at(project, "datasets/web").warnings

    text = "50.0% of the documents repeat others, more than documents.max_duplicate_fraction: 0.24"
    assert warning == f"{text}: {LOOK}"
    assert finding.what == text
    assert finding.remedy == LOOK


def test_repeated_documents_within_the_limit_need_no_warning(folder_with_copies):
    project = open_with_duplicate_limit(folder_with_copies, 0.6)

    assert not status_by_corpus(project)["web"].warnings
    assert not verify_at(project, "datasets/web").findings
