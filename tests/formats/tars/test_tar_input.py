"""Tars of tokens, written by any tool, are surveyed and flattened into one file of contexts."""

from __future__ import annotations

import tarfile

import numpy as np
import pytest

from helpers.tars import TarEntry, json_gz_bytes, npy_bytes, write_tar
from helpers.token_sources import read_tar
from nanoset_core.errors import ConfigError, FormatError, InputError
from nanoset_core.formats.tars import tar_input
from nanoset_core.formats.tars.tar_input import flatten_tars, passed_over_text, survey_tars
from nanoset_core.loading.tar_files import iterate_shard


def npy(name, tokens):
    """Return a member `.npy` with 32-bit tokens."""
    return TarEntry(name, npy_bytes(tokens, np.int32))


def json_gz(name, tokens):
    """Return a member `.json.gz` with tokens."""
    return TarEntry(name, json_gz_bytes(tokens))


def contexts_of(survey, folder, workers=1):
    """Flatten the tars of a survey in a folder, and return the contexts, one a row."""
    path = flatten_tars(survey, folder, workers=workers)
    return np.fromfile(path, survey.dtype).reshape(-1, survey.sequence_length)


# Tars of other tools (tests/golden/webdataset)


@pytest.mark.parametrize("name", ["ray_like", "tokshuf_like"])
def test_a_survey_says_how_many_tokens_of_which_type_there_are(golden_tars, name):
    tars = sorted((golden_tars / name).glob("*.tar"))
    expected = np.concatenate([read_tar(tar) for tar in tars])

    survey = survey_tars(tars)

    assert survey.tokens == expected.size
    assert survey.sequence_length == expected.shape[1]
    assert survey.dtype == "int32"


@pytest.mark.parametrize("name", ["ray_like", "tokshuf_like"])
@pytest.mark.parametrize("workers", [1, 2])
def test_tars_are_flattened_in_order(golden_tars, tmp_path, name, workers):
    tars = sorted((golden_tars / name).glob("*.tar"))
    expected = np.concatenate([read_tar(tar) for tar in tars])

    contexts = contexts_of(survey_tars(tars), tmp_path, workers)

    assert np.array_equal(contexts, expected)


def test_of_samples_with_arrays_and_json_the_arrays_are_read(golden_tars):
    survey = survey_tars(sorted((golden_tars / "npy").glob("*.tar")))

    assert [tar.data_key for tar in survey.tars] == ["npy", "npy"]
    assert [tar.contexts for tar in survey.tars] == [25, 25]
    assert survey.dtype == "uint16"


def test_arrays_and_json_have_the_same_contexts(golden_tars, tmp_path):
    arrays = survey_tars(sorted((golden_tars / "npy").glob("*.tar")))
    json_lists = survey_tars(sorted((golden_tars / "ray_like").glob("*.tar")), dtype="uint16")

    from_arrays = contexts_of(arrays, tmp_path / "arrays")
    from_json = contexts_of(json_lists, tmp_path / "json")

    # The tools shuffled them differently.
    assert sorted(map(bytes, from_arrays)) == sorted(map(bytes, from_json))


def test_a_format_that_cannot_be_read_is_refused(golden_tars):
    with pytest.raises(ConfigError, match="cbor"):
        survey_tars([golden_tars / "npy" / "shard-000000.tar"], data_key="cbor")


def test_a_data_key_that_no_member_has_is_refused_with_those_that_exist(golden_tars):
    with pytest.raises(FormatError, match=r"25 \.json, 25 \.npy"):
        survey_tars([golden_tars / "npy" / "shard-000000.tar"], data_key="txt")


# Members with tokens


@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT], ids=["gnu", "pax"])
def test_members_with_long_names_are_read(tmp_path, format):
    long_name = "00000000_" * 20
    entries = [
        json_gz(f"{long_name}0.json.gz", [1, 2, 3]),
        json_gz(f"{long_name}1.json.gz", [4, 5, 6]),
        TarEntry("notes", b"no dot"),
        TarEntry("__meta__.json.gz", b"skipped"),
    ]
    path = write_tar(tmp_path / "a.tar", entries, format)

    contexts = contexts_of(survey_tars([path]), tmp_path / "out")

    assert contexts.tolist() == [[1, 2, 3], [4, 5, 6]]


def test_lists_of_tokens_in_text_members_are_read(tmp_path):
    path = write_tar(
        tmp_path / "a.tar", [TarEntry("1.txt", b"[1, 2]"), TarEntry("2.txt", b"[3, 4]")]
    )

    contexts = contexts_of(survey_tars([path]), tmp_path / "out")

    assert contexts.tolist() == [[1, 2], [3, 4]]


def test_the_data_key_chooses_among_the_members_of_a_sample(tmp_path):
    entries = [TarEntry("1.json", b'{"id": 1}'), TarEntry("1.txt", b"[3, 4]")]
    path = write_tar(tmp_path / "a.tar", entries)

    contexts = contexts_of(survey_tars([path], data_key="txt"), tmp_path / "out")

    assert contexts.tolist() == [[3, 4]]


@pytest.mark.parametrize("n_contexts", [3, 4, 5])
def test_contexts_are_written_in_chunks(tmp_path, monkeypatch, n_contexts):
    monkeypatch.setattr(tar_input, "_CHUNK_BYTES", 2 * 2 * 4)  # two contexts of two int32
    rows = [[number, number + 1] for number in range(n_contexts)]
    entries = [json_gz(f"{number}.json.gz", row) for number, row in enumerate(rows)]
    path = write_tar(tmp_path / "a.tar", entries)

    contexts = contexts_of(survey_tars([path]), tmp_path / "out")

    assert contexts.tolist() == rows


def test_a_tar_that_was_flattened_before_is_not_read_again(golden_tars, tmp_path):
    survey = survey_tars(sorted((golden_tars / "ray_like").glob("*.tar")))
    expected = contexts_of(survey, tmp_path)

    # Forget that the second tar was flattened, and overwrite tokens of both tars with zeros.
    (tmp_path / "done-1.json").unlink()
    token_bytes = 4
    context_bytes = survey.sequence_length * token_bytes
    with (tmp_path / "tokens.bin").open("r+b") as file:
        file.write(bytes(2 * token_bytes))
        file.seek(survey.tars[0].contexts * context_bytes)
        file.write(bytes(context_bytes))

    contexts = contexts_of(survey, tmp_path)

    # Only those of the second tar were written again.
    assert contexts[0, :2].tolist() == [0, 0]
    contexts[0, :2] = expected[0, :2]
    assert np.array_equal(contexts, expected)


@pytest.mark.parametrize(
    ("entries", "error", "message"),
    [
        pytest.param(
            [TarEntry("1.json", b'{"a": 1}')],
            FormatError,
            "does not contain the tokens",
            id="an object",
        ),
        pytest.param(
            [TarEntry("1.txt", b'[1, "<|endoftext|>"]')],
            FormatError,
            "does not contain the tokens",
            id="a word among tokens",
        ),
        pytest.param(
            [TarEntry("1.json.gz", b"no gzip")],
            FormatError,
            "does not contain the tokens",
            id="no gzip file",
        ),
        pytest.param([TarEntry("1.jpg")], FormatError, "no members with tokens", id="an image"),
        pytest.param(
            [TarEntry("1.json", b"[1, 2]"), TarEntry("2.json", b"[1, 2, 3]")],
            InputError,
            "the same length",
            id="two lengths",
        ),
        pytest.param(
            [TarEntry("1.json", b"[1, 2]"), TarEntry("2.json", b"[1, -2]")],
            InputError,
            "does not fit",
            id="a negative token",
        ),
        pytest.param(
            [TarEntry("1.json", b"[1, 2]"), TarEntry("2.json", b"[1, 4294967296]")],
            InputError,
            "does not fit",
            id="a token of 33 bits",
        ),
    ],
)
def test_members_that_are_no_contexts_are_an_error_that_names_the_tar(
    tmp_path, entries, error, message
):
    path = write_tar(tmp_path / "a.tar", entries)

    with pytest.raises(error, match=message) as caught:
        flatten_tars(survey_tars([path]), tmp_path / "out", workers=1)

    assert "a.tar" in str(caught.value)


def test_a_context_that_is_damaged_is_an_error(tmp_path):
    entries = [TarEntry("0.json", b"[1, 2"), TarEntry("1.json", b"[3, 4]")]
    path = write_tar(tmp_path / "b.tar", entries)

    with pytest.raises(FormatError, match="does not contain the tokens"):
        contexts_of(survey_tars([path]), tmp_path / "out")


def test_a_hostile_tar_reaches_no_file_outside(tmp_path):
    body = json_gz_bytes([1, 2, 3])
    entries = [
        TarEntry("../../out.json.gz", body),
        TarEntry("/etc/out.json.gz", body),
        TarEntry("link.json.gz", kind=tarfile.SYMTYPE, target="/etc/passwd"),
        TarEntry("hard.json.gz", kind=tarfile.LNKTYPE, target="/etc/passwd"),
        TarEntry("device.json.gz", kind=tarfile.BLKTYPE),
        TarEntry("pipe.json.gz", kind=tarfile.FIFOTYPE),
    ]
    path = write_tar(tmp_path / "h.tar", entries, tarfile.PAX_FORMAT)

    survey = survey_tars([path])
    contexts = contexts_of(survey, tmp_path / "work")

    assert survey.tokens == 6
    assert contexts.tolist() == [[1, 2, 3], [1, 2, 3]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["h.tar", "work"]


def test_a_damaged_tar_is_an_error_that_names_the_offset(tmp_path):
    path = write_tar(tmp_path / "h.tar", [npy("a.npy", [1, 2]), npy("b.npy", [3, 4])])
    data = bytearray(path.read_bytes())
    data[124:136] = b"77777777777\0"  # the size of the first member
    path.write_bytes(data)

    with pytest.raises(FormatError, match=r"h\.tar, offset 0"):
        survey_tars([path])


# Samples with their tokens in different formats: one format would be read, the others lost


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param(
            [npy("0.npy", [1, 2]), json_gz("1.json.gz", [3, 4]), json_gz("2.json.gz", [5, 6])],
            id="npy, then json.gz",
        ),
        pytest.param(
            [TarEntry("0.json", b"[1, 2]"), json_gz("1.json.gz", [3, 4])], id="json and json.gz"
        ),
        pytest.param([json_gz("0.json.gz", [1, 2]), npy("1.npy", [3, 4])], id="json.gz, then npy"),
        pytest.param(
            [
                TarEntry("0.txt", b"[1, 2]"),
                TarEntry("1.txt", b"[3, 4]"),
                TarEntry("2.json", b"[5, 6]"),
            ],
            id="txt and json",
        ),
        pytest.param(
            [npy("0.npy", [1, 2]), TarEntry("0.json", b"{}"), TarEntry("1.json", b"[3, 4]")],
            id="npy with a description, and json",
        ),
        pytest.param([npy("0.npy", [1, 2]), npy("1.tokens.npy", [3, 4])], id="npy and tokens.npy"),
        pytest.param([npy("a/0.npy", [1, 2]), json_gz("b/0.json.gz", [3, 4])], id="in two folders"),
        pytest.param(
            [
                TarEntry("README.md", b"#"),
                npy("0.npy", [1, 2]),
                json_gz("1.JSON.GZ", [3, 4]),
            ],
            id="in capital letters",
        ),
        pytest.param(
            [json_gz("0.json.gz", [1, 2]), TarEntry("1.npy", b"damaged")], id="a damaged npy"
        ),
    ],
)
def test_samples_with_tokens_in_different_formats_are_refused(tmp_path, entries):
    path = write_tar(tmp_path / "a.tar", entries)

    with pytest.raises(FormatError, match="different kinds") as caught:
        survey_tars([path])

    assert "a.tar, offset" in str(caught.value)
    assert "--data-key" in str(caught.value)


def test_another_format_in_a_later_tar_is_refused(tmp_path):
    first = write_tar(tmp_path / "a.tar", [npy("0.npy", [1, 2])])
    later = write_tar(tmp_path / "b.tar", [npy("0.npy", [3, 4]), TarEntry("1.json", b"[5, 6]")])

    with pytest.raises(FormatError, match=r"different kinds.*b\.tar|b\.tar.*different kinds"):
        survey_tars([first, later])


def test_samples_without_the_data_key_are_counted_and_reported(tmp_path):
    entries = [
        npy("0.npy", [1, 2]),
        TarEntry("1.json", b"[3, 4]"),
        TarEntry("2.json", b"[5, 6]"),
    ]
    path = write_tar(tmp_path / "a.tar", entries)

    survey = survey_tars([path], data_key="npy")

    (tar,) = survey.tars
    message = "2 members without tokens passed over, such as '1.json' in a.tar"
    assert tar.contexts == 1
    assert tar.passed_over == 2
    assert message in passed_over_text([survey])


# Members that are no samples

OTHER_MEMBERS = [
    TarEntry("._0.json.gz", b"\0\5\x16\7"),
    TarEntry("._x", b"\0\5\x16\7"),
    TarEntry(".DS_Store", b"x"),
    TarEntry("x/.DS_Store", b"x"),
    TarEntry("__MACOSX/._0.json.gz", b"x"),
    TarEntry("README.md", b"# tars"),
    TarEntry("README", b"tars"),
    TarEntry("LICENSE.txt", b"MIT"),
    TarEntry("info.json", b'{"tokens": 4}'),
    TarEntry("__meta__.json", b"{}"),
    TarEntry("folder", kind=tarfile.DIRTYPE),
    TarEntry("folder.npy", kind=tarfile.DIRTYPE),
    TarEntry("link.json.gz", kind=tarfile.SYMTYPE, target="0.json.gz"),
]
"""What macOS, people and other tools add to tars."""


@pytest.mark.parametrize("index", [0, 1, 2], ids=["before", "between", "after"])
@pytest.mark.parametrize("entry", OTHER_MEMBERS, ids=lambda entry: entry.name)
def test_members_that_are_no_samples_are_passed_over_and_counted(tmp_path, entry, index):
    entries = [json_gz("0.json.gz", [1, 2]), json_gz("1.json.gz", [3, 4])]
    entries.insert(index, entry)
    path = write_tar(tmp_path / "a.tar", entries, tarfile.PAX_FORMAT)

    survey = survey_tars([path])
    contexts = contexts_of(survey, tmp_path / "out")

    (tar,) = survey.tars
    assert contexts.tolist() == [[1, 2], [3, 4]]
    assert tar.passed_over == 1
    assert tar.passed_over_example.rstrip("/") == entry.name


def test_a_hidden_member_does_not_divide_the_sample_around_it(tmp_path):
    entries = [
        TarEntry("0.json", b"{}"),
        TarEntry("._0.npy", b"x"),
        npy("0.npy", [1, 2]),
        TarEntry("1.json", b"{}"),
        npy("1.npy", [3, 4]),
    ]
    path = write_tar(tmp_path / "a.tar", entries)

    contexts = contexts_of(survey_tars([path]), tmp_path / "out")

    assert contexts.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("name", ["._0.npy", ".DS_Store", "README.md"])
def test_a_loader_passes_over_members_that_are_no_samples(tmp_path, name):
    entries = [TarEntry(name, b"x"), npy("0.npy", [1, 2]), json_gz("1.json.gz", [3, 4])]
    path = write_tar(tmp_path / "a.tar", entries)

    contexts = [context.tolist() for context in iterate_shard(path)]

    assert contexts == [[1, 2], [3, 4]]


def test_two_members_with_one_name_are_refused_as_webdataset_does(tmp_path):
    path = write_tar(tmp_path / "a.tar", [npy("0.npy", [1, 2]), npy("0.npy", [3, 4])])

    with pytest.raises(FormatError, match="same extension"):
        survey_tars([path])
