"""Encoding one long document takes little memory, or is refused if it would take too much."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nanoset_core.tokenizers.engines import make_engine, reference

MEASURE = """
import resource, sys
from nanoset_core.tokenizers.engines import make_engine

def peak_kib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

engine = make_engine(sys.argv[1], "numpy", cache=sys.argv[2])
assert engine.name == "numpy", engine.reason
line = "The quick brown fox can't jump over the lazy dogs' fence, e\\u0301 or two, 12 times\\n"
text = line * 40_000
engine.encode([text[:400_000]])
before = peak_kib()
engine.encode([text])
print((peak_kib() - before) * 1024 / len(text.encode()))
"""
"""Prints how many bytes of memory each byte of a long text takes.

Its arguments are a tokenizer, and the folder in which the comparison of the engine is stored.
"""
MAX_MEMORY_PER_BYTE = 8
"""The library would take 40 to normalise the text, and 130 to encode it."""


@pytest.mark.usefixtures("few_canaries")
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux")
@pytest.mark.parametrize(
    "kind", [pytest.param("neox", id="normalised"), pytest.param("gemma", id="not normalised")]
)
def test_a_long_document_takes_a_few_times_its_bytes(tokenizer_files, tmp_path, kind):
    make_engine(tokenizer_files[kind], "numpy", cache=tmp_path)  # compares it, and stores that
    command = [sys.executable, "-c", MEASURE, str(tokenizer_files[kind]), str(tmp_path)]

    result = subprocess.run(command, capture_output=True, text=True, check=True)

    assert float(result.stdout) < MAX_MEMORY_PER_BYTE


@pytest.fixture
def long_text():
    """A text of 1,500,000 bytes."""
    return "some words and " * 100_000


@pytest.fixture
def needed_memory(long_text):
    """Bytes that the library may take to encode the long text."""
    return len(long_text) * reference.MEMORY_PER_BYTE


@pytest.fixture
def engine(tokenizer_files):
    """The tokenizers library."""
    return make_engine(tokenizer_files["gpt2"], "tokenizers")


def test_the_library_does_not_get_a_document_for_which_memory_is_missing(
    engine, long_text, needed_memory, monkeypatch
):
    monkeypatch.setattr(reference, "free_memory", lambda: needed_memory - 1)
    message = "1,500,000 bytes of text, for which the tokenizers library may take 240,000,000 bytes"

    with pytest.raises(MemoryError, match=message):
        engine.encode(["short", long_text])


def test_the_library_gets_a_document_for_which_there_is_just_enough_memory(
    engine, long_text, needed_memory, monkeypatch
):
    monkeypatch.setattr(reference, "free_memory", lambda: needed_memory)

    encoded = engine.encode([long_text])

    assert len(encoded.ids) > 0
