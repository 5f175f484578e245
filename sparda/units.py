"""The only place that formats bytes, rates and times.

Memory is GiB (2**30 bytes), bandwidth is GB/s (10**9 bytes a second), time is us, ms or s.
"""

from __future__ import annotations

import re

GIB = 2**30
MIB = 2**20
KIB = 2**10
GB = 10**9


def gib(n_bytes: float) -> float:
    """Bytes to GiB.

    >>> gib(2**32)
    4.0
    """
    return n_bytes / GIB


def gb(n_bytes: float) -> float:
    """Bytes to GB (10**9).

    >>> gb(4_294_967_296)
    4.294967296
    """
    return n_bytes / GB


def format_bytes(n_bytes: float) -> str:
    """Bytes in the largest binary unit that keeps one digit before the point.

    >>> format_bytes(32 * 1024), format_bytes(4 * 2**30), format_bytes(12)
    ('32 KiB', '4 GiB', '12 B')
    >>> format_bytes(1000 * 2**20)
    '1000 MiB'
    """
    for size, unit in ((2**40, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(n_bytes) >= size:
            value = n_bytes / size
            return f"{value:.0f} {unit}" if abs(value) >= 100 else f"{value:.3g} {unit}"
    return f"{n_bytes:.3g} B"


def format_rate(bytes_per_second: float) -> str:
    """Bytes a second as GB/s, or TB/s from 1000 GB/s on.

    >>> format_rate(50.8e9), format_rate(4.19e12)
    ('50.8 GB/s', '4.19 TB/s')
    """
    if abs(bytes_per_second) >= 1e12:
        return f"{bytes_per_second / 1e12:.3g} TB/s"
    return f"{bytes_per_second / 1e9:.3g} GB/s"


def format_seconds(seconds: float) -> str:
    """Seconds as us, ms or s.

    >>> format_seconds(2.5e-6), format_seconds(0.0047), format_seconds(90)
    ('2.5 us', '4.7 ms', '90 s')
    """
    if abs(seconds) >= 1:
        return f"{seconds:.3g} s"
    if abs(seconds) >= 1e-3:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.3g} us"


def parse_bytes(text: str) -> int:
    """Read a size such as ``80GiB``; decimal and binary units are told apart.

    >>> parse_bytes("80GiB"), parse_bytes("16 GB"), parse_bytes("32KiB")
    (85899345920, 16000000000, 32768)
    """
    units = {"b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": 2**40}
    units |= {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]+)\s*", text)
    if not match or match[2].lower() not in units:
        raise ValueError(f"cannot read the size {text!r}; write a number and a unit, such as 80GiB or 16GB")
    return int(float(match[1]) * units[match[2].lower()])
