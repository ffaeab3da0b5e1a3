"""What users type and call in scripts, as JSON values.

These are the commands with their options, the keys of a nanoset.yaml, and public names with their
parameters.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import click
from golden_outputs.projects import GOLDEN

import nanoset_core
from nanoset_core.cli import nanoset
from nanoset_core.project.project import Project

FILE = GOLDEN / "interface.json"
FULL_SETTINGS = GOLDEN / "full.yaml"
"""A nanoset.yaml with every key."""
SHORT_SETTINGS = """\
raw: raw
root: data
tokenizer: {path: t.json, eod: "</s>"}
nanosets: {one: {blend: a, sequence_length: 8}}
webdatasets: {two: {corpora: [a]}}
"""
"""A nanoset.yaml with the required keys only, so that defaults are recorded."""
NAMES_IN_SCRIPTS = (
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
"""Names that scripts of users import, besides those of `nanoset_core` itself."""
MODULES_IN_SCRIPTS = (
    "nanoset_core.sampling.document_index",
    "nanoset_core.sampling.shuffle_index",
)
"""Modules of which scripts of users call all functions."""


def describe_interface(folder: Path) -> dict[str, Any]:
    """Describe the commands, the settings, and the public names.

    Args:
        folder: An empty folder for two files of settings.
    """
    return {
        "commands": describe_commands(nanoset, "nanoset"),
        "configuration": describe_settings(folder),
        "modules": describe_modules(),
        "public": describe_public_names(),
    }


def describe_commands(command: click.Command, path: str) -> dict[str, Any]:
    """Describe the options of a command and of all commands below it, by the words that run each."""
    options = {}
    for parameter in command.params:
        spellings = ", ".join(sorted(parameter.opts))
        options[spellings] = describe_option(parameter)

    options_by_command = {path: options}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            subcommand = command.get_command(context, name)
            options_by_command |= describe_commands(subcommand, f"{path} {name}")
    return options_by_command


def describe_option(parameter: click.Parameter) -> dict[str, Any]:
    """Describe an option or argument without what may become stricter or clearer.

    This is its range, its name for the value, and its help.
    """
    choices = None
    if isinstance(parameter.type, click.Choice):
        choices = list(parameter.type.choices)
    if isinstance(parameter, click.Option):
        takes_many = parameter.multiple
    else:
        takes_many = parameter.nargs == -1
    # Versions of click differ in how they say that there is no default.
    default = parameter.to_info_dict()["default"]
    has_default = default not in (None, False, ()) and "UNSET" not in repr(default)

    return {
        "flag": bool(getattr(parameter, "is_flag", False)),
        "many": bool(takes_many),
        "required": parameter.required,
        "choices": choices,
        "default": str(default) if has_default else None,
    }


def describe_settings(folder: Path) -> dict[str, Any]:
    """Describe how the full and the short settings are read, with the default of each missing key."""
    texts = {"full": FULL_SETTINGS.read_text(), "least": SHORT_SETTINGS}
    settings_by_name = {}
    for name, text in texts.items():
        file = folder / f"{name}.yaml"
        file.write_text(text)
        settings = plain_value(Project.open(file).config)
        del settings["file"]
        settings_by_name[name] = settings
    return settings_by_name


def plain_value(value: Any) -> Any:
    """Return settings as values of JSON."""
    if dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: plain_value(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {key: plain_value(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(entry) for entry in value]
    return value


def describe_modules() -> dict[str, Any]:
    """Describe the public functions and classes of the modules whose functions scripts call."""
    return {name: describe_module(import_module(name)) for name in MODULES_IN_SCRIPTS}


def describe_module(module: ModuleType) -> dict[str, Any]:
    """Describe the public functions and classes that a module defines."""
    signatures = {}
    for name, value in vars(module).items():
        is_imported = getattr(value, "__module__", None) != module.__name__
        if callable(value) and not name.startswith("_") and not is_imported:
            signatures[name] = describe_signatures(value)
    return signatures


def describe_public_names() -> dict[str, Any]:
    """Describe the functions and classes that scripts import by name."""
    signatures = {}
    for path in NAMES_IN_SCRIPTS:
        module, _, name = path.rpartition(".")
        signatures[path] = describe_signatures(getattr(import_module(module), name))
    for name in nanoset_core.__all__:
        signatures[name] = describe_signatures(getattr(nanoset_core, name))
    return signatures


def describe_signatures(value: Any) -> dict[str, str | None]:
    """Return the parameters of a function, or of a class and its public methods, by name.

    An attribute of a class that is not a method has None.
    """
    signatures: dict[str, str | None] = {value.__name__: parameters_of(value)}
    if not inspect.isclass(value):
        return signatures

    for base in reversed(value.__mro__):
        # Methods of built-in and other libraries' classes are not ours.
        if not base.__module__.startswith(nanoset_core.__name__):
            continue
        for name in vars(base):
            if name.startswith("_"):
                continue
            member = getattr(value, name)
            signatures[name] = parameters_of(member) if inspect.isroutine(member) else None
    return signatures


def parameters_of(function: Any) -> str:
    """Return the parameters of a function with their defaults, but without their types."""
    signature = inspect.signature(function)
    parameters = []
    for parameter in signature.parameters.values():
        parameters.append(parameter.replace(annotation=inspect.Parameter.empty))
    bare_signature = signature.replace(
        parameters=parameters, return_annotation=inspect.Signature.empty
    )
    return str(bare_signature)
