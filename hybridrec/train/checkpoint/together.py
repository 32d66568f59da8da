"""Ranks that write one checkpoint together: each its rows, side by side, and the first one all else."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from hybridrec.train.checkpoint.joint import Joint
from hybridrec.train.checkpoint.manifest import FileInfo
from hybridrec.train.checkpoint.rank_messages import (
    RankFailedError,
    await_end,
    await_message,
    failure_of,
    message_of,
    put,
    put_failure,
)
from hybridrec.train.checkpoint.slices import check_parts
from hybridrec.train.checkpoint.table_info import TableInfo
from hybridrec.train.checkpoint.write import (
    Files,
    Label,
    check_room,
    finish,
    make_manifest,
    put_in_place,
    write_rest,
    write_tables,
)


def write_together(joint: Joint, label: Label) -> None:
    """Write what this rank has, and wait until the checkpoint is in place; where a rank failed, all of them raise."""
    try:
        if joint.rank == 0:
            _write_first(joint, label)
        else:
            _write_other(joint)
    except RankFailedError as failed:
        raise failed.told(joint) from failed.__cause__
    finally:
        joint.captured.close()


def _write_first(joint: Joint, label: Label) -> None:
    """What rank 0 does: its own rows and all else, then the manifest, when the others have written their rows."""
    try:
        check_room(joint.final.parent, joint.size)
        files = Files(joint.part)
        tables = write_tables(files, joint.captured)
        write_rest(files, joint.captured)
        joint.captured.close()
        for rank in range(1, joint.team.world):
            said = await_message(joint, rank)
            files.infos |= {name: FileInfo(**info) for name, info in said["files"].items()}
            _add_parts(tables, said["tables"], rank)
            os.unlink(message_of(joint, rank))
        for name, info in tables.items():
            check_parts(name, info)
        finish(joint.part, make_manifest(tables, label, files.infos, joint.team.world))
        put_in_place(joint.part, joint.final)
    except BaseException as error:
        failed = failure_of(joint.rank, error)
        shutil.rmtree(joint.part, ignore_errors=True)
        with contextlib.suppress(OSError):  # then the others find out when they have waited long enough
            put(joint.failure, failed.said)
        raise failed from error


def _write_other(joint: Joint) -> None:
    """What the other ranks do: write their rows, say so, and wait for rank 0."""
    try:
        files = Files(joint.part)
        tables = {name: info.to_json() for name, info in write_tables(files, joint.captured).items()}
        listed = {name: asdict(info) for name, info in files.infos.items()}
        put(message_of(joint, joint.rank), {"files": listed, "tables": tables})
        joint.captured.close()
    except BaseException as error:
        failed = failure_of(joint.rank, error)
        with contextlib.suppress(OSError):
            for name in joint.captured.rows:
                (joint.part / joint.captured.part(name).file).unlink(missing_ok=True)  # the message needs some room
            put_failure(joint, failed)
        await_end(joint)  # it tells who was the first to fail
        raise failed from error
    await_end(joint)


def _add_parts(tables: dict[str, TableInfo], said: Mapping[str, Any], rank: int) -> None:
    """Add the parts of another rank to what is known of the tables."""
    for name, found in said.items():
        other, own = TableInfo.from_json(found), tables[name]
        if replace(other, parts=(), clock=0) != replace(own, parts=(), clock=0):
            raise ValueError(f"rank {rank} has another table {name!r} than rank 0: {other} and not {own}")
        tables[name] = replace(own, parts=own.parts + other.parts, clock=max(own.clock, other.clock))
