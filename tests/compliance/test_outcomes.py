"""A test that fails, and one that begins to pass, are reported."""

from tests.compliance.outcomes import read

PRINTED = """
=== RUN   TestHistograms
=== RUN   TestHistograms/bad_count
=== ATTR  TestHistograms/bad_count description Histogram with bad count
=== RUN   TestHistograms/bad_count/gateway
=== ATTR  TestHistograms/bad_count/gateway rw gateway
    main_test.go:168: Response code from "gateway": 204
    Error:      Should be true
=== RUN   TestHistograms/basic
=== RUN   TestHistograms/basic/gateway
    main_test.go:168: Response code from "gateway": 204
--- FAIL: TestHistograms (0.11s)
    --- FAIL: TestHistograms/bad_count (0.01s)
        --- FAIL: TestHistograms/bad_count/gateway (0.01s)
    --- PASS: TestHistograms/basic (0.01s)
        --- PASS: TestHistograms/basic/gateway (0.01s)
FAIL
"""
BAD, BASIC = "TestHistograms/bad_count", "TestHistograms/basic"


def test_what_became_of_each_is_read() -> None:
    found = read(PRINTED)
    assert found.of == {BAD: "FAIL", BASIC: "PASS"}
    assert found.passed == 1


def test_only_what_is_not_listed_is_reported() -> None:
    found = read(PRINTED)
    (line,) = found.unexpected({})
    assert line.startswith(f"{BAD}: FAIL\n")
    assert "Should be true" in line
    assert "basic" not in line
    assert found.unexpected({BAD: "why"}) == []


def test_what_is_listed_and_passes_is_reported() -> None:
    assert read(PRINTED).unexpected({BAD: "why", BASIC: "because", "TestGone": "once"}) == [
        "TestGone: there is no such test; take it off the list: once",
        f"{BASIC}: it passes now; take it off the list: because",
    ]
