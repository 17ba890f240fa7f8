// The platform's overview, which the gateway sends whenever a part of it changes. A hidden page does not listen.

export const overview = {};

const RETRY_MS = 5000;

let events = null;

/** The value of a JSON text, whose objects have only their own members, as an id may be `constructor`. */
export function parsed(text) {
  const plain = (value) => value && typeof value === "object" && !Array.isArray(value);
  return JSON.parse(text, (_, value) => (plain(value) ? Object.setPrototypeOf(value, null) : value));
}

/** Call a function with the changed parts, now and whenever there are some; `report` gets what is wrong, or nothing. */
export function listen(changed, report) {
  const open = () => {
    events?.close();
    if (document.hidden) return;
    events = new EventSource("/platform/overview?follow=1");
    events.onopen = () => report("");
    events.onmessage = (event) => {
      const parts = parsed(event.data);
      Object.assign(overview, parts);
      changed(parts);
    };
    events.onerror = async () => {
      report("Not connected; what you see may be old.");
      // The browser connects again by itself, except after an answer with a status such as 403 or a proxy's 502.
      if (events.readyState !== EventSource.CLOSED) return;
      const { status } = await fetch("/platform/overview").catch(() => ({}));
      if (status === 401 || status === 403) return location.reload();
      setTimeout(open, RETRY_MS);
    };
  };
  // Browsers open six connections to a server, so twelve tabs of a busy person would block each other.
  document.addEventListener("visibilitychange", open);
  open();
}
