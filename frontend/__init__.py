"""Frontend: OpenAI's HTTP API, answered by the fleet."""
