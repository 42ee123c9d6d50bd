package race

import "testing"

// Skip skips, with the race detector, a test of what one goroutine does with many
// bytes or in many cases.
func Skip(t testing.TB) {
	t.Helper()
	if Enabled {
		t.Skip("one goroutine: played without the race detector")
	}
}
