"""The HTTP surface: OpenAI-compatible endpoints over the unary call and the bus."""
