"""Files that let other programs start and watch a server: systemd, Kubernetes, KServe."""
