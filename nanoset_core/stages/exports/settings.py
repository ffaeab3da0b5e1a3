"""The section `exports` of nanoset.yaml: datasets as files of other readers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from nanoset_core.errors import ConfigError
from nanoset_core.outputs.names import CorpusName
from nanoset_core.records.rules import Section
from nanoset_core.sampling.presets import get_preset
from nanoset_core.stages.mappings.settings import NanosetSpec
from nanoset_core.stages.webdataset.settings import ContextLength

FormatName = Literal["datatrove", "olmo-core", "mds", "litdata"]
IN_SAMPLES = ("mds", "litdata")
"""Formats of samples of one length."""


@dataclass(frozen=True, slots=True)
class ExportSpec(Section):
    """A corpus or view in the file format of another library, sharing its tokens if possible."""

    of: CorpusName = field(metadata={"example": "web"})
    """The corpus or view."""
    format: FormatName = field(metadata={"example": "datatrove"})
    """Its reader: `datatrove` (.ds files, which nanotron's main reads, too), `olmo-core` (.npy
    files), `mds` (MosaicML streaming, LLM Foundry) or `litdata` (its TokensLoader)."""
    sequence_length: ContextLength | None = None
    """Tokens of a sample, for mds and litdata, which need it; readers that predict the next token
    want one more.
    """
    tokenizer_name: str | None = None
    """What the files of datatrove call the tokenizer, such as HuggingFaceTB/SmolLM3-3B: nanotron's
    main loads the tokenizer by this name; absent = tokenizer.path of nanoset.yaml as it is written
    there. Files of other formats do not name the tokenizer."""

    def broken_rules(self, where: str) -> Iterator[ConfigError]:
        """Yield an error if an export lacks the length of samples, or has one that makes no sense.

        Some formats consist of samples, which are token sequences of one length, and others do not:

            {of: web, format: mds, sequence_length: 2048}          fine
            {of: web, format: mds}                                 an error
            {of: web, format: datatrove, sequence_length: 2048}    an error

        Args:
            where: Place of the export, such as "nanoset.yaml: exports.web-mds".
        """
        if self.format in IN_SAMPLES and self.sequence_length is None:
            yield ConfigError(
                "this format has samples of one length",
                where=where,
                found=f"format: {self.format}",
                remedy="set sequence_length",
            )
        if self.format not in IN_SAMPLES and self.sequence_length is not None:
            yield ConfigError(
                "the length of samples is for the formats mds and litdata",
                where=f"{where}.sequence_length",
                found=f"format: {self.format}",
                remedy="remove it, or name one of them",
            )


def exports_for_trainer(
    settings: NanosetSpec, exports: Mapping[str, ExportSpec]
) -> dict[str, str | None]:
    """Return which export of each corpus a trainer reads, for trainers that read .ds files.

    Most trainers read .bin files. nanotron's main branch reads .ds files, which are made by exports
    of the format datatrove. For example, in nanoset.yaml:

        nanosets: {pretrain: {preset: nanotron-main, blend: {web: 0.7, code: 0.3}}}
        exports: {web-ds: {of: web, format: datatrove}}

    Then the result for `pretrain` is {"web": "web-ds", "code": None}.

    Args:
        settings: The settings of the training data, such as those of `pretrain`.
        exports: Name of an export → its settings, for all exports of nanoset.yaml.

    Returns:
        Name of each corpus → name of its first export with format datatrove, or None if it has no
        such export. Empty if the trainer reads .bin files.
    """
    if get_preset(settings.preset).dataset_format != "ds":
        return {}

    first_export: dict[str, str] = {}  # corpus → name of its first export: {"web": "web-ds"}
    for name, export in exports.items():
        if export.format == "datatrove":
            first_export.setdefault(export.of, name)
    return {corpus: first_export.get(corpus) for corpus in settings.corpora}


def reader_errors(
    file: Path, nanosets: Mapping[str, NanosetSpec], exports: Mapping[str, ExportSpec]
) -> Iterator[ConfigError]:
    """Yield an error for each nanoset whose trainer cannot read the exports of its corpora.

    If a trainer reads .ds files instead of .bin files, each corpus needs an export that makes
    these, and all of the exports must name the same tokenizer:

        web has an export, code has none                       an error
        tokenizer_name: gpt2 for web, llama for code           an error

    Args:
        file: nanoset.yaml, for messages.
        nanosets: Name → settings of a nanoset.
        exports: Name → settings of an export.
    """
    for name, nanoset in nanosets.items():
        yield from _errors_of_reader(nanoset, exports, f"{file}: nanosets.{name}")


def _errors_of_reader(
    nanoset: NanosetSpec, exports: Mapping[str, ExportSpec], where: str
) -> Iterator[ConfigError]:
    """Yield an error for each mistake in the exports that the trainer of a nanoset reads.

    Args:
        nanoset: Settings of the nanoset.
        exports: Name → settings of an export.
        where: Key of the nanoset, for messages.
    """
    tokenizer_names: set[str] = set()
    export_by_corpus = exports_for_trainer(nanoset, exports)  # None for a corpus without one
    for corpus, export_name in export_by_corpus.items():
        if export_name is None:
            yield _missing_export_error(where, nanoset.preset, corpus)
        else:
            tokenizer_names.add(str(exports[export_name].tokenizer_name))
    if len(tokenizer_names) > 1:
        yield ConfigError(
            "the trainer refuses folders of several tokenizers",
            where=where,
            found=", ".join(sorted(tokenizer_names)),
            remedy="give all the same tokenizer_name",
        )


def _missing_export_error(where: str, preset: str, corpus: str) -> ConfigError:
    """Return the error for training data that is not written in the format that the trainer reads.

    Some versions of nanotron read .ds files instead of the usual .bin and .idx. They have to be
    requested in nanoset.yaml, which the remedy shows:

        exports: {web-ds: {of: web, format: datatrove, tokenizer_name: …}}

    Args:
        where: The key of the training data in nanoset.yaml.
        preset: Name of the trainer.
        corpus: Name of the corpus (a collection of texts), or of a view, which selects some of it.
    """
    return ConfigError(
        "the trainer reads .ds files, "
        "and there is no export of this corpus or view with format datatrove",
        where=where,
        found=f"preset {preset}, {corpus}",
        remedy=(
            f"add to exports: `{corpus}-ds: {{of: {corpus}, format: datatrove, tokenizer_name: …}}`"
        ),
    )
