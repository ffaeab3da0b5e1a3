"""Bytes that are transferred while a project with text and outputs in a bucket is built: no step
reads the text or the tokens more often than it has to.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from benchmarks import wire
from helpers.chosen_server import SERVER
from helpers.s3_server import total_bytes
from helpers.token_sources import plan_of, source_in_file, write_tars
from nanoset_core.stages.webdataset.sources import STORED_ROW_BYTES, TokenSource
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.reading.mapped_files import BlockFile
from nanoset_core.storage.stores.s3.store import S3Store

LENGTH = 513
"""Tokens of a context."""
N_CONTEXTS = 240
N_TARS = 12


# All steps of a build


class StepKey(NamedTuple):
    """Names a step of a build or verification."""

    name: str
    """Of the asset or the command."""
    action: str
    """`made` or `checked`."""


MAX_READINGS = {
    StepKey("indexed_dataset", "checked"): 1.0,
    StepKey("index_mappings", "checked"): 0.0,
    StepKey("packed_dataset", "made"): 0.0,
    StepKey("packed_dataset", "checked"): 1.1,
    StepKey("shuffle_plan", "made"): 0.0,
    StepKey("tars", "made"): 0.0,
}
"""How many times a step may read all tokens."""
FEW_BYTES = 0.05
"""What a step may read in addition, as a fraction of the tokens: manifests and the like."""


def incompressible_documents() -> list[dict[str, str]]:
    """Return a thousand documents of random text."""
    random_bytes = random.Random(5)
    documents: list[dict[str, str]] = []
    for number in range(1000):
        text = random_bytes.randbytes(700).hex()
        documents.append({"id": f"web-{number}", "text": text})
    return documents


@pytest.mark.slow
@pytest.mark.skipif(SERVER != "moto", reason="only a server in this process counts bytes")
@pytest.mark.parametrize(
    ("scratch_mib", "workers"),
    [
        pytest.param(None, 1, id="copies are kept"),
        pytest.param(16, 2, id="little disk space"),
    ],
)
def test_text_is_read_twice_and_tokens_once_by_each_step_that_reads_them_all(
    endpoint, tmp_path, tokenizer_file, scratch_mib, workers
):
    config = wire.write_project(
        tmp_path / "project",
        endpoint,
        incompressible_documents(),
        tokenizer_file,
        range_mib=0.5,
        scratch_mib=scratch_mib,
        workers=workers,
    )

    traffic_by_step: dict[StepKey, wire.Traffic] = {}
    for step in wire.build_and_verify(config):
        traffic_by_step[StepKey(step.name, step.action)] = step.traffic

    # Text is read once to list it, and once to tokenize it.
    sizes = wire.sizes_of(config)
    assert traffic_by_step[StepKey("raw_jsonl", "made")].text_read == sizes.text
    assert traffic_by_step[StepKey("tokenized_shards", "made")].text_read == sizes.text

    # How many times each step reads all tokens of the dataset.
    readings: dict[StepKey, float] = {}
    for key, traffic in traffic_by_step.items():
        readings[key] = traffic.other_read / sizes.tokens
    for key, max_readings in MAX_READINGS.items():
        assert readings[key] < max_readings + FEW_BYTES, key

    # Shards below 5 MiB cannot be joined in the bucket, so they pass through this process.
    assert readings.pop(StepKey("indexed_dataset", "made")) < 1.1

    # If disk space is limited, up to eight tars, and one of each group, are downloaded.
    tar_checks = readings.pop(StepKey("tars", "checked"))
    manifest_checks = readings.pop(StepKey("manifest", "checked"))
    if scratch_mib is None:
        assert tar_checks + manifest_checks < 0.1
    assert readings.pop(StepKey("nanoset verify", "checked")) < 4

    # A deep verification reads the tars, the shards and the .pbin once. It reads the dataset for
    # the .pbin and on its own, and each time twice because it has less than 5 MiB.
    tar_sizes = [tar["size_bytes"] for tar in wire.written_tars(config)]
    deep_readings = readings.pop(StepKey("nanoset verify --deep", "checked"))
    assert deep_readings - sum(tar_sizes) / sizes.tokens < 5.6

    # All other steps together.
    assert sum(readings.values()) < 2.5


# The tokens of tars


@pytest.fixture
def local_tokens(tmp_path: Path) -> TokenSource:
    """The tokens of all contexts in a local file."""
    n_tokens = N_CONTEXTS * LENGTH
    tokens = np.random.default_rng(5).integers(0, 50_000, n_tokens).astype(np.uint16)
    return source_in_file(tmp_path, "web", tokens)


@pytest.fixture
def remote_tokens(local_tokens: TokenSource, place: S3Store, tmp_path: Path) -> TokenSource:
    """The same tokens in the bucket, without a working copy."""
    place.put_file("web.bin", local_tokens.path)
    copies = tmp_path / "copies"
    access = FileAccess(copies, place)
    return TokenSource("web", copies / "web.bin", "uint16", local_tokens.count, access)


def set_max_kept_bytes(monkeypatch: pytest.MonkeyPatch, n_bytes: int) -> None:
    """Set up to how many bytes of tokens a process keeps after it has written some tars."""
    monkeypatch.setattr("nanoset_core.stages.webdataset.gathering.MAX_KEPT_BYTES", n_bytes)
    monkeypatch.setattr("nanoset_core.stages.webdataset.stored_rows.MAX_KEPT_BYTES", n_bytes)


def write_tars_twice(local_tokens: TokenSource, remote_tokens: TokenSource, folder: Path) -> None:
    """Write tars of tokens in a bucket in two runs, and check that they are those of local tokens."""
    plan = plan_of([local_tokens], sequence_length=LENGTH, samples_per_shard=N_CONTEXTS // N_TARS)
    for tars in (range(N_TARS // 2), range(N_TARS // 2, N_TARS)):
        write_tars(plan, [remote_tokens], folder / "remote", tars, memory_bytes=1 << 30)
    write_tars(plan, [local_tokens], folder / "local")

    for tar in (folder / "local").glob("*.tar"):
        assert (folder / "remote" / tar.name).read_bytes() == tar.read_bytes(), tar.name


def test_few_tokens_are_read_once_and_kept_for_the_next_tars(
    local_tokens, remote_tokens, tmp_path, ranges, monkeypatch
):
    set_max_kept_bytes(monkeypatch, 64 << 20)

    write_tars_twice(local_tokens, remote_tokens, tmp_path)

    assert total_bytes(ranges) <= 1.01 * remote_tokens.bytes


def test_many_tokens_are_read_again_for_the_next_tars(
    local_tokens, remote_tokens, tmp_path, ranges, monkeypatch
):
    set_max_kept_bytes(monkeypatch, 0)

    write_tars_twice(local_tokens, remote_tokens, tmp_path)

    assert total_bytes(ranges) > 1.5 * remote_tokens.bytes


# Rows of an object that are far apart, or close together

ROW_BYTES = 32 << 10
OBJECT_BYTES = 4 << 20


@pytest.mark.parametrize(
    ("n_rows", "max_readings"),
    [
        pytest.param(8, 1.3, id="far apart: each row by itself"),
        pytest.param(90, 1.7, id="close together: with the gaps between them"),
    ],
)
def test_rows_are_fetched_with_few_requests_and_few_needless_bytes(
    place, tmp_path, ranges, n_rows, max_readings
):
    data = np.random.default_rng(5).bytes(OBJECT_BYTES)
    place.put("tokens", data)
    gap_bytes = STORED_ROW_BYTES - (8 << 10)
    blocks = BlockFile(place, "tokens", tmp_path, block_bytes=4 << 10, gap_bytes=gap_bytes)
    starts = np.linspace(5, OBJECT_BYTES - ROW_BYTES, n_rows).astype(np.int64)
    ranges.clear()

    blocks.fetch(starts, starts + ROW_BYTES)

    assert total_bytes(ranges) < max_readings * n_rows * ROW_BYTES
    assert len(ranges) <= min(n_rows, OBJECT_BYTES >> 16)
    for start in starts.tolist():
        stop = start + ROW_BYTES
        assert blocks[start:stop] == data[start:stop]
