// Elements made and changed without a library. Text is always text: nothing is parsed as markup.

export const $ = (selector) => document.querySelector(selector);

/** make("td", {class: "n"}, "text", child) */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** The same, of SVG. */
export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Change a text only where it differs: a selection and a screen reader stay where they are. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Headings of a table's columns of numbers. */
export const labels = (table) => [...document.querySelectorAll(`${table} th.n`)].map((head) => head.textContent);

/** Make `parent`'s children those of `items`, by key and in order; who stays is kept. */
export function keyed(parent, items, keyOf, create, update) {
  const known = parent.knownByKey ?? (parent.knownByKey = new Map());
  const wanted = new Set(items.map(keyOf));
  for (const [key, child] of known) {
    if (!wanted.has(key)) {
      child.remove();
      known.delete(key);
    }
  }
  let before = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let child = known.get(key);
    if (!child) {
      child = create(item);
      known.set(key, child);
    }
    update(child, item);
    if (child === before) before = before.nextElementSibling;
    else parent.insertBefore(child, before);
  }
}

/** A tip beside what is pointed at or has the focus. `tell(element)` gives its lines, [name, value]. */
export function tips(container, selector, tell) {
  const tip = $("#tip");
  const show = (event) => {
    const target = event.target.closest?.(selector);
    if (!target || !container.contains(target)) return;
    const lines = tell(target);
    if (!lines.length) return;
    tip.replaceChildren(...lines.flatMap(([name, value]) => [make("span", {}, name), make("b", {}, value)]));
    tip.hidden = false;
    const at = target.getBoundingClientRect();
    const x = event.type === "focusin" ? at.left + 40 : event.clientX + 14;
    const y = at.bottom + 6;
    const above = y + tip.offsetHeight > innerHeight;
    tip.style.left = `${Math.max(4, Math.min(x, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${above ? at.top - tip.offsetHeight - 6 : y}px`;
    target.setAttribute("aria-describedby", "tip");
  };
  const hide = (event) => {
    tip.hidden = true;
    event.target.closest?.(selector)?.removeAttribute("aria-describedby");
  };
  container.addEventListener("mousemove", show);
  container.addEventListener("focusin", show);
  container.addEventListener("mouseout", (event) => {
    const stays = event.relatedTarget?.closest?.(selector);
    if (!stays || stays !== event.target.closest?.(selector)) hide(event);
  });
  container.addEventListener("focusout", hide);
  container.addEventListener("keydown", (event) => event.key === "Escape" && hide(event));
}
