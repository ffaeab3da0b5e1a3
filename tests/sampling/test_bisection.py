"""The largest number that fulfils a condition."""

from hypothesis import given
from hypothesis import strategies as st

from nanoset_core.sampling.bisection import largest_that_fits

MAXIMUM = 200


@given(maximum=st.integers(0, MAXIMUM), limit=st.integers(0, MAXIMUM))
def test_it_is_the_number_that_trying_all_finds(maximum, limit):
    def fits(number):
        return number <= limit

    found = largest_that_fits(maximum, fits)

    assert found == max(number for number in range(maximum + 1) if fits(number))


def test_zero_is_taken_to_fit_and_not_tried():
    tried = []

    def fits(number):
        tried.append(number)
        return False

    assert largest_that_fits(10, fits) == 0
    assert 0 not in tried


def test_few_numbers_are_tried():
    tried = []

    def fits(number):
        tried.append(number)
        return number <= 12_345

    assert largest_that_fits(2**40, fits) == 12_345
    assert len(tried) <= 41
