"""The trainers' own readers open what was built. The project is built without Dagster: the core
works alone.
"""

from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest

from helpers.building import build_all, make_corpora, make_mappings
from helpers.megatron_core import IDENTIFIERS, check_megatron_core
from helpers.sample_project import EOD, SPLITS, jsonl, sentences, tree
from nanoset_core import MMapIndexedDataset, load_nanoset
from nanoset_core.errors import ConfigError, MissingError, StaleError
from nanoset_core.project.project import Project
from nanoset_core.project.verify import verify_output
from nanoset_core.stages.mappings import lookup, planning

WITHOUT_PATHS = {"    trainer_path: /lustre/data\n": ""}


@pytest.fixture
def whole(built_from):
    """A built project."""
    return built_from(WITHOUT_PATHS)


def text_of(tokenizer_file, tokens):
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(tokenizer_file)).decode(list(tokens), skip_special_tokens=False)


def test_the_dataset_is_what_a_loop_over_the_lines_would_write(whole, tokenizer_file, tmp_path):
    from tokenizers import Tokenizer

    from nanoset_core import MMapIndexedDatasetBuilder

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    builder = MMapIndexedDatasetBuilder(tmp_path / "loop", np.uint16)
    for file in sorted((whole.config.raw_folder / "web").rglob("*.jsonl")):
        for line in file.read_bytes().splitlines():
            ids = tokenizer.encode(json.loads(line)["text"], add_special_tokens=False).ids
            builder.add_document([*ids, tokenizer.token_to_id(EOD)])
    builder.finalize()
    dataset = whole.outputs.current("datasets", "web")
    for ending in (".bin", ".idx"):
        assert (tmp_path / f"loop{ending}").read_bytes() == dataset.path(
            f"web_text_document{ending}"
        ).read_bytes()


def test_samples_decode_to_the_text(whole, tokenizer_file):
    train = load_nanoset(whole.config.root_folder, "pretrain", "train")
    assert len(train) >= 400
    sample = train[0]
    assert sample["tokens"].shape == sample["labels"].shape == (32,)
    assert np.array_equal(sample["tokens"][1:], sample["labels"][:-1])
    text = text_of(tokenizer_file, sample["tokens"])
    assert "data" in text or "model" in text or "order" in text
    assert np.array_equal(
        train.batch(range(len(train))), np.stack([train.tokens(k) for k in range(len(train))])
    )
    again = pickle.loads(pickle.dumps(train))
    assert np.array_equal(again.tokens(5), train.tokens(5))


def test_a_plain_nanoset_sees_every_token_of_its_split_once(whole):
    train = load_nanoset(whole.config.root_folder, "plain", "train")
    dataset = whole.outputs.current("datasets", "books")
    reader = MMapIndexedDataset(dataset.path("books_text_document"))
    rows = round(0.9 * len(reader))
    expected = np.bincount(np.concatenate(reader[0:rows]), minlength=400)
    seen = np.bincount(train.batch(range(len(train)))[:, :-1].ravel(), minlength=400)
    assert 0 <= (expected - seen).sum() <= 16
    assert (seen <= expected).all()


def test_a_moved_root_still_opens(whole, tmp_path):
    before = load_nanoset(whole.config.root_folder, "pretrain", "valid").tokens(0)
    moved = tmp_path / "elsewhere"
    whole.config.root_folder.rename(moved)
    assert np.array_equal(load_nanoset(moved, "pretrain", "valid").tokens(0), before)


def test_what_is_not_there_is_named(whole):
    root = whole.config.root_folder
    with pytest.raises(MissingError, match="pretrain/train"):
        load_nanoset(root, "pretrian", "train")
    with pytest.raises(MissingError, match="no share"):
        load_nanoset(root, "plain", "test")


def test_new_text_without_a_new_blend_is_refused(whole):
    changed = whole.config.raw_folder / "web/part-0/web-0.jsonl"
    changed.write_bytes(changed.read_bytes() + jsonl(sentences("late", 2)))
    make_corpora(whole, "web")
    make_mappings(whole, "pretrain", "train")
    with pytest.raises(StaleError, match="nanoset build"):
        load_nanoset(whole.config.root_folder, "pretrain", "train")


def test_webdataset_reads_the_tars(whole):
    wds = pytest.importorskip("webdataset", reason="webdataset is not installed")
    done = whole.outputs.current("webdatasets", "shuffled")
    rows = [json.loads(line) for line in done.path("manifest.jsonl").read_text().split("\n")[:-1]]
    assert [row["shard"] for row in rows] == [
        f"shard-{number:08d}" for number in range(done.facts["shards"])
    ]
    urls = [str(done.folder / f"{row['shard']}.tar") for row in rows]
    with warnings.catch_warnings():
        # the reader leaves its files to the garbage collector
        warnings.simplefilter("ignore", ResourceWarning)
        samples = [sample["npy"] for sample in wds.WebDataset(urls, shardshuffle=False).decode()]
    assert len(samples) == sum(row["num_sequences"] for row in rows) == done.facts["sequences"]
    assert {len(sample) for sample in samples} == {33}
    contexts = {
        tuple(context)
        for corpus in ("web", "code", "books")
        for context in _contexts(whole.outputs.current("datasets", corpus), corpus)
    }
    assert {tuple(sample) for sample in samples} == contexts


def _contexts(dataset, corpus):
    tokens = MMapIndexedDataset(dataset.path(f"{corpus}_text_document")).tokens
    count = len(tokens) // 33
    return tokens[: count * 33].reshape(count, 33).tolist()


def test_torch_loads_batches_in_worker_processes(whole):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    train = load_nanoset(whole.config.root_folder, "pretrain", "train")
    loader = torch.utils.data.DataLoader(train, batch_size=8, num_workers=2)
    first = next(iter(loader))
    assert np.array_equal(first["tokens"].numpy(), np.stack([train[k]["tokens"] for k in range(8)]))


def test_megatron_core_hits_every_cache(built_from):
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    identifiers = "tokenizer_identifiers: " + json.dumps(IDENTIFIERS)
    project = built_from({"trainer_path: /lustre/data": identifiers})
    prefixes = list(planning.NanosetContext(project, "pretrain").plan("train").config.data_path)
    plans = [
        project.outputs.current("nanosets", f"pretrain/{split}/blend").path("plan.json")
        for split in SPLITS
    ]
    configs = [json.loads(plan.read_bytes())["config"] for plan in plans]
    sizes = [
        config[f"{split}_split_samples"] for config, split in zip(configs, SPLITS, strict=True)
    ]
    settings = {
        "random_seed": 7,
        "sequence_length": 32,
        "blend": (prefixes, [0.7, 0.3]),
        "split": "80,15,5",
    }
    cache = lookup.cache_folder(project, "pretrain")
    assert None not in check_megatron_core(project, "pretrain", cache, sizes, 7, **settings)


def test_the_core_builds_what_dagster_builds(make_project, tmp_path):
    dg = pytest.importorskip("dagster", reason="Dagster is not installed")
    from nanoset_assets.build import build

    alone, through = make_project("alone"), make_project("through")
    build_all(alone)
    with dg.DagsterInstance.ephemeral(tempdir=str(tmp_path)) as instance:
        assert not build(Project.open(through), instance).failed
    assert tree(alone.parent / "data") == tree(through.parent / "data")


@pytest.mark.parametrize("preset", ["megatron-0.10", "nemo", "nanotron", "nanotron-000"])
def test_other_trainers_caches_under_their_own_names(built_from, preset):
    changes = {
        "samples: {train: 400}": f"samples: {{train: 400}}\n    preset: {preset}",
        "sequence_length: 16\n    split": f"sequence_length: 16\n    preset: {preset}\n    split",
        'split: "9,1"': 'split: "90,5,5"',
    }
    if preset in ("nemo", "nanotron-000"):
        changes['split: "90,5,5"'] = (
            'split: "90,5,5"\n    samples: {train: 100, valid: 10, test: 5}'
        )
    project = built_from(changes)
    for name in ("pretrain", "plain"):
        train = load_nanoset(project.config.root_folder, name, "train")
        assert len(train) >= 100
        tokens = train.batch(range(len(train)))
        assert np.array_equal(tokens[7], train.tokens(7))
        names = {path.name for path in lookup.cache_folder(project, name).rglob("*")}
        mark = {"megatron-0.10": "GPTDataset", "nemo": "_indexmap_"}.get(preset, "Nanoset")
        assert any(mark in file for file in names)


def nemo_project(built_from, blend):
    changes = {
        "    blend: {web: 0.7, code: 0.3}\n": blend,
        '    split: "80,15,5"\n': "" if "per_split" in blend else '    split: "80,15,5"\n',
        "samples: {train: 400}\n    trainer_path: /lustre/data": "samples: {train: 100, valid: 10}\n    preset: nemo",
    }
    return built_from(changes)


@pytest.mark.parametrize(
    "change",
    ["web", "books", "shares", "python"],
    ids=["a corpus of train", "a corpus of valid", "other shares", "another Python"],
)
@pytest.mark.parametrize(
    "blend",
    [
        "    blend: {web: 0.4, code: 0.3, books: 0.3}\n",
        "    blend_per_split: {train: {web: 0.8, code: 0.2}, valid: books, test: null}\n",
    ],
    ids=["shared", "per split"],
)
def test_a_new_version_leaves_what_a_nemo_run_reads(built_from, blend, change):
    project = nemo_project(built_from, blend)
    file = project.config.file
    data = project.outputs.current("nanosets", "pretrain/handoff").path("data.yaml")
    (folder,) = (
        line.split()[1] for line in data.read_text().splitlines() if "index_mapping_dir" in line
    )
    before = tree(lookup.cache_folder(project, "pretrain"))
    names = {name.rpartition("/")[2] for name in before if name.endswith("_idx.npy")}
    assert names == {path.name for path in Path(folder).iterdir() if path.name.endswith("_idx.npy")}
    if change == "shares":
        file.write_text(file.read_text().replace('split: "80,15,5"', 'split: "60,30,10"'))
    elif change == "python":
        file.write_text(
            file.read_text().replace("preset: nemo", 'preset: nemo\n    trainer_python: "3.12"')
        )
    else:
        (project.config.raw_folder / change / "more.jsonl").write_bytes(
            jsonl(sentences("more", 30))
        )
    again = build_all(file)
    after = tree(lookup.cache_folder(again, "pretrain"))
    assert {path: after.get(path) for path in before} == before
    if change != "shares" or "per_split" not in blend:
        assert (
            planning.NanosetContext(again, "pretrain").index_folder.rstrip("/") != Path(folder).name
        )
    assert len(load_nanoset(again.config.root_folder, "pretrain", "valid")) >= 10
    assert all(verify_output(again, f"pretrain/{split}", deep=True).passed for split in SPLITS)


def masked(built_from, keys):
    lines = "".join(f"    {key}: true\n" for key in keys)
    return built_from({"    seed: 7\n": f"    seed: 7\n{lines}    preset: megatron\n"})


def test_masks_at_ends_of_documents_from_nanoset_yaml_and_by_argument(built_from):
    project = masked(built_from, ["reset_position_ids", "eod_mask_loss", "inter_document_masking"])
    root, eod = project.config.root_folder, project.special("eod")
    plain = {"reset_position_ids": False, "eod_mask_loss": False, "inter_document_masking": False}
    for name, masks in (("pretrain", {}), ("plain", dict.fromkeys(plain, True))):
        train, without = (
            load_nanoset(root, name, "train", **masks),
            load_nanoset(root, name, "train", **plain),
        )
        for sample, other in zip(
            train.__getitems__(range(60)), without.__getitems__(range(60)), strict=True
        ):
            ends = np.flatnonzero(sample["tokens"] == eod)
            assert not sample["loss_mask"][ends].any()
            assert set(sample["cu_seqlens"]) == {0, *ends + 1, len(sample["tokens"])}
            assert not sample["position_ids"][ends[ends + 1 < len(sample["tokens"])] + 1].any()
            assert other["loss_mask"].all()
            assert np.array_equal(other["position_ids"], np.arange(len(other["tokens"])))
            assert np.array_equal(sample["tokens"], other["tokens"])
        assert any((sample["tokens"] == eod).any() for sample in train.__getitems__(range(60)))
        assert (
            pickle.loads(pickle.dumps(train))[0]["loss_mask"].tolist()
            == train[0]["loss_mask"].tolist()
        )
    arguments = (
        project.outputs.current("nanosets", "pretrain/handoff")
        .path("arguments.txt")
        .read_text()
        .splitlines()
    )
    given = {"--reset-position-ids", "--eod-mask-loss", "--dataloader-inter-document-masking"}
    assert given <= set(arguments)
    assert "--reset-attention-mask" not in arguments
    masks = {
        "reset_attention_mask": True,
        "create_attention_mask": True,
        "inter_document_masking": False,
    }
    sample = load_nanoset(root, "pretrain", "valid", **masks)[0]
    length = len(sample["tokens"])
    documents = np.concatenate([[0], np.cumsum(sample["tokens"] == eod)[:-1]])
    later = np.triu(np.ones((length, length), bool), 1)
    assert sample["attention_mask"].shape == (1, length, length)
    assert np.array_equal(sample["attention_mask"][0], later | (documents[:, None] > documents))


def test_masks_make_no_index_file_stale_and_without_effect_are_refused(built_from):
    project = masked(built_from, [])
    file = project.config.file
    before = tree(project.outputs.folder / "nanosets")
    text = file.read_text()
    file.write_text(text.replace("seed: 7\n", "seed: 7\n    eod_mask_loss: true\n", 1))
    after = tree(build_all(file).outputs.folder / "nanosets")
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed
    assert all(name.startswith("pretrain/handoff") for name in changed)
    train = load_nanoset(project.config.root_folder, "pretrain", "train")
    assert not all(sample["loss_mask"].all() for sample in train.__getitems__(range(len(train))))
    with pytest.raises(ConfigError, match="create_attention_mask"):
        load_nanoset(project.config.root_folder, "pretrain", "train", reset_attention_mask=True)
    refused = {
        "nanotron": "eod_mask_loss",
        "nemo": "reset_position_ids",
        "megatron": "reset_attention_mask",
    }
    for preset, key in refused.items():
        file.write_text(
            text.replace("    preset: megatron\n", f"    preset: {preset}\n    {key}: true\n")
        )
        with pytest.raises(ConfigError, match=f"nanosets.pretrain.{key}"):
            Project.open(file)
