// The page of a job: its state, load, metrics, attempts, results and log.
import { address, buttons, isOpen, own, readable } from "./buttons.js";
import { plot } from "./curves.js";
import { copied, duration, element, moment, since } from "./elements.js";
import { followed } from "./log.js";
import { facts, loadOf, notices, who } from "./platform.js";
import { overview, parsed } from "./stream.js";

const RESULTS_MS = 15_000; // MLflow reports no changes
const OPTIONS = {
  entrypoint_num_cpus: "cpus",
  entrypoint_num_gpus: "gpus",
  workers: "workers",
  worker_cpus: "worker-cpus",
  worker_gpus: "worker-gpus",
  time_limit: "limit",
  class: "class",
}; // of `mlplatform submit`, by their names in a submission

const page = document.getElementById("job");
let opened = null; // the job that is shown: its id, parts, log and timer, and what the gateway answers about it

/** Show a job's page until another is opened. */
export function openJob(id) {
  closeJob();
  const names = ["head", "load", "metrics", "attempts", "results", "again"];
  const parts = Object.fromEntries(names.map((name) => [name, element("section", { className: name })]));
  opened = { id, parts };
  page.replaceChildren(element("p", {}, element("a", { href: "#" }, "All jobs")), ...Object.values(parts));
  refresh();
}

export function closeJob() {
  opened?.log?.close();
  clearInterval(opened?.timer);
  opened = null;
}

/** Show what has changed of the job that is open. */
export function showJob(parts) {
  if (parts.jobs || parts.counts) refresh();
  if (opened?.job && (parts.loads || parts.curves)) opened.parts.load.replaceChildren(...loadOf(opened.job));
}

/** Read the job with its attempts, and show what has changed. */
async function refresh() {
  const here = opened;
  if (!here || !overview.jobs || (here.job && !isOpen(here.job) && !isListed(here.id))) return;
  const answer = await fetch(`/platform/jobs/${encodeURIComponent(here.id)}`);
  const text = await answer.text();
  if (here !== opened) return;
  if (!answer.ok) return here.parts.head.replaceChildren(element("p", { className: "problem" }, text));
  const details = JSON.parse(text);
  const ended = here.job && !isOpen(here.job);
  const first = !here.job;
  const shown = isListed(here.id) ?? unlisted(details);
  // The overview has only the beginning of both.
  here.job = { ...shown, command: details.entrypoint, message: shown.ended ? details.message : shown.message };
  const version = JSON.stringify([details, here.job]);
  if (version === here.version) return;
  here.version = version;
  showHead(here, details);
  showAttempts(here, details);
  showAgain(here, details);
  here.parts.load.replaceChildren(...loadOf(here.job));
  if (!readable(here.job)) {
    const whose = `Metrics, results and log are for team ${here.job.team ?? "mates"}.`;
    return here.parts.metrics.replaceChildren(element("p", { className: "none" }, whose));
  }
  showResults(here);
  if (!first && !(ended && isOpen(here.job))) return;
  clearInterval(here.timer);
  here.log?.close();
  here.log?.remove();
  here.log = followed(address(here.job, "log"), () => isOpen(here.job));
  page.append(here.log);
  here.timer = setInterval(() => document.hidden || !isOpen(here.job) || showResults(here), RESULTS_MS);
}

const isListed = (id) => overview.jobs.find((job) => job.id === id);

/** A job that is not in the overview's lists, in their form. */
function unlisted({ submission_id: id, metadata, attempts, relation, ...details }) {
  const time = (milliseconds) => milliseconds && new Date(milliseconds).toISOString();
  return {
    ...{ id, user: metadata.user ?? "", team: metadata.team ?? null, requests: "", cpus: 0 },
    ...{ state: details.state, message: details.message, stopping: false, environment: false, queue: null },
    ...{ created: time(details.start_time), ended: time(details.end_time), attempt: attempts.at(-1) ?? null },
    ...{ relation, links: details.links },
  };
}

const took = (begin, end) => duration((new Date(end) - new Date(begin)) / 1000);

function showHead({ job, parts }, { driver_exit_code: code }) {
  document.title = `${job.id} - ML platform`;
  const state = element("strong", { className: `state ${job.state.toLowerCase()}` }, job.state.toLowerCase());
  const place = job.queue ? `Place ${job.queue.place} in the queue; ` : "";
  const after = () => ` after ${took(job.created, job.ended)}, exit code ${code ?? "unknown"}`;
  const message = element("p", { className: job.state === "FAILED" ? "reason message" : "none" }, job.message);
  parts.head.replaceChildren(
    element("h2", { className: "title" }, job.id, " ", state, who(job), buttons(job)),
    element("p", { className: "facts" }, place, job.ended ? ["ended ", moment(job.ended), after()] : facts(job)),
    ...(isOpen(job) ? notices(job) : [message]),
  );
}

/** The attempts on a time line from the submission to now or the end, and as a list. */
function showAttempts({ job, parts }, { attempts }) {
  const begin = new Date(job.created).getTime();
  const length = Math.max((job.ended ? new Date(job.ended).getTime() : Date.now()) - begin, 1);
  const position = (time) => (time ? (100 * (new Date(time).getTime() - begin)) / length : 100);
  const outcome = (attempt) => (attempt.outcome ?? "running").toLowerCase();
  const bars = attempts.map((attempt) => {
    const [left, right] = [position(attempt.created), position(attempt.ended)];
    const bar = element("span", { className: outcome(attempt), title: outcome(attempt) }, String(attempt.number));
    Object.assign(bar.style, { left: `${left}%`, width: `max(4px, ${right - left}%)` });
    return bar;
  });
  const list = attempts.map((attempt) => {
    const node = attempt.node ? ` on ${attempt.node}` : "";
    const lasted = attempt.ended ? took(attempt.created, attempt.ended) : since(attempt.created);
    const reason = attempt.reason && element("span", { className: "none" }, `. ${attempt.reason}`);
    const state = element("strong", {}, outcome(attempt));
    return element("li", {}, state, node, ", from ", moment(attempt.created), " for ", lasted, reason);
  });
  const scale = [element("span", {}, "submitted ", moment(job.created)), job.ended ? moment(job.ended) : "now"];
  parts.attempts.replaceChildren(
    element("h2", {}, "Attempts ", element("span", { className: "count" }, String(attempts.length))),
    element("div", { className: "timeline" }, bars),
    element("p", { className: "scale" }, scale),
    element("ol", {}, list),
  );
}

/** A word of a command, as a shell reads it. */
const quoted = (word) => (/^[\w.:/-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

/** The commands that submit the job again and connect to it. */
function showAgain({ job, parts }, { metadata, resources }) {
  const commands = [];
  if (readable(job) && !job.environment) {
    const values = { ...metadata, ...resources };
    const given = Object.entries(OPTIONS).filter(([name]) => values[name]);
    const options = given.map(([name, option]) => ` --${option} ${quoted(values[name])}`).join("");
    const command = `mlplatform submit .${options} --entrypoint ${quoted(job.command)}`;
    commands.push(["Submit it again, in the folder of its files and with its variables and packages", command]);
  }
  if (job.state === "RUNNING" && own(job)) commands.push(["A shell in it", `mlplatform ssh ${job.id}`]);
  const lines = commands.map(([label, command]) =>
    element("p", {}, `${label}: `, element("code", {}, command), " ", copied("Copy", command)),
  );
  const ray = element("a", { href: `/#/jobs/${job.id}` }, "Ray's page of it");
  parts.again.replaceChildren(element("h2", {}, "Commands"), ...lines, element("p", {}, ray));
}

/** The curves of the job's metrics, and its runs, models and checkpoints. */
async function showResults(here) {
  const { metrics, results } = here.parts;
  if (!metrics.childElementCount) metrics.append(element("h2", {}, "Metrics"), "Loading");
  const answer = await fetch(address(here.job, "results"));
  if (here !== opened) return;
  if (!answer.ok) return metrics.replaceChildren(element("p", { className: "problem" }, await answer.text()));
  const { runs, checkpoints, folder } = parsed(await answer.text());
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.metrics)))];
  const none = (text) => element("p", { className: "none" }, text);
  metrics.replaceChildren(
    element("h2", {}, "Metrics"),
    element("div", { className: "plots" }, names.map((name) => plot(name, runs))),
    names.length ? "" : none("It has logged no metric at MLflow yet."),
  );
  const mlflow = overview.tools.find((tool) => tool.title === "MLflow")?.address;
  const link = (path, text) => (mlflow ? element("a", { href: `${mlflow}/${path}` }, text) : text);
  const lines = [
    ...runs.map((run, index) => {
      const key = element("span", { className: `key c${index % 6}` });
      return ["Run ", key, link(run.page, run.name || run.id), ` ${run.status.toLowerCase()}`];
    }),
    ...runs
      .flatMap((run) => run.models)
      .map(({ page: path, name, version }) => ["Model ", link(path, version ? `${name} ${version}` : name)]),
    ...checkpoints.map((name) => ["Checkpoint ", element("code", {}, `${folder}/${name}`)]),
  ];
  results.replaceChildren(
    element("h2", {}, "Runs, models and checkpoints"),
    lines.length ? element("ul", {}, lines.map((line) => element("li", {}, line))) : none("None yet."),
  );
}
