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

    # Several settings name corpora. In each of them, `reader` replaces the names, and adds packs to
    # the project. Commands list packs in the order in which they are added, so do not change it.
    reader = _PackReader(names, spec.packing, spec.sequence_length, where)
    max_epochs = reader.resolve_limits(spec.max_epochs)  # {web: 4}
    mix = reader.resolve_mix(spec.mix, f"{where}.mix")  # {web: 2, code: 1}
    blend_per_split = reader.resolve_blends(spec.blend_per_split)  # {train: web, valid: code}
    # Corpora that earlier phases of the same training run have read: [web]
    earlier_corpora = tuple(reader.pack_of(corpus) for corpus in spec.earlier_corpora)
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


def pack_errors(
    file: Path, packs: Mapping[str, PacksSpec], views: Mapping[str, str], corpora: Collection[str]
) -> Iterator[ConfigError]:
    """Yield an error for each of the packs whose name or source is wrong.

    Packs are samples of one length, filled with documents of a corpus, or of a view, which is a
    selection of its documents. These are wrong:

        packs of other packs
        packs with the same name as a corpus or view
        a view of packs

    Args:
        file: nanoset.yaml, for messages.
        packs: The packs of the project, by name. Their `of` is the name of what is packed.
        views: Name of each view → the corpus or view that it is of.
        corpora: Names of the corpora.
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
    """Yield an error for each view of packs. A view selects documents, and packs have none.

    The order must be the other one: first select documents, then pack these.

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
    """Yield an error wherever packs would be read in another way than one pack as one sample.

    Packs are samples of one length, such as 2,048 tokens, filled with whole documents. A trainer
    that reads samples of 4,096 tokens, for example, would read two of them as one.

    Args:
        file: nanoset.yaml, for messages.
        packs: All packs of the project, by name.
        tokenizer: The section on the tokenizer, whose padding token fills packs up.
        nanosets: What training runs read, by name. They may read packs.
        webdatasets: Training data in another format, by name.
        exports: Datasets that are converted to formats of other programs, by name.
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

    Packs are samples of one length that are filled with whole documents. What is left of a pack is
    filled with a padding token, or an end-of-document token.

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
    """Yield an error for each of the packs that a trainer cannot read as samples.

    Packs are samples of one length, filled with documents. A trainer may read samples of another
    length, or windows that do not start where packs do.

    Args:
        spec: A section of nanoset.yaml that says what a training run reads (a nanoset). Its preset
            names the trainer.
        packs: All packs of the project, by name.
        where: Key of the section, such as "nanoset.yaml: nanosets.pretrain", for messages.
    """
    # Windows of one token more than a sample do not start where packs do: see `_drift_error`.
    reads_windows = get_preset(spec.preset).windows
    if reads_windows:
        for key in _keys_with_packs(spec, packs, where):
            yield _drift_error(
                "this trainer reads windows of one token more than its sequence length",
                where=key,
                found=f"preset {spec.preset}",
                remedy="remove `packing`, or name the corpus instead of its packs",
            )

    # For all trainers, a sample has to be as long as a pack. `corpora` may have names of packs.
    for dataset in spec.corpora:
        yield from _length_errors(dataset, spec.sequence_length, packs, where)


def _drift_error(windows: str, *, where: str, found: str, remedy: str) -> ConfigError:
    """Return the error for a reader of packs that reads one token more than a sample at a time.

    To predict each token from those before it, such a reader needs windows of 5 tokens for samples
    of 4. But it also moves on by 5 tokens:

        packs of 4 tokens start at       0    4    8    12
        windows of 5 tokens start at     0    5    10   15      later and later in their packs

    Args:
        windows: What reads such windows, in words.
        where: Key of nanoset.yaml, for the message.
        found: What the setting is.
        remedy: What to set instead.
    """
    return ConfigError(
        f"{windows}, which would drift across packs", where=where, found=found, remedy=remedy
    )


def _keys_with_packs(
    spec: NanosetSpec, packs: Mapping[str, PacksSpec], where: str
) -> Iterator[str]:
    """Yield the places in nanoset.yaml where a nanoset asks for packs, for messages.

    Packs are samples of one length, filled with documents. There are two ways to ask for them:

        nanosets.pretrain.packing               all corpora are to be packed
        nanosets.pretrain: web-packs-2048       packs are named in place of a corpus

    Args:
        spec: The nanoset's section of nanoset.yaml.
        packs: All packs of the project, by name.
        where: Key of the nanoset.
    """
    if spec.packing is not None:
        yield f"{where}.packing"
    for dataset in spec.corpora:
        if dataset in packs:
            yield f"{where}: {dataset}"


def _webdataset_errors(
    spec: WebdatasetSpec, packs: Mapping[str, PacksSpec], where: str
) -> Iterator[ConfigError]:
    """Yield an error for each setting of a webdataset with which its packs cannot be read.

    A webdataset is training data in files of samples, which are cut from its datasets. Packs are
    datasets that consist of samples already. So each sample must be exactly one pack. There are two
    ways to ask for packs:

        corpora: [web, books-packs]     packs are named in place of a corpus
        packing: {…}                    all corpora are packed

    Args:
        spec: The webdataset's section of nanoset.yaml.
        packs: All packs of the project, by name.
        where: Key of the webdataset, for messages.
    """
    named_packs = [name for name in spec.names if name in packs]
    packs_all = spec.packing is not None
    if not named_packs and not packs_all:
        return

    # The preset tokshuf cuts each file of raw text into samples, and packs have no such files.
    if spec.preset == "tokshuf":
        yield _tokshuf_error(where)

    # With `tail: carry`, the last tokens of a corpus that do not fill a sample are put in front of
    # the next dataset. If that is packs, all samples after it begin in the middle of a pack.
    has_unpacked_corpora = not packs_all and len(named_packs) < len(spec.names)
    if has_unpacked_corpora and spec.tail == "carry":
        yield _carry_error(where, named_packs)

    # Samples must be as long as packs.
    for name in named_packs:
        yield from _length_errors(name, spec.row_tokens, packs, where)


def _tokshuf_error(where: str) -> ConfigError:
    """Return the error for a webdataset that asks for packs and for the preset tokshuf.

    A webdataset is training data in files of samples. The preset tokshuf cuts each file of raw text
    into samples. Packs are samples already, filled with documents of all files. So both together
    are impossible.

    Args:
        where: The section of nanoset.yaml that combines both.
    """
    return ConfigError(
        "the preset tokshuf cuts each file on its own, and packs have no files",
        where=f"{where}.preset",
        found="tokshuf",
        remedy="remove `packing`, or the preset",
    )


def _carry_error(where: str, named_packs: list[str]) -> ConfigError:
    """Return the error for a webdataset whose samples would begin in the middle of packs.

    Its samples are cut from several datasets. With `tail: carry`, what remains of one dataset is
    put in front of the next one. For example, a corpus of 25 tokens precedes packs of 10 tokens:

        sample 2    the last 5 tokens of the corpus, and the first half of pack 0
        sample 3    the second half of pack 0, and the first half of pack 1

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


def _export_errors(
    spec: ExportSpec, packs: Mapping[str, PacksSpec], where: str
) -> Iterator[ConfigError]:
    """Yield an error if packs are exported to a format whose readers would cut them.

    Packs are samples of one length, filled with documents. A reader of the exported files has to
    read each pack as one sample.

    Args:
        spec: The export's section of nanoset.yaml.
        packs: All packs of the project, by name.
        where: Key of the export, for messages.
    """
    if spec.of not in packs:
        return  # an export of a corpus, which readers may cut anywhere

    if spec.format == "datatrove":
        yield _drift_error(
            "readers of .ds files read windows of one token more than a sequence",
            where=f"{where}.of",
            found=spec.of,
            remedy="name the corpus or view itself, or another format",
        )

    # Some formats store samples of one length. These have to be as long as packs.
    if spec.format in IN_SAMPLES and spec.sequence_length is not None:
        yield from _length_errors(spec.of, spec.sequence_length, packs, where)


def _length_errors(
    dataset: str, sample_length: int, packs: Mapping[str, PacksSpec], where: str
) -> Iterator[ConfigError]:
    """Yield an error if packs have another length than the samples that are read from them.

    Packs are samples themselves, filled with documents. For example, from packs of 2,048 tokens, no
    samples of 4,096 tokens can be read.

    Args:
        dataset: Name of a dataset that is read, which may be packs.
        sample_length: Tokens of a sample.
        packs: All packs of the project, by name.
        where: Key of nanoset.yaml that names the dataset, for messages.
    """
    if dataset not in packs:
        return  # a corpus or view, from which samples of any length can be read
    pack_length = packs[dataset].length
    if pack_length != sample_length:
        yield ConfigError(
            "packs of another length than the samples, which would start in the middle of packs",
            where=f"{where}: {dataset}",
            found=f"{pack_length:,} tokens, samples of {sample_length:,}",
            remedy="make packs of the samples' length, or use the key `packing`, which does that",
        )
