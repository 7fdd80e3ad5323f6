"""One small pure file an engine: command line, environment, health, metrics, and how it says it failed."""
