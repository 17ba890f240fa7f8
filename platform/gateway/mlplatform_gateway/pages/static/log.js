// A job's log as it grows, with a search.
import { element } from "./elements.js";

const KEPT = 5000; // lines; the whole log is one click away
const OMITTED = /^mlplatform: [\d.]+ MiB of this log \((\d+) lines\) were omitted here\.$/;
const RETRY_MS = 2000;

/** The element of a log, which is followed as long as `grows()`; `close()` ends it. */
export function followed(address, grows) {
  const lines = [];
  let [read, unfinished, connection, drawn] = [0, "", null, null];
  const text = element("pre", { tabIndex: 0 });
  const count = element("span", { className: "count", role: "status" });
  const search = element("input", { type: "search", placeholder: "Search", ariaLabel: "Search the log" });
  const controls = element("p", {}, search, " ", element("a", { href: address }, "whole log"));
  const shown = element("section", { className: "log" }, element("h2", {}, "Log ", count), controls, text);

  const draw = () => {
    drawn = null;
    const wanted = search.value.toLowerCase();
    const all = unfinished ? [...lines, unfinished] : lines;
    const found = wanted ? all.filter((line) => line.toLowerCase().includes(wanted)) : all;
    const atEnd = text.scrollTop + text.clientHeight >= text.scrollHeight - 20;
    text.textContent = found.join("\n");
    if (atEnd) text.scrollTop = text.scrollHeight;
    count.textContent = wanted ? `${found.length} of ${read} lines` : `${read} lines`;
  };
  const redraw = () => (drawn ??= setTimeout(draw, 200));
  search.oninput = redraw;

  // What stands after a carriage return replaces what stands before; one at the end belongs to the line feed.
  const last = (line) => line.slice(line.lastIndexOf("\r", line.length - 2) + 1);
  const accept = (part) => {
    const parts = (unfinished + part).split("\n");
    unfinished = last(parts.pop());
    for (const line of parts.map(last)) {
      read += Number(line.match(OMITTED)?.[1] ?? 1);
      lines.push(line);
    }
    lines.splice(0, lines.length - KEPT);
    redraw();
  };
  const follow = async () => {
    connection = new AbortController();
    const { signal } = connection;
    unfinished = "";
    try {
      const answer = await fetch(`${address}?follow=1&unfinished=1&skip_lines=${read}`, { signal });
      if (!answer.ok) text.replaceChildren(await answer.text());
      if (answer.status >= 400 && answer.status < 500) return;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let part = await reader.read(); !part.done; part = await reader.read()) accept(part.value);
    } catch {
      // The gateway has restarted, or the page was closed.
    }
    if (grows()) setTimeout(() => signal.aborted || follow(), RETRY_MS);
  };
  // As the overview: a hidden page does not listen.
  const turned = () => {
    connection?.abort();
    if (!document.hidden) follow();
  };
  document.addEventListener("visibilitychange", turned);
  follow();
  shown.close = () => {
    document.removeEventListener("visibilitychange", turned);
    connection?.abort();
  };
  return shown;
}
