// The server's API as this page uses it. Knows nothing of the page.

/** What the server refused, or could not do. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export class Api {
  key = "";

  #headers(extra = {}) {
    return this.key ? { Authorization: `Bearer ${this.key}`, ...extra } : extra;
  }

  async #request(path, options = {}) {
    let response;
    try {
      response = await fetch(path, { ...options, headers: this.#headers(options.headers) });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "The server does not answer.");
    }
    if (!response.ok) {
      const body = await response.json().catch(() => null);
      throw new ApiError(response.status, body?.error?.message ?? `The server answered ${response.status}.`);
    }
    return response;
  }

  /** The body of a GET, as JSON. */
  async get(path) {
    return (await this.#request(path)).json();
  }

  async post(path, body) {
    return (await this.#request(path, {
      method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" },
    })).json();
  }

  async delete(path) {
    return (await this.#request(path, { method: "DELETE" })).json();
  }

  async download(path) {
    return (await this.#request(path)).blob();
  }

  /** The chunks of a streamed chat completion. `session` names the conversation's slot. */
  async *chat(body, session, signal) {
    const response = await this.#request("v1/chat/completions", {
      method: "POST",
      body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
      headers: { "Content-Type": "application/json", "X-Session-Id": session },
      signal,
    });
    for await (const data of frames(response.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(response.status, chunk.error.message);
      yield chunk;
    }
    throw new ApiError(response.status, "The connection broke off.");
  }
}

/** The data of each server-sent event in `stream`. */
async function* frames(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
      if (data.length) yield data.join("\n");
    }
  }
}
