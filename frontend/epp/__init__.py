"""Endpoint picker: Envoy asks by external processing where each request of an OpenAI client goes.

Entered by the command `epp`.
"""
