"""Programs that do the same work as this project with other means, and what the benchmarks need to run them."""
