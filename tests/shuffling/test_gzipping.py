"""Equal texts give equal bytes, in any process and after any other text."""

import gzip
import hashlib
import random
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.shuffling.members import MemberCompressor

REPOSITORY = Path(__file__).parents[2]

# Leaves memory of all sizes behind, filled with what looks like places in a text, then prints a digest of each member.
DIRTY = """
import hashlib, sys
import numpy as np
from nanoset_core.shuffling.members import MemberCompressor
rng = np.random.default_rng(1)
words = [260 + int(word) for word in rng.integers(0, 60, 60)]
texts = [str([words[i] for i in rng.integers(0, 60, 33)]).replace(" ", "").encode() for _ in range(1000)]
kept = [rng.integers(0, 60, 200_000).astype(np.int16) for _ in range(int(sys.argv[1]))]
del kept
kept = [bytes([i % 130, 0]) * int(rng.integers(10, 40_000)) for i in range(int(sys.argv[1]))]
del kept
compressor = MemberCompressor()
print(" ".join(hashlib.md5(compressor.compress(text)).hexdigest() for text in texts))
"""


@settings(max_examples=100)
@given(texts=st.lists(st.text(st.characters(codec="ascii"), max_size=400).map(str.encode), min_size=1, max_size=8))
def test_members_are_gzip_files_of_their_texts(texts):
    compressor = MemberCompressor()
    for text in texts:
        member = compressor.compress(text)
        assert gzip.decompress(member) == text
        assert zlib.decompressobj(31).decompress(member) == text


@pytest.mark.parametrize("length", [0, 1, 33, 2049, 100_000])
def test_bytes_do_not_depend_on_what_came_before(length):
    rng = random.Random(length)
    texts = [str([rng.randrange(300) for _ in range(length)]).encode() for _ in range(12)]
    alone = [MemberCompressor().compress(text) for text in texts]
    for _ in range(3):
        order = list(range(len(texts)))
        rng.shuffle(order)
        compressor = MemberCompressor()
        for number in order:
            assert compressor.compress(texts[number]) == alone[number]


def test_bytes_do_not_depend_on_the_memory_of_the_process():
    found = set()
    for number in range(5):
        command = [sys.executable, "-c", DIRTY, str(number)]
        outcome = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=60)
        found.add(hashlib.md5(outcome.stdout.encode()).hexdigest())
    assert len(found) == 1


def test_bytes_do_not_depend_on_the_address_of_the_compressor():
    # Of each text, what comes third comes again; where the first copy is noted decides whether the second is a match.
    texts = [b"[1%04x,,,,,,,,,,,,,,,,;%04x]" % (number, number) + b"." * 300 for number in range(30_000)]
    compressors = [MemberCompressor() for _ in range(3)]
    digests = [[hash(compressor.compress(text)) for text in texts] for compressor in compressors]
    assert digests[0] == digests[1] == digests[2]
