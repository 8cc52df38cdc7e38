"""``ftlib observability``: a Grafana board, Prometheus rules and a scrape file, made from the table of metrics."""
