// Keys and buttons: what an operator does on a page is one request of the API, and its answer is said beside the button.
const rows = () => [...document.querySelectorAll("tr[tabindex]")];

function move(step) {
  const all = rows();
  if (all.length === 0) return;
  const at = all.indexOf(document.activeElement);
  all[at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + step))].focus();
}

async function act(form) {
  const said = form.querySelector(".said");
  const fields = Object.fromEntries([...new FormData(form)].filter(([, value]) => value !== ""));
  for (const box of form.querySelectorAll("[data-json]")) fields[box.name] = JSON.parse(box.value);
  for (const box of form.querySelectorAll("[data-item]")) delete fields[box.name];
  for (const box of form.querySelectorAll("[data-item]:checked")) (fields[box.name] ??= []).push(JSON.parse(box.value));
  if (fields.hours) {
    fields.endsAt = new Date(Date.now() + Number(fields.hours) * 3600e3).toISOString();
    delete fields.hours;
  }
  if (form.dataset.modes) {
    fields.modes = { [form.dataset.modes]: fields.mode };
    delete fields.mode;
  }
  said.textContent = "sent";
  const answer = await fetch(form.dataset.act, {
    method: form.dataset.method ?? "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(fields),
  });
  const told = await answer.json().catch(() => ({}));
  said.textContent = answer.ok ? (form.dataset.done ?? "done") : (told.detail ?? `refused with status ${answer.status}`);
  said.classList.toggle("wrong", !answer.ok);
}

document.addEventListener("submit", (event) => {
  if (!event.target.dataset.act) return;
  event.preventDefault();
  act(event.target);
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  const focused = document.activeElement;
  const press = (name) => document.querySelector(`[data-key="${name}"]`)?.click();
  if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else if (event.key === "Enter" && focused?.matches("tr[tabindex]")) focused.querySelector("a")?.click();
  else if (event.key === "a" || event.key === "r" || event.key === "s") press(event.key);
  else if (event.key === "/") { event.preventDefault(); document.querySelector("[data-filter]")?.focus(); }
  else if (event.key === "u") { localStorage.setItem("local", localStorage.getItem("local") ? "" : "1"); showTimes(); }
});

function showTimes() {
  const local = Boolean(localStorage.getItem("local"));
  for (const time of document.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    const text = local ? moment.toLocaleString("sv-SE") + " local" : moment.toISOString().replace("T", " ").slice(0, 19) + " UTC";
    if (time.textContent !== text) time.textContent = text;
  }
}

showTimes();
document.addEventListener("pitstop:refreshed", showTimes);
