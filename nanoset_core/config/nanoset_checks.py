"""Checks of a nanoset's settings that types cannot express: weights, shares, keys that need or exclude each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

from nanoset_core.config.nanoset import BlendSpec, NanosetSpec, corpora_of
from nanoset_core.errors import ConfigError, raised
from nanoset_core.mapping.config import check_masks
from nanoset_core.mapping.presets import get_preset
from nanoset_core.mapping.splits import SPLITS, parse_split
from nanoset_core.outputs.names import check_asset_name, check_corpora


def nanoset_errors(file: Path, name: str, nanoset: NanosetSpec) -> Iterator[ConfigError]:
    """Yield an error for each setting that excludes another one, lacks one that it needs, or selects no data."""
    where = f"{file}: nanosets.{name}"
    yield from raised(check_asset_name, name, where)
    yield from _data_errors(where, nanoset)
    for key, blend in _blends(nanoset):
        yield from raised(check_corpora, file, f"nanosets.{name}.{key}", corpora_of(blend))
        if isinstance(blend, Mapping):
            yield from _weight_errors(f"{where}.{key}", blend)
    if nanoset.blend_per_split:
        yield from _per_split_errors(where, nanoset)
    if nanoset.phases:
        yield from _phase_errors(where, nanoset)
    yield from _preset_errors(where, nanoset)
    yield from _sample_errors(where, nanoset)
    for corpus in nanoset.max_epochs if isinstance(nanoset.max_epochs, Mapping) else ():
        if corpus not in nanoset.corpora:
            expected = f"one of {', '.join(nanoset.corpora)}"
            remedy = "name a corpus of the blend, or remove the key"
            place = f"{where}.max_epochs.{corpus}"
            yield ConfigError("this corpus is not in the blend", where=place, expected=expected, remedy=remedy)


def _data_errors(where: str, nanoset: NanosetSpec) -> Iterator[ConfigError]:
    given = ["blend"] if nanoset.blend is not None else []
    given += [key for key in ("blend_per_split", "phases") if getattr(nanoset, key)]
    if len(given) != 1:
        found, expected = " and ".join(given) or "none of them", "one of blend, blend_per_split, phases"
        remedy = "name the corpora, for example blend: {web: 0.8, code: 0.2}"
        yield ConfigError("the data must be given once", where=where, found=found, expected=expected, remedy=remedy)


def _blends(nanoset: NanosetSpec) -> list[tuple[str, BlendSpec]]:
    """(key, blend) of every blend that is given."""
    blends: list[tuple[str, BlendSpec | None]] = [("blend", nanoset.blend)]
    blends += [(f"blend_per_split.{split}", blend) for split, blend in nanoset.blend_per_split.items()]
    blends += [(f"phases[{number}].blend", phase.blend) for number, phase in enumerate(nanoset.phases)]
    return [(key, blend) for key, blend in blends if blend is not None]


def _weight_errors(where: str, weights: Mapping[str, float]) -> Iterator[ConfigError]:
    if weights and sum(weights.values()) == 0:
        found, expected = ", ".join(f"{corpus}: {weight}" for corpus, weight in weights.items()), "weights above 0"
        remedy = "give each corpus a share"
        yield ConfigError("the weights sum to 0", where=where, found=found, expected=expected, remedy=remedy)
        return
    for corpus, weight in weights.items():
        if weight <= 0:
            what = "a weight is negative" if weight < 0 else "a weight is 0"
            place, remedy = f"{where}.{corpus}", "give it a share, or leave the corpus out of the blend"
            yield ConfigError(what, where=place, found=weight, expected="a number above 0", remedy=remedy)


def _per_split_errors(where: str, nanoset: NanosetSpec) -> Iterator[ConfigError]:
    if nanoset.split is not None:
        what, found = "split cuts a blend that all splits share; here each has its own", nanoset.split
        remedy = "remove it, or give `blend` instead of `blend_per_split`"
        yield ConfigError(what, where=f"{where}.split", found=found, remedy=remedy)
    if not nanoset.corpora:
        yield ConfigError("no split has data", where=f"{where}.blend_per_split", remedy="give train a blend at least")
    if not get_preset(nanoset.preset).per_split_blends:
        what, found = "this trainer cannot take a blend for each split", f"preset {nanoset.preset}"
        yield ConfigError(what, where=f"{where}.blend_per_split", found=found, remedy="give `blend` and `split`")


def _phase_errors(where: str, nanoset: NanosetSpec) -> Iterator[ConfigError]:
    if nanoset.schedule is None:
        what, expected = "phases are counted in iterations, which need a schedule", "iterations and global_batch_size"
        remedy = "add it, with the numbers that the trainer is started with"
        yield ConfigError(what, where=f"{where}.schedule", expected=expected, remedy=remedy)
        return
    ends = [phase.until for phase in nanoset.phases]
    in_order = all(begin < end for begin, end in pairwise(nanoset.phase_bounds))
    if None in ends[:-1] or ends[-1] not in (None, nanoset.schedule.iterations) or not in_order:
        found = f"until {', '.join(str(end) for end in ends)} of {nanoset.schedule.iterations} iterations"
        expected = "`until` for every phase but the last, growing, below schedule.iterations"
        remedy = "give each phase but the last an `until` above that of the phase before"
        place = f"{where}.phases"
        yield ConfigError("phases must follow one another", where=place, found=found, expected=expected, remedy=remedy)


def _preset_errors(where: str, nanoset: NanosetSpec) -> Iterator[ConfigError]:
    """Errors of options that the trainer does not have."""
    preset = get_preset(nanoset.preset)
    for error in raised(preset.compensates, nanoset.trainer_python):
        remedy = "remove the key, or correct it" if nanoset.preset == "nemo" else "remove the key"
        place = f"{where}.trainer_python"
        yield ConfigError(error.what, where=place, found=error.found, expected=error.expected, remedy=remedy)
    for name in nanoset.masks:
        if name not in preset.masks:
            what, found = "this trainer has no such option, or fails with it", f"preset {nanoset.preset}"
            expected = f"one of {', '.join(preset.masks)}" if preset.masks else "no masks at ends of documents"
            yield ConfigError(what, where=f"{where}.{name}", found=found, expected=expected, remedy="remove the key")
    for error in raised(check_masks, nanoset.masks):
        yield ConfigError(error.what, where=f"{where}.{error.where}", found=error.found, remedy=error.remedy)


def _sample_errors(where: str, nanoset: NanosetSpec) -> Iterator[ConfigError]:
    if nanoset.schedule is not None and nanoset.samples:
        what = "samples and schedule both give the number of samples"
        remedy = "keep one of them; a schedule gives the numbers that the trainer computes"
        yield ConfigError(what, where=where, found="both", remedy=remedy)
    if errors := raised(parse_split, nanoset.shares) if nanoset.shares else []:
        remedy = errors[0].remedy or 'write three numbers, such as "969,30,1"'
        found, expected = errors[0].found, errors[0].expected
        yield ConfigError(errors[0].what, where=f"{where}.split", found=found, expected=expected, remedy=remedy)
        return
    shares = (1.0, 1.0, 1.0) if nanoset.shares is None else parse_split(nanoset.shares)
    for split in nanoset.samples:
        if shares[SPLITS.index(split)] == 0 or (nanoset.blend_per_split and nanoset.blend_of(split) is None):
            found = f"split {nanoset.shares!r}" if nanoset.shares else "no blend for it"
            what, expected = "samples are asked of a split that gets no documents", f"a share of {split} above 0"
            remedy = f"give {split} a share in `split`, or remove the key"
            yield ConfigError(what, where=f"{where}.samples.{split}", found=found, expected=expected, remedy=remedy)
