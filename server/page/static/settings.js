// The settings dialog. They stay in this browser; the API key for this tab alone.
import { $ } from "./dom.js";

const KEY = "crossturn.settings";
const NUMBERS = ["temperature", "top_p", "top_k", "seed", "max_tokens"];

export class Settings {
  constructor() {
    let saved = {};
    try {
      saved = JSON.parse(localStorage.getItem(KEY) ?? "{}");
    } catch {
      // What is not readable counts as not set.
    }
    this.values = { system: "", thinking: false, tools: "", ...saved };
    this.key = sessionStorage.getItem(`${KEY}.key`) ?? "";
  }

  /** The fields of a request that they stand for. */
  get fields() {
    const body = { enable_thinking: this.values.thinking };
    for (const name of NUMBERS) if (this.values[name] !== undefined) body[name] = this.values[name];
    if (this.values.tools.trim()) body.tools = JSON.parse(this.values.tools);
    return body;
  }

  /** Open the dialog; `done` is called when it closes. */
  open(done, note = "") {
    $("api-key").value = this.key;
    $("system").value = this.values.system;
    $("thinking").checked = this.values.thinking;
    $("tools").value = this.values.tools;
    for (const name of NUMBERS) $(name).value = this.values[name] ?? "";
    $("settings-error").textContent = note;
    const dialog = $("settings");
    $("settings-done").onclick = (event) => {
      const fault = toolsFault($("tools").value);
      if (!fault) return;
      event.preventDefault();
      $("settings-error").textContent = fault;
    };
    dialog.onclose = () => {
      if (!toolsFault($("tools").value)) this.#take();
      done();
    };
    dialog.showModal();
  }

  #take() {
    this.key = $("api-key").value.trim();
    sessionStorage.setItem(`${KEY}.key`, this.key);
    this.values = { system: $("system").value.trim(), thinking: $("thinking").checked, tools: $("tools").value };
    for (const name of NUMBERS) if ($(name).value !== "") this.values[name] = Number($(name).value);
    try {
      localStorage.setItem(KEY, JSON.stringify(this.values));
    } catch {
      // Without storage they last as long as the page.
    }
  }
}

function toolsFault(text) {
  if (!text.trim()) return "";
  try {
    return Array.isArray(JSON.parse(text)) ? "" : "Tools must be a JSON list.";
  } catch (error) {
    return `Tools are not JSON: ${error.message}`;
  }
}
