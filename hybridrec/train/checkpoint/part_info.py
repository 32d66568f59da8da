"""PartInfo: a file with rows of a table, and how it is called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import gcd
from typing import Any
from urllib.parse import quote

from hybridrec import _native
from hybridrec.embedding.share import Share
from hybridrec.embedding.store import WHOLE

MOST_NAME = 180  # bytes of a file's name


@dataclass(frozen=True)
class PartInfo:
    """A file with a share of a table; a table that is in one piece has one part, all of it."""

    file: str
    rows: int = 0  # that are in the file
    share: Share = WHOLE
    sketch: int | None = None  # bytes of the counts for admission
    sketches: int = 1  # that these are, one after another: of tables on servers one for each
    rank: int = 0  # who wrote it

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> PartInfo:
        """The part that an entry of a manifest describes."""
        return cls(**{**found, "share": Share(**found["share"])})

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        made = {**asdict(replace(self, share=WHOLE)), "share": self.share.to_json()}
        return made if self.sketches > 1 else {name: value for name, value in made.items() if name != "sketches"}

    def meets(self, share: Share) -> bool:
        """Whether rows of the share may be among those of the file.

        >>> PartInfo("a", share=Share(1, 2)).meets(Share(2, 4)), PartInfo("a", share=Share(1, 2)).meets(Share(2, 3))
        (False, True)
        """
        alike = gcd(self.share.count, share.count) if self.share.servers == share.servers else 1
        return not share.empty and (self.share.index - share.index) % alike == 0

    def within(self, share: Share) -> bool:
        """Whether all rows of the file are among those of the share."""
        alike = self.share.servers == share.servers or share.count == 1
        return alike and self.share.count % share.count == 0 and self.meets(share)


def file_name(table: str, share: Share = WHOLE) -> str:
    """The name of the file of a part: the table's name as in a URL, shortened where it is too long, and which part.

    >>> file_name("emb.item"), file_name("a/b"), file_name("item", Share(1, 4)), file_name("item", Share(0, 1, 8, 8))
    ('emb.item.arrow', 'a%2Fb.arrow', 'item@rows-1-of-4.arrow', 'item@columns-8-to-15.arrow')
    """
    name = quote(table, safe=" ")
    if len(name) > MOST_NAME:
        name = f"{name[:MOST_NAME]}-{_native.xxh64(table.encode()):016x}"
    return f"{name}{_which(share)}.arrow"


def _which(share: Share) -> str:
    rows = f"@rows-{share.index}-of-{share.count}" if share.count > 1 else ""
    if share.column == share.width == 0:
        return rows
    last = f"to-{share.column + share.width - 1}" if share.width else "on"
    return f"{rows}@columns-{share.column}-{last}"


def sketch_file(rank: int) -> str:
    """The file with the counts for admission that a rank has written, by table.

    >>> sketch_file(0), sketch_file(3)
    ('sketches.safetensors', 'sketches-00003.safetensors')
    """
    return f"sketches-{rank:05d}.safetensors" if rank else "sketches.safetensors"
