"""Write the shards of a plan: journal, processes, threads, and the index at the end."""
