"""What the types of a nanoset's settings cannot say: weights, shares, and settings that need or exclude each other."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from nanoset_core.config.nanoset import BlendSpec, NanosetSpec, corpora_of
from nanoset_core.errors import ConfigError
from nanoset_core.mapping.config import check_masks
from nanoset_core.mapping.presets import get_preset
from nanoset_core.mapping.splits import SPLITS, parse_split
from nanoset_core.outputs.names import check_asset_name, check_corpora


def check_nanoset(file: Path, name: str, nanoset: NanosetSpec) -> None:
    """Check which settings go together, and that blends and shares hold something.

    Raises:
        ConfigError: two of them exclude each other, one needs another, or there is nothing to read.
    """
    where = f"{file}: nanosets.{name}"
    check_asset_name(name, where)
    _check_data_given_once(where, nanoset)
    for key, blend in _blends(nanoset):
        check_corpora(file, f"nanosets.{name}.{key}", corpora_of(blend))
        if isinstance(blend, Mapping):
            _check_weights(f"{where}.{key}", blend)
    if nanoset.blend_per_split:
        _check_per_split(where, nanoset)
    if nanoset.schedule is not None and nanoset.samples:
        raise ConfigError(
            "samples and schedule both say how many samples there are to be",
            where=where,
            found="both",
            remedy="keep one of them; a schedule gives the numbers that the trainer computes",
        )
    if nanoset.phases:
        _check_phases(where, nanoset)
    _check_python(where, nanoset)
    _check_masks(where, nanoset)
    _check_samples(where, nanoset)
    _check_limits(where, nanoset)


def _check_python(where: str, nanoset: NanosetSpec) -> None:
    try:
        get_preset(nanoset.preset).compensates(nanoset.trainer_python)
    except ConfigError as error:
        raise ConfigError(
            error.what,
            where=f"{where}.trainer_python",
            found=error.found,
            expected=error.expected,
            remedy="remove the key, or correct it" if nanoset.preset == "nemo" else "remove the key",
        ) from error


def _check_masks(where: str, nanoset: NanosetSpec) -> None:
    taken = get_preset(nanoset.preset).masks
    for name in nanoset.masks:
        if name not in taken:
            raise ConfigError(
                "this trainer has no such option, or fails with it",
                where=f"{where}.{name}",
                found=f"preset {nanoset.preset}",
                expected=f"one of {', '.join(taken)}" if taken else "no masks at ends of documents",
                remedy="remove the key",
            )
    try:
        check_masks(nanoset.masks)
    except ConfigError as error:
        raise ConfigError(error.what, where=f"{where}.{error.where}", found=error.found, remedy=error.remedy) from error


def _blends(nanoset: NanosetSpec) -> list[tuple[str, BlendSpec]]:
    """(key, blend) of every blend that is given."""
    blends: list[tuple[str, BlendSpec | None]] = [("blend", nanoset.blend)]
    blends += [(f"blend_per_split.{split}", blend) for split, blend in nanoset.blend_per_split.items()]
    blends += [(f"phases[{number}].blend", phase.blend) for number, phase in enumerate(nanoset.phases)]
    return [(key, blend) for key, blend in blends if blend is not None]


def _check_data_given_once(where: str, nanoset: NanosetSpec) -> None:
    given = ["blend"] if nanoset.blend is not None else []
    given += [key for key in ("blend_per_split", "phases") if getattr(nanoset, key)]
    if len(given) != 1:
        raise ConfigError(
            "the data must be given once",
            where=where,
            found=" and ".join(given) or "none of them",
            expected="one of blend, blend_per_split, phases",
            remedy="name the corpora, for example blend: {web: 0.8, code: 0.2}",
        )


def _check_per_split(where: str, nanoset: NanosetSpec) -> None:
    if nanoset.split is not None:
        raise ConfigError(
            "split cuts a blend that all splits share; here each has its own",
            where=f"{where}.split",
            found=nanoset.split,
            remedy="remove it, or give `blend` instead of `blend_per_split`",
        )
    if not nanoset.corpora:
        raise ConfigError("no split has data", where=f"{where}.blend_per_split", remedy="give train a blend at least")
    if not get_preset(nanoset.preset).per_split_blends:
        raise ConfigError(
            "this trainer cannot take a blend for each split",
            where=f"{where}.blend_per_split",
            found=f"preset {nanoset.preset}",
            remedy="give `blend` and `split`",
        )


def _check_phases(where: str, nanoset: NanosetSpec) -> None:
    if nanoset.schedule is None:
        raise ConfigError(
            "phases are counted in iterations, which need a schedule",
            where=f"{where}.schedule",
            expected="iterations and global_batch_size",
            remedy="add it, with the numbers that the trainer is started with",
        )
    ends = [phase.until for phase in nanoset.phases]
    in_order = all(begin < end for begin, end in pairwise(nanoset.phase_bounds))
    if None in ends[:-1] or ends[-1] not in (None, nanoset.schedule.iterations) or not in_order:
        raise ConfigError(
            "phases must follow one another",
            where=f"{where}.phases",
            found=f"until {', '.join(str(end) for end in ends)} of {nanoset.schedule.iterations} iterations",
            expected="`until` for every phase but the last, growing, below schedule.iterations",
            remedy="give each phase but the last an `until` above that of the phase before",
        )


def _check_samples(where: str, nanoset: NanosetSpec) -> None:
    shares = (1.0, 1.0, 1.0) if nanoset.shares is None else _shares(f"{where}.split", nanoset.shares)
    for split in nanoset.samples:
        if shares[SPLITS.index(split)] == 0 or (nanoset.blend_per_split and nanoset.blend_of(split) is None):
            raise ConfigError(
                "samples are asked of a split that gets no documents",
                where=f"{where}.samples.{split}",
                found=f"split {nanoset.shares!r}" if nanoset.shares else "no blend for it",
                expected=f"a share of {split} above 0",
                remedy=f"give {split} a share in `split`, or remove the key",
            )


def _check_limits(where: str, nanoset: NanosetSpec) -> None:
    for corpus in nanoset.max_epochs if isinstance(nanoset.max_epochs, Mapping) else ():
        if corpus not in nanoset.corpora:
            raise ConfigError(
                "this corpus is not in the blend",
                where=f"{where}.max_epochs.{corpus}",
                expected=f"one of {', '.join(nanoset.corpora)}",
                remedy="name a corpus of the blend, or remove the key",
            )


def _check_weights(where: str, weights: Mapping[str, float]) -> None:
    if sum(weights.values()) == 0:
        raise ConfigError(
            "the weights sum to 0",
            where=where,
            found=", ".join(f"{corpus}: {weight}" for corpus, weight in weights.items()),
            expected="weights above 0",
            remedy="give each corpus a share",
        )
    for corpus, weight in weights.items():
        if weight <= 0:
            raise ConfigError(
                "a weight is negative" if weight < 0 else "a weight is 0",
                where=f"{where}.{corpus}",
                found=weight,
                expected="a number above 0",
                remedy="give it a share, or leave the corpus out of the blend",
            )


def _shares(where: str, split: str) -> tuple[float, float, float]:
    try:
        return parse_split(split)
    except ConfigError as error:
        remedy = error.remedy or 'write three numbers, such as "969,30,1"'
        raise ConfigError(error.what, where=where, found=error.found, expected=error.expected, remedy=remedy) from error
