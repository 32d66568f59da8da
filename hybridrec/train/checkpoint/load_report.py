"""LoadReport: what came out of a checkpoint, and what did not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class LoadReport:
    """What was loaded, what was skipped and why, what the checkpoint does not have, and what is good to know.

    Names are those of the model: "table emb.item", "weight top.bias", "optimizer dense".

    >>> LoadReport(["weight top.bias"], {"table item": "dim was 8 and is 16"}, ["table user"])
    1 loaded: weight top.bias
    1 skipped:
      table item: dim was 8 and is 16
    1 missing from the checkpoint: table user
    """

    loaded: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether everything was loaded as it was saved."""
        return not self.skipped and not self.missing

    def add_note(self, name: str, note: str) -> None:
        """Something more that is good to know of a part."""
        self.notes[name] = f"{self.notes[name]}; {note}" if name in self.notes else note

    def __repr__(self) -> str:
        lines = [f"{len(self.loaded)} loaded{': ' * bool(self.loaded)}{_some(self.loaded)}"]
        for title, parts in (("skipped", self.skipped), ("with a note", self.notes)):
            if parts:
                lines += [f"{len(parts)} {title}:", *(f"  {name}: {reason}" for name, reason in parts.items())]
        if self.missing:
            lines.append(f"{len(self.missing)} missing from the checkpoint: {_some(self.missing)}")
        return "\n".join(lines)


def _some(names: Iterable[str], most: int = 12) -> str:
    listed = list(names)
    rest = len(listed) - most
    return ", ".join(listed[:most]) + (f" and {rest} more" if rest > 0 else "")
