"""A run directory as one page to look at: `write(run_dir)` makes report.html."""

from __future__ import annotations

from hybridrec.train.report.page import write

__all__ = ["write"]
