"""What the `tokenizers` library says of a tokenizer, beside the tokens of texts; kept in files.

To load a large vocabulary takes the library seconds, and hundreds of MB.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib.metadata import version
from itertools import compress
from typing import TYPE_CHECKING, Any

from nanoset_core.tokenization.bpe.reference import shared_tokenizer
from nanoset_core.tokenization.cache import cache_folder, code_digest, read_checked, write_checked
from nanoset_core.tokenization.files import TokenizerPath, define

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def sizes(file: TokenizerPath) -> tuple[int, int, tuple[str, ...]]:
    """(tokens, the greatest id, special tokens that the tokenizer's own `encode` adds to a text).

    Raises:
        MissingError, FormatError, ConfigError: see load_tokenizer.
    """
    size, greatest, template = _answer(file, _sizes)
    return size, greatest, tuple(template)


def special_tokens(file: TokenizerPath) -> dict[str, int]:
    """Special token → id; raises as `sizes`."""
    return dict(_answer(file, _special_tokens))


def frames(file: TokenizerPath) -> list[tuple[tuple[int, ...], tuple[int, ...]] | None]:
    """What `encode` puts (in front of, behind) a text, all that there is for several texts; raises as `sizes`.

    None stands for something else than tokens in front and behind.
    """
    return [frame and (tuple(frame[0]), tuple(frame[1])) for frame in _answer(file, _frames)]


def _answer(file: TokenizerPath, ask: Callable[[Tokenizer], Any]) -> Any:
    """What a tokenizer answers, in JSON's types; asked once for all processes."""
    folder = cache_folder()
    known = (define(file).identity, version("tokenizers"), code_digest())
    key = hashlib.sha256("\n".join(known).encode()).hexdigest()
    path = folder / f"{key[:32]}{ask.__name__}.json" if folder else None
    answer = read_checked(path, key + ask.__name__) if path else None
    if answer is None:
        answer = ask(shared_tokenizer(file))
        if path:
            write_checked(path, key + ask.__name__, answer)
    return answer


def _sizes(tokenizer: Tokenizer) -> tuple[int, int, list[str]]:
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    whole = tokenizer.encode("a", add_special_tokens=True)
    template = compress(whole.tokens, whole.special_tokens_mask)
    return len(vocabulary), max(vocabulary.values(), default=0), list(template)


def _special_tokens(tokenizer: Tokenizer) -> list[tuple[str, int]]:
    names = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
    return [(name, ident) for name in names if (ident := tokenizer.token_to_id(name)) is not None]


def _frames(tokenizer: Tokenizer) -> list[tuple[list[int], list[int]] | None]:
    found: list[tuple[list[int], list[int]] | None] = []
    for text in ("a", "one two", "3 4 5"):
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        whole = tokenizer.encode(text, add_special_tokens=True).ids
        at = next((n for n in range(len(whole) - len(plain) + 1) if whole[n : n + len(plain)] == plain), -1)
        frame = (whole[:at], whole[at + len(plain) :]) if at >= 0 else None
        if frame not in found:
            found.append(frame)
    return found
