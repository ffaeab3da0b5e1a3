"""Choose a first configuration by the text and the tokenizer that are there, and say why for each
choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoset_core.errors import ConfigError, NanosetError
from nanoset_core.project.beside import text_beside
from nanoset_core.project.corpora_found import FoundCorpus, divided, with_keys
from nanoset_core.project.template import SCHEMA_FILE, Noted, config_text, schema_text
from nanoset_core.records.parsing import CONFIG_FILE
from nanoset_core.records.settings import setting
from nanoset_core.records.text import format_count
from nanoset_core.sampling.config import DEFAULT_SPLIT
from nanoset_core.sampling.splits import SPLITS, SplitName, parse_split
from nanoset_core.stages.handoff.settings import EXAMPLE_VALUES
from nanoset_core.stages.mappings.settings import NanosetSpec
from nanoset_core.stages.shards.settings import DocumentsSpec, TokenizationSpec
from nanoset_core.stages.webdataset.settings import WebdatasetSpec
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.storage.os_errors import writing_to
from nanoset_core.text.measure import measure
from nanoset_core.text.survey import RawText, list_corpora

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_LENGTH, _LEAST_LENGTH = 2048, 256
_MOST_TOKEN_BYTES, _TOKEN_BYTES = 16, 4
"""Hardly a text has longer tokens on average; and what is usual."""
_LEAST_ROOM = 20
"""So many samples, and documents, has a part of a split to be expected to hold: documents differ in
length.
"""
_SPLITS = (
    (1000, DEFAULT_SPLIT),
    (100, "98,1,1"),
    (20, "90,5,5"),
    (10, "90,10,0"),
    (5, "80,20,0"),
    (0, "1,0,0"),
)
"""How often a part may be cut in and still be large enough, at least → split."""
_LEAST_SPLIT = 5
_MIN_STEPS = 250
"""Steps that a first run has at least, if there is text for them."""
_MAX_BATCH = 512
_EPOCH_SHARE = 0.95
"""Share of an epoch that a first run takes: the epoch is an estimate, and few texts are to be read
twice.
"""

Ask = Callable[[str, Sequence[str]], str | None]
"""Asks a user a question with some answers; None where there is no terminal."""


@dataclass(frozen=True, slots=True)
class Start:
    """A first configuration, and the text that it was written for."""

    path: Path
    """The nanoset.yaml."""
    text: RawText
    """What the raw folder holds."""
    made: bool
    """False where it was there already, as it would have been written."""
    chosen: Sequence[str]
    """What was chosen by what is there, and why; a line each."""
    beside: Sequence[str] = ()
    """Files of text in the folder that are outside of its raw folder, relative to it."""


@dataclass(frozen=True, slots=True)
class _Amount:
    """How much text of a corpus there is, by its first MiB."""

    documents: float
    tokens: float
    sure: float
    """Tokens that it has in any case."""


@dataclass(frozen=True, slots=True)
class _Tokenizer:
    """What a tokenizer says of the configuration."""

    tokenizer: Mapping[str, Any]
    tokenization: dict[str, Any]
    bytes_of: Callable[[str], float | None]
    """Text → bytes a token, on average; None where that cannot be told."""


def write_config(
    folder: Path,
    *,
    key_prefix: Sequence[str] = (),
    text_key: str | None = None,
    tokenizer: Path | None = None,
    ask: Ask | None = None,
) -> Start:
    """Write nanoset.yaml and its JSON schema into `folder`, for the corpora found in its raw
    folder.

    The first build of what is written succeeds, however little text there is.

    Args:
        folder: of the project.
        key_prefix: put before the keys of its assets in Dagster.
        text_key: key of the text of all corpora; default: what their first lines tell.
        tokenizer: File or folder of the tokenizer; default: the one in the project's folder.
        ask: asks the user where something cannot be told.

    Raises:
        ConfigError: there is another one already, `tokenizer` is none, a folder in raw cannot be a
            corpus, or a corpus has several keys that may be its text.
        MissingError, InputError: a corpus cannot be listed, or a file of text is in none.
        StorageError: the folder cannot be written to.
    """
    path, raw = folder / CONFIG_FILE, folder / "raw"
    text = list_corpora(raw) if raw.is_dir() else RawText({}, {})
    there, content, error = path.exists(), b"", None
    if ask is None or there:
        ask = _unanswered
    values: dict[str, Any] = {}
    try:
        values = _first_values(raw, text, _tokenizer(folder, tokenizer, ask), text_key, ask)
        values |= {"dagster": {"key_prefix": list(key_prefix)}} if key_prefix else {}
        content = config_text(values).encode()
    except ConfigError as found:
        error = found
    if there and not (path.is_file() and path.read_bytes() == content):
        raise ConfigError(
            "there is a configuration already, and nothing was changed",
            where=path,
            expected="no file, or the one that would be written for the text and the tokenizer as they are now",
            remedy="edit it, or remove it first",
        )
    for fault in (*text.faults.values(), *filter(None, [error])):
        raise fault
    with writing_to(folder):
        schema = schema_text().encode()
        schema_file = folder / SCHEMA_FILE
        if not (schema_file.is_file() and schema_file.read_bytes() == schema):
            write_atomic(schema_file, schema)
        if not there:
            write_atomic(path, content)
    return Start(path, text, not there, list(_told(values)), text_beside(folder))


def _unanswered(_question: str, _answers: Sequence[str]) -> str | None:
    return None


def _told(values: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield a line on each value that has a reason."""
    for key, value in values.items():
        if isinstance(value, Noted) and value.note is not None:
            yield f"{above}{key}: {value.value}. {value.note}"
        elif isinstance(value, Mapping):
            yield from _told(value, f"{above}{key}.")


def _tokenizer(folder: Path, named: Path | None, ask: Ask) -> _Tokenizer:
    """Look at the tokenizer that was named, or the one in a folder: its end token, and special
    tokens that it adds.

    A tokenizer in the folder that cannot be used is left for the user to name; one that was named
    is an error.
    """
    from nanoset_core.tokenizers.end_token import EndToken, chosen_end, end_reason
    from nanoset_core.tokenizers.engines.library import encode_text
    from nanoset_core.tokenizers.engines.reference import shared_tokenizer
    from nanoset_core.tokenizers.files import tokenizer_path
    from nanoset_core.tokenizers.tokenizer import special_tokens, token_id, tokenizer_facts

    try:
        file = tokenizer_path(folder if named is None else named)
        facts, end, special = tokenizer_facts(file), chosen_end(file), special_tokens(file)
    except (NanosetError, OSError):
        if named is not None:
            raise
        return _Tokenizer({"path": "tokenizer.json", "eod": "<|endoftext|>"}, {}, lambda text: None)
    if (
        end is None
        and special
        and (answer := ask("Which token ends documents?", special)) is not None
    ):
        end = EndToken(answer, "your choice", token_id(file, answer, "eod"))
    tokenizer: dict[str, Any] = {"path": file.name if named is None else _path_from(folder, file)}
    tokenization: dict[str, Any] = {}
    if end is None:
        why = "The tokenizer names no token that ends documents: name one as tokenizer.eod, and set this to true."
        tokenization["append_eod"] = Noted(False, why)
    else:
        tokenizer["eod"] = Noted(end.text, end_reason(file, end))
    if added := " and ".join(dict.fromkeys(facts.template)):
        trainers = "megatron-core up to 0.14 and from 0.17 on too, 0.15 and 0.16 do not."
        tokenization["special_tokens"] = Noted(
            "none", f"The tokenizer's own encode adds {added}: {trainers}"
        )

    def bytes_of(text: str) -> float | None:
        tokens = len(encode_text(shared_tokenizer(file), text, file).ids)
        return len(text.encode(errors="replace")) / tokens if tokens else None

    return _Tokenizer(tokenizer, tokenization, bytes_of)


def _path_from(folder: Path, file: Path) -> str:
    """Return a path as nanoset.yaml in a folder names it: relative if it is below the folder, else
    absolute.
    """
    absolute = file.resolve()
    base = folder.resolve()
    return absolute.relative_to(base).as_posix() if absolute.is_relative_to(base) else str(absolute)


def _first_values(
    raw: Path, text: RawText, tokenizer: _Tokenizer, text_key: str | None, ask: Ask
) -> dict[str, Any]:
    found = with_keys(raw, divided(text), text_key, ask)
    amounts = {one.name: _amount(raw, one, tokenizer) for one in found}
    training = {one.name: amounts[one.name] for one in found if one.split == "train"}
    longest = _longest(
        [*training.values(), *(one for one in amounts.values() if one.sure > _LEAST_LENGTH)]
    )
    if len(training) < len(found):
        length = longest
        data, tokens = _held_out(found, amounts, length)
    else:
        length, split = _cut(list(training.values()), longest)
        data, tokens = _shared(training, split)
    few = f"There is little text: with more of it, take {_LENGTH:,}."
    nanoset = {
        **data,
        "sequence_length": length if length == _LENGTH else Noted(length, few),
        **_defaults(NanosetSpec, "seed"),
        "schedule": _schedule(tokens, length),
        "trainer_path": Noted("/data"),
        "trainer": Noted(EXAMPLE_VALUES),
    }
    return {
        "raw": "raw",
        "root": "data",
        "tokenizer": tokenizer.tokenizer,
        **_documents(found),
        "tokenization": _defaults(TokenizationSpec, "append_eod") | tokenizer.tokenization,
        **_outputs(nanoset, list(training), length),
    }


def _shared(
    training: Mapping[str, _Amount], split: str
) -> tuple[dict[str, Any], dict[SplitName, float]]:
    """Return the keys of a blend that all splits share, and split → tokens."""
    tokens = sum(amount.tokens for amount in training.values())
    blend: Any = _blend(training) if training else {"CORPUS": 1.0}
    if isinstance(blend, dict) and len(set(blend.values())) > 1:
        blend = Noted(blend, "Shares by size: each corpus is read about once.")
    shares = dict(zip(SPLITS, parse_split(split), strict=True))
    return {"blend": blend, "split": _noted_split(split)}, {
        kind: share * tokens for kind, share in shares.items()
    }


def _held_out(
    found: Sequence[FoundCorpus], amounts: Mapping[str, _Amount], length: int
) -> tuple[dict[str, Any], dict[SplitName, float]]:
    """Return the key of a blend for each split, by the names of files, and split → tokens.

    A corpus for validation or tests that might hold no sample is left out.
    """
    of: dict[SplitName, dict[str, _Amount]] = {
        kind: {
            one.name: amounts[one.name]
            for one in found
            if one.split == kind and (kind == "train" or amounts[one.name].sure > length)
        }
        for kind in SPLITS
    }
    small = [one.name for one in found if one.name not in of[one.split]]

    # Evaluations during training read valid; a run without a test at its end is usual.
    shared = ""
    if of["test"] and not of["valid"]:
        of["valid"] = of["test"]
        shared = " There are no files for valid: those for test are read for it, too."

    blends = {kind: _blend(some) for kind, some in of.items() if some}
    files = (
        f"{format_count(len(one.contents.texts), 'file')} of {one.folder} for {one.split}"
        for one in found
    )
    why = f"By the names of files and folders: {', '.join(files)}."
    why += f" {', '.join(small)} left out: there might be no sample." if small else ""
    lacking = " and ".join(kind for kind in SPLITS if not of[kind])
    why += shared
    why += f" There is nothing for {lacking}." if lacking else ""
    tokens = {kind: sum(amount.tokens for amount in some.values()) for kind, some in of.items()}
    return {"blend_per_split": Noted(blends, why)}, tokens


def _documents(found: Sequence[FoundCorpus]) -> dict[str, Any]:
    """Return `documents`, with the keys of most corpora, and `corpora`, with what others have
    instead.
    """
    values = _defaults(DocumentsSpec, "text_key", "on_reject", "max_rejected_fraction")
    texts = [one for one in found if one.text_key is not None]
    if texts:
        usual = max(texts, key=lambda one: [other.text_key for other in texts].count(one.text_key))
        values["text_key"] = Noted(
            usual.text_key, f"The first lines of {usual.name} have {usual.keys}."
        )
    ids = [one.keys.id for one in found if one.keys.id is not None]
    usual_id = max(ids, key=ids.count) if ids else "id"
    if usual_id != "id":
        values = {
            "text_key": values["text_key"],
            "id_key": Noted(usual_id, "No key is named id."),
            **values,
        }
    plain = values["text_key"].value if texts else values["text_key"]
    corpora = {one.name: one.settings(plain, usual_id) for one in found}
    corpora = {name: settings for name, settings in corpora.items() if settings}
    return {"documents": values} | ({"corpora": corpora} if corpora else {})


def _outputs(nanoset: Mapping[str, Any], corpora: Sequence[str], length: int) -> dict[str, Any]:
    named = list(corpora) or ["CORPUS"]
    tars = _defaults(WebdatasetSpec, "sequence_length", "samples_per_shard", "seed", "member")
    tars["sequence_length"] = min(tars["sequence_length"], length + 1)
    outputs: dict[str, Any] = {
        "nanosets": {"pretrain": nanoset},
        # As comments: tars and .pbin files hold all tokens once more, and most trainers read
        # neither.
        "webdatasets": Noted({"shuffled": {"corpora": named} | tars}),
        "pbin": Noted(named),
    }
    if not corpora:
        outputs["nanosets"] = Noted(outputs["nanosets"])
    return outputs


def _amount(raw: Path, corpus: FoundCorpus, tokenizer: _Tokenizer) -> _Amount:
    from nanoset_core.tokenizers.engines.engine import EncodingError

    read = measure(raw / corpus.folder, corpus.contents, corpus.text_key or "text")
    try:
        known = tokenizer.bytes_of(read.text) if read.text else None
    except EncodingError as error:
        raise error.at(f"{raw / corpus.folder}, in its first texts") from error
    documents, size = read.documents * read.scale, read.text_bytes * read.scale
    sure = (
        read.text_bytes / (2 * known if known else _MOST_TOKEN_BYTES) + read.documents
        if read.text_bytes
        else 0
    )
    return _Amount(documents, size / (known or _TOKEN_BYTES) + documents if size else 0, sure)


def _blend(amounts: Mapping[str, _Amount]) -> str | dict[str, float]:
    """Return the only corpus, or all of them with their shares of the tokens."""
    if len(amounts) == 1:
        return next(iter(amounts))
    whole = sum(amount.tokens for amount in amounts.values())
    is_known = all(amount.tokens for amount in amounts.values())
    return {
        name: float(f"{amount.tokens / whole:.3g}") if is_known else 1.0
        for name, amount in amounts.items()
    }


def _longest(amounts: Sequence[_Amount]) -> int:
    """Return the usual length of samples, or the power of two that surely leaves each corpus a
    sample.
    """
    least = min((int(one.sure) for one in amounts if one.tokens), default=_LENGTH + 1)
    return _LENGTH if least > _LENGTH else 1 << max((least - 1).bit_length() - 1, 0)


def _cut(amounts: Sequence[_Amount], longest: int) -> tuple[int, str]:
    """Return how long samples are, and the split: shorter ones where otherwise there is no room for
    a split.
    """

    def room(length: int) -> float:
        return (
            min((min(one.tokens / length, one.documents) for one in amounts), default=math.inf)
            / _LEAST_ROOM
        )

    lengths = [
        longest >> halved
        for halved in range(longest.bit_length())
        if longest >> halved >= _LEAST_LENGTH
    ]
    length = next((one for one in lengths if room(one) >= _LEAST_SPLIT), longest)
    return length, next(split for least_room, split in _SPLITS if room(length) >= least_room)


def _noted_split(split: str) -> str | Noted:
    if split == DEFAULT_SPLIT:
        return split
    left_out = [kind for kind, share in zip(SPLITS, parse_split(split), strict=True) if not share]
    why = f"{' and '.join(left_out)} left out, which" if left_out else "a smaller part"
    return Noted(
        split,
        f"There is little text: {why} might have no sample. With more of it, take {DEFAULT_SPLIT}.",
    )


def _schedule(tokens: Mapping[SplitName, float], length: int) -> Noted:
    """Return a run of about one epoch, so that the handoffs of all trainers name one number of
    samples.
    """
    samples = {split: int(count / length) for split, count in tokens.items()}
    train = samples["train"]
    if train < 1:
        return Noted({"iterations": 100_000, "global_batch_size": 512})

    # The largest power of two that leaves at least _MIN_STEPS steps.
    batch = 1
    if train > _MIN_STEPS:
        batch = min(1 << max(int(math.log2(train / _MIN_STEPS)), 0), _MAX_BATCH)
    iterations = max(int(train * _EPOCH_SHARE / batch), 1)
    eval_interval = min(max(iterations // 10, 1), 1000)

    # Each evaluation during the run reads new samples of valid; test is read once, at the end.
    eval_iterations = 0
    if samples.get("valid"):
        evaluations: dict[SplitName, int] = {"valid": iterations // eval_interval + 1, "test": 1}
        samples_at_once = [
            samples[split] * _EPOCH_SHARE / count
            for split, count in evaluations.items()
            if samples.get(split)
        ]
        eval_iterations = min(max(int(min(samples_at_once) / batch), 1), 100)

    rounded_tokens = float(f"{tokens['train']:.2g}")
    note = f"About one epoch, by the first MiB of each corpus: {rounded_tokens:,.0f} tokens, {train:,} samples."
    settings = {
        "iterations": iterations,
        "global_batch_size": batch,
        "eval_interval": eval_interval,
        "eval_iters": eval_iterations,
    }
    return Noted(settings, note)


def _defaults(section: type[DataclassInstance], *names: str) -> dict[str, Any]:
    return {name: setting(section, name).default for name in names}
