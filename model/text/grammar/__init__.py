"""Grammars of replies, and the masks by which a reply is kept to one.

Grammars are text so that they can cross from the thread that reads requests to the one that owns the
model: :func:`json_schema` and :func:`call_grammar` write them, :class:`GrammarTable` turns them into a
:class:`Grammar` for one reply.
"""

from model.text.grammar.calls import call_grammar
from model.text.grammar.masks import Grammar, GrammarTable
from model.text.grammar.rules import json_schema

__all__ = ["Grammar", "GrammarTable", "call_grammar", "json_schema"]
