from __future__ import annotations

import copy
import hashlib
import pickle
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridrec as hr
from hybridrec.embedding import LFU, TTL, Constant, MinCount, Normal, Table
from hybridrec.embedding.disk_store import DiskStore
from hybridrec.embedding.hash_store import HashStore
from hybridrec.embedding.share import Share
from hybridrec.embedding.store import RowData, Store
from hybridrec.optim.rule import RowRule, RowStep, StateColumn
from tests.embedding.test_store import DYNAMIC, IDS, operations, outcome

ADAGRAD = RowRule("adagrad", (StateColumn("sum", fill=0.5),))
MOMENTUM = RowRule("momentum", (StateColumn("momentum"),))


def table(path: Path | None, **options: object) -> Table:
    return Table("user", **{"dim": 3, "capacity": 100, "path": path, **options})  # pyright: ignore[reportArgumentType]


def train(store: Store, *ids: int, step: int = 1) -> None:
    if store.rule is None:
        store.attach(ADAGRAD)
    slots = store.prepare(torch.tensor(ids), train=True)
    grads = slots.ids[:, None].float().remainder(5).expand(-1, store.dim) + step
    assert store.rule is not None
    store.update(slots, grads, RowStep(rule=store.rule, lr=0.5, step=step))


def whole(store: Store) -> list[object]:
    """All that a store holds."""
    held = store.snapshot()
    order = held.data.ids.argsort()
    ids, rows, state, touched, counts = held.data
    parts = [ids, rows, *state.values(), *(part for part in (touched, counts) if part is not None)]
    sketch = None if held.sketch is None else held.sketch.tolist()
    return [held.clock, held.rule, sketch, list(state), *(part[order].tolist() for part in parts)]


def files(folder: Path) -> dict[str, str]:
    """The content of every file, by a hash."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


# -- like the store in memory ---------------------------------------------------------------------------------


@pytest.mark.parametrize("options", DYNAMIC, ids=str)
@settings(max_examples=12)
@given(todo=operations(IDS), capacity=st.integers(1, 6))
def test_it_holds_what_a_hash_store_holds_also_when_opened_again(options, todo, capacity):
    with tempfile.TemporaryDirectory() as folder:
        declared = Table("user", 3, capacity=capacity, init=Normal(0.1), path=folder, **options)
        ours, theirs = DiskStore(declared, 3), HashStore(declared, 3)
        for kind, ids, seed in todo:
            if kind == "copy":
                del ours
                ours = DiskStore(declared, 3)
                ours.attach(ours.rule) if ours.rule else None
            else:
                assert str(outcome(ours, kind, ids, seed, [seed % 7])) == str(
                    outcome(theirs, kind, ids, seed, [seed % 7])
                )
            assert whole(ours) == whole(theirs)
        assert {**ours.counters(), "nan_rows": 0} == theirs.counters()
        del ours


def work(store: Store, todo: list) -> None:
    for kind, ids, seed in todo:
        if kind not in ("copy", "clear", "attach"):
            outcome(store, kind, ids, seed, [seed % 7])


@pytest.mark.parametrize("options", DYNAMIC, ids=str)
@settings(max_examples=12)
@given(before=operations(IDS), since=operations(IDS), again=operations(IDS), capacity=st.integers(1, 6))
def test_a_roll_back_gives_all_that_was_at_the_cut(options, before, since, again, capacity):
    with tempfile.TemporaryDirectory() as folder:
        declared = Table("user", 3, capacity=capacity, init=Normal(0.1), path=folder, **options)
        store = DiskStore(declared, 3)
        store.attach(MOMENTUM)
        work(store, before)
        held, counters = whole(store), store.counters()
        store.cut("first")
        work(store, since)
        later = whole(store)
        store.cut("second")
        for todo in (again, since):
            work(store, todo)
            store.roll_back("second")
            assert whole(store) == later
        for todo in ([], before, again):
            work(store, todo)
            del store
            store = DiskStore(declared, 3)
            store.roll_back("first")
            assert (whole(store), store.counters()) == (held, counters)
            assert store.cuts() == ["first"]
        del store


def test_many_rows_come_and_go_as_in_memory(tmp_path: Path):
    declared = table(tmp_path, capacity=20_000, admission=MinCount(2))
    ours, theirs = DiskStore(declared), HashStore(declared)
    draw = torch.Generator().manual_seed(0)
    for step in range(12):
        ids = torch.randint(0, 60_000, (9_000,), generator=draw).repeat(2).tolist()
        for store in (ours, theirs):
            train(store, *ids, step=step)
        if step % 5 == 4:
            del ours
            ours = DiskStore(declared)
            ours.attach(ADAGRAD)
    assert whole(ours) == whole(theirs)
    assert len(ours) > 19_000
    assert ours.counters() == theirs.counters()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_rows_are_rounded_as_in_memory(tmp_path: Path, dtype: torch.dtype):
    ours, theirs = (make(table(tmp_path, dtype=dtype, dim=5), 1) for make in (DiskStore, HashStore))
    for step in range(5):
        for store in (ours, theirs):
            train(store, 1, 5, -3, step, step=step)
    assert whole(ours) == whole(theirs)


def test_a_collection_trains_as_in_memory_and_goes_on_where_it_was(tmp_path: Path):
    def make(path: Path | None) -> tuple[hr.EmbeddingCollection, hr.optim.Adagrad]:
        tables = [hr.Table("user", 4, capacity=50, path=path), hr.Table("item", 4, rows=10)]
        emb = hr.EmbeddingCollection(tables, seed=5)
        return emb, hr.optim.Adagrad(emb, lr=0.1)

    def run(emb: hr.EmbeddingCollection, rows: hr.optim.Adagrad, steps: range) -> None:
        for step in steps:
            ids = torch.arange(step, step + 40) ** 2 % 97
            emb({"user": ids, "item": ids % 10}).flat.square().sum().backward()
            rows.step()

    memory, disk = make(None), make(tmp_path)
    run(*memory, range(8))
    run(*disk, range(4))
    del disk
    disk = make(tmp_path)
    run(*disk, range(4, 8))
    assert whole(disk[0]["user"]) == whole(memory[0]["user"])


# -- opening again --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"eviction": LFU(), "admission": MinCount(2)}, {"eviction": TTL(3)}], ids=str)
def test_all_of_it_is_there_again(tmp_path: Path, options: dict):
    store = DiskStore(table(tmp_path, **options), 7)
    for step in range(5):
        train(store, step, step, 9, 9, 11, step=step)
    held, counters, memory = whole(store), store.counters(), store.memory()
    del store
    again = DiskStore(table(tmp_path, **options), 7)
    assert (whole(again), again.counters()) == (held, counters)
    assert again.memory()["keys"] == memory["keys"]
    assert again.rule == ADAGRAD


def test_the_first_optimizer_goes_on_with_the_state_and_the_second_begins_anew(tmp_path: Path):
    store = DiskStore(table(tmp_path))
    train(store, 1, 2)
    del store
    store = DiskStore(table(tmp_path))
    store.attach(ADAGRAD)
    assert store.export().state["sum"].min() > 0.5
    store.attach(ADAGRAD)
    assert store.export().state["sum"].unique().tolist() == [0.5]


def test_another_optimizer_is_refused_until_the_state_is_dropped(tmp_path: Path):
    train(DiskStore(table(tmp_path)), 1, 2)
    store = DiskStore(table(tmp_path))
    message = f"table 'user' in {tmp_path} keeps state for {ADAGRAD}, not for {MOMENTUM}; train it with that optimizer"
    with pytest.raises(ValueError, match=re.escape(message)):
        store.attach(MOMENTUM)
    store.detach()
    store.attach(MOMENTUM)
    del store
    assert DiskStore(table(tmp_path)).rule == MOMENTUM
    assert len(list(tmp_path.glob("table.state-*"))) == 1


def test_one_that_was_made_without_rows_takes_any_optimizer(tmp_path: Path):
    DiskStore(table(tmp_path)).attach(ADAGRAD)
    store = DiskStore(table(tmp_path))
    store.attach(MOMENTUM)
    assert store.rule == MOMENTUM


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"dim": 4}, "has dim 3, not 4"),
        ({"dtype": torch.float16}, "has dtype float32, not float16"),
        ({"capacity": 101}, "has capacity 100, not 101"),
        ({"eviction": LFU()}, "has eviction lru, not lfu"),
        ({"admission": MinCount(5)}, "has admission count 0, not 5"),
        ({"init": Constant(1)}, "has init uniform, not constant"),
    ],
)
def test_another_declaration_is_refused_with_both_values(tmp_path: Path, options: dict, told: str):
    DiskStore(table(tmp_path))
    with pytest.raises(ValueError, match=re.escape(f"the table in {tmp_path} {told}; give it another directory")):
        DiskStore(table(tmp_path, **options))


def test_another_seed_and_another_name_are_refused_with_both_values(tmp_path: Path):
    DiskStore(table(tmp_path), seed=3)
    with pytest.raises(ValueError, match="has seed 3, not 4"):
        DiskStore(table(tmp_path), seed=4)
    with pytest.raises(ValueError, match="has name user, not item"):
        DiskStore(Table("item", 3, capacity=100, path=tmp_path), seed=3)


def test_who_opens_it_twice_is_refused_here_and_in_another_process(tmp_path: Path):
    store = DiskStore(table(tmp_path))
    message = re.escape(f"the table in {tmp_path} is open already, here or in another process")
    with pytest.raises(BlockingIOError, match=message):
        DiskStore(table(tmp_path))
    code = (
        "import sys; from hybridrec import _native as n;"
        "s = n.RowSpec(n.table_key('user', 0), 3, 'float32', 'uniform', 0.05);"
        "n.DiskTable(s, 100, 'lru', 0, 1.0, 0, sys.argv[1], 'user', 0)"
    )
    found = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True)
    assert "BlockingIOError" in found.stderr
    del store
    assert subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True).stderr == ""


# -- files that are not ours, or not whole --------------------------------------------------------------------


def test_a_directory_with_other_files_is_refused_by_name_and_left_alone(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(
        ValueError, match=re.escape(f"{tmp_path / 'notes.txt'} is there, and no table; name a directory")
    ):
        DiskStore(table(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_table_to_be_read_must_be_there(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        DiskStore(table(tmp_path / "nowhere"), read_only=True)
    assert not (tmp_path / "nowhere").exists()


def flip(path: Path, byte: int) -> None:
    content = bytearray(path.read_bytes())
    content[byte] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("byte", "told"),
    [
        (3, "is no header of a table"),
        (16, "has format 5, and this version reads format 1"),
        (24, "is damaged: its checksum is"),
        (40, "is damaged: its checksum is"),
        (4096, "is damaged: its checksum is"),
        (4096 + 32, "is damaged: its checksum is"),
        (12288 + 32768, "is damaged: stripe 0 of the index is none"),
        (12288 + 32768 + 12, "is damaged: its index has"),
    ],
)
def test_a_header_with_a_wrong_bit_is_refused_by_name(tmp_path: Path, byte: int, told: str):
    train(DiskStore(table(tmp_path)), 1, 2, 3)
    flip(tmp_path / "table.header", byte)
    before = files(tmp_path)
    with pytest.raises((ValueError, OSError), match=told) as raised:
        DiskStore(table(tmp_path))
    assert str(tmp_path / "table.") in str(raised.value)
    assert files(tmp_path) == before


@pytest.mark.parametrize("name", ["header", "records", "rows", "index", "sketch", "state-1-0"])
def test_a_file_that_is_cut_short_is_refused_by_name(tmp_path: Path, name: str):
    train(DiskStore(table(tmp_path, admission=MinCount(2))), 1, 1, 2, 2, 3)
    path = tmp_path / f"table.{name}"
    with path.open("r+b") as file:
        file.truncate(4096 if name == "header" else 0)
    with pytest.raises(OSError, match=re.escape(f"{path} is truncated: it has")):
        DiskStore(table(tmp_path, admission=MinCount(2)))


def test_a_file_that_is_gone_is_refused_by_name(tmp_path: Path):
    train(DiskStore(table(tmp_path)), 1)
    (tmp_path / "table.rows").unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(str(tmp_path / "table.rows"))):
        DiskStore(table(tmp_path))


def test_a_table_that_was_killed_while_it_was_made_is_made_anew(tmp_path: Path):
    for name in ("records", "rows", "header.new"):
        (tmp_path / f"table.{name}").write_bytes(b"half")
    train(DiskStore(table(tmp_path)), 1)
    assert DiskStore(table(tmp_path)).ids().tolist() == [1]


# -- changes that nobody finished -----------------------------------------------------------------------------


def killed(store: DiskStore, folder: Path) -> Path:
    """The files as they are now, which is what a process leaves that is killed now."""
    return Path(shutil.copytree(str(store.table.path), folder))


@pytest.mark.parametrize("options", [{"capacity": 4}, {"admission": MinCount(2)}, {"eviction": LFU()}], ids=str)
def test_a_change_that_was_not_finished_is_undone_as_a_whole(tmp_path: Path, options: dict):
    store = DiskStore(table(tmp_path / "a", **options))
    train(store, 1, 1, 2, 2, 3, 3)
    held = whole(store)
    store.native.begin()
    store.load(torch.tensor([2, 7]), torch.ones(2, 3))
    store.erase(torch.tensor([3]))
    store.load(torch.arange(20, 22), torch.ones(2, 3))
    left = killed(store, tmp_path / "b")
    before = files(left)
    reader = DiskStore(table(left, **options), read_only=True)
    assert whole(reader) == held
    del reader
    assert files(left) == before
    assert whole(DiskStore(table(left, **options))) == held
    store.native.abort()
    assert whole(store) == held
    train(store, 5, 5)
    assert 5 in store.ids()


def test_a_restore_that_was_not_finished_leaves_an_empty_table(tmp_path: Path):
    store = DiskStore(table(tmp_path / "a", admission=MinCount(2)))
    train(store, 1, 1, 2, 2)
    store.native.reserve_empty(10)
    ids, touched = torch.arange(5), torch.zeros(5, dtype=torch.int64)
    store.native.append(ids.data_ptr(), touched.data_ptr(), 0, 5)
    again = DiskStore(table(killed(store, tmp_path / "b"), admission=MinCount(2)))
    assert len(again) == 0
    train(again, 8, 8)
    assert again.ids().tolist() == [8]


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """As a full disk is: files grow no further."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_an_error_and_the_rows_there_are_stay_usable(tmp_path: Path):
    store = DiskStore(table(tmp_path, dim=64, capacity=10**6))
    train(store, *range(200))
    held = whole(store)
    size = (tmp_path / "table.rows").stat().st_size
    with no_file_beyond(size):
        message = r"the disk is full: \d+ bytes more are needed, and \d+ bytes are free, for " + re.escape(
            str(tmp_path)
        )
        with pytest.raises(OSError, match=message):
            store.prepare(torch.arange(100_000), train=True)
        assert whole(store)[4:6] == held[4:6]
        with pytest.raises(OSError, match=message):
            store.load(torch.arange(100_000), torch.zeros(100_000, 64))
        train(store, *range(200))
    train(store, *range(10_000))
    assert len(store) == 10_000


# -- reading --------------------------------------------------------------------------------------------------


def changes(store: DiskStore, other: Store) -> list[Callable[[], object]]:
    """All that changes something."""
    one = torch.tensor([1])
    return [
        lambda: store.prepare(one, train=True),
        lambda: store.load(one, torch.ones(1, 3)),
        lambda: store.erase(one),
        store.clear,
        store.detach,
        lambda: store.cut("x"),
        lambda: store.restore(other.snapshot()),
    ]


def test_readers_share_it_change_no_byte_and_keep_writers_out(tmp_path: Path):
    store = DiskStore(table(tmp_path))
    train(store, 1, 2, 3)
    held = whole(store)
    with pytest.raises(BlockingIOError, match="it can be read when no one writes to it"):
        DiskStore(table(tmp_path), read_only=True)
    del store
    before = files(tmp_path)
    readers = [DiskStore(table(tmp_path), read_only=True) for _ in range(2)]
    assert [whole(reader) for reader in readers] == [held, held]
    assert readers[0].lookup(torch.tensor([2, 9])).abs().sum(1).gt(0).tolist() == [True, False]
    with pytest.raises(BlockingIOError):
        DiskStore(table(tmp_path))
    for change in changes(*readers):
        with pytest.raises(ValueError, match="open for reading"):
            change()
    assert whole(readers[0]) == held
    del readers, change
    assert files(tmp_path) == before


def test_reading_needs_no_right_to_write(tmp_path: Path):
    train(DiskStore(table(tmp_path)), 1)
    for path in tmp_path.iterdir():
        path.chmod(0o444)
    assert DiskStore(table(tmp_path), read_only=True).ids().tolist() == [1]


# -- to and from other stores ---------------------------------------------------------------------------------


def test_snapshots_go_between_disk_and_memory(tmp_path: Path):
    declared = table(tmp_path, eviction=LFU(), admission=MinCount(2))
    disk, memory = DiskStore(declared), HashStore(declared)
    for step in range(3):
        train(memory, 1, 1, 2, 2, 3, step=step)
    disk.restore(memory.snapshot())
    assert whole(disk) == whole(memory)
    train(disk, 3, 4, 4, step=4)
    memory.restore(disk.capture())
    assert whole(disk) == whole(memory)
    del disk
    assert whole(DiskStore(declared)) == whole(memory)


def test_copies_are_in_memory_and_go_their_own_way(tmp_path: Path):
    store = DiskStore(table(tmp_path))
    train(store, 1, 2)
    for other in (copy.deepcopy(store), pickle.loads(pickle.dumps(store))):
        assert type(other) is HashStore
        assert whole(other) == whole(store)
        train(other, 5)
    assert store.ids().tolist() == [1, 2]


def test_a_capture_reads_the_moment_while_rows_change(tmp_path: Path):
    store = DiskStore(table(tmp_path, eviction=LFU()))
    train(store, 1, 2, 3)
    held = store.export()
    with store.capture() as capture:
        train(store, 2, 9)
        store.erase(torch.tensor([1]))
        [found] = capture.chunks()
    assert isinstance(found, RowData)
    assert found.ids.tolist() == [1, 2, 3]
    assert torch.equal(found.rows, held.rows)
    assert torch.equal(found.state["sum"], held.state["sum"])


def test_shares_have_folders_of_their_own_and_another_number_of_them_is_refused(tmp_path: Path):
    shares = [Share(index, 2) for index in range(2)]
    ids = torch.arange(20)
    stores = [DiskStore(table(tmp_path), 0, share) for share in shares]
    for share, store in zip(shares, stores, strict=True):
        train(store, *ids[share.owns(store.table, ids)].tolist())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["share-0-of-2", "share-1-of-2"]
    assert torch.cat([store.ids() for store in stores]).sort().values.tolist() == ids.tolist()
    for other in (Share(0, 3), Share()):
        with pytest.raises(ValueError, match=f"{tmp_path} has table 'user' in shares of 2, and it is to be opened"):
            DiskStore(table(tmp_path), 0, other)


# -- tags and cuts --------------------------------------------------------------------------------------------


def test_a_name_of_a_cut_is_checked_and_each_is_there_once(tmp_path: Path):
    store = DiskStore(table(tmp_path))
    for name in ("", "a/b", "a.new", "x" * 65):
        with pytest.raises(ValueError, match="a cut's name is 1 to 64 letters"):
            store.cut(name)
    store.cut("a")
    with pytest.raises(ValueError, match="has a cut a already"):
        store.cut("a")
    with pytest.raises(ValueError, match="table user has no cut b; it has a"):
        store.roll_back("b")
    store.forget_cut("a")
    assert (store.cuts(), list(tmp_path.glob("table.cut-*"))) == ([], [])


def test_with_a_cut_nothing_is_replaced_as_a_whole(tmp_path: Path):
    store = DiskStore(table(tmp_path))
    train(store, 1)
    store.cut("a")
    held = whole(store)
    for change in (store.clear, store.detach, lambda: store.attach(ADAGRAD), lambda: store.restore(store.snapshot())):
        with pytest.raises(ValueError, match="cut a is there to go back to"):
            change()
    assert whole(store) == held


def test_a_cut_that_is_damaged_is_refused_by_name(tmp_path: Path):
    store = DiskStore(table(tmp_path))
    store.cut("a")
    del store
    flip(tmp_path / "table.cut-a", 40)
    with pytest.raises(OSError, match=re.escape(f"{tmp_path / 'table.cut-a'} is no cut of this table, or damaged")):
        DiskStore(table(tmp_path))
