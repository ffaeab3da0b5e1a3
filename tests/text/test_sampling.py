from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.sample_project import encoded, jsonl
from nanoset_core.text.contents import contents_of
from nanoset_core.text.line_keys import keys_of
from nanoset_core.text.measure import measure

TEXT = "some text of a document "


NAMES = ("a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet", "a.arrow", "a.stream.arrow")


@pytest.mark.parametrize(("row", "text", "ident"), [
    ({"text": TEXT, "title": "t", "id": "1"}, "text", "id"),
    ({"id": 7, "content": TEXT, "path": "p"}, "content", "id"),
    ({"data": {"text": TEXT, "lang": "en"}, "meta": {"url": "u"}}, "data.text", "meta.url"),
    ({"abstract": TEXT, "doc_id": "1", "date": "2024"}, "abstract", "doc_id"),
    ({"text": TEXT, "content": TEXT}, "text", None),
    ({"text": "", "content": TEXT}, "content", None),
    ({"text": " \n", "abstract": TEXT}, "abstract", None),
    ({"text": ""}, "text", None),
    ({"text": TEXT, "id": "", "url": "u"}, "text", "url"),
    ({"question": "q", "answer": "a"}, None, None),
    ({"messages": [{"role": "user", "content": TEXT}]}, None, None),
])  # fmt: skip
@pytest.mark.parametrize("name", NAMES)
def test_keys_of_texts_and_ids(tmp_path, name, row, text, ident):
    (tmp_path / name).write_bytes(encoded(name, [row] * 5, 3))
    found = keys_of(tmp_path, contents_of(tmp_path))
    assert (found.text, found.id) == (text, ident)


def test_a_column_that_python_has_no_values_for(tmp_path):
    far = pa.array([1, 2**60], pa.int64()).cast(pa.date64())
    pq.write_table(pa.table({"date": far, "text": ["a", "b"]}), tmp_path / "a.parquet")
    assert keys_of(tmp_path, contents_of(tmp_path)).text == "text"


def test_a_file_that_cannot_be_read_is_passed_over(tmp_path):
    (tmp_path / "b.jsonl").write_bytes(jsonl([{"content": TEXT}, {"content": TEXT, "note": "x"}]))
    (tmp_path / "a.jsonl.gz").write_bytes(b"no gzip")
    (tmp_path / "c.jsonl").write_bytes(b"[1]\nnot json\n")
    found = keys_of(tmp_path, contents_of(tmp_path))
    assert (found.text, str(found)) == ("content", "content, note (str)")


@pytest.mark.parametrize("name", NAMES[:-1])
def test_the_whole_is_estimated_by_what_was_read(tmp_path, name):
    numbers = Random(1)
    rows = [
        {"text": " ".join(str(numbers.randrange(10_000)) for _ in range(200))} for _ in range(6000)
    ]
    (tmp_path / name).write_bytes(encoded(name, rows, 500))
    found = measure(tmp_path, contents_of(tmp_path), "text")
    assert found.documents < 3000
    assert 0.7 < found.documents * found.scale / 6000 < 1.4
    assert len(found.text) > 1000
