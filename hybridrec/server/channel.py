"""Channel: the connection of a trainer to one server. It is made again when it breaks, and what was not answered is
sent again, until the deadline of each request.
"""

from __future__ import annotations

import itertools
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from hybridrec.server.errors import ServerLost, raised
from hybridrec.server.link import Link, settle
from hybridrec.server.protocol import Kind, Message, Refusal
from hybridrec.server.stream import Stream, TlsStream, receive_message, send_message

FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.5  # seconds between attempts to connect
SILENT = 1.0  # seconds of waiting for a connection before a line says so
GONE = (OSError, EOFError, ssl.SSLError, Refusal)  # what a broken connection raises

UNANSWERED = "who listens there does not answer as a server: is it another program, or does one side alone use TLS?"
HOPELESS = (PermissionError, ssl.SSLCertVerificationError, ServerLost)  # what no further attempt will mend


@dataclass(eq=False)
class Call:
    """A request on its way."""

    request: Message
    future: Future[Message]
    what: str
    seconds: float
    began: float

    def __post_init__(self) -> None:
        self.expires = self.began + self.seconds
        self.asked_again = self.began + self.seconds / 3


class Channel(Link):
    """Two threads: one connects and reads answers, one looks after deadlines. Whoever asks sends.

    A request that waits for other trainers is given more time, up to `patience` seconds, while the server says so.
    """

    patience = 1800.0
    checkpoint: str | None = None  # to resume from, for the error of a server that is lost

    def __init__(
        self, number: int, count: int, address: str, hello: dict[str, str], tls: ssl.SSLContext | None, deadline: float
    ) -> None:
        self.number, self.address = number, address
        self._pings = itertools.count(2**63)  # numbers that no request has
        self._host, self._port = split_address(address)
        self._count, self._hello, self._tls, self._deadline = count, hello, tls, deadline
        self._calls: dict[int, Call] = {}
        self._replay: list[Message] = []
        self._current: Stream | None = None  # that is read from
        self._stream: Stream | None = None  # that may be sent to
        self._life: int | None = None
        self._sending, self._changing = threading.RLock(), threading.Condition()
        self._fault: Exception | None = None  # after which nothing can be asked
        self._trouble = "no connection was made"
        self._closed = False
        self._looks_at = 0.0  # when deadlines are looked after next
        for work in (self._keep, self._watch):
            threading.Thread(target=work, name=f"server {number}", daemon=True).start()

    # -- asking -------------------------------------------------------------------------------------------

    def ask(self, request: Message, deadline: float, what: str) -> Future[Message]:
        future: Future[Message] = Future()
        call = Call(request, future, what, deadline, time.monotonic())
        with self._sending:
            with self._changing:
                if self._fault is not None or self._closed:
                    future.set_exception(self._fault or self._lost(what, "is not sent: the connection was closed"))
                    return future
                self._calls[request.number] = call
                if call.asked_again < self._looks_at:
                    self._changing.notify_all()
            if self._stream is not None:
                self._send(self._stream, request)
        return future

    def _send(self, stream: Stream, request: Message) -> None:
        """Send it; where that fails, the reader finds the stream closed and begins anew."""
        try:
            send_message(stream, request)
        except GONE as error:
            self._trouble = _told(error)
            stream.close()

    def again(self, requests: list[Message]) -> None:
        self._replay = requests

    def wait(self) -> None:
        """Until there is a connection, or an error that none can be made. Whoever waits long is told for what."""
        began, told = time.monotonic(), False
        with self._changing:
            while self._life is None and self._fault is None and time.monotonic() < began + self._deadline:
                if not told and time.monotonic() > began + SILENT:
                    told = True
                    waiting = f"no connection yet ({self._trouble}); waiting up to {self._deadline:g} s"
                    print(f"server {self.number} at {self.address}: {waiting}", file=sys.stderr, flush=True)
                self._changing.wait(0.1)
            if self._fault is not None:
                raise self._fault
            if self._life is None:
                reason = f"was not made within {self._deadline:g} s ({self._trouble})"
                start = f"hybridrec server --number {self.number} --of {self._count} --port {self._port}"
                remedy = f"start it: {start}, or mend the address"
                raise ServerLost(self.number, self.address, "the connection", reason, remedy=remedy)

    def close(self) -> None:
        with self._changing:
            self._closed = True
            self._changing.notify_all()
        stream = self._stream
        if stream is not None:
            stream.close()
        self._fail_all(self._lost("the request", "was given up: the connection was closed"))

    # -- the connection -----------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Connect, read answers until that fails, and begin anew."""
        pause = FIRST_PAUSE
        while not self._closed and self._fault is None:
            stream = None
            try:
                stream = self._open()
                self._greet(stream)
                pause = FIRST_PAUSE
                self._current = stream
                threading.Thread(target=self._resume, args=(stream,), daemon=True).start()
                while True:
                    self._answered(receive_message(stream))
            except HOPELESS as error:
                self._give_up(error)
            except GONE as error:
                self._trouble = _told(error)
            except Exception as error:  # of this side
                self._give_up(error)
            self._disconnected(stream)
            with self._changing:
                if not self._closed:
                    self._changing.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _open(self) -> Stream:
        connection = socket.create_connection((self._host, self._port), timeout=min(self._deadline, 5.0))
        connection.settimeout(None)
        self._trouble = UNANSWERED  # until it has said hello
        try:
            if self._tls is None:
                return Stream(connection, self._deadline)
            with _meeting():
                return TlsStream(connection, self._deadline, self._tls, server=False, host=self._host)
        except BaseException:
            connection.close()
            raise

    def _greet(self, stream: Stream) -> None:
        """Say hello; a server that has started anew is told what it must know, or is lost if its rows are."""
        stream.patience(self._deadline, min(self._deadline, 5.0))
        try:
            with _meeting():
                about = self._said(stream, Message(Kind.HELLO, self._hello))
        except Refusal as refusal:  # another program, or another version
            raise ValueError(f"{self.address} is no server for this trainer: {refusal}") from None
        if (about["number"], about["count"]) != (self.number, self._count):
            raise ValueError(
                f"{self.address} is server {about['number']} of {about['count']}, but its place among the addresses is "
                f"{self.number} of {self._count}; name all servers, in the order of their numbers"
            )
        if self._life is not None and about["life"] != self._life:
            if not about["kept"]:
                raise self._lost("it", "has started anew without its rows")
            for request in self._replay:
                self._said(stream, request)
        with self._changing:
            self._life = about["life"]
            self._changing.notify_all()
        stream.patience(self._deadline)

    def _said(self, stream: Stream, request: Message) -> dict:
        send_message(stream, request)
        answer = receive_message(stream)
        if answer.kind == Kind.ERROR:
            raise raised(self.number, answer.fields)
        return dict(answer.fields)

    def _resume(self, stream: Stream) -> None:
        """Send what was not answered, in order, and let others send; a thread of its own, so that answers are read."""
        with self._sending:
            with self._changing:
                calls = list(self._calls.values())
            for call in calls:
                self._send(stream, call.request)
            self._stream = stream if stream is self._current else self._stream

    def _disconnected(self, stream: Stream | None) -> None:
        self._current = None
        if stream is None:
            return
        stream.close()
        with self._sending:
            self._stream = None

    def _answered(self, answer: Message) -> None:
        if answer.number >= 2**63:
            return self._give_time(answer.fields.get("waiting", []))
        with self._changing:
            call = self._calls.pop(answer.number, None)
        if call is not None:  # else it came too late
            settle(call.future, self.number, answer)

    # -- what goes wrong ----------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Fail requests whose deadline has passed."""
        while not self._closed and self._fault is None:
            with self._changing:
                now = time.monotonic()
                late = [call for call in self._calls.values() if call.expires <= now]
                for call in late:
                    del self._calls[call.request.number]
                slow = [call for call in self._calls.values() if call.asked_again <= now]
                for call in slow:
                    call.asked_again = now + call.seconds / 3
                if not late and not slow:
                    times = [min(call.expires, call.asked_again) for call in self._calls.values()]
                    self._looks_at = max(now + 0.001, min(times, default=now + 3600))
                    self._changing.wait(self._looks_at - now)
            self._ping([call.request.number for call in slow])
            for call in late:
                reason = f"was not answered within {call.seconds:g} s"
                reason += f" ({self._trouble})" if self._stream is None else ""
                call.future.set_exception(self._lost(call.what, reason))

    def _ping(self, numbers: list[int]) -> None:
        """Ask whether these requests wait for other trainers; nothing if whoever sends is stuck."""
        if not numbers or not self._sending.acquire(timeout=0.1):
            return
        try:
            if self._stream is not None:
                self._send(self._stream, Message(Kind.PING, {"numbers": numbers}, (), next(self._pings)))
        finally:
            self._sending.release()

    def _give_time(self, numbers: list[int]) -> None:
        """These requests wait for other trainers: their deadline is moved, but not for ever."""
        now = time.monotonic()
        with self._changing:
            for call in [self._calls[number] for number in numbers if number in self._calls]:
                call.expires = min(now + call.seconds, call.began + max(self.patience, call.seconds))

    def _give_up(self, error: Exception) -> None:
        with self._changing:
            self._fault = error
            self._changing.notify_all()
        self._fail_all(error)

    def _fail_all(self, error: Exception) -> None:
        with self._changing:
            calls = list(self._calls.values())
            self._calls.clear()
        for call in calls:
            with suppress(Exception):  # it may have been answered just now
                call.future.set_exception(error)

    def _lost(self, what: str, reason: str) -> ServerLost:
        return ServerLost(self.number, self.address, what, reason, self.checkpoint)


@contextmanager
def _meeting() -> Iterator[None]:
    """Whoever ends the connection, or is silent, before its hello may be no server at all: the error says so."""
    try:
        yield
    except (*HOPELESS, Refusal):
        raise
    except ssl.SSLError as error:
        raise ConnectionError(f"{error.reason or error}; {UNANSWERED}") from None
    except (OSError, EOFError):
        raise ConnectionError(UNANSWERED) from None


def _told(error: Exception) -> str:
    """What went wrong, without numbers of the operating system."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def split_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[ipv6]:port".

    >>> split_address("[::1]:7000"), split_address("box:7000")
    (('::1', 7000), ('box', 7000))
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{address!r} is no address of a server; write it as host:port, such as box-1:7000")
    return host.removeprefix("[").removesuffix("]"), int(port)
