"""A whole collection in plain PyTorch: rows in double, pooling and updates by the references, gradients by autograd."""

from __future__ import annotations

from math import inf, sqrt

import torch
from torch import Tensor

from hybridrec.embedding import EmbeddingCollection, Embeddings, Store, Table
from hybridrec.embedding.multi_hash import rows_of
from hybridrec.embedding.out_of_range import resolve
from hybridrec.ops.pooled_lookup.reference import pool
from hybridrec.ops.row_update.reference import update_rows
from hybridrec.optim import FTRL, SGD, Adagrad, Adam
from hybridrec.optim.optimizer import RowOptimizer
from hybridrec.optim.rule import RowStep
from hybridrec.types import IdBlock, Ragged


class PlainCollection:
    """The fixed tables of a collection as double weights that autograd knows, and which of their rows are touched.

    A row is touched where one of its occurrences took a gradient: those of pooled features take that of `flat`.
    """

    def __init__(self, emb: EmbeddingCollection) -> None:
        self.emb = emb
        self.tables = emb.tables
        self.weights: dict[str, Tensor] = {}
        self.states: dict[str, list[Tensor]] = {}
        self.touched: dict[str, set[int]] = {name: set() for name in self.tables}
        self.adopt()

    def adopt(self) -> None:
        """Go on from the rows and states that the collection has now; gradients stay."""
        for name, table in self.tables.items():
            store = self.emb[name]
            before = self.weights.get(name)
            self.weights[name] = store.weight.double().clone().requires_grad_(table.trainable)
            self.weights[name].grad = None if before is None else before.grad
            self.states[name] = [store.state(column).double().clone() for column in _columns(store)]

    # -- lookups ------------------------------------------------------------------------------------------

    def __call__(self, block: IdBlock) -> Embeddings:
        dims, pooled, sequences, fed = [], [torch.empty(block.batch_size, 0, dtype=torch.float64)], {}, {}
        for table in self.tables.values():
            for name, combiner in table.combiners.items():
                dims.append(table.dim)
                made, slots = self._feature(table, block, name, combiner)
                if combiner == "none":
                    sequences[name] = Ragged.trusted(made, block[name].offsets)
                    self._mark(made, {table.name: slots})
                else:
                    pooled.append(made)
                    fed.setdefault(table.name, set()).update(slots)
        flat = torch.cat(pooled, dim=1)
        self._mark(flat, fed)
        return Embeddings(self.emb.features, tuple(dims), flat, sequences)

    def _feature(self, table: Table, block: IdBlock, name: str, combiner: str) -> tuple[Tensor, set[int]]:
        ids, weights, offsets = block[name].flat, block.weights_of(name), block[name].offsets
        if table.hashes is None:
            slots = resolve(table, ids)
        else:
            slots, offsets = rows_of(ids, table.hashes).flatten(), offsets * table.group
            weights = None if weights is None else weights.repeat_interleave(table.group)
        made = pool(self.weights[table.name], slots, offsets, weights, combiner, table.group)  # pyright: ignore
        return made, {slot for slot in slots.tolist() if slot >= 0}

    def _mark(self, output: Tensor, fed: dict[str, set[int]]) -> None:
        """Touch these rows when the output takes a gradient."""

        def mark(_: Tensor) -> None:
            for name, slots in fed.items():
                self.touched[name] |= slots

        if output.requires_grad:
            output.register_hook(mark)

    # -- steps --------------------------------------------------------------------------------------------

    def step(self, rows: RowOptimizer, grad_scale: float = 1.0) -> None:
        """What `rows.step()` is about to do."""
        for name in rows.tables:
            slots = torch.tensor(sorted(self.touched[name]), dtype=torch.int64)
            weight = self.weights[name]
            if len(slots) and weight.grad is not None:
                step, states = row_step(rows, name, grad_scale), [state[slots] for state in self.states[name]]
                made, states = update_rows(step, weight.detach()[slots], states, weight.grad[slots])
                weight.data[slots] = made
                for state, new in zip(self.states[name], states, strict=True):
                    state[slots] = new
        self.discard(rows.tables)

    def discard(self, names: tuple[str, ...]) -> None:
        """What `zero_grad()` does."""
        for name in names:
            self.touched[name].clear()
            self.weights[name].grad = None

    def assert_equal(self, rtol: float = 1e-5, atol: float = 2e-6) -> None:
        """The collection has these rows and states."""
        for name in self.tables:
            store = self.emb[name]
            pairs = [(store.weight, self.weights[name].detach())]
            pairs += zip((store.state(column) for column in _columns(store)), self.states[name], strict=True)
            for found, expected in pairs:
                torch.testing.assert_close(found.double(), expected, rtol=rtol, atol=atol, equal_nan=True)


def _columns(store: Store) -> tuple[str, ...]:
    return store.rule.names if store.rule else ()


def row_step(rows: RowOptimizer, table: str, grad_scale: float = 1.0) -> RowStep:
    """The next step of a table, worked out from the values of its param group."""
    values = next(group for group in rows.param_groups if group["name"] == table)
    step, lr = rows.steps_of(table) + 1, float(values["lr"])
    if isinstance(rows, Adagrad):
        own = {"lr": lr / (1 + (step - 1) * values["lr_decay"]), "eps": values["eps"]}
    elif isinstance(rows, Adam):
        beta1, beta2 = values["betas"]
        size = lr * sqrt(1 - beta2**step) / (1 - beta1**step)
        own = {"lr": size, "beta1": beta1, "beta2": beta2, "eps": values["eps"]}
    elif isinstance(rows, FTRL):
        own = {"lr": lr, "l1": values["l1"], "l2": values["l2"], "beta": values["beta"]}
    else:
        assert isinstance(rows, SGD)
        own = {"lr": lr, "momentum": values["momentum"]}
    return RowStep(
        rule=rows.rule(values),
        step=step,
        grad_scale=grad_scale,
        weight_decay=values["weight_decay"],
        weight_bound=values["weight_bound"] or inf,
        clip_row_norm=values["clip_row_norm"] or inf,
        nan=values["nan"],
        **own,
    )
