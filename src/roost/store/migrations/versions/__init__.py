"""One file a step. A step that was shipped is never edited."""
