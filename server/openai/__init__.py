"""OpenAI's chat and completions dialect: bodies in, generation requests out, events back to bodies."""
