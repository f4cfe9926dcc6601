// Every second the page is fetched again, and what has changed in it is replaced. Everything else
// works without this file.
"use strict";
(() => {
  if (document.body.dataset.page === "Error") return;
  const every = 1000; // for which the server keeps an answer
  let timer = null;

  // say tells a screen reader.
  function say(text) {
    const line = document.getElementById("said");
    if (line.textContent !== text) line.textContent = text;
  }

  function state(text) {
    const line = document.querySelector("[data-live]");
    line.hidden = false;
    line.textContent = text;
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

  async function refresh() {
    try {
      const answer = await fetch(location.href);
      if (!answer.ok) throw new Error(answer.statusText);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const id of ["strip", "main"]) update(document.getElementById(id), page.getElementById(id));
      state("live");
      say(document.getElementById("s-inv")?.textContent ?? "The database does not answer.");
    } catch {
      state("not live, connecting");
    }
    wait();
  }

  // wait fetches a second later, unless the page is hidden.
  function wait() {
    clearTimeout(timer);
    if (document.hidden) {
      state("paused");
      return;
    }
    timer = setTimeout(refresh, every);
  }
  document.addEventListener("visibilitychange", wait);

  // A form is sent once.
  document.addEventListener("submit", (e) => {
    if (e.target.method !== "post") return;
    for (const b of e.target.querySelectorAll("button")) setTimeout(() => { b.disabled = true; });
  });
  state("live");
  wait();
})();
