"""NeMo's own datasets, from NeMo's source files, without importing NeMo.

NeMo's package needs many others that these tests do not install. So the modules of its datasets are
run in one namespace, without their imports; what they would import is put there instead.
"""

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

SEQUENCE_LENGTH = 32
"""Tokens of a sample, unless a test requests another length."""
SEED = 99
FOLDER = ("collections", "nlp", "data", "language_modeling", "megatron")
PACKAGE = ".".join(("nemo", *FOLDER))
MODULES = ("base_dataset_utils", "indexed_dataset", "blendable_dataset", "gpt_dataset")
IMPORTED_MODULES = ("math", "os", "struct", "time", "torch")
"""Modules that these import by their own names."""
GROUPS = (
    "get_data_parallel_group",
    "get_pipeline_model_parallel_group",
    "get_tensor_model_parallel_group",
)
"""Functions of Megatron-LM that return groups of processes."""
Splits = Callable[..., list[Any]]
"""A function that returns NeMo's datasets of train, valid and test; see `nemo_builder`."""


def nemo_builder(monkeypatch: pytest.MonkeyPatch, *, may_build: bool) -> Splits:
    """Return a function that builds datasets as NeMo's model does.

    The test is skipped if torch, megatron-core or NeMo is not installed.

    Args:
        monkeypatch: Undoes the changes of torch and of `sys.modules`.
        may_build: Whether NeMo may build index files. Otherwise it fails if it does not find them.

    Returns:
        A function that takes the prefixes, each after its weight if there are several; the shares
        of the splits; the samples of the splits; the folder of index files; and optionally the
        length of a sample, and options of NeMo's `data` settings.
    """
    torch = pytest.importorskip("torch", reason="torch is not installed")
    megatron_helpers = pytest.importorskip(
        "megatron.core.datasets.helpers_cpp", reason="megatron-core is not installed"
    )
    files = [source_file("nemo", *FOLDER, f"{name}.py") for name in MODULES]

    namespace = imported_names(torch)
    for file in files:
        run_without_imports(file, namespace)
    namespace["make_indexed_dataset"] = namespace["make_dataset"]

    # Some functions import these when they are called.
    helpers = compiled_helpers(namespace, megatron_helpers, may_build=may_build)
    monkeypatch.setitem(sys.modules, PACKAGE, SimpleNamespace(helpers=helpers))
    dataset_utils = SimpleNamespace(compile_helper=lambda: None)
    monkeypatch.setitem(sys.modules, f"{PACKAGE}.dataset_utils", dataset_utils)

    # NeMo counts processes with a tensor on a GPU, which does not exist in tests.
    monkeypatch.setattr(torch.cuda, "LongTensor", torch.LongTensor)

    def build(
        data: Any,
        split: str,
        samples: list[int],
        folder: Path,
        length: int = SEQUENCE_LENGTH,
        **options: Any,
    ) -> list[Any]:
        datasets = namespace["build_train_valid_test_datasets"](
            cfg=model_settings(split, folder, options),
            trainer=None,
            data_prefix=data,
            data_impl="mmap",
            splits_string=split,
            train_valid_test_num_samples=samples,
            seq_length=length,
            seed=SEED,
            skip_warmup=True,
            tokenizer=SimpleNamespace(eos_id=0),
        )
        return list(datasets)

    return build


def imported_names(torch: Any) -> dict[str, Any]:
    """Return what the modules of NeMo's datasets import, by the names that they use."""
    names: dict[str, Any] = {name: importlib.import_module(name) for name in IMPORTED_MODULES}
    return names | {
        "np": np,
        "logging": logging,
        "Dataset": torch.utils.data.Dataset,
        "DictConfig": dict,
        "HAVE_MEGATRON_CORE": True,
        "AppState": lambda: SimpleNamespace(local_rank=0),
        # All processes are in no group, which is one process.
        "parallel_state": SimpleNamespace(**dict.fromkeys(GROUPS, lambda **_: None)),
        "lru_cache": lambda **_: lambda function: function,
    }


def run_without_imports(file: Path, namespace: dict[str, Any]) -> None:
    """Run a module in a namespace, except for its imports and for what it tries to import."""
    tree = ast.parse(file.read_text())
    statements = []
    for node in tree.body:
        if not isinstance(node, ast.Import | ast.ImportFrom | ast.Try):
            statements.append(node)
    tree.body = statements
    exec(compile(tree, str(file), "exec"), namespace)


def compiled_helpers(
    namespace: dict[str, Any], megatron_helpers: Any, *, may_build: bool
) -> SimpleNamespace:
    """Return a stand-in for NeMo's compiled module `helpers`.

    Args:
        namespace: Where NeMo's modules were run. They have the sample index in Python, too.
        megatron_helpers: Megatron-LM's compiled helpers, which have the same blending.
        may_build: Whether the sample index may be built.
    """

    def build_sample_idx(*arguments: Any) -> Any:
        assert may_build, "NeMo did not find the index files"
        return namespace["_build_sample_idx"](*arguments)

    def build_blending_indices(dataset_index: Any, *arguments: Any) -> None:
        # Megatron-LM has 16 bits for the number of a dataset, and NeMo has 8.
        wide_dataset_index = dataset_index.astype(np.int16)
        megatron_helpers.build_blending_indices(wide_dataset_index, *arguments)
        dataset_index[:] = wide_dataset_index

    return SimpleNamespace(
        build_sample_idx=build_sample_idx, build_blending_indices=build_blending_indices
    )


def model_settings(split: str, folder: Path, options: dict[str, Any]) -> SimpleNamespace:
    """Return the settings of a NeMo model, as far as its datasets read them.

    Args:
        split: Shares of the splits.
        folder: Folder of the index files.
        options: Further settings of its data.
    """

    class DataSettings(dict[str, Any]):
        """The settings below `data`, which are read as keys and as an attribute."""

        splits_string = split

    data = DataSettings(options, index_mapping_dir=str(folder))
    return SimpleNamespace(get=lambda _key, default: default, data=data)
