"""Tokenizers of every kind that the numpy engine knows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from helpers.small_tokenizers import BYTE_KINDS, write_small_tokenizers
from nanoset_core.tokenizers import engines
from nanoset_core.tokenizers.engines.numpy_engine import NumpyEngine
from nanoset_core.tokenizers.engines.reference import ReferenceEngine
from nanoset_core.tokenizers.engines.rules import Rules, read_rules

NO_FLAGS = {
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
    "special": False,
}
"""Flags of an added token."""


class KnownTokenizer(NamedTuple):
    """A tokenizer whose rules the numpy engine knows."""

    rules: Rules
    """How it encodes text, for the numpy engine."""
    reference: ReferenceEngine
    """The engine whose tokens are right."""

    def make_numpy_engine(self) -> NumpyEngine:
        """Return a numpy engine, whose cache of words is empty."""
        return NumpyEngine(self.rules, self.reference)


class KnownTokenizers(dict[str, KnownTokenizer]):
    """Kind → the tokenizer of that kind, which is loaded when a test first asks for it."""

    def __init__(self, tokenizer_files: dict[str, Path]) -> None:
        self._tokenizer_files = tokenizer_files

    def __missing__(self, kind: str) -> KnownTokenizer:
        path = self._tokenizer_files[kind]
        tokenizer_rules = read_rules(json.loads(path.read_bytes()))
        self[kind] = KnownTokenizer(tokenizer_rules, ReferenceEngine(path))
        return self[kind]


@pytest.fixture
def without_compiled_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Act as if no compiled engine were installed."""
    monkeypatch.setattr(engines, "is_installed", lambda: False)


@pytest.fixture(scope="session")
def tokenizer_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kind → the `tokenizer.json` of a small tokenizer of that kind."""
    return write_small_tokenizers(tmp_path_factory.mktemp("tokenizers"))


@pytest.fixture
def write_changed_tokenizer(
    tokenizer_files: dict[str, Path], tmp_path: Path
) -> Callable[..., Path]:
    """Return a function that writes the tokenizer of a kind after a change."""

    def write(kind: str, change: Callable[[dict[str, Any]], object]) -> Path:
        tokenizer = json.loads(tokenizer_files[kind].read_bytes())
        change(tokenizer)
        path = tmp_path / f"changed_{kind}.json"
        path.write_text(json.dumps(tokenizer))
        return path

    return write


@pytest.fixture
def write_tokenizer_with(write_changed_tokenizer: Callable[..., Path]) -> Callable[..., Path]:
    """Return a function that writes the tokenizer of a kind with one more added token."""

    def write(kind: str, content: str, **flags: bool) -> Path:
        def add_token(tokenizer: dict[str, Any]) -> None:
            ids = [token["id"] for token in tokenizer["added_tokens"]]
            ids += tokenizer["model"]["vocab"].values()
            token = {**NO_FLAGS, "id": max(ids) + 1, "content": content, **flags}
            tokenizer["added_tokens"].append(token)

        return write_changed_tokenizer(kind, add_token)

    return write


@pytest.fixture(scope="session")
def known_tokenizers(tokenizer_files: dict[str, Path]) -> KnownTokenizers:
    """Kind → the rules of the tokenizer of that kind, and its reference."""
    return KnownTokenizers(tokenizer_files)


@pytest.fixture(params=sorted(BYTE_KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    """Each kind of tokenizers whose tokens are of bytes."""
    parameter: str = request.param
    return parameter


@pytest.fixture
def engine(known_tokenizers: KnownTokenizers, kind: str) -> NumpyEngine:
    """The numpy engine of a tokenizer of each kind."""
    return known_tokenizers[kind].make_numpy_engine()


@pytest.fixture
def reference(known_tokenizers: KnownTokenizers, kind: str) -> ReferenceEngine:
    """The reference of a tokenizer of each kind."""
    return known_tokenizers[kind].reference
