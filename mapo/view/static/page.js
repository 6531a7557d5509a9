// Live updates, keyboard shortcuts, tokens and model calls. Everything else works without scripts.
"use strict";

const INTERVAL = 2500;
let seen = document.body.dataset.version;

// ---- live updates: when the index changes, fetch the page again and replace its live parts

async function update() {
  if (document.hidden) return;
  const answer = await fetch("/api/version", { cache: "no-store" }).catch(() => null);
  if (!answer || !answer.ok) return;
  const now = String((await answer.json()).version);
  if (now === seen) return;
  const fresh = await fetch(location.href, { cache: "no-store" }).catch(() => null);
  if (!fresh || !fresh.ok) return;
  const page = new DOMParser().parseFromString(await fresh.text(), "text/html");
  for (const part of document.querySelectorAll("[data-live]")) {
    if (part.dataset.live === "once" && part.childElementCount) continue; // charts update themselves
    const next = page.getElementById(part.id);
    if (next && next.innerHTML !== part.innerHTML) replace(part, next);
  }
  seen = now;
  document.dispatchEvent(new Event("mapo:new"));
}

function replace(part, next) {
  const selected = new Set([...part.querySelectorAll("input:checked")].map((box) => box.value));
  const focus = part.contains(document.activeElement) ? document.activeElement : null;
  const again = focus && (focus.getAttribute("href") || focus.value);
  part.replaceChildren(...document.importNode(next, true).childNodes);
  for (const box of part.querySelectorAll("input[type=checkbox]")) box.checked = selected.has(box.value);
  if (again) {
    const same = [...part.querySelectorAll("a, input")].find((e) => again === (e.getAttribute("href") || e.value));
    if (same) same.focus({ preventScroll: true });
  }
}

if (document.body.dataset.page === "live") setInterval(update, INTERVAL);

// ---- keyboard shortcuts: / search field, j next dialogue, k previous dialogue

const keys = document.querySelector("button[data-keys]");
const off = () => localStorage.getItem("mapo-keys") === "off";
const showState = () => keys.setAttribute("aria-pressed", String(!off()));
keys.hidden = false;
keys.addEventListener("click", () => {
  localStorage.setItem("mapo-keys", off() ? "on" : "off");
  showState();
});
showState();

document.addEventListener("keydown", (event) => {
  if (off() || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  if (event.key === "/") {
    const field = document.querySelector("input[type=search]");
    if (field) {
      field.focus();
      event.preventDefault();
    }
  }
  const link = /^[jk]$/.test(event.key) && document.querySelector(`a[data-key="${event.key}"]`);
  if (link) link.click();
});

// ---- tokens, on demand

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-tokens]");
  if (!button) return;
  const box = button.nextElementSibling;
  if (!box.childNodes.length) await tokens(box, button.dataset.tokens, 0);
  box.hidden = !box.hidden;
  button.setAttribute("aria-expanded", String(!box.hidden));
});

async function tokens(box, address, first) {
  const answer = await fetch(`${address}?from=${first}`).catch(() => null);
  if (!answer || !answer.ok) {
    box.append("The tokens cannot be read.");
    return;
  }
  const page = await answer.json();
  box.append(...page.tokens.map(token));
  if (page.next === null) return;
  const more = document.createElement("button");
  more.type = "button";
  more.textContent = "more";
  more.addEventListener("click", () => {
    more.remove();
    tokens(box, address, page.next);
  });
  box.append(more);
}

function token(one) {
  const span = document.createElement("span");
  const score = one.logprob;
  const rank = score === null ? 0 : score > -0.1 ? 0 : score > -0.7 ? 1 : score > -2 ? 2 : score > -4 ? 3 : 4;
  span.className = `token p${rank}`;
  span.textContent = one.text.replace(/\n/g, "⏎");
  const text = score === null ? "no log-prob" : `log-prob ${score.toFixed(3)}, p ${Math.exp(score).toPrecision(2)}`;
  span.title = `${text} (id ${one.ids.join(" ")})`;
  const small = document.createElement("small");
  small.textContent = score === null ? "" : score.toFixed(2);
  span.append(small);
  return span;
}

// ---- model calls, on demand; all texts are set as text, never as HTML

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-calls]");
  if (!button) return;
  const box = button.nextElementSibling;
  if (!box.childNodes.length) {
    button.disabled = true;
    await calls(box, button.dataset.calls);
    button.disabled = false;
  }
  box.hidden = !box.hidden;
  button.setAttribute("aria-expanded", String(!box.hidden));
});

async function calls(box, address) {
  const answer = await fetch(address).catch(() => null);
  if (!answer || !answer.ok) {
    box.append(element("p", "note bad", "The calls cannot be read."));
    return;
  }
  const turn = await answer.json();
  if (turn.note) box.append(element("p", "quiet", turn.note));
  box.append(...turn.calls.map(call));
  if (turn.left_out) box.append(element("p", "quiet", `${turn.left_out} more calls are not shown.`));
}

function element(name, classes, text = "") {
  const made = document.createElement(name);
  made.className = classes;
  made.textContent = text;
  return made;
}

function call(one) {
  const details = element("details", "call");
  const facts = [one.model, one.seconds === null ? "" : `${one.seconds.toFixed(2)} s`];
  facts.push(one.retries ? `${one.retries} ${one.retries === 1 ? "retry" : "retries"}` : "no retries");
  if (one.tokens && one.tokens.prompt) facts.push(`${one.tokens.prompt} + ${one.tokens.answer} tokens`);
  for (const [name, value] of Object.entries(one.sampling)) facts.push(`${name} ${value}`);
  if (one.json) facts.push("JSON schema");
  const summary = element("summary", "", "");
  summary.append(element("strong", "", one.role), ` ${facts.filter(Boolean).join(" · ")}`);
  details.append(summary);
  if (one.error) details.append(element("p", "note bad", `The call failed: ${one.error}`));
  for (const message of one.messages) details.append(block(message.role, message));
  if (one.answer) details.append(block(one.finish === "length" ? "answer (cut off at the token limit)" : "answer", one.answer, "answer"));
  else if (!one.error) details.append(element("p", "quiet", "The answer is not in the cache."));
  return details;
}

function block(title, message, classes = "") {
  const box = element("div", `message ${classes}`);
  const text = element("pre", "code", message.text);
  text.dir = "auto";
  box.append(element("span", "who", message.cut ? `${title} (shortened)` : title), text);
  return box;
}
