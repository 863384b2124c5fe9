// The module tree: each node shows the worst score at or below it; choosing one filters the table.

class ModuleTree {
  constructor(host, modules, { owner, onSelect }) {
    Object.assign(this, { host, owner, onSelect, phase: "worst", selected: null });
    this.root = this.#grow(modules);
    host.setAttribute("role", "tree");
    host.addEventListener("keydown", (event) => this.#key(event));
    this.#open(this.root);
    this.#reveal(owner);
    this.render();
  }
  #grow(modules) {
    const byName = new Map();
    const ensure = (fqn) => {
      if (byName.has(fqn)) return byName.get(fqn);
      const node = { fqn, leaf: fqn.slice(fqn.lastIndexOf(".") + 1), type: null, children: [], own: {}, order: Infinity, open: false };
      byName.set(fqn, node);
      if (fqn !== "") ensure(fqn.includes(".") ? fqn.slice(0, fqn.lastIndexOf(".")) : "").children.push(node);
      return node;
    };
    const root = ensure("");
    for (const entry of modules) {
      const node = ensure(entry.fqn);
      node.type = entry.type;
      node.order = entry.order ?? Infinity;
      node.own = { forward: num(entry.worst_forward), backward: num(entry.worst_backward), grad: num(entry.worst_grad) };
    }
    const fold = (node) => {
      node.score = { ...node.own };
      for (const child of node.children) {
        fold(child);
        node.order = Math.min(node.order, child.order);
        for (const key of ["forward", "backward", "grad"]) node.score[key] = worse(node.score[key] ?? null, child.score[key] ?? null);
      }
      node.children.sort((a, b) => a.order - b.order);
      node.score.worst = worse(worse(node.score.forward ?? null, node.score.backward ?? null), node.score.grad ?? null);
    };
    fold(root);
    this.byName = byName;
    return root;
  }
  #open(node) {
    node.open = true;
    if (node.children.length === 1) this.#open(node.children[0]);
    for (const child of node.children) if (child.type === null && node === this.root) child.open = true;
  }
  #reveal(fqn) {
    if (!fqn || !this.byName.has(fqn)) return;
    for (let at = fqn; at; at = at.includes(".") ? at.slice(0, at.lastIndexOf(".")) : "") this.byName.get(at).open = at !== fqn || this.byName.get(at).open;
  }
  render() {
    this.lines = [];
    const walk = (node, level) => {
      this.lines.push([node, level]);
      if (node.open) node.children.forEach((child) => walk(child, level + 1));
    };
    walk(this.root, 1);
    const focus = this.focus && this.lines.some(([node]) => node === this.focus) ? this.focus : this.root;
    this.host.replaceChildren(...this.lines.map(([node, level]) => this.#line(node, level, node === focus)));
  }
  #line(node, level, focusable) {
    const score = node.score[this.phase] ?? null;
    const branch = node.children.length > 0;
    const twist = el("span", { class: `twist${branch ? (node.open ? " open" : "") : " none"}`, "aria-hidden": "true" });
    const label = el("span", { class: "leaf" }, node.fqn === "" ? "model" : node.leaf);
    const line = el("div", {
      class: `node${node === this.selected ? " selected" : ""}${node.fqn === this.owner && node.fqn !== "" ? " owner" : ""}`, role: "treeitem", "aria-level": level,
      "aria-expanded": branch ? String(node.open) : null, "aria-selected": String(node === this.selected), tabindex: focusable ? "0" : "-1",
      title: `${moduleName(node.fqn)}${node.type ? ` (${node.type})` : ""}: worst ${ratio(score)} the tolerance`,
    }, twist, label, el("span", { class: "type" }, node.type || ""), scoreBar(score), el("span", { class: `times${score !== null && !(score <= 1) ? " over" : ""}` }, score === 0 ? "=" : briefRatio(score)));
    line.style.setProperty("--level", level - 1);
    line.addEventListener("click", (event) => {
      this.focus = node;
      if (event.target === twist && branch) this.toggle(node);
      else this.select(node);
    });
    line.node = node;
    return line;
  }
  toggle(node, open = !node.open) {
    node.open = open;
    this.render();
    this.#refocus();
  }
  select(node) {
    this.selected = this.selected === node ? null : node;
    if (this.selected && node.children.length) node.open = true;
    this.render();
    this.#refocus();
    this.onSelect(this.selected ? node.fqn : null);
  }
  choose(fqn) {
    this.selected = fqn === null ? null : this.byName.get(fqn) || null;
    if (fqn) this.#reveal(fqn);
    this.render();
  }
  #refocus() {
    if (this.host.contains(document.activeElement) || document.activeElement === document.body)
      [...this.host.children].find((line) => line.node === this.focus)?.focus({ preventScroll: true });
  }
  #key(event) {
    const at = this.lines.findIndex(([node]) => node === event.target.node);
    if (at < 0) return;
    const [node, level] = this.lines[at];
    const go = (index) => { if (this.lines[index]) { this.focus = this.lines[index][0]; this.host.children[index].focus(); } };
    const parent = () => { for (let i = at - 1; i >= 0; i--) if (this.lines[i][1] < level) return i; return at; };
    const action = {
      ArrowDown: () => go(at + 1), ArrowUp: () => go(at - 1), Home: () => go(0), End: () => go(this.lines.length - 1),
      ArrowRight: () => (node.children.length && !node.open ? this.toggle(node, true) : node.open && go(at + 1)),
      ArrowLeft: () => (node.open && node.children.length ? this.toggle(node, false) : go(parent())),
      Enter: () => this.select(node), " ": () => this.select(node),
    }[event.key];
    if (!action) return;
    event.preventDefault();
    this.focus = node;
    action();
  }
}

function worse(a, b) {
  if (a === null) return b;
  if (b === null) return a;
  return Number.isNaN(a) || Number.isNaN(b) ? NaN : Math.max(a, b);
}
