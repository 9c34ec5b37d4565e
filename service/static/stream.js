// The service's events, for as long as somebody listens. A browser gives a stream up for good where the answer is no stream, as a
// proxy's is while the service behind it is away: a new one is begun then, and what may have been missed counts as a change.
const AGAIN_MS = 3000;

export function listen(hear) {
  const events = new EventSource("/api/v1/events?every=1");
  events.onopen = () => hear("live");
  events.addEventListener("changed", () => hear("changed"));
  events.onerror = () => {
    hear("lost");
    if (events.readyState !== EventSource.CLOSED) return;
    setTimeout(() => listen((word) => { hear(word); if (word === "live") hear("changed"); }), AGAIN_MS);
  };
}
