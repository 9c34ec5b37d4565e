// Keeps the page current: when something happened, the page is fetched again and its main part replaced.
import { listen } from "./stream.js";

const status = document.querySelector("[data-live]");
const main = document.querySelector("[data-refresh]");
// A page is fetched at most this often, and takes at most a tenth of the time: in a storm the service has better things to do.
const QUIET_MS = 500, SHARE = 10;
const SAID = { connecting: "connecting", live: "live", lost: "connection lost, trying again" };
let waiting = null, took = 0, stale = false;

const typing = () => [...main.querySelectorAll("input, textarea, select")].some((field) =>
  field === document.activeElement || (field.defaultValue !== undefined && field.type !== "checkbox" && field.value !== field.defaultValue));

// Where the focus stands, in words that hold in the fresh page too.
function standing() {
  const at = document.activeElement;
  if (!main.contains(at) || at === main) return null;
  const link = at.closest("tr[tabindex]")?.querySelector("a")?.getAttribute("href");
  if (at.matches("tr")) return (page) => [...page.querySelectorAll("tr[tabindex]")].find((row) => row.querySelector("a")?.getAttribute("href") === link);
  const form = at.closest("[data-act]")?.dataset.act;
  if (form) return (page) => page.querySelector(`[data-act="${CSS.escape(form)}"] button`);
  const address = at.getAttribute("href");
  return (page) => address && page.querySelector(`a[href="${CSS.escape(address)}"]`);
}

async function refresh() {
  waiting = null;
  // What somebody is typing is not taken away under their hands.
  if (document.hidden || typing()) {
    stale = true;
    if (!document.hidden) status.textContent = "live, held while you type";
    return;
  }
  stale = false;
  const begun = performance.now();
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } }).catch(() => null);
  const fresh = answer?.ok && new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("[data-refresh]");
  took = performance.now() - begun;
  if (!fresh || typing()) return;
  const find = standing();
  main.replaceChildren(...fresh.childNodes);
  (find?.(main) ?? (find && main))?.focus({ preventScroll: true });
  main.dataset.refreshed = Date.now();
  status.textContent = SAID.live;
  document.dispatchEvent(new Event("pitstop:refreshed"));
}

function soon() {
  waiting ??= setTimeout(refresh, Math.max(QUIET_MS, SHARE * took) * (0.75 + Math.random() / 2));
}

function hear(word) {
  if (word === "changed") soon();
  else status.textContent = SAID[word];
}

if (status.dataset.live === "off") {
  status.textContent = "";
} else if (window.SharedWorker) {
  const { port } = new SharedWorker("/static/events.js", { name: "pitstop events", type: "module" });
  port.onmessage = ({ data }) => hear(data);
  addEventListener("pagehide", () => port.postMessage("gone"));
  // A page that comes back out of the browser's cache has said that it is gone.
  addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
} else {
  listen(hear);
}
document.addEventListener("pitstop:acted", soon);
for (const turn of ["visibilitychange", "focusout", "reset"]) document.addEventListener(turn, () => { if (stale) soon(); });
