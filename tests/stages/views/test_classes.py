"""Classes of documents that all filters treat alike."""

import numpy as np
import pyarrow as pa
import pytest

from nanoset_core.stages.views.classes import (
    DocumentClasses,
    encode_column,
    pack_codes,
    unpack_codes,
)


def column(values, dictionary=None):
    """Return a column of an Arrow table, as a dictionary with its values in a certain order."""
    if dictionary is None:
        return pa.chunked_array([pa.array(values)])
    indices = [None if value is None else dictionary.index(value) for value in values]
    array = pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), pa.array(dictionary))
    return pa.chunked_array([array])


def test_the_class_of_a_document_is_built_up_column_by_column():
    classes = DocumentClasses(4)
    classes.divide(encode_column(column(["de", "en", "de", "de"], ["de", "en"])))
    classes.divide(encode_column(column([3, 0, 3, 4])))

    assert classes.codes.tolist() == [3, 5, 3, 4]
    assert classes.count == 10
    assert classes.sizes.tolist() == [0, 0, 0, 2, 1, 1, 0, 0, 0, 0]


def test_an_example_of_a_class_is_one_of_its_documents():
    classes = DocumentClasses(4)
    classes.divide(encode_column(column([1, 0, 2, 1])))

    examples = classes.examples()

    assert classes.codes[examples].tolist() == [0, 1, 2]


def test_dictionaries_with_their_values_in_another_order_have_the_same_codes():
    values = ["b", "a", "c", "b"]

    first = encode_column(column(values, ["a", "b", "c"]))
    second = encode_column(column(values, ["c", "b", "a"]))

    assert first.codes.tolist() == second.codes.tolist() == [1, 0, 2, 1]
    assert first.meaning == second.meaning


@pytest.mark.parametrize("dictionary", [None, [0, 1]], ids=["numbers", "dictionary"])
def test_null_has_a_code_that_no_value_has(dictionary):
    codes = encode_column(column([0, None, 1], dictionary))

    assert codes.codes.tolist() == [0, 2, 1]
    assert codes.count == 3


def test_negative_numbers_have_codes_from_0_on():
    assert encode_column(column([-2, 3, 0])).codes.tolist() == [0, 5, 2]


@pytest.mark.parametrize("values", [[0, 5000], [0.5, 1.5], ["a", "b"]])
def test_columns_of_many_values_or_of_other_types_have_no_codes(values):
    assert encode_column(column(values)) is None


def test_classes_without_documents_are_left_out_once_there_are_many():
    numbers = np.arange(1000)
    classes = DocumentClasses(1000)
    for _ in range(3):
        classes.divide(encode_column(column(numbers)))

    assert classes.count == 1000
    assert classes.sizes.tolist() == [1] * 1000


@pytest.mark.parametrize("n_classes", [1, 2, 3, 256, 257, 4096])
def test_stored_classes_are_read_as_they_were(n_classes):
    codes = np.arange(5000) % n_classes

    packed = pack_codes(codes, n_classes)
    following_bytes = np.zeros(8, np.uint8)
    unpacked = unpack_codes(np.concatenate([packed, following_bytes]), len(codes), n_classes)

    assert np.array_equal(unpacked, codes)
