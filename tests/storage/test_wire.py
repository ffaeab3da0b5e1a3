"""What passes the wire while a project is built with text and outputs in a bucket: each byte as
often as promised.
"""

from __future__ import annotations

import hashlib
import random
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from helpers.chosen_server import SERVER
from helpers.s3_server import total_bytes
from helpers.token_sources import plan_of, source_in_file, write_tars
from nanoset_core.stages.webdataset.sources import STORED_ROW_BYTES, TokenSource
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.mapped_files import BlockFile

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks import wire

LENGTH = 513


@pytest.mark.skipif(SERVER != "moto", reason="only a server in this process counts")
@pytest.mark.parametrize("scratch_mib", [None, 16], ids=["copies stay", "bounded"])
def test_text_is_read_twice_and_tokens_once_by_each_step_that_reads_them_all(
    endpoint, tmp_path, tokenizer_file, scratch_mib
):
    random_bytes = random.Random(5)
    rows = []
    for number in range(1000):
        rows.append({"id": f"web-{number}", "text": random_bytes.randbytes(700).hex()})
    config = wire.write_project(
        tmp_path / "project",
        endpoint,
        rows,
        tokenizer_file,
        range_mib=0.5,
        scratch_mib=scratch_mib,
    )

    traffic_by_step = {}
    for step in wire.build_and_verify(config):
        traffic_by_step[step.name, step.action] = step.traffic

    sizes = wire.sizes_of(config)
    assert traffic_by_step["raw_jsonl", "made"].text_read == sizes.text
    assert traffic_by_step["tokenized_shards", "made"].text_read == sizes.text

    # How many times each step reads all tokens of the dataset.
    readings: dict[tuple[str, str], float] = defaultdict(float)
    for name_and_action, traffic in traffic_by_step.items():
        readings[name_and_action] = traffic.other_read / sizes.tokens
    for name, action, limit in (
        ("indexed_dataset", "checked", 1),
        ("index_mappings", "checked", 0),
        ("packed_dataset", "made", 0),
        ("packed_dataset", "checked", 1.1),
        ("shuffle_plan", "made", 0),
        ("tars", "made", 0),
    ):
        assert readings[name, action] < limit + 0.05, (name, action)

    # Shards below 5 MiB cannot be joined in the bucket, so they pass through this process.
    assert readings.pop(("indexed_dataset", "made")) < 1.1

    # If scratch space is bounded, up to eight tars, and one of each group, are downloaded.
    of_tars = readings.pop(("tars", "checked")) + readings.pop(("manifest", "checked"))
    if scratch_mib is None:
        assert of_tars < 0.1
    assert readings.pop(("nanoset verify", "checked")) < 4

    # A deep check reads the tars, the shards and the .pbin once. It reads the dataset next to the
    # .pbin and by itself, and twice because it has less than 5 MiB.
    sizes_of_tars = [file["size_bytes"] for file in wire.written_tars(config)]
    deep = readings.pop(("nanoset verify --deep", "checked"))
    assert deep - sum(sizes_of_tars) / sizes.tokens < 5.6

    # All other steps together.
    assert sum(readings.values()) < 2.5


@pytest.mark.parametrize("most_kept", [64 << 20, 0], ids=["stay", "go"])
def test_tokens_that_are_read_in_the_bucket_stay_until_the_next_tars_where_they_are_few(
    place, tmp_path, ranges, monkeypatch, most_kept
):
    monkeypatch.setattr("nanoset_core.stages.webdataset.gathering.STORED_BYTES", most_kept)
    monkeypatch.setattr("nanoset_core.stages.webdataset.stored_rows.STORED_BYTES", most_kept)
    tokens = np.random.default_rng(5).integers(0, 50_000, LENGTH * 600).astype(np.uint16)
    here = source_in_file(tmp_path, "web", tokens)
    place.put_file("web.bin", here.path)
    there = TokenSource(
        "web",
        tmp_path / "copies" / "web.bin",
        "uint16",
        len(tokens),
        FileAccess(tmp_path / "copies", place),
    )
    plan = plan_of([here], sequence_length=LENGTH, samples_per_shard=50)
    for shards in (range(6), range(6, 12)):
        write_tars(plan, [there], tmp_path / "out", shards, memory_bytes=1 << 30)
    write_tars(plan, [here], tmp_path / "local")
    for tar in (tmp_path / "local").glob("*.tar"):
        assert (
            hashlib.sha256((tmp_path / "out" / tar.name).read_bytes()).digest()
            == hashlib.sha256(tar.read_bytes()).digest()
        )
    times = total_bytes(ranges) / (2 * len(tokens))
    assert times <= 1.01 if most_kept else times > 1.5


def test_long_rows_are_fetched_by_themselves_and_short_gaps_with_them(place, tmp_path, ranges):
    data, row = np.random.default_rng(5).bytes(4 << 20), 32 << 10
    place.put("tokens", data)
    for count, most in ((8, 1.3), (90, 1.7)):
        blocks = BlockFile(
            place, "tokens", tmp_path, block_bytes=4 << 10, gap_bytes=STORED_ROW_BYTES - (8 << 10)
        )
        begins = np.linspace(5, len(data) - row, count).astype(np.int64)
        ranges.clear()
        blocks.fetch(begins, begins + row)
        assert total_bytes(ranges) < most * count * row
        assert len(ranges) <= min(count, len(data) >> 16)
        for begin in begins.tolist():
            assert blocks[begin : begin + row] == data[begin : begin + row]
