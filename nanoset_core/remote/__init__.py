"""Object storage: outputs that live in a bucket, raw text that is read from one."""
