"""Pictures and what is said about them: sources of records, their texts, and batches made of them."""
