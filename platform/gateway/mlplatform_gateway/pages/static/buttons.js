// Buttons that change something. A session's cookie only reads, so they also send the key that the log-in has handed
// to the page: other ports of this host get the cookie, too, but cannot read the storage of this origin.
import { copied, element } from "./elements.js";
import { overview } from "./stream.js";

const ENVIRONMENT = "exec python -m mlplatform.node.environment"; // as `mlplatform dev start` submits it

export const own = (job) => job.relation === "owner";
export const readable = (job) => job.relation !== "other";
export const isOpen = (job) => !["SUCCEEDED", "FAILED", "STOPPED"].includes(job.state);
export const address = (job, page) => `/platform/jobs/${encodeURIComponent(job.id)}/${page}`;

/** Keep the key in the address to which the log-in leads, and return the address without it. */
export function keepKey(hash) {
  const key = hash.match(/^#key=([0-9a-f]+)$/)?.[1];
  if (!key) return hash;
  localStorage.setItem("key", key);
  const wanted = sessionStorage.getItem("wanted") ?? ""; // of login.js
  sessionStorage.removeItem("wanted");
  history.replaceState(null, "", location.pathname + wanted);
  return wanted;
}

/** Send a change and return the answer; lead to the log-in if the key has ended with its session. */
async function send(method, path, body) {
  const headers = { "Content-Type": "application/json", "X-MLPlatform-Key": localStorage.getItem("key") ?? "" };
  try {
    const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
    if (answer.status === 401) location.assign("/platform/login");
    return { ok: answer.ok, status: answer.status, text: await answer.text() };
  } catch {
    return { ok: false, text: "The gateway does not answer; try again." };
  }
}

/** A button for a change, which asks once more and shows why it was refused. */
function button(label, method, path, body) {
  const made = element("button", { type: "button" }, label);
  const reset = () => {
    made.textContent = label;
    made.classList.remove("sure");
  };
  made.onclick = async () => {
    if (!made.classList.contains("sure")) {
      made.textContent = `${label}: sure?`;
      made.classList.add("sure");
      setTimeout(reset, 4000);
      return;
    }
    made.disabled = true;
    const { ok, text } = await send(method, path, body);
    if (ok) return;
    made.disabled = false;
    reset();
    made.after(element("span", { className: "problem" }, ` ${text}`));
  };
  return made;
}

/** A button that opens JupyterLab of a job in a tab of its own. */
function lab(job) {
  const made = element("button", { type: "button" }, "JupyterLab");
  made.onclick = async () => {
    const tab = window.open("", "_blank"); // now, as browsers block tabs that no click has opened
    if (!tab) return made.after(" Allow this page to open tabs.");
    tab.opener = null; // the job's page could lead this one elsewhere
    const { ok, text } = await send("POST", address(job, "lab"));
    if (ok) tab.location = JSON.parse(text).address;
    else tab.document.body.textContent = text;
  };
  return made;
}

/** What can be done with a job. */
export function buttons(job) {
  const found = [];
  if (job.state === "RUNNING" && own(job)) {
    found.push(lab(job), copied("ssh", `mlplatform ssh ${job.id}`));
  }
  if (isOpen(job) && own(job) && !job.stopping) {
    found.push(button("Stop", "POST", `/api/jobs/${encodeURIComponent(job.id)}/stop`));
  }
  if (["FAILED", "STOPPED"].includes(job.state) && own(job)) {
    found.push(button("Resume", "POST", address(job, "resume"), {}));
  }
  return element("span", { className: "buttons" }, found);
}

/** Let a form start a dev environment of whoever looks, in place of an ended one. */
export function startsEnvironment(form) {
  form.onsubmit = async (event) => {
    event.preventDefault();
    const user = overview.you || "shared";
    const id = `dev-${user}-main`;
    const path = `/api/jobs/${encodeURIComponent(id)}`;
    const job = {
      entrypoint: ENVIRONMENT,
      submission_id: id,
      runtime_env: { env_vars: { MLPLATFORM_JOB_ID: id, MLPLATFORM_USER: user } },
      metadata: { user },
      entrypoint_num_cpus: 1,
      entrypoint_num_gpus: Number(form.elements.gpus.value),
    };
    let answer = await send("POST", "/api/jobs/", job);
    if (answer.status === 409 && (await send("DELETE", path)).ok) answer = await send("POST", "/api/jobs/", job);
    const text = answer.status === 409 ? `${id} is open already.` : answer.text;
    form.querySelector("output").textContent = answer.ok ? "" : text;
  };
}
