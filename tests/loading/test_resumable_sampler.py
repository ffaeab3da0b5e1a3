import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.errors import ConfigError
from nanoset_core.packed import ResumableSampler

CASES = json.loads((Path(__file__).parents[1] / "golden" / "modalities" / "samplers.json").read_bytes())


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(value) for value in list(case.values())[:-1]))
def test_golden_ranks(case):
    for rank, expected in enumerate(case["per_rank"]):
        sampler = ResumableSampler(
            case["dataset_len"],
            case["skip"],
            rank,
            case["replicas"],
            epoch=case["epoch"],
            shuffle=case["shuffle"],
            seed=case["seed"],
            drop_last=case["drop_last"],
        )
        assert list(sampler) == expected
        assert len(sampler) == len(expected)


@settings(max_examples=100)
@given(total=st.integers(1, 40), share=st.floats(0, 1), size=st.integers(1, 9), shuffle=st.booleans())
def test_ranks_deal_what_is_left_of_the_epoch(total, share, size, shuffle):
    consumed = int(total * share)
    whole = list(ResumableSampler(total, 0, 0, 1, shuffle=shuffle, seed=3))
    assert sorted(whole) == list(range(total))
    for drop_last in (True, False):
        ranks = [
            list(ResumableSampler(total, consumed, rank, size, shuffle=shuffle, seed=3, drop_last=drop_last))
            for rank in range(size)
        ]
        dealt = [number for turn in zip(*ranks, strict=True) for number in turn]
        left = whole[consumed:]
        again = (whole * size)[: -len(left) % size]
        assert dealt == (left[: len(left) // size * size] if drop_last else left + again)


@pytest.mark.parametrize("numbers", [(0, 0, 0, 1), (5, 6, 0, 1), (5, -1, 0, 1), (5, 0, 2, 2), (5, 0, 0, 0)])
def test_numbers_that_cannot_be(numbers):
    with pytest.raises(ConfigError, match="out of range"):
        ResumableSampler(*numbers)
