"""Settings of packs: named ones, those that `packing` stands for, and those that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from nanoset_core import ProjectConfig
from nanoset_core.errors import ConfigError
from nanoset_core.project.requested_corpora import check_requested_corpora
from nanoset_core.project.settings import config_from
from nanoset_core.stages.packs.stage import PACKS
from nanoset_core.stages.stage import Key

REQUIRED = {
    "raw": "raw",
    "root": "data",
    "tokenizer": {"path": "tokenizer.json", "eod": "</s>"},
}
"""Settings that every project has."""
CARRY = {"sequence_length": 64, "packing": {"tail": "carry"}}
PADDED = {"sequence_length": 64, "packing": {}}


def config_with(**settings: object) -> ProjectConfig:
    """Return the configuration of a project with more settings."""
    return config_from(REQUIRED | settings, Path("/project/nanoset.yaml"))


# Packs that `packing` stands for


@pytest.fixture(scope="module")
def config() -> ProjectConfig:
    """A project with packs of the corpus `web`, and outputs whose `packing` needs equal packs.

    A context of the webdataset has 65 tokens, of which the first is not from a pack.
    """
    return config_with(
        packs={"own": {"of": "web", "length": 64, "tail": "carry"}},
        nanosets={
            "blended": CARRY | {"blend": {"web": 2, "code": 1}, "max_epochs": {"web": 3}},
            "per-split": CARRY | {"blend_per_split": {"train": "web", "valid": ["held"]}},
        },
        webdatasets={
            "tars": CARRY
            | {"corpora": {"web": 1, "code": 0.5}, "sequence_length": 65, "bos": True},
        },
        tokenizer=REQUIRED["tokenizer"] | {"bos": "<s>"},
    )


def test_equal_packs_are_built_once(config):
    assert [*config.packs] == ["own", "code-packs-64-carry", "held-packs-64-carry"]
    assert [*PACKS.keys(config, ())] == [
        Key("web", "own"),
        Key("code", "code-packs-64-carry"),
        Key("held", "held-packs-64-carry"),
    ]


def test_packs_of_corpora_with_a_limit_of_epochs_are_listed_first():
    settings = PADDED | {"blend": {"web": 2, "code": 1}, "max_epochs": {"code": 3}}
    config = config_with(nanosets={"limited": settings})

    assert [*config.packs] == ["code-packs-64", "web-packs-64"]


def test_packs_take_the_place_of_their_corpora_in_a_blend(config):
    assert config.nanosets["blended"].blend == {"own": 2, "code-packs-64-carry": 1}


def test_packs_take_the_place_of_their_corpora_in_max_epochs(config):
    assert config.nanosets["blended"].max_epochs == {"own": 3}


def test_packs_take_the_place_of_their_corpora_in_the_blend_of_a_split(config):
    assert config.nanosets["per-split"].blend_per_split == {
        "train": "own",
        "valid": ("held-packs-64-carry",),
    }


def test_packs_take_the_place_of_their_corpora_in_a_webdataset(config):
    assert config.webdatasets["tars"].corpora == {"own": 1, "code-packs-64-carry": 0.5}


def test_packs_take_the_place_of_their_corpora_in_a_mixture():
    mix = {"code": 1, "texts": {"share": 2, "mix": {"web": {}}}}
    config = config_with(nanosets={"mixed": PADDED | {"mix": mix}})

    nanoset = config.nanosets["mixed"]

    assert tuple(nanoset.blend) == ("code-packs-64", "web-packs-64")
    assert nanoset.mixture.corpora == ("code-packs-64", "web-packs-64")


def test_a_corpus_whose_packs_are_in_a_blend_is_trained_on(config):
    assert config.trains_on("code")


def test_a_corpus_with_the_name_of_packs_is_refused(config):
    with pytest.raises(ConfigError, match="entry of `packs` share a name"):
        check_requested_corpora(config, ["web", "code", "held", "own"])


# Settings that are refused

PACKS_OF_64 = {"p": {"of": "web", "length": 64}}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param(
            {"packs": PACKS_OF_64, "tokenizer": {"path": "tokenizer.json"}},
            "packs need a padding token",
            id="no padding token",
        ),
        pytest.param(
            {"packs": PACKS_OF_64 | {"q": {"of": "p", "length": 64}}},
            "packs are made from a corpus or view",
            id="packs of packs",
        ),
        pytest.param(
            {"packs": PACKS_OF_64, "views": {"v": {"of": "p"}}},
            "a view is of a corpus or of another view",
            id="a view of packs",
        ),
    ],
)
def test_packs_need_a_padding_token_and_a_corpus_or_view(settings, message):
    with pytest.raises(ConfigError, match=message):
        config_with(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param(
            {"packs": PACKS_OF_64, "views": {"p": {"of": "web"}}},
            "packs and a corpus or view share a name",
            id="a view with the name of packs",
        ),
        pytest.param(
            {
                "views": {"web-packs-64": {"of": "a"}},
                "nanosets": {"n": PADDED | {"blend": "web"}},
            },
            "corpus or view share a",
            id="a view with the name of packs that packing stands for",
        ),
        pytest.param(
            {
                "nanosets": {
                    "n": PADDED | {"mix": {"web-packs-64": {"mix": {"code": {}}}, "web": {}}}
                }
            },
            "a group has the same name as the packs",
            id="a group with the name of packs that packing stands for",
        ),
        pytest.param(
            {
                "packs": {"web-packs-64": {"of": "a", "length": 64}},
                "nanosets": {"n": PADDED | {"blend": "web"}},
            },
            "with other settings",
            id="other packs with the name of packs that packing stands for",
        ),
        pytest.param(
            {
                "views": {"v" * 128: {"of": "a"}},
                "nanosets": {"n": PADDED | {"blend": "v" * 128}},
            },
            "up to 128 letters",
            id="no name is left for the packs that packing stands for",
        ),
    ],
)
def test_packs_need_a_name_of_their_own(settings, message):
    with pytest.raises(ConfigError, match=message):
        config_with(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"nanosets": {"n": PADDED | {"blend": {"web": 0.7, "p": 0.3}}}}, id="nanoset"),
        pytest.param({"webdatasets": {"w": PADDED | {"corpora": ["p", "web"]}}}, id="webdataset"),
    ],
)
def test_a_corpus_and_its_packs_cannot_be_used_together(settings):
    with pytest.raises(ConfigError, match="named as well as its packs"):
        config_with(packs=PACKS_OF_64, **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param(
            {"packs": PACKS_OF_64, "nanosets": {"n": {"sequence_length": 63, "blend": "p"}}},
            "packs of another length",
            id="nanoset",
        ),
        pytest.param(
            {
                "nanosets": {
                    "n": PADDED | {"blend": "web"},
                    "m": {"sequence_length": 9, "blend": "web-packs-64"},
                }
            },
            "samples of 9",
            id="nanoset of the packs that packing of another stands for",
        ),
        pytest.param(
            {"packs": PACKS_OF_64, "webdatasets": {"w": {"corpora": ["p"], "sequence_length": 65}}},
            "packs of another length",
            id="webdataset",
        ),
        pytest.param(
            {
                "packs": PACKS_OF_64,
                "exports": {"e": {"of": "p", "format": "mds", "sequence_length": 65}},
            },
            "packs of another",
            id="export",
        ),
    ],
)
def test_samples_of_packs_have_their_length(settings, message):
    with pytest.raises(ConfigError, match=message):
        config_with(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        # Its samples have one token more than their length, so that each starts a token later in
        # its pack.
        pytest.param(
            {"packs": PACKS_OF_64, "exports": {"e": {"of": "p", "format": "datatrove"}}},
            "would drift across packs",
            id="export to datatrove",
        ),
        pytest.param(
            {"nanosets": {"n": PADDED | {"blend": "web", "preset": "nanotron-main"}}},
            "would drift across packs",
            id="nanotron's main branch",
        ),
        # Tokens of the corpus `a` that are carried over would come before packs.
        pytest.param(
            {
                "packs": PACKS_OF_64,
                "webdatasets": {
                    "w": {"corpora": ["a", "p"], "sequence_length": 64, "tail": "carry"}
                },
            },
            "would shift them against the packs",
            id="tars that carry tokens of another corpus",
        ),
        pytest.param(
            {
                "tokenization": {"preset": "tokshuf", "append_eod": True},
                "webdatasets": {"w": {"corpora": ["web"], "preset": "tokshuf", "packing": {}}},
            },
            "cuts each file on its own",
            id="tokshuf",
        ),
    ],
)
def test_packs_are_refused_where_samples_would_be_cut_elsewhere(settings, message):
    with pytest.raises(ConfigError, match=message):
        config_with(**settings)
