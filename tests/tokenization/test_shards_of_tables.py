"""Shards of Parquet and Arrow files, and of pairs of keys."""

import json
from pathlib import Path

import pytest

from nanoset_core.errors import InputError
from nanoset_core.indexed.dataset import MMapIndexedDataset
from nanoset_core.outputs.manifest import Recipe
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.raw.importing import import_parquet
from nanoset_core.raw.pieces import SourceRange
from nanoset_core.raw.survey import take_inventory
from nanoset_core.storage.access import LocalAccess
from nanoset_core.tokenization.framing import Framing
from nanoset_core.tokenization.shards import ShardSettings, ShardTask, make_shard
from nanoset_core.tokenization.tokenizer import tokenizer_facts

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

TOKENIZER = Path(__file__).parents[1] / "golden" / "tokenization" / "tokenizer.json"
TABLE = pa.table({"text": ["one two", None, "", "three é"], "id": range(4), "more": ["a", "b", "c", None]})


def make(folder, out, **changes):
    source, facts = SourceRange(take_inventory(folder, "web").pieces), tokenizer_facts(TOKENIZER)
    options = {"tokenizer": facts.fingerprint, **changes}
    settings = {"text_key": "text", "fail_on_reject": False} | changes
    shard_settings = ShardSettings(
        tokenizer_file=facts.file,
        engine="tokenizers",
        dtype=facts.dtype.name,
        max_id=facts.max_id,
        framing=Framing(after=(0,)),
        max_line_bytes=1 << 20,
        **settings,
    )
    recipe = Recipe("shards", "web", 1, {"source": source.digest}, options)
    return make_shard(ShardTask(OutputRoot(LocalAccess(out)), recipe, folder, source, shard_settings))


def write(folder, suffix):
    folder.mkdir(parents=True)
    pq.write_table(TABLE, folder / "a.parquet", row_group_size=3)
    if suffix == ".arrow":
        with pa.ipc.new_stream(folder / "a.arrow", TABLE.schema) as writer:
            writer.write_table(TABLE)
    elif suffix == ".jsonl":
        import_parquet(folder / "a.parquet", folder / "a.jsonl")
    for path in folder.iterdir():
        if path.suffix != suffix:
            path.unlink()


def test_a_table_gives_the_tokens_of_its_lines(tmp_path):
    shards = {}
    for suffix in (".jsonl", ".parquet", ".arrow"):
        write(tmp_path / suffix, suffix)
        shards[suffix] = make(tmp_path / suffix, tmp_path / "out")
    for suffix in (".parquet", ".arrow"):
        for name in ("tokens.bin", "tokens.idx"):
            assert shards[suffix].path(name).read_bytes() == shards[".jsonl"].path(name).read_bytes()
        assert (shards[suffix].facts["lines"], shards[suffix].facts["rejected"]) == (4, 1)
        rows = pq.read_table(shards[suffix].path("documents.parquet")).to_pylist()
        assert [(row["file"], row["line"], row["byte_offset"], row["id"]) for row in rows] == [
            (f"a{suffix}", line, -1, str(line - 1)) for line in (1, 3, 4)
        ]
        reject = json.loads(shards[suffix].path("rejects.jsonl").read_text())
        assert (reject["line"], reject["reason"]) == (2, "text_not_a_string")


def test_pairs_of_keys_stay_aligned(tmp_path):
    write(tmp_path / "web", ".parquet")
    first = make(tmp_path / "web", tmp_path / "out", text_key="text", required_keys=("more",))
    second = make(tmp_path / "web", tmp_path / "out", text_key="more", required_keys=("text",))
    assert [shard.facts["documents"] for shard in (first, second)] == [2, 2]
    ids = [pq.read_table(shard.path("documents.parquet"))["id"].to_pylist() for shard in (first, second)]
    assert ids == [["0", "2"]] * 2
    assert len(MMapIndexedDataset(second.folder / "tokens").sequence_lengths) == 2


def test_policy_to_fail_names_the_row(tmp_path):
    write(tmp_path / "web", ".parquet")
    with pytest.raises(InputError, match=r"a\.parquet:2: a line was rejected"):
        make(tmp_path / "web", tmp_path / "out", fail_on_reject=True)
