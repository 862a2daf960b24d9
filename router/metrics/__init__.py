"""What Prometheus sees: counters along a request's way, gauges read at each scrape.

Entered by `serve`; wraps what it measures and is called by none of it.
"""
