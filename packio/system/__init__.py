"""The machine: processors, memory, threads, processes, shared memory, the cache folder."""
