"""The trainers' own readers open the outputs of a project, which the core builds without Dagster."""

from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest

from helpers.building import build_all, make_corpora, make_mappings
from helpers.changing import change_setting
from helpers.inspecting import verify_output
from helpers.megatron_core import IDENTIFIERS, check_megatron_core
from helpers.sample_project import EOD, SPLITS, jsonl, sentences, tree
from nanoset_core import MMapIndexedDataset, MMapIndexedDatasetBuilder, load_nanoset
from nanoset_core.errors import ConfigError, MissingError, StaleError
from nanoset_core.project.project import Project
from nanoset_core.stages.mappings import lookup, planning

WITHOUT_PATHS = {"    trainer_path: /lustre/data\n": ""}


@pytest.fixture
def project(built_from):
    """A built project."""
    return built_from(WITHOUT_PATHS)


def test_a_dataset_holds_the_bytes_that_a_loop_over_its_lines_writes(
    project, tokenizer_file, tmp_path
):
    from tokenizers import Tokenizer

    # Tokenize the corpus line by line, as in Megatron-LM's preprocess_data.py.
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    builder = MMapIndexedDatasetBuilder(tmp_path / "loop", np.uint16)
    for file in sorted((project.config.raw_folder / "web").rglob("*.jsonl")):
        for line in file.read_bytes().splitlines():
            token_ids = tokenizer.encode(json.loads(line)["text"], add_special_tokens=False).ids
            builder.add_document([*token_ids, tokenizer.token_to_id(EOD)])
    builder.finalize()

    dataset = project.outputs.current("datasets", "web")
    for ending in (".bin", ".idx"):
        content = dataset.path(f"web_text_document{ending}").read_bytes()
        assert content == (tmp_path / f"loop{ending}").read_bytes()


def test_labels_are_the_tokens_shifted_by_one(project):
    train = load_nanoset(project.config.root_folder, "pretrain", "train")

    sample = train[0]

    assert len(train) >= 400
    assert sample["tokens"].shape == (32,)
    assert sample["labels"].shape == (32,)
    assert np.array_equal(sample["tokens"][1:], sample["labels"][:-1])


def test_a_sample_decodes_to_text(project, tokenizer_file):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    train = load_nanoset(project.config.root_folder, "pretrain", "train")

    text = tokenizer.decode(list(train[0]["tokens"]), skip_special_tokens=False)

    # Words of the sample project's raw text.
    assert any(word in text for word in ("data", "model", "order"))


def test_a_batch_holds_the_tokens_of_its_samples(project):
    train = load_nanoset(project.config.root_folder, "pretrain", "train")
    positions = range(len(train))

    batch = train.batch(positions)

    samples = [train.tokens(position) for position in positions]
    assert np.array_equal(batch, np.stack(samples))


def test_a_pickled_nanoset_reads_the_same_samples(project):
    train = load_nanoset(project.config.root_folder, "pretrain", "train")

    restored = pickle.loads(pickle.dumps(train))

    assert np.array_equal(restored.tokens(5), train.tokens(5))


def test_a_nanoset_of_one_corpus_reads_every_token_of_its_split_once(project):
    train = load_nanoset(project.config.root_folder, "plain", "train")
    dataset = project.outputs.current("datasets", "books")
    reader = MMapIndexedDataset(dataset.path("books_text_document"))
    n_train_documents = round(0.9 * len(reader))

    # (vocabulary,) how often each token occurs in the split, and in the samples. The last token
    # of a sample is the first one of the next.
    counts_in_split = np.bincount(np.concatenate(reader[0:n_train_documents]), minlength=400)
    tokens = train.batch(range(len(train)))[:, :-1]
    counts_in_samples = np.bincount(tokens.ravel(), minlength=400)

    # Only a last incomplete sample of at most 16 tokens is left out.
    assert (counts_in_samples <= counts_in_split).all()
    n_dropped_tokens = (counts_in_split - counts_in_samples).sum()
    assert 0 <= n_dropped_tokens <= 16


def test_a_root_that_was_moved_is_still_readable(project, tmp_path):
    tokens = load_nanoset(project.config.root_folder, "pretrain", "valid").tokens(0)
    new_root = tmp_path / "elsewhere"

    project.config.root_folder.rename(new_root)

    assert np.array_equal(load_nanoset(new_root, "pretrain", "valid").tokens(0), tokens)


def test_the_error_about_an_unknown_nanoset_names_those_that_exist(project):
    with pytest.raises(MissingError, match="pretrain/train"):
        load_nanoset(project.config.root_folder, "pretrian", "train")


def test_a_split_without_a_share_cannot_be_loaded(project):
    with pytest.raises(MissingError, match="no share"):
        load_nanoset(project.config.root_folder, "plain", "test")


def test_a_nanoset_whose_blend_is_older_than_its_index_files_is_refused(project):
    file = project.config.raw_folder / "web/part-0/web-0.jsonl"
    file.write_bytes(file.read_bytes() + jsonl(sentences("late", 2)))
    make_corpora(project, "web")
    make_mappings(project, "pretrain", "train")

    with pytest.raises(StaleError, match="nanoset build"):
        load_nanoset(project.config.root_folder, "pretrain", "train")


CONTEXT_LENGTH = 33
"""Tokens of a sample of the sample project's webdataset."""


def test_webdataset_reads_each_context_of_the_corpora_from_the_tars(project):
    wds = pytest.importorskip("webdataset", reason="webdataset is not installed")
    output = project.outputs.current("webdatasets", "shuffled")
    manifest = output.path("manifest.jsonl").read_text()
    shards = [json.loads(line) for line in manifest.split("\n")[:-1]]

    # The manifest names every tar, in order.
    names = [shard["shard"] for shard in shards]
    assert names == [f"shard-{number:08d}" for number in range(output.facts["shards"])]

    # Read the tars.
    urls = [str(output.folder / f"{name}.tar") for name in names]
    with warnings.catch_warnings():
        # The reader leaves its files to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        samples = [sample["npy"] for sample in wds.WebDataset(urls, shardshuffle=False).decode()]

    # The counts agree.
    assert len(samples) == sum(shard["num_sequences"] for shard in shards)
    assert len(samples) == output.facts["sequences"]
    assert {len(sample) for sample in samples} == {CONTEXT_LENGTH}

    # The samples are the contexts of the three corpora.
    expected_contexts = contexts_of(project, "web")
    expected_contexts |= contexts_of(project, "code")
    expected_contexts |= contexts_of(project, "books")
    assert {tuple(sample) for sample in samples} == expected_contexts


def contexts_of(project: Project, corpus: str) -> set[tuple[int, ...]]:
    """Return the tokens of a corpus, cut into contexts; an incomplete last one is left out."""
    dataset = project.outputs.current("datasets", corpus)
    tokens = MMapIndexedDataset(dataset.path(f"{corpus}_text_document")).tokens
    n_contexts = len(tokens) // CONTEXT_LENGTH
    contexts = tokens[: n_contexts * CONTEXT_LENGTH].reshape(n_contexts, CONTEXT_LENGTH)
    return {tuple(context) for context in contexts.tolist()}


def test_torch_loads_batches_in_worker_processes(project):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    train = load_nanoset(project.config.root_folder, "pretrain", "train")
    loader = torch.utils.data.DataLoader(train, batch_size=8, num_workers=2)

    batch = next(iter(loader))

    samples = [train[position]["tokens"] for position in range(8)]
    assert np.array_equal(batch["tokens"].numpy(), np.stack(samples))


PADDED_PACKS = {
    'eod: "<|endoftext|>"}': 'eod: "<|endoftext|>", pad: "<|pad|>"}',
    "    seed: 7\n": "    seed: 7\n    packing: {kind: best_fit}\n",
}
"""Replacements in the sample project's settings that fill samples with documents and padding."""


@pytest.mark.parametrize(
    "replacements",
    [pytest.param({}, id="documents"), pytest.param(PADDED_PACKS, id="packs")],
)
def test_megatron_core_builds_no_index_file_itself(built_from, replacements):
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    identifiers = "tokenizer_identifiers: " + json.dumps(IDENTIFIERS)
    project = built_from({"trainer_path: /lustre/data": identifiers} | replacements)
    prefixes = list(planning.NanosetContext(project, "pretrain").plan("train").config.data_path)
    sizes = []
    for split in SPLITS:
        plan = project.outputs.current("nanosets", f"pretrain/{split}/blend").path("plan.json")
        config = json.loads(plan.read_bytes())["config"]
        sizes.append(config[f"{split}_split_samples"])

    datasets = check_megatron_core(
        project,
        "pretrain",
        lookup.cache_folder(project, "pretrain"),
        sizes,
        step=7,
        random_seed=7,
        sequence_length=32,
        blend=(prefixes, [0.7, 0.3]),
        split="80,15,5",
    )

    assert None not in datasets


@pytest.mark.parametrize(
    ("preset", "name_part"),
    [
        pytest.param("megatron-0.10", "GPTDataset", id="megatron-0.10"),
        pytest.param("nemo", "_indexmap_", id="nemo"),
        pytest.param("nanotron", "Nanoset", id="nanotron"),
        pytest.param("nanotron-000", "Nanoset", id="nanotron-000"),
    ],
)
def test_index_files_have_the_names_that_their_trainer_expects(built_from, preset, name_part):
    split = 'split: "90,5,5"'
    if preset in ("nemo", "nanotron-000"):
        # These trainers need the number of samples of each split.
        split += "\n    samples: {train: 100, valid: 10, test: 5}"
    changes = {
        "samples: {train: 400}": f"samples: {{train: 400}}\n    preset: {preset}",
        'sequence_length: 16\n    split: "9,1"': (
            f"sequence_length: 16\n    preset: {preset}\n    {split}"
        ),
    }
    project = built_from(changes)

    for nanoset in ("pretrain", "plain"):
        train = load_nanoset(project.config.root_folder, nanoset, "train")
        assert len(train) >= 100
        batch = train.batch(range(len(train)))
        assert np.array_equal(batch[7], train.tokens(7))
        file_names = {path.name for path in lookup.cache_folder(project, nanoset).rglob("*")}
        assert any(name_part in name for name in file_names)


NEMO_PROJECTS = {
    "shared": {
        "    blend: {web: 0.7, code: 0.3}\n": "    blend: {web: 0.4, code: 0.3, books: 0.3}\n",
    },
    "per split": {
        "    blend: {web: 0.7, code: 0.3}\n": (
            "    blend_per_split: {train: {web: 0.8, code: 0.2}, valid: books, test: null}\n"
        ),
        '    split: "80,15,5"\n': "",
    },
}
"""Replacements in nanoset.yaml: blends of three corpora."""
NEMO_PRESET = {
    "samples: {train: 400}\n    trainer_path: /lustre/data": (
        "samples: {train: 100, valid: 10}\n    preset: nemo"
    )
}


def build_changed(project: Project, change: str) -> Project:
    """Change the text or the settings of a project with the preset nemo, and build it again."""
    if change == "other shares":
        # Without effect on blends per split, which have no shares.
        file = project.config.file
        file.write_text(file.read_text().replace('split: "80,15,5"', 'split: "60,30,10"'))
    elif change == "another Python":
        new_settings = 'preset: nemo\n    trainer_python: "3.12"'
        change_setting(project, "preset: nemo", new_settings)
    else:
        corpus = change
        new_file = project.config.raw_folder / corpus / "more.jsonl"
        new_file.write_bytes(jsonl(sentences("more", 30)))
    return build_all(project.config.file)


def nemo_index_folder(project: Project) -> Path:
    """Return the folder of index files that NeMo's data.yaml names."""
    data_yaml = project.outputs.current("nanosets", "pretrain/handoff").path("data.yaml")
    lines = data_yaml.read_text().splitlines()
    (folder,) = [line.split()[1] for line in lines if "index_mapping_dir" in line]
    return Path(folder)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param("web", id="a corpus of train"),
        pytest.param("books", id="a corpus of valid"),
        "other shares",
        "another Python",
    ],
)
@pytest.mark.parametrize("blend", NEMO_PROJECTS)
def test_a_new_version_does_not_touch_the_files_that_a_nemo_run_reads(built_from, blend, change):
    project = built_from(NEMO_PROJECTS[blend] | NEMO_PRESET)
    folder = nemo_index_folder(project)
    digests_before = tree(lookup.cache_folder(project, "pretrain"))

    # The run reads the index files of its folder.
    paths = [Path(name) for name in digests_before if name.endswith("_idx.npy")]
    names_in_folder = {path.name for path in folder.iterdir() if path.name.endswith("_idx.npy")}
    assert {path.name for path in paths} == names_in_folder

    # The new version leaves them as they are.
    changed = build_changed(project, change)
    digests_after = tree(lookup.cache_folder(changed, "pretrain"))
    assert digests_before.items() <= digests_after.items()

    # It has a folder of its own, if anything changed.
    has_changed = not (change == "other shares" and blend == "per split")
    if has_changed:
        new_folder = planning.NanosetContext(changed, "pretrain").index_folder
        assert new_folder.rstrip("/") != folder.name

    # It is complete.
    assert len(load_nanoset(changed.config.root_folder, "pretrain", "valid")) >= 10
    reports = [verify_output(changed, f"pretrain/{split}", deep=True) for split in SPLITS]
    assert all(report.passed for report in reports)


MASKS = ("reset_position_ids", "eod_mask_loss", "inter_document_masking")
WITHOUT_MASKS = dict.fromkeys(MASKS, False)


def with_masks(*keys: str) -> dict[str, str]:
    """Return replacements in nanoset.yaml that set masks of the nanoset `pretrain`."""
    lines = "".join(f"    {key}: true\n" for key in keys)
    return {"    seed: 7\n": f"    seed: 7\n{lines}    preset: megatron\n"}


@pytest.mark.parametrize(
    ("nanoset", "masks"),
    [
        pytest.param("pretrain", {}, id="in nanoset.yaml"),
        pytest.param("plain", dict.fromkeys(MASKS, True), id="as arguments"),
    ],
)
def test_samples_are_masked_at_the_ends_of_documents(built_from, nanoset, masks):
    project = built_from(with_masks(*MASKS))
    root = project.config.root_folder
    eod = project.special("eod")

    masked = load_nanoset(root, nanoset, "train", **masks).__getitems__(range(60))
    unmasked = load_nanoset(root, nanoset, "train", **WITHOUT_MASKS).__getitems__(range(60))

    assert any((sample["tokens"] == eod).any() for sample in masked)
    for sample, unmasked_sample in zip(masked, unmasked, strict=True):
        tokens = sample["tokens"]
        ends = np.flatnonzero(tokens == eod)  # positions of the last token of each document
        starts = ends[ends + 1 < len(tokens)] + 1
        assert not sample["loss_mask"][ends].any()
        assert set(sample["cu_seqlens"]) == {0, *ends + 1, len(tokens)}
        assert not sample["position_ids"][starts].any()

        assert np.array_equal(unmasked_sample["tokens"], tokens)
        assert unmasked_sample["loss_mask"].all()
        assert np.array_equal(unmasked_sample["position_ids"], np.arange(len(tokens)))


@pytest.mark.parametrize(
    ("nanoset", "masks"),
    [
        pytest.param("pretrain", {}, id="in nanoset.yaml"),
        pytest.param("plain", dict.fromkeys(MASKS, True), id="as arguments"),
    ],
)
def test_a_pickled_nanoset_masks_the_same_tokens(built_from, nanoset, masks):
    root = built_from(with_masks(*MASKS)).config.root_folder
    train = load_nanoset(root, nanoset, "train", **masks)

    restored = pickle.loads(pickle.dumps(train))

    assert restored[0]["loss_mask"].tolist() == train[0]["loss_mask"].tolist()


def test_the_trainer_is_started_with_the_masks_of_nanoset_yaml(built_from):
    project = built_from(with_masks(*MASKS))

    handoff = project.outputs.current("nanosets", "pretrain/handoff")
    arguments = handoff.path("arguments.txt").read_text().splitlines()

    assert "--reset-position-ids" in arguments
    assert "--eod-mask-loss" in arguments
    assert "--dataloader-inter-document-masking" in arguments
    assert "--reset-attention-mask" not in arguments


def test_an_attention_mask_hides_later_tokens_and_earlier_documents(built_from):
    project = built_from(with_masks(*MASKS))
    valid = load_nanoset(
        project.config.root_folder,
        "pretrain",
        "valid",
        reset_attention_mask=True,
        create_attention_mask=True,
        inter_document_masking=False,
    )

    sample = valid[0]

    # A token's document is the number of ends of documents before it.
    is_end = sample["tokens"] == project.special("eod")
    document_of_token = np.concatenate([[0], np.cumsum(is_end)[:-1]])  # (length,)
    length = len(sample["tokens"])
    is_later = np.triu(np.ones((length, length), bool), 1)  # (query, key)
    is_in_earlier_document = document_of_token[:, None] > document_of_token
    assert sample["attention_mask"].shape == (1, length, length)
    assert np.array_equal(sample["attention_mask"][0], is_later | is_in_earlier_document)


def test_another_mask_changes_only_the_handoff(built_from):
    project = built_from(with_masks())
    digests_before = tree(project.outputs.folder / "nanosets")
    file = project.config.file
    file.write_text(file.read_text().replace("seed: 7\n", "seed: 7\n    eod_mask_loss: true\n", 1))

    rebuilt = build_all(file)

    digests_after = tree(rebuilt.outputs.folder / "nanosets")
    changed_names = [
        name for name, digest in digests_after.items() if digest != digests_before.get(name)
    ]
    assert changed_names
    assert all(name.startswith("pretrain/handoff") for name in changed_names)
    train = load_nanoset(project.config.root_folder, "pretrain", "train")
    samples = train.__getitems__(range(len(train)))
    assert not all(sample["loss_mask"].all() for sample in samples)


def test_a_mask_as_an_argument_is_refused_if_it_has_no_effect(built_from):
    project = built_from(with_masks())

    with pytest.raises(ConfigError, match="create_attention_mask"):
        load_nanoset(project.config.root_folder, "pretrain", "train", reset_attention_mask=True)


@pytest.mark.parametrize(
    ("preset", "mask"),
    [
        pytest.param("nanotron", "eod_mask_loss", id="nanotron"),
        pytest.param("nemo", "reset_position_ids", id="nemo"),
        # Has no effect without create_attention_mask.
        pytest.param("megatron", "reset_attention_mask", id="megatron"),
    ],
)
def test_a_mask_in_nanoset_yaml_is_refused_if_it_has_no_effect(built_from, preset, mask):
    project = built_from(with_masks())

    with pytest.raises(ConfigError, match=f"nanosets.pretrain.{mask}"):
        change_setting(project, "preset: megatron\n", f"preset: {preset}\n    {mask}: true\n")
