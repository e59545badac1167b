"""Medians and quartiles, by numbers worked out by hand (inclusive method: quartiles lie between the values)."""

from bench.samples import summarise


def test_median_and_quartiles_of_five_values() -> None:
    summary = summarise([5, 1, 4, 2, 3])
    assert summary is not None
    assert (summary.low, summary.median, summary.high, summary.count) == (2, 3, 4, 5)


def test_quartiles_lie_between_values_where_they_must() -> None:
    summary = summarise([1, 2, 3, 4])
    assert summary is not None
    assert (summary.low, summary.median, summary.high) == (1.75, 2.5, 3.25)


def test_one_value_is_its_own_quartiles_and_nothing_has_none() -> None:
    one = summarise([7.0])
    assert one is not None and (one.low, one.median, one.high) == (7, 7, 7)
    assert summarise([]) is None


def test_figures_have_the_digits_that_they_deserve() -> None:
    assert str(summarise([9.876])) == "9.88 (9.88-9.88)"
    assert str(summarise([198.76])) == "198.8 (198.8-198.8)"
    assert str(summarise([12345.6])) == "12,346 (12,346-12,346)"
