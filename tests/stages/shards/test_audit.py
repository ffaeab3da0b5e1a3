"""The audit finds an engine that is wrong, and the shard is right all the same."""

from __future__ import annotations

import numpy as np
import pytest

from nanoset_core.errors import InputError
from nanoset_core.tokenizers.audit import N_FIRST_DOCUMENTS, Audit
from nanoset_core.tokenizers.engines.engine import Encoded, WrongTokensError


class Letters:
    """One token a character."""

    name, version, reason = "numpy", "1", "for the test"

    def __init__(self, wrong="", reference=None) -> None:
        self.wrong, self.seen, self.reference = wrong, [], reference

    def encode(self, texts):
        self.seen += texts
        ids = [
            ord(character) + (1 if character == self.wrong else 0)
            for text in texts
            for character in text
        ]
        return Encoded(np.array(ids, np.int32), np.array([len(text) for text in texts], np.int32))


def compared(share, batches, seed="shard"):
    reference = Letters()
    checked = Audit(Letters(reference=reference), share, seed)
    for batch in batches:
        checked.encode(batch)
    assert checked.documents == len(reference.seen)
    return reference.seen


TEXTS = [f"document {number}" for number in range(20_000)]


def test_a_seeded_share_of_the_documents_whatever_the_batches():
    found = compared(0.01, [TEXTS])
    assert 150 < len(found) < 250
    assert found[:N_FIRST_DOCUMENTS] == TEXTS[:N_FIRST_DOCUMENTS]
    assert compared(0.01, [TEXTS[:7], [], TEXTS[7:9000], TEXTS[9000:]]) == found
    assert compared(0.01, [TEXTS], seed="another") != found


def test_all_few_or_none():
    assert compared(1.0, [TEXTS[:100]]) == TEXTS[:100]
    assert compared(1e-9, [TEXTS[:100]]) == TEXTS[:N_FIRST_DOCUMENTS]
    assert compared(1e-9, [["x" * (1 << 17), "y"]]) == ["y"]
    assert compared(0, [TEXTS[:100]]) == []
    assert compared(1.0, [["x" * (1 << 21), "y"]]) == ["y"], (
        "the reference would take some GB for a long one"
    )


def test_the_first_difference_is_told():
    with pytest.raises(
        WrongTokensError, match="from token 1 on: 99, 99, … instead of 98, 99"
    ) as error:
        Audit(Letters("b", Letters()), 1.0, "shard").encode(["aa", "abc"])
    assert error.value.document == 1


def test_other_lengths_are_a_difference():
    class Short(Letters):
        def encode(self, texts):
            return super().encode([text[:2] for text in texts])

    with pytest.raises(WrongTokensError, match="nothing instead of 99"):
        Audit(Short("", Letters()), 1.0, "shard").encode(["ab", "abc"])


def test_an_engine_that_fails_is_wrong_and_a_bad_text_is_not():
    class Failing(Letters):
        def encode(self, texts):
            raise error

    error = RuntimeError("index out of bounds")
    with pytest.raises(WrongTokensError, match="it failed: RuntimeError"):
        Audit(Failing("", Letters()), 0, "shard").encode(["a"])
    error = InputError("a document is not valid Unicode")
    with pytest.raises(InputError):
        Audit(Failing("", Letters()), 1.0, "shard").encode(["a"])


def test_the_reference_is_not_compared_with_itself():
    checked = Audit(Letters(), 1.0, "shard")
    checked.encode(TEXTS[:10])
    assert checked.documents == 0
