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

PLAIN = {"raw": "raw", "root": "data", "tokenizer": {"path": "tokenizer.json", "eod": "</s>"}}


def settings(**more: object) -> ProjectConfig:
    return config_from(PLAIN | more, Path("/there/nanoset.yaml"))


def test_equal_packs_are_made_once_and_take_the_place_of_their_corpora():
    one = {
        "sequence_length": 64,
        "packing": {"tail": "carry"},
        "blend": {"web": 2, "code": 1},
        "max_epochs": {"web": 3},
    }
    two = {
        "sequence_length": 64,
        "packing": {"tail": "carry"},
        "blend_per_split": {"train": "web", "valid": ["held"]},
    }
    tars = {
        "corpora": {"web": 1, "code": 0.5},
        "sequence_length": 65,
        "bos": True,
        "packing": {"tail": "carry"},
    }
    own = {"own": {"of": "web", "length": 64, "tail": "carry"}}
    tokenizer = PLAIN["tokenizer"] | {"bos": "<s>"}
    mixed = {
        "sequence_length": 64,
        "packing": {},
        "mix": {"code": 1, "texts": {"share": 2, "mix": {"web": {}}}},
    }
    mixed = settings(nanosets={"mixed": mixed}).nanosets["mixed"]
    assert mixed.mixture.corpora == tuple(mixed.blend) == ("code-packs-64", "web-packs-64")
    config = settings(
        nanosets={"one": one, "two": two},
        webdatasets={"tars": tars},
        packs=own,
        tokenizer=tokenizer,
    )
    assert [*config.packs] == ["own", "code-packs-64-carry", "held-packs-64-carry"]
    assert config.nanosets["one"].blend == {"own": 2, "code-packs-64-carry": 1}
    assert config.nanosets["one"].max_epochs == {"own": 3}
    assert config.nanosets["two"].blend_per_split == {
        "train": "own",
        "valid": ("held-packs-64-carry",),
    }
    assert config.webdatasets["tars"].corpora == {"own": 1, "code-packs-64-carry": 0.5}
    assert [*PACKS.keys(config, ())] == [
        Key("web", "own"),
        *(Key(one, f"{one}-packs-64-carry") for one in ("code", "held")),
    ]
    assert config.trains_on("code")
    with pytest.raises(ConfigError, match="entry of `packs` share a name"):
        check_requested_corpora(config, ["web", "code", "held", "own"])


PACKED = {"sequence_length": 64, "packing": {}}
PACKS_OF_64 = {"p": {"of": "web", "length": 64}}
REFUSED = [
    ({"packs": PACKS_OF_64, "tokenizer": {"path": "tokenizer.json"}}, "packs need a padding token"),
    (
        {"packs": PACKS_OF_64 | {"q": {"of": "p", "length": 64}}},
        "packs are made from a corpus or view",
    ),
    (
        {"packs": PACKS_OF_64, "views": {"v": {"of": "p"}}},
        "a view is of a corpus or of another view",
    ),
    (
        {"packs": PACKS_OF_64, "views": {"p": {"of": "web"}}},
        "packs and a corpus or view share a name",
    ),
    (
        {"packs": PACKS_OF_64, "nanosets": {"n": {"sequence_length": 63, "blend": "p"}}},
        "packs of another length",
    ),
    (
        {"packs": PACKS_OF_64, "nanosets": {"n": PACKED | {"blend": {"web": 0.7, "p": 0.3}}}},
        "named as well as its packs",
    ),
    (
        {"nanosets": {"n": PACKED | {"mix": {"web-packs-64": {"mix": {"code": {}}}, "web": {}}}}},
        "a group has the same name as the packs",
    ),
    (
        {"packs": PACKS_OF_64, "webdatasets": {"w": PACKED | {"corpora": ["p", "web"]}}},
        "named as well as its packs",
    ),
    (
        {
            "packs": {"web-packs-64": {"of": "a", "length": 64}},
            "nanosets": {"n": PACKED | {"blend": "web"}},
        },
        "with other settings",
    ),
    (
        {"views": {"web-packs-64": {"of": "a"}}, "nanosets": {"n": PACKED | {"blend": "web"}}},
        "corpus or view share a",
    ),
    (
        {"views": {"v" * 128: {"of": "a"}}, "nanosets": {"n": PACKED | {"blend": "v" * 128}}},
        "up to 128 letters",
    ),
    (
        {
            "nanosets": {
                "n": PACKED | {"blend": "web"},
                "m": {"sequence_length": 9, "blend": "web-packs-64"},
            }
        },
        "samples of 9",
    ),
    (
        {"packs": PACKS_OF_64, "webdatasets": {"w": {"corpora": ["p"], "sequence_length": 65}}},
        "packs of another length",
    ),
    (
        {
            "packs": PACKS_OF_64,
            "exports": {"e": {"of": "p", "format": "mds", "sequence_length": 65}},
        },
        "packs of another",
    ),
    (
        {"packs": PACKS_OF_64, "exports": {"e": {"of": "p", "format": "datatrove"}}},
        "would drift across packs",
    ),
    (
        {
            "nanosets": {
                "n": {
                    "sequence_length": 64,
                    "blend": "web",
                    "packing": {},
                    "preset": "nanotron-main",
                }
            }
        },
        "would drift across packs",
    ),
    (
        {
            "packs": PACKS_OF_64,
            "webdatasets": {"w": {"corpora": ["a", "p"], "sequence_length": 64, "tail": "carry"}},
        },
        "would shift them against the packs",
    ),
    (
        {
            "tokenization": {"preset": "tokshuf", "append_eod": True},
            "webdatasets": {"w": {"corpora": ["web"], "preset": "tokshuf", "packing": {}}},
        },
        "cuts each file on its own",
    ),
]


@pytest.mark.parametrize(("more", "what"), REFUSED, ids=[what for _, what in REFUSED])
def test_packs_that_samples_would_not_be_are_refused(more, what):
    with pytest.raises(ConfigError, match=what):
        settings(**more)
