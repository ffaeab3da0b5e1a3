"""The key `pbin` of nanoset.yaml, a list of datasets. Its former name was `packed`.

For example, `pbin: [web]` writes the corpus `web` as a file from which Modalities trains.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from nanoset_core.errors import ConfigError, FormerNameWarning, raised
from nanoset_core.outputs.names import check_corpora
from nanoset_core.untrusted import visible

KEY = "pbin"
FORMER_KEY = "packed"


def pbin_errors(
    file: Path, names: tuple[str, ...], former_names: tuple[str, ...]
) -> Iterator[ConfigError]:
    """Yield an error for each mistake in the key `pbin` of nanoset.yaml, formerly `packed`.

        pbin: [web, code]                  fine: a .pbin file for Modalities is made of each dataset
        pbin: [web], packed: [code]        an error: only one of the keys may be used
        pbin: [web, web]                   an error: a name twice

    Args:
        file: Path of nanoset.yaml.
        names: Names in the list `pbin`.
        former_names: Names in the list `packed`.
    """
    if names and former_names:
        yield ConfigError(
            f"`{FORMER_KEY}` is the former name of `{KEY}`, which is set, too",
            where=f"{file}: {FORMER_KEY}",
            remedy=f"move its names to `{KEY}`, and remove it",
        )
    names_by_key = {KEY: names, FORMER_KEY: former_names}
    for key, names_in_list in names_by_key.items():
        if names_in_list:
            check_names = partial(check_corpora, have_weights=False)
            yield from raised(check_names, names_in_list, f"{file}: {key}")


def warn_of_former_key(file: Path) -> None:
    """Warn that a nanoset.yaml uses `packed`, the former name of `pbin`, once in each process.

    Args:
        file: Path of nanoset.yaml.
    """
    text = f"{file}: `{FORMER_KEY}` is the former name of `{KEY}`: rename the key"
    warnings.warn(visible(text), FormerNameWarning, stacklevel=2)
