// Elements without innerHTML: nothing that a model or a person wrote is ever read as markup.

/** An element with attributes (`on…` are listeners, `class` and `text` are what they say) and children. */
export function el(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "class") element.className = value;
    else if (key === "text") element.textContent = value;
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export const $ = (id) => document.getElementById(id);

/** A count with thin spaces, such as 12 345. */
export function count(n) {
  return Math.round(n).toLocaleString("en").replaceAll(",", "\u202f");
}

export function bytes(n) {
  for (const unit of ["B", "KiB", "MiB"]) {
    if (n < 1024) return `${n < 10 && unit !== "B" ? n.toFixed(1) : Math.round(n)} ${unit}`;
    n /= 1024;
  }
  return `${n.toFixed(1)} GiB`;
}

export function seconds(s) {
  return s < 10 ? `${s.toFixed(s < 1 ? 2 : 1)} s` : s < 120 ? `${Math.round(s)} s` : `${Math.round(s / 60)} min`;
}
