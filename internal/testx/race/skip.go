package race

import "testing"

// Skip skips, with the race detector, a test in which one goroutine processes many bytes or cases.
func Skip(t testing.TB) {
	t.Helper()
	if Enabled {
		t.Skip("one goroutine: runs only without the race detector")
	}
}
