"""Folders with the names of files, as a botched download or unpacking leaves them: none is passed
over silently.
"""

import pytest

from helpers.command import invoke_nanoset
from helpers.sample_project import jsonl, sentences, write_corpus
from nanoset_core.errors import InputError
from nanoset_core.project.first_config import write_config
from nanoset_core.stages.shards.inputs import resolve_inputs
from nanoset_core.text.choice import FileChoice
from nanoset_core.text.contents import contents_of
from nanoset_core.text.inventories import take_inventory
from nanoset_core.text.survey import list_corpora

NAMES = ("b.jsonl", "b.jsonl.zst", "b.json.gz", "b.arrow", "B.Parquet")
LINES = b'{"text": "a"}\n'


def notices(contents):
    return {notice.kind: notice.text for notice in contents.notices()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "inside", [None, ".hidden.jsonl", "notes.txt"], ids=["empty", "hidden", "no text"]
)
def test_a_folder_that_is_named_like_a_file_is_named(tmp_path, name, inside):
    (tmp_path / "a.jsonl").write_bytes(LINES)
    folder = tmp_path / "part" / name
    folder.mkdir(parents=True)
    if inside is not None:
        (folder / inside).write_bytes(LINES)
    contents = contents_of(tmp_path)
    assert [file.path for file in contents.ordered] == ["a.jsonl"]
    assert notices(contents)["misnamed"] == (
        f"1 folder is named like a file of text, and no text is read from it: part/{name}/"
    )


def test_a_folder_of_parts_is_read_without_a_word(tmp_path):
    (tmp_path / "out.json").mkdir()
    (tmp_path / "out.json" / "part-0000.json").write_bytes(LINES)
    contents = contents_of(tmp_path)
    assert [file.path for file in contents.ordered] == ["out.json/part-0000.json"]
    assert not contents.notices()


def test_a_folder_that_is_left_out_is_not_named(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(LINES)
    (tmp_path / "b.jsonl").mkdir()
    assert "misnamed" not in notices(contents_of(tmp_path).chosen(FileChoice(exclude=("b.jsonl",))))
    assert "misnamed" in notices(contents_of(tmp_path).chosen(FileChoice(files=("*.jsonl",))))


def test_a_corpus_of_nothing_but_such_a_folder_says_so(tmp_path):
    (tmp_path / "raw" / "web" / "b.jsonl").mkdir(parents=True)
    assert "named like a file of text" in list_corpora(tmp_path / "raw").unread_entries["web"]
    with pytest.raises(InputError, match=r"1 folder named like a file of text: b\.jsonl"):
        take_inventory(tmp_path / "raw" / "web", "web")


@pytest.mark.parametrize("given", ["", "*.jsonl", "**/*.jsonl"])
def test_inputs_of_a_command_name_it(tmp_path, given):
    (tmp_path / "a.jsonl").write_bytes(LINES)
    (tmp_path / "b.jsonl").mkdir()
    found = resolve_inputs([tmp_path / given if given else tmp_path])
    assert [file.path for file in found.files] == ["a.jsonl"]
    [said] = found.notices
    assert "b.jsonl" in said


def test_init_names_it(tmp_path):
    web = tmp_path / "raw" / "web"
    (web / "b.jsonl").mkdir(parents=True)
    (web / "a.jsonl").write_bytes(jsonl(sentences("web", 50)))
    start = write_config(tmp_path)
    assert "misnamed" in notices(start.text.corpora["web"])


def test_a_list_that_cannot_be_read_fails_its_view_alone(tmp_path, tokenizer_file):
    file = write_corpus(
        tmp_path, tokenizer_file, {"views": {"kept": {"of": "web", "exclude": "lists/*.txt"}}}
    )
    (file.parent / "lists" / "b.txt").mkdir(parents=True)
    said = invoke_nanoset(["status", "--config", str(file)], catch_exceptions=False).output
    assert "missing: corpus web" in said
    assert "missing: view web kept" in said
