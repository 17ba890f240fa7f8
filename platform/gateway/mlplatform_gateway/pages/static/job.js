// The page of a job: its state, attempts, load, metrics, results and log.
import { address, buttons, isOpen, own, readable } from "./buttons.js";
import { plot } from "./curves.js";
import { copied, duration, element, moment, show, since } from "./elements.js";
import { followed } from "./log.js";
import { facts, loadOf, notices, who } from "./platform.js";
import { overview } from "./stream.js";

const RESULTS_MS = 15_000; // MLflow reports no changes
const page = document.getElementById("job");
let opened = null; // the job that is shown: id, log, timer and what the gateway answers about it

/** Show a job's page until another is opened. */
export async function openJob(id) {
  closeJob();
  const parts = Object.fromEntries(["head", "load", "attempts", "metrics", "results", "again"].map((name) => [name, element("section", { className: name })]));
  opened = { id, parts };
  page.replaceChildren(element("p", {}, element("a", { href: "#" }, "All jobs")), ...Object.values(parts));
  await refresh();
}

export function closeJob() {
  opened?.log?.close();
  clearInterval(opened?.timer);
  opened = null;
}

/** Show what has changed of the job that is open. */
export function showJob(parts) {
  if (!opened?.job) return;
  const listed = overview.jobs.find((job) => job.id === opened.id);
  if (parts.jobs || parts.counts) refresh();
  if (listed && (parts.loads || parts.curves)) opened.parts.load.replaceChildren(...loadOf(listed));
}

/** Read the job with its attempts again, unless it has ended, and show what has changed. */
async function refresh() {
  const here = opened;
  const answer = await fetch(`/platform/jobs/${encodeURIComponent(here.id)}`);
  const text = await answer.text();
  if (here !== opened || text === here.text) return;
  here.text = text;
  if (!answer.ok) return here.parts.head.replaceChildren(element("p", { className: "problem" }, text));
  const details = JSON.parse(text);
  const first = !here.job;
  here.job = await summary(details);
  showHead(here, details);
  showAttempts(here, details);
  showAgain(here, details);
  here.parts.load.replaceChildren(...loadOf(here.job));
  if (!readable(here.job)) return;
  showResults(here);
  if (!first) return;
  here.log = followed(address(here.job, "log"));
  page.append(here.log);
  here.timer = setInterval(() => !document.hidden && isOpen(here.job) && showResults(here), RESULTS_MS);
}

/** The job as the overview lists it, or what is known of one that is no longer in the lists. */
async function summary(details) {
  const listed = overview.jobs?.find((job) => job.id === details.submission_id);
  if (listed) return listed;
  const { metadata } = details;
  const hidden = details.entrypoint === "<hidden>";
  return {
    id: details.submission_id,
    user: metadata.user ?? "",
    team: metadata.team ?? null,
    relation: hidden ? "other" : "team-mate",
    environment: false,
    state: details.state,
    command: details.entrypoint,
    message: details.message,
    requests: "",
    cpus: 0,
    created: new Date(details.start_time).toISOString(),
    ended: details.end_time && new Date(details.end_time).toISOString(),
    stopping: false,
    attempt: details.attempts.at(-1) ?? null,
    queue: null,
  };
}

function showHead({ job, parts }, details) {
  document.title = `${job.id} - ML platform`;
  const state = element("strong", { className: `state ${job.state.toLowerCase()}` }, job.state.toLowerCase());
  const ended = job.ended ? [`${job.requests}, ended `, moment(job.ended), ` after ${duration((new Date(job.ended) - new Date(job.created)) / 1000)}`] : facts(job);
  const code = details.driver_exit_code;
  parts.head.replaceChildren(
    element("h2", { className: "title" }, job.id, " ", state, " ", who(job.user), job.team ? ` ${job.team}` : null, buttons(job)),
    element("p", { className: "facts" }, job.queue ? element("strong", {}, `Place ${job.queue.place} in the queue; `) : null, ...ended, code ? `, exit code ${code}` : null),
    ...(isOpen(job) ? notices(job) : [element("p", { className: job.state === "FAILED" ? "reason" : "none" }, job.message)]),
  );
}

/** The attempts on a time line from the submission to now or the end, and as a list. */
function showAttempts({ job, parts }, { attempts }) {
  const begin = new Date(job.created).getTime();
  const end = job.ended ? new Date(job.ended).getTime() : Date.now();
  const position = (time) => (100 * (time - begin)) / Math.max(end - begin, 1);
  const bars = attempts.map((attempt) => {
    const until = attempt.ended ? new Date(attempt.ended).getTime() : end;
    const bar = element("span", { className: (attempt.outcome ?? "running").toLowerCase(), title: `attempt ${attempt.number}` }, String(attempt.number));
    bar.style.left = `${position(new Date(attempt.created).getTime())}%`;
    bar.style.width = `max(3px, ${position(until) - position(new Date(attempt.created).getTime())}%)`;
    return bar;
  });
  const list = attempts.map((attempt) =>
    element(
      "li",
      {},
      element("strong", {}, (attempt.outcome ?? "running").toLowerCase()),
      attempt.node ? ` on ${attempt.node}` : "",
      ", from ",
      moment(attempt.created),
      " for ",
      attempt.ended ? duration((new Date(attempt.ended) - new Date(attempt.created)) / 1000) : since(attempt.created),
      attempt.reason ? element("span", { className: "none" }, `. ${attempt.reason}`) : null,
    ),
  );
  parts.attempts.replaceChildren(
    element("h2", {}, "Attempts ", element("span", { className: "count" }, String(attempts.length))),
    element("div", { className: "timeline" }, bars),
    element("p", { className: "scale" }, element("span", {}, "submitted ", moment(job.created)), job.ended ? moment(job.ended) : "now"),
    element("ol", {}, list),
  );
}

/** The commands that submit the job again and connect to it. */
function showAgain({ job, parts }, { entrypoint, metadata, limit_s: limit }) {
  const shown = [];
  if (readable(job) && !job.environment) {
    const quoted = `'${entrypoint.replaceAll("'", "'\\''")}'`;
    const options = { workers: "workers", worker_cpus: "worker-cpus", worker_gpus: "worker-gpus", time_limit: "limit", class: "class", entrypoint_num_cpus: "cpus", entrypoint_num_gpus: "gpus" };
    const given = Object.entries(options).flatMap(([key, option]) => (metadata?.[key] ? [`--${option} ${metadata[key]}`] : []));
    shown.push(["Submit it again, in the folder of its files", ["mlplatform submit .", `--entrypoint ${quoted}`, ...given].join(" ")]);
  }
  if (job.state === "RUNNING" && own(job)) shown.push(["Connect to it", `mlplatform ssh ${job.id}`]);
  parts.again.replaceChildren(...shown.map(([label, command]) => element("p", {}, `${label}: `, element("code", {}, command), " ", copied("Copy", command))));
}

async function showResults(here) {
  const answer = await fetch(address(here.job, "results"));
  if (here !== opened) return;
  if (!answer.ok) return here.parts.results.replaceChildren(element("p", { className: "problem" }, await answer.text()));
  const { runs, checkpoints, folder } = await answer.json();
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.metrics)))];
  const mlflow = overview.tools?.find((tool) => tool.title === "MLflow")?.address;
  const link = (path, text) => (mlflow ? element("a", { href: `${mlflow}/${path}` }, text) : text);
  here.parts.metrics.replaceChildren(
    element("h2", {}, "Metrics"),
    element("div", { className: "plots" }, names.map((name) => plot(name, runs))),
    ...(names.length ? [] : [element("p", { className: "none" }, "It has logged no metric at MLflow yet.")]),
  );
  here.parts.results.replaceChildren(
    element("h2", {}, "Results"),
    element(
      "ul",
      {},
      runs.map((run, index) => element("li", {}, "Run ", element("span", { className: `key c${index % 6}` }), link(run.page, run.name || run.id), ` ${run.status.toLowerCase()}`)),
      runs.flatMap((run) => run.models.map((model) => element("li", {}, "Model ", link(model.page, `${model.name}, version ${model.version}`)))),
      checkpoints.map((name) => element("li", {}, "Checkpoint ", element("code", {}, `${folder}/${name}`))),
      runs.length || checkpoints.length ? [] : [element("li", { className: "none" }, "None yet.")],
    ),
  );
}
