// The front page: who has the GPUs, and the jobs that run, wait and have ended.
import { address, buttons, isOpen, own, readable } from "./buttons.js";
import { gauges } from "./curves.js";
import { element, figure, gibibytes, moment, show, since } from "./elements.js";
import { overview } from "./stream.js";

const at = (selector) => document.querySelector(selector);
const running = (job) => ["RUNNING", "STARTING"].includes(job.state);
const RUNS = "Job is currently running."; // the gateway's message when there is nothing else to say

/** Person, team and state that are shown, as they stand in the page's address. */
export const filter = { person: "", team: "", state: "" };

export const jobLink = (id) => element("a", { href: `#/jobs/${encodeURIComponent(id)}`, className: "id" }, id);

/** One of eight colors for a person, the same wherever the person is shown. */
function color(user) {
  let sum = 0;
  for (const letter of user) sum = (sum * 31 + letter.codePointAt(0)) % 997;
  return `u${sum % 8}`;
}

export const who = (user) => element("span", { className: `who ${color(user)}` }, user || "nobody");

/** Show the parts of the overview that have changed; with nothing, all of it. */
export function showPlatform(parts = overview) {
  if (parts.tools) show(at("#tools"), [{ title: "Ray dashboard", address: "", healthy: true }, ...parts.tools], (tool) => tool.title, toolLink);
  if (parts.problems) show(at("#problems"), parts.problems, String, (text) => element("p", { className: "problem" }, text));
  if (parts.nodes || parts.loads) showNodes();
  if (parts.jobs || parts.counts || "queue_time" in parts) showJobs();
  if (parts.jobs || parts.loads || parts.curves) showLoads();
}

const toolLink = ({ title, address: page, healthy }) =>
  element(
    "li",
    { className: healthy ? "ok" : "down" },
    element("a", { href: `${page}/` }, title),
    healthy ? null : element("small", {}, " does not answer"),
  );

function showNodes() {
  const shares = overview.nodes.filter((node) => node.alive).flatMap((node) => node.shares);
  const held = new Map();
  for (const { amount, user, free } of shares) {
    const holder = free ? "free" : user || "in use";
    held.set(holder, (held.get(holder) ?? 0) + amount);
  }
  const holders = [...held].sort(([one, some], [other, more]) => (one === "free") - (other === "free") || more - some);
  const all = shares.reduce((sum, share) => sum + share.amount, 0);
  at("#gpu-count").textContent = all ? `${figure(all - (held.get("free") ?? 0))} of ${figure(all)} in use` : "";
  show(at("#holders"), holders, ([holder]) => holder, ([holder, amount]) =>
    element("span", { className: `holder ${holder === "free" ? "free" : color(holder)}` }, element("strong", {}, figure(amount)), ` ${holder}`),
  );
  show(at("#nodes"), overview.nodes, (node) => node.name, nodeCard, "No node has joined yet.");
}

function nodeCard(node) {
  const name = element("h3", {}, node.name);
  if (!node.alive) {
    const lost = element("p", { className: "problem" }, "lost; jobs wait for it for ten minutes");
    return element("article", { className: "down" }, name, lost);
  }
  const reserved = element("meter", { min: 0, max: node.cpus, value: node.cpus_reserved }, "CPUs");
  const memory = node.memory_total ? `, ${gibibytes(node.memory_used)} of ${gibibytes(node.memory_total)} memory in use` : "";
  return element(
    "article",
    { className: "ok" },
    name,
    node.shares.map(shareLine),
    node.gpus.map((gpu) => {
      const busy = gpu.percent === null ? "" : `${gpu.percent} % busy, `;
      const used = `${gibibytes(gpu.memory_used)} of ${gibibytes(gpu.memory_total)}`;
      return element("p", { className: "measured", title: gpu.name }, `GPU ${gpu.index}: ${busy}${used}`);
    }),
    element("p", { className: "measured" }, `${figure(node.cpus_reserved)} of ${figure(node.cpus)} CPUs reserved${memory}`),
    reserved,
  );
}

function shareLine({ amount, job, user, free }) {
  const gpus = `${figure(amount)} GPU${amount === 1 ? "" : "s"} `;
  if (free) return element("p", { className: "gpu free" }, `${gpus} free`);
  if (!job) return element("p", { className: "gpu" }, `${gpus} in use`);
  return element("p", { className: "gpu" }, `${gpus} used by `, jobLink(job), " ", who(user));
}

function showJobs() {
  showChoices();
  const { jobs, counts } = overview;
  const shown = jobs.filter(
    (job) =>
      (!filter.person || job.user === filter.person) &&
      (!filter.team || job.team === filter.team) &&
      (!filter.state || job.state === filter.state),
  );
  const isShown = Object.values(filter).some(Boolean);
  const list = (section, wanted, count, draw, none) => {
    const found = shown.filter(wanted);
    if (count !== null) at(`${section} .count`).textContent = isShown ? `${found.length} of ${count}` : count;
    show(at(`${section} .list`), found, (job) => job.id, draw, isShown ? "None that the filters show." : none);
  };
  const environment = (job) => job.environment && isOpen(job);
  list("#environments", environment, jobs.filter(environment).length, openJob, "Nobody has one.");
  list("#running", (job) => running(job) && !environment(job), (counts.RUNNING ?? 0) + (counts.STARTING ?? 0), openJob, "No job is running.");
  list("#waiting", (job) => job.state === "WAITING" && !environment(job), counts.WAITING ?? 0, openJob, "No job is waiting.");
  list("#ended", (job) => !isOpen(job), null, endedJob, "No job has ended yet.");
  const asOf = overview.queue_time;
  at("#queue-time").replaceChildren(...(asOf ? ["As of ", moment(asOf), ": Ray has not answered since, so no job starts."] : []));
}

/** Offer the persons, teams and states of the jobs, and the filter's own, so that it can be seen and undone. */
function showChoices() {
  const values = { person: overview.jobs.map((job) => job.user), team: overview.jobs.map((job) => job.team), state: overview.jobs.map((job) => job.state) };
  for (const [name, found] of Object.entries(values)) {
    const offered = [...new Set([...found, filter[name]])].filter(Boolean).sort();
    const select = at(`#filters [name=${name}]`);
    show(select, ["", ...offered], String, (value) => element("option", { value }, value.toLowerCase() || "all"));
    select.value = filter[name];
    select.parentElement.hidden = offered.length === 0;
  }
}

/** A job that runs or waits. */
function openJob(job) {
  const { attempt, queue } = job;
  const article = element(
    "article",
    { className: `job ${job.state.toLowerCase()}`, data: { job: job.id } },
    element(
      "p",
      { className: "title" },
      queue ? element("strong", { className: "place", title: "place in the queue" }, String(queue.place)) : null,
      jobLink(job.id),
      " ",
      who(job.user),
      job.team ? element("span", { className: "team" }, ` ${job.team}`) : null,
      buttons(job),
    ),
    element("p", { className: "facts" }, ...facts(job), links(job)),
    job.environment ? null : element("code", { title: job.command }, job.command),
    running(job) ? element("div", { className: "load" }) : null,
    notices(job),
  );
  return article;
}

/** What a job requests, and since when it runs or waits, as texts and elements. */
export function facts(job) {
  const { attempt, queue } = job;
  if (!running(job)) {
    const latest = queue?.latest_start;
    return [`requests ${job.requests}, waits since `, moment(job.created), ...(latest ? [", starts by ", moment(latest), " if all jobs keep to their limits"] : [])];
  }
  const state = job.state === "STARTING" ? "starting" : "running";
  const node = attempt?.node ? ` on ${attempt.node}` : "";
  const again = attempt?.number > 1 ? `, attempt ${attempt.number}` : "";
  return [`${job.requests}, ${state}${node} for `, since(attempt?.created ?? job.created), again];
}

/** Why a job waits, has to leave, or what else the gateway reports of it. */
export function notices(job) {
  const { attempt, queue } = job;
  const reason = (...text) => element("p", { className: "reason" }, ...text);
  if (job.stopping && isOpen(job)) return [reason("It is being stopped.")];
  if (job.state === "WAITING") return (queue?.reasons ?? [job.message]).map((text) => reason(text));
  if (attempt?.leave_by && !attempt.ended) {
    return [reason("asked to leave: it has until ", moment(attempt.leave_by), ` to save its state. ${attempt.leave_why}`)];
  }
  return running(job) && (job.state === "STARTING" || job.message === RUNS) ? [] : [reason(job.message)];
}

function links(job) {
  if (!readable(job)) return null;
  const link = (page) => element("a", { href: address(job, page) }, page);
  return element("span", { className: "links" }, link("log"), " ", link("run"), " ", link("model"));
}

function endedJob(job) {
  return element(
    "article",
    { className: `job ended ${job.state.toLowerCase()}`, data: { job: job.id } },
    element("p", { className: "title" }, jobLink(job.id), " ", who(job.user), job.team ? element("span", { className: "team" }, ` ${job.team}`) : null, buttons(job)),
    element("p", { className: "facts" }, element("strong", {}, job.state.toLowerCase()), " ", moment(job.ended), links(job)),
    job.state === "FAILED" ? element("p", { className: "reason" }, job.message.slice(0, 300)) : null,
  );
}

function showLoads() {
  for (const job of overview.jobs.filter(running)) {
    const place = at(`#platform [data-job="${CSS.escape(job.id)}"] .load`);
    place?.replaceChildren(...loadOf(job));
  }
}

/** The gauges of a job's load, if it is measured. */
export function loadOf(job) {
  const load = overview.loads[job.id];
  if (!load) return [];
  const gpus = overview.nodes.flatMap((node) => node.gpus).filter((gpu) => gpu.holders[job.id]);
  const node = overview.nodes.find(({ name }) => name === job.attempt?.node);
  const most = {
    cpus: job.cpus || node?.cpus,
    gpuMemory: gpus.reduce((sum, gpu) => sum + gpu.memory_total * Math.min(1, gpu.holders[job.id]), 0),
    memory: node?.memory_total,
  };
  return [gauges(load, overview.curves[job.id], most)];
}
