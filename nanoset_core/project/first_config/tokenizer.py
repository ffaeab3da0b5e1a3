"""What `nanoset init` writes about the tokenizer, and why.

Its files say which token ends a document, such as `<|endoftext|>`, and which tokens its own encode
adds. If they do not say which token ends documents, the user is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoset_core.errors import NanosetError
from nanoset_core.project.first_config.template import ExplainedValue

if TYPE_CHECKING:
    from nanoset_core.tokenizers.end_token import EndToken
    from nanoset_core.tokenizers.files import TokenizerPath
    from tokenizers import Tokenizer

Ask = Callable[[str, Sequence[str]], str | None]
"""Asks the user a question with some answers; returns None if there is no terminal."""


@dataclass(frozen=True)
class FirstTokenizer:
    """The tokenizer of a first configuration."""

    tokenizer: Mapping[str, Any]
    """The section `tokenizer` of nanoset.yaml."""
    tokenization: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the section `tokenization` that follow from the tokenizer."""
    file: TokenizerPath | None = None
    """Its file; None if there is no usable tokenizer yet."""

    def bytes_per_token(self, text: str) -> float | None:
        """Return how many bytes of a text are one token, on average, such as 4.2.

        `nanoset init` estimates by it how many tokens a collection of texts has.

        Args:
            text: The text, which is tokenized.

        Returns:
            The number; None without a tokenizer, or if the text has no token.
        """
        from nanoset_core.tokenizers.engines.tokenizers_library import encode_text

        if self.file is None or self._library_tokenizer is None:
            return None
        n_tokens = len(encode_text(self._library_tokenizer, text, self.file).ids)
        if n_tokens == 0:
            return None
        return len(text.encode(errors="replace")) / n_tokens

    @cached_property
    def _library_tokenizer(self) -> Tokenizer | None:
        """The tokenizer in Hugging Face's library; None if there is no file.

        Loading takes up to seconds, so it is loaded once for all corpora, when it is first needed.
        """
        from nanoset_core.tokenizers.engines.reference import shared_tokenizer

        if self.file is None:
            return None
        return shared_tokenizer(self.file)


NO_TOKENIZER = FirstTokenizer({"path": "tokenizer.json", "eod": "<|endoftext|>"})
"""What is written without a usable tokenizer: the user has to replace it."""


def choose_tokenizer(folder: Path, named: Path | None, ask: Ask) -> FirstTokenizer:
    """Choose the tokenizer of a new project: the one that the user named, or one in its folder.

    The result has settings for nanoset.yaml, such as

        tokenizer:
          path: tokenizer.json
          eod: </s>              (the token that ends documents)

    Args:
        folder: The project's folder.
        named: The file or folder of the tokenizer; None to look for one in `folder`.
        ask: Asks for the token that ends documents if the tokenizer's files do not name it.

    Returns:
        The settings. If none is named and `folder` has no usable one, NO_TOKENIZER: settings that
        the user has to replace.

    Raises:
        NanosetError: The tokenizer that the user named is not usable.
    """
    from nanoset_core.tokenizers.end_token import chosen_end
    from nanoset_core.tokenizers.files import tokenizer_path
    from nanoset_core.tokenizers.tokenizer import special_tokens, tokenizer_facts

    try:
        file = tokenizer_path(folder if named is None else named)
        facts = tokenizer_facts(file)
        end_token = chosen_end(file)
        special_texts = special_tokens(file)
    except (NanosetError, OSError):
        if named is not None:
            raise
        return NO_TOKENIZER

    # If the files do not say which special token ends a document, let the user choose one.
    if end_token is None and special_texts:
        end_token = _asked_end(file, special_texts, ask)

    # Paths in nanoset.yaml are relative to the project's folder, where a tokenizer is found by its
    # name alone.
    path = file.name if named is None else _path_in_config(folder, Path(file))
    added_by_template = facts.template  # tokens that the tokenizer adds to a text itself
    return FirstTokenizer(
        tokenizer={"path": path, **_end_keys(file, end_token)},
        tokenization={**_append_eod_keys(end_token), **_special_tokens_keys(added_by_template)},
        file=file,
    )


def _asked_end(file: TokenizerPath, special: Sequence[str], ask: Ask) -> EndToken | None:
    """Ask the user which special token ends a document, such as "</s>", if no file says it.

    Training texts are concatenated documents, with this token after each one. Most tokenizers have
    a file that names it. Otherwise the user chooses one of the special tokens:

        Which token ends documents?    <s>, </s>

    Args:
        file: The tokenizer.
        special: Its special tokens, such as ["<s>", "</s>"].
        ask: Asks the user a question with these answers; returns None if there is no answer.

    Returns:
        The token, or None without an answer.

    Raises:
        ConfigError: The user has named a token that the tokenizer does not have.
    """
    from nanoset_core.tokenizers.end_token import EndToken
    from nanoset_core.tokenizers.tokenizer import token_id

    answer = ask("Which token ends documents?", special)
    if answer is None:
        return None
    # If the tokenizer has no such token, the error says that the key `eod` names it.
    answer_id = token_id(file, answer, "eod")
    return EndToken(text=answer, source="your choice", ident=answer_id)


def _end_keys(file: TokenizerPath, end: EndToken | None) -> dict[str, Any]:
    """Return the setting `eod` for a new project: the token that marks the end of a document.

    In the settings, a comment says how the token was found:

        eod: </s>   # Id 2, by tokenizer_config.json.

    Args:
        file: The tokenizer.
        end: The token; None if none is known.

    Returns:
        {"eod": "</s>"} with the comment; empty without a token.
    """
    from nanoset_core.tokenizers.end_token import end_reason

    if end is None:
        return {}
    return {"eod": ExplainedValue(end.text, end_reason(file, end))}


def _append_eod_keys(end: EndToken | None) -> dict[str, Any]:
    """Return the setting `append_eod` for a new project, if it has to be written.

    Usually a token such as "</s>" is appended to each document, so that a model learns where
    documents end. That is the default. But some tokenizers have no such token:

        end token "</s>"     {}
        no end token         {"append_eod": False}, with a comment on how to change it

    Args:
        end: The token that ends documents, or None.
    """
    if end is not None:
        return {}
    comment = (
        "The tokenizer names no token that ends documents: name one as tokenizer.eod, and set this "
        "to true."
    )
    return {"append_eod": ExplainedValue(False, comment)}


def _special_tokens_keys(added_by_tokenizer: Sequence[str]) -> dict[str, Any]:
    """Return the setting `special_tokens: none` for a new project, with a comment, if it is needed.

    Some tokenizers add a token such as "<s>" to every text. Some versions of the trainer want that,
    and others do not. So the user has to decide, and the comment helps.

    Args:
        added_by_tokenizer: The tokens that the tokenizer adds, such as ["<s>"].

    Returns:
        Key → value; empty if no tokens are added.
    """
    if not added_by_tokenizer:
        return {}
    token_names = " and ".join(dict.fromkeys(added_by_tokenizer))  # each once
    comment = (
        f"The tokenizer's own encode adds {token_names}. So do megatron-core up to 0.14 and from "
        "0.17 on; 0.15 and 0.16 do not."
    )
    return {"special_tokens": ExplainedValue("none", comment)}


def _path_in_config(folder: Path, file: Path) -> str:
    """Return a path as it is written into the settings of a project.

    For the project's folder /home/ann/project:

        /home/ann/project/llama/tokenizer.json    llama/tokenizer.json
        /models/tokenizer.json                    /models/tokenizer.json

    Args:
        folder: The project's folder.
        file: The file.
    """
    absolute = file.resolve()
    base = folder.resolve()
    if absolute.is_relative_to(base):
        return absolute.relative_to(base).as_posix()
    return str(absolute)
