"""Facts that a later version has recorded, with more keys than this one knows, can be read."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from nanoset_core.formats.pbin.writing import PbinCounts
from nanoset_core.records.json_records import from_plain
from nanoset_core.stages.webdataset.tars import TarFacts


@pytest.mark.parametrize(
    "facts",
    [
        pytest.param(PbinCounts(documents=3, tokens=9, token_bytes=2), id="a .pbin"),
        pytest.param(
            TarFacts(shard=2, sequences=8, tokens=60, pad_tokens=4, size_bytes=10_240, sha256="9f"),
            id="a tar",
        ),
    ],
)
def test_unknown_keys_of_facts_are_ignored(facts: Any) -> None:
    recorded = {**asdict(facts), "new": 7}

    assert from_plain(type(facts), recorded) == facts
