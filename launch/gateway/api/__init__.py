"""The OpenAI API: what clients send and get, checked, and turned into prompts and text."""
