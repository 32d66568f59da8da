"""Numbers as people read them."""

from __future__ import annotations

import math

NONE = "\N{EN DASH}"  # where there is no number
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def whole(value: float) -> str:
    """A count in full.

    >>> whole(1234567.0)
    '1,234,567'
    """
    return f"{value:,.0f}" if math.isfinite(value) else plain(value)


def short(value: float) -> str:
    """A count in three digits or so.

    >>> short(950), short(65536), short(1_200_000), short(2e9)
    ('950', '65.5k', '1.2M', '2G')
    """
    for scale, unit in _UNITS:
        if math.isfinite(value) and abs(value) >= scale:
            return f"{value / scale:.3g}{unit}" if abs(value) < 999.5 * scale else f"{value / scale:.0f}{unit}"
    return f"{value:.3g}" if math.isfinite(value) else plain(value)


def plain(value: float) -> str:
    """A metric or a norm: four digits after the point where it is near 1.

    >>> plain(0.783149), plain(12.3456), plain(0.00001234), plain(float("nan")), plain(0.0)
    ('0.7831', '12.346', '1.234e-05', 'NaN', '0')
    """
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    if value == 0 or abs(value) >= 1e7 or abs(value) < 1e-3:
        return f"{value:.4g}"
    return f"{value:,.{4 if abs(value) < 10 else 3 if abs(value) < 100 else 1}f}"


def percent(share: float) -> str:
    """A share of 1.

    >>> percent(0.9987), percent(0.05), percent(0.0004)
    ('99.9 %', '5.0 %', '<0.1 %')
    """
    if not math.isfinite(share):
        return plain(share)
    return "<0.1 %" if 0 < share < 0.0005 else f"{100 * share:.1f} %"


def size(count: float) -> str:
    """Bytes.

    >>> size(999), size(1_234_567)
    ('999 B', '1.2 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if not abs(count) >= 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def duration(seconds: float) -> str:
    """A time in its two largest units.

    >>> duration(0.0042), duration(8.25), duration(61), duration(3725), duration(200000)
    ('4.2 ms', '8.2 s', '1 min 1 s', '1 h 2 min', '2 d 7 h')
    """
    if not math.isfinite(seconds) or seconds < 60:
        return f"{1000 * seconds:.3g} ms" if abs(seconds) < 1 else f"{seconds:.1f} s"
    rest = round(seconds)
    for name, length, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if rest >= length:
            return f"{rest // length} {name} {rest % length // part} {smaller}"
    raise AssertionError(seconds)
