"""The examples of docs/readers.md run if their libraries are installed.

They rely on a nanoset that can be sent to workers of a data loader.
"""

from __future__ import annotations

import multiprocessing
import pickle
import re
import warnings

import numpy as np
import pytest
from docs.conftest import blocks

from nanoset_core import BlendedNanoset, load_nanoset
from nanoset_core.execution.interruption import children_shielded

EXAMPLES = [block for block in blocks("py") if block.page.endswith("readers.md")]


@pytest.mark.parametrize("block", EXAMPLES, ids=str)
def test_the_example_runs(block, demo_folder, monkeypatch):
    # The libraries warn of their own code.
    warnings.simplefilter("ignore")
    for library in re.findall(r"^(?:from|import) (\w+)", block.code, re.MULTILINE):
        pytest.importorskip(library, reason=f"{library} is not installed")
    monkeypatch.chdir(demo_folder)
    # Empty lines before the code, so that tracebacks have the line numbers of the page.
    code = "\n" * (block.line - 1) + block.code

    exec(compile(code, block.page, "exec"), {"__name__": "example"})


def test_there_are_examples():
    assert len(EXAMPLES) == 6


def all_tokens(nanoset: BlendedNanoset) -> np.ndarray:
    """Return the tokens of all samples of a nanoset."""
    return nanoset.batch(range(len(nanoset)))


@pytest.fixture
def train(demo_folder, monkeypatch) -> BlendedNanoset:
    """The training data of the project."""
    monkeypatch.chdir(demo_folder)
    return load_nanoset("demo/data", "pretrain", "train")


def test_a_nanoset_is_sent_to_a_worker_without_its_data(train):
    assert len(pickle.dumps(train)) < 16_384


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_nanoset_is_the_same_in_a_worker(train, method):
    expected = all_tokens(train)

    with children_shielded(), multiprocessing.get_context(method).Pool(1) as pool:
        tokens = pool.apply(all_tokens, (train,))
        # Let the worker end by itself. The pool would end it by SIGTERM, which a forked worker
        # ignores if this process does.
        pool.close()
        pool.join()

    assert np.array_equal(tokens, expected)
