"""Settings of exports: datasets as files of other readers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from nanoset_core.errors import ConfigError, raised
from nanoset_core.outputs.names import check_asset_name, check_corpus_name
from nanoset_core.records.parsing import broken
from nanoset_core.sampling.presets import get_preset
from nanoset_core.stages.mappings.settings import NanosetSpec
from nanoset_core.stages.webdataset.settings import ContextLength

FormatName = Literal["datatrove", "olmo-core", "mds", "litdata"]
IN_SAMPLES = ("mds", "litdata")

_TEXTS = {
    "length": ("this format has samples of one length", "set sequence_length"),
    "no length": ("the length of samples is for the formats mds and litdata", "remove it, or name one of them"),
}


@dataclass(frozen=True, slots=True)
class ExportSpec:
    """The dataset of a corpus or view as files of another reader, which share its tokens where they can."""

    of: str = field(metadata={"example": "web"})
    """The corpus or view."""
    format: FormatName = field(metadata={"example": "datatrove"})
    """Its reader: `datatrove` (.ds files, which nanotron's main reads, too), `olmo-core` (.npy files), `mds` (MosaicML
    streaming, LLM Foundry) or `litdata` (its TokensLoader)."""
    sequence_length: ContextLength | None = None
    """Tokens of a sample, for mds and litdata, which need it; readers that predict the next token want one more."""
    tokenizer_name: str | None = None
    """What the files call the tokenizer, such as HuggingFaceTB/SmolLM3-3B: nanotron's main loads the tokenizer by the
    name in datatrove's metadata; absent = tokenizer.path of nanoset.yaml as it is written there."""


def export_errors(file: Path, exports: Mapping[str, ExportSpec]) -> Iterator[ConfigError]:
    """Yield an error for each export whose name, or whose corpus's name, cannot be one."""
    for name, spec in exports.items():
        where = f"{file}: exports.{name}"
        yield from raised(check_asset_name, name, where)
        yield from raised(check_corpus_name, spec.of, f"{where}.of")
        is_sampled, has_length = spec.format in IN_SAMPLES, spec.sequence_length is not None
        yield from broken(
            f"{file}: ",
            _TEXTS,
            (is_sampled and not has_length, "length", f"exports.{name}", f"format: {spec.format}"),
            (has_length and not is_sampled, "no length", f"exports.{name}.sequence_length", f"format: {spec.format}"),
        )


def exports_read(nanoset: NanosetSpec, exports: Mapping[str, ExportSpec]) -> dict[str, str | None]:
    """Return corpus or view of a nanoset → the export that its trainer reads, None where there is none; {} for .bin."""
    if not get_preset(nanoset.preset).windows:
        return {}
    of = {spec.of: name for name, spec in reversed([*exports.items()]) if spec.format == "datatrove"}
    return {corpus: of.get(corpus) for corpus in nanoset.corpora}


def reader_errors(
    file: Path, nanosets: Mapping[str, NanosetSpec], exports: Mapping[str, ExportSpec]
) -> Iterator[ConfigError]:
    """Yield an error for each nanoset whose trainer reads exports that there are not, or of several tokenizers."""
    for name, nanoset in nanosets.items():
        read, where = exports_read(nanoset, exports), f"{file}: nanosets.{name}"
        for corpus in (corpus for corpus, export in read.items() if export is None):
            what = "the trainer reads .ds files, and there is no export of this corpus or view with format datatrove"
            remedy = f"add to exports: `{corpus}-ds: {{of: {corpus}, format: datatrove, tokenizer_name: …}}`"
            yield ConfigError(what, where=where, found=f"preset {nanoset.preset}, {corpus}", remedy=remedy)
        named = {str(exports[export].tokenizer_name) for export in read.values() if export is not None}
        if len(named) > 1:
            what, remedy = "the trainer refuses folders of several tokenizers", "give all the same tokenizer_name"
            yield ConfigError(what, where=where, found=", ".join(sorted(named)), remedy=remedy)
