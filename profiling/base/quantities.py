"""Units of memory and time as people write and read them. Inside the program all are whole bytes and nanoseconds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from math import ceil

from trainplan.profiling.base.errors import COMMAND_LINE, InputError, shown

_FACTORS = {"B": 1, "BYTE": 1, "BYTES": 1}
for _power, _prefix in enumerate("KMGTP", start=1):
    _FACTORS |= {f"{_prefix}B": 1000**_power, f"{_prefix}IB": 1024**_power, _prefix: 1024**_power}


def parse_bytes(text: str, field: str = "--memory") -> int:
    """Parse a text such as ``8GiB``, ``500 MB``, ``1.5G`` (a bare K, M, G, T is binary) or ``123 bytes`` into a number of
    bytes. field: the option, for errors. Raises InputError for other texts, such as a number without a unit.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    factor = _FACTORS.get(match[2].upper()) if match else None
    if match is not None and not match[2]:
        raise InputError(COMMAND_LINE, field, f"is {text!r}, without a unit", "give a size such as 8GiB or 500MB")
    if match is None or factor is None:
        raise InputError(COMMAND_LINE, field, f"is {text!r}", "give a size such as 8GiB or 500MB")
    return int(Fraction(match[1]) * factor)


def parse_tokens(text: str, field: str = "--sequence") -> int:
    """Parse a text such as ``8192``, ``8_000``, ``8,000``, ``8k`` (8,192) or ``1M`` (1,048,576) into a number of tokens: k and
    M are binary, as in names of context lengths. field: the option, for errors. Raises InputError for other texts.
    """
    joined = re.sub(r"(?<=\d)[_,](?=\d{3}(?!\d))", "", text)
    match = re.fullmatch(r"\s*(\d{1,12}(?:\.\d{1,6})?)\s*([kKmM]?)\s*", joined, re.ASCII)
    tokens = Fraction(match[1]) * {"": 1, "K": 1024, "M": 1024**2}[match[2].upper()] if match else Fraction(1, 2)
    if tokens.denominator != 1:
        raise InputError(COMMAND_LINE, field, f"is {text!r}", "give a number of tokens, such as 8192 or 8k")
    return int(tokens)


def parse_count(text: str, field: str) -> int:
    """Parse a text such as ``1T``, ``15.6T``, ``300B``, ``5_000`` or ``1e12`` into a number: K, M, B and T are powers of 1000,
    as amounts of training data are written. field: the option, for errors. Raises InputError for other texts.
    """
    match = re.fullmatch(
        r"\s*(\d{1,18}(?:\.\d{1,12})?)(?:e(\d{1,2}))?\s*([kKmMbBtT]?)\s*", re.sub(r"(?<=\d)[_,](?=\d)", "", text)
    )
    count = (
        Fraction(match[1]) * 10 ** int(match[2] or 0) * 1000 ** " KMBT".index(match[3].upper() or " ")
        if match
        else Fraction(1, 2)
    )
    if count.denominator != 1:
        raise InputError(COMMAND_LINE, field, f"is {shown(text)}", "give a whole number, such as 300B or 1T")
    return int(count)


def parse_rate(text: str, field: str) -> float:
    """Parse a text such as ``200Gb/s`` or ``200Gbps`` (bits, as networks are sold) or ``25GB/s`` (bytes) into bytes per
    second. field: the option, for errors. Raises InputError for other texts.
    """
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*([MGT])(b|B|bit)(?:/s|ps)?\s*", text, re.ASCII)
    rate = float(match[1]) * _FACTORS[f"{match[2]}B"] / (1 if match[3] == "B" else 8) if match else 0.0
    if not 1 <= rate <= 1e14:
        raise InputError(COMMAND_LINE, field, f"is {shown(text)}", "give a rate such as 200Gb/s (bits) or 25GB/s (bytes)")
    return rate


def format_bytes(count: int) -> str:
    """Format a size in bytes as text, with at most four digits and binary units: ``8 GiB``, ``1.25 GiB``, ``640 KiB``."""
    return _in_steps(count, 1024, (" B", " KiB", " MiB", " GiB", " TiB"))


def format_gap(gap: float) -> str:
    """Format a relative gap to the optimum (such as 0.12) as text in percent, rounded up: 0.0004 -> ``0.1 %``, 0.12 -> ``12
    %``; ``0 %`` only for 0.
    """
    tenths = max(1, ceil(1000 * gap - 1e-9)) if gap > 0 else 0
    return f"{tenths / 10:g} %" if tenths < 100 else f"{ceil(tenths / 10)} %"


def format_share(share: float) -> str:
    """Format a share (from 0 to 1) as text in percent, with two digits below 10 %, else three: 0.001 -> ``0.1 %``, 0.12 ->
    ``12 %``; ``0 %`` only for 0.
    """
    percent = 100 * share
    return f"{percent:.2g} %" if abs(percent) < 10 else f"{percent:.3g} %" if abs(percent) < 1000 else f"{percent:.0f} %"


def enough_bytes(count: int) -> str:
    """Format a number of bytes as the value of a command's option, with four digits and rounded up, so that the text means at
    least `count` bytes: ``102.4GiB``.
    """
    power = max(exponent for exponent in range(5) if count >= 1024**exponent or exponent == 0)
    digits = max(0, 4 - len(str(count // 1024**power))) if power else 0
    value = -(-count * 10**digits // 1024**power)
    return f"{value / 10**digits:g}{('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def format_time(time_ns: float) -> str:
    """Format a time in ns as text, with four digits and the largest unit that fits: ``1.234 ms``."""
    for unit, factor in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if abs(time_ns) >= factor:
            return f"{time_ns / factor:.4g} {unit}"
    return f"{time_ns:.0f} ns"


def format_span(seconds: float) -> str:
    """Format a time in seconds, from milliseconds to years, as text with three digits in the largest unit of which there are
    two: ``90 s``, ``36 h``, ``41.5 days``.
    """
    for unit, factor in (("years", 365.25 * 86400), ("days", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * factor:
            return f"{seconds / factor:.3g} {unit}" if seconds < 1000 * factor else f"{seconds / factor:,.0f} {unit}"
    return f"{seconds:.3g} s"


def format_power(watts: float) -> str:
    """Format a power in watts as text, with four digits and decimal units: ``700 W``, ``7.75 kW``, ``2.3 MW``."""
    return _in_steps(watts, 1000, (" W", " kW", " MW", " GW", " TW"))


def format_count(count: float) -> str:
    """Format a number as text, with four digits and thousands as K, M, B, T: ``671.1M``, ``10.16B``, ``2.3T``."""
    return _in_steps(count, 1000, ("", "K", "M", "B", "T"))


def format_rate(bytes_per_s: float) -> str:
    """Format a rate in bytes per second as text, with four digits and decimal units, as links are sold: ``12.5 GB/s``."""
    return _in_steps(bytes_per_s, 1000, (" B/s", " KB/s", " MB/s", " GB/s", " TB/s"))


def _in_steps(size: float, step: int, units: Sequence[str]) -> str:
    """Format a size as text with four digits, in the largest unit that is not above it. step: the factor from one unit to the
    next, such as 1024. units: names of the units, the smallest first. If the size is 1000 or more of the last unit, all digits
    before the point are shown.
    """
    *smaller, largest = units
    for unit in smaller:
        if abs(size) < step - 0.05:
            return f"{size:.4g}{unit}"
        size /= step
    return f"{size:.4g}{largest}" if abs(size) < 1000 else f"{size:.0f}{largest}"


def span(first: str, last: str) -> str:
    """Format a range of names as text: ``block0 .. block3``, or ``head`` if first and last are equal."""
    return first if first == last else f"{first} .. {last}"


def plural(count: int, word: str) -> str:
    """Format a count with its noun, in the plural if the count is not 1: ``1 row``, ``2 rows``, ``3 batches``."""
    return f"{count} {word}" + ("" if count == 1 else "es" if word.endswith("ch") else "s")


def divisors(number: int) -> list[int]:
    """All divisors of a number, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return small + [number // d for d in reversed(small) if d * d != number]
