// Draws the panels of every run with plotly, in the colours of the page.
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const look = () => ({
  target: { color: colour("--target"), width: 1.1 },
  reference: { color: "#b7812f", width: 1.1 },
  repeat: { color: "#cdb07c", width: 0.9 },
  raw: { color: colour("--line-strong"), width: 0.8 },
  smooth: { color: colour("--target"), width: 2 },
});
const axis = (title) => ({
  title: { text: title, font: { size: 12 }, standoff: 6 }, gridcolor: colour("--line"), zeroline: false,
  linecolor: colour("--line-strong"), tickfont: { size: 11, color: colour("--soft") }, automargin: true, exponentformat: "e",
});
const traces = (panel) => {
  const styles = look();
  if (panel.bars) {
    const [line] = panel.lines;
    return [{ type: "bar", x: line.x, y: line.y, marker: { color: styles.target.color }, showlegend: false, hovertemplate: "%{x:.3g}: %{y} steps<extra></extra>" }];
  }
  const made = [];
  if (panel.band) {
    const edge = { mode: "lines", line: { width: 0 }, hoverinfo: "skip", x: panel.band.x };
    made.push({ ...edge, y: panel.band.low, showlegend: false });
    made.push({ ...edge, y: panel.band.high, fill: "tonexty", fillcolor: "rgba(77,122,112,.16)", name: panel.band.name });
  }
  for (const line of panel.lines) {
    made.push({ mode: "lines", x: line.x, y: line.y, name: line.name, line: styles[line.role], connectgaps: false, hovertemplate: "%{y:.6g}<extra>" + line.role + "</extra>" });
  }
  return made;
};
const layout = (panel) => {
  const tone = colour("--different");
  const at = panel.bars ? [{ x: 0, what: "" }] : panel.marks.map((mark) => ({ x: mark.step, what: mark.what }));
  const ends = panel.lines.map((line) => line.x[line.x.length - 1]);
  const late = (x) => x > 0.75 * Math.max(...ends); // a label there would leave the plot on the right
  const shapes = at.map(({ x }) => ({ type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: { color: panel.bars ? colour("--ink") : tone, width: 1, dash: panel.bars ? "solid" : "dash" } }));
  if (panel.zero && !panel.bars) shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: 0, y1: 0, line: { color: colour("--ink"), width: 1 } });
  return {
    margin: { l: 56, r: 10, t: 8, b: 40 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", bargap: 0,
    font: { family: getComputedStyle(document.body).fontFamily, color: colour("--ink"), size: 12 },
    xaxis: axis(panel.x_title), yaxis: { ...axis(panel.y_title), ...(panel.range ? { range: panel.range } : { rangemode: panel.bars ? "tozero" : "normal" }) },
    hovermode: panel.bars ? "closest" : "x unified", hoverlabel: { bgcolor: colour("--surface"), font: { color: colour("--ink"), size: 12 } },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { size: 11.5, color: colour("--soft") } }, showlegend: !panel.bars,
    shapes, annotations: at.filter(({ what }) => what).map(({ x, what }) => ({ x, y: 1, yref: "paper", text: what, showarrow: false, xanchor: late(x) ? "right" : "left", yanchor: "top", xshift: late(x) ? -5 : 5, font: { color: tone, size: 11.5 } })),
  };
};
const config = { responsive: true, displayModeBar: false };
const drawn = [];
for (const source of document.querySelectorAll("script.figures")) {
  const room = source.previousElementSibling;
  for (const panel of JSON.parse(source.textContent)) {
    const figure = document.createElement("figure"), caption = document.createElement("figcaption"), plot = document.createElement("div");
    figure.className = "panel";
    plot.className = "plot";
    caption.textContent = panel.title + " ";
    if (panel.notes) caption.append(Object.assign(document.createElement("small"), { textContent: panel.notes }));
    figure.append(caption, plot);
    room.append(figure);
    drawn.push([plot, panel]);
  }
}
const draw = () => { for (const [plot, panel] of drawn) Plotly.react(plot, traces(panel), layout(panel), config); };
draw();
new MutationObserver(draw).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
// zooming into one plot over steps takes the others of the run along
for (const [plot, panel] of drawn) {
  if (panel.bars) continue;
  plot.on("plotly_relayout", (change) => {
    const range = change["xaxis.range[0]"] === undefined ? null : [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    if (!range && !change["xaxis.autorange"]) return;
    for (const [other, its] of drawn) {
      if (other === plot || its.bars || other.parentNode.parentNode !== plot.parentNode.parentNode) continue;
      const now = other.layout.xaxis;
      if (range ? now.range && now.range[0] === range[0] && now.range[1] === range[1] : now.autorange) continue;
      Plotly.relayout(other, range ? { "xaxis.range": range.slice() } : { "xaxis.autorange": true });
    }
  });
}
