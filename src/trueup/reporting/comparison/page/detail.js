// One record, both sides: metrics and the rule they were judged by, statistics, the rest of its call, source lines.

class Detail {
  constructor(panel, { records, loadDetails, loadStacks, report, goTo }) {
    Object.assign(this, { panel, records, loadDetails, loadStacks, report, goTo, row: -1 });
    panel.addEventListener("keydown", (event) => { if (event.key === "Escape") this.close(); });
  }
  async open(row) {
    this.row = row;
    this.back ??= document.activeElement;
    const [details, stacks] = await Promise.all([this.loadDetails(), this.loadStacks()]);
    if (row !== this.row) return;
    const get = (name) => (this.records.columns[name] || details.columns[name])?.get(row) ?? null;
    this.panel.replaceChildren(...this.#head(get), el("div", { class: "detail-body" },
      this.#metrics(get), this.#siblings(row, get, details), this.#statistics(get), this.#frames(get, stacks), this.#origin(get)));
    const wasHidden = this.panel.hidden;
    this.panel.hidden = false;
    document.documentElement.classList.add("with-detail");
    if (wasHidden) this.panel.focus({ preventScroll: true });
    history.replaceState(null, "", "#" + new URLSearchParams({ site: get("site"), phase: get("phase"), step: get("step"), rank: get("rank") }));
  }
  close() {
    this.panel.hidden = true;
    this.row = -1;
    document.documentElement.classList.remove("with-detail");
    history.replaceState(null, "", location.pathname + location.search);
    this.back?.focus?.({ preventScroll: true });
    this.back = null;
  }
  #head(get) {
    const link = el("button", { type: "button", class: "quiet", onclick: () => copyText(location.href, link) }, "Copy link");
    const close = el("button", { type: "button", class: "quiet", "aria-label": "Close details", onclick: () => this.close() }, "Close");
    const status = get("status");
    const place = [get("phase"), `step ${get("step")}`, `rank ${get("rank")}`, get("microbatch") ? `microbatch ${get("microbatch")}` : "", get("mode") !== "train" ? get("mode") : ""];
    return [el("div", { class: "detail-head" },
      el("div", { class: "detail-tools" }, el("span", { class: `pill s-${status}` }, statusGlyph(status), (STATUS[status] || ["", status])[1]), link, close),
      el("h3", { class: "mono" }, get("site")), el("p", { class: "muted" }, place.filter(Boolean).join(" · ")))];
  }
  #metrics(get) {
    const rel = get("rel_l2"), bound = get("tolerance"), score = get("score"), rule = this.report.tolerance || {};
    const verdict = el("p", { class: "rule" });
    if (rel === null) verdict.append(get("reason") || "No error could be measured for this record.");
    else if (get("bits_equal") === "true") verdict.append("Bit-identical.");
    else verdict.append(el("b", {}, `rel L2 ${error(rel)}`), get("evidence") === "statistics" ? " or more" : "", " (tolerance ", el("b", {}, error(bound)), ")", score === null ? "" : `: ${ratio(score)} tolerance.`);
    const rows = [["max |difference|", error(get("max_abs_diff"))], ["cosine", get("cosine_similarity") === null ? "–" : Number(get("cosine_similarity")).toFixed(9)],
      ["scale", number(get("scale"), 7)], ["residual", error(get("residual"))], ["elements above", get("fraction_above") === null ? "–" : `${number(get("fraction_above") * 100)} %`],
      ["max ulp", number(get("max_ulp_diff"))], ["input error", error(get("error_in"))], ["maximum gain", number(get("gain"))], ["noise floor", error(get("floor"))],
      ["target vs arbiter", error(get("arbiter_target"))], ["reference vs arbiter", error(get("arbiter_reference"))]].filter(([, value]) => value !== "–");
    return el("section", {}, verdict, get("reason") && rel !== null ? el("p", {}, get("reason")) : null,
      rows.length ? el("dl", { class: "metrics" }, rows.map(([key, value]) => el("div", {}, el("dt", {}, key), el("dd", {}, value)))) : null,
      bound === null ? null : el("p", { class: "muted small" }, `Rule: ${(rule.formula || "–").split("; ")[0]}${rule.origin ? ` (${rule.origin})` : ""}. Judged from ${EVIDENCE[get("evidence")] || get("evidence")}.`));
  }
  // The other tensors of this call: an equal input beside a different output shows where the error is introduced.
  #siblings(row, get, details) {
    const side = get("target_call") === null ? "reference_call" : "target_call";
    const calls = details.columns[side], { step, rank, phase } = this.records.columns;
    const call = calls.get(row), found = [];
    for (let i = Math.max(0, row - 400); i < Math.min(this.records.rows, row + 400); i++)
      if (calls.get(i) === call && step.get(i) === step.get(row) && rank.get(i) === rank.get(row) && phase.data[i] === phase.data[row]) found.push(i);
    if (found.length < 2 || call === null) return null;
    const { slot, status, score } = this.records.columns;
    return el("section", {}, el("h4", {}, "This call"), el("div", { class: "slots" }, found.map((i) =>
      el("button", { type: "button", class: i === row ? "slot here" : "slot", "aria-current": i === row ? "true" : null, onclick: () => this.goTo(i) },
        statusGlyph(status.get(i)), el("span", { class: "mono" }, slot.get(i)), el("span", { class: "muted" }, score.get(i) === 0 ? "" : ratio(score.get(i)))))));
  }
  #statistics(get) {
    const line = (label, key, show) => {
      const a = get(`target_${key}`), b = get(`reference_${key}`);
      if (a === null && b === null) return null;
      const same = a === b || (Number.isNaN(a) && Number.isNaN(b));
      const gap = typeof a === "number" && typeof b === "number" && !same ? error(a - b) : same ? "" : "≠";
      return el("tr", { class: same ? "" : "differs" }, el("th", { scope: "row" }, label), el("td", {}, show(a)), el("td", {}, show(b)), el("td", { class: "gap" }, gap));
    };
    const text = (value) => (value === null ? "–" : String(value));
    return el("section", {}, el("h4", {}, "Both sides"), el("div", { class: "wide" }, el("table", { class: "facts numbers" },
      el("thead", {}, el("tr", {}, el("th", {}), el("th", { scope: "col" }, "target"), el("th", { scope: "col" }, "reference"), el("th", { scope: "col" }, "difference"))),
      el("tbody", {}, line("dtype", "dtype", text), line("shape", "shape", text), line("requires grad", "requires_grad", text), line("minimum", "minimum", exact),
        line("maximum", "maximum", exact), line("mean", "mean", exact), line("L2 norm", "l2_norm", exact), line("zeros", "num_zero", exact), line("NaN", "num_nan", exact),
        line("+inf", "num_posinf", exact), line("−inf", "num_neginf", exact)))));
  }
  #frames(get, stacks) {
    const side = (name) => {
      const frames = stacks[name].get(get(`${name}_stack`)) || [];
      return el("div", {}, el("h4", {}, `Called from, ${name}`), frames.length === 0 ? el("p", { class: "muted small" }, "No call stack was kept.")
        : el("ol", { class: "frames" }, frames.map((frame) => {
          const cut = frame.indexOf(" | ");
          return el("li", {}, el("span", { class: "place" }, cut < 0 ? frame : frame.slice(0, cut)), cut < 0 ? null : el("code", {}, frame.slice(cut + 3).trim()));
        })));
    };
    return el("section", { class: "both" }, side("target"), side("reference"));
  }
  #origin(get) {
    const pass = get("match_pass");
    const words = [pass ? `Paired by ${pass}${get("confidence") === null ? "" : `, confidence ${Math.round(get("confidence") * 100)} %`}.` : "Not paired.",
      get("reference_site") ? `In the reference: ${get("reference_site")}` : "", `Calls ${get("target_call") ?? "–"} and ${get("reference_call") ?? "–"} of the two traces.`];
    return el("p", { class: "muted small" }, words.filter(Boolean).join(" "));
  }
}
