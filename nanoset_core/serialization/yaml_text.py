"""YAML files → plain values, and the lines on which their keys are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError, combined

CONFIG_FILE = "nanoset.yaml"
"""Name of a project's settings."""
_ERRORS = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What PyYAML raises, besides its own errors, for a tag at a value of another kind."""


@dataclass(frozen=True, slots=True)
class YamlFile:
    """The content of a YAML file."""

    file: Path
    text: str
    value: Any
    """Plain values; not to be changed."""

    def located(self, errors: Iterable[ConfigError]) -> ConfigError:
        """Return errors about keys (where: "file: key") as one, in the order of their lines ("file:line: key")."""
        import yaml

        root, prefix = yaml.compose(self.text), f"{self.file}: "
        found = []
        for error in errors:
            line, where = 0, error.where or ""
            if where.startswith(prefix):
                line = _line(root, where.removeprefix(prefix))
                where = f"{self.file}:{line}: {where.removeprefix(prefix)}"
            found.append((line, error.at(where)))
        return combined([error for _, error in sorted(found, key=lambda pair: pair[0])], self.file)


def read_yaml(file: Path, *, remedy: str) -> YamlFile:
    """Read a YAML file.

    Raises:
        OSError: it cannot be read.
        ConfigError: it is not UTF-8, not YAML, has a key twice, or is no regular file.
    """
    import yaml

    if file.exists() and not (file.is_file() or file.is_dir()):
        raise ConfigError("not a regular file", where=file, found="a pipe or a device", expected="YAML", remedy=remedy)
    try:
        text = file.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError("not UTF-8 text", where=file, found=str(error), remedy="save it as UTF-8") from error
    try:
        return YamlFile(file, text, _parsed(text))
    except (yaml.YAMLError, *_ERRORS) as error:
        raise ConfigError("not YAML", where=file, found=str(error)[:1000], remedy=remedy) from error


@lru_cache(maxsize=2)
def _parsed(text: str) -> Any:
    """The value of a text; the last ones are kept, since each run and tick of Dagster reads the same settings."""
    return _loader()(text).get_single_data()


@lru_cache(maxsize=1)
def _loader() -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            seen: set[str] = set()
            for key_node, _ in node.value:
                key = str(key_node.value)
                if key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key!r} stands twice", key_node.start_mark
                    )
                seen.add(key)
            return super().construct_mapping(node, deep)

    return Loader


def _line(node: Any, path: str) -> int:
    """The line, from 1, of a key such as `nanosets.web.phases[1].until`; of the deepest key there that it is below."""
    line = node.start_mark.line
    while path and not isinstance(node.value, str):
        if path.startswith("["):
            number, _, path = path[1:].partition("]")
            if not int(number) < len(node.value):
                break
            node = node.value[int(number)]
            line = node.start_mark.line
        else:
            pairs = [(str(key.value), key, value) for key, value in node.value if isinstance(key.value, str)]
            fitting = [pair for pair in pairs if path == pair[0] or path.startswith((f"{pair[0]}.", f"{pair[0]}["))]
            if not fitting:
                break
            name, key_node, node = max(fitting, key=lambda pair: len(pair[0]))
            line, path = key_node.start_mark.line, path.removeprefix(name)
        path = path.removeprefix(".")
    return int(line) + 1
