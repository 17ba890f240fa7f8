// Elements of the page. Texts of jobs reach it as text nodes and attributes only, never as markup.

/** An element with properties, `data-*` values and children: elements and texts; others, such as null, are none. */
export function element(tag, { data = {}, ...properties } = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  Object.assign(made.dataset, data);
  made.append(...children.flat(Infinity).filter((child) => child instanceof Node || typeof child === "string"));
  return made;
}

/** An element of a drawing, with attributes. */
export function drawing(tag, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

/** Show items in a parent, and keep the elements of those that have not changed, with focus and selection. */
export function show(parent, items, key, draw, none = "") {
  const before = [...parent.children];
  const known = new Map(before.map((child) => [child.dataset.key, child]));
  const elements = items.map((item) => {
    const [id, version] = [key(item), JSON.stringify(item)];
    const kept = known.get(id);
    if (kept?.version === version) return kept;
    const made = draw(item);
    [made.dataset.key, made.version] = [id, version];
    return made;
  });
  if (!elements.length && none) elements.push(element("p", { className: "none" }, none));
  const same = elements.length === before.length && elements.every((child, place) => child === before[place]);
  if (!same) parent.replaceChildren(...elements);
}

/** A time in the reader's zone, without the date if it is today's. */
export function moment(time) {
  const date = new Date(time);
  const today = date.toDateString() === new Date().toDateString();
  const shown = date.toLocaleString([], { ...(today ? {} : { dateStyle: "medium" }), timeStyle: "short" });
  return element("time", { dateTime: time, title: date.toLocaleString() }, shown);
}

/** The time since a moment, as in `2 h 5 min`, which the page keeps up to date. */
export function since(time) {
  const made = moment(time);
  made.dataset.since = time;
  made.textContent = duration((Date.now() - new Date(time)) / 1000);
  return made;
}

setInterval(() => {
  for (const time of document.querySelectorAll("time[data-since]")) {
    time.textContent = duration((Date.now() - new Date(time.dataset.since)) / 1000);
  }
}, 10_000);

export function duration(seconds) {
  const minutes = Math.floor(Math.max(seconds, 0) / 60);
  if (minutes < 1) return `${Math.floor(Math.max(seconds, 0))} s`;
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** A number with at most three digits that count, and none that only fill. */
export function figure(value) {
  const plain = value === 0 || (Math.abs(value) >= 0.001 && Math.abs(value) < 1e6);
  return plain ? String(Number(value.toPrecision(3))) : value.toExponential(1);
}

/** A button that copies a text. */
export function copied(label, text) {
  const button = element("button", { type: "button", title: text }, label);
  button.onclick = async () => {
    await navigator.clipboard?.writeText(text);
    button.textContent = navigator.clipboard ? "Copied" : text; // without TLS, only localhost has a clipboard
  };
  return button;
}
