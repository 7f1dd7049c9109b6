"""Failed assertions of the shared helpers show their values, as those of tests do."""

import pytest

pytest.register_assert_rewrite("helpers", "drawn")
