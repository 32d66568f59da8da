"""Directory: where a server keeps its rows on disk, so that it goes on with them when it was killed.

DIR/server.json    which server this is, its tables, the session, and the clocks at which its steps began
DIR/tables/NAME/   the rows of each table, with the last push that they have seen
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from urllib.parse import quote

from hybridrec import _native
from hybridrec.server.declaration import Declaration
from hybridrec.server.protocol import Refusal

FORMAT = 1


class Directory:
    """The directory of server `number` of `count`; made where there is none.

    >>> import tempfile
    >>> Directory(Path(tempfile.mkdtemp()), 0, 2).tables
    {}
    """

    def __init__(self, path: Path, number: int, count: int) -> None:
        self.path, self._file = path, path / "server.json"
        self.tables: dict[str, Declaration] = {}
        self.session = -1
        self.base: dict[str, int] = {}  # of each table: its clock at step 0 of the session
        (path / "tables").mkdir(parents=True, exist_ok=True)
        self._who = {"format": FORMAT, "number": number, "count": count}
        if self._file.exists():
            self._read()
        else:
            self.write()

    def _read(self) -> None:
        try:
            found = json.loads(self._file.read_text())
            self.tables = {each["name"]: Declaration.of({"rows": None, **each}) for each in found["tables"]}
            self.session, self.base = int(found["session"]), {str(name): int(at) for name, at in found["base"].items()}
            theirs = {key: found[key] for key in self._who}
        except (ValueError, KeyError, TypeError, AttributeError, Refusal) as error:
            raise ValueError(f"{self._file} is damaged: {error}; give --path another directory") from None
        for key, mine in self._who.items():
            if theirs[key] != mine:
                raise ValueError(
                    f"{self.path} has the rows of a server with {key} {theirs[key]}, this one has {key} {mine}; start "
                    "it as it was, or load a checkpoint into servers with other directories"
                )

    def write(self) -> None:
        """Keep what has changed; the file is there as a whole, or as it was."""
        tables = [each.to_json() for each in self.tables.values()]
        text = json.dumps({**self._who, "session": self.session, "base": self.base, "tables": tables}, indent=1)
        beside = self._file.with_suffix(".new")
        with open(beside, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, self._file)

    def open(self, declaration: Declaration, servers: int) -> _native.DiskTable:
        """The rows of a table, which may be there already."""
        name = quote(declaration.name, safe="")
        if len(name) > 200:
            raise Refusal("value", f"table {declaration.name!r} has a name that is too long for a folder; shorten it")
        place = str(self.path / "tables" / name), declaration.name, declaration.seed % 2**64
        return _native.DiskTable(declaration.spec(), *declaration.policy(servers), *place)
