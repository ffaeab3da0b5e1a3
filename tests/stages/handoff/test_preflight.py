"""preflight.py beside a handoff's arguments: what it says where the trainer runs, run there as a script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from helpers.building import build_all
from helpers.locations import GOLDEN_FILES
from helpers.sample_project import write_project
from nanoset_core.project.project import Project
from nanoset_core.project.status import project_status
from nanoset_core.stages.handoff import stage as handoff
from nanoset_core.stages.handoff.start import UNKNOWN_TOKENIZER

TRAINER = {
    "megatron_core": "0.19.0",
    "tokenizer_type": "HuggingFaceTokenizer",
    "tokenizer_model": "/models/hf",
}
GOLDEN = json.loads((GOLDEN_FILES / "megatron/tokenizer_identifiers.json").read_bytes())
IDENTIFIERS = next(row[2] for row in GOLDEN if row[0] == "0.19.0" and row[1][3] == "/models/hf")
STAND_IN = f"""
class Tokenizer:
    unique_identifiers = {IDENTIFIERS!r}

def build_tokenizer(args):
    if args.tokenizer_type != "HuggingFaceTokenizer":
        raise NotImplementedError(f"{{args.tokenizer_type}} tokenizer is not implemented.")
    Tokenizer.unique_identifiers["tokenizer_path"] = args.tokenizer_model
    return Tokenizer
"""
"""Of megatron.core.tokenizers: it gives the identifiers that core 0.19.0 gives."""
SCHEDULE = {"iterations": 50, "global_batch_size": 8, "eval_interval": 25, "eval_iters": 1}


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stand-in for megatron-core."""
    folder = tmp_path_factory.mktemp("core")
    module = folder / "megatron/core/tokenizers/utils/build_tokenizer.py"
    module.parent.mkdir(parents=True)
    module.write_text(STAND_IN)
    return folder


@pytest.fixture
def made(tmp_path, tokenizer_file):
    """Gives the folder of a handoff, built with changes to the nanoset's settings; and again with others."""
    config = write_project(tmp_path / "p", tokenizer_file)
    plain = yaml.safe_load(config.read_text())["nanosets"]["pretrain"]

    def make(**changes: Any) -> Path:
        settings = yaml.safe_load(config.read_text())
        spec = (
            plain
            | {"trainer_path": None, "samples": None, "schedule": SCHEDULE, "trainer": TRAINER}
            | changes
        )
        settings["nanosets"] = {
            "pretrain": {key: value for key, value in spec.items() if value is not None}
        }
        settings.pop("webdatasets", None)
        config.write_text(yaml.safe_dump(settings, sort_keys=False))
        project = build_all(config)
        name = next(iter(project.config.nanosets))
        return project.outputs.current("nanosets", f"{name}/{handoff.HANDOFF}").folder

    return make


def asked(folder: Path, core: Path | None, *words: str) -> tuple[int, str]:
    """Exit code and output."""
    environment = os.environ | {"PYTHONPATH": str(core or "")}
    command = [sys.executable, "-S", str(folder / "preflight.py"), *words]
    found = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert not found.stderr
    return found.returncode, found.stdout


def pasted(said: str) -> dict[str, Any]:
    """Return the settings that the script prints, and None for the keys that they replace."""
    lines = said.partition("change nanoset.yaml:\n")[2]
    changes = yaml.safe_load(lines)["nanosets"]["pretrain"]
    for line in lines.split("\n"):
        _, mark, comment = line.partition("# replaces ")
        if mark:
            changes[comment.partition(":")[0]] = None
    return changes


def test_what_is_right_and_what_is_not(made, core):
    folder = made()
    assert asked(folder, core)[0] == 0
    assert asked(folder, core, "--seq-length", "32", "--micro-batch-size", "1")[0] == 0
    code, said = asked(
        *(
            folder,
            core,
            "--tokenizer-model",
            "/other",
            "--seq-length",
            "16",
            "--train-iters",
            "40",
            "--seed",
            "9",
        ),
        *("--split", "8,1,1"),
    )
    assert (code, "indexes will be rebuilt" in said) == (1, True)
    changes = pasted(said)
    assert changes.keys() == {
        *(
            "sequence_length",
            "seed",
            "split",
            "schedule",
            "samples",
            "tokenizer_identifiers",
            "trainer",
        ),
    }
    folder = made(**changes)
    assert (
        asked(
            folder, core, "--tokenizer-model", "/other", "--tokenizer-type", "HuggingFaceTokenizer"
        )[0]
        == 0
    )
    assert asked(folder, core)[0] == 2


def test_settings_of_a_project_that_names_neither_trainer_nor_run(made, core):
    folder = made(trainer=None, schedule=None)
    warned = [
        row
        for row in project_status(Project.open(folder.parents[4] / "nanoset.yaml"))
        if row.warnings
    ]
    assert [(row.label, UNKNOWN_TOKENIZER in row.warnings[0]) for row in warned] == [
        ("nanoset pretrain handoff", True)
    ]
    words = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", "/models/hf"]
    code, said = asked(folder, core, *words)
    assert (code, "--global-batch-size" in said) == (2, True)
    code, said = asked(
        folder, core, *words, "--train-iters", "50", "--global-batch-size", "8", "--eval-iters", "1"
    )
    assert code == 1
    changes = pasted(said)
    assert changes["tokenizer_identifiers"] == IDENTIFIERS
    assert changes["schedule"] == {**SCHEDULE, "eval_interval": 1000}
    folder = made(**changes)
    assert asked(folder, core, *words)[0] == 0
    assert not any(
        row.warnings for row in project_status(Project.open(folder.parents[4] / "nanoset.yaml"))
    )


def test_samples_that_are_no_whole_iterations(made, core):
    run = ["--global-batch-size", "8", "--eval-interval", "25", "--eval-iters", "1"]
    folder = made(schedule=None, samples={"train": 300, "valid": 8, "test": 8})
    assert asked(folder, core, *run)[0] == 1
    changes = pasted(asked(folder, core, *run, "--train-samples", "301")[1])
    assert changes["samples"] == {"train": 301, "valid": 16, "test": 8}
    assert asked(made(**changes), core, *run)[0] == 0


@pytest.mark.parametrize(
    ("words", "samples"),
    [
        ("--skip-train", {"train": 400, "valid": 8, "test": 8}),
        ("--full-validation", {"train": 400, "test": 8}),
        ("--start-eval-at-iter 25", {"train": 400, "valid": 16, "test": 8}),
        ("--eval-global-batch-size=16 --skip-train", {"train": 400, "valid": 16, "test": 16}),
    ],
)
def test_options_of_evaluation_ask_for_other_samples(made, core, words, samples):
    folder = made(blend=["web", "code"])
    assert asked(folder, core, "--eval-global-batch-size", "8")[0] == 0
    code, said = asked(folder, core, *words.split())
    assert (code, pasted(said)) == (1, {"samples": samples, "schedule": None})
    run = f"--global-batch-size 8 --eval-interval 25 --eval-iters 1 {words}"
    assert asked(made(blend=["web", "code"], **pasted(said)), core, *run.split())[0] == 0


def test_options_whose_indexes_are_not_known(made, core):
    folder = made()
    for words in (
        *(
            "--rampup-batch-size 2 2 100",
            "--step-batch-size-schedule 0:8",
            "--mid-level-dataset-surplus=0.1",
        ),
        *(
            "--multiple-validation-sets",
            "--mock-data",
            "--fim-data",
            "--sft",
            "--perform-rl-step",
            "--yaml-cfg x.yaml",
        ),
        *("--use-checkpoint-args", "--phase-transition-iterations 9"),
    ):
        flag = words.replace("=", " ").split()[0]
        code, said = asked(folder, None, *words.split())
        assert (code, said) == (
            1,
            f"This script cannot predict the indexes that Megatron-LM uses with {flag}.\n"
            "Run it without, to check everything else.\n",
        )


def test_shares_with_spaces_are_given_and_hashed_without(made, core):
    folder = made(split="80, 15, 5")
    assert "--split 80,15,5\n" in (folder / "arguments.txt").read_text()
    assert asked(folder, core)[0] == 0
    code, said = asked(folder, core, "--split", "80, 15, 5")
    assert (code, "leave its spaces out" in said) == (2, True)


def test_phases(made, core):
    phases = [{"blend": {"web": 1, "code": 1}, "until": 30}, {"blend": "books"}]
    folder = made(phases=phases, blend=None)
    assert asked(folder, core)[0] == 0
    code, said = asked(folder, core, "--train-samples", "16")
    assert code == 1
    assert "  pretrain:\n    # --train-samples: change schedule, or phases" in said
    code, said = asked(folder, core, "--eval-iters", "2", "--full-validation")
    assert code == 1
    assert (
        "# --eval-iters: change schedule, or phases\n    # --full-validation: change schedule, or phases"
        in said
    )


def test_data_of_its_own_for_each_split_and_the_preset_of_older_versions(made, core):
    per_split = {"train": {"web": 0.75, "code": 0.25}, "valid": "books"}
    folder = made(blend=None, split=None, blend_per_split=per_split)
    assert asked(folder, core)[0] == 0
    assert pasted(asked(folder, core, "--seed", "8")[1])["seed"] == 8
    older = {
        "megatron_core": "0.10.0",
        "tokenizer_type": "HuggingFaceTokenizer",
        "tokenizer_model": "/models/hf",
    }
    folder = made(preset="megatron-0.10", trainer=older)
    changes = pasted(asked(folder, core)[1])  # the stand-in is that of a newer version
    assert changes["tokenizer_identifiers"] == IDENTIFIERS
    words = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", "/models/hf"]
    assert asked(made(preset="megatron-0.10", **changes), core, *words)[0] == 0


def test_what_it_cannot_tell(made, core):
    folder = made()
    assert asked(folder, None)[0] == 2
    code, said = asked(folder, core, "--tokenizer-type", "TikTokenizer")
    assert (code, "TikTokenizer tokenizer is not implemented" in said) == (2, True)
    code, said = asked(folder, core, "--data-path", "1", "/x")
    assert (code, "leave --data-path out" in said) == (2, True)
    (folder / "arguments.txt").unlink()
    assert asked(folder, core)[0] == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "--eval-interval 0",
            "--eval-interval has to be 1 or more, since Megatron-LM divides by it, and is 0",
        ),
        ("--seq-length 4k", "argument --seq-length: invalid int value: '4k'"),
        ("--train-iters=1e5", "argument --train-iters: invalid int value: '1e5'"),
        ("--seed", "argument --seed: expected one argument"),
    ],
)
def test_numbers_that_are_none(made, core, words, said):
    found = asked(made(), core, *words.split())
    assert found == (
        2,
        f"The check failed: {said}\n"
        "Run it in the trainer's environment, with the trainer's options.\n",
    )


def test_files_that_are_not_where_the_trainer_looks(made, core, tmp_path):
    folder = made()
    code, said = asked(folder, core, "--data-cache-path", str(tmp_path))
    assert (code, "index files are missing" in said, str(tmp_path) in said) == (1, True, True)
    cache = folder.parents[1] / "cache"
    lost = next(cache.glob("*BlendedDataset-valid-dataset_index.npy"))
    lost.unlink()
    code, said = asked(folder, core)
    assert (code, said.startswith("1 of "), str(lost) in said) == (1, True, True)


def test_megatron_core_itself(made, tokenizer_file, tmp_path):
    megatron = pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    model = tmp_path / "model"
    model.mkdir()
    (model / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    folder = made(
        trainer=TRAINER | {"megatron_core": megatron.__version__, "tokenizer_model": str(model)}
    )
    found = subprocess.run(
        [sys.executable, str(folder / "preflight.py")], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr
