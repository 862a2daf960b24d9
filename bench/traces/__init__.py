"""Request traces: read, given tokens, and taken apart (prefixes, turns, reuse, similarity).

Entered by commands, synthesizer and simulation.
"""
