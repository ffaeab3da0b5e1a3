"""The files in a corpus's folder: which are read, in natural order, and what users hear of others."""

import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoset_core.errors import InputError, MissingError
from nanoset_core.text.files.contents import contents_of
from nanoset_core.text.files.listing import natural_key
from nanoset_core.text.files.survey import list_corpora


def write_files(folder, *names, data=b"{}\n"):
    """Write files with the same data, and the folders above them."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def listed_paths(folder, raw=None):
    """Return the paths of the files that are read, in order."""
    return [file.path for file in contents_of(folder, raw).ordered]


# Notices


def test_a_folder_with_nothing_but_text_needs_no_notice(tmp_path):
    write_files(tmp_path, "a.jsonl", "b/c.json.gz", ".hidden.txt")

    contents = contents_of(tmp_path)

    assert [file.path for file in contents.ordered] == ["a.jsonl", "b/c.json.gz"]
    assert contents.unread == ()
    assert contents.notices() == []


def test_files_that_accompany_text_are_listed_in_one_notice(tmp_path):
    companions = ("README.md", "_SUCCESS", "a.jsonl.crc", "sub/dataset_info.json")
    write_files(tmp_path, "a.jsonl", *companions)

    contents = contents_of(tmp_path)

    assert contents.unread == companions
    [notice] = contents.notices()
    assert notice.is_expected
    assert notice.text == (
        "4 files accompany the text and are not read, judging by their names: README.md, "
        "_SUCCESS, a.jsonl.crc and 1 more"
    )


@pytest.fixture
def not_read_notice(tmp_path):
    """The notice of a folder with many files that are not read."""
    text_files = [f"n-{number}.txt" for number in range(12)]
    write_files(tmp_path, "a.jsonl", *text_files, "sub/b.JSONL.xz", "c")
    [notice] = contents_of(tmp_path).notices()
    return notice


def test_other_files_are_counted_by_their_endings(not_read_notice):
    assert not_read_notice.kind == "not_read"
    assert not_read_notice.files == 14
    assert not_read_notice.text == (
        "14 files are not read: 12 .txt (n-0.txt, n-1.txt, n-2.txt and 9 more), 1 no ending (c), "
        "1 .jsonl.xz (sub/b.JSONL.xz); to have .txt, .csv and .tsv read, put them into a folder of "
        "their own; to have text of another compression read, use gzip, zstd or bzip2"
    )


def test_a_notice_in_json_has_its_kind_number_of_files_and_text(not_read_notice):
    assert not_read_notice.to_json() == {
        "kind": "not_read",
        "files": 14,
        "text": not_read_notice.text,
    }


def text_by_kind(folder, size_before=None):
    """Return the notices of a folder, except the one of files that accompany the text.

    Args:
        folder: The folder.
        size_before: Path → size of each file of the previous version.
    """
    notices = contents_of(folder).notices(size_before)
    return {notice.kind: notice.text for notice in notices if notice.kind != "beside"}


@pytest.fixture
def files_of_8_bytes(tmp_path):
    """A folder with three files."""
    write_files(tmp_path, "a.jsonl", "b.jsonl", "c.jsonl", data=b"12345678")
    return tmp_path


def test_unfinished_uploads_are_reported(tmp_path):
    write_files(tmp_path, "a.jsonl.part", "b.jsonl.TMP")

    assert text_by_kind(tmp_path) == {
        "unfinished": "2 files are still being uploaded, judging by their names: "
        "a.jsonl.part, b.jsonl.TMP"
    }


def test_empty_files_are_reported(tmp_path):
    write_files(tmp_path, "a.jsonl.gz", data=b"")

    assert text_by_kind(tmp_path) == {"empty": "1 file is empty: a.jsonl.gz"}


def test_files_that_have_shrunk_are_reported(files_of_8_bytes):
    size_before = {"a.jsonl": 1234, "b.jsonl": 8, "c.jsonl": 1}

    assert text_by_kind(files_of_8_bytes, size_before) == {
        "shrunk": "1 file is smaller than in the previous version: a.jsonl (1,234 → 8 bytes)"
    }


def test_files_that_are_missing_are_reported(files_of_8_bytes):
    assert text_by_kind(files_of_8_bytes, {"gone.jsonl": 9}) == {
        "gone": "1 file of the previous version is missing or was renamed: gone.jsonl"
    }


def test_shrunk_and_missing_files_are_reported_separately(files_of_8_bytes):
    size_before = {"a.jsonl": 1234, "b.jsonl": 8, "c.jsonl": 1, "gone.jsonl": 9}

    assert list(text_by_kind(files_of_8_bytes, size_before)) == ["shrunk", "gone"]


@pytest.mark.parametrize(
    "names",
    [
        ["gone.jsonl.lock"],
        ["gone.jsonl.md5"],
        ["gone.jsonl.md"],
        [".gone.jsonl", "sub/gone.jsonl", "gone.bin"],
    ],
    ids=" ".join,
)
def test_files_with_similar_names_do_not_replace_a_missing_file(tmp_path, names):
    write_files(tmp_path, *names)

    assert text_by_kind(tmp_path, {"gone.jsonl": 3}) == {
        "gone": "1 file of the previous version is missing or was renamed: gone.jsonl"
    }


@pytest.mark.parametrize("names_only", [True, False])
def test_folders_in_which_nothing_is_read_are_reported(tmp_path, names_only):
    write_files(tmp_path, "web/a.jsonl")
    write_files(tmp_path, "c4/a.json.xz", "c4/b.json.xz", "docs/README.md")
    write_files(tmp_path, "notes.doc", "notes.txt", "README.md")
    (tmp_path / "new").mkdir()

    corpora = list_corpora(tmp_path, names_only=names_only)

    assert corpora.unread_entries == {
        "c4": "a folder in which nothing is read: "
        "2 files are not read: 2 .json.xz (a.json.xz, b.json.xz); to have text of another "
        "compression read, use gzip, zstd or bzip2",
        "docs": "a folder in which nothing is read: "
        "1 file accompanies the text and is not read, judging by its name: README.md",
        "new": "a folder in which nothing is read: it is empty",
        "notes.doc": "a file in no corpus, which is not read",
        "notes.txt": "a file in no corpus, which is not read: move it into a folder, its corpus",
    }


# .txt, .csv and .tsv, which are only read without files of other formats


def test_txt_and_csv_files_are_read_if_there_is_nothing_else(tmp_path):
    write_files(tmp_path, "b.csv", "a/2.txt", "a/10.txt.gz", "C.TSV.ZST", "README.txt", "x.pdf")

    contents = contents_of(tmp_path)

    assert [file.path for file in contents.ordered] == [
        "C.TSV.ZST",
        "a/2.txt",
        "a/10.txt.gz",
        "b.csv",
    ]
    assert contents.unread == ("README.txt", "x.pdf")
    assert [notice.kind for notice in contents.notices()] == ["not_read", "beside"]


@pytest.mark.parametrize("name", ["a.jsonl", "sub/a.json.gz", "A.NDJSON", "a.parquet", "a.arrow"])
def test_txt_and_csv_files_are_passed_over_next_to_a_file_of_another_format(tmp_path, name):
    write_files(tmp_path, name, "notes.txt", "urls.csv")

    contents = contents_of(tmp_path)

    assert [file.path for file in contents.texts] == [name]
    assert contents.unread == ("notes.txt", "urls.csv")
    [notice] = contents.notices()
    assert notice.kind == "not_read"
    assert notice.text == (
        "2 files are not read: 1 .txt (notes.txt), 1 .csv (urls.csv); to have .txt, .csv and .tsv "
        "read, put them into a folder of their own"
    )


def test_a_description_of_data_does_not_hide_txt_files(tmp_path):
    write_files(tmp_path, "a.txt", "dataset_info.json", "metadata.csv")

    assert listed_paths(tmp_path) == ["a.txt"]


def test_files_that_are_removed_do_not_hide_txt_files(tmp_path):
    write_files(tmp_path, "a.txt", "out/rejects.jsonl")

    contents = contents_of(tmp_path).without(lambda path: path.startswith("out/"))

    assert [file.path for file in contents.texts] == ["a.txt"]
    assert contents.unread == ()


@pytest.mark.parametrize("names_only", [True, False])
def test_a_folder_of_txt_files_is_a_corpus(tmp_path, names_only):
    write_files(tmp_path, "books/a.txt", "tables/a.csv", "notes/README.txt")

    corpora = list_corpora(tmp_path, names_only=names_only)

    assert list(corpora.corpora) == ["books", "tables"]
    assert list(corpora.unread_entries) == ["notes"]


# Natural order


def test_files_have_natural_order(tmp_path):
    paths_in_order = [
        "1/b.jsonl",
        "2/a.jsonl",
        "10/a.jsonl",
        "part-01.jsonl",
        "part-1.jsonl",
        "part-2-10.jsonl",
        "part-2.jsonl",
        "part-10.jsonl",
    ]
    more_paths = ["x/part-9.jsonl", "x/y/part-1.jsonl", "x10.jsonl"]
    paths = [*paths_in_order, *more_paths]
    random.Random(3).shuffle(paths)
    write_files(tmp_path, *paths)

    listed = listed_paths(tmp_path)

    assert listed[:8] == paths_in_order
    assert listed == sorted(paths, key=natural_key)


NAMES = st.text(alphabet="ab01-29²٣é", min_size=1, max_size=6)
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)


@given(paths=st.lists(PATHS, unique=True, max_size=12))
def test_natural_order_does_not_depend_on_the_order_before(paths):
    """The names a1 and a01/b, for example, differ only in zeros, and one of them is a folder."""
    ordered = sorted(paths, key=natural_key)

    assert sorted(reversed(ordered), key=natural_key) == ordered


@given(paths=st.lists(PATHS, unique=True, max_size=12))
def test_no_two_paths_have_the_same_place_in_natural_order(paths):
    keys = {natural_key(path) for path in paths}

    assert len(keys) == len(paths)


@given(first=st.integers(0, 10**30), second=st.integers(0, 10**30))
def test_numbers_in_names_are_ordered_by_value(first, second):
    is_before = natural_key(f"a{first}.jsonl") < natural_key(f"a{second}.jsonl")

    assert is_before == (first < second)


# Hidden files and links


def test_hidden_files_and_folders_are_left_out(tmp_path):
    write_files(tmp_path, "a.jsonl", ".a.jsonl", ".git/b.jsonl", "c/.d/e.jsonl", "c/f.jsonl")

    assert listed_paths(tmp_path) == ["a.jsonl", "c/f.jsonl"]


@pytest.fixture
def linked_folder(tmp_path):
    """A folder with links to a file and to a folder elsewhere."""
    write_files(tmp_path / "elsewhere", "deep/b.jsonl", "c.jsonl")
    write_files(tmp_path / "web", "a.jsonl")
    (tmp_path / "web" / "linked").symlink_to(tmp_path / "elsewhere" / "deep")
    (tmp_path / "web" / "c.jsonl").symlink_to("../elsewhere/c.jsonl")
    return tmp_path / "web"


def test_links_to_files_and_folders_are_followed(linked_folder):
    contents = contents_of(linked_folder)

    size_by_path = {file.path: file.size for file in contents.ordered}
    assert size_by_path == {"a.jsonl": 3, "c.jsonl": 3, "linked/b.jsonl": 3}


def test_a_link_to_a_folder_has_the_files_of_that_folder(linked_folder):
    alias = linked_folder.with_name("alias")
    alias.symlink_to("web")

    assert listed_paths(alias) == listed_paths(linked_folder)


def test_a_circle_of_links_is_an_error(tmp_path):
    write_files(tmp_path, "web/sub/a.jsonl")
    link = tmp_path / "web" / "sub" / "up"
    link.symlink_to("..")

    with pytest.raises(InputError, match="leads back") as caught:
        contents_of(tmp_path / "web")

    assert caught.value.where == str(link)


def test_a_link_to_a_missing_file_is_an_error(tmp_path):
    write_files(tmp_path, "a.jsonl")
    (tmp_path / "b.jsonl").symlink_to("/not/mounted/b.jsonl")

    with pytest.raises(MissingError, match="No such file") as caught:
        contents_of(tmp_path)

    assert caught.value.where == str(tmp_path / "b.jsonl")
    assert "/not/mounted/b.jsonl" in caught.value.found


def test_all_links_of_a_folder_that_lead_nowhere_are_reported_at_once(tmp_path):
    write_files(tmp_path, "a.jsonl")
    for name in ("b.jsonl", "c.jsonl", "d.jsonl"):
        (tmp_path / name).symlink_to("/not/mounted")

    with pytest.raises(MissingError, match="3 links lead nowhere") as caught:
        contents_of(tmp_path)

    assert caught.value.where == str(tmp_path)
    assert caught.value.found == "b.jsonl, c.jsonl, d.jsonl"


def test_all_links_out_of_the_raw_folder_are_reported_at_once(tmp_path):
    raw = tmp_path / "raw"
    write_files(raw, "web/a.jsonl")
    write_files(tmp_path, "secret.jsonl")
    for name in ("b.jsonl", "c.jsonl"):
        (raw / "web" / name).symlink_to(tmp_path / "secret.jsonl")

    with pytest.raises(InputError, match="2 links lead out of the raw folder") as caught:
        contents_of(raw / "web", raw)

    assert caught.value.found == "b.jsonl, c.jsonl"
    assert caught.value.expected == f"a target in {raw}"


def test_a_link_to_itself_is_not_called_a_missing_file(tmp_path):
    write_files(tmp_path, "a.jsonl")
    (tmp_path / "b.jsonl").symlink_to("b.jsonl")

    with pytest.raises(MissingError, match="a link leads back to itself") as caught:
        contents_of(tmp_path)

    assert caught.value.remedy == "remove the link"


def test_a_link_to_another_place_in_the_raw_folder_is_followed(tmp_path):
    raw = tmp_path / "raw"
    write_files(raw, "web/a.jsonl", "shared/d.jsonl")
    (raw / "web" / "d.jsonl").symlink_to("../shared/d.jsonl")

    assert listed_paths(raw / "web", raw) == ["a.jsonl", "d.jsonl"]


@pytest.mark.parametrize("name", ["b.jsonl", "deep"], ids=["file", "folder"])
@pytest.mark.parametrize("is_absolute", [True, False], ids=["absolute", "relative"])
def test_a_link_out_of_the_raw_folder_is_an_error(tmp_path, name, is_absolute):
    """Anybody who may write to the raw folder could otherwise publish any file."""
    secret = tmp_path / "secret"
    raw = tmp_path / "raw"
    write_files(secret, "b.jsonl", "deep/c.jsonl")
    write_files(raw, "web/a.jsonl")
    link = raw / "web" / name
    target = str(secret / name)
    if not is_absolute:
        target = f"../../secret/{name}"
    link.symlink_to(target)

    with pytest.raises(InputError, match="leads out of the raw folder") as caught:
        contents_of(raw / "web", raw)

    assert caught.value.where == str(link)
    assert str(secret) in caught.value.found


@pytest.fixture
def linked_corpus(tmp_path):
    """The folder of a corpus that is a link to a folder on another disk."""
    write_files(tmp_path / "disk", "snapshot/a.jsonl", "snapshot/deep/b.jsonl", "blobs/c.jsonl")
    corpus = tmp_path / "raw" / "web"
    corpus.parent.mkdir()
    corpus.symlink_to(tmp_path / "disk" / "snapshot")
    return corpus


def test_a_corpus_may_be_a_link_out_of_the_raw_folder(linked_corpus):
    (linked_corpus / "again.jsonl").symlink_to("deep/b.jsonl")

    paths = listed_paths(linked_corpus, linked_corpus.parent)

    assert paths == ["a.jsonl", "again.jsonl", "deep/b.jsonl"]


def test_a_link_out_of_a_corpus_that_is_a_link_is_an_error(linked_corpus):
    (linked_corpus / "c.jsonl").symlink_to("../blobs/c.jsonl")

    with pytest.raises(InputError, match="leads out"):
        contents_of(linked_corpus, linked_corpus.parent)


# Folders and names that cannot be read


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path, monkeypatch):
    """If it were skipped, its text would be lost without a message."""
    write_files(tmp_path, "a.jsonl", "sub/b.jsonl")
    scandir = os.scandir

    def failing_scandir(path):
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", failing_scandir)

    with pytest.raises(InputError, match="cannot be read") as caught:
        contents_of(tmp_path)

    assert caught.value.where == str(tmp_path / "sub")


def test_a_name_that_is_not_utf_8_is_an_error(tmp_path):
    path = os.fsencode(tmp_path) + b"/a\xff.jsonl"
    try:
        with open(path, "wb"):
            pass
    except OSError:
        pytest.skip("this file system accepts only names in UTF-8")

    with pytest.raises(InputError, match="not UTF-8") as caught:
        contents_of(tmp_path)

    assert r"a\xff.jsonl" in caught.value.found


@pytest.mark.parametrize("name", ["nothing", "file"])
def test_a_corpus_that_is_no_folder_is_an_error(tmp_path, name):
    (tmp_path / "file").touch()

    with pytest.raises(MissingError, match="does not exist"):
        contents_of(tmp_path / name)


@pytest.mark.parametrize(
    "name",
    [
        "a\nb.jsonl",
        "\x1b[2Ja.jsonl",  # clears the screen
        "a\x7f.jsonl",
        "a\u0085.jsonl",
        "sub\t/a.jsonl",
    ],
)
def test_a_name_with_control_characters_is_an_error_that_can_be_printed(tmp_path, name):
    write_files(tmp_path, name)

    with pytest.raises(InputError, match="control characters") as caught:
        contents_of(tmp_path)

    message = str(caught.value)
    assert message.isascii()
    assert "\x1b" not in message


def test_names_may_have_letters_and_spaces_of_any_language(tmp_path):
    write_files(tmp_path, "日本\u3000語 é.jsonl", "a\u00a0b.jsonl")

    assert len(listed_paths(tmp_path)) == 2
