"""Results as text and figures. Rich and matplotlib are imported only here."""
