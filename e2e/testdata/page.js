// What a page lacks for its readers: an array of sentences, empty where all is well. wide is
// whether the window is the widest.
(wide) => {
  const bad = [];
  const seen = (e) => e.checkVisibility({ visibilityProperty: true, opacityProperty: true }) &&
    e.getBoundingClientRect().width > 1 && !e.closest("[aria-hidden=true]");
  const name = (e) => e.tagName.toLowerCase() + (e.id ? "#" + e.id : "") + " '" + (e.textContent || "").trim().slice(0, 40) + "'";
  const all = (selector) => [...document.querySelectorAll(selector)];
  const want = (ok, what) => { if (!ok) bad.push(what); };

  want(document.documentElement.lang === "en", "the language is not said");
  want(all("main").length === 1, "it has not one main part");
  want(all("h1").filter(seen).length === 1, "it has not one h1");
  let level = 0;
  for (const h of all("h1, h2, h3, h4")) {
    const own = Number(h.tagName[1]);
    want(own <= level + 1, name(h) + " follows a heading of level " + level);
    level = own;
  }
  const ids = all("[id]").map((e) => e.id);
  want(new Set(ids).size === ids.length, "an id is there twice: " + ids.filter((id, i) => ids.indexOf(id) !== i));

  const called = (e) => e.getAttribute("aria-label") || (e.getAttribute("aria-labelledby") || "").split(" ").map((id) => document.getElementById(id)?.textContent).join("");
  for (const e of all("input:not([type=hidden]), select, textarea")) want(called(e) || [...e.labels].some((l) => l.textContent.trim()), name(e) + " has no label");
  for (const e of all("a, button, summary, [role=region]")) want(called(e) || e.querySelector("title") || (e.getAttribute("role") !== "region" && e.textContent.trim()), name(e) + " has no name");
  for (const e of all("img")) want(e.hasAttribute("alt"), name(e) + " has no alt");
  for (const e of all("th")) want(e.scope, name(e) + " has no scope");
  for (const e of all("[onclick], [style]")) want(false, name(e) + " has what the policy forbids");
  for (const e of all("button, input:not([type=hidden]), select, summary, nav a")) {
    want(!seen(e) || e.getBoundingClientRect().height >= 24, name(e) + " is too small for a finger");
  }

  want(document.documentElement.scrollWidth <= innerWidth, "it scrolls sideways: " + document.documentElement.scrollWidth + " of " + innerWidth);
  for (const e of all("main *")) {
    const scrolls = /auto|scroll/.test(getComputedStyle(e).overflowX) && e.scrollWidth > e.clientWidth + 1;
    want(!scrolls || e.tabIndex === 0, name(e) + " scrolls, and not by the keyboard");
  }
  if (wide) {
    const box = document.querySelector("main").getBoundingClientRect();
    want(Math.abs(box.left - (document.documentElement.clientWidth - box.right)) < 2, "main is not in the middle");
    want(parseFloat(getComputedStyle(document.body).fontSize) >= 18, "the text is too small for the window");
    for (const p of all("main p").filter(seen)) {
      const size = parseFloat(getComputedStyle(p).fontSize);
      const range = document.createRange();
      range.selectNodeContents(p);
      want(range.getBoundingClientRect().width <= 60 * size, name(p) + " has too long lines");
    }
  }

  // Contrast: WCAG 2.2, with what is behind the text laid one over the other.
  const colour = (text) => {
    const n = (text.match(/-?[\d.]+(e-?\d+)?/g) || []).map(Number);
    const one = text.startsWith("color(srgb") ? 1 : 255;
    return /^(rgb|color\(srgb)/.test(text) ? [n[0] / one, n[1] / one, n[2] / one, n[3] ?? 1] : [0, 0, 0, 0];
  };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const light = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, part, i) => sum + part * (c[i] <= 0.04045 ? c[i] / 12.92 : ((c[i] + 0.055) / 1.055) ** 2.4), 0);
  const behind = (e) => {
    const layers = [];
    for (let at = e; at; at = at.parentElement) layers.push(colour(getComputedStyle(at).backgroundColor));
    const ground = matchMedia("(prefers-color-scheme: dark)").matches ? [0.07, 0.07, 0.07, 1] : [1, 1, 1, 1];
    return layers.reduceRight((under, layer) => over(layer, under), ground);
  };
  const faint = new Map();
  const check = (e, style, what) => {
    const ground = behind(e);
    const text = colour(style.color);
    const [a, b] = [light(over(text, ground)), light(ground)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) faint.set(e.className + what, name(e) + what + " has a contrast of " + ratio.toFixed(2));
  };
  let texts = 0;
  for (const e of all("body *")) {
    if (!seen(e) || ["SCRIPT", "STYLE", "TITLE", "OPTION"].includes(e.tagName.toUpperCase())) continue;
    if ([...e.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.data.trim())) { check(e, getComputedStyle(e), ""); texts++; }
    if (e.placeholder) check(e, getComputedStyle(e, "::placeholder"), "'s placeholder");
  }
  want(texts > 5, "it has next to no text");
  return bad.concat([...faint.values()]);
}
