"""How many documents of a shard repeat others."""

import numpy as np
import pytest

from helpers.records import plain
from nanoset_core.stages.shards.facts import ShardFacts
from nanoset_core.stages.shards.repeats import Repeats, repeats_text
from nanoset_core.tokenizers.engines import Encoded

ONCE = [f"document {number}" for number in range(1000)]


@pytest.mark.parametrize("most", [64, 1 << 17])
@pytest.mark.parametrize(("texts", "share"), [
    (ONCE, 0.0), (ONCE * 3, 2 / 3), ([one for one in ONCE for _ in range(2)], 1 / 2), (ONCE + ONCE[:20], 0.0),
    (ONCE[:3] * 400, 1197 / 1200), (["", ""], 0.0), ([], 0.0),
])  # fmt: skip
def test_share(texts, share, most):
    repeats = Repeats(most)
    for begin in range(0, len(texts), 7):
        batch = [text.encode() for text in texts[begin : begin + 7]]
        lengths = np.array(list(map(len, batch)), np.int32)
        repeats.add(Encoded(np.frombuffer(b"".join(batch), np.uint8).astype(np.uint16), lengths))
    assert repeats.among(len(texts)) == round(share * len(texts))


def test_it_is_noted_where_it_is_much():
    assert "repeated" not in plain(ShardFacts())
    assert plain(ShardFacts(repeated=2) + ShardFacts(repeated=3))["repeated"] == 5
    assert repeats_text(0.2, 0.2) == ""
    assert repeats_text(2 / 3, 0.2, "") == "66.7% of the documents repeat others, more than 0.2"
    assert repeats_text(2 / 3, 0.2).startswith(
        "66.7% of the documents repeat others, more than documents.max_dup"
    )
