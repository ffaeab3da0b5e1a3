"""Rules on packs that concern several sections of nanoset.yaml, and what readers of packs require.

A reader of packs has to read each pack as one sample. Here are the settings with which it would
not: another length of samples, for example, or a trainer whose windows drift across packs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from nanoset_core.errors import ConfigError
from nanoset_core.sampling.presets import get_preset
from nanoset_core.stages.exports.settings import IN_SAMPLES, ExportSpec
from nanoset_core.stages.mappings.settings import NanosetSpec
from nanoset_core.stages.packs.settings import PacksSpec
from nanoset_core.stages.shards.settings import TokenizerSpec
from nanoset_core.stages.webdataset.settings import WebdatasetSpec


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
    if spec.preset == "tokshuf":
        yield _tokshuf_error(where)
    has_unpacked_corpora = not packs_all and len(named_packs) < len(spec.names)
    if has_unpacked_corpora and spec.tail == "carry":
        yield _carry_error(where, named_packs)
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
