// The platform's overview, which the gateway sends whenever a part of it changes. A hidden page does not listen.

export const overview = {};

let events = null;

/** Call a function with the changed parts, now and whenever there are some; `report` gets what is wrong, or nothing. */
export function listen(changed, report) {
  const open = () => {
    events = new EventSource("/platform/overview?follow=1");
    events.onopen = () => report("");
    events.onmessage = (event) => {
      const parts = JSON.parse(event.data);
      Object.assign(overview, parts);
      changed(parts);
    };
    events.onerror = () => {
      report("Not connected; what you see may be old.");
      // The browser connects again by itself, except after an answer such as 401: then the session has ended.
      if (events.readyState === EventSource.CLOSED) location.reload();
    };
  };
  // Browsers open six connections to a server, so twelve tabs of a busy person would block each other.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) events?.close();
    else open();
  });
  if (!document.hidden) open();
}
