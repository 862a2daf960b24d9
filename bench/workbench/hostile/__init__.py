"""dynamo-router bench hostile: what one peer that does not cooperate costs all others."""
