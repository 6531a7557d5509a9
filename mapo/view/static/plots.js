// Draws the charts of a page. Data is JSON from this server; background and text colours come from the style sheet.
"use strict";

const drawn = new Map();
const dark = matchMedia("(prefers-color-scheme: dark)");
const touch = matchMedia("(pointer: coarse)");

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function layout(requested) {
  const ink = colour("--ink-soft"), line = colour("--line"), narrow = innerWidth < 600;
  const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true, title: { standoff: 8 } };
  const far = narrow ? 2.1 : 1.55;
  const scene = { bgcolor: "rgba(0,0,0,0)", aspectmode: "cube", camera: { eye: { x: far, y: far, z: far * 0.6 } } };
  const made = {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: colour("--font"), size: 12, color: ink },
    margin: { l: 48, r: 12, t: 8, b: 40 },
    legend: { orientation: "h", y: -0.22, x: 0, yanchor: "top" },
    hovermode: "closest",
    modebar: { bgcolor: "rgba(0,0,0,0)", color: ink, activecolor: colour("--link") },
    hoverlabel: { namelength: -1 },
    dragmode: touch.matches ? false : "zoom",
    height: narrow ? 260 : 280,
    ...requested,
  };
  for (const name of ["xaxis", "yaxis"]) {
    made[name] = { ...axis, ...made[name], title: { ...axis.title, ...(made[name] || {}).title } };
  }
  if (made.scene) {
    for (const name of ["xaxis", "yaxis", "zaxis"]) {
      scene[name] = { gridcolor: line, zerolinecolor: ink, showbackground: false, ...made.scene[name] };
    }
    made.scene = scene;
    made.height = narrow ? 340 : 460;
    made.margin = { l: 0, r: 0, t: 0, b: 0 };
    made.legend = { x: 0, y: 1, bgcolor: "rgba(0,0,0,0)" };
    if (narrow) made.showlegend = false;
    made.dragmode = "orbit";
  }
  if (made.polar) {
    made.polar = {
      bgcolor: "rgba(0,0,0,0)",
      radialaxis: { gridcolor: line, linecolor: line, angle: 90, tickangle: 90, ...made.polar.radialaxis },
      angularaxis: { gridcolor: line, linecolor: line },
    };
    made.height = narrow ? 340 : 380;
    made.margin = { l: 60, r: 60, t: 30, b: 30 };
  }
  return made;
}

// The same hues as in reports, lighter on a dark background.
const LIGHTER = {
  "#0072b2": "#4aa8e0", "#d55e00": "#f08a3c", "#009e73": "#2fc79b",
  "#cc79a7": "#e09cc2", "#e69f00": "#f0b83c", "#56b4e9": "#8fd0f5",
};
const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)).join(",");

function themed(data) {
  let text = JSON.stringify(data);
  if (!dark.matches) return JSON.parse(text);
  for (const [light, lighter] of Object.entries(LIGHTER)) {
    text = text.replaceAll(`"${light}"`, `"${lighter}"`).replaceAll(`rgba(${channels(light)},`, `rgba(${channels(lighter)},`);
  }
  return JSON.parse(text);
}

async function draw(figure) {
  const chart = drawn.get(figure);
  if (!chart || !chart.near) return;
  const canvas = figure.querySelector(".canvas");
  // On a small chart the toolbar would lie over the data; there a double click undoes a zoom.
  const bar = !touch.matches && canvas.clientWidth >= 560;
  const asked = layout(chart.layout);
  if (bar && !asked.scene) asked.margin = { ...asked.margin, t: Math.max(asked.margin.t, 34) };
  // The legend takes its height from the chart: give it back, or the legend would cover the axis title.
  const named = chart.data.filter((trace) => trace.showlegend !== false).length;
  if (named > 2 && !asked.scene) asked.height += 20 * (named - 2);
  const options = { responsive: true, displaylogo: false, displayModeBar: bar ? "hover" : false };
  await Plotly.react(canvas, themed(chart.data), asked, options);
  figure.dataset.drawn = "yes";
  status(figure, "");
}

const near = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting && drawn.has(entry.target)) {
      drawn.get(entry.target).near = true;
      near.unobserve(entry.target);
      draw(entry.target);
    }
  }
}, { rootMargin: "400px" });

function status(figure, text) {
  const line = figure.querySelector(".loading");
  if (!line) return;
  line.textContent = text;
  line.hidden = !text;
}

async function load(box) {
  const answer = await fetch(box.dataset.figures, { cache: "no-store" }).catch(() => null);
  if (!answer || !answer.ok) {
    for (const figure of box.querySelectorAll("[data-figure]")) {
      if (!figure.dataset.drawn) status(figure, "The chart cannot be loaded.");
    }
    return;
  }
  const figures = await answer.json();
  const nothing = box.querySelector(".nothing");
  if (nothing) nothing.hidden = Object.keys(figures).length > 0;
  for (const figure of box.querySelectorAll("[data-figure]")) {
    const data = figures[figure.dataset.figure];
    figure.hidden = !data;
    if (!data) continue;
    const before = drawn.get(figure);
    drawn.set(figure, { ...data, near: Boolean(before && before.near) });
    if (before && before.near) draw(figure);
    else near.observe(figure);
  }
}

function loadAll() {
  document.querySelectorAll("[data-figures]").forEach(load);
}

document.addEventListener("mapo:new", loadAll);
dark.addEventListener("change", () => drawn.forEach((_, figure) => draw(figure)));
loadAll();
