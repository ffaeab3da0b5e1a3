"""A project: its configuration, its outputs, and who listens to its progress."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from nanoset_core.config import NanosetSpec, ProjectConfig, WebdatasetSpec, load_config
from nanoset_core.errors import ConfigError
from nanoset_core.manifest import OutputRoot
from nanoset_core.progress import Listener, silent
from nanoset_core.tokenization.tokenizer import TokenizerFacts, token_id, tokenizer_facts
from nanoset_core.workers import Executor


@dataclass(frozen=True, slots=True)
class Project:
    """What every stage of the pipeline works on."""

    config: ProjectConfig
    listener: Listener = silent
    """hears how far long work has come"""
    rebuild: bool = False
    """make outputs again even where they are complete"""

    @staticmethod
    def open(config_file: str | os.PathLike[str], listener: Listener = silent, *, rebuild: bool = False) -> Project:
        """Read nanoset.yaml; see load_config for what it raises."""
        return Project(load_config(config_file), listener, rebuild)

    @property
    def outputs(self) -> OutputRoot:
        return OutputRoot(self.config.root_folder, self.rebuild, self.config.root_place)

    @property
    def executor(self) -> Executor | None:
        """Where work is spread, or None for processes of this machine; no output depends on it."""
        spec = self.config.executor
        if spec.kind == "processes" or spec.address is None:
            return None
        from nanoset_core.cluster import DaskExecutor

        return DaskExecutor(spec.address, self.config.root_folder, f"{self.config.file}: executor.address")

    @property
    def tokenizer(self) -> TokenizerFacts:
        return tokenizer_facts(self.config.tokenizer_file)

    @property
    def eod(self) -> int | None:
        """Id of the end-of-document token, where one is named.

        Raises:
            ConfigError: the tokenizer has no such token.
        """
        return self._special(self.config.tokenizer.eod, "eod")

    @property
    def bos(self) -> int | None:
        """Id of the begin-of-document token, where one is named; raises as `eod`."""
        return self._special(self.config.tokenizer.bos, "bos")

    @property
    def pad(self) -> int | None:
        """Id of the padding token, where one is named; raises as `eod`."""
        return self._special(self.config.tokenizer.pad, "pad")

    def _special(self, token: str | None, key: str) -> int | None:
        if token is None:
            return None
        return token_id(self.config.tokenizer_file, token, f"{self.config.file}: tokenizer.{key}")

    def nanoset(self, name: str) -> NanosetSpec:
        """A nanoset's settings; ConfigError when there is none of that name."""
        if name not in self.config.nanosets:
            raise self._no_such(name, "nanosets", self.config.nanosets)
        return self.config.nanosets[name]

    def webdataset(self, name: str) -> WebdatasetSpec:
        """A webdataset's settings; ConfigError when there is none of that name."""
        if name not in self.config.webdatasets:
            raise self._no_such(name, "webdatasets", self.config.webdatasets)
        return self.config.webdatasets[name]

    def _no_such(self, name: str, key: str, known: Iterable[str]) -> ConfigError:
        return ConfigError(
            "no such name",
            where=f"{self.config.file}: {key}",
            found=repr(name),
            expected=f"one of {', '.join(known) or 'none: it is empty'}",
        )
