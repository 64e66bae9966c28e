"""What the benchmarks share: contenders, rounds, statistics, tables, plots."""
