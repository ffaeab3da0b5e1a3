"""The key `packing` of nanosets and webdatasets.

`packing` is a shorthand. A nanoset with

    blend: {web: 0.8, code: 0.2}
    sequence_length: 2048
    packing: {kind: best_fit}

reads the packs `web-packs-2048` and `code-packs-2048` in place of the corpora. `resolve_packing`
adds these packs to the project's, and puts their names where the corpora were named. Everything
after that sees packs like any dataset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from nanoset_core.errors import ConfigError
from nanoset_core.records.frozen import FrozenDict
from nanoset_core.sampling.mix_tree import MixPart, Share
from nanoset_core.sampling.splits import SplitName
from nanoset_core.stages.mappings.mix_settings import Mix
from nanoset_core.stages.mappings.resolved import ResolvedNanoset
from nanoset_core.stages.mappings.settings import BlendSpec
from nanoset_core.stages.packing import DEFAULT_SEED, PackingSpec
from nanoset_core.stages.packs.settings import PacksSpec
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
    """Let training data with the key `packing` be read from packs instead of corpora.

    Packs are samples of one length, such as 2,048 tokens, that are filled with whole documents of a
    corpus. The key is a shorthand for naming them in nanoset.yaml, as in

        before    blend: {web: 0.8, code: 0.2}        with  packing: {kind: best_fit}
        after     blend: {web-packs-2048: 0.8, code-packs-2048: 0.2}

    These two packs are added to those that the user has written under the key `packs`.

    Args:
        file: nanoset.yaml, for messages.
        nanosets: Nanosets (what a training run reads) by name. Some may have the key.
        webdatasets: Webdatasets (the same, written to files of another format) by name.
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
        """Return the names of the packs that replace some corpora, such as those of a blend.

        Packs are samples of one length, filled with documents of a corpus. For example, "web" and
        "code" are replaced by "web-packs-2048" and "code-packs-2048".

        Args:
            corpora: Names of the corpora, all different. A name may also be that of packs, which
                the user has written under the key `packs`: it is returned as it is.
            packing: How the documents are packed.
            length: Tokens of a pack, such as 2048.
            where: Key of nanoset.yaml with the blend, for messages.

        Returns:
            A name for each corpus, in their order.

        Raises:
            ConfigError: A corpus is named as well as its packs.
        """
        corpora = tuple(corpora)
        pack_names = tuple(self.of_corpus(corpus, packing, length) for corpus in corpora)

        # The user may have named a corpus and its packs, such as "web" and "web-packs-2048". Then
        # both have the same name now.
        has_repetition = len(set(pack_names)) < len(pack_names)
        if has_repetition:
            raise ConfigError(
                "a corpus is named as well as its packs",
                where=where,
                found=", ".join(corpora),
                remedy="name one of them",
            )
        return pack_names

    def of_corpus(self, corpus: str, packing: PackingSpec, length: int) -> str:
        """Return the name of the packs to be read instead of a corpus, which are added if needed.

        Packs are samples of one length, filled with documents of a corpus. There are three cases:

            web-packs-2048, written by the user    → web-packs-2048, as it is
            web, whose packs exist as `my-packs`   → my-packs, if they have the same settings
            web, without such packs                → web-packs-2048, which are added

        Args:
            corpus: Name of the corpus, or of a selection (view) of its documents, or of packs.
            packing: How the documents are packed.
            length: Tokens of a pack, such as 2048.

        Raises:
            ConfigError: Packs with other settings have the name.
        """
        # The user may have named packs already: those under the key `packs`.
        if corpus in self.written:
            return corpus

        spec = PacksSpec(corpus, length, packing.long, packing.tail, packing.seed)
        if spec not in self.name_by_spec:  # neither written by the user, nor requested before
            self._add(spec)
        return self.name_by_spec[spec]

    def _add(self, spec: PacksSpec) -> None:
        """Add packs to those that the project makes, under a name made of their settings.

        Packs are samples of one length, filled with documents of a corpus. Those of 2,048 tokens
        from the corpus `web` get the name `web-packs-2048`.

        Args:
            spec: The settings. No packs of the project have the same.

        Raises:
            ConfigError: In nanoset.yaml, the user has given this name to packs with other settings.
        """
        name = _default_name(spec)
        if name in self.written:  # by the user, in nanoset.yaml
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
    """Make up a name for packs (samples of one length, filled with documents) from their settings.

        web, samples of 2,048 tokens                     web-packs-2048
        the same, but long documents are truncated       web-packs-2048-truncate
        … and the seed is 7                              web-packs-2048-truncate-7

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
    """Replace the corpora that a training run reads by packs, and let the project make the packs.

    Packs are samples of one length that are filled with whole documents of a corpus. A user asks
    for them by the key `packing`. Then each name of a corpus becomes the name of its packs:

        blend: {web: 0.8, code: 0.2}    →    {web-packs-2048: 0.8, code-packs-2048: 0.2}

    Args:
        spec: The section of nanoset.yaml that says what the run reads, called a nanoset.
        names: The packs of the project. Packs that are missing, such as `web-packs-2048`, are
            added to it.
        where: Key of the section, for messages.

    Returns:
        The section with the names of packs. Without the key `packing`, it is unchanged.
    """
    if spec.packing is None:
        return spec
    # Commands list packs in the order in which `reader` adds them, so do not change the order.
    reader = _PackReader(names, spec.packing, spec.sequence_length, where)
    max_epochs = reader.resolve_limits(spec.max_epochs)  # {web: 4}
    mix = reader.resolve_mix(spec.mix, f"{where}.mix")  # {web: 2, code: 1}
    blend_per_split = reader.resolve_blends(spec.blend_per_split)  # {train: web, valid: code}
    earlier_corpora = tuple(reader.pack_of(corpus) for corpus in spec.earlier_corpora)  # [web]
    blend = reader.resolve_blend(spec.blend)  # {web: 0.8, code: 0.2}
    return replace(
        spec,
        max_epochs=max_epochs,
        mix=mix,
        blend_per_split=blend_per_split,
        earlier_corpora=earlier_corpora,
        blend=blend,
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
        """Return the names of the packs that replace several corpora, in their order.

        Args:
            corpora: Names of the corpora, all different, such as ["web", "code"] for
                "web-packs-2048" and "code-packs-2048".

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
        """Replace the names of corpora in a setting by those of their packs, and keep the values.

        For example, the weights `{"web": 0.8, "code": 0.2}` become `{"web-packs-2048": 0.8,
        "code-packs-2048": 0.2}`. Packs are samples that are filled with documents of a corpus.

        Args:
            values: Name of a corpus → its weight or limit.

        Raises:
            ConfigError: A corpus is named as well as its packs.
        """
        pack_names = self.packs_of(values)  # in the order of the corpora
        return FrozenDict(zip(pack_names, values.values(), strict=True))

    def resolve_limits(self, max_epochs: _EpochLimits) -> _EpochLimits:
        """Replace the names of corpora by those of their packs in `max_epochs`.

        This setting says how often a corpus may be read:

            {"web": 4}    the corpus web up to 4 times      → {"web-packs-2048": 4}
            4             every corpus up to 4 times        → 4, unchanged
            None          no limit                          → None, unchanged

        Args:
            max_epochs: The setting.

        Raises:
            ConfigError: A corpus is named as well as its packs.
        """
        if isinstance(max_epochs, Mapping):
            return self.with_packs(max_epochs)
        return max_epochs  # names no corpus

    def resolve_blend(self, blend: BlendSpec | None) -> BlendSpec | None:
        """Put packs in place of the corpora of a blend, which says how much is read of each corpus.

        A blend has one of these forms, and keeps it:

            "web"                       → "web-packs-2048"
            {"web": 0.8, "code": 0.2}   → {"web-packs-2048": 0.8, "code-packs-2048": 0.2}
            ("web", "code")             → ("web-packs-2048", "code-packs-2048")
            None, or no names           → None: there is no blend

        Args:
            blend: The blend.

        Raises:
            ConfigError: A corpus is named as well as its packs.
        """
        if blend is None:
            return None
        if isinstance(blend, str):
            return self.pack_of(blend)
        if isinstance(blend, Mapping):
            return self.with_packs(blend)
        if not blend:
            return None  # an empty list is no blend
        return self.packs_of(blend)

    def resolve_blends(
        self, blend_per_split: Mapping[SplitName, BlendSpec | None]
    ) -> FrozenDict[SplitName, BlendSpec | None]:
        """Put packs in place of corpora where each split of the training data has its own blend.

        For example, `{"train": "web", "valid": "code"}` becomes `{"train": "web-packs-2048",
        "valid": "code-packs-2048"}`.

        Args:
            blend_per_split: Split, such as "train" → which corpora it reads, or None.

        Returns:
            Split → the same with names of packs, or None.

        Raises:
            ConfigError: A corpus is named as well as its packs.
        """
        resolved: dict[SplitName, BlendSpec | None] = {}
        for split, blend in blend_per_split.items():
            resolved[split] = self.resolve_blend(blend)
        return FrozenDict(resolved)

    def resolve_mix(self, mix: Mix | None, where: str) -> Mix | None:
        """Put packs in place of the corpora of a mixture, which gives each corpus a share.

        A mixture can contain groups with a mixture of their own, in which names are replaced as
        well. For example, with the group `rest`:

            before    {web: 2,            rest: {mix: {code: 1,            maths: 3}}}
            after     {web-packs-2048: 2, rest: {mix: {code-packs-2048: 1, maths-packs-2048: 3}}}

        Args:
            mix: Name of a corpus or group → its share, alone or with other settings; None if there
                is no mixture.
            where: Key of nanoset.yaml with the mixture, for messages.

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
            else:  # a corpus
                new_name = self.pack_of(name)

            if new_name in resolved:
                raise _same_name_error(new_name, where)
            resolved[new_name] = part
        return FrozenDict(resolved)


def _same_name_error(name: str, where: str) -> ConfigError:
    """Return the error for a group that a user has named `web-packs-2048`, as the packs of `web`.

    Args:
        name: The name of both.
        where: Key of nanoset.yaml with the mixture.
    """
    return ConfigError(
        "a group has the same name as the packs of a corpus in the same mixture",
        where=where,
        found=name,
        remedy="rename the group",
    )


def _resolve_webdataset(spec: WebdatasetSpec, names: _PackNames, where: str) -> WebdatasetSpec:
    """Replace the corpora of a webdataset by packs, if the user asks for it by the key `packing`.

    A webdataset is training data in files of samples. Packs are samples of one length that are
    filled with whole documents of a corpus. For example:

        before    corpora: {web: 0.8, code: 0.2}
        after     corpora: {web-packs-2048: 0.8, code-packs-2048: 0.2}

    Args:
        spec: The webdataset's section of nanoset.yaml.
        names: The packs of the project. Those that this needs are added.
        where: Key of the webdataset, for messages.

    Raises:
        ConfigError: A corpus is named as well as its packs.
    """
    if spec.packing is None:
        return spec

    # This also adds the packs to those of the project, so that they are made.
    pack_names = names.of_corpora(spec.names, spec.packing, spec.row_tokens, where)

    if not isinstance(spec.corpora, Mapping):  # a list of corpora
        return replace(spec, corpora=pack_names)
    weights = spec.corpora.values()  # 0.8, 0.2
    return replace(spec, corpora=FrozenDict(zip(pack_names, weights, strict=True)))
