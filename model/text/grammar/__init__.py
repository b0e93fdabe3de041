"""Grammars of replies, and the masks by which a reply is kept to one.

Grammars are text so that they can cross from the thread that reads requests to the one that owns the
model. :class:`~model.text.grammar.compiler.GrammarCompiler` has them written in a process of its own, by
:func:`~model.text.grammar.rules.json_schema` and :func:`~model.text.grammar.calls.call_grammar`;
:class:`~model.text.grammar.masks.GrammarTable` turns them into a ``Grammar`` for one reply.
"""
