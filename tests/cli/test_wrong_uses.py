"""The message of every wrong use says where the mistake is, what was found, and what to do."""

from __future__ import annotations

import shutil
from itertools import product
from pathlib import Path

import pytest
from click.testing import Result

from helpers.command import invoke_nanoset, output_of, run_nanoset
from helpers.sample_project import CONFIG, EOD, write_raw
from nanoset_core.cli.entry import message
from nanoset_core.errors import NanosetError

PAIR = "o/y_text_document"
"""Prefix of the pair of index files in the folder of these tests."""

USAGE = 2
"""Exit code of a command that click refuses, because of its options or arguments."""

# Values of --trainer: without the size of the vocabulary, with it, and with its name misspelt.
UNSIZED = '{"megatron_core":"0.16.1","tokenizer_type":"NullTokenizer"}'
SIZED = UNSIZED.replace("}", ',"vocab_size":9}')
MISSPELT = UNSIZED.replace("}", ',"vocabsize":9}')

CONFIGURATIONS = {
    "no-tokenizer": ("path: tokenizer.json", "path: nope.json"),
    "raw-is-a-file": ("raw: raw", "raw: nanoset.yaml"),
    "root-is-a-file": ("root: data", "root: nanoset.yaml"),
    "tokenizer-is-yaml": ("path: tokenizer.json", "path: nanoset.yaml"),
    "tokenizer-is-folder": ("path: tokenizer.json", "path: raw"),
    "hub-name": ("path: tokenizer.json", "path: org/gpt2"),
    "unknown-eod": ("<|endoftext|>", "<nope>"),
    "unknown-corpus": ("blend: books", "blend: bokos"),
    "tab": ("    seed: 7", "\tseed: 7"),
    "raw-is-missing": ("raw: raw\n", "raw: nowhere\n"),
}
"""Name of a wrong nanoset.yaml → text of CONFIG, and what takes its place."""

WRONG_TOKENIZERS = {
    "no-tokenizer": ["no-tokenizer.yaml: tokenizer.path", "nope.json does not exist", "correct the path"],
    "tokenizer-is-yaml": ["nanoset.yaml", "not a tokenizer", "name another file"],
    "unknown-eod": ["tokenizer.eod", "'<nope>'", f"'{EOD}', '<|pad|>'", "name another token"],
}  # fmt: skip
"""Name of a configuration whose tokenizer is wrong → words of the message."""

# (arguments, words of the message). The exit code is 1, or 2 if the first of the words is USAGE.
# Of words that are divided by `|`, the message has at least one.
WRONG_USES = [
    # a project's configuration
    ("status -c nope.yaml", ["nope.yaml", "no such configuration", "nanoset init"]),
    ("status -c raw", ["raw/nanoset.yaml", "no such configuration", "nanoset init"]),
    ("status -c empty.yaml", ["empty.yaml", "is empty", "raw, root and tokenizer", "nanoset init"]),
    ("status -c tab.yaml", ["tab.yaml", "not YAML", "line 11"]),
    ("status -c raw-is-a-file.yaml", ["nanoset.yaml", "a file is where", "name a folder"]),
    ("status -c root-is-a-file.yaml", ["root-is-a-file.yaml:2: root", "a file is where", "name a folder"]),
    ("status -c raw-is-missing.yaml", ["nowhere", "remedy"]),
    ("build -c unknown-corpus.yaml", ["nanosets.plain.blend:", "'bokos'", "books, code, web", "take it out"]),
    # the tokenizer: each command gives the message that a build would give
    ("build -c no-tokenizer.yaml", WRONG_TOKENIZERS["no-tokenizer"]),
    *(
        (f"{command} -c {name}.yaml", words)
        for command, (name, words) in product(
            ("status", "map", "map --plan", "verify"), WRONG_TOKENIZERS.items()
        )
    ),
    ("status -c tokenizer-is-folder.yaml", ["tokenizer.path", "is a folder", "tokenizer.json"]),
    ("status -c hub-name.yaml", ["`hf download org/gpt2 tokenizer.json --local-dir org/gpt2`, and name org/gpt2/tok"]),
    ("tokenize --input raw/web --output-prefix o/z --tokenizer gpt2", ["`hf download gpt2 tokenizer.json"]),
    ("shuffle --input raw/web --output tars --tokenizer org/gpt", ["`hf download org/gpt tokenizer.json"]),
    ("tokenize --input raw/web --output-prefix o/z --tokenizer raw", ["raw/tokenizer.json|raw is a folder"]),
    (
        "tokenize --input raw/web --output-prefix o/z --tokenizer nanoset.yaml --append-eod",
        ["nanoset.yaml", "not a tokenizer", "tokenizer.json", "name another file"],
    ),
    (
        "tokenize --input raw/web --output-prefix o/z --tokenizer tokenizer.json --append-eod",
        ["no eos_token in tokenizer_config.json", f"'{EOD}', '<|pad|>'", "--eod"],
    ),
    (
        "tokenize --input raw/web --output-prefix o/z --tokenizer configured --append-eod",
        ["no eos_token in configured/tokenizer_config.json", f"'{EOD}', '<|pad|>'", "--eod"],
    ),
    (
        "tokenize --input raw/web --output-prefix o/z --tokenizer tokenizer.json --append-eod "
        "--eod <nope>",
        ["--eod", "'<nope>'", EOD],
    ),
    ("shuffle --input raw/web --output tars", ["--tokenizer", "text needs a tokenizer", "name its file"]),
    ("pack raw/web --output o/p.pbin", ["--tokenizer", "no tokenizer is named"]),
    (f"verify {PAIR} --tokenizer nope", ["nope does not exist", "hf download nope"]),
    (f"inspect {PAIR} --tokenizer gpt2", ["gpt2 does not exist", "hf download gpt2"]),
    # inputs that do not exist, or are empty
    ("tokenize --input nope --output-prefix o/z --tokenizer tokenizer.json", ["nope", "remedy"]),
    ("tokenize --input hollow --output-prefix o/z --tokenizer tokenizer.json", ["hollow", ".jsonl", "remedy"]),
    ("shuffle --input nope --output tars --tokenizer tokenizer.json", ["nope", "name an existing one with --input"]),
    (f"shuffle --input hollow --output tars --tokenizer tokenizer.json --eod {EOD}", ["hollow", "--ext"]),
    ("merge --input nope --output-prefix o/m", [USAGE, "'nope' does not exist"]),
    ("merge --input hollow --output-prefix o/m", ["hollow", ".bin and .idx"]),
    ("pack nope --output o/p.pbin", ["nope", "name an existing file or folder"]),
    ("pbin merge nope.pbin --output o/p.pbin", ["nope.pbin", "name a file that exists"]),
    (f"pbin describe {PAIR}.bin", [f"{PAIR}.bin", "no .pbin", "layouts A, C and D"]),
    ("import-parquet nope --output o/a.jsonl", ["nope", "that exists"]),
    ("inspect nope", ["nope.idx", "a prefix, without .bin or .idx"]),
    # scratch folders that cannot be made; for outputs see campaigns/commands.py
    (
        "tokenize --input raw/web --output-prefix o/z --tokenizer tokenizer.json --scratch /proc/none",
        ["/proc/none", "the folder cannot be made", "name a place"],
    ),
    (
        f"shuffle --input {PAIR} --output tars --seqlen 9 --workers 1 --scratch /proc/none",
        ["/proc/none", "the folder cannot be made", "name a place"],
    ),
    ("demo /proc/none/x --megabytes 0.01", ["/proc/none", "the folder cannot be made", "name a place"]),
    # nanoset map without a project
    (f"map --data-path {PAIR}", ["--seq-length", "give the value that the run has"]),
    (f"map --data-path {PAIR} --seq-length 0", [USAGE, "--seq-length", "1<=x"]),
    (f"map --data-path 0.5 {PAIR} 0.5 --seq-length 8", ["--data-path", "come in pairs", f"0.5 {PAIR} 0.5"]),
    (f"map --data-path {PAIR} {PAIR} --seq-length 8", ["named twice", f"found: {PAIR}"]),
    ("map --data-args-path empty --seq-length 8", ["empty", "no datasets are named"]),
    (f"map --data-path 0.5 {PAIR} 0.5 {PAIR} --seq-length 8", [f"found: {PAIR}", "the sum of its weights"]),
    (f"map --data-path 0.5 {PAIR} x {PAIR} --seq-length 8", ["'x'", "pairs of weight and prefix", "before each"]),
    ("map --data-path nope --seq-length 8", ["nope.idx", "check the data path"]),
    (f"map --data-path {PAIR} --train-data-path {PAIR} --seq-length 8", ["--data-path, --train-data-path", "leave"]),
    ("map --data-args-path nope --seq-length 8", ["nope", "cannot be read", "correct the path"]),
    (f"map --data-path {PAIR} --seq-length 8 --train-iters 10", ["--global-batch-size", "give both"]),
    (f"map --data-path {PAIR} --seq-length 8 --trainer-path abc", ["'abc'", "HERE=THERE"]),
    (f"map --data-path {PAIR} --seq-length 8 --tokenizer-identifiers {{x", ["--tokenizer-identifiers", "quotes"]),
    (f"map --data-path {PAIR} --seq-length 8 --trainer {{x", ["--trainer", "not YAML", "in single quotes: '{meg"]),
    (f"map --data-path {PAIR} --seq-length 8 --trainer x", ["--trainer", "wrong type", "'x' (str)"]),
    (f"map --data-path {PAIR} --seq-length 8 --trainer {MISSPELT}", ["--trainer: vocabsize", "mean 'vocab_size'"]),
    (f"map --data-path {PAIR} --seq-length 8 --trainer {UNSIZED}", ["--trainer.vocab_size", "needs this option"]),
    (f"map --data-path {PAIR} --seq-length 8 --trainer {SIZED} --preset nemo", ["--trainer", "preset nemo", "remove"]),
    (f"map --data-path {PAIR} --seq-length 8 --trainer {SIZED} --preset megatron-0.10", ["--preset", "0.16.1"]),
    (f"map --data-path {PAIR} --seq-length 8 --trainer {SIZED} --tokenizer-identifiers x", ["keep one of them"]),
    (f"map --data-path {PAIR} --seq-length 8 --split 0,0", ["'0,0'", "969,30,1"]),
    ("map nope", ["nanosets", "'nope'", "pretrain, plain", "correct the name"]),
    (f"map --data-path {PAIR} --seq-length 8 --trainer-path =/lustre", ["'=/lustre'", "HERE=THERE"]),
    ("map --seq-length 8", ["--seq-length", "nanoset.yaml", "--data-path"]),
    ("map --max-epochs 2 --train-iters 10 pretrain", ["--max-epochs, --train-iters", "no effect"]),
    ("map pretrain --data-path web --seq-length 8", ["pretrain", "no effect"]),
    (f"map --plan --data-path {PAIR} --seq-length 100000000", ["train has no sample", "make samples shorter"]),
    (f"map --data-path {PAIR} --seq-length 100000000", ["train has no sample", "100,000,001 tokens or more"]),
    # unknown names, and values out of range
    ("diff web --show -1", [USAGE, "--show", "-1 is not in the range x>=0"]),
    (f"inspect {PAIR} --sequences -1", [USAGE, "--sequences", "-1 is not in the range x>=0"]),
    ("diff nope", ["nope", "no such corpus", "there is none yet", "remedy: run `nanoset build`"]),
    ("columns nope", ["nope", "no such corpus", "there is none yet", "remedy: run `nanoset build`"]),
    ("explain nope train 0", ["nope", "correct the names"]),
    ("explain pretrain train", [USAGE, "give a SAMPLE, or a document"]),
    ("verify --select nope", ["--select", "'nope'", "books, code, web", "name one of these"]),
    ("verify --eod x", [USAGE, "--eod"]),
    ("verify web", [USAGE, "web is an output of nanoset.yaml", "`nanoset verify --select web`"]),
    ("verify pretrain/train", [USAGE, "`nanoset verify --select pretrain/train`"]),
    ("purge --ids-file nope.txt", ["nope.txt: no such file", "--ids-file"]),
    ("purge --ids-file -", [USAGE, "'-' is no file", "/dev/stdin"]),
    ("explain --document w-6", [USAGE, "Missing argument 'NAME'", "pretrain, plain, shuffled"]),
    ("explain --document w-6 -c nope.yaml", [USAGE, "Missing argument 'NAME'"]),
    ("nope", [USAGE, "nope"]),
    ("tokenize --input raw/web --output-prefix o/z", [USAGE, "--tokenizer"]),
    ("gc --older-than -1", [USAGE, "--older-than", "x>=0"]),
    ("gc --older-than nan", [USAGE, "--older-than", "'nan' is not a finite number"]),
    ("demo new --megabytes inf", [USAGE, "--megabytes", "0<=x<=10000"]),
    (f"tokenize --input raw/web --output-prefix o --tokenizer t --partitions {10**30}", [USAGE, "--partitions", "<=x"]),
    (f"shuffle --input {PAIR} --output tars\udcff --seqlen 9", [r"b'tars\xff'", "not UTF-8", "rename it"]),
    (f"shuffle --input raw/web --output tars --workers {10**30}", [USAGE, "--workers", "0<=x<=4096"]),
    ("tokenize --input raw/web --output-prefix out --tokenizer tokenizer.json --audit nan", [USAGE, "--audit", "nan"]),
    ("init .", ["nanoset.yaml", "already", "edit it"]),
    ("demo nanoset.yaml", [USAGE, "nanoset.yaml"]),
    ("shuffle --input raw/web --output tars --tokenizer tokenizer.json --seqlen -3", [USAGE, "--seqlen", "1<=x"]),
]  # fmt: skip


UNUSUAL_PLANS = [
    pytest.param(
        "--seq-length 8 --split 90,5",
        ["train 94.74%, valid 5.26%, test 0.00%"],
        id="a split whose weights do not add up to 100",
    ),
    pytest.param(
        "--seq-length 1024 --split 999,1",
        ["data valid has no sample", "hangs on such a split"],
        id="a split without samples",
    ),
    pytest.param(
        "--seq-length 100000 --train-samples 9 --valid-samples 1",
        ["data train reads y_text_document", "times (max_epochs would limit that)"],
        id="a corpus that is read many times",
    ),
]
"""Options of `nanoset map --plan` that are allowed but seldom meant, and words of the warning."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer_file):
    """A folder with a project that was never built, wrong configurations of it, and a pair."""
    folder = tmp_path_factory.mktemp("wrong")
    write_raw(folder / "raw")
    (folder / "hollow").mkdir()
    (folder / "empty").touch()

    # The tokenizer without a configuration, and with one that names no eos_token.
    (folder / "configured").mkdir()
    shutil.copyfile(tokenizer_file, folder / "tokenizer.json")
    shutil.copyfile(tokenizer_file, folder / "configured" / "tokenizer.json")
    (folder / "configured" / "tokenizer_config.json").write_text('{"model_max_length": 1024}')

    # One correct configuration, and many wrong ones.
    (folder / "nanoset.yaml").write_text(CONFIG)
    (folder / "empty.yaml").write_text("# nothing yet\n")
    for name, (old, new) in CONFIGURATIONS.items():
        assert old in CONFIG, name
        (folder / f"{name}.yaml").write_text(CONFIG.replace(old, new, 1))

    # The pair PAIR.
    run_nanoset(
        "tokenize",
        *("--input", folder / "raw" / "books"),
        *("--output-prefix", folder / "o" / "y"),
        *("--tokenizer", tokenizer_file),
        *("--workers", 1),
    )
    return folder


@pytest.fixture
def in_folder(folder, monkeypatch):
    """The same folder, as the current one."""
    monkeypatch.chdir(folder)
    return folder


def modification_times(folder: Path) -> dict[Path, int]:
    """Return when each file and folder was modified, except outputs and Dagster's history."""
    time_by_path = {}
    for path in folder.rglob("*"):
        if {".dagster", "data"}.isdisjoint(path.relative_to(folder).parts):
            time_by_path[path] = path.stat().st_mtime_ns
    return time_by_path


def check_words(words: list[str], text: str) -> None:
    """Check that a text contains each of some words, or one of their alternatives around `|`."""
    for word in words:
        assert any(alternative in text for alternative in word.split("|")), (word, text)


def text_of_usage_error(outcome: Result) -> str:
    """Check that click refused the arguments, and return what was printed."""
    assert outcome.exit_code == USAGE
    assert type(outcome.exception) is SystemExit
    return outcome.output


def text_of_error(outcome: Result) -> str:
    """Check that an error says where or what is wrong, and how to fix it; return its message."""
    error = outcome.exception
    assert isinstance(error, NanosetError), outcome.output
    text = message(error)
    assert error.remedy, text
    assert error.where or error.found, text
    return text


@pytest.mark.parametrize(
    ("line", "words"), [pytest.param(*case, id=case[0]) for case in WRONG_USES]
)
def test_a_wrong_use_is_explained_and_changes_no_file(in_folder, monkeypatch, line, words):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("DAGSTER_HOME", str(in_folder / ".dagster"))
    times_before = modification_times(in_folder)

    outcome = invoke_nanoset(line.split())

    if words[0] == USAGE:
        check_words(words[1:], text_of_usage_error(outcome))
    else:
        check_words(words, text_of_error(outcome))
    assert modification_times(in_folder) == times_before


@pytest.mark.parametrize(("options", "words"), UNUSUAL_PLANS)
@pytest.mark.usefixtures("in_folder")
def test_a_plan_that_is_seldom_meant_is_accepted_with_a_warning(options, words):
    outcome = run_nanoset("map", "--plan", "--data-path", PAIR, *options.split())

    for word in words:
        assert word in outcome.stderr


@pytest.mark.usefixtures("in_folder")
def test_a_usual_plan_gives_no_warning():
    options = "--seq-length 16 --split 90,5,5"

    outcome = run_nanoset("map", "--plan", "--data-path", PAIR, *options.split())

    assert outcome.stderr == ""


@pytest.mark.usefixtures("in_folder")
def test_inspect_takes_the_folder_of_a_tokenizer():
    assert "books 0: " in output_of("inspect", PAIR, "--tokenizer", "configured")


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--help"], id="nanoset"),
        pytest.param(["pbin", "--help"], id="nanoset pbin"),
    ],
)
def test_the_summaries_of_commands_are_not_cut_off(arguments):
    output = invoke_nanoset(arguments, env={"COLUMNS": "80"}).output

    command_list = output.partition("Commands:")[2]
    assert command_list
    assert "..." not in command_list


def test_init_is_silent_about_a_tokenizer_that_exists(tmp_path, tokenizer_file):
    shutil.copyfile(tokenizer_file, tmp_path / "tokenizer.json")

    assert "notice" not in output_of("init", tmp_path)


def test_init_reports_that_the_tokenizer_is_missing(tmp_path):
    # The folder does not exist: init makes it.
    assert "notice: there is no tokenizer" in output_of("init", tmp_path / "project")
