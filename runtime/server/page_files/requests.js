// The table of requests under way. Rows stay the same elements from poll to poll.

import { age, count, put } from "./words.js";

export class RequestTable {
  constructor(root) {
    this.table = root.querySelector("table");
    this.body = root.querySelector("tbody");
    this.empty = root.querySelector("#requests-empty");
    this.summary = root.querySelector("#requests-summary");
    this.rows = new Map();
  }

  /** `requests`: of the reply of /status. */
  show({ running, waiting, listed }) {
    const others = running + waiting - listed.length;
    const parts = [`${count(running)} running`, `${count(waiting)} waiting`];
    if (others > 0) parts.push(`${count(others)} not listed here`);
    put(this.summary, running + waiting ? parts.join(" · ") : "");
    this.table.hidden = listed.length === 0;
    this.empty.hidden = listed.length > 0;
    put(this.empty, others > 0 ? "None of yours." : "Nothing runs or waits.");
    const rows = listed.map((request) => this.row(request));
    for (const [place, row] of rows.entries()) {
      if (this.body.rows[place] !== row) this.body.insertBefore(row, this.body.rows[place] ?? null);
    }
    while (this.body.rows.length > rows.length) this.body.lastElementChild.remove();
    this.rows = new Map(listed.map(({ key }, place) => [key, rows[place]]));
  }

  row(request) {
    const row = this.rows.get(request.key) ?? emptyRow();
    const cells = row.children;
    put(cells[0].firstChild.firstChild, request.id);
    cells[0].title = request.id;
    put(cells[1], request.waits ? "waiting" : "running");
    cells[1].className = request.waits ? "waiting" : "running";
    put(cells[2], age(request.age));
    put(cells[3], count(request.prompt_tokens));
    put(cells[4], request.waits ? "" : count(request.cached_tokens));
    put(cells[5], request.waits ? "" : count(request.completion_tokens));
    return row;
  }
}

function emptyRow() {
  const row = document.createElement("tr");
  const name = row.appendChild(document.createElement("th"));
  name.scope = "row";
  const short = name.appendChild(document.createElement("span"));
  short.dir = "rtl"; // what is too long loses its beginning, which is that of all others
  short.appendChild(document.createElement("bdi"));
  for (let i = 0; i < 5; i++) row.appendChild(document.createElement("td"));
  return row;
}
