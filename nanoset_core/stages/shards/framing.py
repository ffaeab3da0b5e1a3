"""Put special tokens around documents as a preprocessing tool does, and treat documents without
tokens as it does.

| preset | special tokens of the tokenizer, by default | end token | a document without tokens |
| --- | --- | --- | --- |
| megatron | none | where there are tokens | a document without a sequence |
| nanotron | those that `tokenizer.encode` adds | always | a sequence of what is added, at least of length zero |
| nemo | none | where there are tokens | skipped |
| tokshuf | none | always | a sequence of what is added |

Sources: Megatron-LM `tools/preprocess_data.py`, nanotron `tools/preprocess_data.py` (896473d), NeMo
`scripts/nlp_language_modeling/preprocess_data_for_megatron.py`, tokshuf-rust `src/main.rs`
(b1d3e85).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from nanoset_core.tokenizers.engines import Encoded
from nanoset_core.tokenizers.engines.arrays import Bools, Ids, Ints
from nanoset_core.tokenizers.files import TokenizerPath
from nanoset_core.tokenizers.tokenizer import added_tokens, token_id, tokenizer_facts

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
    """What a document without tokens becomes: a document without a sequence, one with a sequence of
    the ids before and after, or none (skip)."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values, as recipes contain them."""
        return {"before": list(self.before), "after": list(self.after), "empty": self.empty}


class Framed(NamedTuple):
    """Sequences of a batch of documents."""

    ids: Ids
    """Shape (tokens,), dtype as encoded: ids of all sequences, back to back."""
    lengths: Ids
    """int32, shape (documents,): ids of each document, 0 for one without."""
    sequences: Ints
    """int64, shape (documents,): sequences of each document, 0 or 1."""
    kept: Bools
    """bool, shape (documents,): which documents are written."""


def pair_name(preset: WriterPreset, prefix: str, key: str) -> str:
    """Return how a preset's tool names the pair of one key: {prefix}_{key}_document, nanotron
    {prefix}_{key}.
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
    """Return the framing of a preset, with the ids to put before and after every document.

    Args:
        preset: Whose tool is matched.
        tokenizer_file: Where the tokenizer is.
        bos: Id of a begin-of-document token to add, or None.
        eod: Id of an end-of-document token to add, or None.
        special_tokens: Whether to add the tokens that the tokenizer's own `encode` adds, too; None
            for what the preset's tool does.

    Raises:
        ConfigError: The tokenizer's special tokens depend on the text.
    """
    template_before: tuple[int, ...] = ()
    template_after: tuple[int, ...] = ()
    if adds_template(preset, special_tokens):
        template_before, template_after = added_tokens(tokenizer_file)

    before = template_before if bos is None else (bos, *template_before)
    after = template_after if eod is None else (*template_after, eod)
    # With a template, a document without text has tokens for the tool.
    has_template = bool(template_before or template_after)
    return Framing(before, after, "sequence" if has_template else _EMPTY[preset])


def adds_template(preset: WriterPreset, special_tokens: SpecialTokens | None) -> bool:
    """Return whether the special tokens of the tokenizer's own template are added to each document."""
    return (special_tokens or _DEFAULT_SPECIAL_TOKENS[preset]) == "add"


def special_tokens_notices(
    preset: WriterPreset,
    tokenizer_file: TokenizerPath,
    special_tokens: SpecialTokens | None,
    *,
    bos: str | None = None,
    eod: str | None = None,
) -> list[str]:
    """Return notices if trainers differ and no choice was made, or if the choice has an effect that
    few expect.

    Args:
        preset: Whose tool is matched.
        tokenizer_file: Where the tokenizer is.
        special_tokens: What the user chose; None if nothing.
        bos: The token that is put before every document in any case.
        eod: The token that is put after every document in any case.

    Raises:
        ConfigError: The tokenizer's special tokens are added, and depend on the text.
    """
    template = tokenizer_facts(tokenizer_file).template
    if special_tokens == "add" and not template:
        return [
            "special_tokens: add (--special-tokens) adds nothing: this tokenizer has no template that does; "
            "prepend_bos (--bos) puts a BOS in front of each document"
        ]
    if adds_template(preset, special_tokens):
        return _repeated_tokens(tokenizer_file, bos, eod)
    if special_tokens is not None or not template or preset != "megatron":
        return []
    tokens = " and ".join(map(repr, dict.fromkeys(template)))
    return [
        f"the tokenizer's own encode adds {tokens} to each document, and this does not; Megatron-LM's "
        "HuggingFaceTokenizer does with megatron-core up to 0.14 and from 0.17 on, and does not with 0.15 and 0.16: "
        "choose with special_tokens: add or none (--special-tokens)"
    ]


def _repeated_tokens(tokenizer_file: TokenizerPath, bos: str | None, eod: str | None) -> list[str]:
    """Return notices on tokens that both the tokenizer's template and the settings put around each
    document.
    """
    ids_before, ids_after = added_tokens(tokenizer_file)
    notices = []
    if bos is not None and token_id(tokenizer_file, bos, "--bos") in ids_before:
        notices.append(
            f"each document begins with {bos!r} twice: the tokenizer's template adds it, and so does prepend_bos "
            "(--bos); one of them is enough"
        )
    if eod is not None and token_id(tokenizer_file, eod, "--eod") in ids_after:
        notices.append(
            f"each document ends with {eod!r} twice: the tokenizer's template adds it, and so does append_eod "
            "(--append-eod); one of them is enough"
        )
    return notices


def frame(encoded: Encoded, framing: Framing) -> Framed:
    """Put the special tokens of a framing around every document of a batch."""
    has_tokens = encoded.lengths > 0  # (n_documents,)
    has_sequence = has_tokens
    if framing.empty == "sequence":
        has_sequence = np.ones(len(has_tokens), bool)
    is_written = has_tokens if framing.empty == "skip" else np.ones(len(has_tokens), bool)

    ids = encoded.ids
    lengths = encoded.lengths
    added = [*framing.before, *framing.after]
    if added:
        # (n_sequences, 2) start and end of each document with a sequence, in tokens
        stops = np.cumsum(lengths, dtype=np.int64)
        edges = np.stack([stops - lengths, stops], axis=1)[has_sequence]
        tokens_at_edge = np.tile([len(framing.before), len(framing.after)], len(edges))
        positions = np.repeat(edges.ravel(), tokens_at_edge)
        ids = np.insert(ids, positions, np.tile(np.array(added, ids.dtype), len(edges)))
        lengths = lengths + has_sequence.astype(np.int32) * np.int32(len(added))
    return Framed(ids, lengths, has_sequence.astype(np.int64), is_written)
