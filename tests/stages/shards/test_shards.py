import dataclasses
import gzip
import hashlib
import json
import pickle
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.locations import GOLDEN_FILES
from helpers.shards import task_for
from nanoset_core import MMapIndexedDataset, MMapIndexedDatasetBuilder
from nanoset_core.errors import ConfigError, InputError, SourceChangedError
from nanoset_core.execution.progress import Amount, PartReport, progress_reported_to
from nanoset_core.stages.shards import make as shards_module
from nanoset_core.stages.shards.facts import ShardFacts
from nanoset_core.stages.shards.framing import Framing
from nanoset_core.stages.shards.make import engine_choice
from nanoset_core.text import stored_piece as stored_module
from nanoset_core.text.importing import import_parquet
from nanoset_core.text.inventories import take_inventory
from nanoset_core.text.pieces import cut_ranges

GOLDEN = GOLDEN_FILES / "tokenization"
FILES = ["documents.parquet", "manifest.json", "rejects.jsonl", "tokens.bin", "tokens.idx"]


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "raw" / "web"
    folder.mkdir(parents=True)
    return folder


def lines(*texts: str) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def slowly(prefix: Path, texts: list[str], eod: int | None) -> None:
    """Megatron-LM's rule, a document at a time: the end token only where there are tokens, no
    sequence where none.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(GOLDEN / "tokenizer.json"))
    builder = MMapIndexedDatasetBuilder(prefix, np.uint16)
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if ids and eod is not None:
            ids = [*ids, eod]
        builder.add_document(ids, [len(ids)] if ids else [])
    builder.finalize()


def same_files(one: Path, two: Path) -> bool:
    return all(
        Path(f"{one}{suffix}").read_bytes() == Path(f"{two}{suffix}").read_bytes()
        for suffix in (".bin", ".idx")
    )


@pytest.mark.parametrize("engine", ["auto", "tokenizers"])
def test_bytes_are_those_of_megatrons_preprocess_data(corpus, tmp_path, engine):
    shutil.copyfile(GOLDEN / "documents.jsonl", corpus / "documents.jsonl")
    shard = task_for(corpus, tmp_path, engine=engine).make()
    assert same_files(shard.path("tokens"), GOLDEN / "text_document")
    assert (shard.facts["documents"], shard.facts["sequences"], shard.facts["tokens"]) == (
        13,
        11,
        441,
    )


TEXTS = st.lists(
    st.one_of(
        st.just(""), st.text(max_size=30), st.sampled_from(["<|endoftext|>", " ", "a" * 200])
    ),
    max_size=8,
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(texts=TEXTS, eod=st.sampled_from([None, 0, 5]), read_bytes=st.sampled_from([20, 1 << 20]))
def test_bytes_are_those_of_the_slow_way(tmp_path_factory, monkeypatch, texts, eod, read_bytes):
    monkeypatch.setattr(stored_module, "READ_BYTES", read_bytes)
    folder = tmp_path_factory.mktemp("twin")
    (folder / "raw").mkdir()
    (folder / "raw" / "a.jsonl").write_bytes(lines(*texts))
    shard = task_for(
        folder / "raw", folder / "out", framing=Framing(after=() if eod is None else (eod,))
    ).make()
    slowly(folder / "twin", texts, eod)
    assert same_files(shard.path("tokens"), folder / "twin")


REASONS = {
    "blank_line": ("a.jsonl", 2),
    "invalid_json": ("a.jsonl", 4),
    "text_not_a_string": ("a.jsonl", 6),
    "missing_key": ("a.jsonl", 7),
    "invalid_utf8": ("a.jsonl", 8),
    "lone_surrogate": ("a.jsonl", 9),
    "truncated_gzip": ("b.jsonl.gz", 7),
}


def mixed(corpus: Path) -> None:
    """Two files, three compressions less one, and every kind of line."""
    (corpus / "a.jsonl").write_bytes(
        b'{"text": "one fox", "id": "A"}\n'
        b"\n"
        b'{"text": "", "id": 2}\n'
        b"{broken\n"
        b'{"text": "two", "score": NaN}\n'
        b'{"text": 3}\n'
        b'{"txt": "x"}\n'
        b'{"text": "\xff"}\n'
        b'{"text": "\\ud800"}\n'
    )
    whole = gzip.compress(b'{"text": "three"}\n' * 3, mtime=0)
    (corpus / "b.jsonl.gz").write_bytes(whole + whole[:-5])


def test_everything_is_accounted_for(corpus, tmp_path):
    mixed(corpus)
    task = task_for(corpus, tmp_path)
    shard = task.make()
    assert (
        sorted(path.name for path in shard.folder.iterdir())
        == FILES
        == sorted([*shard.files, "manifest.json"])
    )
    for name, fact in shard.files.items():
        data = shard.path(name).read_bytes()
        assert (fact.size, fact.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    facts = ShardFacts.of(shard.facts)
    assert (facts.lines, facts.documents, facts.rejected, facts.faults) == (15, 9, 6, 1)
    assert facts.lines == facts.documents + facts.rejected
    assert facts.sequences == 8
    assert facts.stored_bytes == task.source.size
    assert facts.read_bytes == len((corpus / "a.jsonl").read_bytes()) + 6 * 18
    assert facts.reasons == dict.fromkeys(sorted(REASONS), 1)
    dataset = MMapIndexedDataset(shard.path("tokens"))
    assert len(dataset.document_indices) == 9 + 1
    assert len(dataset) == 8
    assert int(dataset.sequence_lengths.sum()) == facts.tokens
    assert sum(facts.length_histogram) == 9
    assert facts.length_histogram[0] == 1


def test_table_of_documents(corpus, tmp_path):
    import pyarrow.parquet as pq

    mixed(corpus)
    shard = task_for(corpus, tmp_path).make()
    rows = pq.read_table(shard.path("documents.parquet")).to_pylist()
    dataset = MMapIndexedDataset(shard.path("tokens"))
    per_document = np.diff(dataset.document_indices)
    ends = np.concatenate([[0], np.cumsum(dataset.sequence_lengths)])[dataset.document_indices]
    assert [row["tokens"] for row in rows] == np.diff(ends).tolist()
    assert [row["tokens"] > 0 for row in rows] == (per_document == 1).tolist()
    assert [(row["file"], row["line"], row["byte_offset"], row["id"]) for row in rows] == [
        ("a.jsonl", 1, 0, "A"),
        ("a.jsonl", 3, 32, "2"),
        ("a.jsonl", 5, 62, None),
        *(("b.jsonl.gz", line, 18 * (line - 1), None) for line in range(1, 7)),
    ]
    raw = (corpus / "a.jsonl").read_bytes()
    for row in rows[:3]:
        line = raw[row["byte_offset"] :].split(b"\n")[0]
        assert raw[: row["byte_offset"]].count(b"\n") == row["line"] - 1
        assert "text" in json.loads(line)


def test_rejects_are_kept(corpus, tmp_path):
    mixed(corpus)
    shard = task_for(corpus, tmp_path).make()
    text = shard.path("rejects.jsonl").read_bytes()
    assert text.endswith(b"\n")
    rejects = [json.loads(line) for line in text.splitlines()]
    assert {reject["reason"]: (reject["file"], reject["line"]) for reject in rejects} == REASONS
    assert list(rejects[1]) == ["file", "line", "offset", "reason", "detail", "excerpt"]
    assert rejects[1] == {
        "file": "a.jsonl",
        "line": 4,
        "offset": 54,
        "reason": "invalid_json",
        "detail": "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        "excerpt": "{broken",
    }
    assert rejects[4]["excerpt"] == '{"text": "\\xff"}'
    assert rejects[6]["offset"] == 6 * 18


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("engine", ["numpy", "tokenizers"])
def test_same_bytes_twice_elsewhere_and_from_other_chunks(corpus, tmp_path, monkeypatch, engine):
    mixed(corpus)
    task_for(corpus, tmp_path / "one").make()
    elsewhere = tmp_path / "other" / "place"
    shutil.copytree(corpus, elsewhere)
    monkeypatch.setattr(stored_module, "READ_BYTES", 33)
    made = task_for(elsewhere, tmp_path / "two", engine=engine).make()
    assert made.facts["encoder"]["engine"] == engine
    assert made.facts["encoder"]["audited"] == (0 if engine == "tokenizers" else 4)
    assert without_encoder(tmp_path / "one") == without_encoder(tmp_path / "two")


def without_encoder(folder):
    """The tree, with the facts of manifests but that of the engine."""
    manifests = {path: json.loads(path.read_bytes()) for path in folder.rglob("manifest.json")}
    rest = {
        name: digest for name, digest in tree(folder).items() if not name.endswith("manifest.json")
    }
    for path, manifest in manifests.items():
        del manifest["facts"]["encoder"], manifest["sha256"]
        rest[str(path.relative_to(folder))] = manifest
    return rest


@pytest.mark.parametrize(
    ("name", "content", "reason", "place", "remedy"),
    [
        (
            "a.jsonl",
            lines("a") + b"\n",
            "a line was rejected: blank_line",
            "2 (byte 14)",
            "on_reject",
        ),
        (
            "a.jsonl.gz",
            gzip.compress(lines("a"), mtime=0)[:-3],
            "cannot be read to its end: truncated_gzip",
            "2 (byte 14)",
            "repair the file",
        ),
    ],
)
def test_first_reject_or_fault_ends_it_when_asked(
    corpus, tmp_path, name, content, reason, place, remedy
):
    (corpus / name).write_bytes(content)
    with pytest.raises(InputError, match=reason) as caught:
        task_for(corpus, tmp_path, fail_on_reject=True).make()
    assert caught.value.where == f"{corpus / name}:{place}"
    assert remedy in caught.value.remedy
    assert list((tmp_path / "shards" / "web").iterdir()) == []


def test_source_that_changed_publishes_nothing(corpus, tmp_path):
    mixed(corpus)
    task = task_for(corpus, tmp_path)
    (corpus / "a.jsonl").write_bytes(b"{}" + (corpus / "a.jsonl").read_bytes()[2:])
    with pytest.raises(SourceChangedError):
        task.make()
    assert list((tmp_path / "shards" / "web").iterdir()) == []


def test_tokenizer_that_changed_is_noticed(corpus, tmp_path):
    """In this process or in a worker, and though an engine was made from the file before."""
    (corpus / "a.jsonl").write_bytes(lines("one fox"))
    file = Path(shutil.copyfile(GOLDEN / "tokenizer.json", tmp_path / "tokenizer.json"))
    task = task_for(corpus, tmp_path / "out", tokenizer_file=file)
    task.make()
    file.write_text(file.read_text().replace('"ignore_merges":false', '"ignore_merges":true'))
    other = dataclasses.replace(task, recipe=dataclasses.replace(task.recipe, version=2))
    with pytest.raises(
        SourceChangedError, match="the tokenizer has changed since this build started"
    ) as caught:
        other.make()
    assert caught.value.where == str(file)


def test_saying_which_engine_is_used_makes_no_other_one(corpus, tmp_path):
    """A second one would hold the tables of the tokenizer, and every word learnt, twice."""
    (corpus / "a.jsonl").write_bytes(lines("one", "two"))
    task = task_for(corpus, tmp_path)
    shards_module._loaded_engine.cache_clear()
    engine_choice(task.settings.tokenizer_file, task.settings.engine)
    task.make()
    assert shards_module._loaded_engine.cache_info().misses == 1


def test_id_outside_the_vocabulary_is_refused(corpus, tmp_path):
    (corpus / "a.jsonl").write_bytes(lines("one fox"))
    with pytest.raises(ConfigError, match="outside its vocabulary") as caught:
        task_for(corpus, tmp_path, max_id=3).make()
    assert caught.value.expected == "0 to 3"


def test_corpus_without_documents(corpus, tmp_path):
    (corpus / "a.jsonl").write_bytes(b"")
    shard = task_for(corpus, tmp_path).make()
    assert ShardFacts.of(shard.facts) == ShardFacts()
    assert len(MMapIndexedDataset(shard.path("tokens"))) == 0
    assert shard.path("tokens.bin").stat().st_size == 0


def test_facts_add_up():
    one = ShardFacts(4, 2, 1, 1, 10, 1, 0, 30, 20, {"b": 1, "a": 2}, [1] * 32)
    two = ShardFacts(5, 5, 0, 5, 50, 0, 1, 60, 50, {"c": 1, "a": 1}, [2] * 32)
    assert one + two == ShardFacts(9, 7, 1, 6, 60, 1, 1, 90, 70, {"a": 3, "b": 1, "c": 1}, [3] * 32)
    assert list((one + two).reasons) == ["a", "b", "c"]
    assert sum([one, two], ShardFacts()) == one + two


def test_histogram_of_lengths(corpus, tmp_path):
    """Entry b counts documents of 2^(b-1) to 2^b - 1 tokens."""
    # Without an end token, "<|padding|>" n times is n tokens.
    lengths = [0, 1, 2, 3, 4, 7, 8, 15, 16]
    (corpus / "a.jsonl").write_bytes(lines(*("<|padding|>" * length for length in lengths)))
    shard = task_for(corpus, tmp_path, framing=Framing()).make()
    assert shard.facts["length_histogram"] == [1, 1, 2, 2, 2, 1] + [0] * 26


def write_table(folder, suffix):
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "text": ["one two", None, "", "three é"],
        "id": range(4),
        "more": ["a", "b", "c", None],
    }
    table = pa.table(columns)
    folder.mkdir(parents=True)
    pq.write_table(table, folder / "a.parquet", row_group_size=3)
    if suffix == ".arrow":
        with pa.ipc.new_stream(folder / "a.arrow", table.schema) as writer:
            writer.write_table(table)
    elif suffix == ".jsonl":
        import_parquet(folder / "a.parquet", folder / "a.jsonl")
    for path in folder.iterdir():
        if path.suffix != suffix:
            path.unlink()


def test_a_table_gives_the_tokens_of_its_lines(tmp_path):
    import pyarrow.parquet as pq

    shards = {}
    for suffix in (".jsonl", ".parquet", ".arrow"):
        write_table(tmp_path / suffix, suffix)
        shards[suffix] = task_for(tmp_path / suffix, tmp_path / "out").make()
    for suffix in (".parquet", ".arrow"):
        for name in ("tokens.bin", "tokens.idx"):
            assert (
                shards[suffix].path(name).read_bytes() == shards[".jsonl"].path(name).read_bytes()
            )
        assert (shards[suffix].facts["lines"], shards[suffix].facts["rejected"]) == (4, 1)
        rows = pq.read_table(shards[suffix].path("documents.parquet")).to_pylist()
        assert [(row["file"], row["line"], row["byte_offset"], row["id"]) for row in rows] == [
            (f"a{suffix}", line, -1, str(line - 1)) for line in (1, 3, 4)
        ]
        reject = json.loads(shards[suffix].path("rejects.jsonl").read_text())
        assert (reject["line"], reject["reason"]) == (2, "text_not_a_string")


def test_pairs_of_keys_stay_aligned(tmp_path):
    import pyarrow.parquet as pq

    write_table(tmp_path / "web", ".parquet")
    first = task_for(
        tmp_path / "web", tmp_path / "out", text_key="text", required_keys=("more",)
    ).make()
    second = task_for(
        tmp_path / "web", tmp_path / "out2", text_key="more", required_keys=("text",)
    ).make()
    assert [shard.facts["documents"] for shard in (first, second)] == [2, 2]
    ids = [
        pq.read_table(shard.path("documents.parquet"))["id"].to_pylist()
        for shard in (first, second)
    ]
    assert ids == [["0", "2"]] * 2
    assert len(MMapIndexedDataset(second.folder / "tokens").sequence_lengths) == 2


def test_how_far_the_range_of_a_shard_has_come_is_told(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(shards_module, "_REPORT_SECONDS", -1)
    text = lines(*(f"{row} fox " * 2000 for row in range(200)))
    (corpus / "a.jsonl").write_bytes(text)
    (corpus / "b.jsonl.gz").write_bytes(gzip.compress(text))
    task, told = task_for(corpus, tmp_path / "out"), []
    with progress_reported_to(told.append):
        shard = task.make()
    reports = [report for report in told if isinstance(report, PartReport)]
    assert len(reports) > 4
    read_bytes = [report.amount.units for report in reports]
    assert read_bytes == sorted(read_bytes)
    whole = Amount(units=task.source.size, documents=400, tokens=shard.facts["tokens"])
    assert reports[-1] == PartReport(shard.digest, whole)


MAKE_ALL = """
import pickle, sys
from nanoset_core.stages.shards.framing import Framing
from nanoset_core.stages.shards.make import ShardTask
from nanoset_core.execution.processes import run_tasks
tasks = pickle.load(open(sys.argv[1], "rb"))
print("begun", flush=True)
list(run_tasks(ShardTask.make, tasks, 2))
"""


def test_killed_at_any_moment_and_run_again_gives_the_same_bytes(corpus, tmp_path):
    for number in range(10):
        (corpus / f"part-{number}.jsonl").write_bytes(
            lines(*(f"{number} {row} fox " * 20 for row in range(100)))
        )
    ranges = cut_ranges(take_inventory(corpus, "web"), 30_000)
    assert len(ranges) > 4
    for source in ranges:
        task_for(corpus, tmp_path / "undisturbed", source).make()
    tasks = [task_for(corpus, tmp_path / "killed", source) for source in ranges]
    (tmp_path / "tasks").write_bytes(pickle.dumps(tasks))
    rng = random.Random(11)
    for _ in range(6):
        command = [sys.executable, "-c", MAKE_ALL, str(tmp_path / "tasks")]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            time.sleep(rng.uniform(0.1, 0.9))
            process.kill()
        visible = [
            path
            for path in (tmp_path / "killed").glob("shards/web/*")
            if not path.name.startswith(".")
        ]
        assert all(sorted(file.name for file in path.iterdir()) == FILES for path in visible)
    subprocess.run(command, check=True, capture_output=True)
    assert tree(tmp_path / "killed") == tree(tmp_path / "undisturbed")


def test_a_document_that_memory_does_not_hold_is_named_with_the_key(corpus, tmp_path, monkeypatch):
    (corpus / "a.jsonl").write_bytes(lines("short", "some words and " * 100_000, "short"))
    monkeypatch.setattr("nanoset_core.tokenizers.engines.reference.free_memory", lambda: 1 << 20)
    with pytest.raises(InputError, match="needs more memory than is available") as caught:
        task_for(corpus, tmp_path / "out", max_line_bytes=1 << 30).make()
    assert caught.value.where == f"{corpus / 'a.jsonl'}:2 (byte 18)"
    assert caught.value.found.startswith("1,500,000 bytes of text")
    assert "documents.max_line_mib" in caught.value.remedy
