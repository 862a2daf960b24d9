"""How one of our processes runs: settings, logs, tasks that end, child processes, signals."""
