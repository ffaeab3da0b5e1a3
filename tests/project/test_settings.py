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

GOLDEN = GOLDEN_FILES / "tokenization"
MINIMAL = """\
raw: raw
root: data
tokenizer: {path: tokenizer.json, eod: "<|endoftext|>"}
"""


def load(tmp_path, text: str | bytes) -> ProjectConfig:
    path = tmp_path / "nanoset.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_config(path)


def refused(tmp_path, text: str | bytes) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    return caught.value


def section(place: str, settings) -> str:
    return (
        f"{MINIMAL}{place}: "
        f"{{{', '.join(f'{key}: {value}' for key, value in settings.items() if value)}}}}}\n"
    )


def nanoset(**settings) -> str:
    return section("nanosets: {pretrain", {"blend": "{web: 1}", "sequence_length": "8", **settings})


def webdataset(**settings) -> str:
    return section("webdatasets: {shuffled", {"corpora": "[web]", **settings})


def per_split(blends: str, **settings) -> str:
    return nanoset(blend=None, blend_per_split=blends, **settings)


def phases(phases: str, **settings) -> str:
    return nanoset(blend=None, phases=f"[{phases}]", **settings)


def mixed(mix: str, **settings) -> str:
    return nanoset(blend=None, mix=mix, **settings)


def going_on(samples: str | None = "{train: 9}", **settings) -> str:
    before = {"continue_from": "{handoff: nanosets/a/handoff/0, consumed_samples: 4}"}
    return nanoset(**before, **({} if samples is None else {"samples": samples}), **settings)


TOKSHUF = "tokenization: {preset: tokshuf}\n"
RUN = "{iterations: 9, global_batch_size: 2}"


def test_paths_start_at_the_file(tmp_path):
    config = load(tmp_path, nanoset())
    assert (config.raw_folder, config.root_folder) == (tmp_path / "raw", tmp_path / "data")
    assert config.tokenizer_file == tmp_path / "tokenizer.json"
    assert config.workers == available_processors() == len(os.sched_getaffinity(0))
    elsewhere = (
        MINIMAL.replace(": raw", ": /raw")
        .replace(": data", ": ../out")
        .replace("path: tok", "path: ~/tok")
    )
    config = load(tmp_path, elsewhere)
    assert (config.raw_folder, config.root_folder) == (Path("/raw"), tmp_path.parent / "out")
    assert config.tokenizer_file == Path.home() / "tokenizer.json"
    assert (
        load(tmp_path, MINIMAL.replace("raw: raw", "raw: data/raw")).raw_folder
        == tmp_path / "data" / "raw"
    )


def test_what_is_said_of_the_tokenizers_file(tmp_path):
    text = (
        "raw: raw\nroot: out\ntokenization: {append_eod: false}\ntokenizer: {path: a.tiktoken, "
        "pattern: o200k"
    )
    expected = TokenizerFile(
        tmp_path / "a.tiktoken", pattern="o200k", special_tokens=("<a>", "<b>")
    )
    assert load(tmp_path, f"{text}, special_tokens: [<a>, <b>]}}\n").tokenizer_file == expected
    megatron = load(
        tmp_path, f"{text}, merges: m.txt, num_special_tokens: 9, vocab_size: 99, legacy: true}}\n"
    )
    expected = TokenizerFile(
        tmp_path / "a.tiktoken", tmp_path / "m.txt", "o200k", None, 9, 99, legacy=True
    )
    assert megatron.tokenizer_file == expected


def test_the_tokenizer_may_be_a_folder_that_holds_one(tmp_path):
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "tokenizer.json").touch()
    config = load(tmp_path, MINIMAL.replace("path: tokenizer.json", "path: tokenizer"))
    assert config.tokenizer_file == folder / "tokenizer.json"
    (folder / "tokenizer.json").rename(folder / "own.tiktoken")
    config = load(
        tmp_path, MINIMAL.replace("path: tokenizer.json", "path: tokenizer, pattern: gpt2")
    )
    assert config.tokenizer_file == TokenizerFile(folder / "own.tiktoken", pattern="gpt2")


def test_a_folder_without_a_tokenizer_is_kept_for_the_error(tmp_path):
    (tmp_path / "tokenizer").mkdir()
    config = load(tmp_path, MINIMAL.replace("path: tokenizer.json", "path: tokenizer"))
    assert config.tokenizer_file == tmp_path / "tokenizer"


def test_what_keys_mean_together(tmp_path):
    schedule = "{iterations: 200, global_batch_size: 10, eval_interval: 80, eval_iters: 1}"
    blends = "{train: {web: 0.5, code: 0.5}, valid: code, test: web}"
    spec = load(tmp_path, per_split(blends, schedule=schedule)).nanosets["pretrain"]
    assert spec.samples == {"train": 2000, "valid": 30, "test": 10}
    assert (spec.blend_of("train"), spec.blend_of("valid"), spec.shares) == (
        {"web": 0.5, "code": 0.5},
        "code",
        None,
    )
    text = webdataset(corpora="{web: 0.7, code: 1}", mix="weights", contexts=100)
    mixed = load(tmp_path, text).webdatasets["shuffled"]
    assert (mixed.names, mixed.number_by_corpus, mixed.contexts) == (
        ("web", "code"),
        {"web": 0.7, "code": 1.0},
        100,
    )


@pytest.mark.parametrize(
    ("blend", "corpora", "is_blended"),
    [("web", ("web",), False), ("[web]", ("web",), False), ("[web, code]", ("web", "code"), True),
     ("{web: 1}", ("web",), True), ("{code: 1, web: 2}", ("code", "web"), True)],
)  # fmt: skip
def test_corpora_of_a_blend(tmp_path, blend, corpora, is_blended):
    spec = load(tmp_path, nanoset(blend=blend)).nanosets["pretrain"]
    assert spec.corpora == corpora
    assert spec.is_blended is is_blended


PHASES = """\
nanosets:
  run:
    phases: [{blend: {web: 1}, until: 60}, {blend: {web: 1, code: 3}, until: 80}, {blend: code}]
    sequence_length: 8
    schedule: {iterations: 100, global_batch_size: 4, eval_interval: 50, eval_iters: 2}
"""


def test_phases_may_have_mixtures(tmp_path):
    text = phases(
        "{mix: {web: 1, code: {epochs: 2}}, until: 2}, {mix: {g: {mix: {code: {}, math: {}}}}}",
        schedule=RUN,
    )
    first, second = load(tmp_path, text).nanosets.values()
    assert (dict(first.blend), dict(second.blend)) == (
        {"web": 1, "code": 1},
        {"code": 1, "math": 1},
    )
    assert first.mixture.parts["code"].epochs == 2
    assert list(second.mixture.parts) == ["g"]


def test_phases_become_nanosets(tmp_path):
    nanosets = load(tmp_path, MINIMAL + PHASES).nanosets
    assert list(nanosets) == ["run-phase-1", "run-phase-2", "run-phase-3"]
    assert [spec.blend for spec in nanosets.values()] == [{"web": 1}, {"web": 1, "code": 3}, "code"]
    assert [spec.span for spec in nanosets.values()] == [(0, 60), (60, 80), (80, 100)]
    # every phase's evaluations are those of the whole run, as Megatron-LM counts them
    assert [dict(spec.samples) for spec in nanosets.values()] == [
        {"train": count, "valid": 3 * 2 * 4, "test": 2 * 4} for count in (240, 80, 80)
    ]


def test_identifiers_from_a_description(tmp_path):
    (tmp_path / "d.txt").write_text(
        '{"class": "GPTDataset", "dataset_path": "/d", "tokenizer": {"class": "T"}}'
    )
    spec = load(tmp_path, nanoset(tokenizer_identifiers="d.txt")).nanosets["pretrain"]
    assert spec.tokenizer_identifiers == {"class": "T"}
    assert (
        "tokenizer_identifiers"
        in refused(tmp_path, nanoset(tokenizer_identifiers="none.txt")).where
    )


def test_cannot_be_changed(tmp_path):
    config = load(tmp_path, nanoset(samples="{train: 5}"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.raw = "elsewhere"
    for mapping in (config.nanosets, config.webdatasets, config.nanosets["pretrain"].samples):
        with pytest.raises(TypeError, match="cannot be changed"):
            mapping["web"] = 2
    assert pickle.loads(pickle.dumps(config)) == config, "it travels to workers"


def test_missing_file(tmp_path):
    with pytest.raises(MissingError, match="no such configuration") as caught:
        load_config(tmp_path / "nanoset.yaml")
    assert caught.value.where == str(tmp_path / "nanoset.yaml")
    assert "nanoset init" in caught.value.remedy


def test_a_folder_stands_for_its_nanoset_yaml(tmp_path):
    with pytest.raises(MissingError, match="no such configuration") as caught:
        load_config(tmp_path)
    assert caught.value.where == str(tmp_path / "nanoset.yaml")


@pytest.mark.parametrize(
    ("text", "what", "found"),
    [
        (b"raw: \xff", "not UTF-8", "0xff"),
        ("raw: [", "not YAML", "line 1"),
        ("raw: a\nraw: b", "not YAML", "the key 'raw' occurs twice"),
        (nanoset().replace("web: 1", "web: 1, web: 2"), "not YAML", "the key 'web' occurs twice"),
        ("raw: 2024-13-45", "not YAML", "month must be in 1..12"),
        ("- raw", "wrong type", "['raw']"),
        (nanoset(tokenizer_identifiers="&a {b: *a}"), "a value holds itself", ""),
    ],
)
def test_not_a_configuration(tmp_path, text, what, found):
    problem = refused(tmp_path, text)
    assert what in problem.what
    assert found in (problem.found or "")
    assert problem.where == str(tmp_path / "nanoset.yaml")
    assert problem.remedy


def test_merged_keys_are_no_duplicates(tmp_path):
    text = (
        MINIMAL
        + "nanosets:\n  a: &a {blend: web, sequence_length: 8}\n  b: {<<: *a, sequence_length: 9}\n"
    )
    config = load(tmp_path, text)
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
        (nanoset(blend='["../web"]'), "cannot name a corpus", "nanosets.pretrain.blend", "rename"),
        (nanoset(split='"0,0,0"'), "not three shares", "nanosets.pretrain.split", "write three numbers"),
        (nanoset(split="100"), "wrong type", "nanosets.pretrain.split", 'put it in quotes: "100"'),
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
        (mixed("{a: 1}", max_epochs="2"), "limits of its own", "nanosets.pretrain.max_epochs", "within `mix`"),
        (phases("{mix: {a: 1}, until: 3}, {}", schedule=RUN), "of a phase", "nanosets.pretrain.phases[1]", "a mix"),
        (nanoset(max_epochs="{code: 2}"), "not in the blend", "nanosets.pretrain.max_epochs.code", "name a corpus"),
        (per_split("{trian: web}"), "not known", "nanosets.pretrain.blend_per_split.trian", "mean 'train'?"),
        (per_split("{train: null}"), "no split has data", "nanosets.pretrain.blend_per_split", "give train"),
        (per_split("{train: {web: 0}}"), "sum to 0", "nanosets.pretrain.blend_per_split.train", "share"),
        (per_split("{train: web}", split='"1,1,1"'), "each has its own", "nanosets.pretrain.split", "remove it"),
        (per_split("{train: web}", preset="nanotron"), "cannot take", "nanosets.pretrain.blend_per_split", "`split`"),
        (per_split("{train: web}", samples="{valid: 5}"), "no documents", "nanosets.pretrain.samples.valid", "key"),
        (phases("{blend: web}"), "need a schedule", "nanosets.pretrain.schedule", "add it"),
        (phases("{blend: a}, {blend: b}", schedule=RUN), "follow one", "nanosets.pretrain.phases", "above that"),
        (phases("{blend: a, until: 3}, {blend: []}", schedule=RUN), "corpora", "nanosets.pretrain.phases[1].blend", ""),
        (nanoset(**{"continue": "true"}), "needs phases that follow", "nanosets.pretrain.continue", "add `phases`"),
        (going_on(preset="nanotron"), "cannot continue", "nanosets.pretrain.continue_from", "nemo"),
        (going_on(blend="[a, b]", tokenizer_identifiers="{a: 1}"), "no shares", "nanosets.pretrain.continue_from", ""),
        (going_on(), "repeat samples", "nanosets.pretrain.trainer", "add `trainer`"),
        (going_on(preset="nemo", samples=None), "number of its samples", "nanosets.pretrain.continue_from", "add"),
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
        (MINIMAL + "corpora: {web_t: {folder: ../web}}", "cannot name a corpus", "corpora.web_t.folder", ""),
        (MINIMAL + "corpora: {web: {files: []}}", "no files are named", "corpora.web.files", "remove the key"),
        (MINIMAL + "corpora: {web: {files: a*}}", "wrong type", "corpora.web.files", "brackets: [a*]"),
        (MINIMAL + 'corpora: {web: {files: [a, "/"]}}', "fits no file", "corpora.web.files[1]", "train-*"),
        (MINIMAL + "corpora: {web: {exclude: [../b/*]}}", "fits no file", "corpora.web.exclude[0]", "train-*"),
        (MINIMAL + "corpora: {web: {text_key: a/b}}", "part of a file's name", "corpora.web.text_key", "rename"),
        (MINIMAL + "nanosets: {9a: {blend: web, sequence_length: 8}}", "asset", "nanosets.9a", "another name"),
        (MINIMAL + "nanosets: {corpus: {blend: web, sequence_length: 8}}", "taken", "nanosets.corpus", "another name"),
        (MINIMAL + "webdatasets: {raw-jsonl: {corpora: [web]}}", "taken", "webdatasets.raw-jsonl", "another name"),
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
        (MINIMAL + "executor: {kind: slurm}", "number of Slurm jobs", "executor.jobs", "jobs: 20"),
        (MINIMAL + "executor: {kind: slurm, jobs: 1, time: 10s}", "not a time limit", "executor.time", "90m"),
        (MINIMAL + "executor: {kind: slurm, jobs: 1, memory: 8 GB}", "not a size", "executor.memory", "8GB"),
        (MINIMAL + "executor: {kind: slurm, jobs: 1, address: 'tcp://h:1'}", "has no", "executor.address", "dask"),
        (MINIMAL + "executor: {kind: dask, scheduler_file: s, jobs: 1}", "dask has no jobs", "executor.jobs", "slurm"),
        (MINIMAL.replace(', eod: "<|endoftext|>"', ""), "end-of-document", "tokenizer.eod", "append_eod to false"),
        (MINIMAL.replace("root: data", "root: gs://b/data"), "local folders and S3", "root", "mount the place"),
        (MINIMAL.replace("raw: raw", "raw: gopher://b/raw"), "no file system of this name", "raw", "mount the place"),
        (MINIMAL.replace("raw: raw", "raw: s3:///raw"), "not name a place in a bucket", "raw", "s3://bucket/prefix"),
        (MINIMAL.replace("root: data", "root: s3://b/a/../c"), "not name a place in a bucket", "root", "s3://bucket/prefix"),
        (MINIMAL.replace("raw: raw", "raw: s3://b/t").replace("root: data", "root: s3://b/t/o"), "inside the raw text",
         "root", "folder of its own"),
        (MINIMAL.replace("path: tokenizer.json", "path: s3:///t.json"), "place in a bucket", "tokenizer.path", "s3://b"),
        (MINIMAL.replace("path: tokenizer.json", "path: gs://b/t"), "only local folders", "tokenizer.path", "mount"),
        (MINIMAL.replace("root: data", "root: raw/out"), "inside the raw text", "root", "folder of its own"),
        (MINIMAL.replace("raw: raw", "raw:"), "has no value", "raw", 'write "raw: raw"'),
    ],
)  # fmt: skip
def test_every_error_names_the_key_and_the_remedy(tmp_path, text, what, where, remedy):
    problem = refused(tmp_path, text)
    assert what in problem.what
    assert re.fullmatch(rf"{tmp_path / 'nanoset.yaml'}:\d+: {re.escape(where)}", problem.where)
    assert problem.remedy
    assert remedy in problem.remedy


@pytest.mark.parametrize(
    "split", ["0.99999,1e-05", "98 1 1", "98,-1,1", "98,,1", "98,abc1,1", "1_000,1"]
)
@pytest.mark.parametrize("preset", ["megatron", "nemo", "nanotron"])
def test_a_split_that_is_not_plain_numbers_is_refused(tmp_path, split, preset):
    problem = refused(tmp_path, nanoset(split=f'"{split}"', preset=preset))
    assert "not three shares" in problem.what
    assert problem.where == f"{tmp_path / 'nanoset.yaml'}:4: nanosets.pretrain.split"
    assert split in problem.found


def test_a_split_with_spaces_beside_its_commas_is_hashed_without_them(tmp_path):
    config = load(tmp_path, nanoset(split='"969, 30, 1"'))
    assert config.nanosets["pretrain"].shares == "969,30,1"


@pytest.mark.parametrize("mask", ["reset_position_ids", "eod_mask_loss"])
def test_a_mask_that_looks_for_end_tokens_is_refused_if_documents_have_none(tmp_path, mask):
    without = "tokenization: {append_eod: false}\n"
    problem = refused(tmp_path, nanoset(**{mask: "true"}) + without)
    assert problem.where == f"{tmp_path / 'nanoset.yaml'}:4: nanosets.pretrain.{mask}"
    assert "append_eod" in problem.remedy
    load(tmp_path, nanoset(**{mask: "true"}))
    load(tmp_path, nanoset() + without)
    load(
        tmp_path,
        nanoset(**{mask: "true"}) + "tokenization: {append_eod: false, special_tokens: add}\n",
    )


def test_all_mistakes_come_at_once_with_their_lines(tmp_path):
    text = """\
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
    together = [
        (3, "tokenizer.pad"),
        (8, "nanosets.a.blend.web"),
        (11, "nanosets.b.blend"),
        (12, "nanosets.b.split"),
    ]
    assert found_in(refused(tmp_path, text)) == [
        *together, (14, "nanosets.c"), (19, "executor.address"), (20, "webdatasets.d.contexts")
    ]  # fmt: skip
    for old, new in (
        ("auto", "fast"),
        ("length: 1", "length: 0"),
        ("nce_length: 2", "nce_lenght: 2"),
    ):
        text = text.replace(old, new)
    alone = [
        (4, "tokenization.engine"),
        (9, "nanosets.a.sequence_length"),
        (13, "nanosets.b.sequence_lenght"),
    ]
    assert found_in(refused(tmp_path, text)) == alone


def found_in(problem):
    return [
        (int(line), key)
        for line, key in re.findall(r"^  \S+:(\d+): (\S+): ", str(problem), re.MULTILINE)
    ]


def project(tmp_path, tokenizer: str) -> Project:
    load(
        tmp_path,
        f"raw: raw\nroot: data\ntokenizer: {{path: {GOLDEN / 'tokenizer.json'}, {tokenizer}}}\n",
    )
    return Project.open(tmp_path / "nanoset.yaml")


def test_special_tokens_by_name_and_those_that_the_tokenizer_lacks(tmp_path):
    opened = project(tmp_path, 'eod: "<|endoftext|>", pad: "<|padding|>"')
    assert (opened.special("eod"), opened.special("pad")) == (0, 1)
    assert project(tmp_path, "eod: x").special("pad") is None
    opened = project(tmp_path, "eod: </s>, pad: <pad>")
    for name in ("eod", "pad"):
        with pytest.raises(ConfigError, match="has no such token") as caught:
            opened.special(name)
        assert caught.value.where == f"{tmp_path / 'nanoset.yaml'}: tokenizer.{name}"
        assert caught.value.expected == "one of its special tokens: '<|endoftext|>', '<|padding|>'"
        assert "name another token" in caught.value.remedy


def test_corpora_have_keys_and_folders_of_their_own(tmp_path):
    corpora = (
        "corpora: {code: {text_key: content}, web_title: {folder: web, text_key: title, id_key: "
        "url}, books: {}}\n"
    )
    config = load(tmp_path, MINIMAL + "documents: {id_key: uid, max_line_mib: 2}\n" + corpora)
    asked = ("web", "code", "web_title", "books")
    assert [config.folder_name(corpus) for corpus in asked] == ["web", "code", "web", "books"]
    assert config.corpus_folder("web_title") == tmp_path / "raw" / "web"
    keys = [
        (config.documents_of(corpus).text_key, config.documents_of(corpus).id_key)
        for corpus in asked
    ]
    assert keys == [("text", "uid"), ("content", "uid"), ("title", "url"), ("text", "uid")]
    assert {config.documents_of(corpus).max_line_mib for corpus in asked} == {2}
    assert (
        config.documents_of("web")
        == load(tmp_path, MINIMAL + "documents: {id_key: uid, max_line_mib: 2}").documents
    )


COLUMNS = "documents: {columns: [url, meta.score]}\ncorpora: {code: {columns: [stars]}}\n"


def test_a_corpus_has_the_columns_of_all_or_its_own(tmp_path):
    config = load(tmp_path, MINIMAL + COLUMNS)
    assert config.documents_of("web").columns == ("url", "meta.score")
    assert config.documents_of("code").columns == ("stars",)


@pytest.mark.parametrize("name", ["file", "line", "byte_offset", "id", "tokens"])
def test_a_column_of_a_taken_name_is_refused(tmp_path, name):
    error = refused(
        tmp_path,
        f"{MINIMAL}documents: {{columns: [{name}]}}\ncorpora: {{web: {{columns: [{name}]}}}}\n",
    )
    assert f"documents.columns.{name}: every document has a column of this name already" in str(
        error
    )
    assert f"corpora.web.columns.{name}: every document has" in str(error)
    assert "named twice" in str(refused(tmp_path, f"{MINIMAL}documents: {{columns: [url, url]}}\n"))
