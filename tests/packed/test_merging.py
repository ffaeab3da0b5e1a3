import json
import os
import pickle
import resource
import struct
from pathlib import Path

import numpy as np
import pytest

from nanoset_core.errors import ConfigError, FormatError, InputError, MissingError, SourceChangedError
from nanoset_core.packed import PackedDataset, PackedFacts, merge_packed, repair_packed, selection, write_packed
from nanoset_core.packed.layout import open_packed

GOLDEN = Path(__file__).parents[1] / "golden" / "modalities"


def lists(path):
    return [document.tolist() for document in PackedDataset(path)]


def test_a_merge_is_what_packing_in_one_go_gives(tmp_path):
    paths = [GOLDEN / f"{name}.pbin" for name in ("docs", "edge", "u2")]
    facts = merge_packed(paths, tmp_path / "m.pbin")
    documents = [document for path in paths for document in lists(path)]
    write_packed(tmp_path / "w.pbin", documents, token_bytes=2)
    assert (tmp_path / "m.pbin").read_bytes() == (tmp_path / "w.pbin").read_bytes()
    assert facts == PackedFacts(126, sum(map(len, documents)), 2)


def test_the_fault_of_modalities_is_repaired(tmp_path):
    merge_packed([GOLDEN / "docs.pbin", GOLDEN / "edge.pbin"], tmp_path / "right.pbin")
    faulty = (GOLDEN / "merge-buggy-index.pbin").read_bytes()
    (tmp_path / "x.pbin").write_bytes(faulty)
    facts = repair_packed(tmp_path / "x.pbin")
    assert (tmp_path / "x.pbin").read_bytes() == (tmp_path / "right.pbin").read_bytes() != faulty
    assert facts.documents == 86
    merge_packed([GOLDEN / "merge-buggy-index.pbin"] * 2, tmp_path / "twice.pbin")
    assert lists(tmp_path / "twice.pbin") == lists(tmp_path / "right.pbin") * 2


@pytest.mark.parametrize("name", ["docs", "edge", "u1", "u2", "u4", "docs.shuffle-s11"])
def test_a_sound_file_stays_as_it_is(tmp_path, name):
    repair_packed(GOLDEN / f"{name}.pbin", tmp_path / "x.pbin")
    assert (tmp_path / "x.pbin").read_bytes() == (GOLDEN / f"{name}.pbin").read_bytes()


def test_old_layouts_come_out_as_the_present_one(tmp_path):
    a, b, c = (GOLDEN / f"legacy-{name}.pbin" for name in ("a-header8-be", "b-header12-be", "c-header12-le-absolute"))
    merge_packed([b, c, GOLDEN / "u2.pbin"], tmp_path / "m.pbin")
    assert open_packed(tmp_path / "m.pbin").layout.name == "D"
    assert lists(tmp_path / "m.pbin") == lists(b) + lists(c) + json.loads((GOLDEN / "tokens-u2.json").read_bytes())
    repair_packed(a, tmp_path / "a.pbin")
    write_packed(tmp_path / "w.pbin", lists(a), token_bytes=4)
    assert (tmp_path / "a.pbin").read_bytes() == (tmp_path / "w.pbin").read_bytes()


def test_documents_that_leave_tokens_out_stay_where_they_are(tmp_path):
    entries = [(2, 4), (8, 2)]
    body = struct.pack("<QI", 10, 2) + struct.pack("<5H", *range(5)) + pickle.dumps(entries, protocol=4)
    (tmp_path / "x.pbin").write_bytes(body)
    facts = merge_packed([tmp_path / "x.pbin"] * 2, tmp_path / "m.pbin")
    assert lists(tmp_path / "m.pbin") == [[1, 2], [4]] * 2
    assert facts == PackedFacts(4, 10, 2)


def test_small_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(selection, "_COPY_BYTES", 1000)
    heard = []
    repair_packed(GOLDEN / "docs.pbin", tmp_path / "x.pbin", listener=heard.append)
    data_bytes = open_packed(GOLDEN / "docs.pbin").data_bytes
    assert [news.done for news in heard] == [*range(1000, data_bytes, 1000), data_bytes]
    assert {(news.total, news.unit, news.name) for news in heard} == {(data_bytes, "bytes", "x.pbin")}
    assert (tmp_path / "x.pbin").read_bytes() == (GOLDEN / "docs.pbin").read_bytes()


def test_more_files_than_may_be_open(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/dev/fd")))  # whatever tests before this one have left open
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 90, limits[1]))
    try:
        facts = merge_packed([GOLDEN / "u1.pbin"] * 200, tmp_path / "m.pbin")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert facts.documents == 8000


def test_what_cannot_be_merged(tmp_path):
    with pytest.raises(ConfigError, match="no file to take documents from"):
        merge_packed([], tmp_path / "m.pbin")
    with pytest.raises(FormatError, match=r"u1\.pbin, byte 8: files with tokens of different sizes"):
        merge_packed([GOLDEN / "u2.pbin", GOLDEN / "u1.pbin"], tmp_path / "m.pbin")
    with pytest.raises(MissingError):
        merge_packed([GOLDEN / "u2.pbin", tmp_path / "none.pbin"], tmp_path / "m.pbin")
    (tmp_path / "cut.pbin").write_bytes((GOLDEN / "docs.pbin").read_bytes()[:-1])
    with pytest.raises(FormatError, match=r"cut\.pbin, byte"):
        merge_packed([GOLDEN / "u2.pbin", tmp_path / "cut.pbin"], tmp_path / "m.pbin")
    (tmp_path / "empty.pbin").write_bytes(struct.pack("<QI", 0, 2) + pickle.dumps([], protocol=4))
    with pytest.raises(InputError, match="no tokens"):
        merge_packed([tmp_path / "empty.pbin"], tmp_path / "m.pbin")
    assert not (tmp_path / "m.pbin").exists()
    merge_packed([tmp_path / "empty.pbin", GOLDEN / "u2.pbin"], tmp_path / "m.pbin")
    assert (tmp_path / "m.pbin").read_bytes() == (GOLDEN / "u2.pbin").read_bytes()


def test_a_file_that_changes_meanwhile(tmp_path):
    write_packed(tmp_path / "x.pbin", [np.arange(10)], token_bytes=2)
    part = selection._Part.scan(tmp_path / "x.pbin")
    write_packed(tmp_path / "x.pbin", [np.arange(9)], token_bytes=2)
    with pytest.raises(SourceChangedError, match=r"x\.pbin, byte 0"):
        list(part.blocks())
