"""Add the special tokens that only files next to a tokenizer name, or report them.

Tokens are added if it is certain that transformers' `AutoTokenizer` adds them, and with which ids.
Otherwise a notice names them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nanoset_core.tokenizers.files.named_tokens import (
    CONFIG,
    TOKEN_FLAGS,
    NamedTokens,
    Token,
    texts_of,
)
from nanoset_core.tokenizers.files.tokenizer_json import component_types, parsed_added_tokens

if TYPE_CHECKING:
    from tokenizers import AddedToken
    from tokenizers import Tokenizer as LibraryTokenizer

_N_SHOWN = 6
"""How many tokens a notice names."""

_SAVE_AGAIN = (
    "To be certain, save the tokenizer again with the trainer's version of transformers: "
    "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
)


@dataclass(frozen=True, slots=True)
class Addition:
    """What files next to a tokenizer.json add to it."""

    added_tokens: Sequence[Mapping[str, Any]] = ()
    """All added tokens, including those of the tokenizer.json; empty if there are no others."""
    new_names: Sequence[str] = ()
    """Those that the tokenizer.json lacks."""
    notices: Sequence[str] = ()
    """What the user should know; each continues a sentence that begins with the path of the file.
    """


def resolve(named: NamedTokens, tokenizer: Mapping[str, Any], content: bytes) -> Addition:
    """Return the special tokens that a tokenizer has when the library transformers loads it.

    A tokenizer.json may lack special tokens, such as the eos_token of the tokenizer_config.json
    next to it. Transformers adds them, so a model would be trained with them. There are three
    cases:

        none is missing                      nothing is added
        some are missing                     they are added, with the same ids as by transformers
        some are missing, and how they are   nothing is added, and a notice tells the user
        added depends on the version

    Args:
        named: The tokens that the files next to the tokenizer.json name.
        tokenizer: The parsed tokenizer.json.
        content: The bytes of the tokenizer.json.

    Returns:
        The tokens, and notices: what the user should know about these files.
    """
    notices = _notices_of_files(named)
    differences = _compare(named, tokenizer)
    missing_names = differences.missing  # tokens that the tokenizer.json lacks
    if not missing_names:
        # The tokenizer.json has all tokens, and is used as it is. Some of its tokens may have other
        # flags than in the files next to it, which is only reported.
        notices += _notices_of_known_tokens(named, differences)
        return Addition(notices=notices)

    # Add the missing tokens. The id of each depends on all that are added before it: if it is
    # doubtful how transformers adds one of them, none is added.
    doubts = _doubts(named, differences)
    if not doubts:
        added_tokens = _add_tokens(named, content)
        if added_tokens:  # empty if that failed
            return Addition(added_tokens, missing_names, notices)

    # They are not added, which the user is told.
    notices.append(_missing_notice(named, missing_names, doubts))
    return Addition(notices=notices)


def _notices_of_files(named: NamedTokens) -> list[str]:
    """Return what the user should know about the files next to a tokenizer.json.

    For example, that a tokenizer_config.json is damaged: "PATH has a tokenizer_config.json next to
    it that is no JSON object, and is not read".

    Args:
        named: What was read from these files.

    Returns:
        The notices. Each continues a sentence that begins with the path of the tokenizer.json.
    """
    notices = []
    for name in named.unreadable:
        notices.append(f"has a {name} next to it that is no JSON object, and is not read")
    if named.splits_special_tokens:
        notices.append(
            "gives one id to a special token in a text, and transformers splits it, "
            f"since {CONFIG} next to it sets split_special_tokens"
        )
    return notices


def _missing_notice(named: NamedTokens, missing: Sequence[str], doubts: Sequence[str]) -> str:
    """Tell the user that a tokenizer lacks special tokens, which cannot be added for certain.

    Args:
        named: The tokens that files next to the tokenizer.json, such as tokenizer_config.json,
            name.
        missing: Those that the tokenizer lacks.
        doubts: Why it is not certain how the library transformers adds them, such as "'<x>': a
            token of the tokenizer's class"; may be empty.

    Returns:
        The notice, which continues a sentence that begins with the path of the tokenizer.json, such
        as "lacks '<x>', which tokenizer_config.json next to it names. …".
    """
    reason = ""
    if doubts:
        reason = f" ({'; '.join(doubts[:_N_SHOWN])})"
    return (
        f"lacks {_listed(missing)}, which {' and '.join(named.sources)} next to it "
        "names. Texts that hold them are split into pieces here, and may get one id each in a "
        f"trainer that loads the folder with transformers{reason}. {_SAVE_AGAIN}"
    )


def notices_of_missing_tokens(
    named: NamedTokens, tokenizer: Mapping[str, Any], special_tokens: Collection[str]
) -> list[str]:
    """Tell the user if a tokenizer lacks special tokens that the files next to it name.

    This is for tokenizers in formats other than a tokenizer.json, such as a SentencePiece model.
    Nothing is added to them. For example, tokenizer_config.json names "<|im_end|>", which the model
    lacks: in a text, it is then split into pieces, whereas the library transformers makes it one
    token.

    Args:
        named: Tokens that the files name.
        tokenizer: The parsed tokenizer.json that the tokenizer was converted to.
        special_tokens: Names of the special tokens that the tokenizer has. Some formats keep them
            apart from the vocabulary.

    Returns:
        A list with the notice, or an empty list.
    """
    known_names = {*_vocabulary(tokenizer), *special_tokens}
    missing = [name for name in named.names if name not in known_names]
    if not missing:
        return []

    sources = " and ".join(named.sources)
    return [
        f"has no token {_listed(missing)}, which {sources} next to it names: "
        "texts that hold them are split into pieces. If the trainer loads the folder with "
        "transformers, tokenize with the tokenizer.json that "
        "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) writes"
    ]


# Comparing


@dataclass(frozen=True, slots=True)
class _Differences:
    """How the tokens that files name differ from those of the tokenizer.json next to them."""

    not_added: Sequence[str]
    """Tokens that the files name and that are no added tokens of the tokenizer.json."""
    class_tokens: Sequence[str]
    """Tokens that the tokenizer's class has by default, and that neither of them has."""
    missing: Sequence[str]
    """Tokens of both kinds that are not in the vocabulary either."""
    listed_with_other_flags: Sequence[str]
    """Added tokens that files list among all added tokens, with other flags such as lstrip."""
    special_with_other_flags: Sequence[str]
    """Added tokens that files name for a purpose, such as eos_token, with other flags."""


def _compare(named: NamedTokens, tokenizer: Mapping[str, Any]) -> _Differences:
    """Compare a tokenizer.json with the tokens that the files next to it name.

    The library transformers adds the tokens of these files to the tokenizer. Suppose that they name
    "<x>", "</s>" and "<pad>", and that the tokenizer's class LlamaTokenizer has "<unk>" by default.
    A tokenizer.json has a list of added tokens, and a vocabulary of ordinary ones:

        token                 "</s>"    "<x>"    "<pad>"    "<unk>"
        in the added tokens   yes       no       no         no
        in the vocabulary               yes      no         no

        not_added             "<x>", "<pad>"        files name them, but they are no added tokens
        class_tokens          "<unk>"               the same, for those that only the class has
        missing               "<pad>", "<unk>"      those of both that are in neither

    Args:
        named: The tokens of the files, and the default tokens of the class.
        tokenizer: The parsed tokenizer.json.

    Returns:
        These lists, and the added tokens that have other flags, such as lstrip, in the files.
    """
    added = {token["content"]: token for token in parsed_added_tokens(tokenizer)}
    not_added = [name for name in named.names if name not in added]
    class_tokens = _only_class_tokens(named, added)

    # A token that is not added may be an ordinary token of the vocabulary.
    vocabulary = _vocabulary(tokenizer)
    missing = [name for name in [*not_added, *class_tokens] if name not in vocabulary]

    # Flags, such as lstrip, decide where a token is found in a text.
    flags = _flags_that_affect_ids(tokenizer)
    return _Differences(
        not_added=not_added,
        class_tokens=class_tokens,
        missing=missing,
        listed_with_other_flags=_with_other_flags(named.listed, added, flags),
        special_with_other_flags=_with_other_flags(named.special, added, flags),
    )


def _only_class_tokens(named: NamedTokens, added: Collection[str]) -> list[str]:
    """Return the tokens that no file names, but which the class of the tokenizer has by default.

    Args:
        named: The tokens that files name, and the default tokens of the class.
        added: Texts of the added tokens of the tokenizer.json.
    """
    named_texts = named.names
    class_tokens = dict.fromkeys(named.class_tokens)
    return [name for name in class_tokens if name not in added and name not in named_texts]


def _vocabulary(tokenizer: Mapping[str, Any]) -> Collection[str]:
    """Return the tokens of the model, which has token → id, or a list of (token, score)."""
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict):
        return vocabulary.keys()
    if isinstance(vocabulary, list):
        return {entry[0] for entry in vocabulary if isinstance(entry, list) and entry}
    return set()


def _flags_that_affect_ids(tokenizer: Mapping[str, Any]) -> list[str]:
    """Return the flags of added tokens that affect ids; `special` affects only decoding."""
    flags = ["single_word", "lstrip", "rstrip"]
    # Without a normalizer, it does not matter whether a token is looked for in normalized text.
    if component_types(tokenizer.get("normalizer")) - {"Sequence", "None"}:
        flags.append("normalized")
    return flags


def _with_other_flags(
    tokens: Sequence[Token], added: Mapping[str, Token], flags: Collection[str]
) -> list[str]:
    """Return the tokens to which two files give different flags.

    Flags say how a token is found in a text: `lstrip`, for example, that spaces before it belong to
    it. Only flags that the first file has are compared, since a file need not repeat all of them:

        a file's token                       the tokenizer.json     differ
        {"content": "<s>", "lstrip": true}   "lstrip": false        yes
        {"content": "<s>"}                   "lstrip": true         no

    Args:
        tokens: The tokens of a file such as tokenizer_config.json.
        added: Text → added token of the tokenizer.json.
        flags: Names of the flags to compare, such as lstrip.

    Returns:
        Text of each token that is in both and has different flags, once.
    """
    names = []
    for token in tokens:
        name = token["content"]
        if name not in added:
            continue
        flags_in_file = [flag for flag in flags if flag in token]
        if any(token[flag] != added[name].get(flag) for flag in flags_in_file):
            names.append(name)
    return list(dict.fromkeys(names))


def _doubts(named: NamedTokens, differences: _Differences) -> list[str]:
    """Return why it is not certain which tokens the library transformers adds to a tokenizer.

    Transformers adds special tokens that files next to the tokenizer.json name. In five cases, its
    versions differ, or this project does not know what they do. Each gives a clause for a message:

        '<x>': an object without __type in …           an entry that some versions ignore
        the class XTokenizer may have tokens of …      a class that this project does not know
        … sets split_special_tokens                    special tokens may be split like other text
        '<unk>': a token of the tokenizer's class      only the class, and no file, names the token
        '</s>': its flags differ from those in …       version 4 replaces the flags, 5 does not

    Args:
        named: The tokens that these files name, and what is doubtful about them.
        differences: How they differ from those of the tokenizer.json.
    """
    doubts = []
    for name, reason in named.doubts.items():
        if name in differences.not_added:
            doubts.append(f"{name!r}: {reason}")
    if named.unknown_class:
        doubts.append(f"the class {named.unknown_class} may have tokens of its own")
    if named.splits_special_tokens:
        doubts.append(f"{CONFIG} sets split_special_tokens")
    for name in differences.class_tokens:
        doubts.append(f"{name!r}: a token of the tokenizer's class")
    # Transformers 4 replaces the flags of such a token, and transformers 5 does not.
    for name in differences.special_with_other_flags:
        doubts.append(f"{name!r}: its flags differ from those in the tokenizer.json")
    return doubts


def _notices_of_known_tokens(named: NamedTokens, differences: _Differences) -> list[str]:
    """Tell the user about tokens that transformers treats differently than the tokenizer.json says.

    Many training programs load a tokenizer with the library transformers. There are two cases,
    which change nothing here, but may matter for training:

    - An ordinary token of the vocabulary, such as "<x>", is a special token for transformers. So it
      makes "<x>" in a text one token, and here it may be split into pieces.
    - A token has other flags, such as lstrip, in tokenizer_config.json.

    Args:
        named: The tokens that files next to the tokenizer.json name.
        differences: How these tokens differ from those of the tokenizer.json.

    Returns:
        The notices. Each continues a sentence that begins with the path of the tokenizer.json, as
        in "PATH has …" or "PATH and tokenizer_config.json say …".
    """
    sources = " and ".join(named.sources)
    notices = []

    # Tokens that are ordinary here, and that transformers adds: it finds them in a text before it
    # splits the text.
    if differences.not_added:
        notices.append(
            f"has {_listed(differences.not_added)} in its vocabulary, but not as added tokens: "
            f"texts that hold them are split into pieces here. {sources} names them, so that "
            f"transformers gives each one id. {_SAVE_AGAIN}"
        )

    # Added tokens that have other flags in one of the files.
    with_other_flags = [
        *differences.listed_with_other_flags,
        *differences.special_with_other_flags,
    ]
    if with_other_flags:
        names = list(dict.fromkeys(with_other_flags))  # each once
        notices.append(
            f"and {sources} say different things about {_listed(names)} (such as lstrip, "
            "rstrip, normalized); the tokenizer.json is followed here, and the other by "
            f"transformers. {_SAVE_AGAIN}"
        )
    return notices


def _listed(names: Sequence[str]) -> str:
    """Return names for a notice: the first few, and how many more there are."""
    listed = ", ".join(map(repr, names[:_N_SHOWN]))
    if len(names) > _N_SHOWN:
        listed += f" and {len(names) - _N_SHOWN:,} more"
    return listed


# Adding


def _add_tokens(named: NamedTokens, content: bytes) -> Sequence[Mapping[str, Any]]:
    """Add special tokens to a tokenizer as the library transformers does, and return all of them.

    A token that is in the vocabulary keeps its id, and the others get the next free ones.

    Args:
        named: The tokens to add.
        content: The bytes of the tokenizer.json.

    Returns:
        Entries for `added_tokens` of a tokenizer.json, such as {"id": 5, "content": "<x>",
        "lstrip": False, …}, sorted by id; empty if the library cannot load the tokenizer.
    """
    tokenizer = _loaded(content)
    if tokenizer is None:
        return ()
    existing = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    tokenizer.add_tokens(_tokens_to_add(named, existing))

    added_tokens = []
    for token_id, added in sorted(tokenizer.get_added_tokens_decoder().items()):
        flags = {name: getattr(added, name) for name in TOKEN_FLAGS}
        added_tokens.append({"id": token_id, "content": added.content, **flags})
    return added_tokens


def _loaded(content: bytes) -> LibraryTokenizer | None:
    """Return a tokenizer.json as the tokenizers library loads it; None if it cannot.

    Args:
        content: The bytes of the file.
    """
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_buffer(content)
    except BaseException as error:
        # A panic of the library's Rust code is no Exception, but must not end the process either.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        return None


def _tokens_to_add(named: NamedTokens, existing: Mapping[str, AddedToken]) -> list[AddedToken]:
    """Return the tokens that transformers adds to a tokenizer when it loads it, in its order.

    Files next to the tokenizer.json name them. The order decides the ids of the tokens, and is that
    of transformers (`PreTrainedTokenizerFast.__init__`):

        1. tokens of a list, unless the tokenizer.json has the same token with the same flags

        2. tokens for a purpose, such as eos_token, unless the tokenizer.json or the list has one
           with this text

    Args:
        named: The tokens that these files name: `listed` and `special` are the two kinds.
        existing: The tokens that the tokenizer.json adds itself: text → token.
    """
    # A token of the list is also special, even if its entry there does not say so, if it has a
    # purpose, or if it is a default token of the tokenizer's class.
    special_names = {*texts_of(named.special), *named.class_tokens}
    additions: dict[str, AddedToken] = {}

    # 1. The list. To compare tokens with all of their flags, transformers compares their repr, such
    # as 'AddedToken("</s>", rstrip=False, …)', so do the same.
    for token in named.listed:
        name = token["content"]
        addition = _as_library_token(token, special_names)
        if name not in existing or repr(addition) != repr(existing[name]):
            additions[name] = addition

    # 2. The tokens for a purpose.
    for token in named.special:
        name = token["content"]
        if name not in existing and name not in additions:
            additions[name] = _as_library_token(token, special_names)
    return list(additions.values())


def _as_library_token(token: Token, special_names: Collection[str]) -> AddedToken:
    """Convert a token to an object of the tokenizers library, as the library transformers does.

    A file has {"content": "<s>", "lstrip": true}, for example. All other flags get a default: a
    special token is found before the text is normalized, and any other token afterwards.

    Args:
        token: Text and flags of the token.
        special_names: Texts of tokens that are special, whatever their flags.
    """
    from tokenizers import AddedToken

    is_special = bool(token.get("special")) or token["content"] in special_names
    return AddedToken(
        token["content"],
        single_word=token.get("single_word", False),
        lstrip=token.get("lstrip", False),
        rstrip=token.get("rstrip", False),
        normalized=token.get("normalized", not is_special),
        special=is_special,
    )
