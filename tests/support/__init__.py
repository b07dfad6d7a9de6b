"""What tests share: the servers they talk to and the things they do to them."""
