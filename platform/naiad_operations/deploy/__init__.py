"""Files with which systemd, Kubernetes and KServe start and watch a server."""
