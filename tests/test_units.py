"""Formatting and reading of sizes, rates and times."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparda import units


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1.02e+03 B"), (1024, "1 KiB"), (5 * 2**40, "5 TiB"), (-(2**20), "-1 MiB")],
)
def test_bytes_take_the_largest_binary_unit(size, text):
    assert units.format_bytes(size) == text


def test_binary_and_decimal_units_are_told_apart():
    assert units.gib(2**30) == 1.0
    assert units.gb(10**9) == 1.0
    assert units.parse_bytes("1GiB") - units.parse_bytes("1GB") == 73_741_824


def test_rates_turn_to_terabytes_at_a_thousand():
    assert units.format_rate(999e9) == "999 GB/s"
    assert units.format_rate(1e12) == "1 TB/s"


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 us"), (1e-3, "1 ms"), (9.99e-4, "999 us"), (1, "1 s")])
def test_times_take_the_largest_unit(seconds, text):
    assert units.format_seconds(seconds) == text


@given(st.integers(0, 2**50))
def test_whole_bytes_are_read_back(n):
    assert units.parse_bytes(f"{n}B") == int(float(n))


@pytest.mark.parametrize("text", ["", "80", "GiB", "80 gibibytes", "-1GiB", "1,5GB"])
def test_an_unreadable_size_says_what_to_write(text):
    with pytest.raises(ValueError, match="such as 80GiB or 16GB"):
        units.parse_bytes(text)
