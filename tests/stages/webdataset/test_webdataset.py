"""Tars of a shuffle plan: their contexts, their bytes, and the lists that name them."""

from __future__ import annotations

import gc
import hashlib
import json
import random
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.records import through_json
from helpers.token_sources import plan_of as small_plan
from helpers.token_sources import read_tar, source_in_file, write_tars, write_webdataset
from nanoset_core.formats.tars.members import read_member
from nanoset_core.formats.tars.tar import TarMember
from nanoset_core.loading.tar_files import iterate_shards
from nanoset_core.stages.webdataset import tars
from nanoset_core.stages.webdataset.plan import ShufflePlan, StoredShufflePlan
from nanoset_core.stages.webdataset.sources import TokenSource

LENGTH = 33
SAMPLES_PER_TAR = 16
PAD = 60_000
"""No source has this token."""
NPY_SHA256 = [
    "2f9b1eee80139bce009f9f02cb872581d7939a9bc18f3194ebcf0464902d2e72",
    "a44e38da4ce07560dee60eb1cba787166e9274e18f4f9ac333687ad5f00c2709",
]
"""Of the tars that tarfile and numpy.save make from the order of a plain SplitMix64."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> list[TokenSource]:
    """Three sources, of which one is empty; the others do not fill their last context."""
    folder = tmp_path_factory.mktemp("sources")
    generator = np.random.default_rng(5)
    n_tokens_by_name = {"web": LENGTH * 40 + 5, "empty": 0, "code": LENGTH * 17 + 32}
    sources = []
    for name, n_tokens in n_tokens_by_name.items():
        tokens = generator.integers(0, 50_000, n_tokens).astype(np.uint16)
        sources.append(source_in_file(folder, name, tokens))
    return sources


@pytest.fixture(params=["npy", "json.gz"])
def member(request) -> str:
    """The format of the members of tars."""
    return request.param


def plan_of(sources: Sequence[TokenSource], member: str, **settings: Any) -> ShufflePlan:
    """Plan tars of the sources."""
    defaults = {
        "sequence_length": LENGTH,
        "samples_per_shard": SAMPLES_PER_TAR,
        "member": member,
    }
    plan: ShufflePlan = small_plan(sources, **(defaults | settings))
    return plan


def contexts_in_order(plan: ShufflePlan, sources: Sequence[TokenSource]) -> list[list[int]]:
    """Return all contexts in the order of a plan, cut from the sources one by one."""
    contexts = []
    for source in sources:
        tokens = source.tokens.tolist()
        for start in range(0, len(tokens), LENGTH):
            context = tokens[start : start + LENGTH]
            n_missing = LENGTH - len(context)
            if n_missing == 0 or plan.settings.tail == "pad":
                contexts.append(context + [plan.settings.pad_id] * n_missing)

    numbers = []
    for tar in range(plan.shards):
        numbers += plan.shard_contexts(tar).tolist()
    assert sorted(numbers) == list(range(len(contexts)))
    return [contexts[number] for number in numbers]


def sha256_by_name(folder: Path) -> dict[str, str]:
    """Return the sha256 of each file in a folder."""
    paths = [path for path in sorted(folder.iterdir()) if path.is_file()]
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


# Readers


@pytest.fixture(
    params=[
        pytest.param({}, id="drop"),
        pytest.param({"tail": "pad", "pad_id": 1}, id="pad"),
    ]
)
def tail_settings(request) -> dict[str, Any]:
    """What becomes of the tokens that do not fill a context."""
    return request.param


def test_nanoset_reads_every_context_once_in_the_order_of_the_plan(
    tmp_path, sources, member, tail_settings
):
    plan = plan_of(sources, member, **tail_settings)
    write_webdataset(plan, sources, tmp_path)

    contexts = [context.tolist() for context in iterate_shards(tmp_path)]

    assert contexts == contexts_in_order(plan, sources)


def test_the_webdataset_library_reads_every_context_once_in_the_order_of_the_plan(
    tmp_path, sources, member, tail_settings
):
    wds = pytest.importorskip("webdataset")
    plan = plan_of(sources, member, **tail_settings)
    write_webdataset(plan, sources, tmp_path)
    urls = str(tmp_path / f"shard-{{00000000..{plan.shards - 1:08d}}}.tar")

    with warnings.catch_warnings():
        # The library leaves its files open until they are garbage.
        warnings.simplefilter("ignore", ResourceWarning)
        samples = list(wds.WebDataset(urls, shardshuffle=False).decode())
        gc.collect()

    contexts = [np.asarray(sample[member]).tolist() for sample in samples]
    assert contexts == contexts_in_order(plan, sources)
    expected_keys = []
    for number in range(plan.contexts):
        tar, place = divmod(number, SAMPLES_PER_TAR)
        expected_keys.append(f"{tar:08d}_{place:08d}")
    assert [sample["__key__"] for sample in samples] == expected_keys


def test_wids_finds_every_context_by_its_number(tmp_path, sources, member):
    pytest.importorskip("torch")
    wids = pytest.importorskip("wids")
    plan = plan_of(sources, member)
    write_webdataset(plan, sources, tmp_path)

    with warnings.catch_warnings():
        # It uses its own deprecated defaults, and leaves its files open until they are garbage.
        warnings.simplefilter("ignore")
        options = {"cache_dir": str(tmp_path / "cache"), "keep": True, "transformations": []}
        dataset = wids.ShardListDataset(str(tmp_path / "index.json"), **options)
        n_samples = len(dataset)
        bodies = [dataset[number][f".{member}"].read() for number in range(plan.contexts)]
        del dataset
        gc.collect()

    assert n_samples == plan.contexts
    contexts = []
    for body in bodies:
        tokens = read_member(body, TarMember(f"k.{member}", 0, len(body)), "the test")
        contexts.append(tokens.tolist())
    assert contexts == contexts_in_order(plan, sources)


# Bytes


def test_npy_tars_have_known_bytes(tmp_path):
    source = source_in_file(tmp_path, "web", np.arange(65 * 6, dtype=np.uint16))
    plan = small_plan([source], sequence_length=65, seed=7)

    tar_facts = write_tars(plan, [source], tmp_path)

    assert [facts.sha256 for facts in tar_facts] == NPY_SHA256


def test_a_webdataset_consists_of_its_tars_and_three_lists(tmp_path, sources, member):
    plan = plan_of(sources, member)

    write_webdataset(plan, sources, tmp_path)

    assert len(sha256_by_name(tmp_path)) == plan.shards + 3


@pytest.mark.parametrize(
    "tile_bytes",
    [
        pytest.param(1, id="one context"),
        pytest.param(3 * LENGTH * 2, id="three contexts"),
        pytest.param(7 * LENGTH * 2, id="seven contexts"),
        pytest.param(1 << 20, id="all contexts"),
    ],
)
def test_bytes_do_not_depend_on_the_order_of_writing_or_on_tiles(
    tmp_path, sources, member, tile_bytes, monkeypatch
):
    plan = plan_of(sources, member)
    write_webdataset(plan, sources, tmp_path / "in-order")
    shuffled_tars = list(range(plan.shards))
    random.Random(1).shuffle(shuffled_tars)

    # Write the tars of the stored plan one by one in another order, with tiles of another size.
    monkeypatch.setattr(tars, "TILE_BYTES", tile_bytes)
    stored_plan = through_json(StoredShufflePlan.of(plan)).plan()
    for tar in shuffled_tars:
        write_tars(stored_plan, sources, tmp_path / "shuffled", [tar])
    write_webdataset(stored_plan, sources, tmp_path / "shuffled")

    assert sha256_by_name(tmp_path / "shuffled") == sha256_by_name(tmp_path / "in-order")


def test_a_tar_has_another_name_until_it_is_complete(tmp_path, sources, monkeypatch):
    plan = plan_of(sources, "npy")
    names_before_end = []
    end_of_archive = tars.end_of_archive

    def list_files(size):
        names_before_end.append(sorted(path.name for path in tmp_path.iterdir()))
        return end_of_archive(size)

    monkeypatch.setattr(tars, "end_of_archive", list_files)

    # The first time, nothing but the incomplete tar exists.
    write_tars(plan, sources, tmp_path, [0], force=True)
    [[name]] = names_before_end
    assert name.startswith(".tmp-shard-00000000.tar-")

    # The second time, the complete tar of the first time exists, and its facts.
    write_tars(plan, sources, tmp_path, [0], force=True)
    assert len(names_before_end) == 2
    assert len(names_before_end[1]) == 3
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [".shards", "shard-00000000.tar"]


# Facts and lists


@pytest.fixture
def padded_plan(sources, member) -> ShufflePlan:
    """A plan of tars in which PAD is nothing but padding."""
    return plan_of(sources, member, tail="pad", pad_id=PAD)


@pytest.fixture
def written(padded_plan, sources, tmp_path) -> tuple[Any, Any]:
    """The facts of the tars of this plan, and those of all files by their names."""
    return write_webdataset(padded_plan, sources, tmp_path)


def test_the_facts_of_files_are_their_sizes_and_checksums(written, tmp_path):
    _, files = written

    assert {name: fact.sha256 for name, fact in files.items()} == sha256_by_name(tmp_path)
    for name, fact in files.items():
        assert fact.size == (tmp_path / name).stat().st_size


def test_the_facts_of_a_tar_are_its_size_and_its_counts(written, tmp_path):
    tar_facts, files = written

    for facts in tar_facts:
        contexts = read_tar(tmp_path / f"{facts.stem}.tar")
        assert facts.size_bytes == files[f"{facts.stem}.tar"].size
        assert facts.size_bytes % 10240 == 0  # a record of tar
        assert facts.sequences == len(contexts)
        assert facts.pad_tokens == int((contexts == PAD).sum())
        assert facts.tokens == contexts.size - facts.pad_tokens


def test_the_tokens_of_all_tars_are_those_of_the_sources_and_padding(written, padded_plan, sources):
    tar_facts, _ = written
    n_tokens = sum(facts.tokens for facts in tar_facts)
    n_pad_tokens = sum(facts.pad_tokens for facts in tar_facts)

    assert n_tokens == sum(source.count for source in sources)
    assert n_pad_tokens == padded_plan.pad_tokens
    assert n_pad_tokens > 0


def test_manifest_jsonl_has_a_line_for_each_tar(written, tmp_path):
    tar_facts, _ = written
    # What follows the last newline is not a row: open_lm file_utils.get_metadata_file
    lines = (tmp_path / "manifest.jsonl").read_text().split("\n")[:-1]

    assert len(lines) == len(tar_facts)
    for line, facts in zip(lines, tar_facts, strict=True):
        assert json.loads(line) == {
            "shard": f"shard-{facts.shard:08d}",
            "num_sequences": facts.sequences,
            "tokens": facts.tokens,
            "pad_tokens": facts.pad_tokens,
            "bytes": facts.size_bytes,
            "sha256": facts.sha256,
        }


def test_index_json_has_the_keys_that_wids_writes(written, tmp_path, golden_tars):
    index = json.loads((tmp_path / "index.json").read_text())
    golden_index = json.loads((golden_tars / "npy" / "index.json").read_text())

    assert set(index) == set(golden_index)
    assert index["__kind__"] == golden_index["__kind__"]
    assert index["wids_version"] == golden_index["wids_version"]
    for row in index["shardlist"]:
        # wids writes md5sum, but does not require or check it.
        assert set(row) == set(golden_index["shardlist"][0]) - {"md5sum"}


def test_index_json_has_the_size_of_each_tar(written, tmp_path):
    tar_facts, _ = written
    index = json.loads((tmp_path / "index.json").read_text())

    assert len(index["shardlist"]) == len(tar_facts)
    for row, facts in zip(index["shardlist"], tar_facts, strict=True):
        assert row["nsamples"] == facts.sequences
        assert row["filesize"] == (tmp_path / row["url"]).stat().st_size


def test_exp_data_json_describes_the_webdataset(written, tmp_path, padded_plan, sources):
    record = json.loads((tmp_path / "exp_data.json").read_text())

    assert record["dataset_url"] == "./"
    assert record["manifest_url"] == "./manifest.jsonl"
    assert record["name"] == "nanoset"
    assert record["tokenized"] is True
    assert record["tokenizer"] is None
    assert record["num_tokens"] == sum(source.count for source in sources)
    assert record["num_tokens"] + record["pad_tokens"] == padded_plan.contexts * LENGTH
