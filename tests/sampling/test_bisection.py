"""The largest number that fulfils a condition is found in a few trials."""

from hypothesis import given
from hypothesis import strategies as st

from nanoset_core.sampling.bisection import largest_that_fits

MAXIMUM = 200


@given(maximum=st.integers(0, MAXIMUM), limit=st.integers(0, MAXIMUM))
def test_the_number_is_that_which_trying_all_numbers_finds(maximum, limit):
    def fits(number):
        return number <= limit

    largest = largest_that_fits(maximum, fits)

    assert largest == max(number for number in range(maximum + 1) if fits(number))


def test_zero_is_assumed_to_fit_and_is_not_tried():
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
