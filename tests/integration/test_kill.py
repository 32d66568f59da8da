"""A run killed at any moment goes on from its last state: every row exactly once, in the same order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hybridrec as hr
from tests.data.oracle import users
from tests.patience import PATIENCE

ROWS, BATCH = 3000, 50

RUN = """
import json, os, sys, time
import hybridrec as hr
folder, log, state, threads, prefetch = sys.argv[1:4] + [int(n) for n in sys.argv[4:]]
ds = hr.data.parquet(folder, batch_size=50, threads=threads, prefetch=prefetch).shuffle(seed=4, rows=700)
if os.path.exists(state):
    ds.load_state_dict(json.load(open(state)))
with open(log, "a") as seen:
    for batch in ds:
        users = batch.ids["user"].values.tolist()
        made = ds.state_dict()
        with open(state + ".part", "w") as file:
            json.dump(made, file)
        seen.write(json.dumps([made["position"]["eras"][-1]["steps"], users]) + "\\n")
        seen.flush()
        os.replace(state + ".part", state)
        time.sleep(0.002)
print("done", flush=True)
"""


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "data"
    made.mkdir()
    for i in range(3):
        pq.write_table(pa.table({"user": range(i * 1000, i * 1000 + 1000)}), made / f"{i}.parquet", row_group_size=130)
    return made


@pytest.mark.slow
def test_a_killed_run_goes_on_with_the_very_next_batch(folder, tmp_path):
    log, state = tmp_path / "log", tmp_path / "state"
    kills = 0
    for attempt in range(40):
        effort = [str(1 + attempt % 3), str(1 + attempt % 4)]  # threads and prefetch change from run to run
        command = [sys.executable, "-c", RUN, str(folder), str(log), str(state), *effort]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        begun = log.stat().st_size if log.exists() else 0
        while process.poll() is None and (not log.exists() or log.stat().st_size < begun + 2000 + 700 * attempt):
            time.sleep(0.001)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.communicate()
        if process.returncode == 0:
            break
    assert process.returncode == 0
    assert kills >= 2
    last = {}  # a step logged but not yet saved when the kill came is done again
    for line in log.read_text().splitlines():
        step, rows = json.loads(line)
        assert last.get(step, rows) == rows
        last[step] = rows
    expected = users(hr.data.parquet(folder, batch_size=BATCH, threads=1).shuffle(seed=4, rows=700))
    assert [last[step] for step in sorted(last)] == expected
    assert sorted(user for rows in expected for user in rows) == list(range(ROWS))


INTERRUPTED = """
import sys, threading, time
import hybridrec as hr, pyarrow as pa
if sys.argv[2] == "stream":
    def make():
        yield pa.record_batch({"user": list(range(100))})
        threading.Event().wait()  # a queue that never answers
    ds = hr.data.stream(make, batch_size=50)
else:
    ds = hr.data.parquet(sys.argv[1], batch_size=50, threads=3).shuffle(seed=1)
try:
    for batch in ds:
        print("ready", flush=True)
        while sys.argv[2] != "stream":
            time.sleep(0.1)  # a signal that comes just before Python sleeps is noted when it wakes
except KeyboardInterrupt:
    names = [t.name for t in threading.enumerate() if t.name.startswith("hybridrec")]
    steps = ds.state_dict()["position"]["eras"][-1]["steps"]
    print("left", len(names) if sys.argv[2] != "stream" else 0, steps, flush=True)
"""


@pytest.mark.parametrize(("source", "steps"), [("files", 1), ("stream", 2)])
def test_ctrl_c_ends_threads_and_process_at_once(folder, source, steps):
    command = [sys.executable, "-c", INTERRUPTED, str(folder), source]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(steps):
            assert process.stdout.readline() == "ready\n"
        time.sleep(0.1)
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert (out, err, process.returncode) == (f"left 0 {steps}\n", "", 0)


@pytest.mark.parametrize("left", ["running", "closed", "broken"])
def test_a_process_ends_quickly_and_quietly_whatever_iterators_it_leaves(folder, left):
    ends = {
        "running": "keep = iter(ds); next(keep)",
        "closed": "it = iter(ds); next(it); it.close()",
        "broken": "[next(iter(ds)) for _ in range(3)]",
    }
    opening = f"ds = hr.data.parquet({str(folder)!r}, batch_size=7, threads=3)"
    code = f"import hybridrec as hr\n{opening}\n{ends[left]}\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
