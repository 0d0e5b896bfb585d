"""Model families, each written once as plain modules over `parallel.layers`."""
