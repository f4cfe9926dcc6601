// What the Tab key reaches, in order.
() => {
  const all = document.querySelectorAll("a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']");
  window.stops = [...all].filter((e) => !e.disabled && e.checkVisibility());
  return window.stops.length;
}
