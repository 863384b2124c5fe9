// Hand-made SVG: error along depth, and scalars over steps. Text is text nodes; colours come from the style sheet.

const SUPERSCRIPT = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
const power = (exponent) => "10" + [...String(exponent)].map((c) => SUPERSCRIPT[c]).join("");

class DepthChart {
  constructor(host, points, { label, owner, onPick }) {
    Object.assign(this, { host, label, owner, onPick });
    this.points = points.map((p) => ({ ...p, error: num(p.rel_l2), bound: num(p.tolerance) }));
    this.first = this.points.findIndex((p) => p.error !== null && p.bound !== null && !(p.error <= p.bound));
    this.tip = el("div", { class: "tip", hidden: true, role: "status", "aria-live": "polite" });
    new ResizeObserver(() => this.draw()).observe(host);
    this.draw();
  }
  draw() {
    const width = Math.max(280, this.host.clientWidth);
    if (width === this.width) return;
    this.width = width;
    const height = 270, left = 42, right = 12, top = 26, floor = 30, axis = 24;
    const bottom = height - axis - floor;
    const positive = this.points.flatMap((p) => [p.error, p.bound]).filter((v) => v > 0 && Number.isFinite(v));
    const low = Math.floor(Math.log10(Math.min(...positive, 1e-7)));
    const high = Math.max(low + 2, Math.ceil(Math.log10(Math.max(...positive, 1e-6)) + 0.15));
    const x = (i) => left + ((width - left - right) * (i + 0.5)) / this.points.length;
    const equalY = height - axis - floor / 2 + 2;
    const y = (value) => value === null ? null : value === 0 ? equalY
      : bottom - ((bottom - top) * (Math.min(high, Number.isFinite(value) ? Math.log10(value) : high) - low)) / (high - low);
    Object.assign(this, { x, y, left, right, top, bottom, height, axis, equalY });
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": this.label, tabindex: "0", class: "chart" });
    root.append(...this.#grid(low, high), this.#band(), ...this.#blocks(), ...this.#curve(), ...this.#mark());
    this.cross = svg("line", { class: "cross", y1: top, y2: height - axis, visibility: "hidden" });
    this.dot = svg("circle", { class: "cursor", r: 5, visibility: "hidden" });
    root.append(this.cross, this.dot);
    root.addEventListener("pointermove", (event) => this.point(this.#nearest(event)));
    root.addEventListener("pointerleave", () => this.point(-1));
    root.addEventListener("blur", () => this.point(-1));
    root.addEventListener("click", (event) => this.#pick(this.#nearest(event)));
    root.addEventListener("keydown", (event) => this.#key(event));
    this.root = root;
    this.host.replaceChildren(root, this.tip);
  }
  #grid(low, high) {
    const step = Math.max(1, Math.ceil((high - low) / 7));
    const nodes = [];
    for (let e = low; e <= high; e += step) {
      const at = this.y(10 ** e);
      nodes.push(svg("line", { class: "grid", x1: this.left, x2: this.width - this.right, y1: at, y2: at }));
      nodes.push(svg("text", { class: "tick", x: this.left - 7, y: at + 4, "text-anchor": "end" }, power(e)));
    }
    nodes.push(svg("rect", { class: "lane", x: this.left, width: this.width - this.left - this.right, y: this.equalY - 8, height: 16, rx: 3 }));
    nodes.push(svg("text", { class: "tick", x: this.left - 7, y: this.equalY + 4, "text-anchor": "end" }, "equal"));
    return nodes;
  }
  #band() {
    const edge = this.points.map((p, i) => (p.bound > 0 ? [this.x(i), this.y(p.bound)] : null)).filter(Boolean);
    if (!edge.length) return svg("g");
    const from = this.left, to = this.width - this.right;
    const line = `M${from} ${edge[0][1]}` + edge.map(([a, b]) => `L${a.toFixed(1)} ${b.toFixed(1)}`).join("") + `L${to} ${edge.at(-1)[1]}`;
    const lowest = edge.slice(Math.floor(edge.length * 0.8)).reduce((most, [, at]) => Math.max(most, at), 0);
    const label = svg("text", { class: "band-label", x: to - 4, y: Math.min(this.bottom - 4, lowest + 14), "text-anchor": "end" }, "within tolerance");
    return svg("g", {}, svg("path", { class: "band", d: `${line}L${to} ${this.bottom}L${from} ${this.bottom}Z` }), svg("path", { class: "bound", d: line }), label);
  }
  #blocks() {
    const nodes = [];
    let previous = null, lastX = -99;
    this.points.forEach((p, i) => {
      const match = /^(.*?)\.?(\d+)(\.|$)/.exec(p.module);
      const block = match ? `${match[1]}.${match[2]}` : null;
      if (block && block !== previous) {
        const at = this.x(i) - (this.x(1) - this.x(0)) / 2;
        const text = nodes.length ? match[2] : block;
        if (at - lastX > (lastX < 0 ? 0 : text.length * 7 + 16)) {
          nodes.push(svg("line", { class: "block", x1: at, x2: at, y1: this.height - this.axis, y2: this.height - this.axis + 5 }));
          nodes.push(svg("text", { class: "tick", x: at + 3, y: this.height - 7 }, text));
          lastX = at + (nodes.length === 2 ? text.length * 6 : 0);
        }
      }
      if (block) previous = block;
    });
    return nodes;
  }
  #curve() {
    let path = "", over = "", under = "", pen = false;
    this.points.forEach((p, i) => {
      const at = this.y(p.error);
      if (at === null) { pen = false; return; }
      const place = `${this.x(i).toFixed(1)} ${at.toFixed(1)}`;
      path += `${pen ? "L" : "M"}${place}`;
      pen = true;
      if (p.error <= p.bound || p.error === 0) under += `M${place}h0`;
      else over += `M${place}h0`;
    });
    const size = this.points.length > 400 ? 3 : this.points.length > 150 ? 4.5 : 6;
    return [svg("path", { class: "curve", d: path }), svg("path", { class: "dots under", d: under, "stroke-width": size }),
      svg("path", { class: "dots over", d: over, "stroke-width": size })];
  }
  #mark() {
    if (this.first < 0) return [];
    const at = this.x(this.first), flip = at > this.width * 0.6;
    return [svg("line", { class: "first", x1: at, x2: at, y1: this.top - 6, y2: this.height - this.axis }),
      svg("text", { class: "first-label", x: at + (flip ? -6 : 6), y: this.top - 10, "text-anchor": flip ? "end" : "start" },
        `first: ${moduleName(this.points[this.first].module)}`)];
  }
  #nearest(event) {
    const box = this.root.getBoundingClientRect();
    const share = (event.clientX - box.left - this.left) / (this.width - this.left - this.right);
    return Math.max(0, Math.min(this.points.length - 1, Math.floor(share * this.points.length)));
  }
  #key(event) {
    const move = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
    if (move !== undefined) this.point(Math.max(0, Math.min(this.points.length - 1, (this.at ?? this.first) + move)));
    else if (event.key === "Enter" && this.at >= 0) this.#pick(this.at);
    else return;
    event.preventDefault();
  }
  #pick(index) {
    if (index >= 0) this.onPick(this.points[index]);
  }
  point(index) {
    this.at = index;
    this.tip.hidden = index < 0;
    for (const node of [this.cross, this.dot]) node.setAttribute("visibility", index < 0 ? "hidden" : "visible");
    if (index < 0) return;
    const p = this.points[index], at = this.x(index), level = this.y(p.error) ?? this.equalY;
    this.cross.setAttribute("x1", at);
    this.cross.setAttribute("x2", at);
    this.dot.setAttribute("cx", at);
    this.dot.setAttribute("cy", level);
    this.tip.replaceChildren(el("b", {}, moduleName(p.module)), el("span", {}, p.type || ""),
      el("span", {}, p.error === 0 ? "no difference" : `rel L2 ${error(p.error)}`),
      el("span", {}, p.bound === null ? "" : `tolerance ${error(p.bound)}${p.error > p.bound ? `, ${ratio(p.error / p.bound)}` : ""}`));
    const flip = at > this.width / 2;
    this.tip.style.left = flip ? "auto" : `${at + 14}px`;
    this.tip.style.right = flip ? `${this.width - at + 14}px` : "auto";
    this.tip.style.top = `${Math.max(4, Math.min(this.height - 110, level - 40))}px`;
  }
}
