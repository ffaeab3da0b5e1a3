"""Compute the weights of a mixture: a tree of corpora with shares, floors, caps and targets.

Trainers know only flat weights. In nanoset.yaml a mixture is a tree, whose parts are corpora or
groups of parts:

    mix:
      english: {share: 0.6, mix: {web: 3, books: {share: 1, max_epochs: 2}}}
      math: {tokens: 20e9}
      code: {share: 0.3}

All amounts here are fractions of the training samples, from 0 to 1, computed in two passes:

1. From the corpora to the root: which fractions can each part have? A target (`tokens`, `epochs`)
   fixes the fraction of a part, and `max_epochs` limits it.
2. From the root to the corpora: what a group has, less the targets within it, is divided among
   its other parts in proportion to their shares. If that is outside of a part's bounds, the part
   gets its bound, and the others share the rest (`bounded_division.py`).

If train takes 100e9 tokens in the example, and books have 5e9:

1. math has the target 0.2. books can have at most 0.1, which is two epochs.
2. The root leaves 0.8 for english and code, whose shares are 2 to 1: 0.533 and 0.267. english is
   divided 3 to 1, which would be 0.4 and 0.133. That is too much for books: they get 0.1, and web
   gets the rest, 0.433.

The weights are 0.433 for web, 0.1 for books, 0.2 for math and 0.267 for code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from nanoset_core.errors import InputError
from nanoset_core.sampling.bounded_division import Bounds, divide_within_bounds
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.epoch_limits import most_samples
from nanoset_core.sampling.mix_tree import MixPart
from nanoset_core.sampling.split_data import LengthReader, SplitData
from nanoset_core.sampling.splits import SPLITS, SplitName, plain_sum

_TOLERANCE = 1e-9
"""Amounts that differ by less are equal: it is less than a sample of any run."""
_ROUNDING_SAMPLES = 0.001
"""Samples by which amounts in epochs are lowered, since trainers round samples up."""
_TOO_MUCH_REMEDY = (
    "raise max_share or max_epochs, add text or parts, or request less of it, or fewer samples"
)
_TOO_LITTLE_REMEDY = (
    "lower tokens, epochs or min_share within it, request more of it, or more samples"
)

MixPath = tuple[str, ...]
"""Names from the root of a tree to a part; empty for the root."""


@dataclass(frozen=True, slots=True)
class MixRow:
    """The amount of one part of a mixture, as plans and tables show it."""

    name: str
    """Name of the part in the mixture."""
    depth: int
    """Number of groups around it."""
    asked: float | None
    """Amount that its share would give it without bounds; None if it has tokens or epochs."""
    given: float
    """Amount that it gets."""
    tokens: int | None
    """Tokens that train takes of it; None if no number of samples is requested."""
    epochs: float | None
    """How often train reads it; for a group, the average. None if no number of samples is
    requested.
    """
    decided_by: str
    """Key that decides its amount: its own, or `temperature` of the group around it.

    It is "size" if the amount is in proportion to the tokens of siblings, and "its parts" if parts
    within a group decide it.
    """


@dataclass(frozen=True, slots=True)
class Mixture:
    """The weights of a mixture, and how they come about."""

    weights: tuple[float, ...]
    """Weight of each corpus, in the order written; their sum is 1."""
    rows: tuple[MixRow, ...]
    """The parts in the order written, each followed by the parts within it."""


def mixture_of(mix: MixPart, config: NanosetConfig, reader: LengthReader | None = None) -> Mixture:
    """Compute the weight of each corpus of a mixture, which says what a model is trained on.

    A mixture is a tree of corpora (collections of texts) and groups of corpora. Trainers know only
    one weight for each corpus. For example, english has half of the samples, and divides it 3 to 1:

        mix:                                                      weights
          english: {share: 1, mix: {web: 3, books: 1}}            web 0.375, books 0.125
          code: {share: 1}                                        code 0.5

    Other settings say how many tokens are read of a corpus, or how often it is read at most. So the
    weights depend on how many tokens each corpus has. The data is divided into train, valid and
    test, and the tokens are counted in train; or if train has no share of the data, in the first of
    the others that has one.

    Args:
        mix: The whole tree.
        config: What is trained: the split, the number of samples, and the datasets. It has one
            dataset for each corpus of the tree, in the order of the tree.
        reader: Reads the datasets' `.idx` files, which have the sizes; share it between calls for
            the same files.

    Raises:
        InputError: A corpus has no tokens in the split, or settings contradict each other.
        ConfigError: A boundary of the split is outside of a dataset.
    """
    split = _first_split(config)
    data = SplitData(config, split, reader or LengthReader())
    tokens_by_prefix = data.tokens_by_prefix()
    _check_corpora_have_tokens(mix, tokens_by_prefix, split)

    # The configuration lists the datasets in the order in which the tree has the corpora.
    prefixes = list(tokens_by_prefix)
    prefix_by_path = dict(zip(_corpus_paths(mix, ()), prefixes, strict=True))
    n_samples = _samples_of_phase(config, split)
    return _Mixer(config, prefix_by_path, tokens_by_prefix, n_samples).mix(mix)


def _check_corpora_have_tokens(
    mix: MixPart, tokens_by_prefix: Mapping[str, int], split: SplitName
) -> None:
    """Check that every corpus (collection of texts) of a training mixture has tokens.

    A corpus without any cannot have its share of the mixture. For example, this is an error that
    names "books":

        mix.corpora         ("web",                "books")
        tokens_by_prefix    {"data/web": 5000000,  "data/books": 0}

    Args:
        mix: The whole mixture.
        tokens_by_prefix: Path of each corpus's dataset → its tokens, in the order of `mix.corpora`.
        split: The split (train, valid or test) that the tokens are of, for the message.

    Raises:
        InputError: A corpus has no tokens in the split.
    """
    for corpus, tokens in zip(mix.corpora, tokens_by_prefix.values(), strict=True):
        if tokens == 0:
            raise InputError(
                f"a corpus of the mixture has no tokens in {split}",
                where="mix",
                found=corpus,
                remedy="leave it out, add text, or change `split`",
            )


def _samples_of_phase(config: NanosetConfig, split: SplitName) -> int | None:
    """Return how many samples of a split training still has to read.

    A run that continues with another mixture has read some of them before. For example, of 1,000
    samples 400 were read, which leaves 600. None if no number is requested: then all data is read
    once.
    """
    n_samples = config.samples(split)
    if n_samples is None:
        return None
    return n_samples - config.consumed_samples


def _first_split(config: NanosetConfig) -> SplitName:
    """Return the first split that has a share of the data: nearly always train."""
    for split, share in zip(SPLITS, config.shares(), strict=True):
        if share > 0:
            return split
    raise AssertionError("the shares of splits add up to 1")


def _corpus_paths(part: MixPart, path: MixPath) -> list[MixPath]:
    """Return where the corpora of a mixture are in its tree of groups.

    For example, {english: {mix: {web: 3, books: 1}}, code: 1} has the paths ("english", "web"),
    ("english", "books") and ("code",).

    Args:
        part: A group of the mixture, or a corpus, which is a collection of texts.
        path: Its own path; () for the whole mixture.
    """
    if not part.parts:
        return [path]  # a corpus
    paths = []
    for name, child in part.parts.items():
        paths += _corpus_paths(child, (*path, name))
    return paths


@dataclass(frozen=True, slots=True)
class _Part:
    """A corpus or group of a mixture, and which fraction of the training samples it can have."""

    path: MixPath
    """Its path in the tree, such as ("english", "books")."""
    settings: MixPart
    """The settings of the part."""
    tokens: int
    """Tokens of one epoch."""
    children: tuple[_Part, ...]
    """The parts of a group; empty for a corpus."""
    min_fraction: float
    """Smallest fraction of the training samples, so that targets within the part can be reached."""
    max_fraction: float
    """Largest fraction of the training samples, so that no corpus exceeds its `max_epochs`."""
    target: float | None = None
    """The fraction that it gets whatever its siblings have, if its settings say so."""
    temperature: float | None = None
    """Power of its tokens that is its weight among its siblings if it has no share; None for 1."""

    @property
    def where(self) -> str:
        """The key of the part in the settings of a nanoset, such as "mix.english.books"."""
        return ".".join(("mix", *self.path))

    @property
    def corpora(self) -> list[_Part]:
        """All corpora within the part; for a corpus, itself."""
        if not self.children:
            return [self]
        corpora = []
        for child in self.children:
            corpora += child.corpora
        return corpora


class _Allotment(NamedTuple):
    """Which fraction of the training samples a part of a mixture gets, from 0 to 1."""

    part: _Part
    """The corpus or group."""
    group_fraction: float
    """Fraction of the group around it."""
    fraction_by_share: float | None
    """Fraction that its share alone would give it; None if it has a target."""
    fraction: float
    """Fraction that it gets."""


class _Mixer:
    """Divides the samples of train among the parts of a tree.

    Args:
        config: Configuration of the nanoset.
        prefix_by_path: Path of each corpus in the tree → prefix of its dataset.
        tokens_by_prefix: Prefix → tokens that the split has of the dataset.
        samples: Samples of the split that are still to be read; None if no number is requested.
    """

    def __init__(
        self,
        config: NanosetConfig,
        prefix_by_path: Mapping[MixPath, str],
        tokens_by_prefix: Mapping[str, int],
        samples: int | None,
    ) -> None:
        self.config = config
        self.prefix_by_path = prefix_by_path
        self.tokens_by_prefix = tokens_by_prefix
        self.samples = samples

    def mix(self, mix: MixPart) -> Mixture:
        """Compute what each part of a mixture gets, and from that the weight of each corpus.

        It takes two passes through the tree of corpora (collections of texts) and groups:

        1. From the corpora to the root: how much can each part have at least and at most? For
           example, books can have at most 0.1 of the training samples, because they may be read
           only twice.
        2. From the root to the corpora: how much does each part get?

        Args:
            mix: The whole tree.

        Raises:
            InputError: The settings contradict each other.
        """
        # First pass, from the corpora to the root: which fractions can each part have?
        root = self._build_part(mix, path=(), outer_limit=None)
        # Second pass, from the root to the corpora: which fraction does each part get?
        allotments = self._divide(root, fraction=1.0)

        rows = tuple(self._row(allotment) for allotment in allotments)
        return Mixture(_weights_of_corpora(allotments), rows)

    def _build_part(self, settings: MixPart, path: MixPath, outer_limit: float | None) -> _Part:
        """Find the smallest and the largest fraction of the training samples that a part can have.

        A mixture says which texts a model is trained on. It is a tree whose parts are corpora
        (collections of texts), or groups of parts:

            mix:
              english: {share: 1, mix: {web: 3, books: {share: 1, max_epochs: 2}}}
              math: {tokens: 20e9}

        If training takes 100e9 tokens, and there are 5e9 tokens of books:

            part       smallest    largest    because
            web        0           1          nothing limits how often it is read
            books      0           0.1        `max_epochs`: its text may be read twice, 10e9 tokens
            english    0           1          it consists of web and books
            math       0.2         0.2        `tokens`: this is its target, and it has no choice

        Whether all of these can be reached together is checked later.

        Args:
            settings: The settings of the part.
            path: Names from the root of the tree to the part, such as ("english", "books").
            outer_limit: `max_epochs` of the group around it; None for no limit.

        Raises:
            InputError: Its `tokens` or `epochs` (which also sets a target) are less or more than it
                can have.
        """
        # `max_epochs` of the part overrides that of the group around it.
        max_epochs = settings.inner_limit(outer_limit)
        if settings.parts:
            part = self._build_group(settings, path, max_epochs)
        else:
            part = self._build_corpus(settings, path, max_epochs)

        if settings.has_fixed_amount:
            return _with_target(part, self._target(part))
        return part

    def _build_group(self, settings: MixPart, path: MixPath, max_epochs: float | None) -> _Part:
        """Find the smallest and the largest fraction of the training samples that a group can have.

        A group of a mixture consists of corpora, which are collections of texts, and other groups.
        It can have what its parts can have together:

            part of the group      smallest fraction    largest fraction
            web                    0                    0.3
            books                  0.05                 0.1
            group                  0.05                 0.4

        Args:
            settings: The settings of the group.
            path: Names from the root of the mixture to the group, such as ("english",).
            max_epochs: How often training may read each corpus of the group; None for no limit.
        """
        children = []
        for name, child_settings in settings.parts.items():
            child = self._build_part(child_settings, (*path, name), max_epochs)
            # `temperature` is a setting of the group, but decides how its direct parts are
            # weighted.
            children.append(replace(child, temperature=settings.temperature))

        min_fraction = plain_sum(child.min_fraction for child in children)
        max_fraction = plain_sum(child.max_fraction for child in children)
        return _Part(
            path=path,
            settings=settings,
            tokens=sum(child.tokens for child in children),
            children=tuple(children),
            # More than 1, all samples, is impossible. A later check refuses it with a message.
            min_fraction=min_fraction,
            # Several parts without a limit can have 1 each, but the group cannot have more than 1.
            max_fraction=min(max_fraction, 1.0),
        )

    def _build_corpus(self, settings: MixPart, path: MixPath, max_epochs: float | None) -> _Part:
        """Find the largest fraction of the training samples that a corpus can have.

        A corpus is a collection of texts. Without a limit, all training samples can be from it:
        the fraction is 1. With a limit, it depends on the corpus's size:

            samples in one epoch of the corpus       100
            max_epochs                                 2    so at most 200 samples
            read earlier in this training run         50    so at most 150 more
            samples that training still reads      1,000    so the fraction is at most 0.15

        Args:
            settings: The settings of the corpus.
            path: Names from the root of the mixture to the corpus, such as ("english", "books").
            max_epochs: How often the whole training run may read the corpus; None for no limit.
        """
        prefix = self.prefix_by_path[path]  # path of the corpus's dataset, such as "data/books"
        tokens = self.tokens_by_prefix[prefix]

        if max_epochs is None:
            max_fraction = 1.0
        else:
            # A run that changes its mixture midway remembers what it has read of each dataset.
            samples_before = 0
            if prefix in self.config.orders:
                samples_before = self.config.orders[prefix].taken
            max_fraction = self._fraction_of_epochs(tokens, max_epochs, samples_before)
        return _Part(
            path=path,
            settings=settings,
            tokens=tokens,
            children=(),
            min_fraction=0.0,
            max_fraction=max_fraction,
        )

    def _target(self, part: _Part) -> float:
        """Return the fraction of the training samples that the settings of a part demand.

        Such settings of a mixture say how much is read of a corpus, whatever else is in the
        mixture. There are three cases. In the examples, training takes 100e9 tokens, and books have
        5e9:

            math: {tokens: 20e9}                                      20e9 / 100e9 = 0.2
            books: {epochs: 2}                                    2 * 5e9 / 100e9 = 0.1
            extra: {mix: {math: {tokens: 20e9}, books: {epochs: 2}}}      0.2 + 0.1 = 0.3

        Args:
            part: A corpus, or a group of corpora. It is of one of these cases.
        """
        settings = part.settings
        if settings.tokens is not None:
            return self._fraction_of_tokens(settings.tokens)
        if settings.epochs is not None:
            return self._fraction_of_corpora(part.corpora, settings.epochs)

        # A group whose parts all have targets, which were computed before.
        targets_of_parts = [child.target for child in part.children if child.target is not None]
        return plain_sum(targets_of_parts)

    def _fraction_of_tokens(self, tokens: float) -> float:
        """Return which fraction of the training samples a number of tokens is."""
        samples = tokens / self.config.step  # samples start `step` tokens apart
        return samples / self._n_train_samples

    def _fraction_of_corpora(self, corpora: Sequence[_Part], epochs: float) -> float:
        """Return which fraction of the training samples some epochs of each of these corpora are.

        For example, two epochs of 100 and 50 samples are 300 of 1,000 samples: 0.3. What a run read
        before it changed its mixture does not count, since `epochs` are those that it is to read
        now.
        """
        fractions = []
        for corpus in corpora:
            fractions.append(self._fraction_of_epochs(corpus.tokens, epochs, samples_before=0))
        return plain_sum(fractions)

    @property
    def _n_train_samples(self) -> int:
        """Number of training samples that are still to be read, by which others are divided.

        It is 1 if no number is requested. A mixture then has only shares, for which this number
        does not matter.
        """
        return self.samples or 1

    def _fraction_of_epochs(self, tokens: int, epochs: float, samples_before: int) -> float:
        """Return which fraction of the training samples some epochs of a corpus are.

        For example, a corpus has 100 samples, and training takes 1,000 samples. Then two epochs of
        the corpus are 0.2 of them; or 0.15, if 50 of the corpus's samples were read before.

        Args:
            tokens: Tokens of one epoch of the corpus.
            epochs: Number of epochs.
            samples_before: How many samples of these epochs the training run has read already,
                before it changed its mixture.
        """
        samples = most_samples(tokens, epochs, self.config) - samples_before
        # Trainers round numbers of samples up. A thousandth of a sample less prevents that they
        # read one sample too many.
        samples_to_read = max(samples - _ROUNDING_SAMPLES, 0.0)
        return samples_to_read / self._n_train_samples

    def _divide(self, part: _Part, fraction: float) -> list[_Allotment]:
        """Divide the samples of a group among its parts, and so on down to the corpora.

        The amount of samples is given as a fraction of all training samples. For example, the group
        english has 0.4, and the shares below divide it:

            english: {share: 1, mix: {web: 3, books: {share: 1, mix: {novels: 1, poems: 1}}}}

            part        fraction
            web         0.3
            books       0.1
            novels      0.05
            poems       0.05

        Args:
            part: The group. Or a corpus, which has no parts: then the result is empty.
            fraction: Its fraction of all training samples.

        Returns:
            The fraction of each part within the group, in the order of the example.

        Raises:
            InputError: No fractions fulfil all settings, or nothing is left for a part.
        """
        allotments = []
        for allotment in self._divide_among_children(part, fraction):
            child = allotment.part
            if allotment.fraction <= _TOLERANCE:
                raise _nothing_left_error(child, part, fraction)
            allotments.append(allotment)
            allotments += self._divide(child, allotment.fraction)
        return allotments

    def _divide_among_children(self, part: _Part, fraction: float) -> list[_Allotment]:
        """Divide the samples of a group among its direct parts.

        Some parts have a *target*: they get the same number of samples whatever the group has. The
        others divide the rest. For example, a group has 0.5 of all training samples:

            part       settings          gets
            math       tokens: 20e9      0.2     (its target)
            web        share: 2          0.2     (two thirds of the other 0.3)
            books      share: 1          0.1     (one third)

        Args:
            part: The group. Or a corpus, which has no parts: then the result is empty.
            fraction: Its fraction of all training samples.

        Returns:
            The fraction of each direct part, in the order of nanoset.yaml.

        Raises:
            InputError: The parts cannot have that much, or need more.
        """
        if not part.children:
            return []
        allotment_by_path = {}
        for allotment in _divide_by_weight(part, fraction):
            allotment_by_path[allotment.part.path] = allotment
        for child in part.children:
            if child.target is not None:
                allotment_by_path[child.path] = _Allotment(
                    part=child,
                    group_fraction=fraction,
                    fraction_by_share=None,
                    fraction=child.target,
                )
        return [allotment_by_path[child.path] for child in part.children]

    def _row(self, allotment: _Allotment) -> MixRow:
        """Return the row of a table that shows the user what a part of the mixture gets.

        For example, training takes 100e9 tokens. The corpus books, which has 5e9, gets 0.1 of them:

            name     asked    given    tokens    epochs    decided_by
            books    0.133    0.1      10e9      2.0       max_epochs

        Tokens and epochs are None if the user has not said how many samples training takes.

        Args:
            allotment: A corpus or group of the mixture, and its fraction of the training samples.
        """
        part = allotment.part
        tokens = None
        epochs = None
        exact_tokens = self._tokens_of(allotment.fraction)
        if exact_tokens is not None:
            tokens = round(exact_tokens)
            epochs = exact_tokens / part.tokens
        return MixRow(
            name=part.path[-1],
            depth=len(part.path) - 1,  # 0 for the parts of the root
            asked=allotment.fraction_by_share,
            given=allotment.fraction,
            tokens=tokens,
            epochs=epochs,
            decided_by=_decided_by(allotment),
        )

    def _tokens_of(self, fraction: float) -> float | None:
        """Return how many tokens a fraction of the training samples has.

        Returns:
            For example, 0.1 of 1,000 samples of 2,048 tokens are 204,800. None if no number of
            samples is requested.
        """
        if self.samples is None:
            return None
        return fraction * self.samples * self.config.step


def _weights_of_corpora(allotments: Sequence[_Allotment]) -> tuple[float, ...]:
    """Return the weight of each corpus of a mixture: its fraction of the training samples.

    The fractions add up to 1 except for rounding errors, which a division removes.

    Args:
        allotments: All corpora and groups of the mixture, each with its fraction. Groups have
            children, and corpora have none.
    """
    corpora = [allotment for allotment in allotments if not allotment.part.children]
    fractions = [corpus.fraction for corpus in corpora]
    total = plain_sum(fractions)  # 1, except for rounding errors
    return tuple(fraction / total for fraction in fractions)


def _with_target(part: _Part, target: float) -> _Part:
    """Return a part of a mixture that gets exactly `target`, and neither more nor less.

    A part has a target if its settings say how much of it is read, such as `tokens: 20e9`. Before,
    it could have anything from its smallest to its largest fraction of the training samples:

                 min_fraction    max_fraction
        before   0               0.3
        after    0.2             0.2               if the target is 0.2

    Args:
        part: The part, which is a corpus (a collection of texts) or a group of corpora.
        target: The fraction of the training samples that it is to get.

    Raises:
        InputError: The target is less or more than the part can have.
    """
    if not _is_within(target, part.min_fraction, part.max_fraction):
        raise _impossible_mixture(
            part,
            found=f"its tokens or epochs are {100 * target:.4g}% of train",
            fraction=target,
            minimum=part.min_fraction,
            maximum=part.max_fraction,
        )
    return replace(part, min_fraction=target, max_fraction=target, target=target)


def _divide_by_weight(group: _Part, group_fraction: float) -> list[_Allotment]:
    """Divide the samples of a group among its parts in proportion to their weights.

    All amounts are fractions of the training samples. Parts with a *target* get it in any case, so
    the others divide the rest. If a part would get more than it can have, it gets its limit, and
    the others get more. For example, a group has 0.5:

        part       weight    limit    by weight alone    gets
        math       -         -        -                  0.2     (its target)
        web        2         0.15     0.2                0.15
        books      1         1        0.1                0.15

    Args:
        group: The group.
        group_fraction: The fraction that it has.

    Returns:
        What each part without a target gets: web and books in the example.

    Raises:
        InputError: These parts cannot have that much together, or need more.
    """
    targets = [child.target for child in group.children if child.target is not None]
    rest = group_fraction - plain_sum(targets)  # 0.5 - 0.2 = 0.3
    children = [child for child in group.children if child.target is None]
    bounds = [_bounds(child, group_fraction) for child in children]
    _check_rest(group, children, bounds, rest)
    if not children:
        return []

    weights = [_weight(child) for child in children]
    weight_sum = plain_sum(weights)
    fractions = divide_within_bounds(weights, bounds, rest)
    allotments = []
    for child, weight, fraction in zip(children, weights, fractions, strict=True):
        fraction_by_share = rest * weight / weight_sum
        allotments.append(_Allotment(child, group_fraction, fraction_by_share, fraction))
    return allotments


def _nothing_left_error(part: _Part, group: _Part, group_fraction: float) -> InputError:
    """Return the error for a part of a mixture that gets no samples.

    For example, "nothing is left for a part of the mixture", where "mix.english.books", found
    "mix.english has 40% of train". The other parts of english need these 40%.

    Args:
        part: The part, such as books.
        group: The group around it, such as english.
        group_fraction: The fraction of the training samples that the group has: 0.4.
    """
    return InputError(
        "nothing is left for a part of the mixture",
        where=part.where,
        found=f"{group.where} has {100 * group_fraction:.4g}% of train",
        remedy="lower the others, or leave it out",
    )


def _weight(part: _Part) -> float:
    """Return the weight of a part of a mixture: how much is read of it, compared to its siblings.

    It depends on the settings. For two corpora of 10,000 and 100 tokens:

        settings                           weights
        no shares                          10000 and 100, the tokens
        shares of 3 and 1                  3 and 1
        `temperature: 0.5`, no shares      100 and 10: each is tokens ** 0.5

    With a temperature, small corpora are read more often than large ones. This is common for
    languages with little text (Conneau and Lample, 2019, section 3.1,
    https://arxiv.org/abs/1901.07291, where the temperature is called α).
    """
    if part.settings.share is not None:
        return part.settings.share
    if part.temperature is None:
        return float(part.tokens)

    # A power can differ in the last of its 16 digits from machine to machine, and then so would
    # the files that are made with the weights. So keep 12 digits.
    power = math.pow(part.tokens, part.temperature)
    return float(f"{power:.12g}")


def _bounds(part: _Part, group_fraction: float) -> Bounds:
    """Return the smallest and the largest fraction of the training samples that a part can have.

    Both the settings and the text that there is limit it. The higher floor and the lower cap apply.
    For example, for a part of a group that has 0.5 of the training samples:

                 by its settings                     by its text     result
        floor    min_share: 0.1 of 0.5 is 0.05       0               0.05
        cap      max_share: 0.4 of 0.5 is 0.2        0.15            0.15

    Args:
        part: The part, which is a corpus (a collection of texts) or a group of them. Its fractions
            are those that its text allows.
        group_fraction: Fraction of the group around it.
    """
    min_share = 0.0
    if part.settings.min_share is not None:
        min_share = part.settings.min_share
    max_share = 1.0  # a part cannot have more than its group
    if part.settings.max_share is not None:
        max_share = part.settings.max_share
    floor = max(min_share * group_fraction, part.min_fraction)
    cap = min(max_share * group_fraction, part.max_fraction)
    return Bounds(floor, cap)


def _check_rest(
    group: _Part, children: Sequence[_Part], bounds: Sequence[Bounds], rest: float
) -> None:
    """Check that the parts of a group can divide a given amount of samples among them.

    All amounts are fractions of the training samples. Some parts of the group have a fixed amount,
    because their settings say how many tokens of them are read. The others, `children`, divide the
    rest. For example, the group has 0.9, and one part of it has the fixed amount 0.3. So the rest
    is 0.6. This is an error here, since the children can have at most 0.5:

        child      floor (at least)    cap (at most)
        web        0.1                 0.2
        books      0                   0.3
        sum        0.1                 0.5

    The message is: its parts without tokens and epochs share 60% of train, expected 10% to 50%. If
    all parts have fixed amounts, there is no child, and only a rest of 0 is possible.

    Args:
        group: The group, for the message.
        children: Its parts without a fixed amount.
        bounds: The floor and the cap of each of them.
        rest: The amount that they have to divide.

    Raises:
        InputError: The rest is less than the sum of the floors, or more than that of the caps. Or
            the floor of a part is higher than its cap.
    """
    for child, bound in zip(children, bounds, strict=True):
        _check_bounds(child, bound)

    floor_sum = plain_sum(bound.floor for bound in bounds)
    cap_sum = plain_sum(bound.cap for bound in bounds)
    if _is_within(rest, floor_sum, cap_sum):
        return
    if children:
        # found: its parts without tokens and epochs share 60% of train
        found = f"its parts without tokens and epochs share {100 * rest:.4g}% of train"
    else:
        found = f"no part is left for {100 * rest:.4g}% of train"
    raise _impossible_mixture(group, found, fraction=rest, minimum=floor_sum, maximum=cap_sum)


def _check_bounds(part: _Part, bounds: Bounds) -> None:
    """Check that the smallest amount of a part is not more than the largest.

    For example, settings require that a corpus has at least 0.1 of the training samples
    (`min_share`), but also that it is read at most twice (`max_epochs`), which is 0.05 of them:

        floor      0.1
        cap        0.05
        message    floors within are 10% of train, expected 0% to 5%

    Args:
        part: The corpus (a collection of texts), or the group of corpora, for the message.
        bounds: Its smallest (floor) and largest (cap) fraction of the training samples.

    Raises:
        InputError: The floor is higher than the cap.
    """
    if bounds.floor > bounds.cap + _TOLERANCE:
        # For a group, the floor can be the sum of the floors of the corpora within it.
        raise _impossible_mixture(
            part,
            found=f"floors within are {100 * bounds.floor:.4g}% of train",
            fraction=bounds.floor,
            minimum=0.0,  # a lower floor is possible in any case
            maximum=bounds.cap,
        )


def _is_within(number: float, minimum: float, maximum: float) -> bool:
    """Return whether a number is from `minimum` to `maximum`, except for rounding errors."""
    return minimum - _TOLERANCE <= number <= maximum + _TOLERANCE


def _impossible_mixture(
    part: _Part, found: str, fraction: float, minimum: float, maximum: float
) -> InputError:
    """Return the error for settings of a mixture that contradict each other.

    For example, a corpus is to have 20% of the training samples, but is too small for that:

        where       mix.math
        found       its tokens or epochs are 20% of train
        expected    0% to 10%
        remedy      raise max_share or max_epochs, add text ...

    Args:
        part: The corpus or group with the setting.
        found: What is impossible, as in the example.
        fraction: The fraction of the training samples that is impossible: 0.2.
        minimum: Smallest possible fraction: 0.
        maximum: Largest possible fraction: 0.1.
    """
    if fraction > maximum:
        remedy = _TOO_MUCH_REMEDY
    else:
        remedy = _TOO_LITTLE_REMEDY
    return InputError(
        "the mixture is impossible",
        where=part.where,
        found=found,
        expected=f"{100 * minimum:.4g}% to {100 * maximum:.4g}%",
        remedy=remedy,
    )


def _decided_by(allotment: _Allotment) -> str:
    """Return what decided how many training samples a part of a mixture gets, for a table.

    A part is a corpus (a collection of texts) or a group of corpora. The user sees, for example:

        part       settings                       decided by
        math       tokens: 20e9                   tokens
        books      share: 1, max_epochs: 2        max_epochs     (its share would be more)
        web        share: 3                       share
        code       none                           size           (in proportion to its tokens)

    Returns:
        Name of the key of the settings that decides: `tokens`, `epochs`, `min_share`, `max_share`,
        `max_epochs`, `share` or `temperature`. Or "size". Or "its parts", for a group in which the
        keys of its parts decide.
    """
    settings = allotment.part.settings
    if allotment.part.target is not None:
        return _key_of_target(settings)
    key_of_bound = _key_of_bound(allotment)
    if key_of_bound is not None:
        return key_of_bound
    if settings.share is not None:
        return "share"
    if allotment.part.temperature is not None:
        return "temperature"
    return "size"


def _key_of_target(settings: MixPart) -> str:
    """Return which setting fixes how much is read of a part of a mixture.

    Returns:
        "tokens" or "epochs"; "its parts" for a group whose parts all have such settings.
    """
    if settings.tokens is not None:
        return "tokens"
    if settings.epochs is not None:
        return "epochs"
    return "its parts"


def _key_of_bound(allotment: _Allotment) -> str | None:
    """Return which setting keeps a part of a mixture from getting more, or less.

    The part is a corpus (a collection of texts) or a group of these. What it gets is compared with
    each of its limits. For example, it is in a group that has 0.5 of the training samples, and gets
    0.2:

        setting            the part's limit    reached
        min_share: 0.1     0.1 * 0.5 = 0.05    no
        max_share: 0.4     0.4 * 0.5 = 0.2     yes: the result is "max_share"

    A part that reaches its limit was given exactly this number, computed with the same operations.
    So numbers can be compared without a tolerance.

    Args:
        allotment: The part, and the fraction of the training samples that it gets.

    Returns:
        `min_share`, `max_share` or `max_epochs`; "its parts" for a group that has just what its
        parts need at least; None if no limit was reached.
    """
    part = allotment.part
    settings = part.settings
    fraction = allotment.fraction
    group_fraction = allotment.group_fraction
    if settings.min_share and fraction == settings.min_share * group_fraction:
        return "min_share"
    if settings.max_share is not None and fraction == settings.max_share * group_fraction:
        return "max_share"

    # The largest fraction is 1, unless `max_epochs` of the part, or of parts within it, limits it.
    if part.max_fraction < 1.0 and fraction == part.max_fraction:
        return "max_epochs"
    # The smallest fraction is what parts within a group need at least, by their settings.
    if fraction == part.min_fraction:
        return "its parts"
    return None
