// The front page: who has the GPUs, and the jobs that run, wait and have ended.
import { address, buttons, isOpen, readable } from "./buttons.js";
import { bar, gauges, gibibytes } from "./curves.js";
import { element, figure, moment, show, since } from "./elements.js";
import { overview } from "./stream.js";

const at = (selector) => document.querySelector(selector);
const runs = (job) => ["RUNNING", "STARTING"].includes(job.state);

/** Person, team and state that are shown, as they stand in the page's address. */
export const filter = { person: "", team: "", state: "" };

const OF_JOB = { person: (job) => job.user, team: (job) => job.team, state: (job) => job.state };

const jobLink = (id, text = id) => element("a", { href: `#/jobs/${id}`, className: text === id ? "id" : "" }, text);

/** One of eight colors for a person, the same wherever the person is shown. */
function color(user) {
  let sum = 0;
  for (const letter of user) sum = (sum * 31 + letter.codePointAt(0)) % 997;
  return `u${sum % 8}`;
}

/** The owner of a job and the team, with a link to the jobs of either. */
export function who({ user, team = "" }) {
  const link = (name, value, className) =>
    value ? [" ", element("a", { href: `#${new URLSearchParams([[name, value]])}`, className }, value)] : [];
  return [...link("person", user, `who ${color(user)}`), ...link("team", team ?? "", "team")];
}

/** Show the parts of the overview that have changed. */
export function showPlatform(parts) {
  if (parts.tools) showTools();
  if ("you" in parts) showMine();
  if (parts.problems) {
    show(at("#problems"), parts.problems, String, (text) => element("p", { className: "problem" }, text));
  }
  if (parts.nodes) showNodes();
  if (parts.jobs || parts.counts || "queue_time" in parts) showJobs();
  if (parts.jobs || parts.loads || parts.curves || parts.nodes) showLoads();
}

function showMine() {
  at("header button").textContent = overview.you ? `Log out ${overview.you}` : "Log out";
  at("#mine").hidden = !overview.you;
  at("#mine").href = `#${new URLSearchParams([["person", overview.you]])}`;
}

function showTools() {
  const tools = [{ title: "Ray dashboard", address: "", healthy: true }, ...overview.tools];
  show(at("#tools"), tools, (tool) => tool.title, ({ title, address: page, healthy }) => {
    const state = healthy || element("small", {}, " does not answer");
    return element("li", { className: healthy ? "ok" : "down" }, element("a", { href: `${page}/` }, title), state);
  });
}

function showNodes() {
  const shares = overview.nodes.filter((node) => node.alive).flatMap((node) => node.shares);
  const held = new Map();
  for (const { amount, user, free } of shares) {
    const holder = free ? "" : user || "in use"; // no user has an empty name
    held.set(holder, (held.get(holder) ?? 0) + amount);
  }
  const all = shares.reduce((sum, share) => sum + share.amount, 0);
  at("#gpu-count").textContent = all ? `${figure(all - (held.get("") ?? 0))} of ${figure(all)} in use` : "";
  const holders = [...held].sort(([one, some], [two, more]) => !one - !two || more - some);
  show(at("#holders"), holders, ([holder]) => holder, ([holder, amount]) => {
    const className = `holder ${holder ? color(holder) : "free"}`;
    return element("span", { className }, element("strong", {}, figure(amount)), ` ${holder || "free"}`);
  });
  const nodes = [...overview.nodes].sort((one, two) => !one.shares.length - !two.shares.length); // GPUs first
  show(at("#nodes"), nodes, (node) => node.name, nodeCard, "No node has joined yet.");
}

function nodeCard(node) {
  const name = element("h3", {}, node.name);
  if (!node.alive) {
    const lost = element("p", { className: "problem" }, "lost; jobs wait for it for ten minutes");
    return element("article", { className: "down" }, name, lost);
  }
  const memory = node.memory_total ? gibibytes(node.memory_used, node.memory_total) : "";
  const level = (label, value, most, text) => [
    element("span", { className: "label" }, label),
    bar(value, most),
    element("span", { className: "value" }, text),
  ];
  const gpus = node.gpus.flatMap(({ index, percent, memory_used: used, memory_total: total }) => {
    const busy = percent === null ? "" : `${percent} % busy, `;
    return level(`GPU ${index}`, percent ?? 0, 100, `${busy}${gibibytes(used, total)}`);
  });
  const cpus = `${figure(node.cpus_reserved)} of ${figure(node.cpus)} reserved`;
  return element(
    "article",
    { className: "ok" },
    name,
    node.shares.map(shareLine),
    element(
      "div",
      { className: "levels" },
      gpus,
      level("CPUs", node.cpus_reserved, node.cpus, cpus),
      memory && level("Memory", node.memory_used, node.memory_total, memory),
    ),
  );
}

function shareLine({ amount, job, user, free }) {
  const gpus = `${figure(amount)} GPU${amount === 1 ? "" : "s"} `;
  if (free) return element("p", { className: "gpu free" }, `${gpus}free`);
  return element("p", { className: "gpu" }, gpus, job ? ["used by ", jobLink(job), who({ user })] : "in use");
}

function showJobs() {
  const { jobs, counts } = overview;
  showChoices(jobs);
  const filters = Object.entries(filter).filter(([, value]) => value);
  const shown = jobs.filter((job) => filters.every(([name, value]) => OF_JOB[name](job) === value));
  const list = (section, belongs, count, none) => {
    const found = shown.filter(belongs);
    at(`${section} .count`).textContent = filters.length ? `${found.length} of ${count}` : count;
    show(at(`${section} .list`), found, (job) => job.id, jobCard, filters.length ? "None for these filters." : none);
  };
  const environment = (job) => job.environment && isOpen(job);
  const environments = jobs.filter(environment);
  list("#environments", environment, environments.length, "Nobody has one.");
  const running = (counts.RUNNING ?? 0) + (counts.STARTING ?? 0) - environments.filter(runs).length;
  list("#running", (job) => runs(job) && !job.environment, running, "No job is running.");
  const open = Object.values(counts).reduce((sum, count) => sum + count, 0);
  const waiting = open - (counts.RUNNING ?? 0) - (counts.STARTING ?? 0);
  list("#waiting", (job) => isOpen(job) && !runs(job), waiting, "No job is waiting.");
  list("#ended", (job) => !isOpen(job), jobs.filter((job) => !isOpen(job)).length, "No job has ended yet.");
  const old = overview.queue_time;
  const asOf = old ? ["As of ", moment(old), ": Ray has not answered since, so no job starts."] : [];
  at("#queue-time").replaceChildren(...asOf);
}

/** Offer the persons, teams and states of the jobs, and the filter's own, so that it can be seen and undone. */
function showChoices(jobs) {
  at("#filters").hidden = !jobs.length;
  for (const [name, value] of Object.entries(OF_JOB)) {
    const offered = [...new Set([...jobs.map(value), filter[name]])].filter(Boolean).sort();
    const select = at(`#filters [name=${name}]`);
    show(select, ["", ...offered], String, (value) => {
      return element("option", { value }, (name === "state" ? value.toLowerCase() : value) || "all");
    });
    select.value = filter[name];
    select.parentElement.hidden = offered.length === 0;
  }
}

function jobCard(job) {
  const queued = { className: "place", title: "place in the queue" };
  const place = job.queue && element("strong", queued, String(job.queue.place));
  const command = !job.environment && isOpen(job) && readable(job);
  return element(
    "article",
    { className: `job ${job.state.toLowerCase()}`, data: { job: job.id } },
    element("p", { className: "title" }, place, jobLink(job.id), who(job), buttons(job)),
    element("p", { className: "facts" }, facts(job), links(job)),
    command && element("code", { title: job.command }, job.command),
    runs(job) && element("div", { className: "load" }),
    notices(job),
  );
}

/** What a job requests, and its times, as texts and elements. */
export function facts(job) {
  const { attempt } = job;
  if (job.ended) return [element("strong", {}, job.state.toLowerCase()), " ", moment(job.ended)];
  if (job.state === "SCHEDULED") return job.links.due ? ["next job at ", moment(job.links.due)] : ["paused"];
  if (!runs(job)) {
    const latest = job.queue?.latest_start;
    const starts = latest ? [", starts by ", moment(latest), " if all jobs keep to their limits"] : [];
    return [job.requests && `requests ${job.requests}, `, "waiting for ", since(job.created), ...starts];
  }
  const node = attempt?.node ? ` on ${attempt.node}` : "";
  const again = attempt?.number > 1 ? `, attempt ${attempt.number}` : "";
  const requests = ["nothing", ""].includes(job.requests) ? "" : `${job.requests}, `;
  return [`${requests}${job.state.toLowerCase()}${node} for `, since(attempt?.created ?? job.created), again];
}

/** Why a job waits, has to leave or has failed, or what else the gateway reports of it. */
export function notices(job) {
  const { attempt, queue } = job;
  const reason = (...text) => element("p", { className: "reason" }, ...text);
  if (!isOpen(job)) return job.state === "FAILED" ? [reason(job.message)] : [];
  if (job.stopping) return [reason("It is being stopped.")];
  if (job.state === "WAITING") return (queue?.reasons ?? [job.message]).map((text) => reason(text));
  if (attempt?.leave_by && !attempt.ended) {
    const why = ` to save its state. ${attempt.leave_why}`;
    return [reason("asked to leave: it has until ", moment(attempt.leave_by), why)];
  }
  return job.state === "STARTING" || !job.message ? [] : [reason(job.message)];
}

function links(job) {
  if (!readable(job)) return null;
  const curves = job.attempt && jobLink(job.id, "loss curves");
  const log = element("a", { href: address(job, "log") }, "log");
  return element("span", { className: "links" }, job.environment ? log : [curves, " ", log]);
}

function showLoads() {
  for (const job of overview.jobs.filter(runs)) {
    at(`#platform [data-job="${CSS.escape(job.id)}"] .load`)?.replaceChildren(...loadOf(job));
  }
}

/** The gauges of a job's load, if it is measured. */
export function loadOf(job) {
  const load = overview.loads[job.id];
  if (!load) return [];
  const gpus = overview.nodes.flatMap((node) => node.gpus).filter((gpu) => gpu.holders[job.id]);
  const node = overview.nodes.find(({ name }) => name === job.attempt?.node);
  const most = {
    gpuMemory: gpus.reduce((sum, gpu) => sum + gpu.memory_total * Math.min(1, gpu.holders[job.id]), 0),
    cpus: job.cpus || node?.cpus,
    memory: node?.memory_total,
  };
  return [gauges(load, overview.curves[job.id], most)];
}
