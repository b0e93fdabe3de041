"""OpenAI's Responses dialect: items become turns, and events become items; responses are kept."""
