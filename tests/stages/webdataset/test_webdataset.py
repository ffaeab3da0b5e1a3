import gc
import hashlib
import json
import random
import warnings

import numpy as np
import pytest

from helpers.records import through_json
from helpers.token_sources import plan_of as small_plan
from helpers.token_sources import read_tar, source_in_file, write_tars, write_webdataset
from nanoset_core.formats.tars.members import read_member
from nanoset_core.formats.tars.tar import TarMember
from nanoset_core.loading.shard_files import iterate_shards
from nanoset_core.stages.webdataset import tars
from nanoset_core.stages.webdataset.plan import StoredShufflePlan

LENGTH = 33

# Of the shards that tarfile and numpy.save make from the order of a plain SplitMix64.
NPY_SHA256 = [
    "2f9b1eee80139bce009f9f02cb872581d7939a9bc18f3194ebcf0464902d2e72",
    "a44e38da4ce07560dee60eb1cba787166e9274e18f4f9ac333687ad5f00c2709",
]


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("sources"), np.random.default_rng(5)
    return [
        source_in_file(folder, name, rng.integers(0, 50_000, tokens).astype(np.uint16))
        for name, tokens in (("web", LENGTH * 40 + 5), ("empty", 0), ("code", LENGTH * 17 + 32))
    ]


def plan_of(sources, member, **changes):
    return small_plan(
        sources,
        **({"sequence_length": LENGTH, "samples_per_shard": 16, "member": member} | changes),
    )


def in_our_order(plan, sources):
    """Every context in the global order, cut row by row."""
    rows = []
    for source in sources:
        stream = source.tokens.tolist()
        for start in range(0, len(stream), LENGTH):
            row = stream[start : start + LENGTH]
            if len(row) == LENGTH or plan.settings.tail == "pad":
                rows.append(row + [plan.settings.pad_id] * (LENGTH - len(row)))
    numbers = [
        number for shard in range(plan.shards) for number in plan.shard_contexts(shard).tolist()
    ]
    assert sorted(numbers) == list(range(len(rows)))
    return [rows[number] for number in numbers]


def digests(folder):
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.is_file()
    }


TAILS = [{}, {"tail": "pad", "pad_id": 1}]


@pytest.mark.parametrize("changes", TAILS, ids=["drop", "pad"])
@pytest.mark.parametrize("member", ["npy", "json.gz"])
def test_webdataset_yields_every_context_once_in_our_order(tmp_path, sources, member, changes):
    plan = plan_of(sources, member, **changes)
    write_webdataset(plan, sources, tmp_path)
    assert [context.tolist() for context in iterate_shards(tmp_path)] == in_our_order(plan, sources)
    wds = pytest.importorskip("webdataset")
    urls = str(tmp_path / f"shard-{{00000000..{plan.shards - 1:08d}}}.tar")
    with warnings.catch_warnings():
        # webdataset leaves its files to the collector
        warnings.simplefilter("ignore", ResourceWarning)
        samples = list(wds.WebDataset(urls, shardshuffle=False).decode())
        gc.collect()
    assert [np.asarray(sample[member]).tolist() for sample in samples] == in_our_order(
        plan, sources
    )
    assert [sample["__key__"] for sample in samples] == [
        f"{rank // 16:08d}_{rank % 16:08d}" for rank in range(plan.contexts)
    ]


@pytest.mark.parametrize("member", ["npy", "json.gz"])
def test_wids_finds_every_context_by_its_number(tmp_path, sources, member):
    pytest.importorskip("torch")
    wids = pytest.importorskip("wids")
    plan = plan_of(sources, member)
    write_webdataset(plan, sources, tmp_path)
    with warnings.catch_warnings():
        # wids uses its own deprecated defaults, and leaves files to the collector
        warnings.simplefilter("ignore")
        options = {"cache_dir": str(tmp_path / "cache"), "keep": True, "transformations": []}
        dataset = wids.ShardListDataset(str(tmp_path / "index.json"), **options)
        assert len(dataset) == plan.contexts
        bodies = [dataset[number][f".{member}"].read() for number in range(plan.contexts)]
        del dataset
        gc.collect()
    found = [
        read_member(body, TarMember(f"k.{member}", 0, len(body)), "here").tolist()
        for body in bodies
    ]
    assert found == in_our_order(plan, sources)


@pytest.mark.parametrize("member", ["npy", "json.gz"])
def test_bytes_do_not_depend_on_order_of_writing_or_tiles(tmp_path, sources, member, monkeypatch):
    plan = plan_of(sources, member)
    write_webdataset(plan, sources, tmp_path / "a")
    expected = digests(tmp_path / "a")
    assert len(expected) == plan.shards + 3
    order = list(range(plan.shards))
    random.Random(1).shuffle(order)
    for number, tile_bytes in enumerate([1, 3 * LENGTH * 2, 7 * LENGTH * 2, 1 << 20]):
        folder = tmp_path / f"b{number}"
        again = through_json(StoredShufflePlan.of(plan)).plan()
        monkeypatch.setattr(tars, "TILE_BYTES", tile_bytes)
        for shard in order:
            write_tars(again, sources, folder, [shard])
        write_webdataset(again, sources, folder)
        assert digests(folder) == expected


def test_npy_shards_have_known_bytes(tmp_path):
    source = source_in_file(tmp_path, "web", np.arange(65 * 6, dtype=np.uint16))
    plan = small_plan([source], sequence_length=65, seed=7)
    assert [facts.sha256 for facts in write_tars(plan, [source], tmp_path)] == NPY_SHA256


@pytest.mark.parametrize("member", ["npy", "json.gz"])
def test_facts_and_lists_tell_the_truth(tmp_path, sources, golden_tars, member):
    plan = plan_of(sources, member, tail="pad", pad_id=60_000)
    facts, files = write_webdataset(plan, sources, tmp_path)
    assert {name: fact.sha256 for name, fact in files.items()} == digests(tmp_path)
    assert all((tmp_path / name).stat().st_size == fact.size for name, fact in files.items())
    for shard in facts:
        contexts = read_tar(tmp_path / f"{shard.stem}.tar")
        assert shard.size_bytes == files[f"{shard.stem}.tar"].size
        assert shard.size_bytes % 10240 == 0
        assert shard.sequences == len(contexts)
        assert shard.pad_tokens == int((contexts == 60_000).sum())
        assert shard.tokens == contexts.size - shard.pad_tokens
    assert sum(shard.tokens for shard in facts) == sum(source.count for source in sources)
    assert sum(shard.pad_tokens for shard in facts) == plan.pad_tokens > 0
    # open_lm file_utils.get_metadata_file: what follows the last newline is not a row
    rows = [json.loads(line) for line in (tmp_path / "manifest.jsonl").read_text().split("\n")[:-1]]
    keys = {"num_sequences": "sequences", "bytes": "size_bytes"}
    names = ("num_sequences", "tokens", "pad_tokens", "bytes", "sha256")
    assert rows == [
        {"shard": f"shard-{fact.shard:08d}"}
        | {name: getattr(fact, keys.get(name, name)) for name in names}
        for fact in facts
    ]
    index, theirs = (
        json.loads((folder / "index.json").read_text())
        for folder in (tmp_path, golden_tars / "npy")
    )
    assert set(index) == set(theirs)
    assert (index["__kind__"], index["wids_version"]) == (
        theirs["__kind__"],
        theirs["wids_version"],
    )
    for row, shard in zip(index["shardlist"], facts, strict=True):
        # optional in wids, which checks none
        assert set(row) == set(theirs["shardlist"][0]) - {"md5sum"}
        assert (row["nsamples"], row["filesize"]) == (
            shard.sequences,
            (tmp_path / row["url"]).stat().st_size,
        )
    found = json.loads((tmp_path / "exp_data.json").read_text())
    assert (found["dataset_url"], found["manifest_url"]) == ("./", "./manifest.jsonl")
    assert (found["name"], found["tokenized"], found["tokenizer"]) == ("nanoset", True, None)
    assert found["num_tokens"] == sum(source.count for source in sources)
    assert found["num_tokens"] + found["pad_tokens"] == plan.contexts * LENGTH


def test_a_shard_is_invisible_until_it_is_whole(tmp_path, sources, monkeypatch):
    plan, seen, finish = plan_of(sources, "npy"), [], tars.end_of_archive

    def look(size):
        seen.append(sorted(path.name for path in tmp_path.iterdir()))
        return finish(size)

    monkeypatch.setattr(tars, "end_of_archive", look)
    for _ in range(2):
        write_tars(plan, sources, tmp_path, [0], force=True)
    assert [name.startswith(".tmp-shard-00000000.tar-") for name in seen[0]] == [True]
    assert len(seen[1]) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == [".shards", "shard-00000000.tar"]
