"""Check the settings of nanosets: which keys exclude or need each other, or select no data.

Every function yields errors instead of raising the first one, so that all mistakes of a
nanoset.yaml are reported at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from nanoset_core.errors import ConfigError
from nanoset_core.outputs.names import check_corpora
from nanoset_core.sampling.config import DOCUMENTS, END_MASKS, check_masks
from nanoset_core.sampling.presets import get_preset
from nanoset_core.sampling.splits import SPLITS, SplitName, parse_split
from nanoset_core.stages.handoff.settings import DOCUMENTS_SINCE, TrainerSpec, trainer_errors
from nanoset_core.stages.mappings.mix_settings import DataKeys, mix_errors, unweighted
from nanoset_core.stages.mappings.settings import (
    BlendSpec,
    NanosetSpec,
    corpora_of,
)
from nanoset_core.stages.shards.framing import adds_template
from nanoset_core.stages.shards.settings import TokenizationSpec


def nanoset_errors(where: str, nanoset: NanosetSpec) -> Iterator[ConfigError]:
    """Yield an error for each setting of a nanoset that contradicts or lacks another one.

    A nanoset is a mixture of data for training. For example, its data is given by `blend` or by
    `mix`, but not by both; and a run that continues needs a number of samples. Errors in the names
    of corpora come first.

    Args:
        where: Place of the nanoset, such as "nanoset.yaml: nanosets.pretrain".
        nanoset: Its settings.
    """
    own_data = DataKeys("", nanoset.blend, nanoset.mix)
    all_data = [own_data, *_data_of_phases(nanoset)]
    has_samples = bool(nanoset.schedule or nanoset.samples.get("train"))
    yield from _corpus_errors(where, all_data, nanoset)
    yield from _data_errors(where, own_data, nanoset)
    yield from _split_blend_errors(where, nanoset)
    yield from _phase_errors(where, nanoset)
    yield from _sample_errors(where, nanoset)
    yield from _continue_errors(where, nanoset)
    yield from _limit_errors(where, nanoset)
    yield from mix_errors(where, all_data, nanoset.max_epochs, has_samples=has_samples)
    yield from _preset_errors(where, nanoset)
    yield from _split_errors(where, nanoset)


def _data_of_phases(nanoset: NanosetSpec) -> list[DataKeys]:
    """Return which data each phase of a training run reads: its keys `blend` and `mix`.

    Args:
        nanoset: The settings. Without `phases`, the result is empty.
    """
    data: list[DataKeys] = []
    for number, phase in enumerate(nanoset.phases):
        data.append(DataKeys(f".phases[{number}]", phase.blend, phase.mix))
    return data


def _sample_errors(where: str, nanoset: NanosetSpec) -> Iterator[ConfigError]:
    """Yield an error if two keys of a nanoset give its number of samples.

    `samples: {train: 8000}` says it directly. It also follows from `schedule: {iterations: 1000,
    global_batch_size: 8}`, and the two may differ.

    Args:
        where: The key of the nanoset.
        nanoset: The settings.
    """
    if nanoset.schedule and nanoset.samples:
        yield ConfigError(
            "samples and schedule both give the number of samples",
            where=where,
            found="both",
            remedy="keep one of them",
        )


def _corpus_errors(
    where: str, all_data: Sequence[DataKeys], nanoset: NanosetSpec
) -> Iterator[ConfigError]:
    """Yield the mistakes in the names of corpora that training reads, and in their weights.

        blend: {web: 0.7, code: 0}                 an error: code would not be read
        blend_per_split: {train: [web, web]}       an error: web is named twice

    Args:
        where: The key of the nanoset (the data of a training run) in nanoset.yaml, for the errors.
        all_data: The keys `blend` and `mix` of the nanoset, and of each phase of its run.
        nanoset: All settings of the nanoset.
    """
    for data in all_data:
        key = f"{where}{data.key}"  # "….pretrain", or "….pretrain.phases[0]" and so on
        yield from _blend_errors(f"{key}.blend", data.blend)
        # Of a mixture, only the names of corpora are checked here. Other rules check its shares.
        yield from _blend_errors(f"{key}.mix", unweighted(data.mix))
    for split, blend in nanoset.blend_per_split.items():
        yield from _blend_errors(f"{where}.blend_per_split.{split}", blend)


def end_token_errors(
    file: Path, nanosets: Mapping[str, NanosetSpec], tokenization: TokenizationSpec
) -> Iterator[ConfigError]:
    """Yield an error for each option that looks for ends of documents, if these are not marked.

    With `reset_position_ids: true`, for example, the trainer counts positions from 0 again after
    each end-of-document token. With `tokenization.append_eod: false`, there are no such tokens.

    Args:
        file: The nanoset.yaml.
        nanosets: Name of the training data → its settings, with such options.
        tokenization: How documents are turned into tokens.
    """
    # A template of the tokenizer may mark the ends, too. It is not known here.
    has_template = adds_template(tokenization.preset, tokenization.special_tokens)
    if tokenization.append_eod or has_template:
        return
    for name, nanoset in nanosets.items():
        for option in END_MASKS:  # reset_position_ids and others
            is_set = getattr(nanoset, option)
            if is_set:
                yield ConfigError(
                    "this option looks for end-of-document tokens, and no document has one",
                    where=f"{file}: nanosets.{name}.{option}",
                    found="tokenization.append_eod: false",
                    remedy="set tokenization.append_eod to true, or remove the key",
                )


# The data.


def _blend_errors(where: str, blend: BlendSpec | None) -> Iterator[ConfigError]:
    """Yield the mistakes in a blend: which corpora training reads, and with which weights.

        web                        fine: one corpus, without a weight
        [web, code]                fine: in proportion to their sizes
        {web: 0.7, code: 0.3}      fine
        {web: 0.7, code: 0}        an error: code would not be read
        [web, web]                 an error: web is named twice

    Args:
        where: Place of the blend in nanoset.yaml, for the errors.
        blend: The blend, in one of these forms; None for no data.
    """
    if blend is None:
        return
    try:
        check_corpora(corpora_of(blend), where)
    except ConfigError as error:
        yield error
    if not isinstance(blend, Mapping):
        return
    if blend and sum(blend.values()) == 0:
        yield ConfigError("the weights sum to 0", where=where, remedy="give each corpus a share")
        return
    for corpus, weight in blend.items():
        if weight <= 0:
            yield ConfigError(
                "a weight is 0 or negative",
                where=f"{where}.{corpus}",
                found=weight,
                remedy="give it a share, or leave the corpus out of the blend",
            )


def _data_errors(where: str, data: DataKeys, nanoset: NanosetSpec) -> Iterator[ConfigError]:
    """Yield an error unless exactly one setting says which data a nanoset consists of.

        blend: {web: 0.8, code: 0.2}                   fine
        blend: {web: 0.8, code: 0.2} and mix: {…}      an error: which one counts?
        none of blend, mix, blend_per_split, phases    an error: there is no data

    Args:
        where: Place of the nanoset, for the error.
        data: Its settings `blend` and `mix`, without those of phases.
        nanoset: All its settings.
    """
    keys = [*data.written]
    if nanoset.blend_per_split:
        keys.append("blend_per_split")
    if nanoset.phases:
        keys.append("phases")
    if len(keys) != 1:
        yield ConfigError(
            "the data must be given once",
            where=where,
            found=" and ".join(keys) or "none of them",
            expected="one of blend, mix, blend_per_split, phases",
            remedy="name the corpora in one of them, for example blend: {web: 0.8, code: 0.2}",
        )


def _split_blend_errors(where: str, nanoset: NanosetSpec) -> Iterator[ConfigError]:
    """Yield the mistakes in `blend_per_split`, which gives train, valid and test their own data.

        blend_per_split: {train: web, valid: wiki}                    fine
        blend_per_split: {train: web, valid: wiki}, split: 98,1,1     an error: nothing to divide
        blend_per_split: {train: null}                                an error: no data at all

    Not every trainer can read separate data for each of them. That is an error, too.

    Args:
        where: Place of the nanoset, for the errors.
        nanoset: Its settings; without `blend_per_split` there are no errors.
    """
    if not nanoset.blend_per_split:
        return

    if nanoset.split is not None:
        yield ConfigError(
            "`split` has no effect, since train, valid and test have their own data",
            where=f"{where}.split",
            found=nanoset.split,
            remedy="remove it",
        )
    if not nanoset.corpora:
        yield ConfigError(
            "no split has data",
            where=f"{where}.blend_per_split",
            remedy="give train a blend at least",
        )
    if not get_preset(nanoset.preset).per_split_blends:
        yield ConfigError(
            "this trainer cannot read separate data for train, valid and test",
            where=f"{where}.blend_per_split",
            found=f"preset {nanoset.preset}",
            remedy="give `blend` and `split`",
        )


def _phase_errors(where: str, nanoset: NanosetSpec) -> Iterator[ConfigError]:
    """Yield an error if the phases of a training run do not follow one another up to its end.

    A run may read different data in its phases. Each says at which iteration it ends. In a run of
    1,000 iterations (`schedule: {iterations: 1000, …}`):

        until: 600, until: 1000    fine
        until: 600, none           fine: the last one ends with the run
        until: 600, until: 500     an error: the second phase would end before it begins

    Args:
        where: The key of the run's data in nanoset.yaml, for the errors.
        nanoset: The settings; without `phases` there are no errors.
    """
    if not nanoset.phases:
        return
    if nanoset.schedule is None:
        yield ConfigError(
            "phases are counted in iterations, which need a schedule",
            where=f"{where}.schedule",
            remedy="add it, with the trainer's numbers",
        )
        return

    n_iterations = nanoset.schedule.iterations
    if not _phases_fill_run(nanoset, n_iterations):
        ends = ["none" if phase.until is None else str(phase.until) for phase in nanoset.phases]
        yield ConfigError(
            "phases must follow one another",
            where=f"{where}.phases",
            found=f"until {', '.join(ends)} of {n_iterations} iterations",
            remedy=(
                "give each phase except the last an `until` above that of the previous phase, and "
                "below schedule.iterations; leave out the last `until`, or set it to "
                "schedule.iterations"
            ),
        )


def _phases_fill_run(nanoset: NanosetSpec, iterations: int) -> bool:
    """Return whether the phases of a run follow one another up to its end, and none is empty.

    Each phase has the iteration at which it ends. In a run of 1,000 iterations:

        600, 1000     yes
        600, None     yes: None means the end of the run, for the last phase only
        None, 1000    no: where does the first phase end?
        600, 900      no: the last 100 iterations have no data
        600, 600      no: the second phase is empty

    Args:
        nanoset: The settings of the nanoset, as nanoset.yaml has them.
        iterations: Number of iterations of the run.
    """
    ends = [phase.until for phase in nanoset.phases]
    *earlier_ends, last_end = ends
    if None in earlier_ends:
        return False
    if last_end is not None and last_end != iterations:
        return False
    # The bounds of phases are [0, 600, 1000], and those of an empty phase are equal.
    return all(start < stop for start, stop in pairwise(nanoset.phase_bounds))


def _limit_errors(where: str, nanoset: NanosetSpec) -> Iterator[ConfigError]:
    """Yield an error for each limit on the epochs of a corpus that the nanoset does not read.

    With `blend: {web: 0.7, code: 0.3}`, the limit `max_epochs: {wbe: 4}` is probably a typing
    error.

    Args:
        where: The key of the nanoset.
        nanoset: The settings.
    """
    if not isinstance(nanoset.max_epochs, Mapping):
        return
    for corpus in nanoset.max_epochs:
        if corpus not in nanoset.corpora:
            yield ConfigError(
                "this corpus is not in the blend",
                where=f"{where}.max_epochs.{corpus}",
                remedy="name a corpus of the blend, or remove the key",
            )


# A run that continues.


def _continue_errors(where: str, nanoset: NanosetSpec) -> Iterator[ConfigError]:
    """Yield the mistakes in settings with which a training run changes its data.

    There are two ways to change it:

        phases: […], continue: true      planned: the data changes when a phase ends
        continue_from: {handoff: …}      the user has stopped a run, and changes its data

    Args:
        where: The key of the nanoset.
        nanoset: The settings. Without these keys there are no errors.
    """
    yield from _start_errors(where, nanoset)  # if both ways are used together, for example
    if nanoset.continue_from:
        yield from _continued_run_errors(where, f"{where}.continue_from", nanoset)
    elif nanoset.continue_ and nanoset.phases:
        yield from _continued_run_errors(where, f"{where}.continue", nanoset)


def _start_errors(where: str, nanoset: NanosetSpec) -> Iterator[ConfigError]:
    """Yield an error for keys that contradict each other about where training starts.

        phases and continue             fine: each phase continues the one before it
        continue_from                   fine: continues a run that was started with another nanoset
        continue without phases         an error: nothing comes before
        phases and continue_from        an error: which run does the first phase continue?

    Args:
        where: The key of the nanoset.
        nanoset: The settings of the nanoset, as nanoset.yaml has them.
    """
    if nanoset.continue_ and not nanoset.phases:
        yield ConfigError(
            "`continue` needs phases that follow one another",
            where=f"{where}.continue",
            remedy="add `phases`, or use `continue_from` in place of it",
        )
    # This covers `continue` together with `continue_from`, too: without phases, see above.
    if nanoset.continue_from and nanoset.phases:
        yield ConfigError(
            "phases and continue_from both say which run is continued",
            where=where,
            found="both",
            remedy="keep one of them",
        )


def _continued_run_errors(where: str, key: str, nanoset: NanosetSpec) -> Iterator[ConfigError]:
    """Yield an error for each setting that does not allow a training run to change its data.

    A run that changes its data must not read samples again that it has read before. That is only
    possible with some trainers, and if these are known:

        the weights of the data       blend: [web, code] has none: an error
        the length of the run         neither `samples` nor `schedule`: an error

    Args:
        where: Place of the nanoset, such as "nanoset.yaml: nanosets.pretrain".
        key: The setting that changes the data, such as "….continue_from".
        nanoset: All settings of the nanoset.
    """
    yield from _continuing_trainer_errors(where, key, nanoset)
    blend = _blend_without_weights(nanoset)
    if blend is not None:
        yield ConfigError(
            "a blend without weights has no shares to continue with",
            where=key,
            found=blend,
            remedy="give each corpus a weight, for example {web: 0.8, code: 0.2}",
        )

    # A run with phases always needs `schedule`: `_phase_errors` reports it if that is missing.
    has_samples = nanoset.schedule or "train" in nanoset.samples
    if not has_samples and not nanoset.phases:
        yield ConfigError(
            "a run that continues needs the number of its samples",
            where=key,
            remedy="add `schedule`, or `samples: {train: …}`",
        )


def _continuing_trainer_errors(where: str, key: str, nanoset: NanosetSpec) -> Iterator[ConfigError]:
    """Yield an error if the trainer would read samples again when a run changes its data.

    To prevent that, nanoset writes index files, which tell the trainer the samples that it has not
    read yet. There are two reasons why this may fail:

        preset nanotron      This trainer does not follow such files.
        preset megatron      Megatron-LM looks for index files by names that depend on the options
                             of its tokenizer. If nanoset.yaml lacks these options, the files get
                             other names. Then Megatron-LM does not find them, and builds its own,
                             which start with the first sample again.

    Args:
        where: The key of the nanoset in nanoset.yaml, for the errors.
        key: The setting that changes the data, such as "….continue_from".
        nanoset: The settings. `preset` names the trainer.
    """
    trainer = get_preset(nanoset.preset)
    if not trainer.continues_runs:
        yield ConfigError(
            "this trainer cannot continue with another blend without repeating samples",
            where=key,
            found=f"preset {nanoset.preset}",
            remedy="remove the key, or use preset megatron, megatron-0.10 or nemo",
        )

    knows_tokenizer = nanoset.trainer is not None or nanoset.tokenizer_identifiers
    if trainer.hashes_tokenizer and not knows_tokenizer:
        yield ConfigError(
            "the trainer would not find the index files of a run that continues: it would build "
            "other ones, which repeat samples",
            where=f"{where}.trainer",
            remedy=(
                "add `trainer`, with its version and tokenizer options, or `tokenizer_identifiers`"
            ),
        )


def _blend_without_weights(nanoset: NanosetSpec) -> tuple[str, ...] | None:
    """Return the first blend for training that has several corpora and no weights, or None.

    A blend is a corpus, "web"; a tuple of corpora, ("web", "code"); or a mapping of corpora to
    weights, {"web": 0.7, "code": 0.3}. Of these, only the second has none.

    Args:
        nanoset: The settings. Train has a blend, or each phase of the run has one.
    """
    for blend in [nanoset.blend_of("train"), *(phase.data for phase in nanoset.phases)]:
        if isinstance(blend, tuple) and len(blend) > 1:
            return blend
    return None


# The trainer.


def _preset_errors(where: str, nanoset: NanosetSpec) -> Iterator[ConfigError]:
    """Yield an error for each setting that the trainer does not support.

    The key `preset` names the trainer, such as `megatron` or `nanotron`.

    Args:
        where: The key of the nanoset (the data of a training run) in nanoset.yaml, for the errors.
        nanoset: The settings of the nanoset.
    """
    yield from _whole_dataset_errors(where, nanoset)
    yield from _python_errors(where, nanoset)
    yield from _mask_errors(where, nanoset)
    if nanoset.trainer is not None:  # the section with the trainer's version and tokenizer
        yield from _trainer_errors(where, nanoset, nanoset.trainer)


def _python_errors(where: str, nanoset: NanosetSpec) -> Iterator[ConfigError]:
    """Yield an error if `trainer_python` is not a version of Python, such as 3.12.

    Args:
        where: The key of the nanoset in nanoset.yaml, for the error.
        nanoset: The settings of the nanoset.
    """
    try:
        get_preset(nanoset.preset).compensates(nanoset.trainer_python)
    except ConfigError as error:
        yield error.at(f"{where}.trainer_python", remedy="remove the key, or correct it")


def _whole_dataset_errors(where: str, nanoset: NanosetSpec) -> Iterator[ConfigError]:
    """Yield an error for splits and phases, if the trainer does not have them.

    Some trainers, such as nanotron's main branch, train with all files of a folder. They keep no
    part for validation, and do not change the data during a run.

    Args:
        where: The key of the nanoset.
        nanoset: The settings. `preset` names the trainer.
    """
    if get_preset(nanoset.preset).has_splits:
        return
    for key in ("split", "phases"):
        if getattr(nanoset, key):
            yield ConfigError(
                "this trainer reads whole folders, in one stage: it has no splits and phases",
                where=f"{where}.{key}",
                found=f"preset {nanoset.preset}",
                remedy="remove the key",
            )


def _mask_errors(where: str, nanoset: NanosetSpec) -> Iterator[ConfigError]:
    """Yield the mistakes in options that look for the ends of documents in a sample.

        reset_attention_mask: true     an error if the trainer has no such option
                                       an error without create_attention_mask: it has no effect

    Args:
        where: The key of the nanoset.
        nanoset: The settings. `preset` names the trainer.
    """
    supported_options = get_preset(nanoset.preset).masks
    for option in nanoset.masks:  # those that are set
        if option not in supported_options:
            yield _mask_error(f"{where}.{option}", f"preset {nanoset.preset}")
    try:
        check_masks(nanoset.masks)
    except ConfigError as error:
        yield error.at(f"{where}.{error.where}")  # the error names the option alone


def _trainer_errors(
    where: str, nanoset: NanosetSpec, trainer: TrainerSpec
) -> Iterator[ConfigError]:
    """Yield the mistakes in the section `trainer`, which has the version of Megatron-LM.

        trainer: {megatron_core: "0.8", …}     an error: only 0.9 and newer are supported
        trainer: {megatron_core: "0.18", …}    an error if `inter_document_masking` is set, which
                                               Megatron-LM has since 0.19

    Args:
        where: The key of the nanoset (the data of a training run) in nanoset.yaml, for the errors.
        nanoset: The settings of the nanoset.
        trainer: The section.
    """
    has_identifiers = bool(nanoset.tokenizer_identifiers)
    errors = list(
        trainer_errors(f"{where}.", trainer, nanoset.preset, has_identifiers=has_identifiers)
    )
    yield from errors

    # The version can be compared only if the section has no mistakes.
    if not errors and nanoset.inter_document_masking and trainer.minor < DOCUMENTS_SINCE:
        yield _mask_error(f"{where}.{DOCUMENTS}", f"megatron_core {trainer.megatron_core}")


def _mask_error(where: str, found: str) -> ConfigError:
    """Return the error for an option such as `eod_mask_loss` that the trainer does not have.

    Args:
        where: Place of the option.
        found: The trainer, such as "preset nanotron", or its version.
    """
    return ConfigError(
        "this trainer has no such option, or fails with it",
        where=where,
        found=found,
        remedy="remove the key",
    )


# Splits and samples.


def _split_errors(where: str, nanoset: NanosetSpec) -> Iterator[ConfigError]:
    """Yield the mistakes in how a nanoset divides its documents among train, valid and test.

        split: "98,1,1"                            fine
        split: "98 1 1"                            an error: not three shares
        split: "98,2,0"                            fine: test gets no documents
        split: "98,2,0", samples: {test: 100}      an error: test gets no documents

    Args:
        where: The key of the nanoset (the data of a training run) in nanoset.yaml, for the errors.
        nanoset: The settings of the nanoset.
    """
    text_error = _split_text_error(nanoset)
    if text_error is not None:
        yield text_error.at(f"{where}.split")
        return

    if nanoset.shares is None:  # train, valid and test have data of their own
        why_empty = "no blend for it"
    else:
        why_empty = f"split {nanoset.shares!r}"
    for split in _splits_without_data(nanoset):
        if split in nanoset.samples:
            yield ConfigError(
                "samples are requested of a split that gets no documents",
                where=f"{where}.samples.{split}",
                found=why_empty,
                remedy="give it a share in `split`, or remove the key",
            )


def _split_text_error(nanoset: NanosetSpec) -> ConfigError | None:
    """Return an error if the key `split` does not say how documents are divided, or None.

    It has the shares of train, valid and test:

        split: "98,1,1"     fine
        split: "98,2"       fine, except for trainers that need all three shares
        split: "98 1 1"     an error

    Args:
        nanoset: The settings of nanoset.yaml.
    """
    if nanoset.split is None or nanoset.shares is None:
        return None  # the user has not written the key, or each split has data of its own

    trainer = get_preset(nanoset.preset)
    try:
        # Parse the text as it is in nanoset.yaml. `nanoset.shares` is the same without spaces, in
        # which "98 1 1" would be a valid text, "9811".
        parse_split(nanoset.split, exactly_three=trainer.exactly_three_shares)
    except ConfigError as error:
        return error
    return None


def _splits_without_data(nanoset: NanosetSpec) -> list[SplitName]:
    """Return which of train, valid and test get no documents.

        split: "98,2,0"                                test, since its share is 0
        blend_per_split: {train: web, valid: wiki}     test

    Args:
        nanoset: The settings, which have one of these keys.
    """
    if nanoset.shares is None:
        # Each split has a blend of its own, or none.
        return [split for split in SPLITS if nanoset.blend_of(split) is None]
    shares = parse_split(nanoset.shares)
    return [split for split, share in zip(SPLITS, shares, strict=True) if share == 0]
