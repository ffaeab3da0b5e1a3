"""Run nanotron's own Nanoset and TokenizedBytes on the cases: `python -m
golden.nanotron_main.make`, from tests.

NANOTRON_MAIN and DATATROVE name checkouts of nanotron 2411b022 and datatrove 2c895af7; it needs
torch, numba and g++. The parts of nanotron that the two do not use are empty here.
"""

import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import types
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
from golden.nanotron_main.cases import EOD, LINES, draw, facts, write_datasets

from nanoset_core.stages.exports.standalone import ExportOptions, export_pair

CASES = 100
_EMPTY = {
    "nanotron.logging": ("get_logger", "human_format", "log_rank"),
    "nanotron.distributed": ("get_rank", "barrier"),
    "nanotron.config": ("NanosetDatasetsArgs",),
    "nanotron.parallel": ("ParallelContext",),
    "nanotron.utils": ("main_rank_first",),
    "nanotron.data": (
        "DataCollatorForCLM",
        "DataCollatorForCLMWithPositionIds",
        "EmptyInfiniteDataset",
    ),
    "nanotron.data.dataloader": ("get_dataloader_worker_init",),
    "nanotron.data.samplers": ("MegatronPretrainingSampler",),
    "nanotron.data.s3_utils": (
        "BOTO3_AVAILABLE",
        "_get_s3_file_list",
        "_get_s3_object",
        "_stream_file",
    ),
    "nanotron.data.nemo_dataset": (),
    "nanotron.data.nemo_dataset.dataset_utils": ("compile_helper",),
}


def load(nanotron, datatrove, scratch):
    """Import the classes from their source; → (Nanoset, get_tb_datasets)."""
    import torch

    sys.path.insert(0, str(Path(datatrove) / "src"))
    for name in [name for name in sys.modules if name.partition(".")[0] == "datatrove"]:
        del sys.modules[name]  # a release that other tests read with
    source = Path(nanotron) / "src" / "nanotron" / "data"
    for name in ("nanotron", *_EMPTY):
        module = sys.modules[name] = types.ModuleType(name)
        module.__path__ = []
        module.INFO = module.WARNING = 0
        for part in _EMPTY.get(name, ()):
            setattr(module, part, MagicMock())
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], own, module)
    _compiled(
        source / "nemo_dataset" / "helpers.cpp", scratch, Path(torch.__file__).parent / "include"
    )
    _module("nanotron.data.utils", source / "utils.py")
    blendable = _module(
        "nanotron.data.nemo_dataset.blendable_dataset",
        source / "nemo_dataset" / "blendable_dataset.py",
    )
    sys.modules["nanotron.data.nemo_dataset"].BlendableDataset = blendable.BlendableDataset
    nanoset = _module("nanotron.data.nanoset", source / "nanoset.py")
    return nanoset.Nanoset, _module(
        "nanotron.data.tokenized_bytes", source / "tokenized_bytes.py"
    ).get_tb_datasets


def _module(name, file):
    spec = importlib.util.spec_from_file_location(name, file)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _compiled(source, scratch, include):
    target = Path(scratch) / f"helpers{sysconfig.get_config_var('EXT_SUFFIX')}"
    # newer than its c++11: torch's pybind11 wants it
    flags = ["-O3", "-Wall", "-shared", "-std=c++17", "-fPIC"]
    folders = [f"-I{include}", f"-I{sysconfig.get_path('include')}"]
    subprocess.run(["g++", *flags, *folders, str(source), "-o", str(target)], check=True)
    package, name = sys.modules["nanotron.data.nemo_dataset"], "nanotron.data.nemo_dataset.helpers"
    package.helpers = _module(name, target)


def made(case, folder, readers):
    """What nanotron makes of a case, or how it fails: as {class: facts}."""
    nanoset, get_tb_datasets = readers
    folders = []
    for prefix in write_datasets(case, folder):
        folders.append(f"{prefix}-ds")
        Path(folders[-1]).mkdir()
        export_pair(
            Path(prefix),
            Path(folders[-1]),
            ExportOptions(format="datatrove", tokenizer_name="some/name"),
        )
    size, length = np.dtype(case["dtype"]).itemsize, case["sequence_length"]
    config = SimpleNamespace(
        dataset_folder=folders,
        dataset_weights=case["weights"],
        dataset_max_tokens=None,
        dataset_read_path=None,
        token_size_in_bytes=size,
        return_positions=True,
        use_old_brrr_dataloader=False,
        skip_in_stream=False,
    )

    def by_nanoset():
        weights, seed = case["weights"], case["random_seed"]
        return nanoset(
            folders,
            length,
            size,
            case["samples"],
            weights,
            seed,
            eos_token_id=EOD,
            return_positions=True,
        )

    def by_bytes():
        asked = {
            "global_batch_size": case["samples_in_order"],
            "train_steps": 1,
            "current_iteration": 0,
        }
        stages = {
            "parallel_context": MagicMock(),
            "last_stages_consumed_tokens_per_dataset_folder": {},
        }
        return get_tb_datasets(
            config, length, **asked, **stages, eos_token_id=EOD, seed=case["random_seed"]
        )[0]

    return {"nanotron-main": _facts(by_nanoset), "nanotron-main-bytes": _facts(by_bytes)}


def _facts(make):
    try:
        dataset = make()
        parts = getattr(dataset, "datatrove_datasets", None) or dataset.datasets
        for number in np.unique(dataset.dataset_index):
            own = np.flatnonzero(dataset.dataset_index == number)
            # fails where it leads beyond the folder
            dataset[own[np.argmax(dataset.dataset_sample_index[own])]]
        return facts(dataset, map(len, parts))
    except (IndexError, ZeroDivisionError) as error:
        return {"refused": type(error).__name__}


def single_process():
    """Start torch's process group of this process alone, which BlendableDataset asks for its rank."""
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def main():
    """Write cases.jsonl."""
    single_process()
    lines = []
    with tempfile.TemporaryDirectory() as scratch:
        readers = load(os.environ["NANOTRON_MAIN"], os.environ["DATATROVE"], scratch)
        for seed in range(CASES):
            case = draw(seed)
            with tempfile.TemporaryDirectory() as folder:
                lines.append(case | {"made": made(case, Path(folder), readers)})
    LINES.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


if __name__ == "__main__":
    main()
