"""Exports that share the tokens of a dataset: what they hold, and that the real readers read all of
it.
"""

import gzip
import os

import numpy as np
import pytest

from helpers.command import invoke_nanoset
from helpers.sample_pairs import END, random_pair
from nanoset_core import MMapIndexedDatasetBuilder
from nanoset_core.errors import ConfigError
from nanoset_core.stages.exports.base import DatasetTraits
from nanoset_core.stages.exports.formats import FORMATS, _metric
from nanoset_core.stages.exports.standalone import ExportOptions, export_pair

SEEDS = range(50)


@pytest.fixture
def exported(tmp_path):
    """Exports a random dataset; → (folder, name, documents with tokens)."""

    def make(seed, kind):
        prefix, documents = random_pair(tmp_path, seed, has_ends=True)
        facts, _, is_new = export_pair(
            prefix, tmp_path / kind, ExportOptions(format=kind, tokenizer_name="some/name")
        )
        full = [one for one in documents if len(one)]
        assert is_new
        assert (facts["documents"], facts["left_out"]) == (len(full), len(documents) - len(full))
        return tmp_path / kind, prefix.name, full

    (tmp_path / "datatrove").mkdir()
    (tmp_path / "olmo-core").mkdir()
    return make


@pytest.mark.parametrize("seed", SEEDS)
def test_a_ds_file_holds_every_document_in_order(exported, seed):
    folder, name, documents = exported(seed, "datatrove")
    tokens = np.fromfile(folder / f"{name}.ds", documents[0].dtype)
    ends = np.fromfile(folder / f"{name}.ds.index", np.uint64).astype(int)
    assert [part.tobytes() for part in np.split(tokens, ends[:-1])] == [
        one.tobytes() for one in documents
    ]
    lines = (folder / f"{name}.ds.metadata").read_text().split("\n")
    assert lines == [f"some/name|{tokens.itemsize}", str(len(tokens)), _metric(len(tokens))]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_headless_npy_file_holds_every_document_in_order(exported, seed):
    folder, name, documents = exported(seed, "olmo-core")
    tokens = np.fromfile(folder / f"{name}.npy", documents[0].dtype)
    with gzip.open(folder / f"{name}.csv.gz", "rt") as file:
        spans = [tuple(map(int, line.split(","))) for line in file]
    assert [tokens[start:end].tobytes() for start, end in spans] == [
        one.tobytes() for one in documents
    ]


@pytest.mark.parametrize("seed", SEEDS)
def test_datatrove_reads_every_token_in_order(exported, seed):
    dataset = pytest.importorskip("datatrove.utils.dataset", reason="datatrove is not installed")
    folder, name, documents = exported(seed, "datatrove")
    tokens, size = np.concatenate(documents), documents[0].itemsize
    # windows of one token: none is left over
    one = dataset.DatatroveFileDataset(str(folder / f"{name}.ds"), seq_len=0, token_size=size)
    assert np.array_equal([int(one[k]["input_ids"][0]) for k in range(len(one))], tokens)
    wide = dataset.DatatroveFolderDataset(
        str(folder), seq_len=31, token_size=size, return_positions=True
    )
    assert len(wide) == len(tokens) // 32
    places = np.concatenate([np.arange(len(one)) for one in documents])
    for k in range(len(wide)):
        window = slice(32 * k, 32 * k + 32)
        assert np.array_equal(wide[k]["input_ids"], tokens[window])
        # its positions begin with each window anew
        begins = np.arange(32) - np.minimum(places[window], np.arange(32))
        assert np.array_equal(wide[k]["positions"], np.arange(32) - begins)


@pytest.mark.parametrize("seed", SEEDS)
def test_olmo_core_reads_every_token_in_order(exported, seed, tmp_path):
    data = pytest.importorskip("olmo_core.data", reason="ai2-olmo-core is not installed")
    from olmo_core.data.utils import iter_document_indices

    folder, name, documents = exported(seed, "olmo-core")
    tokens = np.concatenate(documents)
    spans = [*iter_document_indices(str(folder / f"{name}.npy"), use_array_if_local=False)]
    assert [tokens[start:end].tobytes() for start, end in spans] == [
        one.tobytes() for one in documents
    ]
    if seed % 5:  # documents end with the end token
        dtype = np.uint16 if tokens.itemsize == 2 else np.uint32
        found = iter_document_indices(str(folder / f"{name}.npy"), eos_token_id=END, dtype=dtype)
        assert [*found] == spans
    vocab = 65_536 if tokens.itemsize == 2 else 200_000
    config = data.NumpyFSLDatasetConfig(
        paths=[str(folder / f"{name}.npy")],
        sequence_length=8,
        tokenizer=data.TokenizerConfig(vocab_size=vocab, eos_token_id=END, pad_token_id=END),
        work_dir=str(tmp_path),
    )
    read = config.build()
    read.prepare()
    assert len(read) == len(tokens) // 8
    found = (
        np.concatenate([read[k]["input_ids"].numpy() for k in range(len(read))])
        if len(read)
        else tokens[:0]
    )
    assert np.array_equal(found, tokens[: len(found)])


def test_tokens_are_linked_and_a_second_call_makes_nothing(tmp_path):
    prefix, _ = random_pair(tmp_path, 2)
    words = [
        "export",
        str(prefix),
        "--format",
        "datatrove",
        "-o",
        str(tmp_path / "out"),
        "--name",
        "n",
    ]
    said = [invoke_nanoset(words, catch_exceptions=False).output for _ in range(2)]
    assert "tokens: hard link" in said[0]
    assert said[1] == said[0].replace("\n", " (already exists)\n")
    assert os.path.samefile(tmp_path / "out" / "n.ds", f"{prefix}.bin")


def test_where_links_are_refused_tokens_are_copied(tmp_path, monkeypatch):
    prefix, _ = random_pair(tmp_path, 2)
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError("refused")))
        facts, files, _ = export_pair(prefix, tmp_path / "out", ExportOptions(format="olmo-core"))
    assert facts["made_by"] == "copy"
    assert files[0].read_bytes() == (tmp_path / f"{prefix.name}.bin").read_bytes()


def test_within_a_bucket_no_token_passes_through_the_client(tmp_path, bucket, monkeypatch):
    from helpers import s3_server
    from nanoset_core.storage.location import location

    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.endpoint_url)
    with MMapIndexedDatasetBuilder(tmp_path / "big", np.uint16) as builder:
        builder.add_document(np.arange(3 << 20).astype(np.uint16))
    for ending in (".bin", ".idx"):
        bucket.put_file(f"big{ending}", tmp_path / f"big{ending}")
    passed: list[int] = []
    s3_server.listeners.append(lambda path, sent, got: passed.append(sent + got))
    options = ExportOptions(format="datatrove")
    facts, _, _ = export_pair(
        location(f"{bucket.url()}/big"), location(f"{bucket.url()}/out"), options
    )
    s3_server.listeners.pop()
    assert facts["made_by"] == "copy within the bucket"
    assert sum(passed) < 100_000
    assert bucket.sha256("out/big.ds") == bucket.sha256("big.bin")
    assert (
        export_pair(location(f"{bucket.url()}/big"), location(f"{bucket.url()}/out"), options)[2]
        is False
    )
    # to and from a bucket
    assert (
        export_pair(tmp_path / "big", location(f"{bucket.url()}/sent"), options)[0]["made_by"]
        == "copy"
    )
    assert bucket.sha256("sent/big.ds") == bucket.sha256("big.bin")
    (tmp_path / "got").mkdir()
    assert (
        export_pair(location(f"{bucket.url()}/big"), tmp_path / "got", options)[0]["made_by"]
        == "copy"
    )
    assert (tmp_path / "got/big.ds").read_bytes() == (tmp_path / "big.bin").read_bytes()


@pytest.mark.parametrize(
    ("kind", "told", "found"),
    [
        ("datatrove", {"dtype": np.dtype(np.uint8)}, "tokens of type uint8"),
        ("datatrove", {"dtype": np.dtype(np.int64)}, "tokens of type int64"),
        ("datatrove", {"has_end": False}, "no end tokens"),
        ("datatrove", {"tokens": 0}, "no tokens"),
        ("olmo-core", {"has_end": False}, "no end tokens"),
        ("olmo-core", {"dtype": np.dtype(np.int32), "vocab_size": 65_536}, "4 bytes a token"),
        ("olmo-core", {"vocab_size": 65_537}, "2 bytes a token"),
        ("olmo-core", {"vocab_size": 256}, "2 bytes a token"),
    ],
)
def test_what_a_reader_cannot_read_is_refused(kind, told, found):
    tokens = DatasetTraits(**{"where": "here", "dtype": np.dtype(np.uint16), "tokens": 5} | told)
    with pytest.raises(ConfigError) as error:
        FORMATS[kind].check(tokens)
    assert error.value.found == found


def test_types_that_fit_the_vocabulary_are_taken():
    for dtype, size in (("uint16", 65_536), ("uint16", 50_000), ("int32", 65_537), ("uint8", 256)):
        FORMATS["olmo-core"].check(
            DatasetTraits(where="here", dtype=np.dtype(dtype), tokens=5, vocab_size=size)
        )


def test_counts_are_written_as_datatrove_writes_them():
    texts = {
        1: "1.00 T",
        10: "10.0 T",
        999: "999 T",
        1000: "1.00 kT",
        9_999: "10.0 kT",
        99_950: "100 kT",
    }
    texts |= {
        12_345: "12.3 kT",
        999_999: "1.00 MT",
        123_456_789: "123 MT",
        15 * 10**12 + 7: "15.0 TT",
    }
    assert {count: _metric(count) for count in texts} == texts


def test_counts_are_those_of_humanize():
    humanize = pytest.importorskip(
        "humanize", reason="humanize, which datatrove uses, is not installed"
    )
    counts = [
        *np.random.default_rng(1).integers(1, 10**15, 2000).tolist(),
        *(10**n - 1 for n in range(1, 16)),
    ]
    counts += [*range(1, 2000), *range(9_900, 10_100), *range(99_400, 100_100)]
    assert [_metric(count) for count in counts] == [
        humanize.metric(count, unit="T") for count in counts
    ]


def pair_of(folder, documents, dtype=np.uint16):
    """Write documents of these tokens; return the prefix."""
    folder.mkdir(parents=True, exist_ok=True)
    prefix = folder / "pair"
    with MMapIndexedDatasetBuilder(prefix, dtype) as builder:
        for tokens in documents:
            builder.add_document(np.array(tokens, dtype))
    return prefix


NEEDS_ENDS = [kind for kind, one in FORMATS.items() if one.needs_end]


@pytest.mark.parametrize("kind", NEEDS_ENDS)
@pytest.mark.parametrize(
    "documents",
    [
        [[5, 6], [6, 5, 8], [9]],
        [[5, END], [6, END], [8, 9]],  # the last one was cut off
        [[5], [6, END], [8, END]],
        [[5, END], [END, 6], [8, END]],
        [[5, END], [], [8]],
        [[9, 5, 9, 9], [9, 9, 6, 9], [8, 9, 9]],  # all end with a token that is no end token
    ],
)
def test_a_dataset_of_which_documents_lack_the_end_token_is_refused(tmp_path, kind, documents):
    with pytest.raises(ConfigError, match="end token after each document") as caught:
        export_pair(pair_of(tmp_path, documents), tmp_path / "out", ExportOptions(format=kind))
    assert "--append-eod" in str(caught.value)
    assert not list((tmp_path / "out").glob("*.*"))


@pytest.mark.parametrize("kind", NEEDS_ENDS)
def test_documents_without_tokens_need_no_end_token(tmp_path, kind):
    prefix = pair_of(tmp_path, [[], [5, END], [], [END], []])
    (tmp_path / "out").mkdir()
    assert export_pair(prefix, tmp_path / "out", ExportOptions(format=kind))[0]["documents"] == 2


@pytest.mark.parametrize("kind", NEEDS_ENDS)
def test_documents_that_end_with_an_ordinary_token_of_the_tokenizer_are_refused(
    tmp_path, kind, tokenizer_file
):
    prefix = pair_of(tmp_path, [[900, 901], [902, 901]])
    with pytest.raises(ConfigError, match="token 901, which is no special token"):
        export_pair(prefix, tmp_path / "out", ExportOptions(format=kind, tokenizer=tokenizer_file))


@pytest.mark.parametrize("lacking", [0, 70_000, 139_999])
def test_one_document_of_many_without_an_end_token_is_found(tmp_path, lacking):
    tokens = np.full((140_000, 2), END, np.uint16)
    tokens[lacking, 1] = 9
    prefix = tmp_path / "many"
    with MMapIndexedDatasetBuilder(prefix, np.uint16) as builder:
        builder.add_documents(tokens.ravel(), [2] * len(tokens), [1] * len(tokens))
    with pytest.raises(ConfigError, match=rf"1 of 140,000 documents .* first of them {lacking:,}"):
        export_pair(prefix, tmp_path / "out", ExportOptions(format="datatrove"))


def test_formats_of_samples_need_no_end_tokens(tmp_path):
    prefix = pair_of(tmp_path, [[5, 6], [6, 5, 8], [9]])
    (tmp_path / "out").mkdir()
    export_pair(prefix, tmp_path / "out", ExportOptions(format="mds", sequence_length=3))


def test_of_a_dataset_in_a_bucket_single_tokens_are_read(tmp_path, bucket, monkeypatch):
    from nanoset_core.storage.location import location

    monkeypatch.setenv("AWS_ENDPOINT_URL", bucket.endpoint_url)
    prefix = pair_of(tmp_path, [[5, END], [6, 9], [8, END]])
    for ending in (".bin", ".idx"):
        bucket.put_file(f"pair{ending}", prefix.with_suffix(ending))
    with pytest.raises(ConfigError, match="1 of 3 documents"):
        export_pair(
            location(f"{bucket.url()}/pair"),
            location(f"{bucket.url()}/out"),
            ExportOptions(format="olmo-core"),
        )
