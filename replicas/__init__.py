"""One copy of one model: engine, scheduler, paged KV cache, models, sampling and text. Never imports Ray."""
