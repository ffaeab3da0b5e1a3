"""What lies in a corpus's folder: the files that are read, in natural order; what else is there is
told.
"""

import os
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoset_core.errors import InputError, MissingError
from nanoset_core.text.contents import contents_of
from nanoset_core.text.listing import natural_key
from nanoset_core.text.survey import list_corpora


def write(folder, *names, data=b"{}\n"):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def told(folder, before=None):
    return {
        one.kind: one.text for one in contents_of(folder).notices(before) if one.kind != "beside"
    }


def test_files_that_are_read_need_no_word(tmp_path):
    write(tmp_path, "a.jsonl", "b/c.json.gz", ".hidden.txt")
    contents = contents_of(tmp_path)
    assert [file.path for file in contents.ordered] == ["a.jsonl", "b/c.json.gz"]
    assert (contents.others, contents.notices()) == ((), [])


def test_companions_are_told_by_name_in_one_notice(tmp_path):
    write(tmp_path, "a.jsonl", "README.md", "_SUCCESS", "a.jsonl.crc", "sub/dataset_info.json")
    contents = contents_of(tmp_path)
    assert contents.others == ("README.md", "_SUCCESS", "a.jsonl.crc", "sub/dataset_info.json")
    (notice,) = contents.notices()
    assert notice.is_expected
    assert notice.text == (
        "4 files accompany the text and are not read, judging by their names: README.md, "
        "_SUCCESS, a.jsonl.crc and 1 more"
    )


def test_other_files_are_told_by_their_endings(tmp_path):
    write(tmp_path, "a.jsonl", *(f"n-{number}.txt" for number in range(12)), "sub/b.JSONL.bz2", "c")
    (notice,) = contents_of(tmp_path).notices()
    assert (notice.kind, notice.files) == ("not_read", 14)
    assert notice.text == (
        "14 files are not read: 12 .txt (n-0.txt, n-1.txt, n-2.txt and 9 more), 1 no ending (c), "
        "1 .jsonl.bz2 (sub/b.JSONL.bz2)"
    )
    assert notice.to_json() == {"kind": "not_read", "files": 14, "text": notice.text}


GONE = "1 file of the previous version is missing or was renamed: gone.jsonl"


@pytest.mark.parametrize(("names", "data", "before", "expected"), [
    ("a.jsonl.part b.jsonl.TMP", b"x", {},
     {"unfinished": "2 files are still being uploaded, judging by their names: a.jsonl.part, b.jsonl.TMP"}),
    ("a.jsonl.gz", b"", {}, {"empty": "1 file is empty: a.jsonl.gz"}),
    ("a.jsonl b.jsonl c.jsonl", b"12345678", {"a.jsonl": 1234, "b.jsonl": 8, "c.jsonl": 1, "gone.jsonl": 9},
     {"shrunk": "1 file is smaller than in the previous version: a.jsonl (1,234 → 8 bytes)", "gone": GONE}),
    *((f"gone.jsonl{ending}", b"x", {"gone.jsonl": 3}, {"gone": GONE}) for ending in (".lock", ".md5", ".md")),
    (".gone.jsonl sub/gone.jsonl gone.bin", b"x", {"gone.jsonl": 3}, {"gone": GONE}),
])  # fmt: skip
def test_what_is_told(tmp_path, names, data, before, expected):
    write(tmp_path, *names.split(), data=data)
    assert told(tmp_path, before) == expected


@pytest.mark.parametrize("names_only", [True, False])
def test_folders_in_which_nothing_is_read(tmp_path, names_only):
    write(tmp_path, "web/a.jsonl", "c4/a.json.bz2", "c4/b.json.bz2", "notes.txt", "README.md")
    write(tmp_path, "docs/README.md")
    (tmp_path / "new").mkdir()
    assert list_corpora(tmp_path, names_only=names_only).unread_entries == {
        "c4": (
            "a folder in which nothing is read: 2 files are not read: 2 .json.bz2 (a.json.bz2, "
            "b.json.bz2)"
        ),
        "docs": "a folder in which nothing is read: "
        "1 file accompanies the text and is not read, judging by its name: README.md",
        "new": "a folder in which nothing is read: it is empty",
        "notes.txt": "a file in no corpus, which is not read",
    }


def listed(folder):
    return [file.path for file in contents_of(folder).ordered]


def test_natural_order(tmp_path):
    folders = ["1/b.jsonl", "2/a.jsonl", "10/a.jsonl"]
    parts = ["part-01.jsonl", "part-1.jsonl", "part-2-10.jsonl", "part-2.jsonl", "part-10.jsonl"]
    others = ["x/part-9.jsonl", "x/y/part-1.jsonl", "x10.jsonl"]
    paths = [*folders, *parts, *others]
    write(tmp_path, *random.Random(3).sample(paths, len(paths)))
    assert listed(tmp_path) == sorted(paths, key=natural_key)
    assert listed(tmp_path)[:8] == [*folders, *parts]


NAMES = st.text(alphabet="ab01-29²٣é", min_size=1, max_size=6)


@given(st.lists(st.lists(NAMES, min_size=1, max_size=3).map("/".join), unique=True, max_size=12))
def test_natural_order_is_total(paths):
    """Also for a1 and a01/b, whose names are the same but for zeros, and of which one is a folder."""
    ordered = sorted(paths, key=natural_key)
    assert sorted(reversed(ordered), key=natural_key) == ordered
    assert len({natural_key(path) for path in paths}) == len(paths)


@given(st.integers(0, 10**30), st.integers(0, 10**30))
def test_numbers_sort_as_numbers(one, two):
    assert (natural_key(f"a{one}.jsonl") < natural_key(f"a{two}.jsonl")) == (one < two)


def test_hidden_files_and_folders_are_left_out(tmp_path):
    write(tmp_path, "a.jsonl", ".a.jsonl", ".git/b.jsonl", "c/.d/e.jsonl", "c/f.jsonl")
    assert listed(tmp_path) == ["a.jsonl", "c/f.jsonl"]


def test_links_are_followed(tmp_path):
    write(tmp_path / "elsewhere", "deep/b.jsonl", "c.jsonl")
    write(tmp_path / "web", "a.jsonl")
    (tmp_path / "web" / "linked").symlink_to(tmp_path / "elsewhere" / "deep")
    (tmp_path / "web" / "c.jsonl").symlink_to("../elsewhere/c.jsonl")
    (tmp_path / "alias").symlink_to("web")
    assert listed(tmp_path / "web") == ["a.jsonl", "c.jsonl", "linked/b.jsonl"]
    assert listed(tmp_path / "alias") == listed(tmp_path / "web")
    assert contents_of(tmp_path / "web").ordered[1].size == 3


def test_circle_of_links(tmp_path):
    write(tmp_path, "web/sub/a.jsonl")
    (tmp_path / "web" / "sub" / "up").symlink_to("..")
    with pytest.raises(InputError, match="leads back") as caught:
        contents_of(tmp_path / "web")
    assert caught.value.where == str(tmp_path / "web" / "sub" / "up")


def test_link_to_nowhere(tmp_path):
    write(tmp_path, "a.jsonl")
    (tmp_path / "b.jsonl").symlink_to("/not/mounted/b.jsonl")
    with pytest.raises(MissingError, match="No such file") as caught:
        contents_of(tmp_path)
    assert caught.value.where == str(tmp_path / "b.jsonl")
    assert "/not/mounted/b.jsonl" in caught.value.found


def test_folder_that_fails_is_not_passed_over(tmp_path, monkeypatch):
    write(tmp_path, "a.jsonl", "sub/b.jsonl")
    real = os.scandir

    def scandir(path):
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(InputError, match="cannot be read") as caught:
        contents_of(tmp_path)
    assert caught.value.where == str(tmp_path / "sub")


def test_name_that_is_not_utf8(tmp_path):
    try:
        with open(os.fsencode(tmp_path) + b"/a\xff.jsonl", "wb"):
            pass
    except OSError:
        pytest.skip("this file system takes UTF-8 names alone")
    with pytest.raises(InputError, match="not UTF-8") as caught:
        contents_of(tmp_path)
    assert r"a\xff.jsonl" in caught.value.found


@pytest.mark.parametrize("name", ["nothing", "file"])
def test_no_folder(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(MissingError, match="does not exist"):
        contents_of(tmp_path / name)


def test_links_stay_within_the_raw_folder(tmp_path):
    write(tmp_path / "secret", "b.jsonl", "deep/c.jsonl")
    raw = tmp_path / "raw"
    write(raw, "web/a.jsonl", "shared/d.jsonl")
    (raw / "web" / "d.jsonl").symlink_to("../shared/d.jsonl")
    assert [file.path for file in contents_of(raw / "web", raw).ordered] == ["a.jsonl", "d.jsonl"]
    for name, target in (
        ("b.jsonl", "../../secret/b.jsonl"),
        ("deep", tmp_path / "secret" / "deep"),
    ):
        link = raw / "web" / name
        link.symlink_to(target)
        with pytest.raises(InputError, match="leads out of the raw folder") as caught:
            contents_of(raw / "web", raw)
        assert caught.value.where == str(link)
        assert str(tmp_path / "secret") in caught.value.found
        link.unlink()


def test_a_corpus_may_be_a_link(tmp_path):
    write(tmp_path / "disk", "snapshot/a.jsonl", "snapshot/deep/b.jsonl", "blobs/c.jsonl")
    (tmp_path / "disk" / "snapshot" / "again.jsonl").symlink_to("deep/b.jsonl")
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "web").symlink_to(tmp_path / "disk" / "snapshot")
    assert [file.path for file in contents_of(raw / "web", raw).ordered] == [
        "a.jsonl",
        "again.jsonl",
        "deep/b.jsonl",
    ]
    (tmp_path / "disk" / "snapshot" / "c.jsonl").symlink_to("../blobs/c.jsonl")
    with pytest.raises(InputError, match="leads out"):
        contents_of(raw / "web", raw)


@pytest.mark.parametrize(
    "name", ["a\nb.jsonl", "\x1b[2Ja.jsonl", "a\x7f.jsonl", "a\u0085.jsonl", "sub\t/a.jsonl"]
)
def test_names_that_would_steer_a_terminal(tmp_path, name):
    write(tmp_path, name)
    with pytest.raises(InputError, match="control characters") as caught:
        contents_of(tmp_path)
    assert str(caught.value).isascii()
    assert "\x1b" not in str(caught.value)


def test_names_in_any_language_are_fine(tmp_path):
    write(tmp_path, "日本\u3000語 é.jsonl", "a\u00a0b.jsonl")
    assert len(listed(tmp_path)) == 2
