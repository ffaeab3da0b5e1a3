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
@pytest.mark.parametrize("more", ["", ", scratch_mib: 16"], ids=["copies stay", "bounded"])
def test_text_is_read_twice_and_tokens_are_read_once_by_each_who_reads_them_all(
    endpoint, tmp_path, tokenizer_file, more
):
    draw = random.Random(5)
    rows = [{"id": f"web-{number}", "text": draw.randbytes(700).hex()} for number in range(1000)]
    how = {"ending": "jsonl", "range_mib": 0.5, "more": more}
    config = wire.write_project(tmp_path / "project", endpoint, rows, tokenizer_file, **how)
    passed = {(name, what): found for name, what, found in wire.by_stage(config)}
    text, tokens = wire.sizes(config)
    times = defaultdict(float, {at: found.down / tokens for at, found in passed.items()})
    assert [passed[name, "made"].text / text for name in ("raw_jsonl", "tokenized_shards")] == [
        1,
        1,
    ]
    assert times.pop(("indexed_dataset", "made")) < 1.1, (
        "shards below 5 MiB pass through this process"
    )
    for name, what, most in (
        ("indexed_dataset", "checked", 1),
        ("index_mappings", "checked", 0),
        ("packed_dataset", "made", 0),
        ("packed_dataset", "checked", 1.1),
        ("shuffle_plan", "made", 0),
        ("tars", "made", 0),
    ):
        assert times[name, what] < most + 0.05, (name, what)
    of_tars = times.pop(("tars", "checked")) + times.pop(("manifest", "checked"))
    assert of_tars < 0.1 or more, "where room is scarce, up to eight, and one a group, are fetched"
    assert times.pop(("nanoset verify", "checked")) < 4
    of_tars = sum(file["size_bytes"] for file in wire.tars(config)) / tokens
    deep = times.pop(("nanoset verify --deep", "checked")) - of_tars
    assert deep < 5.6, (
        "shards and pack once, the dataset beside its pack, and by itself, as one of less than 5 "
        "MiB twice"
    )
    assert sum(times.values()) < 2.5


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
