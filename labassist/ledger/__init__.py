"""The ledger: what is recorded, how it is kept, and what it can prove later."""
