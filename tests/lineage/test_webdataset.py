"""`nanoset explain` on webdatasets: the documents of a context, and the contexts of a document.

What it says is compared with the tars themselves, and with the tokens of the datasets that the tars
were made from.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
import pytest
import yaml

from helpers.building import finish_webdataset, make_corpora, make_shuffle_plan, make_tars
from helpers.command import invoke_nanoset, json_of, messages_of, output_of
from helpers.inspecting import plan_of, read_dataset
from helpers.tars import iterate_members
from nanoset_core.errors import ConfigError, MissingError, SampleIndexError
from nanoset_core.formats.tars.members import read_member
from nanoset_core.formats.tars.tar import map_archive
from nanoset_core.lineage.documents import InspectionContext
from nanoset_core.lineage.find import find_document
from nanoset_core.lineage.webdataset import ContextOrigin, Tars, explain_context
from nanoset_core.project.project import Project

CORPORA = ["web", "code", "books"]
SEQUENCE_LENGTH = 193
SPECIAL_TOKEN = "<|endoftext|>"
WEBDATASETS = {
    "dropped": {"corpora": CORPORA, "samples_per_shard": 40},
    "carried": {"corpora": CORPORA, "samples_per_shard": 50, "tail": "carry"},
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
"""Settings of each webdataset: together they use every way to cut, mix and complete contexts."""


class Member(NamedTuple):
    """A member of a tar, as a reader of the tars sees it."""

    tar: str
    key: str
    tokens: np.ndarray


class ExplainedWebdataset(NamedTuple):
    """All contexts of a webdataset."""

    name: str
    members: list[Member]
    """The contexts in the tars, in order."""
    origins: list[ContextOrigin]
    """What `explain_context` says about each of them."""

    @property
    def tail(self) -> str:
        """How the last context of a corpus is completed."""
        return str(WEBDATASETS[self.name].get("tail", "drop"))


@pytest.fixture(scope="module")
def tar_project(built, tmp_path_factory):
    """A project with the tars of all WEBDATASETS."""
    folder = tmp_path_factory.mktemp("tars")
    config = yaml.safe_load((built / "nanoset.yaml").read_text())
    config["raw"] = str(built / "raw")
    config["root"] = str(folder / "data")
    config["packed"] = []
    config["nanosets"] = {}
    config["tokenizer"]["path"] = str(built / "tokenizer.json")
    config["tokenizer"]["pad"] = SPECIAL_TOKEN
    config["tokenizer"]["bos"] = SPECIAL_TOKEN
    defaults = {"sequence_length": SEQUENCE_LENGTH, "seed": 3, "member": "npy", "groups": 1}
    config["webdatasets"] = {name: defaults | settings for name, settings in WEBDATASETS.items()}
    (folder / "nanoset.yaml").write_text(yaml.safe_dump(config, sort_keys=False))

    project = Project.open(folder / "nanoset.yaml")
    make_corpora(project)
    for name in WEBDATASETS:
        make_shuffle_plan(project, name)
        make_tars(project, name, 0)
        finish_webdataset(project, name)
    return project


@pytest.fixture(scope="module")
def tokens_by_document(tar_project):
    """(corpus, number) → list of tokens, for every document of the three corpora."""
    tokens = {}
    for corpus in CORPORA:
        dataset = read_dataset(tar_project, corpus)
        ranges = pairwise(dataset.document_indices.tolist())
        for number, (start, stop) in enumerate(ranges):
            sequences = [sequence.tolist() for sequence in dataset[start:stop]]
            tokens[corpus, number] = list(chain.from_iterable(sequences))
    return tokens


@pytest.fixture(scope="module", params=WEBDATASETS)
def explained(request, tar_project):
    """Each webdataset, with all its contexts explained."""
    members = list(read_tars(tar_project, request.param))
    with opened_once(tar_project, request.param):
        origins = [
            explain_context(tar_project.outputs.folder, request.param, member.key)
            for member in members
        ]
    return ExplainedWebdataset(request.param, members, origins)


def read_tars(project, name) -> Iterator[Member]:
    """Yield the members of all tars of a webdataset, in order."""
    folder = project.outputs.folder / "webdatasets" / name / "current"
    for path in sorted(folder.glob("*.tar")):
        archive = map_archive(path)
        for entry in iterate_members(archive, path):
            key, _, _ = entry.name.partition(".")
            yield Member(path.name, key, read_member(archive, entry, path))


@contextmanager
def opened_once(project, name):
    """Let all searches in a webdataset share its plan, which takes long to open."""
    tars = Tars.of(InspectionContext.of(project), name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tars, "of", lambda outputs, name: tars)
        yield


# Contexts → documents, for all contexts of each webdataset


def test_every_context_is_explained_by_its_key(explained, tar_project):
    assert len(explained.origins) == plan_of(tar_project, explained.name).contexts
    for position, (member, origin) in enumerate(
        zip(explained.members, explained.origins, strict=True)
    ):
        assert origin.position == position
        assert origin.tar == member.tar
        assert origin.key == member.key


def test_a_context_has_the_tokens_of_the_documents_that_are_named(
    explained, tar_project, tokens_by_document
):
    bos_or_padding = tar_project.special("eod")  # the project uses one token for both

    for member, origin in zip(explained.members, explained.origins, strict=True):
        expected = np.full(len(member.tokens), bos_or_padding)
        for piece in origin.pieces:
            document = tokens_by_document[piece.origin.corpus, piece.origin.document]
            expected[slice(*piece.sample_tokens)] = document[slice(*piece.document_tokens)]
        assert member.tokens.tolist() == expected.tolist()


def test_the_token_counts_of_a_context_add_up_to_its_length(explained):
    for origin in explained.origins:
        assert origin.bos_tokens + origin.tokens + origin.pad_tokens == SEQUENCE_LENGTH


def test_the_documents_of_a_context_begin_after_its_bos_token(explained):
    for origin in explained.origins:
        first_position, _ = origin.pieces[0].sample_tokens
        assert first_position == origin.bos_tokens


def test_a_context_belongs_to_the_corpus_of_its_first_token(explained):
    for origin in explained.origins:
        assert origin.corpus == origin.pieces[0].origin.corpus


def test_only_with_the_tail_carry_a_context_has_documents_of_two_corpora(explained):
    corpus_counts = set()
    for origin in explained.origins:
        corpora = {piece.origin.corpus for piece in origin.pieces}
        corpus_counts.add(len(corpora))

    assert (2 in corpus_counts) == (explained.tail == "carry")


def test_only_with_the_tail_pad_contexts_are_padded(explained):
    pad_counts = [origin.pad_tokens for origin in explained.origins]

    assert any(pad_counts) == (explained.tail == "pad")


# Documents → contexts


def test_a_document_is_found_in_all_contexts_that_contain_it(
    explained, tar_project, tokens_by_document
):
    expected = defaultdict(list)
    for origin in explained.origins:
        for piece in origin.pieces:
            expected[piece.origin.corpus, piece.origin.document].append(
                (origin.position, piece.sample_tokens, piece.document_tokens)
            )

    # Every fourth document, as a search takes several milliseconds.
    documents = list(tokens_by_document.items())[::4]
    with opened_once(tar_project, explained.name):
        for (corpus, number), tokens in documents:
            if corpus not in WEBDATASETS[explained.name]["corpora"]:
                continue
            (places,) = find_document(
                tar_project.outputs.folder, explained.name, number=number, corpus=corpus
            )
            appearances = [
                (appearance.sample, appearance.sample_tokens, appearance.document_tokens)
                for appearance in places.appearances
            ]
            is_complete = bool(tokens) and places.tokens_seen == len(tokens)
            assert appearances == sorted(expected[corpus, number])
            assert (places.reason is None) == is_complete


def test_a_document_is_found_by_its_file_and_line(tar_project):
    (by_line,) = find_document(tar_project, "repeated", file="code/code.jsonl.gz:17")

    assert by_line == find_document(tar_project, "repeated", identity="code-16")[0]
    assert len(by_line.appearances) >= 2  # the corpus is repeated 2.3 times


def test_a_line_that_was_rejected_has_no_document(tar_project):
    with pytest.raises(MissingError, match=r"rejected \(invalid_json"):
        find_document(tar_project, "repeated", file="web/part-0/web-0.jsonl:64")


def test_documents_of_a_corpus_that_is_not_in_the_webdataset_are_missing(tar_project):
    with pytest.raises(MissingError, match="not in this nanoset or webdataset"):
        find_document(tar_project, "padded", number=0, corpus="web")


# Why a document is in no tar


def reasons_to_be_unseen(project, name, documents):
    """Return why documents are not completely in the tars of a webdataset, one reason a line."""
    reasons = []
    with opened_once(project, name):
        for corpus, number in documents:
            for places in find_document(project, name, number=number, corpus=corpus):
                reasons.append(places.reason or "")
    return "\n".join(reasons)


def test_a_document_may_be_left_out_so_that_all_tars_are_equal(tar_project, tokens_by_document):
    assert plan_of(tar_project, "even").contexts_left_out
    documents = [
        (corpus, number)
        for corpus, number in tokens_by_document
        if corpus in WEBDATASETS["even"]["corpora"]
    ]

    reasons = reasons_to_be_unseen(tar_project.outputs.folder, "even", documents[::4])

    assert "left out so that all tars are equal" in reasons


def test_a_context_that_is_left_out_cannot_be_explained(tar_project):
    first_left_out = plan_of(tar_project, "even").contexts

    with pytest.raises(SampleIndexError, match="no such context in the webdataset"):
        explain_context(tar_project, "even", first_left_out)


def test_a_document_without_tokens_is_in_no_context(tar_project):
    (places,) = find_document(tar_project, "dropped", identity="empty")

    assert "no tokens" in places.reason


def test_the_last_document_of_a_corpus_may_not_fill_a_context(tar_project):
    places = find_document(tar_project, "dropped", identity="code-119")[0]

    assert "a tail that does not fill a context" in places.reason


def test_of_a_corpus_with_a_frequency_below_1_some_contexts_are_left_out(tar_project):
    documents = [("web", number) for number in range(60)]

    reasons = reasons_to_be_unseen(tar_project, "repeated", documents)

    assert "not all contexts of this corpus are taken" in reasons


# How a context is named


@pytest.mark.parametrize(
    ("place", "sample"),
    [
        pytest.param("47", None, id="number over all tars as text"),
        pytest.param(47, None, id="number over all tars"),
        pytest.param("00000001_00000007.npy", None, id="name of the member"),
        pytest.param("1", 7, id="number of the tar as text"),
        pytest.param(1, 7, id="number of the tar"),
        pytest.param("shard-00000001", 7, id="tar without its ending"),
        pytest.param(
            "data/webdatasets/dropped/current/shard-00000001.tar", 7, id="path of the tar"
        ),
    ],
)
def test_a_context_can_be_named_in_several_ways(tar_project, place, sample):
    by_key = explain_context(tar_project, "dropped", "00000001_00000007")

    by_place = explain_context(tar_project, "dropped", place, sample)

    assert by_key.position == 47  # tars of 40 contexts
    assert by_place == by_key


def test_a_context_is_shown_with_text(tar_project):
    piece = explain_context(tar_project, "dropped", "00000001_00000007").pieces[0]

    assert piece.text
    assert piece.source.text


def test_an_explained_context_can_be_written_as_json(tar_project):
    context = explain_context(tar_project, "dropped", "00000001_00000007")

    from_json = json.loads(json.dumps(asdict(context)))

    assert from_json["pieces"][0]["origin"]["file"] == context.pieces[0].origin.file


def test_a_context_that_does_not_exist_is_refused_with_what_exists(tar_project):
    plan = plan_of(tar_project, "dropped")
    last_tar = plan.shards - 1
    start, stop = plan.shard_ranks(last_tar)
    message = rf"(?s)no such context.*{plan.contexts} contexts.* {plan.shards} tars"

    with pytest.raises(SampleIndexError, match=message):
        explain_context(tar_project, "dropped", f"{plan.shards:08d}_00000000")
    with pytest.raises(SampleIndexError, match=message):
        explain_context(tar_project, "dropped", last_tar, stop - start)
    with pytest.raises(SampleIndexError, match=message):
        explain_context(tar_project, "dropped", 0, -1)
    with pytest.raises(SampleIndexError, match=message):
        explain_context(tar_project, "dropped", plan.contexts)


@pytest.mark.parametrize(
    ("place", "sample"),
    [
        pytest.param("first", None, id="a word"),
        pytest.param("-1", None, id="a negative number"),
        pytest.param("00000001_00000007", 3, id="a key and a number"),
        pytest.param("shard-00000001.tar", None, id="a tar without a number"),
    ],
)
def test_what_names_no_context_is_refused_with_an_example(tar_project, place, sample):
    with pytest.raises(ConfigError, match=r"(?s)names no context.*00000000_00000000"):
        explain_context(tar_project, "dropped", place, sample)


def test_an_unknown_webdataset_is_refused_with_the_names_of_all(tar_project):
    with pytest.raises(MissingError, match=r"(?s)no such webdataset.*carried, dropped, even"):
        explain_context(tar_project, "nothing", 0)


def test_contexts_are_explained_without_tars_and_from_a_plan_that_is_not_current(copy):
    project = copy()
    before = explain_context(project.outputs.folder, "shuffled", 5)
    before_with_text = explain_context(project, "shuffled", 5)

    # The plan says where each context is, so the tars need not exist.
    for tar in (project.outputs.folder / "webdatasets/shuffled/current").glob("*.tar"):
        tar.unlink()
    assert explain_context(project, "shuffled", 5) == before_with_text

    # A later plan is current, but the webdataset was made from the earlier one.
    with (project.config.raw_folder / "web/part-0/web-0.jsonl").open("ab") as file:
        file.write(b'{"id": "more", "text": "one more document"}\n' * 40)
    make_corpora(project, "web")
    make_shuffle_plan(project, "shuffled")
    assert explain_context(project.outputs.folder, "shuffled", 5) == before


# The command

KEY = "00000001_00000007"
"""A context of the webdataset `shuffled`, whose tars have 128 contexts: number 135 of all."""


def explain_words(project, *arguments):
    """Return the arguments of `nanoset explain` for a project."""
    return ["explain", *arguments, "-c", project.config.file]


def test_the_command_shows_which_sample_it_explains(project):
    text = output_of(*explain_words(project, "shuffled", KEY))

    assert f"sample {KEY} (number 135 of all) in shard-00000001.tar" in text


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["135"], id="number over all tars"),
        pytest.param(["1", "7"], id="number of the tar"),
        pytest.param(["shard-00000001.tar", "7"], id="name of the tar"),
    ],
)
def test_the_command_prints_the_same_however_the_sample_is_named(project, names):
    by_key = output_of(*explain_words(project, "shuffled", KEY))

    assert output_of(*explain_words(project, "shuffled", *names)) == by_key


def test_the_command_prints_a_context_as_json(project):
    context = explain_context(project, "shuffled", KEY)

    printed = json_of(*explain_words(project, "shuffled", KEY, "--json"))

    assert printed == json.loads(json.dumps(asdict(context)))


def test_the_line_that_the_command_prints_leads_back_to_the_sample(project):
    origin = explain_context(project, "shuffled", KEY).pieces[0].origin
    line = f"{origin.corpus}/{origin.file}:{origin.line}"

    text = output_of(*explain_words(project, "shuffled", KEY))
    text_of_line = output_of(*explain_words(project, "shuffled", "--file", line))
    places_of_line = json_of(*explain_words(project, "shuffled", "--file", line, "--json"))
    places_of_id = json_of(*explain_words(project, "shuffled", "--document", origin.id, "--json"))

    assert line in text
    assert f"sample {KEY} (number 135 of all) in shard-00000001.tar: tokens" in text_of_line
    assert KEY in [appearance["key"] for appearance in places_of_line[0]["appearances"]]
    assert places_of_id == places_of_line


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        pytest.param(["shuffled"], 2, "give a SAMPLE", id="no sample"),
        pytest.param(
            ["shuffled", "3", "--number", "1"], 2, "not both", id="a sample and a document"
        ),
        pytest.param(["shuffled", "99", "0"], 1, "no such context", id="a tar too far"),
        pytest.param(["shuffled", "train", "3"], 1, "names no context", id="a split"),
        pytest.param(["pretrain"], 2, "Missing argument 'SPLIT'", id="a nanoset without split"),
        pytest.param(
            ["pretrain", KEY, "3"], 1, "no such split", id="a nanoset with a key as split"
        ),
        pytest.param(["shufled", KEY], 1, "no such webdataset", id="a misspelt webdataset"),
    ],
)
def test_the_command_refuses_what_names_no_sample(project, arguments, exit_code, message):
    outcome = invoke_nanoset(explain_words(project, *arguments))

    assert outcome.exit_code == exit_code
    assert message in messages_of(outcome)
