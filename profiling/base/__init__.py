"""What every room needs: errors for users, files, quantities, processes."""
