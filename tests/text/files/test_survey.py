"""Scans of the raw folder: which corpora it has, and whether something still writes to them."""

import os
import time
from dataclasses import replace

import pytest

from helpers.raw_files import write_aged
from nanoset_core.errors import InputError, MissingError, NanosetError
from nanoset_core.outputs.names import CorpusNameError
from nanoset_core.text.files import listing
from nanoset_core.text.files.survey import check_raw_text, is_quiescent, list_corpora


@pytest.fixture
def raw(tmp_path):
    """A raw folder with the corpora `code` and `web`, and with entries that are no corpora."""
    raw = tmp_path / "raw"
    write_aged(raw / "web" / "a.jsonl")
    write_aged(raw / "web" / "README.md", b"no text")
    write_aged(raw / "code" / "deep" / "er" / "a.jsonl.zst", b"")
    write_aged(raw / "notes" / "a.doc", b"")
    write_aged(raw / ".trash" / "a.jsonl", b"")
    write_aged(raw / "half" / ".a.jsonl", b"")
    write_aged(raw / "README.md", b"")
    (raw / "empty").mkdir()
    return raw


def scan(folder):
    """Return the contents of one corpus, as a scan of the raw folder finds them."""
    return list_corpora(folder.parent).corpora[folder.name]


@pytest.mark.parametrize("names_only", [True, False])
def test_folders_with_text_and_links_to_them_are_corpora(raw, names_only):
    (raw / "linked").symlink_to("web")

    corpora = list_corpora(raw, names_only=names_only).corpora

    assert list(corpora) == ["code", "linked", "web"]


def test_a_scan_lists_the_files_of_corpora_at_any_depth(raw):
    text = list_corpora(raw)

    assert [file.path for file in text.corpora["code"].texts] == ["deep/er/a.jsonl.zst"]
    assert text.files == 2
    assert text.faults == {}


@pytest.mark.parametrize("names_only", [True, False])
@pytest.mark.parametrize("name", ["stats.json", "stats.ndjson", "c.json.gz", "WEB.JSONL"])
def test_a_file_outside_of_all_corpora_is_reported_but_no_error(raw, name, names_only):
    write_aged(raw / name)

    text = list_corpora(raw, names_only=names_only)

    assert text.unread_entries[name] == "a file in no corpus, which is not read"
    assert text.faults == {}
    assert list(text.corpora) == ["code", "web"]


@pytest.fixture
def raw_with_faults(tmp_path):
    """A raw folder with the corpus `good`, and several entries with faults."""
    raw = tmp_path / "raw"
    write_aged(raw / "good" / "a.jsonl")
    write_aged(raw / "bad name" / "a.jsonl")
    write_aged(raw / "stray.jsonl")
    (raw / "loop").mkdir()
    (raw / "loop" / "again").symlink_to(raw / "loop")
    (raw / "broken").mkdir()
    (raw / "broken" / "a.jsonl").symlink_to(raw / "nowhere")
    return raw


def test_faults_of_some_corpora_do_not_hide_the_others(raw_with_faults):
    text = list_corpora(raw_with_faults)

    assert list(text.corpora) == ["good"]
    assert {name: type(error) for name, error in text.faults.items()} == {
        "bad name": CorpusNameError,
        "stray.jsonl": InputError,
        "loop": InputError,
        "broken": MissingError,
    }


def test_every_fault_says_what_to_do(raw_with_faults):
    faults = list_corpora(raw_with_faults).faults

    assert all(error.remedy for error in faults.values())


def test_the_fault_of_a_file_outside_of_all_corpora_says_where_to_move_it(raw_with_faults):
    faults = list_corpora(raw_with_faults).faults

    assert str(raw_with_faults / "stray" / "stray.jsonl") in faults["stray.jsonl"].remedy


def test_the_fault_of_a_folder_whose_name_no_corpus_can_have_says_where_it_is(raw_with_faults):
    faults = list_corpora(raw_with_faults).faults

    assert faults["bad name"].found == "'bad name'"
    assert faults["bad name"].remedy == "rename the folder"
    assert faults["bad name"].where == str(raw_with_faults / "bad name")


def test_all_wrong_names_of_folders_are_reported_at_once(raw):
    for number in range(60):
        write_aged(raw / f"bad name {number:02}" / "a.jsonl")

    with pytest.raises(CorpusNameError) as caught:
        check_raw_text(raw, list_corpora(raw))

    assert caught.value.what == "the names of 60 folders cannot name a corpus"
    assert caught.value.where == str(raw)
    assert caught.value.found.startswith("'bad name 00', 'bad name 01', 'bad name 02', ")
    assert caught.value.found.endswith("'bad name 49' and 10 more")


def test_different_faults_are_reported_at_once(raw_with_faults):
    with pytest.raises(NanosetError, match="4 mistakes") as caught:
        check_raw_text(raw_with_faults, list_corpora(raw_with_faults))

    for name in ("bad name", "stray.jsonl", "loop", "broken"):
        assert str(raw_with_faults / name) in caught.value.what


def test_all_wrong_names_of_files_in_a_folder_are_reported_at_once(raw):
    for number in range(3):
        write_aged(raw / "web" / f"a\n{number}.jsonl")

    fault = list_corpora(raw).faults["web"]

    assert fault.found == r"'a\n0.jsonl', 'a\n1.jsonl', 'a\n2.jsonl'"


def test_a_scan_of_names_only_does_not_find_faults_within_corpora(raw_with_faults):
    faults = list_corpora(raw_with_faults, names_only=True).faults

    assert faults.keys() == {"bad name", "stray.jsonl"}


def replace_with_same_size_and_time(path):
    """Put another file of the same size and time in the place of a file."""
    stat = path.stat()
    path.rename(path.with_name("old"))
    path.write_bytes(b"[]\n")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


CHANGES = {
    "touched": lambda path: os.utime(path, ns=(1, path.stat().st_mtime_ns + 1)),
    "written": lambda path: write_aged(path, b"{}{}\n"),
    "added": lambda path: write_aged(path.with_name("b.jsonl")),
    "renamed": lambda path: path.rename(path.with_name("c.jsonl")),
    "replaced": replace_with_same_size_and_time,
    "removed": lambda path: path.unlink(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_the_text_changes_the_signature(tmp_path, change):
    path = write_aged(tmp_path / "web" / "a.jsonl")
    write_aged(tmp_path / "web" / "z.jsonl")
    before = scan(tmp_path / "web").signature

    CHANGES[change](path)

    assert scan(tmp_path / "web").signature != before


def test_the_removal_of_the_newest_file_changes_the_signature(tmp_path):
    write_aged(tmp_path / "web" / "a.jsonl")
    path = write_aged(tmp_path / "web" / "b.jsonl")
    before = scan(tmp_path / "web").signature

    path.unlink()

    assert scan(tmp_path / "web").signature != before


def test_files_that_are_not_read_do_not_change_the_signature(tmp_path):
    write_aged(tmp_path / "web" / "a.jsonl")
    before = scan(tmp_path / "web").signature

    write_aged(tmp_path / "web" / "notes.txt", b"not read")

    assert scan(tmp_path / "web").signature == before


def test_another_inode_does_not_change_the_signature(tmp_path, monkeypatch):
    """File systems in user space may assign new inodes whenever they are mounted."""
    write_aged(tmp_path / "web" / "a.jsonl")
    before = scan(tmp_path / "web").signature
    file_stat = listing.file_stat

    def file_stat_with_other_inode(path, status):
        return replace(file_stat(path, status), inode=7)

    monkeypatch.setattr(listing, "file_stat", file_stat_with_other_inode)

    assert scan(tmp_path / "web").signature == before


@pytest.mark.parametrize(
    ("age_seconds", "settle_seconds"),
    [
        pytest.param(100, 60, id="older than required"),
        pytest.param(201, 200, id="slightly older than required"),
        pytest.param(-7200, 60, id="clock is wrong"),  # such a time is meaningless
    ],
)
def test_a_corpus_is_quiescent_if_its_newest_file_is_old_enough(
    tmp_path, age_seconds, settle_seconds
):
    write_aged(tmp_path / "web" / "a.jsonl", age_seconds=age_seconds)
    contents = scan(tmp_path / "web")

    assert is_quiescent(
        contents, contents.signature, now_ns=time.time_ns(), settle_seconds=settle_seconds
    )


@pytest.mark.parametrize(
    ("age_seconds", "settle_seconds"),
    [
        pytest.param(100, 200, id="younger than required"),
        pytest.param(-5, 60, id="from the near future"),
    ],
)
def test_a_corpus_is_not_quiescent_if_its_newest_file_is_too_young(
    tmp_path, age_seconds, settle_seconds
):
    write_aged(tmp_path / "web" / "a.jsonl", age_seconds=age_seconds)
    contents = scan(tmp_path / "web")

    assert not is_quiescent(
        contents, contents.signature, now_ns=time.time_ns(), settle_seconds=settle_seconds
    )


@pytest.mark.parametrize("previous_signature", [None, "another"])
def test_a_corpus_is_not_quiescent_until_two_scans_agree(tmp_path, previous_signature):
    write_aged(tmp_path / "web" / "a.jsonl", age_seconds=100)
    contents = scan(tmp_path / "web")

    assert not is_quiescent(contents, previous_signature, now_ns=time.time_ns(), settle_seconds=60)
