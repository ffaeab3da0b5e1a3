"""Folders with the names of files, as a failed download may leave them, are reported everywhere."""

import pytest

from helpers.command import invoke_nanoset
from helpers.sample_project import jsonl, sentences, write_corpus
from nanoset_core.errors import InputError
from nanoset_core.project.first_config.write import write_config
from nanoset_core.stages.shards.standalone.inputs import resolve_inputs
from nanoset_core.text.files.choice import FileChoice
from nanoset_core.text.files.contents import contents_of
from nanoset_core.text.files.survey import list_corpora
from nanoset_core.text.inventory.take import take_inventory

LINES = b'{"text": "a"}\n'


@pytest.fixture
def folder(tmp_path):
    """A folder with the file a.jsonl and the folder b.jsonl."""
    (tmp_path / "a.jsonl").write_bytes(LINES)
    (tmp_path / "b.jsonl").mkdir()
    return tmp_path


def text_by_kind(contents):
    """Return the texts of the notices on some files."""
    return {notice.kind: notice.text for notice in contents.notices()}


@pytest.mark.parametrize("name", ["b.jsonl", "b.jsonl.zst", "b.json.gz", "b.arrow", "B.Parquet"])
@pytest.mark.parametrize(
    "names_inside",
    [
        pytest.param([], id="empty"),
        pytest.param([".hidden.jsonl"], id="hidden"),
        pytest.param(["notes.txt"], id="no text"),
    ],
)
def test_a_folder_without_text_that_is_named_like_a_file_is_reported(tmp_path, name, names_inside):
    (tmp_path / "a.jsonl").write_bytes(LINES)
    folder = tmp_path / "part" / name
    folder.mkdir(parents=True)
    for name_inside in names_inside:
        (folder / name_inside).write_bytes(LINES)

    contents = contents_of(tmp_path)

    assert [file.path for file in contents.ordered] == ["a.jsonl"]
    assert text_by_kind(contents)["misnamed"] == (
        f"1 folder is named like a file of text, and no text is read from it: part/{name}/"
    )


def test_a_folder_of_parts_that_is_named_like_a_file_is_read_without_notice(tmp_path):
    """Programs such as Spark write the parts of out.json to a folder of this name."""
    (tmp_path / "out.json").mkdir()
    (tmp_path / "out.json" / "part-0000.json").write_bytes(LINES)

    contents = contents_of(tmp_path)

    assert [file.path for file in contents.ordered] == ["out.json/part-0000.json"]
    assert not contents.notices()


def test_a_folder_that_is_excluded_is_not_reported(folder):
    contents = contents_of(folder).chosen(FileChoice(exclude=("b.jsonl",)))

    assert "misnamed" not in text_by_kind(contents)


def test_a_folder_that_is_chosen_as_a_file_is_reported(folder):
    contents = contents_of(folder).chosen(FileChoice(files=("*.jsonl",)))

    assert "misnamed" in text_by_kind(contents)


@pytest.fixture
def raw_without_files(tmp_path):
    """A raw folder whose only corpus has nothing but a folder named like a file."""
    raw = tmp_path / "raw"
    (raw / "web" / "b.jsonl").mkdir(parents=True)
    return raw


def test_a_corpus_of_nothing_but_such_a_folder_is_listed_as_unread(raw_without_files):
    unread_entries = list_corpora(raw_without_files).unread_entries

    assert "named like a file of text" in unread_entries["web"]


def test_a_corpus_of_nothing_but_such_a_folder_cannot_be_built(raw_without_files):
    with pytest.raises(InputError, match=r"1 folder named like a file of text: b\.jsonl"):
        take_inventory(raw_without_files / "web", "web")


@pytest.mark.parametrize("pattern", ["", "*.jsonl", "**/*.jsonl"], ids=["folder", "*", "**"])
def test_the_inputs_of_a_command_report_it(folder, pattern):
    inputs = resolve_inputs([folder / pattern])

    assert [file.path for file in inputs.files] == ["a.jsonl"]
    [notice] = inputs.notices
    assert "b.jsonl" in notice


def test_init_reports_it(tmp_path):
    web = tmp_path / "raw" / "web"
    (web / "b.jsonl").mkdir(parents=True)
    (web / "a.jsonl").write_bytes(jsonl(sentences("web", 50)))

    first_config = write_config(tmp_path)

    assert "misnamed" in text_by_kind(first_config.text.corpora["web"])


def test_a_folder_in_place_of_a_list_of_ids_fails_only_the_view_of_the_list(
    tmp_path, tokenizer_file
):
    settings = {"views": {"kept": {"of": "web", "exclude": "lists/*.txt"}}}
    config = write_corpus(tmp_path, tokenizer_file, settings)
    (config.parent / "lists" / "b.txt").mkdir(parents=True)

    result = invoke_nanoset(["status", "--config", str(config)], catch_exceptions=False)

    assert "missing: corpus web" in result.output
    assert "failing: view web kept" in result.output
