// The page: what its address names, with what the stream sends.
import { keepKey, startsEnvironment } from "./buttons.js";
import { closeJob, openJob, showJob } from "./job.js";
import { filter, showPlatform } from "./platform.js";
import { listen, overview } from "./stream.js";

const [platform, job, filters] = ["platform", "job", "filters"].map((id) => document.getElementById(id));

/** Show a job, `#/jobs/<id>`, or the front page with a filter, as in `#person=alice`. */
function route() {
  const hash = keepKey(location.hash);
  const id = hash.match(/^#\/jobs\/(.+)$/)?.[1];
  [platform.hidden, job.hidden] = [Boolean(id), !id];
  if (id) return openJob(id);
  closeJob();
  document.title = "ML platform";
  const wanted = new URLSearchParams(hash.slice(1));
  for (const name of Object.keys(filter)) filter[name] = wanted.get(name) ?? "";
  if (overview.jobs) showPlatform(overview);
}

filters.onchange = () => {
  const chosen = [...new FormData(filters)].filter(([, value]) => value);
  location.hash = new URLSearchParams(chosen).toString();
};
addEventListener("hashchange", route);
route();
startsEnvironment(document.getElementById("start"));
listen(
  (parts) => {
    showPlatform(parts);
    showJob(parts);
  },
  (problem) => (document.getElementById("connection").textContent = problem),
);
