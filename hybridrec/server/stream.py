"""Stream: messages over a TCP connection, plain or with TLS. One thread may send while another receives.

Arrays are sent from where they lie and received into fresh ones, without copies in between where there is no TLS.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from hybridrec.server.protocol import HEADER, MOST_BYTES, Message, head_of, read_fields, read_head, read_sizes

PIECE = 1 << 18  # bytes that TLS takes at a time


class Stream:
    """Bytes over a socket. Whoever sends keeps others from sending meanwhile."""

    def __init__(self, connection: socket.socket, patience: float) -> None:
        """`patience` is how long a send may wait for the other side to read, in seconds."""
        self._socket = connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.patience(patience)

    def patience(self, send: float, receive: float = 0) -> None:
        """How long to wait for the other side before an error; 0 is for ever."""
        for option, seconds in ((socket.SO_SNDTIMEO, send), (socket.SO_RCVTIMEO, receive)):
            wait = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
            self._socket.setsockopt(socket.SOL_SOCKET, option, wait)

    def send(self, parts: Sequence[bytes | memoryview]) -> None:
        """All of these bytes."""
        left = [memoryview(part).cast("B") for part in parts if len(part)]
        while left:
            sent = self._socket.sendmsg(left)
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if sent:
                left[0] = left[0][sent:]

    def receive(self, into: memoryview) -> None:
        """As many bytes as there is room for; EOFError where the other side has closed."""
        while len(into):
            got = self._socket.recv_into(into)
            if not got:
                raise EOFError("the connection was closed")
            into = into[got:]

    def close(self) -> None:
        """End it; who waits in it gets an error."""
        with suppress(OSError):  # the other side was first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class TlsStream(Stream):
    """The same through TLS. OpenSSL takes one caller at a time, so it works on memory and never waits for bytes."""

    def __init__(
        self,
        connection: socket.socket,
        patience: float,
        context: ssl.SSLContext,
        *,
        server: bool,
        host: str | None = None,
    ) -> None:
        super().__init__(connection, patience)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server, server_hostname=host)
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self.patience(patience, patience)
        while not self._shaken():
            self._fill()
        self.patience(patience)

    def _shaken(self) -> bool:
        try:
            self._tls.do_handshake()
            return True
        except ssl.SSLWantReadError:
            return False
        finally:
            super().send([self._out.read()])

    def _fill(self) -> None:
        data = self._socket.recv(PIECE)
        with self._lock:
            if not data:
                raise EOFError("the connection was closed")
            self._in.write(data)

    def send(self, parts: Sequence[bytes | memoryview]) -> None:
        with self._sending:
            for part in parts:
                view = memoryview(part).cast("B") if len(part) else memoryview(b"")
                for at in range(0, len(view), PIECE):
                    with self._lock:
                        self._tls.write(view[at : at + PIECE])
                        data = self._out.read()
                    super().send([data])

    def receive(self, into: memoryview) -> None:
        while len(into):
            try:
                with self._lock:
                    got: Any = self._tls.read(len(into), into)  # pyright: ignore[reportArgumentType] (any buffer will do)
            except ssl.SSLWantReadError:
                self._fill()
                continue
            if not got:
                raise EOFError("the connection was closed")
            into = into[got:]


def send_message(stream: Stream, message: Message) -> None:
    """Send a message."""
    stream.send([head_of(message), *map(as_bytes, message.buffers)])


def as_bytes(array: np.ndarray) -> memoryview:
    """The memory of an array."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def receive_message(stream: Stream, most: int = MOST_BYTES) -> Message:
    """The next message. A Refusal where it is none: nothing more can then be read from the stream."""
    head = read_head(_read(stream, HEADER.size), most)
    sizes = read_sizes(_read(stream, 8 * head.buffers), most)
    fields = read_fields(_read(stream, head.text))
    buffers = [np.empty(size, np.uint8) for size in sizes]
    for buffer in buffers:
        stream.receive(buffer.data)
    return Message(head.kind, fields, buffers, head.number)


def _read(stream: Stream, count: int) -> bytearray:
    data = bytearray(count)
    stream.receive(memoryview(data))
    return data
