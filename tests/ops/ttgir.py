"""What a kernel loads and writes, by the text of its TTGIR: the compiler has given every tensor its layout there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

Source = tuple[tuple[str, int, int], ...]  # file, line and column: of a function, then of those that call it
LOAD, WRITES = "tt.load", ("tt.store", "tt.atomic_rmw", "tt.atomic_cas")
NAMED = ("scf.", "tt.atomic", "tt.reduce", "tt.scan", "tt.call")  # what they give is written out by a name alone
OPERATION = re.compile(r"\s*(?:(%\w+)(?::\d+)? = )?\"?([a-z_]+\.[\w.]+)\"?[ (](.*?)(?: loc\((.*)\))?$")
VALUE = re.compile(r"%\w+(?:#\d+)?")


class Access(NamedTuple):
    """A load or a write, the `number`th operation of its kernel."""

    name: str
    address: str  # written out without layouts: where two are equal, so are the addresses, lane by lane
    shape: tuple[int, ...]
    layout: str
    source: Source
    number: int


class Operation(NamedTuple):
    """One line: what it gives, its name, all that stands behind, and its place in the source."""

    result: str | None
    name: str
    rest: str
    location: str | None


class Kernel:
    """A kernel, as TTGIR has it."""

    def __init__(self, text: str) -> None:
        self.warps = int(re.findall(r'"ttg.num-warps" = (\d+)', text)[0])
        self._layouts = dict(re.findall(r"^(#\w+) = (#ttg\..*)$", text, re.MULTILINE))
        self._locations = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", text, re.MULTILINE))
        self._operations = [Operation(*found.groups()) for found in map(OPERATION.match, text.splitlines()) if found]
        self.accesses = list(self._accesses())

    def is_for_one_thread(self, load: Access) -> bool:
        """Whether what a load gives goes into writes of scalars alone: the first thread makes them."""
        return not load.shape and self._is_only_written(load.number)

    def _is_only_written(self, number: int) -> bool:
        return all(
            "tensor<" not in self._operations[user].rest
            and (self._operations[user].name in WRITES or (self._is_plain(user) and self._is_only_written(user)))
            for user in self._users(number)
        )

    def _is_plain(self, number: int) -> bool:
        return self._operations[number].name.startswith("arith.")

    def _users(self, number: int) -> Iterator[int]:
        """The operations that use what one gives: until its name is that of something else, in another region."""
        name = self._operations[number].result
        for user, each in enumerate(self._operations[number + 1 :], number + 1):
            if name in VALUE.findall(each.rest):
                yield user
            if each.result == name:
                return

    def _accesses(self) -> Iterator[Access]:
        written: dict[str, str] = {}
        for number, each in enumerate(self._operations):
            if each.result:
                written[each.result] = _written_out(each, written)
            if each.name in (LOAD, *WRITES):
                pointer: str = VALUE.findall(each.rest)[0]
                shape, layout = self._pointer_type(each.rest)
                source = self._source(each.location or "")
                yield Access(each.name, written.get(pointer, pointer), shape, layout, source, number)

    def _pointer_type(self, rest: str) -> tuple[tuple[int, ...], str]:
        """Shape and layout of the pointers of an access, whose type comes first."""
        types = rest[rest.rindex(" : ") + 3 :].lstrip("(")
        found = re.match(r"tensor<([\dx]+)x!tt\.ptr<\w+>, (#.*)", types)
        return (tuple(map(int, found[1].split("x"))), self._full(_first(found[2]))) if found else ((), "")

    def _full(self, layout: str) -> str:
        """A layout with those that it is made of, not with their names."""
        if layout in self._layouts:
            return self._layouts[layout]
        return re.sub(r"parent = (.*)\}>$", lambda found: f"parent = {self._full(found[1])}}}>", layout)

    def _source(self, location: str) -> Source:
        """The place in the source, by what stands in `loc()`: a name for it, or a call, may be around it."""
        location = self._locations.get(location, location)
        if found := re.fullmatch(r"\"(.*)\":(\d+):(\d+)", location):
            return ((found[1].rsplit("/", 1)[-1], int(found[2]), int(found[3])),)
        if found := re.fullmatch(r"callsite\((.*) at (.*)\)", location):
            return (*self._source(found[1]), *self._source(found[2]))
        found = re.fullmatch(r"\".*\"\((.*)\)", location)
        return self._source(found[1]) if found else ()


def _first(text: str) -> str:
    """The layout that a text begins with."""
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter == "<") - (letter == ">")
        if depth < 0 or (depth == 0 and letter == ","):
            return text[:at]
    return text


def _written_out(each: Operation, written: dict[str, str]) -> str:
    """What an operation gives: itself with what its operands are, short; a layout changes no element."""
    if each.name == "ttg.convert_layout":
        operand: str = VALUE.findall(each.rest)[0]
        return written.get(operand, operand)
    if each.name.startswith(NAMED):
        return str(each.result)
    text = VALUE.sub(lambda found: written.get(found[0], found[0]), _without_layouts(each.rest))
    return f"{each.name} {hash(text)}"


def _without_layouts(text: str) -> str:
    before = ""
    while before != text:
        before, text = text, re.sub(r"(, )?#(ttg\.\w+<\{[^{}]*\}>|\w+)", "", text)
    return text
