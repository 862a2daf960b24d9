"""What a measurement is written as: summaries, tables, JSON, and the machine it ran on.

Entered by every command; knows no command.
"""
