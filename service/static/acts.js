// Keys and buttons: what an operator does on a page is one request of the API, and its answer is said beside the button.
const rows = () => [...document.querySelectorAll("tr[tabindex]")];

function move(step) {
  const all = rows();
  if (all.length === 0) return;
  const at = all.indexOf(document.activeElement?.closest("tr[tabindex]"));
  all[at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + step))].focus();
}

// One matcher a line, as Alertmanager writes them: name, one of = != =~ !~, value with or without quotation marks.
function matchers(text) {
  return text.split("\n").map((line) => line.trim()).filter(Boolean).map((line) => {
    const found = /^([^\s=!~]+)\s*(=~|!~|!=|=)\s*(.*)$/.exec(line);
    if (!found) throw new Error(`not a matcher: ${line} (write name=value, name!=value, name=~pattern or name!~pattern)`);
    const [, name, sign, value] = found;
    return { name, value: value.replace(/^"(.*)"$/, "$1"), isRegex: sign.endsWith("~"), isEqual: !sign.startsWith("!") };
  });
}

const words = (text) => text.split(/[\s,]+/).filter(Boolean);

function fieldsOf(form) {
  const fields = Object.fromEntries([...new FormData(form)].filter(([, value]) => value !== ""));
  for (const box of form.querySelectorAll("[data-json]")) fields[box.name] = JSON.parse(box.value);
  for (const box of form.querySelectorAll("[data-matchers]")) fields[box.name] = matchers(box.value);
  for (const box of form.querySelectorAll("[data-words]")) fields[box.name] = words(box.value);
  for (const box of form.querySelectorAll("[data-item]")) delete fields[box.name];
  for (const box of form.querySelectorAll("[data-item]:checked")) (fields[box.name] ??= []).push(JSON.parse(box.value));
  if (fields.hours) {
    fields.endsAt = new Date(Date.now() + Number(fields.hours) * 3600e3).toISOString();
    delete fields.hours;
  }
  if (fields.begins) {
    fields.start = Date.now() / 1000 + Number(fields.begins) * 3600;
    fields.end = fields.start + Number(fields.lasts) * 3600;
    delete fields.begins;
    delete fields.lasts;
  }
  if (form.dataset.modes) {
    fields.modes = { [form.dataset.modes]: fields.mode };
    delete fields.mode;
  }
  return fields;
}

async function act(form) {
  const said = form.querySelector(".said");
  const say = (text, wrong) => {
    said.textContent = text;
    said.classList.toggle("wrong", wrong);
  };
  let body;
  try {
    body = JSON.stringify(fieldsOf(form));
  } catch (error) {
    say(error.message, true);
    return;
  }
  say("sent", false);
  const method = form.dataset.method ?? "POST";
  const headers = { "Content-Type": "application/json" };
  const answer = await fetch(form.dataset.act, { method, headers, ...(method === "DELETE" ? {} : { body }) }).catch(() => null);
  const told = (await answer?.json().catch(() => null)) ?? {};
  if (!answer?.ok) {
    say(answer ? (told.detail ?? `refused with status ${answer.status}`) : "the service did not answer: see whether it was done before you try again", true);
    return;
  }
  const done = form.dataset.done ?? "done";
  say(done, false);
  // The form may be gone when the page is fetched again; this stays.
  document.querySelector("[data-told]").textContent = `${form.dataset.what ?? ""} ${done}`.trim();
  form.reset();
  document.dispatchEvent(new Event("pitstop:acted"));
  // On the button, not in a field: a page in which somebody types is not fetched again.
  if (form.contains(document.activeElement)) form.querySelector("button")?.focus();
}

document.addEventListener("submit", (event) => {
  if (!event.target.dataset.act) return;
  event.preventDefault();
  act(event.target);
});

// The row in focus first, then the page.
function press(name) {
  const wanted = `[data-key="${name}"]`;
  const found = document.activeElement?.closest("tr[tabindex]")?.querySelector(wanted) ?? document.querySelector(`main ${wanted}:not(tr *)`);
  if (found?.matches("input, textarea")) found.focus();
  else found?.click();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const focused = document.activeElement;
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) {
    if (event.key === "Escape") focused.blur();
    return;
  }
  if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else if (event.key === "Enter" && focused?.matches("tr[tabindex]")) focused.querySelector("a")?.click();
  else if (event.key === "a" || event.key === "r") press(event.key);
  else if (event.key === "s") { event.preventDefault(); press("s"); }
  else if (event.key === "/") { event.preventDefault(); document.querySelector("[data-filter]")?.focus(); }
  else if (event.key === "u") { localStorage.setItem("local", localStorage.getItem("local") ? "" : "1"); dress(); }
});

function showTimes() {
  const local = Boolean(localStorage.getItem("local"));
  for (const time of document.querySelectorAll("time[datetime]")) {
    const moment = new Date(time.dateTime);
    const text = local ? moment.toLocaleString("sv-SE") + " local" : moment.toISOString().replace("T", " ").slice(0, 19) + " UTC";
    if (time.textContent !== text) time.textContent = text;
  }
}

// On a phone each cell stands under its column's name.
function labelCells() {
  for (const table of document.querySelectorAll("table:not(.across)")) {
    const names = [...table.querySelectorAll("thead th")].map((name) => name.textContent);
    for (const row of table.tBodies[0]?.rows ?? []) [...row.cells].forEach((cell, at) => { if (names[at]) cell.dataset.label = names[at]; });
  }
}

// What is wider than its place is scrolled by keyboard too.
function reachScrolled() {
  for (const place of document.querySelectorAll(".scroll")) {
    if (place.scrollWidth <= place.clientWidth) continue;
    place.tabIndex = 0;
    place.setAttribute("role", "region");
    place.setAttribute("aria-label", [...document.querySelectorAll("h1, h2, h3")].findLast((name) => name.compareDocumentPosition(place) & Node.DOCUMENT_POSITION_FOLLOWING)?.textContent ?? "table");
  }
}

function dress() {
  showTimes();
  labelCells();
  reachScrolled();
}

dress();
addEventListener("resize", reachScrolled);
document.addEventListener("pitstop:refreshed", dress);
