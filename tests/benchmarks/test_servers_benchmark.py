"""The benchmark of servers: its relay holds bytes back and loses none; a part tells what it ran with."""

from __future__ import annotations

import random
import socket
import threading
import time
from argparse import Namespace
from contextlib import ExitStack
from types import ModuleType
from typing import Any

import pytest

MODULES = ("servers", "servers_processes", "servers_relay")


def test_a_part_tells_the_options_that_it_ran_with_and_what_ran_beside_it(
    modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = modules["servers"]
    loads = iter([0.5, 1.5, 2.5])
    monkeypatch.setattr(servers, "load", lambda: next(loads))
    monkeypatch.setattr(servers, "work_of", lambda part, args: lambda: {"auc_gap": 0.0} if part == "auc" else {})
    args = Namespace(only=["delay", "auc", "memory"], passes=3, steps=150, seeds=2, memory_minutes=10.0)
    answer = servers.measure(args)
    ran = {part: found["ran_with"] for part, found in answer["parts"].items()}
    assert ran == {
        "delay": {"passes": 3, "steps": 150, "load": 0.5},
        "auc": {"seeds": 2, "load": 1.5},
        "memory": {"memory_minutes": 10.0, "load": 2.5},
    }
    assert answer["auc_gap"] == 0.0
    assert "passes" not in answer


def test_pieces_wait_side_by_side_and_leave_when_they_are_due(modules: dict[str, ModuleType]) -> None:
    with ExitStack() as stack:
        here, source, target, there = map(stack.enter_context, (*socket.socketpair(), *socket.socketpair()))
        for each in (source, target, there):
            each.setblocking(False)
        spare: list[Any] = []
        flow = modules["servers_relay"].Flow(source, target, spare)
        before = time.perf_counter()
        for piece in (b"one", b"two"):
            here.sendall(piece)
            flow.read(50.0)
        here.close()
        flow.read(60.0)
        after = time.perf_counter()
        flow.write(before + 49)
        with pytest.raises(BlockingIOError):
            there.recv(9)
        flow.write(after + 50)
        assert there.recv(9) == b"onetwo"
        assert not flow.ended
        assert len(spare) == 2, "empty pipes are there for all flows"
        flow.write(after + 60)
        assert there.recv(9) == b""
        assert flow.ended
        for pipe in spare:
            pipe.close()


def test_every_byte_comes_through_both_ways_and_so_does_the_end(modules: dict[str, ModuleType]) -> None:
    sent = random.Random(0).randbytes(5_000_000)  # more than a pipe holds, and than sockets do
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_echo, args=(listener,), daemon=True).start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with modules["servers_processes"].delayed([address], 0.001) as (relayed,):
            for _ in range(2):  # a relay takes connections one after another
                with socket.create_connection(("127.0.0.1", int(relayed.rpartition(":")[2]))) as connection:
                    threading.Thread(target=_send, args=(connection, sent), daemon=True).start()
                    assert b"".join(iter(lambda: connection.recv(1 << 20), b"")) == sent


def _send(connection: socket.socket, data: bytes) -> None:
    connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)


def _echo(listener: socket.socket) -> None:
    for _ in range(2):
        connection, _ = listener.accept()
        while data := connection.recv(1 << 20):
            connection.sendall(data)
        connection.close()
