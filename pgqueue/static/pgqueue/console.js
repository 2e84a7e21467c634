"use strict";
/* Comfort only: every page does all it can without this file. */
(() => {
  const OFF = "pgqueue-no-keys";
  const main = document.querySelector("#content");
  if (!main || !document.querySelector(".pgqueue-nav")) return;

  /* The tab's clock may be hours off: only spans are told, by the page's own time. */
  const busy = () =>
    document.hidden ||
    document.querySelector("#result_list input:checked, details[open]") !== null ||
    /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);

  /* Refresh: the overview only, by loading it anew; off until asked for. */
  const refresh = document.querySelector("[data-refresh]");
  if (refresh) {
    const KEY = "pgqueue-refresh";
    const box = document.createElement("input");
    const label = document.createElement("label");
    box.type = "checkbox";
    box.checked = sessionStorage.getItem(KEY) === "on";
    label.append(box, " " + refresh.dataset.on);
    refresh.after(" ", label);
    box.addEventListener("change", () => sessionStorage.setItem(KEY, box.checked ? "on" : "off"));
    const seconds = Number(refresh.dataset.refresh);
    setInterval(() => {
      if (!box.checked || (busy() && document.activeElement !== box)) return;
      location.reload();
    }, seconds * 1000);
    const said = document.querySelector("[data-said]");
    if (box.checked && said) said.textContent = said.dataset.said;
  }

  /* Keys: they only lead somewhere, none acts. */
  let went = false;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || localStorage.getItem(OFF)) return;
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    if (went) {
      went = false;
      const keys = { o: "overview", q: "queue", j: "job", r: "reconcile", w: "worker", b: "bulkaction", a: "operatoraction" };
      const link = document.querySelector(`.pgqueue-nav a[data-key="${keys[event.key]}"]`);
      if (link) link.click();
    } else if (event.key === "g") {
      went = true;
    } else if (event.key === "/") {
      const box = document.querySelector("#searchbar");
      if (box) {
        event.preventDefault();
        box.focus();
      }
    } else if (event.key === "?") {
      const help = document.querySelector("#pgqueue-help");
      if (help) help.open = !help.open;
    }
  });
  const keys = document.querySelector("#pgqueue-keys");
  if (keys) {
    keys.hidden = false;
    const box = keys.querySelector("input");
    box.checked = !localStorage.getItem(OFF);
    box.addEventListener("change", () => (box.checked ? localStorage.removeItem(OFF) : localStorage.setItem(OFF, "1")));
  }

  /* Copy what is long to type. */
  for (const block of document.querySelectorAll("[data-copy]")) {
    if (!navigator.clipboard) break;
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = block.dataset.copy;
    button.addEventListener("click", () => navigator.clipboard.writeText(block.querySelector("pre").textContent));
    block.append(button);
  }
})();
