"""What lies in a corpus's folder beside the files that are read is told."""

import os

import pytest

from nanoset_core.raw.contents import contents_of
from nanoset_core.raw.survey import list_corpora


def write(folder, *names, data=b"{}\n"):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def told(folder, before=None):
    return {notice.kind: notice.text for notice in contents_of(folder).notices(before)}


def test_files_that_are_read_need_no_word(tmp_path):
    write(tmp_path, "a.jsonl", "b/c.json.gz", ".hidden.txt")
    contents = contents_of(tmp_path)
    assert [file.path for file in contents.ordered] == ["a.jsonl", "b/c.json.gz"]
    assert (contents.others, contents.no_files, contents.notices()) == ((), (), [])


def test_companions_are_counted_and_not_told(tmp_path):
    write(tmp_path, "a.jsonl", "README.md", "_SUCCESS", "a.jsonl.crc", "sub/dataset_info.json")
    contents = contents_of(tmp_path)
    assert contents.others == ("README.md", "_SUCCESS", "a.jsonl.crc", "sub/dataset_info.json")
    assert contents.notices() == []


def test_other_files_are_told_by_their_endings(tmp_path):
    write(tmp_path, "a.jsonl", *(f"n-{number}.txt" for number in range(12)), "sub/b.JSONL.bz2", "c")
    (notice,) = contents_of(tmp_path).notices()
    assert (notice.kind, notice.files) == ("not_read", 14)
    assert notice.text == (
        "14 files are not read: 12 .txt (n-0.txt, n-1.txt, n-2.txt and 9 more), 1 no ending (c), "
        "1 .jsonl.bz2 (sub/b.JSONL.bz2)"
    )
    assert notice.to_json() == {"kind": "not_read", "files": 14, "text": notice.text}


def test_uploads_that_did_not_end(tmp_path):
    write(tmp_path, "a.jsonl", "b.jsonl.part", "c.jsonl.TMP")
    assert told(tmp_path) == {
        "unfinished": "2 files are still being uploaded, by their names: b.jsonl.part, c.jsonl.TMP"
    }


def test_empty_files(tmp_path):
    write(tmp_path, "a.jsonl")
    write(tmp_path, "b.jsonl.gz", data=b"")
    assert told(tmp_path) == {"empty": "1 file is empty: b.jsonl.gz"}


def test_files_that_lost_bytes(tmp_path):
    write(tmp_path, "a.jsonl", "b.jsonl", "c.jsonl", data=b"12345678")
    before = {"a.jsonl": 1234, "b.jsonl": 8, "c.jsonl": 1, "gone.jsonl": 9}
    assert told(tmp_path, before) == {
        "shrunk": "1 file is smaller than in the version before: a.jsonl (1,234 → 8 bytes)",
        "gone": "1 file of the version before is gone or renamed: gone.jsonl",
    }


@pytest.mark.parametrize("name", ["a.jsonl.lock", "a.bin", "a.md", "a.jsonl.md5", ".a.jsonl", "sub/a.jsonl"])
def test_a_file_that_was_renamed_is_told_whatever_its_name_is_now(tmp_path, name):
    write(tmp_path, name, "b.jsonl")
    assert told(tmp_path, {"a.jsonl": 3, "b.jsonl": 3}) == {
        "gone": "1 file of the version before is gone or renamed: a.jsonl"
    }


def test_folders_and_pipes_named_as_files(tmp_path):
    write(tmp_path, "a.jsonl", "spark.json/part-0.jsonl", "deep.parquet/x/b.jsonl")
    for name in ("empty.jsonl", "sub/empty.json.gz", "plain"):
        (tmp_path / name).mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe.jsonl")
    assert contents_of(tmp_path).no_files == ("empty.jsonl", "pipe.jsonl", "sub/empty.json.gz")
    assert told(tmp_path)["no_file"].startswith("3 entries are named as files that are read, and are none: ")


@pytest.mark.parametrize("names_only", [True, False])
def test_folders_in_which_nothing_is_read(tmp_path, names_only):
    write(tmp_path, "web/a.jsonl", "c4/a.json.bz2", "c4/b.json.bz2", "notes.txt", "README.md")
    write(tmp_path, "docs/README.md")
    (tmp_path / "new").mkdir()
    assert list_corpora(tmp_path, names_only=names_only).aside == {
        "c4": "a folder in which nothing is read: 2 files are not read: 2 .json.bz2 (a.json.bz2, b.json.bz2)",
        "docs": "a folder in which nothing is read: 1 companion, such as README.md",
        "new": "a folder in which nothing is read: it is empty",
        "notes.txt": "a file in no corpus, which is not read",
    }
