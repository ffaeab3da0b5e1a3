"""The audit compares some documents with the reference, and detects an engine that is wrong."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from nanoset_core.errors import InputError
from nanoset_core.tokenizers.audit import N_FIRST_DOCUMENTS, Audit
from nanoset_core.tokenizers.engines.engine import Encoded, WrongTokensError

TEXTS = [f"document {number}" for number in range(20_000)]
SEED = "shard"


class LetterEngine:
    """An engine whose tokens are the code points of the characters."""

    name = "numpy"
    version = "1"
    reason = "for the test"

    def __init__(self, reference: LetterEngine | None = None, wrong_letter: str = "") -> None:
        self.reference = reference
        self.wrong_letter = wrong_letter
        """A letter that gets the code point of the next one, which is a fault."""
        self.encoded_texts: list[str] = []

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode texts, and remember them."""
        self.encoded_texts += texts
        ids = []
        for character in "".join(texts):
            is_wrong = character == self.wrong_letter
            ids.append(ord(character) + is_wrong)
        lengths = [len(text) for text in texts]
        return Encoded(np.array(ids, np.int32), np.array(lengths, np.int32))


class ShorteningEngine(LetterEngine):
    """An engine that encodes only the first two characters of each text."""

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Encode the beginning of each text."""
        return super().encode([text[:2] for text in texts])


class FailingEngine(LetterEngine):
    """An engine that raises an error for every batch."""

    def __init__(self, reference: LetterEngine, error: Exception) -> None:
        super().__init__(reference)
        self.error = error

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Raise the error."""
        raise self.error


def compared_texts(
    share: float, batches: Sequence[Sequence[str]], seed: str = SEED
) -> Sequence[str]:
    """Return the texts that an audit of these batches compares with the reference."""
    reference = LetterEngine()
    audit = Audit(LetterEngine(reference), share, seed)
    for batch in batches:
        audit.encode(batch)
    assert audit.documents == len(reference.encoded_texts)
    return reference.encoded_texts


@pytest.fixture(scope="module")
def texts_of_one_batch() -> Sequence[str]:
    """The texts that are compared if the share is 1 %, and all documents are in one batch."""
    return compared_texts(0.01, [TEXTS])


# Which documents are compared


def test_about_the_share_of_documents_is_compared_and_the_first_ones_always(texts_of_one_batch):
    assert 150 < len(texts_of_one_batch) < 250
    assert texts_of_one_batch[:N_FIRST_DOCUMENTS] == TEXTS[:N_FIRST_DOCUMENTS]


def test_the_choice_of_documents_does_not_depend_on_the_batches(texts_of_one_batch):
    several_batches = [TEXTS[:7], [], TEXTS[7:9000], TEXTS[9000:]]

    assert compared_texts(0.01, several_batches) == texts_of_one_batch


def test_the_choice_of_documents_depends_on_the_seed(texts_of_one_batch):
    assert compared_texts(0.01, [TEXTS], seed="another") != texts_of_one_batch


@pytest.mark.parametrize(
    ("share", "n_compared"),
    [
        pytest.param(1.0, 100, id="all"),
        pytest.param(1e-9, N_FIRST_DOCUMENTS, id="the first ones"),
        pytest.param(0, 0, id="none"),
    ],
)
def test_a_share_selects_all_documents_or_the_first_ones_or_none(share, n_compared):
    assert compared_texts(share, [TEXTS[:100]]) == TEXTS[:n_compared]


@pytest.mark.parametrize(
    ("share", "length"),
    [
        pytest.param(1e-9, 1 << 17, id="long for one of the first"),
        # The reference would need some GB of memory for such a document.
        pytest.param(1.0, 1 << 21, id="too long for any"),
    ],
)
def test_a_long_document_is_not_compared(share, length):
    assert compared_texts(share, [["x" * length, "y"]]) == ["y"]


def test_the_reference_is_not_compared_with_itself():
    audit = Audit(LetterEngine(reference=None), 1.0, SEED)

    audit.encode(TEXTS[:10])

    assert audit.documents == 0


# Engines that are wrong


def test_the_error_names_the_first_token_that_differs():
    audit = Audit(LetterEngine(LetterEngine(), wrong_letter="b"), 1.0, SEED)

    with pytest.raises(
        WrongTokensError, match="from token 1 on: 99, 99, … instead of 98, 99"
    ) as caught:
        audit.encode(["aa", "abc"])

    assert caught.value.document == 1


def test_a_document_with_too_few_tokens_is_an_error():
    audit = Audit(ShorteningEngine(LetterEngine()), 1.0, SEED)

    with pytest.raises(WrongTokensError, match="nothing instead of 99"):
        audit.encode(["ab", "abc"])


def test_an_engine_that_fails_is_wrong():
    error = RuntimeError("index out of bounds")
    audit = Audit(FailingEngine(LetterEngine(), error), 0, SEED)

    with pytest.raises(WrongTokensError, match="it failed: RuntimeError"):
        audit.encode(["a"])


def test_an_engine_that_refuses_a_text_is_not_wrong():
    error = InputError("a document is not valid Unicode")
    audit = Audit(FailingEngine(LetterEngine(), error), 1.0, SEED)

    with pytest.raises(InputError):
        audit.encode(["a"])
