"""The audit of judges that compare the replies of siblings: consistency, position, sensitivity, attacks."""
