"""Chat templates with the habits of the family's real checkpoints, and a tokenizer to run them with.

The demo model's own template is one of them; these have what it lacks: macros and namespaces, loop
controls, thoughts kept by default, efforts, dates, and Python's words for booleans.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from model.text.chat import ChatFormat
from model.text.tokenizer import TextTokenizer

DEMO = Path(__file__).parents[2] / "model" / "demo"

STRIPS_THOUGHTS = """
{%- macro text(content) %}
    {%- if content is string %}{{- content }}
    {%- elif content is none or content is undefined %}{{- '' }}
    {%- else %}{{- raise_exception('Unexpected content type.') }}{%- endif %}
{%- endmacro %}
{%- if not messages %}{{- raise_exception('No messages provided.') }}{%- endif %}
{%- if tools and tools is iterable and tools is not mapping %}
    {{- '<|im_start|>system\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools>\\nWrite <tool_call>\\n<function=name>\\n</function>\\n</tool_call>' }}
    {%- if messages[0].role == 'system' %}{{- '\\n\\n' + text(messages[0].content)|trim }}{%- endif %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + text(messages[0].content)|trim + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.searching and message.role == 'user' %}
        {%- set content = text(message.content)|trim %}
        {%- if not (content.startswith('<tool_response>') and content.endswith('</tool_response>')) %}
            {%- set ns.searching = false %}
            {%- set ns.last_query = index %}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if ns.searching %}{{- raise_exception('No user query found in messages.') }}{%- endif %}
{%- for message in messages %}
    {%- set content = text(message.content)|trim %}
    {%- if message.role == 'system' %}
        {%- if not loop.first %}
            {{- raise_exception('System message must be at the beginning.') }}
        {%- endif %}
    {%- elif message.role == 'user' %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set thought = message.reasoning_content|trim if message.reasoning_content is string else '' %}
        {%- if KEEPS or loop.index0 > ns.last_query %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + thought + '\\n</think>\\n\\n' + content }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if call.function is defined %}{%- set call = call.function %}{%- endif %}
            {{- ('\\n\\n' if content|trim else '') if loop.first else '\\n' }}
            {{- '<tool_call>\\n<function=' + call.name + '>\\n' }}
            {%- for name, value in call.arguments|items %}
                {{- '<parameter=' + name + '>\\n' }}
                {%- set is_json = value is mapping or (value is sequence and value is not string) %}
                {{- (value | tojson | safe) if is_json else (value | string) }}
                {{- '\\n</parameter>\\n' }}
            {%- endfor %}
            {{- '</function>\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem and loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- else %}
        {{- raise_exception('Unexpected message role.') }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- else %}
        {{- '<think>\\n' }}
    {%- endif %}
{%- endif %}
""".replace("KEEPS", "(preserve_thinking is defined and preserve_thinking is true)")
"""As Qwen3.5 and 3.6: the thoughts behind the last question stay, unless asked to keep them all."""

KEEPS_THOUGHTS = (
    """
{%- set effort = reasoning_effort|default('xhigh') %}
{%- if effort not in ('low', 'medium', 'xhigh') %}
    {{- raise_exception('Unexpected reasoning effort ' ~ effort) }}
{%- endif %}
"""
    + STRIPS_THOUGHTS
).replace(
    "preserve_thinking is defined and preserve_thinking",
    "preserve_thinking is undefined or preserve_thinking",
)
"""As Qwen3.8: all thoughts stay unless told otherwise; an unknown effort is refused."""

DATED = """
{%- for message in messages %}
    {%- if message.role == 'tool' %}{%- continue %}{%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- generation %}{{- strftime_now('%Y') }}{%- endgeneration %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
"""Of another family: no thoughts at all, loop controls, the clock, a training block."""


@cache
def tokenizer_with(template: str | None = None) -> TextTokenizer:
    """The demo model's tokenizer, with another chat template; None leaves its own."""
    own = TextTokenizer.from_dir(DEMO)
    if template is None:
        return own
    return TextTokenizer(
        own.definition, eos_ids=own.eos_ids, named_tokens=own.named_tokens, chat_template=template
    )


def chat_with(template: str | None = None) -> ChatFormat:
    """A chat format of its own for one test: what it remembers is not shared."""
    return ChatFormat(tokenizer_with(template))


@cache
def shared_chat(template: str | None = None) -> ChatFormat:
    """A chat format that the examples of a property share: to compile a template is the dearest part."""
    return chat_with(template)


def tool(name: str, /, **properties: object) -> dict[str, object]:
    """A tool definition whose parameters have these schemas."""
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


def call(name: str, arguments: object, /) -> dict[str, object]:
    """A call as a client sends it back; arguments that are no string are encoded."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": text}}
