"""What `embedding_cpu.py` runs: the contenders of every part of the question, in every setting."""

from __future__ import annotations

from dataclasses import dataclass, replace

from embedding_step import Task
from embedding_workload import Setting
from peers.environment import Peer

_FBGEMM = (
    ("torch==2.13.0",),
    ("--no-deps", "fbgemm-gpu-cpu==1.8.0", "torchrec==1.8.0"),
    ("torchmetrics==1.0.3", "tensordict", "pyre-extensions", "numpy", "tqdm"),
)
FBGEMM = Peer("fbgemm", "fbgemm_tbe.py", (), "fbgemm", "fbgemm_gpu", _FBGEMM)
TORCHREC = Peer("torchrec", "torchrec_fused.py", (), "fbgemm", "torchrec", _FBGEMM)
NN = Peer("nn", "torch_embedding_bag.py")

DECLARED = {"ours_declared_1e9": 10**9, "ours_declared_1e14": 10**14}  # parameters in all tables together
WIDE = 128  # their columns
NEEDS = {
    "fbgemm": ("ours_rowwise_adagrad", "ours_adagrad", "fbgemm_rowwise_adagrad", "fbgemm_adagrad"),
    "torchrec": ("ours_rowwise_adagrad", "torchrec_rowwise_adagrad"),
    "nn": ("ours_adagrad", "nn_adagrad"),
    "forward": ("ours_rowwise_adagrad", "copy"),
    "roofline": ("ours_rowwise_adagrad", "ours_adagrad", "copy"),
    "dynamic": ("ours_rowwise_adagrad", "ours_dynamic"),
    "virtual": tuple(DECLARED),
    "threads": ("ours_rowwise_adagrad",),
    "memory": (),
    "counters": (),
}
PARTS = tuple(NEEDS)


@dataclass(frozen=True)
class Job:
    """A contender in a setting; without a peer it runs in our own Python, with the heap as it comes."""

    name: str
    program: str
    task: Task
    peer: Peer | None = None

    @property
    def setting(self) -> str:
        return self.task.setting.name

    def __str__(self) -> str:
        return f"{self.setting} {self.name}"


def jobs(parts: list[str], base: Task, settings: list[Setting], threads: list[int]) -> list[Job]:
    """Every run of one pass, setting after setting."""
    found = []
    for setting in settings:
        task = replace(base, setting=setting)
        names = {name for part in parts for name in NEEDS[part]}
        if "threads" in parts:
            names |= {thread_job(n, base.threads) for n in threads}
        found += [job for job in contenders(task, threads) if job.name in names]
    return found


def contenders(task: Task, threads: list[int]) -> list[Job]:
    """All that can run in one setting."""
    rowwise, adagrad = replace(task, variant="rowwise_adagrad"), replace(task, variant="adagrad")
    return [
        Job("copy", "copy_bandwidth.py", replace(task, variant="copy")),
        _ours("ours_rowwise_adagrad", rowwise),
        Job("fbgemm_rowwise_adagrad", FBGEMM.program, rowwise, FBGEMM),
        Job("torchrec_rowwise_adagrad", TORCHREC.program, rowwise, TORCHREC),
        _ours("ours_adagrad", adagrad),
        Job("fbgemm_adagrad", FBGEMM.program, adagrad, FBGEMM),
        Job("nn_adagrad", NN.program, adagrad, NN),
        _ours("ours_dynamic", replace(rowwise, capacity=2 * task.shape.rows)),
        *_declared(rowwise),
        *(_ours(f"ours_threads_{n}", replace(rowwise, threads=n)) for n in threads),
    ]


def checks(found: list[Job]) -> list[Job]:
    """Our contenders whose answers are compared with torch.nn's before any clock runs."""
    names = ("ours_rowwise_adagrad", "ours_adagrad", "ours_dynamic", *DECLARED)
    return [replace(job, program="embedding_check.py") for job in found if job.name in names]


def memory(task: Task) -> Job:
    """One dynamic table of 2^20 rows (fewer where the tables are small)."""
    capacity = min(2**20, 10 * task.shape.rows)
    return Job("memory", "embedding_memory.py", replace(task, setting=Setting(16, 1), capacity=capacity))


def thread_counts(cores: int) -> list[int]:
    """1, 2, 4 … and all cores."""
    powers = [1 << i for i in range(cores.bit_length())]
    return sorted({n for n in powers if n <= cores} | {cores})


def thread_job(n: int, usual: int) -> str:
    """The job that runs with `n` threads; all others run with `usual` many."""
    return "ours_rowwise_adagrad" if n == usual else f"ours_threads_{n}"


def _ours(name: str, task: Task) -> Job:
    return Job(name, "embedding_ours.py", task)


def _declared(task: Task) -> list[Job]:
    if task.setting.dim != WIDE:
        return []
    return [
        _ours(name, replace(task, capacity=declared // task.shape.tables // WIDE))
        for name, declared in DECLARED.items()
    ]
