"""Packs in a project: they take the place of their corpus, and samples of them lead to documents."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from helpers.building import (
    make_corpora,
    make_derived_pbin,
    make_handoff,
    make_held_out,
    make_nanoset,
    make_view,
    make_webdataset,
)
from helpers.command import invoke_nanoset
from helpers.inspecting import (
    count_documents,
    current_dataset,
    dataset_of,
    explain_context,
    explain_sample,
    find_document,
    read_dataset,
)
from helpers.packs import Piece, plan_packs, read_pieces
from helpers.sample_project import write_project
from nanoset_assets.ui.packs import packs_metadata
from nanoset_core import iterate_shard, load_nanoset
from nanoset_core.project.project import Project
from nanoset_core.project.verify import verify_project
from nanoset_core.stages.packs import verify as packs_check
from nanoset_core.stages.packs.make import make_packs
from nanoset_core.stages.packs.pieces import PIECES_FILE, open_pieces
from nanoset_core.stages.packs.stage import PACKS

CHANGES = {
    "nanosets:\n": "views:\n  some: {of: web, tokens: 9e3, repeat: 1.5}\npacks:\n"
    "  web-32: {of: web, length: 32}\n  cut: {of: some, length: 40, long: truncate}\npbin: "
    "[cut]\nnanosets:\n",
    "    blend: {web: 0.7, code: 0.3}\n": "    blend: {web: 0.7, some: 0.3}\n    packing: {kind: best_fit}\n",
    "    corpora: [web, code, books]\n": "    corpora: [some, code]\n    packing: {tail: carry}\n",
    "groups: 3": "groups: 1",
}
PACKS_NAMES = [
    "web-32",
    "cut",
    "some-packs-32",
    "some-packs-33-carry",
    "code-packs-33-carry",
]
"""The two packs of the settings, and those that `packing` stands for."""
CARRIED_NAMES = [name for name in PACKS_NAMES if name.endswith("-carry")]
PADDED_NAMES = [name for name in PACKS_NAMES if not name.endswith("-carry")]


@pytest.fixture(scope="module")
def built(tmp_path_factory, tokenizer_file) -> Path:
    """The nanoset.yaml of a project with packs and outputs of them; not to be written to."""
    file = write_project(tmp_path_factory.mktemp("packs") / "project", tokenizer_file, CHANGES)
    project = Project.open(file)
    make_corpora(project)
    make_view(project, "some")
    for name in project.config.packs:
        make_packs(project, name)
    make_nanoset(project, "pretrain")
    make_handoff(project, "pretrain")
    make_webdataset(project, "shuffled")
    make_derived_pbin(project, "cut")
    return file


@pytest.fixture
def project(built) -> Project:
    """The built project; not to be written to."""
    return Project.open(built)


@pytest.fixture
def copied_project(built, tmp_path) -> Project:
    """A copy of the built project."""
    shutil.copytree(built.parent, tmp_path / "project", symlinks=True)
    return Project.open(tmp_path / "project" / built.name)


def pieces_of(manifest: Any) -> list[Piece]:
    """Return the table of pieces of packs."""
    return read_pieces(open_pieces(manifest), manifest.facts["packs"])


def test_the_packs_that_packing_stands_for_are_packs_of_the_project(project):
    assert set(project.config.packs) == set(PACKS_NAMES)


# The tokens of packs


def tokens_by_document(packs: Any, pieces: list[Piece]) -> dict[int, np.ndarray]:
    """Return the tokens that packs hold of each document, by its number."""
    parts: dict[int, list[np.ndarray]] = {}
    for piece in sorted(pieces, key=lambda piece: piece.first):
        tokens = packs[piece.pack][piece.start : piece.stop]
        parts.setdefault(piece.document, []).append(tokens)
    return {document: np.concatenate(tokens) for document, tokens in parts.items()}


def assert_all_documents_are_packed(
    project: Project, name: str, n_tokens: int | None = None
) -> None:
    """Check that packs hold the first tokens of each document of what is packed, or all."""
    manifest = current_dataset(project, name)
    documents = dataset_of(project, manifest).unpacked.sequences

    packed = tokens_by_document(read_dataset(project, name), pieces_of(manifest))

    assert packed.keys() == set(range(len(documents)))
    for number, tokens in packed.items():
        assert np.array_equal(tokens, documents[number][:n_tokens]), number


@pytest.mark.parametrize("name", [name for name in PACKS_NAMES if name != "cut"])
def test_every_document_is_in_packs_of_its_corpus_or_view(project, name):
    assert project.config.packs[name].long == "fragment"

    assert_all_documents_are_packed(project, name)


def test_packs_hold_the_start_of_documents_that_are_truncated(project):
    spec = project.config.packs["cut"]
    assert spec.long == "truncate"

    assert_all_documents_are_packed(project, "cut", spec.length)


@pytest.mark.parametrize("name", PACKS_NAMES)
def test_the_tokens_of_packs_are_those_of_their_pieces_and_padding(project, name):
    manifest = current_dataset(project, name)
    n_piece_tokens = sum(piece.n_tokens for piece in pieces_of(manifest))

    facts = manifest.facts

    assert facts["tokens"] == facts["packs"] * project.config.packs[name].length
    assert facts["tokens"] == n_piece_tokens + facts["padding"]


@pytest.mark.parametrize("name", PACKS_NAMES)
def test_packing_cuts_off_fewer_tokens_than_concatenation(project, name):
    facts = current_dataset(project, name).facts

    assert facts["cut_tokens"] < facts["concatenated"]["cut_tokens"]


def test_documents_that_packs_truncate_are_counted(project):
    assert current_dataset(project, "cut").facts["dropped_tokens"] > 0


# Padding in tars


@pytest.fixture(scope="module")
def padded_project(built, tmp_path_factory) -> Project:
    """A copy of the project whose tars are over packs with padding."""
    folder = tmp_path_factory.mktemp("padded") / "project"
    is_rebuilt = shutil.ignore_patterns("webdatasets", "shuffle_plans")
    shutil.copytree(built.parent, folder, symlinks=True, ignore=is_rebuilt)
    file = folder / "nanoset.yaml"
    text = file.read_text().replace("packing: {tail: carry}", "packing: {tail: pad}")
    file.write_text(text.replace('eod: "<|endoftext|>"}', 'eod: "<|endoftext|>", pad: "<|pad|>"}'))
    return Project.open(file)


@pytest.fixture(scope="module")
def padded_tars(padded_project) -> Any:
    """The manifest of tars over packs with padding."""
    for name in padded_project.config.packs:
        make_packs(padded_project, name)
    return make_webdataset(padded_project, "shuffled")


def rows_of_tars(manifest: Any) -> list[dict[str, Any]]:
    """Return what manifest.jsonl says of each tar."""
    lines = (manifest.folder / "manifest.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_each_tar_over_packs_counts_its_padding(padded_project, padded_tars):
    pad = padded_project.special("pad")
    rows = rows_of_tars(padded_tars)

    assert rows
    for row in rows:
        contexts = np.array(list(iterate_shard(padded_tars.folder / f"{row['shard']}.tar")))
        assert row["pad_tokens"] == np.count_nonzero(contexts == pad)
        assert row["tokens"] == contexts.size - row["pad_tokens"]


def test_the_facts_of_a_webdataset_count_the_padding_of_its_tars(padded_tars):
    n_pad_tokens = sum(row["pad_tokens"] for row in rows_of_tars(padded_tars))
    n_pad_tokens_of_sources = sum(source["pad_tokens"] for source in padded_tars.facts["sources"])

    assert padded_tars.facts["pad_tokens"] == n_pad_tokens
    assert n_pad_tokens_of_sources == n_pad_tokens
    assert n_pad_tokens > 0


def test_exp_data_json_tells_padding_from_tokens(padded_tars):
    record = json.loads((padded_tars.folder / "exp_data.json").read_text())
    n_tokens_of_sources = sum(source["tokens"] for source in record["sources"])

    assert record["pad_tokens"] == padded_tars.facts["pad_tokens"]
    assert record["num_tokens"] == padded_tars.facts["tokens"]
    assert n_tokens_of_sources == record["num_tokens"]


# The loss of padding


@pytest.fixture(scope="module")
def packs_of_samples(padded_project, padded_tars) -> np.ndarray:
    """Build a nanoset of packs with padding, and return the tokens of its samples."""
    make_nanoset(padded_project, "pretrain")
    train = load_nanoset(padded_project.outputs, "pretrain", "train")
    return train.batch(range(len(train)))


@pytest.mark.parametrize("masks", [{}, {"eod_mask_loss": True}], ids=["no masks", "another mask"])
def test_the_loss_leaves_out_padding_of_packs(padded_project, packs_of_samples, masks):
    labels = packs_of_samples[:, 1:]
    is_padding = labels == padded_project.special("pad")
    is_end = packs_of_samples[:, :-1] == padded_project.special("eod")
    is_masked = is_padding | is_end if masks else is_padding

    train = load_nanoset(padded_project.outputs, "pretrain", "train", **masks)

    assert is_padding.any()
    for number, sample in enumerate(train):
        assert np.array_equal(sample["loss_mask"] == 0, is_masked[number])


def test_end_tokens_that_fill_packs_up_count_in_the_loss(project):
    """Without a padding token, packs are filled with the token that ends documents."""
    train = load_nanoset(project.outputs, "pretrain", "train")

    assert all(sample["loss_mask"].all() for sample in train)


def test_end_tokens_count_in_the_loss_if_the_dataset_of_the_corpus_was_not_copied(copied_project):
    """Then it is not known whether packs are filled with the token that ends documents."""
    shutil.rmtree(copied_project.config.root_folder / "datasets")

    train = load_nanoset(copied_project.config.root_folder, "pretrain", "train")

    assert all(sample["loss_mask"].all() for sample in train)


@pytest.mark.usefixtures("packs_of_samples")
def test_the_handoff_names_the_padding_token(padded_project):
    start = make_handoff(padded_project, "pretrain").path("START.md").read_text()

    assert '"pad_token": "<|pad|>"' in start


@pytest.mark.usefixtures("packs_of_samples")
def test_the_check_before_a_job_compares_the_end_and_padding_tokens(padded_project):
    script = make_handoff(padded_project, "pretrain").path("preflight.py").read_text()

    token_ids = {name: padded_project.special(name) for name in ("eod", "pad")}
    assert f"TOKEN_IDS: dict[str, int] = {token_ids}" in script


def test_the_handoff_names_no_padding_token_if_packs_end_with_end_tokens(project):
    start = project.outputs.current("nanosets", "pretrain/handoff").path("START.md").read_text()

    assert "pad_token" not in start


# Plans of packs that are not built


@pytest.fixture(scope="module")
def project_without_packs(built, tmp_path_factory) -> Project:
    """A copy of the project without its packs, and without the nanosets of them."""
    folder = tmp_path_factory.mktemp("unbuilt") / "project"
    shutil.copytree(built.parent, folder)
    shutil.rmtree(folder / "data/packs")
    shutil.rmtree(folder / "data/nanosets")
    return Project.open(folder / "nanoset.yaml")


@pytest.mark.parametrize("name", PADDED_NAMES)
def test_a_plan_of_packs_has_the_facts_of_the_packs(project, project_without_packs, name):
    built_manifest = current_dataset(project, name)

    planned = plan_packs(project_without_packs, name).manifests[name]

    assert planned.digest == built_manifest.digest
    assert planned.facts == built_manifest.facts


@pytest.mark.parametrize("name", CARRIED_NAMES)
def test_a_plan_does_not_know_what_packs_with_carry_cut(project, project_without_packs, name):
    """Where they cut documents depends on the order of the packs."""
    unknown = dict.fromkeys(["cut_documents", "cut_tokens", "pieces"])
    built_manifest = current_dataset(project, name)

    planned = plan_packs(project_without_packs, name).manifests[name]

    assert planned.digest == built_manifest.digest
    assert planned.facts == built_manifest.facts | unknown


def test_all_packs_of_a_project_are_planned_together(project_without_packs):
    plans = plan_packs(project_without_packs)

    assert set(plans.manifests) == set(PACKS_NAMES)


@pytest.mark.parametrize("name", PACKS_NAMES)
def test_a_plan_knows_the_lengths_of_the_sequences(project, project_without_packs, name):
    plans = plan_packs(project_without_packs)
    planned = plans.manifests[name]

    lengths, _ = plans.reader.read(str(planned.folder / planned.facts["prefix"]))

    assert np.array_equal(lengths, read_dataset(project, name).sequence_lengths)


def test_the_plan_of_packs_that_are_built_is_their_manifest(project):
    plans = plan_packs(project, "cut")

    assert plans.manifests["cut"] == current_dataset(project, "cut")


def plan_of_map(project: Project, *options: str) -> str:
    """Return what `nanoset map --plan` prints of the nanoset."""
    words = ["map", "pretrain", "--plan", "-c", str(project.config.file), *options]
    return invoke_nanoset(words).output


def test_map_with_plan_shows_what_concatenation_would_cut(project_without_packs):
    assert "cut if concatenated" in plan_of_map(project_without_packs)


def test_map_with_plan_prints_the_same_before_and_after_packs_are_built(
    project, project_without_packs
):
    before = plan_of_map(project_without_packs, "--json")
    after = plan_of_map(project, "--json")

    before_with_root_of_after = before.replace(
        str(project_without_packs.outputs.folder), str(project.outputs.folder)
    )
    assert before_with_root_of_after == after
    [member, *_] = json.loads(before)[0]["members"]
    assert member["packing"] == current_dataset(project, "web-32").facts


def test_map_with_plan_builds_no_packs(project_without_packs):
    plan_of_map(project_without_packs)
    plan_of_map(project_without_packs, "--json")

    assert not (project_without_packs.outputs.folder / "packs").exists()


# Samples and contexts of packs


class PlacedTokens(NamedTuple):
    """Tokens of a document in a sample or context, both as (start, stop)."""

    sample: int
    sample_tokens: tuple[int, int]
    document_tokens: tuple[int, int]


def places_of(project: Project, *where: str, identity: str) -> set[PlacedTokens]:
    """Return where a nanoset or webdataset has the documents with an id."""
    places = set()
    for document in find_document(project, *where, identity=identity):
        for tokens in document.appearances:
            places.add(PlacedTokens(tokens.sample, tokens.sample_tokens, tokens.document_tokens))
    return places


def test_every_sample_is_one_pack(project):
    packs = set()
    for name in ["web-32", "some-packs-32"]:
        for pack in read_dataset(project, name)[:]:
            packs.add(tuple(pack[:32].tolist()))

    train = load_nanoset(project.outputs, "pretrain", "train")

    for number in range(0, 400, 7):
        tokens = train[number]["tokens"][:32]
        assert tuple(tokens.tolist()) in packs, number


def test_an_explained_sample_has_the_tokens_of_its_documents(project):
    train = load_nanoset(project.outputs, "pretrain", "train")
    sample = explain_sample(project, "pretrain", "train", 5)

    assert sample.tokens + sample.pad_tokens == 33
    assert sample.pieces
    for piece in sample.pieces:
        # Half of the samples are packs of a view, whose documents are those of the corpus, too.
        assert piece.origin.corpus == "web"
        start, stop = piece.sample_tokens
        first, end = piece.document_tokens
        assert end - first == stop - start
        document = read_dataset(project, "web")[int(piece.origin.id.removeprefix("web-"))]
        tokens = train[5]["tokens"][start:stop]  # without the 33rd token, which is only a label
        assert np.array_equal(tokens, document[first : first + len(tokens)])


def test_the_documents_of_a_sample_are_found_in_it(project):
    sample = explain_sample(project, "pretrain", "train", 5)

    assert sample.pieces
    for piece in sample.pieces:
        places = places_of(project, "pretrain", "train", identity=piece.origin.id)
        assert PlacedTokens(5, piece.sample_tokens, piece.document_tokens) in places


def test_the_loss_of_end_tokens_can_be_masked_in_packs(project):
    train = load_nanoset(project.outputs, "pretrain", "train", eod_mask_loss=True)

    assert train.config.eod_token == project.special("eod")


def test_the_documents_of_a_context_are_found_in_it(project):
    context = explain_context(project, "shuffled", 11)

    assert context.tokens == 33
    assert context.pieces
    for piece in context.pieces:
        places = places_of(project, "shuffled", identity=piece.origin.id)
        assert PlacedTokens(11, piece.sample_tokens, piece.document_tokens) in places


def test_every_token_of_a_document_is_in_contexts(project):
    [document] = find_document(project, "shuffled", identity="code-7")

    assert document.reason is None
    assert document.tokens_seen == document.origin.tokens


def test_packs_hold_the_documents_that_their_corpus_or_view_holds(project):
    counts = count_documents(project, ["web-3", "web-4", "web-5"])

    assert counts["corpus web"] == 3
    assert counts["packs web-32"] == 3
    assert counts["packs cut"] == counts["view some"]


def test_a_webdataset_holds_the_documents_that_its_packs_hold(project):
    counts = count_documents(project, ["web-3", "web-4", "web-5"])

    assert counts["webdataset shuffled"] == counts["packs some-packs-33-carry"]


# What is shown of packs


@pytest.fixture
def cut_documents(project) -> list[str]:
    """How many documents the packs cut, and concatenation would cut, as they are displayed."""
    facts = current_dataset(project, "web-32").facts
    return [f"{facts['cut_documents']:,}", f"{facts['concatenated']['cut_documents']:,}"]


def test_the_status_of_packs_compares_what_they_cut_with_concatenation(project, cut_documents):
    manifest = current_dataset(project, "web-32")

    details = PACKS.show(project, manifest).details

    assert [details["documents cut"], details["cut if concatenated"]] == cut_documents


def test_the_metadata_of_packs_compare_what_they_cut_with_concatenation(project, cut_documents):
    manifest = current_dataset(project, "web-32")

    records = packs_metadata(project, manifest)["cut"].records

    assert [record.data["cut_documents"] for record in records] == cut_documents


# Verification


@pytest.mark.parametrize("deep", [False, True], ids=["quick", "deep"])
def test_packs_and_outputs_of_them_pass_verification(project, deep, monkeypatch):
    monkeypatch.setattr(packs_check, "REPACKED_TOKENS", 0)  # so that a quick check compares some
    names = ["pretrain/train", "shuffled", "cut", "web-32", "some-*"]

    reports = list(verify_project(project, names, deep=deep))

    assert len(reports) == 7
    for report in reports:
        assert report.findings == []


def test_documents_that_splits_of_packs_share_are_counted(copied_project):
    """A view repeats documents, and a split may cut one."""
    manifest = make_held_out(copied_project, "pretrain")

    assert manifest.facts["shared"] > 0


def reverse_tokens(project: Project) -> None:
    """Reverse the bytes of the tokens of the packs."""
    manifest = current_dataset(project, "cut")
    file = manifest.folder / f"{manifest.facts['prefix']}.bin"
    file.write_bytes(bytes(reversed(file.read_bytes())))


def zero_pieces(project: Project) -> None:
    """Overwrite some bytes of the table of pieces with zeros, so that it cannot be read."""
    file = current_dataset(project, "cut").folder / PIECES_FILE
    data = file.read_bytes()
    file.write_bytes(data[:4] + bytes(200) + data[204:])


def replace_pieces(project: Project) -> None:
    """Give the packs the table of pieces of other packs, and its size in their manifest."""
    folder = current_dataset(project, "cut").folder
    other_folder = current_dataset(project, "web-32").folder
    shutil.copy(other_folder / PIECES_FILE, folder / PIECES_FILE)
    path = folder / "manifest.json"
    values = json.loads(path.read_bytes())
    other_values = json.loads((other_folder / "manifest.json").read_bytes())
    values["files"][PIECES_FILE] = other_values["files"][PIECES_FILE]
    path.write_bytes(json.dumps(values).encode())


@pytest.mark.parametrize(
    "repacked_tokens",
    [
        pytest.param(0, id="some are compared"),
        pytest.param(packs_check.REPACKED_TOKENS, id="all are packed again"),
    ],
)
@pytest.mark.parametrize("damage", [reverse_tokens, replace_pieces, zero_pieces])
def test_damaged_packs_fail_verification(
    copied_project: Project,
    damage: Callable[[Project], None],
    repacked_tokens: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packs_check, "REPACKED_TOKENS", repacked_tokens)
    damage(copied_project)

    # A quick check and a deep one: to copy the project for each of them would take longer.
    [quick_report] = verify_project(copied_project, ["cut/packs"], deep=False)
    [deep_report] = verify_project(copied_project, ["cut/packs"], deep=True)

    assert not quick_report.passed
    assert not deep_report.passed


def test_sound_packs_are_not_blamed_for_a_damaged_dataset(copied_project):
    tokens_file = current_dataset(copied_project, "web").path("web_text_document.bin")
    data = bytearray(tokens_file.read_bytes())
    tokens_file.unlink()  # views have links to it
    data[100] ^= 1
    tokens_file.write_bytes(data)

    [report] = verify_project(copied_project, ["web-32/packs"], deep=True)

    [finding] = report.errors
    assert finding.what.startswith("the output datasets/web is damaged")
    assert finding.where == str(tokens_file)


def test_a_damaged_index_of_the_documents_is_an_error(copied_project):
    # Let the last document begin at a sequence that does not exist.
    dataset = current_dataset(copied_project, "web")
    idx = dataset.path(f"{dataset.facts['prefix']}.idx")
    content = idx.read_bytes()
    idx.unlink()
    idx.write_bytes(content[:-16] + (1 << 40).to_bytes(8, "little") + content[-8:])

    [report] = verify_project(copied_project, ["web-32/packs"], deep=True)

    assert not report.passed
    assert str(idx) in str(report.errors[0].where)


# Packs in a bucket


def test_packs_in_a_bucket_are_those_of_a_local_root(project, built, tmp_path, bucket):
    # Build the corpus and view that are packed.
    storage = f"{{endpoint_url: {bucket.endpoint_url!r}, scratch_mib: 16}}"
    root = {"root: data": f"root: {bucket.url()}\nstorage: {storage}"}
    file = write_project(tmp_path / "project", built.parent / "tokenizer.json", root | CHANGES)
    stored_project = Project.open(file)
    make_corpora(stored_project, "web")
    make_view(stored_project, "some")

    for name in ["cut", "some-packs-33-carry"]:
        planned = plan_packs(stored_project, name).manifests[name]
        stored = make_packs(stored_project, name)

        # The manifest is that of the plan and of the local packs.
        local = current_dataset(project, name)
        assert planned.facts["packs"] == stored.facts["packs"]
        assert stored.digest == local.digest
        assert stored.facts == local.facts

        # So are the bytes.
        for ending in [".bin", ".idx"]:
            file_name = f"{stored.facts['prefix']}{ending}"
            stored_sha256 = bucket.sha256(f"packs/{name}/{stored.digest}/{file_name}")
            assert stored_sha256 == local.files[file_name].sha256

    # They pass verification.
    [report] = verify_project(stored_project, ["cut/packs"], deep=True)
    assert report.passed, report.findings
