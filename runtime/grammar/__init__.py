"""Structured generation: a text's grammar as an automaton over tokens (docs/design.md 9).

spec.py says what a request asks for, protocol.py what every engine offers; the compiler turns one into the
other. Nothing here knows the scheduler, pages or torch.
"""
