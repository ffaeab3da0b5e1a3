"""The corpora of nanoset.yaml that differ from the others: another key of the text, or a second one of a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nanoset_core.config.tokenization import check_text_key
from nanoset_core.outputs.names import check_corpus_name


@dataclass(frozen=True, slots=True)
class CorpusSpec:
    """How one corpus differs from the others; every folder below `raw` is a corpus, named here or not."""

    folder: str | None = None
    """Folder below `raw` that it is read from; absent = the one of its own name."""
    text_key: str | None = None
    """Key of its text; absent = `documents.text_key`."""
    id_key: str | None = None
    """Key of its documents' own ids; absent = `documents.id_key`."""


def check_corpus(file: Path, name: str, spec: CorpusSpec) -> None:
    """Check the names of a corpus and of its folder, and its text key.

    Raises:
        ConfigError: one of them cannot be.
    """
    where = f"{file}: corpora.{name}"
    check_corpus_name(name, where)
    if spec.folder is not None:
        check_corpus_name(spec.folder, f"{where}.folder")
    if spec.text_key is not None:
        check_text_key(spec.text_key, f"{where}.text_key")
