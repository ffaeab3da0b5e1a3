"""Documents of a shard that repeat others are counted, and reported if they are many."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.records import plain
from nanoset_core.stages.shards.facts import ShardFacts
from nanoset_core.stages.shards.repeats import Repeats, repeats_text
from nanoset_core.tokenizers.engines import Encoded

DISTINCT = [f"document {number}" for number in range(1000)]
BATCH_SIZE = 7


@pytest.mark.parametrize(
    "max_documents",
    [
        pytest.param(64, id="sampled"),  # fewer than there are different documents
        pytest.param(1 << 17, id="all counted"),
    ],
)
@pytest.mark.parametrize(
    ("texts", "share"),
    [
        pytest.param(DISTINCT, 0.0, id="all distinct"),
        pytest.param(DISTINCT * 3, 2 / 3, id="the corpus three times"),
        pytest.param(sorted(DISTINCT * 2), 1 / 2, id="each document twice in sequence"),
        # A share of less than 5 % is not recorded.
        pytest.param(DISTINCT + DISTINCT[:20], 0.0, id="a small share"),
        pytest.param(DISTINCT[:3] * 400, 1197 / 1200, id="three documents 400 times"),
        # Documents without tokens are not counted.
        pytest.param(["", ""], 0.0, id="empty documents"),
        pytest.param([], 0.0, id="no document"),
    ],
)
def test_the_number_of_repeated_documents_is_estimated(texts, share, max_documents):
    repeats = Repeats(max_documents)

    for start in range(0, len(texts), BATCH_SIZE):
        batch = [text.encode() for text in texts[start : start + BATCH_SIZE]]
        ids = np.frombuffer(b"".join(batch), np.uint8).astype(np.uint16)
        lengths = np.array([len(text) for text in batch], np.int32)
        repeats.add(Encoded(ids, lengths))

    assert repeats.among(len(texts)) == round(share * len(texts))


def test_facts_without_repeated_documents_do_not_mention_them():
    assert "repeated" not in plain(ShardFacts())


def test_repeated_documents_of_shards_are_added_up():
    facts = ShardFacts(repeated=2) + ShardFacts(repeated=3)

    assert plain(facts)["repeated"] == 5


def test_a_share_within_the_limit_is_not_reported():
    assert repeats_text(0.2, 0.2) == ""


def test_a_share_above_the_limit_is_reported():
    text = repeats_text(2 / 3, 0.2, "")

    assert text == "66.7% of the documents repeat others, more than 0.2"


def test_the_report_names_the_setting_of_the_limit():
    text = repeats_text(2 / 3, 0.2)

    assert text.startswith("66.7% of the documents repeat others, more than documents.max_dup")
