// A worker that all pages of a browser share: one stream of events for all of them, because a browser opens only six connections
// to a host and each page's own stream would hold one for ever.
import { listen } from "./stream.js";

const pages = new Set();
let state = "connecting";

self.addEventListener("connect", ({ ports: [page] }) => {
  pages.add(page);
  page.onmessage = () => pages.delete(page);
  page.postMessage(state);
});

listen((word) => {
  if (word !== "changed") state = word;
  for (const page of pages) page.postMessage(word);
});
