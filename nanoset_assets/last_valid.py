"""Keep a code location loaded while its nanoset.yaml has a mistake.

A code location may also contain another team's assets, and every run loads all definitions again.
So a mistake in nanoset.yaml must not keep definitions from loading: they are made from the last
version of the file that was valid. Only the steps and sensors of this project read the file itself,
and fail with its ConfigError until it is corrected.

The last valid version is stored in two places:

- With each run that Dagster launches, as *reconstruction metadata* of the code location. The
  processes of a run, on any machine, load what the code server had loaded when it launched the run.
- In a file `.nanoset/last_valid/<name>-<hash>.yaml` next to nanoset.yaml, or below DAGSTER_HOME if
  that folder cannot be written. It is read when a code server starts or reloads.
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
"""Folder of the copies, relative to that of nanoset.yaml or to DAGSTER_HOME."""
_VALIDATION = "DAGSTER_IS_DEFS_VALIDATION_CLI"
"""Environment variable that `dg check defs` and `dagster definitions validate` set.

These commands exist to report a mistake, so they get no older version.
"""
_logger = logging.getLogger(__name__)


def definitions_from_file(
    path: str | os.PathLike[str], make: Callable[[ProjectConfig], dg.Definitions]
) -> dg.Definitions:
    """Return the definitions of a nanoset.yaml, or of its last valid version.

    A run uses the text that the code server, which launched it, had read. The file may have changed
    since.

    Args:
        path: The nanoset.yaml.
        make: Makes the definitions of a configuration. An error that it raises makes the file
            invalid, too.

    Returns:
        What `make` returns. If the file has mistakes, a warning is logged.

    Raises:
        ConfigError: The file has mistakes, and either no earlier version is known or definitions
            are being validated.
        MissingError: The file does not exist, and no earlier version is known.
    """
    file = _absolute(path)
    # In a process of a run, use the text that Dagster stored with the run.
    text_of_code_server = remembered_for_run(_key(file))
    if text_of_code_server is not None:
        return make(_parsed(text_of_code_server, file))

    try:
        config = load_config(file)
        definitions = make(config)
    except (NanosetError, dg.DagsterError) as error:
        last_valid_text = _last_valid_text(file)
        if last_valid_text is None:
            raise
        return _definitions_of_last_version(file, last_valid_text, error, make)

    # Keep the text as the last valid version, and for the runs that use these definitions. It is
    # None if the file was changed after it was loaded.
    text = _text_of(file, config)
    if text is not None:
        _store_copy(file, text)
        remember_for_runs(_key(file), text)
    return definitions


def _definitions_of_last_version(
    file: Path, text: str, error: Exception, make: Callable[[ProjectConfig], dg.Definitions]
) -> dg.Definitions:
    """Return the definitions of the last valid version of a nanoset.yaml, and log a warning.

    Args:
        file: Absolute path of the nanoset.yaml.
        text: Its last valid text.
        error: What is wrong with its present text.
        make: Makes the definitions of a configuration.
    """
    definitions = make(_parsed(text, file))
    warning = f"{file} is not loaded; its last valid version is used instead:\n{error}"
    _logger.warning(visible(Multiline(warning)))
    remember_for_runs(_key(file), text)
    return definitions


def check_file(path: str | os.PathLike[str]) -> None:
    """Check that definitions can be made from a nanoset.yaml, or from its last valid version.

    Args:
        path: The nanoset.yaml.

    Raises:
        ConfigError: The file has mistakes, and either no earlier version is known or definitions
            are being validated.
        MissingError: The file does not exist, and no earlier version is known.
    """
    if is_run_loading():
        return  # a run uses the text that its code server had read, not the file
    file = _absolute(path)
    try:
        load_config(file)
    except NanosetError:
        # The definitions are made from the last valid version, if one may be used: a command that
        # validates definitions has to report the mistakes.
        if _last_valid_text(file) is None:
            raise


def _last_valid_text(file: Path) -> str | None:
    """Return the last valid text of a nanoset.yaml, or None if it is unknown or must not be used.

    It must not be used by a command that only checks definitions, to report the mistakes in them.
    """
    is_validation = _VALIDATION in os.environ
    return None if is_validation else _text_of_copy(file)


def _absolute(path: str | os.PathLike[str]) -> Path:
    """Return an absolute path, without resolving links.

    The links of a Kubernetes ConfigMap point to another folder after each change.
    """
    return Path(os.path.abspath(Path(path).expanduser()))


def _key(file: Path) -> str:
    """Return the key under which Dagster stores the text of a file with each run."""
    return f"nanoset/config/{file}"


def _parsed(text: str, file: Path) -> ProjectConfig:
    """Return the configuration in a text that was read from a file.

    Raises:
        ConfigError: The text has mistakes.
    """
    resolved = file.resolve()
    return config_from(parse_yaml(text, resolved, remedy="correct the line"), resolved, text)


def _text_of(file: Path, config: ProjectConfig) -> str | None:
    """Return the text that a configuration was read from, or None if the file has changed."""
    try:
        text = file.read_bytes().decode("utf-8")
        return text if _parsed(text, file) == config else None
    except (OSError, UnicodeDecodeError, NanosetError):
        return None


def _copies(file: Path) -> list[Path]:
    """Return the paths at which the copy may be stored, in order: the first that can be written.

    Args:
        file: Absolute path of a nanoset.yaml.

    Returns:
        A path next to the file, such as `.nanoset/last_valid/nanoset-1f2e3d4c5b6a.yaml`; and one
        below DAGSTER_HOME, if that is set.
    """
    path_hash = hashlib.sha256(os.fsencode(file)).hexdigest()[:12]
    name = f"{file.stem}-{path_hash}.yaml"
    copies = [file.parent / _FOLDER / name]
    home = os.environ.get("DAGSTER_HOME")
    if home:
        copies.append(Path(home).expanduser() / _FOLDER / name)
    return copies


def _store_copy(file: Path, text: str) -> None:
    """Store a copy of a valid nanoset.yaml, or log a warning if that is not possible.

    Args:
        file: Absolute path of the nanoset.yaml. The copy is stored in its folder, or else below
            DAGSTER_HOME.
        text: The content of the file.
    """
    data = text.encode("utf-8")
    copy_paths = _copies(file)  # next to the file, or else below DAGSTER_HOME
    failures: list[str] = []
    for number, path in enumerate(copy_paths):
        try:
            _write_copy_if_changed(path, data, file)
        except OSError as error:
            failures.append(f"{path.parent}: {error.strerror}")
            continue
        # Delete copies at later paths: `_text_of_copy` prefers those, and they are outdated.
        for outdated_path in copy_paths[number + 1 :]:
            outdated_path.unlink(missing_ok=True)
        return
    _logger.warning(
        f"no copy of {file} could be stored: if the file has a mistake when this code location is "
        f"loaded again, loading fails ({'; '.join(failures)})"
    )


def _write_copy_if_changed(copy: Path, data: bytes, original: Path) -> None:
    """Write a copy of a file, unless it has these bytes already.

    Args:
        copy: Where the copy is stored.
        data: The content of the copy.
        original: The file, whose permissions the copy gets.
    """
    is_stored = copy.is_file() and copy.read_bytes() == data
    if not is_stored:
        _write_copy(copy, data, original)


def _write_copy(copy: Path, data: bytes, original: Path) -> None:
    """Write a copy of a file with the permissions of the original.

    Args:
        copy: Where the copy is stored. Its folder is created, and excluded from git.
        data: The content of the copy.
        original: The file whose permissions the copy gets.
    """
    copy.parent.mkdir(parents=True, exist_ok=True)
    (copy.parent / ".gitignore").write_text("*\n", encoding="utf-8")
    mode = original.stat().st_mode & 0o777
    with atomic_file(copy) as target:
        os.fchmod(target.fileno(), mode)
        target.write(data)


def _text_of_copy(file: Path) -> str | None:
    """Return the text of the last valid version, or None if no readable copy exists.

    Args:
        file: Absolute path of the nanoset.yaml, which decides where its copies are.
    """
    # A copy at a later path is newer: it was stored when the earlier path could not be written.
    for copy in reversed(_copies(file)):
        try:
            text = copy.read_bytes().decode("utf-8")
            _parsed(text, file)
        except (OSError, UnicodeDecodeError, NanosetError):
            continue
        return text
    return None
