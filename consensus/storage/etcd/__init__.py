"""An etcd cluster as a store."""
