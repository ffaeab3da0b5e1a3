"""Find the corpora in a raw folder for `nanoset init`, with their splits and their text keys.

A folder is a corpus. If its file names say that some files are for validation or tests, these are a
corpus of their own: a folder `web` with a.jsonl, b.jsonl and valid.jsonl gives the corpora `web`,
for training, and `web_valid`, for validation. The first lines of a corpus show which of their keys
has the text.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError
from nanoset_core.project.first_config.template import ExplainedValue
from nanoset_core.sampling.splits import SPLITS, SplitName
from nanoset_core.stages.shards.settings import DocumentsSpec
from nanoset_core.text.files.choice import FileChoice, held_out, held_out_split_of_folder
from nanoset_core.text.files.contents import Contents
from nanoset_core.text.files.endings import format_of
from nanoset_core.text.files.survey import RawText
from nanoset_core.text.line_keys import LineKeys, doubt_of_header, keys_of
from nanoset_core.wording import format_bytes, format_count

_DEFAULT_ID_KEY = DocumentsSpec().id_key


@dataclass(frozen=True, slots=True)
class FoundCorpus:
    """A corpus: a folder of text, or some of its files."""

    name: str
    """Name of the folder; with `_valid` or `_test` appended if it has only some of its files."""
    folder: str
    """Name of the folder below raw."""
    contents: Contents
    """Its files."""
    split: SplitName
    """The split that its files are for, judging by their names."""
    choice: FileChoice = field(default_factory=FileChoice)
    """Which files of the folder it is made from."""
    keys: LineKeys = field(default_factory=LineKeys)
    """The keys of its first lines."""
    text_key: str | None = None
    """The key of the text, or None if it has no lines."""

    @property
    def is_text_key_certain(self) -> bool:
        """Whether the first lines show which key has the text, so that the user was not asked."""
        return self.text_key is not None and self.text_key == self.keys.text

    def settings(self, text_key: str, id_key: str) -> dict[str, Any]:
        """Return the settings that this collection of texts (corpus) needs in a new nanoset.yaml.

        Most need none: a corpus is a folder of its name, and its lines have the same keys as
        others. For example, the file valid.jsonl of the folder `web`, with lines {"body": "Hi!"},
        needs

            web_valid:
              folder: web
              text_key: body
              files: [valid.*]

        Args:
            text_key: The key of the text in most corpora, such as "text".
            id_key: The key of the document's id in most corpora, such as "id".

        Returns:
            Key → value, in the order in which they are written; empty if the corpus needs none.
        """
        values: dict[str, Any] = {}
        if self.name != self.folder:
            values["folder"] = self.folder

        has_lines = self.text_key is not None  # plain text files have none
        if has_lines and self.text_key != text_key:
            comment = self.reason_for_text_key("Its first lines")
            values["text_key"] = ExplainedValue(self.text_key, comment)
        if self.keys.id is not None and self.keys.id != id_key:
            values["id_key"] = self.keys.id
        elif has_lines and self.keys.id is None and id_key != _DEFAULT_ID_KEY:
            # Builds warn if no document has an id at its key, unless the key is the default.
            values["id_key"] = ExplainedValue(_DEFAULT_ID_KEY, "Its first lines have no ids.")
        values.update(self._file_settings())  # `files` or `exclude`, if it has not the whole folder
        return values

    def reason_for_text_key(self, first_lines: str) -> str:
        """Return the comment on the key of the text: "Its first lines have body, url."

        Args:
            first_lines: How the comment begins, such as "Its first lines".
        """
        keys = str(self.keys) or "no keys"  # such as "body, url"
        reason = f"{first_lines} have {keys}."
        is_csv = any(format_of(file.path) == "csv" for file in self.contents.texts)
        if is_csv and self.text_key is not None:
            reason = f"{reason} {doubt_of_header(self.text_key, self.keys)}".rstrip()
        return reason

    def _file_settings(self) -> dict[str, ExplainedValue]:
        """Return the settings that say which files of a folder belong to this corpus, if not all.

        For example, a folder with a.jsonl, b.jsonl and valid.jsonl becomes two corpora (collections
        of texts). One has the setting `files: [valid.*]`, and the other one `exclude: [valid.*]`.

        Returns:
            "files" or "exclude" → a list of patterns, with a comment that says how large the corpus
            is. It is empty if all files of the folder belong to this corpus.
        """
        n_files = format_count(len(self.contents.texts), "file")
        size = f"{n_files}, {format_bytes(self.contents.size)}"  # such as "1 file, 10 kB"
        values: dict[str, ExplainedValue] = {}
        if self.choice.files is not None:
            comment = f"By their names {self.split} data: {size}."
            values["files"] = ExplainedValue(list(self.choice.files), comment)
        if self.choice.exclude:
            comment = f"Held out of {self.split} data, which is {size}."
            values["exclude"] = ExplainedValue(list(self.choice.exclude), comment)
        return values


def divided(text: RawText) -> list[FoundCorpus]:
    """Divide folders of text into collections for training, validation and test, by file names.

    `nanoset init` does this for its first suggestion. For example, of these files

        web/a.jsonl   web/b.jsonl   web/valid.jsonl   code/c.jsonl

    the first two become the corpus `web` for training, the third becomes the corpus `web_valid` for
    validation, and the last one becomes the corpus `code` for training.

    Args:
        text: The folders, with their files.

    Returns:
        The corpora. If the names leave no file for training, they seem to mean something else. Then
        nothing is divided, and each folder is a corpus for training.
    """
    contents_by_folder = text.corpora
    folder_names = list(contents_by_folder)
    corpora: list[FoundCorpus] = []
    for folder, contents in contents_by_folder.items():
        corpora += _divide_folder(folder, contents, folder_names)

    has_training_text = any(corpus.split == "train" for corpus in corpora)
    if has_training_text:
        return corpora
    return [
        _whole_folder(folder, contents, "train") for folder, contents in contents_by_folder.items()
    ]


def _whole_folder(folder: str, contents: Contents, split: SplitName) -> FoundCorpus:
    """Return the corpus of all files in a folder, which has the name of the folder."""
    return FoundCorpus(name=folder, folder=folder, contents=contents, split=split)


def _divide_folder(
    folder: str, contents: Contents, folder_names: Sequence[str]
) -> list[FoundCorpus]:
    """Divide a folder of text into training, validation and test data, by the names of its files.

    Each of these becomes a corpus (a collection of texts). For example, the folder `web`:

        files           corpus       setting
        a.jsonl         web          exclude: [valid.*]
        b.jsonl         web
        valid.jsonl     web_valid    files: [valid.*]

    Args:
        folder: Name of the folder, such as web.
        contents: Its files.
        folder_names: Names of all folders. A folder is a corpus of its name, so no other corpus may
            have the name. If there is a folder `web_valid`, the corpus is named `web_valid_files`.
    """
    # The name of a folder such as `web_valid` says that all of it is for validation.
    folder_split = held_out_split_of_folder(folder)
    if folder_split is not None:
        split_name: SplitName = "valid" if folder_split == "valid" else "test"
        return [_whole_folder(folder, contents, split_name)]

    patterns_by_split = _held_out_patterns_by_split(contents)  # {"valid": ["valid.*"], "test": []}
    choices = _choices_of_splits(patterns_by_split)
    splits = []  # those with any file
    for split, choice in choices.items():
        if contents.chosen(choice).texts:
            splits.append(split)

    # The first split, which usually is train, keeps the name of the folder. It gets all files that
    # are not for another split.
    corpora = []
    for split in splits:
        if split == splits[0]:
            name = folder
            choice = FileChoice(exclude=_patterns_of_others(patterns_by_split, split))
        else:
            name = _free_name(f"{folder}_{split}", folder_names)
            choice = choices[split]
        corpora.append(FoundCorpus(name, folder, contents.chosen(choice), split, choice))
    return corpora


def _held_out_patterns_by_split(contents: Contents) -> dict[SplitName, list[str]]:
    """Return which files of a folder are for validation or test, as patterns of their names.

    For example, the files a.jsonl, valid_1.jsonl and valid_2.jsonl give

        {"valid": ["valid_*"], "test": []}

    Args:
        contents: The files of the folder.
    """
    patterns: list[tuple[str, str]] = list(_held_out_patterns(contents))  # ("valid", "valid_*"), …
    patterns_by_split: dict[SplitName, list[str]] = {}
    for split in SPLITS[1:]:  # valid and test
        patterns_by_split[split] = [pattern for name, pattern in patterns if name == split]
    return patterns_by_split


def _choices_of_splits(
    patterns_by_split: Mapping[SplitName, Sequence[str]],
) -> dict[SplitName, FileChoice]:
    """Return which files are for training, validation and test. For example, with the patterns

        {"valid": ["valid.*"], "test": []}

    the files `valid.*` are for validation, none is for test, and all others are for training:

        {"train": exclude valid.*, "valid": files valid.*}

    Args:
        patterns_by_split: "valid" and "test" → patterns of the names of their files.

    Returns:
        Split → its files. Splits without patterns are left out, except train.
    """
    held_out_patterns = itertools.chain.from_iterable(patterns_by_split.values())
    choices: dict[SplitName, FileChoice] = {}
    choices["train"] = FileChoice(exclude=tuple(held_out_patterns))
    for split, patterns in patterns_by_split.items():
        if patterns:
            choices[split] = FileChoice(files=tuple(patterns))
    return choices


def _held_out_patterns(contents: Contents) -> list[tuple[str, str]]:
    """Return the split and the name pattern of files for validation or test.

    Args:
        contents: The files of a folder.

    Returns:
        Pairs such as ("valid", "valid.*"), each once, in the order of the files.
    """
    patterns = [_held_out_pattern(file.path) for file in contents.ordered]
    return list(dict.fromkeys(pattern for pattern in patterns if pattern is not None))


def _held_out_pattern(path: str) -> tuple[str, str] | None:
    """Return whether a file is for validation or test, by its name or that of its folder.

    Args:
        path: Path of the file below the folder of a collection of texts.

    Returns:
        The split, and a pattern of similar files: ("valid", "valid_*") for valid_1.jsonl, and
        ("test", "test/") for test/a.jsonl. None if no name says so.
    """
    if format_of(path) != "txt":
        return held_out(path)
    # The name of a .txt file is often the title of its only document, so test.txt may be about
    # tests. Look only at the folder.
    folder, _, _ = path.rpartition("/")
    return held_out(f"{folder}/")


def _patterns_of_others(
    patterns: Mapping[SplitName, Sequence[str]], split: SplitName
) -> tuple[str, ...]:
    """Return the name patterns of all splits but one.

    For example, {"valid": ["valid.*"], "test": ["test.*"]} and "test" give ("valid.*",).

    Args:
        patterns: Split → patterns of the names of its files.
        split: The split whose patterns are left out.
    """
    others: list[str] = []
    for other, other_patterns in patterns.items():
        if other != split:
            others += other_patterns
    return tuple(others)


def _free_name(name: str, existing_names: Sequence[str]) -> str:
    """Return a name that is not taken, with `_files` appended as many times as that needs."""
    while name in existing_names:
        name = f"{name}_files"
    return name


def with_keys(
    raw: Path,
    found: Sequence[FoundCorpus],
    text_key: str | None,
    ask: Callable[[str, Sequence[str]], str | None],
) -> list[FoundCorpus]:
    """Find out which keys of JSON lines have the text and the ids, in each collection of texts.

    A new project has several collections (corpora), whose lines may differ:

        web     {"text": "It rains.", "id": 7}        text and id
        chat    {"body": "Hi!"}                       body, and no id

    Args:
        raw: The folder with the folders of all corpora.
        found: The corpora.
        text_key: Key of the text that the user named, for corpora that have it, and for those whose
            first lines do not show which key it is; None to ask the user for the latter.
        ask: Asks the user a question with some answers; returns None if there is no answer.

    Returns:
        The same corpora, with their keys.

    Raises:
        ConfigError: It is not certain which key of a corpus has the text, and there is no answer.
    """
    return [_with_text_key(raw, corpus, text_key, ask) for corpus in found]


def _with_text_key(
    raw: Path,
    corpus: FoundCorpus,
    text_key: str | None,
    ask: Callable[[str, Sequence[str]], str | None],
) -> FoundCorpus:
    """Find out which key of JSON lines has the text of the documents, such as "text".

    For example, these are cases of the first lines of a collection of texts (corpus), with the key
    that is found, without and with a key that the user has named:

        first lines                           no key is named       the user has named "poem"
        {"text": "It rains.", "url": "…"}     "text": usual name    "text"
        {"tale": "It rains.", "n": 7}         "tale": only string   "tale"
        {"tale": "It rains.", "poem": "…"}    not certain: ask      "poem"
        {"n": 7}                              an error              "poem": later lines may have it
        (plain text files)                    None                  None

    Args:
        raw: The folder that has the folders of all corpora.
        corpus: The corpus. If its files are tables, their columns count as keys.
        text_key: The key that the user named; None to look for it.
        ask: Asks the user a question with some answers; returns None if there is no answer.

    Returns:
        The same corpus, with its keys.

    Raises:
        ConfigError: It is not certain which key has the text, and there is no answer.
    """
    keys = keys_of(raw / corpus.folder, corpus.contents)  # reads the first lines
    keys_with_strings = keys.texts
    keys_with_other_values = keys.others  # such as "n"

    has_named_key = text_key in keys_with_strings or text_key in keys_with_other_values
    if has_named_key:
        chosen_key = text_key
    elif keys.text is not None:  # it is certain
        chosen_key = keys.text
    elif text_key is not None and _may_have_keys(corpus.contents):
        chosen_key = text_key
    elif keys.candidates:
        # Offer those with strings, unless these are all empty.
        chosen_key = ask(f"Which key of {corpus.name} holds the text?", keys.candidates)
    else:
        chosen_key = None

    has_keys = bool(keys_with_strings or keys_with_other_values)
    if chosen_key is None and has_keys:
        first_file = raw / corpus.folder / corpus.contents.ordered[0].path
        raise _unclear_text_key_error(first_file, keys)
    return replace(corpus, keys=keys, text_key=chosen_key)


def _may_have_keys(contents: Contents) -> bool:
    """Return whether any file of a corpus has documents with keys, which all have but .txt files.

    Args:
        contents: The files of the corpus.
    """
    return any(format_of(file.path) != "txt" for file in contents.texts)


def _unclear_text_key_error(file: Path, keys: LineKeys) -> ConfigError:
    """Return the error that it is not certain which key of JSON lines has the text.

    For example, in {"question": "…", "answer": "…"} two keys have strings, and neither is named
    text or content.

    Args:
        file: The file with these lines.
        keys: The keys of its first lines, which the error lists.
    """
    remedy = "name it with --text-key"
    if format_of(file.name) == "csv":
        remedy += ", or add a header if the first row is none"
    return ConfigError(
        "it is not clear which key is that of the text",
        where=file,
        found=f"the keys {keys}",
        expected=(
            "a key named text or content, or a single key with a string, "
            "in at least nine of ten lines"
        ),
        remedy=f"{remedy}; join the messages of a chat, "
        "or a question and its answer, to one text first",
    )
