"""Texts to vectors: the models that do it, and what their files say of it."""
