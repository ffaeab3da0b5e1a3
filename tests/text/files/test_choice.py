"""The files that a corpus is made of: patterns of their paths, and names of files to hold out."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoset_core.text.files.choice import FileChoice, held_out, held_out_split_of_folder, matches
from nanoset_core.text.files.contents import contents_of
from nanoset_core.text.inventory.fingerprint_memory import FingerprintMemory
from nanoset_core.text.inventory.take import known_inventory, take_inventory

TEST = "data/test-0.parquet"
TRAIN_0 = "data/train-0.parquet"
TRAIN_1 = "data/train-1.parquet"
CORPUS = "corpus.json"
DEEP_CORPUS = "a/b/corpus.json"
PATHS = [TEST, TRAIN_0, TRAIN_1, CORPUS, DEEP_CORPUS]


def taken_paths(choice):
    """Return those of PATHS that a choice takes."""
    return [path for path in PATHS if choice.takes(path)]


def write_files(folder, *paths):
    """Write files of three bytes, and the folders above them."""
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(b"{}\n")


# Patterns


def test_all_files_are_taken_without_patterns():
    assert taken_paths(FileChoice()) == PATHS


@pytest.mark.parametrize(
    ("pattern", "expected_paths"),
    [
        ("*.parquet", [TEST, TRAIN_0, TRAIN_1]),
        ("data/train-*", [TRAIN_0, TRAIN_1]),
        ("train-*", [TRAIN_0, TRAIN_1]),  # a name in any folder
        ("train-[1-9]*", [TRAIN_1]),
        ("/corpus.json", [CORPUS]),  # only in the folder of the corpus
        ("./corpus.json", [CORPUS]),
        ("a/**/*.json", [DEEP_CORPUS]),
        ("**/*.json", [CORPUS, DEEP_CORPUS]),
        ("data", [TEST, TRAIN_0, TRAIN_1]),  # all files in a folder
        ("b/", [DEEP_CORPUS]),
        ("b/corpus.json", []),  # paths of several names start at the folder of the corpus
        ("DATA", []),
        (".", []),
    ],
)
def test_a_pattern_takes_the_files_that_it_fits(pattern, expected_paths):
    assert taken_paths(FileChoice(files=(pattern,))) == expected_paths


def test_a_file_is_taken_if_one_of_several_patterns_fits():
    choice = FileChoice(files=("*/train-*", "corpus.json"))

    assert taken_paths(choice) == [TRAIN_0, TRAIN_1, CORPUS, DEEP_CORPUS]


@pytest.mark.parametrize(
    ("files", "exclude", "expected_paths"),
    [
        (None, ("corpus.json",), [TEST, TRAIN_0, TRAIN_1]),
        (None, ("data/", "a"), [CORPUS]),
        (("*.parquet",), ("test-*",), [TRAIN_0, TRAIN_1]),
    ],
)
def test_excluded_files_are_not_taken(files, exclude, expected_paths):
    assert taken_paths(FileChoice(files, exclude)) == expected_paths


@pytest.mark.parametrize("separator", ["**", "**/*", "*/**"])
def test_many_wildcards_for_folders_are_matched_quickly(separator):
    """Trying out how many folders each stands for took 16 seconds for one path of this depth."""
    folders = ["a"] * 300
    pattern = separator.split("/") * 12 + ["b"]

    start = time.monotonic()
    assert not matches(folders, pattern)
    assert matches([*folders, "b"], pattern)

    assert time.monotonic() - start < 1


def slow_matches(parts, pattern):
    """Return whether a path matches a pattern, by trying how many folders each ** stands for."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        remainders = [parts[n_folders:] for n_folders in range(len(parts) + 1)]
        return any(slow_matches(remainder, pattern[1:]) for remainder in remainders)
    if not parts or pattern[0] not in ("*", parts[0]):
        return False
    return slow_matches(parts[1:], pattern[1:])


@given(
    parts=st.lists(st.sampled_from("ab"), max_size=5),
    pattern=st.lists(st.sampled_from(["**", "*", "a", "b"]), max_size=5),
)
def test_paths_match_as_if_every_number_of_folders_was_tried(parts, pattern):
    assert matches(parts, pattern) == slow_matches(parts, pattern)


# Contents of a folder


@pytest.fixture
def chosen_contents(tmp_path):
    """The contents of a folder with PATHS and notes.txt, of which two files are chosen."""
    write_files(tmp_path, *PATHS, "notes.txt")
    choice = FileChoice(files=("*.parquet",), exclude=("test-*", "nothing-*"))
    return contents_of(tmp_path).chosen(choice)


def test_only_the_chosen_files_are_read(chosen_contents):
    assert [file.path for file in chosen_contents.ordered] == [TRAIN_0, TRAIN_1]


def test_all_other_files_are_left_out(chosen_contents):
    assert chosen_contents.left_out == (DEEP_CORPUS, CORPUS, TEST, "notes.txt")
    assert chosen_contents.unread == ()


def test_notices_report_what_is_left_out_and_patterns_that_fit_nothing(chosen_contents):
    size_before = dict.fromkeys([*PATHS, "lost.parquet"], 3)

    notices = chosen_contents.notices(size_before)

    assert {notice.kind: notice.text for notice in notices} == {
        "unmatched": "1 pattern of the corpus's files and exclude fits no file: nothing-*",
        # Files that are left out now are not missing.
        "gone": "1 file of the previous version is missing or was renamed: lost.parquet",
        "left_out": "4 files are left out by the corpus's files and exclude: "
        "a/b/corpus.json, corpus.json, data/test-0.parquet and 1 more",
    }


def test_chosen_txt_files_are_read_although_the_folder_has_files_of_other_formats(tmp_path):
    write_files(tmp_path, *PATHS, "a.txt", "b.txt", "c.csv")
    choice = FileChoice(files=("*.txt",), exclude=("b.*",))

    contents = contents_of(tmp_path).chosen(choice)

    assert [file.path for file in contents.ordered] == ["a.txt"]
    assert contents.unread == ()


def test_a_choice_does_not_add_txt_files_to_files_of_other_formats(tmp_path):
    write_files(tmp_path, *PATHS, "a.txt")
    choice = FileChoice(exclude=("test-*",))

    contents = contents_of(tmp_path).chosen(choice)

    assert "a.txt" not in [file.path for file in contents.texts]
    assert contents.unread == ("a.txt",)


def test_a_choice_without_patterns_changes_nothing(tmp_path):
    write_files(tmp_path, *PATHS, "notes.txt")

    contents = contents_of(tmp_path)

    assert contents.chosen(FileChoice()) == contents


def test_corpora_of_one_folder_do_not_forget_the_fingerprints_of_each_other(tmp_path, monkeypatch):
    write_files(tmp_path, "train-0.jsonl", "test-0.jsonl")
    memory_path = tmp_path / ".memory"
    # Remember files even if they were just written.
    monkeypatch.setattr("nanoset_core.text.inventory.fingerprint_memory._RACY_NS", -(10**12))
    train = contents_of(tmp_path).chosen(FileChoice(("train-*",)))
    test = contents_of(tmp_path).chosen(FileChoice(("test-*",)))

    take_inventory(tmp_path, "web", memory=FingerprintMemory(memory_path), contents=train)
    take_inventory(tmp_path, "web", memory=FingerprintMemory(memory_path), contents=test)

    memory = FingerprintMemory(memory_path)
    assert known_inventory(train, memory).files == ("train-0.jsonl",)
    assert known_inventory(test, memory).files == ("test-0.jsonl",)


# Names of validation and test data


@pytest.mark.parametrize(
    ("path", "split", "pattern"),
    [
        ("data/test-00000-of-00001.parquet", "test", "test-*"),
        ("data/validation-00000-of-00001.parquet", "valid", "validation-*"),
        ("test.jsonl", "test", "test.*"),
        ("c4-validation.00000-of-00008.json.gz", "valid", "c*-validation.*"),
        ("17_dev_3.jsonl", "valid", "*_dev_*"),
        ("wiki.Eval.jsonl", "test", "wiki.Eval.*"),
        ("dev2.jsonl", "valid", "dev*"),
        ("evals.jsonl", "test", "evals.*"),
        ("tests/0.jsonl", "test", "tests/"),
        ("en/valid/part-0.jsonl", "valid", "valid/"),
        ("v2.test/0.jsonl.zst", "test", "v*.test/"),
    ],
)
def test_files_to_hold_out_are_recognized_by_their_names(path, split, pattern):
    assert held_out(path) == (split, pattern)
    assert FileChoice((pattern,)).takes(path)


@pytest.mark.parametrize(
    "path",
    [
        "train-0.json",
        "latest.jsonl",
        "testament.jsonl",
        "values.json",
        "developers/0.json",
    ],
)
def test_names_that_only_contain_such_a_word_are_not_held_out(path):
    assert held_out(path) is None


@pytest.mark.parametrize(
    ("folder", "split"),
    [
        ("web_valid", "valid"),
        ("web2_valid", "valid"),
        ("cc-2024-10_test", "test"),
        ("web[1]_dev", "valid"),
        ("tests", "test"),
    ],
)
def test_a_folder_whose_name_ends_with_such_a_word_is_held_out(folder, split):
    assert held_out_split_of_folder(folder) == split


@pytest.mark.parametrize("folder", ["web2", "valid_sentences", "test-2024 texts", "latest"])
def test_other_folders_are_not_held_out_as_a_whole(folder):
    assert held_out_split_of_folder(folder) is None
