"""When Python may say whether a text is normalised."""

from __future__ import annotations

from unicodedata import normalize

from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.tokenization.bpe.normal_form import trusts_python

NEW_MARK, NEW_COMPOSITE = "\u1abf", "\u0cc0"


def nfc(text: str) -> str:
    return normalize("NFC", text)


def test_the_same_tables_are_trusted():
    assert trusts_python(nfc)


def test_an_older_library_is_trusted():
    """It takes a mark that it does not know for a letter, and leaves alone what Python sorts."""
    assert trusts_python(lambda text: NEW_MARK.join(map(nfc, text.split(NEW_MARK))))


def test_a_newer_library_is_not_trusted():
    """It sorts a mark, or changes a character, that Python does not know."""
    letter = "\u0560"
    assert not trusts_python(lambda text: nfc(text).replace("\u0345" + letter, letter + "\u0345"))
    assert not trusts_python(lambda text: nfc(text).replace(letter, "x"))


def test_the_library_leaves_alone_what_python_calls_normal():
    from tokenizers.normalizers import NFC

    library = NFC()
    text = st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.characters(categories=["Mn", "Mc"])))

    @settings(max_examples=500, deadline=None)
    @given(text)
    def check(text):
        normal = nfc(text)
        assert library.normalize_str(normal) == normal

    check()
