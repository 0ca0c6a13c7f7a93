"""Quantities with their units: what people write in files, and what the program shows them.

Inside the program a rate is bytes per second, a size bytes, a time seconds, a loss a fraction. In a file each carries
its unit, since a bare number is where bits are taken for bytes and milliseconds for seconds. Prefixes are decimal
(SI: 1 MB is 1,000,000 bytes) unless written as binary ones (IEC 80000-13: 1 MiB is 1,048,576 bytes).

Every ``parse_*`` raises ValueError with what is wrong and how to mend it; the caller adds the place.
"""

import re
from collections.abc import Mapping
from decimal import Decimal

# Decimal, so that "16.9 MB" is 16,900,000 bytes and not 16,899,999.999999998. Units are exact words: in "Mb/s" or
# "MS" somebody may have meant either of two things that differ by 8 or by 1000.
RATES = {
    "B/s": Decimal(1), "kB/s": Decimal(10**3), "MB/s": Decimal(10**6), "GB/s": Decimal(10**9),
    "kbit/s": Decimal(125), "Mbit/s": Decimal(125 * 10**3), "Gbit/s": Decimal(125 * 10**6),
}
SIZES = {
    "B": Decimal(1), "kB": Decimal(10**3), "MB": Decimal(10**6), "GB": Decimal(10**9),
    "KiB": Decimal(2**10), "MiB": Decimal(2**20), "GiB": Decimal(2**30),
}
TIMES = {"us": Decimal("1e-6"), "ms": Decimal("1e-3"), "s": Decimal(1)}

LONGEST_SHOWN = 60
"""Characters of a value that an error repeats."""

# 15 digits: more would be a slip of the hand, and a float could not hold them.
_QUANTITY = re.compile(r"(?P<number>[+-]?[0-9]{1,15}(?:\.[0-9]{1,15})?)\s*(?P<unit>\S*)")


def shown(value: object) -> str:
    """A value as errors repeat it: in quotes if it is text, and not beyond its first characters."""
    try:
        text = repr(value)
    except ValueError:      # an integer of more than 4300 digits, which Python does not write out
        return "a number of thousands of digits"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


def parse_rate(text: object) -> float:
    """Bytes per second of a rate such as ``0.7 MB/s`` or ``100 Mbit/s``; more than 0."""
    return float(_positive(_parse(text, "rate", RATES, "0.7 MB/s"), text, "rate"))


def parse_size(text: object) -> int:
    """Bytes of a size such as ``4 KiB`` or ``16.9 MB``; whole, and more than 0."""
    size = _positive(_parse(text, "size", SIZES, "64 KiB"), text, "size")
    if size != int(size):
        raise ValueError(f"{shown(text)} is {size.normalize():f} bytes; write a size that is a whole number of bytes")
    return int(size)


def parse_time(text: object) -> float:
    """Seconds of a time such as ``35 ms``; not negative."""
    seconds = _parse(text, "time", TIMES, "35 ms")
    if seconds < 0:
        raise ValueError(f"{shown(text)} is negative; write a time of 0 s or more")
    return float(seconds)


def parse_loss(text: object) -> float:
    """Fraction of packets lost, of a percentage such as ``1 %``; at least 0 and less than 1."""
    loss = _parse(text, "loss", {"%": Decimal("0.01")}, "0.1 %")
    if not 0 <= loss < 1:
        raise ValueError(f"{shown(text)} is impossible; write a loss of at least 0 % and less than 100 %")
    return float(loss)


def parse_share(text: object) -> float:
    """Fraction of a percentage such as ``10 %`` or ``150 %``; more than 0."""
    return float(_positive(_parse(text, "share", {"%": Decimal("0.01")}, "10 %"), text, "share"))


def format_rate(rate: float) -> str:
    """Show bytes per second to four digits: 700000 as ``0.7 MB/s``, so that slow and fast paths share a unit."""
    return _format(rate, RATES, {"B/s": 0, "kB/s": 1000, "MB/s": 100_000, "GB/s": 10**9})


def format_size(size: int) -> str:
    """Show bytes: 65536 as ``64 KiB`` where a binary unit is exact, else decimal to four digits, as ``16.87 MB``."""
    for unit in ("GiB", "MiB", "KiB"):
        whole, rest = divmod(size, int(SIZES[unit]))
        if whole:
            if rest:
                break
            return f"{whole} {unit}"
    return _format(size, SIZES, {"B": 0, "kB": 10**3, "MB": 10**6, "GB": 10**9})


def format_time(seconds: float) -> str:
    """Show seconds to four digits: 0.035 as ``35 ms``, 0.0002 as ``200 us``, 12.0504 as ``12.05 s``."""
    return _format(seconds, TIMES, {"us": 0, "ms": Decimal("1e-3"), "s": 1}) if seconds else "0 s"


def format_loss(loss: float) -> str:
    """Show a fraction as a percentage of up to four digits: 0.01 as ``1 %``."""
    return f"{_digits(loss * 100)} %"


def _parse(text: object, kind: str, units: Mapping[str, Decimal], example: str) -> Decimal:
    choice = f"write a {kind} with {'one of ' if len(units) > 1 else ''}{', '.join(units)}, such as {example!r}"
    if isinstance(text, int | float) and not isinstance(text, bool):
        raise ValueError(f"{shown(text)} is a bare number; {choice}")
    match = _QUANTITY.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{'nothing' if text is None else shown(text)} is no {kind}; {choice}")
    number, unit = match["number"], match["unit"]
    if not unit:
        raise ValueError(f"{shown(text)} is a bare number; {choice}")
    if unit not in units:
        raise ValueError(f"{shown(unit)} is no unit of a {kind}; {choice}")
    return Decimal(number) * units[unit]


def _positive(value: Decimal, text: object, kind: str) -> Decimal:
    if value <= 0:
        raise ValueError(f"{shown(text)} is not more than 0; write a {kind} above 0")
    return value


def _format(value: float, units: Mapping[str, Decimal], shown_from: Mapping[str, Decimal | int]) -> str:
    """Show the value in the last unit that is shown from a smaller or equal value."""
    # Rounded before the unit is chosen, or 999.99 ms would be shown as 1000 ms.
    rounded = Decimal(f"{value:.4g}")
    unit = [unit for unit, least in shown_from.items() if rounded >= least][-1]
    return f"{_digits(rounded / units[unit])} {unit}"


def _digits(number: float | Decimal) -> str:
    return f"{Decimal(f'{number:.4g}').normalize():f}"
