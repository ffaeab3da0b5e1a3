"""Patterns of the files that a corpus is made of."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.text.choice import FileChoice, held_out, matches
from nanoset_core.text.contents import contents_of
from nanoset_core.text.fingerprint_memory import FingerprintMemory
from nanoset_core.text.inventories import known_inventory, take_inventory

PATHS = [
    "data/test-0.parquet",
    "data/train-0.parquet",
    "data/train-1.parquet",
    "corpus.json",
    "a/b/corpus.json",
]


@pytest.mark.parametrize(("files", "exclude", "taken"), [
    (None, (), "0 1 2 3 4"),
    (("*.parquet",), (), "0 1 2"),
    (("data/train-*",), (), "1 2"),
    (("train-*",), (), "1 2"),
    (("*/train-*", "corpus.json"), (), "1 2 3 4"),
    (("/corpus.json",), (), "3"),
    (("./corpus.json",), (), "3"),
    (("a/**/*.json",), (), "4"),
    (("**/*.json",), (), "3 4"),
    (("data",), (), "0 1 2"),
    (("b/",), (), "4"),
    (("b/corpus.json",), (), ""),
    (("train-[1-9]*",), (), "2"),
    (None, ("corpus.json",), "0 1 2"),
    (None, ("data/", "a"), "3"),
    (("*.parquet",), ("test-*",), "1 2"),
    (("DATA",), (), ""),
    ((".",), (), ""),
])  # fmt: skip
def test_patterns(files, exclude, taken):
    assert [path for path in PATHS if FileChoice(files, exclude).takes(path)] == [
        PATHS[int(i)] for i in taken.split()
    ]


def test_contents_chosen(tmp_path):
    for path in [*PATHS, "notes.txt"]:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"{}\n")
    found = contents_of(tmp_path).chosen(FileChoice(("*.parquet",), ("test-*", "nothing-*")))
    assert [file.path for file in found.ordered] == ["data/train-0.parquet", "data/train-1.parquet"]
    assert (found.others, found.left_out) == (
        (),
        ("a/b/corpus.json", "corpus.json", "data/test-0.parquet", "notes.txt"),
    )
    before = {path: 3 for path in PATHS} | {"lost.parquet": 3}
    assert {notice.kind: notice.text for notice in found.notices(before)} == {
        "unmatched": "1 pattern of the corpus's files and exclude fits no file: nothing-*",
        "gone": "1 file of the previous version is missing or was renamed: lost.parquet",
        "left_out": "4 files are left out by the corpus's files and exclude: "
        "a/b/corpus.json, corpus.json, data/test-0.parquet and 1 more",
    }
    assert contents_of(tmp_path).chosen(FileChoice()) == contents_of(tmp_path)


def test_what_is_remembered_of_files_that_another_corpus_of_the_folder_takes_stays(
    tmp_path, monkeypatch
):
    for name in ("train-0.jsonl", "test-0.jsonl"):
        (tmp_path / name).write_bytes(b"{}\n")
    monkeypatch.setattr("nanoset_core.text.fingerprint_memory._RACY_NS", -(10**12))
    found = [contents_of(tmp_path).chosen(FileChoice((files,))) for files in ("train-*", "test-*")]
    for contents in found:
        take_inventory(
            tmp_path, "web", memory=FingerprintMemory(tmp_path / ".memory"), contents=contents
        )
    assert [
        known_inventory(contents, FingerprintMemory(tmp_path / ".memory")).files
        for contents in found
    ] == [
        ("train-0.jsonl",),
        ("test-0.jsonl",),
    ]


@pytest.mark.parametrize(("path", "named"), [
    ("data/test-00000-of-00001.parquet", ("test", "test-*")),
    ("data/validation-00000-of-00001.parquet", ("valid", "validation-*")),
    ("test.jsonl", ("test", "test.*")),
    ("c4-validation.00000-of-00008.json.gz", ("valid", "c*-validation.*")),
    ("17_dev_3.jsonl", ("valid", "*_dev_*")),
    ("wiki.Eval.jsonl", ("test", "wiki.Eval.*")),
    ("dev2.jsonl", ("valid", "dev*")),
    ("en/valid/part-0.jsonl", ("valid", "valid/")),
    ("v2.test/0.jsonl.zst", ("test", "v*.test/")),
    *((path, None) for path in ("train-0.json", "latest.jsonl", "testament.jsonl", "values.json", "developers/0.json")),
])  # fmt: skip
def test_files_that_are_held_out_by_their_names(path, named):
    assert held_out(path) == named
    if named is not None:
        assert FileChoice((named[1],)).takes(path)


@pytest.mark.parametrize("separator", ["**", "**/*", "*/**"])
def test_many_wildcards_for_folders_take_no_longer_than_the_path(separator):
    """Trying out how many folders each stands for took 16 seconds for one path of this depth."""
    parts = ["a"] * 300
    pattern = [*f"{separator}/".split("/")[:-1] * 12, "b"]
    began = time.monotonic()
    assert not matches(parts, pattern)
    assert matches([*parts, "b"], pattern)
    assert time.monotonic() - began < 1


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from("ab"), max_size=5),
    st.lists(st.sampled_from(["**", "*", "a", "b"]), max_size=5),
)
def test_matching_is_that_of_trying_everything(parts, pattern):
    def slowly(parts, pattern):
        if not pattern:
            return not parts
        if pattern[0] == "**":
            return any(slowly(parts[skipped:], pattern[1:]) for skipped in range(len(parts) + 1))
        return bool(parts) and pattern[0] in ("*", parts[0]) and slowly(parts[1:], pattern[1:])

    assert matches(parts, pattern) == slowly(parts, pattern)
