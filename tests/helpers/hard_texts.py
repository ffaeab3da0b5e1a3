"""Text that is hard to encode, as a strategy of hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

CORE_CHARACTERS = list(
    " \n\r\t'sSrRvVlLeEtTdDmM12!.-aé世ſ\u3000\u00a0\u0301١२🎉\u2028Ж½\u0085\u1680\x1c\ufeff\u200b。，す"
)
JOINED_WORDS = (
    " the¦'s¦'ll¦'RE¦hello¦ 2024¦ 123456¦Привет¦日本語¦हिन्दी¦\n\n¦\r\n¦ \n  "
    "¦e\u0301¦\u212b¦가¦각¦!!!\n\n¦"
    "a b c d¦x. y¦{\n    \t¦<|endoftext|>¦<|reserved_3|>¦<|end¦\0¦a <mask> b¦it's's'sx¦WE'LL've¦"
    "HTTPServer¦中A¦二〇二〇年1〇〇¦ ⼀⼀一!⼀¦〡々中's¦aB中Cd¦!!\u0301a¦ !\u0301\u0301a¦❤\ufe0f❤\ufe0f!!\ufe0f¦"
    "!\n//\n/a¦\n/!\u0301¦\n/b¦!naïve¦\u200b\u200ba¦カタ・カナ¦぀あ¦▁¦ ▁▁ x¦<b>x</b>¦<s>¦<0x0A>¦)); (x"
)
WORDS = ["=====" * 20, *JOINED_WORDS.split("¦")]
# Around the lengths of added tokens of spaces, and of words in tables of different widths.
RUN_LENGTHS = [2, 3, 4, 8, 9, 16, 17, 24, 25, 26, 31, 49, 65, 249]


def hard_texts() -> st.SearchStrategy[str]:
    """Return a strategy for texts of a few pieces, each of which some engine may get wrong.

    The pieces are characters of every class, long runs, words, and text that the numpy engine
    leaves to the reference.
    """
    characters = st.one_of(
        st.sampled_from(CORE_CHARACTERS), st.characters(exclude_categories=["Cs"])
    )
    runs = st.builds(str.__mul__, characters, st.sampled_from(RUN_LENGTHS))
    # Characters are named twice so that they are drawn more often.
    pieces = st.one_of(characters, characters, st.sampled_from(WORDS), runs)
    return st.lists(pieces, max_size=12).map("".join)
