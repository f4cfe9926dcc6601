// Live updates: everything else works without this file. The server sends parts of the page as
// HTML, and each element with an id that has changed is replaced.
"use strict";
(() => {
  const shown = document.querySelector("[data-after]"); // what the page shows ends there
  const page = document.body.dataset.page;
  if (!document.getElementById("strip")) return;
  const url = "/live?page=" + encodeURIComponent(page) + (shown ? "&charge=" + encodeURIComponent(shown.dataset.charge || "") + "&after=" + shown.dataset.after : "");
  let source = null;
  let known = ""; // versions that were drawn

  // say tells a screen reader.
  function say(text) {
    const line = document.getElementById("said");
    if (line && line.textContent !== text) line.textContent = text;
  }

  function state(text) {
    const line = document.querySelector("[data-live]");
    if (line) { line.hidden = false; line.textContent = text; }
  }

  // update makes old like fresh and keeps what has not changed: focus, scroll, animations.
  function update(old, fresh) {
    if (old.isEqualNode(fresh)) return;
    if (old.tagName !== fresh.tagName) {
      old.replaceWith(fresh);
      return;
    }
    const same = old.children.length === fresh.children.length;
    if (same && old.children.length > 0 && texts(old) === texts(fresh)) {
      attributes(old, fresh);
      const next = [...fresh.children]; // a child that replaces another leaves fresh
      [...old.children].forEach((child, i) => update(child, next[i]));
      return;
    }
    if (same && old.children.length === 0) {
      attributes(old, fresh);
      if (old.textContent !== fresh.textContent) old.textContent = fresh.textContent;
      return;
    }
    const had = old.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    attributes(old, fresh);
    old.replaceChildren(...fresh.childNodes);
    if (had) old.querySelector('a[href="' + CSS.escape(had) + '"]')?.focus();
  }

  // texts are the words directly in an element, between its children.
  function texts(element) {
    return [...element.childNodes].map((n) => n.nodeType === Node.TEXT_NODE ? n.data.trim() : "|").join("");
  }

  function attributes(old, fresh) {
    for (const { name, value } of [...fresh.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  }

  function put(id, html) {
    const box = document.getElementById(id);
    if (!box) return;
    const fresh = box.cloneNode(false);
    const parsed = new DOMParser().parseFromString(html, "text/html");
    fresh.append(...parsed.body.childNodes);
    update(box, fresh);
  }

  function open() {
    if (source || document.hidden) return;
    source = new EventSource(url);
    source.addEventListener("open", () => state("live"));
    source.addEventListener("error", () => {
      state("not live, connecting");
      if (source && source.readyState === EventSource.CLOSED) { close(); setTimeout(open, 2000); }
    });
    source.addEventListener("strip", (e) => {
      put("strip", e.data);
      state("live");
      const invariants = document.getElementById("s-inv");
      say(invariants ? invariants.textContent : "The database does not answer.");
    });
    source.addEventListener("live", (e) => put("live", e.data));
    source.addEventListener("progress", (e) => {
      put("progress", e.data);
      const versions = [...document.querySelectorAll("#progress [data-version]")].map((n) => n.dataset.version).join();
      if (versions && known !== versions) redraw();
      known = versions;
    });
  }

  function close() {
    if (source) source.close();
    source = null;
    state("paused");
  }

  // redraw reads the page again in place, a while after the charge has changed. The server answers
  // when its budget allows.
  let timer = null;
  function redraw() {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      const answer = await fetch(location.href, { headers: { "X-Redraw": "1" } }).catch(() => null);
      if (!answer || !answer.ok) return;
      const parsed = new DOMParser().parseFromString(await answer.text(), "text/html");
      const now = document.getElementById("progress");
      if (now) parsed.getElementById("progress")?.replaceWith(now.cloneNode(true));
      const [old, fresh] = [document.getElementById("main"), parsed.getElementById("main")];
      if (old && fresh) { update(old, fresh); say("The page was drawn again."); }
    }, 1500);
  }

  // A hidden page needs nothing, and browsers open few connections to one host.
  document.addEventListener("visibilitychange", () => document.hidden ? close() : open());
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", open);

  // A form is sent once.
  document.addEventListener("submit", (e) => {
    if (e.target.method !== "post") return;
    for (const b of e.target.querySelectorAll("button")) setTimeout(() => { b.disabled = true; });
  });
  open();
})();
