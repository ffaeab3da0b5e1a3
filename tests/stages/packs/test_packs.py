"""Packs in a project: they stand where a corpus stands, and lead back to documents."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

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
    current_dataset,
    dataset_of,
    documents_held,
    explain_context,
    explain_sample,
    find_document,
    read_dataset,
)
from helpers.packs import plan_packs
from helpers.sample_project import write_project
from nanoset_assets.ui.packs import packs_metadata
from nanoset_core import iterate_shard, load_nanoset
from nanoset_core.project.project import Project
from nanoset_core.project.verify import verify_project
from nanoset_core.stages.packs import verify as packs_check
from nanoset_core.stages.packs.pieces import PIECES_FILE, open_pieces
from nanoset_core.stages.packs.stage import PACKS, make_packs

CHANGES = {
    "nanosets:\n": "views:\n  some: {of: web, tokens: 9e3, repeat: 1.5}\npacks:\n"
    "  web-32: {of: web, length: 32}\n  cut: {of: some, length: 40, long: truncate}\npbin: "
    "[cut]\nnanosets:\n",
    "    blend: {web: 0.7, code: 0.3}\n": "    blend: {web: 0.7, some: 0.3}\n    packing: {kind: best_fit}\n",
    "    corpora: [web, code, books]\n": "    corpora: [some, code]\n    packing: {tail: carry}\n",
    "groups: 3": "groups: 1",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory, tokenizer_file) -> Path:
    """A project with packs, and what is made of them; not to be written to."""
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
    return Project.open(built)


def test_every_document_is_in_packs_of_its_corpus_or_view(project):
    for name, spec in project.config.packs.items():
        manifest = current_dataset(project, name)
        packs = read_dataset(project, name)
        rows = np.stack(open_pieces(manifest).of_packs(np.arange(manifest.facts["packs"])), axis=1)
        base = dataset_of(project, manifest).unpacked.sequences
        for document in range(len(base)):
            own = [
                packs[pack][at : at + n]
                for pack, at, one, _, n in rows[np.lexsort(rows.T[3:4])]
                if one == document
            ]
            kept = base[document][: spec.length] if spec.long == "truncate" else base[document]
            assert np.array_equal(np.concatenate(own), kept), (name, document)
        facts = manifest.facts
        assert (
            facts["tokens"] == facts["packs"] * spec.length == rows[:, 4].sum() + facts["padding"]
        )
        assert facts["concatenated"]["cut_tokens"] > facts["cut_tokens"]


def test_tars_over_packs_count_the_padding_that_they_hold(built, tmp_path):
    unneeded = shutil.ignore_patterns("webdatasets", "shuffle_plans")
    shutil.copytree(built.parent, tmp_path / "project", symlinks=True, ignore=unneeded)
    file = tmp_path / "project/nanoset.yaml"
    text = file.read_text().replace("packing: {tail: carry}", "packing: {tail: pad}")
    file.write_text(text.replace('eod: "<|endoftext|>"}', 'eod: "<|endoftext|>", pad: "<|pad|>"}'))
    project = Project.open(file)
    for name in project.config.packs:
        make_packs(project, name)
    manifest = make_webdataset(project, "shuffled")

    pad = project.special("pad")
    rows = [
        json.loads(line) for line in (manifest.folder / "manifest.jsonl").read_text().splitlines()
    ]
    for row in rows:
        contexts = np.array(list(iterate_shard(manifest.folder / f"{row['shard']}.tar")))
        assert row["pad_tokens"] == np.count_nonzero(contexts == pad)
        assert row["tokens"] == contexts.size - row["pad_tokens"]
    total = sum(row["pad_tokens"] for row in rows)
    assert total == manifest.facts["pad_tokens"] > 0
    assert total == sum(source["pad_tokens"] for source in manifest.facts["sources"])
    record = json.loads((manifest.folder / "exp_data.json").read_text())
    assert (record["pad_tokens"], record["num_tokens"]) == (total, manifest.facts["tokens"])
    assert sum(source["tokens"] for source in record["sources"]) == record["num_tokens"]


def test_plans_packs_before_they_are_built(built, project, tmp_path):
    made = {name: current_dataset(project, name) for name in project.config.packs}
    shutil.copytree(built.parent, tmp_path / "project")
    shutil.rmtree(tmp_path / "project/data/packs")
    shutil.rmtree(tmp_path / "project/data/nanosets")
    unbuilt = Project.open(tmp_path / "project/nanoset.yaml")
    plans = plan_packs(unbuilt)
    for name, one in made.items():
        planned = plans.manifests[name]
        unknown = [key for key, value in planned.facts.items() if value is None]
        assert unknown == (["cut_documents", "cut_tokens", "pieces"] if "carry" in name else [])
        assert (planned.digest, planned.facts) == (one.digest, one.facts | dict.fromkeys(unknown))
        lengths, _ = plans.reader.read(str(planned.folder / planned.facts["prefix"]))
        assert np.array_equal(lengths, read_dataset(project, name).sequence_lengths)
    assert plan_packs(project, "cut").manifests["cut"] == made["cut"]

    def told(config: Path, *options: str) -> str:
        return invoke_nanoset(["map", "pretrain", "--plan", "-c", str(config), *options]).output

    assert "cut if concatenated" in told(unbuilt.config.file)
    before, after = told(unbuilt.config.file, "--json"), told(built, "--json")
    before = before.replace(str(unbuilt.outputs.folder), str(project.outputs.folder))
    assert before == after
    assert json.loads(before)[0]["members"][0]["packing"] == made["web-32"].facts
    assert not (tmp_path / "project/data/packs").exists()


def test_every_sample_is_one_pack_and_is_explained(project):
    train = load_nanoset(project.outputs, "pretrain", "train")
    first = {
        tuple(one[:32].tolist())
        for name in ("web-32", "some-packs-32")
        for one in read_dataset(project, name)[:]
    }
    assert all(tuple(train[number]["tokens"][:32].tolist()) in first for number in range(0, 400, 7))
    found = explain_sample(project, "pretrain", "train", 5)
    assert found.tokens + found.pad_tokens == 33
    # half of it packs of a view
    masked = load_nanoset(project.outputs, "pretrain", "train", eod_mask_loss=True)
    assert masked.config.eod_token == project.special("eod")
    for piece in found.pieces:
        assert piece.origin.corpus == "web"
        (begin, end), (low, high) = piece.sample_tokens, piece.document_tokens
        whole = read_dataset(project, "web")[int(piece.origin.id.partition("-")[2])]
        tokens = train[5]["tokens"][begin:end]  # without the last one, a label alone
        assert np.array_equal(tokens, whole[low : low + len(tokens)])
        assert high - low == end - begin
        places = find_document(project, "pretrain", "train", identity=piece.origin.id)
        appearances = {
            (one.sample, one.sample_tokens, one.document_tokens)
            for own in places
            for one in own.appearances
        }
        assert (5, piece.sample_tokens, piece.document_tokens) in appearances


def test_every_context_is_one_pack_and_is_explained(project):
    found = explain_context(project, "shuffled", 11)
    assert found.tokens == 33
    for piece in found.pieces:
        places = find_document(project, "shuffled", identity=piece.origin.id)
        appearances = {
            (one.sample, one.sample_tokens, one.document_tokens)
            for own in places
            for one in own.appearances
        }
        assert (11, piece.sample_tokens, piece.document_tokens) in appearances
    (all_of_one,) = find_document(project, "shuffled", identity="code-7")
    assert all_of_one.reason is None
    assert all_of_one.tokens_seen == all_of_one.origin.tokens


def test_what_is_truncated_is_told(project):
    manifest = current_dataset(project, "cut")
    assert manifest.facts["dropped_tokens"] > 0
    held = documents_held(project, ["web-3", "web-4", "web-5"])
    assert held["packs web-32"] == held["corpus web"] == 3
    assert held["packs cut"] == held["view some"]
    assert held["webdataset shuffled"] == held["packs some-packs-33-carry"]


def test_what_packs_cut_is_shown_beside_concatenation(project):
    manifest = current_dataset(project, "web-32")
    cut = [
        f"{facts['cut_documents']:,}" for facts in (manifest.facts, manifest.facts["concatenated"])
    ]
    shown = PACKS.show(project, manifest).details
    assert [shown["documents cut"], shown["cut if concatenated"]] == cut
    assert [
        row.data["cut_documents"] for row in packs_metadata(project, manifest)["cut"].records
    ] == cut


def test_what_is_made_of_packs_is_verified(project, monkeypatch):
    monkeypatch.setattr(packs_check, "REPACKED_TOKENS", 0)
    chosen = ["pretrain/train", "shuffled", "cut", "web-32", "some-*"]
    for deep in (False, True):
        reports = list(verify_project(project, chosen, deep=deep))
        assert len(reports) == 7
        assert [finding for report in reports for finding in report.findings] == []
    made = make_held_out(project, "pretrain")
    assert made.facts["shared"] > 0, "repeats, and documents that are cut where the split is"


@pytest.mark.parametrize("most", [0, packs_check.REPACKED_TOKENS])
@pytest.mark.parametrize("what", ["tokens", "pieces", "damaged"])
def test_other_tokens_and_pieces_are_found(built, tmp_path, what, most, monkeypatch):
    monkeypatch.setattr(packs_check, "REPACKED_TOKENS", most)
    shutil.copytree(built.parent, tmp_path / "project", symlinks=True)
    project = Project.open(tmp_path / "project" / built.name)
    manifest = current_dataset(project, "cut")
    if what == "tokens":
        file = manifest.folder / f"{manifest.facts['prefix']}.bin"
        file.write_bytes(bytes(reversed(file.read_bytes())))
    elif what == "damaged":
        file = manifest.folder / PIECES_FILE
        file.write_bytes(file.read_bytes()[:4] + bytes(200) + file.read_bytes()[204:])
    else:
        other = current_dataset(project, "web-32")
        shutil.copy(other.folder / PIECES_FILE, manifest.folder / PIECES_FILE)
        path = manifest.folder / "manifest.json"
        values = json.loads(path.read_bytes())
        values["files"][PIECES_FILE] = json.loads((other.folder / "manifest.json").read_bytes())[
            "files"
        ][PIECES_FILE]
        path.write_bytes(json.dumps(values).encode())
    for deep in (False, True):
        (report,) = verify_project(project, ["cut/packs"], deep=deep)
        assert not report.passed


def test_the_same_bytes_in_a_bucket(project, built, tmp_path, bucket):
    root = {
        "root: data": (
            f"root: {bucket.url()}\nstorage: {{endpoint_url: {bucket.endpoint_url!r}, "
            f"scratch_mib: 16}}"
        )
    }
    file = write_project(tmp_path / "project", built.parent / "tokenizer.json", root | CHANGES)
    stored = Project.open(file)
    make_corpora(stored, "web")
    make_view(stored, "some")
    for name in ("cut", "some-packs-33-carry"):
        planned = plan_packs(stored, name).manifests[name]
        made, here = make_packs(stored, name), current_dataset(project, name)
        assert planned.facts["packs"] == made.facts["packs"]
        assert (made.digest, made.facts) == (here.digest, here.facts)
        for ending in (".bin", ".idx"):
            own = f"{made.facts['prefix']}{ending}"
            assert bucket.sha256(f"packs/{name}/{made.digest}/{own}") == here.files[own].sha256
    (report,) = verify_project(stored, ["cut/packs"], deep=True)
    assert report.passed, report.findings
