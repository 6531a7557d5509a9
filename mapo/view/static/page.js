// Live parts, keys and tokens. Everything else works without it.
"use strict";

const EVERY = 2500;
let seen = document.body.dataset.version;

// ---- live parts: when the index has something new, the page is fetched again and its live parts are replaced

async function look() {
  if (document.hidden) return;
  const answer = await fetch("/api/version", { cache: "no-store" }).catch(() => null);
  if (!answer || !answer.ok) return;
  const now = String((await answer.json()).version);
  if (now === seen) return;
  const fresh = await fetch(location.href, { cache: "no-store" }).catch(() => null);
  if (!fresh || !fresh.ok) return;
  const page = new DOMParser().parseFromString(await fresh.text(), "text/html");
  for (const part of document.querySelectorAll("[data-live]")) {
    if (part.dataset.live === "once" && part.childElementCount) continue; // figures keep themselves fresh
    const next = page.getElementById(part.id);
    if (next && next.innerHTML !== part.innerHTML) replace(part, next);
  }
  seen = now;
  document.dispatchEvent(new Event("mapo:new"));
}

function replace(part, next) {
  const marked = new Set([...part.querySelectorAll("input:checked")].map((box) => box.value));
  const focus = part.contains(document.activeElement) ? document.activeElement : null;
  const again = focus && (focus.getAttribute("href") || focus.value);
  part.replaceChildren(...document.importNode(next, true).childNodes);
  for (const box of part.querySelectorAll("input[type=checkbox]")) box.checked = marked.has(box.value);
  if (again) {
    const same = [...part.querySelectorAll("a, input")].find((e) => again === (e.getAttribute("href") || e.value));
    if (same) same.focus({ preventScroll: true });
  }
}

if (document.body.dataset.page === "live") setInterval(look, EVERY);

// ---- keys: / goes to the search field, j and k to the next and the previous dialogue; they can be switched off

const keys = document.querySelector("button[data-keys]");
const off = () => localStorage.getItem("mapo-keys") === "off";
const tell = () => keys.setAttribute("aria-pressed", String(!off()));
keys.hidden = false;
keys.addEventListener("click", () => {
  localStorage.setItem("mapo-keys", off() ? "on" : "off");
  tell();
});
tell();

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
    box.append("cannot be read");
    return;
  }
  const found = await answer.json();
  box.append(...found.tokens.map(token));
  if (found.next === null) return;
  const more = document.createElement("button");
  more.type = "button";
  more.textContent = "more";
  more.addEventListener("click", () => {
    more.remove();
    tokens(box, address, found.next);
  });
  box.append(more);
}

function token(one) {
  const span = document.createElement("span");
  const score = one.logprob;
  const rank = score === null ? 0 : score > -0.1 ? 0 : score > -0.7 ? 1 : score > -2 ? 2 : score > -4 ? 3 : 4;
  span.className = `token p${rank}`;
  span.textContent = one.text.replace(/\n/g, "⏎");
  const told = score === null ? "no log-prob" : `log-prob ${score.toFixed(3)}, p ${Math.exp(score).toPrecision(2)}`;
  span.title = `${told} (id ${one.ids.join(" ")})`;
  const small = document.createElement("small");
  small.textContent = score === null ? "" : score.toFixed(2);
  span.append(small);
  return span;
}
