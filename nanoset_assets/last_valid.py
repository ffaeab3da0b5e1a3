"""Definitions of the last nanoset.yaml that loaded, for as long as the file has a mistake.

A mistake in nanoset.yaml must not stop the code location: it may hold other people's assets, and
every run loads all definitions again in a process of its own. So definitions are made from the last
configuration that loaded. The steps and ticks of this project read the file itself, and fail with
the ConfigError until it is corrected.

There are two copies of the text:

- Dagster stores one with each run that it launches (as *reconstruction metadata* of the code location). The run's
  processes load what the code server had loaded when it launched the run, on any machine.
- A file `.nanoset/last_valid/<name>-<hash>.yaml` next to nanoset.yaml, or below DAGSTER_HOME if that folder cannot be
  written, is read when a code server starts or reloads.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

import dagster as dg

from nanoset_assets.dagster_compat import is_run_loading, remember_for_runs, remembered_for_run
from nanoset_core.errors import NanosetError
from nanoset_core.project.settings import ProjectConfig, config_from, load_config
from nanoset_core.records.yaml_text import parse_yaml
from nanoset_core.storage.atomic import atomic_file
from nanoset_core.untrusted import Multiline, visible

_FOLDER = Path(".nanoset", "last_valid")
_VALIDATION = "DAGSTER_IS_DEFS_VALIDATION_CLI"
"""Set by `dg check defs` and `dagster definitions validate`, which are to report the mistake."""
_logger = logging.getLogger(__name__)


def definitions_from_file(
    path: str | os.PathLike[str], make: Callable[[ProjectConfig], dg.Definitions]
) -> dg.Definitions:
    """Return the definitions of a nanoset.yaml, or of its last version that loaded.

    Args:
        path: The nanoset.yaml.
        make: Makes the definitions of a configuration; what it raises is a mistake in nanoset.yaml
            too.

    Raises:
        ConfigError: The file has mistakes, and either no earlier version is known or definitions
            are being validated.
        MissingError: There is no such file, and no earlier version is known.
    """
    file = _absolute(path)

    # In a process of a run: what its code server had loaded, whatever the file says by now.
    text = remembered_for_run(_key(file))
    if text is not None:
        return make(_parsed(text, file))

    try:
        config = load_config(file)
        definitions = make(config)
    except (NanosetError, dg.DagsterError) as error:
        last = None if _is_validation() else _last_text(file)
        if last is None:
            raise
        definitions = make(_parsed(last, file))
        what = f"{file} is not loaded, its last version that could be is used instead:\n{error}"
        _logger.warning(visible(Multiline(what)))
        remember_for_runs(_key(file), last)
        return definitions

    text = _text_of(file, config)
    if text is not None:
        _store(file, text)
        remember_for_runs(_key(file), text)
    return definitions


def check_file(path: str | os.PathLike[str]) -> None:
    """Check that definitions can be made of a nanoset.yaml or of its last valid version.

    Raises:
        ConfigError, MissingError: see `definitions_from_file`.
    """
    if is_run_loading():  # `definitions_from_file` knows what the code server had loaded
        return
    file = _absolute(path)
    try:
        load_config(file)
    except NanosetError:
        if _is_validation() or _last_text(file) is None:
            raise


def _is_validation() -> bool:
    return _VALIDATION in os.environ


def _absolute(path: str | os.PathLike[str]) -> Path:
    """Return an absolute path, without resolving links.

    The links of a Kubernetes ConfigMap point to another folder after each change.
    """
    return Path(os.path.abspath(Path(path).expanduser()))


def _key(file: Path) -> str:
    """Return what the text of a file is remembered by in a code location."""
    return f"nanoset/config/{file}"


def _parsed(text: str, file: Path) -> ProjectConfig:
    resolved = file.resolve()
    return config_from(parse_yaml(text, resolved, remedy="correct the line"), resolved, text)


def _text_of(file: Path, config: ProjectConfig) -> str | None:
    """Return the text that a configuration was read from; None if the file was changed since."""
    try:
        text = file.read_bytes().decode("utf-8")
        return text if _parsed(text, file) == config else None
    except (OSError, UnicodeDecodeError, NanosetError):
        return None


def _copies(file: Path) -> list[Path]:
    """Return where the copy may be; a later place is used if an earlier one cannot be written."""
    path_hash = hashlib.sha256(os.fsencode(file)).hexdigest()[:12]
    name = f"{file.stem}-{path_hash}.yaml"
    copies = [file.parent / _FOLDER / name]
    home = os.environ.get("DAGSTER_HOME")
    if home:
        copies.append(Path(home).expanduser() / _FOLDER / name)
    return copies


def _store(file: Path, text: str) -> None:
    """Store a copy of a text that loaded; log a warning if it cannot be written anywhere."""
    data = text.encode("utf-8")
    copies = _copies(file)
    refusals: list[str] = []
    for number, copy in enumerate(copies):
        try:
            if not copy.is_file() or copy.read_bytes() != data:
                _write_copy(copy, data, file)
        except OSError as error:
            refusals.append(f"{copy.parent}: {error.strerror}")
            continue
        # An older copy in a later place would be taken for the newer one.
        for later in copies[number + 1 :]:
            later.unlink(missing_ok=True)
        return
    _logger.warning(
        f"no copy of {file} could be stored, so a mistake in it will stop this code location when it is loaded again "
        f"({'; '.join(refusals)})"
    )


def _write_copy(copy: Path, data: bytes, original: Path) -> None:
    """Write a copy of a file with the permissions of the original."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    (copy.parent / ".gitignore").write_text("*\n", encoding="utf-8")
    mode = original.stat().st_mode & 0o777
    with atomic_file(copy) as target:
        os.fchmod(target.fileno(), mode)
        target.write(data)


def _last_text(file: Path) -> str | None:
    """Return the text of the last version that loaded; None if there is none that can be read."""
    for copy in reversed(_copies(file)):
        try:
            text = copy.read_bytes().decode("utf-8")
            _parsed(text, file)
        except (OSError, UnicodeDecodeError, NanosetError):
            continue
        return text
    return None
