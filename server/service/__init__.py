"""Keeps the server running in the background: a launchd agent on macOS, a systemd user unit on Linux."""
