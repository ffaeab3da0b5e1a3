"""What one long document takes of memory, and what is said where there is not enough."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nanoset_core.tokenizers.engines import make_engine, reference

MEASURE = """
import resource, sys
from nanoset_core.tokenizers.engines import make_engine
engine = make_engine(sys.argv[1], "numpy")
assert engine.name == "numpy", engine.reason
text = "The quick brown fox can't jump over the lazy dogs' fence, e\\u0301 or two, 12 times\\n" * 100_000
engine.encode([text[:1_000_000]])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
engine.encode([text])
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / len(text.encode()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux")
@pytest.mark.parametrize("kind", ["neox", "gemma"])
def test_a_long_document_takes_a_few_times_its_bytes(tokenizer_files, kind):
    """In normal form or not; the library would take 40 to put it into that, and 130 to encode it."""
    command = [sys.executable, "-c", MEASURE, str(tokenizer_files[kind])]
    assert float(subprocess.run(command, capture_output=True, text=True, check=True).stdout) < 8


def test_the_library_is_not_given_a_document_that_the_memory_does_not_hold(
    tokenizer_files, monkeypatch
):
    text, needed = "some words and " * 100_000, 15 * 100_000 * reference.MEMORY_PER_BYTE
    engine = make_engine(tokenizer_files["gpt2"], "tokenizers")
    monkeypatch.setattr(reference, "free_memory", lambda: needed - 1)
    with pytest.raises(
        MemoryError,
        match="1,500,000 bytes of text, for which the tokenizers library may take 240,000,000 bytes",
    ):
        engine.encode(["short", text])
    monkeypatch.setattr(reference, "free_memory", lambda: needed)
    assert len(engine.encode([text]).ids)
