// Vercel's AI SDK with its defaults: a loop of calls, then a streamed turn that refers to what the server keeps.
// Usage: node ai_sdk.mjs URL [unstored [1]]; prints one JSON object for each turn, 1 leaves out the second.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [url, storing, turns] = process.argv.slice(2);
const openai = createOpenAI({ baseURL: url, apiKey: "unused" });
const cities = [];
const population = tool({
  description: "How many people live in a city.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => (cities.push(city), "1000"),
});
const unstored = { openai: { store: false, include: ["reasoning.encrypted_content"] } };
const shared = {
  model: openai("demo"),
  tools: { population },
  stopWhen: stepCountIs(12),
  maxRetries: 0,
  ...(storing === "unstored" ? { providerOptions: unstored } : {}),
};
const asked = [{ role: "user", content: "Count the people." }];
const first = await generateText({ ...shared, messages: asked });
console.log(JSON.stringify({ text: first.text, cities, steps: first.steps.length }));
if (turns === "1") process.exit(0);
const again = [...asked, ...first.response.messages, { role: "user", content: "And again?" }];
const second = streamText({ ...shared, messages: again });
let text = "";
for await (const piece of second.textStream) text += piece;
console.log(JSON.stringify({ text, usage: await second.usage, warnings: (await second.warnings) ?? [] }));
