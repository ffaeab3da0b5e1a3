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
from nanoset_core.project.template import ExplainedValue
from nanoset_core.records.text import format_bytes, format_count
from nanoset_core.sampling.splits import SPLITS, SplitName
from nanoset_core.text.choice import FileChoice, held_out
from nanoset_core.text.contents import Contents
from nanoset_core.text.endings import format_of
from nanoset_core.text.line_keys import LineKeys, keys_of
from nanoset_core.text.survey import RawText


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

    def settings(self, text_key: str, id_key: str) -> dict[str, Any]:
        """Return the settings in which this corpus differs from the other corpora.

        Args:
            text_key: The key of the text in most corpora, such as "text".
            id_key: The key of the id in most corpora.

        Returns:
            The keys and values of its section in nanoset.yaml, such as {"text_key": "body"}; empty
            if it needs none.
        """
        values: dict[str, Any] = {}
        if self.name != self.folder:
            values["folder"] = self.folder
        # None: its files have no such key.
        if self.text_key is not None and self.text_key != text_key:
            reason = f"Its first lines have {self.keys}."  # becomes a comment in nanoset.yaml
            values["text_key"] = ExplainedValue(self.text_key, reason)
        if self.keys.id is not None and self.keys.id != id_key:
            values["id_key"] = self.keys.id
        # If it has only some files of its folder: which ones.
        return {**values, **self._file_settings()}

    def _file_settings(self) -> dict[str, ExplainedValue]:
        """Return the settings that say which files of its folder the corpus has, if not all.

        For example, the files `valid*` of a folder are a corpus for validation. The corpus of all
        others has the setting `exclude: [valid*]`.

        Returns:
            "files" or "exclude" → a list of name patterns, with a comment for nanoset.yaml.
        """
        n_files = format_count(len(self.contents.texts), "file")
        corpus_size = f"{n_files}, {format_bytes(self.contents.size)}"
        values: dict[str, ExplainedValue] = {}
        if self.choice.files is not None:
            comment = f"By their names {self.split} data: {corpus_size}."
            values["files"] = ExplainedValue(list(self.choice.files), comment)
        if self.choice.exclude:
            # The excluded files are not part of this size.
            comment = f"Held out of {self.split} data, which is {corpus_size}."
            values["exclude"] = ExplainedValue(list(self.choice.exclude), comment)
        return values


def divided(text: RawText) -> list[FoundCorpus]:
    """Return the corpora of the raw folder, with files for validation and test as separate corpora.

    Such files are recognised by their names, such as `valid.jsonl`.

    Args:
        text: The folders of the raw folder, with their files.

    Returns:
        The corpora, each for one split. If no file in the whole raw folder is for training, all
        folders are: then a corpus is a folder.
    """
    folders = text.corpora  # name → files
    corpora: list[FoundCorpus] = []
    for folder, contents in folders.items():
        # A corpus of some files gets a name of its own, which no folder may have.
        corpora += _divide_folder(folder, contents, folder_names=list(folders))
    has_training_text = any(corpus.split == "train" for corpus in corpora)
    if has_training_text:
        return corpora
    return [_whole_folder(folder, contents, "train") for folder, contents in folders.items()]


def _whole_folder(folder: str, contents: Contents, split: SplitName) -> FoundCorpus:
    """Return the corpus of all files in a folder, which has the name of the folder."""
    return FoundCorpus(name=folder, folder=folder, contents=contents, split=split)


def _divide_folder(
    folder: str, contents: Contents, folder_names: Sequence[str]
) -> list[FoundCorpus]:
    """Return the corpora of one folder: one for each split that its files are for, by their names.

    For example, a folder `web` with the files a.jsonl and valid.jsonl gives the corpora `web`,
    without the files `valid*`, and `web_valid`, with only these files.

    Args:
        folder: Name of the folder.
        contents: Its files.
        folder_names: Names of all folders, which no other corpus may have.
    """
    # A folder such as `web_valid` is for one split as a whole.
    folder_split = _held_out_split_of_folder(folder)
    if folder_split is not None:
        return [_whole_folder(folder, contents, folder_split)]

    # Otherwise, find the splits that have files.
    patterns = _held_out_patterns_by_split(contents)  # such as valid → valid*
    choices = _choices_of_splits(patterns)
    splits = [split for split, choice in choices.items() if contents.chosen(choice).texts]

    # The first split has the name of the folder. It is train, or valid if no file is for train.
    # It gets all files that are not for another split.
    corpora = []
    for split in splits:
        if split == splits[0]:
            name = folder
            choice = FileChoice(exclude=_patterns_of_others(patterns, split))
        else:
            name = _free_name(f"{folder}_{split}", folder_names)
            choice = choices[split]
        corpora.append(FoundCorpus(name, folder, contents.chosen(choice), split, choice))
    return corpora


def _held_out_split_of_folder(folder: str) -> SplitName | None:
    """Return the split that a whole folder is for: "valid" for `web_valid`.

    Args:
        folder: Name of the folder.

    Returns:
        "valid" or "test"; None for a folder such as `web`, whose files may be for several splits.
    """
    # `held_out` returns the split that a name mentions, and a pattern: the name up to that word,
    # and `*`. For `web_valid` this is `web_valid*`: the name ends with the word.
    for split in SPLITS[1:]:
        if held_out(folder) == (split, f"{folder}*"):
            return split
    return None


def _held_out_patterns_by_split(contents: Contents) -> dict[SplitName, list[str]]:
    """Return the name patterns of the files of a folder that are for validation or tests.

    Args:
        contents: The files of the folder.

    Returns:
        For example {"valid": ["valid*"], "test": []}.
    """
    all_patterns = _held_out_patterns(contents)  # such as [("valid", "valid*")]
    patterns_by_split: dict[SplitName, list[str]] = {}
    for split in SPLITS[1:]:  # valid and test
        patterns_by_split[split] = [pattern for name, pattern in all_patterns if name == split]
    return patterns_by_split


def _choices_of_splits(patterns: Mapping[SplitName, Sequence[str]]) -> dict[SplitName, FileChoice]:
    """Return which files each split has: valid and test by patterns, and train all others.

    Args:
        patterns: valid and test → the name patterns of their files, such as `valid*`.

    Returns:
        train, and each split with patterns → the choice of its files.
    """
    all_patterns = itertools.chain.from_iterable(patterns.values())
    choices: dict[SplitName, FileChoice] = {}
    choices["train"] = FileChoice(exclude=tuple(all_patterns))
    for split, split_patterns in patterns.items():
        if split_patterns:
            choices[split] = FileChoice(files=tuple(split_patterns))
    return choices


def _held_out_patterns(contents: Contents) -> list[tuple[str, str]]:
    """Return the split and the name pattern of files for validation or test.

    Args:
        contents: The files of a folder.

    Returns:
        Pairs such as ("valid", "valid*"), each once, in the order of the files.
    """
    patterns = [_held_out_pattern(file.path) for file in contents.ordered]
    return list(dict.fromkeys(pattern for pattern in patterns if pattern is not None))


def _held_out_pattern(path: str) -> tuple[str, str] | None:
    """Return the split that a file is for, and the pattern of such names; None if it is for train.

    A file is for validation or test if its name, or that of a folder, has a word such as `valid`.

    Args:
        path: Path of the file below the folder of its corpus, such as "valid.jsonl".

    Returns:
        For example ("valid", "valid*").
    """
    if format_of(path) == "txt":
        # The name of a .txt file is often the title of its only document: `test.txt` need not be
        # for evaluation. So only its folders count: leave out the name.
        folder, _, _ = path.rpartition("/")
        return held_out(f"{folder}/")
    return held_out(path)


def _patterns_of_others(
    patterns: Mapping[SplitName, Sequence[str]], split: SplitName
) -> tuple[str, ...]:
    """Return the name patterns of all splits but one.

    For example, {"valid": ["valid*"], "test": ["test*"]} and "test" give ("valid*",).

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
    """Return corpora with the keys of their first lines.

    Args:
        raw: The raw folder.
        found: Its corpora.
        text_key: Key of the text of all corpora; None to look for it.
        ask: Asks the user a question with some answers; returns None if there is no answer.

    Returns:
        The same corpora, each with the key of its text and, if there is one, that of its ids.

    Raises:
        ConfigError: A corpus has no key that is certainly that of the text, and there is no answer.
    """
    return [_with_text_key(raw, corpus, text_key, ask) for corpus in found]


def _with_text_key(
    raw: Path,
    corpus: FoundCorpus,
    text_key: str | None,
    ask: Callable[[str, Sequence[str]], str | None],
) -> FoundCorpus:
    """Find out which key of a corpus's JSON lines, or which column of its tables, holds the text.

    Args:
        raw: The raw folder.
        corpus: The corpus.
        text_key: The key, if the user named it; None to look for it.
        ask: Asks the user a question with some answers; returns None if there is no answer.

    Returns:
        The corpus with its keys. The key of the text is None if its files have no keys, as plain
        text files.

    Raises:
        ConfigError: No key is certainly that of the text, and there is no answer.
    """
    keys = keys_of(raw / corpus.folder, corpus.contents)
    certain_key = keys.text  # a key such as "text", or the only one with strings; or None
    chosen_key = text_key or certain_key
    if chosen_key is None and keys.texts:
        # Several keys have strings. Offer those whose strings are not all empty.
        chosen_key = ask(f"Which key of {corpus.name} holds the text?", keys.filled)

    has_keys = bool(keys.texts) or bool(keys.others)  # keys with strings, and with other values
    if chosen_key is None and has_keys:
        first_file = raw / corpus.folder / corpus.contents.ordered[0].path
        raise _unclear_text_key_error(first_file, keys)
    return replace(corpus, keys=keys, text_key=chosen_key)


def _unclear_text_key_error(file: Path, keys: LineKeys) -> ConfigError:
    """Return the error that no key of a file is certainly that of the text.

    Args:
        file: The first file of a corpus.
        keys: The keys of its first lines, which the error lists.
    """
    return ConfigError(
        "it is not clear which key is that of the text",
        where=file,
        found=f"the keys {keys}",
        expected=(
            "a key named text or content, or a single key with a string, "
            "in at least nine of ten lines"
        ),
        remedy=(
            "name it with --text-key; join the messages of a chat, "
            "or a question and its answer, to one text first"
        ),
    )
