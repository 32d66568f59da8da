"""The pages tell the truth: their Python runs, their commands work, and both print what the page shows.

A page's ```python blocks run in one namespace, in a folder with a small synthetic data set (`clicks/`). A
```text block that follows one is its output, with ... for what varies. ```python no-run is for reading only.
Of ```console blocks, the commands after `$` are run too.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hybridrec.cli.commands import app
from hybridrec.data.synthetic import write

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NOT_RUN = 3  # blocks marked no-run over all pages: what needs a bucket, a cluster or a GPU
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)(#[^)]*)?\)")
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Fenced:
    info: str
    body: str
    line: int
    follows: bool  # nothing but blank lines between the block before and this one


def blocks(page: Path) -> list[Fenced]:
    text, found, end = page.read_text(), [], 0
    for match in FENCE.finditer(text):
        follows = bool(found) and not text[end : match.start()].strip()
        found.append(Fenced(match["info"].strip(), match["body"], text[: match.start()].count("\n") + 2, follows))
        end = match.end()
    return found


def check_output(where: str, wanted: str, got: str) -> None:
    example = doctest.Example("", wanted)
    if not doctest.OutputChecker().check_output(wanted, got, OPTIONS):
        pytest.fail(f"{where} shows other output:\n{doctest.OutputChecker().output_difference(example, got, OPTIONS)}")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """What the pages say is there: clicks/ of three files, as made by `hybridrec synth clicks --files 3`."""
    write(tmp_path / "clicks", rows=6000, files=3, row_group_rows=1000)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    return tmp_path


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_of_a_page_runs_and_prints_what_the_page_shows(page, folder):
    namespace: dict[str, object] = {"__name__": "__main__"}
    printed = ""
    for block in blocks(page):
        where = f"{page.name}:{block.line}"
        if block.info == "python":
            out = io.StringIO()
            code = compile("\n" * (block.line - 1) + block.body, str(page), "exec")
            with contextlib.redirect_stdout(out):
                exec(code, namespace)
            printed = out.getvalue()
        elif block.info == "text" and block.follows:
            check_output(where, block.body, printed)
        elif block.info == "console":
            run_console(where, block.body)


def run_console(where: str, body: str) -> None:
    for step in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        command, _, wanted = step.partition("\n")
        program, *words = shlex.split(command)
        assert program == "hybridrec", f"{where}: a console block shows hybridrec alone, not {program}"
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, f"{where}: {command}: {result.output}"
        check_output(where, wanted, result.stdout)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_somewhere(page):
    missing = [target for target, _ in LINK.findall(page.read_text()) if not (page.parent / target).exists()]
    assert missing == []


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text()
    assert [page.name for page in PAGES if page.parent.name == "docs" and f"({page.name})" not in index] == [
        "README.md"
    ]


def test_nearly_all_code_runs():
    infos = [block.info for page in PAGES for block in blocks(page)]
    assert set(infos) <= {"python", "python no-run", "text", "console", "sh", ""}
    assert infos.count("python no-run") <= NOT_RUN
    assert infos.count("python") > 20
