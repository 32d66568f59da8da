"""Ragged to and from Arrow arrays."""

from __future__ import annotations

from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import torch
from torch import Tensor

from hybridrec.types.ragged import Ragged, Text, offsets_of

_LISTS = (pt.is_list, pt.is_large_list, pt.is_fixed_size_list, pt.is_list_view, pt.is_large_list_view)


def from_arrow(array: pa.Array | pa.ChunkedArray) -> Ragged:
    """A Ragged with the array's rows; values are copied, so writing to them leaves Arrow's memory alone."""
    made = _convert(_plain(array), "rows")
    if isinstance(made, Tensor):
        raise TypeError(
            f"an array of {array.type} has one value per row and is no ragged column; "
            "use torch.tensor(array.to_numpy()) for it"
        )
    return made


def to_arrow(ragged: Ragged) -> pa.Array:
    """The Arrow array with the Ragged's rows, with 64-bit offsets; shares the memory of CPU tensors."""
    offsets = ragged.offsets.cpu().numpy()
    if ragged.text is not None:
        kind = pa.large_string() if ragged.text == "utf8" else pa.large_binary()
        data = ragged.flat.cpu().contiguous().numpy()
        return pa.Array.from_buffers(kind, len(ragged), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    values = to_arrow(ragged.values) if isinstance(ragged.values, Ragged) else _leaf_to_arrow(ragged.values)
    return pa.LargeListArray.from_arrays(pa.array(offsets), values)


def _leaf_to_arrow(values: Tensor) -> pa.Array:
    if values.dtype == torch.bfloat16 or values.is_complex():
        raise TypeError(f"Arrow has no {values.dtype}; convert the values first, for example with .float()")
    made = pa.array(values.detach().cpu().contiguous().flatten().numpy())
    for size in reversed(values.shape[1:]):
        made = pa.FixedSizeListArray.from_arrays(made, size)
    return made


def _plain(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    """One array without dictionary, extension or view encodings at its top level."""
    if isinstance(array, pa.ChunkedArray):
        empty = pa.array([], array.type)
        return _plain(array.chunk(0) if array.num_chunks == 1 else pa.concat_arrays([*array.chunks, empty]))
    if isinstance(array, pa.ExtensionArray):
        return _plain(array.storage)
    if isinstance(array, pa.DictionaryArray):
        return _plain(array.dictionary_decode())
    kind = array.type
    if pt.is_string_view(kind):
        return array.cast(pa.large_string())
    if pt.is_binary_view(kind) or pt.is_fixed_size_binary(kind):
        return array.cast(pa.large_binary())
    return array


def _convert(array: pa.Array, where: str) -> Tensor | Ragged:
    if array.null_count:
        raise ValueError(
            f"{array.null_count} of {len(array)} {where} are null (type {array.type}) and a Ragged has no "
            "nulls; fill or drop them first, or load the column with a null policy"
        )
    kind = array.type
    if any(test(kind) for test in _LISTS):
        values = _convert(_plain(array.flatten()), "list entries")
        return Ragged.trusted(values, _list_offsets(array))
    if pt.is_string(kind) or pt.is_large_string(kind):
        return _convert_text(array, "utf8")
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        return _convert_text(array, "binary")
    if pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind):
        return torch.from_numpy(np.array(array.to_numpy(zero_copy_only=False), copy=True))
    raise TypeError(
        f"no tensor holds Arrow's {kind}; cast it to an integer, float, bool, string or binary type, or lists of them"
    )


def _list_offsets(array: pa.Array) -> Tensor:
    if pt.is_list_view(array.type) or pt.is_large_list_view(array.type):
        sizes = cast("pa.ListViewArray", array).sizes  # views may lie in any order; flatten() puts them in row order
        return offsets_of(torch.from_numpy(sizes.to_numpy().astype(np.int64)))
    if pt.is_fixed_size_list(array.type):
        return torch.arange(len(array) + 1) * array.type.list_size
    lists = cast("pa.ListArray", array)
    return _from_zero(lists.offsets.to_numpy(zero_copy_only=False) if len(array) else np.zeros(1))


def _convert_text(array: pa.Array, text: Text) -> Ragged:
    wide = pt.is_large_string(array.type) or pt.is_large_binary(array.type)
    width = np.dtype(np.int64 if wide else np.int32)
    _, index, data = array.buffers()
    offsets = np.zeros(1, width)
    if len(array):  # an empty array may come without buffers
        offsets = np.frombuffer(index, width, len(array) + 1, array.offset * width.itemsize)
    first, last = int(offsets[0]), int(offsets[-1])
    flat = np.frombuffer(data, np.uint8, last - first, first) if last > first else np.empty(0, np.uint8)
    return Ragged.trusted(torch.from_numpy(flat.copy()), _from_zero(offsets), text)


def _from_zero(offsets: np.ndarray) -> Tensor:
    wide = offsets.astype(np.int64)
    return torch.from_numpy(wide - wide[0])
