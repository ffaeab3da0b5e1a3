"""How the key `packing` of nanosets and webdatasets becomes packs of their corpora, and the checks of packs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from nanoset_core.config.exports import IN_SAMPLES, ExportSpec
from nanoset_core.config.nanoset import BlendSpec, NanosetSpec
from nanoset_core.config.packing import DEFAULT_PACK_SEED, PackingSpec, PacksSpec
from nanoset_core.config.tokenization import TokenizerSpec
from nanoset_core.config.webdataset import WebdatasetSpec
from nanoset_core.errors import ConfigError, raised
from nanoset_core.mapping.mixture import MixPart, Share
from nanoset_core.mapping.presets import get_preset
from nanoset_core.outputs.names import check_corpus_name
from nanoset_core.serialization.parsing import FrozenDict, Rule, broken

_TEXTS = {
    "of packs": ("packs are of a corpus or view", "name the one that these are of"),
    "view": ("a view is of a corpus or of another view", "name one, and make packs of the view"),
    "name": ("packs and a corpus or view share a name", "rename the packs"),
    "pad": ("packs need a padding token", 'name it, for example pad: "<|padding|>", or an end-of-document token'),
    "windows": (
        "this trainer reads windows of one token more than its sequence length, which would drift across packs",
        "remove `packing`, or name the corpus instead of its packs",
    ),
    "length": (
        "packs of another length than the samples, which would begin anywhere in them",
        "make packs of this length, or use the key `packing`, which does",
    ),
    "datatrove": (
        "readers of .ds files read windows of one token more than a sequence, which would drift across packs",
        "name the corpus or view itself, or another format",
    ),
    "tokshuf": (
        "the preset tokshuf cuts each file on its own, which packs have not",
        "remove `packing`, or the preset",
    ),
    "carry": (
        "tail: carry lets contexts begin in the corpus before, which would shift those after it against packs",
        "set tail to drop, or give all corpora packs",
    ),
}
"""Rule of packs → what is wrong, and the remedy; see `broken`."""


class Packed(NamedTuple):
    """Settings in which the key `packing` was put into effect."""

    nanosets: FrozenDict[str, NanosetSpec]
    webdatasets: FrozenDict[str, WebdatasetSpec]
    packs: FrozenDict[str, PacksSpec]


def with_packs(
    nanosets: Mapping[str, NanosetSpec], webdatasets: Mapping[str, WebdatasetSpec], packs: Mapping[str, PacksSpec]
) -> Packed:
    """Return settings that read packs in place of the corpora of nanosets and webdatasets with the key `packing`.

    Equal packs are made once; where nanoset.yaml names such, they are these.
    """
    known, found = {spec: name for name, spec in packs.items()}, dict(packs)

    def namer(packing: PackingSpec, length: int) -> Callable[[str], str]:
        def name(corpus: str) -> str:
            if corpus in packs:
                return corpus
            spec = PacksSpec(corpus, length, packing.long, packing.tail, packing.seed)
            if spec not in known:
                known[spec] = own = _name(spec)
                found[own] = spec
            return known[spec]

        return name

    sets = {name: _nanoset(spec, namer) for name, spec in nanosets.items()}
    tars = {name: _webdataset(spec, namer) for name, spec in webdatasets.items()}
    return Packed(FrozenDict(sets), FrozenDict(tars), FrozenDict(found))


_Namer = Callable[[PackingSpec, int], Callable[[str], str]]


def _name(spec: PacksSpec) -> str:
    parts = [spec.of, "packs", str(spec.length)]
    parts += [word for word in (spec.long, spec.tail) if word not in ("fragment", "pad")]
    return "-".join(parts + ([] if spec.seed == DEFAULT_PACK_SEED else [str(spec.seed)]))


def _nanoset(spec: NanosetSpec, namer: _Namer) -> NanosetSpec:
    if spec.packing is None:
        return spec
    name = namer(spec.packing, spec.sequence_length)
    limits = spec.max_epochs
    if isinstance(limits, Mapping):
        limits = FrozenDict((name(corpus), limit) for corpus, limit in limits.items())
    found = replace(
        spec,
        blend=_renamed(spec.blend, name),
        mix=None if spec.mix is None else _in_mix(spec.mix, name),
        blend_per_split=FrozenDict((split, _renamed(blend, name)) for split, blend in spec.blend_per_split.items()),
        max_epochs=limits,
    )
    for key, value in (("span", spec.span), ("after", spec.after), ("earlier", tuple(map(name, spec.earlier)))):
        object.__setattr__(found, key, value)
    return found


def _in_mix(mix: Mapping[str, MixPart | Share], name: Callable[[str], str]) -> FrozenDict[str, MixPart | Share]:
    found: dict[str, MixPart | Share] = {}
    for key, part in mix.items():
        if isinstance(part, MixPart) and part.mix is not None:
            found[key] = replace(part, mix=_in_mix(part.mix, name))
        else:
            found[name(key)] = part
    return FrozenDict(found)


def _renamed(blend: BlendSpec | None, name: Callable[[str], str]) -> BlendSpec | None:
    if blend is None or isinstance(blend, str):
        return blend and name(blend)
    if isinstance(blend, Mapping):
        return FrozenDict((name(corpus), weight) for corpus, weight in blend.items())
    return tuple(map(name, blend))


def _webdataset(spec: WebdatasetSpec, namer: _Namer) -> WebdatasetSpec:
    if spec.packing is None:
        return spec
    name, corpora = namer(spec.packing, spec.row_tokens), spec.corpora
    if isinstance(corpora, Mapping):
        return replace(spec, corpora=FrozenDict((name(corpus), number) for corpus, number in corpora.items()))
    return replace(spec, corpora=tuple(map(name, corpora)))


def pack_errors(
    file: Path, packs: Mapping[str, PacksSpec], views: Mapping[str, str], corpora: Collection[str]
) -> Iterator[ConfigError]:
    """Yield an error for each of the packs that cannot be; views: name → what it is of."""
    for name, spec in packs.items():
        where = f"{file}: packs.{name}"
        yield from raised(check_corpus_name, name, where)
        yield from raised(check_corpus_name, spec.of, f"{where}.of")
        is_taken = name in views or name in corpora
        yield from broken(
            where, _TEXTS, (spec.of in packs, "of packs", ".of", spec.of), (is_taken, "name", ".of", name)
        )
    for name, of in views.items():
        yield from broken(f"{file}: views.{name}", _TEXTS, (of in packs, "view", ".of", of))


def reading_errors(
    file: Path,
    packs: Mapping[str, PacksSpec],
    tokenizer: TokenizerSpec,
    nanosets: Mapping[str, NanosetSpec],
    webdatasets: Mapping[str, WebdatasetSpec],
    exports: Mapping[str, ExportSpec],
) -> Iterator[ConfigError]:
    """Yield an error for each nanoset, webdataset or export whose samples would not be packs."""
    packing = [spec.packing for spec in nanosets.values()] + [spec.packing for spec in webdatasets.values()]
    has_pad = tokenizer.pad is not None or tokenizer.eod is not None
    yield from broken(f"{file}: ", _TEXTS, (bool(packs or any(packing)) and not has_pad, "pad", "tokenizer.pad", None))
    for name, nanoset in nanosets.items():
        where, drifts = f"{file}: nanosets.{name}", get_preset(nanoset.preset).windows
        found = f"preset {nanoset.preset}"
        yield from broken(where, _TEXTS, (nanoset.packing is not None and drifts, "windows", ".packing", found))
        for corpus in nanoset.corpora:
            yield from broken(where, _TEXTS, (corpus in packs and drifts, "windows", f": {corpus}", found))
            yield from broken(where, _TEXTS, _length(packs, corpus, nanoset.sequence_length))
    for name, webdataset in webdatasets.items():
        where, own = f"{file}: webdatasets.{name}", [corpus for corpus in webdataset.names if corpus in packs]
        is_packed, some = webdataset.packing is not None, bool(own)
        yield from broken(
            where,
            _TEXTS,
            ((some or is_packed) and webdataset.preset == "tokshuf", "tokshuf", ".preset", "tokshuf"),
            (
                some and not is_packed and len(own) < len(webdataset.names) and webdataset.tail == "carry",
                "carry",
                ".tail",
                own,
            ),
            *(_length(packs, corpus, webdataset.row_tokens) for corpus in own),
        )
    for name, export in exports.items():
        if export.of in packs:
            where, is_cut = f"{file}: exports.{name}", export.format in IN_SAMPLES
            yield from broken(where, _TEXTS, (export.format == "datatrove", "datatrove", ".of", export.of))
            if is_cut and export.sequence_length is not None:
                yield from broken(where, _TEXTS, _length(packs, export.of, export.sequence_length))


def _length(packs: Mapping[str, PacksSpec], corpus: str, length: int) -> Rule:
    is_other = corpus in packs and packs[corpus].length != length
    return (
        is_other,
        "length",
        f": {corpus}",
        f"{packs[corpus].length:,} tokens, samples of {length:,}" if is_other else None,
    )
