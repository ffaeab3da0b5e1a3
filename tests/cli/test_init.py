"""`nanoset init`: what it finds, chooses and says, and that a build takes it."""

import json
import shlex
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from tokenizers import AddedToken, Tokenizer, models

from helpers.building import build_all
from helpers.sample_project import encoded, sentences
from nanoset_core import load_nanoset
from nanoset_core.cli import nanoset
from nanoset_core.cli.commands import init
from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.project.evaluation import evaluation_warnings
from nanoset_core.project.first_config import write_config
from nanoset_core.project.settings import load_config
from nanoset_core.stages.handoff.start import UNKNOWN_TOKENIZER

README = Path(__file__).parents[2] / "README.md"


def run(*arguments):
    return CliRunner().invoke(nanoset, [str(argument) for argument in arguments])


def write(folder, path, rows):
    file = folder / "raw" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(encoded(file.name, rows, 7))


def nested(row):
    return {"data": {"text": row["text"], "id": row["id"]}}


def renamed(row):
    return {"content": row["text"], "path": row["id"]}


HUGGING_FACE = {
    "wiki/data/train-00000-of-00002.parquet": (60, dict),
    "wiki/data/train-00001-of-00002.parquet": (60, dict),
    "wiki/data/validation-00000-of-00001.parquet": (20, dict),
    "wiki/data/test-00000-of-00001.parquet": (20, dict),
}
"""Path → number of documents, and what makes a line of one."""
KINDS = {
    "Hugging Face": (HUGGING_FACE, {"train": "wiki", "valid": "wiki_valid", "test": "wiki_test"}),
    "one without": (
        {
            "web/train/a.jsonl": (60, dict),
            "web/dev/a.jsonl": (20, dict),
            "code/a.jsonl": (60, dict),
        },
        {"train": {"code": 0.5, "web": 0.5}, "valid": "web_valid"},
    ),
    "folders": (
        {"train/a.arrow": (60, dict), "validation/a.jsonl.zst": (20, dict)},
        {"train": "train", "valid": "validation"},
    ),
    "train and test": (
        {"wiki/train-00000.jsonl": (60, dict), "wiki/test-00000.jsonl": (20, dict)},
        {"train": "wiki", "valid": "wiki_test", "test": "wiki_test"},
    ),
    "other keys": ({"web/a.jsonl.gz": (600, nested), "code/a.jsonl": (600, renamed)}, {}),
}


@pytest.fixture
def start(tmp_path, tokenizer_file):
    """Writes text and a tokenizer, and runs `nanoset init`; → what it says."""

    def begin(files):
        for path, (count, line) in files.items():
            write(tmp_path, path, list(map(line, sentences("web", count))))
        (tmp_path / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
        outcome = run("init", tmp_path)
        assert outcome.exit_code == 0, outcome.output
        return outcome.output

    return begin


def facts_of(folder, corpus):
    return json.loads((folder / "data/tokenized" / corpus / "current/manifest.json").read_text())[
        "facts"
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_project_of_each_kind_is_built_as_it_is_written(tmp_path, start, kind):
    files, blends = KINDS[kind]
    assert "name your tokenizer" not in start(files)
    config = load_config(tmp_path / "nanoset.yaml").nanosets["pretrain"]
    assert config.blend_per_split == blends
    assert config.split != "1,0,0"
    build_all(tmp_path / "nanoset.yaml")
    for split, samples in config.samples.items():
        assert len(load_nanoset(tmp_path / "data", "pretrain", split)) >= samples
    assert {"train", "valid"} <= config.samples.keys()
    assert [facts_of(tmp_path, corpus)["rejected"] for corpus in config.corpora] == [0] * len(
        config.corpora
    )


def test_only_a_tokenizer_that_cannot_be_used_is_to_be_named(start):
    said = start({"web/a.jsonl": (20, lambda row: {"a/b": row["text"]})})
    assert "cannot be part of a file's name" in said
    assert "name your tokenizer" not in said


def test_held_out_files_are_in_no_training_data(tmp_path, start):
    assert "1 file of wiki for valid" in start(HUGGING_FACE)
    text = (tmp_path / "nanoset.yaml").read_text()
    assert "exclude: [validation-*, test-*]" in text
    assert yaml.safe_load(text)["nanosets"]["pretrain"]["blend_per_split"]["train"] == "wiki"
    build_all(tmp_path / "nanoset.yaml")
    counts = [
        facts_of(tmp_path, corpus)["documents"] for corpus in ("wiki", "wiki_valid", "wiki_test")
    ]
    assert counts == [120, 20, 20]


def test_nothing_is_built_that_was_not_asked_for(tmp_path, start):
    start({"web/a.jsonl": (200, lambda row: row)})

    text = (tmp_path / "nanoset.yaml").read_text()
    written = yaml.safe_load(text)
    assert "webdatasets" not in written
    assert "packed" not in written
    assert "# webdatasets:" in text

    build_all(tmp_path / "nanoset.yaml")
    folders = {path.name for path in (tmp_path / "data").iterdir()}
    assert folders.isdisjoint({"webdatasets", "shuffle_plans", "packed"})


def test_test_files_are_read_for_valid_if_there_are_none_for_it_and_that_is_said(start):
    output = start({"wiki/train-00000.jsonl": (60, dict), "wiki/test-00000.jsonl": (20, dict)})
    assert "There are no files for valid: those for test are read for it, too." in output


def test_without_held_out_files_that_hold_a_sample_no_evaluation_is_asked_for(
    tmp_path, tokenizer_file
):
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    write(tmp_path, "web/train.jsonl", sentences("web", 400))
    write(tmp_path, "web/test.jsonl", sentences("web", 1))
    schedule = load_config(write_config(tmp_path).path).nanosets["pretrain"].schedule
    assert schedule.eval_iters == 0


@pytest.mark.parametrize("kind", ["split", "blend_per_split"])
def test_an_evaluation_of_a_valid_without_samples_is_warned_of_everywhere(make_project, kind):
    schedule = (
        "schedule: {iterations: 40, global_batch_size: 4, eval_interval: 10, eval_iters: 2}\n"
    )
    data = {
        "split": 'blend: web\n    split: "1,0,0"',
        "blend_per_split": "blend_per_split: {train: web, test: code}",
    }
    config = make_project(
        replacements={
            "blend: {web: 0.7, code: 0.3}": data[kind],
            '    split: "80,15,5"\n': "",
            "samples: {train: 400}\n": schedule,
        }
    )
    build_all(config)
    text = run("status", "--config", config).output
    start_text = (config.parent / "data/nanosets/pretrain/handoff/current/START.md").read_text()
    for place in (text, start_text):
        assert "eval_iters: 2 asks for 40 samples of valid, which " in place
        assert "or set eval_iters to 0" in place
    with pytest.raises(MissingError) as caught:
        load_nanoset(config.parent / "data", "pretrain", "valid")
    found = {"split": "split: 1,0,0", "blend_per_split": "blends for train and test"}
    assert caught.value.found == found[kind]


def test_no_evaluation_is_no_reason_for_a_warning(make_project):
    schedule = (
        "schedule: {iterations: 40, global_batch_size: 4, eval_interval: 10, eval_iters: 0}\n"
    )
    replacements = {'split: "80,15,5"': 'split: "1,0,0"', "samples: {train: 400}\n": schedule}
    config = load_config(make_project(replacements=replacements))
    assert not [*evaluation_warnings(config.nanosets["pretrain"])]


@pytest.mark.parametrize("here", ["project", "."])
def test_the_command_that_is_named_works_from_the_folder_where_the_user_is(
    tmp_path, tokenizer_file, monkeypatch, here
):
    folder = tmp_path / "my project"
    write(folder, "web/a.jsonl", sentences("web", 60))
    (folder / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    monkeypatch.chdir(folder if here == "." else tmp_path)
    output = run("init", here if here == "." else folder.name).output
    line = output.rpartition("then run `")[2].partition("`")[0]
    assert line == ("nanoset build" if here == "." else "nanoset build -c 'my project'")
    outcome = run(*shlex.split(line)[1:], "--dry-run")
    assert outcome.exit_code == 0, outcome.output


def test_a_command_names_the_project_if_the_environment_names_another(tmp_path, monkeypatch):
    write(tmp_path, "web/a.jsonl", sentences("web", 60))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NANOSET_CONFIG", "/elsewhere")
    assert "`nanoset build -c .`" in run("init").output


def test_every_command_takes_the_folder_of_a_project(make_project, monkeypatch):
    config = make_project()
    for words in (
        ["status"],
        ["map", "pretrain", "--plan"],
        ["gc"],
        ["verify"],
        ["build", "--dry-run"],
    ):
        for named in (["-c", config.parent], ["--config", config]):
            output = run(*words, *named).output
            assert "no such configuration" not in output
            assert "is a directory" not in output
    monkeypatch.setenv("NANOSET_CONFIG", str(config.parent))
    assert "corpus" in run("status").output
    assert load_config(config.parent).file == config
    with pytest.raises(MissingError) as caught:
        load_config(config.parent / "raw")
    assert caught.value.where == str(config.parent / "raw" / "nanoset.yaml")


def test_a_second_init_says_that_it_changed_nothing(tmp_path, start):
    start({"web/a.jsonl": (60, dict)})
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    second = run("init", tmp_path)
    assert second.exit_code == 0
    assert f"nothing was changed: {tmp_path / 'nanoset.yaml'} already is what" in second.output
    assert "chose" not in second.output
    (tmp_path / "nanoset.yaml").write_text((tmp_path / "nanoset.yaml").read_text() + "# mine\n")
    before[tmp_path / "nanoset.yaml"] = (tmp_path / "nanoset.yaml").stat().st_mtime_ns
    with pytest.raises(ConfigError, match="nothing was changed"):
        CliRunner().invoke(nanoset, ["init", str(tmp_path)], catch_exceptions=False)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("place", ["project/tok/tokenizer.json", "elsewhere/tokenizer.json"])
@pytest.mark.parametrize("names", ["file", "folder"])
def test_the_tokenizer_that_is_named_is_written_relative_to_the_project_or_absolute(
    tmp_path, tokenizer_file, place, names
):
    file = tmp_path / place
    file.parent.mkdir(parents=True)
    file.write_bytes(tokenizer_file.read_bytes())
    write(tmp_path / "project", "web/a.jsonl", sentences("web", 60))
    named = file if names == "file" else file.parent
    output = run("init", tmp_path / "project", "--tokenizer", named).output
    assert "name your tokenizer" not in output
    written = yaml.safe_load((tmp_path / "project/nanoset.yaml").read_text())["tokenizer"]
    assert written["path"] == ("tok/tokenizer.json" if place.startswith("project") else str(file))
    assert written["eod"] == "<|endoftext|>"


def test_a_named_tokenizer_that_is_none_is_refused_and_nothing_is_written(tmp_path):
    write(tmp_path, "web/a.jsonl", sentences("web", 60))
    outcome = run("init", tmp_path, "--tokenizer", tmp_path / "raw")
    assert outcome.exit_code != 0
    assert not (tmp_path / "nanoset.yaml").exists()


def test_text_outside_of_the_raw_folder_is_named(tmp_path, start):
    for name in ("a.jsonl", "more/deep/b.parquet", "data/train-0.parquet", "c.json.gz"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    for name in (
        "tokenizer_config.json",
        "vocab.json",
        ".cache/x.jsonl",
        "data/shards/web/documents.parquet",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"{}")
    output = start({"web/a.jsonl": (60, dict)})
    (line,) = [line for line in output.splitlines() if "outside of" in line]
    assert line.startswith(
        f"not read: 4 files of text outside of {tmp_path / 'raw'}: a.jsonl, c.json.gz, data/train"
    )
    assert "move it to" in line


def test_nothing_but_test_files_is_for_training(tmp_path):
    write(tmp_path, "web/test-0.jsonl", sentences("web", 9))
    config = load_config(write_config(tmp_path).path)
    assert (config.nanosets["pretrain"].blend, dict(config.corpora)) == ("web", {})


def test_a_held_out_part_without_a_sample_is_left_out_with_a_word(tmp_path):
    write(tmp_path, "web/train.jsonl", sentences("web", 400))
    write(tmp_path, "web/test.jsonl", sentences("web", 1))
    start = write_config(tmp_path)
    assert dict(load_config(start.path).nanosets["pretrain"].blend_per_split) == {"train": "web"}
    assert "those for test are read" not in str(start.chosen)
    [said] = [line for line in start.chosen if "blend_per_split" in line]
    assert "web_test left out" in said


def test_a_key_that_is_empty_in_every_line_is_not_taken_for_the_text(tmp_path):
    write(
        tmp_path,
        "web/a.jsonl",
        [{"text": "", "markdown": sentence["text"]} for sentence in sentences("web", 50)],
    )
    start = write_config(tmp_path)
    assert load_config(start.path).documents.text_key == "markdown"
    assert any("text (empty in every line)" in line for line in start.chosen)


@pytest.mark.parametrize(("row", "named"), [
    ({"question": "What is it?", "answer": "A test."}, "question, answer"),
    ({"messages": [{"role": "user", "content": "What is it?"}]}, "messages (list)"),
])  # fmt: skip
def test_a_text_that_cannot_be_told_is_asked_for_or_refused(tmp_path, row, named):
    write(tmp_path, "chat/a.jsonl", [row] * 3)
    outcome = run("init", tmp_path)
    assert isinstance(outcome.exception, ConfigError)
    assert outcome.exception.found == f"the keys {named}"
    assert "--text-key" in outcome.exception.remedy
    assert not (tmp_path / "nanoset.yaml").exists()
    assert run("init", tmp_path, "--text-key", "answer").exit_code == 0
    assert load_config(tmp_path / "nanoset.yaml").documents.text_key == "answer"


def test_a_terminal_is_asked(tmp_path, monkeypatch):
    write(tmp_path, "chat/a.jsonl", [{"question": "q", "answer": "a"}] * 3)
    asked = []
    monkeypatch.setattr(
        init, "_ask", lambda question, answers: asked.append((question, answers)) or answers[1]
    )
    assert run("init", tmp_path).exit_code == 0
    assert asked == [("Which key of chat holds the text?", ["question", "answer"])]
    assert load_config(tmp_path / "nanoset.yaml").documents.text_key == "answer"
    assert "already" in str(run("init", tmp_path).exception)
    assert len(asked) == 1, "where there is a configuration nobody is asked"


def tokenizer_of(folder, special, config=None, generation=None):
    tokenizer = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": config}))
    if generation is not None:
        ids = [tokenizer.token_to_id(name) for name in generation]
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))


@pytest.mark.parametrize(("special", "config", "generation", "eod", "reason"), [
    (["<|endoftext|>", "<|im_end|>"], "<|im_end|>", None, "<|endoftext|>",
     "Id 2, by its common name. tokenizer_config.json names <|im_end|>, which ends turns of a "
     "chat."),
    (["<|return|>", "<|endoftext|>"], "<|return|>", ["<|return|>", "<|endoftext|>"], "<|endoftext|>",
     "Id 3, by generation_config.json. tokenizer_config.json names <|return|>"),
    (["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"], None, None, "<|end_of_text|>",
     "Id 3, by its common name."),
    (["<eos>", "<end_of_turn>"], {"content": "<end_of_turn>"}, None, "<eos>", "Id 2, by its common name."),
    (["<|stop|>"], "<|stop|>", None, "<|stop|>", "Id 2, by tokenizer_config.json."),
    (["</s>"], "<gone>", None, "</s>", "Id 2, by its common name."),
    (["<|im_end|>"], "<|im_end|>", None, "<|im_end|>", "It ends turns of a chat: check that this is intended."),
])  # fmt: skip
def test_the_token_that_ends_documents_in_pre_training(
    tmp_path, special, config, generation, eod, reason
):
    tokenizer_of(tmp_path, special, config, generation)
    write(tmp_path, "web/a.jsonl", [{"text": "ab"}])
    said = run("init", tmp_path).output
    assert f"chose tokenizer.eod: {eod}. " in said
    assert reason in said
    assert "notice" not in said, "a build takes it"
    assert reason in (tmp_path / "nanoset.yaml").read_text()
    assert load_config(tmp_path / "nanoset.yaml").tokenizer.eod == eod


def test_without_a_token_for_ends_none_is_written(tmp_path):
    tokenizer_of(tmp_path, ["<|pad|>"])
    said = run("init", tmp_path).output
    assert (
        "tokenization.append_eod: False. The tokenizer names no token that ends documents" in said
    )
    assert "notice" not in said
    assert load_config(tmp_path / "nanoset.yaml").tokenizer.eod is None


def test_tokenize_names_the_token_and_flags_one_of_chats(tmp_path):
    tokenizer_of(tmp_path, ["<|endoftext|>", "<|im_end|>"], "<|im_end|>")
    write(tmp_path, "web/a.jsonl", [{"text": "ab"}])
    words = (
        "tokenize",
        "--input",
        tmp_path / "raw/web",
        "--tokenizer",
        tmp_path,
        "--append-eod",
        "--output-prefix",
    )
    said = run(*words, tmp_path / "a").stderr
    assert "documents end with <|im_end|> (id 3, by tokenizer_config.json)\n" in said
    assert (
        "ends turns of a chat: pre-training uses <|endoftext|> (id 2); to use it, set --eod "
        "'<|endoftext|>'" in said
    )
    said = run(*words, tmp_path / "b", "--eod", "<|endoftext|>").stderr
    assert "documents end with <|endoftext|> (id 2, by --eod)\n" in said
    assert "chat" not in said


@pytest.mark.parametrize(("preset", "word"), [("nanotron", "train_steps"), ("nemo", "max_steps")])
def test_handoffs_ask_for_the_samples_of_the_schedule(tmp_path, start, preset, word):
    start({"web/a.jsonl": (300, dict)})
    path = tmp_path / "nanoset.yaml"
    schedule = yaml.safe_load(path.read_text())["nanosets"]["pretrain"]["schedule"]
    path.write_text(
        path.read_text().replace("    seed: 1234\n", f"    seed: 1234\n    preset: {preset}\n", 1)
    )
    build_all(path)
    handoff = tmp_path / "data/nanosets/pretrain/handoff/current"
    samples = schedule["iterations"] * schedule["global_batch_size"]
    assert f"for {samples:,} samples. {word} * global" in (handoff / "START.md").read_text()
    if preset == "nanotron":
        assert (
            yaml.safe_load((handoff / "data.yaml").read_text())["tokens"]["train_steps"]
            == schedule["iterations"]
        )


def test_a_first_project_says_what_its_trainer_needs(tmp_path, start):
    start({"web/a.jsonl": (300, dict)})
    config, handoff = tmp_path / "nanoset.yaml", tmp_path / "data/nanosets/pretrain/handoff/current"
    build_all(config)
    warned = run("status", "--config", config).stdout
    assert f"warning: nanoset pretrain handoff: {UNKNOWN_TOKENIZER}" in warned
    said = (handoff / "START.md").read_text()
    assert "--tokenizer-model FOLDER" in said
    beside = next(
        line.rpartition("this content: ")[2]
        for line in said.splitlines()
        if "this content: " in line
    )
    assert json.loads(beside) == {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|endoftext|>",
    }
    lines = (
        said.partition(f"{UNKNOWN_TOKENIZER}.")[2]
        .partition("nanosets:")[2]
        .partition("## Files")[0]
    )
    (trainer,) = yaml.safe_load(lines).values()
    settings = yaml.safe_load(config.read_text())
    settings["nanosets"]["pretrain"] |= trainer
    config.write_text(yaml.safe_dump(settings, sort_keys=False))
    build_all(config)
    assert (
        UNKNOWN_TOKENIZER
        not in run("status", "--config", config).stdout + (handoff / "START.md").read_text()
    )
    told = [
        json.loads(path.read_text())
        for path in (handoff.parents[1] / "cache").glob("*-train-description.txt")
    ]
    assert {"/models/x"} <= {
        one["tokenizer"].get("tokenizer_path") for one in told if "tokenizer" in one
    }
    assert "--tokenizer-model /models/x\n" in (handoff / "arguments.txt").read_text()


def test_the_smallest_project_of_the_readme_is_built_on_40_documents(tmp_path, tokenizer_file):
    for corpus in ("web", "code"):
        write(
            tmp_path,
            f"{corpus}/a.jsonl",
            [row | {"text": row["text"] * 9} for row in sentences(corpus, 20)],
        )
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    smallest = next(
        block
        for block in README.read_text().split("```yaml\n")[1:]
        if block.startswith("raw: raw\n")
    )
    (tmp_path / "nanoset.yaml").write_text(smallest.partition("```")[0])
    build_all(tmp_path / "nanoset.yaml")
    assert len(load_nanoset(tmp_path / "data", "pretrain", "train")) >= 8000
    said = run("status", "--config", tmp_path / "nanoset.yaml").stdout
    assert "warning: nanoset pretrain valid: " in said
