"""Tool calls in a model's text: one small parser for each way in which models write them."""
