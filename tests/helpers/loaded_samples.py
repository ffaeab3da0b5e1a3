"""Comparisons of samples, as datasets return them: dictionaries of arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def assert_identical_samples(sample: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Check that two samples have the same keys, in the same order, and the same arrays."""
    assert list(sample) == list(expected)
    for key, expected_value in expected.items():
        value = sample[key]
        assert type(value) is type(expected_value), key
        if isinstance(expected_value, np.ndarray | np.generic):
            assert value.dtype == expected_value.dtype, key
            assert value.shape == expected_value.shape, key
        np.testing.assert_array_equal(value, expected_value, err_msg=key)


def assert_sample_of_trainer(
    sample: Mapping[str, Any], trainer_sample: Mapping[str, Any], *, same_dtypes: bool = False
) -> None:
    """Check that a sample has the keys and numbers of a trainer's sample, which are tensors.

    Args:
        sample: Our sample.
        trainer_sample: The sample of the trainer's own dataset.
        same_dtypes: Whether the types of numbers must be the same, too.
    """
    assert list(sample) == list(trainer_sample)
    for key, tensor in trainer_sample.items():
        expected = np.asarray(tensor)
        if same_dtypes:
            assert sample[key].dtype == expected.dtype, key
        np.testing.assert_array_equal(sample[key], expected, err_msg=key)
