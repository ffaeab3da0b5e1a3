import json
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from nanoset_core import load_config
from nanoset_core.demo import writing as texts
from nanoset_core.demo.writing import BROKEN_LINE, EOD, MARKER, write_demo
from nanoset_core.errors import ConfigError
from nanoset_core.text.documents import read_documents
from nanoset_core.text.inventories import take_inventory
from nanoset_core.text.pieces import SourceRange
from nanoset_core.text.survey import list_corpora
from nanoset_core.tokenizers.tokenizer import token_id, tokenizer_facts


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    said = []
    assert write_demo(folder, megabytes=1.0, say=said.append) is True
    assert len(said) == 2
    return folder


def test_configuration_names_what_is_there(demo):
    config = load_config(demo / "nanoset.yaml")
    corpora = list(list_corpora(config.raw_folder).corpora)
    assert corpora == ["descriptions", "documentation", "libraries", "stdlib"]
    assert sorted(config.nanosets["pretrain"].corpora) == corpora
    assert sorted(config.webdatasets["shuffled"].corpora) == corpora
    assert config.tokenizer_file == demo / "tokenizer.json"
    assert config.tokenizer.eod == EOD


def test_every_kind_of_file_is_there(demo):
    suffixes = {path.name.partition(".")[2] for path in demo.glob("raw/**/*.jsonl*")}
    assert suffixes == {"jsonl", "jsonl.gz", "jsonl.zst"}
    assert list(demo.glob("raw/stdlib/*/*.gz"))
    decoder = zlib.decompressobj(31)
    decoder.decompress(next(iter(demo.glob("raw/stdlib/**/*.gz"))).read_bytes())
    assert decoder.unused_data.startswith(b"\x1f\x8b"), "one member where there should be two"


def test_every_line_is_a_document_but_one(demo):
    total, rejects = 0, []
    for corpus in list_corpora(demo / "raw").corpora:
        folder = demo / "raw" / corpus
        inventory = take_inventory(folder, corpus)
        ids = []
        for batch in read_documents(folder, SourceRange(inventory.pieces)):
            assert all(batch.texts)
            ids += batch.ids
            rejects += batch.rejects
        assert len(set(ids)) == len(ids) > 10
        assert None not in ids
        total += len(ids)
    assert total > 100
    assert [(reject.reason, reject.excerpt) for reject in rejects] == [
        ("invalid_json", BROKEN_LINE.decode().rstrip())
    ]


def test_tokenizer_can_say_everything(demo):
    from tokenizers import Tokenizer

    facts = tokenizer_facts(demo / "tokenizer.json")
    assert facts.max_id == facts.vocab_size - 1
    assert token_id(demo / "tokenizer.json", EOD, "eod") == 0
    tokenizer = Tokenizer.from_file(str(demo / "tokenizer.json"))
    text = "def naïve(日本): return '\U0001f600\t\0'\r\n"
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_demo_that_is_there_is_left_alone(demo):
    before = {path: path.stat().st_mtime_ns for path in demo.rglob("*") if path.is_file()}
    assert write_demo(demo, megabytes=1.0) is False
    assert {path: path.stat().st_mtime_ns for path in demo.rglob("*") if path.is_file()} == before


def test_unfinished_demo_is_made_anew(tmp_path):
    (tmp_path / "raw" / "stdlib").mkdir(parents=True)
    (tmp_path / "raw" / MARKER).touch()
    (tmp_path / "raw" / "stdlib" / "half.jsonl").write_bytes(b'{"text": "cut o')
    (tmp_path / "tokenizer.json").write_text("old")
    assert write_demo(tmp_path, megabytes=0.2) is True
    assert load_config(tmp_path / "nanoset.yaml").documents.max_rejected_fraction == 0.5, (
        "of few lines one is broken"
    )
    assert not (tmp_path / "raw" / "stdlib" / "half.jsonl").exists()
    assert json.loads((tmp_path / "tokenizer.json").read_bytes())["model"]["type"] == "BPE"


@pytest.mark.parametrize(
    ("name", "refused"),
    [
        ("raw/web/a.jsonl", "raw"),
        ("tokenizer.json", "tokenizer.json"),
        ("nanoset.schema.json", "nanoset.schema.json"),
        ("data/datasets/documentation/current.json", "data"),
    ],
)
def test_files_of_the_user_are_never_replaced(tmp_path, name, refused):
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"years of work")

    with pytest.raises(ConfigError, match="`nanoset demo` did not write this") as caught:
        write_demo(tmp_path)

    assert caught.value.where == str(tmp_path / refused)
    assert file.read_bytes() == b"years of work"
    assert not (tmp_path / "nanoset.yaml").exists()


def test_amount_of_text_is_about_what_is_asked():
    size = sum(len(document["text"].encode()) for document in texts.standard_library(600_000))
    assert 600_000 <= size < 600_000 + 400_000
    assert list(texts.standard_library(50_000)) == list(texts.standard_library(50_000))


@pytest.mark.parametrize("sources", [texts.standard_library, texts.libraries])
def test_of_little_text_every_part_of_the_split_gets_a_document(sources):
    documents = len(list(sources(1)))
    boundaries = [round(share * documents) for share in (0.9, 0.95, 1)]
    assert boundaries == sorted(set(boundaries))


def test_no_raw_file_is_left_in_part(demo, tmp_path):
    limited = """
import resource, signal, sys
from pathlib import Path
from nanoset_core.demo.writing import write_demo
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
write_demo(Path(sys.argv[1]), megabytes=1.0)
"""
    done = subprocess.run(
        [sys.executable, "-c", limited, str(tmp_path)], capture_output=True, text=True
    )
    assert "File too large" in done.stderr
    left = list(tmp_path.glob("raw/**/*.jsonl*"))  # those that are small enough
    assert len(left) < len(list(demo.glob("raw/**/*.jsonl*")))
    assert all(
        path.read_bytes() == (demo / path.relative_to(tmp_path)).read_bytes() for path in left
    )
