"""Some documents of a corpus in a bucket are compared with their tokens.

This does not read a file again for each of these documents.
"""

from __future__ import annotations

import gzip
import random
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.buckets import RawText, upload_raw
from helpers.building import make_dataset, make_inventory, make_shards
from helpers.inspecting import verify_at, verify_output
from helpers.s3_server import bytes_answered, new_bucket
from helpers.sample_project import EOD, jsonl
from nanoset_core.errors import SourceChangedError
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.verify import SAMPLED_DOCUMENTS
from nanoset_core.storage.stores.s3.store import S3Store

CONFIG = """\
raw: {raw}
root: data
tokenizer: {{path: tokenizer.json, eod: "{eod}"}}
tokenization: {{append_eod: true, range_mib: 8, workers: 1}}
nanosets: {{plain: {{blend: web, sequence_length: 16, split: "1"}}}}
storage: {{endpoint_url: {endpoint!r}}}
"""


def rows() -> list[dict[str, str]]:
    """Return 3 MB of text that does not get much smaller when it is compressed."""
    rng = random.Random(5)
    return [{"id": f"web-{number}", "text": rng.randbytes(700).hex()} for number in range(2000)]


def write_parquet(path: Path) -> None:
    """Write a Parquet file of one row group."""
    pq.write_table(pa.Table.from_pylist(rows()), path)


def write_parquet_with_row_groups(path: Path) -> None:
    """Write a Parquet file of several row groups."""
    pq.write_table(pa.Table.from_pylist(rows()), path, row_group_size=300)


def write_arrow(path: Path) -> None:
    """Write an Arrow file."""
    table = pa.Table.from_pylist(rows())
    with pa.ipc.new_file(path, table.schema) as file:
        file.write_table(table)


def write_gzip(path: Path) -> None:
    """Write compressed JSON lines."""
    path.write_bytes(gzip.compress(jsonl(rows()), 1))


def write_jsonl(path: Path) -> None:
    """Write JSON lines."""
    path.write_bytes(jsonl(rows()))


FORMATS = {
    "whole.parquet": write_parquet,
    "groups.parquet": write_parquet_with_row_groups,
    "rows.arrow": write_arrow,
    "packed.jsonl.gz": write_gzip,
    "plain.jsonl": write_jsonl,
}
"""Name of the file → the function that writes it."""


class CorpusInBucket(NamedTuple):
    """A project whose only corpus is a file in a bucket."""

    project: Project
    file: Path
    """The file on this machine."""


def write_corpus(folder: Path, name: str, place: S3Store, tokenizer_file: Path) -> CorpusInBucket:
    """Upload a file of FORMATS as the corpus `web`, and open a project on it.

    Args:
        folder: Receives the project.
        name: Name of the file.
        place: A place in the bucket.
        tokenizer_file: The tokenizer.
    """
    file = folder / "raw" / "web" / name
    file.parent.mkdir(parents=True)
    FORMATS[name](file)
    raw_url = upload_raw(folder / "raw", place).url()
    settings = CONFIG.format(raw=raw_url, endpoint=place.endpoint_url, eod=EOD)
    (folder / "nanoset.yaml").write_text(settings)
    (folder / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    return CorpusInBucket(Project.open(folder / "nanoset.yaml"), file)


def test_a_table_that_was_replaced_since_its_inventory_is_refused(place, tmp_path, tokenizer_file):
    project, file = write_corpus(tmp_path, "rows.arrow", place, tokenizer_file)
    make_inventory(project, "web")
    text = rows()[0]["text"].encode()
    reversed_text = text[::-1]
    file.write_bytes(file.read_bytes().replace(text, reversed_text))
    upload_raw(file.parents[1], place)

    with pytest.raises(SourceChangedError, match="not as the inventory found it"):
        make_shards(project, "web")


class BuiltCorpus(NamedTuple):
    """A project whose only corpus was built from a file in a bucket."""

    project: RawText
    file_bytes: int
    """Size of the file."""
    bytes_for_shards: int
    """How many bytes of the bucket were read to make the shards."""


@pytest.fixture(scope="module", params=FORMATS)
def built_corpus(
    request: pytest.FixtureRequest,
    endpoint: str,
    tmp_path_factory: pytest.TempPathFactory,
    tokenizer_file: Path,
) -> BuiltCorpus:
    """The corpus of a file of each format."""
    place = new_bucket(endpoint)
    folder = tmp_path_factory.mktemp("corpus")
    project, file = write_corpus(folder, request.param, place, tokenizer_file)
    make_inventory(project, "web")

    n_bytes_before = bytes_answered[endpoint]
    make_shards(project, "web")
    bytes_for_shards = bytes_answered[endpoint] - n_bytes_before

    make_dataset(project, "web")
    raw_text = RawText.of(project.config.file, place)
    return BuiltCorpus(raw_text, file.stat().st_size, bytes_for_shards)


def test_making_shards_reads_a_file_for_its_documents_and_not_for_its_digest(built_corpus):
    assert built_corpus.bytes_for_shards / built_corpus.file_bytes < 1.6


# The check of a build, and that of `nanoset verify`.
@pytest.mark.parametrize(
    ("verify", "output"), [(verify_at, "datasets/web"), (verify_output, "web")]
)
def test_a_file_is_not_read_again_for_each_sampled_document(
    built_corpus, verify, output, endpoint, place, tmp_path
):
    project = Project.open(built_corpus.project.copy_to(tmp_path / "copy", place))
    n_bytes_before = bytes_answered[endpoint]

    report = verify(project, output)

    n_bytes = bytes_answered[endpoint] - n_bytes_before
    assert report.passed
    assert report.figures["documents_compared"] == SAMPLED_DOCUMENTS
    assert n_bytes / built_corpus.file_bytes < 1.5
