from frontends.console.conftest import axe, browser, pages

__all__ = ["axe", "browser", "pages"]
