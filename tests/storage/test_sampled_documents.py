"""Documents of a corpus in a bucket that are compared with their tokens: their files are not read again for each."""

from __future__ import annotations

import gzip
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from s3_server import bytes_answered, upload_raw
from sample_project import EOD, jsonl

from nanoset_core.pipeline import indexed, raw, tokenization
from nanoset_core.pipeline.project import Project
from nanoset_core.verification.corpus import SAMPLED_DOCUMENTS, verify_corpus, verify_indexed

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


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_is_not_read_again_for_each_sampled_document(name, place, tmp_path, tokenizer_file):
    file = tmp_path / "raw" / "web" / name
    file.parent.mkdir(parents=True)
    FORMATS[name](file)
    there = {"raw": upload_raw(tmp_path / "raw", place).url(), "endpoint": place.endpoint_url, "eod": EOD}
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    (tmp_path / "nanoset.yaml").write_text(CONFIG.format(**there))
    project = Project.open(tmp_path / "nanoset.yaml")

    def times_read(do):
        before = bytes_answered[place.endpoint_url]
        report = do(project, "web")
        return report, (bytes_answered[place.endpoint_url] - before) / file.stat().st_size

    raw.make_inventory(project, "web")
    assert times_read(tokenization.tokenize)[1] < 2.5, "for its documents, and for its digest"
    indexed.index(project, "web")
    for check in (verify_indexed, verify_corpus):  # of a build, and of `nanoset verify`
        report, read = times_read(check)
        assert report.passed
        assert report.figures["documents_compared"] == SAMPLED_DOCUMENTS
        assert read < 1.5
