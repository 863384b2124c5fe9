// Numbers as reporting/formatting.py writes them, and nodes built from text only: a name never becomes markup.

const STATUS = {
  origin: ["◆", "origin"], different: ["≠", "different"], amplified: ["▲", "amplified"], propagated: ["→", "propagated"],
  undecided: ["?", "undecided"], unmatched: ["∅", "unmatched"], within_noise: ["≈", "within noise"], equal: ["=", "equal"],
};
const BEYOND = new Set(["origin", "different", "amplified", "propagated"]);
const EVIDENCE = {
  digest: "64-bit digests of all values", values: "the stored values", sketch: "linear sketches (error within about 10 %)",
  statistics: "statistics only: a lower bound", none: "nothing to compare",
};

function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "class") node.className = value;
    else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes || {})) if (value !== null) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// Numbers of result.json, where infinities are words.
const num = (value) => (value === null || value === undefined ? null : Number({ inf: Infinity, "-inf": -Infinity, nan: NaN }[value] ?? value));

function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (Number.isNaN(value)) return "nan";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e-2 && size < 1e5)
    return size < 10 ** digits ? String(Number(value.toPrecision(digits))) : value.toLocaleString("en", { maximumFractionDigits: 0 });
  return value.toExponential(Math.max(0, digits - 2)).replace("e+", "e");
}

function exact(value) {
  if (value === null || value === undefined) return "–";
  if (!Number.isFinite(value) || value === 0) return number(value);
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e15) return value.toLocaleString("en");
  return size >= 1e-4 && size < 1e7 ? value.toPrecision(9) : value.toExponential(8).replace("e+", "e");
}

function ratio(value) {
  if (value === null || value === undefined) return "–";
  if (!Number.isFinite(value)) return number(value);
  if (value >= 1e6) return number(value, 2) + "×";
  return (value >= 10 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(2)))) + "×";
}

function briefRatio(value) {
  if (value === null || !Number.isFinite(value) || value < 1e4 || value >= 1e6) return ratio(value);
  return `${Math.round(value / 1000)}k×`;
}

// A size of an error: one decimal and an exponent, so that a column of them can be read down.
function error(value) {
  if (value === null || value === undefined || !Number.isFinite(value) || value === 0) return number(value);
  return Math.abs(value) >= 0.1 && Math.abs(value) < 1000 ? String(Number(value.toPrecision(2))) : value.toExponential(1).replace("e+", "e");
}

const count = (value) => value.toLocaleString("en");
const shortSite = (site) => site.replaceAll("torch.nn.functional.", "F.").replaceAll("torch.Tensor.", "Tensor.");
const SHORT_DTYPES = { bfloat16: "bf16", float16: "fp16", float32: "fp32", float64: "fp64" };
const moduleName = (fqn) => fqn || "(root)";

function statusGlyph(status) {
  const [glyph, label] = STATUS[status] || ["·", status];
  return el("span", { class: `glyph s-${status}`, title: label, role: "img", "aria-label": label }, glyph);
}

// Where a score lies between 1e-3 and 1e6 times the tolerance, 0 to 1; the tolerance itself is at a third.
function scorePosition(score) {
  if (score === null || Number.isNaN(score)) return score === null ? 0 : 1;
  if (score <= 0) return 0;
  return Math.max(0.02, Math.min(1, (Math.log10(score) + 3) / 9));
}

function scoreBar(score) {
  const fill = el("i", { class: score !== null && !(score <= 1) ? "over" : "under" });
  fill.style.width = `${(scorePosition(score) * 100).toFixed(1)}%`;
  return el("span", { class: "score", "aria-hidden": "true" }, fill);
}

async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = el("textarea", {}, text);
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  const before = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = before), 1200);
}
