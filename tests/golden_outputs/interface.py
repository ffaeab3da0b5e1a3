"""What people type and script against, as plain values: commands and options, keys of a
nanoset.yaml, public names.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from golden_outputs.projects import GOLDEN

import nanoset_core
from nanoset_core.cli import nanoset
from nanoset_core.project.project import Project

FILE = GOLDEN / "interface.json"
FULL = GOLDEN / "full.yaml"
LEAST = (
    'raw: raw\nroot: data\ntokenizer: {path: t.json, eod: "</s>"}\nnanosets: {one: {blend: a, '
    "sequence_length: 8}}\n"
)
LEAST += "webdatasets: {two: {corpora: [a]}}\n"
IMPORTED_BY_SCRIPTS = (
    "nanoset_core.errors.NanosetError",
    "nanoset_core.loading.samplers.CyclicSampler",
    "nanoset_core.loading.samplers.PretrainingSampler",
    "nanoset_core.sampling.blending.build_exhaustive_blending_indices",
    "nanoset_core.sampling.plan.separate_last_epoch",
    "nanoset_core.sampling.presets.get_preset",
    "nanoset_core.sampling.splits.parse_split",
    "nanoset_core.sampling.splits.rows_by_bookends",
    "nanoset_core.sampling.splits.rows_by_cuts",
    "nanoset_core.sampling.splits.split_bookends",
    "nanoset_core.loading.shard_reader.ShardReader",
)
IMPORTED_MODULES = ("nanoset_core.sampling.document_index", "nanoset_core.sampling.shuffle_index")


def interface(folder: Path) -> dict[str, Any]:
    """All of it; `folder` is an empty one for two configurations."""
    scripted = {
        name: getattr(import_module(name.rpartition(".")[0]), name.rpartition(".")[2])
        for name in IMPORTED_BY_SCRIPTS
    }
    public = {name: getattr(nanoset_core, name) for name in nanoset_core.__all__}
    return {
        "commands": _commands(nanoset, "nanoset"),
        "configuration": _configurations(folder),
        "modules": {name: _functions(import_module(name)) for name in IMPORTED_MODULES},
        "public": {name: _signatures(value) for name, value in {**scripted, **public}.items()},
    }


def _commands(command: click.Command, path: str) -> dict[str, Any]:
    context = click.Context(command)
    found = {path: {", ".join(sorted(param.opts)): _option(param) for param in command.params}}
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found |= _commands(command.get_command(context, name), f"{path} {name}")
    return found


def _option(param: click.Parameter) -> dict[str, Any]:
    """Without what may become stricter or clearer: ranges, metavars, help."""
    choices = list(param.type.choices) if isinstance(param.type, click.Choice) else None
    default = param.to_info_dict()["default"]
    return {
        "flag": bool(getattr(param, "is_flag", False)),
        "many": bool(param.multiple if isinstance(param, click.Option) else param.nargs == -1),
        "required": param.required,
        "choices": choices,
        "default": None
        if default in (None, False, ()) or "UNSET" in repr(default)
        else str(default),
    }


def _configurations(folder: Path) -> dict[str, Any]:
    found = {}
    for name, text in (("full", FULL.read_text()), ("least", LEAST)):
        (folder / f"{name}.yaml").write_text(text)
        found[name] = _plain(Project.open(folder / f"{name}.yaml").config)
        del found[name]["file"]
    return found


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {
            field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value


def _functions(module: Any) -> dict[str, Any]:
    own = (
        entry
        for entry in vars(module).items()
        if getattr(entry[1], "__module__", None) == module.__name__
    )
    return {
        name: _signatures(value)
        for name, value in own
        if callable(value) and not name.startswith("_")
    }


def _signatures(value: Any) -> dict[str, str | None]:
    """Name → parameters, without their types, of a function, or of a class and its public methods."""
    if not inspect.isclass(value):
        return {value.__name__: _parameters(value)}
    ours = (
        base
        for base in reversed(value.__mro__)
        if base.__module__.startswith(nanoset_core.__name__)
    )
    members = {
        name: getattr(value, name)
        for base in ours
        for name in vars(base)
        if not name.startswith("_")
    }
    called = {
        name: _parameters(member) if inspect.isroutine(member) else None
        for name, member in members.items()
    }
    return {value.__name__: _parameters(value)} | called


def _parameters(value: Any) -> str:
    found = inspect.signature(value)
    plain = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in found.parameters.values()
    ]
    return str(found.replace(parameters=plain, return_annotation=inspect.Signature.empty))
