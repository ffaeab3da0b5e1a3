"""Byte-level BPE: GPT-2's vocab.json and merges.txt, and ranks: tiktoken's lines, Megatron-LM's
JSON and tekken.json.

tiktoken's library takes a piece that has a rank as one token, and else merges, again and again, the
first of the two neighbours that together have the least rank. The same in merges: every pair of
tokens that makes a token, in the order of the ranks of what they make, and whole pieces first
(`ignore_merges`).
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.tokenizers.files.examination import NEVER_IN_UTF_8
from nanoset_core.tokenizers.files.source import (
    NEVER_IN_TEXT,
    Content,
    TokenizerFile,
    added_token,
    bpe,
    byte_characters,
    byte_level,
    tokenizer_json,
)
from nanoset_core.tokenizers.files.split_patterns import (
    BOUNDED_POSSESSIVE,
    MEGATRON,
    PATTERNS,
    NamedPattern,
)

_WRITE_BYTES = str.maketrans(dict(enumerate(byte_characters())))
_MEGATRON_TOKENS = ("<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>")
_MEGATRON_SPECIAL, _MEGATRON_VOCABULARY = 1000, 1 << 17
_TEKKEN_TOKENS = (
    *(
        "<unk>",
        "<s>",
        "</s>",
        "[INST]",
        "[/INST]",
        "[AVAILABLE_TOOLS]",
        "[/AVAILABLE_TOOLS]",
        "[TOOL_RESULTS]",
    ),
    *(
        "[/TOOL_RESULTS]",
        "[TOOL_CALLS]",
        "[IMG]",
        "<pad>",
        "[IMG_BREAK]",
        "[IMG_END]",
        "[PREFIX]",
        "[MIDDLE]",
    ),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
"""Of a tekken.json that names none, which files up to its version 7 need not."""
_LAST_VERSION_WITHOUT_NAMES = 7
_ENDS = ("<|endoftext|>", "<|end_of_text|>")
_LINES_FORM = (
    "lines of a token in base64, a space and its rank; each rank once, from 0 on, one for each byte"
)
_MEGATRON_FORM = (
    'Megatron-LM\'s [{"rank": 0, "token_bytes": "AA==", "token_str": …}, …], ranks in order, from 0 on, the bytes 0 to '
    "255 first"
)
_TEKKEN_FORM = (
    "a tekken.json: config (pattern, default_vocab_size, default_num_special_tokens, version), vocab with ranks from 0 "
    "on in order, and special_tokens"
)


def read_ranks(source: TokenizerFile) -> Content:
    """Read lines of a token in base64 and its rank, for which a pattern must be named.

    Raises:
        FormatError: the file is damaged, or its ranks have holes.
        ConfigError: the pattern is not named, or is none.
    """
    words = _read_lines(source)
    pattern = _pattern(source)
    last, ranks, names = max(words.values()), set(words.values()), source.special_tokens
    if names is not None and (len(set(names)) != len(names) or not all(names)):
        raise ConfigError(
            "a special token is named twice, or is empty",
            where=source,
            found=" ".join(names[:12]),
            remedy="name each once (tokenizer.special_tokens, --tokenizer-special-tokens)",
        )
    if names is not None:
        special = {name: last + number for number, name in enumerate(names, start=1)}
    else:
        special = dict(pattern.special_tokens) if pattern.ranks == len(words) else {}
    ids = ranks.union(special.values())
    hole = next((rank for rank in range(last) if rank not in ids), None)
    if len(ranks) != len(words) or len(ids) != len(ranks) + len(special) or hole is not None:
        found = (
            f"{len(words):,} tokens, {len(ranks):,} ranks, {len(ids):,} ids with the special tokens"
        )
        found += "" if hole is None else f"; no token of rank {hole:,}; the last is {last:,}"
        raise _error(
            source, "two tokens have one rank, or the ranks have a hole", found, _LINES_FORM
        )
    notice = _notice(source, pattern, len(words))
    return _content(source, words, pattern, special, vocab_size=max(ids) + 1, notice=notice)


def _read_lines(source: TokenizerFile) -> dict[bytes, int]:
    """Read the ranks: token → rank."""
    words: dict[bytes, int] = {}
    for number, line in enumerate(read_regular(source.path).split(b"\n"), start=1):
        try:
            if parts := line.split():
                word, rank = a2b_base64(parts[0], strict_mode=True), parts[1]
                if len(parts) != 2 or not rank.isdigit() or not word or word in words:
                    raise ValueError("not two parts, or a token that is empty or there twice")
                words[word] = int(rank)
        except (ValueError, IndexError) as cause:
            found = f"{line[:80].decode(errors='replace')!r}: {cause}"
            raise _error(
                f"{source}:{number}", "a line is no token and its rank", found, _LINES_FORM
            ) from cause
    lacking = [byte for byte in range(256) if bytes([byte]) not in words]
    if lacking:
        found = f"none for {len(lacking):,} of 256 bytes, the first 0x{lacking[0]:02X}; {len(words):,} tokens"
        raise _error(source, "a byte has no rank", found, _LINES_FORM)
    return words


def _notice(source: TokenizerFile, pattern: NamedPattern, count: int) -> str:
    """Return what the number of ranks tells: a file that was cut at the end of a line looks whole."""
    if pattern.ranks == count:
        return ""
    found = f"holds {count:,} ranks without a hole"
    if pattern.ranks is None:
        return f"{found}; whether these are all, such a file does not say"
    found += f", and the vocabulary that was published with the pattern {source.pattern} has {pattern.ranks:,}"
    return f"{found}: {'the file is cut, or ' if count < pattern.ranks else ''}it is a vocabulary of its own"


def _pattern(source: TokenizerFile) -> NamedPattern:
    names = [name for name in PATTERNS if name not in MEGATRON]
    if source.pattern in names:
        return PATTERNS[source.pattern]
    if source.pattern is None or re.fullmatch(r"[\w .-]*", source.pattern):
        is_named = source.pattern is not None
        what = (
            "no such split pattern"
            if is_named
            else "tiktoken's ranks do not say how text is split before merging"
        )
        raise ConfigError(
            what,
            where=source,
            found=f"tokenizer.pattern (--tiktoken-pattern): {source.pattern!r}"
            if is_named
            else "no pattern",
            expected=f"one of {', '.join(names)}, or a regular expression",
            remedy="name the tokenizer's pattern: `pattern:` beside `path:` in nanoset.yaml, or --tiktoken-pattern",
        )
    _check_regex(source.pattern, source)
    return NamedPattern(source.pattern)


def read_megatron(source: TokenizerFile) -> Content:
    """Read Megatron-LM's tiktoken JSON: the first ids are kept for special tokens, ranks come
    behind them.

    Raises:
        FormatError: the file is damaged, or holds fewer ranks than its vocabulary asks for.
        ConfigError: the pattern or the special tokens are none that Megatron-LM takes.
    """
    name = source.pattern or "v2"
    if name not in MEGATRON:
        raise ConfigError(
            "not a pattern that Megatron-LM's TikTokenizer takes",
            where=source,
            found=f"tokenizer.pattern (--tiktoken-pattern): {name!r}",
            expected=" or ".join(MEGATRON),
            remedy="name one of these; Megatron-LM's default is v2",
        )
    size = source.vocab_size or _MEGATRON_VOCABULARY
    count = _MEGATRON_SPECIAL if source.num_special_tokens is None else source.num_special_tokens
    names = _MEGATRON_TOKENS if source.special_tokens is None else source.special_tokens
    if (
        not len(names) <= count < size
        or len(set(names)) != len(names)
        or not set(_MEGATRON_TOKENS) <= set(names)
    ):
        raise ConfigError(
            "special tokens that Megatron-LM's TikTokenizer refuses",
            where=source,
            found=f"{len(names):,} names, {count:,} ids kept for them, {size:,} ids in all: {' '.join(names[:10])}",
            expected=f"different names with {' '.join(_MEGATRON_TOKENS)} among them, and room for all",
            remedy="name them so (--tokenizer-special-tokens), or raise --tiktoken-num-special-tokens",
        )
    words = _read_entries(source, _read_json(source), count, size, _MEGATRON_FORM)
    return _content(
        source, words, PATTERNS[name], _filled_up(names, count), vocab_size=size, eod="</s>"
    )


def read_tekken(source: TokenizerFile) -> Content:
    """Read Mistral's tekken.json: as Megatron-LM's, with pattern and special tokens, which no text
    gives.

    Raises:
        FormatError: the file is damaged.
    """
    value = _read_json(source)
    try:
        config, entries = value["config"], value["vocab"]
        pattern, size, count = (
            config[key] for key in ("pattern", "default_vocab_size", "default_num_special_tokens")
        )
        names = _tekken_names(value, config)
        if not 0 <= count < size or not len(set(names)) == len(names) <= count:
            raise ValueError(f"{len(names):,} special tokens for {count:,} of {size:,} ids")
    except (KeyError, TypeError, ValueError) as cause:
        raise _error(source, "this is no tekken.json", f"{cause!r}", _TEKKEN_FORM) from cause
    words = _read_entries(source, entries, count, size, _TEKKEN_FORM)
    _check_regex(pattern, source)
    special = _filled_up(names, count)
    return _content(
        source, words, NamedPattern(pattern), special, vocab_size=size, eod="</s>", from_text=False
    )


def _tekken_names(value: Mapping[str, Any], config: Mapping[str, Any]) -> Sequence[str]:
    entries = value.get("special_tokens")
    if entries is None:
        version = re.fullmatch(r"v(\d+)m?\d*", str(config.get("version")))
        if version is None or int(version[1]) > _LAST_VERSION_WITHOUT_NAMES:
            raise ValueError(f"it names no special tokens, in version {config.get('version')!r}")
        return _TEKKEN_TOKENS
    names = [entry["token_str"] for number, entry in enumerate(entries) if entry["rank"] == number]
    if len(names) != len(entries) or not all(isinstance(name, str) and name for name in names):
        raise ValueError("a special token has no name, or another rank than its place")
    return names


def _read_json(source: TokenizerFile) -> Any:
    content = read_regular(source.path)
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as cause:
        expected = f"JSON to its end ({len(content):,} bytes are there)"
        raise _error(source, "the tokenizer cannot be read as JSON", cause, expected) from cause


def _read_entries(
    source: TokenizerFile, entries: Any, special: int, size: int, form: str
) -> dict[bytes, int]:
    """Read the tokens that make a vocabulary of `size` ids behind the special ones, in order of
    rank: token → id.
    """
    words: dict[bytes, int] = {}
    count = size - special
    for number, entry in enumerate(entries):
        try:
            word = a2b_base64(entry["token_bytes"], strict_mode=True)
            if entry["rank"] != number or not word or (number < 256 and word != bytes([number])):
                raise ValueError("another token, or another rank, than there should be")
        except (TypeError, KeyError, ValueError) as cause:
            found = f"{str(entry)[:120]} ({cause})"
            raise _error(
                source, f"entry {number:,} is no token and its rank", found, form
            ) from cause
        if number < count:
            words[word] = special + number
    if len(words) != count or count < 256:
        what = "there are fewer tokens than the vocabulary asks for, or one is there twice"
        raise _error(source, what, f"{len(words):,} different tokens of {count:,}", form)
    return words


def _filled_up(names: Sequence[str], count: int) -> dict[str, int]:
    """Number names from id 0 on, then made-up ones."""
    all_names = [*names, *(f"<SPECIAL_{ident}>" for ident in range(len(names), count))]
    return {name: ident for ident, name in enumerate(all_names)}


def _content(
    source: TokenizerFile,
    words: Mapping[bytes, int],
    pattern: NamedPattern,
    special: Mapping[str, int],
    *,
    vocab_size: int,
    eod: str | None = None,
    from_text: bool = True,
    notice: str = "",
) -> Content:
    """Make a tokenizer of ranks; `from_text`: whether special tokens that stand in text become
    themselves.
    """
    vocabulary = {
        word.decode("latin-1").translate(_WRITE_BYTES): ident for word, ident in words.items()
    }
    merges = _merges(vocabulary)
    for name, ident in special.items():
        if from_text and name in vocabulary:
            raise FormatError(
                "a special token has the text of an ordinary one",
                where=source,
                found=repr(name),
                expected="special tokens that have no rank",
                remedy="name another special token (tokenizer.special_tokens)",
            )
        vocabulary[name if from_text else NEVER_IN_TEXT + name] = ident
    split = {
        "type": "Split",
        "pattern": {"Regex": pattern.regex},
        "behavior": "Isolated",
        "invert": False,
    }
    added = special.items() if from_text else ()
    return Content(
        json=tokenizer_json(
            added_tokens=[
                added_token(name, ident, normalized=pattern.form is not None)
                for name, ident in added
            ],
            normalizer={"type": pattern.form} if pattern.form else None,
            pre_tokenizer={
                "type": "Sequence",
                "pretokenizers": [split, byte_level(use_regex=False)],
            },
            decoder=byte_level(use_regex=True),
            model=bpe(vocabulary, merges, ignore_merges=True),
        ),
        meaning={
            "regex": pattern.regex,
            "form": pattern.form,
            "special_tokens": sorted(special.items(), key=lambda item: item[1]),
            "vocab_size": vocab_size,
        },
        vocab_size=vocab_size,
        max_id=max(vocabulary.values()),
        special_tokens=dict(special),
        eod=eod or next((name for name in _ENDS if name in special), None),
        notice=notice,
    )


def _merges(vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    """List every two tokens that make a third, in order of its rank."""
    rank_of = vocabulary.get
    found = []
    for word, rank in vocabulary.items():
        for cut in range(1, len(word)):
            left = rank_of(word[:cut])
            if left is not None and (right := rank_of(word[cut:])) is not None:
                found.append((rank, left, right, word[:cut], word[cut:]))
    return [pair[3:] for pair in sorted(found)]


def _check_regex(regex: str, source: TokenizerFile) -> None:
    """Refuse a split pattern that the tokenizers library cannot read, or reads in another way than
    tiktoken's.
    """
    from tokenizers import Regex

    if (found := BOUNDED_POSSESSIVE.search(regex)) is not None:
        raise ConfigError(
            "the split pattern holds what the tokenizers library reads in another way than tiktoken's",
            where=source,
            found=f"{found.group()!r}, in character {found.start()} of {regex!r}",
            expected="a possessive repetition written as an atomic group, such as (?>\\p{N}{1,3})",
            remedy="write it so; or leave its + out, where what follows cannot match the same characters",
        )
    try:
        Regex(regex)
    except Exception as error:
        raise ConfigError(
            "the split pattern is no regular expression",
            where=source,
            found=f"{regex!r}: {error}",
            expected="a regular expression as tiktoken has, or the name of one",
            remedy="correct the pattern",
        ) from error


def _error(where: object, what: str, found: object, expected: str) -> FormatError:
    remedy = "fetch or write the file again; or lower --vocab-size where it holds fewer tokens; or name a tokenizer.json"
    return FormatError(what, where=where, found=str(found)[:200], expected=expected, remedy=remedy)


END_OF_TEXT = "<|endoftext|>"


def read_vocabulary(source: TokenizerFile) -> Content:
    """Read a byte-level BPE with GPT-2's split pattern.

    Raises:
        MissingError: there are no merges.
        FormatError: a file is damaged, or the two do not belong together.
    """
    vocabulary = _read_tokens(source)
    merges = _read_merges(source, vocabulary)
    special = {name: ident for name, ident in vocabulary.items() if name == END_OF_TEXT}
    return Content(
        json=tokenizer_json(
            added_tokens=[added_token(name, ident) for name, ident in special.items()],
            pre_tokenizer=byte_level(use_regex=True),
            decoder=byte_level(use_regex=True),
            model=bpe(vocabulary, merges),
        ),
        meaning={},
        vocab_size=len(vocabulary),
        max_id=max(vocabulary.values()),
        special_tokens=special,
        eod=END_OF_TEXT if special else None,
    )


def _read_tokens(source: TokenizerFile) -> dict[str, int]:
    """Read the vocabulary: token → id."""
    try:
        vocabulary: dict[str, int] = orjson.loads(read_regular(source.path))
        wrong = {
            token: ident
            for token, ident in vocabulary.items()
            if type(ident) is not int or ident < 0
        }
        if wrong or len(set(vocabulary.values())) != len(vocabulary):
            raise ValueError(f"ids that are none: {wrong}" if wrong else "two tokens have one id")
        characters = enumerate(byte_characters())
        lacking = [
            byte
            for byte, name in characters
            if name not in vocabulary and byte not in NEVER_IN_UTF_8
        ]
        if lacking:
            raise ValueError(f"the vocabulary lacks a byte, 0x{lacking[0]:02X}")
    except (ValueError, AttributeError) as error:
        raise FormatError(
            "the vocabulary cannot be read",
            where=source,
            found=str(error)[:200],
            expected='a vocab.json of a byte-level BPE: {"!": 0, …}, each id once, a token for each byte',
            remedy="fetch or write the file again, or name a tokenizer.json",
        ) from error
    return vocabulary


def _read_merges(source: TokenizerFile, vocabulary: dict[str, int]) -> list[list[str]]:
    file = source.merges_file
    if not file.is_file():
        raise MissingError(
            "no merges there, which a vocab.json needs",
            where=file,
            expected=f"the merges.txt that belongs to {source}",
            remedy="put it there, or name it: `merges:` beside `path:` in nanoset.yaml, or --merge-file",
        )
    merges = []
    lines = read_regular(file).decode(errors="replace").removesuffix("\n").split("\n")
    for number, line in enumerate(lines, start=1):
        parts = line.removesuffix("\r").split(" ")
        if line.startswith("#version"):
            continue
        if len(parts) != 2 or not {*parts, "".join(parts)} <= vocabulary.keys():
            raise FormatError(
                "a line of the merges is no pair of tokens that make a third",
                where=f"{file}:{number}",
                found=repr(line[:80]),
                expected=f"two tokens of {source} with a space between",
                remedy="name the merges that were written together with this vocabulary, or fetch both again",
            )
        merges.append(parts)
    return merges
