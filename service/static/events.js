// A worker that all pages of a browser share: one stream of events for all of them, because a browser opens only six connections
// to a host and each page's own stream would hold one for ever.
const pages = new Set();
let state = "connecting";
const tell = (message) => { for (const page of pages) page.postMessage(message); };
const events = new EventSource("/api/v1/events?every=1");
events.onopen = () => tell(state = "live");
events.onerror = () => tell(state = "lost");
events.addEventListener("changed", () => tell("changed"));

self.addEventListener("connect", ({ ports: [page] }) => {
  pages.add(page);
  page.onmessage = () => pages.delete(page);
  page.postMessage(state);
});
