"""Put special tokens around documents, and treat documents without tokens, as a tool does.

The presets stand for the preprocessing tools whose output is matched:

| preset | adds the tokenizer's special tokens | adds the end token | a document without tokens |
| --- | --- | --- | --- |
| megatron | no | if the document has tokens | becomes a document without a sequence |
| nanotron | those that `tokenizer.encode` adds | always | becomes a sequence of the added tokens |
| nemo | no | if the document has tokens | is left out |
| tokshuf | no | always | becomes a sequence of the added tokens |

The second column is a default, which settings can change. Sources: Megatron-LM
`tools/preprocess_data.py`, nanotron `tools/preprocess_data.py` (896473d), NeMo
`scripts/nlp_language_modeling/preprocess_data_for_megatron.py`, tokshuf-rust `src/main.rs`
(b1d3e85).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from nanoset_core.tokenizers.engines import Encoded
from nanoset_core.tokenizers.engines.arrays import Bools, Ids, Ints
from nanoset_core.tokenizers.files import TokenizerPath
from nanoset_core.tokenizers.tokenizer import (
    added_tokens,
    is_ordinary_token,
    token_id,
    tokenizer_facts,
)

WriterPreset = Literal["megatron", "nanotron", "nemo", "tokshuf"]
SpecialTokens = Literal["add", "none"]
Empty = Literal["no_sequence", "sequence", "skip"]
_DEFAULT_SPECIAL_TOKENS: dict[WriterPreset, SpecialTokens] = {
    "megatron": "none",
    "nanotron": "add",
    "nemo": "none",
    "tokshuf": "none",
}
_EMPTY: dict[WriterPreset, Empty] = {
    "megatron": "no_sequence",
    "nanotron": "sequence",
    "nemo": "skip",
    "tokshuf": "sequence",
}


@dataclass(frozen=True, slots=True)
class Framing:
    """How documents become sequences."""

    before: tuple[int, ...] = ()
    """Ids before a document's tokens."""
    after: tuple[int, ...] = ()
    """Ids after them."""
    empty: Empty = "no_sequence"
    """What becomes of a document without tokens: a document without a sequence, a document with a
    sequence of the ids before and after, or nothing (skip)."""


class Framed(NamedTuple):
    """The sequences of a batch of documents."""

    ids: Ids
    """Ids of all sequences, concatenated, of the type that was encoded, shape (n_tokens,)."""
    lengths: Ids
    """Ids of each document, 0 for one without a sequence; int32, shape (n_documents,)."""
    sequence_counts: Ints
    """Sequences of each document, 0 or 1; int64, shape (n_documents,)."""
    is_written: Bools
    """Whether each document is written, or left out; bool, shape (n_documents,)."""


def pair_name(preset: WriterPreset, prefix: str, key: str) -> str:
    """Return the name that a preprocessing tool gives to the pair of files with the tokens.

    Lines of JSON may have several texts, and each tool names the pair after the key of its texts.
    For the prefix `out` and lines such as `{"text": "…"}`:

        Megatron-LM and others    out_text_document.bin, out_text_document.idx
        nanotron                  out_text.bin, out_text.idx

    Args:
        preset: The tool whose output is matched.
        prefix: The output prefix that the user has given.
        key: Key of the text.

    Returns:
        Path of the .bin and .idx without these endings.
    """
    if preset == "nanotron":
        return f"{prefix}_{key}"
    return f"{prefix}_{key}_document"


def make_framing(
    preset: WriterPreset,
    tokenizer_file: TokenizerPath,
    *,
    bos: int | None = None,
    eod: int | None = None,
    special_tokens: SpecialTokens | None = None,
) -> Framing:
    """Return which special tokens are put before and after the tokens of every document.

    For example, `bos` is 1 and `eod` is 2, and the tokenizer itself adds 101 before and 102 after
    each text, which is its template:

        only bos and eod     1       … 2
        only the template    101     … 102
        both                 1 101   … 102 2

    Args:
        preset: The preprocessing tool whose output is matched.
        tokenizer_file: Path of the tokenizer.
        bos: Id of a begin-of-document token to add, or None.
        eod: Id of an end-of-document token to add, or None.
        special_tokens: Whether to add the template. None to do what the preset's tool does.

    Raises:
        ConfigError: The tokenizer's special tokens depend on the text.
    """
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    if adds_template(preset, special_tokens):
        before, after = added_tokens(tokenizer_file)
    has_template = bool(before or after)

    if bos is not None:
        before = (bos, *before)
    if eod is not None:
        after = (*after, eod)

    # Tools differ in what they do with a text without tokens: some skip it. With a template, even
    # an empty text has tokens, so all tools write it.
    what_empty_becomes: Empty = "sequence" if has_template else _EMPTY[preset]
    return Framing(before, after, empty=what_empty_becomes)


def adds_template(preset: WriterPreset, special_tokens: SpecialTokens | None) -> bool:
    """Return whether documents get the special tokens that the tokenizer adds to texts by itself.

    Args:
        preset: The preprocessing tool whose output is matched.
        special_tokens: What the user chose; None to do what the preset's tool does, which is to add
            them for nanotron alone.
    """
    return (special_tokens or _DEFAULT_SPECIAL_TOKENS[preset]) == "add"


def special_tokens_notices(
    preset: WriterPreset,
    tokenizer_file: TokenizerPath,
    special_tokens: SpecialTokens | None,
    *,
    bos: str | None = None,
    eod: str | None = None,
) -> list[str]:
    """Return notices about special tokens that the user may not expect in the documents.

    The template of a tokenizer is the special tokens that its own `encode` adds to each text:

        template   setting   added   notice
        none       "add"     no      the setting adds nothing
        any        "add"     yes     one of the tokens is added twice, if bos or eod is the same
        any        "none"    no      none
        any        no        no      tools differ, so the user should choose (Megatron-LM's preset)

    There is also a notice if bos or eod is an ordinary token, such as "1", which texts contain.
    Without the setting, the preset decides whether the template is added.

    Args:
        preset: The preprocessing tool whose output is matched.
        tokenizer_file: Path of the tokenizer.
        special_tokens: Whether the user chose to add the tokenizer's template: special tokens that
            its own `encode` adds to each text. None for no choice.
        bos: The token that the settings put before every document, or None.
        eod: The token that the settings put after every document, or None.

    Raises:
        ConfigError: The tokenizer's special tokens are added, and depend on the text.
    """
    ordinary_notices = [
        *_ordinary_token_notices(tokenizer_file, bos, "documents begin", "--bos"),
        *_ordinary_token_notices(tokenizer_file, eod, "documents end", "--eod"),
    ]
    return [*ordinary_notices, *_template_notices(preset, tokenizer_file, special_tokens, bos, eod)]


def _ordinary_token_notices(
    tokenizer_file: TokenizerPath, name: str | None, position: str, key: str
) -> list[str]:
    """Return a notice if the token that begins or ends documents is an ordinary one.

    For example, a user means the token with the id 1, and names the token "1".

    Args:
        tokenizer_file: Path of the tokenizer.
        name: Text of the token, or None.
        position: Where the token is, such as "documents begin".
        key: The option that names the token, for errors: "--bos".
    """
    if name is None or not is_ordinary_token(tokenizer_file, name):
        return []
    ident = token_id(tokenizer_file, name, key)
    return [
        f"{position} with {name!r} (id {ident}), an ordinary token, which texts may contain, too: "
        "models learn where documents begin and end from a special token"
    ]


def _template_notices(
    preset: WriterPreset,
    tokenizer_file: TokenizerPath,
    special_tokens: SpecialTokens | None,
    bos: str | None,
    eod: str | None,
) -> list[str]:
    """Return notices about the special tokens that a tokenizer itself adds to each text.

    These tokens are its template, such as `[CLS]` and `[SEP]`. There is a notice

    - if the user wants them, and the tokenizer has none;
    - if they are added, and one of them is added by another setting, too (`bos` or `eod`);
    - if they are left out as in Megatron-LM, of which some versions add them.

    Args:
        preset: The preprocessing tool whose output is matched.
        tokenizer_file: Path of the tokenizer.
        special_tokens: Whether the user chose to add the template; None for no choice.
        bos: The token that the settings put before every document, or None.
        eod: The token that the settings put after every document, or None.
    """
    template = tokenizer_facts(tokenizer_file).template
    if special_tokens == "add" and not template:
        return [
            "special_tokens: add (--special-tokens) adds nothing: this tokenizer has no template "
            "that does; prepend_bos (--bos) puts a BOS in front of each document"
        ]

    is_template_added = adds_template(preset, special_tokens)
    if is_template_added:
        return _repeated_tokens(tokenizer_file, bos, eod)

    should_choose = preset == "megatron" and special_tokens is None
    if template and should_choose:
        return [_left_out_notice(template)]
    return []


def _left_out_notice(template: Sequence[str]) -> str:
    """Return the notice that this program leaves out tokens that the tokenizer itself would add.

    A tokenizer may add `[CLS]` and `[SEP]` to each text. Some versions of Megatron-LM keep them,
    and others do not, so the user should choose.

    Args:
        template: The special tokens that the tokenizer itself would add to each text.
    """
    unique_tokens = dict.fromkeys(template)  # in order
    tokens = " and ".join(map(repr, unique_tokens))  # "'[CLS]' and '[SEP]'"
    return (
        f"the tokenizer's own encode adds {tokens} to each document, and this does not; "
        "Megatron-LM's HuggingFaceTokenizer does with megatron-core up to 0.14 and from 0.17 on, "
        "and does not with 0.15 and 0.16: choose with special_tokens: add or none "
        "(--special-tokens)"
    )


def _repeated_tokens(tokenizer_file: TokenizerPath, bos: str | None, eod: str | None) -> list[str]:
    """Return notices on special tokens that are added twice: by the settings and by the tokenizer.

        settings          tokenizer itself       each document
        prepend_bos       adds nothing           <s> the cat
        prepend_bos       adds <s>               <s> <s> the cat      a notice

    Args:
        tokenizer_file: Path of the tokenizer.
        bos: The token that the settings put before every document, or None.
        eod: The token that the settings put after every document, or None.
    """
    ids_before, ids_after = added_tokens(tokenizer_file)
    notices = []
    if bos is not None and token_id(tokenizer_file, bos, "--bos") in ids_before:
        notices.append(
            f"each document begins with {bos!r} twice: the tokenizer's template adds it, and so "
            "does prepend_bos (--bos); one of them is enough"
        )
    if eod is not None and token_id(tokenizer_file, eod, "--eod") in ids_after:
        notices.append(
            f"each document ends with {eod!r} twice: the tokenizer's template adds it, and so does "
            "append_eod (--append-eod); one of them is enough"
        )
    return notices


def frame(encoded: Encoded, framing: Framing) -> Framed:
    """Put special tokens before and after every document of a batch of tokenized documents.

    A trainer reads documents one after another, so a token marks where each begins or ends. For
    example, with the token B before and E after each document:

        documents    [5, 6], [], [7]
        ids          B 5 6 E B 7 E
        lengths      4 0 3

    Here the document without tokens stays empty (`framing.empty` is "no_sequence"). It may also
    become B E ("sequence"), or be left out ("skip").

    Args:
        encoded: Token ids of all documents, concatenated, and the length of each document.
        framing: The special tokens, and what becomes of a document without tokens.
    """
    has_tokens = encoded.lengths > 0  # (n_documents,) [True, False, True]
    all_documents = np.ones_like(has_tokens)
    # Which documents get a sequence of tokens, and which ones are written at all?
    has_sequence = all_documents if framing.empty == "sequence" else has_tokens
    is_written = has_tokens if framing.empty == "skip" else all_documents

    if framing.before or framing.after:
        encoded = _add_special_tokens(encoded, has_sequence, framing)
    return Framed(
        ids=encoded.ids,
        lengths=encoded.lengths,
        sequence_counts=has_sequence.astype(np.int64),
        is_written=is_written,
    )


def _add_special_tokens(encoded: Encoded, has_sequence: Bools, framing: Framing) -> Encoded:
    """Put special tokens before and after some documents of a batch.

    Args:
        encoded: Token ids of all documents, such as 5 6 7, and their lengths, such as 2 0 1.
        has_sequence: Which documents get special tokens, shape (n_documents,).
        framing: The special tokens, such as B before and E after a document.

    Returns:
        Such as the ids B 5 6 E B 7 E, and the lengths 4 0 3.
    """
    # Where each of these documents starts and stops in the ids: [0, 2] and [2, 3].
    stops = np.cumsum(encoded.lengths, dtype=np.int64)
    starts = stops - encoded.lengths
    edges = np.stack([starts, stops], axis=1)[has_sequence]  # (n_sequences, 2)
    ids = _insert_at_edges(encoded.ids, edges, framing)

    n_added = np.int32(len(framing.before) + len(framing.after))
    lengths = encoded.lengths + has_sequence.astype(np.int32) * n_added
    return Encoded(ids, lengths)


def _insert_at_edges(ids: Ids, edges: Ints, framing: Framing) -> Ids:
    """Insert the special tokens before each document at its start, and those after it at its stop.

    With B and C before and E after each document, and documents at [0, 2] and [2, 3] of 5 6 7:

        edges            0    2  2    3
        special ids      B C  E  B C  E
        positions        0 0  2  2 2  3
        result           B C 5 6 E B C 7 E

    Args:
        ids: Token ids of all documents, concatenated, shape (n_tokens,).
        edges: Where documents start and stop in `ids`, shape (n_sequences, 2).
        framing: The special tokens.
    """
    n_documents = len(edges)
    ids_of_a_document = np.array([*framing.before, *framing.after], ids.dtype)  # B C E
    special_ids = np.tile(ids_of_a_document, n_documents)  # B C E B C E

    # Two tokens are inserted at each start, and one at each stop. Repeat the edges that many times.
    counts_of_a_document = [len(framing.before), len(framing.after)]  # 2 1
    n_inserted = np.tile(counts_of_a_document, n_documents)  # 2 1 2 1
    positions = np.repeat(edges.ravel(), n_inserted)  # 0 0 2 2 2 3
    return np.insert(ids, positions, special_ids)
