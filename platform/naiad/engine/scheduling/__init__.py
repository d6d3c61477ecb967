"""Which request goes to which instance: pure state machines without clock or I/O."""
