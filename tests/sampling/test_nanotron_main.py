"""Blends of nanotron's main: recorded lengths, index arrays and samples of 100 random blends.

They are those of nanotron's own Nanoset (preset nanotron-main) and TokenizedBytes (preset
nanotron-main-bytes), over the same .ds files.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from golden.nanotron_main import make
from golden.nanotron_main.cases import EOD, facts, golden, write_datasets

from helpers.loaded_samples import assert_identical_samples
from nanoset_core.errors import NanosetError
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.loading.blended_nanoset import BlendedNanoset
from nanoset_core.loading.nanoset import Nanoset
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.indices import build_blend_indices, build_member_indices
from nanoset_core.sampling.plan import plan_split

CASES = golden()
CHECKOUTS = ("NANOTRON_MAIN", "DATATROVE")
"""Environment variables that name checkouts of nanotron and datatrove."""
REFUSED = {"refused": True}
N_COMPARED = 9
"""First samples that are read one by one, and many at once."""


def config_of(case: dict[str, Any], preset: str, prefixes: list[str]) -> NanosetConfig:
    """Return the settings of a case for one of nanotron's datasets."""
    weights = case["weights"]
    n_samples = case["samples"]
    if preset == "nanotron-main-bytes":
        n_samples = case["samples_in_order"]
        if weights is None:
            weights = [1.0] * len(prefixes)  # as TokenizedBytes does without weights

    data: Any = prefixes
    if weights is not None:
        data = dict(zip(prefixes, weights, strict=True))
    return NanosetConfig(
        data,
        sequence_length=case["sequence_length"],
        random_seed=case["random_seed"],
        preset=preset,
        train_split_samples=n_samples,
        reset_position_ids=True,
        eod_token=EOD,
    )


def facts_of_case(case: dict[str, Any], preset: str, prefixes: list[str]) -> dict[str, Any]:
    """Return what we make of a case, as it is recorded of nanotron."""
    config = config_of(case, preset, prefixes)
    try:
        plan = plan_split(config, "train")
        blend = build_blend_indices(plan)
    except NanosetError:
        return REFUSED

    members = []
    for member in plan.members:
        dataset = MMapIndexedDataset(member.prefix)
        indices = build_member_indices(member, config, dataset.sequence_lengths)
        members.append(Nanoset(dataset, member, config, indices))
    train = BlendedNanoset(members, plan, config, blend)

    # Samples that are read together are those that are read one by one.
    compared = list(range(min(len(train), N_COMPARED)))
    for sample, index in zip(train.__getitems__(compared), compared, strict=True):
        assert_identical_samples(sample, train[index])
    # nanotron's main has no other split.
    assert plan_split(config, "valid") is None
    return facts(train, map(len, members))


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["seed"]))
def test_lengths_index_arrays_and_samples_are_those_of_nanotron(case, tmp_path):
    prefixes = write_datasets(case, tmp_path)

    for preset, recorded_facts in case["made"].items():
        # A recorded refusal names nanotron's own error.
        expected = REFUSED if "refused" in recorded_facts else recorded_facts
        assert facts_of_case(case, preset, prefixes) == expected


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    """nanotron's own datasets, from the checkouts."""
    missing = [name for name in CHECKOUTS if name not in os.environ]
    if missing:
        pytest.skip(
            f"{', '.join(missing)}: no checkout of nanotron 2411b022 and datatrove 2c895af7 is "
            "named"
        )
    pytest.importorskip("numba", reason="numba, which nanotron needs, is not installed")
    make.single_process()
    checkouts = [os.environ[name] for name in CHECKOUTS]
    return make.load(*checkouts, tmp_path_factory.mktemp("helpers"))


@pytest.mark.filterwarnings("ignore")
def test_the_recorded_facts_are_those_of_the_checkouts(readers, tmp_path):
    for case in CASES:
        folder = tmp_path / str(case["seed"])
        folder.mkdir()
        assert make.made(case, folder, readers) == case["made"], case["seed"]
