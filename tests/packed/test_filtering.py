import numpy as np
import pytest

from nanoset_core.errors import ConfigError, InputError, MissingError
from nanoset_core.packed import DocumentFilter, PackedDataset, write_packed


@pytest.fixture
def dataset(tmp_path):
    write_packed(tmp_path / "x.pbin", [range(n) for n in (3, 1, 4, 1, 5, 9, 2, 6)], token_bytes=1)
    return PackedDataset(tmp_path / "x.pbin")


@pytest.mark.parametrize(
    ("conditions", "kept"),
    [
        ({"min_tokens": 4}, [2, 4, 5, 7]),
        ({"max_tokens": 1}, [1, 3]),
        ({"min_tokens": 2, "max_tokens": 4}, [0, 2, 6]),
        ({"every": 3}, [0, 3, 6]),
        ({"every": 1}, list(range(8))),
        ({"every": 2, "min_tokens": 3}, [0, 2, 4]),
        ({"max_tokens": 0}, []),
    ],
)
def test_conditions(dataset, conditions, kept):
    assert np.flatnonzero(DocumentFilter(**conditions).mask(dataset)).tolist() == kept


def test_lists(dataset, tmp_path):
    (tmp_path / "list").write_text("7\n0\n\n 3\r\n0")
    assert np.flatnonzero(DocumentFilter(keep=tmp_path / "list").mask(dataset)).tolist() == [0, 3, 7]
    assert np.flatnonzero(DocumentFilter(drop=tmp_path / "list").mask(dataset)).tolist() == [1, 2, 4, 5, 6]
    both = DocumentFilter(keep=tmp_path / "list", drop=tmp_path / "list").mask(dataset)
    assert not both.any()
    (tmp_path / "empty").write_text("")
    assert DocumentFilter(drop=tmp_path / "empty").mask(dataset).all()


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("1\nx\n", InputError, "holds something that is no number"),
        ("1.5", InputError, "holds something that is no number"),
        ("99999999999999999999", InputError, "holds something that is no number"),
        ("1\n8\n", ConfigError, "names a document that is not there\n  found: 8\n  expected: 0 to 7"),
        ("-1", ConfigError, "names a document that is not there"),
    ],
)
def test_lists_that_cannot_be(dataset, tmp_path, text, error, message):
    (tmp_path / "list").write_text(text)
    with pytest.raises(error, match=message):
        DocumentFilter(keep=tmp_path / "list").mask(dataset)


def test_what_is_missing(dataset, tmp_path):
    with pytest.raises(ConfigError, match="nothing says which documents to keep"):
        DocumentFilter().mask(dataset)
    with pytest.raises(MissingError, match="no such list"):
        DocumentFilter(drop=tmp_path / "none").mask(dataset)
