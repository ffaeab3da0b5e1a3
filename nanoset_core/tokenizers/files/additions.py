"""Add the special tokens that only files next to a tokenizer name, or report them.

Tokens are added if it is certain that transformers' `AutoTokenizer` adds them, and with which ids.
Otherwise a notice names them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nanoset_core.tokenizers.files.named_tokens import (
    CONFIG,
    TOKEN_FLAGS,
    NamedTokens,
    Token,
    texts_of,
)
from nanoset_core.tokenizers.files.tokenizer_json import (
    component_types,
    ids_of_vocabulary,
    load_or_none,
    parsed_added_tokens,
)
from nanoset_core.wording import abbreviated

if TYPE_CHECKING:
    from tokenizers import AddedToken

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
    next to it. Transformers adds them, so a model would be trained with them. If it is certain how
    they are added, they are returned. Otherwise, the result has a notice for the user instead.

    Args:
        named: The tokens that the files next to the tokenizer.json name.
        tokenizer: The parsed tokenizer.json.
        content: The bytes of the tokenizer.json.

    Returns:
        All added tokens, or none if none is missing or it is not certain; and what the user should
        know about these files.
    """
    differences = _compare(named, tokenizer)
    if not differences.missing:
        notices = _notices_of_known_tokens(named, differences.not_added, tokenizer)
        return _nothing_to_add(named, tokenizer, notices)

    # The id of each token depends on all that are added before it. So one doubt is enough to add
    # none.
    doubts = _doubts(named, differences, tokenizer)
    added_tokens = [] if doubts else _add_tokens(named, content)
    if not added_tokens:
        notice = _missing_notice(named, differences.missing, doubts)
        return _nothing_to_add(named, tokenizer, [notice])

    notices = [*_notices_of_files(named), *_notices_of_other_ids(named, tokenizer, added_tokens)]
    return Addition(added_tokens, differences.missing, notices)


def _nothing_to_add(
    named: NamedTokens, tokenizer: Mapping[str, Any], notices: Sequence[str]
) -> Addition:
    """Return the result for a tokenizer.json that is used as it is, with notices for the user.

    Args:
        named: The tokens that the files next to the tokenizer.json name.
        tokenizer: The parsed tokenizer.json.
        notices: What the user should know about tokens that it lacks or has with other flags. What
            is to be said about the files themselves, and about ids, is added.
    """
    added_tokens = parsed_added_tokens(tokenizer)
    all_notices = [
        *_notices_of_files(named),
        *notices,
        *_notices_of_other_ids(named, tokenizer, added_tokens),
    ]
    return Addition(notices=all_notices)


def _notices_of_files(named: NamedTokens) -> list[str]:
    """Return what the user should know about the files next to a tokenizer.json.

    Args:
        named: What was read from these files.

    Returns:
        The notices. Each continues a sentence that begins with the path of the tokenizer.json:
        "PATH has a tokenizer_config.json next to it that is no JSON object, and is not read".
    """
    notices = []
    for name in named.unreadable:
        notices.append(f"has a {name} next to it that is no JSON object, and is not read")
    # With this setting, transformers splits "</s>" in a text into pieces. Here, it is one token.
    if named.splits_special_tokens:
        notices.append(
            "gives one id to a special token in a text, and transformers splits it, "
            f"since {CONFIG} next to it sets split_special_tokens"
        )
    return notices


def _missing_notice(named: NamedTokens, missing: Sequence[str], doubts: Sequence[str]) -> str:
    """Return the warning that a tokenizer.json lacks special tokens of the files next to it.

    The caller puts the path of the tokenizer.json in front of it:

        lacks '<x>', which tokenizer_config.json next to it names. Texts that hold them are split …

    Args:
        named: Has the names of these files.
        missing: Tokens that the tokenizer.json lacks, such as "<x>".
        doubts: Why the tokens cannot simply be added, such as "'<x>': a token of the tokenizer's
            class". May be empty.
    """
    tokens = _quoted_names(missing)
    files = " and ".join(named.sources)
    reason = ""
    if doubts:
        reason = f" ({'; '.join(doubts[:_N_SHOWN])})"
    return (
        f"lacks {tokens}, which {files} next to it "
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
        f"has no token {_quoted_names(missing)}, which {sources} next to it names: "
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


def _compare(named: NamedTokens, tokenizer: Mapping[str, Any]) -> _Differences:
    """Find the special tokens that the library transformers adds to those of a tokenizer.json.

    A tokenizer.json has *added tokens*, such as "</s>", which are found in a text before it is
    split, and ordinary tokens, the vocabulary. Transformers also makes those tokens added ones that
    other files name, such as tokenizer_config.json, or that the tokenizer's class has by default:

        token                       in the tokenizer.json     result
        "</s>", named by a file     an added token            not in the result
        "<x>", named by a file      an ordinary token         not_added
        "<y>", named by a file      no token                  not_added, missing
        "<z>", only of the class    an ordinary token         class_tokens
        "<w>", only of the class    no token                  class_tokens, missing

    Args:
        named: The tokens that files name, and the default tokens of the class.
        tokenizer: The parsed tokenizer.json.
    """
    added = {token["content"] for token in parsed_added_tokens(tokenizer)}
    not_added = [name for name in named.names if name not in added]
    class_tokens = _only_class_tokens(named, added)

    vocabulary = _vocabulary(tokenizer)
    missing = [name for name in [*not_added, *class_tokens] if name not in vocabulary]
    return _Differences(not_added, class_tokens, missing)


def _only_class_tokens(named: NamedTokens, added: Collection[str]) -> list[str]:
    """Return the tokens that no file names, but which the class of the tokenizer has by default.

    Args:
        named: The tokens that files name, and the default tokens of the class.
        added: Texts of the added tokens of the tokenizer.json.
    """
    named_texts = named.names
    class_tokens = dict.fromkeys(named.class_tokens)
    return [name for name in class_tokens if name not in added and name not in named_texts]


def _vocabulary(tokenizer: Mapping[str, Any]) -> dict[str, int]:
    """Return the tokens of the model, each with its id."""
    model = tokenizer.get("model")
    return ids_of_vocabulary(model.get("vocab")) if isinstance(model, dict) else {}


def _flags_that_affect_ids(tokenizer: Mapping[str, Any]) -> list[str]:
    """Return the flags of added tokens that affect ids; `special` affects only decoding."""
    flags = ["single_word", "lstrip", "rstrip"]
    # Without a normalizer, it does not matter whether a token is looked for in normalized text.
    if component_types(tokenizer.get("normalizer")) - {"Sequence", "None"}:
        flags.append("normalized")
    return flags


def _with_other_flags(tokens: Sequence[Token], tokenizer: Mapping[str, Any]) -> list[str]:
    """Return the tokens that have other flags in a file than in the tokenizer.json next to it.

    Flags say how a token is found in a text: `lstrip`, for example, that spaces before it belong to
    it. Only flags that the file has are compared, since it need not repeat all of them:

        token in the file                    the tokenizer.json     differ
        {"content": "<s>", "lstrip": true}   "lstrip": false        yes
        {"content": "<s>"}                   "lstrip": true         no

    Args:
        tokens: The tokens of a file such as tokenizer_config.json.
        tokenizer: The parsed tokenizer.json.

    Returns:
        Text of each token that is an added token in both and has different flags, once.
    """
    added = {token["content"]: token for token in parsed_added_tokens(tokenizer)}
    flags = _flags_that_affect_ids(tokenizer)
    names = []
    for token in tokens:
        name = token["content"]
        if name not in added:
            continue
        flags_in_file = [flag for flag in flags if flag in token]
        if any(token[flag] != added[name].get(flag) for flag in flags_in_file):
            names.append(name)
    return list(dict.fromkeys(names))


def _doubts(
    named: NamedTokens, differences: _Differences, tokenizer: Mapping[str, Any]
) -> list[str]:
    """Return why it is not certain which tokens the library transformers adds to a tokenizer.

    Args:
        named: The special tokens that files next to the tokenizer.json name.
        differences: Those that are no added tokens of the tokenizer.json.
        tokenizer: The parsed tokenizer.json.

    Returns:
        Clauses for a message, such as "'<unk>': a token of the tokenizer's class".
    """
    doubts = _doubts_about_entries(named, differences.not_added)
    doubts += _doubts_about_settings(named)
    for name in differences.class_tokens:  # which no file names
        doubts.append(f"{name!r}: a token of the tokenizer's class")
    doubts += _doubts_about_flags(named, tokenizer)
    return doubts


def _doubts_about_entries(named: NamedTokens, not_added: Collection[str]) -> list[str]:
    """Return the doubts about tokens whose entries only some versions of transformers use.

    Args:
        named: The tokens that files name. Each token with such an entry has a reason, such as
            "image_token of tokenizer_config.json".
        not_added: Tokens that the tokenizer.json does not have as added tokens.
    """
    doubts = []
    for name, reason in named.doubts.items():
        if name in not_added:
            doubts.append(f"{name!r}: {reason}")
    return doubts


def _doubts_about_settings(named: NamedTokens) -> list[str]:
    """Return the doubts that apply to all tokens, because of settings of a tokenizer_config.json.

    Args:
        named: What was read from this file.
    """
    doubts = []
    if named.unknown_class:
        doubts.append(f"the class {named.unknown_class} may have tokens of its own")
    if named.splits_special_tokens:  # special tokens in a text are split like any other text
        doubts.append(f"{CONFIG} sets split_special_tokens")
    return doubts


def _doubts_about_flags(named: NamedTokens, tokenizer: Mapping[str, Any]) -> list[str]:
    """Return the doubts about tokens that have other flags in a file than in the tokenizer.json.

    Version 4 of transformers replaces their flags, such as `lstrip`, and version 5 does not.

    Args:
        named: The tokens that files name.
        tokenizer: The parsed tokenizer.json.
    """
    names = _with_other_flags(named.special, tokenizer)
    return [f"{name!r}: its flags differ from those in the tokenizer.json" for name in names]


def _notices_of_known_tokens(
    named: NamedTokens, not_added: Sequence[str], tokenizer: Mapping[str, Any]
) -> list[str]:
    """Tell the user about tokens that transformers treats differently than the tokenizer.json says.

    Many training programs load a tokenizer with the library transformers. There are two cases,
    which change nothing here, but may matter for training:

    - An ordinary token of the vocabulary, such as "<x>", is a special token for transformers. So it
      makes "<x>" in a text one token, and here it may be split into pieces.
    - A token has other flags, such as lstrip, in tokenizer_config.json.

    Args:
        named: The tokens that files next to the tokenizer.json name.
        not_added: Those of them that are no added tokens of the tokenizer.json.
        tokenizer: The parsed tokenizer.json.

    Returns:
        The notices. Each continues a sentence that begins with the path of the tokenizer.json, as
        in "PATH has …" or "PATH and tokenizer_config.json say …".
    """
    sources = " and ".join(named.sources)
    notices = []

    # Tokens that are ordinary here, and that transformers adds: it finds them in a text before it
    # splits the text.
    if not_added:
        notices.append(
            f"has {_quoted_names(not_added)} in its vocabulary, but not as added tokens: "
            f"texts that hold them are split into pieces here. {sources} names them, so that "
            f"transformers gives each one id. {_SAVE_AGAIN}"
        )

    # Added tokens that have other flags in one of the files.
    with_other_flags = _with_other_flags([*named.listed, *named.special], tokenizer)
    if with_other_flags:
        notices.append(
            f"and {sources} say different things about {_quoted_names(with_other_flags)} "
            "(such as lstrip, rstrip, normalized); the tokenizer.json is followed here, and the "
            f"other by transformers. {_SAVE_AGAIN}"
        )
    return notices


def _notices_of_other_ids(
    named: NamedTokens, tokenizer: Mapping[str, Any], added_tokens: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Tell the user if tokens have other ids than the files next to the tokenizer.json say.

    Transformers ignores these ids, and so does this project. But a difference is a sign that the
    files are those of two tokenizers: a user may have replaced only the tokenizer.json. Then the
    tokens of the old tokenizer_config.json are added to the new tokenizer, and a model does not
    have their ids.

    Args:
        named: The tokens that the files name, with their ids.
        tokenizer: The parsed tokenizer.json.
        added_tokens: All added tokens, those of the files included.

    Returns:
        A list with the notice, or an empty list. It continues a sentence that begins with the path
        of the tokenizer.json.
    """
    ids = _ids_of(named.id_by_name, tokenizer, added_tokens)
    differences = []
    for name, id_in_file in named.id_by_name.items():
        if name in ids and ids[name] != id_in_file:
            differences.append(f"{name!r} has {ids[name]} instead of {id_in_file}")
    if not differences:
        return []

    sources = " and ".join(named.sources)
    shown = abbreviated(differences, _N_SHOWN)
    return [
        f"gives other ids to tokens than {sources} next to it: {shown}. Probably they are files of "
        "two tokenizers, and a model may not have these ids: copy all files of a tokenizer from "
        "the same folder, or remove those that are not of this one"
    ]


def _ids_of(
    names: Collection[str],
    tokenizer: Mapping[str, Any],
    added_tokens: Sequence[Mapping[str, Any]],
) -> dict[str, int]:
    """Return the ids of some tokens in a tokenizer.json; tokens that it does not have are left out.

    Args:
        names: Texts of the tokens.
        tokenizer: The parsed tokenizer.json.
        added_tokens: Its added tokens. Those that the vocabulary lacks have an id of their own.
    """
    ids: dict[str, int] = {}
    for token in added_tokens:
        if token["content"] in names and isinstance(token.get("id"), int):
            ids[token["content"]] = token["id"]

    vocabulary = _vocabulary(tokenizer)
    for name in names:
        if name in vocabulary:
            ids[name] = vocabulary[name]
    return ids


def _quoted_names(names: Sequence[str]) -> str:
    """Return names for a notice, in quotes: the first few, and how many more there are."""
    quoted_names = [repr(name) for name in names]
    return abbreviated(quoted_names, _N_SHOWN)


# Adding


def _add_tokens(named: NamedTokens, content: bytes) -> Sequence[Mapping[str, Any]]:
    """Add special tokens to a tokenizer as the library transformers does, and return all of them.

    A token that is in the vocabulary keeps its id, and the others get the next free ones.

    Args:
        named: The tokens that files next to the tokenizer.json name.
        content: The bytes of the tokenizer.json.

    Returns:
        Entries for `added_tokens` of a tokenizer.json, such as {"id": 5, "content": "<x>",
        "lstrip": False, …}, sorted by id; empty if the library cannot load the tokenizer.
    """
    tokenizer = load_or_none(content)
    if tokenizer is None:
        return ()
    # Tokens that exist already are only added again if that changes their flags.
    existing = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    tokenizer.add_tokens(_tokens_to_add(named, existing))

    added_tokens = []
    for token_id, added in sorted(tokenizer.get_added_tokens_decoder().items()):
        flags = {name: getattr(added, name) for name in TOKEN_FLAGS}
        added_tokens.append({"id": token_id, "content": added.content, **flags})
    return added_tokens


def _tokens_to_add(named: NamedTokens, existing: Mapping[str, AddedToken]) -> list[AddedToken]:
    """Return the tokens that the library transformers adds to a tokenizer, in its order.

    The order decides the ids of the tokens. This function does what transformers does in
    `PreTrainedTokenizerFast.__init__`. The files next to a tokenizer.json may have a list of all
    added tokens, and name tokens for a purpose, such as eos_token. Transformers first adds those of
    the list, and then the others. For example:

        in the tokenizer.json    "<a>", "<b>"
        in the list              "<a>", "<b>" with lstrip, "<c>"
        with a purpose           "<c>", "</s>"
        result                   "<b>" with lstrip, "<c>", "</s>"

    Args:
        named: The tokens that the files name: `listed` are the list, and `special` have a purpose.
        existing: The added tokens of the tokenizer.json: text → token.
    """
    # These are special even if their entry in the list does not say so.
    special_names = {*texts_of(named.special), *named.class_tokens}
    listed = [_as_library_token(token, special_names) for token in named.listed]
    with_purpose = [_as_library_token(token, special_names) for token in named.special]

    additions = _new_or_changed(listed, existing)
    for token in with_purpose:
        if token.content not in existing:
            additions.setdefault(token.content, token)
    return list(additions.values())


def _new_or_changed(
    tokens: Iterable[AddedToken], existing: Mapping[str, AddedToken]
) -> dict[str, AddedToken]:
    """Return the tokens that a tokenizer does not have, or that it has with other flags.

    As in the library transformers, tokens are compared by their repr, such as
    'AddedToken("<b>", lstrip=True, …)'.

    Args:
        tokens: The tokens.
        existing: The added tokens of the tokenizer: text → token.

    Returns:
        Text → token, in the order of `tokens`. If a text occurs twice, its last token counts.
    """
    additions: dict[str, AddedToken] = {}
    for token in tokens:
        if repr(token) != repr(existing.get(token.content)):
            additions[token.content] = token
    return additions


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
