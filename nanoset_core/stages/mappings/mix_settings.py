"""Mistakes in the mixture of a nanoset that can be told without its datasets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from nanoset_core.errors import ConfigError
from nanoset_core.records.parsing import FrozenDict, Rule, broken
from nanoset_core.sampling.mixture import MixPart, Share
from nanoset_core.sampling.splits import plain_sum

_TEXTS = {
    "empty": ("a group without parts", "name a corpus, or remove the group"),
    "twice": ("a corpus is named twice", "remove the repetition; to read it more often, give it a greater share"),
    "amounts": ("share, tokens and epochs each say how much of it is read", "keep one of them"),
    "bounds": ("the amount is given, so that a share, floor or cap of it has no effect", "remove the key"),
    "crossed": ("the floor is above the cap", "lower min_share, or raise max_share"),
    "often": ("it is to be read more often than it may be", "raise max_epochs, or lower epochs"),
    "some": (
        "some of these parts have a share, and others have not",
        "give each of them a share, or none: then they are read in proportion to their tokens",
    ),
    "floors": ("the floors of these parts add up to more than 1", "lower them: they are parts of their parent"),
    "caps": ("the caps of these parts add up to less than 1", "raise them: they are parts of their parent"),
    "data": ("the data of a phase must be given once", "give it a blend, or a mix", "one of blend, mix"),
    "limit": ("a mixture has limits of its own", "write max_epochs within `mix`"),
    "samples": ("this needs the number of train's samples", "add `schedule`, or `samples: {train: …}`"),
}
"""Rule of a mixture → what is wrong, and the remedy; see `broken`."""


Mix = Mapping[str, MixPart | Share]


def unweighted(mix: Mix | None) -> FrozenDict[str, float] | None:
    """Return the corpora of a tree, each of weight 1: what stands for a blend until its weights are worked out."""
    return None if mix is None else FrozenDict(dict.fromkeys(MixPart(mix=mix).corpora, 1.0))


def sources(blend: object, mix: Mix | None) -> list[str]:
    """Return which of the keys `blend` and `mix` are written."""
    written = {"blend": blend not in (None, unweighted(mix)), "mix": mix is not None}
    return [key for key, is_there in written.items() if is_there]


def mix_errors(
    where: str, data: Iterable[tuple[str, object, Mix | None]], samples: object, max_epochs: object
) -> Iterator[ConfigError]:
    """Yield an error for each part of a nanoset's mixtures that contradicts itself, or others.

    Args:
        where: the key of the nanoset.
        data: (key below it, blend, mixture) of the nanoset, whose key is "", and of its phases.
        samples: what tells how many samples train has, if that is known.
        max_epochs: the nanoset's.
    """
    for key, blend, mix in data:
        given = sources(blend, mix)
        yield from broken(where + key, _TEXTS, (key and len(given) != 1, "data", "", " and ".join(given) or "neither"))
        if mix is None:
            continue
        tree = MixPart(mix=mix)
        twice = [corpus for corpus, count in Counter(tree.corpora).items() if count > 1]
        rules = (bool(twice), "twice", "", ", ".join(twice)), *_rules(tree, "", None, has_samples=bool(samples))
        yield from broken(f"{where}{key}.mix", _TEXTS, *rules)
        yield from broken(where, _TEXTS, (max_epochs is not None, "limit", ".max_epochs", max_epochs))


def _rules(part: MixPart, key: str, limit: float | None, *, has_samples: bool) -> Iterator[Rule]:
    limit = limit if part.max_epochs is None else part.max_epochs
    given = [name for name in ("share", "tokens", "epochs") if getattr(part, name) is not None]
    bounds = [name for name in ("share", "min_share", "max_share") if getattr(part, name) is not None]
    sized = next((name for name in ("tokens", "epochs", "max_epochs") if getattr(part, name) is not None), None)
    yield len(given) > 1, "amounts", key, ", ".join(given)
    first, target = next(iter(bounds), ""), part.tokens is not None or part.epochs is not None
    yield len(given) == 1 and target and bounds, "bounds", f"{key}.{first}", ", ".join(given)
    low, high = part.min_share or 0.0, 1.0 if part.max_share is None else part.max_share
    yield low > high, "crossed", f"{key}.min_share", f"{low:g} to {high:g}"
    yield part.epochs is not None and limit is not None and part.epochs > limit, "often", f"{key}.epochs", limit
    yield sized and not has_samples, "samples", f"{key}.{sized}", None
    if part.mix is None:
        return
    parts = part.parts
    free = [one for one in parts.values() if not one.is_given]
    shares, floors = [one.share is not None for one in free], [one.min_share or 0.0 for one in free]
    caps = [1.0 if one.max_share is None else one.max_share for one in free]
    yield not parts, "empty", key, None
    yield bool(parts) and not free and bounds, "bounds", f"{key}.{first}", "tokens or epochs of each part"
    yield any(shares) and not all(shares), "some", key, ", ".join(name for name in parts if parts[name] in free)
    yield plain_sum(floors) > 1 + 1e-9, "floors", key, f"{plain_sum(floors):g}"
    yield free and len(free) == len(parts) and plain_sum(caps) < 1 - 1e-9, "caps", key, f"{plain_sum(caps):g}"
    for name, one in parts.items():
        yield from _rules(one, f"{key}.{name}", limit, has_samples=has_samples)
