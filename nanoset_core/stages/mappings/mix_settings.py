"""The key `mix` of a nanoset: a tree of shares, which divides the training data.

For example, `{web: 0.7, other: {share: 0.3, mix: {books: {}, code: {}}}}` gives 70 % to `web`, and
divides the rest among `books` and `code` in proportion to their tokens. The functions find the
mistakes in such a tree that can be found without the datasets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from nanoset_core.errors import ConfigError
from nanoset_core.records.frozen import FrozenDict
from nanoset_core.sampling.mix_tree import MixPart, Share
from nanoset_core.sampling.splits import plain_sum

Mix = Mapping[str, MixPart | Share]
"""Name of a corpus or group → its share, or its settings."""
_AMOUNTS = ("share", "tokens", "epochs")
_BOUNDS = ("share", "min_share", "max_share")
_TOLERANCE = 1e-9
"""By how much shares may miss 1, since 0.1 + 0.2 + 0.7 is not exactly 1."""


class DataKeys(NamedTuple):
    """The keys `blend` and `mix` of a nanoset, or of one of its phases."""

    key: str
    """Key of the phase below the nanoset, with a dot at its start; "" for the nanoset itself."""
    blend: str | tuple[str, ...] | Mapping[str, float] | None
    mix: Mix | None

    @property
    def is_phase(self) -> bool:
        """Whether they are the keys of a phase."""
        return self.key != ""

    @property
    def written(self) -> list[str]:
        """Which of the two keys nanoset.yaml has."""
        keys = []
        if self.blend is not None:
            keys.append("blend")
        if self.mix is not None:
            keys.append("mix")
        return keys


def unweighted(mix: Mix | None) -> FrozenDict[str, float] | None:
    """Return the corpora of a mixture of training data, each with the weight 1.

    Their true weights depend on the sizes of the corpora (collections of texts), and are computed
    later. Until then, this says which corpora are read:

        mix: {web: 0.7, other: {mix: {books: {}, code: {}}}}
        →    {"web": 1.0, "books": 1.0, "code": 1.0}

    Args:
        mix: The mixture, as the key `mix` of nanoset.yaml has it, or None.

    Returns:
        Name of each corpus → 1.0; None without a mixture.
    """
    if mix is None:
        return None
    corpora = MixPart(mix=mix).corpora
    return FrozenDict(dict.fromkeys(corpora, 1.0))


def mix_errors(
    where: str, data: Iterable[DataKeys], max_epochs: object, *, has_samples: bool
) -> Iterator[ConfigError]:
    """Yield the mistakes in the mixtures of a training run, the key `mix` in nanoset.yaml.

    A mixture divides training data. Each of its parts is a corpus (a collection of texts), or a
    group of further parts:

        mix: {web: 0.7, other: {share: 0.3, mix: {books: {}, code: {}}}}

    The run has several mixtures if it has phases, in which it reads different data.

    Args:
        where: The key of the training data in nanoset.yaml, such as "nanosets.pretrain".
        data: The keys `blend` and `mix` of the run, and of each of its phases.
        max_epochs: How often data may be read, if the key is next to the mixture. That is an error:
            it must be within the parts.
        has_samples: Whether the number of samples that train reads is known.
    """
    for keys in data:
        if keys.is_phase and len(keys.written) != 1:  # a phase has either a mixture or a blend
            yield _phase_data_error(where, keys)
        if keys.mix is None:
            continue

        mixture = MixPart(mix=keys.mix)  # as one group, which contains all parts
        mix_key = f"{where}{keys.key}.mix"  # such as "nanosets.pretrain.mix"
        yield from _repetition_errors(mix_key, mixture)
        yield from _part_errors(mix_key, mixture, has_samples=has_samples)
        if max_epochs is not None:
            yield _limit_outside_mix_error(where, max_epochs)


def _limit_outside_mix_error(where: str, max_epochs: object) -> ConfigError:
    """Return the error for `max_epochs` next to a mixture, instead of in its parts.

        wrong    max_epochs: 4, mix: {web: {share: 0.7}, code: {share: 0.3}}
        right    mix: {web: {share: 0.7, max_epochs: 4}, code: {share: 0.3}}

    Args:
        where: The key of the nanoset (the data of a training run), for the error.
        max_epochs: The limit, such as 4.
    """
    return ConfigError(
        "next to `mix`, `max_epochs` has no effect: each part of a mixture has its own limit",
        where=f"{where}.max_epochs",
        found=max_epochs,
        remedy="write max_epochs within `mix`",
    )


def _phase_data_error(where: str, keys: DataKeys) -> ConfigError:
    """Return the error for a phase of a run that does not say once which data it reads.

    A phase needs one of the keys `blend` and `mix`. This one has both, or neither.

    Args:
        where: The key of the nanoset.
        keys: The keys of the phase.
    """
    return ConfigError(
        "the data of a phase must be given once",
        where=where + keys.key,
        found=" and ".join(keys.written) or "neither",
        expected="one of blend, mix",
        remedy="add a blend, or a mix",
    )


def _repetition_errors(where: str, tree: MixPart) -> Iterator[ConfigError]:
    """Yield an error if a mixture of training data names a corpus in several places.

    For example, `{web: 0.5, other: {mix: {web: {}, code: {}}}}` has web twice: alone, and in the
    group "other". The weights of a run are stored by name, so web can have only one.

    Args:
        where: The key of the mixture in nanoset.yaml, for the error.
        tree: The mixture: a tree of groups, with corpora as leaves.
    """
    count_by_corpus = Counter(tree.corpora)
    repeated = [corpus for corpus, count in count_by_corpus.items() if count > 1]
    if repeated:
        yield ConfigError(
            "a corpus is named twice",
            where=where,
            found=", ".join(repeated),
            remedy="remove the repetition; to read it more often, give it a greater share",
        )


def _part_errors(
    where: str, part: MixPart, outer_limit: float | None = None, *, has_samples: bool
) -> Iterator[ConfigError]:
    """Yield the mistakes in one part of a mixture of training data, and in the parts within it.

    A part is a corpus (a collection of texts), or a group of further parts:

        web: {share: 0.7}
        other: {share: 0.3, max_epochs: 4, mix: {books: {}, code: {max_epochs: 2}}}

    Args:
        where: Key of the part in nanoset.yaml, for the errors.
        part: The part: a corpus, or a group.
        outer_limit: How often a corpus may be read, according to the groups around this part: for
            `books` in the example, 4.
        has_samples: Whether the number of samples that are read for training is known.
    """
    limit = part.inner_limit(outer_limit)  # 2 for `code`, in place of 4
    yield from _amount_errors(where, part, limit)
    if not has_samples:
        yield from _absolute_key_errors(where, part)

    if part.mix is not None:  # a group
        yield from _group_errors(where, part)
        for name, inner_part in part.parts.items():
            yield from _part_errors(f"{where}.{name}", inner_part, limit, has_samples=has_samples)


def _absolute_key_errors(where: str, part: MixPart) -> Iterator[ConfigError]:
    """Yield an error if a part of a mixture has an amount, but the total is not known.

    Trainers need shares. `tokens: 1e6` becomes the share 0.5 only if 2 million tokens are read in
    all, which the settings do not say:

        {share: 0.5}      fine
        {tokens: 1e6}     an error
        {max_epochs: 4}   an error, too

    Args:
        where: Key of the part in nanoset.yaml, for the errors.
        part: The part, such as a collection of texts.
    """
    for key in ("tokens", "epochs", "max_epochs"):
        if getattr(part, key) is not None:
            yield ConfigError(
                "this needs the number of train's samples",
                where=f"{where}.{key}",
                remedy="add `schedule`, or `samples: {train: …}`",
            )
            return  # one error for each part is enough


def _amount_errors(where: str, part: MixPart, limit: float | None) -> Iterator[ConfigError]:
    """Yield the mistakes in how much of a part of a mixture is to be read.

        {share: 0.5, epochs: 2}             two amounts: which one counts?
        {min_share: 0.6, max_share: 0.4}    no share is possible
        {temperature: 0.5}                  divides a group among its parts, but this is no group
        {epochs: 5, max_epochs: 4}          read more often than allowed

    Args:
        where: Key of the part in nanoset.yaml, for the errors.
        part: The part: a corpus, or a group of corpora.
        limit: Its `max_epochs`, or that of a group around it.
    """
    yield from _excluding_key_errors(where, part)
    if part.temperature is not None and part.mix is None:
        yield ConfigError(
            "a temperature divides a group among its parts, and this is a corpus",
            where=f"{where}.temperature",
            remedy="write it in the group around the corpus",
        )
    yield from _bound_errors(where, part)
    if part.epochs is not None and limit is not None and part.epochs > limit:
        yield ConfigError(
            "it is to be read more often than it may be",
            where=f"{where}.epochs",
            found=limit,
            remedy="raise max_epochs, or lower epochs",
        )


def _bound_errors(where: str, part: MixPart) -> Iterator[ConfigError]:
    """Yield an error if the smallest share of a part is above its largest one.

    These two keys limit the share that a part gets of the group around it: `{min_share: 0.6,
    max_share: 0.4}` is an error. Without the keys, they are 0 and 1.

    Args:
        where: Key of the part in nanoset.yaml, for the errors.
        part: The part of a mixture.
    """
    floor = part.min_share or 0.0
    cap = 1.0 if part.max_share is None else part.max_share
    if floor > cap:
        yield ConfigError(
            "the floor is above the cap",
            where=f"{where}.min_share",
            found=f"{floor:g} to {cap:g}",
            remedy="lower min_share, or raise max_share",
        )


def _excluding_key_errors(where: str, part: MixPart) -> Iterator[ConfigError]:
    """Yield an error for keys of a part of a mixture that exclude each other.

        {tokens: 1e9, epochs: 2}           two amounts: which one counts?
        {tokens: 1e9, max_share: 0.5}      the amount is fixed, so a limit of the share does nothing
        {share: 0.3, max_share: 0.5}       fine

    Args:
        where: Key of the part in nanoset.yaml, for the errors.
        part: The part.
    """
    amounts = [name for name in _AMOUNTS if getattr(part, name) is not None]
    bounds = [name for name in _BOUNDS if getattr(part, name) is not None]
    if len(amounts) > 1:
        yield ConfigError(
            "share, tokens and epochs each say how much of it is read",
            where=where,
            found=", ".join(amounts),
            remedy="keep one of them",
        )
    elif amounts and amounts[0] != "share" and bounds:
        yield _useless_bound_error(f"{where}.{bounds[0]}", amounts[0])


def _group_errors(where: str, group: MixPart) -> Iterator[ConfigError]:
    """Yield the mistakes in how the parts of a group divide its training data.

    A part may have a fixed amount (`tokens` or `epochs`). All others need a share of the rest:

        {web: {share: 0.7}, code: {share: 0.3}, books: {tokens: 1e9}}    web: 0.7 of the rest
        {web: {share: 0.7}, code: {}}                                    an error: no share of code
        {web: {min_share: 0.6}, code: {min_share: 0.6}}                  an error: more than 1

    Args:
        where: Key of the group in nanoset.yaml, for the errors.
        group: The group. Its parts are corpora (collections of texts), or further groups.
    """
    if not group.parts:
        yield ConfigError(
            "a group without parts",
            where=where,
            remedy="name a corpus, or remove the group",
        )
        return
    # All other rules are for the parts without a fixed amount, which divide the rest.
    sharing_parts = {name: part for name, part in group.parts.items() if not part.has_fixed_amount}
    if not sharing_parts:
        yield from _fixed_group_errors(where, group)
    all_parts_share = len(sharing_parts) == len(group.parts)
    yield from _share_errors(where, sharing_parts)
    yield from _temperature_errors(where, group, sharing_parts.values())
    yield from _total_errors(where, sharing_parts.values(), all_parts_share=all_parts_share)


def _fixed_group_errors(where: str, group: MixPart) -> Iterator[ConfigError]:
    """Yield an error if a group has a share, although the amounts of all its parts are fixed.

    Then the amount of the group is their sum, whatever its share is:

        {mix: {old: {tokens: 1e8}, new: {epochs: 2}}}               fine
        {share: 0.3, mix: {old: {tokens: 1e8}, new: {epochs: 2}}}   an error: `share` has no effect

    Args:
        where: Key of the group in nanoset.yaml, for the error.
        group: The group.
    """
    useless_keys = [name for name in _BOUNDS if getattr(group, name) is not None]
    if useless_keys:
        yield _useless_bound_error(f"{where}.{useless_keys[0]}", "tokens or epochs of each part")


def _share_errors(where: str, parts: Mapping[str, MixPart]) -> Iterator[ConfigError]:
    """Yield an error if some parts of a mixture have a share, and others have none.

    A mixture divides the training data among its parts. If none has a share, they are read in
    proportion to their sizes. In `{web: {share: 0.7}, code: {}}`, it would be open how much of code
    is read.

    Args:
        where: Key of the group of parts in nanoset.yaml, for the error.
        parts: The parts, by name. Those with a fixed number of tokens or epochs are not among them.
    """
    has_share = [part.share is not None for part in parts.values()]
    if any(has_share) and not all(has_share):
        yield ConfigError(
            "some of these parts have a share, and others have none",
            where=where,
            found=", ".join(parts),
            remedy=(
                "give each of them a share, or none of them: "
                "then they are read in proportion to their tokens"
            ),
        )


def _temperature_errors(
    where: str, group: MixPart, parts: Collection[MixPart]
) -> Iterator[ConfigError]:
    """Yield an error if the key `temperature` of a group of corpora has no effect.

    It changes shares that follow from the sizes of the corpora. If these have 900 and 100 tokens:

        without a temperature      shares of 0.9 and 0.1
        temperature: 0.5           0.75 and 0.25, by the square roots of the sizes: 30 and 10

    It has no effect if the parts have shares, or fixed amounts such as `tokens: 1e9`.

    Args:
        where: Key of the group in nanoset.yaml, for the error.
        group: The group.
        parts: Those of its parts that have no fixed amount.
    """
    if group.temperature is None:
        return
    fixed_by = None
    if not parts:
        fixed_by = "tokens or epochs of each part"
    elif any(part.share is not None for part in parts):
        fixed_by = "shares of its parts"
    if fixed_by is not None:
        yield ConfigError(
            "the parts of the group have fixed shares, so that a temperature has no effect",
            where=f"{where}.temperature",
            found=fixed_by,
            remedy="remove the temperature, or the shares",
        )


def _total_errors(
    where: str, parts: Collection[MixPart], *, all_parts_share: bool
) -> Iterator[ConfigError]:
    """Yield an error if the parts of a group cannot have shares that add up to 1.

        {web: {min_share: 0.6}, code: {min_share: 0.6}}      an error: at least 1.2
        {web: {max_share: 0.4}, code: {max_share: 0.4}}      an error: at most 0.8
        {web: {max_share: 0.4}, code: {}}                    fine: code gets the rest

    Args:
        where: Key of the group in nanoset.yaml, for the errors.
        parts: Its parts, without those that have a fixed number of tokens or epochs.
        all_parts_share: Whether no part has a fixed number. Otherwise, these parts need not add up
            to 1.
    """
    total_floor = plain_sum([part.min_share or 0.0 for part in parts])
    if total_floor > 1 + _TOLERANCE:
        yield ConfigError(
            "the floors of these parts add up to more than 1",
            where=where,
            found=f"{total_floor:g}",
            remedy="lower them: they are parts of their parent",
        )
    total_cap = plain_sum([1.0 if part.max_share is None else part.max_share for part in parts])
    if all_parts_share and total_cap < 1 - _TOLERANCE:
        yield ConfigError(
            "the caps of these parts add up to less than 1",
            where=where,
            found=f"{total_cap:g}",
            remedy="raise them: they are parts of their parent",
        )


def _useless_bound_error(where: str, amount: str) -> ConfigError:
    """Return the error for a key that limits the share of a part whose amount is fixed anyway.

    For example, `{tokens: 1e9, max_share: 0.5}` always reads 1 billion tokens.

    Args:
        where: Place of the key.
        amount: What fixes the amount, such as "tokens".
    """
    return ConfigError(
        "the amount is fixed, so that a share, floor or cap of it has no effect",
        where=where,
        found=amount,
        remedy="remove the key",
    )
