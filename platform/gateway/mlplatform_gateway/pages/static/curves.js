// Drawings of numbers: gauges with the last hour, and plots of metrics.
import { drawing, element, figure } from "./elements.js";

const HOUR = 60; // points of a curve, one per minute

export const gibibytes = (used, total) =>
  `${figure(used / 2 ** 30)}${total ? ` of ${figure(total / 2 ** 30)}` : ""} GiB`;

/** The load of a job now, as bars, and over the last hour, as curves. */
export function gauges(load, curve, { cpus, gpuMemory, memory }) {
  const shown = [
    ["GPU", "gpu", 100, (value) => `${Math.round(value)} %`],
    ["GPU mem", "gpu_memory", gpuMemory, (value) => gibibytes(value, gpuMemory)],
    ["CPU", "cpus", cpus, (value) => (cpus ? `${figure(value)} of ${figure(cpus)}` : figure(value))],
    ["Memory", "memory", memory, (value) => gibibytes(value, memory)],
  ];
  const measured = shown.filter(([, name]) => load[name] !== null);
  const made = measured.map(([label, name, most, text]) => {
    const values = curve?.[name] ?? [];
    return gauge(label, load[name], values, most || Math.max(load[name], ...values), text(load[name]));
  });
  return element("div", { className: "gauges" }, made);
}

function gauge(label, value, values, most, text) {
  return element(
    "div",
    { className: "gauge", title: `${label}: ${text}, and the last hour` },
    element("span", { className: "label" }, label),
    element("span", { className: "value" }, text),
    sparkline(values, Math.max(most, ...values)),
    bar(value, most),
  );
}

export function bar(value, most) {
  const level = element("span", { className: "level" });
  level.style.width = `${Math.min(100, (100 * value) / (most || 1))}%`;
  return element("span", { className: "bar" }, level);
}

/** The last hour, the latest minute at the right. */
function sparkline(values, top) {
  const start = HOUR - values.length;
  const height = (value) => 20 - (19 * value) / (top || 1);
  const points = values.map((value, index) => (value === null ? null : [start + index + 1, height(value)]));
  const box = { viewBox: `0 0 ${HOUR} 20`, preserveAspectRatio: "none", class: "spark" };
  return drawing("svg", box, drawing("path", { d: path(points), class: "line" }));
}

/** The path through points; a null is a gap. */
function path(points) {
  let drawn = "";
  points.forEach((point, index) => {
    if (point) drawn += `${points[index - 1] ? "L" : "M"}${point[0].toFixed(1)} ${point[1].toFixed(1)}`;
  });
  return drawn;
}

const span = (text) => element("span", {}, text);

/** A metric of some runs over their steps. */
export function plot(name, runs) {
  const [width, height] = [300, 110];
  const colored = runs.map((run, index) => [run.metrics[name], `c${index % 6}`]).filter(([curve]) => curve);
  const curves = colored.map(([curve]) => curve);
  const steps = curves.flatMap((curve) => curve.steps);
  const values = curves.flatMap((curve) => curve.values).filter((value) => value !== null);
  const [left, right] = [Math.min(...steps), Math.max(...steps)];
  const [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
  const x = (step) => (right > left ? ((step - left) / (right - left)) * (width - 8) + 4 : width / 2);
  const y = (value) => (high > low ? height - 5 - ((value - low) / (high - low)) * (height - 10) : height / 2);
  const lines = colored.map(([curve, color]) => {
    const points = curve.values.map((value, at) => (value === null ? null : [x(curve.steps[at]), y(value)]));
    const alone = points.filter(Boolean).length === 1 && points.find(Boolean);
    if (alone) return drawing("circle", { cx: alone[0], cy: alone[1], r: 3, class: `dot ${color}` });
    return drawing("path", { d: path(points), class: `line ${color}` });
  });
  const latest = curves[0].values.findLast((value) => value !== null);
  return element(
    "figure",
    {},
    element("figcaption", {}, name, element("strong", {}, latest === undefined ? "NaN" : figure(latest))),
    drawing("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", class: "plot" }, ...lines),
    element("p", { className: "scale" }, span(`step ${left} to ${right}`), span(`${figure(low)} to ${figure(high)}`)),
  );
}
