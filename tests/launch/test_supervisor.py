"""Whatever dies is started again within limits, and the launcher ends as its trainers do."""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from hybridrec.launch import supervisor as of
from hybridrec.launch.child import Output
from hybridrec.launch.supervisor import Limits, Supervisor
from tests.launch.scripted import Scripted
from tests.patience import PATIENCE, wait_for

KILL_SERVER = "number = pid({0}); (folder / 'server-{0}.pid').unlink(); os.kill(number, signal.SIGKILL)\n"
KILL_SERVER += "until('server-{0}.pid')\n"
WAIT = "while True: time.sleep(0.1)"  # a signal that comes just before Python sleeps is noted when it wakes


def run(roles: Scripted, folder: Path, servers: int = 10, trainers: int = 3) -> int:
    """The exit code of a run whose checkpoints are files called saved-1, saved-2, …"""

    def newest() -> str | None:
        return max((path.name for path in folder.glob("saved-*")), default=None)

    return Supervisor(roles, Limits(servers, trainers), Output(9), newest).run()


def alive(folder: Path, server: int) -> bool:
    return os.path.exists(f"/proc/{(folder / f'server-{server}.pid').read_text()}")


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_is_that_of_the_trainers_and_servers_are_gone_afterwards(tmp_path: Path, code: int):
    assert run(Scripted(tmp_path, f"sys.exit({code})", servers=2), tmp_path) == code
    assert not alive(tmp_path, 0)
    assert not alive(tmp_path, 1)


def test_trainers_get_the_addresses_of_servers_in_their_order(tmp_path: Path):
    script = "Path(folder / 'told').write_text(' '.join(addresses))"
    assert run(Scripted(tmp_path, script, servers=3), tmp_path) == 0
    ports = [(tmp_path / f"server-{number}.ports").read_text().strip() for number in range(3)]
    assert (tmp_path / "told").read_text().split() == [f"127.0.0.1:{port}" for port in ports]


def test_a_server_that_is_killed_starts_again_at_its_port_while_trainers_go_on(tmp_path: Path):
    roles = Scripted(tmp_path, KILL_SERVER.format(1) * 3, servers=2)
    assert run(roles, tmp_path) == 0
    ports = (tmp_path / "server-1.ports").read_text().split()
    assert len(ports) == 4
    assert len(set(ports)) == 1
    assert not (tmp_path / "start-0-1").exists()


def test_a_server_that_dies_too_often_ends_the_run_by_name(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    assert run(Scripted(tmp_path, KILL_SERVER.format(0) * 3 + "time.sleep(600)"), tmp_path, servers=2) == 1
    assert "server 0 died too often within a minute, at last with SIGKILL" in capfd.readouterr().err


def test_a_server_that_cannot_start_ends_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    assert run(Scripted(tmp_path, "", server="import sys; sys.exit('no disk')"), tmp_path) == 1
    told = capfd.readouterr().err
    assert "server 0  | no disk" in told
    assert "server 0 could not start (exit code 1)" in told


def test_a_server_that_never_listens_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(of, "STARTING", 0.1)
    assert run(Scripted(tmp_path, "", server="import time; time.sleep(600)"), tmp_path) == 1


def test_trainers_that_are_killed_start_again_to_resume(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    script = "(folder / 'saved-1').touch()\nassert again == (start > 0)\nif start < 2: die()"
    assert run(Scripted(tmp_path, script), tmp_path) == 0
    assert (tmp_path / "start-0-2").exists()
    assert "trainers ended with SIGKILL; they start again from saved-1" in capfd.readouterr().err


def test_trainers_that_come_no_further_are_given_up(tmp_path: Path):
    assert run(Scripted(tmp_path, "(folder / 'saved-1').touch(); sys.exit(5)"), tmp_path, trainers=2) == 5
    assert len(list(tmp_path.glob("start-0-*"))) == 3


def test_a_new_checkpoint_gives_trainers_all_restarts_again(tmp_path: Path):
    script = "(folder / f'saved-{start}').touch()\nif start < 4: sys.exit(5)"
    assert run(Scripted(tmp_path, script), tmp_path, trainers=1) == 0


def test_an_error_before_the_first_checkpoint_is_not_tried_again(tmp_path: Path):
    assert run(Scripted(tmp_path, "sys.exit(2)"), tmp_path) == 2
    assert not (tmp_path / "start-0-1").exists()


def test_an_error_of_a_run_that_is_gone_on_with_is_not_tried_again_before_it_has_saved(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    (tmp_path / "saved-1").touch()
    assert run(Scripted(tmp_path, "sys.exit(2)"), tmp_path) == 2
    assert not (tmp_path / "start-0-1").exists()
    said = "trainers ended with exit code 2: the run ends. saved-1 is saved; go on with the command with --resume"
    assert said in capfd.readouterr().err


def test_it_says_how_servers_are_watched(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    run(Scripted(tmp_path, ""), tmp_path)
    port = (tmp_path / "server-0.ports").read_text().strip()
    assert f"servers listen; watch them with top of 127.0.0.1:{port}" in capfd.readouterr().err


def test_an_error_after_a_server_died_is_tried_again_even_without_a_checkpoint(tmp_path: Path):
    script = f"if start: sys.exit(0)\n{KILL_SERVER.format(0)}sys.exit(1)"
    assert run(Scripted(tmp_path, script), tmp_path) == 0
    assert (tmp_path / "start-0-1").exists()


def test_a_trainer_that_is_killed_takes_the_others_with_it_and_all_start_again(tmp_path: Path):
    script = "if start == 0:\n  until(f'start-{1 - rank}-0')\n  if rank == 1: die()\n  time.sleep(600)"
    assert run(Scripted(tmp_path, script, trainers=2), tmp_path) == 0
    assert (tmp_path / "start-0-1").exists()
    assert (tmp_path / "start-1-1").exists()


def test_trainers_have_time_to_tell_why_one_failed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(of, "TELLING", PATIENCE)  # a busy machine may need any of it
    first = (
        "(folder / 'one.part').write_text(str(os.getpid())); (folder / 'one.part').rename(folder / 'one'); sys.exit(4)"
    )
    wait = (
        "until('one')\nwhile os.path.exists('/proc/' + (folder / 'one').read_text()): time.sleep(0.01)\ntime.sleep(0.3)"
    )
    script = f"if rank: {first}\n{wait}\nprint('rank 1 has failed')\nsys.exit(1)"
    assert run(Scripted(tmp_path, script, trainers=2), tmp_path) == 4
    assert "trainer 0 | rank 1 has failed" in capfd.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_lets_trainers_save_before_servers_stop(tmp_path: Path, number: signal.Signals):
    save = f"os.kill(pid(0), 0); (folder / 'saved-1').touch(); sys.exit(128 + {int(number)})"
    caught = signal.SIGTERM if number == signal.SIGHUP else number  # trainers know nothing of terminals
    script = f"def save(n, _): {save}\nsignal.signal({int(caught)}, save)\n(folder / 'ready').touch()\n{WAIT}"
    threading.Thread(target=_when, args=(tmp_path / "ready", number)).start()
    assert run(Scripted(tmp_path, script), tmp_path) == 128 + number
    assert (tmp_path / "saved-1").exists()
    assert not alive(tmp_path, 0)


def test_a_second_signal_ends_trainers_that_do_not(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    script = "signal.signal(2, lambda *_: (folder / 'got').touch())\n(folder / 'ready').touch()\n" + WAIT
    for name in ("ready", "got"):
        threading.Thread(target=_when, args=(tmp_path / name, signal.SIGINT)).start()
    assert run(Scripted(tmp_path, script), tmp_path) == 130
    told = capfd.readouterr().err
    assert "Ctrl-C: trainers finish their step, save and stop; once more ends them at once" in told
    assert "Ctrl-C once more: the run ends. Nothing was saved" in told


def test_nobody_who_reads_its_lines_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stdout", Gone())
    script = "print('line\\n' * 50_000)"  # more than a pipe holds
    assert run(Scripted(tmp_path, script), tmp_path) == 0


def test_a_launcher_that_is_killed_leaves_nobody_behind(tmp_path: Path):
    script = "(folder / 'trainer').write_text(str(os.getpid())); (folder / 'ready').touch(); time.sleep(600)"
    if (launcher := os.fork()) == 0:
        os._exit(run(Scripted(tmp_path, script), tmp_path))
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    os.kill(launcher, signal.SIGKILL)
    os.waitpid(launcher, 0)
    children = [(tmp_path / name).read_text() for name in ("trainer", "server-0.pid")]
    wait_for(lambda: not any(_runs(child) for child in children))


def _when(file: Path, number: int) -> None:
    while not file.exists():
        time.sleep(0.005)
    os.kill(os.getpid(), number)


def _runs(pid: str) -> bool:
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
