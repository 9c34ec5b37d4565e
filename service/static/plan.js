// What-if by clicking: each node that is clicked off (or on, where it is out) is a word of the page's address, so that it can be shared.
document.addEventListener("click", (event) => {
  const site = event.target.closest("[data-node]");
  if (!site) return;
  const address = new URL(location.href);
  const word = `node ${site.dataset.node} ${site.dataset.usable ? "lost" : "back"}`;
  const asked = address.searchParams.getAll("what_if");
  address.searchParams.delete("what_if");
  for (const other of asked.includes(word) ? asked.filter((text) => text !== word) : [...asked, word]) {
    address.searchParams.append("what_if", other);
  }
  location.assign(address);
});
