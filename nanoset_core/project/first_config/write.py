"""Write the first nanoset.yaml of a project, with choices that fit its text and its tokenizer.

Everything that has to be chosen follows from the files that the user has: the corpora from the
folders of text, the keys of a line from the first lines, the length of samples and the schedule
from the amount of text. A comment above a value gives the reason: with little text, for example,
`sequence_length: 512` has the comment "There is little text in code; with more, use 2,048."
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nanoset_core.errors import ConfigError
from nanoset_core.project.first_config.corpora import FoundCorpus, divided, with_keys
from nanoset_core.project.first_config.lengths import (
    MIN_LENGTH,
    USUAL_LENGTH,
    TextAmount,
    choose_length_and_split,
    choose_schedule,
    estimate_amount,
    explained_split,
    little_text,
    longest_length,
    scarcest_corpus,
    smallest_corpus,
)
from nanoset_core.project.first_config.misplaced_text import text_beside
from nanoset_core.project.first_config.template import (
    SCHEMA_FILE,
    CommentedOut,
    ExplainedValue,
    config_text,
    schema_text,
)
from nanoset_core.project.first_config.tokenizer import Ask, FirstTokenizer, choose_tokenizer
from nanoset_core.records.parsing import CONFIG_FILE
from nanoset_core.records.settings import setting
from nanoset_core.sampling.splits import SPLITS, SplitName, parse_split
from nanoset_core.stages.handoff.settings import EXAMPLE_VALUES
from nanoset_core.stages.mappings.settings import NanosetSpec
from nanoset_core.stages.shards.settings import DocumentsSpec, TokenizationSpec
from nanoset_core.stages.webdataset.settings import WebdatasetSpec
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.storage.os_errors import writing_to
from nanoset_core.text.files.survey import RawText, check_raw_text, list_corpora
from nanoset_core.wording import abbreviated, format_count

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_NO_CORPUS = "CORPUS"
"""Stands for the name of a corpus as long as there is none; the user replaces it."""
_EXAMPLE_TRAINER_PATH = "/data"
"""A folder where the trainer might find the outputs; the user replaces it."""
_MAX_NAMED_CORPORA = 5
"""A comment names at most this many corpora that are left out; it counts the others."""


@dataclass(frozen=True, slots=True)
class Start:
    """A first configuration, and the text that it was written for."""

    path: Path
    """The nanoset.yaml."""
    text: RawText
    """What the raw folder holds."""
    made: bool
    """Whether it was written; if not, it existed, exactly as it would be written now."""
    chosen: Sequence[str]
    """What was chosen, and why; one line for each choice."""
    beside: Sequence[str] = ()
    """Files of text in the folder that are outside of its raw folder, relative to it."""


def _show_nothing(_text: RawText) -> None:
    """Show no text: used in place of showing if there is no user."""


def write_config(
    folder: Path,
    *,
    key_prefix: Sequence[str] = (),
    text_key: str | None = None,
    tokenizer: Path | None = None,
    ask: Ask | None = None,
    show_text: Callable[[RawText], None] = _show_nothing,
) -> Start:
    """Write the first settings of a project, for the text in its folder: `nanoset init`.

    For example, the folder has this content:

        raw/web/a.jsonl          lines such as {"body": "It rains."}
        tokenizer.json

    Then a nanoset.yaml is written with settings that fit: the text is in the key `body`, and so on.
    A JSON schema is written next to it, by which editors check the settings. The first build with
    these settings succeeds, however little text there is.

    Args:
        folder: The project's folder. Its subfolder `raw` has a folder for each collection of texts.
        key_prefix: Precedes all names of the project in Dagster, the program that runs builds.
        text_key: Key of the text in JSON lines that have it, or whose key of the text is not
            certain; default: what the first lines suggest.
        tokenizer: File or folder of the tokenizer; default: the one in the project's folder.
        ask: Asks the user if something cannot be decided.
        show_text: Shows the user which text was found. It is called before the text is read, which
            takes a while if there are many collections.

    Returns:
        The path of the file, what was chosen and why, and the text that it was written for. If the
        same file exists already, it is left alone, and `made` is false.

    Raises:
        ConfigError: There is another nanoset.yaml already, `tokenizer` is not a tokenizer, a folder
            in raw cannot be a collection of texts, or it has several keys that may be its text.
        MissingError: A folder of text cannot be listed.
        InputError: A file of text is not in such a folder.
        StorageError: The folder cannot be written to.
    """
    path = folder / CONFIG_FILE
    raw = folder / "raw"
    text = list_corpora(raw) if raw.is_dir() else RawText({}, {})
    exists = path.exists()
    if ask is None or exists:
        ask = _no_answer  # nothing is asked if nothing will be written

    # If there is another configuration already, that is what the user has to know first. Otherwise
    # report what is wrong with the text, and then what cannot be chosen.
    if not exists:
        check_raw_text(raw, text)
        show_text(text)
    draft = _draft_config(folder, text, tokenizer, text_key, key_prefix, ask)
    if exists:
        if not _has_content(path, draft.content):
            raise _existing_config_error(path)
        check_raw_text(raw, text)
        show_text(text)
    if draft.error is not None:
        raise draft.error

    beside = text_beside(
        folder,
        has_corpora=bool(text.corpora),
        tokenizer=folder / draft.values["tokenizer"]["path"],
    )
    with writing_to(folder):
        _write_schema(folder)
        if not exists:
            write_atomic(path, draft.content)
    return Start(path, text, not exists, list(_reasons(draft.values)), beside)


@dataclass(frozen=True, slots=True)
class _DraftConfig:
    """A nanoset.yaml that has not been written yet, or the reason why there can be none."""

    values: Mapping[str, Any] = field(default_factory=dict)
    """Its sections."""
    content: bytes = b""
    """Its text, with comments."""
    error: ConfigError | None = None
    """Why a value cannot be chosen; then there is no content."""


def _draft_config(
    folder: Path,
    text: RawText,
    tokenizer: Path | None,
    text_key: str | None,
    key_prefix: Sequence[str],
    ask: Ask,
) -> _DraftConfig:
    """Choose the settings for the nanoset.yaml of a new project. Nothing is written yet.

    If that fails, the error is part of the result. It must not be raised yet: if there is a
    nanoset.yaml already, the caller reports that instead.

    Args:
        folder: The project's folder.
        text: What is in its subfolder `raw`: files of text.
        tokenizer: File or folder of the tokenizer; None to look for one in the project's folder.
        text_key: The key of the text that the user named, such as "answer"; None to find it by the
            first lines alone.
        key_prefix: Words before all names of the project in Dagster, the program that runs builds,
            such as ["team", "llm"].
        ask: Asks the user if something cannot be decided.

    Returns:
        The settings, as values and as the text of the file; or the error.
    """
    try:
        chosen_tokenizer = choose_tokenizer(folder, tokenizer, ask)
        values = _choose_values(folder / "raw", text, chosen_tokenizer, text_key, ask)
    except ConfigError as error:
        return _DraftConfig(error=error)
    if key_prefix:
        values["dagster"] = {"key_prefix": list(key_prefix)}
    return _DraftConfig(values, config_text(values).encode())


def _existing_config_error(path: Path) -> ConfigError:
    """Return the error that there is a nanoset.yaml already, which `nanoset init` leaves as it is.

    Args:
        path: The existing file. It differs from what `nanoset init` would write now.
    """
    return ConfigError(
        "there is a configuration already, and nothing was changed",
        where=path,
        expected="no file, or the one that would be written for the text and the tokenizer as "
        "they are now",
        remedy="edit it, or remove it first",
    )


def _write_schema(folder: Path) -> None:
    """Write the JSON schema for nanoset.yaml, unless the file is up to date.

    Editors use it: they complete the keys of the settings, and underline a key that does not exist.

    Args:
        folder: The project's folder.

    Raises:
        OSError: The folder cannot be written to.
    """
    schema = schema_text().encode()
    schema_file = folder / SCHEMA_FILE
    if not _has_content(schema_file, schema):
        write_atomic(schema_file, schema)


def _no_answer(_question: str, _answers: Sequence[str]) -> str | None:
    """Answer no question: used in place of asking if there is no user to ask."""
    return None


def _has_content(file: Path, content: bytes) -> bool:
    """Return whether a file exists and contains exactly these bytes."""
    return file.is_file() and file.read_bytes() == content


def _reasons(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield a line for each chosen setting that has a reason, which `nanoset init` shows the user.

    For example, the sections

        {"raw": "raw", "documents": {"text_key": ExplainedValue("body", "No key is named text.")}}


    give the line "documents.text_key: body. No key is named text."

    Args:
        values: Sections of nanoset.yaml: key → value, or key → a section within this one.
        prefix: What precedes the keys in the lines: "documents." within the section `documents`,
            and nothing at first.
    """
    for key, value in values.items():
        if isinstance(value, ExplainedValue):
            yield f"{prefix}{key}: {value.value}. {value.reason}"
        elif isinstance(value, Mapping):
            yield from _reasons(value, f"{prefix}{key}.")


def _choose_values(
    raw: Path, text: RawText, tokenizer: FirstTokenizer, text_key: str | None, ask: Ask
) -> dict[str, Any]:
    """Choose the settings of a new project, by its folders of text: for `nanoset init`.

    For example, with a folder `raw/web` of JSON lines {"body": "It rains."}, parts of the result
    are

        raw: raw
        documents:
          text_key: body       # The first lines of web have body.
        nanosets:
          pretrain:            (what a training reads)
            blend: web
            sequence_length: 2048

    Args:
        raw: The folder with the folders of text.
        text: What is in it.
        tokenizer: The tokenizer, which also estimates how many tokens the text has.
        text_key: The key of the JSON lines that has the text, if the user named it.
        ask: Asks the user if something cannot be decided.

    Returns:
        Name of each section of nanoset.yaml → its value, in the order in which they are written.

    Raises:
        ConfigError: It is not clear which key of the JSON lines has the text.
    """
    # A corpus is a collection of texts.
    corpora = with_keys(raw, divided(text), text_key, ask)
    amounts = {corpus.name: estimate_amount(raw, corpus, tokenizer) for corpus in corpora}
    training_corpora = [corpus.name for corpus in corpora if corpus.split == "train"]
    data = _choose_data(corpora, amounts)
    return {
        "raw": "raw",
        "root": "data",
        "tokenizer": tokenizer.tokenizer,
        **_document_sections(corpora),
        "tokenization": _tokenization_section(tokenizer),
        **_output_sections(_nanoset_values(data), training_corpora, data.length),
    }


def _tokenization_section(tokenizer: FirstTokenizer) -> dict[str, Any]:
    """Return the settings of how text becomes tokens, for a first nanoset.yaml.

    Some tokenizers need a certain value of `append_eod`, which says whether a token marks the end
    of each document. With others, the section has the default, so that the user sees it.

    Args:
        tokenizer: The tokenizer, with the settings that it needs.
    """
    return {**_default_values(TokenizationSpec, "append_eod"), **tokenizer.tokenization}


def _choose_data(corpora: Sequence[FoundCorpus], amounts: Mapping[str, TextAmount]) -> _NanosetData:
    """Choose what a training reads for train, valid and test, and how long its samples are.

    If all collections of texts (corpora) are for training, each is divided into the three splits,
    such as by "98,1,1". If some are for validation, as names like web_valid say, each split reads
    its own corpora.

    Args:
        corpora: The corpora, with the split that each is for.
        amounts: Name of each corpus → how much text it has.
    """
    if all(corpus.split == "train" for corpus in corpora):
        return _choose_shared_data(amounts)
    return _choose_data_per_split(corpora, amounts)


def _choose_shared_data(amounts: Mapping[str, TextAmount]) -> _NanosetData:
    """Choose what a training reads if train, valid and test are shares of the same texts.

    All samples have the same number of tokens, and each text collection that is read must have at
    least one. So the smallest collection limits the length. For example:

        web      500,000 tokens
        code         700 tokens    has no sample of 1,024: the length is 512
        notes        100 tokens    tiny: left out, since samples have at least 256 tokens

    Args:
        amounts: Name of each collection → how much text it has.
    """
    left_out = _tiny_training_corpora(amounts)
    read_amounts = _without(amounts, left_out)
    max_length = longest_length(list(read_amounts.values()))
    # Samples may be shorter than that, to make room for valid.
    length, shares = choose_length_and_split(list(read_amounts.values()), max_length)
    return _shared_data(read_amounts, left_out, shares, length)


def _choose_data_per_split(
    corpora: Sequence[FoundCorpus], amounts: Mapping[str, TextAmount]
) -> _NanosetData:
    """Choose what a training reads if some text collections (corpora) are only for valid or test.

    The samples are as long as the smallest corpus permits. Corpora that might not have a single
    sample are left out. For example:

        web          train    500,000 tokens
        web_valid    valid        700 tokens    has no sample of 1,024: the length is 512
        notes_test   test         100 tokens    left out

    Args:
        corpora: The corpora, each for one split: train, valid or test.
        amounts: Name of each corpus → how much text it has.
    """
    training_corpora = [corpus.name for corpus in corpora if corpus.split == "train"]
    training_amounts = {name: amounts[name] for name in training_corpora}
    evaluation_amounts = _without(amounts, training_corpora)

    tiny_training_corpora = _tiny_training_corpora(training_amounts)
    tiny_corpora = [*tiny_training_corpora, *_tiny_corpora(evaluation_amounts)]
    large_enough = _without({**training_amounts, **evaluation_amounts}, tiny_corpora)
    length = longest_length(list(large_enough.values()))

    too_small_for_evaluation = _too_small_for_evaluation(corpora, amounts, length)
    left_out = [*tiny_training_corpora, *too_small_for_evaluation]
    return _data_per_split(corpora, amounts, left_out, length, smallest_corpus(large_enough))


def _tiny_training_corpora(training_amounts: Mapping[str, TextAmount]) -> list[str]:
    """Return the text collections for training that are left out because they are tiny.

        web: 500,000 tokens, notes: 100 tokens    ["notes"]
        notes: 100 tokens, poems: 50 tokens       []: without them, there would be nothing to read

    Args:
        training_amounts: Name of each collection for training → how much text it has.
    """
    tiny_corpora = _tiny_corpora(training_amounts)
    if len(tiny_corpora) == len(training_amounts):
        return []  # all are tiny, so samples have to be short
    return tiny_corpora


def _tiny_corpora(amounts: Mapping[str, TextAmount]) -> list[str]:
    """Return the text collections that might not have a single sample of 256 tokens (MIN_LENGTH).

    Args:
        amounts: Name of each collection → how much text it has. If no text was found in it, its
            size is not known, and it does not count as tiny.
    """
    names = []
    for name, amount in amounts.items():
        is_size_known = amount.tokens > 0
        if is_size_known and not _surely_has_sample(amount, MIN_LENGTH):
            names.append(name)
    return names


def _surely_has_sample(amount: TextAmount, length: int) -> bool:
    """Return whether a text collection has a sample, even if the estimate of its size is wrong.

    A sample of 4 tokens takes 5 of the text: of a, b, c, d, e, the trainer reads a, b, c, d, and
    learns to predict b, c, d, e. So there must be more tokens than the sample is long.

    Args:
        amount: How much text the collection has.
        length: Tokens of a sample.
    """
    return amount.least_tokens > length


def _without(amounts: Mapping[str, TextAmount], names: Collection[str]) -> dict[str, TextAmount]:
    """Return how much text corpora have, except for those with some names."""
    return {name: amount for name, amount in amounts.items() if name not in names}


def _nanoset_values(data: _NanosetData) -> dict[str, Any]:
    """Return the settings of the data for a training, which `nanoset init` writes.

    In nanoset.yaml, they look like this:

        blend: web
        split: 98,1,1
        sequence_length: 512       # There is little text in code; with more, use 2,048.
        seed: 1234
        schedule: …
        # trainer_path: /data      (commented out, for the user to uncomment)
        # trainer: …

    Args:
        data: What the training reads, and how long its samples are.

    Returns:
        Key → value, in the order in which they are written.
    """
    return {
        **data.keys,  # `blend` and `split`, or `blend_per_split`
        "sequence_length": _explained_length(data),
        **_default_values(NanosetSpec, "seed"),
        "schedule": choose_schedule(data.tokens, data.length),
        "trainer_path": CommentedOut(_EXAMPLE_TRAINER_PATH),
        "trainer": CommentedOut(EXAMPLE_VALUES),
    }


def _explained_length(data: _NanosetData) -> int | ExplainedValue:
    """Return the setting `sequence_length`, the number of tokens of a sample.

    If it is not the usual one, it has a comment. For example:

        512    # There is little text in code; with more, use 2,048.

    Args:
        data: What the training reads, and the length that was chosen for it.
    """
    if data.length == USUAL_LENGTH:
        return data.length
    comment = f"{little_text(data.smallest)}; with more, use {USUAL_LENGTH:,}."
    return ExplainedValue(data.length, comment)


class _NanosetData(NamedTuple):
    """What a nanoset reads, and how it is cut into samples."""

    keys: Mapping[str, Any]
    """Its keys `blend` and `split`, or `blend_per_split`."""
    tokens: dict[SplitName, float]
    """About how many tokens each split has."""
    length: int
    """Tokens of a sample."""
    smallest: str | None
    """The corpus with the fewest tokens, which decides the length; None if there is only one."""


def _shared_data(
    training: Mapping[str, TextAmount], left_out: Sequence[str], split: str, length: int
) -> _NanosetData:
    """Return what a training reads if train, valid and test are shares of the same texts.

    For example, if 2,000,000 tokens are divided by "98,1,1", train has about 1,960,000 of them.

    Args:
        training: Name of each collection of texts → how much text it has.
        left_out: Names of those that are too small, and not in `training`.
        split: The shares of train, valid and test.
        length: Tokens of a sample.

    Returns:
        The settings `blend` and `split`, and the numbers of tokens.
    """
    all_tokens = _total_tokens(training)
    tokens_by_split: dict[SplitName, float] = {}
    for split_name, share in zip(SPLITS, parse_split(split), strict=True):
        tokens_by_split[split_name] = share * all_tokens

    keys = {
        "blend": _explained_blend(training, left_out),
        "split": explained_split(split, scarce_corpus=scarcest_corpus(training, length)),
    }
    return _NanosetData(keys, tokens_by_split, length, smallest=smallest_corpus(training))


def _total_tokens(amounts: Mapping[str, TextAmount]) -> float:
    """Return about how many tokens all corpora have together."""
    return sum(amount.tokens for amount in amounts.values())


def _explained_blend(training: Mapping[str, TextAmount], left_out: Sequence[str]) -> Any:
    """Return the setting `blend`, which says which text collections a training reads, and how much.

    Args:
        training: Name of each collection → how much text it has.
        left_out: Names of those that are too small, and not in `training`.

    Returns:
        Such as "web" for one collection, and {"books": 0.2, "web": 0.8} for several, with a
        comment. If there is none yet, a name that the user has to replace: {"CORPUS": 1.0}.
    """
    if not training:
        return {_NO_CORPUS: 1.0}
    blend = _blend_value(training)  # a name, or {"books": 0.2, "web": 0.8}
    comments = []
    has_different_shares = isinstance(blend, dict) and len(set(blend.values())) > 1
    if has_different_shares:
        comments.append("Shares by size: each corpus is read about once.")
    if left_out:
        comments.append(_left_out_reason(left_out))
    if comments:
        return ExplainedValue(blend, " ".join(comments))
    return blend


def _left_out_reason(names: Sequence[str]) -> str:
    """Return the comment that says which text collections are too small to be read.

    For example: "news, poems left out, since there might be no sample." At most five are named.
    """
    named = abbreviated(names, _MAX_NAMED_CORPORA)
    return f"{named} left out, since there might be no sample."


def _data_per_split(
    corpora: Sequence[FoundCorpus],
    amounts: Mapping[str, TextAmount],
    left_out: Sequence[str],
    length: int,
    smallest: str | None,
) -> _NanosetData:
    """Return what a training reads if some text collections (corpora) are only for valid or test.

    For example, with web and code for train, and web_valid for valid, `nanoset init` writes:

        # By the names of files and folders: 3 files of web for train, … There is nothing for test.
        blend_per_split:
          train: {web: 0.8, code: 0.2}
          valid: web_valid

    Args:
        corpora: The corpora, each for one split: train, valid or test.
        amounts: Name of each corpus → how much text it has.
        left_out: Names of corpora that are not read, since they might not have a single sample.
        length: Tokens of a sample.
        smallest: Name of the corpus with the fewest tokens, which the comment on the length will
            name; or None. It is passed on.

    Returns:
        The setting `blend_per_split` with its comment; and the number of tokens of each split, by
        which the length of the training is chosen.
    """
    amounts_by_split = _amounts_by_split(corpora, amounts, left_out)

    # Evaluations during the training read valid. They matter more than the test at the end, so if
    # there is only text for test, use it for both.
    is_test_shared = bool(amounts_by_split["test"]) and not amounts_by_split["valid"]
    if is_test_shared:
        amounts_by_split["valid"] = amounts_by_split["test"]

    blend_by_split: dict[SplitName, Any] = {}
    for split, split_amounts in amounts_by_split.items():
        if split_amounts:
            blend_by_split[split] = _blend_value(split_amounts)

    empty_splits = [split for split in SPLITS if split not in blend_by_split]
    reasons = _reasons_for_splits(corpora, left_out, is_test_shared, empty_splits)
    keys = {"blend_per_split": ExplainedValue(blend_by_split, " ".join(reasons))}
    tokens_by_split = {split: _total_tokens(amounts_by_split[split]) for split in SPLITS}
    return _NanosetData(keys, tokens_by_split, length, smallest)


def _too_small_for_evaluation(
    corpora: Iterable[FoundCorpus], amounts: Mapping[str, TextAmount], length: int
) -> list[str]:
    """Return the text collections for valid and test that might not have a single sample.

    For example, if a sample has 512 tokens, a file `valid.jsonl` with 300 tokens is too small.

    Args:
        corpora: All collections. Those for train are never part of the result.
        amounts: Name of each collection → how much text it has, by an estimate.
        length: Tokens of a sample.

    Returns:
        Names of the collections.
    """
    too_small: list[str] = []
    for corpus in corpora:
        is_for_evaluation = corpus.split != "train"
        if is_for_evaluation and not _surely_has_sample(amounts[corpus.name], length):
            too_small.append(corpus.name)
    return too_small


def _amounts_by_split(
    corpora: Iterable[FoundCorpus], amounts: Mapping[str, TextAmount], left_out: Collection[str]
) -> dict[SplitName, dict[str, TextAmount]]:
    """Group collections of texts (corpora) by what they are for: train, valid or test. For example:

        train    web: 2,000,000 tokens, code: 500,000 tokens
        valid    web_valid: 10,000 tokens
        test     nothing

    Args:
        corpora: The corpora, each for one of these splits.
        amounts: Name of each corpus → how much text it has.
        left_out: Names of corpora that are not used, such as tiny ones.

    Returns:
        For example {"train": {"web": …, "code": …}, "valid": {"web_valid": …}, "test": {}}.
    """
    amounts_by_split: dict[SplitName, dict[str, TextAmount]] = {split: {} for split in SPLITS}
    for corpus in corpora:
        if corpus.name not in left_out:
            amounts_by_split[corpus.split][corpus.name] = amounts[corpus.name]
    return amounts_by_split


def _reasons_for_splits(
    corpora: Iterable[FoundCorpus],
    left_out: Sequence[str],
    is_test_shared: bool,
    empty_splits: Sequence[SplitName],
) -> Iterator[str]:
    """Yield the comment that `nanoset init` writes on which texts are for train, valid and test.

    For example: "By the names of files and folders: 3 files of web for train, 1 file of web for
    valid. There is nothing for test."

    Args:
        corpora: The collections of texts (corpora), each for one split.
        left_out: Names of those that are too small to be read.
        is_test_shared: Whether valid reads the texts for test.
        empty_splits: The splits that read nothing.

    Yields:
        The sentences.
    """
    counts = []
    for corpus in corpora:
        n_files = format_count(len(corpus.contents.texts), "file")
        counts.append(f"{n_files} of {corpus.folder} for {corpus.split}")
    yield f"By the names of files and folders: {', '.join(counts)}."
    if left_out:
        yield _left_out_reason(left_out)
    if is_test_shared:
        yield "There are no files for valid: those for test are read for it, too."
    if empty_splits:
        yield f"There is nothing for {' and '.join(empty_splits)}."


def _blend_value(amounts: Mapping[str, TextAmount]) -> str | dict[str, float]:
    """Return the setting `blend`: the texts (corpora) that a training reads, and their shares.

        one corpus                                        "web"
        web with 800,000 tokens, books with 200,000       {"web": 0.8, "books": 0.2}
        the size of one is not known                      {"web": 1.0, "books": 1.0}

    Args:
        amounts: Name of each corpus, at least one → how much text it has.
    """
    if len(amounts) == 1:
        return next(iter(amounts))
    if all(amount.tokens for amount in amounts.values()):
        return _shares_by_size(amounts)
    return dict.fromkeys(amounts, 1.0)


def _shares_by_size(amounts: Mapping[str, TextAmount]) -> dict[str, float]:
    """Return the share of each corpus in all tokens, such as {"web": 0.667, "books": 0.333}.

    The shares have three significant digits, since the sizes are estimates.

    Args:
        amounts: Name of each corpus → how much text it has.
    """
    all_tokens = _total_tokens(amounts)
    shares: dict[str, float] = {}
    for name, amount in amounts.items():
        share = amount.tokens / all_tokens
        shares[name] = float(f"{share:.3g}")  # `round` would count digits after the point
    return shares


def _document_sections(corpora: Sequence[FoundCorpus]) -> dict[str, Any]:
    """Return the settings that say which keys of JSON lines have the text and the id of a document.

    `nanoset init` finds these keys in the first lines of each collection of texts (corpus). What
    most corpora have is written once, and exceptions below it. For example, if `web` and `code`
    have lines such as {"text": "It rains."}, and `chat` has {"body": "Hi!"}:

        documents:
          text_key: text
        corpora:
          chat:
            text_key: body

    Args:
        corpora: The corpora, with the keys that their first lines have.

    Returns:
        The sections "documents" and, if there is an exception, "corpora".
    """
    usual_text_key = _usual_text_key(corpora)
    usual_id_key = _usual_id_key(corpora)

    documents: dict[str, Any] = {"text_key": _explained_text_key(corpora, usual_text_key)}
    if usual_id_key != setting(DocumentsSpec, "id_key").default:
        documents["id_key"] = ExplainedValue(usual_id_key, "Most corpora have their ids there.")
    # Write these with their default values, so that the user sees them.
    documents.update(_default_values(DocumentsSpec, "on_reject", "max_rejected_fraction"))
    sections: dict[str, Any] = {"documents": documents}

    exceptions = _exceptional_corpora(corpora, usual_text_key, usual_id_key)
    if exceptions:
        sections["corpora"] = exceptions
    return sections


def _exceptional_corpora(
    corpora: Iterable[FoundCorpus], usual_text_key: str, usual_id_key: str
) -> dict[str, Any]:
    """Return the settings of text collections whose lines have other keys than most.

    Args:
        corpora: All collections, with the keys that their first lines have.
        usual_text_key: The key of the text in most collections.
        usual_id_key: The key of the id of a document in most collections.

    Returns:
        Such as {"chat": {"text_key": "body"}}. Collections with the usual keys are not in it.
    """
    settings_by_corpus: dict[str, Any] = {}
    for corpus in corpora:
        different_settings = corpus.settings(usual_text_key, usual_id_key)
        if different_settings:
            settings_by_corpus[corpus.name] = different_settings
    return settings_by_corpus


def _usual_text_key(corpora: Iterable[FoundCorpus]) -> str:
    """Return the key of the text in most corpora; the default, "text", if no lines have keys.

    For some corpora, the key is certain from the first lines. For others, the user had to name it:

        corpus    first lines                      key
        web       {"text": "It rains.", "id": 7}   "text", which is certain
        code      {"a": "…", "b": "…"}             "b", by the user

    Keys that are not certain count only if none is.

    Args:
        corpora: The corpora, with the keys that their first lines have.
    """
    certain_keys: list[str] = []
    all_keys: list[str] = []
    for corpus in corpora:
        if corpus.text_key is None:
            continue  # it has plain text files, without keys
        all_keys.append(corpus.text_key)
        if corpus.is_text_key_certain:
            certain_keys.append(corpus.text_key)

    if certain_keys:
        return _most_common(certain_keys)
    if all_keys:
        return _most_common(all_keys)
    default_key: str = setting(DocumentsSpec, "text_key").default
    return default_key


def _usual_id_key(corpora: Iterable[FoundCorpus]) -> str:
    """Return the key of the id in most corpora; the default, "id", if most have none.

    Args:
        corpora: The corpora, with the keys that their first lines have.
    """
    default_key: str = setting(DocumentsSpec, "id_key").default
    id_keys: list[str] = []
    for corpus in corpora:
        if corpus.text_key is None:
            continue  # it has plain text files, whose ids need no key
        id_keys.append(corpus.keys.id or default_key)
    return _most_common(id_keys) if id_keys else default_key


def _explained_text_key(corpora: Iterable[FoundCorpus], text_key: str) -> str | ExplainedValue:
    """Return the setting `text_key`, which key of JSON lines has the text, with a comment.

    For example: text_key: body   # The first lines of web have id, body.

    Args:
        corpora: The collections of texts, with the keys that their first lines have.
        text_key: The key. If no collection has it, there is no comment.
    """
    for corpus in corpora:
        if corpus.text_key == text_key:
            reason = corpus.reason_for_text_key(f"The first lines of {corpus.name}")
            return ExplainedValue(text_key, reason)
    return text_key


def _most_common(texts: Sequence[str]) -> str:
    """Return the text that occurs most often; of several, the one that occurs first."""
    return Counter(texts).most_common(1)[0][0]


def _output_sections(
    nanoset: Mapping[str, Any], corpora: Sequence[str], length: int
) -> dict[str, Any]:
    """Return the settings that say what is to be made for trainers, as `nanoset init` writes them.

    A nanoset is made, which most trainers read. Webdatasets and pbin files are for few trainers,
    and contain all tokens once more. So their settings are only comments, which the user may
    uncomment:

        nanosets:
          pretrain: …
        # webdatasets:
        #   shuffled: …
        # pbin: [web]

    Args:
        nanoset: The settings of the nanoset.
        corpora: Names of the text collections for training. If there are none yet, the nanoset is a
            comment, too.
        length: Tokens of a sample of the nanoset.

    Returns:
        Name of the section → its value.
    """
    corpora_or_example = list(corpora) or [_NO_CORPUS]
    nanosets: Any = {"pretrain": nanoset}
    if not corpora:
        nanosets = CommentedOut(nanosets)
    return {
        "nanosets": nanosets,
        "webdatasets": CommentedOut({"shuffled": _webdataset_values(corpora_or_example, length)}),
        "pbin": CommentedOut(corpora_or_example),
    }


def _webdataset_values(corpora: Sequence[str], length: int) -> dict[str, Any]:
    """Return the settings of an example of a webdataset (tar files of samples).

    Its samples are as long as is usual, unless there is so little text that those of the nanoset
    are shorter.

    Args:
        corpora: Names of the text collections that it contains.
        length: Tokens that the trainer reads of a sample of the nanoset. The sample itself has one
            more: [a, b, c, d] is [a, b, c] as input, and [b, c, d] as what to predict.
    """
    values: dict[str, Any] = {"corpora": corpora}
    values |= _default_values(
        WebdatasetSpec, "sequence_length", "samples_per_shard", "seed", "member"
    )
    max_length = length + 1
    values["sequence_length"] = min(values["sequence_length"], max_length)
    return values


def _default_values(section: type[DataclassInstance], *names: str) -> dict[str, Any]:
    """Return the default values of some settings, by their names."""
    return {name: setting(section, name).default for name in names}
