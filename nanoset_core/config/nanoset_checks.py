"""What the types of a nanoset's settings cannot say: ranges, weights, shares, and settings that need each other."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from nanoset_core.config.nanoset import BlendSpec, NanosetSpec, corpora_of
from nanoset_core.errors import ConfigError
from nanoset_core.mapping.presets import get_preset
from nanoset_core.mapping.splits import SPLITS, parse_split
from nanoset_core.outputs.names import check_asset_name, check_corpora, check_within


def check_nanoset(file: Path, name: str, nanoset: NanosetSpec) -> None:
    """Raise ConfigError, naming the key and what to do, for the first value that cannot be."""
    path = f"nanosets.{name}"
    check_asset_name(name, f"{file}: {path}")
    check_within(file, f"{path}.sequence_length", nanoset.sequence_length, 1, 2**31 - 2)
    check_within(file, f"{path}.seed", nanoset.seed, 0, 2**32 - 1)
    _check_data_given_once(file, path, nanoset)
    for key, blend in _blends(nanoset):
        check_corpora(file, f"{path}.{key}", corpora_of(blend))
        if isinstance(blend, Mapping):
            _check_weights(file, f"{path}.{key}", blend)
    _check_per_split(file, path, nanoset)
    _check_schedule(file, path, nanoset)
    _check_phases(file, path, nanoset)
    _check_samples(file, path, nanoset)
    _check_limits(file, path, nanoset)


def _blends(nanoset: NanosetSpec) -> list[tuple[str, BlendSpec]]:
    blends: list[tuple[str, BlendSpec | None]] = [("blend", nanoset.blend)]
    blends += [(f"blend_per_split.{split}", blend) for split, blend in nanoset.blend_per_split.items()]
    blends += [(f"phases[{number}].blend", phase.blend) for number, phase in enumerate(nanoset.phases)]
    return [(key, blend) for key, blend in blends if blend is not None]


def _check_data_given_once(file: Path, path: str, nanoset: NanosetSpec) -> None:
    given = ["blend"] if nanoset.blend is not None else []
    given += [key for key in ("blend_per_split", "phases") if getattr(nanoset, key)]
    if len(given) != 1:
        raise ConfigError(
            "the data must be given once",
            where=f"{file}: {path}",
            found=" and ".join(given) or "none of them",
            expected="one of blend, blend_per_split, phases",
            remedy="name the corpora, for example blend: {web: 0.8, code: 0.2}",
        )


def _check_per_split(file: Path, path: str, nanoset: NanosetSpec) -> None:
    for split in nanoset.blend_per_split:
        _check_split_name(file, f"{path}.blend_per_split.{split}", split)
    if nanoset.blend_per_split:
        if nanoset.split is not None:
            raise ConfigError(
                "split cuts a blend that all splits share; here each has its own",
                where=f"{file}: {path}.split",
                found=nanoset.split,
                remedy="remove it, or give `blend` instead of `blend_per_split`",
            )
        if not nanoset.corpora:
            raise ConfigError(
                "no split has data", where=f"{file}: {path}.blend_per_split", remedy="give train a blend at least"
            )
        if not get_preset(nanoset.preset).per_split_blends:
            raise ConfigError(
                "this trainer cannot take a blend for each split",
                where=f"{file}: {path}.blend_per_split",
                found=f"preset {nanoset.preset}",
                remedy="give `blend` and `split`",
            )


def _check_schedule(file: Path, path: str, nanoset: NanosetSpec) -> None:
    schedule = nanoset.schedule
    if schedule is None:
        return
    check_within(file, f"{path}.schedule.iterations", schedule.iterations, 1, 2**40)
    check_within(file, f"{path}.schedule.global_batch_size", schedule.global_batch_size, 1, 2**24)
    check_within(file, f"{path}.schedule.eval_interval", schedule.eval_interval, 1, 2**40)
    check_within(file, f"{path}.schedule.eval_iters", schedule.eval_iters, 0, 2**24)
    if nanoset.samples:
        raise ConfigError(
            "samples and schedule both say how many samples there are to be",
            where=f"{file}: {path}",
            found="both",
            remedy="keep one of them; a schedule gives the numbers that the trainer computes",
        )


def _check_phases(file: Path, path: str, nanoset: NanosetSpec) -> None:
    if not nanoset.phases:
        return
    if nanoset.schedule is None:
        raise ConfigError(
            "phases are counted in iterations, which need a schedule",
            where=f"{file}: {path}.schedule",
            expected="iterations and global_batch_size",
            remedy="add it, with the trainer's own numbers",
        )
    ends = [phase.until for phase in nanoset.phases]
    bounds = [0, *(end for end in ends[:-1] if end is not None), nanoset.schedule.iterations]
    in_order = all(begin < end for begin, end in pairwise(bounds))
    if None in ends[:-1] or ends[-1] not in (None, nanoset.schedule.iterations) or not in_order:
        raise ConfigError(
            "phases must follow one another",
            where=f"{file}: {path}.phases",
            found=f"until {', '.join(str(end) for end in ends)} of {nanoset.schedule.iterations} iterations",
            expected="`until` for every phase but the last, growing, below schedule.iterations",
            remedy="correct the iterations",
        )


def _check_samples(file: Path, path: str, nanoset: NanosetSpec) -> None:
    shares = dict.fromkeys(SPLITS, 1.0)
    if nanoset.shares is not None:
        shares = dict(zip(SPLITS, _shares(file, f"{path}.split", nanoset.shares), strict=True))
    for split, samples in nanoset.samples.items():
        where = f"{path}.samples.{split}"
        _check_split_name(file, where, split)
        check_within(file, where, samples, 1, 2**62)
        if shares[split] == 0 or (nanoset.blend_per_split and nanoset.blend_of(split) is None):
            raise ConfigError(
                "samples are asked of a split that gets no documents",
                where=f"{file}: {where}",
                found=f"split {nanoset.shares!r}" if nanoset.shares else "no blend for it",
                expected=f"a share of {split} above 0",
                remedy=f"give {split} a share in {path}.split, or remove the key",
            )


def _check_limits(file: Path, path: str, nanoset: NanosetSpec) -> None:
    limits = nanoset.max_epochs
    if limits is None:
        return
    if not isinstance(limits, Mapping):
        check_within(file, f"{path}.max_epochs", limits, 1, 1e6)
        return
    for corpus, limit in limits.items():
        check_within(file, f"{path}.max_epochs.{corpus}", limit, 1, 1e6)
        if corpus not in nanoset.corpora:
            raise ConfigError(
                "this corpus is not in the blend",
                where=f"{file}: {path}.max_epochs.{corpus}",
                expected=f"one of {', '.join(nanoset.corpora)}",
                remedy="correct the name, or remove it",
            )


def _check_split_name(file: Path, path: str, split: str) -> None:
    if split not in SPLITS:
        raise ConfigError(
            "this is no split",
            where=f"{file}: {path}",
            expected=f"one of {', '.join(SPLITS)}",
            remedy="correct the name",
        )


def _check_weights(file: Path, path: str, weights: Mapping[str, float]) -> None:
    for corpus, weight in weights.items():
        if weight < 0:
            raise ConfigError(
                "a weight is negative",
                where=f"{file}: {path}.{corpus}",
                found=weight,
                expected="a number above 0",
                remedy="give it a share, or leave the corpus out of the blend",
            )
    if sum(weights.values()) == 0:
        raise ConfigError(
            "the weights sum to 0",
            where=f"{file}: {path}",
            found=", ".join(f"{corpus}: {weight}" for corpus, weight in weights.items()),
            expected="weights above 0",
            remedy="give each corpus a share",
        )
    for corpus, weight in weights.items():
        if weight == 0:
            raise ConfigError(
                "a weight is 0",
                where=f"{file}: {path}.{corpus}",
                found=weight,
                expected="a number above 0",
                remedy="leave the corpus out of the blend",
            )


def _shares(file: Path, path: str, split: str) -> tuple[float, float, float]:
    try:
        return parse_split(split)
    except ConfigError as error:
        raise ConfigError(
            error.what,
            where=f"{file}: {path}",
            found=error.found,
            expected=error.expected,
            remedy=error.remedy or "correct the shares",
        ) from error
