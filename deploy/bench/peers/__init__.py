"""`python -m deploy.bench.peers FOLDER`: this server and others, one at a time, under the same load of our generator.

Each peer lives in an environment of its own below FOLDER, which must lie outside this repository. They serve the same
model: the GGUF file itself, or the folder that `conversion` makes of it, so that no model hub is needed.
"""
