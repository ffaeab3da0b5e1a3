"""NeMo's own datasets, from NeMo's source."""

from __future__ import annotations

import ast
import importlib
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers.trainer_sources import source_file

S = 32
"""Length of a sample, unless a test gives another."""
SEED = 99
FOLDER = ("collections", "nlp", "data", "language_modeling", "megatron")
MODULES = ("base_dataset_utils", "indexed_dataset", "blendable_dataset", "gpt_dataset")
Splits = Callable[..., list[Any]]


def nemo_builder(monkeypatch: pytest.MonkeyPatch, *, may_build: bool) -> Splits:
    """Return what takes (prefixes and weights, split, samples of the splits, folder of index files,
    …).
    """
    torch = pytest.importorskip("torch", reason="torch is not installed")
    cpp = pytest.importorskip(
        "megatron.core.datasets.helpers_cpp", reason="megatron-core is not installed"
    )
    files = [source_file("nemo", *FOLDER, f"{name}.py") for name in MODULES]

    def build_sample_idx(*args: Any) -> Any:
        assert may_build, "it did not find the index files"
        return space["_build_sample_idx"](*args)

    def build_blending_indices(numbers: Any, *more: Any) -> None:
        wide = numbers.astype(np.int16)  # as Megatron-LM has it
        cpp.build_blending_indices(wide, *more)
        numbers[:] = wide

    # what is imported within functions
    package, helpers = ".".join(("nemo", *FOLDER)), SimpleNamespace(**locals())
    monkeypatch.setitem(sys.modules, package, SimpleNamespace(helpers=helpers))
    monkeypatch.setitem(
        sys.modules, f"{package}.dataset_utils", SimpleNamespace(compile_helper=lambda: None)
    )
    monkeypatch.setattr(torch.cuda, "LongTensor", torch.LongTensor)
    groups = (
        "get_data_parallel_group",
        "get_pipeline_model_parallel_group",
        "get_tensor_model_parallel_group",
    )
    space: dict[str, Any] = {
        **{
            name: importlib.import_module(name)
            for name in ("math", "os", "struct", "time", "torch")
        },
        **{"np": np, "logging": logging, "HAVE_MEGATRON_CORE": True, "DictConfig": dict},
        "lru_cache": lambda **_: lambda function: function,
        "Dataset": torch.utils.data.Dataset,
        "AppState": lambda: SimpleNamespace(local_rank=0),
        "parallel_state": SimpleNamespace(**dict.fromkeys(groups, lambda **_: None)),
    }
    for file in files:
        tree = ast.parse(file.read_text())
        tree.body = [
            node
            for node in tree.body
            if not isinstance(node, ast.Import | ast.ImportFrom | ast.Try)
        ]
        exec(compile(tree, str(file), "exec"), space)
    space["make_indexed_dataset"] = space["make_dataset"]

    def build(
        data: Any, split: str, samples: list[int], folder: Path, length: int = S, **options: Any
    ) -> list[Any]:
        settings = type("Settings", (dict,), {"splits_string": split})(
            options, index_mapping_dir=str(folder)
        )
        cfg = SimpleNamespace(get=lambda _, default: default, data=settings)
        rest = (None, data, "mmap", split, samples, length, SEED, True, SimpleNamespace(eos_id=0))
        return list(space["build_train_valid_test_datasets"](cfg, *rest))

    return build
