// Shows times in the reader's zone, and replaces the content whenever the server sends a changed one.
const content = document.getElementById("content");
const connection = document.getElementById("connection");

function localize() {
  for (const time of content.querySelectorAll("time")) {
    time.textContent = new Date(time.dateTime).toLocaleString([], { dateStyle: "short", timeStyle: "medium" });
  }
}

localize();
const events = new EventSource("/platform/live");
events.onopen = () => { connection.textContent = ""; };
events.onmessage = (event) => {
  content.innerHTML = JSON.parse(event.data);
  localize();
};
events.onerror = () => {
  connection.textContent = "Not connected; what you see may be old.";
  // The browser connects again by itself, except after an answer such as 401: then the session has ended.
  if (events.readyState === EventSource.CLOSED) location.reload();
};
