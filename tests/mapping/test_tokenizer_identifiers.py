"""Identifiers from what a trainer wrote."""

import json

import pytest

from nanoset_core.errors import ConfigError
from nanoset_core.mapping.naming import read_identifiers

OWN = {"class": "T", "tokenizer_path": ["a"]}
MEMBER = {"class": "GPTDataset", "dataset_path": "/d", "num_samples": 5, "tokenizer": OWN}


@pytest.mark.parametrize("value", [OWN, MEMBER, {"class": "BlendedDataset", "datasets": [MEMBER, MEMBER]}])
def test_found(tmp_path, value):
    path = tmp_path / "description.txt"
    path.write_text(json.dumps(value, indent=4))
    assert read_identifiers(path, "here") == OWN


@pytest.mark.parametrize("text", ["", "[]", "3", '{"datasets": []}', '{"datasets": [3]}'])
def test_not_found(tmp_path, text):
    path = tmp_path / "description.txt"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_identifiers(path, "here")
    assert str(path) in caught.value.found


def test_no_file(tmp_path):
    with pytest.raises(ConfigError, match="no tokenizer identifiers"):
        read_identifiers(tmp_path / "none", "here")
