"""Mock engines: paged prefix cache, scheduler and timing of an LLM engine, without the model."""
