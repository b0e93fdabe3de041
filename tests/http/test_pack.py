"""Prompt packs: a system prompt and tools that are there before anyone asks, on the demo model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from model.errors import ModelError
from server.cli import main
from server.launch import preload
from server.settings import Settings
from tests.fakes.asking import QUESTION, ask, message_of
from tests.fakes.live_server import live_demo

SYSTEM = {
    "role": "system",
    "content": " ".join(f"Rule {i}: answer in one short sentence." for i in range(60)),
}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pack")
    (folder / "agent.json").write_text(json.dumps({"messages": [SYSTEM], "tools": TOOLS}))
    made = folder / "agent.pack"
    assert main(["pack", "--messages", str(folder / "agent.json"), "-o", str(made)]) == 0
    return made


def test_the_first_request_of_every_key_begins_with_the_pack(pack: Path) -> None:
    fields = {"tools": TOOLS, "temperature": 0, "enable_thinking": False}
    with live_demo() as cold:
        unpacked = ask(cold, SYSTEM, QUESTION, **fields)
    with live_demo(Settings(api_keys=("one", "two"))) as server:
        preload(server.engine, [pack])
        for key in ("one", "two"):
            server.http.headers["Authorization"] = f"Bearer {key}"
            body = ask(server, SYSTEM, QUESTION, **fields)
            assert message_of(body) == message_of(unpacked)
            assert body["crossturn"]["prefilled_tokens"] < 40 < unpacked["crossturn"]["prefilled_tokens"]
            assert server.http.get("/v1/slots").json()["data"][0]["slot"] == body["crossturn"]["slot"]
            assert len(server.http.get("/v1/slots").json()["data"]) == 1


def test_a_file_that_is_no_pack_ends_the_start_in_a_sentence(tmp_path: Path) -> None:
    broken = tmp_path / "broken.pack"
    broken.write_bytes(b"no pack")
    with live_demo() as server, pytest.raises(ModelError, match=r"broken\.pack cannot be used: it is cut"):
        preload(server.engine, [broken])


@pytest.mark.parametrize("content", ["nonsense", "{}", '{"messages": 1}', "[1"])
def test_messages_that_are_none_are_refused(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "messages.json"
    file.write_text(content)
    assert main(["pack", "--messages", str(file), "-o", str(tmp_path / "out")]) == 1
    assert "--messages" in capsys.readouterr().err
