"""HTML and SVG by functions. Text is escaped unless it is `Markup`, so nothing a run holds can become a tag."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

VOID = frozenset({"meta", "br", "circle", "line", "path", "rect"})
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def element(name: str, /, *children: object, **attributes: object) -> Markup:
    """One element. An attribute of None is left out; `_` in its name becomes `-`, and a last `_` goes away.

    >>> element("a", "x < y & z", class_="big", href='"')
    '<a class="big" href="&quot;">x &lt; y &amp; z</a>'
    >>> element("g", element("line", x1=1, stroke_width=2.50))
    '<g><line x1="1" stroke-width="2.5"/></g>'
    """
    written = "".join(f' {_name(key)}="{text(value)}"' for key, value in attributes.items() if value is not None)
    if name in VOID and not children:
        return Markup(f"<{name}{written}/>")
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def join(children: Iterable[object]) -> Markup:
    """Elements and texts one after the other."""
    return Markup("".join(child if isinstance(child, Markup) else text(child) for child in children))


def text(value: object) -> Markup:
    """Escaped text; a coordinate with one decimal at most.

    >>> text("<script>"), text(12.3456), text(3.0)
    ('&lt;script&gt;', '12.3', '3')
    """
    if isinstance(value, float):
        value = f"{value:.1f}".removesuffix(".0")
    return Markup(html.escape(_CONTROL.sub("\ufffd", str(value))))


def _name(key: str) -> str:
    return key.removesuffix("_").replace("_", "-")
