"""Quantities: read with their unit, refused without, shown so that they read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.units import (
    format_loss,
    format_rate,
    format_size,
    format_time,
    parse_loss,
    parse_rate,
    parse_size,
    parse_time,
)


@pytest.mark.parametrize(("text", "rate"), [
    ("0.7 MB/s", 700_000), ("30 MB/s", 30_000_000), ("5.6 Mbit/s", 700_000), ("100 Mbit/s", 12_500_000),
    ("1 Gbit/s", 125_000_000), ("8 kbit/s", 1000), ("1.5 kB/s", 1500), ("2 GB/s", 2_000_000_000), ("9 B/s", 9),
    (" 30MB/s ", 30_000_000),
])
def test_rates(text: str, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(("text", "size"), [
    ("4 KiB", 4096), ("16.9 MB", 16_900_000), ("2.1 MB", 2_100_000), ("64 KiB", 65_536), ("1 MiB", 1_048_576),
    ("1 GiB", 1_073_741_824), ("1 GB", 1_000_000_000), ("1.5 kB", 1500), ("12 B", 12), ("0.5 KiB", 512),
])
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size
    assert isinstance(parse_size(text), int)


@pytest.mark.parametrize(("text", "seconds"), [
    ("35 ms", 0.035), ("200 us", 0.0002), ("1 s", 1.0), ("0.3 ms", 0.0003), ("0 s", 0.0),
])
def test_times(text: str, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize(("text", "loss"), [("1 %", 0.01), ("0.1%", 0.001), ("0 %", 0.0), ("99.9 %", 0.999)])
def test_losses(text: str, loss: float) -> None:
    assert parse_loss(text) == loss


@pytest.mark.parametrize(("parse", "value", "message"), [
    (parse_rate, 0.7, "0.7 is a bare number; write a rate with one of B/s, kB/s, MB/s, GB/s, kbit/s, Mbit/s, Gbit/s, "
                      "such as '0.7 MB/s'"),
    (parse_rate, 10**70, f"1{'0' * 59}… is a bare number; write a rate"),
    (parse_rate, "9" * 61 + " MB/s", f"'{'9' * 59}… is no rate; write a rate"),
    (parse_rate, "0.7", "'0.7' is a bare number; write a rate"),
    (parse_rate, "0.7 MB", "'MB' is no unit of a rate; write a rate"),
    (parse_rate, "0.7 mb/s", "'mb/s' is no unit of a rate; write a rate"),
    (parse_rate, "fast", "'fast' is no rate; write a rate"),
    (parse_rate, "inf MB/s", "'inf MB/s' is no rate; write a rate"),
    (parse_rate, "1e3 MB/s", "'1e3 MB/s' is no rate; write a rate"),
    (parse_rate, None, "nothing is no rate; write a rate"),
    (parse_rate, True, "True is no rate; write a rate"),
    (parse_rate, "0 MB/s", "'0 MB/s' is not more than 0; write a rate above 0"),
    (parse_rate, "-1 MB/s", "'-1 MB/s' is not more than 0; write a rate above 0"),
    (parse_rate, "1000000000000000000 MB/s", "is no rate; write a rate"),
    (parse_size, 4096, "4096 is a bare number; write a size with one of B, kB, MB, GB, KiB, MiB, GiB, "
                       "such as '64 KiB'"),
    (parse_size, "0.3 B", "'0.3 B' is 0.3 bytes; write a size that is a whole number of bytes"),
    (parse_time, 35, "35 is a bare number; write a time with one of us, ms, s, such as '35 ms'"),
    (parse_time, "35 m", "'m' is no unit of a time; write a time"),
    (parse_time, "-1 ms", "'-1 ms' is negative; write a time of 0 s or more"),
    (parse_loss, 0.01, "0.01 is a bare number; write a loss with %, such as '0.1 %'"),
    (parse_loss, "100 %", "'100 %' is impossible; write a loss of at least 0 % and less than 100 %"),
    (parse_loss, "-1 %", "'-1 %' is impossible; write a loss"),
])
def test_what_is_refused_says_the_mend(parse: object, value: object, message: str) -> None:
    assert callable(parse)
    with pytest.raises(ValueError, match="; write a ") as refused:
        parse(value)
    assert message in str(refused.value)


@pytest.mark.parametrize(("shown", "text"), [
    (format_rate(700_000), "0.7 MB/s"), (format_rate(30e6), "30 MB/s"), (format_rate(669_484), "0.6695 MB/s"),
    (format_rate(125e6), "125 MB/s"), (format_rate(4.2e9), "4.2 GB/s"), (format_rate(1500), "1.5 kB/s"),
    (format_rate(12), "12 B/s"), (format_rate(0.5), "0.5 B/s"), (format_rate(999_999_999), "1 GB/s"),
    (format_size(4096), "4 KiB"), (format_size(16_900_000), "16.9 MB"), (format_size(16_867_332), "16.87 MB"),
    (format_size(65_536), "64 KiB"), (format_size(1 << 20), "1 MiB"), (format_size(3 << 19), "1.573 MB"),
    (format_size(2_100_000), "2.1 MB"), (format_size(12), "12 B"), (format_size(0), "0 B"),
    (format_time(0.035), "35 ms"), (format_time(0.0002), "200 us"), (format_time(12.0504), "12.05 s"),
    (format_time(0), "0 s"), (format_time(0.99999), "1 s"), (format_time(0.07124), "71.24 ms"),
    (format_time(3600), "3600 s"), (format_time(2.5e-8), "0.025 us"),
    (format_loss(0.01), "1 %"), (format_loss(0.001), "0.1 %"), (format_loss(0), "0 %"),
])
def test_shown_to_people(shown: str, text: str) -> None:
    assert shown == text


four_digits = st.integers(1, 9999)


@given(four_digits, st.integers(0, 9))
def test_rates_and_sizes_of_four_digits_read_back_exactly(digits: int, power: int) -> None:
    assert parse_rate(format_rate(digits * 10**power)) == digits * 10**power
    assert parse_size(format_size(digits * 10**power)) == digits * 10**power


@given(four_digits, st.integers(-9, 3))
def test_times_of_four_digits_read_back_exactly(digits: int, power: int) -> None:
    seconds = float(f"{digits}e{power}")
    assert parse_time(format_time(seconds)) == seconds


@given(st.integers(1, 1023), st.integers(1, 3))
def test_binary_sizes_read_back_exactly(number: int, power: int) -> None:
    assert parse_size(format_size(number << 10 * power)) == number << 10 * power


@given(st.floats(1e-3, 1e12))
def test_any_rate_reads_back_to_four_digits(rate: float) -> None:
    # Half a unit of the fourth digit is at most 5e-4 of the value.
    assert parse_rate(format_rate(rate)) == pytest.approx(rate, rel=5.01e-4)
