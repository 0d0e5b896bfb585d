"""Everything that knows about many replicas and about Ray: gateway, bus, replica deployment."""
