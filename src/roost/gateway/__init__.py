"""The OpenAI data path."""
