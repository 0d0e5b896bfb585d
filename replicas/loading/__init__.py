"""Checkpoints: safetensors folders and GGUF files, read tensor by tensor and checked by name."""
