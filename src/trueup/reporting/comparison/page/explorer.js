// Puts the page together: reads the tables, wires filters, tree, charts and details, and keeps the address in step.

const report = JSON.parse(document.getElementById("report").textContent);
const $ = (id) => document.getElementById(id);

class Filters {
  constructor(records, table, tree) {
    Object.assign(this, { records, table, tree, module: null, text: "" });
    this.statuses = new Set();
    this.selects = { phase: $("filter-phase"), step: $("filter-step"), rank: $("filter-rank") };
    for (const [name, select] of Object.entries(this.selects)) {
      this.#options(select, name);
      select.addEventListener("change", () => this.apply());
    }
    let timer = 0;
    $("search").addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(() => this.apply(), 90); });
    for (const chip of document.querySelectorAll("[data-status]")) chip.addEventListener("click", () => this.toggle(chip.dataset.status));
    $("reset").addEventListener("click", () => this.reset());
    this.apply();
  }
  #options(select, name) {
    const column = this.records.columns[name];
    const values = column.words ? [...column.words] : [...new Set(column.data)].sort((a, b) => a - b);
    if (values.length < 2) select.closest("label").hidden = true;
    for (const value of values) select.append(el("option", { value }, String(value)));
  }
  toggle(status) {
    if (!this.statuses.delete(status)) this.statuses.add(status);
    this.apply();
  }
  only({ phase = "", module = null, step = "", rank = "", text = "", statuses = [] } = {}) {
    Object.assign(this.selects.phase, { value: phase });
    Object.assign(this.selects.step, { value: String(step) });
    Object.assign(this.selects.rank, { value: String(rank) });
    $("search").value = text;
    this.statuses = new Set(statuses);
    this.module = module;
    this.tree.choose(module);
    this.apply();
  }
  reset() { this.only(); }
  // A yes or no per word of a dictionary column, so that 150,000 rows cost one look-up each.
  #mask(column, test) {
    const mask = new Uint8Array(column.words.length + 1);
    column.words.forEach((word, i) => (mask[i + 1] = test(word) ? 1 : 0));
    return mask;
  }
  apply() {
    const { columns, rows } = this.records;
    const tests = [];
    const word = (name, test) => { const mask = this.#mask(columns[name], test), data = columns[name].data; tests.push((i) => mask[data[i]]); };
    if (this.statuses.size) word("status", (status) => this.statuses.has(status));
    if (this.selects.phase.value) word("phase", (phase) => phase === this.selects.phase.value);
    for (const name of ["step", "rank"]) {
      const chosen = this.selects[name].value;
      if (chosen !== "") { const data = columns[name].data, wanted = Number(chosen); tests.push((i) => data[i] === wanted); }
    }
    if (this.module !== null) {
      const root = this.module, inside = root + ".";
      if (root !== "") word("module", (fqn) => fqn === root || fqn.startsWith(inside));
    }
    this.text = $("search").value.trim().toLowerCase();
    for (const part of this.text.split(/\s+/).filter(Boolean)) {
      const names = ["site", "name", "type", "phase", "status", "target_dtype", "reference_dtype"];
      const hits = names.map((name) => [this.#mask(columns[name], (value) => value.toLowerCase().includes(part)), columns[name].data]);
      tests.push((i) => hits.some(([mask, data]) => mask[data[i]]));
    }
    const kept = new Uint32Array(rows);
    let size = 0;
    for (let i = 0; i < rows; i++) if (tests.every((test) => test(i))) kept[size++] = i;
    this.table.show(kept.slice(0, size));
    this.#describe(size, rows, tests.length > 0);
  }
  #describe(size, rows, filtered) {
    $("shown").textContent = filtered ? `${count(size)} of ${count(rows)} records` : `${count(rows)} records, in execution order`;
    $("reset").hidden = !filtered;
    const chip = $("module-chip");
    chip.hidden = this.module === null || this.module === "";
    chip.firstElementChild.textContent = this.module || "";
    for (const button of document.querySelectorAll("[data-status]")) button.setAttribute("aria-pressed", String(this.statuses.has(button.dataset.status)));
  }
}

function recordColumns(records) {
  const c = records.columns;
  const measure = (name, title, width, show, extra = {}) => ({ title, width, align: "right", first: -1, keys: () => c[name].keys, cell: (i) => show(c[name].get(i)), ...extra });
  const pair = (name) => (i) => {
    const a = c[`target_${name}`].get(i), b = c[`reference_${name}`].get(i);
    if (a === b) return a || "–";
    return el("span", { class: "unlike", title: `target ${a ?? "–"}, reference ${b ?? "–"}` }, [a, b].map((v) => SHORT_DTYPES[v] || v || "–").join(" ≠ "));
  };
  const first = report.verdict;
  const measured = (name) => c[name].nulls === null || c[name].nulls.includes(0);
  const varied = (name) => new Set(c[name].data).size < 2;
  return [
    { title: "", width: "30px", hint: "Status", first: 1, keys: () => c.status.keys, cell: (i) => statusGlyph(c.status.get(i)) },
    { title: "Site", width: "minmax(130px, 1fr)", class: "site", keys: () => c.site.keys, cell: (i) => {
      const text = c.site.get(i) || "", shown = shortSite(text), cut = shown.lastIndexOf(" · ");
      const here = text === first.where && c.step.get(i) === first.step && c.rank.get(i) === first.rank && c.phase.get(i) === first.phase;
      return el("span", { class: "place", title: text }, here ? el("b", { class: "flag" }, "first") : null, el("span", {}, cut < 0 ? shown : shown.slice(0, cut)), cut < 0 ? null : el("span", { class: "muted" }, shown.slice(cut)));
    } },
    { title: "Phase", width: "76px", from: 560, keys: () => c.phase.keys, cell: (i) => (c.phase.get(i) || "").replace("_", " ") },
    measure("step", "Step", "44px", String, { from: 720, first: 1, hide: varied("step") }),
    measure("rank", "Rank", "44px", String, { from: 720, first: 1, hide: varied("rank") }),
    { title: "Dtype", width: "84px", from: 800, keys: () => c.target_dtype.keys, cell: pair("dtype") },
    { title: "Shape", width: "108px", from: 920, keys: () => c.target_shape.keys, cell: pair("shape") },
    measure("rel_l2", "rel L2", "62px", error, { from: 460, hint: "Norm of the difference over the norm of the reference" }),
    { title: "× tolerance", width: "126px", align: "right", first: -1, hint: "rel L2 over its tolerance; the tick is the tolerance", keys: () => c.score.keys, cell: (i) => {
      const score = c.score.get(i);
      return score === null ? "–" : el("span", { class: `heat${score <= 1 ? "" : " over"}` }, scoreBar(score), el("b", {}, score === 0 ? "0" : briefRatio(score)));
    } },
    measure("max_abs_diff", "max |diff|", "76px", error, { from: 1100, hide: !measured("max_abs_diff") }),
    measure("cosine_similarity", "1 − cos", "58px", (v) => (v === null ? "–" : error(Math.max(0, 1 - v))), { from: 1190, first: 1, hint: "One minus the cosine of the angle between the two tensors" }),
  ];
}

function setUpNorms() {
  const rows = report.local_norms || [];
  if (!rows.length) return null;
  const value = rows.map((row) => ({ ...row, target: num(row.target), reference: num(row.reference), rel_diff: num(row.rel_diff), rel_l2: num(row.rel_l2) }));
  const top = value.reduce((most, row) => Math.max(most, ...[row.target, row.reference].filter(Number.isFinite)), 0) || 1;
  const keys = (name) => { const kept = Float64Array.from(value, (row) => row[name] ?? NaN); return () => kept; };
  const bar = (side, size) => { const node = el("i", { class: side }); node.style.width = `${Math.max(0.4, (100 * (Number.isFinite(size) ? size : 0)) / top)}%`; return node; };
  const names = value.map((row, i) => i).sort((a, b) => value[a].fqn.localeCompare(value[b].fqn, "en", { numeric: true }));
  const rank = new Float64Array(value.length);
  names.forEach((row, position) => (rank[row] = position));
  return new VirtualTable($("norm-table"), {
    label: "Local norm of each weight's gradient, target and reference", rows: value.length, rowHeight: 34,
    columns: [
      { title: "Weight", width: "minmax(150px, 1fr)", class: "site", tip: true, keys: () => rank, cell: (i) => value[i].fqn },
      { title: "Gradient norm", width: "minmax(120px, 1.5fr)", from: 620, cell: (i) => el("span", { class: "pair", "aria-hidden": "true" }, bar("target", value[i].target), bar("reference", value[i].reference)) },
      { title: "target", width: "84px", align: "right", first: -1, keys: keys("target"), cell: (i) => number(value[i].target, 4) },
      { title: "reference", width: "88px", align: "right", from: 460, first: -1, keys: keys("reference"), cell: (i) => number(value[i].reference, 4) },
      { title: "norm differs", width: "96px", align: "right", from: 380, first: -1, hint: "|target − reference| / reference", keys: keys("rel_diff"), cell: (i) => error(value[i].rel_diff) },
      { title: "rel L2", width: "78px", align: "right", first: -1, hint: "Norm of the difference over the norm of the reference", keys: keys("rel_l2"), cell: (i) => error(value[i].rel_l2) },
    ],
  });
}

async function setUpPrecision() {
  if (!$("table-precision")) return null;
  const data = await decodeTable("table-precision"), c = data.columns;
  const brief = (text) => {
    if (!text) return "–";
    const runs = [];
    for (const part of text.split(",")) if (runs.at(-1)?.[0] === part) runs.at(-1)[1]++; else runs.push([part, 1]);
    return runs.map(([dtype, times]) => (times > 1 ? `${dtype} ×${times}` : dtype)).join(", ");
  };
  const dtype = (side, what) => (i) => {
    const text = c[`${side}_${what}_dtypes`].get(i), other = c[`${side === "target" ? "reference" : "target"}_${what}_dtypes`].get(i);
    return el("span", { class: (text || "") === (other || "") ? "" : "unlike", title: text || "" }, brief(text));
  };
  const word = (name, title, width, extra = {}) => ({ title, width, tip: true, keys: () => c[name].keys, cell: (i) => c[name].get(i) || "–", ...extra });
  const both = (what) => ["target", "reference"].map((side) => ({ title: `${side} ${{ input: "in", weight: "weight", output: "out" }[what]}`, width: what === "weight" ? "minmax(124px, .8fr)" : "minmax(96px, .7fr)", class: "mono-cell", from: what === "weight" ? 900 : what === "input" ? 700 : 0, cell: dtype(side, what) }));
  const table = new VirtualTable($("precision-table"), {
    label: "Dtypes of each call on both sides", rows: data.rows,
    rowClass: (i) => (c.differs.get(i) === "true" ? "r-different" : ""),
    columns: [word("role", "Role", "76px", { from: 560 }), word("module", "Module", "minmax(96px, .8fr)", { class: "site", cell: (i) => moduleName(c.module.get(i)) }),
      { ...word("name", "Call", "minmax(96px, 1fr)", { class: "site", from: 460 }), cell: (i) => shortSite(c.name.get(i) === c.module.get(i) ? c.type.get(i) || "module" : c.name.get(i) || "") },
      ...both("input"), ...both("weight"), ...both("output"), word("note", "Note", "minmax(190px, 1.3fr)", { from: 1000, hide: c.note.words.length === 0 })],
  });
  const differing = table.all.filter((i) => c.differs.get(i) === "true"), box = $("only-differing");
  const apply = () => table.show(box?.checked ? differing : table.all);
  box?.addEventListener("change", apply);
  apply();
  return table;
}

function setUpCharts(pick) {
  for (const phase of ["forward", "backward"]) {
    const host = $(`depth-${phase}`);
    const points = (report.depth || []).filter((point) => point.phase === phase);
    if (host && points.length) new DepthChart(host, points, {
      label: `Relative error of module ${phase === "forward" ? "outputs" : "output gradients"} in execution order, logarithmic, with the tolerance`, onPick: (point) => pick(point),
    });
  }
}

async function start() {
  const records = await decodeTable("table-records");
  let details = null, stacks = null;
  const loadDetails = () => (details ??= decodeTable("table-details"));
  const loadStacks = () => (stacks ??= decodeTable("table-stacks").then(({ rows, columns }) => {
    const sides = { target: new Map(), reference: new Map() };
    for (let i = 0; i < rows; i++) sides[columns.side.get(i)].set(columns.number.get(i), (columns.frames.get(i) || "").split("\u001f").filter(Boolean));
    return sides;
  }));
  let filters = null, detail = null;
  const tree = new ModuleTree($("tree"), report.modules || [], { owner: report.verdict.owner, onSelect: (fqn) => { filters.module = fqn; filters.apply(); } });
  const status = records.columns.status;
  const table = new VirtualTable($("record-table"), {
    label: "All records of the comparison", rows: records.rows, columns: recordColumns(records),
    rowClass: (i) => `r-${BEYOND.has(status.get(i)) ? "different" : status.get(i)}`, onOpen: (row) => detail.open(row),
  });
  filters = new Filters(records, table, tree);
  const goTo = (row, open = true) => {
    if (!table.goTo(row)) { filters.reset(); table.goTo(row); }
    if (open) detail.open(row);
  };
  detail = new Detail($("detail"), { records, loadDetails, loadStacks, report, goTo });
  const find = (wanted) => {
    const { site, phase, step, rank } = records.columns;
    const code = site.words.indexOf(wanted.site) + 1;
    if (!code) return -1;
    for (let i = 0; i < records.rows; i++)
      if (site.data[i] === code && (!wanted.phase || phase.get(i) === wanted.phase) && ["step", "rank"].every((key) => wanted[key] === undefined || wanted[key] === "" || records.columns[key].get(i) === Number(wanted[key]))) return i;
    return -1;
  };
  const show = (wanted, open = true) => { const row = find(wanted); if (row >= 0) goTo(row, open); return row; };
  const follow = () => {
    const wanted = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
    if (!wanted.site) return false;
    if (show(wanted) >= 0) $("records").scrollIntoView();
    return true;
  };
  const first = { site: report.verdict.where, phase: report.verdict.phase, step: report.verdict.step ?? undefined, rank: report.verdict.rank ?? undefined };
  for (const button of document.querySelectorAll("[data-phase-only]")) button.addEventListener("click", () => {
    filters.only({ phase: button.dataset.phaseOnly });
    $("records").scrollIntoView();
  });
  for (const link of document.querySelectorAll('a[href^="#site="]')) link.addEventListener("click", (event) => {
    event.preventDefault();
    $("records").scrollIntoView();
    show(first);
  });
  $("module-chip").addEventListener("click", () => { filters.module = null; tree.choose(null); filters.apply(); });
  $("tree-phase").addEventListener("change", (event) => { tree.phase = event.target.value; tree.render(); });
  setUpCharts((point) => { filters.only({ phase: point.phase, module: point.module, step: point.step, rank: point.rank }); $("records").scrollIntoView(); });
  const tables = [table, setUpNorms(), await setUpPrecision()].filter(Boolean);
  addEventListener("beforeprint", () => {
    const telling = table.view.filter((i) => BEYOND.has(status.get(i)));
    tables.forEach((one) => (one === table && telling.length ? one.print(true, telling) : one.print(true)));
  });
  addEventListener("afterprint", () => tables.forEach((one) => one.print(false)));
  addEventListener("hashchange", follow);
  addEventListener("keydown", (event) => {
    if (event.key === "/" && !/INPUT|SELECT|TEXTAREA/.test(document.activeElement.tagName)) { event.preventDefault(); $("search").focus(); }
    if (event.key === "Escape" && !$("detail").hidden) detail.close();
  });
  if (!follow() && first.site) show(first, false);
  document.documentElement.dataset.ready = "true";
}

start().catch((error) => {
  $("failure").hidden = false;
  $("failure").append(` (${error.message})`);
  throw error;
});
