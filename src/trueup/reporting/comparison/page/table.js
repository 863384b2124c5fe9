// A table of any length: only the rows in sight exist. Keyboard: arrows, page, home, end, Enter.

class VirtualTable {
  constructor(host, { columns, rows, label, rowHeight = 30, rowClass = null, onOpen = null }) {
    Object.assign(this, { host, every: columns.filter((column) => !column.hide), label, rowHeight, rowClass, onOpen });
    this.all = Uint32Array.from({ length: rows }, (_, i) => i);
    this.base = this.all;
    this.view = this.all;
    this.sort = null;
    this.active = -1;
    this.pool = [];
    this.#build();
  }
  #build() {
    this.head = el("div", { class: "vt-head", role: "row" });
    this.body = el("div", { class: "vt-body", role: "rowgroup" });
    this.scroller = el("div", { class: "vt-scroll", tabindex: "0", role: "grid", "aria-label": this.label }, this.head, this.body);
    this.empty = el("p", { class: "vt-empty", hidden: true }, "Nothing matches these filters.");
    this.host.replaceChildren(this.scroller, this.empty);
    this.scroller.addEventListener("scroll", () => this.#schedule(), { passive: true });
    this.scroller.addEventListener("keydown", (event) => this.#key(event));
    this.body.addEventListener("click", (event) => this.#click(event));
    new ResizeObserver(() => { this.#fit(); this.#schedule(); }).observe(this.scroller);
    this.#fit();
    this.#layout();
  }
  // A narrow table leaves out the columns it has no room for; details have them all.
  #fit(width = this.host.clientWidth) {
    const columns = this.every.filter((column) => (column.from || 0) <= width);
    if (columns.length === this.columns?.length) return;
    this.columns = columns;
    this.host.style.setProperty("--columns", columns.map((column) => column.width).join(" "));
    this.head.replaceChildren(...columns.map((column) => this.#header(column)));
    for (const node of this.pool) delete node.dataset.row;
    this.#mark();
  }
  #header(column) {
    const align = `cell ${column.align || ""} ${column.class || ""}`;
    if (column.keys === undefined) return el("div", { class: align, role: "columnheader", title: column.hint }, column.title);
    const button = el("button", { type: "button", title: column.hint, onclick: () => this.sortBy(column) }, column.title, el("i", {}));
    return el("div", { class: align, role: "columnheader", "aria-sort": "none" }, button);
  }
  // The useful direction first, then the other one, then execution order again.
  sortBy(column) {
    const first = column.first || 1;
    const next = this.sort?.column !== column ? first : this.sort.direction === first ? -first : 0;
    this.sort = next ? { column, direction: next } : null;
    this.#mark();
    this.show(this.base);
  }
  #mark() {
    [...this.head.children].forEach((cell, i) => {
      const sorted = this.sort?.column === this.columns[i] && this.sort.direction;
      if (cell.hasAttribute("aria-sort")) cell.setAttribute("aria-sort", sorted ? (sorted > 0 ? "ascending" : "descending") : "none");
    });
  }
  // Show these rows (indices into the data, in execution order), sorted as the person chose.
  show(rows) {
    this.base = rows;
    this.view = this.sort ? sortedView(rows, this.sort.column.keys(), this.sort.direction) : rows;
    this.active = -1;
    this.scroller.scrollTop = 0;
    this.#layout();
  }
  #layout() {
    // Browsers stop near 2^25 pixels of height: beyond that, scrolling maps proportionally.
    this.height = Math.min(this.view.length * this.rowHeight, 16e6);
    this.body.style.height = `${this.height}px`;
    this.scroller.setAttribute("aria-rowcount", this.view.length);
    this.empty.hidden = this.view.length > 0;
    this.#draw();
  }
  #schedule() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => { this.pending = 0; this.#draw(); });
  }
  get room() {
    return Math.max(this.rowHeight, this.scroller.clientHeight - this.head.offsetHeight);
  }
  #draw(extra = 6) {
    const total = this.view.length * this.rowHeight;
    const stretch = total > this.height && this.height > this.room ? (total - this.room) / (this.height - this.room) : 1;
    const top = this.scroller.scrollTop * stretch;
    const first = Math.max(0, Math.floor(top / this.rowHeight) - extra);
    const last = Math.min(this.view.length, Math.ceil((top + this.room) / this.rowHeight) + extra);
    const shift = this.scroller.scrollTop - top;
    for (let i = this.pool.length; i < last - first; i++) this.pool.push(this.body.appendChild(el("div", { class: "vt-row", role: "row" })));
    this.pool.forEach((node, i) => {
      const position = first + i;
      node.hidden = position >= last;
      if (!node.hidden) this.#fill(node, position, position * this.rowHeight + shift);
    });
  }
  #fill(node, position, y) {
    const row = this.view[position];
    node.style.transform = `translateY(${y}px)`;
    node.id = `${this.host.id}-r${position}`;
    node.className = `vt-row ${this.rowClass ? this.rowClass(row) : ""}${position === this.active ? " active" : ""}`;
    if (node.dataset.row === String(row)) return;
    node.dataset.row = row;
    node.dataset.position = position;
    node.setAttribute("aria-rowindex", position + 1);
    node.replaceChildren(...this.columns.map((column) => {
      const content = column.cell(row);
      const cell = el("div", { class: `cell ${column.align || ""} ${column.class || ""}`, role: "gridcell" }, content);
      if (typeof content === "string" && column.tip) cell.title = content;
      return cell;
    }));
  }
  #click(event) {
    const node = event.target.closest(".vt-row");
    if (!node) return;
    this.activate(this.view.indexOf(Number(node.dataset.row)), false);
    this.onOpen?.(this.view[this.active]);
  }
  #key(event) {
    if (event.target !== this.scroller) return;
    const page = Math.max(1, Math.floor(this.room / this.rowHeight) - 1);
    const move = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key];
    if (move !== undefined) this.activate(Math.min(this.view.length - 1, Math.max(0, this.active + move)), true);
    else if (event.key === "Enter" && this.active >= 0) this.onOpen?.(this.view[this.active]);
    else return;
    event.preventDefault();
  }
  activate(position, scroll) {
    this.active = position;
    if (scroll) this.reveal(position);
    this.#draw();
    this.scroller.setAttribute("aria-activedescendant", `${this.host.id}-r${position}`);
  }
  // Bring a row into sight; `lead` rows of context stay above it.
  reveal(position, lead = 0) {
    const total = this.view.length * this.rowHeight;
    const scale = total > this.height && total > this.room ? (this.height - this.room) / (total - this.room) : 1;
    const top = position * this.rowHeight * scale;
    if (lead) this.scroller.scrollTop = Math.max(0, top - lead * this.rowHeight);
    else if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    else if (top + this.rowHeight > this.scroller.scrollTop + this.room) this.scroller.scrollTop = top + this.rowHeight - this.room;
    this.#draw();
  }
  goTo(row, lead = 4) {
    const position = this.view.indexOf(row);
    if (position < 0) return false;
    this.reveal(position, lead);
    this.activate(position, false);
    return true;
  }
  // Paper has no scroll bar and little room: lay out the first of the given rows, then go back.
  print(on, rows = this.view) {
    if (on) {
      this.kept = { top: this.scroller.scrollTop, view: this.view };
      this.view = rows.slice(0, 60);
      this.scroller.scrollTop = 0;
      this.#fit(680);
      this.body.style.height = `${this.view.length * this.rowHeight}px`;
      this.#draw(this.view.length);
    } else {
      this.view = this.kept.view;
      this.#fit();
      this.#layout();
      this.scroller.scrollTop = this.kept.top;
    }
  }
}
