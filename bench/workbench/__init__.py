"""What `dynamo-router bench` measures: one part beside its rivals, by a command each."""
