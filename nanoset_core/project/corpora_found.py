"""The corpora of a raw folder as a first configuration names them: what each is for, and which keys its lines have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError
from nanoset_core.project.template import Noted
from nanoset_core.records.text import format_bytes, format_count
from nanoset_core.sampling.splits import SPLITS, SplitName
from nanoset_core.text.choice import FileChoice, held_out
from nanoset_core.text.contents import Contents
from nanoset_core.text.sampling import Keys, keys_of
from nanoset_core.text.survey import RawText


@dataclass(frozen=True, slots=True)
class FoundCorpus:
    """A corpus: a folder of text, or some of its files."""

    name: str
    """Its own: that of the folder, with `_valid` or `_test` where those files are only a part of it."""
    folder: str
    """Below raw."""
    contents: Contents
    """Its files."""
    split: SplitName
    """What it is for."""
    choice: FileChoice = field(default_factory=FileChoice)
    """Which files of the folder."""
    keys: Keys = field(default_factory=Keys)
    """What its lines have."""
    text_key: str | None = None
    """Where the text is; None where no line tells."""

    def settings(self, text_key: str, id_key: str) -> dict[str, Any]:
        """Return its section of `corpora`: what differs from a corpus of these keys, that is all of its folder."""
        values: dict[str, Any] = {} if self.name == self.folder else {"folder": self.folder}
        if self.text_key not in (None, text_key):
            values["text_key"] = Noted(self.text_key, f"Its first lines have {self.keys}.")
        if self.keys.id not in (None, id_key):
            values["id_key"] = self.keys.id
        found = f"{format_count(len(self.contents.texts), 'file')}, {format_bytes(self.contents.size)}"
        if self.choice.files is not None:
            values["files"] = Noted(list(self.choice.files), f"By their names {self.split} data: {found}.")
        if self.choice.exclude:
            values["exclude"] = Noted(list(self.choice.exclude), f"Held out of {self.split} data, which is {found}.")
        return values


def divided(text: RawText) -> list[FoundCorpus]:
    """Return the corpora of the raw folder; files for validation and tests, by their names, are corpora of their own.

    Where there is nothing else, such files are for training.
    """
    found = [part for name, contents in text.corpora.items() for part in _divided(name, contents, [*text.corpora])]
    if any(part.split == "train" for part in found):
        return found
    return [FoundCorpus(name, name, contents, "train") for name, contents in text.corpora.items()]


def _divided(name: str, contents: Contents, taken: Sequence[str]) -> Iterator[FoundCorpus]:
    for split in SPLITS[1:]:
        if held_out(name) == (split, f"{name}*"):  # it ends in the split's name
            yield FoundCorpus(name, name, contents, split)
            return
    found = dict.fromkeys(filter(None, (held_out(file.path) for file in contents.ordered)))
    patterns = {split: [pattern for kind, pattern in found if kind == split] for split in SPLITS[1:]}
    held = [pattern for some in patterns.values() for pattern in some]
    choices: dict[SplitName, FileChoice] = {"train": FileChoice(None, tuple(held))}
    choices |= {split: FileChoice(tuple(some)) for split, some in patterns.items() if some}
    parts = [(split, choice) for split, choice in choices.items() if contents.chosen(choice).texts]
    whole = parts[0][0]  # which the folder's own corpus is for
    for split, choice in parts:
        own, others = name, [pattern for other, some in patterns.items() if other != split for pattern in some]
        if split == whole:
            choice = FileChoice(None, tuple(others))
        else:
            own = _free_name(f"{name}_{split}", taken)
        yield FoundCorpus(own, name, contents.chosen(choice), split, choice)


def _free_name(name: str, taken: Sequence[str]) -> str:
    return _free_name(f"{name}_files", taken) if name in taken else name


def with_keys(
    raw: Path, found: Sequence[FoundCorpus], text_key: str | None, ask: Callable[[str, Sequence[str]], str | None]
) -> list[FoundCorpus]:
    """Return corpora with what their first lines have.

    Raises:
        ConfigError: a corpus has no key that surely holds the text, none is given, and there is no answer.
    """
    return [_with_keys(raw, corpus, text_key, ask) for corpus in found]


def _with_keys(
    raw: Path, corpus: FoundCorpus, given: str | None, ask: Callable[[str, Sequence[str]], str | None]
) -> FoundCorpus:
    keys = keys_of(raw / corpus.folder, corpus.contents)
    chosen = given or keys.text
    if chosen is None and keys.texts:
        chosen = ask(f"Which key of {corpus.name} holds the text?", keys.filled)
    if chosen is None and (keys.texts or keys.others):
        raise ConfigError(
            "no key is surely that of the text",
            where=raw / corpus.folder / corpus.contents.ordered[0].path,
            found=f"the keys {keys}",
            expected="a key named text or content, or one string alone, in nine lines of ten at least",
            remedy="name it with --text-key; of a chat, or a question and its answer, write one text first",
        )
    return replace(corpus, keys=keys, text_key=chosen)
