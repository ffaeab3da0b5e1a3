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
from nanoset_core.sampling.bisection import largest_that_fits
from nanoset_core.sampling.bounded_division import Bounds, divide_within_bounds
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.epoch_limits import epochs_shuffled_together, most_samples
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
    """Amount that shares alone would give it, without limits on it or on groups around it.

    None if it has tokens or epochs.
    """
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
    """Compute which fraction of the training samples is taken from each corpus of a mixture.

    A mixture is a tree: it consists of corpora (collections of texts), and of groups, which consist
    of further corpora. For example, english has half of the samples, and divides them 3 to 1:

        mix:                                                      fractions
          english: {share: 1, mix: {web: 3, books: 1}}            web 0.375, books 0.125
          code: {share: 1}                                        code 0.5

    There are more settings, such as `epochs: 2` to read a corpus twice, or `max_epochs: 2`.

    Args:
        mix: The whole tree.
        config: What is trained: the number of samples, and a dataset for each corpus, in the order
            of the tree.
        reader: Reads the sizes of datasets from their `.idx` files; share it between calls for the
            same files.

    Raises:
        InputError: A corpus has no tokens, or settings contradict each other.
        ConfigError: A boundary of the split is outside of a dataset.
    """
    split = _first_split(config)  # "train", unless train has no share of the data
    data = SplitData(config, split, reader or LengthReader())
    tokens_by_prefix = data.tokens_by_prefix()  # {"data/web": 5000000, "data/books": 800000, ...}
    _check_corpora_have_tokens(mix, tokens_by_prefix, split)

    datasets = _datasets_by_path(mix, tokens_by_prefix)
    n_samples = _samples_to_read(config, split)
    mixer = _Mixer(config, datasets, n_samples)
    # This one takes `max_epochs` as a limit of the epochs that are read, and not of those that are
    # shuffled together. If only it can mix the parts, the plan has a warning.
    lenient_mixer = _Mixer(config, datasets, n_samples, counts_shuffled_epochs=False)
    try:
        return mixer.mix(mix)
    except InputError:
        return lenient_mixer.mix(mix)


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
    empty_corpora = []
    for corpus, tokens in zip(mix.corpora, tokens_by_prefix.values(), strict=True):
        if tokens == 0:
            empty_corpora.append(corpus)
    if empty_corpora:
        raise InputError(
            f"each part of a mixture needs tokens in {split}",
            where="mix",
            found=f"no tokens in {', '.join(empty_corpora)}",
            remedy="leave these parts out, add text, or give the split a larger share; if their "
            "documents have rare values of a column, let `others` contain these values; in a "
            "smaller run, use a larger number in `scales`",
        )


def _samples_to_read(config: NanosetConfig, split: SplitName) -> int | None:
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


class _Dataset(NamedTuple):
    """The dataset of a corpus of a mixture."""

    prefix: str
    """Its path without .bin and .idx."""
    tokens: int
    """Tokens of one epoch: those that the split has of it."""


def _datasets_by_path(mix: MixPart, tokens_by_prefix: Mapping[str, int]) -> dict[MixPath, _Dataset]:
    """Return the dataset of each corpus of a mixture.

    Args:
        mix: The mixture, a tree of corpora (collections of texts) and groups of corpora.
        tokens_by_prefix: Path of each dataset → its tokens, in the order of the corpora.

    Returns:
        Names from the root of the tree to each corpus → its dataset: {("english", "web"):
        ("data/web", 5000000), ...}.
    """
    corpus_paths = _corpus_paths(mix, path=())
    datasets = [_Dataset(prefix, tokens) for prefix, tokens in tokens_by_prefix.items()]
    return dict(zip(corpus_paths, datasets, strict=True))


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

    @property
    def weighted_children(self) -> list[_Part]:
        """The parts of a group that have no target, and divide by weights what is left."""
        return [child for child in self.children if child.target is None]

    @property
    def target_sum(self) -> float:
        """Sum of the targets of the parts of a group."""
        return plain_sum(child.target for child in self.children if child.target is not None)


class _Allotment(NamedTuple):
    """Which fraction of the training samples a part of a mixture gets, from 0 to 1."""

    part: _Part
    """The corpus or group."""
    fraction_by_shares: float | None
    """Fraction that its share, and those of the groups around it, would give it without limits.

    None if it has a target.
    """
    fraction: float
    """Fraction that it gets."""
    decided_by: str
    """The setting that decides it, such as "max_epochs", as the user sees it."""

    @property
    def fraction_without_limits(self) -> float:
        """Fraction that it would get if no share were limited: its target, or that by its share."""
        return self.fraction if self.fraction_by_shares is None else self.fraction_by_shares


class _Mixer:
    """Divides the samples of train among the parts of a tree.

    Args:
        config: Configuration of the nanoset.
        datasets: Path of each corpus in the tree → its dataset.
        samples: Samples of the split that are still to be read; None if no number is requested.
        counts_shuffled_epochs: Whether `max_epochs` also limits how many epochs of a corpus the
            trainer shuffles together.
    """

    def __init__(
        self,
        config: NanosetConfig,
        datasets: Mapping[MixPath, _Dataset],
        samples: int | None,
        *,
        counts_shuffled_epochs: bool = True,
    ) -> None:
        self.config = config
        self.datasets = datasets
        self.samples = samples
        self.counts_shuffled_epochs = counts_shuffled_epochs

    def mix(self, mix: MixPart) -> Mixture:
        """Compute which fraction of the training samples each part of a mixture gets.

        Args:
            mix: The mixture: a tree of corpora (collections of texts) and groups of corpora.

        Raises:
            InputError: The settings contradict each other.
        """
        # How much can each part have? For example, books may be read only twice, so they can have
        # at most 0.1 of the samples.
        root = self._build_part(mix, path=(), outer_limit=None)
        all_samples = _Allotment(root, fraction_by_shares=1.0, fraction=1.0, decided_by="")
        allotments = _divide(all_samples)
        rows = tuple(self._row(allotment) for allotment in allotments)
        return Mixture(_weights_of_corpora(allotments), rows)

    def _build_part(self, settings: MixPart, path: MixPath, outer_limit: float | None) -> _Part:
        """Find the smallest and the largest fraction of the training samples that a part can have.

        A part of a mixture is a corpus (a collection of texts) or a group of them. For example,
        training takes 100e9 tokens, and there are 5e9 tokens of books:

            settings                    smallest    largest
            web:   {share: 3}           0           1
            books: {max_epochs: 2}      0           0.1        read twice, it has 10e9 tokens
            math:  {tokens: 20e9}       0.2         0.2        neither more nor less

        Args:
            settings: The settings of the part.
            path: Names from the root of the mixture to the part, such as ("english", "books").
            outer_limit: `max_epochs` of the group around it; None for no limit.

        Raises:
            InputError: `tokens` or `epochs` are more or less than it can have.
        """
        max_epochs = settings.inner_limit(outer_limit)  # its own, or that of the group around it
        if settings.parts:
            part = self._build_group(settings, path, max_epochs)
        else:
            part = self._build_corpus(settings, path, max_epochs)

        if settings.has_fixed_amount:  # such as `tokens: 20e9`
            return _with_target(part, self._target(part))
        return part

    def _build_group(self, settings: MixPart, path: MixPath, max_epochs: float | None) -> _Part:
        """Find the smallest and the largest fraction of the training samples that a group can have.

        These are the sums for its parts:

            part of the group      smallest fraction    largest fraction
            web                    0                    0.3
            books                  0.05                 0.1
            group                  0.05                 0.4

        Args:
            settings: The settings of the group.
            path: Names from the root of the mixture to the group, such as ("english",).
            max_epochs: How often training may read each text of the group; None for no limit.
        """
        children = []
        for name, child_settings in settings.parts.items():
            children.append(self._build_part(child_settings, (*path, name), max_epochs))

        # A sum above 1 is impossible. This is found out later, with a message.
        min_fraction = plain_sum(child.min_fraction for child in children)
        sum_of_maxima = plain_sum(child.max_fraction for child in children)
        max_fraction = min(sum_of_maxima, 1.0)
        tokens = sum(child.tokens for child in children)
        return _Part(path, settings, tokens, tuple(children), min_fraction, max_fraction)

    def _build_corpus(self, settings: MixPart, path: MixPath, max_epochs: float | None) -> _Part:
        """Find the largest fraction of the training samples that a corpus can have.

        A corpus is a collection of texts. Without a limit, all samples can be from it. For example,
        a corpus has 100 samples and may be read twice, so at most 200 of 1,000 samples can be from
        it: 0.2. If a training run changes its mixture, and has read 50 samples of the corpus
        before, only 150 of 1,000 are possible: 0.15.

        Args:
            settings: The settings of the corpus.
            path: Names from the root of the mixture to the corpus, such as ("english", "books").
            max_epochs: How often the whole training run may read the corpus; None for no limit.
        """
        dataset = self.datasets[path]
        max_fraction = 1.0
        if max_epochs is not None:
            n_samples = self._most_samples_of_corpus(dataset, max_epochs)  # 200
            max_fraction = self._fraction_of_samples(n_samples)
        return _Part(
            path=path,
            settings=settings,
            tokens=dataset.tokens,
            children=(),
            min_fraction=0.0,
            max_fraction=max_fraction,
        )

    def _most_samples_of_corpus(self, dataset: _Dataset, max_epochs: float) -> int:
        """Return how many samples of a corpus training may still read by its `max_epochs`.

        Args:
            dataset: The dataset of the corpus: its path, and its tokens.
            max_epochs: How often the whole training run may read it.
        """
        n_samples = most_samples(dataset.tokens, max_epochs, self.config)
        order = self.config.orders.get(dataset.prefix)  # None if the run has not read the corpus
        if order is not None:
            return n_samples - order.taken
        is_first_phase = self.config.consumed_samples == 0
        if self.counts_shuffled_epochs and is_first_phase:
            # If not even one sample fits, the limit cannot be kept. The plan warns of it.
            return self._most_shuffled_samples(dataset, max_epochs, n_samples) or n_samples
        return n_samples

    def _most_shuffled_samples(self, dataset: _Dataset, max_epochs: float, n_samples: int) -> int:
        """Return how many samples of a corpus can be read without shuffling too many epochs.

        Trainers prepare more samples than they read. If a corpus has only a few samples, these can
        be another epoch, which is shuffled together with the others. For example, an epoch has 2.35
        samples, and may be read 4 times:

            read    prepared    epochs needed    shuffled together
            9       10          4.26             5: a document could be read a fifth time
            8        9          3.83             4

        So 8 is the result. For large corpora, it is the number of samples of these epochs.

        Args:
            dataset: The dataset of the corpus: 1,203 tokens, if a sample has 512.
            max_epochs: How often training may read it: 4.
            n_samples: Number of samples that `max_epochs` epochs have: 9.

        Returns:
            At most `n_samples`; 0 if none can be read.
        """

        def fits(n_read: int) -> bool:
            """Return whether the trainer shuffles few enough epochs together for some samples."""
            share = self._fraction_of_samples(n_read)
            sizes = self.config.rules.member_sizes(
                self._n_train_samples, share, self.config.surplus
            )
            n_epochs = epochs_shuffled_together(sizes.built, dataset.tokens, self.config)
            return n_epochs <= math.ceil(max_epochs)

        return largest_that_fits(n_samples, fits)

    def _target(self, part: _Part) -> float:
        """Return which fraction of the training samples a part gets by its settings alone.

        There are three cases. In the examples, training takes 100e9 tokens, and books have 5e9:

            math: {tokens: 20e9}                                      20e9 / 100e9 = 0.2
            books: {epochs: 2}                                    2 * 5e9 / 100e9 = 0.1
            extra: {mix: {math: {tokens: 20e9}, books: {epochs: 2}}}      0.2 + 0.1 = 0.3

        Args:
            part: A corpus (a collection of texts), or a group of corpora, of one of these cases.
        """
        settings = part.settings
        if settings.tokens is not None:
            return self._fraction_of_tokens(settings.tokens)
        if settings.epochs is not None:
            return self._fraction_of_corpora(part.corpora, settings.epochs)
        # The targets of the parts were computed before. Each part of such a group has one.
        return part.target_sum

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
            fractions.append(self._fraction_of_epochs(corpus.tokens, epochs))
        return plain_sum(fractions)

    @property
    def _n_train_samples(self) -> int:
        """Number of training samples that are still to be read, by which others are divided.

        It is 1 if no number is requested. A mixture then has only shares, for which this number
        does not matter.
        """
        return self.samples or 1

    def _fraction_of_epochs(self, tokens: int, epochs: float) -> float:
        """Return which fraction of the training samples it takes to read a corpus several times.

        For example, a corpus has 100 samples. To read it twice takes 200 of 1,000 training samples,
        which is 0.2.

        Args:
            tokens: Tokens of the corpus.
            epochs: How often it is read: 2.
        """
        n_samples = most_samples(tokens, epochs, self.config)  # 200
        return self._fraction_of_samples(n_samples)

    def _fraction_of_samples(self, n_samples: int) -> float:
        """Return which fraction of the training samples some samples are, or 0 if there are none.

        For example, 200 of 1,000 samples are 0.2, or slightly less.
        """
        # Take slightly less. Otherwise rounding errors could give 200.0000001, which trainers would
        # round up to 201 samples.
        n_samples_to_read = max(n_samples - _ROUNDING_SAMPLES, 0.0)  # 199.999
        return n_samples_to_read / self._n_train_samples

    def _row(self, allotment: _Allotment) -> MixRow:
        """Return the row of a table that shows the user how much of a corpus or group is read.

        For example, books should have 0.133 of the training samples by their share, but get 0.1:

            name     asked    given    tokens    epochs    decided_by
            books    0.133    0.1      10e9      2.0       max_epochs

        Tokens and epochs are None if the user has not said how many samples training takes.

        Args:
            allotment: The corpus or group of the mixture, and what it gets.
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
            asked=allotment.fraction_by_shares,
            given=allotment.fraction,
            tokens=tokens,
            epochs=epochs,
            decided_by=allotment.decided_by,
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


def _divide(group: _Allotment) -> list[_Allotment]:
    """Divide the training samples that a group gets among its parts, and theirs, down to corpora.

    For example, english gets 0.4 of all training samples. Its parts are web, which is a corpus (a
    collection of texts), and books, which is a group:

        english: {share: 1, mix: {web: 3, books: {share: 1, mix: {novels: 1, poems: 1}}}}

        part        fraction of all training samples
        web         0.3
        books       0.1
        novels      0.05       (half of books)
        poems       0.05

    Args:
        group: The group, and what it gets: english. For a corpus, the result is empty.

    Returns:
        The rows of the table, each group followed by its parts.

    Raises:
        InputError: No fractions fulfil all settings, or nothing is left for a part.
    """
    allotments = []
    for allotment in _divide_among_children(group):  # web, books
        if allotment.fraction <= _TOLERANCE:  # 0, except for rounding
            raise _nothing_left_error(allotment.part, group)
        allotments.append(allotment)
        allotments += _divide(allotment)  # nothing for web; novels and poems for books
    return allotments


def _divide_among_children(group: _Allotment) -> list[_Allotment]:
    """Divide the training samples that a group gets among its direct parts.

    The settings may fix how much a part gets, its *target*. The other parts divide the rest. For
    example, a group gets 0.5 of all training samples:

        part       settings          gets
        math       tokens: 20e9      0.2     (its target)
        web        share: 2          0.2     (two thirds of the other 0.3)
        books      share: 1          0.1     (one third)

    Args:
        group: The group, and what it gets. For a corpus, which has no parts, the result is empty.

    Returns:
        What each direct part gets, in the order of nanoset.yaml.

    Raises:
        InputError: The parts cannot have that much, or need more.
    """
    children = group.part.children
    if not children:
        return []
    allotment_by_path = {}
    for allotment in _divide_by_weight(group):  # web, books
        allotment_by_path[allotment.part.path] = allotment
    for child in children:
        if child.target is not None:  # math
            allotment_by_path[child.path] = _Allotment(
                part=child,
                fraction_by_shares=None,  # it has no share
                fraction=child.target,
                decided_by=_key_of_target(child.settings),  # "tokens"
            )
    return [allotment_by_path[child.path] for child in children]


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
    """Return a part of a mixture that gets exactly some fraction of the training samples.

    Its settings say so, for example `tokens: 20e9`. So its smallest and its largest fraction become
    the same number.

    Args:
        part: The part, which is a corpus (a collection of texts) or a group of corpora.
        target: The fraction: 0.2.

    Raises:
        InputError: The part cannot have so little, or so much.
    """
    if not _is_within(target, part.min_fraction, part.max_fraction):
        raise _impossible_mixture(
            part,
            found=f"its tokens or epochs are {_percent(target)} of train",
            fraction=target,
            minimum=part.min_fraction,
            maximum=part.max_fraction,
        )
    return replace(part, min_fraction=target, max_fraction=target, target=target)


def _divide_by_weight(group: _Allotment) -> list[_Allotment]:
    """Divide among the parts of a group what fixed amounts leave, in proportion to weights.

    All numbers are fractions of the training samples. For example, the group gets 0.5, of which
    math has the fixed amount 0.2, its *target*. The other 0.3 are divided 2 to 1. But web can have
    at most 0.15, so books get more:

        part       weight    by weight alone    gets
        web        2         0.2                0.15
        books      1         0.1                0.15

    Args:
        group: The group, and what it gets: 0.5.

    Returns:
        What each part without a fixed amount gets: web and books.

    Raises:
        InputError: These parts cannot have that much together, or need more.
    """
    children = group.part.weighted_children  # web, books
    rest = group.fraction - group.part.target_sum  # 0.3
    bounds = [_bounds(child, group.fraction) for child in children]
    _check_rest(group.part, children, bounds, rest)
    if not children:
        return []

    weights = [_weight(child, group.part.settings.temperature) for child in children]
    fractions = divide_within_bounds(weights, bounds, rest)  # 0.15, 0.15
    fractions_by_shares = _fractions_by_shares(group, weights)  # 0.2, 0.1
    allotments = []
    for child, by_shares, fraction in zip(children, fractions_by_shares, fractions, strict=True):
        decided_by = _decided_by(child, fraction, group)  # "max_epochs" for web
        allotments.append(_Allotment(child, by_shares, fraction, decided_by))
    return allotments


def _fractions_by_shares(group: _Allotment, weights: Sequence[float]) -> list[float]:
    """Return which fractions of the training samples some parts would get by weight alone.

    Reports show these numbers. They ignore the limits of the parts, and those of all groups around
    them. For example, the group would get 0.5 then, and has a part with the fixed amount 0.2. So
    parts with the weights 2 and 1 would get 0.2 and 0.1.

    Args:
        group: The group.
        weights: Weight of each part without a fixed amount: [2, 1].
    """
    rest = max(group.fraction_without_limits - group.part.target_sum, 0.0)  # 0.3
    weight_sum = plain_sum(weights)
    return [rest * weight / weight_sum for weight in weights]


def _nothing_left_error(part: _Part, group: _Allotment) -> InputError:
    """Return the error for a corpus of a mixture that gets no samples, since others need all.

    For example, "mix.english.books: nothing is left for a part of the mixture, found: the other
    parts of mix.english need all of its 40% of train".

    Args:
        part: The corpus, or a group of corpora: books.
        group: The group around it, and what it gets: english, 0.4 of the training samples.
    """
    return InputError(
        "nothing is left for a part of the mixture",
        where=part.where,
        found=f"the other parts of {group.part.where} need all of its {_percent(group.fraction)} "
        "of train",
        remedy="lower the others, or leave it out",
    )


def _weight(part: _Part, temperature: float | None) -> float:
    """Return the weight of a part of a mixture: how much is read of it, compared to its siblings.

    It depends on the settings. For two corpora of 10,000 and 100 tokens:

        settings                           weights
        no shares                          10000 and 100, the tokens
        shares of 3 and 1                  3 and 1
        `temperature: 0.5`, no shares      100 and 10: each is tokens ** 0.5

    With a temperature, small corpora are read more often than large ones. This is common for
    languages with little text (Conneau and Lample, 2019, section 3.1,
    https://arxiv.org/abs/1901.07291, where the temperature is called α).

    Args:
        part: The corpus or group.
        temperature: That of the group around it; None for 1.
    """
    if part.settings.share is not None:
        return part.settings.share
    if temperature is None:
        return float(part.tokens)

    # A power can differ in the last of its 16 digits from machine to machine, and then so would
    # the files that are made with the weights. So keep 12 digits.
    power = math.pow(part.tokens, temperature)
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
    """Check that some parts of a group can have exactly a certain amount together.

    All amounts are fractions of the training samples. For example, the parts below can have from
    0.1 to 0.5 together. So an amount of 0.6 is an error:

        part       at least    at most
        web        0.1         0.2
        books      0           0.3
        sum        0.1         0.5

    Args:
        group: The group, for the message.
        children: Its parts whose amount is not fixed: web and books. There may be none; then only
            an amount of 0 is possible.
        bounds: How much each of them has at least (floor) and at most (cap).
        rest: The amount: 0.6.

    Raises:
        InputError: They cannot have it, or one of them has to have more than it can have.
    """
    for child, bound in zip(children, bounds, strict=True):
        _check_bounds(child, bound)

    floor_sum = plain_sum(bound.floor for bound in bounds)
    cap_sum = plain_sum(bound.cap for bound in bounds)
    if _is_within(rest, floor_sum, cap_sum):
        return
    if not children:
        raise _other_total_error(group, rest)
    names = ", ".join(child.path[-1] for child in children)
    found = f"{names} would have {_percent(rest)} of train"
    raise _impossible_mixture(group, found, fraction=rest, minimum=floor_sum, maximum=cap_sum)


def _check_bounds(part: _Part, bounds: Bounds) -> None:
    """Check that a corpus or group does not have to have more than it can have.

    For example, its settings demand at least 0.1 of the training samples (`min_share`). But it may
    be read only twice (`max_epochs`), which is 0.05 of them.

    Args:
        part: The corpus (a collection of texts) or group, for the message.
        bounds: Which fraction of the training samples it has at least (floor) and at most (cap).

    Raises:
        InputError: The floor is higher than the cap.
    """
    if bounds.floor > bounds.cap + _TOLERANCE:
        raise _impossible_mixture(
            part,
            found=f"it has to have at least {_percent(bounds.floor)} of train",
            fraction=bounds.floor,
            minimum=0.0,
            maximum=bounds.cap,
        )


def _other_total_error(group: _Part, rest: float) -> InputError:
    """Return the error for a group whose parts all have tokens or epochs, and another sum.

    For example, the parts of a mixture have 0.64 of the training samples, so that nothing is read
    in the other 0.36.

    Args:
        group: The group, or the whole mixture.
        rest: What the group has, less the sum of its parts: 0.36. Negative if they need more.
    """
    total = group.target_sum  # 0.64
    if rest > 0:
        remedy = (
            "remove tokens or epochs of one part, which then gets the rest; "
            "or request more of the parts, or fewer samples"
        )
    else:
        remedy = "request less of the parts, or more samples"
    return InputError(
        "the mixture is impossible",
        where=group.where,
        found=f"all parts have tokens or epochs, which are {_percent(total)} of train",
        expected=f"{_percent(total + rest)} of train",
        remedy=remedy,
    )


def _percent(fraction: float) -> str:
    """Return a fraction as a text: 0.3625 → "36.25%", and 625.0 → "62,500%"."""
    percent = 100 * fraction
    if percent < 1000:
        return f"{percent:.4g}%"
    return f"{percent:,.0f}%"


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
        expected=f"{_percent(minimum)} to {_percent(maximum)}",
        remedy=remedy,
    )


def _decided_by(part: _Part, fraction: float, group: _Allotment) -> str:
    """Return which setting decides how much is read of a corpus or group, as the user sees it.

    The first of these that applies:

        "max_epochs", or another limit    it would get more or less without this setting
        "share"                           it has a share
        "temperature"                     the group around it has a temperature, with which small
                                          corpora are read more often than large ones
        "size"                            none: it is read in proportion to its tokens

    Args:
        part: The corpus (a collection of texts) or group of corpora.
        fraction: The fraction of all training samples that it gets, such as 0.1.
        group: The group around it, and what it gets, such as 0.4.
    """
    limiting_key = _key_of_limit(part, fraction, group.fraction)
    if limiting_key is not None:
        return limiting_key
    if part.settings.share is not None:
        return "share"
    if group.part.settings.temperature is not None:
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


def _key_of_limit(part: _Part, fraction: float, group_fraction: float) -> str | None:
    """Return which setting keeps a corpus or group from getting more, or less.

    For example, a group gets 0.5 of the training samples, and books, which is in it, gets 0.2. If
    books has the setting `max_share: 0.4`, it can get at most 0.4 * 0.5 = 0.2. So this setting is
    what limits it. If several settings do, the first one is returned.

    Args:
        part: The corpus (a collection of texts) or group of corpora: books.
        fraction: The fraction of the training samples that it gets: 0.2.
        group_fraction: The fraction of the group around it: 0.5.

    Returns:
        Name of the setting. "its parts" for a group that gets only what settings of its parts
        demand. None if it is not at a limit.
    """
    # A fraction at a limit is exactly equal to it: limits are computed here as they were before,
    # and nothing is added to them.
    settings = part.settings
    if settings.min_share and fraction == settings.min_share * group_fraction:
        return "min_share"
    if settings.max_share is not None and fraction == settings.max_share * group_fraction:
        return "max_share"
    is_limited_by_epochs = part.max_fraction < 1.0
    if is_limited_by_epochs and fraction == part.max_fraction:
        return "max_epochs"
    if fraction == part.min_fraction:
        return "its parts"
    return None
