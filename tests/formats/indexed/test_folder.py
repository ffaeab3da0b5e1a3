"""`nanoset merge`: which pairs of a folder are joined, which never are, and what is refused."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest

from helpers.command import invoke_nanoset
from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.folder import merge_folder, pairs_at


def write(prefix, *documents):
    with MMapIndexedDatasetBuilder(prefix, np.uint16) as builder:
        for document in documents:
            builder.add_document(document)


def tokens(prefix):
    return MMapIndexedDataset(prefix).tokens.tolist()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mm").mkdir()
    write(tmp_path / "mm" / "a", [1, 2], [3])
    write(tmp_path / "mm" / "b", [4])
    return tmp_path / "mm"


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("mm/a", ["mm/a"]),
        ("mm/a.bin", ["mm/a"]),
        ("mm/a.idx", ["mm/a"]),
        ("mm", ["mm/a", "mm/b", "mm/web_text_document"]),
        ("mm/web", ["mm/web_text_document"]),
        ("mm/none", ["mm/none"]),
        ("none/none.bin", ["none/none"]),
    ],
)
def test_a_path_means_the_pairs_that_are_there(folder, named, found):
    write(folder / "web_text_document", [5])
    (folder / "notes.txt").touch()
    assert pairs_at(folder.parent / named) == [folder.parent / prefix for prefix in found]
    is_there = "none" not in named
    verified, shown = (
        invoke_nanoset([name, str(folder.parent / named)]) for name in ("verify", "inspect")
    )
    assert (verified.exit_code == 0, shown.exit_code == 0) == (is_there, is_there)
    assert f"{len(found):,} output{'s' * (len(found) != 1)}: " in verified.output
    assert [f"{folder.parent / prefix}: " in shown.output for prefix in found] == [is_there] * len(
        found
    )


def test_its_own_output_is_not_joined_again(folder):
    made = merge_folder(folder, folder / "all")
    assert made.parts == ((folder / "a", 2), (folder / "b", 1))
    assert (made.documents, made.tokens, made.made) == (3, 4, True)
    again = merge_folder(folder, folder / ".." / "mm" / "all")
    assert not again.made
    assert again.parts == made.parts
    assert tokens(folder / "all") == [1, 2, 3, 4]
    write(folder / "c", [5])
    with pytest.raises(ConfigError, match=r"c\.bin was not among the files"):
        merge_folder(folder, folder / "all")
    assert merge_folder(folder, folder / "all", overwrite=True).documents == 4
    assert tokens(folder / "all") == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_input_is_never_written_onto(folder, overwrite):
    before = (folder / "a.bin").read_bytes()
    for prefix in (folder / "a", folder / "none" / ".." / "a"):
        with pytest.raises(ConfigError, match="an input would be overwritten"):
            merge_folder(folder, prefix, overwrite=overwrite)
    for ending in (".bin", ".idx"):
        (folder.parent / f"link{ending}").symlink_to(folder / f"a{ending}")
    with pytest.raises(ConfigError, match="an input would be overwritten"):
        merge_folder(folder, folder.parent / "link", overwrite=overwrite)
    assert (folder / "a.bin").read_bytes() == before
    merge_folder(folder, folder / "all")
    write(folder / "all", [9])  # by something else: it is a dataset like the others from now on
    with pytest.raises(ConfigError, match="an input would be overwritten"):
        merge_folder(folder, folder / "all", overwrite=overwrite)


def test_a_merge_beside_its_parts_is_refused(folder, tmp_path):
    merge_folder(folder, folder / "all")
    with pytest.raises(ConfigError, match="documents would be joined twice") as caught:
        merge_folder(folder, tmp_path / "out")
    assert caught.value.where == str(folder / "all")
    for name in ("a", "b"):
        for ending in (".bin", ".idx"):
            (folder / f"{name}{ending}").unlink()
    assert merge_folder(folder, tmp_path / "out").documents == 3


def test_a_merge_beside_its_parts_is_known_in_a_copy_of_the_folder(folder, tmp_path):
    merge_folder(folder, folder / "all")
    shutil.copytree(folder, tmp_path / "copy", copy_function=shutil.copyfile)  # with other times
    for path in (tmp_path / "copy").glob("all.*"):
        os.utime(path, (1, 1))
    for output in (tmp_path / "copy" / "other", tmp_path / "out"):
        with pytest.raises(ConfigError, match="documents would be joined twice"):
            merge_folder(tmp_path / "copy", output)
    assert merge_folder(tmp_path / "copy", tmp_path / "copy" / "all", overwrite=True).documents == 3


def test_a_merge_of_unknown_origin_is_to_be_moved_out(folder):
    merge_folder(folder, folder / "all")
    (folder / ".all.made.json").unlink()  # as an older version left it
    with pytest.raises(ConfigError, match="an input would be overwritten") as caught:
        merge_folder(folder, folder / "all")
    assert (
        caught.value.remedy
        == "if this is an earlier merge, move it out of the folder; else name another output"
    )


@pytest.mark.parametrize(("gone", "left"), [(".idx", "b.bin"), (".bin", "b.idx")])
def test_an_unfinished_pair_is_named(folder, gone, left):
    (folder / f"b{gone}").unlink()
    with pytest.raises(MissingError, match="incomplete") as caught:
        merge_folder(folder, folder / "all")
    assert caught.value.where == str(folder / left)
    assert not (folder / "all.bin").exists()


def test_what_a_killed_call_left_is_made_whole(folder):
    merge_folder(folder, folder / "all")
    record = folder / ".all.made.json"
    text = record.read_text()
    # as it is just before the files are put in place
    record.write_text(text[: text.index(',\n "facts"')] + "}")
    (folder / "all.idx").unlink()
    assert merge_folder(folder, folder / "all").made
    assert tokens(folder / "all") == [1, 2, 3, 4]


def test_damage_leaves_the_earlier_output(folder):
    merge_folder(folder, folder / "all")
    (folder / "b.bin").write_bytes(b"")
    with pytest.raises(FormatError, match="back to back"):
        merge_folder(folder, folder / "all", overwrite=True)
    assert tokens(folder / "all") == [1, 2, 3, 4]


def test_the_command_says_what_it_joined(folder):
    arguments = ["merge", "--input", str(folder), "--output-prefix", str(folder / "all")]
    said = invoke_nanoset(arguments, catch_exceptions=False).output
    lines = [f"  {folder}/a: 2 documents", f"  {folder}/b: 1 documents"]
    assert said.splitlines() == [*lines, f"{folder}/all: 2 datasets, 3 documents, 4 tokens"]
    said = invoke_nanoset(arguments, catch_exceptions=False).output
    assert said.splitlines()[-1].endswith("4 tokens (already exists)")
