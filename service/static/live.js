// Keeps the page current: when something happened, the page is fetched again and its main part replaced.
const status = document.querySelector("[data-live]");
const main = document.querySelector("[data-refresh]");
const QUIET_MS = 250;
let waiting = null;

async function refresh() {
  waiting = null;
  const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("[data-refresh]");
  // What somebody is typing or has in focus is not taken away under their hands.
  if (!fresh || main.contains(document.activeElement) && document.activeElement !== document.body) return;
  main.replaceChildren(...fresh.childNodes);
  document.dispatchEvent(new Event("pitstop:refreshed"));
}

function soon() {
  if (waiting === null) waiting = setTimeout(refresh, QUIET_MS);
}

if (location.pathname !== "/login") {
  const events = new EventSource("/api/v1/events");
  events.onopen = () => { status.textContent = "live"; };
  events.onerror = () => { status.textContent = "connection lost, trying again"; };
  for (const kind of ["opened", "updated", "resolved", "timeline"]) events.addEventListener(`incident.${kind}`, soon);
  events.addEventListener("rule.changed", soon);
  for (const kind of ["registered", "attempt", "running", "ended", "failed"]) events.addEventListener(`job.${kind}`, soon);
} else {
  status.textContent = "";
}
