"""OpenAI's Responses dialect: items in, turns out, events back to items; and a store of what was answered."""
