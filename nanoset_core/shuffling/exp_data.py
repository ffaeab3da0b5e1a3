"""DCLM's record of a data set, completed with what a shuffle made of it."""

from __future__ import annotations

from pathlib import Path

import orjson

from nanoset_core.errors import FormatError, MissingError
from nanoset_core.shuffling.webdataset import EXP_DATA_NAME, MANIFEST_NAME
from nanoset_core.storage.atomic import write_atomic


def complete_exp_data(folder: Path, given: Path | None, target: Path) -> None:
    """Write ``given``, a JSON object, to ``target`` with where the tars lie, and what it does not say yet.

    As tokshuf-rust's ``--input-json`` and ``--output-json``: ``dataset_url``, ``manifest_url`` and ``tokenized`` are
    set; ``tokenizer``, ``num_tokens``, ``size`` and our other counts are added where absent. Raises MissingError and
    FormatError for ``given``.
    """
    value: object = {}
    if given is not None:
        try:
            value = orjson.loads(given.read_bytes())
        except FileNotFoundError as error:
            raise MissingError("no such record", where=given, remedy="correct --input-json") from error
        except ValueError as error:
            raise FormatError("not JSON", where=given, found=str(error), remedy="mend it") from error
    if not isinstance(value, dict):
        raise FormatError("not a record", where=given, found=type(value).__name__, expected="a JSON object")
    made = orjson.loads((folder / EXP_DATA_NAME).read_bytes())
    url = f"{folder.absolute().as_posix()}/"
    set_here = {"dataset_url": url, "manifest_url": f"{url}{MANIFEST_NAME}", "tokenized": True}
    write_atomic(target, orjson.dumps(made | value | set_here, option=orjson.OPT_INDENT_2) + b"\n")
