"""The nouns that every floor shares: workers, time, errors, addresses; native containers."""
