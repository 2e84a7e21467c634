"""Settings of the broken demo: the demo's, with a shop, and leases short enough to watch."""

from demo_project.settings import *  # noqa: F403
from demo_project.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "demo_project.shop"]
PGQUEUE = {"LEASE_SECONDS": 15.0, "CALL_DEADLINE_SECONDS": 30.0}
