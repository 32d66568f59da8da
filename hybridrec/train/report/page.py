"""The page: its parts in order, style and script inlined, written beside and renamed into place."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

from hybridrec.train.report import numbers
from hybridrec.train.report.calibration import calibration
from hybridrec.train.report.curves import curves
from hybridrec.train.report.details import details
from hybridrec.train.report.headline import headline
from hybridrec.train.report.markup import Markup, element, join
from hybridrec.train.report.run import Run, read
from hybridrec.train.report.speed import speed
from hybridrec.train.report.tables import tables

HERE = Path(__file__).parent
SECTIONS = {
    "Result": headline,
    "Curves": curves,
    "Calibration": calibration,
    "Tables": tables,
    "Speed": speed,
    "Details": details,
}


def write(run_dir: str | Path) -> Path:
    """Write report.html into a run directory and return its path.

    The page is one file without links to others: it can be mailed, kept, printed. It tells of files that are
    missing or half-written, and may be written again while the run goes on.

    >>> import tempfile
    >>> run_dir = Path(tempfile.mkdtemp())
    >>> _ = (run_dir / "metrics.jsonl").write_text('{"kind": "valid", "step": 100, "auc": 0.78}')
    >>> "0.7800" in write(run_dir).read_text()
    True
    """
    run = read(run_dir)
    target = run.path / "report.html"
    part = target.with_suffix(f".{os.getpid()}.part")
    try:
        part.write_text(page(run), encoding="utf-8")
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
    return target


def page(run: Run) -> str:
    """The whole page of a run."""
    title = f"{run.path.resolve().name} · hybridrec"
    sections = {name: part for name, make in SECTIONS.items() if (part := make(run))}
    head = element(
        "head", element("meta", charset="utf-8"), element("title", title),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("style", Markup((HERE / "style.css").read_text(encoding="utf-8"))),
    )  # fmt: skip
    script = element("script", Markup((HERE / "page.js").read_text(encoding="utf-8")))
    main = element("main", _notes(run), *sections.values())
    body = element("body", _header(run, list(sections)), main, _footer(), script)
    return "<!DOCTYPE html>\n" + element("html", head, body, lang="en") + "\n"


def _header(run: Run, sections: list[str]) -> Markup:
    links = element("nav", *(element("a", name, href=f"#{name.lower()}") for name in sections))
    said = element("p", " · ".join(_said(run)), class_="said")
    return element("header", element("div", element("h1", run.path.resolve().name), said), links)


def _said(run: Run) -> list[str]:
    model = run.config.get("model")
    name = model.get("name") if isinstance(model, dict) else model
    said = [name] if isinstance(name, str) else []
    if ended := run.of("final"):
        reason = ended[-1].get("reason")
        return [*said, f"stopped: {reason}" if isinstance(reason, str) else "finished"]
    if run.records:
        return [*said, f"not finished, last record at step {numbers.whole(run.records[-1]['step'])}"]
    return [*said, "no records yet"]


def _notes(run: Run) -> Markup:
    if not run.notes:
        return join(())
    return element(
        "aside", element("b", "Notes"), element("ul", *(element("li", note) for note in run.notes)), class_="notes"
    )


def _footer() -> Markup:
    from hybridrec import __version__

    made = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    return element("footer", f"Written by hybridrec {__version__}, {made}. One file, no network.")
