"""nanotron's main: what its own Nanoset and TokenizedBytes make of 100 random blends of .ds files."""

import os

import pytest
from golden.nanotron_main import make
from golden.nanotron_main.cases import EOD, facts, golden, write_datasets

from nanoset_core.errors import NanosetError
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.loading.blended_nanoset import BlendedNanoset
from nanoset_core.loading.nanoset import Nanoset
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.indices import build_blend_indices, build_member_indices
from nanoset_core.sampling.plan import plan_split

CASES = golden()
CHECKOUTS = ("NANOTRON_MAIN", "DATATROVE")


def ours(case, preset, prefixes):
    is_nanoset, weights = preset == "nanotron-main", case["weights"]
    if not is_nanoset and weights is None:
        weights = [1.0] * len(prefixes)  # which it takes where none are given
    config = NanosetConfig(
        prefixes if weights is None else dict(zip(prefixes, weights, strict=True)),
        sequence_length=case["sequence_length"],
        random_seed=case["random_seed"],
        preset=preset,
        train_split_samples=case["samples" if is_nanoset else "samples_in_order"],
        reset_position_ids=True,
        eod_token=EOD,
    )
    try:
        plan = plan_split(config, "train")
        blend = build_blend_indices(plan)
    except NanosetError:
        return {"refused": True}
    assert plan_split(config, "valid") is None
    datasets = [MMapIndexedDataset(prefix) for prefix in prefixes]
    members = [
        Nanoset(
            dataset, member, config, build_member_indices(member, config, dataset.sequence_lengths)
        )
        for dataset, member in zip(datasets, plan.members, strict=True)
    ]
    train = BlendedNanoset(members, plan, config, blend)
    chosen = list(range(min(len(train), 9)))
    for one, many in zip((train[at] for at in chosen), train.__getitems__(chosen), strict=True):
        assert {key: value.tolist() for key, value in one.items()} == {
            key: many[key].tolist() for key in many
        }
    return facts(train, map(len, members))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["seed"])
def test_lengths_index_arrays_and_samples(case, tmp_path):
    prefixes = write_datasets(case, tmp_path)
    for preset, made in case["made"].items():
        assert ours(case, preset, prefixes) == ({"refused": True} if "refused" in made else made)


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    if lacking := [name for name in CHECKOUTS if name not in os.environ]:
        pytest.skip(
            f"{', '.join(lacking)}: no checkout of nanotron 2411b022 and datatrove 2c895af7 is "
            "named"
        )
    pytest.importorskip("numba", reason="numba, which nanotron needs, is not installed")
    make.single_process()
    return make.load(*(os.environ[name] for name in CHECKOUTS), tmp_path_factory.mktemp("helpers"))


@pytest.mark.filterwarnings("ignore")
def test_the_golden_cases_are_what_nanotron_makes(readers, tmp_path):
    for case in CASES:
        (tmp_path / str(case["seed"])).mkdir()
        assert make.made(case, tmp_path / str(case["seed"]), readers) == case["made"], case["seed"]
