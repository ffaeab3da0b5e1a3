"""A run that continues with another blend: the order in which it reads on, and what it may not do.

A run reads every dataset in one order, from its first sample to its last. When its blend changes,
the samples of each dataset that it has read are not read again. So the orders go into the settings
that the index files are built with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nanoset_core.errors import ConfigError, InputError
from nanoset_core.sampling.config import NanosetConfig, Order
from nanoset_core.sampling.orders import Read, orders_after, other_versions

_FIXED_SETTINGS = ("sequence_length", "random_seed", "preset")
"""Settings that decide the order of samples, and so cannot change during a run."""


def continue_run(
    config: NanosetConfig,
    read: Read,
    prefix_by_corpus: Mapping[str, str],
    *,
    consumed_samples: int,
    exact: bool,
) -> NanosetConfig:
    """Return settings for new data, with which a training run reads no sample again too early.

    The run has read samples of datasets in a shuffled order. With the new data, which may have some
    of these datasets, too, it goes on in this order:

        order of web's samples      4 2 0 3 1
        read before                 4 2 0
        read with the new data            3 1

    So the result says for each dataset how its samples are shuffled, and how many were read.

    Args:
        config: The settings for the new data.
        read: What the run has read before, and with which settings.
        prefix_by_corpus: Name of each corpus → path of its current dataset, without .bin and .idx.
        consumed_samples: How many samples the run has read; 0 if the new data counts from its own
            start.
        exact: Count exactly what was read before, which takes longer.

    Raises:
        ConfigError: The run cannot continue under these settings, or with these versions of the
            datasets.
    """
    _check_fixed_settings(config, read.config)  # another seed would shuffle in another way
    orders = orders_after(read, exact=exact)
    _check_versions(orders, prefix_by_corpus)  # datasets that have changed have no such order
    return replace(config, orders=orders, consumed_samples=consumed_samples)


def _check_versions(orders: Mapping[str, Order], prefix_by_corpus: Mapping[str, str]) -> None:
    """Check that no dataset has changed since a training run read it, so that the run can go on.

    In a changed dataset, the samples are others, in another order. The paths of datasets tell
    whether they have changed:

        read by the run    /data/web/3f9c/web
        now                /data/web/a07e/web      an error

    Args:
        orders: Path of each dataset that the run has read → in which order, and how far.
        prefix_by_corpus: Name of each corpus → path of its current dataset.

    Raises:
        ConfigError: A dataset has changed.
    """
    read_prefixes = other_versions(orders, prefix_by_corpus)  # of changed corpora, by name
    if not read_prefixes:
        return
    current_prefixes = [f"{corpus}: {prefix_by_corpus[corpus]}" for corpus in read_prefixes]
    raise ConfigError(
        "a dataset has changed since the run read it, so that its order cannot be continued",
        found=", ".join(current_prefixes),
        expected=", ".join(read_prefixes.values()),
        remedy=(
            "restore the text, settings and lists of ids that it was made from, or do not continue "
            "this run; put new text into a corpus of its own. If `nanoset purge` has changed the "
            "dataset, remove this nanoset, or its `continue_from`, from nanoset.yaml"
        ),
    )


def _check_fixed_settings(config: NanosetConfig, config_before: NanosetConfig) -> None:
    """Check that a run that continues keeps the settings that decide the order of its samples.

    A training run may continue with another blend of datasets. The trainer shuffles samples by the
    seed, so with another seed it would read them in another order: some a second time, and others
    never.

        setting            so far    now
        random_seed        1234      1234
        sequence_length    2048      4096      an error

    Args:
        config: The settings with the new blend.
        config_before: The settings with which the run has read so far.

    Raises:
        ConfigError: A setting, such as the seed, has changed.
    """
    for key in _FIXED_SETTINGS:
        expected = getattr(config_before, key)
        setting = getattr(config, key)
        if setting != expected:
            raise ConfigError(
                "a run cannot continue under another setting",
                where=key,
                found=setting,
                expected=expected,
                remedy="set what it was started with",
            )


def check_remaining_samples(config: NanosetConfig) -> None:
    """Check that a run that continues has samples of train left.

    The number of samples is that of the whole run. If it is 8,000, and the run has consumed 8,000
    before, none is left. Perhaps the user has written the samples of the second part only.

    Args:
        config: The settings: the samples of the whole run, and how many the run has consumed.

    Raises:
        ConfigError: The run has consumed all samples of train.
    """
    samples = config.samples("train") or 0
    continues_run = config.consumed_samples > 0
    if continues_run and config.consumed_samples >= samples:
        raise ConfigError(
            "the run has consumed all samples of train, so that none is left to continue with",
            where="continue_from.consumed_samples",
            found=f"{config.consumed_samples:,} of {samples:,} samples",
            remedy=(
                "let `schedule`, or `samples`, be that of the whole run, from its first sample on; "
                "or, if on_exhaustion: stop made them fewer, raise max_epochs"
            ),
        )


def check_phase_length(config: NanosetConfig, requested: int) -> None:
    """Check that limits on how often data is read leave enough samples for the trainer.

    For example, it will request 3,200 samples (400 iterations with 8 samples each), but with
    `max_epochs: 4` there are only 3,000.

    Args:
        config: The settings, after limits have reduced the number of samples.
        requested: Samples that the trainer will request.

    Raises:
        InputError: There are fewer samples.
    """
    available = config.samples("train") or 0
    if available < requested:
        raise InputError(
            "max_epochs leaves fewer samples than the phase has, for which the trainer would build "
            "its own index files",
            where="max_epochs",
            found=f"{available:,} samples",
            expected=f"{requested:,}",
            remedy=(
                "end the phase earlier (`until`), raise max_epochs, "
                "or let on_exhaustion be redistribute"
            ),
        )
