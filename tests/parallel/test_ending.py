"""Programs whose last message is on its way when they end."""

from __future__ import annotations

import subprocess
import sys

from tests.patience import PATIENCE

# Two ranks. The second asks for a sum, lets go of its tensor, and ends just as the thread of Gloo, the last to hold it,
# lets go of it too; that takes a while.
LAST_TO_HOLD = """
import os, sys, tempfile, threading, time
import torch
from torch import distributed
import hybridrec.parallel.ranks

class Slow:
    def __del__(self):
        dropped.set()
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            pass

def rank(number, file):
    distributed.init_process_group("gloo", store=distributed.FileStore(file, 2), rank=number, world_size=2)
    distributed.barrier()
    if number == 0:
        os.read(told[0], 1)
        distributed.all_reduce(torch.zeros(1))
        return
    sent = torch.zeros(1)
    sent.slow = Slow()
    work = distributed.all_reduce(sent, async_op=True)
    del sent, work
    os.write(told[1], b"x")
    dropped.wait()

told, dropped = os.pipe(), threading.Event()
with tempfile.TemporaryDirectory() as folder:
    ranks = []
    for number in range(2):
        ranks.append(os.fork())
        if ranks[-1] == 0:
            rank(number, folder + "/store")
            sys.exit(0)
    print(*(os.waitstatus_to_exitcode(os.waitpid(each, 0)[1]) for each in ranks))
"""


def test_a_program_may_end_while_a_thread_of_gloo_lets_go_of_what_was_sent() -> None:
    """Once, Python ended that thread in the middle of it, which aborts the process."""
    done = subprocess.run([sys.executable, "-c", LAST_TO_HOLD], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "0 0\n", done.stderr
