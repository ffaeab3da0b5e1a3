"""Which shards are suspect by a record."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.storage.access import LocalAccess
from nanoset_core.tokenization.distrust import ENCODER, Distrust, Encoder, suspicion

RECORD = Distrust("numpy", "1.0", "a" * 64, "web: a.jsonl:7", "token 3 on is 1, … instead of 2, …")


@pytest.mark.parametrize(("encoder", "suspect"), [
    (Encoder("numpy", "1.0", 4), True),
    (Encoder("numpy", "1.1", 4), False),
    (Encoder("gigatoken", "1.0", 4), False),
    (Encoder("gigatoken", "0.9", 4, "numpy 1.0"), True),
    (Encoder("gigatoken", "0.9", 4, "numpy 1.1"), False),
    (Encoder("tokenizers", "1.0", 4), False),
])  # fmt: skip
def test_what_an_engine_may_have_encoded_is_suspect(encoder: Encoder, suspect: bool) -> None:
    shard = Manifest(
        Path("shard"),
        {"options": {"tokenizer": "a" * 64}},
        "0",
        {ENCODER: asdict(encoder)},
        {},
        LocalAccess(Path("shard")),
    )
    assert suspicion(shard, [RECORD]) == (RECORD if suspect else None)
    assert suspicion(shard, [replace(RECORD, tokenizer="b" * 64)]) is None
    assert suspicion(replace(shard, facts={}), [RECORD]) is None
