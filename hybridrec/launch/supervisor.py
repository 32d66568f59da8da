"""Supervisor: starts servers, then trainers; starts again what dies; ends with the trainers, and with their code."""

from __future__ import annotations

import queue
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from hybridrec.launch.child import Child, Ended, Output, how
from hybridrec.launch.restarts import ServerRestarts, TrainerRestarts
from hybridrec.launch.roles import Roles, free_port

STARTING = 60.0  # seconds until servers must listen
TELLING = 5.0  # seconds for other trainers to end by themselves when one has failed
HEEDING = 0.5  # seconds: a signal that comes just before Python begins to wait is noted when it stops waiting
STOPPING = 30.0  # seconds for a server to stop
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Listens(NamedTuple):
    """A server can be reached."""

    number: int
    address: str


class Signalled(NamedTuple):
    """The launcher got a signal."""

    number: int


class Limits(NamedTuple):
    """How often what dies is started again, see `restarts.py`."""

    servers: int
    trainers: int


class Supervisor:
    """Watches all processes of a run, in one thread that takes one event after another."""

    def __init__(self, roles: Roles, limits: Limits, output: Output, checkpoint: Callable[[], str | None]) -> None:
        """`checkpoint` finds the newest one of the run."""
        self._roles, self._output, self._checkpoint = roles, output, checkpoint
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._servers: dict[int, Child] = {}
        self._addresses: dict[int, str] = {}
        self._trainers: list[Child] = []
        self._left: set[Child] = set()  # trainers whose end has not come
        self._failed: list[int] = []  # codes of trainers that have failed since they were started, in order
        self._server_died = False
        self._signal: int | None = None
        self._server_restarts = [ServerRestarts(limits.servers) for _ in range(roles.servers)]
        self._trainer_restarts = TrainerRestarts(limits.trainers, checkpoint())

    def run(self) -> int:
        """Until the trainers are done, or cannot go on. Returns the exit code."""
        heeded = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._note) for number in heeded}
        try:
            for number in range(self._roles.servers):
                self._start_server(number, 0)
            while (code := self._take()) is None:
                pass
            return code
        finally:
            self._end_all()
            for number, action in before.items():
                signal.signal(number, action)

    def processes(self) -> dict[str, int]:
        """The numbers of all processes that live now, by their names."""
        children = [*self._servers.values(), *self._trainers]
        return {child.name: child.process.pid for child in children if child.alive}

    def _note(self, number: int, _: Any) -> None:
        self._events.put(Signalled(number))

    def _take(self) -> int | None:
        """Do what the next event asks for; the exit code where all is over."""
        try:
            event = self._events.get(timeout=HEEDING if self._trainers else STARTING)
        except queue.Empty:
            if self._trainers:
                return None
            silent = next(number for number in self._servers if number not in self._addresses)
            return self._give_up(f"server {silent} does not listen after {STARTING:g} s", 1)
        if isinstance(event, Signalled):
            return self._interrupted(event.number)
        if isinstance(event, Listens):
            return self._listens(event)
        if event.child in self._trainers:
            return self._trainer_ended(event)
        return self._server_ended(event)

    # -- servers --------------------------------------------------------------------------------------------

    def _start_server(self, number: int, port: int) -> None:
        def hears(line: str) -> bool:
            if listens := " listens at " in line:
                self._events.put(Listens(number, line.split()[-1]))
            return listens

        start = self._roles.server(number, port)
        self._servers[number] = Child(f"server {number}", start, self._output, self._events, hears)

    def _listens(self, event: Listens) -> None:
        self._addresses[event.number] = event.address
        if len(self._addresses) == self._roles.servers and not self._trainers:
            self._output.say(f"servers listen; watch them with {self._roles.watched_by(self._in_order())}")
            self._start_trainers(again=False)

    def _in_order(self) -> list[str]:
        return [self._addresses[number] for number in range(self._roles.servers)]

    def _server_ended(self, event: Ended) -> int | None:
        number = next((number for number, child in self._servers.items() if child is event.child), None)
        if number is None:
            return None
        self._server_died = True
        if number not in self._addresses:
            return self._give_up(f"server {number} could not start ({how(event.code)})", 1)
        if not self._server_restarts[number].allows(time.monotonic()):
            return self._give_up(f"server {number} died too often within a minute, at last with {how(event.code)}", 1)
        port = int(self._addresses[number].rpartition(":")[2])
        self._output.say(f"server {number} died ({how(event.code)}); it starts again at once")
        self._start_server(number, port)
        return None

    # -- trainers -------------------------------------------------------------------------------------------

    def _start_trainers(self, again: bool) -> None:
        port = free_port() if self._roles.trainers > 1 else 0
        self._failed, self._server_died = [], False
        starts = [self._roles.trainer(rank, self._in_order(), again, port) for rank in range(self._roles.trainers)]
        names = ["trainer"] if len(starts) == 1 else [f"trainer {rank}" for rank in range(len(starts))]
        self._trainers = [Child(*each, self._output, self._events) for each in zip(names, starts, strict=True)]
        self._left = set(self._trainers)

    def _trainer_ended(self, event: Ended) -> int | None:
        self._left.discard(event.child)
        if event.code:
            self._failed.append(event.code)
            if len(self._failed) == 1:
                patience = TELLING if event.code > 0 else 0.0  # one that was killed has told nobody why
                _later(patience, set(self._left))
        return None if self._left else self._trainers_ended()

    def _trainers_ended(self) -> int | None:
        if not self._failed:
            return 0
        code, saved = self._failed[0], self._checkpoint()
        if self._signal is not None:
            return _exit_code(code)
        if not self._trainer_restarts.allows(code, saved, self._server_died):
            return self._give_up(f"trainers ended with {how(code)}", _exit_code(code))
        whence = "from the beginning: nothing was saved" if saved is None else f"from {saved}"
        self._output.say(f"trainers ended with {how(code)}; they start again {whence}")
        self._start_trainers(again=True)
        return None

    # -- the end --------------------------------------------------------------------------------------------

    def _interrupted(self, number: int) -> int | None:
        """The first signal is passed on to trainers, which save and stop; the second ends them."""
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        if not self._trainers:
            return 128 + number
        if self._signal is not None:
            return self._give_up(f"{name} once more", 128 + number)
        self._signal = number
        self._output.say(f"{name}: trainers finish their step, save and stop; once more ends them at once")
        for child in self._trainers:
            child.signal(signal.SIGTERM if number == signal.SIGHUP else number)
        return None

    def _give_up(self, why: str, code: int) -> int:
        saved = self._checkpoint()
        whence = "Nothing was saved" if saved is None else f"{saved} is saved; go on with {self._roles.again}"
        self._output.say(f"{why}: the run ends. {whence}")
        return code

    def _end_all(self) -> None:
        _kill(self._left)
        for child in self._servers.values():
            child.signal(signal.SIGTERM)
        for child in self._servers.values():
            child.end(STOPPING)


def _later(seconds: float, children: set[Child]) -> None:
    timer = threading.Timer(seconds, _kill, [children])
    timer.daemon = True  # nobody waits for it when all have ended by themselves
    timer.start()


def _kill(children: set[Child]) -> None:
    for child in children:
        child.signal(signal.SIGKILL)


def _exit_code(code: int) -> int:
    """As a shell has it."""
    return code if code >= 0 else 128 - code
