"""Smaller runs that behave like a large one: the key `scales` of a nanoset.

A small run only predicts a large one if it repeats its documents as often. So its data shrinks with
its number of samples:

    nanosets:
      pretrain: {blend: {web: 0.7, code: 0.3}, samples: {train: 1e6}, scales: [0.01]}

This is a shorthand for views with one hundredth of the documents, and a nanoset that reads them:

    views:
      web-scale-0_01:  {of: web, split: {keep: [0, 0.01], seed: 379422}}
      code-scale-0_01: {of: code, split: {keep: [0, 0.01], seed: 379422}}
    nanosets:
      pretrain: {blend: {web: 0.7, code: 0.3}, samples: {train: 1e6}}
      pretrain-scale-0_01:
        blend: {web-scale-0_01: 0.7, code-scale-0_01: 0.3}
        samples: {train: 1e4}

Source: Muennighoff et al. 2023, "Scaling Data-Constrained Language Models"; OLMo and Marin call it
simulated epoching.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from nanoset_core.errors import ConfigError
from nanoset_core.records.frozen import FrozenDict
from nanoset_core.sampling.mix_tree import MixPart, parts_of_mix
from nanoset_core.sampling.splits import SPLITS, SplitName
from nanoset_core.stages.mappings.mix_settings import Mix
from nanoset_core.stages.mappings.settings import (
    BlendSpec,
    ExpandedNanosets,
    NanosetSpec,
    PhaseSpec,
    ScheduleSpec,
    corpora_of,
)
from nanoset_core.stages.views.settings import ViewSpec, ViewSplitSpec

SCALE_SEED = 379422
"""Seed of the hash that chooses the documents of smaller runs.

All scales use it, so that each run has a part of the documents of the next larger one.
"""


def expand_scales(
    nanosets: Mapping[str, NanosetSpec], views: Mapping[str, ViewSpec], where: object
) -> ExpandedNanosets:
    """Add the smaller runs that nanosets request, and the views that these read.

    A nanoset `pretrain` that reads `web` and has `scales: [0.01]` gets the smaller run
    `pretrain-scale-0_01`, which reads the view `web-scale-0_01`: one hundredth of the documents.

    Args:
        nanosets: Name → settings. Their mixtures name all corpora that they read.
        views: The views of the project.
        where: The nanoset.yaml, for errors.

    Returns:
        All nanosets, all views, and the mistakes in the settings.
    """
    all_nanosets: dict[str, NanosetSpec] = {}
    all_views = dict(views)
    errors: list[ConfigError] = []
    for name, nanoset in nanosets.items():
        all_nanosets[name] = nanoset
        if not nanoset.scales:
            continue
        key = f"{where}: nanosets.{name}.scales"  # for errors
        mistakes = list(_mistakes(nanoset, key))
        if mistakes:
            errors += mistakes
            continue
        for scale in nanoset.scales:
            run_name = scaled_name(name, scale)
            if run_name in nanosets:
                errors.append(_name_is_taken("nanoset", run_name, key))
            all_nanosets[run_name] = _scaled_nanoset(nanoset, scale)
            for view_name, view in _views_of_run(nanoset, scale).items():
                # Several nanosets may read the same corpus at the same scale, and share a view.
                existing_view = all_views.setdefault(view_name, view)
                if existing_view != view:
                    errors.append(_name_is_taken("view", view_name, key))
    return ExpandedNanosets(
        nanosets=FrozenDict(all_nanosets), views=FrozenDict(all_views), errors=errors
    )


def scaled_name(name: str, scale: float) -> str:
    """Return the name of a smaller training run, or of the part of a corpus that it reads.

    A small run at a scale of 0.01 reads about a hundredth of each corpus, so that it repeats data
    as often as the full run:

        the full run reads      web
        the small run reads     web-scale-0_01

    The name has no point, because the names of Dagster's assets cannot have one.

    Args:
        name: Name of the full-size run or corpus, such as "web".
        scale: Share of the data, such as 0.01.
    """
    scale_text = f"{scale:g}".replace(".", "_")
    return f"{name}-scale-{scale_text}"


def _mistakes(nanoset: NanosetSpec, where: str) -> Iterator[ConfigError]:
    """Yield an error for each reason why no smaller version of a training run can be made.

    `scales: [0.01]` requests a run with a hundredth of the samples and of the data, as a trial
    before the full run. That is not possible if

        the full run continues another one    it does not start with its first sample
        its number of samples is not known    it cannot be divided by 100
        it has phases that are too short      a hundredth of 40 iterations is none

    Args:
        nanoset: The settings of the full run.
        where: The key `scales` in nanoset.yaml, for the errors.
    """
    if nanoset.continue_from is not None:
        yield ConfigError(
            "a run that continues another one has no smaller runs",
            where=where,
            found="continue_from",
            remedy="remove scales, or write it in the nanoset that is continued",
        )
    if nanoset.schedule is None and not nanoset.samples.get("train"):
        yield ConfigError(
            "the length of the run is not known, so it cannot be scaled",
            where=where,
            expected="samples or schedule",
            remedy="write how many samples the full run takes, such as samples: {train: 1000000}",
        )
    if nanoset.phases:
        yield from _empty_phase_errors(nanoset, where)


def _empty_phase_errors(nanoset: NanosetSpec, where: str) -> Iterator[ConfigError]:
    """Yield an error for each scale at which a smaller training run would have an empty phase.

    A run may read different data in several phases. In a smaller run, these are shorter:

        the full run ends its phases at      40    80    1,000
        at the scale 0.01                     1     1       10      the second one is empty

    Args:
        nanoset: The settings of the full run. `scales` are the sizes of the smaller ones.
        where: The key `scales` in nanoset.yaml, for the errors.
    """
    for scale in nanoset.scales:
        # [0, 40, 80, 1000] becomes [0, 1, 1, 10]: two numbers are equal.
        bounds = [_scaled_number(bound, scale) for bound in nanoset.phase_bounds]
        has_empty_phase = len(set(bounds)) < len(bounds)
        if has_empty_phase:
            yield ConfigError(
                "at this scale, a phase has no iteration",
                where=where,
                found=scale,
                remedy="remove it, or choose a larger scale",
            )


def _name_is_taken(kind: str, name: str, where: str) -> ConfigError:
    """Return the error for a nanoset or view whose name nanoset.yaml uses for something else.

    For example, a smaller run needs the view `web-scale-0_01`, and the user has defined another
    view of this name.

    Args:
        kind: "nanoset" or "view".
        name: The name.
        where: Place of the key `scales` that requests the smaller run.
    """
    return ConfigError(
        f"a smaller run needs a {kind} whose name is taken",
        where=where,
        found=name,
        remedy=f"rename the {kind}",
    )


def _views_of_run(nanoset: NanosetSpec, scale: float) -> dict[str, ViewSpec]:
    """Return the views that a smaller run trains on, one for each dataset of the full run.

    A view is a selection of documents. At a scale of 0.01, a run of web and code gets two of them,
    each with a hundredth of the documents: `web-scale-0_01` and `code-scale-0_01`. The selection is
    random, but always the same.

    Args:
        nanoset: The full run.
        scale: Size of the smaller run, as a share of the full one.

    Returns:
        Name of each view → its settings.
    """
    split = ViewSplitSpec(keep=(0.0, scale), seed=SCALE_SEED)
    views: dict[str, ViewSpec] = {}
    for dataset in _scaled_datasets(nanoset):
        views[scaled_name(dataset, scale)] = ViewSpec(of=dataset, split=split)
    return views


def _scaled_datasets(nanoset: NanosetSpec) -> tuple[str, ...]:
    """Return the datasets of which a smaller run reads a part only: all that train reads.

    Args:
        nanoset: The full run. If valid and test have data of their own, it is read in full.
    """
    if nanoset.blend_per_split:
        return corpora_of(nanoset.blend_per_split.get("train"))
    return nanoset.corpora  # the splits are shares of the same datasets


def _scaled_splits(nanoset: NanosetSpec) -> tuple[SplitName, ...]:
    """Return the splits of which a smaller run reads less: train, or all of them.

    If valid and test have data of their own, all runs are evaluated on the same documents, so that
    their losses can be compared. Otherwise, they are shares of the scaled data.

    Args:
        nanoset: The full run.
    """
    return ("train",) if nanoset.blend_per_split else SPLITS


def _scaled_nanoset(nanoset: NanosetSpec, scale: float) -> NanosetSpec:
    """Return the settings of a smaller training run, as a trial before the full run.

    At the scale 0.01, it has a hundredth of the samples, and reads a hundredth of the documents. So
    it reads each document as often as the full run. The selections of documents have names of their
    own:

        full run       {"blend": "web", "samples": {"train": 1000000}, …}
        smaller run    {"blend": "web-scale-0_01", "samples": {"train": 10000}, …}

    Args:
        nanoset: The settings of the full run.
        scale: The scale, such as 0.01.
    """
    return replace(
        nanoset,
        blend=_scaled_blend(nanoset.blend, scale),
        mix=_scaled_mix(nanoset.mix, scale),
        blend_per_split=_with_scaled_train(nanoset.blend_per_split, scale),
        max_epochs=_renamed_limits(nanoset.max_epochs, scale),
        samples=_scaled_samples(nanoset, scale),
        schedule=_scaled_schedule(nanoset.schedule, scale),
        phases=tuple(_scaled_phase(phase, scale) for phase in nanoset.phases),
        scales=(),  # a smaller run has no smaller runs
    )


def _with_scaled_train(
    blend_per_split: Mapping[SplitName, BlendSpec | None], scale: float
) -> FrozenDict[SplitName, BlendSpec | None]:
    """Return which data a smaller run reads for each split, if splits have data of their own.

    Of the training data, it reads a share of the documents. The data of valid and test stay the
    same, so that the losses of all runs can be compared.

    Args:
        blend_per_split: Split → its data in the full run, None if it has none. The mapping is empty
            if all splits share one blend, which the caller scales instead.
        scale: Size of the smaller run, as a share of the full one.
    """
    scaled = dict(blend_per_split)
    if "train" in scaled:
        scaled["train"] = _scaled_blend(scaled["train"], scale)
    return FrozenDict(scaled)


def _scaled_samples(nanoset: NanosetSpec, scale: float) -> FrozenDict[SplitName, int]:
    """Return the number of samples that a smaller run requests of each split.

    At a scale of 0.01, `{train: 100000, valid: 1000}` becomes `{train: 1000, valid: 10}`. If valid
    has data of its own, on which all runs are compared, it keeps its 1,000 samples.

    Args:
        nanoset: The full run.
        scale: Size of the smaller run, as a share of the full one.
    """
    samples = dict(nanoset.samples)
    for split in _scaled_splits(nanoset):
        if split in samples:
            samples[split] = _scaled_number(samples[split], scale)
    return FrozenDict(samples)


def _renamed_limits(
    max_epochs: float | Mapping[str, float] | None, scale: float
) -> float | Mapping[str, float] | None:
    """Return how often a smaller training run may read its documents: as often as the full run.

    Only the names differ, since it reads a selection of the documents:

        full run                          {"web": 4}
        smaller run, at the scale 0.01    {"web-scale-0_01": 4}

    Args:
        max_epochs: The limit of the full run: for each corpus, or one number for all of them.
        scale: The scale, which is part of the new names.
    """
    if not isinstance(max_epochs, Mapping):
        return max_epochs
    return FrozenDict({scaled_name(name, scale): limit for name, limit in max_epochs.items()})


def _scaled_number(number: int, scale: float) -> int:
    """Return a number of samples or iterations of a smaller run.

    At a scale of 0.01, 1,000 becomes 10. A small number, such as 10, becomes 1, but 0 stays 0.

    Args:
        number: The number of the full run.
        scale: Size of the smaller run, as a share of the full one.
    """
    at_least_1 = max(1, round(number * scale))
    return min(number, at_least_1)


def _scaled_blend(blend: BlendSpec | None, scale: float) -> BlendSpec | None:
    """Return which data a smaller training run reads, with the same weights as the full run.

    Instead of each corpus, it reads a selection of its documents, whose name has the scale:

        "web"                          → "web-scale-0_01"
        ("web", "code")                → ("web-scale-0_01", "code-scale-0_01")
        {"web": 0.7, "code": 0.3}      → {"web-scale-0_01": 0.7, "code-scale-0_01": 0.3}

    Args:
        blend: The data of the full run, in one of these forms; or None.
        scale: Size of the smaller run, such as 0.01.
    """
    if blend is None:
        return None
    if isinstance(blend, str):  # such as "web"
        return scaled_name(blend, scale)
    if isinstance(blend, Mapping):  # such as {"web": 0.7, "code": 0.3}
        return FrozenDict({scaled_name(name, scale): weight for name, weight in blend.items()})
    return tuple(scaled_name(name, scale) for name in blend)  # such as ("web", "code")


def _scaled_mix(mix: Mix | None, scale: float) -> Mix | None:
    """Return the mixture of data that a smaller training run reads, at a scale such as 0.01.

    A mixture can have groups, which are mixtures again. Instead of each corpus, the smaller run
    reads a selection of its documents, with another name. Numbers of tokens are smaller, too:

        full run       {web: {tokens: 1e9}, other: {mix: {code: {epochs: 2}}}}
        smaller run    {web-scale-0_01: {tokens: 1e7},
                        other: {mix: {code-scale-0_01: {epochs: 2}}}}

    Args:
        mix: Name of a corpus or group → its settings; None if the run has no mixture.
        scale: Size of the smaller run, as a share of the full one.
    """
    if mix is None:
        return None
    scaled_mix: dict[str, MixPart | float] = {}
    for name, part in parts_of_mix(mix).items():
        # A corpus is replaced by a selection of its documents. A group keeps its name.
        is_group = part.mix is not None
        new_name = name if is_group else scaled_name(name, scale)
        scaled_mix[new_name] = _scaled_part(part, scale)
    return FrozenDict(scaled_mix)


def _scaled_part(part: MixPart, scale: float) -> MixPart:
    """Return the settings of one part of the mixture that a smaller training run reads.

    A number of tokens becomes smaller, and shares stay the same. If the part is a group, this is
    done for each of its parts, too. At the scale 0.01:

        full run       {tokens: 1e9, mix: {code: 0.7}}
        smaller run    {tokens: 1e7, mix: {code-scale-0_01: 0.7}}

    Args:
        part: The part in the full run.
        scale: Size of the smaller run, as a share of the full one.
    """
    tokens = part.tokens
    if tokens is not None:
        tokens *= scale
    return replace(part, tokens=tokens, mix=_scaled_mix(part.mix, scale))


def _scaled_phase(phase: PhaseSpec, scale: float) -> PhaseSpec:
    """Return a phase of a smaller run, which ends earlier and reads views.

    At a scale of 0.01, `{blend: web, until: 1000}` becomes `{blend: web-scale-0_01, until: 10}`.

    Args:
        phase: The phase of the full run.
        scale: Size of the smaller run, as a share of the full one.
    """
    until = phase.until  # the iteration at which it ends; None for the last phase
    if until is not None:
        until = _scaled_number(until, scale)
    return replace(
        phase,
        blend=_scaled_blend(phase.blend, scale),
        mix=_scaled_mix(phase.mix, scale),
        until=until,
    )


def _scaled_schedule(schedule: ScheduleSpec | None, scale: float) -> ScheduleSpec | None:
    """Return the schedule of a smaller run: fewer iterations, with the same batch size.

    At a scale of 0.01, 100,000 iterations become 1,000.

    Args:
        schedule: The schedule of the full run, or None.
        scale: Size of the smaller run, as a share of the full one.
    """
    if schedule is None:
        return None
    return replace(schedule, iterations=_scaled_number(schedule.iterations, scale))
