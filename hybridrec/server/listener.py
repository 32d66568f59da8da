"""Listener: takes connections, brings their messages to a shard, and sends the answers back.

Each connection has a thread that reads and one that writes, so that a client that reads slowly holds up nobody else; it
is not read from while much waits to be written to it.
"""

from __future__ import annotations

import errno
import hmac
import os
import socket
import ssl
import threading
from collections import deque
from contextlib import suppress

from hybridrec.server.protocol import MOST_BYTES, STRANGER_BYTES, Kind, Message, Refusal
from hybridrec.server.shard import Shard
from hybridrec.server.stream import Stream, TlsStream, receive_message, send_message

MOST_CONNECTIONS = 1024
MOST_UNSENT = 64 << 20  # bytes of answers beyond which a connection is not read from
PATIENCE = 60.0  # seconds for a client to read what is sent to it
HELLO_PATIENCE = 10.0  # seconds for a stranger to say hello
GONE = (OSError, EOFError)
NO_TOKEN = "this server wants a token; name the file that holds it: top --token-file, train --server-token-file"
WRONG_TOKEN = "the token is wrong; it must be that of the file which the server was given as --token-file"


class Connection:
    """One client. Its first message must be a hello with the token."""

    def __init__(self, listener: Listener, stream: Stream) -> None:
        self._listener, self._stream = listener, stream
        self._answers: deque[Message] = deque()
        self.unsent = 0  # bytes
        self._changing = threading.Condition()
        self._closed = False

    def serve(self) -> None:
        """Read and handle requests until the connection ends."""
        writer = threading.Thread(target=self._write, daemon=True)
        writer.start()
        request = None
        try:
            self._stream.patience(PATIENCE, HELLO_PATIENCE)
            self._welcome(receive_message(self._stream, STRANGER_BYTES))
            self._stream.patience(PATIENCE)
            while self._room():
                request = receive_message(self._stream, self._listener.most_bytes)
                if request.kind == Kind.STOP:
                    return self._answer(request.answer())
                self._listener.shard.handle(request, self._answer, self)
        except Refusal as refusal:  # what follows on the stream cannot be read
            self._answer(Message(Kind.ERROR).error(refusal))
        except GONE:
            pass
        finally:
            self._listener.shard.forget(self)
            self.close(flush=True)
            writer.join(1.0)
            self._stream.close()
            if request is not None and request.kind == Kind.STOP:
                self._listener.stopping.set()

    def _welcome(self, hello: Message) -> None:
        if hello.kind != Kind.HELLO:
            raise Refusal("unauthorized", "the first message must be a hello")
        given = hello.take(token=str, client=str)["token"].encode()
        wanted = self._listener.token
        if wanted is not None and not hmac.compare_digest(given, wanted.encode()):
            raise Refusal("unauthorized", WRONG_TOKEN if given else NO_TOKEN)
        self._listener.shard.handle(hello, self._answer, self)

    def _room(self) -> bool:
        """Wait until little is unsent; whether the connection lives."""
        with self._changing:
            while self.unsent > MOST_UNSENT and not self._closed:
                self._changing.wait()
            return not self._closed

    def _answer(self, answer: Message) -> None:
        with self._changing:
            self._answers.append(answer)
            self.unsent += sum(buffer.nbytes for buffer in answer.buffers)
            self._changing.notify_all()

    def _write(self) -> None:
        try:
            while (answer := self._next()) is not None:
                try:
                    send_message(self._stream, answer)
                except ValueError as error:  # too large for a message: nothing of it was sent
                    send_message(self._stream, answer.error(Refusal("value", str(error))))
                with self._changing:
                    self.unsent -= sum(buffer.nbytes for buffer in answer.buffers)
                    self._changing.notify_all()
        except GONE:
            self.close()
            self._stream.close()

    def _next(self) -> Message | None:
        with self._changing:
            while not self._answers and not self._closed:
                self._changing.wait()
            return self._answers.popleft() if self._answers else None

    def close(self, flush: bool = False) -> None:
        """No more is read; with `flush`, what is unsent is still sent."""
        with self._changing:
            self._closed = True
            if not flush:
                self._answers.clear()
            self._changing.notify_all()


def _why(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another process listens there; give another --port (servers.port of a run.toml), or 0 for a free one"
    return f"{os.strerror(error.errno) if error.errno and error.errno > 0 else error}; give another --host or --port"


class Listener:
    """Takes connections at an address for a shard; port 0 takes any that is free.

    >>> with Listener(Shard(), "127.0.0.1", 0) as listener:
    ...     listener.port > 0
    True
    """

    def __init__(
        self,
        shard: Shard,
        host: str,
        port: int,
        *,
        token: str | None = None,
        tls: ssl.SSLContext | None = None,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self.shard, self.token, self._tls, self.most_bytes = shard, token, tls, most_bytes
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._socket = socket.create_server((host, port), family=family, backlog=256)
        except OSError as error:
            raise ValueError(f"a server cannot listen at {host}:{port}: {_why(error)}") from None
        self.port: int = self._socket.getsockname()[1]
        self.stopping = threading.Event()
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self.there: set[Connection] = set()
        threading.Thread(target=self._accept, name="listener", daemon=True).start()

    def _accept(self) -> None:
        while not self.stopping.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # closed
            with self._lock:
                if len(self._open) >= MOST_CONNECTIONS:
                    connection.close()
                    continue
                self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with suppress(OSError, EOFError, ssl.SSLError):
                made = Connection(self, self._stream(connection))
                self.there.add(made)
                try:
                    made.serve()
                finally:
                    self.there.discard(made)
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def _stream(self, connection: socket.socket) -> Stream:
        if self._tls is None:
            return Stream(connection, PATIENCE)
        return TlsStream(connection, HELLO_PATIENCE, self._tls, server=True)

    @property
    def connections(self) -> int:
        return len(self._open)

    def close(self) -> None:
        """Take no more connections, and end those that are there."""
        self.stopping.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            there = list(self._open)
        for connection in there:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
