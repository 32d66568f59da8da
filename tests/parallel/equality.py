"""N ranks equal one: a case is run on rank processes and alone, and everything that comes of it is compared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hybridrec.parallel.routes import counts
from tests.parallel.jobs.training import train_alone
from tests.parallel.pool import pool
from tests.parallel.training_case import Case, table_of

CLOSE = 1e-5
TRAIN = "tests.parallel.jobs.training:train"


def check(case: Case, delay: float = 0.0) -> list[dict[str, Any]]:
    """Run the case on its ranks, with so many seconds between them, and alone, and compare all that both give."""
    found = pool(case.world, delay).run(TRAIN, case=case.to_json())
    compare(case, found, train_alone(case))
    return found


def compare(case: Case, found: list[dict[str, Any]], expected: dict[str, Any], close: float = CLOSE) -> None:
    """The outputs, losses, weights, rows and states of the ranks are those of the one process."""
    compare_stores([each["initial"] for each in found], expected["initial"], 0.0, "initial rows")
    at = 0
    for step, micros in enumerate(case.sizes):
        for _ in micros:
            parts, want = [each["steps"][at] for each in found], expected["steps"][at]
            same(torch.cat([part["every"] for part in parts]), want["every"], close, f"embeddings of step {step}")
            same(torch.cat([part["out"] for part in parts]), want["out"], close, f"outputs of step {step}")
            total = sum(part["weight"] for part in parts)
            mean = sum(part["loss"] * part["weight"] / total for part in parts if part["weight"])
            same(torch.tensor(mean), torch.tensor(want["loss"]), close, f"loss of step {step}")
            for rank, part in enumerate(parts):
                if part.get("norm") is not None:
                    what = f"gradient norm of step {step} on rank {rank}"
                    same(torch.tensor(part["norm"]), torch.tensor(want["norm"]), close, what)
            at += 1
    for rank, each in enumerate(found):
        for name, weight in expected["weights"].items():
            same(each["weights"][name], weight, close, f"{name} on rank {rank}")
            assert torch.equal(each["weights"][name], found[0]["weights"][name]), f"{name} differs between ranks"
        assert each["counts"] == expected["counts"], f"steps by table on rank {rank}"
    compare_stores([each["final"] for each in found], expected["final"], close, "rows")
    if not case.servers:
        compare_counters(case, [each["final"] for each in found], expected["final"])
    same(torch.cat([each["eval"] for each in found]), expected["eval"], close, "outputs in eval")


def compare_stores(found: list[dict[str, Any]], expected: dict[str, Any], close: float, what: str) -> None:
    """The shards of every table make the whole table of the one process: each row and column once."""
    for name, want in expected.items():
        whole = assembled(name, [each[name] for each in found], want)
        for column, values in whole.items():
            wanted = want["state"][column] if column in want["state"] else want[column]
            same(values, wanted, close, f"{what} of table {name!r}: {column}")


def compare_counters(case: Case, found: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    """What the shards of every dynamic table have counted adds up to what the one process has.

    Where no score needs all occurrences of an id, a rank asks for it once: others are not among hits and misses.
    """
    counting = {spec["name"] for spec in case.tables if "capacity" in spec and counts(table_of(spec))}
    for name, want in expected.items():
        for counter, number in want["counters"].items():
            if counter in ("hits", "misses", "refused") and name not in counting:
                continue
            total = sum(each[name]["counters"][counter] for each in found if not each[name]["share"]["empty"])
            assert total == number, f"{counter} of table {name!r}: {total}, not {number}"


def assembled(name: str, parts: list[dict[str, Any]], want: dict[str, Any]) -> dict[str, Tensor]:
    """A whole table put together from its shards; every row and column must be there once, or on every rank."""
    saved = [part for part in parts if part["share"].get("saves", True) and not part["share"].get("empty", False)]
    for part in parts:
        if part["share"].get("empty"):
            assert len(part["ids"]) == 0, f"table {name!r}: an empty share has rows"
        elif not part["share"].get("saves", True):  # a replica
            for key in ("ids", "rows"):
                assert torch.equal(part[key], saved[0][key]), f"table {name!r}: replicas differ in {key}"
    at = {one: n for n, one in enumerate(want["ids"].tolist())}
    seen = torch.zeros(want["rows"].shape, dtype=torch.int64)
    whole = {"rows": torch.zeros_like(want["rows"])}
    whole |= {column: torch.zeros_like(values) for column, values in want["state"].items()}
    whole |= {column: torch.zeros_like(want[column]) for column in ("touched", "counts") if want[column] is not None}
    for part in saved:
        strange = [one for one in part["ids"].tolist() if one not in at]
        assert not strange, f"table {name!r} has ids {strange[:3]} that the one process has not"
        where = torch.tensor([at[one] for one in part["ids"].tolist()], dtype=torch.int64)
        begin = part["share"].get("column", 0)
        columns = slice(begin, begin + part["dim"])
        seen[where, columns] += 1
        for column, values in whole.items():
            given = part["state"][column] if column in part["state"] else part[column]
            assert len(given) == len(where), f"table {name!r}: {column} has {len(given)} rows, {len(where)} ids"
            if values.dim() == 2:
                values[where, columns] = given
            else:
                known = seen[where].sum(1) > part["dim"]  # other columns of the row came before
                assert torch.equal(values[where][known], given[known]), f"table {name!r}: holders differ in {column}"
                values[where] = given
    assert bool((seen == 1).all()), f"table {name!r}: rows or columns that lie nowhere or twice: {seen.tolist()}"
    return whole


def same(found: Tensor, wanted: Tensor, close: float, what: str) -> None:
    """Equal within `close`, absolute and relative; bit for bit where it is 0."""
    if close == 0.0:
        assert found.dtype == wanted.dtype, f"{what} are {found.dtype}, not {wanted.dtype}"
        assert torch.equal(found, wanted), f"{what} differ:\n{found}\n{wanted}"
        return
    assert found.shape == wanted.shape, f"{what}: {list(found.shape)}, not {list(wanted.shape)}"
    torch.testing.assert_close(
        found.double(), wanted.double(), rtol=close, atol=close, msg=lambda text: f"{what}: {text}"
    )
