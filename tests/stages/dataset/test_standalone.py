"""`nanoset merge`: which datasets of a folder are merged, and what is refused."""

from __future__ import annotations

import os
import shutil

import pytest

from helpers.command import invoke_nanoset, output_of
from helpers.sample_pairs import write_sequences, write_tokenized
from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.formats.indexed.builder import merge_indexed_datasets
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.pairs import pairs_at
from nanoset_core.outputs import recorded_tokenization
from nanoset_core.stages.dataset.standalone import merge_folder


def tokens_of(prefix):
    """Return all tokens of a dataset."""
    return MMapIndexedDataset(prefix).tokens.tolist()


def delete_pair(prefix):
    """Delete the files of a dataset."""
    prefix.with_suffix(".bin").unlink()
    prefix.with_suffix(".idx").unlink()


@pytest.fixture
def folder(tmp_path):
    """A folder with the datasets `a` (documents 1 2 and 3) and `b` (document 4)."""
    folder = tmp_path / "mm"
    folder.mkdir()
    write_sequences(folder / "a", [[1, 2], [3]])
    write_sequences(folder / "b", [[4]])
    return folder


# Paths that a user may name


@pytest.fixture
def parent(folder):
    """The parent of `folder`, which also has `web_text_document`, named as by Megatron-LM."""
    write_sequences(folder / "web_text_document", [[5]])
    (folder / "notes.txt").touch()
    return folder.parent


EXISTING_PATHS = [
    pytest.param("mm/a", ["mm/a"], id="prefix"),
    pytest.param("mm/a.bin", ["mm/a"], id="token file"),
    pytest.param("mm/a.idx", ["mm/a"], id="index"),
    pytest.param("mm", ["mm/a", "mm/b", "mm/web_text_document"], id="folder"),
    pytest.param("mm/web", ["mm/web_text_document"], id="name of a corpus"),
]
MISSING_PATHS = [
    pytest.param("mm/none", ["mm/none"], id="missing dataset"),
    pytest.param("none/none.bin", ["none/none"], id="missing folder"),
]


@pytest.mark.parametrize(("path", "prefixes"), EXISTING_PATHS + MISSING_PATHS)
def test_a_path_stands_for_the_datasets_that_exist(parent, path, prefixes):
    assert pairs_at(parent / path) == [parent / prefix for prefix in prefixes]


@pytest.mark.parametrize(("path", "prefixes"), EXISTING_PATHS)
def test_the_datasets_of_a_path_are_verified(parent, path, prefixes):
    outcome = invoke_nanoset(["verify", parent / path])

    plural = "s" if len(prefixes) > 1 else ""
    assert outcome.exit_code == 0
    assert f"{len(prefixes)} output{plural}: " in outcome.output


@pytest.mark.parametrize(("path", "prefixes"), EXISTING_PATHS)
def test_the_datasets_of_a_path_are_inspected(parent, path, prefixes):
    outcome = invoke_nanoset(["inspect", parent / path])

    assert outcome.exit_code == 0
    for prefix in prefixes:
        assert f"{parent / prefix}: " in outcome.output


@pytest.mark.parametrize(("path", "prefixes"), MISSING_PATHS)
def test_a_path_without_datasets_fails(parent, path, prefixes):
    verified = invoke_nanoset(["verify", parent / path])
    inspected = invoke_nanoset(["inspect", parent / path])

    assert verified.exit_code != 0
    assert "1 output: " in verified.output
    assert inspected.exit_code != 0
    assert f"{parent / prefixes[0]}: " not in inspected.output


@pytest.mark.parametrize(
    ("path", "content"),
    [
        pytest.param("tars", "a folder without them", id="folder of other files"),
        pytest.param("mm/notes.txt", "another file", id="other file"),
    ],
)
def test_the_error_says_if_a_path_leads_to_other_files(parent, path, content):
    (parent / "tars").mkdir()
    (parent / "tars" / "00000000.tar").touch()

    with pytest.raises(MissingError, match="no dataset here") as caught:
        pairs_at(parent / path)

    assert caught.value.where == str(parent / path)
    assert caught.value.found == content


# Merging


def test_a_merge_reports_its_parts(folder):
    merged = merge_folder(folder, folder / "all")

    assert merged.made
    assert merged.parts == ((folder / "a", 2), (folder / "b", 1))
    assert merged.documents == 3
    assert merged.tokens == 4
    assert tokens_of(folder / "all") == [1, 2, 3, 4]


def test_an_earlier_merge_is_not_repeated_nor_merged(folder):
    first = merge_folder(folder, folder / "all")

    # However its path is written.
    second = merge_folder(folder, folder / ".." / "mm" / "all")

    assert not second.made
    assert second.parts == first.parts
    assert tokens_of(folder / "all") == [1, 2, 3, 4]


def test_an_earlier_merge_of_other_parts_is_replaced_only_on_request(folder):
    merge_folder(folder, folder / "all")
    write_sequences(folder / "c", [[5]])

    with pytest.raises(ConfigError, match=r"c\.bin was not among the files"):
        merge_folder(folder, folder / "all")

    assert merge_folder(folder, folder / "all", overwrite=True).documents == 4
    assert tokens_of(folder / "all") == [1, 2, 3, 4, 5]


def test_the_command_lists_what_it_merged(folder):
    output = output_of("merge", "--input", folder, "--output-prefix", folder / "all")

    assert output.splitlines() == [
        f"  {folder}/a: 2 documents",
        f"  {folder}/b: 1 document",
        f"{folder}/all: 2 datasets, 3 documents, 4 tokens",
    ]


def test_the_command_says_that_the_merge_exists(folder):
    merge_folder(folder, folder / "all")

    output = output_of("merge", "--input", folder, "--output-prefix", folder / "all")

    assert output.splitlines()[-1].endswith("4 tokens (already exists)")


# An input is never overwritten, whether or not that is requested


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("path", ["a", "none/../a"])
def test_an_input_is_not_overwritten(folder, path, overwrite):
    before = (folder / "a.bin").read_bytes()

    with pytest.raises(ConfigError, match="an input would be overwritten"):
        merge_folder(folder, folder / path, overwrite=overwrite)

    assert (folder / "a.bin").read_bytes() == before


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_input_is_not_overwritten_through_a_link(folder, tmp_path, overwrite):
    before = (folder / "a.bin").read_bytes()
    (tmp_path / "link.bin").symlink_to(folder / "a.bin")
    (tmp_path / "link.idx").symlink_to(folder / "a.idx")

    with pytest.raises(ConfigError, match="an input would be overwritten"):
        merge_folder(folder, tmp_path / "link", overwrite=overwrite)

    assert (folder / "a.bin").read_bytes() == before


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_merge_that_another_program_replaced_is_an_input(folder, overwrite):
    merge_folder(folder, folder / "all")
    write_sequences(folder / "all", [[9]])

    with pytest.raises(ConfigError, match="an input would be overwritten"):
        merge_folder(folder, folder / "all", overwrite=overwrite)


def test_a_merge_without_a_record_is_an_input_and_the_error_says_what_to_do(folder):
    merge_folder(folder, folder / "all")
    (folder / ".all.made.json").unlink()  # earlier versions wrote no record

    with pytest.raises(ConfigError, match="an input would be overwritten") as caught:
        merge_folder(folder, folder / "all")

    assert caught.value.remedy == (
        "if this is an earlier merge, move it out of the folder; else name another output"
    )


# A document is never merged twice


def test_a_merge_is_refused_as_an_input_next_to_its_parts(folder, tmp_path):
    merge_folder(folder, folder / "all")

    with pytest.raises(ConfigError, match="documents would be joined twice") as caught:
        merge_folder(folder, tmp_path / "out")

    assert caught.value.where == str(folder / "all")


def test_a_merge_is_an_input_if_its_parts_were_deleted(folder, tmp_path):
    merge_folder(folder, folder / "all")
    delete_pair(folder / "a")
    delete_pair(folder / "b")

    assert merge_folder(folder, tmp_path / "out").documents == 3


def test_a_merge_is_recognised_in_a_copy_of_the_folder(folder, tmp_path):
    merge_folder(folder, folder / "all")
    copied = tmp_path / "copy"
    shutil.copytree(folder, copied, copy_function=shutil.copyfile)  # without times
    for path in copied.glob("all.*"):
        os.utime(path, (1, 1))

    for output in (copied / "other", tmp_path / "out"):
        with pytest.raises(ConfigError, match="documents would be joined twice"):
            merge_folder(copied, output)

    assert merge_folder(copied, copied / "all", overwrite=True).documents == 3


# Files that are incomplete or damaged


@pytest.mark.parametrize(
    ("missing_file", "remaining_file"), [("b.idx", "b.bin"), ("b.bin", "b.idx")]
)
def test_a_dataset_without_one_of_its_files_is_an_error(folder, missing_file, remaining_file):
    (folder / missing_file).unlink()

    with pytest.raises(MissingError, match="incomplete") as caught:
        merge_folder(folder, folder / "all")

    assert caught.value.where == str(folder / remaining_file)
    assert not (folder / "all.bin").exists()


def test_a_merge_that_was_killed_is_repeated(folder):
    merge_folder(folder, folder / "all")
    # Leave what exists just before both files are in place.
    record = folder / ".all.made.json"
    text = record.read_text()
    without_facts = text[: text.index(',\n "facts"')] + "}"
    record.write_text(without_facts)
    (folder / "all.idx").unlink()

    assert merge_folder(folder, folder / "all").made
    assert tokens_of(folder / "all") == [1, 2, 3, 4]


def test_if_an_input_is_damaged_the_earlier_merge_remains(folder):
    merge_folder(folder, folder / "all")
    (folder / "b.bin").write_bytes(b"")

    with pytest.raises(FormatError, match="back to back"):
        merge_folder(folder, folder / "all", overwrite=True)

    assert tokens_of(folder / "all") == [1, 2, 3, 4]


# Datasets of different tokenizers


@pytest.fixture
def two_tokenizers(tmp_path):
    """A folder with the datasets `a` and `b`, which have records of different tokenizers."""
    folder = tmp_path / "two"
    folder.mkdir()
    write_tokenized(folder / "a", "1" * 64)
    write_tokenized(folder / "b", "2" * 64)
    return folder


def test_datasets_of_different_tokenizers_are_not_merged(two_tokenizers):
    with pytest.raises(FormatError, match="different tokenizers") as caught:
        merge_folder(two_tokenizers, two_tokenizers / "all")

    assert caught.value.where == str(two_tokenizers / "b.manifest.json")
    assert caught.value.found == f"tokenizer {'2' * 12}"
    assert not (two_tokenizers / "all.bin").exists()


def test_datasets_of_different_tokenizers_are_not_merged_in_python_either(two_tokenizers, tmp_path):
    # They may be in different folders.
    shutil.copytree(two_tokenizers, tmp_path / "copy")
    prefixes = [two_tokenizers / "a", tmp_path / "copy" / "b"]

    with pytest.raises(FormatError, match="different tokenizers") as caught:
        merge_indexed_datasets(prefixes, two_tokenizers / "all")

    assert caught.value.where == str(tmp_path / "copy" / "b.manifest.json")
    assert not (two_tokenizers / "all.bin").exists()


def test_a_merge_keeps_the_tokenizer_for_the_next_merge(two_tokenizers, tmp_path):
    first_folder = tmp_path / "first"
    first_folder.mkdir()
    write_tokenized(first_folder / "c", "1" * 64)
    merge_folder(first_folder, two_tokenizers / "merged")
    delete_pair(two_tokenizers / "a")
    (two_tokenizers / "a.manifest.json").unlink()

    with pytest.raises(FormatError, match="different tokenizers"):
        merge_folder(two_tokenizers, tmp_path / "all")


def test_a_dataset_without_a_record_is_merged_with_any_other(two_tokenizers):
    (two_tokenizers / "b.manifest.json").unlink()

    assert merge_folder(two_tokenizers, two_tokenizers / "all").documents == 4


def test_a_notice_says_that_only_some_documents_end_with_a_special_token(tmp_path):
    tokenizer = "1" * 64
    with_eod = {"before": [], "after": [0], "empty": "no_sequence"}
    without_eod = {"before": [], "after": [], "empty": "no_sequence"}
    write_tokenized(tmp_path / "a", tokenizer, framing=with_eod)
    write_tokenized(tmp_path / "b", tokenizer, framing=with_eod)
    write_tokenized(tmp_path / "c", tokenizer, framing=without_eod)
    write_sequences(tmp_path / "d", [[4]])  # without a record

    [notice] = merge_folder(tmp_path, tmp_path / "all").notices

    assert f"before [], after [0] ({tmp_path / 'a.manifest.json'})" in notice
    assert f"before [], after [] ({tmp_path / 'c.manifest.json'})" in notice
    assert "--append-eod" in notice


def test_no_notice_is_given_if_all_documents_end_alike(tmp_path):
    framing = {"before": [], "after": [0], "empty": "no_sequence"}
    write_tokenized(tmp_path / "a", "1" * 64, framing=framing)
    write_tokenized(tmp_path / "b", "1" * 64, framing=framing | {"empty": "skip"})

    assert merge_folder(tmp_path, tmp_path / "all").notices == ()


def test_records_that_do_not_exist_are_not_requested(folder, monkeypatch):
    requested = []

    def read_receipt(path):
        """Note which record is requested, and say that there is none."""
        requested.append(path.name)

    monkeypatch.setattr(recorded_tokenization, "read_receipt", read_receipt)
    (folder / "b.manifest.json").write_text("{}")

    merge_folder(folder, folder / "all")

    assert requested == ["b.manifest.json"]


def test_the_record_of_a_dataset_that_was_replaced_since_is_ignored(two_tokenizers):
    delete_pair(two_tokenizers / "b")
    write_sequences(two_tokenizers / "b", [[1, 2, 3, 4]])

    assert merge_folder(two_tokenizers, two_tokenizers / "all").documents == 3
