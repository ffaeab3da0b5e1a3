"""The files that start a trainer: literal text, and the same configuration when they are read back."""

import json
import shlex
import shutil
import subprocess
from dataclasses import replace

import pytest
import yaml

from helpers.locations import GOLDEN_FILES
from nanoset_core import NanosetConfig
from nanoset_core.errors import ConfigError, FormatError
from nanoset_core.stages.handoff.data_args import (
    blend_from_words,
    config_from_arguments,
    read_data_args,
    read_per_split,
)
from nanoset_core.stages.handoff.description import DatasetCounts, Handoff
from nanoset_core.stages.handoff.make import handoff_files
from nanoset_core.stages.handoff.settings import TrainerSpec
from nanoset_core.stages.handoff.start import UNKNOWN_TOKENIZER
from nanoset_core.stages.handoff.tokenizer import tokenizer_arguments, tokenizer_note
from nanoset_core.stages.mappings.resolved import ResolvedNanoset
from nanoset_core.stages.mappings.settings import PhaseSpec, ScheduleSpec
from nanoset_core.tokenizers.files import TokenizerFile, define

PATHS = {"/here/web": "/lustre/web", "/here/code": "/lustre/code"}
RUN = ScheduleSpec(iterations=50, global_batch_size=8, eval_interval=20, eval_iters=2)


def handoff(
    preset="megatron", per_split=False, dtype="uint16", vocab_size=50_000, **changes
) -> Handoff:
    weights = {"/here/web": 0.7, "/here/code": 0.30000000000000004}
    data = (
        {"blend_per_split": [weights, "/here/code", None]} if per_split else {"data_path": weights}
    )
    takes_all = preset not in ("nanotron",)
    samples = {"train": 400, "valid": 48 if takes_all else None, "test": 16 if takes_all else None}
    if per_split:
        samples["test"] = None
    config = NanosetConfig(
        **data,
        sequence_length=1024,
        split="90,5,5",
        random_seed=7,
        preset=preset,
        trainer_paths=PATHS,
        **{f"{split}_split_samples": count for split, count in samples.items()},
    )
    run = {name: changes.pop(name) for name in ("schedule", "phases") if name in changes}
    spec = ResolvedNanoset(1024, "books", span=changes.pop("span", None), **run)
    fields = {
        "name": "pretrain",
        "spec": spec,
        "config": config,
        "samples": {split: count or 9 for split, count in samples.items()},
        "folder": "/lustre/h",
        "cache": "/lustre/cache",
        "datasets": {
            path: DatasetCounts(10 + n, 11 + n, dtype) for n, path in enumerate(PATHS.values())
        },
        "vocab_size": vocab_size,
    }
    return Handoff(**{**fields, **changes})


def phases(*transitions: int) -> tuple[PhaseSpec, ...]:
    return tuple(PhaseSpec("books", until) for until in (*transitions, None))


def texts(request: Handoff) -> dict[str, str]:
    return {name: content.decode() for name, content in handoff_files(request)[0].items()}


def test_which_readers_cannot_take_views_is_said_where_a_view_is_read():
    for preset in ("megatron", "nemo", "nanotron"):
        assert "MaxText" not in texts(handoff(preset))["START.md"]
        start = texts(handoff(preset, views=["web-clean", "code-x2"]))["START.md"]
        assert "- web-clean, code-x2: only the .idx selects documents of a corpus" in start
        assert "(MaxText, readers of raw tokens)" in start


def test_megatron_with_a_schedule():
    files, notes = handoff_files(handoff(schedule=RUN))
    assert files["data_args.txt"] == b"0.7 /lustre/web\n0.30000000000000004 /lustre/code\n"
    assert json.loads(files["sequences_per_dataset.json"]) == {
        "/lustre/web": [10, 11],
        "/lustre/code": [11, 12],
    }
    assert files["arguments.txt"].decode().splitlines() == [
        "--data-args-path /lustre/h/data_args.txt",
        "--split 90,5,5",
        "--seq-length 1024",
        "--seed 7",
        "--data-cache-path /lustre/cache",
        "--per-dataset-sequences-path /lustre/h/sequences_per_dataset.json",
        "--train-iters 50",
        "--global-batch-size 8",
        "--eval-interval 20",
        "--eval-iters 2",
    ]
    assert [note for note in notes if "fast-cache-load" not in note] == []
    assert "$(cat /lustre/h/arguments.txt)" in files["START.md"].decode()


def test_megatron_with_data_for_each_split():
    files = texts(handoff(per_split=True))
    assert json.loads(files["per_split_data_args.json"]) == {
        "train": ["0.7", "/lustre/web", "0.30000000000000004", "/lustre/code"],
        "valid": ["/lustre/code"],
        "test": None,
    }
    arguments = files["arguments.txt"].splitlines()
    assert "--per-split-data-args-path /lustre/h/per_split_data_args.json" in arguments
    assert "--dataloader-fast-cache-load" in arguments
    assert not any(line.startswith("--split") for line in arguments)
    assert "--train-samples 400" in arguments


def test_megatron_in_phases():
    arguments = texts(handoff(schedule=RUN, phases=phases(10, 30), span=(10, 30)))[
        "arguments.txt"
    ].splitlines()
    assert "--train-samples 400" in arguments
    assert "--phase-transition-iterations 10,30" in arguments
    assert not any(line.startswith("--train-iters") for line in arguments)


@pytest.mark.parametrize(
    ("dtype", "vocab_size", "given"),
    [
        ("uint16", 65_499, True),
        ("int32", 65_500, False),
        ("int32", 65_536, False),
        ("int32", 65_537, True),
    ],
)
def test_no_sequences_where_megatron_would_misread_the_tokens(dtype, vocab_size, given):
    files, notes = handoff_files(handoff(dtype=dtype, vocab_size=vocab_size))
    assert ("sequences_per_dataset.json" in files) is given
    assert (b"--per-dataset-sequences-path" in files["arguments.txt"]) is given
    assert any("another type" in note for note in notes) is not given


def test_numbers_that_a_run_cannot_ask_for_are_named():
    notes = handoff_files(handoff())[1]
    assert any(
        note.startswith("The cache of valid is for 48 samples: (train_iters") for note in notes
    )
    plain = handoff()
    one_epoch = NanosetConfig("/here/web", sequence_length=8, trainer_paths=PATHS)
    notes = handoff_files(
        Handoff(**{**{k: getattr(plain, k) for k in Handoff.__slots__}, "config": one_epoch})
    )[1]
    assert any(note.startswith("train was built for one epoch") for note in notes)


def test_a_run_that_limits_cut_short_asks_for_what_was_built():
    config = replace(handoff().config, train_split_samples=203)
    files, notes = handoff_files(handoff(config=config, schedule=RUN))
    arguments = files["arguments.txt"].decode().splitlines()
    assert "--train-samples 203" in arguments
    assert not any(line.startswith("--train-iters") for line in arguments)
    assert "25 iterations" in notes[0]
    # (25 // 20 + 1) * 2 * 8 validation samples, where the schedule's 50 iterations have 48
    assert "cache of valid is for 48 samples, but the run requests 32" in notes[1]
    assert not any("cache of test" in note or "cache of train" in note for note in notes)
    per_split = handoff(per_split=True)
    cut = replace(per_split.config, train_split_samples=203)
    assert (
        "--dataloader-fast-cache-load"
        in texts(handoff(per_split=True, schedule=RUN))["arguments.txt"]
    )
    assert (
        "--dataloader-fast-cache-load"
        not in texts(handoff(config=cut, schedule=RUN))["arguments.txt"]
    )
    fitting = replace(RUN, iterations=25)
    agreed = replace(config, train_split_samples=200, valid_split_samples=32)
    files, notes = handoff_files(handoff(config=agreed, schedule=fitting))
    assert "--train-iters 25" in files["arguments.txt"].decode().splitlines()
    assert len(notes) == 1
    nanotron = handoff("nanotron", schedule=RUN)
    short = replace(nanotron.config, train_split_samples=203)
    files, _ = handoff_files(handoff("nanotron", config=short, schedule=RUN))
    assert yaml.safe_load(files["data.yaml"])["tokens"]["train_steps"] == 25


def test_a_phase_that_limits_cut_short_is_named():
    config = replace(handoff().config, train_split_samples=100)
    changes = {"schedule": RUN, "phases": phases(30), "span": (30, 50)}
    files, notes = handoff_files(handoff(config=config, **changes))
    assert "--train-samples 400" in files["arguments.txt"].decode().splitlines()
    assert any(
        "cache of train is for 100 samples, but the run requests 160" in note for note in notes
    )
    whole = replace(config, train_split_samples=160)
    assert not any(
        "cache of" in note for note in handoff_files(handoff(config=whole, **changes))[1]
    )


def test_nemo():
    value = yaml.safe_load(texts(handoff("nemo"))["data.yaml"])
    assert value["model"]["data"]["data_prefix"] == [
        0.7,
        "/lustre/web",
        0.30000000000000004,
        "/lustre/code",
    ]
    assert value["model"]["data"]["index_mapping_dir"] == "/lustre/cache"
    assert value["model"]["data"]["splits_string"] == "90,5,5"
    assert (value["model"]["seed"], value["model"]["encoder_seq_length"]) == (7, 1024)
    own = yaml.safe_load(texts(handoff("nemo", per_split=True))["data.yaml"])["model"]["data"]
    assert own["data_prefix"]["validation"] == ["/lustre/code"]
    assert "splits_string" not in own


def test_nanotron():
    value = yaml.safe_load(texts(handoff("nanotron", schedule=RUN))["data.yaml"])
    assert value == {
        "data": {
            "dataset": {
                "data_path": {"/lustre/web": 0.7, "/lustre/code": 0.30000000000000004},
                "split": "90,5,5",
                "path_to_cache": "/lustre/cache",
            },
            "seed": 7,
        },
        "tokens": {"sequence_length": 1024, "train_steps": 50},
    }


def test_a_path_with_a_space_is_refused():
    with pytest.raises(ConfigError, match="spaces"):
        handoff_files(handoff(cache="/my data/cache"))


def written(folder, request):
    for name, content in handoff_files(request)[0].items():
        (folder / name).write_bytes(content)
    return folder


def test_what_is_written_is_read_back(tmp_path):
    weights = {"/lustre/web": 0.7, "/lustre/code": 0.30000000000000004}
    assert read_data_args(written(tmp_path, handoff()) / "data_args.txt") == weights
    per_split = read_per_split(
        written(tmp_path, handoff(per_split=True)) / "per_split_data_args.json"
    )
    assert per_split == [weights, "/lustre/code", None]
    config = config_from_arguments(
        {
            "data_args_path": tmp_path / "data_args.txt", "split": "90,5,5", "seq_length": 1024, "seed": 7,
            "train_iters": 50, "global_batch_size": 8, "eval_interval": 20, "eval_iters": 2, "data_cache_path": None,
            "preset": "megatron", "tokenizer_identifiers": "{}", "trainer_path": (), "data_path": (),
            "train_data_path": (), "valid_data_path": (), "test_data_path": (), "per_split_data_args_path": None,
            "train_samples": None, "valid_samples": None, "test_samples": None,
        }
    )  # fmt: skip
    assert config.data_path == weights
    assert [config.samples(split) for split in ("train", "valid", "test")] == [400, 48, 16]


FILES = GOLDEN_FILES / "tokenization" / "files"


MEGATRON_JSON = TokenizerFile(
    FILES / "megatron.json", pattern="v1", num_special_tokens=20, vocab_size=430
)
LEGACY = TokenizerFile(FILES / "bpe.model", special_tokens=("<s>", "<mask>"), legacy=True)


@pytest.mark.parametrize(
    ("tokenizer", "words"),
    [
        (FILES / "vocab.json", ["type GPT2BPETokenizer", "--vocab-file vocab.json", "--merge-file merges.txt"]),
        (MEGATRON_JSON, ["type TikTokenizer", "model megatron.json", "--tiktoken-pattern v1",
                         "--tiktoken-num-special-tokens 20", "--vocab-size 430"]),
        (LEGACY, ["type GPTSentencePieceTokenizer", "model bpe.model", "sentencepiece-legacy",
                  "special-tokens <s> <mask>"]),
        (FILES / "tekken.json", []),
        (FILES.parent / "tokenizer.json", []),
    ],
)  # fmt: skip
def test_megatron_is_told_which_tokenizer_it_is(tokenizer, words):
    lines = [word if word.startswith("--") else f"--tokenizer-{word}" for word in words]
    arguments = [line.replace(f"{FILES}/", "") for line in tokenizer_arguments(define(tokenizer))]
    assert arguments == lines
    written = texts(handoff(tokenizer=tuple(arguments)))["arguments.txt"].splitlines()
    assert [
        line for line in written if "token" in line or "vocab" in line or "merge" in line
    ] == lines


def test_start_has_the_lines_that_name_the_tokenizer_where_nobody_has():
    spoken = tokenizer_arguments(define(LEGACY))
    said = texts(handoff(tokenizer=spoken, schedule=RUN))["START.md"]
    section = yaml.safe_load(said.partition("`nanoset build`:\n")[2].partition("## Files")[0])
    spec = TrainerSpec(
        **section["nanosets"]["pretrain"]["trainer"] | {"special_tokens": ("<s>", "<mask>")}
    )
    assert sorted(spec.arguments()) == sorted(spoken)
    assert f"preflight.py {shlex.join(' '.join(spoken).split())}\n" in said
    assert "HuggingFaceTokenizer" in texts(handoff())["START.md"].partition(UNKNOWN_TOKENIZER)[2]
    named = replace(handoff().config, tokenizer_identifiers={"class": "x"})
    assert UNKNOWN_TOKENIZER not in texts(handoff(config=named))["START.md"]
    assert UNKNOWN_TOKENIZER not in texts(handoff("nemo"))["START.md"]


def test_a_bare_tokenizer_json_gets_the_file_that_names_its_eod():
    note = tokenizer_note(define(FILES.parent / "tokenizer.json"), "</s>")
    assert json.loads(note[note.index("{") :])["eos_token"] == "</s>"


def test_what_megatron_has_no_tokenizer_for(tmp_path):
    note = tokenizer_note(define(FILES / "tekken.json"))
    assert "NullTokenizer --vocab-size 430" in note
    assert note in handoff_files(handoff(tokenizer_note=note))[1]
    assert tokenizer_note(define(FILES / "bpe.model")) is None
    assert "--legacy-tokenizer" in tokenizer_note(define(FILES / "vocab.json"))
    (tmp_path / "with space").mkdir()
    spaced = define(shutil.copyfile(FILES / "bpe.model", tmp_path / "with space" / "bpe.model"))
    assert tokenizer_arguments(spaced) == ()
    assert "space" in tokenizer_note(spaced)


@pytest.mark.parametrize(
    ("words", "blend"),
    [
        (["a"], "a"),
        (["a", "b"], ["a", "b"]),
        (["a", "b", "c"], ["a", "b", "c"]),
        (["1", "a"], {"a": 1.0}),
        ([".3", "a", "7e-1", "b"], {"a": 0.3, "b": 0.7}),
        # an odd number of words: all are prefixes, as Megatron-LM has it
        (["1", "a", "2"], ["1", "a", "2"]),
    ],
)
def test_blends_of_words(words, blend):
    assert blend_from_words(words, "here") == blend


def test_texts_and_lists_of_each_split(tmp_path):
    path = tmp_path / "args.json"
    path.write_text('{"train": "0.5 a 0.5 b", "valid": ["c"], "test": null}')
    assert read_per_split(path) == [{"a": 0.5, "b": 0.5}, "c", None]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"train": ["a"], "valid": null}', '{"train": 1, "valid": 2, "test": 3}']
)
def test_what_is_not_for_each_split(tmp_path, text):
    path = tmp_path / "args.json"
    path.write_text(text)
    with pytest.raises(FormatError) as caught:
        read_per_split(path)
    assert caught.value.where == str(path)


HOSTILE = "/data/$(touch${IFS}pwned);`id`/<|x|>'\""
"""A folder whose name a shell would run; without spaces, which are refused."""


def shell_words(line):
    return subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {line}"], capture_output=True, check=True, text=True
    ).stdout


def test_the_commands_of_start_are_quoted_for_the_shell(tmp_path):
    spoken = ("--tokenizer-type TikTokenizer", "--tiktoken-special-tokens <|im_start|> $(id) a;b")
    hostile = handoff(tokenizer=spoken, folder=HOSTILE)
    lines = texts(hostile)["START.md"].splitlines()
    (check,) = [
        line.strip() for line in lines if "preflight.py" in line and line.startswith("    python")
    ]
    assert shell_words(check.partition(" --train-iters")[0]).splitlines() == [
        *("python", f"{HOSTILE}/preflight.py"),
        *" ".join(spoken).split(),
    ]
    (arguments_line,) = [line for line in lines if "$(cat" in line]
    assert f"$(cat {shlex.quote(f'{HOSTILE}/arguments.txt')})" in arguments_line


def test_start_turns_patterns_of_the_shell_off_if_an_argument_holds_one():
    assert "set -f" not in texts(handoff())["START.md"]
    spoken = ("--tokenizer-type TikTokenizer", "--tiktoken-special-tokens [INST] *")
    assert "\n    set -f" in texts(handoff(tokenizer=spoken))["START.md"]


@pytest.mark.parametrize(
    "folder",
    [HOSTILE, "*x", "/a: b#".replace(" ", ""), "/x:", "@a", "{a}", "/a#b", "'a'", "yes", "1"],
)
def test_run_yaml_names_its_handoff_whatever_its_path_holds(folder):
    assert yaml.safe_load(texts(handoff(folder=folder))["run.yaml"])["handoff"] == folder


@pytest.mark.parametrize("path", ["/data/\x1b[2J", "/data/a\u202eb", "/data/a\u200bb"])
def test_paths_that_cannot_be_seen_are_refused(path):
    with pytest.raises(ConfigError, match="cannot be seen"):
        texts(handoff(folder=path))
