"""Programs of an interpreted kernel that run at once, over a memory that is as weak as that of a GPU.

Triton's interpreter runs the programs of a launch one after another, each access at once: no two of them ever disturb
each other. Here several are under way together. Who goes on is drawn at every access, the lanes of an access go in any
order and in several parts, and programs see memory as threads of different multiprocessors do:

- a plain store is seen by others some time later, in any order with other stores of its program; an atomic operation
  that releases, and the end of the launch, are later than all before them;
- a plain load may give what was there at any time since the launch began or the program last acquired, but never older
  than what the program has seen there, and always what it has stored itself; volatile loads give what is there;
- atomic operations see and change what is there. Relaxed ones say nothing of other addresses;
- lanes that are masked out get garbage of atomic operations, and of loads that do not say what else.

A test that passes for many seeds shows what `make test-gpu` shows by chance; it knows nothing of threads within a
program, which compilers may let load twice what the interpreter loads once.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterator
from itertools import chain, pairwise
from typing import Any

import numpy as np
import pytest
from greenlet import getcurrent, greenlet
from triton._C.libtriton import interpreter as native
from triton._C.libtriton import ir
from triton.runtime import interpreter

RESIDENT = 6  # programs under way at once
PARTS = 3  # of an access, at most
STALE = 0.5  # the chance of a load to look for an older value
LATE = 0.7  # the chance of a store to be seen later, each time that somebody could see it

BEGIN, LOAD = interpreter.GridExecutor.__init__, interpreter.InterpreterBuilder.create_masked_load
ACQUIRES = ir.MEM_SEMANTIC.ACQUIRE, ir.MEM_SEMANTIC.ACQUIRE_RELEASE
RELEASES = ir.MEM_SEMANTIC.RELEASE, ir.MEM_SEMANTIC.ACQUIRE_RELEASE


class Memory:
    """What programs of one launch see: all values of what was written in it, and what is still on its way."""

    def __init__(self, chance: random.Random) -> None:
        self._chance, self._now = chance, 0
        self._values: dict[int, list[tuple[int, Any]]] = {}  # by address, with the time since when
        self._seen: dict[tuple[Any, int], int] = {}  # the number of the value that a program last saw
        self._acquired: dict[Any, int] = {}  # when it did
        self._late: dict[Any, dict[int, Any]] = {}  # what a program has stored and others do not see

    def load(self, program: Any, address: int, there: Any, fresh: bool) -> Any:
        """What a program sees at an address where `there` is."""
        own = self._late.get(program, {})
        if address in own:
            return _same_size(own[address], there)
        if address not in self._values:
            return there
        values = self._values[address]
        last = len(values) - 1
        if not fresh and self._chance.random() < STALE:
            since = self._acquired.get(program, 0)
            known = max(number for number, (time, _value) in enumerate(values) if time <= since)
            last = self._chance.randint(max(known, self._seen.get((program, address), 0)), last)
        self._seen[program, address] = last
        return _same_size(values[last][1], there)

    def store(self, program: Any, address: int, value: Any) -> None:
        """Others see it some time later."""
        self._late.setdefault(program, {})[address] = value

    def settle(self, program: Any, address: int) -> None:
        """Others see what a program has stored at an address from now on, if it has."""
        late = self._late.get(program, {})
        if address in late:
            self._show(program, address, late.pop(address))

    def acquire(self, program: Any) -> None:
        """A program sees from now on what others see."""
        self._acquired[program] = self._now

    def release(self, program: Any) -> None:
        """Others see all that a program has stored."""
        for address in list(self._late.get(program, {})):
            self.settle(program, address)

    def settle_some(self) -> None:
        """Time goes by, and some of what was stored is seen."""
        for program, late in self._late.items():
            for address in [each for each in late if self._chance.random() > LATE]:
                self.settle(program, address)

    def settle_all(self) -> None:
        for program in self._late:
            self.release(program)

    def changed(self, program: Any, address: int, before: Any, after: Any) -> None:
        """An atomic operation has seen `before` and left `after`."""
        values = self._values.setdefault(address, [(0, before)])
        self._now += 1
        values.append((self._now, after))
        self._seen[program, address] = len(values) - 1

    def _show(self, program: Any, address: int, value: Any) -> None:
        to, word = np.array([address], np.uint64), np.array([value])
        before = native.load(to, np.ones(1, bool), np.zeros_like(word), word.dtype)[0]
        native.store(to, word, np.ones(1, bool))
        self.changed(program, address, before, value)


def _same_size(value: Any, like: Any) -> Any:
    assert value.itemsize == like.itemsize, f"{like.itemsize} bytes are read where {value.itemsize} were written"
    return value.view(like.dtype)


class Together:
    """A kernel whose programs are called one after another, and run together when the last of them is."""

    def __init__(self, kernel: Any, chance: random.Random) -> None:
        self._kernel, self._chance = kernel, chance
        self._waiting: list[tuple[tuple[int, int, int], dict[str, Any]]] = []
        self.__name__, self.__globals__ = kernel.__name__, kernel.__globals__
        self.__signature__ = inspect.signature(kernel)

    def __call__(self, **args: Any) -> None:
        builder = interpreter.interpreter_builder
        self._waiting.append((builder.grid_idx, args))
        if len(self._waiting) == np.prod(builder.grid_dim):
            self._run(builder)

    def _run(self, builder: Any) -> None:
        builder.shared = Shared(Memory(self._chance), self._chance)
        self._chance.shuffle(self._waiting)
        under_way: list[tuple[tuple[int, int, int], greenlet]] = []
        try:
            while self._waiting or under_way:
                while self._waiting and len(under_way) < RESIDENT:
                    place, args = self._waiting.pop()
                    under_way.append((place, greenlet(lambda args=args: self._kernel(**args))))
                builder.grid_idx, program = self._chance.choice(under_way)
                program.switch()
                under_way = [each for each in under_way if not each[1].dead]
                builder.shared.memory.settle_some()
            builder.shared.memory.settle_all()
        finally:
            builder.shared = None


class Shared:
    """The memory of a launch as its programs use it: others go on between parts of an access."""

    def __init__(self, memory: Memory, chance: random.Random) -> None:
        self.memory, self._chance = memory, chance

    def parts(self, mask: Any) -> Iterator[list[int]]:
        """The lanes of an access, in any order, some at a time: before each part others go on."""
        lanes = np.flatnonzero(mask).tolist()
        self._chance.shuffle(lanes)
        ends = sorted(self._chance.choices(range(len(lanes) + 1), k=self._chance.randrange(PARTS)))
        for begin, end in pairwise([0, *ends, len(lanes)]):
            if begin < end:
                self._let_others_go_on()
                yield lanes[begin:end]

    @staticmethod
    def _let_others_go_on() -> None:
        main = getcurrent().parent
        assert main is not None, "programs run beside what runs them"
        main.switch()


def _flat(handle: Any, like: Any) -> Any:
    return np.broadcast_to(handle.data, like.shape).ravel()


def _garbage(count: int, dtype: Any) -> Any:
    """What nobody should look at: no zeros, and nothing like an index."""
    return np.full(count * np.dtype(dtype).itemsize, 0x5B, np.uint8).view(dtype)


def _load(self: Any, ptrs: Any, mask: Any, other: Any, *how: Any) -> Any:
    memory: Memory = self.shared.memory
    result = LOAD(self, ptrs, interpreter.TensorHandle(np.zeros_like(ptrs.data, bool), mask.dtype), other, *how)
    addresses, dtype = ptrs.data.ravel(), result.data.dtype
    said = other is not None or addresses.size == 1  # of a single lane the interpreter takes an `other` of 0 for none
    values = result.data.ravel().copy() if said else _garbage(addresses.size, dtype)
    for lanes in self.shared.parts(_flat(mask, ptrs.data)):
        values[lanes] = native.load(addresses[lanes], np.ones(len(lanes), bool), values[lanes], dtype)
        for lane in lanes:
            values[lane] = memory.load(getcurrent(), int(addresses[lane]), values[lane], fresh=bool(how[-1]))
    return interpreter.TensorHandle(values.reshape(ptrs.data.shape), result.dtype)


def _store(self: Any, ptrs: Any, value: Any, mask: Any, *how: Any) -> None:
    addresses, values = ptrs.data.ravel(), _flat(value, ptrs.data)
    for lanes in self.shared.parts(_flat(mask, ptrs.data)):
        for lane in lanes:
            self.shared.memory.store(getcurrent(), int(addresses[lane]), values[lane])


def _atomic(self: Any, ptr: Any, mask: Any, sem: Any, once: Callable[[Any, int], Any]) -> Any:
    """An operation of each lane for itself; `once` does it to the memory, and says what was there."""
    shared: Shared = self.shared
    program, addresses = getcurrent(), ptr.data.ravel()
    if sem in RELEASES:
        shared.memory.release(program)
    found: dict[int, Any] = {}
    for lane in chain.from_iterable(shared.parts(mask)):
        place = addresses[lane : lane + 1]
        shared.memory.settle(program, int(place[0]))
        before = once(place, lane)
        after = native.load(place, np.ones(1, bool), before, before.dtype)
        shared.memory.changed(program, int(place[0]), before[0], after[0])
        found[lane] = before[0]
    if sem in ACQUIRES:
        shared.memory.acquire(program)
    return found


def _rmw(self: Any, op: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any) -> Any:
    values, lanes = _flat(val, ptr.data), _flat(mask, ptr.data)
    kind, order = self.ir_rmw_op_to_interpreter_rmw_op[op], self.ir_sem_to_interpreter_sem[sem]

    def once(place: Any, lane: int) -> Any:
        return native.atomic_rmw(kind, place, values[lane : lane + 1].copy(), np.ones(1, bool), order)

    result = _garbage(ptr.data.size, values.dtype)
    for lane, before in _atomic(self, ptr, lanes, sem, once).items():
        result[lane] = before
    return interpreter.TensorHandle(result.reshape(ptr.data.shape), val.dtype.scalar)


def _cas(self: Any, ptr: Any, cmp: Any, val: Any, sem: Any, scope: Any) -> Any:
    expected, values = _flat(cmp, ptr.data), _flat(val, ptr.data)
    order = self.ir_sem_to_interpreter_sem[sem]

    def once(place: Any, lane: int) -> Any:
        return native.atomic_cas(place, expected[lane : lane + 1].copy(), values[lane : lane + 1].copy(), order)

    result = np.empty(ptr.data.size, values.dtype)
    for lane, before in _atomic(self, ptr, np.ones(ptr.data.size, bool), sem, once).items():
        result[lane] = before
    return interpreter.TensorHandle(result.reshape(ptr.data.shape), cmp.dtype.scalar)


def interleave(patch: pytest.MonkeyPatch, seed: int) -> None:
    """From now on the programs of every interpreted launch run together, as the seed draws it."""
    chance, builder = random.Random(seed), interpreter.InterpreterBuilder

    def begin(self: Any, *args: Any, **kwargs: Any) -> None:
        BEGIN(self, *args, **kwargs)
        self.fn = Together(self.fn, chance)

    patch.setattr(interpreter.GridExecutor, "__init__", begin)
    patch.setattr(builder, "create_masked_load", _load)
    patch.setattr(builder, "create_masked_store", _store)
    patch.setattr(builder, "create_atomic_rmw", _rmw)
    patch.setattr(builder, "create_atomic_cas", _cas)
