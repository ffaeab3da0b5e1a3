"""How the key `packing` of nanosets and webdatasets becomes packs of their corpora, and the checks of packs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from nanoset_core.errors import ConfigError, raised
from nanoset_core.outputs.names import check_corpus_name
from nanoset_core.records.parsing import FrozenDict, Rule, broken
from nanoset_core.sampling.mixture import MixPart, Share
from nanoset_core.sampling.presets import get_preset
from nanoset_core.stages.exports.settings import IN_SAMPLES, ExportSpec
from nanoset_core.stages.mappings.settings import BlendSpec, NanosetSpec, corpora_of
from nanoset_core.stages.packs.settings import DEFAULT_PACK_SEED, PackingSpec, PacksSpec
from nanoset_core.stages.shards.settings import TokenizerSpec
from nanoset_core.stages.webdataset.settings import WebdatasetSpec

_TEXTS = {
    "of packs": ("packs are of a corpus or view", "name the one that these are of"),
    "view": ("a view is of a corpus or of another view", "name one, and make packs of the view"),
    "name": ("packs and a corpus or view share a name", "rename the packs"),
    "other": ("`packing` makes packs of this name, and these are others", "rename these"),
    "group": ("a group is named like the packs of a corpus beside it", "rename the group"),
    "both": ("a corpus is named beside its packs", "name one of them"),
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
    file: Path,
    nanosets: Mapping[str, NanosetSpec],
    webdatasets: Mapping[str, WebdatasetSpec],
    packs: Mapping[str, PacksSpec],
) -> Packed:
    """Return settings that read packs in place of the corpora of nanosets and webdatasets with the key `packing`.

    Equal packs are made once; where nanoset.yaml names such, they are these. ConfigError where it names others by the
    name of these, or a corpus beside its packs.
    """
    known, found = {spec: name for name, spec in packs.items()}, dict(packs)

    def namer(where: str, packing: PackingSpec | None, length: int) -> _Names:
        def name(corpus: str) -> str:
            if corpus in packs or packing is None:
                return corpus
            spec = PacksSpec(corpus, length, packing.long, packing.tail, packing.seed)
            if spec not in known:
                known[spec] = own = _name(spec)
                _check(f"{file}: packs.", own in packs, "other", own, _settings(packs.get(own)))
                found[own] = spec
            return known[spec]

        def names(corpora: Iterable[str]) -> tuple[str, ...]:
            given = tuple(corpora)
            own = tuple(map(name, given))
            _check(f"{file}: {where}", len(set(own)) < len(own), "both", "", ", ".join(given))
            return own

        return names

    sets = {
        name: _nanoset(spec, namer(f"nanosets.{name}", spec.packing, spec.sequence_length), f"{file}: nanosets.{name}")
        for name, spec in nanosets.items()
    }
    tars = {
        name: _webdataset(spec, namer(f"webdatasets.{name}", spec.packing, spec.row_tokens))
        for name, spec in webdatasets.items()
    }
    return Packed(FrozenDict(sets), FrozenDict(tars), FrozenDict(found))


_Names = Callable[[Iterable[str]], tuple[str, ...]]
"""Corpora of one blend → what stands for them."""


def _check(where: str, *rule: Any) -> None:
    for error in broken(where, _TEXTS, rule):
        raise error


def _name(spec: PacksSpec) -> str:
    parts = [spec.of, "packs", str(spec.length)]
    parts += [word for word in (spec.long, spec.tail) if word not in ("fragment", "pad")]
    return "-".join(parts + ([] if spec.seed == DEFAULT_PACK_SEED else [str(spec.seed)]))


def _settings(spec: PacksSpec | None) -> str:
    return ", ".join(f"{key}: {value}" for key, value in asdict(spec).items()) if spec else ""


def _nanoset(spec: NanosetSpec, names: _Names, where: str) -> NanosetSpec:
    if spec.packing is None:
        return spec
    limits = spec.max_epochs
    if isinstance(limits, Mapping):
        limits = FrozenDict(zip(names(limits), limits.values(), strict=True))
    found = replace(
        spec,
        blend=_renamed(spec.blend, names),
        mix=None if spec.mix is None else _in_mix(spec.mix, names, f"{where}.mix"),
        blend_per_split=FrozenDict((split, _renamed(blend, names)) for split, blend in spec.blend_per_split.items()),
        max_epochs=limits,
    )
    earlier = tuple(own for corpus in spec.earlier for own in names([corpus]))
    for key, value in (("span", spec.span), ("after", spec.after), ("earlier", earlier)):
        object.__setattr__(found, key, value)
    return found


def _in_mix(mix: Mapping[str, MixPart | Share], names: _Names, where: str) -> FrozenDict[str, MixPart | Share]:
    found: dict[str, MixPart | Share] = {}
    for key, part in mix.items():
        own = key
        if isinstance(part, MixPart) and part.mix is not None:
            part = replace(part, mix=_in_mix(part.mix, names, f"{where}.{key}"))
        else:
            [own] = names([key])
        _check(where, own in found, "group", "", own)
        found[own] = part
    return FrozenDict(found)


def _renamed(blend: BlendSpec | None, names: _Names) -> BlendSpec | None:
    if isinstance(blend, Mapping):
        return FrozenDict(zip(names(blend), blend.values(), strict=True))
    found = names(corpora_of(blend))
    return found[0] if isinstance(blend, str) else found or None


def _webdataset(spec: WebdatasetSpec, names: _Names) -> WebdatasetSpec:
    own = names(spec.names)
    numbers = spec.corpora
    return replace(
        spec, corpora=FrozenDict(zip(own, numbers.values(), strict=True)) if isinstance(numbers, Mapping) else own
    )


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
