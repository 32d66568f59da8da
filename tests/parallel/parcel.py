"""Parcel: a value that one process sends another over a socket: JSON, and its tensors as safetensors."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

HEAD = struct.Struct("<QQ")  # bytes of the JSON, bytes of the tensors
TENSOR = "tensor:"  # a dict with this one key stands for the tensor of that number


def send(to: socket.socket, value: Any) -> None:
    """Send a tree of dicts, lists, JSON values and tensors."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_packed(value, tensors)).encode()
    blob = safetensors.torch.save(tensors) if tensors else b""
    to.sendall(HEAD.pack(len(text), len(blob)) + text + blob)


def receive(origin: socket.socket) -> Any:
    """What the other end sent next; EOFError where it is gone."""
    text, blob = HEAD.unpack(_exactly(origin, HEAD.size))
    value = json.loads(_exactly(origin, text))
    return _unpacked(value, safetensors.torch.load(_exactly(origin, blob)) if blob else {})


def _exactly(origin: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        try:
            part = origin.recv(size - len(found))
        except ConnectionError:
            part = b""
        if not part:
            raise EOFError("the other process is gone")
        found += part
    return bytes(found)


def _packed(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors[str(len(tensors))] = value.detach().contiguous().clone()
        return {TENSOR: len(tensors) - 1}
    if isinstance(value, dict):
        return {str(key): _packed(each, tensors) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_packed(each, tensors) for each in value]
    return value


def _unpacked(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {TENSOR}:
            return tensors[str(value[TENSOR])]
        return {key: _unpacked(each, tensors) for key, each in value.items()}
    return [_unpacked(each, tensors) for each in value] if isinstance(value, list) else value
