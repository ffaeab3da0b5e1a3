"""Documents of a corpus in a bucket that are compared with their tokens: their files are not read
again for each.
"""

from __future__ import annotations

import gzip
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.buckets import upload_raw
from helpers.building import make_dataset, make_inventory, make_shards
from helpers.s3_server import bytes_answered
from helpers.sample_project import EOD, jsonl
from nanoset_core.errors import SourceChangedError
from nanoset_core.project.project import Project
from nanoset_core.project.verify import verify_output
from nanoset_core.stages.dataset.verify import SAMPLED_DOCUMENTS, verify_corpus_dataset

CONFIG = """\
raw: {raw}
root: data
tokenizer: {{path: tokenizer.json, eod: "{eod}"}}
tokenization: {{append_eod: true, range_mib: 8, workers: 1}}
nanosets: {{plain: {{blend: web, sequence_length: 16, split: "1"}}}}
storage: {{endpoint_url: {endpoint!r}}}
"""


def rows() -> list[dict[str, str]]:
    """3 MB of text that does not get much smaller when it is compressed."""
    draw = random.Random(5)
    return [{"id": f"web-{n}", "text": draw.randbytes(700).hex()} for n in range(2000)]


def _parquet(path, **options):
    pq.write_table(pa.Table.from_pylist(rows()), path, **options)


def _arrow(path):
    table = pa.Table.from_pylist(rows())
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table)


FORMATS = {
    "whole.parquet": _parquet,
    "groups.parquet": lambda path: _parquet(path, row_group_size=300),
    "rows.arrow": _arrow,
    "packed.jsonl.gz": lambda path: path.write_bytes(gzip.compress(jsonl(rows()), 1)),
    "plain.jsonl": lambda path: path.write_bytes(jsonl(rows())),
}


@pytest.fixture
def project(place, tmp_path, tokenizer_file):
    """A function that uploads a file of the corpus in a format, and opens a project on it; → that,
    and the file.
    """

    def make(name):
        file = tmp_path / "raw" / "web" / name
        file.parent.mkdir(parents=True)
        FORMATS[name](file)
        there = {
            "raw": upload_raw(tmp_path / "raw", place).url(),
            "endpoint": place.endpoint_url,
            "eod": EOD,
        }
        (tmp_path / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
        (tmp_path / "nanoset.yaml").write_text(CONFIG.format(**there))
        return Project.open(tmp_path / "nanoset.yaml"), file

    return make


def test_a_table_that_was_replaced_since_its_inventory_is_refused(project, place):
    opened, file = project("rows.arrow")
    make_inventory(opened, "web")
    text = rows()[0]["text"].encode()
    file.write_bytes(file.read_bytes().replace(text, text[::-1]))
    upload_raw(file.parents[1], place)
    with pytest.raises(SourceChangedError, match="not as the inventory found it"):
        make_shards(opened, "web")


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_is_not_read_again_for_each_sampled_document(name, project, place):
    opened, file = project(name)

    def times_read(do):
        before = bytes_answered[place.endpoint_url]
        report = do(opened, "web")
        return report, (bytes_answered[place.endpoint_url] - before) / file.stat().st_size

    make_inventory(opened, "web")
    assert times_read(make_shards)[1] < 1.6, "for its documents, and not for its digest"
    make_dataset(opened, "web")
    for check in (verify_corpus_dataset, verify_output):  # of a build, and of `nanoset verify`
        report, read = times_read(check)
        assert report.passed
        assert report.figures["documents_compared"] == SAMPLED_DOCUMENTS
        assert read < 1.5
