"""The network between a trainer and a server: cuts, kills, silence; nothing is lost, doubled or waited for in vain."""

from __future__ import annotations

import re
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

from hybridrec.server import channel
from hybridrec.server.channel import split_address
from hybridrec.server.client import Servers
from hybridrec.server.errors import Fenced, ServerLost
from hybridrec.server.listener import Listener
from hybridrec.server.protocol import HEADER, MAGIC, Kind, Message
from hybridrec.server.shard import Shard
from hybridrec.server.stream import Stream, receive_message, send_message
from tests.patience import PATIENCE, wait_for
from tests.server.counting import attached, look, push
from tests.server.processes import Relay, ServerProcess

IDS = list(range(50))


@pytest.fixture
def listener():
    with Listener(Shard(), "127.0.0.1", 0) as made:
        yield made


def address(listener: Listener) -> str:
    return f"127.0.0.1:{listener.port}"


def test_whoever_waits_for_a_server_that_is_not_there_yet_is_told_so_once(monkeypatch, capsys):
    monkeypatch.setattr(channel, "SILENT", 0.0)
    with Listener(Shard(), "127.0.0.1", 0) as gone:
        there = address(gone)
    said: list[str] = []

    def told() -> bool:
        said.append(capsys.readouterr().err)
        return bool("".join(said))

    with ThreadPoolExecutor(1) as pool:
        connected = pool.submit(Servers.connect, [there], deadline=PATIENCE)
        wait_for(told)
        with Listener(Shard(), "127.0.0.1", gone.port):
            connected.result().close()
    told()
    assert re.fullmatch(
        rf"server 0 at {there}: no connection yet \(.+\); waiting up to {PATIENCE:g} s\n", "".join(said)
    )


@pytest.mark.parametrize("staleness", [0, 4])
def test_pushes_through_connections_that_are_cut_count_once(listener, staleness):
    with Relay(address(listener)) as relay, Servers.connect([relay.address]) as servers:
        session = attached(servers, staleness=staleness)
        cut = None
        for step in range(40):
            if step % 7 == 3:
                if cut is not None:
                    cut.join()  # however late it came, it is not the same as the next one
                cut = threading.Timer(0.001 * (step % 5), relay.cut)
                cut.start()
            found = look(session, step, IDS)
            assert all(max(0, step - staleness) <= count <= step for count in found)
            push(session, step, IDS)
        session.drain()
        assert relay.connections > 3
    assert listener.shard.tables["count"].read(np.array(IDS)).rows[:, 0].tolist() == [40] * 50


def test_an_answer_that_was_cut_in_the_middle_is_asked_for_again(listener):
    with Relay(address(listener), after=1200) as relay, Servers.connect([relay.address]) as servers:
        session = attached(servers)
        for step in range(8):
            assert look(session, step, IDS) == [step] * 50
            push(session, step, IDS).result()
        assert relay.connections > 2


def test_several_threads_may_ask_at_once(listener):
    with Servers.connect([address(listener)]) as servers:
        session = attached(servers)
        look(session, 0, IDS)
        push(session, 0, IDS).result()
        found: list[bool] = []

        def read() -> None:
            found.extend(look(session, 0, IDS[:n], train=False) == [1] * n for n in range(1, 30))

        threads = [threading.Thread(target=read) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert found == [True] * 116


def test_a_server_that_starts_again_without_its_rows_ends_the_job():
    with ServerProcess() as server:
        servers = Servers.connect([server.address], deadline=PATIENCE)
        session = attached(servers)
        look(session, 0, IDS)
        server.end(signal.SIGKILL)
        waits = push(session, 0, IDS)
        with ServerProcess(port=server.port):
            with pytest.raises(
                ServerLost, match=r"server 0 .*: it has started anew without its rows; .*last checkpoint"
            ):
                waits.result(PATIENCE)
            with pytest.raises(ServerLost, match="has started anew without its rows"):
                look(session, 1, IDS)
        servers.close()


def test_a_server_that_does_not_come_back_fails_requests_at_their_deadline():
    with ServerProcess() as server:
        servers = Servers.connect([server.address])
        session = attached(servers)
        server.end(signal.SIGKILL)
        servers.deadline = 1.0
        with pytest.raises(ServerLost, match=r"the lookup of step 0 was not answered within 1 s \(.+\)"):
            look(session, 0, IDS)
        servers.close()


def test_a_server_that_is_silent_fails_requests_at_their_deadline_and_may_go_on():
    with ServerProcess() as server, Servers.connect([server.address]) as servers:
        session = attached(servers)
        server.stop()
        servers.deadline = 0.5
        with pytest.raises(ServerLost, match=r"server 0 .*: the lookup of step 0 was not answered within 0.5 s"):
            look(session, 0, IDS)
        server.process.send_signal(signal.SIGCONT)
        servers.deadline = PATIENCE
        assert look(session, 0, IDS, train=False) == [0] * 50


def test_a_request_fails_at_its_own_deadline_though_one_that_may_take_longer_came_before_it():
    with ServerProcess() as server, Servers.connect([server.address]) as servers:
        server.stop()
        longer, shorter = (servers.ask(0, Kind.STATS, deadline=deadline) for deadline in (300, 0.3))
        with pytest.raises(ServerLost, match=r"the request stats was not answered within 0.3 s"):
            shorter.result(PATIENCE)
        server.process.send_signal(signal.SIGCONT)
        assert longer.result(PATIENCE).fields["number"] == 0


def test_a_trainer_waits_longer_for_others_than_for_the_server(listener, monkeypatch):
    with Servers.connect([address(listener)]) as servers:
        first, second = (attached(servers, trainer=trainer, trainers=2) for trainer in (0, 1))
        look(first, 0, IDS)
        servers.deadline = 3.0
        waits = push(first, 0, IDS)
        with pytest.raises(TimeoutError):
            waits.result(4.0)
        look(second, 0, IDS)
        push(second, 0, IDS)
        assert waits.result(PATIENCE).updated.tolist() == [50]
        servers.deadline = 0.5
        monkeypatch.setattr("hybridrec.server.channel.Channel.patience", 0.6)
        push(first, 1, IDS)
        with pytest.raises(ServerLost, match=r"the push of step 1 was not answered"):
            first.drain()


def test_an_update_that_fails_is_told_to_all_who_wait_for_it(listener, monkeypatch):
    with Servers.connect([address(listener)]) as servers:
        trainers = [attached(servers, trainer=trainer, trainers=2) for trainer in (0, 1)]
        for each in trainers:
            look(each, 0, IDS)

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(listener.shard.groups[0].rows, "update", full)
        for waits in [push(each, 0, IDS) for each in trainers]:
            with pytest.raises(RuntimeError, match=r"the update failed: OSError: .*No space left on device"):
                waits.result(PATIENCE)
        monkeypatch.undo()
        for each in trainers:
            with pytest.raises(RuntimeError, match="No space left on device"):
                each.drain()
        for waits in [push(each, 0, IDS) for each in trainers]:
            assert waits.result(PATIENCE).updated.tolist() == [50]


def test_an_answer_that_is_too_large_for_a_message_is_an_error(listener, monkeypatch):
    with Servers.connect([address(listener)]) as servers:
        session = attached(servers)
        look(session, 0, IDS)
        monkeypatch.setattr("hybridrec.server.protocol.MOST_BYTES", 399)
        with pytest.raises(ValueError, match=r"a message ANSWER .* is too large"):
            servers.ask(0, Kind.IDS, {"table": "count"}).result(PATIENCE)


def test_servers_in_another_order_than_their_numbers_are_refused():
    with Listener(Shard(0, 2), "127.0.0.1", 0) as first, Listener(Shard(1, 2), "127.0.0.1", 0) as second:
        with pytest.raises(ValueError, match="is server 1 of 2, but its place among the addresses is 0 of 2"):
            Servers.connect([address(second), address(first)])
        with pytest.raises(ValueError, match="is server 0 of 2, but its place among the addresses is 0 of 1"):
            Servers.connect([address(first)])
        with Servers.connect([address(first), address(second)]) as servers:
            assert [each.fields["number"] for each in servers.ask_all(Kind.HELLO)] == [0, 1]


def test_a_malformed_message_ends_its_connection_and_nothing_else(listener):
    with Servers.connect([address(listener)]) as servers:
        session = attached(servers)
        for data in (b"garbage " * 10, b"HYBR" + b"\xff" * 60):
            with socket.create_connection(("127.0.0.1", listener.port)) as other:
                stream = Stream(other, patience=PATIENCE)
                send_message(stream, Message(Kind.HELLO, {"token": "", "client": "other"}))
                assert receive_message(stream).kind == Kind.ANSWER
                other.sendall(data)
                assert receive_message(stream).fields["code"] == "malformed"
                with pytest.raises(EOFError):
                    receive_message(stream)
        assert look(session, 0, IDS) == [0] * 50


def test_a_server_of_another_version_is_named_at_once(listener, monkeypatch):
    monkeypatch.setattr("hybridrec.server.protocol.VERSION", 9)
    shown = threading.Thread(target=_answer_as_version_8, args=(server := socket.create_server(("127.0.0.1", 0)),))
    shown.start()
    with server, pytest.raises(ValueError, match="version 8 of the protocol, this side has 9; run the same hybridrec"):
        Servers.connect([f"127.0.0.1:{server.getsockname()[1]}"])
    shown.join()


def _answer_as_version_8(server: socket.socket) -> None:
    with server.accept()[0] as client:
        client.recv(1 << 16)
        client.sendall(HEADER.pack(MAGIC, 8, Kind.ERROR, 0, 0, 0, 0))


def test_a_session_that_was_replaced_is_told_so(listener):
    with Servers.connect([address(listener)]) as servers:
        old = attached(servers, 1)
        attached(servers, 2)
        with pytest.raises(Fenced, match="serves session 2, this message is of session 1"):
            look(old, 0, IDS)


def test_a_client_that_does_not_read_is_not_read_from_and_holds_up_nobody(listener, monkeypatch):
    monkeypatch.setattr("hybridrec.server.listener.MOST_UNSENT", 1 << 20)
    many = np.arange(9000)
    ask = Message(Kind.FIND, {"tables": ["count"]}, [np.array([[0, len(many)]]), many])
    with (
        Servers.connect([address(listener)]) as servers,
        socket.create_connection(("127.0.0.1", listener.port)) as deaf,
    ):
        session = attached(servers)
        stream, sent = Stream(deaf, patience=3.0), []
        send_message(stream, Message(Kind.HELLO, {"token": "", "client": "deaf"}))

        def send() -> None:
            with suppress(OSError):  # it waited for seconds: the server reads no more
                for number in range(1000):
                    send_message(stream, ask)
                    sent.append(number)

        sender = threading.Thread(target=send)
        sender.start()
        while sender.is_alive():
            assert look(session, 0, IDS, train=False) == [0] * 50
            assert max(each.unsent for each in listener.there) < (1 << 20) + 80_000
        assert 0 < len(sent) < 1000
        assert max(each.unsent for each in listener.there) > 1 << 20


@pytest.mark.parametrize("text", ["box", "box:", ":7000", "box:70000", "box:x"])
def test_an_address_without_host_or_port_is_refused(text):
    with pytest.raises(ValueError, match="is no address of a server; write it as host:port"):
        split_address(text)


def test_no_addresses_are_refused():
    with pytest.raises(ValueError, match="there are no addresses of servers"):
        Servers.connect([])
