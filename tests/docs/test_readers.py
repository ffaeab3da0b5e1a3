"""The examples of docs/readers.md run where their libraries are installed; and what they rely on
holds.
"""

from __future__ import annotations

import multiprocessing
import pickle
import re
import warnings

import numpy as np
import pytest
from docs.conftest import blocks

from nanoset_core import load_nanoset
from nanoset_core.execution.interruption import children_shielded

EXAMPLES = [block for block in blocks("py") if block.page.endswith("readers.md")]


@pytest.mark.parametrize("block", EXAMPLES, ids=str)
def test_the_example_runs(block, demo_folder, monkeypatch):
    warnings.simplefilter("ignore")  # theirs
    for name in dict.fromkeys(re.findall(r"^(?:from|import) (\w+)", block.code, re.MULTILINE)):
        pytest.importorskip(name, reason=f"{name} is not installed")
    monkeypatch.chdir(demo_folder)
    exec(compile("\n" * (block.line - 1) + block.code, block.page, "exec"), {"__name__": "example"})


def test_there_are_examples():
    assert len(EXAMPLES) == 5


def _tokens(train) -> np.ndarray:
    return train.batch(range(len(train)))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_nanoset_is_the_same_in_a_worker(demo_folder, method, monkeypatch):
    monkeypatch.chdir(demo_folder)
    train = load_nanoset("demo/data", "pretrain", "train")
    expected = _tokens(train)
    assert len(pickle.dumps(train)) < 16_384
    with children_shielded(), multiprocessing.get_context(method).Pool(1) as pool:
        tokens = pool.apply(_tokens, (train,))
        # Let the worker end by itself. The pool would end it by SIGTERM, which a forked worker
        # ignores if this process does.
        pool.close()
        pool.join()

    assert np.array_equal(tokens, expected)
