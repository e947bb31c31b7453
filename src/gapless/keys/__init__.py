"""The keys of sealed groups: the keyring file, and the cipher suites of this machine."""
