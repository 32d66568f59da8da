"""The answer of `embedding_cpu.py` as Markdown tables, printed or put between the marks of a page.

python benchmarks/embedding_table.py benchmarks/results/embedding_cpu-DATE.json [benchmarks/README.md]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from embedding_figures import RATIOS

BEGIN, END = "<!-- embedding_cpu: begin -->", "<!-- embedding_cpu: end -->"
JOBS = {
    "ours_rowwise_adagrad": "**hybridrec**, row-wise Adagrad",
    "fbgemm_rowwise_adagrad": "FBGEMM, row-wise Adagrad",
    "torchrec_rowwise_adagrad": "TorchRec (fused), row-wise Adagrad",
    "ours_adagrad": "**hybridrec**, Adagrad",
    "fbgemm_adagrad": "FBGEMM, Adagrad",
    "nn_adagrad": "torch.nn.EmbeddingBag (sparse), torch.optim.Adagrad",
    "ours_dynamic": "**hybridrec**, dynamic tables, row-wise Adagrad",
}


def markdown(answer: dict[str, Any]) -> str:
    """Times, ratios, scaling, and the single figures, as far as the answer has them."""
    wrong = [f"{name}: {found['reason']}" for name, found in answer["correct"].items() if not found["passed"]]
    if wrong:
        return "\n".join(
            ["No figures: before the clock runs, the answers of hybridrec must be those of torch.nn.", *wrong]
        )
    made = [caption(answer), times(answer), shares(answer), scaling(answer), singles(answer), absences(answer)]
    return "\n\n".join(text for text in made if text)


def caption(answer: dict[str, Any]) -> str:
    machine, versions = answer["machine"], answer["versions"]
    named = ", ".join(f"{name} {versions[name]}" for name in ("torch", "fbgemm_gpu", "torchrec") if name in versions)
    return (
        f"{machine['cpu']} ({', '.join(machine['simd']) or 'no AVX2'}), {machine['cores']} cores, "
        f"{answer['usual_threads']} threads; {named}; "
        f"{answer['tables']} tables of {answer['rows']:,} rows, batch {answer['batch']:,}; "
        f"best of {answer['passes']} passes, each a median of {answer['reps']}; {answer['date']}."
    )


def times(answer: dict[str, Any]) -> str:
    """Milliseconds per step, forward alone in brackets."""
    parts = answer.get("parts", {})
    rows = {}
    for job, label in JOBS.items():
        cells = [parts[name].get(job) for name in parts]
        if any(cells):
            rows[label] = [f"{c['step_ms']:.1f} ({c['forward_ms']:.1f})" if c else "" for c in cells]
    floors = [answer.get("roofline", {}).get(name, {}).get("rowwise_adagrad") for name in parts]
    if any(floors):
        rows["floor: bytes of a row-wise step at copy speed"] = [f"{f['floor_ms']:.1f}" if f else "" for f in floors]
    return table("ms per step (forward alone)", list(parts), rows)


def shares(answer: dict[str, Any]) -> str:
    """The ratios, setting by setting."""
    found = {key: answer[key] for key in RATIOS if key in answer}
    settings = list(dict.fromkeys(name for figure in found.values() for name in figure["settings"]))
    rows = {
        f"`{key}`": [
            *(f"{figure['settings'][name]:.2f}" if name in figure["settings"] else "" for name in settings),
            *(f"{figure[field]:.2f}" for field in ("geomean", "min", "max")),
        ]
        for key, figure in found.items()
    }
    return table("ratio of step times", [*settings, "geomean", "min", "max"], rows)


def scaling(answer: dict[str, Any]) -> str:
    found = answer.get("threads", {})
    counts = list(next(iter(found.values()), {}))
    rows = {name: [f"{cells[n]:.1f}" for n in counts] for name, cells in found.items()}
    return table("ms per step by threads", counts, rows)


def singles(answer: dict[str, Any]) -> str:
    said = []
    if found := answer.get("forward_vs_copy"):
        beside = ", ".join(f"{name} {found[name]:.2f}" for name in ("fbgemm", "nn") if name in found)
        said.append(f"`forward_vs_copy` {found['ours']:.2f} ({beside or 'no peer'})")
    if "bytes_per_row_overhead" in answer:
        said.append(f"`bytes_per_row_overhead` {answer['bytes_per_row_overhead']:.1f}")
    if found := answer.get("roofline"):
        multiples = ", ".join(f"{name} {one['rowwise_adagrad']['multiple']:.1f}" for name, one in found.items())
        said.append(f"row-wise steps as multiples of their floor: {multiples}")
    return "; ".join(said) + "." if said else ""


def absences(answer: dict[str, Any]) -> str:
    return "\n".join(f"- no `{key}`: {reason}" for key, reason in answer["absent"].items())


def table(corner: str, columns: list[str], rows: dict[str, list[str]]) -> str:
    """A Markdown table, or nothing where there are no rows."""
    if not rows:
        return ""
    lines = [[corner, *columns], ["---"] * (len(columns) + 1), *([label, *cells] for label, cells in rows.items())]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def put(page: str, text: str) -> str:
    """The page with `text` between its marks."""
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"the page must have the lines {BEGIN} and {END} once each: add them where the tables go")
    head, rest = page.split(BEGIN)
    return f"{head}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}"


def main() -> None:
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    text = markdown(json.loads(Path(sys.argv[1]).read_text()))
    if len(sys.argv) == 2:
        print(text)
    else:
        page = Path(sys.argv[2])
        page.write_text(put(page.read_text(), text))


if __name__ == "__main__":
    main()
