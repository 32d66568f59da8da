from __future__ import annotations

import re

from hybridrec.models import summary
from tests.models.clicks import dataset, losses, made


def test_it_shows_tables_rows_bytes_and_dense_parameters():
    ds = dataset()
    model = made("deepfm", ds.schema)
    losses(model, list(ds))
    text = model.summary()
    dense = sum(p.numel() for p in model.parameters())
    users = len(model.embeddings["user"])
    assert text.splitlines()[0].startswith("DeepFM: ")
    assert f"{dense:,} dense parameters" in text
    assert re.search(rf"^  user +4 +{users} +{users * 4 * 4 * 2:,} +user \(sum\)$", text, re.MULTILINE)
    assert re.search(r"^  wide\.user +1 ", text, re.MULTILINE)
    assert re.search(r"^  size +4 +5 +160 +size \(sum\)$", text, re.MULTILINE)
    assert re.search(r"^  net\.deep +\d+$", text, re.MULTILINE)
    assert summary(model) == text


def test_the_bytes_add_up():
    ds = dataset()
    model = made("dcnv2", ds.schema)
    losses(model, list(ds))
    lines = model.summary().splitlines()
    head = re.search(r"([\d,]+) rows in (\d+) tables, ([\d,]+) bytes", lines[0])
    assert head
    tables = lines[2 : 2 + int(head[2])]
    sizes = [int(re.split(r"  +", line.strip())[3].replace(",", "")) for line in tables]
    assert sum(sizes) == int(head[3].replace(",", ""))
