"""What may follow a load without a barrier between, by the text of a kernel's LLVM code."""

from __future__ import annotations

import re
from collections import defaultdict

from tests.ops.ttgir import Source

LABEL = r"([\w.$-]+|\"[^\"]*\")"
BARRIER = "barrier"


class Code:
    """Basic blocks: in each the accesses to memory of the device by their place in the source, and barriers."""

    def __init__(self, text: str) -> None:
        self._notes = dict(re.findall(r"^(!\d+) = (.*)$", text, re.MULTILINE))
        self._steps: dict[str, list[tuple[str, Source]]] = defaultdict(list)
        self._followers: dict[str, list[str]] = defaultdict(list)
        block = ""
        for line in text.splitlines():
            block = found[1] if (found := re.match(f"{LABEL}:", line)) else block
            self._followers[block] += re.findall(f"label %{LABEL}", line)
            if re.search(r"call .*(@llvm\.nvvm\.barrier|bar\.sync)", line):
                self._steps[block].append((BARRIER, ()))
            elif found := re.search(r"(ld|st|atom|red)\.(\w+\.)*global", line):
                self._steps[block].append((found[1], self._source(re.findall(r"!dbg (!\d+)", line)[0])))

    def _source(self, note: str) -> Source:
        parts = dict(re.findall(r"(\w+): (!?\d+)", self._notes[note]))
        file = dict(re.findall(r"(\w+): (!\d+)", self._notes[parts["scope"]]))["file"]
        name = re.findall(r"filename: \"([^\"]*)\"", self._notes[file])[0].rsplit("/", 1)[-1]
        here = name, int(parts["line"]), int(parts["column"])
        return (here, *(self._source(parts["inlinedAt"]) if "inlinedAt" in parts else ()))

    def has(self, source: Source) -> bool:
        """Whether something at this place of the source touches memory of the device."""
        return any(where == source for steps in self._steps.values() for _, where in steps)

    def follows(self, write: Source, load: Source) -> bool:
        """Whether a write may come after a load, on some way through the code that has no barrier between."""
        begins = [
            (block, number + 1)
            for block, steps in self._steps.items()
            for number, step in enumerate(steps)
            if step == ("ld", load)
        ]
        seen: set[str] = set()
        while begins:
            block, number = begins.pop()
            rest = self._steps[block][number:]
            end = next((at for at, (kind, _) in enumerate(rest) if kind == BARRIER), len(rest))
            if any(kind != "ld" and where == write for kind, where in rest[:end]):
                return True
            if end == len(rest):
                begins += [(each, 0) for each in self._followers[block] if each not in seen]
                seen.update(self._followers[block])
        return False
