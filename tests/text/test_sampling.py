"""Guesses from the first lines of a corpus: keys of its texts and ids, and its size."""

from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.sample_project import encoded, jsonl
from nanoset_core.text.files.contents import contents_of
from nanoset_core.text.line_keys import keys_of
from nanoset_core.text.sampling import expansion, measure

TEXT = "some text of a document "
FILE_NAMES = ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet", "a.arrow", "a.stream.arrow"]
"""Names of the files of each format; see `encoded`."""


# Keys of texts and ids


@pytest.mark.parametrize(
    ("row", "text_key", "id_key"),
    [
        pytest.param({"text": TEXT, "title": "t", "id": "1"}, "text", "id", id="usual names"),
        pytest.param({"id": 7, "content": TEXT, "path": "p"}, "content", "id", id="a number as id"),
        pytest.param(
            {"data": {"text": TEXT, "lang": "en"}, "meta": {"url": "u"}},
            "data.text",
            "meta.url",
            id="nested",
        ),
        pytest.param(
            {"abstract": TEXT, "doc_id": "1", "date": "2024"},
            "abstract",
            "doc_id",
            id="the only long text",
        ),
        pytest.param(
            {"review_id": "r1", "review": TEXT}, "review", None, id="an id of its own name"
        ),
        pytest.param({"text": TEXT, "content": TEXT}, "text", None, id="two texts"),
        pytest.param({"text": "", "content": TEXT}, "content", None, id="an empty text"),
        pytest.param({"text": " \n", "abstract": TEXT}, "abstract", None, id="a blank text"),
        pytest.param({"text": ""}, "text", None, id="only an empty text"),
        pytest.param({"text": TEXT, "id": "", "url": "u"}, "text", "url", id="an empty id"),
        pytest.param({"question": "q", "answer": "a"}, None, None, id="two short texts"),
        pytest.param(
            {"messages": [{"role": "user", "content": TEXT}]}, None, None, id="a conversation"
        ),
    ],
)
@pytest.mark.parametrize("name", FILE_NAMES)
def test_keys_are_suggested_by_their_names_and_values(tmp_path, name, row, text_key, id_key):
    (tmp_path / name).write_bytes(encoded(name, [row] * 5, part=3))

    keys = keys_of(tmp_path, contents_of(tmp_path))

    assert keys.text == text_key
    assert keys.id == id_key


def test_a_column_whose_values_python_cannot_hold_is_no_obstacle(tmp_path):
    far_dates = pa.array([1, 2**60], pa.int64()).cast(pa.date64())
    table = pa.table({"date": far_dates, "text": ["a", "b"]})
    pq.write_table(table, tmp_path / "a.parquet")

    assert keys_of(tmp_path, contents_of(tmp_path)).text == "text"


@pytest.mark.parametrize(
    ("row", "text_key", "id_key"),
    [
        pytest.param({"id": "7", "content": TEXT}, "content", "id", id="usual names"),
        pytest.param({"stars": "5", "review": TEXT}, "review", None, id="a column of numbers"),
        pytest.param({"question": "q", "answer": "a"}, None, None, id="two short texts"),
    ],
)
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.zst"])
def test_keys_of_csv_files_are_suggested_by_the_header_and_values(
    tmp_path, name, row, text_key, id_key
):
    (tmp_path / name).write_bytes(encoded(name, [row] * 5, part=3))

    keys = keys_of(tmp_path, contents_of(tmp_path))

    assert keys.text == text_key
    assert keys.id == id_key


@pytest.mark.parametrize(
    ("row_with_text", "row_without_text", "text_key"),
    [
        pytest.param({"text": TEXT, "kind": "x"}, {"text": None, "kind": "x"}, "text", id="null"),
        pytest.param({"text": TEXT, "kind": "x"}, {"kind": "x"}, "text", id="no key"),
        pytest.param({"text": TEXT, "code": "de"}, {"code": "de"}, "text", id="two usual names"),
        pytest.param({"text": TEXT, "title": TEXT * 9}, {"title": "t"}, "text", id="a long title"),
        pytest.param({"text": "a", "tale": TEXT}, {"tale": TEXT}, None, id="a short text"),
        pytest.param({"review": TEXT, "kind": "x"}, {"kind": "x"}, None, id="no usual name"),
        pytest.param({"review": TEXT, "note": "x"}, {"review": TEXT}, "review", id="a note"),
        pytest.param({"content": TEXT, "html": TEXT * 9}, {"content": TEXT}, "content", id="html"),
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_key_of_labels_is_not_preferred_to_texts_that_some_rows_lack(
    tmp_path, name, row_with_text, row_without_text, text_key
):
    # Every fifth row has no text.
    (tmp_path / name).write_bytes(encoded(name, [*[row_with_text] * 4, row_without_text] * 5, 9))

    keys = keys_of(tmp_path, contents_of(tmp_path))

    assert keys.text == text_key


def test_an_id_that_some_rows_lack_is_found(tmp_path):
    rows = [*[{"text": TEXT, "doc_id": "7"}] * 4, {"text": TEXT}]
    (tmp_path / "a.jsonl").write_bytes(jsonl(rows))

    assert keys_of(tmp_path, contents_of(tmp_path)).id == "doc_id"


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_a_column_of_texts_some_of_which_are_numbers_is_one_of_texts(tmp_path, name):
    rows = [*[{"kind": "x", "text": TEXT}] * 4, {"kind": "x", "text": " 7"}] * 5
    (tmp_path / name).write_bytes(encoded(name, rows, 9))

    keys = keys_of(tmp_path, contents_of(tmp_path))

    assert keys.text == "text"
    assert str(keys) == "kind, text"


def test_a_column_of_numbers_may_have_empty_fields_and_a_few_texts(tmp_path):
    grades = [*["5"] * 12, *[""] * 7, "n/a"]
    rows = [{"grade": grade, "review": TEXT} for grade in grades]
    (tmp_path / "a.csv").write_bytes(encoded("a.csv", rows, 9))

    keys = keys_of(tmp_path, contents_of(tmp_path))

    assert keys.text == "review"
    assert str(keys) == "review, grade (int)"


def test_txt_files_have_no_keys_and_hide_none_of_csv_files(tmp_path):
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text(TEXT)
    assert keys_of(tmp_path, contents_of(tmp_path)).texts == {}

    (tmp_path / "z.csv").write_bytes(encoded("z.csv", [{"body": TEXT}], part=1))

    assert keys_of(tmp_path, contents_of(tmp_path)).text == "body"


def test_files_and_lines_that_cannot_be_read_are_skipped(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(b"no gzip")
    (tmp_path / "b.jsonl").write_bytes(jsonl([{"content": TEXT}, {"content": TEXT, "note": "x"}]))
    (tmp_path / "c.jsonl").write_bytes(b"[1]\nnot json\n")

    keys = keys_of(tmp_path, contents_of(tmp_path))

    assert keys.text == "content"
    assert str(keys) == "content, note (a text in 1 of 2 lines)"


# The size of the whole

N_DOCUMENTS = 4000


@pytest.fixture(scope="module")
def several_mib_of_rows():
    """Documents of 200 random numbers each: four samples of 1 MiB."""
    numbers = Random(1)
    rows = []
    for _ in range(N_DOCUMENTS):
        words = [str(numbers.randrange(10_000)) for _ in range(200)]
        rows.append({"text": " ".join(words)})
    return rows


@pytest.mark.parametrize("name", [*FILE_NAMES, "a.csv", "a.tsv.gz"])
def test_the_number_of_documents_is_estimated_by_a_sample(tmp_path, several_mib_of_rows, name):
    (tmp_path / name).write_bytes(encoded(name, several_mib_of_rows, part=500))

    sample = measure(tmp_path, contents_of(tmp_path), "text")

    estimate = sample.documents * sample.scale
    assert sample.documents < N_DOCUMENTS / 2
    assert 0.7 < estimate / N_DOCUMENTS < 1.4
    assert len(sample.text) > 1000


def test_the_number_of_documents_is_estimated_for_many_txt_files(tmp_path):
    for number in range(300):
        (tmp_path / f"{number}.txt").write_text(TEXT * 500)

    sample = measure(tmp_path, contents_of(tmp_path), "text")

    assert sample.documents < 150
    assert 290 < sample.documents * sample.scale < 310


# How well files compress


def expansion_of(folder) -> float:
    """Return the estimate for all files of a folder."""
    return expansion(folder, contents_of(folder).texts)


def rows_of_some_variety(count: int) -> list[dict[str, object]]:
    """Return documents with random digits, which compress to about half of their size."""
    random = Random(5)
    return [{"text": str(random.getrandbits(2000))} for _ in range(count)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.parquet"])
def test_files_that_are_not_compressed_are_as_large_as_their_text(tmp_path, name):
    (tmp_path / name).write_bytes(encoded(name, rows_of_some_variety(10), part=5))

    assert expansion_of(tmp_path) == 1


@pytest.mark.parametrize("ending", ["gz", "zst"])
@pytest.mark.parametrize(
    ("n_rows", "error"),
    [pytest.param(100, 0, id="a small file"), pytest.param(8000, 0.05, id="a large file")],
)
def test_the_text_of_compressed_files_is_estimated_by_their_beginning(
    tmp_path, ending, n_rows, error
):
    rows = rows_of_some_variety(n_rows)
    data = encoded(f"a.jsonl.{ending}", rows, part=n_rows // 2)
    (tmp_path / f"a.jsonl.{ending}").write_bytes(data)

    assert expansion_of(tmp_path) == pytest.approx(len(jsonl(rows)) / len(data), rel=error)


def test_files_of_both_kinds_are_averaged_by_their_size(tmp_path):
    rows = rows_of_some_variety(100)
    compressed = encoded("a.jsonl.gz", rows, part=50)
    (tmp_path / "a.jsonl.gz").write_bytes(compressed)
    (tmp_path / "b.jsonl").write_bytes(jsonl(rows))

    text_bytes = 2 * len(jsonl(rows))
    stored_bytes = len(compressed) + len(jsonl(rows))
    assert expansion_of(tmp_path) == pytest.approx(text_bytes / stored_bytes)


def test_files_that_cannot_be_decompressed_count_as_they_are(tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(b"no gzip data")
    (tmp_path / "b.jsonl.zst").write_bytes(b"")

    assert expansion_of(tmp_path) == 1
