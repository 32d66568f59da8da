"""Watch: ranks tell each other that they live, so that one that raises, dies or stalls ends all, with its name.

Signs of life go through the store of torch.distributed, by a thread and a connection of their own: no collective, and
nothing at a step but a number that is set. A rank that raises leaves its error there. One that dies breaks the
connections of the others, who then look whose process has ended, or, on another host, whose signs have stopped. One
that stalls shows after `timeout` seconds.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from torch.distributed import DistError, PrefixStore  # pyright: ignore[reportPrivateImportUsage] (documented there)

from hybridrec.parallel.meeting import meeting_place
from hybridrec.parallel.process import Process

BEAT = 0.5  # seconds between two signs of life
QUIET = 2.5  # seconds without a sign after which a rank of another host counts as gone, once a connection broke
GRACE = 5.0  # seconds for a rank to end by itself after another failed
FAILURE = "failure"
_WORDS = ("gloo", "connection closed by peer", "connection reset", "broken pipe", "timed out waiting", "socket")


class RankFailure(RuntimeError):
    """Another rank raised, died or stalled; the message says which, and at which step."""


class Watch:
    """One rank's view of all. Set `step` to the step that is being made; `close` it when this rank is done.

    `calls` counts what ranks have asked each other, which all do in the same order: a rank with fewer is waited for.
    """

    def __init__(self, rank: int, world: int, store: Any, timeout: float, *, end: Callable[[int], Any] = os._exit):
        self.rank, self.world, self.timeout = rank, world, timeout
        self.step = self.calls = 0
        self.failure: str | None = None
        self._store, self._end = store, end
        self._told = False  # the failure has reached the program
        self._beats = 0
        self._process = Process.here()
        self._seen: list[tuple[bytes, float]] = [(b"", time.monotonic())] * world  # last sign, and when it changed
        self._reached = time.monotonic()  # when the store last answered
        self._over, self._blind = threading.Event(), False
        self._before = sys.excepthook
        self._thread = threading.Thread(target=self._run, name="hybridrec-watch", daemon=True)

    def start(self) -> None:
        """Give the first sign; from here on, until `close`, a thread gives and reads them."""
        self._sign()
        self._before, sys.excepthook = sys.excepthook, self._uncaught
        atexit.register(self._leave)
        self._thread.start()

    def close(self) -> None:
        """This rank is done, and no longer looks at the others."""
        if self._over.is_set():
            return
        self._over.set()
        atexit.unregister(self._leave)
        if sys.excepthook == self._uncaught:
            sys.excepthook = self._before
        self._thread.join(timeout=4 * BEAT)
        if self._thread.is_alive():  # it waits for the store; if Python ended meanwhile, torch would abort the process
            atexit.register(self._thread.join, self.timeout)

    def _leave(self) -> None:
        """The program is over. After a failure nobody waits for connections to ranks that are gone."""
        with contextlib.suppress(SystemExit):  # a signal of the launcher, which ends all ranks of a failed job
            self.close()
        if self.failure is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            self._end(1)
        self._thread.join(self.timeout)  # what `close` registers now, nobody calls any more

    # -- what this rank says ----------------------------------------------------------------------------------

    def fail(self, error: BaseException) -> None:
        """This rank has failed: all others end with this error."""
        self._publish(f"rank {self.rank} failed at step {self.step}: {type(error).__name__}: {error}")

    def heard(self) -> None:
        """The program knows of a failure, and has what it still does to do: it is not ended meanwhile."""
        self._told = True

    def explain(self, error: BaseException) -> str:
        """Why a connection broke or timed out: what the failed rank left, or whose signs have stopped."""
        self._told = True
        late = "timed out" in str(error).lower()
        until = time.monotonic() + 2 * QUIET
        while self.failure is None and time.monotonic() < until:
            if not late and (gone := self._gone()):
                self._publish(self._loss(gone))
            elif late and (slow := self._silent(QUIET) or self._behind()):
                self._publish(self._stop(slow))
            else:
                time.sleep(BEAT / 5)
        if self.failure is None:
            self._publish(f"a rank that rank {self.rank} waited for at step {self.step} did not answer")
        return f"{self.failure}; all ranks end"

    def _publish(self, text: str) -> None:
        """The first failure of all counts; where the store does not answer, this rank's own."""
        self._told = True

        def tell() -> None:
            self.failure = self._store.compare_set(FAILURE, "", text).decode() or text

        if not self._answers() or not self._quietly(tell):
            self.failure = self.failure or text

    # -- what the others say ----------------------------------------------------------------------------------

    def _run(self) -> None:
        """Look at the others until this rank is done, and say so."""
        self._keep_looking()
        if self._over.is_set() and not self._blind and self._quietly(self._sign) and self.rank == 0:
            # It may keep the store: the others see this sign first.
            time.sleep(0 if all(_read(sign)["over"] for sign, _ in self._seen[1:]) else 2 * BEAT)

    def _keep_looking(self) -> None:
        while self.failure is None and not self._over.wait(BEAT):
            try:
                self._look()
                self._reached = time.monotonic()
            except (DistError, RuntimeError) as error:
                self._lost(error)
                if self.failure is None:
                    return
        if self.failure is not None:
            self._end_soon()

    def _lost(self, error: Exception) -> None:
        """The store answers no more: whoever keeps it is done, has died, or stalls."""
        stalls, done = (
            "tim" in str(error).lower() and time.monotonic() - self._reached >= self.timeout,
            self._is_done(0),
        )
        self._blind = True
        if not done:
            self.failure = self.failure or (self._stop([0]) if stalls else self._loss([0]))

    def _look(self) -> None:
        self._sign()
        now = time.monotonic()
        for rank, sign in enumerate(self._store.multi_get([_key(rank) for rank in range(self.world)])):
            if sign != self._seen[rank][0]:
                self._seen[rank] = sign, now
        if self.failure is None and self._store.check([FAILURE]):
            self.failure = self._store.get(FAILURE).decode()
        if self.failure is None and (stopped := self._silent(self.timeout)):
            told, self._told = self._told, False
            self._publish(self._stop(stopped))
            self._told = told

    def _sign(self) -> None:
        self._beats += 1
        sign = {"beat": self._beats, "step": self.step, "calls": self.calls, "over": self._over.is_set()}
        self._store.set(_key(self.rank), json.dumps({**sign, "process": self._process}))

    def _end_soon(self) -> None:
        """Leave the program time to end by itself, as its connections break; then end it."""
        until = time.monotonic() + GRACE
        while self._waits() or time.monotonic() < until:
            if self._over.wait(BEAT / 5):
                return
            until = max(until, time.monotonic() + GRACE if self._waits() else 0.0)
        print(f"rank {self.rank}: {self.failure}; this rank ends too", file=sys.stderr, flush=True)
        self._end(1)

    def _waits(self) -> bool:
        """Whether the program was told, and is not over yet: it may have something to do still."""
        return self._told and threading.main_thread().is_alive()

    def _answers(self) -> bool:
        """Whether the store did so lately; else one would wait for it."""
        return not self._blind and time.monotonic() - self._reached < QUIET

    def _is_done(self, rank: int) -> bool:
        return _read(self._seen[rank][0])["over"]

    def _others(self) -> list[int]:
        """Ranks that are not done."""
        return [rank for rank in range(self.world) if rank != self.rank and not self._is_done(rank)]

    def _silent(self, seconds: float) -> list[int]:
        """Ranks that gave no sign for so long, and are not done."""
        if time.monotonic() - self._reached >= seconds:
            return [] if self.rank == 0 or self._is_done(0) else [0]  # which keeps the store
        return [rank for rank in self._others() if time.monotonic() - self._seen[rank][1] > seconds]

    def _gone(self) -> list[int]:
        """Ranks that are no more. A busy machine can keep any of them silent: where it can be seen, it is looked at."""
        ended = {rank: _process(self._seen[rank][0]).ended() for rank in self._others()}
        if ended.get(0):
            return [0]  # which kept the store: without it, others end and cannot say why
        return [rank for rank, is_so in ended.items() if is_so or (is_so is None and rank in self._silent(QUIET))]

    def _behind(self) -> list[int]:
        """Ranks that have not come to where this one is."""
        here, signs = (self.step, self.calls), [_read(sign) for sign, _ in self._seen]
        return [rank for rank, sign in enumerate(signs) if rank != self.rank and (sign["step"], sign["calls"]) < here]

    def _stop(self, ranks: Sequence[int]) -> str:
        return f"{_names(ranks)} stalled for {self.timeout:g} s{self._at(ranks)}"

    def _loss(self, ranks: Sequence[int]) -> str:
        return f"{_names(ranks)} died or left: its connection broke{self._at(ranks)}"

    def _at(self, ranks: Sequence[int]) -> str:
        steps = sorted({_read(self._seen[rank][0])["step"] for rank in ranks})
        return f", last seen at step {', '.join(map(str, steps))}"

    def _quietly(self, work: Callable[[], Any]) -> bool:
        """Try what needs the store; whether it could be done."""
        try:
            work()
        except (DistError, RuntimeError):
            return False
        return True

    def _uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """An error that ends the program: the other ranks are told."""
        if not issubclass(kind, RankFailure | KeyboardInterrupt | SystemExit):
            if of_connection(error):
                print(f"rank {self.rank}: {self.explain(error)}", file=sys.stderr, flush=True)
            else:
                self.fail(error)
        self._before(kind, error, trace)


def watch_over(rank: int, world: int, timeout: float, name: str) -> Watch:
    """A watch through the store where ranks have met; `name` tells this world from others there."""
    return Watch(rank, world, PrefixStore(name, meeting_place(timeout, opens=False)), timeout)


@contextmanager
def guarded(watch: Watch | None, *planned: type[Exception]) -> Iterator[None]:
    """Within it, an error of this rank ends all of them, and a broken connection becomes a RankFailure.

    Errors that are `planned` come on all ranks, and are none of this one's.

    >>> with guarded(None):
    ...     pass
    """
    try:
        yield
    except RankFailure:
        if watch is not None:
            watch.heard()
        raise
    except (KeyboardInterrupt, SystemExit, *planned):
        raise
    except BaseException as error:
        if watch is not None and of_connection(error):
            raise RankFailure(watch.explain(error)) from error
        if watch is not None:
            watch.fail(error)
        raise


def of_connection(error: BaseException) -> bool:
    """Whether an error is of the connection to another rank, and so no fault of this one.

    >>> of_connection(RuntimeError("[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:29614"))
    True
    """
    if isinstance(error, DistError):
        return True
    return type(error) is RuntimeError and any(word in str(error).lower() for word in _WORDS)


def _key(rank: int) -> str:
    return f"rank/{rank}"


def _read(sign: bytes) -> dict[str, Any]:
    return json.loads(sign) if sign else {"beat": 0, "step": 0, "calls": 0, "over": False}


def _process(sign: bytes) -> Process:
    return Process(*json.loads(sign)["process"]) if sign else Process("", 0, "")


def _names(ranks: Sequence[int]) -> str:
    from hybridrec.parallel.ranks import names_of

    return names_of(ranks)
