"""Studies on top of `adlm`: experiments, reports, reasoning, code benchmarks. The library never imports it."""
