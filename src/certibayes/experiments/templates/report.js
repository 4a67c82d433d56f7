"use strict";
// Tables: a click on a heading sorts, words in the box and choices in the lists filter. Without scripts all rows are there.
const collator = new Intl.Collator("en", { numeric: true });

function compare(a, b, sign) {
  const [x, y] = [a, b].map((cell) => cell.dataset.key);
  if (x !== undefined && y !== undefined) return sign * (Number(x) - Number(y));
  const [p, q] = [a, b].map((cell) => cell.textContent.trim());
  // What has no number, or no words, comes last in either order.
  if (x !== undefined || y !== undefined) return x === undefined ? 1 : -1;
  if (!p || !q) return p ? -1 : q ? 1 : 0;
  return sign * collator.compare(p, q);
}

function sortable(table, rows) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      rows.sort((a, b) => compare(a.cells[column], b.cells[column], down ? -1 : 1));
      table.tBodies[0].append(...rows);
    });
  });
}

function filterable(table, rows) {
  const tools = document.createElement("div"), box = document.createElement("input"), count = document.createElement("span");
  tools.className = "tools";
  box.type = "search";
  box.placeholder = "Filter";
  box.setAttribute("aria-label", "Filter rows by words");
  count.setAttribute("role", "status");
  tools.append(box);
  const lists = [];
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    if (head.dataset.choice === undefined) return;
    const values = [...new Set(rows.map((row) => row.cells[column].textContent.trim()))].sort(collator.compare);
    if (values.length < 2) return;
    const list = document.createElement("select"), name = head.textContent.trim();
    list.setAttribute("aria-label", name);
    list.append(new Option(`${name}: all`, ""), ...values.map((value, place) => new Option(value || "–", String(place))));
    lists.push({ list, column, values });
    tools.append(list);
  });
  tools.append(count);
  const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
  function update() {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const chosen = lists.every(({ list, column, values }) =>
        list.value === "" || row.cells[column].textContent.trim() === values[Number(list.value)]);
      row.hidden = !(chosen && words.every((word) => texts.get(row).includes(word)));
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = `${shown} of ${rows.length} rows`;
  }
  tools.addEventListener("input", update);
  update();
  table.parentElement.before(tools);
}

for (const table of document.querySelectorAll("table.data")) {
  const rows = [...table.tBodies[0].rows];
  if (rows.length < 2) continue;
  filterable(table, rows);
  sortable(table, rows);
}

// A link to a run opens it.
function reveal() {
  const target = document.getElementById(location.hash.slice(1));
  for (let node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
  if (target) target.scrollIntoView();
}
addEventListener("hashchange", reveal);
reveal();
