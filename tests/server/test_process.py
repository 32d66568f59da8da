"""Servers as processes: how they start and stop, whom they let in, and what they import."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from hybridrec.server.client import Servers
from hybridrec.server.errors import ServerLost
from hybridrec.server.process import ServerOptions, client_tls, read_token
from hybridrec.server.protocol import Kind
from tests.patience import PATIENCE
from tests.server.counting import attached, look, push
from tests.server.processes import PYTHON, ServerProcess, certificate

TOKEN = "a-long-and-random-text"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory):
    """A server with a certificate and a token, and that certificate."""
    folder = tmp_path_factory.mktemp("guarded")
    cert, key = certificate(folder)
    (folder / "token").write_text(TOKEN + "\n")
    options = ["--host", "127.0.0.1", "--tls-cert", str(cert), "--tls-key", str(key)]
    with ServerProcess(*options, "--token-file", str(folder / "token")) as server:
        yield server, cert


def test_a_server_imports_no_torch_and_stops_cleanly():
    with ServerProcess() as server:
        libraries = Path(f"/proc/{server.process.pid}/maps").read_text()
        assert "_native" in libraries
        assert "torch" not in libraries
        assert "pyarrow" not in libraries
        with Servers.connect([server.address]) as servers:
            session = attached(servers)
            assert look(session, 0, [1]) == [0]
            push(session, 0, [1]).result()
        assert server.end() == 0


HELD = """
import os, signal
from hybridrec.server.process import Listener, ServerOptions, run
begin = Listener.__init__
def begin_with_a_signal_to_come(self, *args, **options):
    begin(self, *args, **options)
    def wait(seconds):
        with self.stopping._cond:
            os.kill(os.getpid(), signal.SIGTERM)
        return False
    self.stopping.wait = wait
Listener.__init__ = begin_with_a_signal_to_come
run(ServerOptions())
"""


def test_a_signal_stops_a_server_at_any_moment():
    """Once, not while it looked whether it was to stop: the lock of that was held."""
    ended = subprocess.run([sys.executable, "-c", HELD], env=PYTHON, capture_output=True, text=True, timeout=PATIENCE)
    assert (ended.returncode, ended.stderr) == (0, "stopped\n")


def test_a_server_can_be_told_to_stop():
    with ServerProcess() as server, Servers.connect([server.address]) as servers:
        servers.ask(0, Kind.STOP).result()
        assert server.process.wait(PATIENCE) == 0


def test_with_tls_and_token_all_is_as_without(guarded):
    server, cert = guarded
    with Servers.connect([server.address], token=TOKEN, tls=client_tls(cert)) as servers:
        session = attached(servers)
        ids = list(range(9_000))
        for step in range(3):
            assert look(session, step, ids) == [step] * 9_000
            push(session, step, ids)


@pytest.mark.parametrize("token", [None, "another-long-random-text", TOKEN[:-1], TOKEN + "x"])
def test_a_wrong_token_is_refused_at_once(guarded, token):
    server, cert = guarded
    remedy = (
        "name the file that holds it" if token is None else "it must be that of the file which the server was given"
    )
    with pytest.raises(PermissionError, match=remedy):
        Servers.connect([server.address], token=token, tls=client_tls(cert), deadline=PATIENCE)


def test_a_server_whose_certificate_is_not_known_is_not_told_the_token(guarded, tmp_path):
    server, _ = guarded
    other, _ = certificate(tmp_path, "other")
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        Servers.connect([server.address], token=TOKEN, tls=client_tls(other), deadline=PATIENCE)


def test_an_expired_certificate_is_refused(tmp_path):
    cert, key = certificate(tmp_path, days=-1)
    with (
        ServerProcess("--tls-cert", str(cert), "--tls-key", str(key)) as server,
        pytest.raises(ssl.SSLError, match="certificate has expired"),
    ):
        Servers.connect([server.address], tls=client_tls(cert), deadline=PATIENCE)


def test_a_client_without_tls_is_refused_by_a_server_that_has_it(guarded):
    server, _ = guarded
    with pytest.raises(ServerLost, match=r"was not made within 1 s \(who listens there .* does one side alone use TLS"):
        Servers.connect([server.address], token=TOKEN, deadline=1)


def test_a_client_with_tls_is_told_that_the_server_may_have_none(guarded):
    _, cert = guarded
    with (
        ServerProcess() as plain,
        pytest.raises(ServerLost, match=r"\(.*who listens there .* does one side alone use TLS"),
    ):
        Servers.connect([plain.address], tls=client_tls(cert), deadline=1)


def test_another_program_at_the_address_is_told_from_nobody():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ServerLost, match="who listens there does not answer as a server: is it another program"):
            Servers.connect([address], deadline=0.3)


def test_strangers_may_send_little_and_cost_nobody_anything(guarded):
    server, cert = guarded
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100_000, b""):
        with socket.create_connection(("127.0.0.1", server.port)) as stranger:
            stranger.sendall(data)
    with Servers.connect([server.address], token=TOKEN, tls=client_tls(cert)) as servers:
        assert servers.ask_all(Kind.STATS)[0].fields["number"] == 0


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "::", "box"])
def test_a_server_that_others_reach_needs_certificate_and_token(host, tmp_path):
    with pytest.raises(ValueError, match=f"a server at {host} can be reached from other machines; give --tls-cert"):
        ServerOptions(host=host).check()
    with pytest.raises(ValueError, match="can be reached from other machines"):
        ServerOptions(host=host, token=TOKEN).check()
    with pytest.raises(ValueError, match="can be reached from other machines"):
        ServerOptions(host=host, tls_cert=tmp_path, tls_key=tmp_path).check()
    ServerOptions(host=host, insecure=True).check()
    ServerOptions(host=host, token=TOKEN, tls_cert=tmp_path, tls_key=tmp_path).check()


def test_options_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(ValueError, match="both --tls-cert and --tls-key"):
        ServerOptions(tls_cert=tmp_path).check()
    with pytest.raises(ValueError, match="--number is 2 and --of is 2"):
        ServerOptions(number=2, of=2).check()
    with pytest.raises(ValueError, match="the token has 5 characters"):
        ServerOptions(token="short").check()
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ValueError, match="holds no token"):
        read_token(tmp_path / "empty")
    with pytest.raises(ValueError, match=r"the token cannot be read from .*none: No such file or directory; name a"):
        read_token(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"\xff" * 32)
    with pytest.raises(ValueError, match=r"bytes holds bytes that are no text, and a token is text; write one: head"):
        read_token(tmp_path / "bytes")


@pytest.mark.parametrize("missing", ["cert", "key"])
def test_a_file_of_tls_that_cannot_be_read_is_named_with_its_option(tmp_path, missing):
    made = dict(zip(("cert", "key"), certificate(tmp_path), strict=True))
    made[missing].unlink()
    with pytest.raises(ValueError, match=rf"--tls-{missing} cannot be read from .*: No such file .*; name a PEM file"):
        ServerOptions(tls_cert=made["cert"], tls_key=made["key"]).tls()


def test_files_that_hold_no_certificate_are_named_with_the_rule(tmp_path):
    text = tmp_path / "text"
    text.write_text("no certificate")
    with pytest.raises(ValueError, match=r"--tls-key .*text are no certificate with its key .*; both must be PEM"):
        ServerOptions(tls_cert=text, tls_key=text).tls()
    with pytest.raises(ValueError, match=r"text holds no certificate .*; give the PEM file that servers have"):
        client_tls(text)
    with pytest.raises(ValueError, match=r"servers cannot be read from .*none: No such file or directory; name a PEM"):
        client_tls(tmp_path / "none")


def test_what_keeps_a_server_from_starting_is_told_with_the_remedy(tmp_path):
    with ServerProcess() as server:
        taken = rf"a server cannot listen at {server.address}: another process listens there; give another --port"
        with pytest.raises(RuntimeError, match=taken):
            ServerProcess(port=server.port)
    (tmp_path / "file").touch()
    with pytest.raises(RuntimeError, match=r"rows cannot be kept in .*file: Not a directory; give a folder that you"):
        ServerProcess("--path", str(tmp_path / "file"))
    with pytest.raises(RuntimeError, match=r"no checkpoint; give a folder such as"):
        ServerProcess("--read-only", str(tmp_path))


def test_a_client_without_a_token_is_told_where_to_give_it(guarded):
    server, cert = guarded
    with pytest.raises(PermissionError, match="name the file that holds it: top --token-file, train --server-token"):
        Servers.connect([server.address], tls=client_tls(cert))


def test_a_server_that_is_not_there_is_to_be_started():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address, start = f"127.0.0.1:{port}", f"hybridrec server --number 0 --of 1 --port {port}"
    with pytest.raises(ServerLost, match=rf"\(Connection refused\); start it: {start}, or mend"):
        Servers.connect([address], deadline=0.3)
