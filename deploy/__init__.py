"""What people run: commands, the configuration file, the Serve application, benchmarks."""
