"""Members of tars → documents and back, against the tars themselves."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict
from itertools import pairwise

import numpy as np
import pytest
import yaml

from helpers.building import finish_webdataset, make_corpora, make_shuffle_plan, make_tars
from helpers.command import invoke_nanoset
from helpers.inspecting import current_dataset, plan_of
from nanoset_core import MMapIndexedDataset
from nanoset_core.errors import ConfigError, MissingError, SampleIndexError
from nanoset_core.formats.tars.members import read_member
from nanoset_core.formats.tars.tar import iterate_members, map_archive
from nanoset_core.lineage.documents import InspectionContext
from nanoset_core.lineage.find import find_document
from nanoset_core.lineage.webdataset import Tars, explain_context
from nanoset_core.project.project import Project

ALL = ["web", "code", "books"]
FORMS = {
    "dropped": {"corpora": ALL, "samples_per_shard": 40},
    "carried": {"corpora": ALL, "samples_per_shard": 50, "tail": "carry"},
    "padded": {
        "corpora": ["books", "code"],
        "samples_per_shard": 30,
        "tail": "pad",
        "bos": True,
        "member": "json.gz",
    },
    "even": {"corpora": ["code", "web"], "samples_per_shard": 19, "even": True, "bos": True},
    "repeated": {
        "corpora": {"web": 0.4, "code": 2.3, "books": 1},
        "samples_per_shard": 64,
        "tail": "carry",
    },
    "shares": {
        "corpora": {"web": 1, "books": 2},
        "samples_per_shard": 64,
        "mix": "weights",
        "tail": "pad",
    },
}
LENGTH = 193
SPECIAL = "<|endoftext|>"


@pytest.fixture(scope="module")
def tars(built, tmp_path_factory):
    """A project with a webdataset of every form."""
    folder = tmp_path_factory.mktemp("tars")
    config = yaml.safe_load((built / "nanoset.yaml").read_text()) | {
        "raw": str(built / "raw"),
        "nanosets": {},
    }
    config |= {"root": str(folder / "data"), "packed": []}
    config["tokenizer"] |= {"path": str(built / "tokenizer.json"), "pad": SPECIAL, "bos": SPECIAL}
    config["webdatasets"] = {
        name: {"sequence_length": LENGTH, "seed": 3, "member": "npy", "groups": 1} | form
        for name, form in FORMS.items()
    }
    (folder / "nanoset.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    project = Project.open(folder / "nanoset.yaml")
    make_corpora(project)
    for name in FORMS:
        make_shuffle_plan(project, name)
        make_tars(project, name, 0)
        finish_webdataset(project, name)
    return project


def members_of(project, name):
    """(tar, key, tokens) of all tars, in order, as a reader sees them."""
    for path in sorted((project.outputs.folder / "webdatasets" / name / "current").glob("*.tar")):
        archive = map_archive(path)
        for member in iterate_members(archive, path):
            yield path.name, member.name.split(".")[0], read_member(archive, member, path)


def documents_of(project):
    """(corpus, document) → its tokens."""
    found = {}
    for corpus in ALL:
        manifest = current_dataset(project, corpus)
        dataset = MMapIndexedDataset(manifest.path(manifest.facts["prefix"]))
        bounds = dataset.document_indices.tolist()
        for number, (begin, end) in enumerate(pairwise(bounds)):
            found[corpus, number] = [
                token for sequence in dataset[begin:end] for token in sequence.tolist()
            ]
    return found


@pytest.mark.parametrize("name", FORMS)
def test_every_sample_holds_the_tokens_of_the_documents_that_are_named(tars, name, monkeypatch):
    opened = Tars.of(
        InspectionContext.of(tars), name
    )  # once: nothing changes while all samples and documents are asked for
    monkeypatch.setattr(Tars, "of", lambda outputs, name: opened)
    documents, special = documents_of(tars), tars.special("eod")
    corpora, partly = set(), 0
    places = defaultdict(list)
    count = 0
    for position, (tar, key, tokens) in enumerate(members_of(tars, name)):
        origin = explain_context(tars.outputs.folder, name, key)
        assert (origin.position, origin.tar, origin.key) == (position, tar, key)
        found = np.full(len(tokens), special)  # BOS and padding are the same token
        for piece in origin.pieces:
            begin, end = piece.document_tokens
            found[slice(*piece.sample_tokens)] = documents[
                piece.origin.corpus, piece.origin.document
            ][begin:end]
            appearance = (position, piece.sample_tokens, piece.document_tokens)
            places[piece.origin.corpus, piece.origin.document].append(appearance)
        assert found.tolist() == tokens.tolist()
        assert origin.bos_tokens + origin.tokens + origin.pad_tokens == LENGTH
        assert origin.pieces[0].sample_tokens[0] == origin.bos_tokens
        assert origin.corpus == origin.pieces[0].origin.corpus
        partly += origin.pad_tokens > 0
        corpora.add(len({piece.origin.corpus for piece in origin.pieces}))
        count += 1
    plan = plan_of(tars, name)
    assert count == plan.contexts
    assert (2 in corpora) == (FORMS[name].get("tail") == "carry"), "over the border of two corpora"
    assert bool(partly) == (FORMS[name].get("tail") == "pad")
    for (corpus, document), tokens in documents.items():
        if corpus in FORMS[name]["corpora"]:
            (back,) = find_document(tars.outputs.folder, name, number=document, corpus=corpus)
            assert [
                (a.sample, a.sample_tokens, a.document_tokens) for a in back.appearances
            ] == sorted(places[corpus, document])
            assert (back.reason is None) == (bool(tokens) and back.tokens_seen == len(tokens))


def test_forms_in_which_a_sample_is_named(tars):
    found = explain_context(tars, "dropped", "00000001_00000007")
    assert found.position == 47
    tar = "data/webdatasets/dropped/current/shard-00000001.tar"
    whole = [(name, None) for name in ("47", 47, "00000001_00000007.npy")]
    for place, sample in [*whole, *((name, 7) for name in ("1", 1, "shard-00000001", tar))]:
        assert explain_context(tars, "dropped", place, sample) == found
    piece = found.pieces[0]
    assert piece.text
    assert piece.source.text
    assert json.loads(json.dumps(asdict(found)))["pieces"][0]["origin"]["file"] == piece.origin.file


def test_samples_that_are_not_there(tars):
    plan = plan_of(tars, "dropped")
    begin, end = plan.shard_ranks(plan.shards - 1)
    for wrong in (
        (f"{plan.shards:08d}_00000000",),
        (plan.shards - 1, end - begin),
        (0, -1),
        (plan.contexts,),
    ):
        said = rf"(?s)no such context.*{plan.contexts} contexts.* {plan.shards} tars"
        with pytest.raises(SampleIndexError, match=said):
            explain_context(tars, "dropped", *wrong)
    for wrong in (
        ("first", None),
        ("-1", None),
        ("00000001_00000007", 3),
        ("shard-00000001.tar", None),
    ):
        with pytest.raises(ConfigError, match=r"(?s)names no context.*00000000_00000000"):
            explain_context(tars, "dropped", *wrong)
    with pytest.raises(MissingError, match=r"(?s)no such webdataset.*carried, dropped, even"):
        explain_context(tars, "nothing", 0)


def test_why_a_document_is_in_no_tar(tars):
    plan = plan_of(tars, "even")
    assert plan.contexts_left_out
    with pytest.raises(SampleIndexError, match="no such context in the webdataset"):
        explain_context(tars, "even", plan.contexts)
    reasons = {
        place.reason
        for corpus, number in documents_of(tars)
        if corpus != "books"
        for place in find_document(tars.outputs.folder, "even", number=number, corpus=corpus)
    }
    assert any("left out so that all tars are equal" in (reason or "") for reason in reasons)
    assert "no tokens" in find_document(tars, "dropped", identity="empty")[0].reason
    last = find_document(tars, "dropped", identity="code-119")[0]
    assert "a tail that does not fill a context" in last.reason
    reasons = {
        find_document(tars, "repeated", number=number, corpus="web")[0].reason
        for number in range(60)
    }
    assert any("not all contexts of this corpus are taken" in (reason or "") for reason in reasons)


def test_a_document_by_its_place(tars):
    (place,) = find_document(tars, "repeated", file="code/code.jsonl.gz:17")
    assert place == find_document(tars, "repeated", identity="code-16")[0]
    assert len(place.appearances) >= 2
    with pytest.raises(MissingError, match=r"rejected \(invalid_json"):
        find_document(tars, "repeated", file="web/part-0/web-0.jsonl:64")
    with pytest.raises(MissingError, match="not in this nanoset or webdataset"):
        find_document(tars, "padded", number=0, corpus="web")


def test_the_plan_is_enough_and_that_of_an_older_build_too(copy):
    project = copy()
    before, text = (
        explain_context(project.outputs.folder, "shuffled", 5),
        explain_context(project, "shuffled", 5),
    )
    for tar in (project.outputs.folder / "webdatasets/shuffled/current").glob("*.tar"):
        tar.unlink()
    assert explain_context(project, "shuffled", 5) == text
    with (project.config.raw_folder / "web/part-0/web-0.jsonl").open("ab") as file:
        file.write(b'{"id": "more", "text": "one more document"}\n' * 40)
    make_corpora(project, "web")
    make_shuffle_plan(project, "shuffled")
    assert explain_context(project.outputs.folder, "shuffled", 5) == before


def run(project, *arguments):
    return invoke_nanoset(["explain", *arguments, "-c", str(project.config.file)])


def test_the_command(project):
    key = "00000001_00000007"
    shown = run(project, "shuffled", key)
    assert shown.exit_code == 0, shown.output
    assert f"sample {key} (number 135 of all) in shard-00000001.tar" in shown.output
    for names in (["135"], ["1", "7"], ["shard-00000001.tar", "7"]):
        assert run(project, "shuffled", *names).output == shown.output
    found = json.loads(run(project, "shuffled", key, "--json").output)
    assert found == json.loads(json.dumps(asdict(explain_context(project, "shuffled", key))))
    origin = found["pieces"][0]["origin"]
    place = f"{origin['corpus']}/{origin['file']}:{origin['line']}"
    assert place in shown.output
    back = run(project, "shuffled", "--file", place)
    assert f"sample {key} (number 135 of all) in shard-00000001.tar: tokens" in back.output
    listed = json.loads(run(project, "shuffled", "--file", place, "--json").output)
    assert key in [appearance["key"] for appearance in listed[0]["appearances"]]
    assert (
        json.loads(run(project, "shuffled", "--document", origin["id"], "--json").output) == listed
    )


def test_what_the_command_refuses(project):
    for arguments, code, said in (
        (["shuffled"], 2, "give a SAMPLE"),
        (["shuffled", "3", "--number", "1"], 2, "not both"),
        (["shuffled", "99", "0"], 1, "no such context"),
        (["shuffled", "train", "3"], 1, "names no context"),
        (["pretrain"], 2, "Missing argument 'SPLIT'"),
        (["pretrain", "00000001_00000007", "3"], 1, "no such split"),
        (["shufled", "00000001_00000007"], 1, "no such webdataset"),
    ):
        refused = run(project, *arguments)
        text = refused.output + str(refused.exception)
        assert (refused.exit_code, said in text) == (code, True), (arguments, text)
