"""How game, player and time of a row are computed: settings, SQL expressions, names."""
