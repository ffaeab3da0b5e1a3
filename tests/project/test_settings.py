"""Settings in nanoset.yaml: what they mean together, and how mistakes in them are reported."""

from __future__ import annotations

import dataclasses
import os
import pickle
import re
from pathlib import Path

import pytest

from helpers.locations import GOLDEN_FILES
from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.execution.resources import available_processors
from nanoset_core.project.project import Project
from nanoset_core.project.settings import ProjectConfig, load_config
from nanoset_core.tokenizers.files import TokenizerFile

TOKENIZER = GOLDEN_FILES / "tokenization" / "tokenizer.json"
MINIMAL = """\
raw: raw
root: data
tokenizer: {path: tokenizer.json, eod: "<|endoftext|>"}
"""
"""A configuration with the keys that are required."""
TOKSHUF = "tokenization: {preset: tokshuf}\n"
RUN = "{iterations: 9, global_batch_size: 2}"
"""A schedule."""


def load(tmp_path: Path, text: str | bytes) -> ProjectConfig:
    """Write nanoset.yaml, and load it."""
    path = tmp_path / "nanoset.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_config(path)


def refused(tmp_path: Path, text: str | bytes) -> ConfigError:
    """Write nanoset.yaml, and return the error that loading it raises."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    return caught.value


# Texts of configurations with one nanoset or webdataset. Values are written as in YAML; None leaves
# a key out.


def section(path: str, settings: dict[str, str | None]) -> str:
    """Return the minimal configuration with a section in another one, given as `outer: {inner`."""
    lines = [f"{key}: {value}" for key, value in settings.items() if value]
    return f"{MINIMAL}{path}: {{{', '.join(lines)}}}}}\n"


def nanoset(**settings: str | None) -> str:
    """Return a configuration with a nanoset that reads one corpus."""
    defaults = {"blend": "{web: 1}", "sequence_length": "8"}
    return section("nanosets: {pretrain", {**defaults, **settings})


def webdataset(**settings: str | None) -> str:
    """Return a configuration with a webdataset of one corpus."""
    return section("webdatasets: {shuffled", {"corpora": "[web]", **settings})


def per_split(blends: str, **settings: str | None) -> str:
    """Return a configuration with a nanoset that has a blend for each split."""
    return nanoset(blend=None, blend_per_split=blends, **settings)


def phases(phases: str, **settings: str | None) -> str:
    """Return a configuration with a nanoset of several phases."""
    return nanoset(blend=None, phases=f"[{phases}]", **settings)


def mixed(mix: str, **settings: str | None) -> str:
    """Return a configuration with a nanoset that has a mixture."""
    return nanoset(blend=None, mix=mix, **settings)


def continued(samples: str | None = "{train: 9}", **settings: str | None) -> str:
    """Return a configuration with a nanoset that continues another one."""
    continue_from = "{handoff: nanosets/a/handoff/0, consumed_samples: 4}"
    return nanoset(continue_from=continue_from, samples=samples, **settings)


# Paths


def test_relative_paths_start_at_the_folder_of_the_file(tmp_path):
    config = load(tmp_path, nanoset())

    assert config.raw_folder == tmp_path / "raw"
    assert config.root_folder == tmp_path / "data"
    assert config.tokenizer_file == tmp_path / "tokenizer.json"


def test_paths_may_be_absolute_or_leave_the_folder_or_start_at_home(tmp_path):
    text = MINIMAL.replace("raw: raw", "raw: /raw")
    text = text.replace("root: data", "root: ../out")
    text = text.replace("path: tokenizer.json", "path: ~/tokenizer.json")

    config = load(tmp_path, text)

    assert config.raw_folder == Path("/raw")
    assert config.root_folder == tmp_path.parent / "out"
    assert config.tokenizer_file == Path.home() / "tokenizer.json"


def test_the_raw_text_may_be_in_the_output_root(tmp_path):
    config = load(tmp_path, MINIMAL.replace("raw: raw", "raw: data/raw"))

    assert config.raw_folder == tmp_path / "data" / "raw"


def test_a_build_has_a_worker_for_each_processor_that_it_may_use(tmp_path):
    config = load(tmp_path, nanoset())

    assert config.workers == available_processors()
    assert config.workers == len(os.sched_getaffinity(0))


# The tokenizer


TIKTOKEN = """\
raw: raw
root: out
tokenization: {append_eod: false}
tokenizer: {path: a.tiktoken, pattern: o200k, MORE}
"""


def test_a_file_of_tiktoken_has_special_tokens(tmp_path):
    text = TIKTOKEN.replace("MORE", "special_tokens: [<a>, <b>]")

    config = load(tmp_path, text)

    assert config.tokenizer_file == TokenizerFile(
        tmp_path / "a.tiktoken", pattern="o200k", special_tokens=("<a>", "<b>")
    )


def test_a_file_of_tiktoken_has_the_settings_of_megatron(tmp_path):
    text = TIKTOKEN.replace(
        "MORE", "merges: m.txt, num_special_tokens: 9, vocab_size: 99, legacy: true"
    )

    config = load(tmp_path, text)

    assert config.tokenizer_file == TokenizerFile(
        tmp_path / "a.tiktoken", tmp_path / "m.txt", "o200k", None, 9, 99, legacy=True
    )


@pytest.fixture
def tokenizer_folder(tmp_path) -> Path:
    """An empty folder for a tokenizer in a project."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    return folder


def test_the_tokenizer_may_be_a_folder_with_a_tokenizer_json(tmp_path, tokenizer_folder):
    (tokenizer_folder / "tokenizer.json").touch()

    config = load(tmp_path, MINIMAL.replace("path: tokenizer.json", "path: tokenizer"))

    assert config.tokenizer_file == tokenizer_folder / "tokenizer.json"


def test_the_tokenizer_may_be_a_folder_with_a_file_of_tiktoken(tmp_path, tokenizer_folder):
    path = tokenizer_folder / "own.tiktoken"
    path.touch()

    text = MINIMAL.replace("path: tokenizer.json", "path: tokenizer, pattern: gpt2")

    assert load(tmp_path, text).tokenizer_file == TokenizerFile(path, pattern="gpt2")


def test_a_folder_without_a_tokenizer_is_no_error_before_it_is_needed(tmp_path, tokenizer_folder):
    config = load(tmp_path, MINIMAL.replace("path: tokenizer.json", "path: tokenizer"))

    # The error that is raised then names the folder.
    assert config.tokenizer_file == tokenizer_folder


def open_project(tmp_path: Path, special_tokens: str) -> Project:
    """Open a project with a tokenizer and names of special tokens, written as in YAML."""
    load(tmp_path, f"raw: raw\nroot: data\ntokenizer: {{path: {TOKENIZER}, {special_tokens}}}\n")
    return Project.open(tmp_path / "nanoset.yaml")


def test_special_tokens_are_found_by_their_names(tmp_path):
    project = open_project(tmp_path, 'eod: "<|endoftext|>", pad: "<|padding|>"')

    assert project.special("eod") == 0
    assert project.special("pad") == 1


def test_a_special_token_that_is_not_named_is_none(tmp_path):
    assert open_project(tmp_path, "eod: x").special("pad") is None


@pytest.mark.parametrize("name", ["eod", "pad"])
def test_a_special_token_that_the_tokenizer_lacks_is_an_error(tmp_path, name):
    project = open_project(tmp_path, "eod: </s>, pad: <pad>")

    with pytest.raises(ConfigError, match="has no such token") as caught:
        project.special(name)

    assert caught.value.where == f"{tmp_path / 'nanoset.yaml'}: tokenizer.{name}"
    assert caught.value.expected == "one of its special tokens: '<|endoftext|>', '<|padding|>'"
    assert "name another token" in caught.value.remedy


# Corpora


CORPORA = """\
documents: {id_key: uid, max_line_mib: 2}
corpora:
  code: {text_key: content}
  web_title: {folder: web, text_key: title, id_key: url}
  books: {}
"""


@pytest.mark.parametrize(
    ("corpus", "folder", "text_key", "id_key"),
    [
        pytest.param("web", "web", "text", "uid", id="no settings"),
        pytest.param("code", "code", "content", "uid", id="key of its text"),
        pytest.param("web_title", "web", "title", "url", id="folder of another corpus"),
        pytest.param("books", "books", "text", "uid", id="empty settings"),
    ],
)
def test_a_corpus_has_its_own_settings_or_those_of_all(tmp_path, corpus, folder, text_key, id_key):
    config = load(tmp_path, MINIMAL + CORPORA)

    assert config.folder_name(corpus) == folder
    assert config.corpus_folder(corpus) == tmp_path / "raw" / folder
    documents = config.documents_of(corpus)
    assert documents.text_key == text_key
    assert documents.id_key == id_key
    assert documents.max_line_mib == 2


def test_a_corpus_without_settings_has_those_of_all(tmp_path):
    config = load(tmp_path, MINIMAL + CORPORA)

    assert config.documents_of("web") == config.documents


def test_a_corpus_has_the_columns_of_all_or_its_own(tmp_path):
    columns = "documents: {columns: [url, meta.score]}\ncorpora: {code: {columns: [stars]}}\n"

    config = load(tmp_path, MINIMAL + columns)

    assert config.documents_of("web").columns == ("url", "meta.score")
    assert config.documents_of("code").columns == ("stars",)


@pytest.mark.parametrize("name", ["file", "line", "byte_offset", "id", "tokens"])
def test_a_column_whose_name_each_table_has_is_refused(tmp_path, name):
    documents = f"documents: {{columns: [{name}]}}\n"
    corpora = f"corpora: {{web: {{columns: [{name}]}}}}\n"

    message = str(refused(tmp_path, MINIMAL + documents + corpora))

    reason = "every document has a column of this name already"
    assert f"documents.columns.{name}: {reason}" in message
    assert f"corpora.web.columns.{name}: every document has" in message


def test_a_column_that_is_named_twice_is_refused(tmp_path):
    error = refused(tmp_path, f"{MINIMAL}documents: {{columns: [url, url]}}\n")

    assert "named twice" in str(error)


# Nanosets and webdatasets


@pytest.mark.parametrize(
    ("blend", "corpora", "is_blended"),
    [
        ("web", ("web",), False),
        ("[web]", ("web",), False),
        ("[web, code]", ("web", "code"), True),
        ("{web: 1}", ("web",), True),
        ("{code: 1, web: 2}", ("code", "web"), True),
    ],
)
def test_a_blend_names_its_corpora(tmp_path, blend, corpora, is_blended):
    spec = load(tmp_path, nanoset(blend=blend)).nanosets["pretrain"]

    assert spec.corpora == corpora
    assert spec.is_blended is is_blended


def test_each_split_may_have_its_own_blend(tmp_path):
    blends = "{train: {web: 0.5, code: 0.5}, valid: code, test: web}"

    spec = load(tmp_path, per_split(blends, samples="{train: 9}")).nanosets["pretrain"]

    assert spec.blend_of("train") == {"web": 0.5, "code": 0.5}
    assert spec.blend_of("valid") == "code"
    assert spec.shares is None


def test_a_schedule_gives_the_samples_of_each_split(tmp_path):
    blends = "{train: {web: 0.5, code: 0.5}, valid: code, test: web}"
    schedule = "{iterations: 200, global_batch_size: 10, eval_interval: 80, eval_iters: 1}"

    spec = load(tmp_path, per_split(blends, schedule=schedule)).nanosets["pretrain"]

    # Megatron-LM evaluates after 80 and 160 iterations, and once more at the end.
    assert spec.samples == {"train": 2000, "valid": 30, "test": 10}


def test_a_webdataset_may_mix_a_number_of_contexts_by_weights(tmp_path):
    text = webdataset(corpora="{web: 0.7, code: 1}", mix="weights", contexts="100")

    spec = load(tmp_path, text).webdatasets["shuffled"]

    assert spec.names == ("web", "code")
    assert spec.number_by_corpus == {"web": 0.7, "code": 1.0}
    assert spec.contexts == 100


PHASES = """\
nanosets:
  run:
    phases: [{blend: {web: 1}, until: 60}, {blend: {web: 1, code: 3}, until: 80}, {blend: code}]
    sequence_length: 8
    schedule: {iterations: 100, global_batch_size: 4, eval_interval: 50, eval_iters: 2}
"""


def test_each_phase_becomes_a_nanoset(tmp_path):
    nanosets = load(tmp_path, MINIMAL + PHASES).nanosets

    assert list(nanosets) == ["run-phase-1", "run-phase-2", "run-phase-3"]
    specs = list(nanosets.values())
    assert [spec.blend for spec in specs] == [{"web": 1}, {"web": 1, "code": 3}, "code"]
    assert [spec.span for spec in specs] == [(0, 60), (60, 80), (80, 100)]


def test_each_phase_has_the_evaluations_of_the_whole_run(tmp_path):
    nanosets = load(tmp_path, MINIMAL + PHASES).nanosets

    # As Megatron-LM counts them, which does not know of phases.
    evaluations = {"valid": 3 * 2 * 4, "test": 2 * 4}
    assert [dict(spec.samples) for spec in nanosets.values()] == [
        {"train": 240} | evaluations,
        {"train": 80} | evaluations,
        {"train": 80} | evaluations,
    ]


def test_phases_may_have_mixtures(tmp_path):
    mixtures = (
        "{mix: {web: 1, code: {epochs: 2}}, until: 2}, {mix: {g: {mix: {code: {}, math: {}}}}}"
    )

    first, second = load(tmp_path, phases(mixtures, schedule=RUN)).nanosets.values()

    assert dict(first.blend) == {"web": 1, "code": 1}
    assert first.mixture.parts["code"].epochs == 2
    assert dict(second.blend) == {"code": 1, "math": 1}
    assert list(second.mixture.parts) == ["g"]


def test_identifiers_of_the_tokenizer_are_read_from_a_description(tmp_path):
    (tmp_path / "d.txt").write_text(
        '{"class": "GPTDataset", "dataset_path": "/d", "tokenizer": {"class": "T"}}'
    )

    spec = load(tmp_path, nanoset(tokenizer_identifiers="d.txt")).nanosets["pretrain"]

    assert spec.tokenizer_identifiers == {"class": "T"}


def test_a_description_that_does_not_exist_is_an_error_at_its_key(tmp_path):
    error = refused(tmp_path, nanoset(tokenizer_identifiers="none.txt"))

    assert "tokenizer_identifiers" in error.where


# The configuration as an object


def test_a_configuration_cannot_be_changed(tmp_path):
    config = load(tmp_path, nanoset(samples="{train: 5}"))

    with pytest.raises(dataclasses.FrozenInstanceError):
        config.raw = "elsewhere"  # type: ignore[misc]
    for mapping in (config.nanosets, config.webdatasets, config.nanosets["pretrain"].samples):
        with pytest.raises(TypeError, match="cannot be changed"):
            mapping["web"] = 2


def test_a_configuration_can_be_sent_to_workers(tmp_path):
    config = load(tmp_path, nanoset(samples="{train: 5}"))

    assert pickle.loads(pickle.dumps(config)) == config


# Mistakes


def test_a_configuration_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(MissingError, match="no such configuration") as caught:
        load_config(tmp_path / "nanoset.yaml")

    assert caught.value.where == str(tmp_path / "nanoset.yaml")
    assert "(--config), or run `nanoset init`" in caught.value.remedy


def test_a_configuration_in_a_bucket_is_refused():
    with pytest.raises(ConfigError, match="only local files") as caught:
        load_config("s3://bucket/nanoset.yaml")

    assert caught.value.found == "s3://bucket/nanoset.yaml"


@pytest.mark.parametrize("path", ["nope.yaml", "./nope.yaml", ""])
def test_the_error_says_if_the_path_is_that_of_the_environment(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NANOSET_CONFIG", path)

    with pytest.raises(MissingError, match="no such configuration") as caught:
        load_config(tmp_path / "nope.yaml")

    names_variable = "correct NANOSET_CONFIG" in caught.value.remedy
    assert names_variable == bool(path)


def test_a_folder_is_read_as_its_nanoset_yaml(tmp_path):
    with pytest.raises(MissingError, match="no such configuration") as caught:
        load_config(tmp_path)

    assert caught.value.where == str(tmp_path / "nanoset.yaml")


@pytest.mark.parametrize(
    ("text", "what", "found"),
    [
        (b"raw: \xff", "not UTF-8", "0xff"),
        ("raw: [", "not YAML", "line 1"),
        ("raw: a\nraw: b", "not YAML", "the key 'raw' occurs twice"),
        (nanoset(blend="{web: 1, web: 2}"), "not YAML", "the key 'web' occurs twice"),
        ("raw: 2024-13-45", "not YAML", "month must be in 1..12"),
        ("- raw", "wrong type", "['raw']"),
        (nanoset(tokenizer_identifiers="&a {b: *a}"), "a value holds itself", ""),
    ],
)
def test_a_file_that_is_no_configuration_is_an_error(tmp_path, text, what, found):
    error = refused(tmp_path, text)

    assert what in error.what
    assert found in (error.found or "")
    assert error.where == str(tmp_path / "nanoset.yaml")
    assert error.remedy


def test_a_key_that_overrides_a_merged_one_is_no_repetition(tmp_path):
    nanosets = """\
nanosets:
  a: &a {blend: web, sequence_length: 8}
  b: {<<: *a, sequence_length: 9}
"""

    config = load(tmp_path, MINIMAL + nanosets)

    assert config.nanosets["b"].sequence_length == 9
    assert config.nanosets["b"].blend == "web"


@pytest.mark.parametrize(
    ("text", "what", "where", "remedy"),
    [
        (MINIMAL + "nanoset: {}", "not known", "nanoset", "did you mean 'nanosets'?"),
        (nanoset(sequence_lenght=4), "not known", "nanosets.pretrain.sequence_lenght", "mean 'sequence_length'?"),
        ("root: data\ntokenizer: {path: t}", "missing", "raw", "add it"),
        (MINIMAL + "nanosets: {a: {blend: web}}", "missing", "nanosets.a.sequence_length", "add it"),
        (nanoset(sequence_length="8.0"), "wrong type", "nanosets.pretrain.sequence_length", "fraction: 8"),
        (nanoset(blend="{web: 0, code: 0.0}"), "sum to 0", "nanosets.pretrain.blend", "give each corpus a share"),
        (nanoset(blend="{web: 0, code: 1}"), "a weight is 0", "nanosets.pretrain.blend.web", "leave the corpus out"),
        (nanoset(blend="[]"), "no corpora", "nanosets.pretrain.blend", "name a folder"),
        (nanoset(blend="[web, web]"), "named twice", "nanosets.pretrain.blend", "remove the repetition"),
        (nanoset(blend='["../web"]'), "cannot name a corpus", "nanosets.pretrain.blend", "another name"),
        (nanoset(split='"0,0,0"'), "not three shares", "nanosets.pretrain.split", "write three numbers"),
        (nanoset(split="100"), "wrong type", "nanosets.pretrain.split", 'put it in quotes: "100"'),
        (nanoset(blend="{null: 1}"), "wrong type", "nanosets.pretrain.blend.null", 'put it in quotes: "null"'),
        (nanoset(blend="{0x10: 1}"), "wrong type", "nanosets.pretrain.blend.0x10", 'put it in quotes: "0x10"'),
        (nanoset(blend="[on]"), "wrong type", "nanosets.pretrain.blend[0]", 'put it in quotes: "on"'),
        (nanoset(blend="[~]"), "wrong type", "nanosets.pretrain.blend[0]", 'put it in quotes: "~"'),
        (nanoset(samples="{trian: 5}"), "not known", "nanosets.pretrain.samples.trian", "mean 'train'?"),
        (nanoset(samples="{valid: 5}", split='"1,0,1"'), "gets no documents", "nanosets.pretrain.samples.valid", ""),
        (nanoset(blend_per_split="{train: web}"), "given once", "nanosets.pretrain", "name the corpora"),
        (nanoset(schedule="{iterations: 5, global_batch_size: 1}", samples="{train: 5}"), "both give",
         "nanosets.pretrain", "keep one"),
        (nanoset(mix="{a: 1}"), "given once", "nanosets.pretrain", "name the corpora"),
        (mixed("{a: {share: 1, epochs: 2}}", samples="{train: 9}"), "each say", "nanosets.pretrain.mix.a", "keep one"),
        (mixed("{a: {tokns: 5}}"), "not known", "nanosets.pretrain.mix.a.tokns", "mean 'tokens'?"),
        (mixed("{a: {tokens: 5}}"), "train's samples", "nanosets.pretrain.mix.a.tokens", "`schedule`"),
        (mixed("{a: {min_share: 7}}"), "out of range", "nanosets.pretrain.mix.a.min_share", "set it to 1"),
        (mixed("{g: {share: 1, mix: {a: 1}}, a: 1}"), "named twice", "nanosets.pretrain.mix", "remove the repetition"),
        (mixed("{a: 1}", max_epochs="2"), "its own limit", "nanosets.pretrain.max_epochs", "within `mix`"),
        (phases("{mix: {a: 1}, until: 3}, {}", schedule=RUN), "of a phase", "nanosets.pretrain.phases[1]", "a mix"),
        (nanoset(max_epochs="{code: 2}"), "not in the blend", "nanosets.pretrain.max_epochs.code", "name a corpus"),
        (per_split("{trian: web}"), "not known", "nanosets.pretrain.blend_per_split.trian", "mean 'train'?"),
        (per_split("{train: null}"), "no split has data", "nanosets.pretrain.blend_per_split", "give train"),
        (per_split("{train: {web: 0}}"), "sum to 0", "nanosets.pretrain.blend_per_split.train", "share"),
        (per_split("{train: web}", split='"1,1,1"'), "their own data", "nanosets.pretrain.split", "remove it"),
        (per_split("{train: web}", preset="nanotron"), "cannot read", "nanosets.pretrain.blend_per_split", "`split`"),
        (per_split("{train: web}", samples="{valid: 5}"), "no documents", "nanosets.pretrain.samples.valid", "key"),
        (phases("{blend: web}"), "need a schedule", "nanosets.pretrain.schedule", "add it"),
        (phases("{blend: a}, {blend: b}", schedule=RUN), "follow one", "nanosets.pretrain.phases", "above that"),
        (phases("{blend: a, until: 3}, {blend: []}", schedule=RUN), "corpora", "nanosets.pretrain.phases[1].blend", ""),
        (nanoset(**{"continue": "true"}), "needs phases that follow", "nanosets.pretrain.continue", "add `phases`"),
        (continued(preset="nanotron"), "cannot continue", "nanosets.pretrain.continue_from", "nemo"),
        (continued(blend="[a, b]", tokenizer_identifiers="{a: 1}"), "no shares", "nanosets.pretrain.continue_from", ""),
        (continued(), "repeat samples", "nanosets.pretrain.trainer", "add `trainer`"),
        (continued(preset="nemo", samples=None), "number of its samples", "nanosets.pretrain.continue_from", "add"),
        (webdataset(corpora="web"), "wrong type", "webdatasets.shuffled.corpora", "[web]"),
        (webdataset(tail="pad"), "padding token", "tokenizer.pad", "set tail to drop"),
        (webdataset(bos="true"), "begin-of-document", "tokenizer.bos", "bos to false"),
        (webdataset(corpora="{web: 0}"), "left out", "webdatasets.shuffled.corpora", "frequency"),
        (webdataset(corpora="{web: 0, a: 1}", mix="weights"), "out of range", "webdatasets.shuffled.corpora.web", ""),
        (webdataset(mix="weights"), "a weight for each", "webdatasets.shuffled.corpora", "remove the key mix"),
        (webdataset(contexts="5"), "goes with weights", "webdatasets.shuffled.contexts", "set mix to weights"),
        (webdataset(preset="tokshuf", tail="carry") + TOKSHUF, "rules of its own", "webdatasets.shuffled", "remove `tail`"),
        (webdataset(preset="tokshuf"), "every document", "tokenization.preset", "preset: tokshuf"),
        (MINIMAL + "corpora: {web/a: {}}", "cannot name a corpus", "corpora.web/a", ""),
        (MINIMAL + "views: {a/b: {of: web}}", "cannot name a corpus, a view", "views.a/b", "give it another name"),
        (MINIMAL + "corpora: {web_t: {folder: ../web}}", "cannot name a corpus", "corpora.web_t.folder", ""),
        (MINIMAL + "corpora: {web: {files: []}}", "no files are named", "corpora.web.files", "remove the key"),
        (MINIMAL + "corpora: {web: {files: a*}}", "wrong type", "corpora.web.files", "brackets: [a*]"),
        (MINIMAL + 'corpora: {web: {files: [a, "/"]}}', "fits no file", "corpora.web.files[1]", "train-*"),
        (MINIMAL + "corpora: {web: {exclude: [../b/*]}}", "fits no file", "corpora.web.exclude[0]", "train-*"),
        (MINIMAL + "corpora: {web: {text_key: a/b}}", "part of a file's name", "corpora.web.text_key", "rename"),
        (MINIMAL + "nanosets: {9a: {blend: web, sequence_length: 8}}", "asset", "nanosets.9a", "another name"),
        (MINIMAL + "nanosets: {corpus: {blend: web, sequence_length: 8}}", "reserved", "nanosets.corpus", "another name"),
        (MINIMAL + "webdatasets: {raw-jsonl: {corpora: [web]}}", "reserved", "webdatasets.raw-jsonl", "another name"),
        (nanoset() + "webdatasets: {pretrain: {corpora: [web]}}", "share a name", "webdatasets.pretrain", "rename"),
        (MINIMAL + "webdatasets: {a-b: {corpora: [web]}, a_b: {corpora: [web]}}", "share a", "webdatasets.a_b", ""),
        (MINIMAL + "documents: {text_key: a/b}", "file's name", "documents.text_key", "rename the key"),
        (nanoset(preset="nemo", trainer_python="'2'"), "not a version", "nanosets.pretrain.trainer_python", "correct"),
        (nanoset(preset="megatron-0.10", inter_document_masking="true"), "no such option",
         "nanosets.pretrain.inter_document_masking", "remove the key"),
        (nanoset(trainer_python='"3.12"'), "no such option", "nanosets.pretrain.trainer_python", "remove the key"),
        (MINIMAL + "executor: {kind: dask}", "not the address", "executor.address", "processes"),
        (MINIMAL + "executor: {kind: dask, address: 'tcp://h:1 '}", "not the address", "executor.address", "processes"),
        (MINIMAL + "executor: {address: 'tcp://h:8786'}", "have no address", "executor.address", "kind to dask"),
        (MINIMAL + "executor: {kind: dask, address: 'tcp://h:1', scheduler_file: s.json}", "named twice",
         "executor.scheduler_file", "remove the other"),
        (MINIMAL + "executor: {scheduler_file: s.json}", "have no scheduler_file", "executor.scheduler_file", "dask"),
        (MINIMAL + "executor: {kind: dask, address: 'tcp://h:1', wait: -1}", "not a time to wait", "executor.wait", "30m"),
        (MINIMAL + "executor: {kind: dask, address: 'tcp://h:1', wait: 9999d}", "not a time", "executor.wait", "24h"),
        (MINIMAL + "executor: {kind: dask, address: 'tcp://h:1', wait: ''}", "not a time", "executor.wait", "24h"),
        (MINIMAL + "executor: {kind: slurm, jobs: 1, time: ''}", "not a time limit", "executor.time", "90m"),
        (MINIMAL + "executor: {kind: slurm}", "number of Slurm jobs", "executor.jobs", "jobs: 20"),
        (MINIMAL + "executor: {kind: slurm, jobs: 1, time: 10s}", "not a time limit", "executor.time", "90m"),
        (MINIMAL + "executor: {kind: slurm, jobs: 1, memory: 8 GB}", "not a size", "executor.memory", "8GB"),
        (MINIMAL + "executor: {kind: slurm, jobs: 1, address: 'tcp://h:1'}", "has no", "executor.address", "dask"),
        (MINIMAL + "executor: {kind: dask, scheduler_file: s, jobs: 1}", "dask has no jobs", "executor.jobs", "slurm"),
        (MINIMAL.replace(', eod: "<|endoftext|>"', ""), "end-of-document", "tokenizer.eod", "append_eod to false"),
        (MINIMAL.replace("root: data", "root: https://b/data"), "cannot be used here", "root", "mount the place"),
        (MINIMAL.replace("raw: raw", "raw: gopher://b/raw"), "no file system of this name", "raw", "mount the place"),
        (MINIMAL.replace("raw: raw", "raw: s3:///raw"), "not name a place in a bucket", "raw", "name a bucket"),
        (MINIMAL.replace("root: data", "root: s3://b/a/../c"), "not name a place in a bucket", "root", "name a bucket"),
        (MINIMAL.replace("raw: raw", "raw: s3://b/t").replace("root: data", "root: s3://b/t/o"), "inside the raw text",
         "root", "folder of its own"),
        (MINIMAL.replace("path: tokenizer.json", "path: s3:///t.json"), "place in a bucket", "tokenizer.path", "name a bucket"),
        (MINIMAL.replace("path: tokenizer.json", "path: https://b/t"), "cannot be used here", "tokenizer.path", "mount"),
        (MINIMAL.replace("root: data", "root: raw/out"), "inside the raw text", "root", "folder of its own"),
        (MINIMAL.replace("raw: raw", "raw:"), "has no value", "raw", 'write "raw: raw"'),
    ],
)  # fmt: skip
def test_every_error_names_the_key_and_the_remedy(tmp_path, text, what, where, remedy):
    error = refused(tmp_path, text)

    assert what in error.what
    assert re.fullmatch(rf"{tmp_path / 'nanoset.yaml'}:\d+: {re.escape(where)}", error.where)
    assert error.remedy
    assert remedy in error.remedy


def test_a_repetition_in_a_list_without_weights_has_no_advice_on_weights(tmp_path):
    error = refused(tmp_path, f"{MINIMAL}pbin: [web, web]\n")

    assert error.remedy == "remove the repetition"


@pytest.mark.parametrize(
    "split", ["0.99999,1e-05", "98 1 1", "98,-1,1", "98,,1", "98,abc1,1", "1_000,1"]
)
@pytest.mark.parametrize("preset", ["megatron", "nemo", "nanotron"])
def test_a_split_that_is_not_plain_numbers_is_refused(tmp_path, split, preset):
    error = refused(tmp_path, nanoset(split=f'"{split}"', preset=preset))

    assert "not three shares" in error.what
    assert error.where == f"{tmp_path / 'nanoset.yaml'}:4: nanosets.pretrain.split"
    assert split in error.found


def test_spaces_in_a_split_do_not_change_its_hash(tmp_path):
    config = load(tmp_path, nanoset(split='"969, 30, 1"'))

    assert config.nanosets["pretrain"].shares == "969,30,1"


WITHOUT_EOD = "tokenization: {append_eod: false}\n"
MASKS = ["reset_position_ids", "eod_mask_loss"]
"""Settings that make the trainer look for the tokens that end documents."""


@pytest.mark.parametrize("mask", MASKS)
def test_a_mask_that_looks_for_end_tokens_is_refused_if_documents_have_none(tmp_path, mask):
    error = refused(tmp_path, nanoset(**{mask: "true"}) + WITHOUT_EOD)

    assert error.where == f"{tmp_path / 'nanoset.yaml'}:4: nanosets.pretrain.{mask}"
    assert "append_eod" in error.remedy


@pytest.mark.parametrize("mask", MASKS)
def test_a_mask_that_looks_for_end_tokens_is_accepted_if_documents_may_have_them(tmp_path, mask):
    masked = nanoset(**{mask: "true"})

    load(tmp_path, masked)
    # The template of the tokenizer may add end tokens.
    load(tmp_path, masked + "tokenization: {append_eod: false, special_tokens: add}\n")


def test_documents_without_end_tokens_are_accepted_if_no_mask_looks_for_them(tmp_path):
    load(tmp_path, nanoset() + WITHOUT_EOD)


SEVERAL_MISTAKES = """\
raw: raw
root: data
tokenizer: {path: t.json, eod: x}
tokenization: {engine: auto}

nanosets:
  a:
    blend: {web: 0, code: 1}
    sequence_length: 1
  b:
    blend: [web, web]
    split: words
    sequence_length: 2
  c:
    blend: web
    sequence_length: 8
    samples: {train: 5}
    schedule: {iterations: 5, global_batch_size: 1}
executor: {kind: dask}
webdatasets: {d: {corpora: [web], tail: pad, contexts: 5}}
"""


def lines_and_keys(error: ConfigError) -> list[tuple[int, str]]:
    """Return the line and the key of each mistake that an error lists."""
    matches = re.findall(r"^  \S+:(\d+): (\S+): ", str(error), re.MULTILINE)
    return [(int(line), key) for line, key in matches]


def test_all_mistakes_are_reported_together_with_their_lines(tmp_path):
    error = refused(tmp_path, SEVERAL_MISTAKES)

    assert lines_and_keys(error) == [
        (3, "tokenizer.pad"),
        (8, "nanosets.a.blend.web"),
        (11, "nanosets.b.blend"),
        (12, "nanosets.b.split"),
        (14, "nanosets.c"),
        (19, "executor.address"),
        (20, "webdatasets.d.contexts"),
    ]


def test_values_that_cannot_be_read_are_reported_before_those_that_contradict_others(tmp_path):
    text = SEVERAL_MISTAKES.replace("engine: auto", "engine: fast")
    text = text.replace("sequence_length: 1", "sequence_length: 0")
    text = text.replace("sequence_length: 2", "sequence_lenght: 2")

    error = refused(tmp_path, text)

    assert lines_and_keys(error) == [
        (4, "tokenization.engine"),
        (9, "nanosets.a.sequence_length"),
        (13, "nanosets.b.sequence_lenght"),
    ]
