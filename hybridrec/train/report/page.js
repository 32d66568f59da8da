"use strict";
// Hover: a line at the nearest step, and the values there.
for (const svg of document.querySelectorAll("svg[data-chart]")) {
  const { x: [low, high, start, end], lines } = JSON.parse(svg.dataset.chart);
  const cursor = svg.querySelector(".cursor");
  let tip = null;
  const nearest = (points, at) => points.reduce((a, b) => (Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a));
  const leave = () => { cursor.style.visibility = "hidden"; tip?.remove(); tip = null; };
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("pointermove", (event) => {
    const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    const shown = lines.filter((line) => line[2].length);
    if (!shown.length) return;
    const at = low + ((place.x - start) / (end - start)) * (high - low);
    const step = nearest(shown.map((line) => nearest(line[2], at)), at)[0];
    const left = start + ((step - low) / (high - low)) * (end - start);
    cursor.setAttribute("x1", left);
    cursor.setAttribute("x2", left);
    cursor.style.visibility = "visible";
    if (!tip) { tip = document.createElement("div"); tip.className = "tip"; svg.parentNode.append(tip); }
    const rows = shown.map(([name, colour, points]) => {
      const row = document.createElement("div");
      const chip = document.createElement("i");
      chip.className = "c" + colour;
      const found = nearest(points, step);
      const where = found[0] === step ? "" : ` (${found[0].toLocaleString("en")})`;
      row.append(chip, `${name} ${Number(found[1].toPrecision(5)).toLocaleString("en", { maximumSignificantDigits: 5 })}${where}`);
      return row;
    });
    const head = document.createElement("b");
    head.textContent = "step " + step.toLocaleString("en");
    tip.replaceChildren(head, ...rows);
    const right = left > (start + end) / 2;
    const share = (100 * left) / svg.viewBox.baseVal.width;
    tip.style.left = right ? "auto" : `calc(${share}% + 12px)`;
    tip.style.right = right ? `calc(${100 - share}% + 12px)` : "auto";
  });
}
// Sort: a click on a column's name, once more for the other way round.
for (const table of document.querySelectorAll("table.sortable")) {
  table.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-column]");
    if (!button) return;
    const head = button.closest("th");
    const column = Number(button.dataset.column);
    const body = table.tBodies[0];
    const value = (row) => row.cells[column].dataset.v;
    const numeric = [...body.rows].some((row) => row.cells[column].classList.contains("n"));
    const down = head.ariaSort ? head.ariaSort === "ascending" : numeric;
    const known = (text) => (text === "" || Number.isNaN(Number(text)) ? -Infinity : Number(text));
    const order = (a, b) => (numeric ? known(value(a)) - known(value(b)) || 0 : value(a).localeCompare(value(b)));
    const rows = [...body.rows].sort((a, b) => (down ? order(b, a) : order(a, b)));
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...rows);
  });
}
// Paper has no folds.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
