"""What engines were found to be with a tokenizer, kept in files so that canary texts are compared once, not each time.

A proof belongs to the bytes of a `tokenizer.json`, an engine and its version, the reference's version, the machine's
kind and this very code. A file that is not just that, whole, is passed over: the canary texts are compared again.
"""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unicodedata import unidata_version

import numpy as np

from nanoset_core.tokenization.bpe.inert import Form
from nanoset_core.tokenization.bpe.units import trusts_python
from nanoset_core.tokenization.cache import code_digest, read_checked, write_checked
from nanoset_core.tokenization.files.definition import define, installed_version


@dataclass(frozen=True, slots=True)
class Proof:
    """What comparing canary texts showed."""

    refusal: str = ""
    """Why the engine is not to be used with the tokenizer; empty where it is."""
    is_wrong: bool = False
    """Whether that is because it gave other tokens than the reference."""
    left_tokens: tuple[str, ...] = ()
    """Added tokens: text that holds one is left to the reference."""
    left_points: tuple[int, ...] = ()
    """Where runs of code points begin and end, in turn: text that holds one of these is left to the reference."""
    form: Form | None = None
    """The normal form to which the reference brings text before the engine sees it."""
    changing_points: tuple[int, ...] = ()
    """The same of code points that the form may change."""
    raw_tokens: tuple[str, ...] = ()
    """Added tokens that are looked for before that."""
    trusts_python: bool = False
    """Whether the form leaves alone what Python calls normal."""
    knowledge: str = ""
    """Hex sha256 of the file of what the engine had learnt about the tokenizer, where there is one."""


class Proofs:
    """The proofs of one tokenizer, in a folder or, without one, nowhere."""

    def __init__(self, tokenizer_json: str | os.PathLike[str] | None, folder: Path | None) -> None:
        """`tokenizer_json` None: what holds for every tokenizer."""
        self._folder = folder
        self._tokenizer = "" if tokenizer_json is None else define(tokenizer_json).identity

    def recall(self, engine: str, engine_version: str) -> Proof | None:
        """What an earlier start found; None where that is not known, or its file is damaged."""
        key = self._key(engine, engine_version)
        if self._folder is None:
            return None
        value = read_checked(self._path(engine, key), key)
        try:
            return None if value is None else Proof(**{name: _frozen(entry) for name, entry in value.items()})
        except (TypeError, AttributeError):
            return None

    def remember(self, engine: str, engine_version: str, proof: Proof) -> None:
        """Keep what was found for the next start; where that cannot be done, that takes longer and that is all."""
        if self._folder is not None:
            key = self._key(engine, engine_version)
            write_checked(self._path(engine, key), key, asdict(proof))

    def _key(self, engine: str, engine_version: str) -> str:
        known = (self._tokenizer, engine, engine_version, version("tokenizers"), *_surroundings())
        return hashlib.sha256("\n".join(known).encode()).hexdigest()

    def _path(self, engine: str, key: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{key[:32]}-{engine}.json"


@cache
def trusts_python_with(form: Form, folder: Path | None) -> bool:
    """`trusts_python` of the reference's normal form, found out once for all tokenizers that have it."""
    proofs = Proofs(None, folder)
    proof = proofs.recall(form, unidata_version)
    if proof is None:
        from tokenizers import normalizers

        proof = Proof(form=form, trusts_python=trusts_python(getattr(normalizers, form)().normalize_str, form))
        proofs.remember(form, unidata_version, proof)
    return proof.trusts_python


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@cache
def _surroundings() -> tuple[str, ...]:
    """What else decides whether an engine is right: this code, and what it runs on."""
    return code_digest(), unidata_version, np.__version__, platform.machine(), installed_version("nanoset-platform")
