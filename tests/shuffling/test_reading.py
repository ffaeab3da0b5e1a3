import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest
from token_sources import plan_of, read_shard, stored, write_webdataset

from nanoset_core.errors import FormatError, MissingError
from nanoset_core.shuffling import iterate_shard, iterate_shards
from nanoset_core.shuffling.members import decode_member
from nanoset_core.shuffling.tar import iterate_members


def digest_in_order(contexts):
    digest = hashlib.sha256()
    for context in contexts:
        digest.update(context.astype("<i8").tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("name", ["tokshuf_like", "ray_like"])
def test_golden_shards_hold_what_their_readers_saw(golden, name):
    facts = json.loads((golden / f"{name}.read.json").read_text())["tar"]
    contexts = [row for shard in sorted((golden / name).glob("*.tar")) for row in read_shard(shard)]
    assert len(contexts) == facts["contexts"]
    assert sum(map(len, contexts)) == facts["tokens"]
    assert digest_in_order(contexts) == facts["sha256_in_order"]


def test_golden_npy_members_hold_what_their_readers_saw(golden):
    facts = json.loads((golden / "npy.read.json").read_text())["tar"]
    contexts = []
    for shard in sorted((golden / "npy").glob("*.tar")):
        data = shard.read_bytes()
        members = [member for member in iterate_members(data, shard) if member.name.endswith(".npy")]
        contexts += [decode_member(m.name, data[m.offset : m.offset + m.size_bytes], shard) for m in members]
    assert {row.dtype for row in contexts} == {np.dtype(np.uint16)}
    assert digest_in_order(contexts) == facts["sha256_in_order"]


def test_a_manifest_without_its_final_newline_loses_nothing_here(golden):
    manifest = (golden / "tokshuf_like" / "manifest.jsonl").read_text()
    assert not manifest.endswith("\n")
    facts = json.loads((golden / "tokshuf_like.read.json").read_text())["tar"]
    assert digest_in_order(iterate_shards(golden / "tokshuf_like")) == facts["sha256_in_order"]


@pytest.fixture
def dataset(tmp_path):
    source = stored(tmp_path, "web", np.arange(100, dtype=np.uint16))
    write_webdataset(plan_of([source], seed=1), [source], tmp_path)
    return tmp_path


@pytest.mark.parametrize("kept", [0, 1, 511, 600, 1024, 5000, 10239])
def test_a_truncated_shard(dataset, kept):
    path = dataset / "shard-00000001.tar"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(FormatError, match=r"shard-00000001\.tar, offset"):
        read_shard(path)
    with pytest.raises(FormatError, match=r"shard-00000001\.tar, offset"):
        list(iterate_shards(dataset))


def test_a_shard_of_a_wrong_member(golden):
    with pytest.raises(FormatError, match="does not hold the tokens"):
        list(iterate_shard(golden / "npy" / "shard-000000.tar"))


def test_an_empty_shard(tmp_path):
    (tmp_path / "shard.tar").write_bytes(bytes(10240))
    assert list(iterate_shard(tmp_path / "shard.tar")) == []


def test_a_shard_shorter_than_the_manifest_says(dataset):
    path = dataset / "shard-00000000.tar"
    path.write_bytes(path.read_bytes()[:2048] + bytes(10240 - 2048))
    with pytest.raises(FormatError, match="2 contexts"):
        list(iterate_shards(dataset))


def test_missing_files(dataset):
    (dataset / "shard-00000002.tar").unlink()
    with pytest.raises(MissingError, match="shard-00000002"):
        list(iterate_shards(dataset))
    (dataset / "manifest.jsonl").unlink()
    with pytest.raises(MissingError, match="manifest"):
        list(iterate_shards(dataset))


@pytest.mark.parametrize("line", ["", "[]", "{", '{"shard": "a"}', '{"shard": 1, "num_sequences": 2}', '"text"'])
def test_a_manifest_with_a_bad_row(dataset, line):
    path = dataset / "manifest.jsonl"
    rows = path.read_text().splitlines()
    path.write_text("\n".join([rows[0], line, *rows[1:]]) + "\n")
    with pytest.raises(FormatError, match=r"manifest\.jsonl, line 2"):
        list(iterate_shards(dataset))


def test_reading_imports_neither_webdataset_nor_a_compressor(dataset):
    code = (
        "import sys; from nanoset_core.shuffling import PlanSettings, iterate_shards; "
        f"n = sum(1 for _ in iterate_shards({str(dataset)!r})); "
        "print(n, sorted({'webdataset', 'torch', 'isal', 'pyarrow', 'dagster'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split(maxsplit=1) == ["10", "[]\n"]
