"""cluster-strategy: degrees, placement, micro-batch size, layer assignment and shares on a cluster, decided together."""
