"""Training engines built on other libraries. Import them by name: their dependencies are optional."""
