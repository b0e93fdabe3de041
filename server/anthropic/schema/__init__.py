"""The bodies of this dialect: blocks, tools, messages, requests, replies."""
