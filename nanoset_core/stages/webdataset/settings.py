"""The section `webdatasets` of nanoset.yaml, and the rules of its keys.

The settings of a plan, which are made from this section or from the options of `nanoset shuffle`,
are in `plan_settings.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from nanoset_core.errors import ConfigError, raised
from nanoset_core.formats.tars.members import MemberKind
from nanoset_core.outputs.names import check_corpora
from nanoset_core.records.parsing import out_of_range
from nanoset_core.records.rules import Section
from nanoset_core.records.settings import Range
from nanoset_core.stages.packing import PackingSpec

if TYPE_CHECKING:
    from nanoset_core.stages.shards.settings import TokenizationSpec, TokenizerSpec

ShufflePreset = Literal["default", "tokshuf"]
ShuffleEngine = Literal["auto", "mmap", "tiled", "buckets"]
"""How tars are written, see `sizing.py`. `tiled` is deprecated, see `DEPRECATED_ENGINES`."""
ContextTail = Literal["drop", "pad", "carry"]
ContextLength = Annotated[int, Range(1, 1 << 24)]
ShardSize = Annotated[int, Range(1, 10**8 - 1)]
ShuffleSeed = Annotated[int, Range(0, 2**64 - 1)]

DEFAULT_LENGTH = 2049
DEFAULT_SHARD_SIZE = 8192
DEFAULT_SHUFFLE_SEED = 1234
LEAST_MEMORY_MIB = 16
DEPRECATED_ENGINES: Mapping[ShuffleEngine, ShuffleEngine] = {"tiled": "auto"}
"""Name of an engine that was removed → its replacement, which writes the same bytes."""


@dataclass(frozen=True, slots=True)
class WebdatasetSpec(Section):
    """One webdataset: a folder of tars with shuffled samples of some corpora."""

    corpora: tuple[str, ...] | Mapping[str, Annotated[float, Range(0, 1e6)]] = field(
        metadata={"example": "[web]"}
    )
    """Member corpora: a list (each in full), or each with its number under `mix`."""
    sequence_length: ContextLength = DEFAULT_LENGTH
    """Tokens in a context; trainers that predict the next token want one more than their sequence
    length.
    """
    samples_per_shard: ShardSize = DEFAULT_SHARD_SIZE
    """Contexts in a tar."""
    seed: ShuffleSeed = DEFAULT_SHUFFLE_SEED
    """Seed of the shuffle, and of the choice of contexts where only part of a corpus is used."""
    member: MemberKind = "json.gz"
    """Format of a context in the tar: json.gz for OpenLM, npy for speed."""
    preset: ShufflePreset = "default"
    """With `tokshuf`, the contexts are those of tokshuf-rust, which cuts and pads each file
    separately.
    """
    tail: ContextTail = "drop"
    """What happens to tokens after a corpus's last full context: dropped, padded, or joined with
    the next corpus's.
    """
    bos: bool = False
    """Begin every context with the BOS token, which takes the place of one token."""
    mix: Literal["frequencies", "weights"] = "frequencies"
    """What the numbers in `corpora` are: how often each context occurs (DCLM's sampling
    frequencies), or shares.
    """
    contexts: Annotated[int, Range(1, 2**50)] | None = None
    """With weights: contexts in all; absent = as many as repeat no corpus."""
    even: bool = False
    """Give every tar the same number of contexts, at most samples_per_shard; the few that remain
    are left out.
    """
    packing: PackingSpec | None = None
    """Fit whole documents into contexts by best-fit packing, instead of cutting their stream."""
    groups: Annotated[int, Range(1, 1000)] = 4
    """Number of Dagster partitions that write the tars; does not change them."""
    engine: ShuffleEngine = "auto"
    """How the tars are written; does not change them. `tiled` is deprecated and means `auto`."""
    memory_mib: Annotated[int, Range(LEAST_MEMORY_MIB, 1 << 24)] = 1024
    """Memory for writing the tars, in MiB; does not change them."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the corpora, in the order of nanoset.yaml."""
        return tuple(self.corpora)

    @property
    def row_tokens(self) -> int:
        """Tokens of each context that are from a corpus: all except the BOS."""
        return self.sequence_length - int(self.bos)

    @property
    def number_by_corpus(self) -> dict[str, float] | None:
        """Frequency or weight of each corpus, or None if `corpora` is a list."""
        return dict(self.corpora) if isinstance(self.corpora, Mapping) else None

    def broken_rules(self, where: str) -> Iterator[ConfigError]:
        """Yield an error for each mistake in the settings of a shuffled dataset.

        These settings are a section of nanoset.yaml. For example:

            corpora: {web: 0.7, code: 0.3}    collections of texts, and the share of each
            sequence_length: 2049             tokens of a training sample
            bos: true                         each sample begins with a special token

        Args:
            where: Place of the section, such as "nanoset.yaml: webdatasets.tars".
        """
        yield from raised(check_corpora, self.names, f"{where}.corpora")
        # If a sample begins with a special token, it needs a length of 2, for another token.
        if self.bos and self.sequence_length < 2:
            yield out_of_range(Range(2), self.sequence_length, f"{where}.sequence_length")
        yield from self._mix_errors(where)

    def _mix_errors(self, where: str) -> Iterator[ConfigError]:
        """Yield an error for each mistake in how the texts of a shuffled dataset are mixed.

        The numbers in `corpora: {web: 2, code: 1}` can be understood in two ways:

            mix: frequencies    web is read twice, and code once
            mix: weights        two thirds of the training samples are from web; how many samples
                                there are in all may be set with `contexts`

        Args:
            where: Place of the settings, such as "nanoset.yaml: webdatasets.tars".
        """
        number_by_corpus = self.number_by_corpus or {}  # a list of corpora has no numbers
        if number_by_corpus and not any(number_by_corpus.values()):
            yield ConfigError(
                "every corpus is left out",
                where=f"{where}.corpora",
                found="frequencies of 0",
                remedy="give one of them a frequency, 1 for each context once",
            )
        if self.mix == "weights":
            yield from _weight_errors(number_by_corpus, where)

        # Frequencies decide how many samples there are.
        if self.mix == "frequencies" and self.contexts is not None:
            yield ConfigError(
                "a number of contexts goes with weights",
                where=f"{where}.contexts",
                found="mix: frequencies",
                remedy="set mix to weights, or remove the key",
            )


def _weight_errors(weight_by_corpus: Mapping[str, float], where: str) -> Iterator[ConfigError]:
    """Yield an error if texts are to be mixed by weights, and the weights are missing or wrong.

        {web: 0.7, code: 0.3}      correct
        {}                         an error: there are no weights
        {web: 0.7, code: -1}       an error: a weight must be from 1e-9 to 1e6

    Args:
        weight_by_corpus: Collection of texts (corpus) → its weight.
        where: Place of the settings, such as "nanoset.yaml: webdatasets.tars".
    """
    if not weight_by_corpus:
        yield ConfigError(
            "mix: weights needs a weight for each corpus",
            where=f"{where}.corpora",
            remedy=(
                "give each corpus its weight, such as {web: 0.7, code: 0.3}, or remove the key mix"
            ),
        )
    # If all weights are 0, another check has reported that already.
    if any(weight_by_corpus.values()):
        allowed_weights = Range(1e-9, 1e6)
        for corpus, weight in weight_by_corpus.items():
            if weight not in allowed_weights:
                yield out_of_range(allowed_weights, weight, f"{where}.corpora.{corpus}")


def engine_warning(engine: ShuffleEngine, where: str) -> str | None:
    """Return a warning if the user has set an engine that does not exist any more.

    An engine is a way to write shuffled tar files. All engines write the same tars, so another one
    is used in its place. The warning says which: "webdatasets.tars.engine: tiled is deprecated, and
    auto is used, …".

    Args:
        engine: The engine that is set.
        where: Key or option that sets it, such as "webdatasets.tars.engine".

    Returns:
        The warning, or None if the engine exists.
    """
    if engine not in DEPRECATED_ENGINES:
        return None
    replacement = DEPRECATED_ENGINES[engine]
    return (
        f"{where}: {engine} is deprecated, and {replacement} is used, "
        "which writes the same tars: remove this setting"
    )


def webdataset_errors(
    file: Path,
    name: str,
    spec: WebdatasetSpec,
    tokenizer: TokenizerSpec,
    tokenization: TokenizationSpec,
) -> Iterator[ConfigError]:
    """Yield an error for each setting of a webdataset that does not fit the other sections.

    Args:
        file: Path of nanoset.yaml.
        name: Name of the webdataset.
        spec: Its settings.
        tokenizer: The section `tokenizer`.
        tokenization: The section `tokenization`.
    """
    where = f"{file}: webdatasets.{name}"
    yield from _token_errors(file, spec, tokenizer)
    if spec.preset == "tokshuf":
        yield from _tokshuf_errors(file, where, spec, tokenization)


def _token_errors(
    file: Path, spec: WebdatasetSpec, tokenizer: TokenizerSpec
) -> Iterator[ConfigError]:
    """Yield an error for each special token that training samples need, but that is not set.

    In nanoset.yaml, the settings of the samples and of the tokenizer are different sections:

        setting of the samples      what it means                            setting it needs
        tail: pad                   fill the last sample up with padding     pad: "<pad>"
        bos: true                   begin each sample with a special token   bos: "<s>"

    Args:
        file: Path of nanoset.yaml.
        spec: The settings of the samples.
        tokenizer: The settings of the tokenizer.
    """
    if spec.tail == "pad" and tokenizer.pad is None:
        yield ConfigError(
            "tail: pad needs a padding token",
            where=f"{file}: tokenizer.pad",
            remedy='name it, for example pad: "<|padding|>", or set tail to drop',
        )
    if spec.bos and tokenizer.bos is None:
        yield ConfigError(
            "bos needs a begin-of-document token",
            where=f"{file}: tokenizer.bos",
            remedy='name it, for example bos: "<s>", or set bos to false',
        )


def _tokshuf_errors(
    file: Path,
    where: str,
    spec: WebdatasetSpec,
    tokenization: TokenizationSpec,
) -> Iterator[ConfigError]:
    """Yield an error for each setting that contradicts the preset tokshuf.

    With this preset, the tar files are to be the same as those of the program tokshuf-rust. It has
    fixed rules:

    - It pads the last training sample of each file, and begins no sample with a special token. So
      the settings `tail` and `bos` must not be changed.
    - It ends every document with a special token, even an empty one. So the text must be tokenized
      in this way, too; with Megatron-LM's preset, empty documents are left out.

    Args:
        file: Path of nanoset.yaml.
        where: Place of the settings in it, such as "nanoset.yaml: webdatasets.tars".
        spec: The settings of the shuffled dataset.
        tokenization: The settings of the tokenization.
    """
    if spec.tail != "drop" or spec.bos:
        yield ConfigError(
            "the preset tokshuf has rules of its own for `tail` and `bos`",
            where=where,
            found=f"tail: {spec.tail}, bos: {spec.bos}",
            expected="neither key: the preset pads the last context of each file, and adds no BOS",
            remedy="remove `tail` and `bos`, or remove the preset",
        )

    if tokenization.preset != "tokshuf" or not tokenization.append_eod:
        append_eod = str(tokenization.append_eod).lower()
        yield ConfigError(
            "the preset tokshuf needs an end token after every document, empty ones too",
            where=f"{file}: tokenization.preset",
            found=f"preset: {tokenization.preset}, append_eod: {append_eod}",
            expected="preset: tokshuf, append_eod: true",
            remedy=(
                "set tokenization.preset: tokshuf, "
                "or use `nanoset shuffle --preset tokshuf` on the raw text"
            ),
        )
