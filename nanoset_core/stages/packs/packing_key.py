"""The key `packing` of nanosets and webdatasets, and what readers of packs require.

`packing` is a shorthand. A nanoset with

    blend: {web: 0.8, code: 0.2}
    sequence_length: 2048
    packing: {kind: best_fit}

reads the packs `web-packs-2048` and `code-packs-2048` in place of the corpora. `resolve_packing`
adds these packs to the project's, and puts their names where the corpora were named. Everything
after that sees packs like any dataset.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from nanoset_core.errors import ConfigError
from nanoset_core.records.frozen import FrozenDict
from nanoset_core.sampling.mix_tree import MixPart, Share
from nanoset_core.sampling.presets import get_preset
from nanoset_core.sampling.splits import SplitName
from nanoset_core.stages.exports.settings import IN_SAMPLES, ExportSpec
from nanoset_core.stages.mappings.mix_settings import Mix
from nanoset_core.stages.mappings.resolved import ResolvedNanoset
from nanoset_core.stages.mappings.settings import BlendSpec, NanosetSpec
from nanoset_core.stages.packing import DEFAULT_SEED, PackingSpec
from nanoset_core.stages.packs.settings import PacksSpec
from nanoset_core.stages.shards.settings import TokenizerSpec
from nanoset_core.stages.webdataset.settings import WebdatasetSpec

_EpochLimits = float | Mapping[str, float] | None
"""The setting `max_epochs`: how often a corpus may be read, for all corpora or for each."""


class ResolvedPacking(NamedTuple):
    """Sections of nanoset.yaml in which the key `packing` has been put into effect."""

    nanosets: FrozenDict[str, ResolvedNanoset]
    """Nanosets by name, with names of packs in place of corpora."""
    webdatasets: FrozenDict[str, WebdatasetSpec]
    """Webdatasets by name, with names of packs in place of corpora."""
    packs: FrozenDict[str, PacksSpec]
    """All packs by name: those of the section `packs`, and those that the key requests."""


def resolve_packing(
    file: Path,
    nanosets: Mapping[str, ResolvedNanoset],
    webdatasets: Mapping[str, WebdatasetSpec],
    packs: Mapping[str, PacksSpec],
) -> ResolvedPacking:
    """Let nanosets and webdatasets with the key `packing` read packs instead of corpora.

    Packs are datasets of sequences of one length, which are filled with the documents of a corpus.

    Args:
        file: nanoset.yaml, for messages.
        nanosets: Nanosets by name.
        webdatasets: Webdatasets by name.
        packs: Packs under the key `packs`, by name. They are used if their settings are the same.

    Returns:
        All three sections with names of packs in place of corpora.

    Raises:
        ConfigError: Packs with other settings have the name that is needed, or a blend names a
            corpus as well as its packs.
    """
    # The packs so far. Each nanoset and webdataset below adds those that it needs.
    names = _PackNames(file, packs)

    resolved_nanosets = {}
    for name, nanoset in nanosets.items():
        where = f"{file}: nanosets.{name}"
        resolved_nanosets[name] = _resolve_nanoset(nanoset, names, where)

    resolved_webdatasets = {}
    for name, webdataset in webdatasets.items():
        where = f"{file}: webdatasets.{name}"
        resolved_webdatasets[name] = _resolve_webdataset(webdataset, names, where)

    return ResolvedPacking(
        nanosets=FrozenDict(resolved_nanosets),
        webdatasets=FrozenDict(resolved_webdatasets),
        packs=FrozenDict(names.packs),
    )


@dataclass
class _PackNames:
    """Collects the packs of a project while its key `packing` is resolved.

    Each request for the packs of a corpus adds them to `packs`, unless they are there.
    """

    file: Path
    """nanoset.yaml, for messages."""
    written: Mapping[str, PacksSpec]
    """Packs under the key `packs` of nanoset.yaml, by name."""
    packs: dict[str, PacksSpec] = field(init=False)
    """All packs by name."""
    name_by_spec: dict[PacksSpec, str] = field(init=False)
    """The settings of all packs → their name."""

    def __post_init__(self) -> None:
        self.packs = dict(self.written)
        self.name_by_spec = {spec: name for name, spec in self.written.items()}

    def of_corpora(
        self, corpora: Iterable[str], packing: PackingSpec, length: int, where: str
    ) -> tuple[str, ...]:
        """Return the names of the packs that replace the corpora of one blend.

        For example, `["web", "code"]` → `("web-packs-2048", "code-packs-2048")`.

        Args:
            corpora: Names of the corpora, views or packs.
            packing: How their documents are packed.
            length: Tokens of a pack.
            where: Key of nanoset.yaml with the blend, for messages.

        Returns:
            A name for each corpus, in their order.

        Raises:
            ConfigError: A corpus is named as well as its packs.
        """
        corpora = tuple(corpora)
        names = tuple(self.of_corpus(corpus, packing, length) for corpus in corpora)
        # All corpora of a blend differ, so equal names are those of packs and of their own corpus.
        if len(set(names)) < len(names):
            raise ConfigError(
                "a corpus is named as well as its packs",
                where=where,
                found=", ".join(corpora),
                remedy="name one of them",
            )
        return names

    def of_corpus(self, corpus: str, packing: PackingSpec, length: int) -> str:
        """Return the name of the packs that replace a corpus or view.

        The packs are added to those of the project, unless it has packs with these settings.

        Args:
            corpus: Name of the corpus or view; or of packs, which is returned as it is.
            packing: How the documents are packed.
            length: Tokens of a pack.

        Raises:
            ConfigError: Packs with other settings have the name.
        """
        if corpus in self.written:  # packs that the user has written under the key `packs`
            return corpus
        spec = PacksSpec(corpus, length, packing.long, packing.tail, packing.seed)
        if spec not in self.name_by_spec:  # neither written by the user, nor requested before
            self._add(spec)
        return self.name_by_spec[spec]

    def _add(self, spec: PacksSpec) -> None:
        """Add packs to those of the project, under a name such as `web-packs-2048`.

        Args:
            spec: The settings, which no packs of the project have.

        Raises:
            ConfigError: In nanoset.yaml, the user has given this name to packs with other settings.
        """
        name = _default_name(spec)
        if name in self.written:
            settings_of_user = asdict(self.written[name])
            raise ConfigError(
                "`packing` makes packs of this name with other settings",
                where=f"{self.file}: packs.{name}",
                found=", ".join(f"{key}: {value}" for key, value in settings_of_user.items()),
                remedy="rename the packs that are written here",
            )
        self.packs[name] = spec
        self.name_by_spec[spec] = name


def _default_name(spec: PacksSpec) -> str:
    """Return a name for packs, such as web-packs-2048-truncate.

    It contains all settings that differ from the defaults.

    Args:
        spec: The settings of the packs.
    """
    # The defaults are those of `PackingSpec`.
    words = [spec.of, "packs", str(spec.length)]
    if spec.long != "fragment":
        words.append(spec.long)
    if spec.tail != "pad":
        words.append(spec.tail)
    if spec.seed != DEFAULT_SEED:
        words.append(str(spec.seed))
    return "-".join(words)


def _resolve_nanoset(spec: ResolvedNanoset, names: _PackNames, where: str) -> ResolvedNanoset:
    """Put packs in place of the corpora of a nanoset, if it has the key `packing`.

    Args:
        spec: The nanoset's section of nanoset.yaml.
        names: The packs of the project, to which those of the nanoset are added.
        where: Key of the nanoset, for messages.

    Returns:
        The section with the names of packs everywhere that it had the names of corpora.
    """
    if spec.packing is None:
        return spec
    reader = _PackReader(names, spec.packing, spec.sequence_length, where)
    return replace(
        spec,
        max_epochs=reader.resolve_limits(spec.max_epochs),
        mix=reader.resolve_mix(spec.mix, f"{where}.mix"),
        blend_per_split=reader.resolve_blends(spec.blend_per_split),
        # Corpora of the earlier phases of a training run, whose samples this nanoset continues with
        earlier_corpora=tuple(map(reader.pack_of, spec.earlier_corpora)),
        blend=reader.resolve_blend(spec.blend),
    )


@dataclass(frozen=True, slots=True)
class _PackReader:
    """Replaces corpora by packs in the settings of a nanoset with the key `packing`.

    Its methods take a setting that names corpora, and return it with the names of their packs:
    `{web: 0.8, code: 0.2}` → `{web-packs-2048: 0.8, code-packs-2048: 0.2}`. They also add these
    packs to those of the project.
    """

    names: _PackNames
    """The packs of the project so far."""
    packing: PackingSpec
    """The key."""
    length: int
    """Tokens of a sample, and so of a pack."""
    where: str
    """Key of the nanoset, for messages."""

    def packs_of(self, corpora: Iterable[str]) -> tuple[str, ...]:
        """Return the names of the packs that replace the corpora of one blend, in their order.

        Args:
            corpora: Names of the corpora, all different.

        Raises:
            ConfigError: A corpus is named as well as its packs.
        """
        return self.names.of_corpora(corpora, self.packing, self.length, self.where)

    def pack_of(self, corpus: str) -> str:
        """Return the name of the packs that replace one corpus.

        Args:
            corpus: Name of the corpus, such as "web" for "web-packs-2048".

        Raises:
            ConfigError: Packs with other settings have the name.
        """
        return self.names.of_corpus(corpus, self.packing, self.length)

    def with_packs(self, values: Mapping[str, float]) -> FrozenDict[str, float]:
        """Return a value for each of the packs, given a value for each corpus.

        Args:
            values: Name of a corpus → its weight or limit.

        Raises:
            ConfigError: A corpus is named as well as its packs.
        """
        return FrozenDict(zip(self.packs_of(values), values.values(), strict=True))

    def resolve_limits(self, max_epochs: _EpochLimits) -> _EpochLimits:
        """Put packs in place of the corpora of the setting `max_epochs`.

        Args:
            max_epochs: How often each corpus may be read, such as `{"web": 4}`; or one limit for
                all corpora, or None.

        Returns:
            For example, `{"web-packs-2048": 4}`. A setting that names no corpus is unchanged.

        Raises:
            ConfigError: A corpus is named as well as its packs.
        """
        if isinstance(max_epochs, Mapping):
            return self.with_packs(max_epochs)
        return max_epochs

    def resolve_blend(self, blend: BlendSpec | None) -> BlendSpec | None:
        """Put packs in place of the corpora of a blend, which says how much of each corpus is read.

        Args:
            blend: A name, names, or a weight for each name; None if the nanoset has no blend.

        Returns:
            A blend of the same form: "web" → "web-packs-2048".

        Raises:
            ConfigError: A corpus is named as well as its packs.
        """
        if blend is None:
            return None
        if isinstance(blend, str):  # such as "web"
            return self.pack_of(blend)
        if isinstance(blend, Mapping):  # such as {"web": 0.8, "code": 0.2}
            return self.with_packs(blend)
        return self.packs_of(blend) or None  # such as ("web", "code"); no names are no blend

    def resolve_blends(
        self, blend_per_split: Mapping[SplitName, BlendSpec | None]
    ) -> FrozenDict[SplitName, BlendSpec | None]:
        """Put packs in place of the corpora of each split's blend.

        Args:
            blend_per_split: Split, such as "train" → its blend, or None.

        Returns:
            Split → its blend with names of packs, or None.

        Raises:
            ConfigError: A corpus is named as well as its packs.
        """
        resolved: dict[SplitName, BlendSpec | None] = {}
        for split, blend in blend_per_split.items():
            resolved[split] = self.resolve_blend(blend)
        return FrozenDict(resolved)

    def resolve_mix(self, mix: Mix | None, where: str) -> Mix | None:
        """Put packs in place of the corpora of a mixture.

        A mixture gives each corpus a share. It can contain groups with a mixture of their own, such
        as `rest` in `{web: 2, rest: {mix: {code: 1, maths: 3}}}`. Names of groups do not change.

        Args:
            mix: Name of a corpus or group → its share, alone or with other settings; None if the
                nanoset has no mixture.
            where: Key of nanoset.yaml with the mixture, for messages.

        Returns:
            Name of packs or of a group → the same share and settings.

        Raises:
            ConfigError: A group has the name of packs.
        """
        if mix is None:
            return None
        resolved: dict[str, MixPart | Share] = {}
        for name, part in mix.items():
            if isinstance(part, MixPart) and part.mix is not None:  # a group
                new_name = name
                part = replace(part, mix=self.resolve_mix(part.mix, f"{where}.{name}"))
            else:
                new_name = self.pack_of(name)

            # A user may have named a group `web-packs-2048`, as the packs of `web` are named.
            if new_name in resolved:
                raise ConfigError(
                    "a group has the same name as the packs of a corpus in the same mixture",
                    where=where,
                    found=new_name,
                    remedy="rename the group",
                )
            resolved[new_name] = part
        return FrozenDict(resolved)


def _resolve_webdataset(spec: WebdatasetSpec, names: _PackNames, where: str) -> WebdatasetSpec:
    """Return a webdataset with packs in place of corpora, if it has the key `packing`.

    Packs are samples of full length, into which the documents of a corpus are packed. For example,
    `corpora: {web: 0.8, code: 0.2}` becomes `{web-packs-2048: 0.8, code-packs-2048: 0.2}`.

    Args:
        spec: The webdataset's section of nanoset.yaml.
        names: The packs of the project, to which those of the webdataset are added.
        where: Key of the webdataset, for messages.

    Raises:
        ConfigError: A corpus is named as well as its packs.
    """
    if spec.packing is None:
        return spec
    # This also adds the packs to those of the project.
    pack_names = names.of_corpora(spec.names, spec.packing, spec.row_tokens, where)
    if isinstance(spec.corpora, Mapping):  # name of a corpus → weight
        weights = spec.corpora.values()
        return replace(spec, corpora=FrozenDict(zip(pack_names, weights, strict=True)))
    return replace(spec, corpora=pack_names)


def pack_errors(
    file: Path, packs: Mapping[str, PacksSpec], views: Mapping[str, str], corpora: Collection[str]
) -> Iterator[ConfigError]:
    """Yield an error for each of the packs whose name or source is wrong.

    Packs are made from a corpus, or from a view of one, and not from other packs.

    Args:
        file: nanoset.yaml, for messages.
        packs: The packs of the project, by name: datasets that are made from a corpus or view.
        views: Name of each view → the corpus or view that it is of.
        corpora: Names under the key `corpora`.
    """
    for name, spec in packs.items():
        where = f"{file}: packs.{name}.of"
        if spec.of in packs:
            yield ConfigError(
                "packs are made from a corpus or view",
                where=where,
                found=spec.of,
                remedy="name the corpus or view that these packs are made from",
            )
        if name in views or name in corpora:
            yield ConfigError(
                "packs and a corpus or view share a name",
                where=where,
                found=name,
                remedy="rename the packs",
            )
    yield from _views_of_packs(file, packs, views)


def _views_of_packs(
    file: Path, packs: Mapping[str, PacksSpec], views: Mapping[str, str]
) -> Iterator[ConfigError]:
    """Yield an error for each view that selects packs instead of documents.

    Args:
        file: nanoset.yaml, for messages.
        packs: The packs of the project, by name.
        views: Name of each view → the dataset that it is of.
    """
    for name, source in views.items():
        if source in packs:
            yield ConfigError(
                "a view is of a corpus or of another view",
                where=f"{file}: views.{name}.of",
                found=source,
                remedy="name one, and make packs of the view",
            )


def pack_reader_errors(
    file: Path,
    packs: Mapping[str, PacksSpec],
    tokenizer: TokenizerSpec,
    nanosets: Mapping[str, NanosetSpec],
    webdatasets: Mapping[str, WebdatasetSpec],
    exports: Mapping[str, ExportSpec],
) -> Iterator[ConfigError]:
    """Yield an error for each nanoset, webdataset or export that cannot read its packs as samples.

    A trainer must read one pack as one sample, so both must have the same number of tokens.

    Args:
        file: nanoset.yaml, for messages.
        packs: All packs of the project, by name.
        tokenizer: The section on the tokenizer, whose padding token fills packs up.
        nanosets: The nanosets of the project, by name.
        webdatasets: Its webdatasets, by name.
        exports: Its exports, by name.
    """
    specs: list[NanosetSpec | WebdatasetSpec] = [*nanosets.values(), *webdatasets.values()]
    uses_packs = bool(packs) or any(spec.packing is not None for spec in specs)
    if uses_packs:
        yield from _padding_errors(file, tokenizer)
    for name, nanoset in nanosets.items():
        yield from _nanoset_errors(nanoset, packs, f"{file}: nanosets.{name}")
    for name, webdataset in webdatasets.items():
        yield from _webdataset_errors(webdataset, packs, f"{file}: webdatasets.{name}")
    for name, export in exports.items():
        yield from _export_errors(export, packs, f"{file}: exports.{name}")


def _padding_errors(file: Path, tokenizer: TokenizerSpec) -> Iterator[ConfigError]:
    """Yield an error if the tokenizer has no token that can fill packs up.

    Args:
        file: nanoset.yaml, for messages.
        tokenizer: Its section on the tokenizer.
    """
    if tokenizer.pad is None and tokenizer.eod is None:
        yield ConfigError(
            "packs need a padding token",
            where=f"{file}: tokenizer.pad",
            remedy='name it, for example pad: "<|padding|>", or an end-of-document token',
        )


def _nanoset_errors(
    spec: NanosetSpec, packs: Mapping[str, PacksSpec], where: str
) -> Iterator[ConfigError]:
    """Yield an error for each of the packs that a nanoset's trainer cannot read as samples.

    Args:
        spec: The nanoset's section of nanoset.yaml.
        packs: All packs of the project, by name.
        where: Key of the nanoset, such as "nanoset.yaml: nanosets.pretrain", for messages.
    """
    # Some trainers read the datasets in windows of one token more than the sequence length. With
    # packs of 4 tokens, which start at 0, 4 and 8, the windows of 5 tokens start at 0, 5 and 10.
    reads_windows = get_preset(spec.preset).windows
    if reads_windows:
        for key in _keys_with_packs(spec, packs, where):
            yield ConfigError(
                "this trainer reads windows of one token more than its sequence length, "
                "which would drift across packs",
                where=key,
                found=f"preset {spec.preset}",
                remedy="remove `packing`, or name the corpus instead of its packs",
            )

    # For all trainers, a sample has to be as long as a pack.
    for dataset in spec.corpora:
        yield from _length_errors(dataset, spec.sequence_length, packs, where)


def _keys_with_packs(
    spec: NanosetSpec, packs: Mapping[str, PacksSpec], where: str
) -> Iterator[str]:
    """Yield the keys of a nanoset that request packs: `packing`, or names of packs."""
    if spec.packing is not None:
        yield f"{where}.packing"
    for dataset in spec.corpora:
        if dataset in packs:
            yield f"{where}: {dataset}"


def _webdataset_errors(
    spec: WebdatasetSpec, packs: Mapping[str, PacksSpec], where: str
) -> Iterator[ConfigError]:
    """Yield an error for each reason why a webdataset cannot be made from its packs.

    A webdataset consists of contexts: samples of one length, which are cut from its concatenated
    datasets. Each context has to be one pack.

    Args:
        spec: The webdataset's section of nanoset.yaml.
        packs: All packs of the project, by name.
        where: Key of the webdataset, for messages.
    """
    # Packs are requested by the key `packing`, or are named in place of corpora.
    named_packs = [name for name in spec.names if name in packs]
    has_packs = spec.packing is not None or bool(named_packs)

    if has_packs and spec.preset == "tokshuf":
        yield _tokshuf_error(where)
    if _carries_into_packs(spec, packs):
        yield _carry_error(where, named_packs)

    # Contexts must have the length of the packs.
    for name in named_packs:
        yield from _length_errors(name, spec.row_tokens, packs, where)


def _tokshuf_error(where: str) -> ConfigError:
    """Return the error for packs with the preset tokshuf, which cuts each raw file on its own.

    Args:
        where: Key of the webdataset.
    """
    return ConfigError(
        "the preset tokshuf cuts each file on its own, and packs have no files",
        where=f"{where}.preset",
        found="tokshuf",
        remedy="remove `packing`, or the preset",
    )


def _carry_error(where: str, named_packs: list[str]) -> ConfigError:
    """Return the error for `tail: carry`, by which contexts would begin in the middle of packs.

    For example, if a corpus of 25 tokens precedes packs of 10 tokens, the third context has the
    last 5 tokens of the corpus, and the first half of a pack.

    Args:
        where: Key of the webdataset.
        named_packs: Names of its packs.
    """
    return ConfigError(
        "with tail: carry, contexts start in the previous corpus, which would shift them "
        "against the packs after it",
        where=f"{where}.tail",
        found=named_packs,
        remedy="set tail to drop, or give all corpora packs",
    )


def _carries_into_packs(spec: WebdatasetSpec, packs: Mapping[str, PacksSpec]) -> bool:
    """Return whether the rest of a corpus that is not packed may be put in front of packs.

    Contexts would then begin in the middle of packs.
    """
    if spec.tail != "carry" or spec.packing is not None:
        return False
    are_packs = [name in packs for name in spec.names]
    return any(are_packs) and not all(are_packs)


def _export_errors(
    spec: ExportSpec, packs: Mapping[str, PacksSpec], where: str
) -> Iterator[ConfigError]:
    """Yield an error if packs are exported to a format whose readers cannot read them as samples.

    Packs are sequences of one length. Each must become one sample of a training run.

    Args:
        spec: The export's section of nanoset.yaml.
        packs: All packs of the project, by name.
        where: Key of the export, for messages.
    """
    exports_packs = spec.of in packs
    if not exports_packs:
        return

    # Readers of this format read windows of one token more than the sequence length. With packs of
    # 4 tokens, which start at 0, 4 and 8, the windows of 5 tokens start at 0, 5 and 10.
    if spec.format == "datatrove":
        yield ConfigError(
            "readers of .ds files read windows of one token more than a sequence, "
            "which would drift across packs",
            where=f"{where}.of",
            found=spec.of,
            remedy="name the corpus or view itself, or another format",
        )

    # A format that stores samples of one length needs packs of the same length.
    if spec.format in IN_SAMPLES and spec.sequence_length is not None:
        yield from _length_errors(spec.of, spec.sequence_length, packs, where)


def _length_errors(
    corpus: str, length: int, packs: Mapping[str, PacksSpec], where: str
) -> Iterator[ConfigError]:
    """Yield an error if packs have another length than the samples that are read from them.

    For example, packs of 2,048 tokens cannot be read as samples of 4,096 tokens.

    Args:
        corpus: Name of a dataset that is read, which may be packs.
        length: Tokens of a sample.
        packs: All packs of the project, by name.
        where: Key of nanoset.yaml that names the dataset, for messages.
    """
    if corpus in packs and packs[corpus].length != length:
        yield ConfigError(
            "packs of another length than the samples, which would start in the middle of packs",
            where=f"{where}: {corpus}",
            found=f"{packs[corpus].length:,} tokens, samples of {length:,}",
            remedy="make packs of the samples' length, or use the key `packing`, which does that",
        )
