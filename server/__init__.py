"""Who carries a request, who may call, what is seen: servers in front of pools of workers."""
