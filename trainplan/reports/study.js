"use strict";
for (const table of document.querySelectorAll("table.sorted")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending", number = head.classList.contains("number");
    const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const order = (a, b) => number ? Number(a) - Number(b) : a.localeCompare(b, undefined, { numeric: true });
    const rows = [...body.rows].map((row) => [value(row), row]);
    rows.sort(([a], [b]) => (a === "") - (b === "") || (a === "" ? 0 : (down ? -1 : 1) * order(a, b)));
    body.append(...rows.map(([, row]) => row));
    heads.forEach((each) => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
  }));
}
const filter = document.getElementById("filter"), shown = document.getElementById("shown");
filter.addEventListener("input", () => {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean), rows = [...document.querySelectorAll("#cells tbody tr")];
  let count = 0;
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
    count += !row.hidden;
  }
  shown.textContent = `${count} of ${rows.length}`;
});
