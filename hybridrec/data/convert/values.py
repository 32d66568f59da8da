"""Text fields -> typed columns: the parsers, and the guess which one a column needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute

pc: Any = pyarrow.compute  # its functions are made at import, unseen by pyright
NULL_WORDS = pa.array(["NULL", "null", "\\N", "NA", "N/A", "None"])
GUESSES = (
    pa.int64(),
    pa.uint64(),
    pa.float64(),
    pa.bool_(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
)
TYPE_NAMES = (
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"),
    *(
        "bool",
        "string",
        "binary",
        "date32",
        "timestamp[s]",
        "timestamp[ms]",
        "timestamp[us]",
        "timestamp[ns]",
    ),
)


@dataclass(frozen=True)
class Parser:
    """Turns fields (binary, null where empty) into values of `type`; ArrowInvalid if one does not fit."""

    type: pa.DataType
    what: str  # for messages: "x is not {what}"
    convert: Callable[[pa.Array], pa.Array]

    def __call__(self, fields: pa.Array) -> pa.Array:
        texts = fields.cast(pa.string())  # checks UTF-8
        return self.convert(texts)

    def bad_rows(self, fields: pa.Array, first: int = 0) -> list[int]:
        """Rows that do not fit, by halving: quick when they are few."""
        try:
            self(fields)
        except pa.ArrowInvalid:
            if len(fields) == 1:
                return [first]
            half = len(fields) // 2
            return self.bad_rows(fields.slice(0, half), first) + self.bad_rows(fields.slice(half), first + half)
        return []


def parser_of(kind: pa.DataType, list_separator: str = "|") -> Parser:
    """The parser for a type; spaces around numbers are ignored, and NULL, \\N, NA ... are null.

    >>> parser_of(pa.int8())(pa.array([b"1", b" 2", b"NA"])).to_pylist()
    [1, 2, None]
    """
    if pa.types.is_list(kind):

        def split(texts: pa.Array) -> pa.Array:
            return pc.split_pattern(texts, list_separator).cast(kind)

        return Parser(kind, f"{kind} separated by {list_separator!r}", split)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return Parser(kind, "UTF-8 text", lambda texts: texts.cast(kind))

    def lenient(texts: pa.Array) -> pa.Array:
        try:
            return texts.cast(kind)
        except pa.ArrowInvalid:
            trimmed = pc.utf8_trim_whitespace(texts)
            null = pc.is_in(trimmed, value_set=NULL_WORDS)
            return pc.if_else(null, pa.scalar(None, pa.string()), trimmed).cast(kind)

    return Parser(kind, f"{kind} (another type: --types NAME=TYPE)", lenient)


def integer_as_float() -> Parser:
    """Whole numbers kept as float64, which the loader takes for dense values."""
    return Parser(pa.float64(), "a whole number", lambda texts: texts.cast(pa.int64()).cast(pa.float64()))


def hexadecimal() -> Parser:
    """Hexadecimal ids (Criteo's hashes) as int64.

    >>> hexadecimal()(pa.array([b"0000000a", None])).to_pylist()
    [10, None]
    """
    return Parser(
        pa.int64(),
        "a hexadecimal id",
        lambda texts: pc.binary_join_element_wise("0x", texts, "").cast(pa.int64()),
    )


def infer(fields: pa.Array) -> Parser:
    """The first type that all fields fit; leading zeros (007) stay text, as does a column of nulls."""
    try:
        texts = fields.cast(pa.string())
    except pa.ArrowInvalid:
        return parser_of(pa.string())
    zeros = pc.any(pc.match_substring_regex(texts, r"^\s*[+-]?0[0-9]")).as_py()
    if texts.null_count == len(texts) or zeros:
        return parser_of(pa.string())
    for kind in GUESSES:
        parser = parser_of(kind)
        try:
            if parser(fields).null_count < len(fields):
                return parser
        except pa.ArrowInvalid:
            continue
    return parser_of(pa.string())


def type_named(name: str) -> pa.DataType:
    """A type from its name on the command line.

    >>> type_named("list<int64>")
    ListType(list<item: int64>)
    """
    name = name.strip()
    if name.startswith("list<") and name.endswith(">"):
        return pa.list_(type_named(name[5:-1]))
    if name not in TYPE_NAMES:
        raise ValueError(f"{name!r} is no type; there are {', '.join(TYPE_NAMES)} and list<...> of these")
    return pa.type_for_alias(name)
