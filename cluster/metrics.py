"""What Prometheus sees. Names follow the field: TTFT, ITL, queue time, running, waiting, KV blocks.

Label values come from the configuration or from fixed sets, never from a request, so the number of series is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from replicas.messages import LoadReport

LATENCIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2.5, 5, 10, 30, 60)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
DURATIONS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 60, 120, 300, 600)

UNKNOWN_MODEL = "unknown"  # where a request names no model that is served, or did not come to name one

GAUGES = {
    "running": ("requests_running", "Requests in the engine's batch"),
    "waiting": ("requests_waiting", "Requests waiting for the engine's batch"),
    "waiting_prefill_tokens": ("waiting_prefill_tokens", "Prompt tokens that are yet to be computed"),
    "kv_blocks_total": ("kv_blocks", "KV blocks of the pool"),
    "kv_blocks_free": ("kv_blocks_free", "KV blocks that can be allocated now, cached ones included"),
}
COUNTERS = {
    "steps_total": ("engine_steps", "Engine steps"),
    "preemptions_total": ("preemptions", "Requests that gave up their KV blocks to be recomputed later"),
    "prefix_query_tokens_total": ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache"),
    "prefix_hit_tokens_total": ("prefix_cache_hits", "Prompt tokens found in the prefix cache"),
    "prompt_tokens_total": ("engine_prompt_tokens", "Prompt tokens of requests that the engine ended"),
    "generation_tokens_total": ("engine_generation_tokens", "Tokens that the engine sampled"),
}


class GatewayMetrics:
    """One registry a gateway. `loads` gives the last load report of every connected engine by its bus address,
    which changes with its start; `lost` the number of bus messages that never came."""

    def __init__(self, loads: Callable[[], dict[str, LoadReport]], lost: Callable[[], int]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_EngineCollector(loads))

        def histogram(name: str, text: str, buckets: Iterable[float]) -> Histogram:
            return Histogram(f"mobula_{name}", text, ["model"], buckets=tuple(buckets), registry=self._registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"mobula_{name}", text, ["model", *labels], registry=self._registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"mobula_{name}", text, ["model"], registry=self._registry)

        self.ttft = histogram("time_to_first_token_seconds", "From the request's arrival to its first token", LATENCIES)
        self.itl = histogram("inter_token_latency_seconds", "Between two tokens of a request", LATENCIES)
        self.e2e = histogram("e2e_request_latency_seconds", "From the request's arrival to its end", DURATIONS)
        self.queue = histogram("request_queue_time_seconds", "In the engine before the first step", LATENCIES)
        self.requests = counter("requests", "Generations by outcome; each prompt of a batch counts", "outcome")
        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of answered requests, as usage states them")
        self.cached_tokens = counter("prompt_tokens_cached", "Prompt tokens served from the prefix cache")
        self.generation_tokens = counter("generation_tokens", "Output tokens that clients got")
        self.refusals = counter("refusals", "Requests refused for want of a key or of room, by reason", "reason")
        self.gate_wait = histogram("gateway_queue_seconds", "In the gateway before a replica had room", LATENCIES)
        self.gate_tokens = gauge("gateway_queue_tokens", "Tokens that wait in the gateway for room at a replica")
        self.gate_requests = gauge("gateway_queue_requests", "Requests that wait in the gateway for room at a replica")
        self.limit_store_faults = Counter(
            "mobula_limit_store_faults", "Times that Redis did not answer about a limit", registry=self._registry
        )
        self.embedding_batches = histogram(
            "embedding_batch_size", "Of each text, how many were in its batch", BATCH_SIZES
        )
        self.embedding_waits = histogram(
            "embedding_wait_seconds", "Of each text, from its arrival at a replica to the start of its batch", LATENCIES
        )
        self.embedding_max_batch = gauge("embedding_max_batch_size", "Texts that a batch has at most")
        self.embedding_window = gauge("embedding_batch_wait_seconds", "How long a batch waits to become full")
        self.failovers = counter("failovers", "Attempts that ended without an answer, by reason", "reason")
        self.replicas_open = Gauge(
            "mobula_replicas_open", "Replicas that take requests", ["model"], registry=self._registry
        )
        self.circuits_open = Gauge(
            "mobula_circuits_open",
            "Replicas that are left alone because they failed or were slow",
            ["model"],
            registry=self._registry,
        )
        lost_messages = Gauge("mobula_bus_lost_messages", "Token messages that never came", registry=self._registry)
        lost_messages.set_function(lost)

    def render(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self._registry)


class _EngineCollector(Collector):
    """Turns the replicas' last load reports into gauges and counters at scrape time."""

    def __init__(self, loads: Callable[[], dict[str, LoadReport]]) -> None:
        self._loads = loads

    def collect(self) -> Iterable[Metric]:
        loads = self._loads()
        for field, (name, text) in GAUGES.items():
            gauge = GaugeMetricFamily(f"mobula_{name}", text, labels=["replica"])
            for replica, load in loads.items():
                gauge.add_metric([replica], getattr(load, field))
            yield gauge
        for field, (name, text) in COUNTERS.items():
            counter = CounterMetricFamily(f"mobula_{name}", text, labels=["replica"])
            for replica, load in loads.items():
                counter.add_metric([replica], getattr(load, field))
            yield counter
